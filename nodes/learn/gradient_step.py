"""The nodes of a gradient step: sample the replay buffer, correct for staleness, step, gate, promote or drop (CLaaS).

They stand in graphs/claas.py. `Learner` is what they need of whoever trains; tools/training/learner.py is one. All that is durable lies in
the replay buffer (which exchanges a step is made of, which steps were taken) and with the adapter's versions. Every node may
run twice: the same minibatch, the same version, the same log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ...memory.errors import AdapterConflict, UserError
from ...memory.records import Check, Correction, Exchange, Measured, Minibatch, Update
from ..state import GradientStepState
from .chat_turn import scope
from .gate import GateThresholds, gate_checks, is_gate_passed

if TYPE_CHECKING:
    from ...memory.claas.adapters import Adapters
    from ...memory.claas.replay import Replay

WITHDRAWN = "made from a version that was withdrawn since"
TAINTED = "comes from a version that learned from a record that was deleted since"
AdapterLookup = Callable[[str, str], "Adapters"]
"""(tenant, adapter) -> its versions."""


class AdapterLearner(Protocol):
    """Whoever takes gradient steps on adapters. Deterministic: the same parent, batch and seed make the same version."""

    @property
    def base(self) -> str:
        """Fingerprint of the base model."""
        ...

    def correct(self, batch: Minibatch) -> Correction:
        """How far the learner has moved from what sampled the batch: log pi_old against log mu."""
        ...

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """One gradient step from the batch's parent; the version it makes is on disk when this returns.

        Raises:
            UserError: nothing can be learned from this batch, ever.
        """
        ...

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """Read a version (empty: the base model) against what was said in these exchanges."""
        ...


def lineage(versions: Adapters, label: str) -> Iterator[str]:
    """A version, the one it was made from, and so on to the base model, whether their files are still there or not."""
    return versions.lineage(label)


def is_from_live(versions: Adapters, label: str) -> bool:
    """Whether a version comes from the live one, and from none that was withdrawn on the way."""
    return versions.is_live_descendant(label)


def is_gate_due(versions: Adapters, label: str, gate_every: int) -> bool:
    """Whether a version is a candidate whose turn it is: every n-th step, and while no canary is out."""
    version = versions.version(label)
    return version.state == "candidate" and not versions.canary and version.step % gate_every == 0


@dataclass(frozen=True)
class SampleMinibatch:
    """Lease a minibatch of M from the buffer: stratified, nothing older than A_max. One that was leased before a crash comes
    first, as it was; and before that a version that no gate has looked at. Learning that stands on a version which was withdrawn
    goes on from the live one."""

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    versions: AdapterLookup = field(repr=False)
    batch_size: int
    """M."""
    min_exchanges: int
    """B_min."""
    base: str
    """Fingerprint of the learner's base model: exchanges of another are of no use."""
    gate_every: int = 1
    """Steps between two gates."""
    seed: int = 0
    positive_share: float | None = 0.5
    """Share of the sample with a reward above 0."""

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        tenant, adapter = scope(state)
        fresh = {"batch": "", "candidate": "", "checks": [], "outcome": "", "why": ""}
        versions, head = self.versions(tenant, adapter), self.replay.head(tenant, adapter)
        if not is_from_live(versions, head):
            self.replay.set_head(tenant, adapter, versions.current)
        elif head and is_gate_due(versions, head, self.gate_every):
            return {**fresh, "candidate": head}
        least = state.get("least") or self.min_exchanges
        if not self.replay.step(tenant, adapter):  # the first step may come as soon as B_min have spoken, held-out ones too
            least = max(min(2, least), least - self.replay.counts(tenant, adapter).get("held", 0))
        batch = self.replay.lease(
            tenant,
            adapter,
            self.batch_size,
            min_exchanges=least,
            seed=self.seed,
            positive_share=self.positive_share,
            base_model=self.base,
        )
        if batch is None:
            return {**fresh, "outcome": "too few", "why": f"fewer than {least} exchanges are ready"}
        return {**fresh, "batch": batch.id}


def route_sample(state: GradientStepState) -> Literal["batch", "too few", "gate first"]:
    """Whether there is something to learn from."""
    return "gate first" if state["candidate"] else "batch" if state["batch"] else "too few"


@dataclass(frozen=True)
class Correct:
    """log pi_old(y) once per minibatch, against log mu(y): weights, ESS, and what is too stale to learn from."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    learner: AdapterLearner = field(repr=False)
    replay: Replay = field(repr=False)

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        try:
            return {"correction": self.learner.correct(self.replay.minibatch(state["batch"]))}
        except UserError as error:
            return {"correction": Correction(()), "why": _reason(error)}


def route_correction(state: GradientStepState) -> Literal["something left", "nothing left"]:
    """Whether anything of the batch can be learned from."""
    return "something left" if state["correction"].kept else "nothing left"


@dataclass(frozen=True)
class TakeGradientStep:
    """theta <- theta - eta grad L: one step on what the correction left, and with it a new version on disk."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    learner: AdapterLearner = field(repr=False)
    replay: Replay = field(repr=False)

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        try:
            update = self.learner.step(self.replay.minibatch(state["batch"]), state["correction"])
        except UserError as error:
            return {"update": Update("", _reason(error)), "why": _reason(error)}
        return {"update": update, "why": update.skipped}


def route_step(state: GradientStepState) -> Literal["a version", "nothing learned"]:
    """Whether the step made a version."""
    return "a version" if state["update"].version else "nothing learned"


def _reason(error: UserError) -> str:
    """Why a batch cannot be learned from. What is wrong with the machine is no fault of the batch, and stays an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            raise error
        cause = cause.__cause__ or cause.__context__
    return str(error)


@dataclass(frozen=True)
class Skip:
    """Nothing was learned: the exchanges go back, counted as sampled, so that no batch can come for ever."""

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        dropped = dict(state["correction"].dropped)
        why = state["why"] or "; ".join(sorted(set(dropped.values()))) or "nothing was left after the correction"
        if dropped:
            self.replay.reject(state["batch"], dropped)
        self.replay.release(state["batch"], why, counts_as_sampling=True)
        return {"outcome": "skipped", "why": why}


@dataclass(frozen=True)
class CommitStep:
    """k <- k + 1: the step is taken and its exchanges are used once more, in one transaction; the next step starts from here.

    A batch may have been withdrawn meanwhile (an exchange was deleted, the live version was rolled back): then nothing was learned.
    """

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    versions: AdapterLookup = field(repr=False)
    gate_every: int = 1

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        tenant, adapter = scope(state)
        update, correction, versions = state["update"], state["correction"], self.versions(tenant, adapter)
        if (
            self.replay.version_of_batch(state["batch"]) != update.version
        ):  # else it is done, and this node was killed behind that
            try:
                batch = self.replay.minibatch(state["batch"])
                if correction.dropped:
                    self.replay.reject(batch.id, dict(correction.dropped))
                if correction.kls:
                    self.replay.note_kl(batch.id, dict(correction.kls))
                self.replay.commit(batch.id, update.version, step_summary(batch, correction, update))
            except UserError as error:
                why = _reason(error)
                versions.drop(update.version, why)
                return {"candidate": "", "outcome": "skipped", "why": why}
        if update.version in self.replay.tainted_versions(
            tenant
        ):  # it goes on from one that learned from what was deleted since
            versions.taint((update.version,), TAINTED)
        due = is_gate_due(versions, update.version, self.gate_every)
        return {"candidate": update.version if due else "", "outcome": "" if due else "stepped"}


def step_summary(batch: Minibatch, correction: Correction, update: Update) -> dict[str, Any]:
    """What the log of steps says of one."""
    rewards = [e.feedback.reward for e in batch.exchanges if e.feedback is not None and e.feedback.reward is not None]
    corrected = asdict(correction)
    return {
        **{name: value for name, value in asdict(update).items() if name != "version"},
        **{name: corrected[name] for name in ("ess", "ratio", "ratio_max", "clipped", "scale")},
        "drift": correction.kl,
        "kept": len(correction.kept),
        "dropped": len(correction.dropped),
        "age": fmean(batch.ages),
        "age_max": max(batch.ages),
        "reward": fmean(rewards) if rewards else None,
    }


def route_commit(state: GradientStepState) -> Literal["gate now", "later"]:
    """Whether it is this version's turn at the gate."""
    return "gate now" if state["candidate"] else "later"


@dataclass(frozen=True)
class GateCandidate:
    """Candidate against live version: held-out feedback, retention set, entropy, KL to the base (nodes/learn/gate.py)."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    learner: AdapterLearner = field(repr=False)
    replay: Replay = field(repr=False)
    versions: AdapterLookup = field(repr=False)
    thresholds: GateThresholds | None
    """None: whatever comes from the live version passes."""
    retention: Sequence[Exchange] = field(default=(), repr=False)
    """Chats whose replies must stay likely."""

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        tenant, adapter = scope(state)
        versions, candidate = self.versions(tenant, adapter), state["candidate"]
        sound = is_from_live(versions, candidate)
        found = [Check("lineage", float(sound), 1.0, sound, "" if sound else WITHDRAWN)]
        if sound and self.thresholds is not None:
            found += self._measure(tenant, adapter, candidate, versions.current, self.thresholds)
        return {"checks": found, "why": "; ".join(f"{c.name}: {c.note}" for c in found if not c.passed)}

    def _measure(self, tenant: str, adapter: str, candidate: str, live: str, thresholds: GateThresholds) -> list[Check]:
        held = [
            exchange
            for exchange in self.replay.held_out_exchanges(tenant, adapter, thresholds.read)
            if exchange.feedback is not None and exchange.feedback.reward is not None
        ]
        texts = [*held, *self.retention]
        if len(texts) < thresholds.texts:  # entropy and KL can be read off any reply
            known = {exchange.id for exchange in texts}
            rows = self.replay.rows(tenant, adapter, limit=thresholds.texts)
            texts += [row.exchange for row in rows if row.exchange.id not in known and row.exchange.reply.token_ids]
        read = {label: self.learner.measure(label, texts) for label in dict.fromkeys((candidate, live, ""))}
        return gate_checks(read[candidate], read[live], read[""], texts, len(held), len(self.retention), thresholds)


def route_gate(state: GradientStepState) -> Literal["passed", "failed"]:
    """What the gate says."""
    return "passed" if is_gate_passed(state["checks"]) else "failed"


def gate_results(found: Sequence[Check]) -> list[dict[str, Any]]:
    """A gate's result as the versions' log keeps it."""
    return [asdict(check) for check in found]


@dataclass(frozen=True)
class Load:
    """The engine takes the new version in beside the one that answers: no request waits for a swap."""

    role: ClassVar[str] = "model"

    load: Callable[[str], Awaitable[None]] | None = field(default=None, repr=False)
    """None: whoever answers reads CURRENT for itself."""

    async def __call__(self, state: GradientStepState) -> dict[str, Any]:
        if self.load is not None:
            await self.load(state["candidate"])
        return {}


@dataclass(frozen=True)
class Promote:
    """The version answers from now on: all requests, or as a canary a share of them until feedback has spoken."""

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = True

    versions: AdapterLookup = field(repr=False)
    canary_share: float = 0.0
    """Share of requests; 0: all at once."""

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        versions, candidate, about = self.versions(*scope(state)), state["candidate"], {"gate": gate_results(state["checks"])}
        why = "passed the gate" if len(state["checks"]) > 1 else "no gate is set"
        change = versions.make_canary if self.canary_share > 0 else versions.promote
        try:
            change(candidate, why, about, require_descendant=True)
        except AdapterConflict as error:
            if versions.current == candidate:  # it was a canary when this node ran first, and went live
                return {"outcome": "live", "why": why}
            versions.drop(candidate, str(error), about)  # rolled back while the gate looked at it
            return {"outcome": "dropped", "why": str(error)}
        return {"outcome": "canary" if self.canary_share > 0 else "live", "why": why}


@dataclass(frozen=True)
class Drop:
    """The version never answers anybody, and learning goes on from the live one."""

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    versions: AdapterLookup = field(repr=False)

    def __call__(self, state: GradientStepState) -> dict[str, Any]:
        tenant, adapter = scope(state)
        versions = self.versions(tenant, adapter)
        # In this order: a crash in between leaves a candidate that nobody builds on.
        self.replay.set_head(tenant, adapter, versions.current)
        versions.drop(state["candidate"], state["why"], {"gate": gate_results(state["checks"])})
        return {"outcome": "dropped"}


def describe_run(state: Mapping[str, Any]) -> str:
    """What a run of the learning graph came to, in a line."""
    what = state.get("candidate") or (state["update"].version if state.get("update") else "") or state.get("batch", "")
    return " ".join(part for part in (state.get("outcome", ""), what, f"({state['why']})" if state.get("why") else "") if part)

"""The nodes of a gradient step: sample the replay buffer, correct for staleness, step, gate, promote or drop (CLaaS).

graphs/claas.py wires them. They train through an `AdapterLearner`; tools/training/learner.py has one. Everything durable lies in the
replay buffer (minibatches, steps) and with the adapter's versions. Every node may run twice after a crash: it finds the same
minibatch, makes the same version and writes the same log.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from typing_extensions import TypedDict

from ...memory.errors import AdapterConflict, AdapterError, UserError, machine_error, public_text
from ...memory.records import Check, Correction, Exchange, ExchangeQuery, Feedback, Measured, Minibatch, Update
from ..state import (
    AdapterScope,
    BatchChannel,
    CandidateVersion,
    ChecksChannel,
    CorrectionChannel,
    GradientStepInput,
    Outcome,
    UpdateChannel,
    WhyChannel,
)
from .chat_turn import scope
from .gate import GateSettings, corrected_check, gate_checks, is_gate_passed, liked_checks, retention_check

if TYPE_CHECKING:
    from ...memory.claas.adapters import Adapters
    from ...memory.claas.replay import Replay
    from ...memory.claas.replay_queries import ReplayRow
    from ...memory.claas.settings import ReplaySettings

__all__ = [
    "AdapterLearner",
    "AdapterLookup",
    "CommitStep",
    "Correct",
    "Drop",
    "GateCandidate",
    "Load",
    "Promote",
    "SampleMinibatch",
    "Skip",
    "TakeGradientStep",
    "describe_run",
    "least_exchanges",
    "route_commit",
    "route_correction",
    "route_gate",
    "route_sample",
    "route_step",
    "steps_ahead",
]

WITHDRAWN = "made from a version that was withdrawn since"
"""Reason against a candidate whose line of versions was rolled back."""
TAINTED = "comes from a version that learned from a record that was deleted since"
"""Reason for the mark on a version whose parent used deleted feedback."""
LIMIT_SHARE = 0.9
"""Share of the way to the gate's bounds on KL and entropy that a step may go."""
MAX_HALVINGS = 2
"""Halvings of a step, at most, after versions that failed the gate in a row: many steps that are too short for the gate to see go where one
whole step would fail."""
WITNESSES = 32
"""Newest exchanges with a reward by which rewards are weighed."""
CORRECTED_AMONG = 16
"""Newest exchanges with feedback among which the gate looks for corrected replies."""
SPARED = 4
"""Newest corrected replies that a step does not learn from, and newest liked replies that it does not hold; at most half of each kind. The
gate reads them, since a version says by heart what it has just learned."""
RETAINED = 32
"""Chats of the retention set that a step holds, drawn anew for each step."""
REHEARSED = 32
"""Newest corrections that a step rehearses, at most."""
MAX_READINGS = 64
"""Versions whose readings of the retention set the gate keeps."""
REHEARSED_AMONG = 256
"""Newest exchanges with feedback whose corrections are rehearsed, and may settle what a question is answered."""
AGREEING = 3
"""Newest corrections of a question, in the same words, that settle what it is answered, also in chats of the retention set."""
RESTATED = 8
"""Chats of the retention set that a step learns to answer as users settled it, at most."""
AdapterLookup = Callable[[str, str], "Adapters"]
"""(tenant, adapter) -> its versions."""


class AdapterLearner(Protocol):
    """Takes gradient steps on adapters. The same parent, minibatch and seed give the same version."""

    @property
    def base(self) -> str:
        """Fingerprint of the base model."""

    def correct(self, batch: Minibatch) -> Correction:
        """Importance weights' statistics of a minibatch, log pi_old against log mu, and which exchanges can be learned from."""

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """One gradient step from the minibatch's parent. The new version is on disk when this returns.

        Raises:
            UserError: nothing can be learned from this minibatch, however often it is tried.
        """

    def measure(self, label: str, exchanges: Sequence[Exchange], with_kl: bool = True) -> Measured:
        """Log-probabilities, entropy and (unless `with_kl` is false) KL of a version (empty label: the base model) on exchanges' replies."""


def is_gate_due(versions: Adapters, label: str, gate_every: int) -> bool:
    """True if a version is a candidate at a step that `gate_every` divides, and no canary is out."""
    version = versions.version(label)
    return version.state == "candidate" and not versions.canary and version.step % gate_every == 0


class BatchOrCandidate(BatchChannel, CandidateVersion):
    """A minibatch, or a version that waits for its gate, or neither."""


class StepStart(BatchOrCandidate, ChecksChannel, Outcome):
    """The channels of a gradient step that begins."""


class ScopedBatch(AdapterScope, BatchChannel):
    """A minibatch, and the adapter that it is for."""


class CorrectedBatch(ScopedBatch, CorrectionChannel):
    """A minibatch, and which of its exchanges may teach."""


class SkippedBatch(BatchChannel, CorrectionChannel, WhyChannel, total=False):
    """A minibatch, which of its exchanges may teach, the reason why nothing is learned, and the result of a step that taught nothing."""

    update: Update


class CorrectionOrReason(CorrectionChannel, total=False):
    """A correction, and the reason if it is empty."""

    why: str


class UpdateWithReason(UpdateChannel, WhyChannel):
    """The result of a step, and the reason if there is none."""


class UpdatedBatch(CorrectedBatch, UpdateChannel):
    """A minibatch, and the version that was made from it."""


class CommittedStep(CandidateVersion, total=False):
    """The version that the gate is to examine, or the outcome of the step."""

    outcome: str
    why: str


class ScopedCandidate(AdapterScope, CandidateVersion):
    """A version, and its adapter."""


class GateResults(ChecksChannel, WhyChannel):
    """The results of the gate, and the reasons of those that failed."""


class GatedCandidate(ScopedCandidate, ChecksChannel):
    """A version that the gate has examined."""


class FailedCandidate(GatedCandidate, WhyChannel):
    """A version that the gate has examined, and the reason against it."""


@dataclass(frozen=True)
class _MemoryNode:
    """A node that works on the replay buffer and the versions."""

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)
    versions: AdapterLookup = field(repr=False)


@dataclass(frozen=True)
class _LearnerNode:
    """A node that asks the learner about exchanges of the replay buffer."""

    role: ClassVar[str] = "model"
    is_blocking: ClassVar[bool] = True

    learner: AdapterLearner = field(repr=False)
    replay: Replay = field(repr=False)


@dataclass(frozen=True)
class SampleMinibatch(_MemoryNode):
    """Lease a minibatch of M exchanges from the buffer, stratified, none older than A_max.

    A version that no gate has looked at comes first, then a minibatch that was leased before a crash. If the version that learning
    stands on was withdrawn, learning goes on from the live one.
    """

    settings: ReplaySettings
    """M, B_min and the share of positive rewards."""
    base: str
    """Fingerprint of the learner's base model; exchanges of other base models are rejected."""
    gate_every: int = 1
    """Gradient steps between two gates."""
    max_lead: int | None = None
    """Gradient steps since the newest version that has feedback, from which on the learner waits for feedback on a newer one."""
    seed: int = 0
    """Seed of the draws."""
    has_gate: bool = True
    """False: no gate reads the newest corrections, so that a step learns from them at once (`SPARED`)."""

    def __call__(self, state: GradientStepInput) -> StepStart:
        tenant, adapter = scope(state)
        fresh: StepStart = {"batch": "", "candidate": "", "checks": [], "outcome": "", "why": ""}
        versions, head = self.versions(tenant, adapter), self.replay.head(tenant, adapter)
        if not versions.is_live_descendant(head):
            self.replay.set_head(tenant, adapter, versions.current)
        elif head and is_gate_due(versions, head, self.gate_every):
            return {**fresh, "candidate": head}
        step, asked = self.replay.step(tenant, adapter), state.get("least")
        if not asked and (ahead := steps_ahead(self.replay, tenant, adapter, self.max_lead)):
            why = f"the model learned for {ahead} steps from replies of older versions, and waits for feedback on a newer one"
            return {**fresh, "outcome": "too few", "why": why}
        least = asked or self.settings.min_exchanges
        if not step:
            least = least_exchanges(least, step, self.replay.counts(tenant, adapter).get("held", 0))
        size, share = self.settings.batch_size, self.settings.positive_share
        corrected = self.replay.corrections(tenant, adapter, CORRECTED_AMONG) if self.has_gate else []
        spared = frozenset(one.id for one in _spared(corrected))
        batch = self.replay.lease(tenant, adapter, size, least, self.seed, share, self.base, spared)
        if batch is None:
            return {**fresh, "outcome": "too few", "why": f"fewer than {least} exchanges are ready"}
        return {**fresh, "batch": batch.id}


def steps_ahead(replay: Replay, tenant: str, adapter: str, max_lead: int | None) -> int:
    """Gradient steps since the newest version that has feedback, if they are `max_lead` or more; else 0. None: no limit."""
    youngest = 0 if max_lead is None else replay.youngest_age(tenant, adapter)
    return youngest if max_lead is not None and youngest >= max_lead else 0


def least_exchanges(min_exchanges: int, step: int, held_count: int) -> int:
    """Ready exchanges that the next step needs: B_min; for the first step, B_min feedbacks with the held-out ones included."""
    return min_exchanges if step else max(min(2, min_exchanges), min_exchanges - held_count)


def route_sample(state: BatchOrCandidate) -> Literal["batch", "too few", "gate first"]:
    """`batch` if a minibatch was leased, `gate first` if a candidate waits for its gate, else `too few`."""
    return "gate first" if state["candidate"] else "batch" if state["batch"] else "too few"


@dataclass(frozen=True)
class Correct(_LearnerNode):
    """Compare log pi_old(y) with log mu(y), once per minibatch: importance weights, ESS, and exchanges that are too stale.

    It also sets the step's limits, a little inside of the gate's, so that a version does not fail there for having gone too far from
    the base model. Versions in a row that failed the gate halve the next step, unless a retention set is held.
    """

    versions: AdapterLookup = field(repr=False)
    gate: GateSettings = field(default_factory=GateSettings)
    """The bounds of the gate."""
    weighs_rewards: bool = False
    """Rewards are weighed by those of the newest exchanges (`Minibatch.witnesses`)."""
    max_halvings: int = MAX_HALVINGS
    """Halvings of a step after versions that failed; 0 where a retention set is held, which the updates of a short step would not repair."""

    def __call__(self, state: ScopedBatch) -> CorrectionOrReason:
        batch = self.replay.minibatch(state["batch"])
        if self.weighs_rewards:
            rows = newest_rewarded(self.replay, batch.tenant, batch.adapter, WITNESSES)
            batch = replace(batch, witnesses=tuple(row.exchange for row in rows))
        try:
            correction = self.learner.correct(batch)
        except UserError as error:
            return {"correction": Correction(()), "why": _reason(error)}
        max_kl, min_entropy_share = step_limits(self.gate)
        scale = correction.scale * 0.5 ** min(self.versions(*scope(state)).drops_in_a_row, self.max_halvings)
        return {"correction": replace(correction, scale=scale, max_kl=max_kl, min_entropy_share=min_entropy_share)}


def newest_rewarded(replay: Replay, tenant: str, adapter: str, count: int) -> list[ReplayRow]:
    """The newest exchanges of an adapter that have a reward and were not rejected, newest first."""
    rows = replay.rows(ExchangeQuery(tenant, adapter, limit=2 * count, is_rated=True))
    rows = [row for row in rows if row.state != "rejected"]
    return [row for row in rows if row.exchange.feedback and row.exchange.feedback.reward is not None][:count]


def read_corrections(replay: Replay, tenant: str, adapter: str) -> tuple[list[Exchange], dict[str, str]]:
    """The corrected exchanges among the newest `REHEARSED_AMONG` with feedback, newest first, and the questions that they settle."""
    corrected, teachers = (
        replay.corrections(tenant, adapter, REHEARSED_AMONG),
        replay.teachers(tenant, adapter, REHEARSED_AMONG),
    )
    return corrected, settled_questions(corrected, teachers)


def settled_questions(corrected: Iterable[Exchange], teachers: Iterable[str]) -> dict[str, str]:
    """Questions whose newest `AGREEING` corrections among `corrected`, newest first, are the same, with these words: chats of a retention
    set that ask them must not be answered as the base model does. Of several end users who give feedback, one alone settles nothing."""
    found = defaultdict[str, list[tuple[str, str]]](list)
    for one in corrected:
        asked, words = _question_and_correction(one)
        found[asked].append((words, one.user))
    everybody, settled = {*teachers}, dict[str, str]()
    for asked, given in found.items():
        texts, users = ({*column} for column in zip(*given[:AGREEING], strict=True))
        if len(given) >= AGREEING and len(texts) == 1 and (len(users) > 1 or users in ({""}, everybody)):
            settled[asked] = given[0][0]
    return settled


def _question_and_correction(one: Exchange) -> tuple[str, str]:
    """A chat's last message (in parts: their texts, if they are nothing else), and what should have been replied (empty: no correction)."""
    asked = next((message.get("content") for message in one.request.messages[-1:]), one.request.raw)
    if isinstance(asked, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in asked):
        asked = " ".join(str(part.get("text")) for part in asked)
    return str(asked), one.feedback.correction.strip() if one.feedback else ""


def _spared(exchanges: list[Exchange]) -> list[Exchange]:
    """The exchanges that a step leaves to the gate (`SPARED`), of exchanges of one kind, newest first."""
    return exchanges[: min(SPARED, len(exchanges) // 2)]


def newest_liked(
    replay: Replay, tenant: str, adapter: str, gate: GateSettings, since: float, with_held_out: bool = True
) -> list[Exchange]:
    """Those of the newest exchanges with a reward (twice `min_rewards`) that were liked without a word, newest first.

    Args:
        since: Unix time of the last rollback for falling rewards; what was liked before has no say: by it a version passed that users
            then liked less.
        with_held_out: with those that are held out from training.
    """
    rows = newest_rewarded(replay, tenant, adapter, 2 * gate.min_rewards)
    found = [row.exchange for row in rows if row.exchange.created >= since and (with_held_out or row.state != "held")]
    rewarded = [(one, one.feedback) for one in found if one.feedback and one.reply.token_ids]
    return [one for one, said in rewarded if (said.reward or 0) > 0 and not (said.is_mixed or said.correction)]


def newest_rehearsal(
    replay: Replay, versions: Adapters, batch: Minibatch, gate: GateSettings, corrected: Sequence[Exchange]
) -> tuple[Exchange, ...]:
    """The replies that a step rehearses: the newest liked ones, but for what it leaves to the gate (`SPARED`); and those of
    `corrected`, newest first, that an earlier version learned from, unless their question was corrected in other words since."""
    liked = newest_liked(replay, batch.tenant, batch.adapter, gate, versions.last_fall, with_held_out=False)
    newest, before = dict(map(_question_and_correction, reversed(corrected))).items(), {*versions.lineage(batch.parent)} - {""}
    valid = (one for one in corrected if _question_and_correction(one) in newest)
    learned = (one for one in valid if before & {label for _, label in replay.uses(batch.tenant, one.id)})
    return (*liked[len(_spared(liked)) * gate.enabled :], *islice(learned, REHEARSED))


def with_base_logprobs(learner: AdapterLearner, retention: Sequence[Exchange]) -> list[Exchange]:
    """The chats of a retention set with the base model's log-probabilities of their replies."""
    rows = learner.measure("", retention, with_kl=False).logprobs if retention else ()
    return [replace(one, reply=replace(one.reply, logprobs=row)) for one, row in zip(retention, rows, strict=True)]


def draw_retained(batch: Minibatch, retention: Sequence[Exchange], settled: Mapping[str, str]) -> Minibatch:
    """A minibatch with chats of a retention set: `RETAINED` to hold, and `RESTATED` to answer as users settled it, once a version learned
    one of their corrections (so that what is deleted is found in the versions that know it)."""
    draw, like, learned = random.Random(batch.seed), batch.exchanges[0], {*map(_question_and_correction, batch.rehearsal)}
    held, restated = list[Exchange](), list[Exchange]()
    for one in retention:
        asked, _ = _question_and_correction(one)
        if asked not in settled:
            held.append(one)
        elif (asked, settled[asked]) in learned:
            said = Feedback(correction=settled[asked])
            restated.append(replace(one, tenant=like.tenant, adapter=like.adapter, base=like.base, feedback=said))
    restated = draw.sample(restated, min(RESTATED, len(restated)))
    held = draw.sample(held, min(RETAINED, len(held)))
    return replace(batch, rehearsal=(*batch.rehearsal, *restated), retained=tuple(held))


def step_limits(gate: GateSettings) -> tuple[float, float]:
    """KL(pi || base) per token that a step may end with, in nats, and the share of the base model's entropy that it must leave. A gate
    that is off sets no limits, and a share of 0 none on the entropy."""
    if not gate.enabled:
        return math.inf, 0.0
    least = 1.0 - LIMIT_SHARE * (1.0 - min(gate.min_entropy_share, 1.0)) if gate.min_entropy_share > 0 else 0.0
    return LIMIT_SHARE * gate.max_kl, least


def route_correction(state: CorrectionChannel) -> Literal["something left", "nothing left"]:
    """`something left` if the correction kept any exchange."""
    return "something left" if state["correction"].kept else "nothing left"


@dataclass(frozen=True)
class TakeGradientStep(_LearnerNode):
    """theta <- theta - eta grad L: one step on the exchanges that the correction kept, which rehearses the newest liked and corrected
    replies and holds some of the retention set. Writes a new version to disk."""

    versions: AdapterLookup = field(repr=False)
    gate: GateSettings = field(default_factory=GateSettings)
    """The number of liked replies that the gate reads."""
    retention: Sequence[Exchange] = field(default=(), repr=False)
    """Chats whose replies must stay as likely as under the base model."""
    _readings: list[Exchange] = field(default_factory=list, repr=False, compare=False)
    """The same with the base model's log-probabilities, once a step has read them."""

    def __call__(self, state: CorrectedBatch) -> UpdateWithReason:
        batch = self.replay.minibatch(state["batch"])
        corrected, settled = read_corrections(self.replay, batch.tenant, batch.adapter)
        rehearsal = newest_rehearsal(self.replay, self.versions(*scope(state)), batch, self.gate, corrected)
        batch = draw_retained(replace(batch, rehearsal=rehearsal), self._read_retention(), settled)
        try:
            update = self.learner.step(batch, state["correction"])
        except UserError as error:
            return {"update": Update("", _reason(error)), "why": _reason(error)}
        return {"update": update, "why": update.skipped}

    def _read_retention(self) -> Sequence[Exchange]:
        if not self._readings:
            self._readings[:] = with_base_logprobs(self.learner, self.retention)
        return self._readings


def route_step(state: UpdateChannel) -> Literal["a version", "nothing learned"]:
    """`a version` if the step made one."""
    return "a version" if state["update"].version else "nothing learned"


def _reason(error: UserError) -> str:
    """Reason against learning from a minibatch. An error of the machine (a full disk, a damaged version) is raised again: the data is
    not at fault, and stays."""
    if machine_error(error) is not None or type(error) is AdapterError:
        raise error
    return public_text(error)


@dataclass(frozen=True)
class Skip:
    """Return a minibatch from which nothing was learned. Its exchanges count as sampled, so that none is drawn for ever, unless what they
    teach is learned already: it may be lost again."""

    role: ClassVar[str] = "memory"

    replay: Replay = field(repr=False)

    def __call__(self, state: SkippedBatch) -> Outcome:
        update = state.get("update")
        dropped = dict(state["correction"].dropped)
        why = state["why"] or "; ".join(sorted(set(dropped.values()))) or "nothing was left after the correction"
        self.replay.release(state["batch"], why, counts_as_sampling=update is None or not update.help, rejected=dropped)
        return {"outcome": "skipped", "why": why}


@dataclass(frozen=True)
class CommitStep(_MemoryNode):
    """k <- k + 1: record the step and one more use of its exchanges, in one transaction. The next step starts from the new version.

    If the minibatch was withdrawn meanwhile (an exchange was deleted, the live version was rolled back), the new version is dropped.
    """

    gate_every: int = 1

    def __call__(self, state: UpdatedBatch) -> CommittedStep:
        tenant, adapter = scope(state)
        update, correction, versions = state["update"], state["correction"], self.versions(tenant, adapter)
        # If they are equal, this node ran before and was killed after its transaction.
        if self.replay.version_of_batch(state["batch"]) != update.version:
            try:
                batch = self.replay.minibatch(state["batch"])
                summary = step_summary(batch, correction, update)
                self.replay.commit(batch.id, update.version, summary, dict(correction.dropped), dict(correction.kls))
            except UserError as error:
                why = _reason(error)
                versions.drop(update.version, why)
                return {"candidate": "", "outcome": "skipped", "why": why}
        if update.version in self.replay.tainted_versions(tenant):
            versions.taint((update.version,), TAINTED)
        due = is_gate_due(versions, update.version, self.gate_every)
        return {"candidate": update.version if due else "", "outcome": "" if due else "stepped"}


def step_summary(batch: Minibatch, correction: Correction, update: Update) -> dict[str, Any]:
    """A step's entry in the buffer's log of steps: losses, importance weights, ages, mean reward."""
    rewards = [e.feedback.reward for e in batch.exchanges if e.feedback is not None and e.feedback.reward is not None]
    about = {name: value for name, value in asdict(update).items() if name != "version"}
    about |= {name: getattr(correction, name) for name in ("ess", "ratio", "ratio_max", "clipped", "scale")}
    about |= {"drift": correction.kl, "kept": len(correction.kept), "dropped": len(correction.dropped)}
    return about | {"age": fmean(batch.ages), "age_max": max(batch.ages), "reward": fmean(rewards) if rewards else None}


def route_commit(state: CandidateVersion) -> Literal["gate now", "later"]:
    """`gate now` if the new version is a candidate for the gate."""
    return "gate now" if state["candidate"] else "later"


@dataclass(frozen=True)
class GateCandidate(_LearnerNode):
    """Compare the candidate with the live version: liked and corrected replies, retention set, entropy, KL to the base
    (nodes/learn/gate.py).

    Feedback on replies from before the last rollback for falling rewards has no say: by it a version passed that users then liked less.
    """

    versions: AdapterLookup = field(repr=False)
    settings: GateSettings
    retention: Sequence[Exchange] = field(default=(), repr=False)
    """Chats whose replies must stay as likely as under the base model, other ones than those of the steps."""
    _readings: dict[tuple[str, str, str], Measured] = field(default_factory=dict, repr=False, compare=False)
    """(tenant, adapter, version) -> its readings of the retention set."""

    def __call__(self, state: ScopedCandidate) -> GateResults:
        tenant, adapter = scope(state)
        versions, candidate = self.versions(tenant, adapter), state["candidate"]
        descends = versions.is_live_descendant(candidate)
        checks = [Check("lineage", float(descends), 1.0, descends, "" if descends else WITHDRAWN)]
        if descends and self.settings.enabled:
            checks += self._measure(tenant, adapter, candidate, versions.current)
        return {"checks": checks, "why": "; ".join(f"{check.name}: {check.note}" for check in checks if not check.passed)}

    def _measure(self, tenant: str, adapter: str, candidate: str, live: str) -> list[Check]:
        since = self.versions(tenant, adapter).last_fall
        # The step stayed within the bounds on these. On other texts, version after version could fail, and learning would come to rest.
        rows = self.replay.rows(ExchangeQuery(tenant, adapter, limit=self.settings.texts, learned_by=candidate))
        texts = [row.exchange for row in rows]
        _, settled = read_corrections(self.replay, tenant, adapter)
        liked = newest_liked(self.replay, tenant, adapter, self.settings, since)
        checks = gate_checks(new := self.learner.measure(candidate, texts), None, self.settings)
        if not is_gate_passed(checks):
            checks = gate_checks(new, self.learner.measure(live, texts), self.settings)
        if ids := {one.id for one in self.retention if _question_and_correction(one)[0] not in settled}:
            new, old, base = (self._read_retention(tenant, adapter, label, ids) for label in (candidate, live, ""))
            checks.append(retention_check(new, old, base, self.settings))
        if newest := self.replay.corrections(tenant, adapter, CORRECTED_AMONG):
            checks.append(self._check_corrected(newest, candidate, live))
        if len(liked) >= self.settings.min_rewards:
            whole = [one.reply.token_ids for one in liked]
            replies = [tokens[:-1] or tokens for tokens in whole]
            read = partial(self.learner.measure, with_kl=False)
            plain, old = (read(label, _with_replies(liked, replies)) for label in (candidate, live))
            behind = read(candidate, _with_replies(liked, map(_put_in_front, plain.firsts, whole)))
            pairs = zip(replies, behind.logprobs, strict=True)
            readings = (plain, Measured(tuple(row[-len(reply) :] for reply, row in pairs)))
            checks += liked_checks(replies, readings, old, self.settings)
        return checks

    def _read_retention(self, tenant: str, adapter: str, label: str, ids: set[str]) -> Measured:
        """A version's log-probabilities of these chats. It is read once: at the next gates it is the live one, and the base model stays."""
        key = (tenant, adapter, label) if label else ("", "", "")
        if key not in self._readings:
            self._readings[key] = self.learner.measure(label, self.retention, with_kl=False)
            if len(self._readings) > MAX_READINGS:
                del self._readings[next(iter(self._readings))]
        rows = zip(self.retention, self._readings[key].logprobs, strict=True)
        return Measured(tuple(row for one, row in rows if one.id in ids))

    def _check_corrected(self, corrected: Sequence[Exchange], candidate: str, live: str) -> Check:
        wanted = [
            replace(e, reply=replace(e.reply, text=e.feedback.correction.strip(), token_ids=()))
            for e in corrected
            if e.feedback
        ]
        try:
            new, old = (self.learner.measure(label, [*corrected, *wanted], with_kl=False) for label in (candidate, live))
        except UserError as error:  # a correction that does not fit the window, which no step has rejected yet
            return Check("corrected replies lost", None, self.settings.max_own_loss, True, _reason(error))
        return corrected_check(new, old, self.settings)


def _with_replies(exchanges: Sequence[Exchange], replies: Iterable[Sequence[int]]) -> list[Exchange]:
    said = zip(exchanges, replies, strict=True)
    return [replace(one, reply=replace(one.reply, token_ids=tuple(tokens))) for one, tokens in said]


def _put_in_front(token: int, reply: Sequence[int]) -> tuple[int, ...]:
    """A reply with another token in front and without its last one: no longer than it was, since it may fill the window. One token stays."""
    return (token, *reply[:-1]) if len(reply) > 1 else tuple(reply)


def route_gate(state: ChecksChannel) -> Literal["passed", "failed"]:
    """`passed` if all checks of the gate passed."""
    return "passed" if is_gate_passed(state["checks"]) else "failed"


class NoChannels(TypedDict):
    """No channel: the engine holds what was loaded."""


@dataclass(frozen=True)
class Load:
    """Have the engine load the new version beside the live one, so that no request waits for a swap."""

    role: ClassVar[str] = "model"

    load: Callable[[str], Awaitable[None]] | None = field(default=None, repr=False)
    """None: the engine finds versions by itself."""

    async def __call__(self, state: CandidateVersion) -> NoChannels:
        if self.load is not None:
            await self.load(state["candidate"])
        return {}


@dataclass(frozen=True)
class Promote:
    """Make the version answer: all requests, or as a canary a share of them until there is enough feedback."""

    role: ClassVar[str] = "memory"
    is_blocking: ClassVar[bool] = True

    versions: AdapterLookup = field(repr=False)
    canary_share: float = 0.0
    """Share of requests; 0: all at once."""

    def __call__(self, state: GatedCandidate) -> Outcome:
        versions, candidate = self.versions(*scope(state)), state["candidate"]
        about = {"gate": [asdict(check) for check in state["checks"]]}
        why = "passed the gate" if len(state["checks"]) > 1 else "no gate is set"
        change = versions.make_canary if self.canary_share > 0 else versions.promote
        try:
            change(candidate, why, about, require_descendant=True)
        except AdapterConflict as error:
            if versions.current == candidate:  # this node ran before, and the canary went live since
                return {"outcome": "live", "why": why}
            versions.drop(candidate, str(error), about)  # there was a rollback during the gate
            return {"outcome": "dropped", "why": str(error)}
        return {"outcome": "canary" if self.canary_share > 0 else "live", "why": why}


@dataclass(frozen=True)
class Drop(_MemoryNode):
    """Drop a version that failed the gate, and go on learning from the live one. The feedback behind it may teach again."""

    def __call__(self, state: FailedCandidate) -> Outcome:
        tenant, adapter = scope(state)
        versions = self.versions(tenant, adapter)
        # In this order: a crash in between leaves a candidate that is no step's parent.
        self.replay.set_head(tenant, adapter, versions.current, give_back=True)
        versions.drop(state["candidate"], state["why"], {"gate": [asdict(check) for check in state["checks"]]})
        return {"outcome": "dropped", "why": state["why"]}


def describe_run(state: Mapping[str, Any]) -> str:
    """A line with the outcome of a run of the learning graph, its version or minibatch, and the reason."""
    what = state.get("candidate") or (state["update"].version if state.get("update") else "") or state.get("batch", "")
    return " ".join(part for part in (state.get("outcome", ""), what, f"({state['why']})" if state.get("why") else "") if part)

"""CLaaS's learner: one gradient step on a minibatch of served exchanges, from a version's folder to the next one's.

    learner = InProcessLearner(model, folder, write, LearnerSettings(LoRA(rank=16), Objective(kind="sdpo")))
    correction = learner.correct(batch)         # the exchanges that can be learned from, and the learning rate's scale
    update = learner.step(batch, correction)    # update.version is the label of the new version

One base model stays in memory, and one set of LoRA tensors, into which the version that learns is copied for each call. Everything
that lasts from step to step lies in the version's folder (tools/training/version_files.py): learning goes on from any version on any
machine, and adapters cannot affect each other. The same parent, minibatch and seed give the same bytes, on one thread and one kind of
machine.

Losses and corrections are in tools/training/losses.py, examples and the teacher's prompts in tools/training/examples.py.
"""

from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from scipy.optimize import brentq  # type: ignore[import-untyped]
from torch import Tensor

from ...memory.claas.settings import READ_EVERY, Objective
from ...memory.errors import UserError
from ...memory.records import LEARNED_ALREADY, Correction, Exchange, Measured, Minibatch, Update
from ..local.fingerprint import fingerprint
from ..local.model import LocalChatModel
from ..models.models import open_model
from .calls import LabelledLearner, LearnerModel, LearnerSettings
from .examples import ExampleReader, hindsight_block
from .lora import (
    LEARNED,
    Example,
    OptimizerStepResult,
    ReplyLogprobs,
    Rewriting,
    TrainingSample,
    attach_lora,
    copy_tensors,
    learn,
    lora_parameters,
    make_critic,
    make_optimizer,
    read_optimizer,
    reply_logits,
    reply_logprobs,
    rewrite_replies,
    shorten_passes,
)
from .losses import can_tell_apart, compute_advantages, ema, measure_staleness, weigh_rewards
from .version_files import OPTIMIZER_FILE, VersionError, VersionFiles, VersionState

__all__ = ["EngineLearner", "InProcessLearner", "LoRATrainer"]

MAX_CACHED_VERSIONS = 3
"""Versions whose tensors stay in memory between calls."""
SPARE_ROOM = 1 / 16
"""Share of the room between the base model and a step's limits at which the search for the factor that keeps within them ends."""
MAX_TRIALS = 8
"""Factors that are tried, at most; that is enough unless KL is more than 50 times its limit."""
CONTRADICTION = 2.0
"""Nats by which words must make a praised reply less likely, or a blamed one more, to contradict the reward (of 1 or -1)."""
CONTRADICTIONS = 3
"""Contradictions from which on no reward is believed, where they are more than half of the rewards with words."""
KEPT = 0.8
"""Share of its former probability that each token of a rehearsed or retained reply must keep."""
SURE = 0.5
"""Least probability of each token that the teacher puts into a reply to imitate: a guess is not what was asked for."""
HOLD = 0.5
"""Weight of a token of a liked reply that is lost whole, beside that of a token to imitate: who changes his mind is followed."""
PARENT_SHARE = 0.95
"""Share of its parent's distance from the base model that a version must come back to, if the parent is beyond the limits."""


class LoRATrainer:
    """The learner's work, with folders in place of labels: `InProcessLearner` runs it here, `WorkerLearner` in another process.

    Args:
        model: the base model. Its network is left as it is: the trainer has one of its own over the same tensors.
        settings: the adapters' shape, the loss and the teacher's prompt.
    """

    def __init__(self, model: LocalChatModel, settings: LearnerSettings) -> None:
        hindsight_block(settings.hindsight)  # raises for an invalid template
        lora, objective = settings.lora, settings.objective
        self.base = fingerprint(model)
        """Fingerprint of the base model."""
        self._objective = objective
        self._network = _clone_sharing_weights(model.network)
        wrapper = attach_lora(self._network, lora)
        live = lora_parameters(self._network)
        # Kept, since a walk through the modules takes as long as a pass.
        self._live = {name: live[name] for name in sorted(live)}
        self._layers = [module for module in self._network.modules() if hasattr(module, "_disable_adapters")]
        shorten_passes(self._network)
        self._files = VersionFiles.of(wrapper, model, self.base, lora)
        vocabulary = int(self._network.get_input_embeddings().weight.shape[0])
        self._reader = ExampleReader(model, self.base, objective, settings.hindsight, vocabulary)
        self._states: dict[Path, VersionState] = {}

    # The calls of a learner

    def correct(self, folder: Path | None, batch: Minibatch) -> Correction:
        """Importance statistics of a minibatch, log pi_old against log mu, and the exchanges that can be learned from.

        Args:
            folder: the parent version's; None: the base model.
            batch: the minibatch.

        Raises:
            UserError: the minibatch or its parent does not belong to this learner.
        """
        state = self._parent_state(folder, batch)
        samples, dropped = self._reader.samples(batch)
        if not samples:
            return Correction((), tuple(dropped.items()))
        copy_tensors(self._live, state.tensors)
        weighs = self._objective.weighs_rewards and bool(batch.witnesses)
        drawn = [*self._reader.samples(replace(batch, exchanges=batch.witnesses))[0], *samples] if weighs else samples
        rewards = [one.reward for one in drawn if one.reward is not None]
        can_weigh = weighs and can_tell_apart(rewards)  # else the witnesses say nothing
        known = {one.id: one for one in (drawn if can_weigh else samples)}
        read = reply_logprobs(self._network, [one.example for one in known.values()], with_scores=can_weigh)
        readings = dict(zip(known, read, strict=True))
        old = [readings[sample.id].logprobs for sample in samples]
        behaviour = [
            now if sample.behaviour_logprobs is None else sample.behaviour_logprobs
            for sample, now in zip(samples, old, strict=True)
        ]
        found = measure_staleness([sample.id for sample in samples], old, behaviour, self._objective, dropped)
        rewarded = [one for one in known.values() if one.reward is not None]
        return self._weigh_rewards(samples, rewarded, readings, found, state) if weighs and rewarded else found

    def _weigh_rewards(
        self,
        samples: Sequence[TrainingSample],
        known: Sequence[TrainingSample],
        readings: Mapping[str, ReplyLogprobs],
        correction: Correction,
        state: VersionState,
    ) -> Correction:
        """The correction with what the rewards of the minibatch are worth, by all known ones: with its own those of its witnesses.

        A reward that the words beside it contradict says nothing: where the teacher, having read the words, would say a praised reply
        less, or otherwise, or a blamed one more.
        """
        believed = list(range(len(known))) if can_tell_apart([one.reward or 0.0 for one in known]) else []
        worded = [n for n in believed if known[n].hindsight is not None]
        # The teacher's weights: the learner has learned to say what the words ask for, and is not moved by them.
        with self._with_tensors(state.teacher):
            taught = reply_logprobs(self._network, [h for n in worded if (h := known[n].hindsight) is not None])
            plain = reply_logprobs(self._network, [known[n].example for n in worded])
        doubted = set()
        for n, reading, before in zip(worded, taught, plain, strict=True):
            if (known[n].reward or 0.0) * float((reading.logprobs - before.logprobs).sum()) < -CONTRADICTION:
                doubted.add(known[n].id)
        praised = [known[n] for n in worded if (known[n].reward or 0.0) > 0]
        if praised and self._objective.rewrites:
            doubted |= {one.id for one, new in zip(praised, self._written_anew(praised, state), strict=True) if new.has_changed}
        believed = [n for n in believed if known[n].id not in doubted]
        if 2 * len(doubted) > max(len(worded), CONTRADICTIONS):
            believed = []  # who contradicts his words gives thumbs without words no better
        own, advantages, errors, share = {one.id for one in samples}, dict[str, float](), 0.0, 0.0
        if len(believed) > 1:
            scores = torch.stack([score for n in believed if (score := readings[known[n].id].score) is not None])  # (n, hidden)
            rewards = torch.tensor([known[n].reward or 0.0 for n in believed], dtype=torch.float32)  # (n,)
            evidence = weigh_rewards(scores, rewards)
            errors, share = evidence.standard_errors, evidence.share(self._objective.policy.min_evidence)
            spread = max(float(rewards.std(correction=0)), self._objective.policy.min_advantage_std)
            above = ((evidence.confirmed - rewards.mean()) / spread).tolist()
            advantages = {
                known[n].id: value for n, value in zip(believed, above, strict=True) if share > 0 and known[n].id in own
            }
        # AdamW's step does not shrink with the loss: the learning rate has to.
        share *= self._objective.policy.step_share
        steps = [
            1.0 if one.reward is None or one.hindsight is not None else share * min(1.0, abs(advantages.get(one.id, 0.0)))
            for one in samples
        ]
        steps = [step for step in steps if step > 0]
        return replace(
            correction,
            scale=correction.scale * (sum(steps) / len(steps) if steps else 1.0),
            advantages=tuple(sorted(advantages.items())),
            evidence=errors,
        )

    def step(self, folder: Path | None, batch: Minibatch, correction: Correction, out: Path) -> tuple[Update, dict[str, Any]]:
        """One gradient step on what the correction kept. Writes the next version's files into the empty folder `out`.

        Returns:
            The update, without a label; if its `skipped` gives a reason, nothing was learned or written. And the step's statistics
            for the version's log.

        Raises:
            UserError: the minibatch or its parent does not belong to this learner; the files cannot be written.
        """
        began, objective, network = perf_counter(), self._objective, self._network
        state = self._parent_state(folder, batch)
        samples: Sequence[TrainingSample] = self._kept_samples(batch, correction)
        if not samples:
            return Update("", _nothing_left(correction, objective)), {}
        taught = {sample.id for sample in samples}  # as they were served: the base model would never say a correction
        examples = [self._reader.example(one) for one in batch.exchanges if one.id in taught]
        copy_tensors(self._live, state.tensors)
        critic = make_critic(network) if objective.needs_critic else None
        optimizer = self._make_optimizer(state, critic)
        samples = self._with_advantages(samples, critic)
        if not samples:
            return Update("", "all rewards are alike, and as they were to be expected: there is nothing to learn"), {}
        asked, samples = len(samples), self._rewrite(samples, state, batch) if objective.rewrites else samples
        # Updates until replies are learned take no moments over, and leave none: they lead the next step to what another user wanted.
        repeats = objective.kind == "mixed" and any(one.is_wanted for one in samples)
        if repeats:
            optimizer.state.clear()
        scale = correction.scale * min(1.0, (state.updates + 1) / max(objective.warmup_steps, 1))
        teacher, base = partial(self._with_tensors, state.teacher), self._as_base

        def take(samples: Sequence[TrainingSample], share: float) -> OptimizerStepResult:
            return learn(network, optimizer, samples, objective, scale=scale * share, teacher=teacher, base=base, critic=critic)

        known = self._known_samples(batch, samples) if objective.kind == "mixed" else []
        size = 1 if batch.retained else len(batch.exchanges)  # what is retained keeps a few replies from teaching too much
        try:
            done = self._learn_until_kept(samples, known, take, size)
        except UserError as error:  # a gradient that is not finite: the minibatch's fault, not the machine's
            return Update("", str(error)), {}
        if not done:
            return _nothing_new(len({one.example.prompt for one in samples if one.is_wanted}), asked - len(samples)), {}
        first = done[0]
        shrink, kl = self._scale_to_limits(examples, correction, state.tensors)
        kept, notes = None if repeats else optimizer, self._notes(batch, state)
        self._files.write(out, self._live, self._next_teacher(state), notes, kept, critic)
        self._states.clear()
        update = Update(
            version="",
            loss=first.loss,
            norm=first.grad_norm,
            rate=objective.learning_rate * scale,
            tokens=first.tokens,
            entropy=first.statistics.get("entropy", 0.0),
            kl=kl,
            shrink=shrink,
            seconds=perf_counter() - began,
        )
        losses = [result.loss for result in done]
        return update, {**first.statistics, "rate": update.rate, "seconds": update.seconds, "losses": losses}

    def _learn_until_kept(
        self,
        samples: Sequence[TrainingSample],
        known: Sequence[TrainingSample],
        update: Callable[..., OptimizerStepResult],
        size: int,
    ) -> list[OptimizerStepResult]:
        """Updates until each known reply to imitate is learned and no other one is lost, or `TeacherSettings.repairs` more are made.

        Each learns from what is missing, the first one also from samples that are not to be imitated. An update with fewer than `size`
        replies is shorter. Returns nothing if all was learned before, and nothing is lost.
        """
        if self._objective.kind != "mixed":
            return [update(samples, 1.0) for _ in range(self._objective.updates_per_batch)]
        done, once = list[OptimizerStepResult](), [one for one in samples if not one.is_wanted]
        read: Sequence[TrainingSample] = [one for one in known if one.is_wanted]
        for n in range(1 + self._objective.teacher.repairs):
            missing = self._missing(read)
            if not missing and len(read) < len(known):
                missing = self._missing(known)
            if not once and not missing:
                break
            share = min(1.0, (len(once) + len(missing)) / size)
            taught = [*once, *(lesson for _, lesson in missing)]
            done += [update(taught, share) for _ in range(self._objective.updates_per_batch if once else 1)]
            reads_all = (n + 1) % READ_EVERY == 0 or n + 1 == self._objective.teacher.repairs
            once, read = [], known if reads_all else [one for one, _ in missing]
        return done

    def _missing(self, known: Sequence[TrainingSample]) -> list[tuple[TrainingSample, TrainingSample]]:
        """The samples that are not learned yet, or are lost, each with what an update is to learn of it."""
        found = list[tuple[TrainingSample, TrainingSample]]()
        for one, reading in zip(known, reply_logprobs(self._network, [one.example for one in known]), strict=True):
            if one.is_wanted:
                found += [(one, one)] if float(reading.logprobs.min()) < math.log(LEARNED) else []
            elif one.behaviour_logprobs is not None:
                lost = 1.0 - (reading.logprobs - one.behaviour_logprobs).clamp(max=0).exp()  # (T,)
                fades = replace(one, behaviour_logprobs=None, advantage=HOLD * lost)
                found += [(one, fades)] if float(lost.max()) > 1.0 - KEPT else []
        return found

    def _known_samples(self, batch: Minibatch, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """Replies that a step must end with: wanted and rehearsed ones, of one chat's the newest; and those to retained chats, as far as the
        base model is sure of their tokens, but for the first and the last: learning may put words before a reply and behind it."""
        learned = {one.id for one in samples}
        rehearsed, _ = self._reader.samples(replace(batch, exchanges=batch.rehearsal))
        created = {one.id: one.created for one in (*batch.exchanges, *batch.rehearsal)}
        found = [one for one in rehearsed if one.id not in learned] + [one for one in samples if one.is_wanted]
        newest = {one.example.prompt: one for one in sorted(found, key=lambda one: created[one.id])}
        held = list[TrainingSample]()
        for one in batch.retained:
            before = torch.tensor(one.reply.logprobs[1:-1])
            sure = before.masked_fill(before < math.log(0.5), -math.inf)  # what was never likely is not lost
            held.append(TrainingSample(self._reader.example(one), torch.nn.functional.pad(sure, (1, 1), value=-math.inf)))
        return [*newest.values(), *(one for one in held if len(one.example.reply) > 2)]

    def _kept_samples(self, batch: Minibatch, correction: Correction) -> list[TrainingSample]:
        """The samples that the correction kept; where it weighed the evidence, with its advantages in place of rewards."""
        kept = set(correction.kept)
        samples = [one for one in self._reader.samples(batch)[0] if one.id in kept]
        if correction.evidence is None:
            return samples
        given = dict(correction.advantages)
        weighed = {one.id: torch.full((len(one.example.reply),), given[one.id]) for one in samples if one.id in given}
        samples = [one if one.reward is None else replace(one, reward=None, advantage=weighed.get(one.id)) for one in samples]
        return [one for one in samples if one.hindsight is not None or one.advantage is not None]

    def _notes(self, batch: Minibatch, state: VersionState) -> dict[str, Any]:
        """The origin of a version, for its file."""
        return {
            "base": self.base,
            "lora": self._files.shape,
            "objective": asdict(self._objective),
            "batch": batch.id,
            "parent": batch.parent,
            "seed": batch.seed,
            "step": batch.step,
            "updates": state.updates + 1,
        }

    def measure(self, folder: Path | None, exchanges: Sequence[Exchange], with_kl: bool = True) -> Measured:
        """Log-probabilities, entropy and KL of a version on the replies of exchanges; replies without token ids are tokenised.

        Args:
            folder: the version's; None: the base model.
            exchanges: with a reply each.
            with_kl: measure KL(pi || base), too, by a second pass of the base model.

        Raises:
            UserError: an exchange has no reply, or does not fit the window.
        """
        examples = [self._reader.example(exchange) for exchange in exchanges]
        if not examples:
            return Measured(())
        if folder is None:
            with self._as_base():
                return self._read(examples)
        copy_tensors(self._live, self._load(folder).tensors)
        return self._read(examples, self._base_logits(examples) if with_kl else None)

    def network(self, folder: Path | None) -> Any:
        """The network with a version's weights (no folder: the base model's), to evaluate or sample; valid until the next call."""
        zeros = {name: torch.zeros_like(weight) for name, weight in self._live.items()}
        copy_tensors(self._live, zeros if folder is None else self._load(folder).tensors)
        return self._network

    # Parts of a step

    def _with_advantages(self, samples: Sequence[TrainingSample], critic: torch.nn.Module | None) -> Sequence[TrainingSample]:
        """The samples with their advantages; none if nothing of them gives a direction."""
        objective, readings = self._objective, list[ReplyLogprobs]()
        if critic is not None or objective.updates_per_batch > 1:
            readings = reply_logprobs(self._network, [one.example for one in samples], critic=critic)
            samples = [replace(one, old_logprobs=found.logprobs) for one, found in zip(samples, readings, strict=True)]
        rewarded = [n for n, one in enumerate(samples) if one.reward is not None]
        if not rewarded:
            return samples
        own = [readings[n] for n in rewarded] if readings else []
        computed = compute_advantages(
            [samples[n].reward or 0.0 for n in rewarded],
            [len(samples[n].example.reply) for n in rewarded],
            objective,
            values=[one.values for one in own if one.values is not None],
        )
        if computed is not None:
            found = dict(zip(rewarded, computed.advantages, strict=True))
            returns = dict(zip(rewarded, computed.returns, strict=False))
            return [
                replace(one, advantage=found.get(n, one.advantage), returns=returns.get(n)) for n, one in enumerate(samples)
            ]
        is_mute = all(one.hindsight is None and one.advantage is None for one in samples)
        return [] if is_mute else [one for one in samples if objective.uses_words or one.advantage is not None]

    def _written_anew(
        self, samples: Sequence[TrainingSample], state: VersionState, blamed: frozenset[str] = frozenset()
    ) -> list[Rewriting]:
        """The replies of samples with words, as the words ask for; `blamed`: see `rewrite_replies`."""
        teacher = partial(self._with_tensors, state.teacher)
        return rewrite_replies(self._network, samples, self._objective, self._reader.ends, teacher, self._as_base, blamed)

    def _rewrite(self, samples: Sequence[TrainingSample], state: VersionState, batch: Minibatch) -> list[TrainingSample]:
        """The samples, in the place of those with words the replies that the words ask for, to be imitated. Words that change nothing of a
        reply teach nothing. Where the teacher only guesses what they ask for, the reply as it was is drawn towards the teacher, unless the
        learner is sure (`LEARNED`) of another token in it: it would lose what it has learned to say there."""
        worded = [one for one in samples if one.hindsight is not None]
        blamed = frozenset(one.id for one in batch.exchanges if one.feedback and (one.feedback.reward or 0) < 0)
        written = iter(self._written_anew(worded, state, blamed) if worded else ())
        found = []
        for sample in samples:
            new = next(written) if sample.hindsight is not None else None
            is_guess = new is not None and new.sureness < SURE
            if new is None or not new.is_over or (is_guess and not new.is_unlikely):
                found.append(sample)
            elif new.has_changed and not is_guess:
                example = Example(sample.example.prompt, tuple(new.written))
                found.append(TrainingSample(example, advantage=torch.ones(len(new.written)), id=sample.id))
        return found

    def _make_optimizer(self, state: VersionState, critic: torch.nn.Module | None) -> torch.optim.Optimizer:
        """AdamW with the learning rates of the settings, and the moments (and the critic) of a parent that learned by the same loss."""
        settings, before = self._objective, state.notes.get("objective", {}).get("kind")
        critic_rate = settings.policy.critic_learning_rate
        optimizer = make_optimizer(self._network, settings.learning_rate, settings.weight_decay, critic, critic_rate)
        if state.folder is not None and before == settings.kind and (state.folder / OPTIMIZER_FILE).exists():
            more = read_optimizer(optimizer, state.folder / OPTIMIZER_FILE)
            if critic is not None and more:
                critic.load_state_dict(more)
        return optimizer

    def _next_teacher(self, state: VersionState) -> Mapping[str, Tensor] | None:
        """Weights of the teacher for the next step; None if it has none of its own."""
        teacher = self._objective.teacher
        if not self._objective.needs_teacher or state.teacher is None:
            return None
        if teacher.kind == "sync":
            return self._live if (state.updates + 1) % teacher.sync_every == 0 else state.teacher
        return ema(state.teacher, self._live, teacher.ema_rate)

    def _read(self, examples: Sequence[Example], base: Sequence[Tensor] | None = None) -> Measured:
        """The network's measurements on these replies; `base`: the base model's logits of them, for KL."""
        readings = reply_logprobs(self._network, examples, base=base)
        logprobs = tuple(tuple(reading.logprobs.tolist()) for reading in readings)
        entropy, kl, base_entropy = (
            float(torch.cat(given).mean()) if (given := [value for value in values if value is not None]) else 0.0
            for values in zip(*((one.entropy, one.kl, one.base_entropy) for one in readings), strict=True)
        )
        return Measured(logprobs, entropy, kl, tuple(reading.first for reading in readings), base_entropy)

    def _base_logits(self, examples: Sequence[Example]) -> list[Tensor]:
        """The base model's logits of these replies, (T, V) each."""
        with self._as_base():
            return reply_logits(self._network, examples)

    def _scale_to_limits(
        self, examples: Sequence[Example], correction: Correction, parent: Mapping[str, Tensor]
    ) -> tuple[float, float]:
        """Scale the adapter by the largest s in [0, 1] that keeps it within the correction's limits, and return s and KL(pi || base).

        s multiplies B, and so the whole change of the weights, B A: what was learned fades in proportion, and there is always room for
        what is learned now. s = 0 is the base model, which is within all limits. Found by Brent's method, but for `SPARE_ROOM`.

        Where the parent is beyond a limit on these replies (it passed the gate on others), `PARENT_SHARE` of its distance is the limit:
        a version that went further back would lose what the parent has learned, and fail on the feedback for it.
        """
        found = self._read(examples, base := self._base_logits(examples))
        if _room(found, correction) >= 0:
            return 1.0, found.kl
        with self._with_tensors(parent):
            before = self._read(examples, base)
        tried = {0.0: (1.0, 0.0), 1.0: (_room(found, correction, before), found.kl)}  # factor -> room, KL
        if tried[1.0][0] >= 0:
            return 1.0, found.kl
        weights = [weight for name, weight in self._live.items() if "lora_B" in name]
        whole = [weight.detach().clone() for weight in weights]

        def scale(factor: float) -> None:
            with torch.no_grad():
                torch._foreach_copy_(weights, torch._foreach_mul(whole, factor))

        def unused_room(factor: float) -> float:
            if factor not in tried:
                scale(factor)
                now = self._read(examples, base)
                tried[factor] = _room(now, correction, before), now.kl
            room = tried[factor][0] - SPARE_ROOM / 2
            return room if abs(room) > SPARE_ROOM / 2 else 0.0  # at 0 the search ends

        brentq(unused_room, 0.0, 1.0, xtol=SPARE_ROOM / 4, maxiter=MAX_TRIALS, disp=False)
        factor, kl = max((factor, kl) for factor, (room, kl) in tried.items() if room >= 0)
        scale(factor)
        return factor, kl

    # The network's weights

    @contextmanager
    def _as_base(self) -> Iterator[None]:
        """The network as the base model. (PEFT's own switch walks through all modules, each time.)"""
        for layer in self._layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer._disable_adapters = False

    @contextmanager
    def _with_tensors(self, tensors: Mapping[str, Tensor] | None) -> Iterator[None]:
        """The network with these tensors in place of the learner's; None: unchanged."""
        if tensors is None:
            yield
            return
        held = {name: weight.detach().clone() for name, weight in self._live.items()}
        copy_tensors(self._live, tensors)
        try:
            yield
        finally:
            copy_tensors(self._live, held)

    # Versions

    def _parent_state(self, folder: Path | None, batch: Minibatch) -> VersionState:
        """The version that a minibatch's step starts from."""
        if batch.parent:
            if folder is None:
                raise VersionError(f"minibatch {batch.id} goes on from {batch.parent}, and no folder was given for it")
            return self._load(folder)
        generator = torch.Generator().manual_seed(batch.seed % 2**63)
        tensors = {}
        for name, like in self._live.items():  # LoRA's start: A uniform (Kaiming with a = sqrt 5), B zero
            bound = 1 / math.sqrt(like.shape[1])
            drawn = torch.rand(like.shape, generator=generator) * 2 * bound - bound
            tensors[name] = drawn if "lora_A" in name else torch.zeros(like.shape)
        return VersionState(tensors, tensors if self._objective.needs_teacher else None, None, {})

    def _load(self, folder: Path) -> VersionState:
        """A version, read and checked. The last few stay in memory: a labelled version never changes."""
        if folder not in self._states:
            state = self._files.read(folder, self._objective.needs_teacher)
            if len(self._states) >= MAX_CACHED_VERSIONS:
                self._states.pop(next(iter(self._states)))
            self._states[folder] = state
        return self._states[folder]


def _room(found: Measured, correction: Correction, parent: Measured | None = None) -> float:
    """Room up to the limits of a step, or to a little nearer to the base model than the parent: 1 at it or without limits, below 0 beyond."""
    max_kl, share = correction.max_kl, correction.min_entropy_share
    if max_kl == math.inf and share == 0:
        return 1.0
    least = share * found.base_entropy
    if parent is not None:
        max_kl, least = max(max_kl, PARENT_SHARE * parent.kl), min(least, parent.entropy / PARENT_SHARE)
    above, whole = found.entropy - least, found.base_entropy - least
    rooms = 1 - found.kl / max(max_kl, 1e-9), above / whole if whole > 1e-9 else math.copysign(1.0, above)
    return min(rooms) if math.isfinite(found.kl + found.entropy) else -1.0


def _nothing_left(correction: Correction, objective: Objective) -> str:
    """The reason why nothing of a minibatch can be learned from."""
    if correction.evidence is None:
        return "nothing of the minibatch can be learned from"
    least = objective.policy.min_evidence
    return f"rewards without words, and they do not tell replies apart yet ({correction.evidence:.1f} of {least:g} standard errors)"


def _nothing_new(learned: int, unchanged: int) -> Update:
    """The update of a step without anything new: so many replies to imitate are learned, of so many the words teach no other one."""
    why, help = [], []
    if unchanged:
        why.append(
            f"words without effect: {unchanged}, since the model that reads them would say the same reply again, or only guesses at another"
        )
        help.append("other words, or a correction, which is the reply as it should have been")
    if learned:
        why.append(
            f"{LEARNED_ALREADY}: {learned} of the replies that should have been, each token at a probability of {LEARNED:g} at least"
        )
        help.append("temperature 0, where the model says what it learned; what is drawn may still be another reply")
    return Update("", "; ".join(why), "; ".join(help))


def _clone_sharing_weights(network: Any) -> Any:
    """A copy of a network over the same tensors, without extra memory and without the original's LoRA layers."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    clone = copy.deepcopy(network, shared)
    for name, module in list(clone.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            above, _, last = name.rpartition(".")
            setattr(clone.get_submodule(above), last, module.get_base_layer())
    return clone.eval()


class InProcessLearner(LabelledLearner):
    """Gradient steps on the versions of all adapters, in this process. `WorkerLearner` does the same in another one.

    Args:
        model: the base model, or its name as `open_model` takes it.
        folder: see `LabelledLearner`.
        write: see `LabelledLearner`.
        settings: see `LoRATrainer`.
        scratch: see `LabelledLearner`.
        threads: of the model, if it is opened here.

    Raises:
        UserError: the model does not run in this process.
    """

    def __init__(
        self,
        model: LocalChatModel | str,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        settings: LearnerSettings,
        *,
        scratch: Path | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(folder, write, scratch)
        self._trainer = open_trainer(open_model(model, threads=threads) if isinstance(model, str) else model, settings)
        self.base: str = self._trainer.base
        """Fingerprint of the base model."""
        self._lock = threading.Lock()

    def network(self, label: str) -> Any:
        """The network with a version's weights (empty label: the base model's); valid until the learner's next call."""
        return self._call("network", self._version_folder(label))

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            return getattr(self._trainer, name)(*arguments)


class EngineLearner(InProcessLearner):
    """A learner that works on the thread of a local engine, which owns the network, in turns with the replies.

    Args:
        engine: its `run` runs a function on its thread; it belongs to the event loop that runs now.
        arguments: those of `InProcessLearner`.
    """

    def __init__(self, engine: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._engine, self._loop = engine, asyncio.get_running_loop()

    def _call(self, name: str, *arguments: Any) -> Any:
        turn = self._engine.run(partial(super()._call, name, *arguments))
        return asyncio.run_coroutine_threadsafe(turn, self._loop).result()


def open_trainer(model: Any, settings: LearnerSettings) -> LoRATrainer:
    """The trainer of a model."""
    if isinstance(model, LearnerModel):
        torch.set_num_threads(model.threads)
        if model.device != "cpu":  # the same bytes again on an accelerator; needs CUBLAS_WORKSPACE_CONFIG=:4096:8
            torch.use_deterministic_algorithms(True, warn_only=True)
        model = open_model(**asdict(model))
    if not isinstance(model, LocalChatModel):
        raise UserError(f"model {model!r} does not run in this process and cannot be trained; use 'pocket' or 'local:PATH'")
    return LoRATrainer(model, settings)

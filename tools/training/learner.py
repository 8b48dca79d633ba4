"""CLaaS's learner: one gradient step on a minibatch of served exchanges, from a version's folder to the next one's.

    learner = Learner(model, folder, write, LoRA(rank=16), Objective(loss="sdpo"), hindsight=template)
    correction = learner.correct(batch)         # what of the batch can still be learned from, and how fast
    update = learner.step(batch, correction)    # Update.version is the label of the new version

One base model stays in memory, and one set of LoRA tensors, into which the version that learns is copied for each call. All
that lasts from step to step is in the version's folder, so that learning goes on from any version on any machine, and scopes
cannot touch each other:

    adapter_config.json, adapter_model.safetensors    PEFT's format, float32
    optimizer.safetensors                             AdamW's moments (and PPO's critic); never a learning rate
    teacher.safetensors                               of a teacher that lags behind (`ema`, `sync`)
    learner.json                                      base, settings, updates, running statistics of the rewards

The same parent, minibatch and seed give the same bytes (one thread, one kind of machine). Losses and corrections are those of
tools/training/lora.py; here is what they are given: tokens as they were served, never made from text again, and a teacher that reads the
same conversation, all of it, with what is known in hindsight.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from string import Template
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...memory.errors import UserError, WindowError
from ...memory.records import ChatRequest, Correction, Exchange, Measured, Minibatch, Update
from ..local.model import LocalChatModel, fingerprint
from ..models.models import open_model
from .lora import (
    Example,
    LoRA,
    Objective,
    OptimizerStepResult,
    ReplyLogprobs,
    TrainingSample,
    attach_lora,
    learn,
    lora_parameters,
    make_critic,
    make_optimizer,
    read_optimizer,
    reply_logprobs,
    write_adapter,
    write_optimizer,
)
from .losses import RewardMoments, compute_advantages, ema, ratio_statistics

__all__ = ["InProcessLearner", "LoRATrainer", "VersionError", "hindsight_block", "scratch_folder"]

CONFIG_FILE, ADAPTER_FILE, OPTIMIZER_FILE = "adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"
TEACHER_FILE, NOTES_FILE = "teacher.safetensors", "learner.json"
PEFT_PREFIX = "base_model.model."
"""What PEFT puts before a tensor's name in a file."""


class VersionError(UserError, ValueError):
    """A version's folder that this learner cannot go on from."""


# The base model


def _clone_sharing_weights(network: Any) -> Any:
    """A network of its own over the same tensors: no memory, and whatever LoRA layers the other one has are left out of it."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    mine = copy.deepcopy(network, shared)
    for name, module in list(mine.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            above, _, last = name.rpartition(".")
            setattr(mine.get_submodule(above), last, module.get_base_layer())
    return mine.eval()


# Hindsight


def hindsight_block(template: str, feedback: str = "", solution: str = "", reply: str = "", verdict: str = "") -> str:
    """What the teacher is told after the conversation: the template with its values.

    Paragraphs (apart by an empty line) that name a value which is empty are left out.

    Raises:
        UserError: the template names another value, or no `$feedback`.
    """
    values = {"feedback": feedback.strip(), "solution": solution.strip(), "reply": reply.strip(), "verdict": verdict}
    parts = [Template(part) for part in template.strip().split("\n\n") if part.strip()]
    named = {name for part in parts for name in part.get_identifiers()}
    if not all(part.is_valid() for part in parts) or not {"feedback"} <= named <= set(values):
        raise UserError(
            f"the hindsight template names {sorted(named)}; it needs $feedback, may have $solution, $reply and $verdict, and '$$' is a '$'"
        )
    shown = [part for part in parts if all(values[name] for name in part.get_identifiers())]
    return "\n\n".join(part.substitute(values) for part in shown)


def _append_hindsight(request: ChatRequest, block: str) -> ChatRequest:
    """The same conversation, with the block at the end of the last user message."""
    if request.raw is not None:
        return replace(request, raw=f"{block}\n\n{request.raw}")
    messages = [dict(message) for message in request.messages]
    last = next((message for message in reversed(messages) if message.get("role") == "user"), None)
    if last is None:
        messages.append({"role": "user", "content": block})
    else:
        last["content"] = f"{_message_text(last.get('content'))}\n\n{block}"
    return replace(request, messages=tuple(messages))


def _message_text(content: Any) -> str:
    """A message's text; OpenAI's API also takes a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content)
    return str(content or "")


def _prompt_ids(model: LocalChatModel, request: ChatRequest) -> tuple[int, ...]:
    """The tokens of a request's prompt, as an engine makes them."""
    if request.raw is not None:
        return tuple(model.get_token_ids(request.raw))
    return tuple(model.chat_ids(request.messages, () if request.tool_choice == "none" else request.tools))


# One step, from folder to folder


@dataclass(frozen=True)
class _VersionState:
    """A version, in memory."""

    tensors: dict[str, Tensor]
    """LoRA's A and B by parameter name."""
    teacher: dict[str, Tensor] | None
    folder: Path | None
    """Where the moments are; None: there are none yet."""
    notes: dict[str, Any]

    @property
    def updates(self) -> int:
        return int(self.notes.get("updates", 0))

    @property
    def moments(self) -> dict[str, RewardMoments]:
        return {family: RewardMoments(*numbers) for family, numbers in self.notes.get("rewards", {}).items()}


@dataclass(frozen=True)
class _TrainingExample:
    """An exchange as it is learned from."""

    exchange: Exchange
    example: Example
    behaviour: Tensor | None
    """(T,), log mu; None: it was not drawn (temperature 0)."""
    hindsight: Example | None

    @property
    def temperature(self) -> float:
        return self.exchange.request.sampling.temperature or 1.0

    @property
    def reward(self) -> float:
        return float(self.exchange.feedback.reward or 0.0) if self.exchange.feedback else 0.0


class LoRATrainer:
    """The work itself, with folders in place of labels: what `Learner` does here and `WorkerLearner` in another process.

    Args:
        model: the base model. Its network is left as it is: the trainer has one of its own over the same tensors.
        lora: rank, alpha and targets of the adapters.
        objective: loss, correction and teacher.
        hindsight: the template of what the teacher is told, see `hindsight_block`.
        watch: measure KL(pi || base) of each new version on what it learned from: two more passes without a gradient.
    """

    def __init__(
        self, model: LocalChatModel, lora: LoRA, objective: Objective, hindsight: str = "$feedback", measure_kl: bool = True
    ) -> None:
        hindsight_block(hindsight)  # raises for a template that will not do
        self._model, self._lora, self._objective, self._hindsight, self._measure_kl = (
            model,
            lora,
            objective,
            hindsight,
            measure_kl,
        )
        self.base = fingerprint(model)
        self._network = _clone_sharing_weights(model.network)
        self._wrapper = attach_lora(self._network, lora)
        live = lora_parameters(self._network)
        self._names = sorted(live)
        self._lora_parameters = {
            name: live[name] for name in self._names
        }  # walking through the modules for them takes as long as a pass
        self._layers = [module for module in self._network.modules() if hasattr(module, "_disable_adapters")]
        with scratch_folder(None) as folder:
            write_adapter(self._wrapper, folder, None if Path(model.model).exists() else model.model)
            self._config = (folder / CONFIG_FILE).read_bytes()
        self._vocabulary = int(self._network.get_input_embeddings().weight.shape[0])
        self._states: dict[str, _VersionState] = {}

    # The three things that a learner is asked

    def correct(self, batch: Minibatch, folder: Path | None) -> Correction:
        """What of a minibatch can be learned from, and what it is worth: log pi_old against log mu, tokens as they were served.

        Args:
            batch: what is to be learned from.
            folder: its parent's; None: the base model.

        Raises:
            UserError: the batch or its parent is not of this learner.
        """
        state = self._state(batch, folder)
        found, dropped = self._training_examples(batch)
        if not found:
            return Correction((), tuple(dropped.items()))
        self._copy_tensors(state.tensors)
        old = [one.logprobs for one in self._reply_logprobs(found)]
        behaviour = [then if (then := one.behaviour) is not None else now for one, now in zip(found, old, strict=True)]
        ratios = ratio_statistics(old, behaviour, self._objective)
        dropped |= {one.exchange.id: why for one, why in zip(found, ratios.drop_reasons, strict=True) if why}
        kept = tuple(one.exchange.id for one, why in zip(found, ratios.drop_reasons, strict=True) if not why)
        target = self._objective.ess_target if self._objective.correction != "none" else 0.0
        scale = min(1.0, ratios.ess / target) if target else 1.0
        told = (ratios.ess, ratios.mean, ratios.max, ratios.clip_fraction, ratios.kl)
        kls = tuple((one.exchange.id, kl) for one, kl in zip(found, ratios.reply_kls, strict=True))
        return Correction(kept, tuple(dropped.items()), *told, scale=scale, kls=kls)

    def step(self, batch: Minibatch, correction: Correction, folder: Path | None, out: Path) -> tuple[Update, dict[str, Any]]:
        """One gradient step on what the correction kept. Writes the next version's files into the empty folder `out`.

        Returns:
            The update, without a label; `skipped` says why nothing was learned, and then nothing was written. And what the
            step said of itself, for the version's log.

        Raises:
            UserError: the batch or its parent is not of this learner; the files cannot be written.
        """
        began = perf_counter()
        state, asked = self._state(batch, folder), self._objective
        kept = set(correction.kept)
        found = [one for one in self._training_examples(batch)[0] if one.exchange.id in kept]
        if not found:
            return Update("", "nothing of the minibatch can be learned from"), {}
        self._copy_tensors(state.tensors)
        head = make_critic(self._network) if asked.needs_critic else None
        updates = self._make_optimizer(state, head)
        samples, moments = self._samples(found, state, head)
        if samples is None:
            return Update("", "all rewards are alike, and as they were to be expected: there is nothing to learn"), {}
        rising = min(1.0, (state.updates + 1) / asked.warmup_steps) if asked.warmup_steps else 1.0
        scale = rising * correction.scale
        given = (self._network, updates, samples, asked)
        teaching = partial(self._with_tensors, state.teacher)
        done: list[tuple[OptimizerStepResult, dict[str, float]]] = []
        for _ in range(asked.passes):
            try:
                done.append(learn(*given, scale=scale, teacher=teaching, base=self._as_base, critic=head))
            except UserError as error:  # not finite: the fault of what it learns from, not of the machine
                return Update("", str(error)), {}
        (first, said), tokens = done[0], done[0][0].tokens
        student = {name: weight.detach().clone() for name, weight in self._lora_parameters.items()}
        notes = {
            "base": self.base,
            "lora": self._adapter_shape(),
            "objective": asdict(asked),
            "batch": batch.id,
            "parent": batch.parent,
            "seed": batch.seed,
            "step": batch.step,
            "updates": state.updates + 1,
            "rewards": {family: list(astuple(one)) for family, one in sorted(moments.items())},
        }
        teacher = self._next_teacher(state, student, state.updates + 1)
        self._write(out, notes, updates, head, teacher)
        kl = said.get("kl", 0.0)
        if self._measure_kl and "kl" not in said:
            apart = [
                one.kl
                for one in reply_logprobs(self._network, [one.example for one in found], base=self._as_base)
                if one.kl is not None
            ]
            kl = float(torch.cat(apart).mean())
        self._states.clear()
        seconds = perf_counter() - began
        update = Update("", "", first.loss, first.grad_norm, asked.rate * scale, tokens, said.get("entropy", 0.0), kl, seconds)
        return update, {**said, "rate": update.rate, "seconds": seconds, "losses": [one.loss for one, _ in done]}

    def measure(self, label: str, folder: Path | None, exchanges: Sequence[Exchange]) -> Measured:
        """Read a version against what was said in exchanges. One without token ids is read as its text, through the template.

        Args:
            label: of the version, for messages.
            folder: its; None: the base model.
            exchanges: with a reply each.

        Raises:
            UserError: an exchange has no reply, or does not fit the window.
        """
        examples = [self._example(exchange) for exchange in exchanges]
        if not examples:
            return Measured((), ())
        temperatures = [exchange.request.sampling.temperature or 1.0 for exchange in exchanges]
        if folder is None:
            with self._as_base():
                found = reply_logprobs(self._network, examples, temperatures=temperatures)
        else:
            self._copy_tensors(self._load(label, folder).tensors)
            found = reply_logprobs(self._network, examples, base=self._as_base, temperatures=temperatures)
        sums = tuple(float(one.logprobs.double().sum()) for one in found)
        means = tuple(total / len(one.logprobs) for total, one in zip(sums, found, strict=True))
        entropy = float(torch.cat([one.entropy for one in found]).mean())
        apart = [one.kl for one in found if one.kl is not None]
        return Measured(means, sums, entropy, float(torch.cat(apart).mean()) if apart else 0.0)

    def network(self, label: str, folder: Path | None) -> Any:
        """The network as a version (no folder: the base model), to read or to sample with; until the next call."""
        if folder is None:
            self._copy_tensors({name: torch.zeros_like(weight) for name, weight in self._lora_parameters.items()})
        else:
            self._copy_tensors(self._load(label, folder).tensors)
        return self._network

    # What is learned from

    def _training_examples(self, batch: Minibatch) -> tuple[list[_TrainingExample], dict[str, str]]:
        """The exchanges that the loss can use, and why it cannot use the others, by id."""
        found: list[_TrainingExample] = []
        dropped: dict[str, str] = {}
        for exchange in batch.exchanges:
            if (exchange.tenant, exchange.adapter) != (batch.tenant, batch.adapter):
                raise UserError(
                    f"minibatch {batch.id} has an exchange of {exchange.tenant}/{exchange.adapter} in it; nothing was learned"
                )
            try:
                found.append(self._training_example(exchange, batch.exchanges))
            except UserError as error:
                dropped[exchange.id] = str(error)
        return found, dropped

    def _training_example(self, exchange: Exchange, others: Sequence[Exchange]) -> _TrainingExample:
        """Raises UserError: why this exchange cannot be learned from."""
        reply, feedback, asked = exchange.reply, exchange.feedback, self._objective
        if exchange.base != self.base:
            raise UserError(f"made by another base model ({exchange.base or 'unknown'}, not {self.base})")
        if feedback is None:
            raise UserError("has no feedback")
        if not reply.token_ids or len(reply.logprobs) != len(reply.token_ids):
            raise UserError(f"has {len(reply.token_ids)} tokens and {len(reply.logprobs)} log-probabilities; one each would do")
        if not all(-math.inf < value <= 1e-3 for value in reply.logprobs):  # nan is not, either
            raise UserError("has log-probabilities that are not finite, or above 0")
        example = self._example(exchange)
        drawn = exchange.request.sampling.temperature > 0
        behaviour = torch.tensor(reply.logprobs, dtype=torch.float32) if drawn else None
        if asked.loss != "sdpo":
            if feedback.reward is None:
                raise UserError(f"has no reward, only a text; {asked.loss} needs one")
            if not drawn and asked.correction != "none":
                raise UserError("was not drawn but chosen (temperature 0): no importance weight can be given to it")
        hindsight = self._hindsight_example(exchange, others, example) if asked.needs_hindsight else None
        if hindsight is None and asked.loss == "sdpo":
            raise UserError("has neither a text nor a solution to learn from")
        return _TrainingExample(exchange, example, behaviour, hindsight)

    def _example(self, exchange: Exchange) -> Example:
        reply, request = exchange.reply, exchange.request
        if reply.token_ids:
            example = Example(reply.prompt_ids, reply.token_ids)
        elif reply.text.strip():
            example = Example(_prompt_ids(self._model, request), self._model.reply_ids(reply.text))
        else:
            raise UserError(f"exchange {exchange.id} has no reply to read")
        if len(example) > self._model.window:
            raise WindowError(
                f"prompt and reply of {len(example)} tokens do not fit the window of {self._model.window}", len(example)
            )
        if not example.prompt or not all(0 <= token < self._vocabulary for token in example.prompt + example.reply):
            raise UserError(f"has no prompt, or token ids that a vocabulary of {self._vocabulary} does not have")
        return example

    def _hindsight_example(self, exchange: Exchange, others: Sequence[Exchange], example: Example) -> Example | None:
        """What the teacher reads: the whole conversation with what is known in hindsight, and the reply, token for token."""
        told, verdict, reward = "", "", exchange.feedback.reward if exchange.feedback else None
        if self._objective.feedback:
            told = exchange.feedback.text if exchange.feedback else ""
        elif reward is not None:
            verdict = "right" if reward > 0 else "wrong"
        solution = _find_solution(exchange, others) if self._objective.feedback else ""
        if not (told.strip() or solution or verdict):
            return None
        if _prompt_ids(self._model, exchange.request) != example.prompt:
            raise UserError("its prompt, rendered again, has other tokens than were served; the teacher would read another one")
        block = hindsight_block(self._hindsight, told, solution, exchange.reply.text, verdict)
        prompt = _prompt_ids(self._model, _append_hindsight(exchange.request, block))
        if len(prompt) + len(example.reply) > self._model.window:
            raise WindowError(
                f"prompt, hindsight and reply of {len(prompt) + len(example.reply)} tokens do not fit the window of "
                f"{self._model.window}",
                len(prompt) + len(example.reply),
            )
        return Example(prompt, example.reply)

    def _samples(
        self, found: Sequence[_TrainingExample], state: _VersionState, head: torch.nn.Module | None
    ) -> tuple[list[TrainingSample] | None, Mapping[str, RewardMoments]]:
        """Tokens with their advantages; None where rewards say nothing. And the rewards' running statistics."""
        asked = self._objective
        reads = self._reply_logprobs(found, head) if head is not None or asked.passes > 1 else None
        old: list[Tensor | None] = [one.logprobs for one in reads] if reads is not None else [None] * len(found)
        advantages: Sequence[Tensor | None] = [None] * len(found)
        returns: Sequence[Tensor | None] = [None] * len(found)
        moments: Mapping[str, RewardMoments] = state.moments
        if asked.loss != "sdpo":
            values, log_ratios = [], []
            if reads is not None:
                values = [one.values for one in reads if one.values is not None]
                then = [one.behaviour for one in found]
                log_ratios = [
                    read.logprobs - mu if mu is not None else torch.zeros_like(read.logprobs)
                    for read, mu in zip(reads, then, strict=True)
                ]
            judged = compute_advantages(
                [one.reward for one in found],
                [len(one.example.reply) for one in found],
                asked,
                families=[one.exchange.family for one in found],
                moments=state.moments if asked.baseline == "family" else None,
                values=values,
                log_ratios=log_ratios,
            )
            if judged is not None:
                advantages, moments = judged.advantages, judged.moments or moments
                returns = judged.returns or returns
            elif asked.hint > 0 and any(one.hindsight is not None for one in found):  # the words still say something
                advantages = [torch.zeros(len(one.example.reply)) for one in found]
            else:
                return None, moments
        rows = zip(found, old, advantages, returns, strict=True)
        return [
            TrainingSample(one.example, one.behaviour, before, gain, one.hindsight, target)
            for one, before, gain, target in rows
        ], moments

    def _make_optimizer(self, state: _VersionState, head: torch.nn.Module | None) -> torch.optim.Optimizer:
        """AdamW as the parent left it, but with the rates asked for now; the critic, too. One that is no longer asked for goes."""
        updates = make_optimizer(self._network, self._objective, head)
        if state.folder is None:
            return updates
        had = state.notes.get("objective", {}).get("loss") == "ppo"
        source = (
            updates
            if head is not None or not had
            else make_optimizer(self._network, self._objective, make_critic(self._network))
        )
        critics = read_optimizer(source, state.folder / OPTIMIZER_FILE)
        if head is not None and critics:
            head.load_state_dict(critics)
        if source is not updates:
            trained = set(self._lora_parameters.values())
            updates.state.update({weight: moments for weight, moments in source.state.items() if weight in trained})
        return updates

    def _reply_logprobs(self, found: Sequence[_TrainingExample], head: torch.nn.Module | None = None) -> list[ReplyLogprobs]:
        temperatures = [one.temperature for one in found]
        return reply_logprobs(self._network, [one.example for one in found], critic=head, temperatures=temperatures)

    # Whose weights the network has

    def _copy_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a version's tensors into the network."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._lora_parameters.values()), [tensors[name] for name in self._names])

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
        """The network with these tensors in place of the learner's; None: as it is."""
        if tensors is None:
            yield
            return
        held = {name: weight.detach().clone() for name, weight in self._lora_parameters.items()}
        self._copy_tensors(tensors)
        try:
            yield
        finally:
            self._copy_tensors(held)

    def _next_teacher(self, state: _VersionState, student: Mapping[str, Tensor], updates: int) -> Mapping[str, Tensor] | None:
        """The teacher that the next step learns from, where it has weights of its own."""
        asked = self._objective
        if not asked.needs_teacher or state.teacher is None:
            return None
        if asked.teacher == "sync":
            return student if updates % asked.sync_every == 0 else state.teacher
        return ema(state.teacher, student, asked.ema)

    # Folders

    def _state(self, batch: Minibatch, folder: Path | None) -> _VersionState:
        """Where a minibatch's step starts from."""
        if batch.parent:
            if folder is None:
                raise VersionError(f"minibatch {batch.id} goes on from {batch.parent}, and no folder was given for it")
            return self._load(batch.parent, folder)
        generator = torch.Generator().manual_seed(batch.seed % 2**63)
        tensors = {}
        for name in self._names:  # as LoRA starts: A uniform by its inputs (Kaiming with a = sqrt 5), B nothing
            like = self._lora_parameters[name]
            bound = 1 / math.sqrt(like.shape[1])
            drawn = torch.rand(like.shape, generator=generator) * 2 * bound - bound
            tensors[name] = drawn if "lora_A" in name else torch.zeros(like.shape)
        return _VersionState(tensors, tensors if self._objective.needs_teacher else None, None, {})

    def _load(self, label: str, folder: Path) -> _VersionState:
        """A version's folder, read and checked. The last few are remembered: what has a label never changes."""
        if label in self._states:
            return self._states[label]
        try:
            notes = json.loads((folder / NOTES_FILE).read_text(encoding="utf-8"))
            base, shape = notes["base"], notes["lora"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VersionError(f"version {label}: {NOTES_FILE} cannot be read: {error}") from error
        if base != self.base:
            raise VersionError(f"version {label} is of another base model ({base}); this one is {self.base}")
        if shape != self._adapter_shape():
            raise VersionError(f"version {label} has {shape}; this learner makes {self._adapter_shape()}")
        tensors = self._lora_tensors(label, folder / ADAPTER_FILE)
        teacher = None
        if self._objective.needs_teacher:  # one that did not lag before starts where the learner is
            kept = folder / TEACHER_FILE
            teacher = self._lora_tensors(label, kept) if kept.exists() else tensors
        state = _VersionState(tensors, teacher, folder, notes)
        if len(self._states) > 2:
            self._states.pop(next(iter(self._states)))
        self._states[label] = state
        return state

    def _lora_tensors(self, label: str, path: Path) -> dict[str, Tensor]:
        stored = self._read_tensors(path)
        found = {_from_peft_name(name): tensor.float() for name, tensor in stored.items()}
        shapes = {name: tuple(weight.shape) for name, weight in self._lora_parameters.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in found.items()}:
            raise VersionError(
                f"version {label}: {path.name} has tensors of other names or shapes than this learner's adapters"
            )
        if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values()):
            raise VersionError(f"version {label}: {path.name} has numbers that are not finite")
        return {name: found[name] for name in self._names}

    def _read_tensors(self, path: Path) -> dict[str, Tensor]:
        try:
            return load_file(path, device="cpu")
        except (OSError, SafetensorError) as error:
            raise VersionError(f"version {path.parent.name}: {path.name} cannot be read: {error}") from error

    def _adapter_shape(self) -> dict[str, Any]:
        names = sorted(self._wrapper.peft_config["default"].target_modules)
        return {"rank": self._lora.rank, "alpha": float(self._lora.alpha), "targets": names}

    def _write(
        self,
        out: Path,
        notes: Mapping[str, Any],
        optimizer: torch.optim.Optimizer,
        head: torch.nn.Module | None,
        teacher: Mapping[str, Tensor] | None,
    ) -> None:
        try:
            (out / CONFIG_FILE).write_bytes(self._config)
            save_file(
                {_to_peft_name(name): weight.detach().cpu() for name, weight in self._lora_parameters.items()},
                out / ADAPTER_FILE,
                {"format": "pt"},
            )
            write_optimizer(optimizer, out / OPTIMIZER_FILE, head.state_dict() if head is not None else None)
            if teacher is not None:
                lagging = {_to_peft_name(name): teacher[name].detach().cpu().contiguous() for name in self._names}
                save_file(lagging, out / TEACHER_FILE, metadata={"format": "pt"})
            (out / NOTES_FILE).write_text(json.dumps(notes, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot write the new version to {out}: {error}") from error


def _to_peft_name(name: str) -> str:
    """A parameter's name -> as PEFT's files name it."""
    return PEFT_PREFIX + name.replace(".default.", ".")


def _from_peft_name(name: str) -> str:
    return name.removeprefix(PEFT_PREFIX).replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def _find_solution(exchange: Exchange, others: Sequence[Exchange]) -> str:
    """What did well at the same place: of another exchange with the same prompt, or at the same turn of the same scenario."""
    for other in others:
        same = other.reply.prompt_ids == exchange.reply.prompt_ids or (
            exchange.scenario != "" and (other.scenario, other.turn) == (exchange.scenario, exchange.turn)
        )
        good = other.feedback is not None and (other.feedback.reward or 0.0) > 0
        if same and good and other.id != exchange.id and other.reply.text.strip() != exchange.reply.text.strip():
            return other.reply.text
    return ""


# The learner of a service


class InProcessLearner:
    """Gradient steps on the versions of all scopes, in this process. `tools/training/learner_worker.py` has the same in another one.

    Args:
        model: the base model, or its name as `open_model` takes it.
        folder: label -> its folder, as `Adapters.folder` gives it.
        write: (minibatch, finished folder, what the step said of itself) -> label, as `Adapters.write` takes it in.
        lora, objective, hindsight, watch: see `Trainer`.
        scratch: where folders are made; best on the versions' file system. Default: the system's.
    """

    def __init__(
        self,
        model: LocalChatModel | str,
        folder: Callable[[str], Path],
        write: Callable[[Minibatch, Path, dict[str, Any]], str],
        lora: LoRA,
        objective: Objective,
        hindsight: str = "$feedback",
        *,
        measure_kl: bool = True,
        scratch: Path | None = None,
        threads: int | None = None,
    ) -> None:
        opened = open_model(model, threads=threads) if isinstance(model, str) else model
        if not isinstance(opened, LocalChatModel):
            raise UserError(
                f"model {model!r} does not run in this process and cannot be trained; 'pocket' or 'local:PATH' would do"
            )
        self._trainer = LoRATrainer(opened, lora, objective, hindsight, measure_kl)
        self.base: str = self._trainer.base
        """Fingerprint of the base model."""
        self._folder, self._write, self._scratch = folder, write, scratch
        self._lock = threading.Lock()

    def correct(self, batch: Minibatch) -> Correction:
        """See `Trainer.correct`."""
        with self._lock:
            return self._trainer.correct(batch, self._version_folder(batch.parent))

    def step(self, batch: Minibatch, correction: Correction) -> Update:
        """See `Trainer.step`; the version is adopted when this returns, and `Update.version` is its label."""
        with self._lock, scratch_folder(self._scratch) as out:
            update, said = self._trainer.step(batch, correction, self._version_folder(batch.parent), out)
            return update if update.skipped else replace(update, version=self._write(batch, out, said))

    def measure(self, label: str, exchanges: Sequence[Exchange]) -> Measured:
        """See `Trainer.measure`; the empty label is the base model."""
        with self._lock:
            return self._trainer.measure(label, self._version_folder(label), exchanges)

    def network(self, label: str) -> Any:
        """The network as a version (empty: the base model), to read or to sample with; until the learner's next call."""
        with self._lock:
            return self._trainer.network(label, self._version_folder(label))

    def close(self) -> None:
        """Nothing to end; the worker has."""

    def _version_folder(self, label: str) -> Path | None:
        return self._folder(label) if label else None


@contextmanager
def scratch_folder(scratch: Path | None) -> Iterator[Path]:
    """A folder for a new version, gone afterwards unless somebody has moved it away."""
    try:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        out = Path(tempfile.mkdtemp(prefix="version-", dir=scratch))
    except OSError as error:
        raise UserError(f"cannot make a folder for the new version: {error}") from error
    try:
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)

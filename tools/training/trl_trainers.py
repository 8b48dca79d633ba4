"""Train a local model on its own played episodes with TRL's trainers: `SFTTrainer` (imitation) and `GRPOTrainer`.

TRL's are the losses, the advantages of a group, clipping, batching, gradients and the loop of updates. Ours is what goes in: prompts
and actions as tokens, as `LocalChatModel` scored them (TRL is given token ids and renders no template), and the episodes, which were
played before by a graph in an environment. The adapter and AdamW's moments live on between trainings; TRL makes a new trainer for
each.

- **Imitation** is a data set with labels: -100 for the prompt's tokens, so that the loss is on the action's tokens only.
- **GRPO** takes its rollouts from a `rollout_func`, TRL's way in for rollouts of one's own (marked experimental in 1.16). One
  completion of TRL's is one action, since each step has a prompt of its own. The t-th steps of the G attempts are the G generations of
  the t-th prompt, each with its attempt's return as reward, so that TRL's advantage of a step, (R - mean) / (std + 1e-4), is that of
  its attempt in the group. Attempts that ended before step t have an empty place there (`env_mask` 0): its return counts for the
  mean, its tokens for nothing. The loss is DAPO's, TRL's default: the sum over all tokens of the group, divided by their number;
  no KL term. Two things differ from a policy gradient of the policy that plays: it draws from probabilities that are normalised
  over the admissible actions (and flattened by its temperature), while TRL's ratio is that of the action's own tokens.

A version is a folder: the files of tools/training/version_files.py. It is written beside its place and then renamed, and the same
parent, episodes and seed give the same version, so a training that was killed is simply made again.
"""

import logging
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ...memory.claas.weights import PlayedAttempt, PlayedStep, TrainingReport, WeightSettings
from ...memory.errors import UserError, WindowError
from ..local.fingerprint import fingerprint
from ..local.model import LocalChatModel
from .calls import publish_folder, scratch_folder
from .flops import FlopMeter
from .lora import Example, attach_lora, copy_tensors, lora_parameters, make_optimizer, read_optimizer
from .version_files import OPTIMIZER_FILE, VersionFiles

__all__ = ["TrainerOutcome", "TrlTrainer"]

IGNORED = -100
"""The label of a token that is not learned."""


@dataclass(frozen=True)
class TrainerOutcome:
    """The outcome of one of TRL's trainers."""

    updates: int
    loss: float
    """Mean over the updates."""
    losses: tuple[float, ...]
    """Of each update, if the trainer logs its steps."""


class TrlTrainer:
    """Trains a LoRA adapter on a local model, and has the model answer with any of its versions.

    Args:
        model: the model; it is changed, so no other method may use it.
        folder: of the versions, made if missing.
        settings: the adapter, and how it is trained.
        meter: counts the operations of the model's passes, if there is one already.

    Raises:
        UserError: TRL or PEFT is not installed.
    """

    def __init__(self, model: LocalChatModel, folder: Path, settings: WeightSettings, meter: FlopMeter | None = None) -> None:
        require_trl()
        if model.tokenizer.pad_token_id is None and model.tokenizer.eos_token_id is None:
            raise UserError(
                f"{model.model}: TRL pads with the tokenizer's pad token or its end-of-sequence token; it has neither"
            )
        self._model, self._folder, self._settings = model, folder, settings
        base = fingerprint(model)
        self._wrapper = attach_lora(model.network, settings.lora)
        self._meter = meter or FlopMeter(model.network)
        self._meter.read_sizes()
        self._live = lora_parameters(model.network)
        self._first = {name: weight.detach().clone() for name, weight in self._live.items()}
        self._files = VersionFiles.of(self._wrapper, model, base, settings.lora)
        self._version = ""
        model.network.eval()

    # Versions

    def use(self, version: str) -> None:
        """Have the model answer with a version; an empty label is the base model. Quick if it does already.

        Raises:
            UserError: the version is not there any more, or its files are damaged.
        """
        if version == self._version:
            return
        if version and not (self._folder / version).is_dir():
            raise UserError(
                f"the run stands at version {version} of its adapter, and {self._folder} has only {self._labels() or 'none'}: "
                "remove the run's folder to play from the start, or give another --out"
            )
        copy_tensors(self._live, self._files.read(self._folder / version, False).tensors if version else self._first)
        self._model.clear_cache()
        self._version = version

    def keep(self, versions: Collection[str]) -> None:
        """Delete all versions but these."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.is_dir() and path.name not in versions:
                shutil.rmtree(path, ignore_errors=True)

    def _labels(self) -> str:
        return ", ".join(sorted(path.name for path in self._folder.iterdir() if path.is_dir())) if self._folder.is_dir() else ""

    # Trainings

    def imitate(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        """Learn the actions of attempts, by TRL's SFTTrainer: cross-entropy of the actions' tokens.

        Args:
            parent: the version to go on from; empty: the base model.
            version: the label of the new one, which is on the disk when this returns.
            attempts: those to imitate.
            seed: of the order of the examples.
        """
        examples, left_out = self._examples([step for attempt in attempts for step in attempt.steps])
        if not examples:
            return TrainingReport(parent, f"none of {left_out} steps fits the model's window of {self._model.window} tokens")
        settings = self._settings
        longest, batch = max(map(len, examples)), min(settings.batch_size, len(examples))
        micro = max(1, min(batch, settings.max_pass_tokens // longest))

        def run(out: str, optimizer: torch.optim.Optimizer) -> TrainerOutcome:
            arguments = trainer_arguments(self._model, out, settings.learning_rate, seed) | {
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": -(-batch // micro),
                "num_train_epochs": settings.epochs,
            }
            return imitate_examples(self._wrapper, self._model, examples, arguments, (optimizer, None))

        report = TrainingReport(version, attempts=len(attempts), examples=len(examples), left_out=left_out)
        return self._train(parent, seed, run, replace(report, tokens=settings.epochs * sum(map(len, examples))))

    def reinforce(self, parent: str, version: str, attempts: Sequence[PlayedAttempt], seed: int) -> TrainingReport:
        """Learn from a group of attempts at one task, by TRL's GRPOTrainer; attempts without a return are left out.

        Args:
            parent: the version that all attempts were played with, and to go on from.
            version: the label of the new one, which is on the disk when this returns.
            attempts: the group.
            seed: of the order of the examples.
        """
        known = [attempt for attempt in attempts if attempt.value is not None and attempt.steps]
        missing = len(attempts) - len(known)
        if len(known) < 2:
            return TrainingReport(
                parent, f"{len(known)} of {len(attempts)} attempts have a return; a group needs two", left_out=missing
            )
        if len({attempt.value for attempt in known}) == 1:
            alike = f"all {len(known)} attempts earned {known[0].value:g}: no advantage, and no gradient"
            return TrainingReport(parent, alike, left_out=missing)
        columns, examples, left_out = self._columns(known)
        if not examples:
            return TrainingReport(parent, f"none of {left_out} steps fits the model's window of {self._model.window} tokens")
        settings = self._settings
        longest = max(len(one) for one in examples)
        together = max(1, min(len(columns), settings.max_pass_tokens // (len(known) * longest)))  # columns that share a pass
        columns += [[None] * len(known)] * (-len(columns) % together)

        def run(out: str, optimizer: torch.optim.Optimizer) -> TrainerOutcome:
            from trl.trainer.grpo_config import GRPOConfig
            from trl.trainer.grpo_trainer import GRPOTrainer

            passes = len(columns) // together
            arguments = GRPOConfig(
                **trainer_arguments(self._model, out, settings.learning_rate, seed),
                per_device_train_batch_size=together * len(known),
                gradient_accumulation_steps=passes,
                steps_per_generation=passes,
                num_generations=len(known),
                num_iterations=settings.epochs,
                max_steps=settings.epochs,
                epsilon=settings.clip,
                beta=0.0,
                loss_type="dapo",
                scale_rewards="group",
                max_completion_length=longest,
                shuffle_dataset=False,
                remove_unused_columns=False,
            )
            trainer = GRPOTrainer(
                model=self._wrapper,
                reward_funcs=_episode_return,
                args=arguments,
                train_dataset=_dataset([{"prompt": str(n)} for n in range(len(columns))]),
                processing_class=self._model.tokenizer,
                optimizers=(optimizer, None),
                rollout_func=_Rollouts(columns, [attempt.value for attempt in known]),
            )
            return _run(trainer)

        report = TrainingReport(version, attempts=len(known), examples=len(examples), left_out=missing + left_out)
        return self._train(parent, seed, run, replace(report, tokens=settings.epochs * sum(map(len, examples))))

    def perplexities(self, version: str, attempts: Sequence[PlayedAttempt]) -> list[float]:
        """The perplexity of each attempt's actions under a version: exp of minus the mean log-probability of their tokens."""
        self.use(version)
        found = []
        for attempt in attempts:
            total, tokens = 0.0, 0
            for step in attempt.steps:
                total += self._model.score(step.messages, [step.action])[0]
                tokens += len(self._model.reply_ids(step.action))
            found.append(float(torch.exp(torch.tensor(-total / max(1, tokens)))))
        return found

    def _train(self, parent: str, seed: int, run: Any, report: TrainingReport) -> TrainingReport:
        """Run a trainer from a version, and write the next one."""
        began = perf_counter()
        self.use(parent)
        network = self._model.network
        optimizer = make_optimizer(network, self._settings.learning_rate)
        if parent:
            read_optimizer(optimizer, self._folder / parent / OPTIMIZER_FILE)
        before = self._meter.flops
        with trainer_surroundings() as out:
            try:
                done = run(out, optimizer)
            finally:
                network.eval()
                optimizer.zero_grad(set_to_none=True)
                self._version = "?"  # neither the parent nor anything that is on the disk
                self._model.clear_cache()
        if not all(bool(torch.isfinite(weight).all()) for weight in self._live.values()):
            self.use(parent)
            return replace(
                report, version=parent, why="the training led to numbers that are not finite; a smaller learning rate may do"
            )
        notes = {"base": self._files.base, "lora": dict(self._files.shape), "parent": parent, "seed": seed}
        live = {name: self._live[name] for name in self._files.sizes}
        with scratch_folder(self._folder) as scratch:
            self._files.write(scratch, live, None, notes | {"updates": done.updates}, optimizer, None)
            shutil.rmtree(self._folder / report.version, ignore_errors=True)  # of a training that was killed
            publish_folder(scratch, self._folder / report.version)
        self._version = report.version
        spent = self._meter.flops - before
        return replace(report, updates=done.updates, loss=done.loss, flops=spent, seconds=round(perf_counter() - began, 4))

    # Tokens

    def _example(self, step: PlayedStep) -> Example | None:
        """A step as tokens; None if it does not fit the window."""
        try:
            return reply_example(self._model, step.messages, step.action)
        except WindowError:
            return None

    def _examples(self, steps: Sequence[PlayedStep]) -> tuple[list[Example], int]:
        """Steps as tokens, and how many do not fit the window."""
        found = [example for step in steps if (example := self._example(step)) is not None]
        return found, len(steps) - len(found)

    def _columns(self, attempts: Sequence[PlayedAttempt]) -> tuple[list[list[Example | None]], list[Example], int]:
        """The t-th steps of all attempts for every t, None where there is none; all examples; and how many do not fit."""
        longest = max(len(attempt.steps) for attempt in attempts)
        columns = [
            [self._example(attempt.steps[t]) if t < len(attempt.steps) else None for attempt in attempts]
            for t in range(longest)
        ]
        examples = [one for column in columns for one in column if one is not None]
        return columns, examples, sum(len(attempt.steps) for attempt in attempts) - len(examples)


def reply_example(model: LocalChatModel, messages: Sequence[Any], reply: str) -> Example:
    """LangChain messages and a reply to them as tokens.

    Raises:
        WindowError: they do not fit the model's window.
        UserError: the chat template or the tokenizer does not separate prompt and reply; see `LocalChatModel.reply_ids`.
    """
    example = Example(tuple(model.prompt_ids(messages)), model.reply_ids(reply))
    if len(example) > model.window:
        raise WindowError(
            f"{model.model}: an example of {len(example)} tokens does not fit its window of {model.window}", len(example)
        )
    return example


class _Rollouts:
    """TRL's `rollout_func`: the steps of a group that was played before."""

    filler = Example((0,), (0,))
    """One token of prompt and one of completion, of any kind, hold an empty place; neither is learned."""

    def __init__(self, columns: Sequence[Sequence[Example | None]], returns: Sequence[float | None]) -> None:
        self._columns, self._returns = columns, returns

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """The steps for the prompts, which are numbers of columns, each G times in a row."""
        group = len(self._returns)
        if [int(prompt) for prompt in prompts] != [n for n in range(len(self._columns)) for _ in range(group)]:
            raise UserError("TRL asked for other rollouts than were played: its sampler has changed; trl 1.16 is known to work")
        places = [one for column in self._columns for one in column]
        shown = [one or self.filler for one in places]
        return {
            "prompt_ids": [list(one.prompt) for one in shown],
            "completion_ids": [list(one.reply) for one in shown],
            "logprobs": None,
            "env_mask": [[int(place is not None)] * len(one.reply) for place, one in zip(places, shown, strict=True)],
            "episode_return": [value for _ in self._columns for value in self._returns],
        }


def _episode_return(episode_return: Sequence[float | None], **given: Any) -> list[float | None]:
    """TRL's reward function: the return of the attempt that a step belongs to."""
    return list(episode_return)


def trainer_arguments(model: LocalChatModel, out: str, learning_rate: float, seed: int) -> dict[str, Any]:
    """Arguments that all of TRL's trainers get: plain AdamW steps in the model's own numbers, and no files, logs or bars."""
    return {
        "output_dir": out,
        "seed": seed,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": model.network.device.type == "cpu",
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def imitate_examples(
    wrapper: Any,
    model: LocalChatModel,
    examples: Sequence[Example],
    arguments: Mapping[str, Any],
    optimizers: tuple[torch.optim.Optimizer, Any],
) -> TrainerOutcome:
    """Learn the replies of examples with TRL's SFTTrainer: the cross-entropy of their tokens, mean over the tokens of each batch.

    Args:
        wrapper: PEFT's wrapper of the model's network; its trainable weights are the optimizer's.
        model: gives the tokenizer, whose token pads.
        examples: of any order; the seed among the arguments shuffles them.
        arguments: of `SFTConfig`.
        optimizers: the optimizer, and its schedule or None.
    """
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    rows = [{"input_ids": [*one.prompt, *one.reply], "labels": [IGNORED] * len(one.prompt) + [*one.reply]} for one in examples]
    trainer = SFTTrainer(
        model=wrapper,
        args=SFTConfig(**arguments, max_length=None, dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=_dataset(rows),
        processing_class=model.tokenizer,
        optimizers=optimizers,
    )
    return _run(trainer)


@contextmanager
def trainer_surroundings() -> Iterator[str]:
    """A temporary folder for a trainer, without warnings about what is meant here, and with the global random numbers as they were."""
    import numpy

    loggers = {logger: logger.level for logger in map(logging.getLogger, ("trl", "transformers", "accelerate"))}
    plain, arrays = random.getstate(), numpy.random.get_state()  # TRL's trainers seed them
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is marked experimental
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield out
        finally:
            for logger, level in loggers.items():
                logger.setLevel(level)
            random.setstate(plain)
            numpy.random.set_state(arrays)


def _run(trainer: Any) -> TrainerOutcome:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    found = trainer.train()
    losses = tuple(row["loss"] for row in trainer.state.log_history if "loss" in row)
    return TrainerOutcome(int(trainer.state.global_step), float(found.training_loss), losses)


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    from datasets import Dataset  # type: ignore[import-untyped]

    return Dataset.from_list(list(rows))


def require_trl() -> None:
    """Raise `UserError` if TRL is not installed."""
    missing = [name for name in ("trl", "peft") if sys.modules.get(name, 0) is None or not find_spec(name)]
    if missing:
        raise UserError(
            f"training weights needs packages that are not installed ({', '.join(missing)}): pip install 'learngraph[train]'"
        )

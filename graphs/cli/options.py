"""The options of `learngraph run`, and what a worker process needs to know to play."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ..experiments.options import ModelOptions, SharedOptions

__all__ = ["RunOptions", "SweepSetup"]


@dataclass(frozen=True)
class RunOptions(SharedOptions):
    """The options of a run: the task, the model, and how often it plays."""

    compare: tuple[str, ...] = ()
    """The methods that it is compared with: `METHOD`, or with a preset `METHOD:PRESET`, each with its own defaults. `jitrl:paper`
    is a preset. `icrl:zero-reward` is an ablation: in `run icrl` it changes one thing in the settings given here. Some settings
    hold for all compared methods, if you give or change them and a method's preset says nothing else: `--bank`, `--k`,
    `--success-threshold`, `--online`, `--cross-task`, `--temperature`, `--history-steps`. settings.json in the run folder records
    what each method was given."""
    episodes: int = 30
    """Episodes of each run: the same task again and again."""
    split: Literal["train", "dev", "test"] = "test"
    """The fold of the environment's tasks. Seed s plays the s-th task of it."""
    prior: Literal["model", "uniform"] = "model"
    """The source of the actions' probabilities: the model, or `uniform`, a control without a model to which every admissible action is equally
    likely."""
    policy: Literal["auto", "local", "logprobs", "verbalized", "act", "answer"] = "auto"
    """The model's way to decide. With logits: `local` (exact scores of a local model), `logprobs` (of an API), `verbalized` (stated
    confidences). In writing: `act` (a thought and an action), `answer` (a whole answer, for tasks that ask for one)."""
    judge: str = "environment"
    """The judge, which rewards the steps of a finished episode: `environment`; `rule`, the environment's verifier; `self`, the model about its
    own attempt, step by step, or with `self:sparse` as a whole; `rubric`, the model, which grades a text by criteria and
    criticises it in words that icrl's next attempts are shown; `pairwise`, the model, which compares the attempt with a
    reference answer; `model`, which knows the final score. Several joined by + are averaged."""
    reference: Path | None = None
    """A text file with the answer that `--judge pairwise` compares attempts with; the environment's solution if not given. For
    `writing` that solution keeps the rules and reads badly: a good model's answer gives better rewards."""
    policy_history_steps: int | None = None
    """Number of earlier steps of the episode that jitrl and the baselines which it is compared with (static, prompt-update, memory, awm,
    evotest, reflexion) show the model. If not given, the policy's own number where one of the first three plays and in
    benchmarks, else all steps, as icrl and the others show them."""
    max_run_tokens: int = 0
    """Most tokens of model calls in each run; after that no further episode begins. 0: no limit. What reasoning-bank reads of a
    bank before the first attempt does not count; a line below the table says how much it is."""
    stop_at_full_score: bool = True
    """End a run of icrl, reflexion or best-of-n once an episode has earned the highest possible score, as far as it is known and the
    method sees the world's own rewards. With --compare all methods play the same number of episodes all the same."""
    memory: str | None = None
    """Place of the memories: a directory (one memory per method and seed under it), a Chroma server's
    `http://host:port`, or `postgresql://user@host/database`; the run folder if not given."""
    checkpoints: str | None = None
    """Place of the checkpoints: `postgresql://…`, or a directory; the run folder if not given."""


@dataclass(frozen=True)
class SweepSetup:
    """The options and settings from which a worker process builds each method."""

    options: RunOptions
    methods: Mapping[str, Any]
    """Method name -> its settings."""
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """Method name -> the temperature of its preset's paper, where it names one."""
    is_benchmark: bool = False
    """True in a benchmark: what a method is shown does not depend on which others are played."""

    @property
    def shows_recent_steps(self) -> bool:
        """True if methods are shown as many earlier steps as jitrl, where `policy_history_steps` is not given; else they see all."""
        from ..methods import find_method

        return self.is_benchmark or any(find_method(name).needs_logits for name in self.methods)

    def model_options(self, method: str) -> ModelOptions:
        """The options of the model that a method asks. The user's temperature goes before that of a preset's paper."""
        chosen = ModelOptions(**{one.name: getattr(self.options, one.name) for one in fields(ModelOptions)})
        if chosen.model_temperature is None and self.asks_at_paper_temperature(method):
            return replace(chosen, model_temperature=self.temperatures[method])
        return chosen

    def asks_at_paper_temperature(self, method: str) -> bool:
        """True if the method's model is sampled as in its paper: behind an API, where the user names no temperature."""
        given = self.options.model_temperature is not None
        return not given and method in self.temperatures and self.options.model.startswith("openai:")

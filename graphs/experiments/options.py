"""Options that commands which ask a model share, and how results depend on them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...memory.errors import CommandError

if TYPE_CHECKING:
    from ...nodes.cached_model import Prices

__all__ = ["DRAW_OPTIONS", "ModelOptions", "RunOptions"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of every command that asks a model."""

    base_url: str | None = None
    """The server behind the model, for `openai:MODEL`."""
    request_timeout: float = 600.0
    """Seconds that one request to the model may take, for `openai:MODEL`."""
    retries: int = 9
    """Further tries of a request that was rate-limited, failed or timed out, for `openai:MODEL`: nine last two to three
    minutes, and a pause that the server asks for is kept."""
    model_temperature: float | None = None
    """The temperature at which a model that writes draws its words. If not given, the one of the method's preset, else the model's
    own. (--temperature is of the draw among actions whose logits are known.)"""
    max_tokens: int | None = None
    """Longest reply of a model that writes, in tokens; its own if not given."""
    model_seed: int | None = None
    """The seed of the model's own draws; none is sent if not given."""
    reasoning_effort: str | None = None
    """The effort of a model that reasons, for `openai:MODEL`: `minimal`, `low`, `medium`, `high`, or what the server knows."""
    extra_body: str | None = None
    """Further fields of every request, for `openai:MODEL`: a JSON object such as `{"top_k": 20}`."""

    def __post_init__(self) -> None:
        least: Mapping[str, float] = {"retries": 0, "model_temperature": 0, "max_tokens": 1}
        for name, low in least.items():
            given = getattr(self, name)
            if given is not None and not low <= given < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least {low:g}, got {given:g}")
        if not 0 < self.request_timeout < math.inf:
            raise CommandError(f"--request-timeout is more than 0 seconds, got {self.request_timeout:g}")
        self._extra_fields()

    def _extra_fields(self) -> dict[str, Any] | None:
        """The value of --extra-body."""
        if self.extra_body is None:
            return None
        try:
            found = json.loads(self.extra_body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CommandError(f"""--extra-body is a JSON object such as '{{"top_k": 20}}', got {self.extra_body!r}""")
        return found

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of `tools.models.models.open_model`, by name."""
        return {
            "base_url": self.base_url,
            "timeout": self.request_timeout,
            "max_retries": self.retries,
            "temperature": self.model_temperature,
            "max_tokens": self.max_tokens,
            "seed": self.model_seed,
            "reasoning_effort": self.reasoning_effort,
            "extra_body": self._extra_fields(),
        }


REQUEST_OPTIONS = ("request_timeout", "retries")
"""Options of requests that change no result."""
COST_OPTIONS = ("token_budget", "dollar_budget", "price_in", "price_out", "critic_price_in", "critic_price_out", "dry_run")
"""Options of costs, which change no result."""
DRAW_OPTIONS = ("model_temperature", "max_tokens", "model_seed", "reasoning_effort", "extra_body")
"""Options of requests that results depend on."""


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    """The options of a run: the task, the model, and how often it plays."""

    env: str = "twx:coin"
    """The environment: `toy`, `twx:GAME`, `jericho:GAME`, `math` (see `learngraph list`)."""
    model: str = "pocket"
    """The model: `pocket`, `local:PATH_OR_NAME`, `openai:MODEL` (see `learngraph list`)."""
    seeds: str = "5"
    """Number of seeds, or a list of them: `5` means `0,1,2,3,4`; `7,` means seed 7 alone."""
    horizon: int | None = None
    """Steps after which an episode ends; the environment's own limit if not given."""
    window: int | None = None
    """Tokens that the model can read at once; a local model knows its own limit, any other is taken to have 32768."""
    prompts: Path | None = None
    """A directory with prompt files. They replace those of the same name."""
    out: Path | None = None
    """The output: the run folder; made from the settings under `runs/` if not given. The same command continues it."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes that work at the same time."""
    engine: str = "processes"
    """Where they run: `processes` of this machine, `ray` (a Ray cluster on it, or $RAY_ADDRESS), or `ray://HOST:PORT`."""
    concurrency: int | None = None
    """Work that each process waits for at the same time: runs, or in training-free-grpo calls of a model. If not given, 16 for a model
    behind an API, and 1 for a model in this process, which can do one thing at a time."""
    token_budget: int = 0
    """Tokens that this folder may pay for, read and written, of all seeds and methods. Then the run stops with what it has; with a
    larger budget the same command goes on. It is asked before each call: up to --workers times --concurrency calls in flight may
    exceed it. 0: no limit."""
    dollar_budget: float = 0.0
    """The same in dollars. 0: no limit."""
    price_in: float = 0.0
    """Dollars per million tokens that the model reads."""
    price_out: float = 0.0
    """Dollars per million tokens that it writes."""
    dry_run: bool = False
    """Ask no model: say how many calls, tokens and dollars the run would take, and on what assumptions."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""
    compare: tuple[str, ...] = ()
    """The methods that it is compared with: `METHOD`, or with a preset `METHOD:PRESET`, each with its own defaults. `jitrl:paper`
    is a preset. `icrl?rewards=zero` changes one setting: in `run icrl`, of the settings given here. Some settings
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
    own attempt, step by step, or with `self:sparse` as a whole; `pairwise`, the model, which compares the attempt with a
    reference answer; `model`, which knows the final score; `hindsight`, a rule that rewards a step
    by the world's rewards after it; `shift:C`, the world's rewards with C added."""
    reference: Path | None = None
    """A text file with the answer that `--judge pairwise` compares attempts with; the environment's solution if not given. For
    `writing` that solution keeps the rules and reads badly: a good model's answer gives better rewards."""
    policy_history_steps: int | None = None
    """Number of earlier steps of the episode that jitrl and its baselines (static, prompt-update, memory, awm, evotest, reflexion)
    show the model; the policy's own number if not given. icrl and the others show all of them."""
    max_run_tokens: int = 0
    """Most tokens of model calls in each run; after that no further episode begins. 0: no limit. What reasoning-bank reads of a
    bank before the first attempt does not count; a line below the table says how much it is."""
    memory: str | None = None
    """Place of the memories: a directory (one memory per method and seed under it), a Chroma server's
    `http://host:port`, or `postgresql://user@host/database`; the run folder if not given."""
    checkpoints: str | None = None
    """Place of the checkpoints: `postgresql://…`, or a directory; the run folder if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("token_budget", "dollar_budget", "price_in", "price_out"):
            if not 0 <= (given := getattr(self, name)) < math.inf:
                raise CommandError(f"--{name.replace('_', '-')} is at least 0, got {given:g}")
        if self.dollar_budget and not self.has_prices:
            raise CommandError(
                f"--dollar-budget {self.dollar_budget:g} needs --price-in and --price-out, in dollars per million tokens"
            )

    @property
    def has_prices(self) -> bool:
        """True if a price of the model is known."""
        return bool(self.price_in or self.price_out)

    @property
    def prices(self) -> Prices:
        """The prices of the model's tokens; 0 and 0 where they are unknown."""
        return self.stage_prices("")

    def stage_prices(self, stage: str) -> Prices:
        """The prices of the calls in a stage of a run."""
        from ...nodes.cached_model import Prices

        return Prices(self.price_in, self.price_out)

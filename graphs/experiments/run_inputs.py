"""The inputs of a run's graph: the environment, the model and its policy, and the judge, as the options of a run say."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ...memory.errors import CommandError, UserError
from ..arms import Arm
from .options import ModelOptions, RunOptions

__all__ = ["make_method_inputs", "method_resources"]


@lru_cache(maxsize=2)
def shared_environment(spec: str, horizon: int | None) -> Any:
    """The environment of this name, opened once in a process."""
    from ...tools.environments.catalogue import open_environment

    return open_environment(spec, horizon=horizon)


@lru_cache(maxsize=8)
def shared_model(spec: str, options: ModelOptions) -> Any:
    """The model of this name, opened once in a process for each combination of options."""
    from ...tools.models.models import open_model

    return open_model(spec, **options.model_arguments(), threads=1)


@lru_cache(maxsize=8)
def shared_meter(spec: str, options: ModelOptions) -> Any:
    """The count of operations of a model that runs share."""
    from ...tools.training.flops import FlopMeter

    return FlopMeter(shared_model(spec, options).network)


def needs_model(arm: Arm, options: RunOptions) -> bool:
    """True if the method asks a model for its actions, or has one write."""
    return arm.method.needs_writer or (arm.method.needs_model and options.prior == "model")


def loads_model(arm: Arm, options: RunOptions) -> bool:
    """True if a model is loaded for the method, if only to judge."""
    return needs_model(arm, options) or ((asks_model(options.judge) or arm.needs_chat) and arm.method.needs_model)


def make_method_inputs(
    options: RunOptions, environment: Any, model: Any, journal: Any, method: Any = None, judging: Any = None
) -> Any:
    """The `MethodInputs` that a method's graph is built from."""
    from ...nodes.act.policies import logprobs_policy, verbalized_policy
    from ..wiring.inputs import DEFAULT_WINDOW, MethodInputs, split_fields, uniform_policy

    # A method that needs no model has none that could judge.
    is_judged = method is None or method.needs_model or not asks_model(options.judge)
    judge = judge_node(options, environment, judging or model, journal) if is_judged else None
    more: dict[str, Any] = {"judge": judge, "prompts": options.prompts}
    if options.policy_history_steps is not None:
        more["history_steps"] = options.policy_history_steps
    if (prior := getattr(environment, "policy", None)) is not None:  # the world's own, in a model's place
        more["make_policy"] = lambda view: prior
    if model is None or prior is not None:
        return MethodInputs(environment, journal, **split_fields(more, window=options.window or DEFAULT_WINDOW))
    kind = policy_kind(options, environment, model, scores=method is None or method.needs_logits)
    if options.window is not None:
        # A model in this process knows its window. What a name tells of one behind an API may be wrong either way.
        more["window"] = min(options.window, model.window) if kind == "local" else options.window
    make: Any = (
        MethodInputs.with_scoring_model if kind == "local" else partial(MethodInputs.with_chat_model, stepwise=kind == "act")
    )
    inputs = make(environment, journal, model, **more)
    if options.prior == "uniform":
        return replace(inputs, make_policy=uniform_policy)
    named: dict[str, Any] = {
        "logprobs": logprobs_policy,
        "verbalized": partial(verbalized_policy, admit=getattr(environment, "admit", None)),
    }
    return replace(inputs, make_policy=partial(named[kind], model, prompts=options.prompts)) if kind in named else inputs


def method_resources(method: Any, make_trainer: Any = None, training_log: Any = None) -> dict[str, Any]:
    """Arguments of a method's `build` that the method alone has: a sandbox for code, or the training of the model's weights."""
    code = {"run_code": run_in_sandbox} if method.runs_code else {}
    return code | ({"make_trainer": make_trainer, "training_log": training_log} if method.trains_weights else {})


def run_in_sandbox(code: str) -> tuple[str, bool]:
    """Run code of a model's behind all walls of the interpreter (tools/agent_tools/interpreter.py)."""
    from ...tools.agent_tools.interpreter import InterpreterError, run_alone

    try:
        return run_alone(code)
    except InterpreterError as error:
        raise UserError(f"{error}; evotest needs no sandbox with --no-evolve-routine") from error


def policy_kind(options: RunOptions, environment: Any, model: Any, scores: bool) -> str:
    """The model's policy: as asked for, or as suits the model, the environment and the method."""
    kind: str = options.policy
    if kind == "auto" and hasattr(model, "score"):
        return "local"
    if kind == "auto":
        return "verbalized" if scores else "answer" if hasattr(environment, "read") else "act"
    if kind == "local" and not hasattr(model, "score"):
        raise CommandError(f"--policy local needs a model in this process, not {options.model}; use logprobs or verbalized")
    if kind == "answer" and not hasattr(environment, "read"):
        raise CommandError(
            f"--policy answer is for tasks with one written answer; {options.env} is played step by step; use act"
        )
    return kind


def judge_node(options: RunOptions, environment: Any, model: Any, journal: Any) -> Any:
    """The node that rewards the steps of a finished episode; None where the environment's rewards hold."""
    from ...nodes.evaluate import changed_rewards, judge, preference

    prompts = options.prompts
    made: Mapping[str, Callable[[], Any]] = {
        "environment": lambda: judge.EnvironmentJudge(journal),
        "rule": lambda: judge.RuleJudge(environment.verify, journal),
        # What a world makes of the lines of a written answer tells which of them are wrong.
        "self": lambda: judge.self_judge(model, journal, prompts, shows_answers=not hasattr(environment, "read")),
        "self:sparse": lambda: judge.self_judge(
            model, journal, prompts, sparse=True, shows_answers=not hasattr(environment, "read")
        ),
        "pairwise": lambda: preference.pairwise_judge(model, journal, _reference(options, environment), prompts),
        "model": lambda: judge.model_judge(model, journal, prompts),
        "hindsight": lambda: changed_rewards.hindsight_judge(journal),
    }
    if (shift := options.judge.partition("shift:"))[:2] == ("", "shift:"):
        return changed_rewards.shift_judge(journal, shift[2])
    name = options.judge
    if name not in made:
        raise CommandError(f"--judge is {', '.join(made)}, or shift:C; got {name!r}")
    if name == "rule" and not hasattr(environment, "verify"):
        raise CommandError(f"{options.env} has no rule to judge by; use --judge environment or self")
    if name == "pairwise" and options.reference is None and not hasattr(environment, "gold"):
        raise CommandError(f"{options.env} has no reference answer to compare with; give one with --reference FILE")
    if asks_model(name) and model is None:
        raise CommandError(f"--judge {name} asks a model, and there is none here; use --judge environment or rule")
    return None if name == "environment" else made[name]()


def _reference(options: RunOptions, environment: Any) -> Callable[[Any], Any]:
    """Task -> the answer that `pairwise` compares attempts with."""
    if options.reference is None:
        reference: Callable[[Any], Any] = environment.gold
        return reference
    try:
        text = options.reference.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--reference {options.reference}: cannot be read ({error})") from error
    return lambda task: text


def credits_future(judge: str) -> bool:
    """True if the judge's reward of a step counts what followed from it, so that returns are not discounted again."""
    return judge in ("model", "hindsight")


def asks_model(judge: str) -> bool:
    """True if judging asks a model, whose answers may differ the next time."""
    return judge.partition(":")[0] in ("self", "pairwise", "model")

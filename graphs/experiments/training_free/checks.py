"""Checks of runs that learn before they play, before a model is asked: whether all arms can run."""

from typing import Any, ClassVar, cast

from ....memory.errors import CommandError, UserError
from ...wiring.inputs import DEFAULT_WINDOW
from ..folder import Sweep
from ..progress import say
from ..rehearsal import StandIn
from ..run_inputs import shared_environment, shared_model
from .options import LearningOptions, learning_arms, problem_split
from .play import LearningJob, shared_toolbox

__all__ = ["check_arms"]


def check_arms(sweep: Sweep, *, asks_model: bool = True) -> None:
    """Check models, tools and methods, and build the graphs of all arms: errors are found before the first call is paid for.
    Local models load their weights in the workers; one behind an API is opened if `asks_model`, which a dry run does not.

    Raises:
        CommandError: there is no such model, or an arm cannot run with it, with this environment, or with its library to start from.
    """
    from ....memory.lessons.versions import LibraryVersions, open_library
    from ....memory.storage.cache import Cache
    from ....memory.storage.journal import Journal
    from ....memory.storage.rows import Rows
    from ....tools.models.models import MODELS

    options, arms = cast(LearningOptions, sweep.options), learning_arms(sweep.arms)
    for seed in sweep.seeds:
        problem_split(options, seed)
    for name, arm in sweep.arms.items():
        if name not in arms and arm.method.has_memory:
            raise CommandError(
                f"--compare {name}: it learns from attempts at one problem, and here each problem is met once; react does, or a "
                f"preset of {next(iter(arms))} such as training-free-grpo?arm=empty"
            )
    if options.tool_names:
        if not hasattr(shared_environment(options.env, options.horizon), "read"):
            raise CommandError(
                f"--tools is for worlds with one written answer, such as math; {options.env} is played step by step"
            )
        if not options.model.startswith("openai:"):
            raise CommandError(f"--tools is for models that call tools (--model openai:NAME); {options.model} does not")
        shared_toolbox(options.tool_names, options.corpus)
        if "python" in options.tool_names:
            warn_about_sandbox()
    known = {name.partition(":")[0] for name in MODELS}
    for spec in (options.model, options.critic_model):
        kind = spec.partition(":")[0]
        if (kind == "openai" and asks_model) or kind not in known:
            shared_model(spec, sweep.job(next(iter(sweep.arms)), sweep.seeds[0]).model_options())
    for path in filter(None, {settings.library for settings in arms.values()}):
        if not getattr(open_library(path), "head", "a library alone"):
            raise CommandError(f"--library {path}: it holds no version yet")
    for name in sweep.arms:
        versions, journal, cache = LibraryVersions(), Journal(), Cache()
        job = _JobWithoutModel(sweep.job(name, sweep.seeds[0]), cache)
        try:
            job.rollout_node(versions, journal, "test", 0.0)
            if job.arm not in ("", "empty"):
                job.learning_graph(versions, journal, Rows())
        except UserError as error:
            raise CommandError(f"{name} cannot run: {error}") from error


def warn_about_sandbox() -> None:
    """Print a warning if this machine cannot fully isolate a model's Python code."""
    from ....tools.agent_tools.interpreter import Interpreter

    with Interpreter() as interpreter:
        interpreter.run("1")
        if lacking := sorted({"limits", "files", "calls"} - interpreter.walls):
            say(
                f"--tools python: this machine does not offer all walls around a model's code ({', '.join(lacking)} missing, see "
                "tools/agent_tools/interpreter.py); run only models that mean no harm, or all of it in a container"
            )


class _JobWithoutModel(LearningJob):
    """Builds graphs with models that cannot be asked."""

    def model(self, spec: str, base_url: str | None, stage: str, temperature: float | None) -> Any:
        from ....nodes.cached_model import CachedChatModel

        absent = StandIn(world=None) if spec.startswith("openai:") else _AbsentScorer(world=None)
        return CachedChatModel(absent, spec, self.cache, stage)


class _AbsentScorer(StandIn):
    """A model whose actions are scored, and that is never asked."""

    window: ClassVar[int | None] = DEFAULT_WINDOW

    def score(self, messages: Any, options: Any) -> list[float]:
        raise AssertionError("a model was asked before all arms were checked")

"""The methods by name: the graphs that the command line plays, draws and compares.

A method of your own needs no entry here: `learngraph run my_package.rest:METHOD` imports the module `my_package.rest` and plays
the `Method` that it calls `METHOD`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from ..memory.errors import UserError, did_you_mean, type_of
from . import adamem, icrl, jitrl, training_free_grpo
from .baselines import (
    awm,
    best_of_n,
    cot,
    evotest,
    grpo,
    memory,
    prompt_update,
    react,
    reasoning_bank,
    reflexion,
    self_refine,
    sft,
    static,
    synapse,
    tabular,
    tool_agent,
    webrl,
)
from .wiring.flow import Graph

__all__ = ["METHODS", "Method", "find_method", "import_user_module", "shared_fields", "split_name"]


class MethodSettings(Protocol):
    """The members of a method's settings that the command line and the studies may ask for. Every one of them is optional.

    Settings are a frozen dataclass whose fields all have defaults. Its class methods without arguments are presets: `paper`
    becomes `METHOD:paper`. Fields marked with `metadata=SHARED` (graphs/wiring/inputs.py) get the same value in every method of
    a comparison. Where a member is missing, the default that stands here holds.
    """

    preset_temperatures: ClassVar[Mapping[str, float]] = {}
    """Preset -> the temperature at which its paper samples the model; judges are then asked at 0. The user's goes before it."""
    remark: str = ""
    """A word that stands behind the method's name in tables, such as `rule-written`."""
    bank: str = ""
    """The path of a file of trajectories to start from. Its digest becomes part of the run's settings."""
    embedder: str = ""
    """The embedding model of dense keys, left out when a graph is only drawn."""
    state_key: str = ""
    """The key that states are compared by; where it is `embedding`, a graph is drawn as with `hierarchy`."""
    cross_task: bool = False
    """True if the runs of all seeds share one memory; they are then played in turn."""
    tuned: str = ""
    """The source of the examples on which the model is tuned before it plays (`AdaMEM.tuned`); empty: it is not."""
    commit: Literal["best", "last"] = "best"
    """The attempt that a run ends with, in the place of `Method.commit`."""
    needs_writer: bool = False
    """True if these settings have a model write where the method itself would do without: judge, or sum up."""
    arm: str = "method"
    """The source of the library of lessons (`TrainingFreeGRPO.arm`); `method`: there is no library."""
    learner: str | None = None
    """The middleware that learns with an agent (`LearningAgent.learner`), empty without one; None: the method is no agent."""
    library: str = ""
    """The path of a file of lessons to start from."""
    author: str = "rule"
    """The writer of what is learned: `rule`, or `model`, which reads prompts for it."""
    temperature: float | None = None
    """The temperature of the softmax over scored actions, which a test with its own temperature replaces."""
    trial: Any = None
    """The settings of a test of what was learned (`AcceptSettings`), with the temperature of its rollouts."""


@dataclass(frozen=True)
class Method:
    """One way to play a task: what the command line says of it, and how its graph is built."""

    summary: str
    """One line for `learngraph list`."""
    settings: type
    """The hyper-parameters: a dataclass as `MethodSettings` describes."""
    build: Callable[..., Graph]
    """(MethodInputs, settings, **compile) -> the graph of one episode, or of learning; see `has_training_phase`.

    `compile` holds the options of `StateGraph.compile`, and `flow` and `nodes`: another drawing of the graph, and further nodes for it."""
    model_use: Literal["none", "logits", "actions", "text", "chat"] = "actions"
    """The largest use that is made of a language model. `none`: there is no model. `logits`: it proposes several actions with
    logits; a model that cannot be scored states its confidence in each. `actions`: it proposes an action. `text`: it also writes
    about attempts, so that it is needed even where a uniform prior proposes the actions. `chat`: its writing is what is played, reasoning
    or code, so that a model that only scores actions cannot do it."""
    has_memory: bool = True
    """True if finished episodes are kept in a store."""
    commit: Literal["best", "last"] = "best"
    """The attempt that a run ends with: the one with the highest reward that the method saw, or the last."""
    has_independent_attempts: bool = False
    """True if an episode makes no use of others: with a model behind an API they may be played at the same time."""
    runs_code: bool = False
    """True if it runs code that a model wrote: `build` then gets a sandbox for it (`run_code`)."""
    has_training_phase: bool = False
    """True if it learns on some problems to play others: `build` then makes the graph of learning."""
    trains_weights: bool = False
    """True if it trains the weights of the model that plays: `build` then gets a trainer (`make_trainer`, `training_log`), and the run
    a model of its own."""

    @property
    def needs_model(self) -> bool:
        """True if the method makes any use of a language model."""
        return self.model_use != "none"

    @property
    def needs_logits(self) -> bool:
        """True if the method works with the logits of several actions."""
        return self.model_use == "logits"

    @property
    def needs_writer(self) -> bool:
        """True if the method has a model write, even where a uniform prior proposes the actions."""
        return self.model_use in ("text", "chat")

    @property
    def needs_chat(self) -> bool:
        """True if only a model that writes freely can play it, and not one that scores actions."""
        return self.model_use == "chat"


METHODS: Mapping[str, Method] = {
    "jitrl": Method(
        "recalls what similar states earned, adds the advantage to the logits", jitrl.JitRL, jitrl.build, model_use="logits"
    ),
    "icrl": Method("shows the model its own attempts with their rewards, round after round", icrl.ICRL, icrl.build),
    "adamem": Method(
        "recalls what was done in states like the present one, and writes a strategy from it on the spot",
        adamem.AdaMEM,
        adamem.build,
    ),
    "training-free-grpo": Method(
        "learns lessons by comparing attempts at many problems, and plays others with them",
        training_free_grpo.TrainingFreeGRPO,
        training_free_grpo.build,
        has_memory=False,
        has_training_phase=True,
    ),
    "react": Method(
        "thinks and acts in turns; nothing is carried over",
        react.ReAct,
        react.build,
        has_memory=False,
        commit="last",
        has_independent_attempts=True,
    ),
    "cot": Method(
        "reasons step by step, then answers, in one pass",
        cot.ChainOfThought,
        cot.build,
        model_use="chat",
        has_memory=False,
        commit="last",
        has_independent_attempts=True,
    ),
    "long-cot": Method(
        "tries, checks and tries again within one reply, then answers",
        cot.ChainOfThought,
        partial(cot.build, long=True),
        model_use="chat",
        has_memory=False,
        commit="last",
        has_independent_attempts=True,
    ),
    "tool-agent": Method(
        "calls tools as its API offers it, until it writes its answer; what run training-free-grpo --tools gives them to",
        tool_agent.ToolAgent,
        tool_agent.build,
        has_memory=False,
        commit="last",
    ),
    "best-of-n": Method(
        "independent attempts, the one with the highest reward wins",
        best_of_n.BestOfN,
        best_of_n.build,
        has_independent_attempts=True,
    ),
    "self-refine": Method(
        "criticises its own attempt, and makes another; sees no reward (self-refine?rewards=dense does)",
        self_refine.SelfRefine,
        self_refine.build,
        model_use="text",
        commit="last",
    ),
    "reflexion": Method(
        "writes down after every attempt what to do differently", reflexion.Reflexion, reflexion.build, model_use="text"
    ),
    "synapse": Method(
        "shows whole earlier attempts at the task most like this one, the same at every step", synapse.Synapse, synapse.build
    ),
    "reasoning-bank": Method(
        "keeps lessons from successes and failures, shows those of the task most like this one",
        reasoning_bank.ReasoningBank,
        reasoning_bank.build,
        model_use="text",
    ),
    "memory": Method(
        "shows whole transcripts of earlier attempts, first in, first out, once the window is full",
        memory.Transcripts,
        memory.build,
    ),
    "awm": Method(
        "writes down ways through the task that have worked, and shows them", awm.WorkflowMemory, awm.build, model_use="text"
    ),
    "evotest": Method(
        "rewrites its whole configuration after an attempt, guide, examples and code, and picks the next by a bandit",
        evotest.EvoTest,
        evotest.build,
        model_use="chat",
        runs_code=True,
    ),
    "prompt-update": Method(
        "recalls what jitrl recalls, and writes the advantages into the prompt; the logits stay as they are",
        prompt_update.PromptUpdate,
        prompt_update.build,
        model_use="logits",
    ),
    "sft": Method(
        "trains the model's weights on its own best attempts (rejection sampling; TRL's SFTTrainer)",
        sft.RejectionSampling,
        sft.build,
        model_use="logits",
        has_memory=False,
        trains_weights=True,
    ),
    "grpo": Method(
        "trains the model's weights on groups of attempts, by their relative returns (TRL's GRPOTrainer)",
        grpo.GroupRelativeTraining,
        grpo.build,
        model_use="logits",
        has_memory=False,
        trains_weights=True,
    ),
    "webrl": Method(
        "practises on other tasks, then on tasks close to those that failed, and trains the model's weights on what worked",
        webrl.SelfEvolvingCurriculum,
        webrl.build,
        model_use="logits",
        has_memory=False,
        trains_weights=True,
    ),
    "static": Method(
        "the policy alone, every episode as if it were the first",
        static.Static,
        static.build,
        model_use="logits",
        has_memory=False,
        commit="last",
        has_independent_attempts=True,
    ),
    "random": Method(
        "any admissible action", static.Static, static.build_random, model_use="none", has_memory=False, commit="last"
    ),
    "tabular": Method("Q-learning over exact states, no language model", tabular.Tabular, tabular.build, model_use="none"),
}


def split_name(name: str) -> tuple[str, str]:
    """The method and the preset in a name, without values of settings; the preset is empty if the name has none.

    >>> split_name("jitrl:paper"), split_name("my_package.rest:METHOD"), split_name("my_package.rest:METHOD:strict")
    (('jitrl', 'paper'), ('my_package.rest:METHOD', ''), ('my_package.rest:METHOD', 'strict'))
    """
    first, _, rest = name.partition("?")[0].partition(":")
    if first in METHODS:
        return first, rest
    attribute, _, preset = rest.partition(":")
    return (f"{first}:{attribute}" if attribute else first), preset


def find_method(name: str) -> Method:
    """The method of this name, with or without a preset: `jitrl`, `jitrl:paper`, or `MODULE:NAME` for one of your own.

    A module is found as `python -m` finds it: among the installed packages and in the current directory.

    Raises:
        UserError: there is no such method; says which there are.
    """
    method, _ = split_name(name)
    if method in METHODS:
        return METHODS[method]
    module, _, attribute = method.partition(":")
    if not attribute.isidentifier() or not all(map(str.isidentifier, module.split("."))):
        others = f"; there are {', '.join(sorted(METHODS))}, and MODULE:NAME for one of your own"
        if method.endswith(".py"):
            others = f"; of a file say also the name in it, such as {method}:graph"
        raise UserError(f"no method is called '{method}'{did_you_mean(method, METHODS) or others}")
    return _import_method(module, attribute)


def _import_method(module: str, attribute: str) -> Method:
    asked = f"{module}:{attribute}"
    known = f"the methods with a name are {', '.join(sorted(METHODS))}"
    found = import_user_module(module, f"'{asked}' asks for the method {attribute} of the module {module}", known)
    method = getattr(found, attribute, None)
    if isinstance(method, Method):
        return method
    others = [f"{module}:{name}" for name, value in vars(found).items() if isinstance(value, Method)]
    would_do = f"it has {', '.join(others)}" if others else f"write {attribute} = Method(summary, settings, build) there"
    came = "nothing of that name" if method is None else f"{type_of(method)} of that name"
    raise UserError(f"'{asked}' asks for a learngraph.graphs.methods.Method, but {module} has {came}; {would_do}")


def import_user_module(module: str, asked: str, would_do: str = "") -> Any:
    """A module of the user's, found as `python -m` finds it, or by the path of its file.

    Args:
        module: `my_package.rest`, or `my_app.py`.
        asked: what was asked for, as an error says it.
        would_do: what else would do.

    Raises:
        UserError: it cannot be imported.
    """
    if "" not in sys.path:  # as `python -m` has it; the script `learngraph` starts without
        sys.path.append("")
    try:
        if not module.endswith(".py"):
            return import_module(module)
        spec = spec_from_file_location(Path(module).stem, module)
        if spec is None or spec.loader is None or not Path(module).exists():
            raise ImportError(f"there is no file {module}")
        made = module_from_spec(spec)
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
        return made
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{asked}, which cannot be imported ({error}). A module is a file or package in the current directory or an installed "
            f"one, or the path of a file that ends with .py{'; ' * bool(would_do)}{would_do}"
        ) from error


def shared_fields(settings: type) -> tuple[str, ...]:
    """Names of the fields that a comparison gives to all its methods: those of this class marked with `metadata=SHARED`."""
    return tuple(one.name for one in fields(settings) if one.metadata.get("shared"))

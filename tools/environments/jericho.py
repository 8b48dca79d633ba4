"""Jericho: parser games by human authors, with the admissible actions worked out (Hausknecht et al., 2020, arXiv:1909.05398).

Needs a compiler: `sudo apt install gcc make && pip install --no-deps jericho numpy` (with its
dependencies it also brings spaCy, which is not used here). The package is GPL-2.0-or-later and is imported only when a game
is opened. Game files are not part of it: point the setting `games` or $JERICHO_GAMES at a folder with `detective.z5` and the like.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...memory.errors import UserError, import_package
from ...memory.records import Observation, Task
from .support.arguments import check_settings, check_split
from .support.time_limit import call_within
from .support.worlds import LiveWorld, tidy

__all__ = ["Jericho"]

INSTALL = "sudo apt install gcc make && pip install --no-deps jericho numpy"
_SPLITS = {"test": 0, "dev": 1_000_000, "train": 2_000_000}
_PASSING = ("look", "wait")
"""Actions offered if no action changes the world (detective: a man with a gun stares at you). They let time pass."""
_TWO_OBJECT_VERBS = frozenset(
    "ask attack break burn cut dig feed fill give hit insert inflat kill light lock look open pour push put read show shoot strike "  # noqa: SIM905
    "tell throw tie turn unlock untie".split()
)
"""Verbs with which templates of two objects are tried. Other verbs are left out, because these templates cost most."""
_WITHOUT_TOOL = frozenset("ask look pour push read show tell turn".split())  # noqa: SIM905
"""Those of them that are tried with any two things; the others (put, give, unlock, attack) need one that is carried."""
_OUTSIDE = re.compile(
    r"(^|[.,;]|\bthen\b)\s*#?(save|restore|restart|undo|quit|q|script|unscript|noscript|transcript|notranscript|recording|record|"
    r"replay)\b",
    re.IGNORECASE,
)
"""Matches commands about the program rather than in the story. `save` and `restore` write and read files in the working directory,
so that one episode would leak into another, and `undo` would take back the adapter's own `look` and `inventory`."""
_AMBIGUOUS = re.compile(r"(which|who) .*\bdo you mean\b", re.IGNORECASE)
_EMPTY_WORDS = frozenset(
    "a an and at each for here in it its me my of on one some that the there these this those to you your".split()  # noqa: SIM905
)


class Jericho(LiveWorld):
    """An environment for one game.

    The observation is the game's answer, then what `look` and `inventory` would show (asked and taken back, so they cost no
    step). `Observation.actions` are the actions that would change the world, computed from the game's grammar, object tree
    and dictionary: good but not complete (in library a rewarded question is never among them). The game understands more, so
    any text may be an action; a text that it does not understand costs a step. So do `save`, `restore`, `undo` and other
    commands about the program, which are not passed to the game.

    Rewards are score changes and can be negative: the score of zork1 falls when the player dies. Points given before the
    first action (detective: 10; `given`) are part of no reward and not of the optimum: add them before comparing with
    published scores.

    Args:
        game: name of a file in the folder, without its ending.
        settings: `games`, the folder of the game files ($JERICHO_GAMES if not given); `cache`, the folder that keeps the lists of
            actions from run to run (`default_cache()` if not given; none: they are kept in memory only); `seed`, the seed of the
            game's random numbers in every task (if not given, each task has its own). With 0 every task is the same game, that
            of the walkthrough, as in published runs; only the agent's draws differ from task to task.
        horizon: number of steps after which an episode ends.
        time_limit: seconds that a step may take, the list of actions included. A game that takes longer is given up.
    """

    free_text = True
    """Any text may be an action, also one that is not listed."""

    def __init__(
        self,
        game: str = "detective",
        settings: Mapping[str, str] | None = None,
        horizon: int = 50,
        *,
        time_limit: float = 60.0,
    ) -> None:
        chosen = dict(settings or {})
        check_settings(f"jericho:{game}:", chosen, ("games", "cache", "seed"))
        super().__init__(f"jericho:{game}", horizon, live=8)
        self.game, self.time_limit = game, time_limit
        seed = chosen.get("seed")
        if seed is not None and not re.fullmatch("[0-9]{1,6}", seed):
            raise UserError(f"{self.name}: seed is a whole number from 0 to 999999, got {seed!r}")
        self._seed = None if seed is None else int(seed)
        self._package = import_package("jericho", f"{self.name} needs the package jericho", INSTALL)  # it has no types
        self.path = _game_file(self.name, game, chosen.get("games"))
        known = hashlib.md5(self.path.read_bytes()).hexdigest()
        if known not in importlib.import_module("jericho.defines").BINDINGS_DICT:  # the interpreter would end the process
            raise UserError(
                f"{self.name}: {self.path} is damaged, or not a version of a game that Jericho knows (by its checksum, {known})"
            )
        self._lock = threading.Lock()
        self._idle: dict[int, list[Any]] = {}
        self._best: float | None = None
        probe = self._emulator(0)
        self._walkthrough = tuple(probe.get_walkthrough())
        self.given = float(probe.reset()[1]["score"])
        """Points that the game gives before the first action."""
        self._most = float(probe.get_max_score())
        self._release(0, probe)
        cache = chosen.get("cache")
        folder = None if cache == "none" else Path(cache) if cache else default_cache()
        self.valid = ValidActions(folder / f"{game}-{known[:12]}-actions-1.jsonl" if folder else None)

    def task(self, seed: int, split: str = "test") -> Task:
        """The game with the seed-th random numbers of a split; text and map of the game are always the same.

        Task 0 of `test` has the walkthrough's random numbers. In detective seeds change nothing.
        """
        check_split(self.name, split, _SPLITS)
        if not 0 <= seed < 1_000_000:
            raise UserError(f"{self.name}: task seeds are 0 to 999999, got {seed}")
        goal = f"You are playing the text adventure {self.game}. Score as many points as you can."
        return Task(f"{self.game}-{split}-{seed}", goal, _SPLITS[split] + seed if self._seed is None else self._seed)

    def start(self, task: Task) -> str:
        """A name for how the task starts: tasks with the same one are the same game, random numbers included."""
        return f"{self.game}-{task.seed}"

    def abstract(self, observation: Observation) -> str:
        """Location and inventory without the game's answer to the last action; the things in both are sorted.
        After the end there is neither, and the state is the last answer."""
        blocks = observation.text.split("\n\n")
        if len(blocks) < 2:
            return observation.text
        (place, *things), (heading, *carried) = (block.split("\n") for block in blocks[-2:])
        return "\n".join([place, *sorted(things), heading, *sorted(carried)])

    def gold(self, task: Task) -> tuple[str, ...]:
        """The published walkthrough, cut at the horizon. It is certain to work in task 0 of `test` only. Within a short
        horizon it is not optimal, because it aims at the end of the game."""
        return self._walkthrough[: self.horizon]

    def optimum(self, task: Task) -> float:
        """The points that the walkthrough earns within the horizon in task 0 of `test`, whatever the task."""
        if self._best is None:
            emulator, best, over = self._emulator(0), 0.0, False
            emulator.reset()
            for action in self.gold(task):
                if not over:
                    _, reward, over, _ = emulator.step(action)
                    best += reward
            self._release(0, emulator)
            self._best = best
        return self._best

    def knows_optimum(self, task: Task) -> bool:
        """True if the walkthrough earns all points of the game within the horizon; otherwise another way may earn more."""
        return self.given + self.optimum(task) >= self._most

    def close(self) -> None:
        """End the live games."""
        super().close()
        with self._lock:
            self._idle.clear()

    def _emulator(self, seed: int) -> Any:
        with self._lock:
            if self._idle.get(seed):
                return self._idle[seed].pop()
        return self._package.FrotzEnv(str(self.path), seed or None)

    def _release(self, seed: int, emulator: Any) -> None:
        with self._lock:
            self._idle.setdefault(seed, []).append(emulator)

    def _start(self, task: Task) -> tuple[_Episode, Observation]:
        return call_within(self.time_limit, self._start_now, task.seed)

    def _start_now(self, seed: int) -> tuple[_Episode, Observation]:
        emulator = self._emulator(seed)
        text, info = emulator.reset()
        episode = _Episode(self, seed, emulator, float(info["score"]))
        return episode, episode.show(text, 0.0)


@dataclass
class _Episode:
    world: Jericho
    seed: int
    emulator: Any
    score: float
    is_lost: bool = False
    """True if a step has not come back: another thread still works on the emulator."""

    def step(self, action: str) -> Observation:
        """The observation after an action.

        Raises:
            TimeoutError: the game did not answer in time.
        """
        try:
            return call_within(self.world.time_limit, self._step_now, action)
        except TimeoutError:
            self.is_lost = True
            raise

    def _step_now(self, action: str) -> Observation:
        if _OUTSIDE.search(action):
            return self.show("That command is not available here.", 0.0)
        text, _, _, info = self.emulator.step(action)
        score = float(info["score"])
        reward, self.score = score - self.score, score
        return self.show(text, reward)

    def show(self, text: str, reward: float) -> Observation:
        game = self.emulator
        said = tidy(text)
        # An interpreter that has halted has ended the game too.
        if game.game_over() or game.victory() or game._emulator_halted():
            return Observation(said, (), reward, True)
        state = game.get_state()
        look, inventory = (_try_command(game, state, command) for command in ("look", "inventory"))
        actions = self.world.valid.actions(game, look, inventory)
        answer = "" if look.startswith(said) else tidy(said.replace(look, ""))  # what `look` repeats is said once
        return Observation("\n\n".join(part for part in (answer, look, inventory) if part), actions, reward)

    def close(self) -> None:
        if not self.is_lost:
            self.world._release(self.seed, self.emulator)


@dataclass
class ValidActions:
    """The actions that change the world, by state; computed once for each state.

    A list costs 0.1 (zork1) to 0.4 (library) seconds of one core. States are told apart by the object tree (the package's
    world hash, which leaves out turn counters) and the texts of `look` and `inventory`. Something may still be hidden from
    both: of 68 states met again in random episodes one had another list (library: a joke that works once). Then the list of
    the first visit stands; what an action does is always up to the game.
    """

    cache_file: Path | None = None
    """A file of JSON lines `[key, [action, ...]]` that the lists are read from and appended to."""
    actions_by_state: dict[str, tuple[str, ...]] = field(default_factory=dict)
    computed_lists: int = 0
    """Number of lists computed so far."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        if self.cache_file is not None and self.cache_file.exists():
            for line in self.cache_file.read_text(encoding="utf-8").splitlines():
                try:
                    key, actions = json.loads(line)
                except ValueError:
                    continue  # empty, or cut off by a crash: worked out again when needed
                self.actions_by_state.setdefault(key, tuple(actions))  # of two processes the first

    def actions(self, game: Any, look: str, inventory: str) -> tuple[str, ...]:
        """The sorted actions of the present state of a game; the game is left as it was."""
        whole = "\n\n".join((game.get_world_state_hash(), look, inventory))
        key = hashlib.md5(whole.encode()).hexdigest()
        if key not in self.actions_by_state:
            actions = find_valid_actions(game)
            with self._lock:
                self.computed_lists += 1
                self.actions_by_state[key] = actions
                self._store(key, actions)
        return self.actions_by_state[key]

    def _store(self, key: str, actions: Sequence[str]) -> None:
        if self.cache_file is None:
            return
        # The line break comes first: whatever a crash cut off before must not spoil this line. One write: lines of several
        # processes do not mix.
        line = "\n" + json.dumps([key, actions])
        try:
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            with self.cache_file.open("ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:  # a full disk, a folder that belongs to somebody else: it is only a cache
            warnings.warn(f"lists of actions are not kept in {self.cache_file}: {error}", stacklevel=2)
            self.cache_file = None


def default_cache() -> Path:
    """The folder of the lists of actions for all runs of a user: $XDG_CACHE_HOME/learngraph/jericho, or ~/.cache/...."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "learngraph" / "jericho"


def find_valid_actions(game: Any) -> tuple[str, ...]:
    """The sorted actions that change the world: the game's templates, filled with the names of what is near, tried one by
    one. Of several actions with the same effect one is listed: naming a thing rather than `all`, with the most usual verb.

    The package's own `get_valid_actions` takes names from the text by a spaCy model that is downloaded at first use, starts
    a pool of processes that is never closed, and lists equivalent actions in the order of a set, which differs from process
    to process. This takes the names from the object tree and the game's dictionary and breaks ties by the alphabet. Along
    the walkthroughs it covers, of the steps that change the world and of the rewarded ones, all of the first 51 of detective
    (46 and 26) and 60 of zork1 (59 and 6), and 28 of 29 and 9 of 10 in library.
    """
    usage = importlib.import_module("jericho.util").verb_usage_count
    names, carried = _names(game)
    tried: dict[str, None] = {}
    for template in game.act_gen.templates:
        holes, verb = template.count("OBJ"), template.split()[0]
        if holes == 0:
            tried[template] = None
        for first in names if holes else ():
            filled = template.replace("OBJ", first, 1)
            if holes == 1:
                tried[filled] = None
            elif verb in _TWO_OBJECT_VERBS:
                either = verb in _WITHOUT_TOOL or first in carried
                for second in names if either else carried:
                    if second != first:
                        tried[filled.replace("OBJ", second, 1)] = None
    effects = game._filter_candidate_actions(list(tried), use_ctypes=True, use_parallel=False)
    found = {min(same, key=lambda a: ("all" in a.split(), -usage(a), len(a), a)) for same in effects.values()}
    return tuple(sorted(found or _PASSING))


def _names(game: Any) -> tuple[list[str], list[str]]:
    """One name for each thing that is near, and those of them that are carried.

    A name is the noun of the thing's name in the object tree, or the whole of it, or an adjective: the first that the game
    can examine without asking which one is meant.
    """
    util = importlib.import_module("jericho.util")
    place = game.get_player_location()
    if place is None:
        return ["all"], []
    words = _dictionary(game)
    length = max(len(word) for word in words)
    state = game.get_state()
    objects = game.get_world_objects()
    held = {thing.num for thing in util.get_subtree(game.get_player_object().child, objects)}
    seen: dict[str, str] = {}
    carried: set[str] = set()
    for thing in util.get_subtree(place.child, objects):
        full = thing.name.lower()
        parts = [part for part in full.split() if part not in _EMPTY_WORDS and part[:length] in words]
        if thing.num == game.player_obj_num or not parts:
            continue
        for name in dict.fromkeys([*parts[-1:], full, *parts[:-1]]):
            answer = util.clean(_try_command(game, state, f"examine {name}"))
            if not util.recognized(answer) or _AMBIGUOUS.match(answer):
                continue
            chosen = seen.setdefault(answer, name)
            if thing.num in held:
                carried.add(chosen)
            break
    # Scenery that is no object of its own (or of another place) shows only in the text.
    for word in sorted(set(re.findall(r"[a-z]+", _try_command(game, state, "look").lower()))):
        if word[:length] in words and words[word[:length]] and word not in _EMPTY_WORDS:
            answer = util.clean(_try_command(game, state, f"examine {word}"))
            if util.recognized(answer) and not _AMBIGUOUS.match(answer):
                seen.setdefault(answer, word)
    return sorted({*seen.values(), "all"}), sorted(carried)


def _dictionary(game: Any) -> dict[str, bool]:
    """The words that the game knows -> whether each can be a noun."""
    if not hasattr(game, "learngraph_words"):
        game.learngraph_words = {word.word: bool(word.is_noun) for word in game.get_dictionary()}
    words: dict[str, bool] = game.learngraph_words
    return words


def _try_command(game: Any, state: Any, command: str) -> str:
    """The game's answer to a command; the game's state is restored afterwards."""
    answer = tidy(game.step(command)[0])
    game.set_state(state)
    return answer


def _game_file(name: str, game: str, games: str | None) -> Path:
    given = games or os.environ.get("JERICHO_GAMES")
    if not given:
        raise UserError(f"{name} needs the game file {game}.z5: say games=FOLDER or set $JERICHO_GAMES to its folder")
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f"{name}: {folder} is not a folder; put {game}.z5 into a folder and name that")
    files = {path.stem: path for path in sorted(folder.glob("*.z[3-8]"))}
    if game not in files:
        raise UserError(f"{name}: no {game}.z3 ... .z8 in {folder}; it has {', '.join(files) or 'no game files'}")
    return files[game]

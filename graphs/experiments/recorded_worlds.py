"""Worlds and scores that are recorded, so that a study pays for each of them once.

A world is a function of its history, and a frozen model's scores are a function of the prompt and the options. A study that
plays many arms on the same tasks asks for the same ones again and again. Files of another version of a world are not known
as such: delete the folder after a change to a world or to the model.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from ...memory.records import Observation, Task
from ...memory.storage.cache import Cache, cache_key
from ...nodes.act.policies import Scorer
from ...nodes.ask import text

__all__ = ["PlayableWorld", "RecordedScorer", "RecordedWorld"]


class PlayableWorld(Protocol):
    """A world with tasks by number and a known solution of each."""

    @property
    def name(self) -> str:
        """The domain of its tasks."""
        ...

    @property
    def horizon(self) -> int:
        """The number of steps after which an episode ends."""
        ...

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a fold."""
        ...

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions."""
        ...

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation."""
        ...

    def gold(self, task: Task) -> tuple[str, ...]:
        """A solution, or the best known one."""
        ...

    def close(self) -> None:
        """End the world's processes."""
        ...


class RecordedWorld:
    """A world whose observations are recorded as a tree of histories, one task at a time.

    Several processes may use one folder. A file is replaced as a whole, with what another process has added meanwhile; of two
    that write one file at the same moment, the last one's is kept, and the other's observations are made again when needed.

    Args:
        world: the world.
        folder: keeps one file per task; None: the observations of the present task last until the next task.
    """

    instant = True

    def __init__(self, world: PlayableWorld, folder: Path | None = None) -> None:
        self.world = world
        self.name, self.horizon = world.name, world.horizon
        self._folder = folder
        self._task: Task | None = None
        self._states: dict[str, str] = {}
        self._forget()

    def _forget(self) -> None:
        self._seen: list[Observation] = []  # each different observation once
        self._numbers: dict[Observation, int] = {}
        self._nodes: list[int] = []  # node of the tree -> number of its observation; node 0 is the start
        self._edges: dict[tuple[int, str], int] = {}  # (node, action) -> node; in the order of the nodes
        self._new = False

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th task of a fold."""
        return self.world.task(seed, split)

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The observation after these actions; its `reward` is that of the last one."""
        self._open(task)
        return self._seen[self._nodes[self._node(task, actions)]]

    def abstract(self, observation: Observation) -> str:
        """The state key of an observation."""
        if observation.text not in self._states:
            self._states[observation.text] = self.world.abstract(observation)
        return self._states[observation.text]

    def gold(self, task: Task) -> tuple[str, ...]:
        """The world's own solution."""
        return self.world.gold(task)

    def score(self, task: Task, actions: Sequence[str]) -> float:
        """The sum of the world's rewards, in its units."""
        self._open(task)
        self._node(task, actions)
        score, node = 0.0, 0
        for action in actions:
            node = self._edges[node, action]
            score += self._seen[self._nodes[node]].reward or 0.0
        return score

    def save(self) -> None:
        """Write what is new about the present task."""
        path = self._file()
        if path is None or not self._new:
            return
        if path.exists():
            self._add(_read_tree(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        seen = [[one.text, one.actions, one.reward, one.over] for one in self._seen]
        edges = [[parent, action, self._nodes[child]] for (parent, action), child in self._edges.items()]
        with gzip.open(draft, "wt", encoding="utf-8", compresslevel=3) as file:
            json.dump({"observations": seen, "start": self._nodes[0], "edges": edges}, file)
        os.replace(draft, path)
        self._new = False

    def close(self) -> None:
        """Save, and end the world's processes."""
        self.save()
        self.world.close()

    def _open(self, task: Task) -> None:
        if self._task is not None and self._start(self._task) == self._start(task):
            self._task = task
            return
        self.save()
        self._forget()
        self._states.clear()
        self._task = task
        path = self._file()
        if path is not None and path.exists():
            self._add(_read_tree(path))
            self._new = False

    def _file(self) -> Path | None:
        if self._folder is None or self._task is None:
            return None
        world = f"{self.name}-{self.horizon}".replace(":", "-").replace("/", "-")
        return self._folder / world / f"{self._start(self._task).replace('/', '-')}.json.gz"

    def _start(self, task: Task) -> str:
        """A name for how the task starts; tasks with the same one share their recorded observations."""
        start: Callable[[Task], str] | None = getattr(self.world, "start", None)
        return task.id if start is None else start(task)

    def _node(self, task: Task, actions: Sequence[str]) -> int:
        """The node of a history; what is missing on the way is asked of the world."""
        if not self._nodes:
            self._grow(None, self.world.observe(task, ()))
        node = 0
        for step, action in enumerate(actions):
            child = self._edges.get((node, action))
            node = self._grow((node, action), self.world.observe(task, actions[: step + 1])) if child is None else child
        return node

    def _grow(self, edge: tuple[int, str] | None, observation: Observation) -> int:
        number = self._numbers.setdefault(observation, len(self._seen))
        if number == len(self._seen):
            self._seen.append(observation)
        self._nodes.append(number)
        if edge is not None:
            self._edges[edge] = len(self._nodes) - 1
        self._new = True
        return len(self._nodes) - 1

    def _add(self, tree: Any) -> None:
        """Add a tree that was read from a file."""
        seen = [Observation(text, actions, reward, over) for text, actions, reward, over in tree["observations"]]
        ours = [0 if self._nodes else self._grow(None, seen[tree["start"]])]  # node of the file -> ours
        for parent, action, number in tree["edges"]:
            edge = (ours[parent], action)
            child = self._edges.get(edge)
            ours.append(self._grow(edge, seen[number]) if child is None else child)


def _read_tree(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


class RecordedScorer:
    """A frozen model whose scores are recorded. The model is opened when a score is missing.

    Args:
        name: name of the model, part of the records' keys.
        open_model: opens it.
        cache: keeps the scores; several processes may share its file.
    """

    def __init__(self, name: str, open_model: Callable[[], Scorer], cache: Cache) -> None:
        self.name = name
        self._open_model = open_model
        self._model: Scorer | None = None
        self._cache = cache
        self._known: dict[tuple[Any, ...], list[float]] = {}

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> Sequence[float]:
        """Log-probabilities in nats, one per option."""
        prompt = [[message.type, text(message)] for message in messages]
        place = (*map(tuple, prompt), tuple(options))
        if place not in self._known:
            key = cache_key("score", self.name, prompt, [*options])
            scores = self._cache.get(key)
            if scores is None:
                if self._model is None:
                    self._model = self._open_model()
                found = [float(score) for score in self._model.score(messages, options)]
                scores = self._cache.put(key, found, "score")
            self._known[place] = scores
        return self._known[place]

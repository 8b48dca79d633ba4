"""ReasoningBank played through: what it asks, what it learns, what its prompts show."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_runs import Emptied, play_past_deaths
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.store.memory import InMemoryStore
from pydantic import Field
from scripted_chat import SayingChat, counted

from learngraph.graphs.baselines import react, reasoning_bank
from learngraph.graphs.baselines.reasoning_bank import ReasoningBank, open_lessons
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.by_task import Lessons
from learngraph.memory.records import Candidate, Lesson, Observation, Task, Trajectory, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import RecordStore, write_jsonl
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.act.episode import replay_actions
from learngraph.nodes.act.policies import PromptView
from learngraph.nodes.evaluate.judge import RuleJudge
from learngraph.nodes.retrieve.attempt_sheet import AttemptOutcome, AttemptSheet
from learngraph.nodes.retrieve.attempts import EpisodePrompt, Layout
from learngraph.nodes.synthesize.reasoning_bank import LessonsPart, lessons_text
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep(horizon=4)
TASK = TOY.task(3)
WALKED = [replay_actions(KeywordKeep(), TASK, KeywordKeep().gold(TASK), run="gold", episode=n) for n in range(3)]


class Chat(SayingChat):
    """Takes an action that is listed; writes an item with a number when it is asked about attempts; keeps what it was asked."""

    asked: list[list[BaseMessage]] = Field(default_factory=list)
    written: list[str] = Field(default_factory=list)
    """What it writes about attempts, in turn; an item with a running number if empty."""
    verdicts: list[str] = Field(default_factory=list)
    dies_at: int = -1
    varied: bool = False
    """Whether it acts differently when it is asked the same again."""

    def about(self, word: str) -> list[str]:
        """What it was asked with this word in the system message."""
        return [str(asked[1].text) for asked in self.asked if word in str(asked[0].text)]

    @property
    def lessons(self) -> list[str]:
        return self.about("library of lessons")

    @property
    def actions(self) -> list[str]:
        return self.about("You act to finish")

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        if len(self.asked) == self.dies_at:
            self.dies_at = -1
            raise RuntimeError("the process was killed")
        self.asked.append(list(messages))
        system, user = str(messages[0].text), str(messages[1].text)
        if "whether a finished attempt" in system:
            reply = self.verdicts[(len(self.about("whether a finished attempt")) - 1) % len(self.verdicts)]
        elif "library of lessons" in system:
            n = len(self.lessons) - 1
            reply = self.written[n % len(self.written)] if self.written else items(f"no {n} of {user.count('Attempt')}")
        else:
            options = [line[2:] for line in user.partition("exact words:")[2].splitlines() if line.startswith("- ")]
            reply = f"hm.\nAction: {random.Random(f'{user}{len(self.asked) * self.varied}').choice(options)}"
        return counted(reply)


def items(*contents: str) -> str:
    return json.dumps({"items": [{"title": f"T {c}", "description": "At gates.", "content": c} for c in contents]})


def play(
    chat: Chat, episodes: int, chosen: ReasoningBank | None = None, task: Task = TASK, name: str = "r", **inputs: Any
) -> dict[str, Any]:
    made = MethodInputs.with_chat_model(TOY, Journal(), chat, **{"history_steps": None, **inputs})
    graph = merge_steps(reasoning_bank.build(made, chosen))
    out: dict[str, Any] = run.build(graph).invoke(run.RunInput(task=task, run=name, episode=0, episodes=episodes))
    return out


def records(store: InMemoryStore) -> RecordStore[Trajectory]:
    return RecordStore(store, ("trajectories", "here"), Trajectory)


def bank(path: Path, *trajectories: Trajectory) -> str:
    write_jsonl(trajectories, path)
    return str(path)


def shown(prompt: str) -> list[str]:
    """The lessons in a prompt."""
    lines = prompt.partition("\nLessons:\n")[2].splitlines()
    return lines[: next((n for n, line in enumerate(lines) if line[:2] != "- "), None)]


# What is asked


def test_a_call_a_step_and_one_to_learn_from_the_attempt() -> None:
    chat = Chat()
    out = play(chat, 3)
    assert out["lengths"] == [4, 4, 4]
    assert (len(chat.actions), len(chat.lessons), len(chat.asked)) == (12, 3, 15)
    assert out["spent"] == 15 * 15


def test_without_lessons_the_prompt_is_that_of_react() -> None:
    chat, plain = Chat(), Chat()
    play(chat, 1)
    graph = react.build(MethodInputs.with_chat_model(TOY, Journal(), plain, history_steps=None))
    run.build(graph, commit="last").invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=1))
    assert chat.asked[:4] == plain.asked
    nothing = Chat(written=['{"items": []}'])
    play(nothing, 2)
    assert nothing.actions[4:] == chat.actions[:4]


def test_lessons_of_all_earlier_attempts_stand_in_every_prompt_the_newest_last() -> None:
    chat = Chat()
    play(chat, 3)
    for episode in range(3):
        for prompt in chat.actions[4 * episode : 4 * episode + 4]:
            assert shown(prompt) == [f"- T no {n} of 1 (At gates): no {n} of 1" for n in range(episode)]
    assert "by somebody who saw how they ended" in str(chat.asked[6][0].text)


def test_successes_and_failures_are_asked_about_differently() -> None:
    for success, word in ((-1.0, "that succeeded"), (99.0, "that failed")):
        chat = Chat()
        play(chat, 2, ReasoningBank(success_threshold=success))
        assert len(chat.about(word)) == 2
    (asked, _) = chat.lessons
    assert asked.startswith("<record>\nTask: reach the exit\nAttempt 1:\n")
    assert asked.count("\nReward: ") == 4
    assert "Total reward: " in asked


def test_an_attempt_that_nobody_can_judge_is_asked_about_as_such() -> None:
    chat, inputs = Chat(), MethodInputs.with_chat_model(TOY, Journal(), Chat())
    judge = RuleJudge(lambda task, actions: [None] * len(actions), inputs.journal)
    made = replace(MethodInputs.with_chat_model(TOY, inputs.journal, chat), judge=judge)
    run.build(reasoning_bank.build(made, ReasoningBank(success_threshold=1.0))).invoke(
        run.RunInput(task=TASK, run="r", episode=0, episodes=1)
    )
    assert len(chat.about("nobody can say whether it succeeded")) == 1


def test_a_model_that_judges_is_told_no_reward_and_its_reason_is_passed_on() -> None:
    chat = Chat(verdicts=['So.\n{"success": true, "reason": "It got\\nout."}', '{"success": false, "reason": "It stuck."}'])
    store = InMemoryStore()
    play(chat, 2, ReasoningBank.paper(), records=records(store))
    verdicts = chat.about("whether a finished attempt")
    assert len(verdicts) == 2
    assert not any("eward: " in asked or "Result" in asked for asked in verdicts)
    assert [len(chat.about(word)) for word in ("that succeeded", "that failed")] == [1, 1]
    assert ["Judged: It got out.\n" in asked for asked in chat.lessons] == [True, False]
    assert ["Judged: It stuck.\n" in asked for asked in chat.lessons] == [False, True]
    assert [t.note for t in records(store).all()] == ["success: It got out.", "failure: It stuck."]
    assert [lesson.success for lesson in open_lessons(records(store))] == [True, False]


@pytest.mark.parametrize(
    "reply", ["yes", '{"success": "well", "reason": "x"}', '{"success": true}', '{"success": true, "reason": ""}']
)
def test_a_verdict_that_cannot_be_read_is_unknown_and_the_run_goes_on(reply: str) -> None:
    chat, store = Chat(verdicts=[reply]), InMemoryStore()
    play(chat, 1, ReasoningBank.paper(), records=records(store))
    assert [t.note for t in records(store).all()] == ["unknown"]


def test_a_verdict_may_be_written_in_words() -> None:
    store = InMemoryStore()
    play(Chat(verdicts=['{"Success": "yes", "reason": "It got out."}']), 1, ReasoningBank.paper(), records=records(store))
    assert [t.note for t in records(store).all()] == ["success: It got out."]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("I learned a lot.", "asked for a JSON object"),
        ('{"items": "none"}', "got no such list"),
        (items("1", "2", "3", "4"), "with at most 3 items, got 4 of them"),
        ('{"items": [{"title": "t", "content": "c"}]}', "items with title, description and content"),
        ('{"items": [{"title": "t", "description": "d", "content": "c", "more": 1}]}', "and nothing else"),
        ('{"items": [{"title": "t", "description": "d", "content": " "}]}', "asked for a text as title"),
        ('{"items": ["look"]}', "items with title"),
    ],
)
def test_malformed_items_are_asked_for_again_and_then_there_are_none(reply: str, says: str) -> None:
    chat, store = Chat(written=[reply, items("use the lamp")]), InMemoryStore()
    play(chat, 1, records=records(store))
    assert [lesson.text for lesson in open_lessons(records(store))] == ["use the lamp"]
    again = str(chat.asked[-1][-1].text)
    assert "cannot be used" in again
    assert says in again
    store = InMemoryStore()
    play(Chat(written=[reply]), 1, records=records(store))
    assert len(list(records(store).all())) == 1
    assert [lesson.text for lesson in open_lessons(records(store))] == []


# A bank


def test_a_bank_is_read_once_before_the_first_episode(tmp_path: Path) -> None:
    path, store, chat = bank(tmp_path / "bank.jsonl", *WALKED), InMemoryStore(), Chat()
    play(chat, 2, ReasoningBank(bank=path, online=False), records=records(store))
    assert (len(chat.lessons), len(chat.actions)) == (3, 8)
    assert all("Total reward: 10" in asked for asked in chat.lessons)
    assert [len(shown(prompt)) for prompt in chat.actions] == [3] * 8
    again = Chat()
    play(again, 1, ReasoningBank(bank=path, online=False), records=records(store))
    assert (len(again.lessons), len(again.actions)) == (0, 4)
    assert again.actions == chat.actions[:4]
    assert [lesson.sources for lesson in open_lessons(records(store))] == [("gold/0",), ("gold/1",), ("gold/2",)]


def test_reading_a_bank_is_counted_apart(tmp_path: Path) -> None:
    """Three trajectories at 15 tokens a call; the four steps of an attempt take 60, whether or not a bank was read before."""
    log, chat = Rows(), Chat()
    made = MethodInputs.with_chat_model(TOY, Journal(), chat, history_steps=None)
    episode = merge_steps(reasoning_bank.build(made, ReasoningBank(bank=bank(tmp_path / "bank.jsonl", *WALKED), online=False)))
    plan = run.RunInput(task=TASK, run="r", episode=0, episodes=3, tokens=61)
    out = run.build(episode, log).invoke(plan)
    assert out["spent"] == 2 * 60  # the second attempt begins below 61
    rows = [log.get(f"r/{n}") for n in range(2)]
    assert [(row["studied"], row["calls"], row["input_tokens"], row["output_tokens"]) for row in rows if row] == [
        (45, 4, 40, 20),
        (0, 4, 40, 20),
    ]


def test_a_trajectory_that_taught_nothing_is_not_read_again(tmp_path: Path) -> None:
    path, store, chat = bank(tmp_path / "bank.jsonl", *WALKED), InMemoryStore(), Chat(written=['{"items": []}'])
    for _ in range(2):
        play(chat, 1, ReasoningBank(bank=path, online=False), records=records(store))
    assert len(chat.lessons) == 3


def test_killed_while_reading_the_bank_nothing_is_asked_twice(tmp_path: Path) -> None:
    path, store = bank(tmp_path / "bank.jsonl", *WALKED), InMemoryStore()
    first, second = Chat(dies_at=2), Chat()
    with pytest.raises(RuntimeError, match="killed"):
        play(first, 1, ReasoningBank(bank=path), records=records(store))
    play(second, 1, ReasoningBank(bank=path), records=records(store))
    assert (len(first.lessons), len(second.lessons)) == (2, 1 + 1)  # the third of the bank, and the attempt


def test_only_successes_of_this_environment_are_read_if_so_set(tmp_path: Path) -> None:
    failed = replace(WALKED[1], transitions=WALKED[1].transitions[:2])
    foreign = replace(WALKED[2], domain="elsewhere")
    chat, path = Chat(), bank(tmp_path / "bank.jsonl", WALKED[0], failed, foreign)
    play(chat, 1, replace(ReasoningBank.pool(), bank=path))
    assert len(chat.lessons) == 1
    every = Chat()
    play(every, 1, ReasoningBank(online=False, bank=path))
    assert len(every.lessons) == 2
    with pytest.raises(UserError, match=r"foreign\.jsonl holds no trajectory of toy"):
        play(Chat(), 1, ReasoningBank(outcomes="success", bank=bank(tmp_path / "foreign.jsonl", foreign)))


def test_a_bank_counts_by_the_environment_whatever_judges_the_run(tmp_path: Path) -> None:
    """The toy's success is 10, of its own rewards; a judge's 2 is none of theirs."""
    failed = replace(WALKED[1], transitions=WALKED[1].transitions[:3])
    path, inputs = bank(tmp_path / "bank.jsonl", WALKED[0], failed), MethodInputs.with_chat_model(TOY, Journal(), Chat())
    judged = replace(inputs, judge=RuleJudge(lambda task, actions: [1.0] * len(actions), inputs.journal))
    chosen = ReasoningBank(success_threshold=2.0, bank=path)
    assert [one.success for one in chosen.read_bank(judged).values()] == [True, False]
    assert [one.success for one in chosen.read_bank(inputs).values()] == [True, True]  # one scale, one threshold


def test_top_k_items(tmp_path: Path) -> None:
    chat, path = Chat(), bank(tmp_path / "bank.jsonl", *WALKED)
    play(chat, 1, replace(ReasoningBank.pool(), bank=path, k=2))
    assert [len(shown(prompt)) for prompt in chat.actions] == [2] * 4


# What may be seen


def test_nothing_of_the_running_or_a_later_episode_is_seen() -> None:
    """Played again from episode 1 over a library that knows all three, the prompts are the same as the first time."""
    chat, store = Chat(), InMemoryStore()
    play(chat, 3, records=records(store))
    other, again = Chat(), Chat()
    play(other, 1, records=records(store), name="s")
    assert [len(shown(prompt)) for prompt in other.actions] == [3] * 4
    without = records(store)
    open_lessons(without)._records.delete(["s/0/0"])  # type: ignore[union-attr]
    graph = reasoning_bank.build(MethodInputs.with_chat_model(TOY, Journal(), again, history_steps=None, records=without))
    graph.invoke({"task": TASK, "run": "r", "episode": 1})
    assert again.actions == chat.actions[4:8]


@pytest.mark.parametrize("dies_at", [4, 9])
def test_killed_and_resumed_the_prompts_are_the_same(dies_at: int) -> None:
    class Echo(Chat):
        """What it writes depends on what it is asked, not on how often."""

        def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
            self.written = [items(f"{random.Random(str(messages[1].text)).random():.3f}")]
            return super().say(messages, **options)

    whole, chat = Echo(), Echo(dies_at=dies_at)
    play(whole, 3, records=records(InMemoryStore()))

    def make(journal: Journal, records: Any) -> Any:
        made = MethodInputs.with_chat_model(TOY, journal, chat, history_steps=None, records=records)
        return merge_steps(reasoning_bank.build(made))

    play_past_deaths(make, TASK, 3)
    assert chat.dies_at == -1  # it died
    assert chat.asked == whole.asked


def test_lessons_lie_beside_the_trajectories_in_the_same_store() -> None:
    store = InMemoryStore()
    play(Chat(), 2, records=records(store))
    assert sorted(store.list_namespaces()) == [("lessons", "here"), ("trajectories", "here")]
    assert [t.used for t in records(store).all()] == [(), ("r/0",)]


# A model that only scores actions, and writes a line


class Lines:
    """Answers to `Learned:` in turn."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = replies, list[str]()

    def invoke(self, messages: Sequence[BaseMessage], *args: Any, **kwargs: Any) -> AIMessage:
        self.asked.append(str(messages[-1].text))
        return AIMessage(self.replies[(len(self.asked) - 1) % len(self.replies)])


def scored(model: Lines, note: Callable[[dict[str, str]], None], episodes: int, **inputs: Any) -> None:
    @dataclass(frozen=True)
    class Policy:
        seen: PromptView

        def __call__(self, state: Any) -> dict[str, Any]:
            note(self.seen(state))
            draw = random.Random(f"{state['episode']}/{state['step']}")
            return {"candidates": [Candidate(draw.choice(state["observation"].actions), 0.0)]}

    made: Any = MethodInputs(TOY, Journal(), Policy, model=model, **inputs)  # type: ignore[arg-type]
    run.build(reasoning_bank.build(made)).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=episodes))


def test_a_model_that_writes_a_line_gives_an_item_without_a_title() -> None:
    model, seen = Lines("door black mist. gate troll lamp", "nothing", "Nothing.", "door black mist. gate troll lamp"), []
    scored(model, seen.append, 5)
    assert model.asked[0].startswith("Task: reach the exit\nAttempt 1:\n")
    assert model.asked[0].endswith("\nLearned:")
    assert "Judged" not in model.asked[0]
    told = "Lessons:\n- door black mist. gate troll lamp\n"
    assert [prompt["steps"].startswith(told) for prompt in seen] == [False] * 4 + [True] * 16
    assert all(prompt["steps"].count("door black mist") == 1 for prompt in seen[4:])  # what is said twice is shown once
    scored(Lines(" "), seen.append, 1)  # nothing is learned, and the run ends as it would


def test_such_a_model_cannot_give_verdicts() -> None:
    with pytest.raises(UserError, match="only scores actions"):
        reasoning_bank.build(MethodInputs(TOY, Journal(), model=Lines()), ReasoningBank.paper())  # type: ignore[arg-type]


# The window


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 400), st.lists(st.text("ab ", min_size=1, max_size=80), max_size=12))
def test_lessons_fit_their_room_and_the_best_stay(room: int, texts: list[str]) -> None:
    library, kept = Lessons(), [text.strip() or "x" for text in texts]
    library.add([Lesson(f"r/0/{n}", text) for n, text in enumerate(kept)])
    told = lessons_text(library, [f"r/0/{n}" for n in range(len(kept))], room, len)
    assert len(told) <= room
    lines = told.splitlines()[1:]
    expected = list(dict.fromkeys(f"- {' '.join(text.split())}" for text in kept))
    assert lines == expected[: len(lines)][::-1]
    if len(lines) < len(expected):
        assert len("\n".join(["Lessons:", *expected[: len(lines) + 1]])) + 1 > room


def test_a_weighed_lesson_says_how_many_conversations_it_was_drawn_from_and_how_long_ago() -> None:
    library = Lessons()
    for n, text in enumerate(["write long", "write long", "write short", "write long"]):
        library.add([Lesson(f"r/{n}/0", text, sources=(f"t{n}/0",))])
    ids = [one.id for one in library]
    assert lessons_text(library, ids, 999, len, lambda source: 0).splitlines() == [
        "Lessons:",
        "- write short",
        "- write long (from 3 conversations)",
    ]
    assert lessons_text(library, ids, 999, len, lambda source: {"t2/0": 57, "t3/0": 40}.get(source, 99)).splitlines() == [
        "Lessons:",
        "- write short (50 conversations ago)",
        "- write long (from 3 conversations, the newest 40 conversations ago)",
    ]
    assert "conversations" not in lessons_text(library, ids, 999, len), "the papers' prompts stay"


def test_threads_may_share_the_lessons_that_are_shown() -> None:
    library = Lessons()
    library.add([Lesson("r/0/0", "wait")])
    part = LessonsPart(library=library)
    object.__setattr__(part, "_rendered_lessons", Emptied())
    assert part.text({"lessons": ["r/0/0"], "used": []}, EpisodePrompt(journal=Journal())) == "Lessons:\n- wait\n"


@settings(max_examples=25, deadline=None)
@given(st.integers(300, 900), st.integers(1, 4), st.integers(1, 30), st.integers(1, 40))
def test_attempts_are_shown_within_the_window(window: int, number: int, length: int, wide: int) -> None:
    steps = tuple(Transition("x" * wide, f"go {n}", 1.0) for n in range(length))
    attempts = [AttemptOutcome(Trajectory(f"r/{n}", TASK, steps), n % 2 == 0, "because") for n in range(number)]
    told = AttemptSheet(Layout(), len, window)(attempts)
    assert len(f"Task: {TASK.instruction}\n{told}") <= window
    assert told.count("Attempt ") == told.count("total ") == told.count("Judged: because") == number
    for one in told.split("Attempt ")[1:]:
        assert f"> go {length - 1}\n" in one or "> go" not in one  # the last steps stay


@pytest.mark.parametrize("window", [3600, 5000])
def test_no_prompt_outgrows_the_window(window: int) -> None:
    """Whole messages, a character a token."""

    class Wordy(KeywordKeep):
        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            seen = super().observe(task, actions)
            return replace(seen, text=f"{seen.text} {'and so on ' * 12}")

        def abstract(self, observation: Observation) -> str:
            return observation.text

    chat = Chat(written=[items(*(f"{n} {'as was said ' * 9}" for n in range(3)))])
    inputs = MethodInputs.with_chat_model(
        Wordy(12), Journal(), chat, count_tokens=len, window=window, reserved_tokens=1700, history_steps=None
    )
    graph = reasoning_bank.build(inputs, ReasoningBank())
    run.build(graph).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=4))
    longest = max(sum(len(str(message.text)) for message in asked) for asked in chat.asked)
    assert window // 2 < longest <= window


# Settings


def test_who_cannot_say_what_success_is_must_be_told() -> None:
    class Silent(KeywordKeep):
        solved = None  # type: ignore[assignment]

    judge = RuleJudge(lambda task, actions: [1.0] * len(actions), Journal())
    with pytest.raises(UserError, match="toy does not say it; set success_threshold to the least one"):
        reasoning_bank.build(MethodInputs.with_chat_model(Silent(), Journal(), Chat()))
    with pytest.raises(UserError, match="scale of their own"):
        reasoning_bank.build(MethodInputs.with_chat_model(TOY, Journal(), Chat(), judge=judge))
    for enough in (ReasoningBank(success_threshold=2.0), ReasoningBank(verdict="model")):
        reasoning_bank.build(MethodInputs.with_chat_model(Silent(), Journal(), Chat(), judge=judge), enough)


@pytest.mark.parametrize(
    "wrong", [{"k": 0}, {"max_items": 0}, {"retrieval_unit": "task"}, {"verdict": "rule"}, {"max_memory_tokens": -1}]
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"(?i)reasoning-?bank: "):
        ReasoningBank(**wrong)


def test_nothing_to_learn_from() -> None:
    with pytest.raises(UserError, match="learns nothing but from a bank"):
        reasoning_bank.build(MethodInputs.with_chat_model(TOY, Journal(), Chat()), ReasoningBank.pool())
    with pytest.raises(UserError, match="has a model write"):
        reasoning_bank.build(MethodInputs(TOY, Journal()))

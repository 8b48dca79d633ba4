"""Strategies: the rule, what stands in prompts, what asks for memory."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage

from learngraph.memory.records import Candidate, Observation, Precedent, Strategy, Task, Trajectory, Transition
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.prompt import Prompt
from learngraph.nodes.retrieve.attempts import ContextError, EpisodePrompt, Layout
from learngraph.nodes.retrieve.chat_layout import ChatLayout
from learngraph.nodes.retrieve.recollect import Excerpts, SituationExcerpts
from learngraph.nodes.retrieve.triggers import CheckTriggers, is_hesitant, is_repeated, is_stalled
from learngraph.nodes.synthesize.strategy import (
    StrategyPart,
    StrategyWriter,
    advice_items,
    route_guidance,
    route_precedents,
    route_precedents_or_draft,
    synthesize,
)

TASK = Task("t", "reach the exit")


def attempt(id: str, *steps: tuple[str, str, float | None]) -> Trajectory:
    return Trajectory(id, TASK, tuple(Transition(*step) for step in steps))


def near(trajectory: Trajectory, step: int = 0, similarity: float = 1.0, success: bool | None = True) -> Any:
    return Precedent(trajectory.id, step, similarity, success), trajectory


def test_the_rule_names_short_states_and_says_first_what_was_paid_there() -> None:
    won = attempt("a/0", ("door black", "mist", 1.0), ("gate troll", "lamp", 1.0), ("fork oak", "left", 0.0))
    assert advice_items([near(won, success=None)], ("mist", "fern")) == ["door black mist", "gate troll lamp"]
    # In a success, steps that were not paid but led on count, too.
    assert advice_items([near(won)], ()) == ["door black mist", "gate troll lamp", "fork oak left"]


def test_the_rule_says_what_failed_only_where_nothing_better_is_known() -> None:
    stuck = attempt("a/0", ("door black", "fern", 0.0), ("door black", "salt", 0.0), ("door black", "mist", 1.0))
    failed = [near(stuck, 0, success=None), near(stuck, 1, success=None)]
    assert advice_items(failed, ()) == ["door black not fern", "door black not salt"]
    assert advice_items([*failed, near(stuck, 2, success=None)], ()) == ["door black mist"]


def test_the_rule_weighs_evidence_by_similarity() -> None:
    one = attempt("a/0", ("a long state that needs no naming", "go to desk 1", 0.0), ("b", "take mug", 1.0))
    other = attempt("b/0", ("a long state that needs no naming", "go to shelf 1", 0.0), ("b", "wait", 0.0))
    both = ("go to desk 1", "go to shelf 1")
    assert advice_items([near(one, similarity=0.4), near(other, similarity=0.9, success=False)], both)[0] == "go to desk 1"
    assert advice_items([near(one, similarity=0.4), near(other, similarity=0.9)], both)[0] == "go to shelf 1"


def test_the_rule_advises_what_is_admissible_here() -> None:
    elsewhere = attempt("a/0", ("a long state that needs no naming", "go to desk 2", 0.0), ("x" * 30, "take mug 1", 0.0))
    assert advice_items([near(elsewhere)], ("go to desk 1", "look")) == ["go to desk 1", "take mug 1"]
    assert advice_items([near(elsewhere)], ("look",)) == ["take mug 1"]
    failed = attempt(
        "b/0", ("a long state that needs no naming", "look", 0.0), ("a long state that needs no naming", "wait", 0.0)
    )
    assert advice_items([near(failed, success=False)], ("look",)) == ["not look"]


def test_the_rule_does_not_repeat_what_led_back_here() -> None:
    elsewhere = attempt("a/0", ("a long state that needs no naming", "open fridge", 0.0), ("x" * 30, "close fridge", 0.0))
    assert advice_items([near(elsewhere)], ("open fridge",)) == ["open fridge", "close fridge"]
    assert advice_items([near(elsewhere)], ("open fridge",), ["open fridge"]) == ["close fridge"]
    named = attempt("a/0", ("door black", "look", 0.0), ("door red", "look", 0.0), ("gate troll", "lamp", 0.0))
    assert advice_items([near(named)], (), ["door black look"]) == ["door red look", "gate troll lamp"]


def test_the_rule_makes_nothing_of_nothing() -> None:
    assert advice_items([], ("look",)) == []
    missing = attempt("a/0", ("door black", "mist", None), ("gate troll", "lamp", None))
    assert advice_items([near(missing, success=None)], ()) == []


class Bank:
    """Trajectories by id, as `Excerpts` asks for them."""

    def __init__(self, *trajectories: Trajectory) -> None:
        self.by_id = {t.id: t for t in trajectories}

    def trajectory(self, id: str) -> Trajectory:
        return self.by_id[id]

    def key(self, task: Task, before: Any, state: str) -> str:
        return f"{task.instruction}\n{state}"


def writing(window: int, *precedents: Trajectory, marked: bool = True) -> StrategyWriter:
    """With a letter as a token."""
    bank = Bank(*precedents)
    excerpts = Excerpts(bank, len, window // 2)
    prompt = Prompt.read("test", "## user\nTask: $instruction\n$experiences$steps$observation\n")
    return StrategyWriter(bank, World(), Journal(), excerpts, Layout(clip=None), len, window, prompt, marked)


@given(
    window=st.integers(50, 900),
    seen=st.text("ab", max_size=60),
    past=st.lists(st.text("cd ", max_size=80), max_size=30),
    count=st.integers(0, 3),
)
def test_what_asks_for_a_strategy_leaves_room_for_it(window: int, seen: str, past: list[str], count: int) -> None:
    writer = writing(window, LONG)
    head = Journal.start("r", 0, "t")
    for text in past:
        head = writer.journal.append(head, step(text))
    precedents = writer.excerpts.fitting_precedents([Precedent("a/0", n, 0.9, True) for n in range(count)])
    state = {"task": TASK, "head": head, "observation": Observation(seen), "precedents": precedents}
    asked: Any = None
    with suppress(ContextError):
        (asked,) = writer.messages(state)
    if asked is None:
        assert len(f"{TASK.instruction}{writer.excerpts(precedents)}{seen}") > window - writer.max_strategy_tokens - 120
        return
    assert len(asked.text) + writer.max_strategy_tokens <= window
    assert asked.text.count("Experience") == len(precedents)


def replies(writer: StrategyWriter, *said: str) -> dict[str, Any]:
    """What comes of a strategy that a model writes so; it is asked again as long as there are replies."""
    state = situation(writer.journal, precedents=[Precedent("a/0", 0, 0.9, True)])
    written: dict[str, Any] = synthesize(FakeListChatModel(responses=list(said)), writer).invoke(state)
    return written


def test_a_strategy_is_read_from_its_line_and_kept_short() -> None:
    good = replies(writing(2_000, LONG), "Both are doors.\n**Strategy:** - Look for the key.\n- Then go on.")
    assert good["strategy"].text == "- Look for the key\n- Then go on"
    assert good["usage"].refreshes == 1
    assert good["synthesis"]["reply"].startswith("Both are doors.")
    again = replies(writing(2_000, LONG), "no mark at all", "Strategy: " + "go on. " * 100, "Strategy: mist")
    assert again["strategy"].text == "mist"
    assert (again["usage"].calls, again["usage"].malformed) == (3, 0)
    assert replies(writing(2_000, LONG, marked=False), "door black mist")["strategy"].text == "door black mist"
    few = replace(writing(2_000, LONG), most_words=6)
    assert replies(few, "Strategy:\n- if a: b\n- if c: d or e or f")["strategy"].text == "if a: b", (
        "whole items of six words in all"
    )
    assert replies(few, "Strategy: " + "go on " * 4)["usage"].malformed == 1


def test_without_a_readable_strategy_there_is_none_and_the_plain_action_follows() -> None:
    bad = replies(writing(2_000, LONG), "no mark at all")
    assert bad["strategy"] is None
    assert (bad["usage"].calls, bad["usage"].malformed, bad["usage"].refreshes) == (3, 1, 0)
    nothing = replies(writing(2_000, LONG), "Strategy: nothing.")
    assert nothing["strategy"] is None
    assert (nothing["usage"].malformed, nothing["usage"].refreshes) == (0, 0)


LONG = attempt("a/0", *((f"room {n} with many things in it", f"move {n}", 0.25) for n in range(8)))


def test_experiences_stand_in_prompts_with_state_action_rest_and_outcome() -> None:
    told = Excerpts(Bank(LONG), max_following_steps=1)([Precedent("a/0", 6, 0.9, True)])
    assert told == (
        "Experience 1: success\nroom 6 with many things in it\n> move 6\n= 0.25\n"
        "room 7 with many things in it\n> move 7\n= 0.25\ntotal 2\n"
    )
    assert Excerpts(Bank(LONG), max_following_steps=0)([Precedent("a/0", 7, 0.9, None)]).startswith("Experience 1:\nroom 7")


HELD = Trajectory(
    "b/0",
    Task("u", "put a mug in the safe", 7),
    (
        Transition("shelf: mug 1", "take mug 1", 0.0, "You see a shelf. On it is a mug."),
        Transition("have mug 1", "go to safe 1", 0.0, "You take the mug. It is chipped."),
        Transition("safe 1 closed", "open safe 1", 0.5),
        Transition("safe 1 open", "put mug 1 in safe 1", 0.5),
    ),
)


def test_models_that_chat_are_told_the_task_the_way_there_and_the_end() -> None:
    excerpts = SituationExcerpts(Bank(HELD), max_following_steps=1, layout=ChatLayout())
    assert excerpts([Precedent("b/0", 1, 0.456, True)], TASK) == (
        "Earlier situation 1 (another task: put a mug in the safe; step 2 of 4; the attempt succeeded, total reward 1; "
        "similarity 0.46)\nDone before it: take mug 1\nStep 2. You saw:\nYou take the mug. It is chipped.\nAction: go to safe 1\n"
        "Step 3. You saw:\nsafe 1 closed\nAction: open safe 1\nReward: 0.5\nAfter step 3 you saw:\nsafe 1 open\n(1 more step)\n\n"
    )
    bank = Bank(replace(HELD, last_observation="The mug is in the safe."))
    end = "Reward: 0.5\nAfter step 4 you saw:\nThe mug is in the safe.\n\n"
    assert SituationExcerpts(bank, layout=ChatLayout())([Precedent("b/0", 1, 0.456, True)], TASK).endswith(end)
    verdict = SituationExcerpts(bank, layout=ChatLayout(shows_answers=False))([Precedent("b/0", 1, 0.456, True)], TASK)
    assert "After step 4" not in verdict
    (failed,) = [excerpts([Precedent("b/0", 0, 1.0, False)], HELD.task)]
    assert failed.startswith("Earlier situation 1 (this very task; step 1 of 4; the attempt did not succeed, total reward 1;")
    assert "Done before" not in failed
    elsewhere = Task("u", HELD.task.instruction, 8)
    assert "(a task of the same words in another place;" in excerpts([Precedent("b/0", 0, 1.0)], elsewhere)
    chats = SituationExcerpts(Bank(HELD), layout=ChatLayout(), of_conversations=True)
    assert "(a request in the same words; its cause may differ;" in chats([Precedent("b/0", 0, 1.0)], elsewhere)


def test_the_whole_state_of_the_paper_has_its_history_and_all_that_followed() -> None:
    excerpts = SituationExcerpts(
        Bank(HELD), max_following_steps=None, clip=None, layout=ChatLayout(max_observation_tokens=None)
    )
    told = excerpts([Precedent("b/0", 2, 1.0, True)], TASK)
    assert "Step 1. You saw:\nYou see a shelf. On it is a mug.\nAction: take mug 1\nStep 2. You saw:\n" in told
    assert told.endswith("Step 4. You saw:\nsafe 1 open\nAction: put mug 1 in safe 1\nReward: 0.5\n\n")
    assert "Reward: 0\n" not in told


def test_the_writer_is_told_where_the_agent_is_what_it_may_do_and_why_it_asks() -> None:
    bank = Bank(HELD)
    excerpts = SituationExcerpts(bank, layout=ChatLayout())
    writer = StrategyWriter(
        memory=bank,
        environment=World(),
        journal=Journal(),
        excerpts=excerpts,
        layout=ChatLayout(),
        count=len,
        window=50_000,
        prompt=Prompt.load("adamem/strategy"),
        doubt=Prompt.load("adamem/doubt"),
        admissible=Prompt.load("act/admissible"),
    )
    found = [Precedent("b/0", 1, 0.9, True)]
    state = situation(writer.journal, step("a"), step("b", reward=1.0), precedents=found, reasons=[], tentative=None)
    system, user = (message.text for message in writer.messages(state))
    assert "Reward" not in system
    now = user.index("# The present situation")
    assert user.index("Earlier situation 1") < now < user.index(f"Task: {TASK.instruction}")
    assert "Steps taken so far:\nStep 1. You saw:\na\nAction: x\nStep 2. You saw:\nb\nAction: x\nReward: 1\n" in user, (
        "rewards of 0 are left out"
    )
    assert "Now, step 3 of at most 10, the agent sees:\nhere\n" in user
    assert "The world understands only these actions; use their exact words:\n- mist\n- fern\n" in user
    assert "draft" not in user
    again = {**state, "reasons": ["vote", "repeated"], "tentative": "fern", "strategy": Strategy("try mist", step=1)}
    assert "carried out yet: none\n" in writer.messages({**again, "tentative": "reply: "})[1].text
    assert "Step 1" not in replace(writer, max_history_tokens=30).messages(state)[1].text.partition("so far")[2]
    user = writer.messages(again)[1].text
    assert (
        "Its strategy so far: try mist (written at step 2)\nIts draft of what to do next, not carried out yet: fern\n" in user
    )
    assert "Why memory is asked: the agent itself asks for advice; it was in this situation before.\n" in user


def test_a_strategy_may_stand_in_tags_or_below_its_mark() -> None:
    for said in ("hm\n<strategy>\n- if a: b\n- if c: d\n</strategy>", "hm\nStrategy:\n- if a: b\n- if c: d"):
        assert replies(writing(2_000, LONG), said)["strategy"].text == "- if a: b\n- if c: d"


@given(room=st.integers(0, 900), count=st.integers(0, 4))
def test_experiences_fit_and_keep_the_action_and_the_outcome(room: int, count: int) -> None:
    precedents = [Precedent("a/0", n, 0.9 - n / 10, True) for n in range(count)]
    excerpts = Excerpts(Bank(LONG), max_tokens=room)
    told = excerpts(precedents)
    assert len(told) <= room
    blocks = told.split("Experience ")[1:]
    assert excerpts.fitting_precedents(precedents) == precedents[: len(blocks)]
    assert [block[:10] for block in blocks] == [f"{n}: success"[:10] for n in range(1, len(blocks) + 1)]  # the nearest stay
    for n, block in enumerate(blocks):
        assert f"> move {n}\n" in block
        assert block.endswith("total 2\n")


def test_acting_shows_the_strategy_and_not_the_experiences() -> None:
    journal = Journal()
    state = {
        "head": Journal.start("r", 0, "t"),
        "task": TASK,
        "observation": Observation("door black", ("mist",)),
        "strategy": Strategy("door black mist"),
        "precedents": [Precedent("a/0", 0, 1.0)],
    }
    view = EpisodePrompt(journal=journal, show=[StrategyPart()])
    shown = view(state)
    assert shown["steps"] == "Strategy: door black mist\n"
    assert view({**state, "strategy": None})["steps"] == ""


def step(state: str, action: str = "x", reward: float | None = 0.0) -> Transition:
    return Transition(state, action, reward)


def test_stalled_is_no_reward_and_no_new_state_in_the_last_steps() -> None:
    assert is_stalled([step("a"), step("a"), step("a")], "a", 3)
    assert not is_stalled([step("a"), step("a")], "a", 3)  # too early to say
    assert not is_stalled([step("a"), step("a", reward=1.0), step("a")], "a", 3)
    assert not is_stalled([step("a"), step("a"), step("b")], "b", 3)
    assert is_stalled([step("b"), step("a"), step("b"), step("a")], "b", 2)  # known states only
    assert not is_stalled([step("a"), step("a"), step("a")], "new", 3)


def test_repeated_and_hesitant() -> None:
    assert is_repeated([step("a"), step("b")], "a")
    assert not is_repeated([step("a")], "b")
    assert not is_repeated([], "a")
    sure = [Candidate("x", -0.1), Candidate("y", -2.4)]
    assert not is_hesitant(sure, 0.6)
    assert is_hesitant(sure, 0.95)


class World:
    name, horizon = "world", 10

    def abstract(self, observation: Observation) -> str:
        return observation.text

    def is_refused(self, observation: Observation) -> bool:
        return observation.text == "Nothing happens."

    def observe(self, task: Task, actions: Any) -> Observation:
        raise AssertionError("nobody acts here")


def situation(journal: Journal, *steps: Transition, **more: Any) -> Any:
    head = Journal.start("r", 0, "t")
    for one in steps:
        head = journal.append(head, one)
    return {
        "run": "r",
        "episode": 0,
        "task": TASK,
        "step": len(steps),
        "head": head,
        "observation": Observation("here", ("mist", "fern")),
        "candidates": [Candidate("mist", -0.1), Candidate("fern", -2.4)],
        "action": "mist",
        "vote": False,
        "written": -1,
        "strategy": None,
        **more,
    }


@pytest.mark.parametrize(
    ("trigger", "more", "asked"),
    [
        ("vote", {}, False),
        ("vote", {"candidates": [Candidate("mist", -0.9), Candidate("fern", -0.9)]}, True),
        ("vote", {"candidates": [Candidate("mist", 0.0)], "vote": True}, True),
        ("refused", {}, False),
        ("refused", {"action": "sing"}, True),
        ("refused", {"observation": Observation("Nothing happens.")}, True),
        ("repeated", {}, False),
        ("repeated", {"observation": Observation("a")}, True),
        ("repeated", {"observation": Observation("a"), "written": 2}, False),  # since the strategy was written: not seen
        ("stalled", {}, False),
        ("stalled", {"observation": Observation("a")}, False),
        ("refused", {"observation": Observation("here")}, False),  # nothing is listed: any action may be admissible
    ],
)
def test_each_trigger_asks_for_its_own_reason(trigger: Any, more: dict[str, Any], asked: bool) -> None:
    journal = Journal()
    state = situation(journal, step("a"), step("b", reward=1.0), **more)
    found = CheckTriggers(World(), journal, (trigger,))(state)
    assert found == {"tentative": state["action"], "reasons": [trigger] if asked else []}


def test_triggers_work_together() -> None:
    journal = Journal()
    state = situation(journal, step("a"), step("b", reward=1.0), observation=Observation("a", ("x",)), action="y")
    decide = CheckTriggers(World(), journal, ("vote", "repeated", "refused"))
    assert decide(state)["reasons"] == ["repeated", "refused"]


def test_nothing_alike_leads_to_the_plain_action() -> None:
    some: Any = {"precedents": [Precedent("a/0", 0, 1.0)], "reasons": []}
    none: Any = {"precedents": [], "reasons": []}
    assert (route_precedents(some), route_precedents(none)) == ("precedents", "nothing alike")
    assert (
        route_precedents_or_draft(some),
        route_precedents_or_draft(none),
        route_precedents_or_draft({**none, "reasons": ["vote"]}),
    ) == ("precedents", "nothing alike", "keep the draft")
    over: Any = {"observation": Observation("", over=True), "strategy": None}
    running: Any = {"observation": Observation("")}
    assert route_guidance(over) == "over"
    assert route_guidance({**running, "strategy": Strategy("x")}) == "strategy"
    assert route_guidance({**running, "strategy": None}) == "no strategy"


def test_the_written_vote() -> None:
    from learngraph.memory.records import Usage
    from learngraph.nodes.act.policies import act_policy

    def read(reply: str) -> Any:
        absent: Any = None
        shown = {"observation": Observation("", ("mist",))}
        return act_policy(absent, absent, "adamem/consider", vote_mark="Memory").read(AIMessage(reply), shown)

    assert read("hm\nAction: mist\nMemory: yes")["vote"] is True
    assert read("Memory: **Yes**.\nAction: mist")["vote"] is True
    assert read("Action: mist\nMemory: no")["vote"] is False
    assert read("Action: mist\nMemory: no")["usage"] == Usage()
    for malformed in ("Action: mist", "Action: mist\nMemory: maybe", "Action: mist\nMemory:"):
        assert read(malformed)["vote"] is False
        assert read(malformed)["usage"] == Usage(malformed=1)

"""Comparing rollouts in words: what is asked, what is read, what no prompt may hold; and lessons written by rule."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import Scripted

from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library, LibraryLimits
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Comparison, Edit, Rollout, Summary, Task, Trajectory, Transition
from learngraph.nodes.act.episode import replay_actions
from learngraph.nodes.ask import BadReply
from learngraph.nodes.extract import critic as critics
from learngraph.nodes.extract.critic import Critic, LessonSettings, contrast, critic_prompts, invent, propose, summarise
from learngraph.nodes.extract.rule_critic import RuleCritic, as_library, compare_actions, random_lessons, shuffle_lessons
from learngraph.nodes.extract.trim import split_tokens, trim_transcript
from learngraph.nodes.retrieve.attempts import ContextError
from learngraph.nodes.text import cut_middle
from learngraph.nodes.update.consolidate import consolidate
from learngraph.tools.environments.keyword_keep import KeywordKeep, domain

TASK = Task("sum-1", "Add the numbers 19 and 23.")


@pytest.fixture(autouse=True)
def long_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts of these tests are long ones, of which reports are written."""
    monkeypatch.setattr(critics, "SHORT_ATTEMPT", 1)


def rollout(number: int, reward: float | None, transcript: str = "", answer: str = "", **more: Any) -> Rollout:
    return Rollout(f"r/{TASK.id}/{number}", TASK, number, reward, answer, transcript or f"> answer {number}\n", **more)


def group(rollouts: Sequence[Rollout], **more: Any) -> dict[str, Any]:
    rewards = [r.reward for r in sorted(rollouts, key=lambda r: r.number)]
    return {
        **{"task": TASK, "run": "r", "step": 0, "library": "r/0", "rollouts": list(rollouts), "rewards": rewards},
        **{"kind": "mixed", "summaries": [], "insights": [], "votes": [], "edits": [], "rulings": [], "failures": []},
        **more,
    }


def critic(*lessons: str, **more: Any) -> Critic:
    versions = LibraryVersions()
    versions.put("r/0", as_library(lessons, LibraryLimits(), len))
    return Critic(versions, **more)


BOTH = ("L0", "L1")
TWO = [
    rollout(0, 1.0, "> add\n= 1\n> say 42\n", "42", shown=BOTH),
    rollout(1, 0.0, "> guess\n= 0\n> say 41\n", "41", shown=BOTH),
]


# Summaries


def test_a_summary_is_asked_with_problem_lessons_transcript_grade_and_answer() -> None:
    model = Scripted("1. It added the numbers, as L0 says.")
    node = summarise(
        model,
        critic("when numbers are given, add them", limits=LessonSettings(objective="sums"), reference=lambda task: "forty-two"),
    )
    out = node.invoke({**group(TWO), "number": 0})
    assert out["summaries"] == [Summary(0, "1. It added the numbers, as L0 says.")]
    (prompt,) = model.prompts
    for told in ("sums", TASK.instruction, "- [L0] when numbers", "> add\n= 1", "from 0 to 1: 1\n", "forty-two"):
        assert told in prompt, told


def test_a_short_attempt_needs_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = Scripted("It guessed.")
    long = "> add\n" * 201
    attempts = [rollout(0, 1.0, "> add\n= 0\n> guess\n", "42"), rollout(1, 0.0, long, "41")]
    out = summarise(model, critic()).invoke({**group(attempts), "number": 0})
    assert (out["summaries"], model.asked) == ([Summary(0, "> add\n= 0\n> guess\n", written=False)], [])
    summarise(model, critic()).invoke({**group(attempts), "number": 1})
    assert len(model.asked) == 1


def test_without_labels_and_alone_an_attempt_is_studied_as_it_is() -> None:
    """The paper's ablations: no ground truth without a rule in its place, and no group computation."""
    model = Scripted('{"lessons": ["when a sum is asked, add"]}')
    unlabelled = group([secret(0, 0.8125), secret(1, 0.8125)], rewards=[0.0, 0.0], kind="unlabelled")
    found = critic(truth="implicit", reference=lambda task: "TRUEANSWER")
    assert contrast(model, found).invoke(unlabelled)["insights"] == ["when a sum is asked, add"]
    assert "Attempt 1:\n" in model.prompts[0]
    assert not [canary for canary in (*CANARIES, "reward 0") if canary in model.prompts[0]]
    one = Scripted('{"lessons": []}')
    contrast(one, critic(reference=lambda task: "forty-two")).invoke(group(TWO[:1], kind="single"))
    assert "There is no other attempt to compare it with" in one.prompts[0]
    assert "Attempt 1 (reward 1):" in one.prompts[0]
    assert "True answer: forty-two" in one.prompts[0]


def test_a_group_does_not_shrink_when_a_summary_fails() -> None:  # D16
    model, known = Scripted(" "), critic()
    node = summarise(model, known)
    out = node.invoke({**group(TWO), "number": 1})
    assert out["summaries"] == [Summary(1, "> guess\n= 0\n> say 41\n", written=False)]
    assert len(model.asked) == 3
    assert "rollout 1 of sum-1" in out["failures"][0]
    asked = Scripted('{"lessons": []}')
    contrast(asked, known).invoke(group(TWO, summaries=[Summary(0, "It added."), *out["summaries"]]))
    assert "Attempt 1 (reward 1):\nIt added." in asked.prompts[0]
    assert "Attempt 2 (reward 0):\n> guess" in asked.prompts[0]


def test_a_long_transcript_is_cut_where_tools_spoke_at_length() -> None:  # D15
    printed = "".join(f"line {n}\n" for n in range(5000))
    transcript = f"> first step\n{printed}> second step\nshort\n> last step\n{printed}> answer 42\n"
    short = trim_transcript(transcript, 800, lambda t: len(t) // 4)
    assert len(short) // 4 <= 800
    for told in ("> first step", "> second step\nshort", "> last step", "> answer 42", "line 0\n", "line 4999\n"):
        assert told in short, told
    model = Scripted("done")
    summarise(model, critic(max_prompt_tokens=3000)).invoke({**group([rollout(0, 1.0, transcript)]), "number": 0})
    assert critic().count(model.prompts[0]) <= 3000


def test_a_window_too_small_for_the_question_is_an_error_in_words() -> None:
    with pytest.raises(ContextError, match="larger window"):
        summarise(Scripted("x"), critic(max_prompt_tokens=100)).invoke({**group(TWO), "number": 0})


# Making texts fit


@settings(max_examples=40)
@given(st.text(max_size=3000), st.integers(0, 400))
def test_what_is_cut_fits_and_keeps_both_ends(told: str, tokens: int) -> None:
    short = cut_middle(told, tokens, len)
    assert len(short) <= tokens
    if len(told) > tokens and tokens >= 100:
        head, _mark, tail = re.split(r"(\n\[\.\.\. \d+ characters left out \.\.\.\]\n)", short, maxsplit=1)
        assert told.startswith(head)
        assert told.endswith(tail)
        assert head
        assert tail


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(0, 3000))
def test_room_is_shared_and_what_short_texts_leave_goes_to_long_ones(sizes: list[int], room: int) -> None:
    given_ = split_tokens(sizes, room)
    assert sum(given_) <= room
    assert all(0 <= share <= size for share, size in zip(given_, sizes, strict=True))
    cut_short = [share for share, size in zip(given_, sizes, strict=True) if share < size]
    if cut_short:
        assert room - sum(given_) < len(sizes)
        assert max(given_) - min(cut_short) <= 1
    else:
        assert given_ == sizes


# The semantic advantage


def test_a_long_group_fits_the_window_and_every_attempt_is_in_it() -> None:  # D15
    rollouts = [rollout(n, n % 2) for n in range(32)]
    summaries = [Summary(n, f"attempt {n} " * 2000 + f"ended {n}.") for n in range(32)]
    model, known = Scripted('{"lessons": []}'), critic(max_prompt_tokens=6000)
    contrast(model, known).invoke(group(rollouts, summaries=summaries))
    assert known.count(model.prompts[0]) <= 6000
    assert all(f"Attempt {n + 1} (reward {n % 2}):\nattempt {n}" in model.prompts[0] for n in range(32))


def test_the_question_does_not_depend_on_the_order_in_which_rollouts_ended() -> None:  # D17
    rollouts = [rollout(n, n / 4) for n in range(5)]
    summaries = [Summary(n, f"did {n}") for n in range(5)]
    prompts = set()
    for seed in range(5):
        draw = random.Random(seed)
        model = Scripted('{"lessons": ["when a sum is asked, add"]}')
        state = group(draw.sample(rollouts, 5), summaries=draw.sample(summaries, 5))
        contrast(model, critic()).invoke(state)
        prompts.add(model.prompts[0])
    assert len(prompts) == 1


def test_a_rollout_without_reward_is_in_no_comparison() -> None:
    model = Scripted('{"lessons": []}')
    contrast(model, critic()).invoke(group([*TWO, rollout(2, None, error="out of time")]))
    assert "Attempt 2" in model.prompts[0]
    assert "Attempt 3" not in model.prompts[0]


def test_insights_and_votes_are_read() -> None:
    reply = 'So:\n{"lessons": ["when a sum is asked, add"], "helpful": ["[L1]", "L9"], "harmful": ["l0:"]}'
    out = contrast(Scripted(reply), critic("guess", "add up")).invoke(group(TWO))
    assert out["insights"] == ["when a sum is asked, add"]
    assert out["votes"] == [("L0", -1), ("L1", 1)]
    assert out["failures"] == ["contrast of sum-1: a vote on 'L9', which was not shown"]


def test_only_lessons_that_rollouts_were_shown_are_told_of_and_voted_on() -> None:
    lines = "> look\n> say it\n"
    rollouts = [rollout(0, 1.0, lines, shown=("L2",)), rollout(1, 0.0, lines, shown=("L0",))]
    known = critic("guess", "add up", "draw it")
    reply = '{"lessons": [], "helpful": ["L1", "L2"], "harmful": ["L0"]}'
    model = Scripted(reply)
    out = contrast(model, known).invoke(group(rollouts))
    assert "- [L0] guess\n- [L2] draw it\n" in model.prompts[0]
    assert "add up" not in model.prompts[0]
    assert out["votes"] == [("L0", -1), ("L2", 1)]
    assert "'L1', which was not shown" in out["failures"][0]
    summarise(model, known).invoke({**group(rollouts), "number": 1})
    assert "- [L0] guess\n" in model.prompts[1]
    assert "draw it" not in model.prompts[1]
    edits = Scripted('{"edits": []}')
    propose(edits, known).invoke({**group(rollouts), "insights": ["when stuck, draw"]})
    assert "- [L1] add up" in edits.prompts[0], "edits are of the whole library"


def test_insights_that_are_too_long_are_asked_for_again_with_the_reason_and_the_others_kept() -> None:
    long = " ".join(["word"] * 33)
    model = Scripted(f'{{"lessons": ["{long}", "when a sum is asked, add"]}}')
    out = contrast(model, critic()).invoke(group(TWO))
    assert out["insights"] == ["when a sum is asked, add"]
    assert len(model.asked) == 3
    assert "at most 32 words, got 33" in model.prompts[1]
    assert "1 of 2 insights" in out["failures"][0]


def test_an_insight_that_tells_the_answer_is_no_lesson(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "learngraph")
    model = Scripted('{"lessons": ["when a sum is asked, say 1042.", "when 10421 or 42 comes up, add"]}')
    told = critic(reference=lambda task: "1042")
    out = contrast(model, told).invoke(group(TWO))
    assert out["insights"] == ["when 10421 or 42 comes up, add"]
    assert "tells this problem's answer" in model.prompts[1]
    assert ("1042" in caplog.text, "asked for lessons of at most 32 words that" in caplog.text) == (False, True)
    common = critic(reference=lambda task: "say")
    assert len(contrast(model, common).invoke(group(TWO))["insights"]) == 2


def test_what_attempts_took_stands_beside_them() -> None:
    model = Scripted('{"lessons": []}')
    contrast(model, critic()).invoke(group([rollout(0, 2 / 3, steps=9, tool_calls=4), rollout(1, 0.0, steps=1)]))
    assert "Attempt 1 (reward 0.667, 9 actions, 4 tool calls):\n" in model.prompts[0]
    assert "Attempt 2 (reward 0):\n" in model.prompts[0]


@pytest.mark.parametrize("reply", ["", "I cannot say.", "[1, 2", '{"lessons": 7}', "null", '{"lessons": [{"a": {"b": 1}}]}'])
def test_a_comparison_that_cannot_be_read_teaches_nothing_and_says_so(reply: str) -> None:
    model = Scripted(reply)
    out = contrast(model, critic()).invoke(group(TWO))
    assert out["insights"] == []
    assert "contrast of sum-1" in out["failures"][0]
    assert len(model.asked) == 3


# Edits


INSIGHT = "when a sum is asked, add"


def test_edits_carry_their_group() -> None:
    reply = '{"edits": [{"op": "modify", "id": "[L0]", "text": "when a sum is asked, add it up", "why": "vague"}]}'
    model = Scripted(reply)
    out = propose(model, critic("add")).invoke(group(TWO, insights=[INSIGHT], step=3))
    (edit,) = out["edits"]
    assert edit == Edit("modify", ("L0",), "when a sum is asked, add it up", "vague", ("sum-1",), (1.0, 0.0), 3)
    assert f"- {INSIGHT}" in model.prompts[0]
    assert "- [L0] add" in model.prompts[0]


def test_without_insights_nothing_is_asked() -> None:
    model = Scripted("{}")
    out = propose(model, critic()).invoke(group(TWO))
    assert (out["edits"], out["rulings"], model.asked) == ([], [], [])


def test_of_an_empty_library_nothing_is_asked_and_every_insight_is_an_addition() -> None:
    model = Scripted("{}")
    out = propose(model, critic()).invoke(group(TWO, insights=[INSIGHT], step=2))
    assert out["edits"] == [Edit("add", (), INSIGHT, "", ("sum-1",), (1.0, 0.0), 2)]
    assert model.asked == []


def test_who_proposes_sees_the_problem_the_attempts_and_what_speaks_for_and_against_each_lesson() -> None:
    known = critic("add up", "guess", reference=lambda task: "forty-two")
    library = known.versions.at("r/0").with_votes([("L0", 4), ("L1", 1), ("L1", -10)]).with_shown_counts(["L1"] * 7)
    known.versions.put("r/5", library)
    model = Scripted('{"edits": [{"op": "keep", "id": "L0"}]}')
    seen = {
        "library": "r/5",
        "lesson_rewards": {"": [6.0, 10], "L1": [1.0, 4]},
        "rejected": ["step 3, worse: add 'guess twice'"],
    }
    propose(model, known).invoke(group(TWO, insights=[INSIGHT], votes=[("L0", 1)], summaries=[Summary(0, "It added.")], **seen))
    for told in (
        TASK.instruction,
        "True answer: forty-two",
        "- [L0] add up\n  (votes: 4 helped, 0 harmed)",
        "- [L1] guess\n  (votes: 1 helped, 10 harmed; shown in 7 attempts; mean reward 0.25 of 4)",
        "(all attempts so far: mean reward 0.60 of 10)",
        "In these attempts: L0 helped.",
        "Attempt 1 (reward 1):\nIt added.",
        "Attempt 2 (reward 0):\n> guess",
        f"- {INSIGHT}",
        "- step 3, worse: add 'guess twice'",
    ):
        assert told in model.prompts[0], told


def test_a_lesson_that_is_called_harmful_is_ruled_on_though_nothing_new_was_learned() -> None:
    known = critic("guess", "add up")
    silent, ruled = '{"edits": [{"op": "keep", "id": "L1"}]}', '{"edits": [{"op": "delete", "id": "L0", "why": "it misled"}]}'
    model = Scripted(silent, ruled)
    out = propose(model, known).invoke(group(TWO, votes=[("L0", -1), ("L1", 1)]))
    assert [(edit.op, edit.lessons, edit.why) for edit in out["edits"]] == [("delete", ("L0",), "it misled")]
    assert "Say of each of these what becomes of it, and why: L0." in model.prompts[0]
    assert "(nothing new)" in model.prompts[0]
    assert "asked what becomes of L0" in model.prompts[1]
    never = Scripted(silent)
    out = propose(never, known).invoke(group(TWO, votes=[("L0", -1)]))
    assert [(edit.op, edit.lessons) for edit in out["edits"]] == [("keep", ("L1",))]
    assert "asked what becomes of L0" in out["failures"][0]
    assert propose(Scripted("{}"), known).invoke(group(TWO, votes=[("L1", 1)]))["edits"] == []


def test_what_cannot_be_read_becomes_additions_and_says_so() -> None:
    model = Scripted("I would rather talk about it.")
    out = propose(model, critic("guess")).invoke(group(TWO, insights=[INSIGHT]))
    assert [(edit.op, edit.text, edit.problems) for edit in out["edits"]] == [("add", INSIGHT, ("sum-1",))]
    assert "added as they are" in out["failures"][0]
    assert len(model.asked) == 3


# Without ground truth


CANARIES = ("TRUEANSWER", "0.8125", "0.1875", "VERDICT")


def secret(number: int, reward: float) -> Rollout:
    steps = (Transition("which", "look", 0.8125), Transition("that", f"say {number}", reward))
    lived = Trajectory(f"r/sum-1/{number}", TASK, steps, score=0.8125, note="VERDICT: correct")
    told = f"which\n> look\n= 0.8125\nthat\n> say {number}\n= {reward}\ntotal 0.8125 VERDICT\n"
    return rollout(number, reward, told, f"say {number}", trajectory=lived, error="VERDICT" if number else "")


@pytest.mark.parametrize("plain", [False, True])
def test_without_ground_truth_no_prompt_holds_what_the_verifier_said(plain: bool) -> None:
    replies = {
        "You study": "It looked.",
        "You compare": '{"lessons": ["when in doubt, look"], "helpful": ["L0"], "harmful": []}',
        "You keep": '{"edits": [{"op": "add", "text": "when in doubt, look"}], "sheet": ["when in doubt, look"]}',
        "You see": "which look",
    }
    model = Scripted(of=lambda system: next(reply for start, reply in replies.items() if system.startswith(start)))
    known = critic("add up", truth="implicit", line_only=plain, reference=lambda task: "TRUEANSWER")
    rollouts = [secret(0, 0.8125), secret(1, 0.1875)]
    state = group(rollouts, rewards=[1.0, 0.0])
    if not plain:
        for number in (0, 1):
            written = summarise(model, known).invoke({**state, "number": number})
            state["summaries"] = [*state["summaries"], *written["summaries"]]
        lost = summarise(Scripted(""), known).invoke({**state, "number": 0})["summaries"]
        contrast(model, known).invoke({**state, "summaries": lost})
    state |= contrast(model, known).invoke(state)
    node: Any = propose(model, known)
    state |= node(state) if plain else node.invoke(state)
    comparison = Comparison("sum-1", tuple(state["rewards"]), (0.8125, 0.1875), "mixed", state["insights"], state["edits"])
    consolidate(model, known).invoke({"run": "r", "step": 0, "library": "r/0", "comparisons": [comparison]})
    assert len(model.asked) >= (1 if plain else 6)
    for prompt in model.prompts:
        for canary in CANARIES:
            assert canary not in prompt, prompt
    told = Scripted("It looked.")  # with ground truth the same canaries do arrive
    summarise(told, critic(reference=lambda task: "TRUEANSWER")).invoke({**group([secret(0, 0.8125)]), "number": 0})
    assert all(canary in told.prompts[0] for canary in ("TRUEANSWER", "0.8125"))


def test_without_ground_truth_only_rewards_are_taken_out_of_a_transcript() -> None:
    known = critic(truth="implicit")
    lines = "> derive\n  total 3\n| x = 3 + 4\n= 7\ntotal cost is 12\n"
    assert known.transcript(rollout(0, 1.0, lines)) == lines
    assert (
        known.transcript(rollout(0, 1.0, "at a\n> go\n  on\n= -0.5\nat b\n> go\n= 1\ntotal 0.5"))
        == "at a\n> go\n  on\nat b\n> go\n"
    )


# Without rollouts


def test_lessons_are_invented_from_objective_and_problems() -> None:
    model = Scripted('{"lessons": ["when a sum is asked, add", "when in doubt, check"]}')
    out = invent(model, critic(limits=LessonSettings(objective="sums")), 5).invoke({"run": "r", "tasks": [TASK]})
    assert out["insights"] == ["when a sum is asked, add", "when in doubt, check"]
    assert "Write 5 different lessons" in model.prompts[0]
    assert TASK.instruction in model.prompts[0]
    assert "sums" in model.prompts[0]
    with pytest.raises(BadReply):
        invent(Scripted("no"), critic(), 5).invoke({"run": "r", "tasks": [TASK]})


def test_a_model_that_only_writes_a_line_cannot_be_asked_for_more() -> None:
    with pytest.raises(UserError, match="openai"):
        invent(Scripted(""), critic(line_only=True), 5)


# By rule


def walk(number: int, *steps: tuple[str, str, float | None]) -> Rollout:
    lived = Trajectory(f"r/sum-1/{number}", TASK, tuple(Transition(*step) for step in steps), episode=number)
    return rollout(number, 0.5, trajectory=lived)


def test_the_rule_says_what_did_better_than_other_things_tried_there() -> None:
    rollouts = [
        walk(0, ("door black", "fern", 0.0), ("door black", "mist", 1.0), ("gate wolf", "lamp", 0.0), ("exit", "on", 2.0)),
        walk(1, ("door black", "mist", 1.0), ("gate wolf", "lamp", 0.0), ("exit", "on", 2.0)),
    ]
    assert RuleCritic()(group(rollouts))["insights"] == ["door black mist"]  # of gate and exit, all did the same


def test_what_earned_nothing_is_no_advice_though_others_lost_something_there() -> None:
    rollouts = [
        walk(0, ("gate wolf", "attack", -0.5), ("exit", "on", 2.0)),
        walk(1, ("gate wolf", "wait", 0.0), ("exit", "on", 2.0)),
    ]
    assert RuleCritic()(group(rollouts))["insights"] == []


def test_the_rule_goes_by_what_followed_where_only_the_end_is_paid() -> None:
    rollouts = [
        walk(0, ("a hall with two doors, far apart", "east", 0.0), ("the coin room, at last", "take coin", 1.0)),
        walk(1, ("a hall with two doors, far apart", "west", 0.0), ("a dead end without a way on", "look", 0.0)),
    ]
    assert RuleCritic()(group(rollouts))["insights"] == ["east"]
    found = {(w.state[:6], w.action): w.gain for w in compare_actions(rollouts, discount=0.5)}
    assert found == {("a hall", "east"): 0.5, ("a hall", "west"): -0.5}


def test_a_place_that_pays_once_is_worth_what_it_paid() -> None:
    again = walk(0, ("door black", "mist", 1.0), ("gate wolf", "back", 0.0), ("door black", "mist", 0.0), ("exit", "on", 2.0))
    other = walk(1, ("door black", "salt", 0.0), ("door black", "mist", 1.0), ("exit", "on", 2.0))
    (best, *_) = compare_actions([again, other])
    assert (best.state, best.action, best.gain, best.rollouts) == ("door black", "mist", 1.0, 2)


def test_missing_rewards_say_nothing() -> None:
    rollouts = [walk(0, ("door black", "mist", None)), walk(1, ("door black", "fern", 0.0))]
    assert RuleCritic()(group(rollouts))["insights"] == []


def explored(world: KeywordKeep, task: Task, seed: int) -> list[Rollout]:
    found = []
    for number in range(5):
        draw, actions, seen = random.Random(f"{seed}/{task.id}/{number}"), [], world.observe(task, ())
        while not seen.over:
            actions.append(draw.choice(seen.actions))
            seen = world.observe(task, actions)
        lived = replay_actions(world, task, actions, run="r", episode=number)
        found.append(Rollout(f"r/{task.id}/{number}", task, number, max(lived.score, 0.0) / 10, trajectory=lived))
    return found


def test_what_the_rule_writes_about_the_toy_is_true() -> None:
    world, written = KeywordKeep(), []
    for seed in range(10):
        task = world.task(seed)
        found = RuleCritic()(group(explored(world, task, seed)))["insights"]
        rules = domain(task.seed).rules
        written += [item in {f"{place} {answer}" for place, answer in rules.items()} for item in found]
    assert len(written) > 20
    assert all(written)


def test_edits_by_code_speak_for_what_is_there_and_replace_what_contradicts() -> None:
    known = critic("door black mist", "gate wolf lamp", "fork oak left", "gate wolf coin")
    steps = [("door black", "mist"), ("door black", "fern"), ("gate wolf", "bell"), ("fork oak", "right"), ("door red", "salt")]
    rollouts = [walk(0, *((state, action, 1.0) for state, action in steps))]
    insights = ["door black mist", "gate wolf bell", "fork oak right", "door red salt", "door red", "gate elf bow"]
    out: Any = propose(Scripted(), replace(known, line_only=True))
    out = out(group(rollouts, insights=insights))
    assert [(edit.op, edit.lessons, edit.text) for edit in out["edits"]] == [
        ("keep", ("L0",), ""),
        ("modify", ("L1",), "gate wolf bell"),
        ("delete", ("L3",), ""),
        ("modify", ("L2",), "fork oak right"),
        ("add", (), "door red salt"),
    ]
    assert [(ruling.edit.text, ruling.accepted, ruling.reason) for ruling in out["rulings"]] == [
        ("door red", False, "no rollout of this group did that"),
        ("gate elf bow", False, "no rollout of this group did that"),
    ]


# A model that only writes a line


def test_a_plain_writer_is_shown_the_attempts_and_its_items_are_insights() -> None:
    rollouts = [walk(0, ("door black", "mist", 1.0)), walk(1, ("door black", "fern", 0.0))]
    model = Scripted(" door black mist. gate wolf lamp. door black mist")
    known = critic(line_only=True)
    out = contrast(model, known).invoke(group(rollouts))
    assert out["insights"] == ["door black mist", "gate wolf lamp"]
    assert "Attempt 1:\ndoor black\n> mist\n= 1\ntotal 1\nAttempt 2:\n" in model.prompts[0]
    assert model.prompts[0].endswith("Learned:")
    assert contrast(Scripted("nothing"), known).invoke(group(rollouts))["insights"] == []
    lost = contrast(Scripted(""), known).invoke(group(rollouts))
    assert lost["insights"] == []
    assert lost["failures"]


def test_a_plain_writer_with_a_small_window_is_shown_the_best_and_the_worst() -> None:
    rollouts = [walk(n, *[("door black", "fern", 0.0)] * 50, *[("gate wolf", "lamp", n / 8)] * 8) for n in range(12)]
    model, known = Scripted("door black mist"), critic(line_only=True, max_prompt_tokens=450)
    contrast(model, known).invoke(group(rollouts, rewards=[n / 12 for n in range(12)]))
    assert known.count(model.prompts[0]) <= 450
    assert "total 0\n" in model.prompts[0]
    assert "> lamp\n= 1.375\ntotal 11\n" in model.prompts[0]
    assert "total 6\n" not in model.prompts[0]


# Controls


def test_random_lessons_are_pieces_of_the_rollouts_and_do_not_look_at_rewards() -> None:
    world = KeywordKeep()
    rollouts = explored(world, world.task(0), 0)
    drawn = random_lessons(rollouts, 6, LibraryLimits(), 1)
    taken = {f"{s.state} {s.action}" for r in rollouts if r.trajectory for s in r.trajectory.transitions}
    assert len(drawn.lessons) == 6
    assert {lesson.text for lesson in drawn.lessons} <= taken
    blind = [replace(r, reward=1.0) for r in rollouts]
    assert random_lessons(blind[::-1], 6, LibraryLimits(), 1) == drawn != random_lessons(rollouts, 6, LibraryLimits(), 2)
    places = [lesson.text.rsplit(" ", 1)[0] for lesson in random_lessons(rollouts, 2, LibraryLimits(), 3).lessons]
    assert len(set(places)) == 2
    assert len(random_lessons(rollouts, 1000, LibraryLimits(max_lessons=8), 1).lessons) == 8


def test_random_lessons_of_written_answers_are_sentences() -> None:
    spoken = [rollout(0, 1.0, "First add the tens. Then add the ones! Yes. " + "very " * 40 + "long.")]
    drawn = random_lessons(spoken, 5, LibraryLimits(), 0)
    assert sorted(lesson.text for lesson in drawn.lessons) == ["First add the tens.", "Then add the ones!"]
    assert random_lessons([], 5, LibraryLimits(), 0) == Library()


@pytest.mark.parametrize("steps", [0, 2])
def test_random_lessons_keep_to_the_limits(steps: int) -> None:
    lived = [Transition(f"state {n}", "go " * (5 + 20 * n), 0.0) for n in range(steps)]
    told = [rollout(n, 1.0, f"> it is {'x' * 400}{n} then.\n", trajectory=None) for n in range(9)]
    if steps:
        told = [replace(told[0], trajectory=Trajectory("a", TASK, lived))]  # type: ignore[arg-type]
    drawn = random_lessons(told, 9, LibraryLimits(max_words=12, max_library_tokens=300), 1, lambda text: len(text) // 4)
    assert 0 < len(drawn.lessons) < 9
    assert len(drawn.text()) // 4 <= 300
    assert all(len(lesson.text.split()) <= 12 for lesson in drawn.lessons)


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6).map(" ".join), max_size=8), st.integers(0, 9))
def test_shuffled_lessons_have_the_same_words_and_lengths(texts: list[str], seed: int) -> None:
    library = as_library(texts, LibraryLimits(duplicate_similarity=2.0), len)
    mixed = shuffle_lessons(library, seed)
    assert [lesson.id for lesson in mixed.lessons] == [lesson.id for lesson in library.lessons]
    assert [len(x.text.split()) for x in mixed.lessons] == [len(x.text.split()) for x in library.lessons]
    assert sorted(" ".join(x.text for x in mixed.lessons).split()) == sorted(" ".join(x.text for x in library.lessons).split())
    assert shuffle_lessons(library, seed) == mixed
    assert mixed.next == library.next


def test_shuffling_gives_each_state_the_action_of_another() -> None:
    library = as_library(["door black mist", "gate wolf lamp", "fork oak left"], LibraryLimits(), len)
    for seed in range(5):
        mixed = [lesson.text for lesson in shuffle_lessons(library, seed).lessons]
        assert [text.rsplit(" ", 1)[0] for text in mixed] == ["door black", "gate wolf", "fork oak"]
        assert all(new != old.text for new, old in zip(mixed, library.lessons, strict=True))


# Prompts


def test_prompts_ask_for_json_that_is_json() -> None:
    import json

    for name, prompt in critic_prompts().items():
        system = prompt.parts[0][1].template
        for line in system.splitlines():
            if line.startswith("{"):
                assert isinstance(json.loads(line), dict), name

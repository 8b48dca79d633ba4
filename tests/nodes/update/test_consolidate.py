"""From the groups' edits to the next version: nothing vanishes, nothing is made up, and no reply can poison a step."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from scripted_model import Scripted

from learngraph.memory.lessons.library import Library, one_line
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Comparison, Edit, Lesson, Rollout, Ruling, Task
from learngraph.nodes.extract.critic import Critic, LessonSettings, critic_prompts, propose
from learngraph.nodes.update.consolidate import ReviseLibrary, consolidate

ADD = "when a sum is asked for, add the numbers"
CHECK = "when a result was found, check it in another way"
DRAW = "when shapes are described, draw them first"


class Silent(Runnable[Any, Any]):
    """Must not be asked."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> AIMessage:
        raise AssertionError(f"was asked {input}")


def critic(*lessons: str, **more: Any) -> Critic:
    versions = LibraryVersions()
    versions.put("r/0", Library(tuple(Lesson(f"L{n}", text) for n, text in enumerate(lessons)), len(lessons)))
    return Critic(versions, **more)


def compared(task: str, *edits: Edit, **more: Any) -> Comparison:
    edits = tuple(replace(edit, problems=(task,), rewards=(1.0, 0.0)) for edit in edits)
    insights = more.pop("insights", tuple(edit.text for edit in edits if edit.text))
    return Comparison(task, (1.0, 0.0), (1.0, 0.0), "mixed", insights, edits, **more)


def step(*comparisons: Comparison, **more: Any) -> dict[str, Any]:
    return {"run": "r", "step": 0, "library": "r/0", "comparisons": list(comparisons), **more}


def add(text: str, why: str = "") -> Edit:
    return Edit("add", (), text, why)


def texts(known: Critic, name: str = "r/1") -> list[str]:
    return [lesson.text for lesson in known.versions.at(name).lessons]


def reasons(known: Critic) -> dict[str, tuple[bool, str]]:
    return {
        r.edit.text or " ".join((r.edit.op, *r.edit.lessons)): (r.accepted, r.reason) for r in known.versions.rulings("r/1")
    }


def accounted(known: Critic, comparisons: Sequence[Comparison]) -> bool:
    """Whether the ledger has every edit that was proposed, and every one that was dropped before, with a reason if refused."""
    rulings = known.versions.rulings("r/1")
    ruled = Counter(repr(ruling.edit) for ruling in rulings)
    wanted = Counter(repr(edit) for c in comparisons for edit in (*c.edits, *(ruling.edit for ruling in c.rulings)))
    return wanted <= ruled and all(ruling.accepted or ruling.reason for ruling in rulings)


def plan(*edits: dict[str, Any]) -> str:
    return f"Let me think.\n{json.dumps({'edits': list(edits)})}"


def revise(model: Any, known: Critic, how: str) -> ReviseLibrary:
    """The node that asks the model, or goes by code."""
    return ReviseLibrary(known) if how == "code" else consolidate(model, known)


# One call, or none


@pytest.mark.parametrize("how", ["model", "code"])
def test_about_nothing_nothing_is_asked_and_nothing_made_up(how: Any) -> None:  # D9
    known = critic(ADD)
    for comparisons in ([], [Comparison("a"), Comparison("b", (1.0, 1.0), kind="alike")]):
        assert revise(Silent(), known, how).invoke(step(*comparisons)) == {"candidate": ""}
    # what was learned, and found not to change anything
    assert revise(Silent(), known, how).invoke(step(compared("a", insights=(ADD,)))) == {"candidate": ""}
    assert known.versions.names() == ["r/0"]


def test_lessons_that_are_only_kept_need_no_call() -> None:
    known = critic(ADD)
    out = consolidate(Silent(), known).invoke(step(compared("a", Edit("keep", ("L0",)))))
    assert out["candidate"] == "r/1"
    assert known.versions.at("r/1").lesson("L0").helpful == 1


def test_a_lesson_that_is_kept_has_its_vote_also_beside_the_papers_plan() -> None:
    for reply in ("no plan", plan({"op": "delete", "id": "L1"})):
        known = critic(ADD, CHECK, paper=True, prompts=critic_prompts(paper=True))
        comparisons = compared("a", Edit("keep", ("L0",))), compared("b", Edit("delete", ("L1",)))
        revise(Scripted(reply), known, "paper").invoke(step(*comparisons))
        assert known.versions.at("r/1").lesson("L0").helpful == 1
        assert accounted(known, comparisons)


def test_one_call_a_step_sees_edits_and_library_and_merges_them() -> None:
    model = Scripted(
        plan({"op": "add", "text": CHECK, "from": [1, 3]}, {"op": "modify", "id": "[L0]", "text": f"{ADD} up", "from": [2]})
    )
    known = critic(ADD, limits=LessonSettings(objective="sums"))
    comparisons = [
        compared("b", add("when done, check again", "it erred"), Edit("modify", ("L0",), f"{ADD} up")),
        compared("c", add("when finished, verify")),
    ]
    out = consolidate(model, known).invoke(step(*comparisons))
    (prompt,) = model.prompts
    for told in (
        "sums",
        f"- [L0] {ADD}",
        "1. add: when done, check again (because: it erred; 2 attempts, mean reward 0.50)",
        "2. modify L0: ",
        "3. add: when f",
    ):
        assert told in prompt, told
    assert texts(known) == [f"{ADD} up", CHECK]
    assert out["candidate"] == "r/1"
    assert out["usage"].calls == 1
    learned = known.versions.at("r/1").lessons[1]
    assert (learned.problems, learned.rewards) == (("b", "c"), (1.0, 0.0, 1.0, 0.0))
    assert reasons(known)["when finished, verify"] == (True, f"consolidated into add {CHECK!r}")
    assert accounted(known, comparisons)


def test_what_the_consolidation_leaves_out_is_in_the_ledger() -> None:
    model = Scripted(plan({"op": "add", "text": CHECK, "from": [2]}))
    known = critic()
    comparisons = [compared("a", add(DRAW)), compared("b", add(CHECK))]
    consolidate(model, known).invoke(step(*comparisons))
    assert texts(known) == [CHECK]
    assert reasons(known)[DRAW] == (False, "dropped by the consolidation")
    assert accounted(known, comparisons)


def test_a_consolidation_that_cannot_be_read_is_told_why_and_then_done_by_code() -> None:  # D2
    model = Scripted("I merged them all.", '{"edits": [{"op": "conjure"}]}', "No.")
    known, comparisons = critic(ADD), [compared("a", add(CHECK)), compared("b", Edit("delete", ("L0",)))]
    consolidate(model, known).invoke(step(*comparisons))
    assert len(model.prompts) == 3
    assert len(set(model.prompts)) == 3
    assert "conjure" in model.prompts[2]
    assert texts(known) == [CHECK]
    assert all("no consolidation could be read" in reason for _, reason in reasons(known).values())
    assert "no consolidation could be read" in known.versions.why("r/1")
    assert accounted(known, comparisons)


MALFORMED = [
    "",
    "I would keep everything as it is.",
    "null",
    "[]",
    "{}",
    "7",
    '["one", "two"]',
    '["when asked for a sum, add", "when done, check"]',
    '{"op": "add", "text": "when asked, answer"}',
    '{"option": "modify", "experience": "when asked, answer", "modified_from": "[L0]"}',
    '{"0": {"operation": "ADD", "content": "when asked, answer"}}',
    '[{"operation": "DELETE", "id": "L0", "content": null}]',
    '[{"operation": "UPDATE", "id": "[G0]", "content": "when asked, answer"}]',
    '[{"option": "merge", "experience": "when asked, answer", "merged_from": ["L0"]}]',
    '[{"option": "merge", "experience": "when asked, answer", "merged_from": "L0"}]',
    '{"operations": [{"operation": "ADD", "content": "when asked, answer"}], "response": "x", "new_experiences": {"G0": "y"}}',
    '{"edits": {"op": "add", "text": "when asked, answer"}}',
    '{"edits": [[{"op": "add", "text": "when asked, answer"}]]}',
    '{"edits": [{"op": "add", "text": {"a": 1}}, {"op": ["add"], "text": "x y"}, 7, null, {"op": null, "id": {"x": []}}]}',
    '{"edits": [{"op": "delete", "id": ["L0", "L0", "L9"]}, {"op": "add", "text": ""}]}',
    r'[{"operation": "ADD", "content": "when \sqrt{x} \le \frac{1}{2}, use \theta"}]',
    '```json\n[{"operation": "ADD", // new\n "content": "when asked, answer",}, ...]\n```',
    '```json\n{"edits": [{"op": "add", "text": "when asked, answer"}, {"op": "add", "text": "when cut',
    '{"edits": [{"op": "add", "text": "' + "word " * 90 + '"}]}',
    '{"edits": [{"op": "add", "text": "when asked, answer", "from": {"a": "b"}}]}',
    '{"edits": [{"op": "add", "text": "when asked, answer", "from": ["1", 99, -1, 0, null, "x", 1e9, 1.5, "9999999999999"]}]}',
    "[" * 3000,
    '{"edits": ' * 500,
    '{"edits": [{"op": "add", "text": "\\ud800 half"}]}',
    "\x00{\x00}",
]


@pytest.mark.parametrize("reply", MALFORMED)
def test_no_malformed_reply_poisons_the_step(reply: str) -> None:  # D3
    """A group's reply first, the consolidation's afterwards: the other groups' edits are applied or dropped in the open."""
    task = Task("a", "Add 19 and 23.")
    rollouts = [Rollout(f"r/a/{n}", task, n, 1.0 - n, "42", "> 42\n") for n in range(2)]
    state = {"task": task, "run": "r", "step": 0, "library": "r/0", "rollouts": rollouts, "rewards": [1.0, 0.0]}
    state |= {"votes": [], "summaries": []}
    known = critic(ADD)
    out: Any = propose(Scripted(reply), known).invoke({**state, "insights": [CHECK]})
    assert out["edits"] or out["rulings"] or reply == "[]"  # which says that nothing is to be changed
    poisoned = Comparison("a", (1.0, 0.0), edits=out["edits"], rulings=out["rulings"], insights=(CHECK,))
    comparisons = [poisoned, compared("b", add(DRAW))]
    good = plan({"op": "add", "text": DRAW, "from": [len(out["edits"]) + 1]})
    assert consolidate(Scripted(good), known).invoke(step(*comparisons))["candidate"] == "r/1"
    assert DRAW in texts(known)
    assert accounted(known, comparisons)

    again = critic(ADD)
    assert consolidate(Scripted(reply), again).invoke(step(*comparisons))["candidate"] == "r/1"
    assert accounted(again, comparisons)
    assert all("\x0c" not in text and "\t" not in text for text in texts(again))  # D10


def test_what_finds_no_room_in_the_prompt_is_done_by_code() -> None:
    edits = [add(f"when case {n} comes up, look into chapter {n} of the manual") for n in range(60)]
    known = critic(max_prompt_tokens=1500, limits=LessonSettings(max_lessons=100, max_library_tokens=9000, max_step_edits=0))
    comparisons = [compared(f"t{n:02}", edit) for n, edit in enumerate(edits)]
    model = Scripted(plan())
    consolidate(model, known).invoke(step(*comparisons))
    assert known.count(model.prompts[0]) <= 1500
    assert 0 < len(texts(known)) < 60
    assert "which its prompt had no room for, by code" in known.versions.why("r/1")
    assert accounted(known, comparisons)


# The same, whatever happens


def test_the_version_does_not_depend_on_which_group_ended_first() -> None:  # D17
    comparisons = [compared(f"t{n}", add(f"when case {n} comes up, do {n}")) for n in range(6)]
    for how in ("model", "code"):
        seen = set()
        for seed in range(4):
            known = critic(ADD)
            reply = json.dumps({"edits": [{"op": "add", "text": CHECK, "from": [1, 2]}]})
            model = Scripted(reply)
            revise(model, known, how).invoke(step(*random.Random(seed).sample(comparisons, 6)))  # type: ignore[arg-type]
            seen.add((known.versions.at("r/1").to_yaml(), known.versions.rulings("r/1"), tuple(model.prompts)))
        assert len(seen) == 1


def test_votes_and_showings_are_counted() -> None:
    known = critic(ADD, CHECK, tasks={"a": Task("a", "a sum"), "b": Task("b", "check it")})
    votes = [
        compared("a", votes=(("L0", 1), ("L1", -1)), shown=(("L0", 2), ("L1", 1))),
        compared("b", add(DRAW), votes=(("L0", 1),), shown=(("L1", 2),)),
    ]
    ReviseLibrary(known).invoke(step(*votes))
    first, second, third = known.versions.at("r/1").lessons
    assert (first.helpful, second.harmful, third.shown) == (2, 1, 0)
    assert (first.shown, second.shown) == (2, 3)
    assert third.instruction == "check it"


@pytest.mark.parametrize("how", ["model", "code"])
def test_votes_and_showings_are_kept_also_for_the_library_as_it_is(how: Any) -> None:
    """They hold whatever becomes of the candidate: it may be rejected."""
    known = critic(ADD, CHECK)
    harmed = compared("a", add(DRAW), votes=(("L0", -1),), shown=(("L0", 2),))
    node = revise(Scripted(plan({"op": "add", "text": DRAW, "from": [1]})), known, how)
    for _ in range(2):  # a run that was killed makes the step again
        assert node.invoke(step(harmed, compared("b", Edit("keep", ("L1",)))))["candidate"] == "r/1"
    kept = known.versions.at("r/1-kept")
    assert [(x.text, x.helpful, x.harmful, x.shown) for x in kept.lessons] == [(ADD, 0, 1, 2), (CHECK, 1, 0, 0)]
    assert (known.versions.parent("r/1-kept"), kept.key) == ("r/0", known.versions.at("r/0").key)
    again = node.invoke(step(compared("c", add(f"{DRAW} twice")), step=1, library="r/1-kept"))
    assert again["candidate"] == "r/2"
    assert "r/2-kept" not in known.versions.names()
    shown = Comparison("d", (1.0, 1.0), kind="alike", shown=(("L0", 2),))
    assert node.invoke(step(shown, step=2, library="r/1-kept")) == {"candidate": ""}
    assert known.versions.at("r/3-kept").lesson("L0").shown == 4


def test_a_proposal_whose_opposite_was_done_is_refused_in_the_ledger() -> None:
    model = Scripted(
        plan({"op": "keep", "id": "L0", "from": [1]}, {"op": "delete", "id": "L1", "from": [2]}, {"op": "keep", "id": "L2"})
    )
    known = critic(ADD, CHECK, DRAW)
    comparisons = [
        compared("a", Edit("delete", ("L0",)), Edit("modify", ("L1",), f"{CHECK} twice")),
        compared("b", Edit("modify", ("L2",), f"{DRAW} twice")),
    ]
    consolidate(model, known).invoke(step(*comparisons))
    assert texts(known) == [ADD, DRAW]
    told = [(r.edit.op, r.accepted, r.reason) for r in known.versions.rulings("r/1") if r.edit.problems]
    assert told == [
        ("delete", False, "decided otherwise: keep L0"),
        ("modify", False, "decided otherwise: delete L1"),
        ("modify", False, "decided otherwise: keep L2"),
    ]


def test_an_addition_that_a_lesson_says_already_goes_into_keeping_it() -> None:
    known = critic(ADD)
    model = Scripted(plan({"op": "keep", "id": "L0", "from": "1"}))
    consolidate(model, known).invoke(step(compared("a", add("sums: add"))))
    assert reasons(known)["sums: add"] == (True, "consolidated into keep L0")
    assert known.versions.at("r/1").lesson("L0").helpful == 1


def test_final_edits_of_one_text_are_told_apart() -> None:
    model = Scripted(
        plan({"op": "modify", "id": "L0", "text": DRAW, "from": [1]}, {"op": "modify", "id": "L1", "text": DRAW, "from": [2]})
    )
    known = critic(ADD, CHECK, limits=LessonSettings(duplicate_similarity=2.0))
    comparisons = [compared("a", Edit("modify", ("L0",), "x y")), compared("b", Edit("modify", ("L1",), "y z"))]
    consolidate(model, known).invoke(step(*comparisons))
    assert [lesson.problems for lesson in known.versions.at("r/1").lessons] == [("a",), ("b",)]


# By code


def test_the_groups_decide_by_number_where_they_disagree() -> None:
    known = critic("door black fern", "gate wolf lamp", "fork oak left", line_only=True)
    comparisons = [
        compared("a", Edit("modify", ("L0",), "door black salt"), Edit("delete", ("L1",)), Edit("delete", ("L2",))),
        compared("b", Edit("modify", ("L0",), "door black mist"), Edit("delete", ("L1",)), Edit("keep", ("L2",))),
        compared("c", Edit("modify", ("L0",), "door black mist"), Edit("keep", ("L1",)), add("door red a", "at door red: a")),
        compared("d", add("door red b", "at door red: b")),
        compared("e", add("door red b", "at door red: b")),
    ]
    ReviseLibrary(known).invoke(step(*comparisons))
    assert texts(known) == ["door black mist", "fork oak left", "door red b"]
    told = reasons(known)
    assert told["door black salt"] == (False, "L0 is modified by another edit")
    assert told["keep L1"] == (False, "the groups disagree: 2 for and 1 against deleting L1")
    assert told["delete L2"] == (False, "the groups disagree: 1 for and 1 against deleting L2")
    assert told["door red a"] == (False, "contradicts 'door red b', which 2 groups say")
    assert accounted(known, comparisons)


def test_of_a_state_only_one_thing_is_said() -> None:
    known = critic("fork sun left", "fork oak left", line_only=True)
    comparisons = [
        compared("a", Edit("modify", ("L0",), "fork sun right", "at fork sun: right"), add("door red a", "at door red: a")),
        compared("b", Edit("keep", ("L0",), "", "at fork sun: left")),
        compared("c", Edit("keep", ("L0",), "", "at fork sun: left")),
        replace(
            compared("d", add("door red b", "at door red: b")),
            edits=(replace(add("door red b", "at door red: b"), problems=("d",), rewards=(1.0,)),),
        ),
    ]
    ReviseLibrary(known).invoke(step(*comparisons))
    assert texts(known) == ["fork sun left", "fork oak left", "door red b"]
    assert reasons(known)["fork sun right"] == (False, "contradicts 'fork sun left', which 2 groups say")
    assert reasons(known)["door red a"] == (False, "contradicts 'door red b', which 1 group says")
    assert accounted(known, comparisons)


def test_the_reason_that_a_model_gives_is_prose() -> None:
    """`at the end: ...` names no state of which only one thing may be said."""
    known = critic()
    comparisons = [compared("a", add(CHECK, "at the end: it erred")), compared("b", add(DRAW, "at the end: nobody looked"))]
    ReviseLibrary(known).invoke(step(*comparisons))
    assert texts(known) == [CHECK, DRAW]


def test_a_plain_writer_is_never_asked_to_consolidate() -> None:
    known = critic(line_only=True)
    consolidate(Silent(), known).invoke(step(compared("a", add("door black mist"))))
    assert texts(known) == ["door black mist"]


# Votes


def test_a_lesson_with_more_votes_against_than_for_it_is_ruled_on_without_any_edit() -> None:
    known = critic(ADD, CHECK)
    comparisons = [Comparison("a", votes=(("L0", -1),)), Comparison("b", votes=(("L0", -1), ("L1", 1)))]
    evidence = {"lesson_rewards": {"": [3.0, 8], "L0": [1.0, 4]}, "rejected": ["step 0, worse: add 'guess'"]}
    model = Scripted(plan(), plan({"op": "modify", "id": "L0", "text": DRAW, "from": []}))
    out = consolidate(model, known).invoke({**step(*comparisons), **evidence})
    assert known.versions.at(out["candidate"]).lesson("L0").text == DRAW
    told = model.prompts[0]
    for line in (
        f"- [L0] {ADD}\n  (votes: 0 helped, 2 harmed; mean reward 0.25 of 4)",
        f"- [L1] {CHECK}\n  (votes: 1 helped, 0 harmed)",
        "L0 harmed in 2 groups; L1 helped in 1 group",
        "More votes against than for: L0. Say of each what becomes of it, and why.",
        "step 0, worse: add 'guess'",
    ):
        assert line in told, told
    assert "asked what becomes of L0" in model.prompts[1]


@pytest.mark.parametrize(("against", "left"), [(1, ["L0", "L1"]), (2, ["L1"])])
def test_by_code_a_lesson_goes_that_two_more_found_harmful_than_helpful(against: int, left: list[str]) -> None:
    comparisons = [Comparison(f"p{n}", votes=(("L0", -1),)) for n in range(against)]
    for how, model in (("code", Silent()), ("model", Scripted("I cannot say."))):
        known = critic(ADD, CHECK)
        made = revise(model, known, how).invoke(step(*comparisons))["candidate"]
        assert [lesson.id for lesson in known.versions.at(made).lessons] == left
        deleted = [r for r in known.versions.rulings(made) if r.edit.op == "delete"]
        assert [r.edit.why for r in deleted] == [f"votes: 0 helped, {against} harmed"] * (against - 1)


def test_a_step_makes_so_many_changes_at_most_and_the_others_have_a_ruling() -> None:
    known = critic(ADD, limits=LessonSettings(max_step_edits=1))
    comparisons = [compared("a", add(CHECK)), compared("b", add(DRAW)), compared("c", add(DRAW))]
    ReviseLibrary(known).invoke(step(*comparisons))
    assert texts(known) == [ADD, DRAW], "what most groups ask for comes first"
    assert [r.reason for r in known.versions.rulings("r/1") if not r.accepted] == ["beyond the 1 change of a step"]
    assert accounted(known, comparisons)
    told = critic(ADD, limits=LessonSettings(max_step_edits=3))
    model = Scripted(plan({"op": "add", "text": DRAW, "from": [2, 3]}))
    consolidate(model, told).invoke(step(*comparisons))
    assert "at most 3 changes" in model.prompts[0]


# Properties

IDS = st.sampled_from(["L0", "L1", "L2", "L9", "[L1]", ""])
TEXTS = st.sampled_from([ADD, CHECK, DRAW, f"{ADD}, twice", "door black mist", "", "word " * 40])
EDITS = st.builds(
    Edit,
    st.sampled_from(["add", "modify", "merge", "delete", "keep", "conjure"]),
    st.lists(IDS, max_size=3).map(tuple),
    TEXTS,
    st.sampled_from(["", "at door black: mist", "too vague"]),
)
REPLIES = st.one_of(
    st.sampled_from(MALFORMED),
    st.lists(
        st.fixed_dictionaries(
            {"op": st.sampled_from(["add", "modify", "merge", "delete", "keep"])},
            optional={
                "text": TEXTS,
                "id": IDS,
                "ids": st.lists(IDS, max_size=3),
                "from": st.lists(st.integers(-1, 9), max_size=4),
            },
        ),
        max_size=5,
    ).map(lambda items: json.dumps({"edits": items})),
)


@settings(max_examples=40)
@given(st.lists(st.lists(EDITS, max_size=4), min_size=1, max_size=4), REPLIES, st.sampled_from(["model", "code", "paper"]))
def test_the_ledger_accounts_for_every_edit(groups: list[list[Edit]], reply: str, how: Any) -> None:
    limits = LessonSettings(max_lessons=4, max_step_edits=0)
    paper = how == "paper"
    known = critic(ADD, CHECK, "gate wolf lamp", limits=limits, paper=paper, prompts=critic_prompts(paper=paper))
    early = Ruling(Edit("add", (), "cut before"), False, "more than were asked for")
    comparisons = [compared(f"t{n}", *edits) for n, edits in enumerate(groups)]
    comparisons.append(Comparison("z", (1.0, 0.0), rulings=(early,)))
    out = revise(Scripted(reply), known, how).invoke(step(*comparisons))
    assert out["candidate"] == "r/1"
    assert accounted(known, comparisons)
    library = known.versions.at("r/1")
    assert len(library.lessons) <= limits.max_lessons
    assert all(len(lesson.text.split()) <= limits.max_words for lesson in library.lessons)
    now = {lesson.id: lesson.text for lesson in library.lessons}
    rulings = [ruling for ruling in known.versions.rulings("r/1") if ruling.accepted]
    gone = {r.lesson for r in rulings if r.edit.op == "delete"}
    assert not gone & now.keys(), "an accepted deletion was not done"
    for ruling in rulings:
        done = ruling.lesson in gone or now.get(ruling.lesson) == one_line(ruling.edit.text)
        elsewhere = ruling.reason.startswith(("consolidated into", "says what"))
        assert ruling.edit.op in ("delete", "keep") or done or elsewhere, ruling

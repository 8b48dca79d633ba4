"""Reading replies: what models write around an action, an option, a vote, a letter or JSON, and what stays unreadable."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from learngraph.nodes.read_reply import (
    CutOff,
    Refusal,
    Unreadable,
    answer_text,
    find_action,
    nearest_actions,
    normal_form,
    read_action,
    read_letter,
    read_number,
    read_object,
    read_options,
    read_values,
    read_vote,
    visible_text,
)

ACTIONS = ("move north", "take coin", "look around")


# Actions

FORMS = [
    "Action: move north",
    '{"action": "move north"}',
    '```json\n{"thoughts": "the coin is \\"there\\"", "Action": "Move north"}\n```',
    "Action: move north 🚀",
    "✨ move north ✅",
    "**Action: move north**",
    "**Action:** move north",
    "Action: `move north`",
    'Action: "move north"',
    "Action: move north.",
    "Action: Move north",
    "Action: 'move north'",
    "action: move north",
    "- Action: move north",
    "Action: move north (to find the coin)",
    "ACTION: move north",
    "Action: > move north",
    "Action:\nmove north",
    "Action:\n\nmove north",
    "1. Action: move north",
    "<action>move north</action>",
    "Next action: move north",
    "Action: - move north",
    "Action: [move north]",
    "move north",
    "```\nAction: move north\n```",
    "Action: move north\n\nObservation: You move.\nAction: take coin",
    "Action: <answer>move north</answer>",
    "### Action: move north",
    "Action: move  north",
    "\\boxed{move north}",
    "Action: move north<|im_end|>",
    # What else models write
    "Action: “move north”",
    "Action: ‘Move North’.",
    "Action: 1. move north",
    "Action: **`move north`**",
    "* **Action**: move north",
    "Action: the move north",
    "Action:\n```\nmove north\n```",
    "Action:\n```text\nmove north\n```",
    "<think>Action: take coin? No.</think>Action: move north",
    "I was asked to think.</think>\nAction: move north",
    "<think>a</think>Well.<think>Action: take coin</think>\nAction: move north",
    "Action: move north\n<think>or take coin",
    "<THINK>take coin</THINK>**move north**",
    "<|channel|>analysis<|message|>Action: take coin<|end|><|start|>assistant<|channel|>final<|message|>Action: move north<|return|>",
    "Action: move north<|im_end|>\n<|im_start|>user\nAction: take coin",
    "Action: move north</s>",
    "Thought: the coin is there.\nAction 1: move north\nObservation 1: You are there.\nAction 2: take coin",
    "Action: move north — the coin must be there",
    "Action: move north because the coin is there.",
    "Final Action: `move north`.",
    "Action: ...\nAction: move north",
    "Let me think. I want the coin.\n\n- move north",
    "\\boxed{\\text{move north}}",
    "Action： move north",
    "__Action:__ _move north_",
    "Action:\u00a0move\u00a0north",
]


@pytest.mark.parametrize("reply", FORMS)
def test_every_way_to_write_an_action(reply: str) -> None:
    assert read_action(answer_text(AIMessage(reply)), ACTIONS) == ("move north", True)


@pytest.mark.parametrize(
    ("reply", "played"),
    [
        ("Action: `dig hole`.", "dig hole"),
        ("Action: - **dig  hole**", "dig hole"),
        ("Action: finish[Dr. No (film)]", "finish[Dr. No (film)]"),
        ("Action: 4 * (6 - 2)", "4 * (6 - 2)"),
        ("Action: -3 + 5", "-3 + 5"),
        ('Action: say "hello"', 'say "hello"'),
        ('Action: "hello" and "bye"', '"hello" and "bye"'),
        ("Action: 1.5 * 2", "1.5 * 2"),
        ("Action: 'open fridge 1'<|eot_id|>", "open fridge 1"),
        ("Action: dig hole\nObservation: a hole", "dig hole"),
    ],
)
def test_what_a_world_of_free_text_receives(reply: str, played: str) -> None:
    assert read_action(answer_text(AIMessage(reply))) == (played, False)


@pytest.mark.parametrize(
    "reply",
    ["I don't know", "Action:", "Action:\nMemory: yes", "Action: ...", "Action: <your action>", "move north\ntake coin", "?"],
)
def test_a_reply_without_one_action(reply: str) -> None:
    with pytest.raises(Unreadable, match="asked for a line 'Action"):
        read_action(reply, ACTIONS)


def test_the_same_spelling_goes_before_another_one() -> None:
    listed = ("look", "Look", "(look)", "[look]", "**look**")
    for action in listed:
        assert read_action(f"Action: {action}", listed) == (action, True)
    assert read_action("Action: `[look]`", listed) == ("[look]", True)
    with pytest.raises(Unreadable, match="'LOOK' may be 'look' or 'Look'"):
        read_action("Action: LOOK", listed)


def test_an_action_at_the_end_of_a_reply_that_was_cut_off_may_be_half_a_one() -> None:
    with pytest.raises(CutOff):
        read_action("Action: move north", ACTIONS, cut_off=True)
    assert read_action("Action: move north\nObservation: You", ACTIONS, cut_off=True) == ("move north", True)


def test_the_nearest_actions_are_those_that_were_probably_meant() -> None:
    listed = ("open small mailbox", "go north", "go south", "take lamp")
    assert nearest_actions("open mailbox", listed)[0] == "open small mailbox"
    assert nearest_actions("GO NORT", listed)[0] == "go north"
    assert nearest_actions("xyzzy", ("aaaa", "bbbb")) == []


WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=6), min_size=1, max_size=4)
DECORATIONS = st.sampled_from(
    [
        "{}",
        "**{}**",
        "*{}*",
        "`{}`",
        '"{}"',
        "'{}'",
        "“{}”",
        "‘{}’",
        "- {}",
        "* {}",
        "• {}",
        "1. {}",
        "{}.",
        "> {}",
        "  {}  ",
        "[{}]",
        "__{}__",
        "{} (it leads on)",
        "<action>{}</action>",
    ]
)
SPELLINGS = st.sampled_from([str, str.upper, str.title, lambda action: action.replace(" ", "  ")])
MARKS = st.sampled_from(
    ["Action: {}", "**Action:** {}", "**Action: {}**", "- Action: {}", "Action:\n{}", "```\nAction: {}\n```"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(WORDS.map(" ".join), min_size=1, max_size=8), st.lists(DECORATIONS, max_size=2), SPELLINGS, MARKS, st.randoms())
def test_an_admissible_action_comes_back_from_under_any_decoration(
    listed: list[str], decorations: list[str], spell: Any, mark: str, random: Any
) -> None:
    action = random.choice(listed)
    assume(len({normal_form(other) for other in listed}) == len(set(listed)))
    assume(normal_form(action))
    written = spell(action)
    for decoration in decorations:
        written = decoration.format(written)
    assert read_action(visible_text(mark.format(written)), tuple(dict.fromkeys(listed))) == (action, True)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=12), max_size=4))
def test_reading_raises_nothing_else(reply: str, listed: list[str]) -> None:
    for text in (reply, f"Action: {reply}", f"<think>{reply}", f'{{"options": [{reply}', f"**{reply}**"):
        shown = visible_text(text)
        assert "<think>" not in shown
        read_vote(text, "Memory")
        read_letter(text, listed)
        read_number(text)
        for read in (read_action, read_options):
            with suppress(Unreadable):
                read(shown, tuple(listed))


@settings(max_examples=100, deadline=None)
@given(WORDS.map(" ".join), SPELLINGS)
def test_an_action_that_may_be_two_is_refused(action: str, spell: Any) -> None:
    listed = (action, f"the {action}", f"{action}!")
    assume(" ".join(spell(action).split()) not in listed and normal_form(action))
    with pytest.raises(Unreadable, match=" may be "):
        find_action(spell(action), listed)


# The text of a reply


def test_thoughts_are_no_part_of_a_reply() -> None:
    assert visible_text("<think>one</think>two<thinking>three</thinking>four") == "twofour"
    assert visible_text("one</think>two</think>three") == "twothree"
    assert visible_text("one<think>two") == "one"
    assert visible_text("<think>" * 30_000 + "x") == ""
    assert visible_text(AIMessage([{"type": "reasoning", "reasoning": "x"}, {"type": "text", "text": "y"}])) == "y"


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            AIMessage("", additional_kwargs={"refusal": "I can't help."}),
            Refusal,
            r"the model refused to answer: \"I can't help.\"",
        ),
        (AIMessage([{"type": "refusal", "refusal": "No."}]), Refusal, "refused to answer: 'No.'"),
        (AIMessage("half", response_metadata={"finish_reason": "content_filter"}), Refusal, "content filter"),
        (AIMessage("<think>Action: go"), CutOff, "was cut off, before an answer"),
        (
            AIMessage(
                "",
                response_metadata={"finish_reason": "length"},
                usage_metadata={"input_tokens": 1, "output_tokens": 64, "total_tokens": 65},
            ),
            CutOff,
            "cut off after 64 tokens, before an answer; think shorter",
        ),
        (AIMessage("", response_metadata={"stop_reason": "max_tokens"}), CutOff, "cut off"),
        (AIMessage("<think>done</think> "), Unreadable, "got an empty reply"),
        (AIMessage("<|im_end|>"), Unreadable, "got an empty reply"),
    ],
)
def test_a_reply_that_is_no_answer_says_what_came(reply: AIMessage, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        answer_text(reply)


# Options

TWO = {"move north": 60.0, "take coin": 40.0}


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ('{"options": [{"action": "move north", "confidence": 60}, {"action": "take coin", "confidence": 40}]}', TWO),
        ('{"options": [{"action": "move north", "confidence": 60}, {"action": "take the coin", "confidence": 40}]}', TWO),
        ('{"options": [{"action": "Move north.", "confidence": "60%"}, {"action": "take coin", "confidence": "40 %"}]}', TWO),
        ('{"options": [{"action": "- move north", "confidence": "60"}, {"action": "`take coin`", "confidence": 40.0}]}', TWO),
        ('{"options": {"move north": 60, "take coin": 40}}', TWO),
        ('[{"action": "move north", "confidence": 60}, {"action": "take coin", "confidence": 40}]', TWO),
        ('{"options": [{"action": "move north", "confidence": 60}, {"action": "take coin", "confidence": 40},]}', TWO),
        ("{'options': [{'action': 'move north', 'confidence': 60}, {'action': 'take coin', 'confidence': 40}]}", TWO),
        ('{"options": [{"action": "move north", "confidence": 60}, {"action": "take coin", "confidence": 40}', TWO),
        ('{"Options": [{"Action": "move north", "Confidence": 60}, {"Action": "take coin", "Confidence": 40}]}', TWO),
        (
            '```json\n{"options": [{"action": "move north", "confidence": 60}, {"action": "take coin", "confidence": 40}]}\n```',
            TWO,
        ),
        (
            '{"options": [{"action": "move north", "confidence": 60}, {"action": "take coin", "probability": 40}]} or {anything}',
            TWO,
        ),
        (
            '{"options": [{"action": "fly", "confidence": 50}, {"action": "move north", "confidence": 60}, {"confidence": 3}]}',
            {"move north": 60.0},
        ),
        (
            '{"options": [{"action": "move north", "confidence": 110}, {"action": "take coin", "confidence": 0.4}]}',
            {"take coin": 0.4},
        ),
        ('{"action": "move north", "confidence": 60}', {"move north": 60.0}),
    ],
)
def test_every_way_to_write_options(reply: str, options: dict[str, float]) -> None:
    assert read_options(reply, ACTIONS).confidences == options


def test_options_of_a_world_without_a_list_are_cleaned() -> None:
    assert read_options('{"options": [{"action": "- `dig hole`.", "confidence": ".6"}]}').confidences == {"dig hole": 0.6}


# Votes, letters, numbers, JSON


@pytest.mark.parametrize(
    ("vote", "read"),
    [
        *(
            (word, True)
            for word in (
                "yes",
                "Yes.",
                "yes, because it is dark",
                "yes (stuck)",
                "[yes]",
                '"yes"',
                "**Yes**",
                "- yes",
                "true",
                "_yes_",
            )
        ),
        *((word, False) for word in ("no", "No: the way is plain", "(no)", "`no`", "FALSE")),
        *((word, None) for word in ("maybe", "yes or no", "no/yes", "nothing", "not now", "yesterday", "")),
    ],
)
@pytest.mark.parametrize("line", ["Memory: {}", "**Memory:** {}", "- memory : {}"])
def test_votes(line: str, vote: str, read: bool | None) -> None:
    assert read_vote(f"Action: wait\n{line.format(vote)}", "Memory") is read


def test_the_first_vote_that_can_be_read_counts() -> None:
    assert read_vote("Memory: yes or no?\nMemory: no\nObservation: x\nMemory: yes", "Memory") is False


@pytest.mark.parametrize(
    "reply",
    ["B", "b", "B.", "(B)", "B)", "**B**", " B", "B. take coin", "B) Take coin.", "Option B", "Answer: B", "\\boxed{B}", "`B`"],
)
def test_letters(reply: str) -> None:
    assert read_letter(reply, ACTIONS) == "B"


@pytest.mark.parametrize(
    "reply", ["", "D", "AB", "I think B.", "A sensible move is B", "B. move north", "A or B", "B. because"]
)
def test_what_is_no_letter(reply: str) -> None:
    assert read_letter(reply, ACTIONS) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0), (0.5, 0.5), ("60%", 60.0), ("70 %", 70.0), ("0,5", 0.5), (" -2 ", -2.0), (True, None), (None, None), ("many", None),
        (float("nan"), None), (10**400, None), ("1" + "0" * 400, None), ([1], None), ("", None),
    ],
)  # fmt: skip
def test_numbers(value: Any, number: float | None) -> None:
    assert read_number(value) == number


def test_json_is_found_by_the_name_of_its_field() -> None:
    assert read_object('{"score": 3} and {"other": 4}', "score")["score"] == 3
    assert read_object("first {'Score': 2,} then {\"score\": 7}", "score")["score"] == 7
    assert read_values('{"rewards": [1, 2]} [3]', "rewards") == [1, 2]
    assert read_values("so: [1, 2]", "rewards") == [1, 2]
    assert read_values('{"score": 3}', "rewards") is None
    for read in (read_object, read_values):
        with pytest.raises(Unreadable, match="asked for a JSON object, got 'nothing'"):
            read("nothing", "score")

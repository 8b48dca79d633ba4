"""Writing with given endings: the rule, the sentences and the reader."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.records import Task
from learngraph.tools.environments import writing
from learngraph.tools.environments.tree_of_thoughts import tree_of_thoughts_file
from learngraph.tools.environments.writing import Writing, check_endings

PUBLISHED = tree_of_thoughts_file("text/data_100_random_text.txt")
needs_file = pytest.mark.skipif(PUBLISHED is None, reason="NOT TESTED: pip install --no-deps tree-of-thoughts-llm")
ENV = Writing({"source": "own"})
TASK = ENV.task(0)
FOUR = ("It rained.", "She said “no”.", "The cat – a grey one – slept.", "He isn't here!")
START = "These are words that come before it: "
GOOD = [START + sentence for sentence in FOUR]


def test_the_rule_by_hand() -> None:
    assert check_endings("\n\n".join(GOOD), FOUR) == (True, True, True, True)
    assert check_endings("\n\n".join([GOOD[1], GOOD[0], GOOD[2], START]), FOUR) == (False, False, True, False)
    assert check_endings("", FOUR) == ()
    assert check_endings("\n\n".join(GOOD[:2]), FOUR) == (True, True)
    assert check_endings("\n\n".join([*GOOD, "And more."]), FOUR) == (True, True, True, True, False)


@pytest.mark.parametrize(
    ("paragraph", "right"),
    [
        (START + "It rained.", True),
        (START + "it RAINED.", True),
        (START + "It\n  rained. ", True),
        (START + "“It rained.", True),
        (START + "It rained", False),
        (START + "It rained!", False),
        (START + "It rained. Then the sun came out.", False),
        (START + "It never rained.", False),
        (START + "bIt rained.", False),
        ("Four words before it: It rained.", False),
        ("There are five words before: It rained.", True),
        ("It rained.", False),
        ("", False),
    ],
)
def test_what_ends_a_paragraph(paragraph: str, right: bool) -> None:
    assert check_endings("\n\n".join([paragraph or "-", *GOOD[1:]]), FOUR) == (right, True, True, True)


@pytest.mark.parametrize(
    ("passage", "count"),
    [
        ("\n\n".join(GOOD), 4),
        ("\r\n\r\n".join(GOOD), 4),
        ("\n \t\n\n\n".join(GOOD), 4),
        ("\n".join(GOOD), 4),
        ("\n\n" + "\n\n".join(GOOD) + "\n\n\n", 4),
        ("\n\n".join(GOOD).replace("words ", "words\n"), 4),
        (" ".join(GOOD), 1),
        ("\n\n".join(["Title", *GOOD]), 5),
    ],
)
def test_how_paragraphs_are_counted(passage: str, count: int) -> None:
    right = check_endings(passage, FOUR)
    assert len(right) == count
    assert all(right) == (count == 4)


def test_quotation_marks_and_dashes_of_any_kind() -> None:
    passage = "\n\n".join(GOOD).replace("“", '"').replace("”", '"').replace("–", "-").replace("'", "’")
    assert check_endings(passage, FOUR) == (True, True, True, True)


@pytest.mark.parametrize(
    "ending",
    [
        "**{}**",
        "*{}*",
        "_{}_",
        "__{}__",
        "***{}***",
        '"{}"',
        "“{}”",
        "'{}'",
        "«{}»",
        "<b>{}</b>",
        "`{}`",
        "**“{}”**",
        "“**{}**”",
    ],
)
def test_an_ending_in_bold_italics_or_quotation_marks_is_the_same_ending(ending: str) -> None:
    passage = "\n\n".join(START + ending.format(sentence) for sentence in FOUR)
    assert check_endings(passage, FOUR) == (True, True, True, True)
    outside = "\n\n".join(START + ending.format(sentence[:-1]) + sentence[-1] for sentence in FOUR)
    assert check_endings(outside, FOUR) == (True, True, True, True)
    assert check_endings(passage.replace("rained", "snowed"), FOUR) == (False, True, True, True)
    other = "\n\n".join(START + ending.format(sentence) + " And more." for sentence in FOUR)
    assert check_endings(other, FOUR) == (False, False, False, False)


def test_an_episode() -> None:
    start = ENV.observe(TASK, ())
    sentences = ENV.sentences(TASK)
    assert start.text.splitlines()[1:] == [f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1)]
    assert (start.over, start.actions) == (False, ())
    assert all(sentence in TASK.instruction for sentence in sentences)
    assert ENV.abstract(start).startswith("end with: " + " ".join(sentences[0].split()[:4]) + " / ")
    for kept in range(5):
        passage = "\n\n".join(START + (s if n < kept else "something else.") for n, s in enumerate(sentences))
        end = ENV.observe(TASK, [passage])
        assert (end.reward, end.over, end.actions) == (kept / 4, True, ())
        assert end.text.startswith(f"of the four paragraphs {kept} end with their sentence")
        assert ENV.verify(TASK, [passage]) == [kept / 4]
    assert ENV.verify(TASK, []) == []


def test_another_number_of_paragraphs_scores_0() -> None:
    (gold,) = ENV.gold(TASK)
    for passage, count in (("Title\n\n" + gold, 5), (gold.replace("\n\n", " "), 1), (gold.rpartition("\n\n")[0], 3)):
        end = ENV.observe(TASK, [passage])
        assert (end.text, end.reward) == (f"the passage has {count} paragraphs, four are asked for", 0.0)


# Sentences


def test_our_sentences_are_distinct_and_plain() -> None:
    lines = Path(writing.__file__).with_name("writing.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len({line.casefold() for line in lines}) == 90
    for line in lines:
        assert re.fullmatch(r"[A-Z][A-Za-z ,'-]+\.", line), line
        assert 6 <= len(line.split()) <= 15
    # None ends with another: an ending must not be right twice.
    assert not [(a, b) for a in lines for b in lines if a != b and a.casefold().endswith(b.casefold())]


def test_splits_share_no_sentence() -> None:
    drawn = {s: {x for n in range(60) for x in ENV.sentences(ENV.task(n, s))} for s in ("train", "dev", "test")}
    assert {split: len(found) for split, found in drawn.items()} == {"train": 36, "dev": 18, "test": 36}
    assert not drawn["train"] & drawn["dev"]
    assert not drawn["test"] & (drawn["train"] | drawn["dev"])
    assert all(len(set(ENV.sentences(ENV.task(n)))) == 4 for n in range(60))
    assert len({ENV.sentences(ENV.task(n)) for n in range(200)}) == 200


def test_what_a_seed_draws_stays_the_same() -> None:
    assert ENV.sentences(TASK)[0] == "Two magpies were arguing over a piece of foil."
    with pytest.raises(UserError, match="count from 0, got -1"):
        ENV.task(-1)
    with pytest.raises(UserError, match="no split 'exam'"):
        ENV.task(0, "exam")


def test_a_file_of_quadruples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.txt"
    path.write_text('One is. Two "are." Is three? Four!\n\nToo few. Here.\nA. B. C. D.\n', encoding="utf-8")
    monkeypatch.setattr(writing, "tree_of_thoughts_file", lambda name: path)
    env = Writing()
    assert env.name == "writing?source=published"
    assert env.rows == [("One is.", 'Two "are."', "Is three?", "Four!"), ("A.", "B.", "C.", "D.")]
    assert env.sentences(env.task(1)) == ("A.", "B.", "C.", "D.")
    assert env.sentences(env.task(5, "train")) == ENV.sentences(ENV.task(5, "train"))
    with pytest.raises(UserError, match="test has tasks 0 to 1, got 2"):
        env.task(2)
    with pytest.raises(UserError, match="has no task"):
        env.sentences(Task("writing-test-9", "", 27))


@needs_file
def test_the_published_sentences() -> None:
    env = Writing()
    assert env.name == "writing?source=published"
    assert len(env.rows) == 95
    assert env.sentences(env.task(0))[1] == "It caught him off guard that space smelled of seared steak."
    ours = {s for split in ("train", "dev") for n in range(60) for s in env.sentences(env.task(n, split))}
    assert not ours & {sentence for row in env.rows for sentence in row}
    for n in range(95):
        assert env.observe(env.task(n), env.gold(env.task(n))).reward == 1.0


@pytest.mark.skipif(PUBLISHED is not None, reason="the package is installed")
def test_without_the_package_ours_are_used() -> None:
    assert Writing().name == "writing?source=own"
    with pytest.raises(UserError, match="pip install --no-deps tree-of-thoughts-llm"):
        Writing({"source": "published"})


# Written answers


@pytest.mark.parametrize(
    ("reply", "passage"),
    [
        ("Plan: a, b\nPassage:\nOne.\n\nTwo.", "One.\n\nTwo."),
        ("PASSAGE: One.\n\nTwo.\n", "One.\n\nTwo."),
        ("**Plan:** x\n\n**Passage:** One.\n\nTwo.", "One.\n\nTwo."),
        ("## Passage:\n\nOne.", "One."),
        ("<answer>\nPassage:\nOne.\n\nTwo.\n</answer>\n", "One.\n\nTwo."),
        ("Passage: old one\n\nPassage: new one", "new one"),
        ("Here is my passage:\n\nOne.\n\nTwo.", "One.\n\nTwo."),
        ("Passage:\n```text\nOne.\n\nTwo.\n```", "One.\n\nTwo."),
        ("One.\n\nTwo.", "One.\n\nTwo."),
        ("She read the passage: it was short.", "She read the passage: it was short."),
        ("Passage:", "Passage:"),
        ("", ""),
    ],
)
def test_reading_a_written_answer(reply: str, passage: str) -> None:
    assert ENV.read(reply) == (passage,)


PIECES = st.sampled_from(
    ("Passage:", "passage: ", "\n", "\n\n", "\r", " ", "word", "<a>", "</a>", "```", "**", "“", "\u2028", *FOUR)
)
TEXTS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=25).map("".join))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TEXTS)
def test_no_text_raises(text: str) -> None:
    (passage,) = ENV.read(text)
    assert passage in text
    for action in (text, passage):
        end = ENV.observe(TASK, [action])
        assert end.over
        assert end.text == ENV.abstract(end)
        assert [end.reward] == ENV.verify(TASK, [action])
        assert (end.reward is None) == (not action.strip())


@pytest.mark.parametrize("part", ["\n", "Passage:", "<a", "</a>", " ", "*", "word ", "Passage:\n<a>"])
def test_long_texts_are_read_in_linear_time(part: str) -> None:
    """A text of a quarter of a million characters takes 10 ms or so; with a quadratic pattern it would take minutes."""
    text = part * (250_000 // len(part))
    end = ENV.observe(TASK, ENV.read(text))
    assert end.over
    assert not end.reward

"""Questions over passages: the file, search and lookup by hand, right and wrong answers, and what damaged files say."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation
from learngraph.tools.environments.passages import HELP, Passages
from learngraph.tools.environments.questions import OWN_QUESTIONS
from learngraph.tools.environments.support.ranking import Ranking, words

FOX = ["The fox is red.", "It sleeps by day.", "A Fox eats beetles.", "Its den is dry."]
OWL = ["The owl is grey.", "It hunts the fox."]
PEAR = ["A pear is a fruit."]
SMALL = {
    "_id": "a1",
    "type": "bridge",
    "question": "What does the animal that the owl hunts eat?",
    "answer": "The Beetles!",
    "supporting_facts": [["Grey owl", 1], ["Red fox", 2], ["Red fox", 0]],
    "context": [["Red fox", FOX], ["Pear", PEAR], ["Grey owl", OWL]],
}


def written(tmp_path: Path, *items: Any, name: str = "small.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in items), encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path: Path) -> Passages:
    return Passages({"file": str(written(tmp_path, SMALL)), "split": "test"})


def texts(env: Passages, actions: Sequence[str]) -> list[str]:
    """What is shown after each action, above what can be done."""
    task = env.task(0)
    return [env.observe(task, actions[:n]).text.removesuffix(HELP) for n in range(1, len(actions) + 1)]


# The actions


def test_search_shows_the_best_passages_and_opens_the_first(small: Passages) -> None:
    shown = small.observe(small.task(0), ["search[fruit]"])
    assert shown == Observation("Pear: A pear is a fruit." + HELP, (), 0.0, False)
    # Both have the word; the title is just what was asked in one of them.
    assert texts(small, ["search[the red FOX]"]) == [
        "Red fox: The fox is red. It sleeps by day.\nGrey owl: The owl is grey. It hunts the fox."
    ]
    assert texts(small, ["search[grey owl]", "lookup[hunts]"])[-1] == "Grey owl (1 of 1): It hunts the fox."
    assert texts(small, ["search[zebra]"]) == ["nothing found for 'zebra'"]


def test_lookup_goes_through_the_sentences_and_begins_again(small: Passages) -> None:
    assert texts(small, ["lookup[fox]"]) == ["no passage is open: search first"]
    seen = texts(small, ["search[red fox]", *["lookup[FOX]"] * 3, "lookup[den]", "lookup[fox]", "lookup[whale]"])
    assert seen[1:] == [
        "Red fox (1 of 2): The fox is red.",
        "Red fox (2 of 2): A Fox eats beetles.",
        "Red fox: no more sentence with 'fox'",
        "Red fox (1 of 1): Its den is dry.",
        "Red fox (1 of 2): The fox is red.",
        "Red fox: no sentence with 'whale'",
    ]
    # Another search begins anew, and a search that finds nothing closes the passage.
    assert texts(small, ["search[red fox]", "lookup[fox]", "search[red fox]", "lookup[fox]"])[-1].startswith("Red fox (1 of 2)")
    assert texts(small, ["search[red fox]", "search[zebra]", "lookup[fox]"])[-1] == "no passage is open: search first"


def test_what_cannot_be_read_keeps_the_place(small: Passages) -> None:
    seen = texts(small, ["search[red fox]", "lookup[fox]", "go home", "search[]", "lookup[fox]"])
    assert seen[2] == seen[3] == "this cannot be read: an action is search[words], lookup[word] or finish[answer]"
    assert seen[4] == "Red fox (2 of 2): A Fox eats beetles."


@pytest.mark.parametrize("action", ["finish[beetles]", "Finish[ the  BEETLES ]", "finish [beetles].", "finish[beetles\n]"])
def test_a_right_answer_ends_it_with_1(small: Passages, action: str) -> None:
    assert small.observe(small.task(0), ["search[fox]", action]) == Observation("right", (), 1.0, True)


def test_a_wrong_answer_ends_it_with_0_and_tells_nothing(small: Passages) -> None:
    assert small.observe(small.task(0), ["finish[pears]"]) == Observation("wrong", (), 0.0, True)
    with pytest.raises(UserError, match="hotpot-test-0 was over after 1 step, got one more action: 'search\\[fox\\]'"):
        small.observe(small.task(0), ["finish[pears]", "search[fox]"])


def test_gold_and_horizon(tmp_path: Path) -> None:
    path = str(written(tmp_path, SMALL))
    env = Passages({"file": path, "split": "test"})
    gold = ("search[Grey owl]", "search[Red fox]", "finish[The Beetles!]")
    assert env.gold(env.task(0)) == gold
    assert env.observe(env.task(0), gold).reward == 1
    short = Passages({"file": path, "split": "test"}, horizon=2)
    assert short.gold(short.task(0)) == (gold[0], gold[2])
    last = short.observe(short.task(0), ["search[fox]", "search[owl]"])
    assert (last.over, last.reward) == (True, 0.0)


# Our file


def test_our_file_is_consistent() -> None:
    env = Passages()
    # Its comparisons were worked out a second time: git show be7e170e:tests/tools/environments/test_passages.py
    assert sha256(OWN_QUESTIONS.read_bytes()).hexdigest()[:16] == "d2742a963f1bf741"
    assert env.name == "hotpot"
    kinds = [question.kind for question in env.questions]
    assert (len(kinds), kinds.count("bridge"), kinds.count("comparison")) == (75, 50, 25)
    assert len({question.text for question in env.questions}) == len({question.id for question in env.questions}) == 75
    assert len(env.passages) == len({passage.title for passage in env.passages}) == 133
    by_title = {passage.title: " ".join(passage.sentences) for passage in env.passages}
    for question in env.questions:
        first, second = question.titles
        assert first in question.text or first.removeprefix("River ") in question.text
        if question.kind == "bridge":  # the first passage names the second, which alone has the answer
            assert second not in question.text
            assert second in by_title[first]
            assert question.answer in by_title[second]
        else:
            assert second in question.text
            assert question.answer in ("yes", "no", first, second)


def test_splits_share_no_question() -> None:
    env = Passages()
    drawn = [env.task(n, split) for split, count in (("test", 30), ("dev", 15), ("train", 30)) for n in range(count)]
    assert len({task.seed for task in drawn}) == len({task.instruction for task in drawn}) == 75
    whole = Passages({"split": "dev"})
    assert [whole.task(n, "dev").seed for n in range(75)] == [*range(75)]
    assert whole.name == "hotpot?split=dev"


# Files of others


def test_a_list_is_read_as_lines_are_and_a_passage_counts_once(tmp_path: Path) -> None:
    again = SMALL | {"_id": "a2", "question": "Is a pear a fruit?", "answer": "yes", "supporting_facts": [["Pear", 0]]}
    other = again | {"_id": "a3", "context": [["Pear", ["A pear is green."]]], "question": "Which fruit is green?"}
    lines = Passages({"file": str(written(tmp_path, SMALL, again, "", other)), "split": "test"})
    listed = Passages(
        {
            "file": str(written(tmp_path, "\ufeff" + json.dumps([SMALL, again, other], indent=1), name="small.json")),
            "split": "test",
        }
    )
    assert lines.passages == listed.passages
    assert lines.questions == listed.questions
    assert lines.name == listed.name
    # The same title with another text is another passage; the first of them answers to the title.
    assert [passage.title for passage in lines.passages] == ["Red fox", "Pear", "Grey owl", "Pear"]
    assert texts(lines, ["search[pear]"])[0].startswith("Pear: A pear is a fruit.\nPear: A pear is green.")
    assert [question.id for question in lines.questions] == ["a1", "a2", "a3"]


def test_a_file_without_supporting_facts_has_a_short_gold_path(tmp_path: Path) -> None:
    bare = {key: SMALL[key] for key in ("question", "answer", "context")}
    env = Passages({"file": str(written(tmp_path, bare)), "split": "test"})
    assert env.gold(env.task(0)) == ("finish[The Beetles!]",)


def changed(**fields: Any) -> Mapping[str, Any]:
    return SMALL | fields


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"question": ', r"line 2 is no JSON: .*expected is HotpotQA's layout"),
        ("[1, 2]", r"line 2 has another layout \(TypeError"),
        ({"question": "Why?"}, r"line 2 has another layout \(KeyError: 'answer'\)"),
        (changed(question=""), r"line 2 has no question"),
        (changed(answer="The."), r"line 2 has no question, or nothing of the answer 'The\.'"),
        (changed(context=[]), r"line 2 has no passage"),
        (changed(context=[["Pear", "A pear."]]), r"sentences are a list, got 'A pear\.'"),
        (changed(context=[["Pear", ["A pear.", 3]]]), r"line 2 has another layout \(AttributeError"),
        (changed(context=[["", ["A pear."]]]), r"line 2 has no passage, or one without title"),
        (changed(supporting_facts=[["Plum", 0]]), r"line 2 has no passage of one of the supporting titles Plum"),
        (changed(supporting_facts="Pear"), r"line 2 has another layout \(ValueError"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = written(tmp_path, SMALL, line)
    with pytest.raises(UserError, match=said) as raised:
        Passages({"file": str(path)})
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl: .*No such file"):
        Passages({"file": str(tmp_path / "none.jsonl")})
    with pytest.raises(UserError, match=r"small\.jsonl is empty; expected is"):
        Passages({"file": str(written(tmp_path, ""))})
    with pytest.raises(UserError, match=r"cut\.json line 5 is no JSON"):
        Passages({"file": str(written(tmp_path, json.dumps([SMALL, SMALL], indent=1)[:40], name="cut.json"))})
    with pytest.raises(UserError, match=r"list\.json item 2 has another layout"):
        Passages({"file": str(written(tmp_path, json.dumps([SMALL, None]), name="list.json"))})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"cannot read .*bytes"):
        Passages({"file": str(tmp_path / "bytes")})


# The ranking


def bm25(texts_: Sequence[str], query: str) -> list[float]:
    """Lucene's BM25, from its formula."""
    parted = [words(text) for text in texts_]
    mean = sum(map(len, parted)) / len(parted)
    scores = []
    for text in parted:
        score = 0.0
        for word in dict.fromkeys(words(query)):
            have = sum(word in other for other in parted)
            count = text.count(word)
            idf = math.log(1 + (len(parted) - have + 0.5) / (have + 0.5))
            score += idf * count / (count + 1.5 * (0.25 + 0.75 * len(text) / mean))
        scores.append(score)
    return scores


def test_search_equals_the_formula() -> None:
    draw = random.Random("bm25")
    vocabulary = ["ash", "elm", "oak", "fir", "yew", "fig", "box", "bay"]
    texts_ = [" ".join(draw.choices(vocabulary, range(1, 9), k=draw.randint(1, 30))) for _ in range(60)]
    index = Ranking(texts_, "test")
    for _ in range(40):
        query = " ".join(draw.choices([*vocabulary, "unknown"], k=draw.randint(1, 4)))
        scores = bm25(texts_, query)
        order = sorted((n for n in range(60) if scores[n] > 0), key=lambda n: (-round(scores[n], 9), n))
        assert index.top_places(query, 60) == order
        assert index.top_places(query, 3) == order[:3]


def test_ties_go_to_the_earlier_text() -> None:
    index = Ranking(["b a", "c", "a b", "A, b!"], "test")
    assert index.top_places("a", 9) == [0, 2, 3]
    assert index.top_places("a a b", 2) == index.top_places("b a", 2) == [0, 2]
    assert index.top_places("", 9) == index.top_places("zebra ?!", 9) == []
    assert Ranking([], "test").top_places("a", 9) == Ranking(["?!"], "test").top_places("a", 9) == []

"""Recorded runs in the studio: what the files say is shown, and what they do not say is a sentence."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from studio_runs import play_run, write_long_run, write_settings, write_steps

from learngraph.graphs.experiments.replay import step_from
from learngraph.graphs.studio.run_view import FolderView
from learngraph.graphs.studio.shown_values import MAX_ROWS, MAX_TEXT, decision_bars, show_value
from learngraph.graphs.studio.studio import Studio
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Task
from learngraph.memory.storage.journal import Journal


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play_run(tmp_path_factory.mktemp("studio") / "mine")


def test_a_run_shows_its_episodes_and_steps(played: Path) -> None:
    folder = FolderView(played)
    assert folder.folder.names() == ["jitrl-s0"]
    run = folder.run("jitrl-s0")
    seen = run.overview()
    rows = [json.loads(line) for line in (played / "jitrl-s0" / "steps.jsonl").read_text().splitlines()]
    first = [row for row in rows if row["episode"] == 0]
    assert (seen["title"], seen["steps"], seen["problems"]) == ("jitrl, seed 0", len(rows), [])
    (listed,) = folder.list_runs()["runs"]
    scored = [json.loads(line)["score"] for line in (played / "jitrl-s0" / "episodes.jsonl").read_text().splitlines()]
    assert (listed["scores"], listed["score"], listed["success"]) == (scored, sum(scored) / len(scored), None)
    assert (seen["branches"][0]["name"], seen["branches"][0]["count"]) == ("episode 0", len(first))
    lines = run.moments("0", 0, 500)
    assert [row["title"] for row in lines["rows"]] == [row["action"] for row in first]
    moment = run.moment("0", 2)
    assert moment["decision"]["chosen"] == first[2]["action"]
    assert {bar["action"] for bar in moment["decision"]["bars"]} == {one["action"] for one in first[2]["candidates"]}
    assert run.moment("0", len(first) - 1)["memory"]["written"] == [
        f"The episode is over: its {len(first)} steps go to memory."
    ]


def test_a_run_shows_the_model_that_it_asks(tmp_path: Path) -> None:
    here = write_settings(tmp_path, random={}, tabular={}, icrl={}, reflexion={}, gone={})
    settings = json.loads((here / "settings.json").read_text())
    for method in settings["methods"]:
        (here / f"{method}-s0").mkdir()
        write_steps(Journal(here / f"{method}-s0" / "steps.jsonl"), 0, 1)
    for prior, shown in {"model": "pocket", "uniform": "uniform"}.items():
        (here / "settings.json").write_text(json.dumps(settings | {"prior": prior, "model": "pocket"}))
        asked = {one["title"].partition(",")[0]: one["model"] for one in FolderView(here).list_runs()["runs"]}
        assert asked == {"random": "–", "tabular": "–", "icrl": shown, "reflexion": "pocket", "gone": "–"}


@pytest.mark.parametrize("method", ["jitrl", "static", "icrl"])
def test_a_step_of_any_method_can_be_explained(method: str, tmp_path: Path) -> None:
    here = write_settings(tmp_path / "mine", **{method: {}}) / f"{method}-s0"
    here.mkdir()
    write_steps(Journal(here / "steps.jsonl"), 0, 3)
    run = FolderView(tmp_path / "mine").run(f"{method}-s0")
    assert run.moment("0", 1)["can_explain"]
    assert "'go south'" in " ".join(run.explain("0", 1)["sentences"])
    (tmp_path / "mine" / "settings.json").unlink()  # without it, nobody knows whose run it was
    assert not FolderView(tmp_path / "mine").run(f"{method}-s0").moment("0", 1)["can_explain"]


def test_what_only_the_model_of_a_run_knows_is_not_drawn(tmp_path: Path) -> None:
    """The tokens of its window, of which a graph that is only looked at knows nothing."""
    here = write_settings(tmp_path / "mine", icrl={"last_n": 7}) / "icrl-s0"
    here.mkdir()
    write_steps(Journal(here / "steps.jsonl"), 0, 3)
    boxes = FolderView(tmp_path / "mine").run("icrl-s0").overview()["graphs"][""]["nodes"]
    (settings,) = [box["settings"] for box in boxes if box["name"] == "compose"]
    assert "last = 7" in settings
    assert not [line for line in settings if line.startswith("window")]


def test_one_run_of_a_folder_may_be_named(played: Path) -> None:
    assert FolderView(played / "jitrl-s0").folder.names() == ["jitrl-s0"]


def test_wrong_names_are_sentences(played: Path, tmp_path: Path) -> None:
    run = FolderView(played).run("jitrl-s0")
    with pytest.raises(UserError, match="has no run 'other'; it has jitrl-s0"):
        FolderView(played).run("other")
    for branch in ("9", "-1", "x", "²"):
        with pytest.raises(UserError, match="has no episode"):
            run.moments(branch, 0, 10)
    for number, shown in ((2.0, "2\\.0"), ("3", "'3'")):
        with pytest.raises(UserError, match=f"episode 0 of .* has no step {shown}; it has 0 to"):
            step_from(played, cast(Any, number), episode=0)
    with pytest.raises(UserError, match="episode 0 has no step 999"):
        run.moment("0", 999)
    with pytest.raises(UserError, match="does not exist"):
        FolderView(tmp_path / "nothing")
    studio = Studio("runs", folders=[FolderView(played)])
    for view in ("run/1/jitrl-s0", "run/x/jitrl-s0", "walk", "run/0/../x", ""):
        with pytest.raises(UserError):
            studio.answer("overview", {"view": view})
    with pytest.raises(UserError, match="overview: the question cannot be read"):
        studio.answer("overview", {"look": 1})
    with pytest.raises(UserError, match="asked for a whole number, got 'x'"):
        studio.answer("moment", {"view": "run/0/jitrl-s0", "branch": "0", "number": "x"})
    with pytest.raises(LookupError):
        studio.answer("delete", {})


def test_a_run_that_is_being_written_is_followed(tmp_path: Path) -> None:
    folder = FolderView(write_settings(tmp_path / "growing"))
    assert folder.list_runs()["problems"] == [
        f"{tmp_path / 'growing'} has no steps yet. They appear here when the run has begun."
    ]
    here = tmp_path / "growing" / "jitrl-s0"
    here.mkdir()
    journal = Journal(here / "steps.jsonl")
    head = write_steps(journal, 0, 3, over=False)
    run = folder.run("jitrl-s0")
    first = run.overview()
    assert (first["steps"], first["state"], first["branches"][0]["note"]) == (3, "not finished", "not over")
    write_steps(journal, 0, 2, head=head, first=3)
    with (here / "steps.jsonl").open("ab") as file:
        file.write(b'{"id": "half')
    second = run.overview()
    assert (second["steps"], second["problems"], second["version"] != first["version"]) == (5, [], True)
    assert run.moments("0", 3, 10)["rows"][-1]["title"] == "go north"
    studio = Studio("runs", folders=[folder])
    assert studio.answer("overview", {"view": "run/0/jitrl-s0", "version": second["version"]}) == {"same": True}


def test_steps_written_again_after_a_power_cut_take_the_place_of_the_lost_ones(tmp_path: Path) -> None:
    folder = write_long_run(tmp_path / "cut", 4)
    run = FolderView(folder).run("jitrl-s0")
    assert run.overview()["branches"][0]["count"] == 4
    path = folder / "jitrl-s0" / "steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert run.overview()["branches"][0]["count"] == 2


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("settings.json", b"{", "is damaged"),
        ("settings.json", None, "has no settings.json"),
        ("settings.json", b'{"env": "toy", "seeds": [0], "methods": {"gone": {}}}', "The graph of jitrl"),
        ("jitrl-s0/steps.jsonl", b'nonsense\n{"id": 1}\n[]\n', "3 lines of jitrl-s0/steps.jsonl are damaged"),
        ("jitrl-s0/episodes.jsonl", b"\xff\xfe\n", "1 lines of jitrl-s0/episodes.jsonl are damaged"),
    ],
)
def test_a_damaged_folder_is_a_sentence_and_the_rest_is_shown(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    folder = play_run(tmp_path / "damaged", episodes=1)
    path = folder / file
    if content is None:
        path.unlink()
    elif file.endswith("steps.jsonl"):
        path.write_bytes(content + path.read_bytes())
    else:
        path.write_bytes(content)
    opened = FolderView(folder)
    listed, run = opened.list_runs(), opened.run("jitrl-s0")
    seen, moment = run.overview(), run.moment("0", 0)
    sentences = [*listed["problems"], *seen["problems"], *moment["problems"]]
    if "gone" not in str(content):
        assert [one for one in sentences if said in one], sentences
    assert moment["decision"]["bars"]
    assert moment["title"].startswith("step 0: ")


def test_a_folder_whose_files_cannot_be_read_at_all(tmp_path: Path) -> None:
    here = write_settings(tmp_path / "odd") / "jitrl-s0"
    (here / "steps.jsonl").mkdir(parents=True)
    seen = FolderView(tmp_path / "odd").run("jitrl-s0").overview()
    assert seen["problems"] == ["jitrl-s0/steps.jsonl cannot be read: Is a directory."]
    assert seen["branches"] == []


# Values


class Secretive:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


def test_values_of_any_size_and_kind_are_shown_within_bounds() -> None:
    table = show_value([Candidate("a", -1.0), Candidate("b", -2.0)])
    assert table["table"] == {"head": ["action", "logit", "source"], "rows": [["a", "-1", "policy"], ["b", "-2", "policy"]]}
    assert [one["name"] for one in show_value(Task("t", "go", 3))["items"]] == ["id", "instruction", "seed"]
    said = show_value([HumanMessage("It broke"), AIMessage("", tool_calls=[{"name": "resolve", "args": {}, "id": "1"}])])
    assert (said["line"], said["open"]) == ("2 messages, the last: ai -> resolve()", True)
    assert [one["line"] for one in said["items"]] == ["human: It broke", "ai -> resolve()"]
    many = show_value(list(range(1000)))
    assert (many["line"], len(many["items"]), many["more"]) == ("1,000 × int", MAX_ROWS, 1000 - MAX_ROWS)
    long = show_value("x" * 50_000)
    assert long["text"].endswith("… (of 50,000 characters)")
    assert len(long["text"]) < MAX_TEXT + 50
    assert show_value(Secretive())["line"] == "(Secretive, whose repr raises RuntimeError)"
    nested: Any = "end"
    for _ in range(50):
        nested = {"deeper": nested}
    assert len(json.dumps(show_value(nested))) < 10_000
    assert show_value(b"bytes")["line"] == "b'bytes'"
    assert show_value(float("nan"))["line"] == "nan"


def test_the_bars_of_a_decision() -> None:
    state = {"candidates": [Candidate("a", 0.0), Candidate("b", 1.0)], "prior": [0.0, 0.0], "action": "a"}
    found = decision_bars(state)
    assert found is not None
    assert [(bar["action"], bar["prior_chance"]) for bar in found["bars"]] == [("b", 0.5), ("a", 0.5)]
    assert found["bars"][0]["chance"] == pytest.approx(0.7310586)
    assert (found["chosen"], found["has_prior"]) == ("a", True)
    without = decision_bars({"candidates": [{"action": "a", "logit": 1}], "prior": [1, 2]})
    assert without is not None
    assert without["has_prior"] is False
    for odd in ([], [{"action": "a"}], [{"action": "a", "logit": float("nan")}], ["a"], [{"action": 3, "logit": 0.0}]):
        assert decision_bars({"candidates": odd}) is None

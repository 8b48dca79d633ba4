"""The command line: what it prints where, its errors, what it leaves behind, and that it goes on where it stopped."""

import errno
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flat_rows import flat
from in_process import draw_pictures

from learngraph.graphs import arms
from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.baselines.react import ReAct
from learngraph.graphs.baselines.reasoning_bank import ReasoningBank
from learngraph.graphs.baselines.synapse import Synapse
from learngraph.graphs.cli import run
from learngraph.graphs.cli.main import main
from learngraph.graphs.cli.memory import open_memories
from learngraph.graphs.experiments import folder, play, pool
from learngraph.graphs.experiments.folder import Sweep
from learngraph.graphs.experiments.options import RunOptions
from learngraph.graphs.experiments.recorded import read_rows, unpack_rows
from learngraph.graphs.icrl import ICRL
from learngraph.graphs.jitrl import JitRL
from learngraph.graphs.methods import METHODS
from learngraph.memory.conversations.store import ConversationStore, Reflection
from learngraph.memory.conversations.turns import Turn
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson, Task, Transition
from learngraph.memory.storage.chroma_store import ChromaStore
from learngraph.memory.storage.record_store import write_jsonl
from learngraph.memory.storage.sqlite_memory import SqliteMemory
from learngraph.memory.storage.stored_rows import StoredRows
from learngraph.nodes.act.episode import replay_actions
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = ["--env", "toy", "--prior", "uniform"]


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("jump", "there are run, serve, "),
        (
            "run",
            "there are jitrl, icrl, adamem, training-free-grpo, react, cot, long-cot, tool-agent, best-of-n, self-refine, reflexion, synapse, ",
        ),
        ("run jitrl --compare jitlr", "no method is called 'jitlr'; did you mean jitrl?"),
        ("run jitrl --env toy --compare", "learngraph run jitrl: --compare names nothing; give one or more, or leave it out"),
        ("run jitrl --compare --env toy", "learngraph run jitrl: --compare names nothing"),
        ("run jitrl --env nowhere", "there are toy, twx:coin"),
        ("run jitrl --env twx:nowhere", "twx:coin"),
        ("run jitrl --env toy?rooms=3", "no setting 'rooms'"),
        ("run jitrl --env toy --model nobody", "there are pocket, guard, local:PATH_OR_NAME, openai:MODEL"),
        ("run jitrl --bata 3", "--beta"),
        ("run static --beta 3", "--temperature"),
        ("run jitrl --beta much", "--beta takes a number, got 'much'"),
        ("run jitrl --model pokcet", "no model 'pokcet'; did you mean pocket?"),
        ("run jitrl --model openai:m --base-url 127.0.0.1", "begins with http:// or https://, got 127.0.0.1"),
        ("run jitrl --policy best", "verbalized"),
        ("run jitrl:best", "default, paper, paper-equations, paper-web, reference"),
        ("run static:paper", "it has default, and static?SETTING=VALUE"),
        ("run icrl?rewads=zero", "icrl has no setting 'rewads'; did you mean rewards?"),
        ("run icrl --env toy --compare icrl:short", "icrl has no preset 'short'"),
        ("run icrl --env toy --prior uniform --max-memory-tokens -1", "max_memory_tokens"),
        ("run icrl --env toy --judge rule", "toy has no rule to judge by"),
        ("run icrl --env toy --judge nobody", "environment, rule"),
        ("run icrl --env toy --max-run-tokens -5", "--max-run-tokens is 0 for any number, or more, got -5"),
        ("run icrl --env toy --judge pairwise --reference nowhere.txt", "nowhere.txt: cannot be read"),
        ("run icrl --env toy --instruction exploite", "explore"),
        ("run icrl --env toy --policy answer", "toy is played step by step"),
        ("run cot --env toy", "cot reasons in writing before it acts; give a model that writes"),
        ("run jitrl --seeds none", "0,3,7"),
        ("run jitrl --seeds 0", "0,3,7"),
        ("run jitrl --episodes 0", "at least 1"),
        ("run jitrl --env toy --prior uniform --gamma 2", "gamma"),
        ("run jitrl --env toy --prompts nowhere", "nowhere"),
        ("draw", "there are jitrl"),
        ("draw nothing -o x.svg", "there are adamem, awm, best-of-n, cot, evotest, grpo, icrl, jitrl, "),
        ("draw jitrl -o x.pdf", ".svg, .png or .mmd"),
        ("draw nowhere:graph", "the module nowhere, which cannot be imported"),
        ("draw ./nothing.py:graph", "there is no file ./nothing.py"),
        ("list nodes 42", "the verbs are act, evaluate"),
        ("list nodes --reads nothing", "no node reads `nothing`"),
        ("list nodes --writes candidats", "no node writes `candidats`; did you mean candidates?"),
        ("list everything", "takes nodes or nothing, got everything"),
        ("memory", "show PATH"),
        ("memory show nowhere", "no memory in nowhere; give the folder of a run, or that of a learning middleware"),
        ("memory prune nowhere", "--keep-last"),
        ("memory import nothing.jsonl --into place", "nothing.jsonl"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(
    command: str, says: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngraph.tools.models.models.open_model", _no_model) if "prompts" in command else None
    assert main(command.split()) == 2
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if "did you mean" in line or "mean" not in line]
    assert len(lines) == 1, shown.err
    assert lines[0].startswith("learngraph: ")
    assert says in lines[0]
    assert shown.out == ""


def _no_model(spec: str, **settings: Any) -> Any:
    class Scores:
        window = 10_000

        def get_num_tokens(self, text: str) -> int:
            return len(text)

        def score(self, messages: Any, options: Sequence[str]) -> list[float]:
            return [0.0 for _ in options]

    return Scores()


@pytest.mark.slow
def test_json_is_one_object_per_method_and_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_pictures(monkeypatch)
    command = ["run", "jitrl", *TOY, "--episodes", "5", "--seeds", "2", "--compare", "random", "tabular", "--json"]
    assert main([*command, "--out", "run"]) == 0
    rows = objects(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["jitrl", "random", "tabular"]
    for row in rows:
        assert (row["environment"], row["model"], row["seeds"], row["episodes"]) == ("toy", "uniform prior", [0, 1], 5)
        for one in (row["metrics"]["avg"], row["metrics"]["last"]):
            assert one["by_t"][0] <= one["mean"] <= one["by_t"][1]
        assert row["optimum"] == 10
        assert flat(row)["regret"] == pytest.approx(5 * (10 - flat(row)["avg"]))
    assert rows[0]["lead_of_against"] == {}
    for row in rows[1:]:  # paired by seed
        lead = row["lead_of_against"]["avg"]
        assert lead["mean"] == pytest.approx(flat(rows[0])["avg"] - flat(row)["avg"])
        assert lead["by_t"][0] <= lead["mean"] <= lead["by_t"][1]
        assert lead["wins"] + lead["losses"] + lead["ties"] == 2
    assert json.loads((here / "run" / "results.json").read_text()) == rows
    left = {path.name for path in (here / "run").iterdir()}
    assert left >= {"settings.json", "results.json", "report.html", "figures", "jitrl-s0", "jitrl-s1", "random-s0"}
    assert "owner.pid" not in left
    run = {path.name for path in (here / "run" / "jitrl-s0").iterdir()}
    assert run >= {"steps.jsonl.gz", "episodes.jsonl", "memory", "checkpoints.sqlite", "result.json"}
    assert not (here / "run" / "random-s0" / "memory").exists()
    assert objects((here / "run" / "jitrl-s0" / "episodes.jsonl").read_text())[-1]["episode"] == 4


@pytest.fixture
def asked(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of the methods that would be played; nothing is."""
    asked: list[dict[str, Any]] = []

    def note(spec: Any, planned: Sequence[Sweep], *more: Any) -> int:
        asked.append({name: arm.settings for name, arm in planned[0].arms.items()})
        return 0

    monkeypatch.setattr(run, "play_and_report", note)
    return asked


def test_a_comparison_gives_all_methods_what_was_given(asked: list[dict[str, Any]]) -> None:
    """The defaults of each method stay its own, and so does what a preset sets; what else the user sets holds for all."""
    given = "--bank b.jsonl --k 16 --success-threshold 3 --no-online --temperature 0 --history-steps 7 --outcomes success"
    compared = "synapse synapse:paper reasoning-bank:pool adamem:paper-low adamem?mode=max react jitrl icrl"
    assert (
        main(["run", "adamem", *TOY, "--out", "run", *given.split(), "--min-similarity", "0.5", "--compare", *compared.split()])
        == 0
    )
    (found,) = asked
    shared: dict[str, Any] = {"bank": "b.jsonl", "success_threshold": 3.0, "online": False, "temperature": 0.0}
    assert found["synapse"] == Synapse(k=16, **shared)
    assert found["synapse:paper"] == Synapse(k=3, **shared)
    assert found["reasoning-bank:pool"] == replace(ReasoningBank.pool(), k=16, **shared)
    assert found["adamem:paper-low"] == replace(AdaMEM.paper_low(), history_steps=7, **shared)
    assert found["adamem?mode=max"] == replace(found["adamem"], mode="max")
    assert found["react"] == ReAct(history_steps=7, temperature=0.0)
    assert found["jitrl"] == JitRL(k=16, temperature=0.0)
    assert found["icrl"] == ICRL(temperature=0.0)


def test_what_nobody_gave_stays_the_default_of_each_method(asked: list[dict[str, Any]]) -> None:
    compared = ["--compare", "synapse", "synapse:paper", "reasoning-bank", "jitrl"]
    assert main(["run", "adamem", *TOY, "--mode", "max", *compared]) == 0
    assert main(["run", "adamem", *TOY, "--k=4", *compared]) == 0  # the default, but given
    assert main(["run", "adamem:paper-low", *TOY, *compared]) == 0
    usual, given, paper = asked
    assert [usual[name] for name in compared[1:]] == [Synapse(), Synapse.paper(), ReasoningBank(), JitRL()]
    assert [given[name] for name in compared[1:]] == [Synapse(k=4), Synapse.paper(), ReasoningBank(k=4), JitRL(k=4)]
    assert paper["synapse"] == Synapse(k=1, online=False)
    assert paper["synapse:paper"] == Synapse.paper()


def walkthroughs(path: Path, seeds: Sequence[int], split: str = "test", domain: str = "toy") -> None:
    world = KeywordKeep()
    tasks = [world.task(seed, split) for seed in seeds]
    write_jsonl([replace(replay_actions(world, t, world.gold(t), run=f"gold/{t.id}"), domain=domain) for t in tasks], path)


BANKED = ["run", "synapse", *TOY, "--episodes", "1", "--bank", "bank.jsonl"]


@pytest.mark.slow
def test_a_bank_that_was_written_anew_is_another_setting(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walkthroughs(here / "bank.jsonl", range(4), "train")
    command = [*BANKED, "--seeds", "1", "--out", "run"]
    assert main(command) == 0
    first = capsys.readouterr().out
    (here / "bank.jsonl").touch()
    assert main(command) == 0  # the same file
    assert capsys.readouterr().out == first
    walkthroughs(here / "bank.jsonl", range(1, 5), "train")
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "methods.synapse.bank_digest is " in said
    assert "another --out" in said
    (here / "bank.jsonl").unlink()
    assert main([*command[:-1], "other"]) == 2
    assert "--bank bank.jsonl: cannot be read (No such file or directory)" in capsys.readouterr().err
    assert not (here / "other").exists()


@pytest.mark.slow
def test_a_bank_that_holds_the_tasks_played_is_no_test(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "2 of 3 played tasks are in the bank bank.jsonl: these scores are no test"
    walkthroughs(here / "bank.jsonl", [1, 2, 9])
    command = [*BANKED, "--seeds", "3", "--out", "run", "--compare", "random"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == line  # before anything is played
    assert line in shown.out.splitlines()
    assert main(command) == 0
    assert capsys.readouterr().out == shown.out
    assert main([*command, "--json"]) == 0
    again = capsys.readouterr()
    assert again.err.splitlines()[-1] == line
    assert len(objects(again.out)) == 2
    walkthroughs(here / "bank.jsonl", [3, 4])
    assert main([*BANKED, "--seeds", "3", "--out", "clean"]) == 0
    clean = capsys.readouterr()
    assert "no test" not in clean.out + clean.err


@pytest.mark.slow
def test_a_budget_of_tokens_is_the_same_for_all(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scored prompt of 100 tokens: 300 tokens are three steps, so every method ends within the first episode that it takes."""

    class Scores(list[float]):
        prompt_tokens = 100

    class Model:
        window = 10_000

        def get_num_tokens(self, text: str) -> int:
            return len(text)

        def score(self, messages: Any, options: Sequence[str]) -> Scores:
            return Scores(0.0 for _ in options)

    monkeypatch.setattr("learngraph.tools.models.models.open_model", lambda spec, **settings: Model())
    play.shared_model.cache_clear()
    command = ["run", "icrl", "--env", "toy", "--horizon", "4", "--episodes", "9", "--seeds", "2", "--max-run-tokens", "500"]
    assert main([*command, "--compare", "react", "--json", "--out", "run"]) == 0
    play.shared_model.cache_clear()
    rows = objects(capsys.readouterr().out)
    assert [row["totals"]["played"] for row in rows] == [
        4,
        4,
    ]  # of two seeds; 400 tokens an episode: the second one begins below 500
    assert main([*command, "--compare", "react", "--out", "run"]) == 0
    assert "finished already" in capsys.readouterr().err


@pytest.mark.slow
def test_differences_are_printed_in_words_that_agree_in_number(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "static", *TOY, "--episodes", "1", "--seeds", "1", "--compare", "random"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("toy, 1 episode, 1 seed; one seed says nothing about others\n")
    assert "paired by seed" in shown
    (head,) = [line for line in shown.splitlines() if line.startswith("| static minus ")]
    assert [cell.strip() for cell in head.split("|")[1:4]] == ["static minus", "mean score", "last 1 episode"]
    assert main(["run", "static", *TOY, "--episodes", "2", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("toy, 2 episodes, 2 seeds; [95 % interval over seeds, by Student's t")
    assert "paired" not in shown


def drop_lines(path: Path, number: int) -> None:
    if path.name == "steps.jsonl":
        unpack_rows(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-number]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "stop", "steps", "episodes"),
    [("jitrl", 40, 2, 1), ("tabular", 40, 25, 2), ("jitrl", None, 2, 0), ("jitrl", None, 0, 1), ("tabular", None, 10_000, 10)],
)
def test_files_that_a_power_cut_made_shorter_than_the_checkpoints_know(
    method: str,
    stop: int | None,
    steps: int,
    episodes: int,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heat = ["--temperature", "4"] if method == "jitrl" else []
    command = ["run", method, *TOY, "--episodes", "4", "--seeds", "1", *heat, "--json", "--out"]
    assert main([*command, "whole"]) == 0
    whole = objects(capsys.readouterr().out)
    observe, left = KeywordKeep.observe, stop or 10_000

    def dies(self: KeywordKeep, task: Any, actions: Sequence[str]) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise UserError("toy: the power is gone")
        return observe(self, task, actions)

    monkeypatch.setattr(KeywordKeep, "observe", dies)
    assert main([*command, "torn"]) == (2 if stop else 0)
    folder = here / "torn" / f"{method}-s0"
    for name, number in (("steps", steps), ("episodes", episodes)):
        if number:
            drop_lines(folder / f"{name}.jsonl", number)
    if not episodes:
        (folder / "result.json").unlink(missing_ok=True)
    capsys.readouterr()
    assert main([*command, "torn"]) == 0
    assert [replaced(row) for row in objects(capsys.readouterr().out)] == [replaced(row) for row in whole]
    for name in ("steps", "episodes"):
        found, expected = (read_rows(here / out / f"{method}-s0" / f"{name}.jsonl") for out in ("torn", "whole"))
        assert sorted(found, key=str) == sorted(expected, key=str)


def replaced(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "metrics": {**row["metrics"], "step-seconds": None}}


def test_a_full_disk_is_said_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(play, "_play_job", full)
    assert main(["run", "random", *TOY, "--out", "run"]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on_where_something_was_played(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, lost: Any, engine: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run_workers", interrupted)
        assert main(["run", "random", *TOY, "--episodes", "1", "--out", "run"]) == 130
        assert "goes on" not in capsys.readouterr().err
        assert not (here / "run").exists()
    assert main(["run", "random", *TOY, "--episodes", "1", "--out", "run"]) == 0
    monkeypatch.setattr(pool, "run_workers", interrupted)
    capsys.readouterr()
    assert main(["run", "random", *TOY, "--episodes", "2", "--out", "run"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "jitrl", *TOY, "--episodes", "3", "--seeds", "2", "--out", "run", "--memory", "kept"]) == 0
    capsys.readouterr()
    assert main(["memory", "show", "kept"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[:2] + line[3:4] for line in shown] == [["toy", f"keep-test-{seed}", "3"] for seed in (0, 1)]
    assert [line[2].rpartition("-")[0] for line in shown] == ["run-jitrl-s0", "run-jitrl-s1"]
    assert main(["memory", "export", "kept", "all.jsonl"]) == 0
    assert len(objects((here / "all.jsonl").read_text())) == 6
    assert main(["memory", "import", "all.jsonl", "--into", "copy"]) == 0
    assert main(["memory", "export", "copy", "again.jsonl"]) == 0
    assert (here / "again.jsonl").read_text() == (here / "all.jsonl").read_text()
    assert main(["memory", "prune", "kept", "--keep-last", "1"]) == 0
    capsys.readouterr()
    assert main(["memory", "export", "kept", "-"]) == 0
    assert [row["episode"] for row in objects(capsys.readouterr().out)] == [2, 2]


def test_a_memory_without_trajectories_names_what_it_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ChromaStore.open("notes") as store:
        store.put(("notes", "ann"), "first", {"text": "hello"})
    assert main(["memory", "show", "notes"]) == 2
    assert "notes holds no trajectories; it holds notes/ann" in capsys.readouterr().err


def test_the_folder_of_a_middleware_is_shown_and_exported_and_not_pruned(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteMemory.open("kept") as store:
        kept = ConversationStore(store, ("agents", "desk", "tenant=b%2Ec", "user_id"))
        for name in ("t1", "t2"):
            kept.record(name, Turn("u1", (Transition("late", "refund()", None),)), Task("agent", "It is\nlate. " * 99))
        kept.rate("t1", 0.5, "too slow")
        kept.add_reflection(Reflection("reflexion/t1/0", "t1", "", note="Ask first."), "t1/0")
        kept.quarantine("t2", "a person said so")
        lessons = Library((Lesson("L0", "Look twice."),))
        LibraryVersions(rows=StoredRows(store, (*kept.scope, "library"))).put("start", lessons, why="the start")
    assert main(["memory", "show", "kept"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "desk tenant=b.c user_id=None: 2 conversations, 1 rated"
    assert lines[1].startswith("  t1, 1 turn: It is late. It is late.")
    assert len(lines[1]) < 230
    assert lines[2] == "    user gave it reward 0.5: too slow"
    assert lines[4:] == [
        "    nothing is learned from it: a person said so",
        "  lesson from reflexion/t1/0: Ask first.",
        "  lesson L0: Look twice.",
    ]
    assert main(["memory", "export", "kept", "-"]) == 0
    rows = objects(capsys.readouterr().out)
    assert [(row["id"], row["agent"], row["scope"]) for row in rows] == [
        (name, "desk", {"tenant": "b.c", "user_id": None}) for name in ("t1", "t2")
    ]
    assert main(["memory", "prune", "kept", "--keep-last", "1"]) == 2
    assert "kept holds conversations of agents: their middlewares' forget()" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["kept", "http://127.0.0.1:8000"])
def test_what_is_imported_is_what_a_run_reads(
    kept: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "://" in kept:
        _one_server(monkeypatch, here)
    command = ["run", "jitrl", *TOY, "--episodes", "1", "--seeds", "7,", "--horizon", "9", "--temperature", "0"]
    assert main([*command, "--out", "first"]) == 0
    assert main(["memory", "export", "first", "first.jsonl"]) == 0
    exported = [json.loads(line) for line in (here / "first.jsonl").read_text().splitlines()]
    assert main(["memory", "import", "first.jsonl", "--into", f"{kept}/jitrl-s7"]) == 0
    assert main([*command, "--out", "second", "--memory", kept]) == 0
    recalled = [step["estimates"] for step in read_rows(here / "second/jitrl-s7/steps.jsonl")]
    alone = [step["estimates"] for step in read_rows(here / "first/jitrl-s7/steps.jsonl")]
    assert recalled[0] != alone[0]
    for where, episodes in ((kept, 2), (f"{kept}/jitrl-s7", 2)):
        capsys.readouterr()
        assert main(["memory", "export", where, "-"]) == 0
        rows = objects(capsys.readouterr().out)
        assert len(rows) == episodes
        assert exported[0] in rows
    assert main(["memory", "import", "first.jsonl", "--into", kept]) == 2
    assert f"say which, such as {kept}/jitrl-s" in capsys.readouterr().err
    assert main(["memory", "prune", f"{kept}/jitrl-s7", "--keep-last", "1"]) == 0
    assert main(["memory", "show", kept]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.split()[2].startswith("second-jitrl-s7-")


def _one_server(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    """A directory stands for the server: the namespaces are what differs."""
    directory = ChromaStore.open

    def server(where: str, index: Any = None, patience: float = 0.0) -> Any:
        return directory(here / "server" if where == "http://127.0.0.1:8000" else where, index=index)

    monkeypatch.setattr(ChromaStore, "open", server)


@pytest.mark.slow
def test_across_tasks_the_seeds_share_a_memory_and_take_turns(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []
    inline = pool.run_workers

    def work(given: Sequence[Any], *rest: Any, **more: Any) -> Any:
        batches.extend([job.run for job in jobs] for jobs in given)
        return inline(given, *rest, **more)

    monkeypatch.setattr(pool, "run_workers", work)
    command = ["run", "jitrl", *TOY, "--episodes", "2", "--seeds", "2", "--out", "run", "--compare", "random"]
    assert main([*command, "--cross-task"]) == 0
    assert batches == [["jitrl-s0", "jitrl-s1"], ["random-s0"], ["random-s1"]]
    with open_memories("run") as ((records,), _):
        assert {trajectory.run for trajectory in records.all()} == {"jitrl-s0", "jitrl-s1"}


def test_list_and_draw(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in (*METHODS, "toy", "twx:NAME", "jericho:GAME", "pocket", "openai:MODEL"):
        assert f"\n  {name} " in shown
    assert main(["draw", "jitrl", "-o", "drawn.mmd"]) == 0
    assert (here / "drawn.mmd").read_text().startswith("flowchart LR\n")
    for more in ([], ["--run"]):  # its graph is that of a run already
        assert main(["draw", "training-free-grpo", "-o", "drawn.mmd", *more]) == 0
        assert "hold_out -.-> probe" in (here / "drawn.mmd").read_text()


APP = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
class State(TypedDict):
    n: int
builder = StateGraph(State)
for name in "abc":
    builder.add_node(name, lambda state: state)
builder.add_edge(START, "a")
builder.add_edge(START, "b")
builder.add_edge(["a", "b"], "c")
graph = builder.compile()
def make():
    return builder

def make_with(model, tools=()):
    return builder
"""


def test_any_graph_of_the_users_is_drawn(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "drawn_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(here))
    for name in ("drawn_app:graph", "drawn_app:builder", "drawn_app:make", f"{here}/drawn_app.py:graph"):
        assert main(["draw", name]) == 0
        assert capsys.readouterr().out == "flowchart LR\n  START --> a\n  START --> b\n  a & b --> c --> END\n"
    assert main(["draw", "drawn_app:graph", "-o", "app.mmd"]) == 0
    assert (here / "app.mmd").read_text().startswith("flowchart LR\n")
    assert main(["draw", "drawn_app:State"]) == 2
    assert "no graph: give a compiled LangGraph graph" in capsys.readouterr().err
    assert main(["draw", "drawn_app:make_with"]) == 2
    assert "takes model: give a function without arguments that returns a graph" in capsys.readouterr().err


def test_the_nodes_are_listed_by_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "nodes"]) == 0
    shown = capsys.readouterr().out
    for verb in ("act", "evaluate", "retrieve", "synthesize", "extract", "update", "learn"):
        assert f"{verb}: " in shown
    assert main(["list", "nodes", "Recall"]) == 0
    shown = capsys.readouterr().out
    assert "reads     episode, head, observation, run, step, task" in shown
    assert "writes    average, hits, neighbours, repeats, variance" in shown
    assert "settings  k: int, threshold: float, cross_task: bool = False, only_other_tasks: bool = False" in shown
    assert main(["list", "nodes", "Recollect"]) == 0
    assert "filled by Push" in capsys.readouterr().out
    assert main(["list", "nodes", "--writes", "action"]) == 0
    shown = capsys.readouterr().out
    assert "Choose" in shown
    assert "Recall" not in shown
    assert main(["list", "nodez"]) == 2
    assert "learngraph list takes nodes or nothing, got nodez; did you mean nodes?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_picture_of_a_run_is_that_of_its_settings(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngraph.graphs.wiring.picture.has_graphviz", lambda: False)  # as text, to be read here
    walkthroughs(here / "bank.jsonl", range(4), "train")
    command = ["run", "adamem", *TOY, "--author", "rule", "--episodes", "1", "--seeds", "1", "--bank", "bank.jsonl"]
    assert main([*command, "--out", "run", "--mode", "max", "--compare", "adamem?mode=high"]) == 0
    drawn = {name: (here / "run" / f"{name}.mmd").read_text() for name in ("adamem", "adamem-mode-high")}
    for name, text in (("max", drawn["adamem"]), ("high", drawn["adamem-mode-high"])):
        assert main(["draw", f"adamem?mode={name}", "-o", f"{name}.mmd"]) == 0
        assert [line.strip() for line in text.splitlines() if "->" in line] == [
            line.strip() for line in (here / f"{name}.mmd").read_text().splitlines() if "->" in line
        ]
    assert "consider" not in drawn["adamem"]
    assert "consider" in drawn["adamem-mode-high"]


@pytest.mark.parametrize("method", METHODS)
def test_every_preset_can_be_drawn(method: str) -> None:
    made = METHODS[method].settings
    for named in arms.preset_names(made):
        assert arms.blueprint(f"{method}:{named}").get_graph().nodes


def test_help_knows_the_hyper_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "jitrl", "--help-all"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "beta, Eq. 10: nats per unit of A~" in shown
    assert f"(default: {JitRL().beta})" in shown


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'chromadb', 'langgraph', 'matplotlib', 'scipy', 'numpy', 'tyro', 'rich'}"
    for flag in ("--help", "--version"):
        look = f"import sys; from learngraph.graphs.cli.main import main; main(['{flag}']); print(sorted({heavy} & sys.modules.keys()))"
        shown = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        assert shown.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_runs_share_checkpoints_and_stay_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One folder name, two questions, one place for checkpoints: each run does what it does alone."""
    import shutil

    command = ["run", "jitrl", *TOY, "--episodes", "3", "--seeds", "1", "--temperature", "4", "--json"]
    for horizon in ("6", "9"):
        asked = [*command, "--horizon", horizon]
        assert main([*asked, "--out", f"alone/{horizon}"]) == 0
        alone = objects(capsys.readouterr().out)
        assert main([*asked, "--out", f"{horizon}/run", "--checkpoints", "shared"]) == 0
        assert [replaced(row) for row in objects(capsys.readouterr().out)] == [replaced(row) for row in alone]
    assert [path.name for path in (here / "shared").glob("*.sqlite")] == ["jitrl-s0.sqlite"]
    shutil.rmtree(here / "9" / "run")
    asked = [*command, "--horizon", "9", "--checkpoints", "shared", "--out"]
    assert main([*asked, "9/run"]) == 2
    said = capsys.readouterr().err
    assert "hold 3 episodes of the run run-jitrl-s0-" in said
    assert "an --out of another name" in said
    assert main([*asked, "9/again"]) == 0
    assert [replaced(row) for row in objects(capsys.readouterr().out)] == [replaced(row) for row in alone]


def test_one_model_name_on_two_servers_is_two_questions(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    asked = RunOptions(model="openai:llama")
    sweeps = [
        Sweep(options, {"jitrl": arms.make_arm("jitrl")}, Path(), (0,))
        for options in (asked, *(replace(asked, base_url=f"http://{host}/v1") for host in "ab"))
    ]
    recorded = [folder.settings_record(one) for one in sweeps]
    assert len({folder.run_folder_name(one) for one in sweeps}) == 3
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a/v1")
    assert folder.settings_record(sweeps[0]) == recorded[1]
    with folder.claim_folder(here / "run", recorded[1]):
        pass
    with folder.claim_folder(here / "run", recorded[2]):  # a folder that the user names goes on where the server has moved to
        assert json.loads((here / "run" / "settings.json").read_text())["base_url"] == "http://b/v1"


def test_jobs_do_not_meet_in_a_shared_place() -> None:
    options = RunOptions(env="toy", memory="http://127.0.0.1:8000", checkpoints="postgresql://here/runs")
    compared = {name: arms.make_arm(name) for name in ("jitrl", "static")}
    sweeps = [Sweep(options, compared, Path(place), (0, 1)) for place in ("runs/a", "runs/b")]
    sweeps.append(replace(sweeps[0], arms={**compared, "jitrl": arms.make_arm("jitrl", JitRL(temperature=2))}))
    jobs = [one.job("jitrl", seed) for one in sweeps for seed in (0, 1)]
    assert len({job.run for job in jobs}) == len({job.thread for job in jobs}) == 6
    assert {job.memory for job in jobs} == {"http://127.0.0.1:8000"}
    assert {job.namespace for job in jobs} == {("trajectories", "jitrl-s0"), ("trajectories", "jitrl-s1")}
    plain = replace(sweeps[0], options=replace(options, memory=None, checkpoints=None))
    own = plain.job("jitrl", 0)
    assert (own.run, own.thread) == ("jitrl-s0", "jitrl-s0")
    assert plain.job("static", 0).memory == ""

"""`learngraph run`: its file, what is played once and what again, runs that fail, folders that grow, and pages that it writes."""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from in_process import draw_pictures

from learngraph import graphs
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.claas_stream import is_stream, read_stream
from learngraph.graphs.experiments.harness import read_results
from learngraph.graphs.experiments.measures import METRICS
from learngraph.graphs.experiments.recorded import read_rows, unpack_rows
from learngraph.graphs.experiments.spec import Spec, plan_sweeps, read_spec, read_tables, seed_list, unplayed_notes
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.keyword_keep import KeywordKeep

BENCHMARKS = Path(graphs.__path__[0]) / "experiments" / "benchmarks"
TINY = """
environments = [{ name = "toy", horizon = 6 }]
models = ["uniform"]
methods = ["tabular", "random"]
seeds = 2
episodes = 3
"""


def write(text: str, name: str = "tiny") -> str:
    Path(f"{name}.toml").write_text(text, encoding="utf-8")
    return f"{name}.toml"


def file_spec(path: Path) -> Spec:
    return read_spec(read_tables(path)[""], [*METRICS], str(path))


def bench(*words: str) -> int:
    return main(["run", *words, "--workers", "1"])


def results(folder: str | Path = "runs/bench-tiny") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((Path(folder) / "results.json").read_text())
    return found


def rows(folder: Path) -> dict[str, list[str]]:
    """The rows of all runs in a folder, by file. Seconds and ids of storage are left out."""
    found = {
        path.with_name(path.name.removesuffix(".gz"))
        for name in ("episodes", "steps")
        for path in folder.rglob(f"{name}.jsonl*")
    }
    return {
        str(path.relative_to(folder)): sorted(json.dumps(row, ensure_ascii=False) for row in read_rows(path)) for path in found
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("environments = [", "is no TOML"),
        ("seeds = 3", 'environments is missing; list at least one, as in environments = ["toy"]'),
        ('environments = ["toy"]', "methods is missing"),
        (TINY + 'metod = "x"', "the file has no key 'metod'; there are against, environments, episodes, judge, methods, "),
        (
            TINY.replace("seeds = 2", 'seeds = "a"'),
            "seeds is a number like 5, a list like [0, 3, 7] or a range like \"20-39\", got 'a'",
        ),
        (TINY.replace("seeds = 2", "seeds = 2.5"), "seeds is to be an integer or a string or an array, got 2.5"),
        (TINY.replace("episodes = 3", 'episodes = "3"'), "episodes is to be an integer, got '3'"),
        (TINY.replace("episodes = 3", "episodes = 0"), "episodes is at least 1, got 0"),
        (TINY + 'split = "holdout"', "split is to be 'train', 'dev' or 'test', got 'holdout'"),
        (TINY + 'metrics = ["avg", "f1"]', "metrics: there is no 'f1'; there are avg, final, last, "),
        (TINY + 'against = "jitrl"', "got 'jitrl', there are tabular, random"),
        (TINY.replace('"random"', '"randm"'), "no method is called 'randm'"),
        (TINY.replace('"random"', '"tabular"'), "methods: there is 'tabular' twice; give one of them another label"),
        (TINY.replace('"random"', '{ name = "random", label = "tabular" }'), "methods: there is 'tabular' twice"),
        (TINY.replace('"random"', '{ name = "tabular", settings = { epsilon = 0.0 } }'), 'label = "epsilon=0.0"'),
        (TINY.replace('"random"', '{ name = "tabular", label = "x", settings = { eps = 0.0 } }'), "settings has no key 'eps'"),
        (
            TINY.replace('"random"', '{ name = "tabular", label = "x", settings = { epsilon = "much" } }'),
            "methods[1] (tabular).settings.epsilon is to be a number, got 'much'",
        ),
        (
            TINY.replace('"random"', '{ name = "jitrl", label = "x", settings = { k = 0 } }'),
            "k is a whole number of at least 1",
        ),
        (TINY.replace('"random"', '{ name = "jitrl", label = "paper" }'), "label 'paper' is the name of a preset"),
        (TINY.replace('"random"', '{ label = "x" }'), "methods[1] is a name, or a table with one"),
        (TINY.replace("horizon = 6", "horizont = 6"), "environments[0] has no key 'horizont'"),
        (TINY.replace("horizon = 6", 'horizon = "6"'), "environments[0].horizon is to be an integer, got '6'"),
        (TINY.replace("horizon = 6", 'model = "pocket"'), "environments[0] has no key 'model'"),
        (TINY.replace('"uniform"', '"no model"'), "'no model' is where methods without a model are shown"),
        (TINY.replace('"uniform"', '"pocket", { name = "pocket", window = 64 }'), "models: there is 'pocket' twice"),
        (TINY.replace('"random"', '{ name = "random", label = "a b" }, { name = "random", label = "a/b" }'), "one name"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(text)) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("learngraph: tiny.toml")
    assert says in shown
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "path", sorted(path for path in BENCHMARKS.glob("*.toml") if path.stem != "evidence"), ids=lambda path: path.stem
)
def test_our_files_can_be_played(path: Path, tmp_path: Path) -> None:
    file = file_spec(path)
    seeds = seed_list(file.seeds)
    assert (file.title, seeds, file.against) == (file.title or "a title", list(range(max(10, len(seeds)))), "jitrl")
    planned = plan_sweeps(file, tmp_path, 1)
    notes = unplayed_notes(file)
    played = {
        arm.name
        for arm in file.methods
        if sum(note.startswith(f"{arm.label} is not played") for note in notes) < len(file.models)
    }
    assert {job.arm.name for one in planned for batch in one.batches() for job in batch} == played
    folders = [job.folder for one in planned for batch in one.batches() for job in batch]
    assert len(folders) == len(set(folders))


TABLES = """
title = "A paper"
seeds = 1
[tables.table1]
title = "Table 1"
environments = [{ name = "toy", horizon = 6 }]
models = ["uniform"]
methods = ["tabular", "random"]
episodes = 2
[tables.table2]
title = "Table 2"
needs = "a server that is not here"
environments = ["toy"]
methods = ["random"]
episodes = 1
[tables.figure3]
title = "Figure 3"
scenarios_per_split = 1
arms = [{ name = "none", learns = false }]
"""


@pytest.mark.slow
def test_a_file_of_several_tables_plays_the_one_that_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TABLES, "paper")
    assert bench(file) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert "| table2 | Table 2 | a server that is not here |" in listed
    assert "| figure3 | Figure 3 | nothing more |" in listed
    assert not Path("runs").exists()

    assert bench(file, "--only", "table2") == 0
    said = capsys.readouterr()
    assert "paper.toml, table2 needs a server that is not here\n" in said.err
    assert "paper.toml, table2: 1 run left\n" in said.err
    (row,) = results("runs/bench-paper-table2")
    assert (row["method"], row["episodes"]) == ("random", 1)
    assert "learngraph run paper.toml --only table2\n" in said.out

    assert bench(file, "--only", "table1", "tabular", "--seeds", "2") == 0
    assert [(row["method"], row["seeds"]) for row in results("runs/bench-paper-table1")] == [("tabular", [0, 1])]
    capsys.readouterr()
    assert bench(file, "--only", "figure3", "--dry-run") == 0
    assert "paper.toml, figure3: 3 trials of 1 scenarios a split, with guard\n" in capsys.readouterr().err
    assert not Path("runs/bench-paper-figure3").exists()
    assert bench(file, "--only", "table1", "table2", "--dry-run") == 0
    assert "\nall tables: about 0 calls; --seeds N plays fewer tasks, or more\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "words", "says"),
    [
        ("paper", "--only tabel1", "paper.toml: --only tabel1: it has no such table; did you mean table1?"),
        ("paper", "--only table1 jitrl", "there is no such environment, model or method"),
        ("tiny", "--only jitrl", "there is no such environment, model or method; there are toy, uniform, tabular, random"),
        ("none", "", "none.toml: cannot be read"),
    ],
)
def test_a_command_is_refused_in_words(
    file: str, words: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(TABLES, "paper")
    write(TINY)
    assert bench(f"{file}.toml", *words.split()) == 2
    assert says in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "path",
    [*sorted((Path(graphs.__path__[0]) / "papers").glob("*.toml")), BENCHMARKS / "evidence.toml"],
    ids=lambda path: path.stem,
)
def test_each_table_of_a_paper_is_planned(path: Path, tmp_path: Path) -> None:
    """Tables that need what is not here are planned all the same: what is missing is said when they are played."""
    for name, table in read_tables(path).items():
        assert name
        assert table["title"]
        if is_stream(table):
            assert read_stream(table, name).jobs()
        else:
            spec = read_spec({**table, "models": [*table.get("models", []), "openai:any"]}, [*METRICS], name)
            assert [one.job(arm, one.seeds[0]) for one in plan_sweeps(spec, tmp_path / name, 1) for arm in one.arms], name


def test_a_shipped_file_is_found_by_its_short_name(here: Path) -> None:
    assert read_tables(Path("toy.toml")) == read_tables(BENCHMARKS / "toy.toml")
    Path("toy.toml").write_text(TINY, encoding="utf-8")
    assert read_tables(Path("toy.toml"))[""]["models"] == ["uniform"]


@pytest.mark.slow
def test_tables_pages_and_files(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    draw_pictures(monkeypatch)
    assert bench(write('title = "Tiny"\n' + TINY)) == 0
    shown = capsys.readouterr().out
    page = Path("runs/bench-tiny/results.md").read_text()
    assert page.startswith("**Tiny**\n")
    assert "learngraph run tiny.toml" in page
    for text in (shown, page):
        assert "| tabular |    2 |" in text
        assert "| tabular minus | seeds |" in text
        assert "| optimum | " in text
        assert "$/run" not in text
    assert Path("runs/bench-tiny/report.html").read_text().count("<svg") == 1
    tabular, other = results()
    assert (tabular["method"], tabular["seeds"], other["against"]) == ("tabular", [0, 1], "tabular")
    scores = [json.loads(line)["score"] for line in rows(Path("runs"))["bench-tiny/toy/no-model/tabular-s1/episodes.jsonl"]]
    assert tabular["metrics"]["avg"]["values"]["1"] == pytest.approx(sum(scores) / 3)
    assert tabular["metrics"]["final"]["values"]["1"] in scores
    assert all(value >= 0 for row in (tabular, other) for value in row["metrics"]["regret"]["values"].values())
    assert bench("tiny.toml") == 0  # shows again what is there
    assert Path("runs/bench-tiny/results.md").read_text() == page


@pytest.mark.slow
def test_more_episodes_and_seeds_give_the_rows_of_all_at_once(here: Path) -> None:
    file = write(TINY.replace('"random"', '"jitrl", { name = "jitrl", label = "k=1", settings = { k = 1 } }'))
    assert bench(file, "--out", "grown", "--episodes", "2") == 0
    assert bench(file, "--out", "grown", "--episodes", "4", "--seeds", "1") == 0
    assert bench(file, "--out", "grown", "--episodes", "4", "--seeds", "0-2") == 0
    assert bench(file, "--out", "once", "--episodes", "4", "--seeds", "3") == 0
    assert rows(Path("grown")) == rows(Path("once"))
    found = rows(Path("once"))
    assert len(found["toy/uniform/jitrl-k-1-s2/episodes.jsonl"]) == 4

    def numbers(folder: str) -> list[Any]:
        return [{name: of["values"] for name, of in row["metrics"].items() if name != "seconds"} for row in results(folder)]

    assert numbers("grown") == numbers("once")


@pytest.mark.slow
def test_fewer_episodes_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(TINY)) == 0
    assert bench("tiny.toml", "--episodes", "2") == 2
    assert "episodes is 3 there, 2 was asked for" in capsys.readouterr().err
    assert bench("tiny.toml", "--episodes", "2", "--dry-run") == 2
    assert "episodes is 3 there, 2 was asked for" in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_that_share_a_memory_cannot_be_extended(here: Path) -> None:
    file = write(TINY.replace('"random"', '{ name = "jitrl", label = "one", settings = { cross_task = true } }'))
    assert bench(file) == 0
    assert bench(file, "--episodes", "4") == 2
    failed = json.loads(Path("runs/bench-tiny/failures.json").read_text())
    assert {(row["method"], row["seed"]) for row in failed} == {("jitrl:one", 0), ("jitrl:one", 1)}
    assert "its seeds share one memory" in failed[0]["reason"]
    assert [row["method"] for row in results()] == ["tabular"]


@pytest.mark.slow
def test_a_method_without_a_model_is_played_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TINY.replace('"uniform"', '"uniform", { name = "uniform", label = "other" }').replace(
        '"random"', '"static", "reflexion"'
    )
    assert bench(write(text)) == 0
    runs = sorted(str(path.parent.relative_to("runs/bench-tiny")) for path in Path("runs").rglob("result.json"))
    assert runs == [
        *("toy/no-model/tabular-s0", "toy/no-model/tabular-s1", "toy/other/static-s0", "toy/other/static-s1"),
        *("toy/uniform/static-s0", "toy/uniform/static-s1"),
    ]
    found = {(row["model"], row["method"]): row["metrics"]["avg"]["values"] for row in results()}
    assert found.keys() == {(model, method) for model in ("uniform", "other") for method in ("tabular", "static")}
    assert found["uniform", "tabular"] == found["other", "tabular"]
    assert "reflexion is not played with uniform" in Path("runs/bench-tiny/results.md").read_text()
    file = file_spec(Path("tiny.toml"))
    assert len(unplayed_notes(file)) == 2
    assert len(unplayed_notes(file, ["other"])) == 1
    assert unplayed_notes(file, ["static"]) == []


def test_a_method_that_needs_a_model_that_writes_is_not_played_with_one_that_scores(here: Path) -> None:
    text = TINY.replace('"uniform"', '"pocket", "openai:one"').replace('"random"', '"evotest"')
    file = file_spec(Path(write(text)))
    assert unplayed_notes(file) == [
        "evotest is not played with pocket: a model that scores actions writes no reasoning and no code, and the method needs a model "
        "that does"
    ]
    played = {(one.model, key) for one in plan_sweeps(file, Path("b"), 1) for key in one.arms}
    assert {model for model, key in played if key == "evotest"} == {"openai:one"}


def test_a_method_that_trains_weights_is_not_played_with_a_model_that_has_none_here(here: Path) -> None:
    text = TINY.replace('"uniform"', '"pocket", "openai:one", "uniform"').replace('"random"', '"sft"')
    file = file_spec(Path(write(text)))
    assert unplayed_notes(file) == [
        "sft is not played with openai:one: the method trains a model's weights, and a model behind an API keeps its own",
        "sft is not played with uniform: the method trains a model's weights, and a uniform prior has none",
    ]
    assert {one.model for one in plan_sweeps(file, Path("b"), 1) if "sft" in one.arms} == {"pocket"}


@pytest.mark.slow
def test_without_its_packages_a_method_that_trains_weights_leaves_the_others(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    text = TINY.replace('"uniform"', '"pocket"').replace('"random"', '"sft", "grpo"')
    assert bench(write(text)) == 2
    told = "- toy, pocket: sft, grpo, seeds 0, 1: failed: training weights needs packages that are not installed (trl): pip install "
    assert told in capsys.readouterr().out
    assert [row["method"] for row in results()] == ["tabular"]


@pytest.mark.slow
def test_methods_that_train_weights_stand_in_a_table_with_their_costs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`webrl` practises and trains before its first episode, `sft` trains after every second one. More episodes go on from there."""
    pytest.importorskip("trl", reason="needs trl")
    arms = '"jitrl", { name = "sft", label = "sft", settings = { every = 2 } }, { name = "webrl", label = "webrl", settings = { tasks = 2, success_threshold = 0.0 } }'
    file = write(TINY.replace('"uniform"', '"pocket"').replace('"tabular", "random"', arms).replace("seeds = 2", "seeds = 1"))
    assert bench(file, "--episodes", "2") == 0
    assert bench(file) == 0  # one episode more
    assert bench(file, "--out", "once") == 0
    fractions = r"-?\d+\.\d+(?:e-?\d+)?"  # their last digits depend on what the shared model's cache of prefixes held
    grown, once = (json.dumps(rows(Path(folder)), sort_keys=True) for folder in ("runs/bench-tiny", "once"))
    assert re.sub(fractions, "#", grown) == re.sub(fractions, "#", once)
    numbers = [list(map(float, re.findall(fractions, text))) for text in (grown, once)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)
    assert "| tokens trained |" in capsys.readouterr().out
    found = {row["method"]: {name: of["values"] for name, of in row["metrics"].items()} for row in results()}
    log = Path("runs/bench-tiny/toy/pocket/sft-s0/training.jsonl").read_text().splitlines()
    trained = [row for row in map(json.loads, log) if row["kind"] == "training"]
    assert found["sft"]["trained-tokens"]["0"] == sum(row["tokens"] for row in trained)
    assert set(found["jitrl"]["trained-tokens"].values()) == {None}
    assert max(found["webrl"]["trained-tokens"].values()) > 0
    assert found["sft"]["flops"]["0"] > sum(row["flops"] for row in trained)
    assert min(found["jitrl"]["flops"].values()) > 0
    assert main(["explain", "runs/bench-tiny/toy/pocket", "--replay", "--method", "sft"]) == 2
    assert "its weights changed as it played" in capsys.readouterr().out


@pytest.mark.slow
def test_what_a_method_is_shown_does_not_depend_on_the_others_of_the_file(here: Path) -> None:
    """Also where JitRL comes into a folder that began without it."""
    text = TINY.replace('"uniform"', '"pocket"').replace("seeds = 2", "seeds = 1")
    assert bench(write(text.replace('"random"', '"reflexion"'), "grows")) == 0
    assert bench(write(text.replace('"random"', '"reflexion", "jitrl"'), "grows")) == 0
    assert bench(write(text.replace('"random"', '"jitrl", "reflexion"'), "at-once")) == 0
    grown, at_once = (rows(Path("runs", name, "toy", "pocket", "reflexion-s0")) for name in ("bench-grows", "bench-at-once"))
    assert grown == at_once != {}


@pytest.mark.slow
def test_an_environment_that_is_missing_leaves_the_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TINY.replace('{ name = "toy", horizon = 6 }', '"jericho:nowhere", { name = "toy", horizon = 6 }')
    assert bench(write(text)) == 2
    shown = capsys.readouterr()
    assert "jericho:nowhere, no model: not played: " in shown.err
    assert "- jericho:nowhere, no model: tabular, random, seeds 0, 1: failed: " in shown.out
    assert [row["environment"] for row in results()] == ["toy", "toy"]
    assert bench("tiny.toml", "--only", "toy") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("the game is gone\n(see its log)"), "RuntimeError: the game is gone ("),
        (SystemExit("no Java here"), "SystemExit: no Java here ("),  # worlds and methods from outside may end the process
    ],
)
def test_an_error_of_a_world_is_told_as_it_is(
    error: BaseException, says: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the last line of its traceback, where LangGraph notes the id of a task."""
    whole = KeywordKeep.observe

    def observe(world: KeywordKeep, task: Task, actions: Sequence[str]) -> Observation:
        if actions and task == world.task(1):
            raise error
        return whole(world, task, actions)

    monkeypatch.setattr(KeywordKeep, "observe", observe)
    assert bench(write(TINY)) == 2
    run = Path("runs/bench-tiny/toy/no-model")
    failed = {(row["method"], row["seed"]): row["reason"] for row in json.loads((run.parents[1] / "failures.json").read_text())}
    place = f"{run}/{{}}-s1/error.txt has the traceback)"
    assert failed == {(name, 1): says + place.format(name) for name in ("tabular", "random")}
    assert "Traceback" in (run / "random-s1" / "error.txt").read_text()
    assert {row["method"]: row["seeds"] for row in results()} == {"tabular": [0], "random": [0]}


@pytest.mark.slow
def test_a_reward_that_is_no_number_ends_its_run_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward that is missing does not: the page says so, beside a score of 0."""
    whole, rewards = KeywordKeep.observe, {0: None, 1: float("nan")}

    def observe(world: KeywordKeep, task: Task, actions: Sequence[str]) -> Observation:
        seed = next((seed for seed in rewards if task == world.task(seed)), None)
        found = whole(world, task, actions)
        return replace(found, reward=rewards[seed]) if actions and seed is not None else found

    monkeypatch.setattr(KeywordKeep, "observe", observe)
    assert bench(write(TINY)) == 2
    page = Path("runs/bench-tiny/results.md").read_text()
    assert (
        "- toy, no model: tabular, random, seed 1: failed: toy gives one finite reward or None per step, got nan for step 1"
        in page
    )
    assert "- toy, no model: 3 of 3 attempts of random have no reward: " in page
    assert {row["method"]: row["metrics"]["avg"]["values"] for row in results()} == {"tabular": {"0": 0}, "random": {"0": 0}}


@pytest.mark.slow
def test_a_folder_belongs_to_one_file_and_one_process(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(TINY), "--out", "mine") == 0
    assert bench(write(TINY, "other"), "--out", "mine") == 2
    assert 'bench is "tiny" there, "other" was asked for; give another --out' in capsys.readouterr().err
    changed = TINY.replace('"random"', '{ name = "tabular", label = "x", settings = { epsilon = 0.5 } }')
    assert bench(write(changed), "--out", "mine") == 0  # random is left as it is
    assert bench(write(changed.replace("0.5", "0.6")), "--out", "mine") == 2
    assert "methods.tabular:x.epsilon is 0.5 there, 0.6 was asked for" in capsys.readouterr().err
    with FileLock("mine/owner.lock"):
        assert bench(write(TINY), "--out", "mine") == 2
    assert "is at work in mine; wait until it ends" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_that_is_damaged_leaves_the_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(TINY)) == 0
    planned = plan_sweeps(file_spec(Path("tiny.toml")), Path("runs/bench-tiny"), 1)
    run = Path("runs/bench-tiny/toy/no-model/random-s1")
    key = (run.parent, "random", 1)
    unpack_rows(run / "steps.jsonl")
    results, damaged = read_results(planned, [])
    assert len(results) == 4
    assert damaged == {}
    assert read_results(planned, [key])[0].keys() == results.keys() - {key}
    for name, old, new, says in (
        ("seconds.jsonl", b"{", b"[", "seconds.jsonl, line 1, is damaged"),
        ("steps.jsonl", b"{", b"[", "steps.jsonl, line 1, is damaged (Expecting"),
        ("episodes.jsonl", b'"score"', b'"scare"', "random-s1 is damaged ('score' is missing); remove it"),
        ("episodes.jsonl", b'"score": ', b'"score": NaN, "was": ', "a score is not a finite number"),
        ("episodes.jsonl", b'"episode": 0', b'"episode": 1', "episodes.jsonl has 3 of 3 episodes"),
        ("result.json", b'"optimum"', b'"opt"', "'optimum' is missing"),
    ):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole.replace(old, new, 1))
        left, damaged = read_results(planned, [])
        assert left.keys() == results.keys() - {key}
        assert damaged.keys() == {key}
        assert says in damaged[key].reason
        if name == "seconds.jsonl":
            assert bench("tiny.toml") == 2
            assert (
                f"- toy, no model: random, seed 1: failed: {run}/seconds.jsonl, line 1, is damaged" in capsys.readouterr().out
            )
        (run / name).write_bytes(whole)
    (run / "result.json").write_text("{}")
    assert bench("tiny.toml", "--dry-run") == 2
    shown = capsys.readouterr().out
    assert "| random  |    0 of 2 |" in shown
    assert "toy, no model: random, seed 1: cannot be played: " in shown


@pytest.mark.slow
def test_a_finished_run_whose_steps_are_lost_is_named_and_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its scores would lead nowhere."""
    assert bench(write(TINY)) == 0
    whole, run = rows(Path("runs")), Path("runs/bench-tiny/toy/no-model/random-s1")
    unpack_rows(run / "steps.jsonl")
    lines = (run / "steps.jsonl").read_bytes().splitlines(keepends=True)
    for left, episode in ((lines[:-1], 2), (lines[1:], 0), ([], 0)):
        (run / "steps.jsonl").write_bytes(b"".join(left))
        capsys.readouterr()
        assert bench("tiny.toml") == 2
        told = f"- toy, no model: random, seed 1: failed: {run}/steps.jsonl lacks steps of episode {episode}; put the file back, or "
        assert told in capsys.readouterr().out
        assert {row["method"]: row["seeds"] for row in results()} == {"tabular": [0, 1], "random": [0]}
    (run / "steps.jsonl").unlink()
    assert bench("tiny.toml", "--only", "tabular") == 2  # random is not to be played, but shown
    assert "random, seed 1: failed: " in capsys.readouterr().out
    shutil.rmtree(run)
    assert bench("tiny.toml") == 0
    assert rows(Path("runs")) == whole


@pytest.mark.slow
def test_a_sweep_of_a_benchmark_is_a_run_folder_and_the_whole_is_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(TINY.replace('"random"', '{ name = "jitrl", label = "k=1", settings = { k = 1 } }'))) == 0
    assert main(["explain", "runs/bench-tiny", "--step", "0"]) == 2
    assert "runs/bench-tiny holds a benchmark; give one of its sweeps: toy/no-model, toy/uniform" in capsys.readouterr().err
    assert main(["explain", "runs/bench-tiny/toy/uniform", "--method", "jitrl:k=1", "--step", "3"]) == 0
    assert main(["explain", "runs/bench-tiny/toy/uniform", "--replay"]) == 0


@pytest.mark.slow
def test_only_some_are_played(here: Path) -> None:
    assert bench(write(TINY), "--only", "random", "--seeds", "3") == 0
    assert sorted(path.parent.name for path in Path("runs").rglob("result.json")) == ["random-s0", "random-s1", "random-s2"]
    assert [row["method"] for row in results()] == ["random"]
    assert bench("tiny.toml") == 0
    assert {row["method"]: row["seeds"] for row in results()} == {"tabular": [0, 1], "random": [0, 1]}


def test_options_of_the_file_the_environment_and_the_model(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        'environments = ["toy", { name = "toy", label = "short", horizon = 3, seeds = [4, 9], judge = "self" }]\n'
        'models = ["uniform", { name = "openai:me", max_tokens = 7, horizon = 5, price_out = 1 }]\n'
        'methods = ["tabular", "react"]\n[options]\nhorizon = 8\ndollar_budget = 2\n'
    )
    planned = plan_sweeps(file_spec(path), tmp_path, 1)
    found = {one.name: (one.options.horizon, one.options.max_tokens, one.options.dollar_budget) for one in planned}
    assert found == {
        **{"toy, uniform": (8, None, 0.0), "toy, openai:me": (5, 7, 2.0), "toy, no model": (8, None, 0.0)},
        **{"short, uniform": (3, None, 0.0), "short, openai:me": (5, 7, 2.0), "short, no model": (3, None, 0.0)},
    }
    assert {(one.seeds, one.options.judge) for one in planned} == {(tuple(range(10)), "environment"), ((4, 9), "self")}


def test_seeds_and_episodes_of_the_command_are_those_that_are_played(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the file has others: for all, for an environment or for a model."""
    text = TINY.replace("horizon = 6", "episodes = 4, seeds = 3").replace('"uniform"', '{ name = "uniform", episodes = 6 }')
    file = write(text.replace('"random"', '"static"') + "[options]\nepisodes = 5\nseeds = 4\n")
    assert bench(file, "--episodes", "1", "--seeds", "7,9", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.count("|    2 of 2 |        1 |") == 2
    assert bench(write(TINY + "[options]\nseeds = 0\n")) == 2
    assert 'learngraph: tiny.toml: seeds is a number like 5, a list like [0, 3, 7] or a range like "20-39", got 0' in (
        capsys.readouterr().err
    )


def test_a_dry_run_plays_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(write(TINY.replace('"random"', '"random", "static"').replace('"uniform"', '"pocket"')), "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "6 runs left" in shown
    assert not Path("runs").exists()
    assert bench("tiny.toml", "--dry-run", "--price-in", "2") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "static" in line)
    assert "|     0 |           0 |              0 |    0.00 |" in line  # a model in this process costs nothing

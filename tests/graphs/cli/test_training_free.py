"""`learngraph run training-free-grpo`: what it prints and leaves behind, its errors, and that it goes on where it stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest
from in_process import play_in_process
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from learngraph.graphs.cli import training_free as training_free_cli
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import learning_curves
from learngraph.graphs.experiments.folder import run_stem
from learngraph.graphs.experiments.training_free import bench as training_free_bench
from learngraph.graphs.experiments.training_free import digests as training_free_digests
from learngraph.graphs.experiments.training_free import setup as training_free_setup
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Rollout, Task
from learngraph.nodes.ask import BadReply
from learngraph.nodes.extract.rollouts import RolloutTimeout
from learngraph.nodes.update.accept_test import acceptance_rates
from learngraph.tools.agent_tools import interpreter
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models import models

METHOD = "training-free-grpo"
SMALL = "--problems 3 --held-out 2 --epochs 2 --group-size 3 --test-problems 3 --test-rollouts 2 --seeds 2 --author rule"
ARMS = [f"{METHOD}:empty", f"{METHOD}?arm=shuffled", f"{METHOD}?arm=random"]


def told(text: str, read: int, written: int) -> ChatResult:
    usage: Any = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text, usage_metadata=usage))])


class Obeys(BaseChatModel):
    """In the toy world: does what a lesson says of the place it stands at, else anything; learns which actions were paid."""

    window: ClassVar[int] = 100_000
    asked: ClassVar[list[str]] = []

    @property
    def _llm_type(self) -> str:
        return "obeys"

    def get_num_tokens(self, text: str) -> int:
        return len(text) // 4

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> list[float]:
        shown = str(messages[-1].content)
        place = shown.splitlines()[-1]
        return [0.0 if f"- {place} {option}\n" in shown else -4.0 for option in options]

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        shown = str(messages[-1].content)
        self.asked.append(shown)
        paid = re.findall(r"^(.+)\n> (.+)\n= [12]$", shown, re.MULTILINE)
        return told(". ".join(dict.fromkeys(f"{place} {action}" for place, action in paid)), 100, 10)


LESSON = "When two numbers are added, carry what is above ten."


class Adds(BaseChatModel):
    """In a world of sums: right if a lesson says how, else as its seed has it; as a critic it writes that lesson."""

    asked: ClassVar[Counter[str]] = Counter()
    temperature: float = 0.0
    seed: int | None = None

    @property
    def _llm_type(self) -> str:
        return "adds"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        system, shown = str(messages[0].content), str(messages[-1].content)
        stage, reply = self._said(system, shown, "\n".join(str(m.content) for m in messages), kwargs.get("seed", 0))
        self.asked[stage] += 1
        return told(reply, 1000, 100)

    def _said(self, system: str, shown: str, everything: str, seed: int) -> tuple[str, str]:
        if "You study how an agent works" in system:
            return "summarise", "It added."
        if "You compare attempts" in system:
            return "contrast", json.dumps({"lessons": [LESSON], "helpful": [], "harmful": []})
        if "Several reviewers" in system:
            return "consolidate", json.dumps({"edits": [{"op": "add", "text": LESSON, "from": [1]}]})
        if "You keep a library of lessons" in system:
            return "propose", json.dumps({"edits": [{"op": "add", "text": LESSON}]})
        a, b = re.findall(r"What is (\d+) \+ (\d+)\?", everything)[-1]
        right = LESSON in everything or seed % 3 == 0
        return "rollout", rf"So it is \boxed{{{int(a) + int(b) + (not right)}}}."


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Runs are played in this process by scripted models, in a directory of their own. One test has its curves drawn."""
    if "arms_play" not in request.node.name:
        monkeypatch.setattr(learning_curves, "draw_library_curves", lambda *args: None)

    def opened(spec: str, **settings: Any) -> Any:
        made: dict[str, Callable[[], Any]] = {
            "pocket": Obeys,
            "openai:adds": lambda: Adds(temperature=settings["temperature"] or 0.0),
        }
        if spec not in made:
            raise UserError(f"there is no model {spec!r}; there are pocket, openai:MODEL")
        return made[spec]()

    play_in_process(monkeypatch, tmp_path)
    monkeypatch.setattr(models, "open_model", opened)
    forget()
    Obeys.asked.clear()
    Adds.asked.clear()
    yield tmp_path
    forget()


def forget() -> None:
    training_free_setup.shared_world.cache_clear()
    training_free_setup.shared_model.cache_clear()
    training_free_digests.weights_digest.cache_clear()


def run(flags: str, out: str = "out", compare: Sequence[str] = ()) -> int:
    return main(["run", METHOD, *flags.split(), "--out", out, *(["--compare", *compare] if compare else [])])


def rows(out: str = "out") -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in json.loads(Path(out, "results.json").read_text())["arms"]}


def results(folder: Path) -> dict[str, Any]:
    """Of all arms and seeds, without times."""
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text())
        for row in result["rollouts"]:
            del row["seconds"]
        found[path.parent.name] = result
    return found


# What comes out


@pytest.mark.slow
def test_arms_play_the_same_unseen_problems(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL, compare=[*ARMS, "react"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == "toy, pocket, 2 seeds; 3 problems to learn from, 2 held out"
    assert (
        "unseen problems, 3 a seed, 2 rollouts each; [95 % over 2 seeds (Student's t; its ends may lie below 0 or above 1)]"
        in lines
    )
    titles = [f"{METHOD} (rule-written)", *ARMS, "react"]
    shown = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert [title for title in shown if title in titles] == titles
    assert "| step |" in printed
    assert "| rollout |" in printed
    for arm in (*ARMS, "react"):
        assert re.search(
            rf"^{re.escape(titles[0])} is (ahead of|not shown to differ from) {re.escape(arm)}: [+]0\.", printed, re.MULTILINE
        )
    assert json.loads(Path("out", "results.json").read_text())["paid"].keys() == {"rollout", "trial", "test"}
    table = rows()
    learned, empty = table[titles[0]], table[ARMS[0]]
    assert learned["mean_at_k"] > empty["mean_at_k"] + 0.2
    assert learned["difference"]["wins"] == 6
    assert table["react"]["difference"]["ties"] == 6  # an empty library is ReAct, draw by draw
    assert table[ARMS[1]]["lessons"] == learned["lessons"] == table[ARMS[2]]["lessons"] > 0
    assert table[ARMS[1]]["mean_at_k"] < learned["mean_at_k"]
    played = {
        name: [(row["task"], row["number"]) for row in found["rollouts"]] for name, found in results(here / "out").items()
    }
    for seed in (0, 1):
        same = [played[f"{run_stem(arm)}-s{seed}"] for arm in (METHOD, *ARMS, "react")]
        assert all(one == same[0] for one in same)
        assert len(set(same[0])) == 6
    left = {path.name for path in (here / "out").iterdir()}
    assert left >= {"settings.json", "results.json", "failures.jsonl", "cache.sqlite", "curves.png", "curves.svg"}
    assert "owner.pid" not in left
    inside = {path.name for path in (here / "out" / f"{METHOD}-s0").iterdir()}
    assert inside >= {
        "library.jsonl",
        "library.yaml",
        "learned.jsonl",
        "steps.jsonl",
        "test.jsonl",
        "checkpoints.sqlite",
        "result.json",
    }


def test_an_arm_can_be_added_to_a_finished_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --seeds 1") == 0
    before = results(here / "out")
    alone = capsys.readouterr().out
    assert f"--compare {METHOD}:empty" in alone, "the table says how to get the library's gain"
    assert run(f"{SMALL} --seeds 1", compare=[ARMS[0]]) == 0
    after = results(here / "out")
    assert after.keys() - before.keys() == {f"{run_stem(ARMS[0])}-s0"}
    assert after | before == after, "what was finished is as it was"
    assert re.search(rf"{METHOD}.* {ARMS[0]}: [+]", capsys.readouterr().out)
    assert list(json.loads((here / "out" / "settings.json").read_text())["arms"]) == [METHOD, ARMS[0]]
    assert run(f"{SMALL} --seeds 1") == 0, "and the first command still shows its own"
    assert run(f"{SMALL} --seeds 1 --lessons.max-lessons 3", compare=[ARMS[0]]) == 2
    error = capsys.readouterr().err
    assert f"arms.{METHOD}.lessons.max_lessons is 40 there, 3 was asked for" in error
    assert len(error) < 600


@pytest.mark.slow
def test_a_folder_takes_more_seeds(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(f"{SMALL} --seeds 1") == 0
    before = results(here / "out")
    for seeds in (2, 4):
        assert run(f"{SMALL} --seeds {seeds}") == 0
        assert f"{seeds} seeds" in capsys.readouterr().out
    after = results(here / "out")
    assert after.keys() == {f"{METHOD}-s{seed}" for seed in range(4)}
    assert after | before == after, "what was finished is as it was"
    assert run(f"{SMALL} --seeds 3") == 2
    assert "seeds is [0, 1, 2, 3] there" in capsys.readouterr().err
    contents = training_free_digests._problem_contents
    for changed in ("keep-test-0", "keep-test-3"):  # of a seed that the folder began with, and of one that came later
        with monkeypatch.context() as patch:
            patch.setattr(
                training_free_digests,
                "_problem_contents",
                lambda options, split, changed=changed: (
                    contents(options, split) + ["new"] * split.train[0].id.startswith(f"{changed}/")
                ),
            )
            assert run(f"{SMALL} --seeds 5") == 2
            assert "digests.problems" in capsys.readouterr().err


@pytest.mark.slow
def test_problems_of_the_toy_are_variants_of_the_seeds_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    for seed in (0, 1):
        problems = results(here / "out")[f"{METHOD}-s{seed}"]["problems"]
        assert [len(problems[part]) for part in ("train", "held_out", "test")] == [3, 2, 3]
        ids = [*problems["train"], *problems["held_out"], *problems["test"]]
        assert len(set(ids)) == 8
        assert {id.partition("/")[0] for id in ids} == {f"keep-test-{seed}"}
        world = KeywordKeep()
        assert len({world.path(world.variant(world.task(seed), int(id.partition("/")[2]))) for id in ids}) == 8


@pytest.mark.slow
def test_a_model_that_writes_a_line_learns_by_itself(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL.replace(" --author rule", ""), compare=ARMS[:1]) == 0
    assert Obeys.asked
    assert all("> " in prompt for prompt in Obeys.asked)
    table = rows()
    assert set(table) == {METHOD, ARMS[0]}
    assert table[METHOD]["mean_at_k"] > table[ARMS[0]]["mean_at_k"]
    assert "| contrast |" in capsys.readouterr().out
    world = KeywordKeep()
    rules = {f"{place} {action}" for place, action in zip(world.path(world.task(0)), world.gold(world.task(0)), strict=True)}
    library = Library.from_yaml((here / "out" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert library.lessons
    assert {lesson.text for lesson in library.lessons} <= rules


@pytest.mark.slow
def test_json_is_one_object_per_arm_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --json", compare=ARMS[:1]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["arm"] for row in found] == [f"{METHOD} (rule-written)", ARMS[0]]
    for row in found:
        assert (row["env"], row["model"], row["seeds"], row["problems"], row["k"]) == ("toy", "pocket", [0, 1], 3, 2)
        assert row["rollouts"] == 12
    steps = found[0]["steps"][0]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert found[1]["steps"] == []


@pytest.mark.slow
def test_a_finished_run_shows_its_results_again_and_changes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL, compare=ARMS) == 0
    first = capsys.readouterr().out
    kept = {path: path.read_bytes() for path in (here / "out").glob("*/*") if path.suffix in (".json", ".jsonl", ".yaml")}
    forget()
    assert run(SMALL, compare=ARMS) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert "finished already" in again.err
    assert {path: path.read_bytes() for path in kept} == kept


def test_the_curve_has_the_unseen_problems_at_every_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --curve --seeds 1") == 0
    steps = results(here / "out")[f"{METHOD}-s0"]["steps"]
    assert all(step["test"] is not None for step in steps)
    rewards = [row["reward"] for row in results(here / "out")[f"{METHOD}-s0"]["rollouts"]]
    assert steps[-1]["test"] == pytest.approx(sum(rewards) / len(rewards))
    assert "| test " in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_may_share_their_problems(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --same-problems") == 0
    found = results(here / "out")
    one, two = found[f"{METHOD}-s0"], found[f"{METHOD}-s1"]
    assert one["problems"] == two["problems"]
    assert [row["id"] for row in one["rollouts"]] != [row["id"] for row in two["rollouts"]]
    assert {row["id"].partition("/")[0] for row in two["rollouts"]} == {"s1"}  # draws of its own


def test_arms_are_measured_against_the_same_agent_without_lessons() -> None:
    def against(*names: str, **flags: str) -> str:
        arms = [training_free_setup.LibraryArm(METHOD, TrainingFreeGRPO(), METHOD)]
        arms += [training_free_setup.LibraryArm(name, object(), name) for name in names]
        return training_free_setup.TrainingFreeSetup(
            training_free_setup.TrainingFreeOptions(**flags), tuple(arms), (0,), Path()
        ).baseline_title

    assert against("react", "tool-agent") == "react"
    assert against("react", "tool-agent", tools="python") == "tool-agent"
    assert against("react", tools="python") == ""


# A model behind an API


@pytest.fixture
def sums(here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A world of sums with a model that writes: flags."""
    pytest.importorskip("math_verify", reason="NOT TESTED: pip install math-verify")
    problems = [{"problem": f"What is {17 * n + 5} + {n}?", "answer": str(18 * n + 5)} for n in range(1, 41)]
    monkeypatch.setattr("learngraph.nodes.extract.critic.SHORT_ATTEMPT", 0)  # reports are asked for here, too
    (here / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    # A verifier's processes take a second to start; what they do is tested elsewhere.
    return (
        "--env math?file=sums.jsonl --model openai:adds --problems 4 --held-out 2 --epochs 1 --group-size 4 --test-problems 4 --test-rollouts 2 --seeds 2 "
        "--price-in 1 --price-out 10 --trial.margin 1"  # two held-out problems show nothing more exact
    )


@pytest.mark.slow
def test_a_model_that_writes_learns_compares_and_pays_by_stage(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    secret = "--base-url http://user:hidden@server.example/v1"
    assert run(f"{sums} {secret}", compare=ARMS[:1]) == 0
    printed = capsys.readouterr().out
    table = rows()
    assert table[METHOD]["mean_at_k"] == 1.0
    assert table[METHOD]["pass_by"] == "unbiased"
    assert table[ARMS[0]]["mean_at_k"] < 0.8
    library = Library.from_yaml((here / "out" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert [lesson.text for lesson in library.lessons] == [LESSON]
    told = json.loads((here / "out" / "results.json").read_text())
    assert told["paid"].keys() == {"rollout", "trial", "test", "summarise", "contrast", "consolidate"}
    assert sum(usage["calls"] for usage in told["paid"].values()) == sum(Adds.asked.values())
    for stage in ("summarise", "contrast", "consolidate"):
        assert told["paid"][stage]["calls"] == Adds.asked[stage]
    calls = told["paid"]["contrast"]["calls"]
    assert told["dollars"]["contrast"] == pytest.approx(calls * (1000 + 10 * 100) / 1e6)
    assert "dollars" in printed
    for path in here.rglob("*"):  # no secret is left anywhere
        if path.is_file():
            content = path.read_bytes()
            assert b"sk-secret-key" not in content, path
            assert b"hidden" not in content, path


@pytest.mark.slow
def test_each_stage_has_a_model_of_its_own_temperature(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, float]] = []
    say = Adds._said

    def note(self: Adds, system: str, shown: str, everything: str, seed: int) -> tuple[str, str]:
        stage, reply = say(self, system, shown, everything, seed)
        heard.append((stage, self.temperature))
        return stage, reply

    monkeypatch.setattr(Adds, "_said", note)
    flags = "--temperature 0.9 --trial.temperature 0.4 --test-temperature 0.2 --critic-temperature 0.1"
    assert run(f"{sums} {flags} --seeds 1") == 0
    assert {temperature for stage, temperature in heard if stage == "rollout"} == {0.9, 0.4, 0.2}
    assert {temperature for stage, temperature in heard if stage != "rollout"} == {0.1}


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["--token-budget 9000", pytest.param("--dollar-budget 0.02", marks=pytest.mark.slow)])
def test_a_budget_stops_the_run_with_what_it_has_and_a_larger_one_goes_on(
    budget: str, here: Path, sums: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sums += " --concurrency 1"
    assert run(sums, "whole", compare=ARMS[:1]) == 0
    whole = Adds.asked.copy()
    assert "stopped" not in capsys.readouterr().out
    Adds.asked.clear()
    assert run(f"{sums} {budget}", compare=ARMS[:1]) == 0
    printed = capsys.readouterr().out
    assert sum("stopped: the budget of" in line for line in printed.splitlines()) == 1
    told = json.loads((here / "out" / "results.json").read_text())
    calls = sum(usage["calls"] for usage in told["paid"].values())
    assert calls == sum(Adds.asked.values()) == (9 if "token" in budget else 10)  # of 1100 tokens, or $0.002
    assert not list((here / "out").glob("*/result.json"))
    assert run(sums, compare=ARMS[:1]) == 0  # a budget is no setting: the same run
    assert results(here / "out") == results(here / "whole")
    for stage in ("rollout", "contrast", "consolidate"):  # nothing was paid for twice; in other stages there are equal calls
        assert Adds.asked[stage] == whole[stage]


@pytest.mark.slow
def test_rollouts_call_tools_of_their_own(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model asks its interpreter for the sum where a lesson says so."""

    class Calls(Adds):
        def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
            return self.bind(tools=[tool.name for tool in tools], **kwargs)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            everything = "\n".join(str(message.content) for message in messages)
            if not kwargs.get("tools") or LESSON not in everything:
                return super()._generate(messages, **kwargs)
            if outputs := [message for message in messages if message.type == "tool"]:  # how many turns are left may follow
                return told(rf"So it is \boxed{{{str(outputs[-1].content).strip()}}}.", 10, 1)
            a, b = re.findall(r"What is (\d+) \+ (\d+)\?", everything)[-1]
            call: Any = {"name": kwargs["tools"][0], "args": {"code": f"print({a} + {b})"}, "id": "call"}
            return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])

    monkeypatch.setattr(models, "open_model", lambda spec, **settings: Calls(temperature=settings["temperature"] or 0.0))
    flags = "--tools python --seeds 1 --problems 2 --held-out 1 --test-problems 2 --test-rollouts 1 --accept always"
    assert run(f"{sums} {flags} --tool-turns 3", compare=[ARMS[0], "tool-agent"]) == 0
    assert json.loads((here / "out" / "settings.json").read_text())["arms"]["tool-agent"]["max_turns"] == 3
    table = rows()
    assert (table[METHOD]["tool_calls"], table[METHOD]["mean_at_k"]) == (1.0, 1.0)
    assert table[ARMS[0]]["tool_calls"] == table["tool-agent"]["tool_calls"] == 0  # counted, and not mistaken for actions
    assert "tool calls/rollout" in capsys.readouterr().out


def test_more_seeds_than_there_are_problems(here: Path, sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{sums} --seeds 9") == 2
    error = capsys.readouterr().err
    assert "and there are not so many" in error
    assert f"ask for fewer (--problems, of {METHOD})" in error
    assert run(f"{sums} --seeds 2 --held-out 30") == 2
    assert "30 tasks of dev from number 0 on" in capsys.readouterr().err


@pytest.mark.slow
def test_folds_may_be_the_same_and_no_problem_is_in_two_parts(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{sums} --splits train,train,test") == 0
    found = results(here / "out")
    parts = [found[f"{METHOD}-s{seed}"]["problems"][part] for seed in (0, 1) for part in ("train", "held_out", "test")]
    ids = [id for part in parts for id in part]
    assert len(set(ids)) == len(ids) == 20
    assert all(id.startswith("math-train-") for part in (parts[0], parts[1], parts[3], parts[4]) for id in part)


# Mistakes


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--env nowhere", "there are toy, twx:coin"),
        ("--env math?file=nowhere.jsonl", "nowhere.jsonl"),
        ("--env math?file=unanswered.jsonl", "without a problem or an answer"),
        ("--env math?file=doubled.jsonl --problems 2 --held-out 1 --test-problems 1", "there are not so many"),
        ("--model nobody", "there are pocket"),
        ("--critic nobody", "there are pocket"),
        ("--problems 0", "problems is at least 1"),
        ("--group-size 1 --author rule", "nothing to be compared with"),
        ("--truth rumour", "majority"),
        ("--test-problems 0", "--test-problems is at least 1, got 0"),
        ("--test-rollouts 0", "--test-rollouts is at least 1, got 0"),
        ("--seeds none", "0,3,7"),
        ("--dollar-budget 5", "--price-in"),
        ("--token-budget -1", "--token-budget is at least 0"),
        ("--tools hammer", "python, search, web"),
        ("--tools python", "toy is played step by step"),
        ("--tool-turns 5", "--tool-turns 5 is for models with tools"),
        ("--corpus nowhere.jsonl", "--tools search"),
        ("--test-temperature -0.1", "--test-temperature is at least 0, got -0.1"),
        ("--critic-temperature -1", "--critic-temperature is at least 0"),
        ("--critic-temperature nan", "--critic-temperature is at least 0"),
        ("--critic-price-in -1", "--critic-price-in is at least 0"),
        ("--critic-price-out -1", "--critic-price-out is at least 0"),
        ("--max-tokens 0", "--max-tokens is at least 1, got 0"),
        ("--window 0", "--window is at least 1, got 0"),
        ("--compare cot", "cot cannot run: cot reasons in writing"),
        ("--compare training-free-grpo?arm=self-generated", "training-free-grpo?arm=self-generated cannot run: "),
        ("--library torn.yaml", "torn.yaml"),
        ("--splits train,exam,test", "train, dev and test"),
        ("--concurrency 0", "--concurrency is at least 1"),
        ("--library nowhere.yaml", "nowhere.yaml"),
        ("--prompts nowhere", "--prompts nowhere: cannot be read"),
        ("--bata 3", "--batch-size"),
        ("--compare training-free-grpo:best", "it has default, paper, empty"),
        ("--compare reflexion", "it learns from attempts at one problem"),
        ("--compare nobody", "no method is called 'nobody'"),
        ("--arm self-generated", "has a model write"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_left_behind(
    flags: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "math" in flags:
        pytest.importorskip("math_verify", reason="NOT TESTED: pip install math-verify")
    (here / "unanswered.jsonl").write_text('{"problem": "What is 1 + 1?"}\n')
    (here / "doubled.jsonl").write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n' * 4)
    small = "--problems 2 --held-out 1 --test-problems 1 --test-rollouts 1 --seeds 1"
    (here / "torn.yaml").write_text("- id: L1\n")
    assert run(f"{small} {flags}") == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1, shown.err
    assert shown.err.startswith("learngraph: ")
    assert says in shown.err
    assert shown.out == ""
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    "flags",
    [
        *("--model nobody", "--critic nobody", "--tools python", "--max-tokens 0", "--library torn.yaml"),
        *("--compare cot", f"--compare {METHOD}?arm=self-generated", "--arm self-generated"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(flags: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "torn.yaml").write_text("- id: L1\n")
    small = "--problems 2 --held-out 1 --test-problems 1 --test-rollouts 1 --seeds 1"
    assert run(f"{small} {flags}") == 2
    said = capsys.readouterr().err
    assert run(f"{small} {flags} --dry-run") == 2
    assert capsys.readouterr().err == said


def test_problems_that_say_the_same_are_refused(here: Path) -> None:
    class World:
        name = "twins"

        def answer(self, text: str) -> str:
            return text

    task = KeywordKeep().task
    split = training_free_setup.ProblemSplit((task(0),), (task(1),), (task(2),))
    with pytest.raises(UserError, match="problems keep-test-0 and keep-test-1 say the same"):
        training_free_setup._check_distinct(World(), split, {})
    training_free_setup._check_distinct(KeywordKeep(), split, {})  # where the text is the same for all, ids tell them apart
    with pytest.raises(UserError, match="problem keep-test-0 is there twice"):
        training_free_setup._check_distinct(KeywordKeep(), training_free_setup.ProblemSplit((task(0),), (), (task(0),)), {})


def test_a_method_of_this_kind_is_no_arm_of_another(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "react", "--env", "toy", "--compare", METHOD]) == 2
    assert f"learngraph run {METHOD} compares it" in capsys.readouterr().err


# E1: every setting is a flag


def test_every_setting_can_be_given_and_taken_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, str] = {
        "problems": "--problems 2",
        "held_out": "--held-out 1",
        "epochs": "--epochs 1",
        "batch_size": "--batch-size 2",
        "patience": "--patience 0",
        "group_size": "--group-size 2",
        "temperature": "--temperature 0.5",
        "truth": "--truth majority",
        "author": "--author rule",
        "accept": "--accept always",
        "library": "--library lessons.yaml",
        "arm": "--arm learned",
        "rollouts": "--rollouts.lessons-per-prompt 2 --rollouts.timeout 60",
        "rewards": "--rewards.min-agreement 0.5 --rewards.compare-failed-groups --rewards.action-cost 0.01",
        "lessons": "--lessons.consolidate code --lessons.max-words 20 --lessons.objective walk",
        "trial": "--trial.rollouts 2 --trial.temperature 0.1 --trial.margin 0.2",
    }
    (here / "lessons.yaml").write_text("- door black mist\n")
    assert given.keys() == {one.name for one in fields(TrainingFreeGRPO)}
    assert run(" ".join([*given.values(), "--test-problems 1 --test-rollouts 1 --seeds 1"])) == 0
    settings = json.loads((here / "out" / "settings.json").read_text())["arms"][METHOD]
    usual = asdict(TrainingFreeGRPO())
    assert [name for name, value in settings.items() if value == usual[name]] == ["arm"]
    assert (settings["lessons"]["max_words"], settings["trial"]["rollouts"], settings["rewards"]["action_cost"]) == (
        20,
        2,
        0.01,
    )
    back = "--rollouts.timeout None --rewards.no-compare-failed-groups --truth given --horizon None --window None --critic None"
    assert run(f"{' '.join(given.values())} {back} --test-problems 1 --test-rollouts 1 --seeds 1", "back") == 0
    again = json.loads((here / "back" / "settings.json").read_text())["arms"][METHOD]
    assert (again["rollouts"]["timeout"], again["rewards"]["compare_failed_groups"], again["truth"]) == (None, False, "given")


def test_presets_are_other_defaults(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "run training-free-grpo:paper --problems 2 --epochs 1 --author rule --test-problems 1 --test-rollouts 1 --seeds 1 --out out"
    assert main([*command.split(), "--compare", f"{METHOD}?accept=always", f"{METHOD}:empty"]) == 0
    arms = json.loads((here / "out" / "settings.json").read_text())["arms"]
    assert (arms[f"{METHOD}:paper"]["held_out"], arms[f"{METHOD}:paper"]["accept"], arms[f"{METHOD}:paper"]["problems"]) == (
        0,
        "always",
        2,
    )
    assert arms[f"{METHOD}:empty"] == arms[f"{METHOD}:paper"] | {"arm": "empty"}


def test_the_paper_as_an_arm_changes_its_own_switches_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--problems 2 --epochs 1 --group-size 3 --held-out 1 --rollouts.lessons-per-prompt 2 --patience 5 --author rule --test-problems 1 --test-rollouts 1 --seeds 1"
    assert run(flags, compare=[f"{METHOD}:paper"]) == 0
    arms = json.loads((here / "out" / "settings.json").read_text())["arms"]
    paper = asdict(TrainingFreeGRPO.paper())
    expected = arms[METHOD] | {name: paper[name] for name in ("held_out", "accept", "patience", "lessons")}
    assert arms[f"{METHOD}:paper"] == expected


def test_a_library_may_be_the_folder_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--problems 2 --held-out 1 --epochs 1 --group-size 3 --test-problems 1 --test-rollouts 1 --seeds 1 --author rule"
    assert run(small, "first") == 0
    product = Library.from_yaml((here / "first" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert run(f"{small} --library first/{METHOD}-s0", "second") == 0
    assert LibraryVersions.read(here / "second" / f"{METHOD}-s0" / "library.jsonl").at("s0/0").lessons == product.lessons != ()


# E2, E3, E9: whose folder it is


@pytest.mark.slow
def test_other_settings_models_prompts_or_data_need_another_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = here / "prompts"
    (prompts / "act").mkdir(parents=True)
    score = Path(models.__file__).parents[2] / "nodes" / "prompts" / "act" / "score.md"
    (prompts / "act" / "score.md").write_text(score.read_text())
    library = here / "lessons.yaml"
    library.write_text("- door black mist\n")
    flags = f"{SMALL} --seeds 1 --prompts {prompts} --library {library}"
    assert run(flags) == 0
    before = results(here / "out")

    def refused(flags: str, says: str) -> None:
        capsys.readouterr()
        forget()
        assert run(flags) == 2
        error = capsys.readouterr().err
        assert "holds a run with other settings" in error
        assert says in error

    refused(f"{flags} --batch-size 2 --dry-run", f"arms.{METHOD}.batch_size is 0 there, 2 was asked for")
    refused(f"{flags} --batch-size 2", f"arms.{METHOD}.batch_size is 0 there, 2 was asked for")
    refused(f"{flags} --test-problems 4", "test_problems is 3 there, 4 was asked for")
    refused(f"{flags} --horizon 12", "horizon is null there, 12 was asked for")
    library.write_text("- door black salt\n")
    refused(flags, f"digests.library {library}")
    library.write_text("- door black mist\n")
    (prompts / "act" / "score.md").write_text(score.read_text().replace("text world", "world of text"))
    refused(flags, "digests.prompts")
    (prompts / "act" / "score.md").write_text(score.read_text())
    with monkeypatch.context() as later:
        later.setattr(metadata, "version", lambda name: "9.9")
        refused(flags, 'there, "9.9" was asked for')
    weights = here / "weights"
    weights.mkdir()
    (weights / "model").write_text("other weights")
    monkeypatch.setattr(models, "POCKET", weights)
    refused(flags, "digests.model pocket")
    monkeypatch.undo()
    assert results(here / "out") == before
    assert "stopped" not in capsys.readouterr().out


def test_a_folder_belongs_to_one_process(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from filelock import FileLock

    (here / "out").mkdir()
    (here / "out" / "owner.pid").write_text("4711\n")
    with FileLock(here / "out" / "owner.lock"):
        assert run(SMALL) == 2
    assert "process 4711 is at work in out" in capsys.readouterr().err


# A crash


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [14, pytest.param(2, marks=pytest.mark.slow), *(pytest.param(at, marks=pytest.mark.long) for at in (9, 21))]
)
def test_a_run_that_breaks_off_ends_with_the_same_numbers(
    at: int, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks off after so many rollouts, while learning or in the test, for a reason of nobody's."""
    from learngraph.nodes.extract.rollouts import RolloutPlayer

    assert run(SMALL, "whole", compare=ARMS) == 0
    kept, count = RolloutPlayer._store, 0

    def breaks(self: RolloutPlayer, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise MemoryError("out of memory")
        return kept(self, *args)

    monkeypatch.setattr(RolloutPlayer, "_store", breaks)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(SMALL, compare=ARMS)
    monkeypatch.setattr(RolloutPlayer, "_store", kept)
    forget()
    assert run(SMALL, compare=ARMS) == 0
    assert results(here / "out") == results(here / "whole")
    one, two = (LibraryVersions.read(here / out / f"{METHOD}-s1" / "library.jsonl") for out in ("out", "whole"))
    assert one.names() == two.names()
    assert [one.at(name) for name in one.names()] == [two.at(name) for name in two.names()]


@pytest.mark.long
def test_killed_workers_and_all_it_goes_on(tmp_path: Path) -> None:
    """With the pocket model, in processes of their own: what is learned after kill -9 is what would have been learned."""
    flags = f"--problems 2 --held-out 1 --epochs 2 --group-size 2 --test-problems 1 --test-rollouts 1 --seeds 2 --compare {ARMS[0]} --workers 2".split()

    def command(out: str) -> list[str]:
        return [sys.executable, "-m", "learngraph.graphs.cli.main", "run", METHOD, *flags, "--out", out]

    begun = subprocess.Popen(command("out"), cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    log = tmp_path / "out" / f"{METHOD}-s0" / "learned.jsonl"
    end = time.monotonic() + 300
    while time.monotonic() < end and not (log.exists() and log.stat().st_size):
        assert begun.poll() is None
        time.sleep(0.05)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    assert not (tmp_path / "out" / "results.json").exists()
    done = subprocess.run(command("out"), cwd=tmp_path, capture_output=True, text=True, check=True)
    subprocess.run(command("whole"), cwd=tmp_path, capture_output=True, check=True)
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert results(tmp_path / "out").keys() == {f"{run_stem(arm)}-s{seed}" for arm in (METHOD, ARMS[0]) for seed in (0, 1)}
    assert "Mean@1" in done.stdout


# Failures


def test_what_nobody_can_verify_is_listed_and_counts_as_zero(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = KeywordKeep.observe

    def unsure(self: KeywordKeep, task: Any, actions: Sequence[str]) -> Any:
        seen = observe(self, task, actions)
        return replace(seen, reward=None) if task.id.endswith("/6") and actions else seen  # the first of the test

    monkeypatch.setattr(KeywordKeep, "observe", unsure)
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 0
    told = [json.loads(line) for line in (here / "out" / "failures.jsonl").read_text().splitlines()]
    assert [(row["arm"], row["seed"], row["id"]) for row in told] == [
        (arm, 0, f"s0/test/keep-test-0/6/{number}") for arm in (f"{METHOD} (rule-written)", ARMS[0]) for number in (0, 1)
    ]
    assert all(row["reason"].startswith("no reward: ") for row in told)
    table = rows()
    assert {row["failures"] for row in table.values()} == {2}
    assert "2 of 6" in capsys.readouterr().out
    rewards = [row["reward"] for row in results(here / "out")[f"{METHOD}-s0"]["rollouts"]]
    assert rewards.count(None) == 2
    known = sum(reward for reward in rewards if reward is not None)
    assert table[f"{METHOD} (rule-written)"]["mean_at_k"] == pytest.approx(known / 6)


@pytest.mark.slow
@pytest.mark.parametrize("down", ["/6", "/"])
def test_an_outage_in_the_test_counts_for_nothing_and_is_played_again(
    down: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one problem of the test, or of all, while the library has been learned."""
    assert run(f"{SMALL} --seeds 1", "whole", compare=ARMS[:1]) == 0
    test, observe = training_free_bench.SeedWorker._test, KeywordKeep.observe

    def refused(self: KeywordKeep, task: Any, actions: Sequence[str]) -> Any:
        if down in task.id and len(actions) == 2:
            raise UserError("the server cannot be reached")
        return observe(self, task, actions)

    async def breaks(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(KeywordKeep, "observe", refused)
        return await test(self, *args)

    monkeypatch.setattr(training_free_bench.SeedWorker, "_test", breaks)
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 2
    error = capsys.readouterr().err
    assert f"{METHOD}, seed 0: {2 if down == '/6' else 6} of 6 rollouts of the test failed" in error
    assert "the server cannot be reached" in error
    assert "the same command goes on" in error
    assert not list((here / "out").glob("*/result.json"))
    monkeypatch.setattr(KeywordKeep, "observe", observe)
    monkeypatch.setattr(training_free_bench.SeedWorker, "_test", test)
    forget()
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 0
    assert results(here / "out") == results(here / "whole")


@pytest.mark.slow
def test_an_outage_while_learning_ends_the_run_and_the_same_command_goes_on_when_it_is_over(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(f"{SMALL} --seeds 1", "whole", compare=ARMS[:1]) == 0
    observe = KeywordKeep.observe

    def refused(self: KeywordKeep, task: Any, actions: Sequence[str]) -> Any:
        if len(actions) == 2:
            raise UserError("the server cannot be reached")
        return observe(self, task, actions)

    monkeypatch.setattr(KeywordKeep, "observe", refused)
    for _ in range(2):
        assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 2
        assert "for one reason: the server cannot be reached" in capsys.readouterr().err
        forget()
    monkeypatch.setattr(KeywordKeep, "observe", observe)
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 0
    assert results(here / "out") == results(here / "whole")


def test_what_the_agent_does_itself_is_no_outage() -> None:
    def failed(error: object) -> Rollout:
        return Rollout("s0/test/t/0", Task("t", "go"), 0, None, error=str(error))

    for own in (
        BadReply("act/choose", "asked for a letter", "x" * 900),
        RolloutTimeout("took longer than 5 s"),
        "no reward: unsure",
    ):
        assert training_free_bench._is_final_failure(failed(own))
    assert not training_free_bench._is_final_failure(
        failed("openai:any at http://127.0.0.1/v1: cannot be reached, tried 5 times")
    )


def test_keys_that_a_server_repeats_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "my-own-key")
    said = training_free_bench._redact_keys("401: Incorrect API key provided: sk-proj-4f_x9, my-own-key. A task-list is none")
    assert said == "401: Incorrect API key provided: sk-…, $OPENAI_API_KEY. A task-list is none"
    assert training_free_bench._redact_keys("at http://me:hidden@host/v1: no") == "at http://host/v1: no"
    row = training_free_bench._rollout_row(Rollout("r", Task("t", "go"), 0, None, error="key sk-secret-123"), "error")
    assert row["error"] == "key sk-…"


def test_a_machine_without_walls_is_told_of_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = training_free_setup.TrainingFreeOptions(tools="python")
    monkeypatch.setattr(interpreter.Interpreter, "walls", frozenset({"limits"}))
    training_free_cli._warn_about_sandbox(options)
    assert "(calls, files missing" in capsys.readouterr().err
    monkeypatch.setattr(interpreter.Interpreter, "walls", frozenset({"limits", "files", "calls"}))
    training_free_cli._warn_about_sandbox(options)
    training_free_cli._warn_about_sandbox(training_free_setup.TrainingFreeOptions())
    assert capsys.readouterr().err == ""


# Before anything is asked


def test_a_dry_run_asks_nobody_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(spec: str, **settings: Any) -> Any:
        raise AssertionError("a dry run opens no model")

    monkeypatch.setattr(models, "open_model", nobody)
    flags = "--env game24 --model openai:any --problems 10 --held-out 4 --epochs 2 --group-size 3 --test-problems 5 --test-rollouts 2 --seeds 2"
    assert run(f"{flags} --dry-run --json --price-in 1 --price-out 2", compare=[f"{METHOD}:empty"]) == 0
    plan = json.loads(capsys.readouterr().out)
    calls = {stage["stage"]: stage["calls"] for stage in plan["stages"]}
    turns, seeds = 4, 2
    assert calls == {
        "rollout": 2 * 10 * 3 * turns * seeds,
        "summarise": 10 * 3 * seeds,  # half of the 20 groups
        "contrast": 10 * seeds,
        "propose": 10 * seeds,
        "consolidate": 2 * seeds,
        "trial": 2 * 2 * 4 * 3 * turns * seeds,  # a step: the candidate and the library, 4 problems, 3 rollouts
        "test": 2 * 5 * 2 * turns * seeds,
    }
    tokens = sum(stage["calls"] * (stage["read"] + stage["written"]) for stage in plan["stages"])
    assert plan["tokens"] == pytest.approx(tokens, abs=len(calls))
    assert plan["dollars"] == pytest.approx(
        sum(stage["calls"] * (stage["read"] + 2 * stage["written"]) for stage in plan["stages"]) / 1e6, rel=1e-6
    )
    assert not list(here.iterdir())
    rates = plan["acceptance"][METHOD]
    assert plan["acceptance"].keys() == {METHOD}
    settings = TrainingFreeGRPO(problems=10, held_out=4, epochs=2, group_size=3)
    assert rates == {str(gain): rate for gain, rate in acceptance_rates("not-worse", settings.trial, 4).items()}
    assert run(f"{flags} --dry-run --held-out 40 --token-budget 1000") == 0
    printed = capsys.readouterr().out
    assert "no model was asked" in printed
    (said,) = re.findall(r"accept test takes a library that is 10 points worse with probability (\d+)%", printed)
    assert int(said) < 5
    assert "assumed: 50% of the groups" in printed
    assert "--token-budget 1,000 may not last" in printed


@pytest.mark.slow
def test_a_dry_run_knows_what_calls_took_here(here: Path, sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sums) == 0
    capsys.readouterr()
    asked = Adds.asked.copy()
    assert run(f"{sums} --dry-run --json") == 0
    plan = json.loads(capsys.readouterr().out)
    known = [stage for stage in plan["stages"] if stage["stage"] != "propose"]  # it was not asked: the library was empty
    assert {(stage["read"], stage["written"]) for stage in known} == {(1000.0, 100.0)}
    assert "propose" not in asked
    assert Adds.asked == asked


def test_help_says_what_is_learned_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", METHOD, "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for flag in (
        "--critic-temperature",
        "--dry-run",
        "--token-budget",
        "--price-in",
        "--held-out",
        "--rewards.compare-failed-groups",
    ):
        assert flag in shown
    assert "no two seeds share one" in shown

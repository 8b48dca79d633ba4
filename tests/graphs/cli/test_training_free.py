"""`learngraph run training-free-grpo`: what it prints and leaves behind, its errors, and that it goes on where it stopped."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from in_process import draw_pictures, play_in_process
from langchain_core.messages import AIMessage, BaseMessage
from scripted_chat import SayingChat, counted

from learngraph.graphs.arms import make_arm
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments import costs, dry_run, run_inputs
from learngraph.graphs.experiments.folder import run_stem
from learngraph.graphs.experiments.training_free import checks, options, play, report
from learngraph.graphs.training_free_grpo import TrainingFreeGRPO
from learngraph.memory.errors import UserError
from learngraph.memory.lessons.library import Library
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson, Rollout, Task
from learngraph.nodes.ask import BadReply
from learngraph.nodes.extract.rollouts import RolloutTimeout
from learngraph.nodes.read_reply import Unreadable
from learngraph.tools.agent_tools import interpreter
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.passages import Passages
from learngraph.tools.models import models

METHOD = "training-free-grpo"
SMALL = "--problems 3 --held-out 2 --epochs 2 --group-size 3 --test-problems 3 --test-rollouts 2 --seeds 2 --author rule"
ARMS = [f"{METHOD}?arm=empty", f"{METHOD}?arm=shuffled", f"{METHOD}?arm=random"]


class Obeys(SayingChat):
    """In the toy world: does what a lesson says of the place it stands at, else anything; learns which actions were paid."""

    window: ClassVar[int] = 100_000
    asked: ClassVar[list[str]] = []

    def get_num_tokens(self, text: str) -> int:
        return len(text) // 4

    def score(self, messages: Sequence[BaseMessage], options: Sequence[str]) -> list[float]:
        shown = str(messages[-1].content)
        place = shown.splitlines()[-1]
        return [0.0 if f"- {place} {option}\n" in shown else -4.0 for option in options]

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        shown = str(messages[-1].content)
        self.asked.append(shown)
        paid = re.findall(r"^(.+)\n> (.+)\n= [12]$", shown, re.MULTILINE)
        return counted(". ".join(dict.fromkeys(f"{place} {action}" for place, action in paid)), 100, 10)


LESSON = "When two numbers are added, carry what is above ten."


class Adds(SayingChat):
    """In a world of sums: right if a lesson says how, else as its seed has it; as a critic it writes that lesson."""

    asked: ClassVar[Counter[str]] = Counter()
    temperature: float = 0.0
    seed: int | None = None

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        system, shown = str(messages[0].content), str(messages[-1].content)
        stage, reply = self._said(system, shown, "\n".join(str(m.content) for m in messages), options.get("seed", 0))
        self.asked[stage] += 1
        return counted(reply, 1000, 100)

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
        monkeypatch.setattr(report, "draw_library_curves", lambda *args: None)

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
    run_inputs.shared_environment.cache_clear()
    run_inputs.shared_model.cache_clear()


def run(flags: str, out: str = "out", compare: Sequence[str] = ()) -> int:
    return main(["run", METHOD, *flags.split(), "--out", out, *(["--compare", *compare] if compare else [])])


def rows(out: str = "out") -> dict[str, dict[str, Any]]:
    """Method -> its numbers: means of the columns of its table, and their values by seed."""
    found = {}
    for row in json.loads(Path(out, "results.json").read_text()):
        metrics = {name: one["mean"] for name, one in row["metrics"].items()}
        found[row["method"]] = {**metrics, "lead": row["lead_of_against"].get("avg")}
    return found


def results(folder: Path) -> dict[str, Any]:
    """Of all arms and seeds, without times."""
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        rollouts = [json.loads(line) for line in (path.parent / "episodes.jsonl").read_text().splitlines()]
        kept = [{name: value for name, value in row.items() if name != "seconds"} for row in rollouts]
        found[path.parent.name] = json.loads(path.read_text()) | {"rollouts": sorted(kept, key=lambda row: row["episode"])}
    return found


# What comes out


@pytest.mark.slow
def test_arms_play_the_same_unseen_problems(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_pictures(monkeypatch)
    assert run(SMALL, compare=[*ARMS, "react"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("toy, 6 episodes, 2 seeds; [95 % interval over seeds")
    titles = [f"{METHOD} (rule-written)", *ARMS, "react"]
    shown = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("| ")]
    assert [title for title in shown if title in titles][:5] == titles
    for head in ("| step |", "| stage ", "best of each task", f"{titles[0]} minus"):
        assert head in printed
    assert costs.ledger_usage(here / "out", costs.CACHE).keys() == {"rollout", "trial", "test"}
    table = rows()
    learned, empty = table[titles[0]], table[ARMS[0]]
    assert learned["avg"] > empty["avg"] + 0.2
    assert empty["lead"]["wins"] == 2
    assert re.search(rf"^\| {re.escape(ARMS[0])} .* 6 / 0 / 0 \|$", printed, re.MULTILINE)  # problem by problem
    assert table["react"]["avg"] == empty["avg"]  # an empty library is ReAct, draw by draw
    assert table[ARMS[1]]["lessons"] == learned["lessons"] == table[ARMS[2]]["lessons"] > 0
    assert table[ARMS[1]]["avg"] < learned["avg"]
    played = {
        name: [(row["task"], row["number"]) for row in found["rollouts"]] for name, found in results(here / "out").items()
    }
    for seed in (0, 1):
        same = [played[f"{run_stem(arm)}-s{seed}"] for arm in (METHOD, *ARMS, "react")]
        assert all(one == same[0] for one in same)
        assert len(set(same[0])) == 6
    left = {path.name for path in (here / "out").iterdir()}
    assert left >= {"settings.json", "results.json", "report.html", "cache.sqlite", "curves.png", "curves.svg"}
    assert "owner.pid" not in left
    inside = {path.name for path in (here / "out" / f"{METHOD}-s0").iterdir()}
    assert inside >= {
        "library.jsonl",
        "library.yaml",
        "learned.jsonl",
        "steps.jsonl",
        "episodes.jsonl",
        "checkpoints.sqlite",
        "result.json",
    }


@pytest.mark.slow
def test_an_arm_can_be_added_to_a_finished_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --seeds 1") == 0
    before = results(here / "out")
    assert run(f"{SMALL} --seeds 1", compare=[ARMS[0]]) == 0
    after = results(here / "out")
    assert after.keys() - before.keys() == {f"{run_stem(ARMS[0])}-s0"}
    assert after | before == after, "what was finished is as it was"
    assert f"{METHOD} (rule-written) minus" in capsys.readouterr().out
    assert list(json.loads((here / "out" / "settings.json").read_text())["methods"]) == [METHOD, ARMS[0]]
    assert run(f"{SMALL} --seeds 1", compare=[ARMS[0]]) == 0
    assert "finished already" in capsys.readouterr().err
    assert results(here / "out") == after
    assert run(f"{SMALL} --seeds 1 --lessons.max-lessons 3", compare=[ARMS[0]]) == 2
    error = capsys.readouterr().err
    assert f"methods.{METHOD}.lessons.max_lessons is 40 there, 3 was asked for" in error
    assert run(f"{SMALL} --seeds 1 --test-problems 4", compare=[ARMS[0]]) == 2
    assert "test_problems is 3 there, 4 was asked for" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_writes_a_line_learns_by_itself(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL.replace(" --author rule", ""), compare=ARMS[:1]) == 0
    assert Obeys.asked
    assert all("> " in prompt for prompt in Obeys.asked)
    table = rows()
    assert set(table) == {METHOD, ARMS[0]}
    assert table[METHOD]["avg"] > table[ARMS[0]]["avg"]
    assert "| contrast |" in capsys.readouterr().out
    world = KeywordKeep()
    rules = {f"{place} {action}" for place, action in zip(world.path(world.task(0)), world.gold(world.task(0)), strict=True)}
    library = Library.from_yaml((here / "out" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert library.lessons
    assert {lesson.text for lesson in library.lessons} <= rules


@pytest.mark.slow
def test_the_curve_has_the_unseen_problems_at_every_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --curve --seeds 1") == 0
    steps = report.read_learning_steps(here / "out" / f"{METHOD}-s0")
    assert all(step["test"] is not None for step in steps)
    assert steps[-1]["test"] == pytest.approx(rows()[f"{METHOD} (rule-written)"]["avg"])
    printed = capsys.readouterr().out
    assert f"the same command with --compare {METHOD}?arm=empty" in printed, "the table says how to get the library's gain"
    assert " test " in printed


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
    secret = "--base-url http://user:h1dd3n@server.example/v1"
    assert run(f"{sums} {secret}", compare=ARMS[:1]) == 0
    printed = capsys.readouterr().out
    table = rows()
    assert table[METHOD]["avg"] == 1.0
    assert table[ARMS[0]]["avg"] < 0.8
    library = Library.from_yaml((here / "out" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert [lesson.text for lesson in library.lessons] == [LESSON]
    paid = costs.ledger_usage(here / "out", costs.CACHE)
    assert paid.keys() == {"rollout", "trial", "test", "summarise", "contrast", "consolidate"}
    assert sum(usage.calls for usage in paid.values()) == sum(Adds.asked.values())
    for stage in ("summarise", "contrast", "consolidate"):
        assert paid[stage].calls == Adds.asked[stage]
    assert f"{paid['contrast'].calls * (1000 + 10 * 100) / 1e6:,.2f}" in printed
    assert "dollars" in printed
    for path in here.rglob("*"):  # no secret is left anywhere
        if path.is_file():
            content = path.read_bytes()
            assert b"sk-secret-key" not in content, path
            assert b"h1dd3n" not in content, path


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
def test_a_budget_stops_the_run_with_what_it_has_and_a_larger_one_goes_on(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sums += " --concurrency 1"
    assert run(sums, "whole", compare=ARMS[:1]) == 0
    whole = Adds.asked.copy()
    assert "stopped" not in capsys.readouterr().out
    Adds.asked.clear()
    assert run(f"{sums} --token-budget 9000", compare=ARMS[:1]) == 2
    assert "the budget of" in capsys.readouterr().err
    calls = sum(usage.calls for usage in costs.ledger_usage(here / "out", costs.CACHE).values())
    assert calls == sum(Adds.asked.values())
    assert calls == 9  # of 1100 tokens
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

        def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
            everything = "\n".join(str(message.content) for message in messages)
            if not options.get("tools") or LESSON not in everything:
                return super().say(messages, **options)
            if outputs := [message for message in messages if message.type == "tool"]:  # how many turns are left may follow
                return counted(rf"So it is \boxed{{{str(outputs[-1].content).strip()}}}.", 10, 1)
            a, b = re.findall(r"What is (\d+) \+ (\d+)\?", everything)[-1]
            call: Any = {"name": options["tools"][0], "args": {"code": f"print({a} + {b})"}, "id": "call"}
            return AIMessage("", tool_calls=[call])

    monkeypatch.setattr(models, "open_model", lambda spec, **settings: Calls(temperature=settings["temperature"] or 0.0))
    flags = "--tools python --seeds 1 --problems 2 --held-out 1 --test-problems 2 --test-rollouts 1 --accept always"
    assert run(f"{sums} {flags} --tool-turns 3", compare=[ARMS[0], "tool-agent"]) == 0
    assert json.loads((here / "out" / "settings.json").read_text())["tool_turns"] == 3
    table = rows()
    assert (table[METHOD]["tool-calls"], table[METHOD]["avg"]) == (1.0, 1.0)
    assert table[ARMS[0]]["tool-calls"] is table["tool-agent"]["tool-calls"] is None  # counted, and not mistaken for actions
    assert "tool calls/episode" in capsys.readouterr().out


@pytest.mark.slow
def test_questions_are_answered_by_searching_and_reading(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From question to reward: with a lesson the model searches and reads pages, and answers what stands there; else it guesses."""
    pytest.importorskip("bm25s")
    known = {one.text: one for one in Passages().questions}

    class Seeks(Adds):
        def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
            return self.bind(tools=[tool.name for tool in tools], **kwargs)

        def _said(self, system: str, shown: str, everything: str, seed: int) -> tuple[str, str]:
            asked = next((one for text, one in known.items() if text in everything), None)
            if asked is None or system.startswith(("You study", "You compare", "Several", "You keep")):
                return super()._said(system, shown, everything, seed)
            return "rollout", f"<answer>{asked.answer if seed % 3 == 0 else 'Atlantis'}</answer>"

        def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
            everything = "\n".join(str(message.content) for message in messages)
            if not options.get("tools") or LESSON not in everything:
                return super().say(messages, **options)
            question = next(one for text, one in known.items() if text in everything)
            seen = [str(message.content) for message in messages if message.type == "tool"]
            steps = [("search", {"query": question.text}), *(("read_page", {"address": title}) for title in question.titles)]
            if len(seen) == len(steps):
                found = question.answer in ("yes", "no") or any(question.answer in text for text in seen)
                return counted(f"<answer>{question.answer if found else 'unknown'}</answer>", 10, 1)
            name, arguments = steps[len(seen)]
            call: Any = {"name": name, "args": arguments, "id": f"call{len(seen)}"}
            return AIMessage("", tool_calls=[call])

    monkeypatch.setattr(models, "open_model", lambda spec, **settings: Seeks(temperature=settings["temperature"] or 0.0))
    flags = "--env questions --model openai:adds --tools search,page --seeds 1 --problems 3 --held-out 1 --test-problems 4"
    assert run(f"{flags} --test-rollouts 1 --accept always --epochs 1", compare=[ARMS[0], "tool-agent", "react"]) == 0
    table = rows()
    assert (table[METHOD]["tool-calls"], table[METHOD]["avg"]) == (
        3.0,
        1.0,
    )  # a search, and the two pages that the answer is from
    assert table[ARMS[0]]["avg"] == table["tool-agent"]["avg"] < 1
    assert table["react"]["avg"] < 1


def split_of(seed: int, **asked: Any) -> options.ProblemSplit:
    """The problems of a seed: three to learn on, two held out, three unseen."""
    arms = {METHOD: make_arm(METHOD, TrainingFreeGRPO(problems=3, held_out=2))}
    found = options.problem_split(options.learning_options(options.LearningOptions(test_problems=3, **asked), arms), seed)
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [3, 2, 3]
    return found


def test_no_problem_is_in_two_parts_or_of_two_seeds(here: Path, sums: str) -> None:
    world = KeywordKeep()
    for seed in (0, 1):  # in the toy they are variants of the seed's task
        found = split_of(seed)
        tasks = [*found.train, *found.held_out, *found.test]
        assert {task.id.partition("/")[0] for task in tasks} == {f"keep-test-{seed}"}
        assert len({task.id for task in tasks}) == len({world.path(task) for task in tasks}) == 8
    two = [split_of(seed, env="math?file=sums.jsonl") for seed in (0, 1)]
    assert len({task.id for one in two for task in (*one.train, *one.held_out, *one.test)}) == 16


def test_more_seeds_than_there_are_problems(here: Path, sums: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{sums} --seeds 9") == 2
    error = capsys.readouterr().err
    assert "and there are not so many" in error
    assert "ask for fewer (--problems)" in error
    assert run(f"{sums} --seeds 2 --held-out 30", "other") == 2
    assert "30 tasks of dev from number 0 on" in capsys.readouterr().err


# Mistakes


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--env nowhere", "there are toy, twx:coin"),
        ("--env math?file=nowhere.jsonl", "nowhere.jsonl"),
        ("--env math?file=unanswered.jsonl", "or an answer"),
        ("--env math?file=doubled.jsonl --problems 2 --held-out 1 --test-problems 1", "there are not so many"),
        ("--model nobody", "there are pocket"),
        ("--critic nobody", "there are pocket"),
        ("--problems 0 --arm random", "arm=random is made from problems"),
        ("--group-size 1 --author rule", "nothing to be compared with"),
        ("--truth rumour", "implicit"),
        ("--test-problems 0", "--test-problems is at least 1, got 0"),
        ("--test-rollouts 0", "--test-rollouts is at least 1, got 0"),
        ("--seeds none", "0,3,7"),
        ("--dollar-budget 5", "--price-in"),
        ("--token-budget -1", "--token-budget is at least 0"),
        ("--tools hammer", "python, search, web, page, or several of them joined by commas; got 'hammer'"),
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
        ("--concurrency 0", "--concurrency is at least 1"),
        ("--library nowhere.yaml", "nowhere.yaml"),
        ("--bata 3", "--batch-size"),
        ("--compare training-free-grpo:best", "it has default, paper, web"),
        ("--compare reflexion", "it learns from attempts at one problem"),
        ("--compare nobody", "no method is called 'nobody'"),
        ("--arm self-generated", "has a model write"),
        ("--episodes 3", "there is no --episodes"),
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
    if flags.startswith(("--model", "--compare", "--tools")):  # a dry run refuses what the run refuses
        assert run(f"{small} {flags} --dry-run") == 2
        assert capsys.readouterr().err == shown.err


def test_problems_that_say_the_same_are_refused(here: Path) -> None:
    class World:
        name = "twins"

        def read(self, text: str) -> str:
            return text

    task = KeywordKeep().task
    split = options.ProblemSplit((task(0),), (task(1),), (task(2),))
    with pytest.raises(UserError, match="problems keep-test-0 and keep-test-1 say the same"):
        options._check_distinct(World(), split)
    options._check_distinct(KeywordKeep(), split)  # where the text is the same for all, ids tell them apart
    with pytest.raises(UserError, match="problems keep-test-0 and keep-test-0 say the same"):
        options._check_distinct(KeywordKeep(), options.ProblemSplit((task(0),), (), (task(0),)))


@pytest.mark.slow
def test_a_file_names_it_beside_its_controls(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "{ problems = 2, held_out = 1, epochs = 1, group_size = 3, author = 'rule' }"
    file = f"""
        environments = ["toy"]
        methods = [{{ name = "{METHOD}", label = "small", settings = {settings} }}, "{ARMS[0]}", "react"]
        seeds = 2
        options = {{ test_problems = 2, test_rollouts = 2 }}
    """
    Path("learn.toml").write_text(file)
    assert main(["run", "learn.toml", "--out", "out"]) == 0
    page = capsys.readouterr().out
    assert "small, step by step" in page
    assert [row["method"] for row in json.loads(Path("out", "results.json").read_text())] == ["small", ARMS[0], "react"]
    assert main(["run", "learn.toml", "--out", "out", "--dry-run"]) == 0
    assert "0 runs left" in capsys.readouterr().out
    Path("learn.toml").write_text(file.replace("test_rollouts = 2", "policy_history_steps = 0, max_run_tokens = 5"))
    assert main(["run", "learn.toml", "--out", "other"]) == 2
    assert "max_run_tokens is of methods that learn while they play" in capsys.readouterr().err
    Path("plays.toml").write_text('environments = ["toy"]\nmethods = ["icrl"]\noptions = { test_problems = 3 }\n')
    assert main(["run", "plays.toml", "--out", "other"]) == 2
    assert "test_problems is of methods that learn on other problems than they play" in capsys.readouterr().err
    assert main(["run", "react", "--env", "toy", "--compare", METHOD]) == 2
    assert f"learngraph run {METHOD} compares it" in capsys.readouterr().err


# E1: presets


@pytest.mark.slow
def test_presets_and_the_paper_as_an_arm_change_their_own_switches_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--problems 2 --epochs 1 --group-size 3 --held-out 1 --rollouts.lessons-per-prompt 2 --patience 5 --author rule --test-problems 1 --test-rollouts 1 --seeds 1"
    assert run(flags, compare=[f"{METHOD}:paper", f"{METHOD}?arm=empty"]) == 0
    arms = json.loads((here / "out" / "settings.json").read_text())["methods"]
    paper = asdict(TrainingFreeGRPO.paper())
    assert arms[f"{METHOD}:paper"] == arms[METHOD] | {
        name: paper[name] for name in ("held_out", "accept", "patience", "wording", "lessons")
    }
    assert arms[f"{METHOD}?arm=empty"] == arms[METHOD] | {"arm": "empty"}


def test_a_finished_library_is_played_as_it_is_on_another_world(here: Path, sums: str) -> None:
    """The transfer of the paper's Table 5: nothing is learned, and no problem is taken for it."""
    (here / "lessons.yaml").write_text(Library((Lesson("L0", LESSON),)).to_yaml())
    (here / "others.jsonl").write_text(
        "".join(json.dumps({"problem": f"What is {n} + 9?", "answer": str(n + 9)}) + "\n" for n in range(4))
    )
    flags = "--test-problems 4 --test-rollouts 1 --seeds 1 --library lessons.yaml --problems 0 --model openai:adds"
    assert run(f"--env math?file=others.jsonl,split=test {flags}") == 0
    folder = here / "out" / f"{METHOD}-s0"
    result = json.loads((folder / "result.json").read_text())
    assert (result["lessons"], result["episodes"], result["learned"]["calls"]) == (1, 4, 0)
    assert {part: len(tasks) for part, tasks in result["problems"].items()} == {"train": 0, "held_out": 0, "test": 4}
    assert not (folder / "learned.jsonl").exists() or not (folder / "learned.jsonl").read_text()


def test_problems_are_a_draw_from_the_fold_that_no_other_seed_shares(here: Path, sums: str) -> None:
    world = run_inputs.shared_environment("math?file=sums.jsonl", None)
    drawn = [options._tasks(world, "train", 3, seed, "--problems") for seed in (0, 1)]
    numbers = [[int(task.id.rpartition("-")[2]) for task in tasks] for tasks in drawn]
    assert len({*numbers[0], *numbers[1]}) == 6
    assert numbers[0] != [0, 1, 2]
    assert drawn[0] == options._tasks(world, "train", 3, 0, "--problems")


@pytest.mark.slow
def test_a_library_may_be_the_folder_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "--problems 2 --held-out 1 --epochs 1 --group-size 3 --test-problems 1 --test-rollouts 1 --seeds 1 --author rule"
    assert run(small, "first") == 0
    product = Library.from_yaml((here / "first" / f"{METHOD}-s0" / "library.yaml").read_text())
    assert run(f"{small} --library first/{METHOD}-s0", "second") == 0
    assert LibraryVersions.read(here / "second" / f"{METHOD}-s0" / "library.jsonl").at("s0/0").lessons == product.lessons != ()


# A crash


@pytest.mark.slow
def test_a_run_that_breaks_off_ends_with_the_same_numbers(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks off after 14 rollouts, while it learns, for a reason of nobody's."""
    from learngraph.nodes.extract.rollouts import RolloutPlayer

    assert run(SMALL, "whole", compare=ARMS[1:2]) == 0
    kept, count = RolloutPlayer._store, 0

    def breaks(self: RolloutPlayer, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 14:
            raise MemoryError("out of memory")
        return kept(self, *args)

    monkeypatch.setattr(RolloutPlayer, "_store", breaks)
    assert run(SMALL, compare=ARMS[1:2]) == 2
    assert "MemoryError: out of memory" in capsys.readouterr().out
    monkeypatch.setattr(RolloutPlayer, "_store", kept)
    forget()
    assert run(SMALL, compare=ARMS[1:2]) == 0
    assert results(here / "out") == results(here / "whole")
    one, two = (LibraryVersions.read(here / out / f"{METHOD}-s1" / "library.jsonl") for out in ("out", "whole"))
    assert one.names() == two.names()
    assert [one.at(name) for name in one.names()] == [two.at(name) for name in two.names()]


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
    printed = capsys.readouterr().out
    for arm in (f"{METHOD} (rule-written)", ARMS[0]):
        assert f"{arm}: 2 of 6 rollouts have no reward and count as 0: no reward: " in printed
    rewards = [row["earned"] for row in results(here / "out")[f"{METHOD}-s0"]["rollouts"]]
    assert rewards.count(None) == 2
    known = sum(reward for reward in rewards if reward is not None)
    assert rows()[f"{METHOD} (rule-written)"]["avg"] == pytest.approx(known / 6)


@pytest.mark.slow
def test_an_outage_in_the_test_counts_for_nothing_and_is_played_again(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one problem of the test, while the library has been learned."""
    assert run(f"{SMALL} --seeds 1", "whole", compare=ARMS[:1]) == 0
    test, observe = play.LearningJob._test, KeywordKeep.observe

    def refused(self: KeywordKeep, task: Any, actions: Sequence[str]) -> Any:
        if "/6" in task.id and len(actions) == 2:
            raise UserError("the server cannot be reached")
        return observe(self, task, actions)

    async def breaks(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(KeywordKeep, "observe", refused)
        return await test(self, *args)

    monkeypatch.setattr(play.LearningJob, "_test", breaks)
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 2
    error = capsys.readouterr().err
    assert "2 of 6 rollouts of the test failed" in error
    assert "the server cannot be reached" in error
    assert "the same command goes on" in error
    assert not list((here / "out").glob("*/result.json"))
    monkeypatch.setattr(KeywordKeep, "observe", observe)
    monkeypatch.setattr(play.LearningJob, "_test", test)
    forget()
    assert run(f"{SMALL} --seeds 1", compare=ARMS[:1]) == 0
    assert results(here / "out") == results(here / "whole")


def test_what_the_agent_does_itself_is_no_outage() -> None:
    def failed(error: object) -> Rollout:
        return Rollout("s0/test/t/0", Task("t", "go"), 0, None, error=str(error))

    for own in (
        BadReply("act/choose", Unreadable("asked for a letter"), "x" * 900),
        RolloutTimeout("took longer than 5 s"),
        "no reward: unsure",
    ):
        assert play._is_final_failure(failed(own))
    assert not play._is_final_failure(failed("openai:any at http://127.0.0.1/v1: cannot be reached, tried 5 times"))


def test_a_machine_without_walls_is_told_of_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(interpreter.Interpreter, "walls", frozenset({"limits"}))
    checks.warn_about_sandbox()
    assert "(calls, files missing" in capsys.readouterr().err
    monkeypatch.setattr(interpreter.Interpreter, "walls", frozenset({"limits", "files", "calls"}))
    checks.warn_about_sandbox()
    assert capsys.readouterr().err == ""


# Before anything is asked


def test_a_dry_run_asks_nobody_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(spec: str, **settings: Any) -> Any:
        raise AssertionError("a dry run opens no model")

    monkeypatch.setattr(models, "open_model", nobody)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    flags = "--env game24 --model openai:any --problems 10 --held-out 4 --epochs 2 --group-size 3 --test-problems 5 --test-rollouts 2 --seeds 2"
    assert run(f"{flags} --dry-run --json --price-in 1 --price-out 2", compare=[f"{METHOD}?arm=empty"]) == 0
    learned, empty = map(json.loads, capsys.readouterr().out.splitlines())
    turns, seeds = 4, 2
    assert learned["stages"] == {
        "rollout": 2 * 10 * 3 * turns * seeds,
        "summarise": 10 * 3 * seeds,  # half of the 20 groups
        "contrast": 10 * seeds,
        "propose": 10 * seeds,
        "consolidate": 2 * seeds,
        "trial": 2 * 2 * 4 * 3 * turns * seeds,  # a step: the candidate and the library, 4 problems, 3 rollouts
        "test": 5 * 2 * turns * seeds,
    }
    assert empty["stages"] == {"test": 5 * 2 * turns * seeds}
    assert learned["calls"] == sum(learned["stages"].values())
    assert learned["dollars"] == pytest.approx((learned["input_tokens"] + 2 * learned["output_tokens"]) / 1e6)
    assert not list(here.iterdir())
    assert run(f"{flags} --dry-run --held-out 40 --token-budget 1000") == 0
    printed = capsys.readouterr().out
    assert "no model was asked" in printed
    assert "50% of the groups" in printed
    assert "--token-budget 1,000 may not last" in printed


@pytest.mark.slow
def test_a_dry_run_knows_what_calls_took_here(
    here: Path, sums: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run(sums) == 0
    capsys.readouterr()
    asked = Adds.asked.copy()
    assert run(f"{sums} --dry-run --json") == 0
    (plan,) = map(json.loads, capsys.readouterr().out.splitlines())
    measured, typical = sum(plan["stages"].values()) - plan["stages"]["propose"], dry_run.TYPICAL_TOKENS["propose"]
    # "propose" was not asked: the library was empty.
    assert plan["input_tokens"] == 1000 * measured + typical[0] * plan["stages"]["propose"]
    assert Adds.asked == asked

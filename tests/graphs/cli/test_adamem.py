"""`learngraph adamem build|collect|filter|train`: what they make, what they say, and that one leads to the next."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import play_in_process
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from openai_server import OpenAIServer

from learngraph.graphs.cli.adamem import USAGE, adamem
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.step_mft import CounterfactualAgent
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.attempts.trajectories import read_bank
from learngraph.memory.errors import UserError
from learngraph.memory.search import encoders
from learngraph.memory.search.vectors import CosineSimilarity
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import as_jsonl, read_jsonl
from learngraph.nodes.synthesize import mft
from learngraph.nodes.synthesize.mft import Pair, PromptMessage
from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.models import models

PAIR = Pair(
    id="r/0/0",
    prompt=(PromptMessage("system", "Advise."), PromptMessage("user", "Task: reach the exit\ndoor black\nStrategy:")),
    reply="door black mist",
    strategy="door black mist",
    author="model",
    tentative="wait",
    action="mist",
    score=10.0,
    solved=10.0,
    task="keep-train-0",
)
PAIRS = [
    PAIR,
    replace(PAIR, id="r/0/1", tentative="Mist."),
    replace(PAIR, id="r/0/2", tentative="fern", author="rule", reply="gate troll lamp"),
    replace(PAIR, id="r/1/0", score=4.0),
    replace(PAIR, id="r/2/0", tentative="mist"),
]


def run(args: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints."""
    assert adamem(args.split()) == 0
    return capsys.readouterr().out


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs are played in this process, in a directory of their own."""

    return play_in_process(monkeypatch, tmp_path)


@pytest.fixture
def pairs(here: Path) -> Path:
    (here / "pairs.jsonl").write_text("".join(as_jsonl(PAIRS)))
    return here / "pairs.jsonl"


# build


def test_walkthroughs_succeed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("build --env toy --tasks 5 --out bank.jsonl", capsys)
    assert "5 trajectories of 5 tasks, 45 steps; 5 succeeded and 0 failed (a score of 10 is a success)" in said
    world, bank = KeywordKeep(), read_bank("bank.jsonl")
    assert [t.task for t in bank] == [world.task(n, "train") for n in range(5)]
    assert all(tuple(s.action for s in t.transitions) == world.gold(t.task) for t in bank)
    assert {(t.score, t.value, t.domain) for t in bank} == {(10.0, 10.0, "toy")}
    assert bank[0].id == "gold:toy:keep-train-0/0"


@pytest.mark.slow
def test_what_the_agents_of_a_run_did(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play = "run jitrl --env toy --prior uniform --seeds 2 --episodes 3 --split dev --workers 1 --out played --compare random"
    assert main(play.split()) == 0
    capsys.readouterr()
    said = run("build --source played --out bank.jsonl", capsys)
    assert "12 trajectories of 2 tasks" in said
    bank = {t.id: t for t in read_bank("bank.jsonl")}
    assert {t.domain for t in bank.values()} == {"toy"}
    assert bank["played:random-s1/2"].task == KeywordKeep().task(1, "dev")
    rows = [json.loads(line) for line in Path("played/random-s1/episodes.jsonl").read_text().splitlines()]
    assert [bank["played:" + row["id"]].score for row in rows] == [row["score"] for row in rows]
    assert all(t.value == pytest.approx(t.score) for t in bank.values())


@pytest.mark.slow
def test_what_a_run_did_is_a_bank_of_the_next_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though both runs call themselves the same."""
    play = "run adamem --author rule --env toy --prior uniform --seeds 1 --split test --workers 1"
    assert main(f"{play} --episodes 3 --out first".split()) == 0
    capsys.readouterr()
    said = run("build --source first --out bank.jsonl", capsys)
    assert "note: these are tasks of the split test; a run that starts from bank.jsonl cannot be tested on them" in said
    bank = read_bank("bank.jsonl")
    assert [(t.id, t.run, t.episode) for t in bank] == [(f"first:adamem-s0/{n}", "first:adamem-s0", n) for n in range(3)]
    assert main(f"{play} --episodes 2 --bank bank.jsonl --out second".split()) == 0
    capsys.readouterr()
    run("build --source second --out more.jsonl", capsys)
    more = read_bank("more.jsonl")
    assert [t.id for t in more] == ["second:adamem-s0/0", "second:adamem-s0/1"]
    assert main(f"{play} --episodes 1 --bank more.jsonl --out third".split()) == 0


def test_a_bank_of_test_tasks_is_pointed_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "note: these are tasks of the split test" in run("build --env toy --tasks 1 --split test --out bank.jsonl", capsys)
    assert "note" not in run("build --env toy --tasks 1 --split dev --out other.jsonl", capsys)


# collect


def test_the_strategies_of_a_run_by_hand(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand(here)
    said = run("collect played --out pairs.jsonl", capsys)
    assert said.splitlines() == [
        "1 strategies in 1 finished episodes of 1 runs, 9 steps, by model (1)",
        "written to pairs.jsonl",
    ]
    ((_, pair),) = read_jsonl(Pair, "pairs.jsonl")
    gold = KeywordKeep().gold(KeywordKeep().task(3, "train"))
    assert pair == Pair(
        id="adamem-s3/0/2",
        prompt=(PromptMessage("system", "Advise."), PromptMessage("user", "Strategy:")),
        reply="so: z",
        strategy="z",
        author="model",
        tentative="wait",
        action=gold[2],
        score=10.0,
        solved=9.0,
        before=gold[:2],
        task="keep-train-3",
        seed=3,
        split="train",
        domain="toy",
    )


def test_drafts_of_other_modes_are_not_collected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In mode low a draft is made under the strategy at hand."""
    high = {"mode": "high", "success_threshold": 9.0}
    by_hand(here, {"adamem": {"mode": "low", "success_threshold": 9.0}, "random": {}, "adamem?mode=high": high})
    for other in ("adamem-s4", "random-s3", "adamem-mode-high-s3"):
        shutil.copytree(here / "played" / "adamem-s3", here / "played" / other)
    said = run("collect played --out pairs.jsonl", capsys)
    assert "runs left out: 2 of mode low, 1 of other methods (only in mode high a draft is what the agent would have" in said
    assert "1 strategies in 1 finished episodes of 1 runs" in said
    shutil.rmtree(here / "played" / "adamem-mode-high-s3")
    with pytest.raises(UserError, match="played has no run of adamem in mode high, and so no strategies to collect"):
        adamem(["collect", "played", "--out", "none.jsonl"])
    assert not Path("none.jsonl").exists()


def test_strategies_of_another_split_are_pointed_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand(here, split="test")
    said = run("collect played --out pairs.jsonl", capsys)
    assert "note: played played tasks of the split test; a model trained on them cannot be tested on them" in said
    ((_, pair),) = read_jsonl(Pair, "pairs.jsonl")
    assert pair.split == "test"


def by_hand(here: Path, methods: Mapping[str, Any] | None = None, split: str = "train") -> None:
    """A folder of a run of one episode with one strategy, at its step 2."""
    methods = methods or {"adamem": {"mode": "high", "success_threshold": 9.0}}
    world = KeywordKeep()
    gold = world.gold(world.task(3, "train"))
    (here / "played" / "adamem-s3").mkdir(parents=True)
    settings = {"env": "toy", "split": split, "horizon": None, "methods": methods, "seeds": [3]}
    (here / "played" / "settings.json").write_text(json.dumps(settings))
    rows: list[Mapping[str, Any]] = []
    for t, action in enumerate(gold):
        written = t == 2
        rows.append(
            {
                "id": f"s{t}",
                "parent": f"s{t - 1}" if t else "adamem-s3/0/keep-train-3",
                "task": "keep-train-3",
                "state": "…",
                "action": action,
                "reward": 1.0,
                "tentative": "wait",
                "strategy": {"text": "z", "sources": [], "step": t, "key": "k", "author": "model"} if written else None,
                "synthesis": {"prompt": [["system", "Advise."], ["human", "Strategy:"]], "reply": "so: z"} if written else None,
            }
        )
    folder = here / "played" / "adamem-s3"
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = {
        "id": "adamem-s3/0",
        "run": "adamem-s3",
        "episode": 0,
        "task": "keep-train-3",
        "score": 10.0,
        "steps": 9,
        "head": "s8",
    }
    (folder / "episodes.jsonl").write_text(json.dumps(log) + "\n")


@pytest.mark.slow
def test_a_run_without_strategies_has_nothing_to_collect(here: Path) -> None:
    assert main(["run", "random", "--env", "toy", "--seeds", "1", "--episodes", "1", "--workers", "1", "--out", "played"]) == 0
    with pytest.raises(UserError, match="played has no run of adamem in mode high, and so no str"):
        adamem(["collect", "played", "--out", "pairs.jsonl"])
    assert not Path("pairs.jsonl").exists()


# filter


def test_how_many_pass_each_filter(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("filter pairs.jsonl --out data.jsonl", capsys)
    assert said.splitlines() == [
        "5 strategies, by model (4) and rule (1)",
        "4 of them in episodes that succeeded",
        "2 of these changed the action",
        "2 examples written to data.jsonl",
    ]
    data = [json.loads(line) for line in Path("data.jsonl").read_text().splitlines()]
    assert data == [mft.chat(PAIRS[0]), mft.chat(PAIRS[2])]
    said = run("filter pairs.jsonl --out outcome.jsonl --criterion outcome --seed 3", capsys)
    assert "2 drawn from the 4 that succeeded: as many" in said
    assert len(Path("outcome.jsonl").read_text().splitlines()) == 2
    run("filter pairs.jsonl --out easy.jsonl --success-threshold 4 --author model", capsys)
    assert len(Path("easy.jsonl").read_text().splitlines()) == 2


def test_nothing_that_passes_writes_nothing(pairs: Path) -> None:
    with pytest.raises(UserError, match=r"no strategy in pairs.jsonl passes; data.jsonl was not written"):
        adamem(["filter", "pairs.jsonl", "--out", "data.jsonl", "--success-threshold", "11"])
    assert not Path("data.jsonl").exists()


@pytest.mark.slow
def test_estimates_are_told_and_count(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Episodes of one step: the advantage is the difference of two rewards, 1 where the strategy names the answer."""
    world = KeywordKeep()
    right = world.gold(world.task(0, "train"))[0]
    place = world.observe(world.task(0, "train"), ()).text
    good = replace(PAIR, strategy=f"{place} {right}", action=right, tentative="back")
    bad = replace(good, id="r/0/1", action="back", tentative=right)
    same = replace(good, id="r/0/2", action="back", tentative="wait" if "gate" in place else "look")
    pairs.write_text("".join(as_jsonl([good, bad, same])))
    again = "--env toy --horizon 1 --model pocket"
    said = run(f"filter pairs.jsonl --out data.jsonl --rollouts-per-action 2 {again}", capsys)
    assert "1 of these have an advantage above 0 in 2 paired rollouts (mean of all 0; 1 are 0, 1 below)" in said
    assert json.loads(Path("data.jsonl").read_text()) == mft.chat(good)
    with pytest.raises(UserError, match=r"pair r/0/0 is of task keep-train-0; task 0 of game24.*, train, is game24-train-0"):
        adamem(f"filter pairs.jsonl --out no.jsonl --rollouts-per-action 2 {again}".replace("toy", "game24").split())


def test_estimates_ask_with_the_prompts_and_the_steps_of_the_run(here: Path) -> None:
    asked: list[str] = []

    class Repeats(GenericFakeChatModel):
        def _generate(self, messages: Any, *args: Any, **more: Any) -> Any:
            asked.append("\n".join(message.text for message in messages))
            return super()._generate(messages, *args, **more)

    model = Repeats(messages=iter([AIMessage("Action: back\nMemory: no")] * 9))
    (here / "adamem").mkdir()
    (here / "adamem" / "consider.md").write_text(
        "## system\nOnce more! $brief\n## user\n$instruction $steps$observation $admissible\n"
    )
    world = KeywordKeep()
    task = world.task(0, "train")
    plain = MethodInputs.with_chat_model(world, Journal(), model, stepwise=True)
    CounterfactualAgent(plain)(task, ["back", "wait", "back"], "any")
    again = CounterfactualAgent(MethodInputs.with_chat_model(world, Journal(), model, stepwise=True, prompts=here), 1)
    assert again(task, ["back", "wait", "back"], "any") == "back"
    assert [len(re.findall("^Action: (?:back|wait)$", said, re.MULTILINE)) for said in asked] == [3, 1]
    assert ["Once more!" in said for said in asked] == [False, True]


# train, and the whole way


@pytest.mark.slow
def test_from_a_run_to_a_trained_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Build, run, collect, filter, train, run again. Asked again without chance, the agent says what it said in the run."""
    from learngraph.tools.environments.catalogue import open_environment

    run("build --env toy --tasks 10 --out bank.jsonl", capsys)
    play = "run adamem --mode high --author rule --temperature 0 --env toy --split train --bank bank.jsonl --seeds 3"
    assert main(f"{play} --episodes 1 --workers 1 --out played".split()) == 0
    capsys.readouterr()
    said = run("collect played --out pairs.jsonl", capsys)
    assert "in 3 finished episodes of 3 runs" in said
    found = [pair for _, pair in read_jsonl(Pair, "pairs.jsonl")]
    assert {pair.author for pair in found} == {"rule"}
    assert {pair.seed for pair in found} == {0, 1, 2}
    assert all(pair.prompt[-1].text.endswith("Strategy:") for pair in found)
    environment: Any = open_environment("toy")
    inputs = MethodInputs.with_scoring_model(environment, Journal(), models.open_model("pocket"))  # type: ignore[arg-type]
    again = CounterfactualAgent(inputs, temperature=0)
    for pair in found:
        task = environment.task(pair.seed, pair.split)
        assert again(task, pair.before, "any") == pair.tentative
        assert again(task, pair.before, "any", pair.strategy) == pair.action
    run("filter pairs.jsonl --out data.jsonl --success-threshold 1", capsys)
    said = run("train data.jsonl --out trained --lora.rank 4 --batch-size 8 --learning-rate 0.001", capsys)
    assert "written to trained; --model local:trained plays with it" in said
    assert json.loads(Path("trained/training.json").read_text())["model"] == "pocket"
    assert main(f"{play} --episodes 1 --workers 1 --model local:trained --out after".split()) == 0
    with pytest.raises(UserError, match="trained exists already"):
        adamem(["train", "data.jsonl", "--out", "trained"])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "usage: learngraph adamem build"),
        ("jump", "usage: learngraph adamem build"),
        ("build --out x", "needs --env, the environment whose walkthroughs are played"),
        ("build", "--out"),
        ("build --env nowhere --out x", "no environment 'nowhere'"),
        ("build --env toy --source empty --out x", "which names its own"),
        ("build --source empty --out x", "empty has no settings.json"),
        ("build --env toy --tasks 0 --out x", "--tasks is at least 1"),
        ("collect --out x", "learngraph adamem collect needs RUN-FOLDER"),
        ("collect nowhere --out x", "nowhere does not exist"),
        ("filter nowhere --out x", "cannot read nowhere"),
        ("filter nowhere --out x --rollouts-per-action 2", "needs --env and --model"),
        ("filter nowhere --out x --criterion left", "--criterion"),
        ("train", "learngraph adamem train needs DATA"),
        ("train nowhere --out x", "cannot read nowhere"),
        ("train nowhere --out x --model openai:gpt", "cannot be trained"),
        ("train nowhere --out x --lora.rank 0", "rank is at least 1"),
    ],
)
def test_mistakes_are_said_in_words(command: str, says: str, here: Path) -> None:
    (here / "empty").mkdir()
    with pytest.raises(UserError) as error:
        adamem(command.split())
    assert says in str(error.value)
    assert {path.name for path in here.iterdir()} == {"empty"}


@pytest.mark.parametrize("command", ["build", "collect", "filter", "train"])
def test_help_says_what_there_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        adamem([command, "--help"])
    assert not end.value.code
    assert "--out" in capsys.readouterr().out


def test_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help", capsys) == USAGE + "\n"


# dense keys


def letters(texts: list[str]) -> list[list[float]]:
    """How often each letter stands in each text."""
    return [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


RULE_RUN = "run adamem --env toy --prior uniform --author rule --bank bank.jsonl --episodes 1 --seeds 1 --out r --json"


def play_from_bank(*flags: str, tasks: int = 5) -> list[dict[str, Any]]:
    """The steps of a run without a language model that starts from a bank of walkthroughs of so many tasks."""
    assert adamem(["build", "--env", "toy", "--tasks", f"{tasks}", "--out", "bank.jsonl"]) == 0
    assert main([*RULE_RUN.split(), *flags]) == 0
    return [json.loads(line) for line in Path("r/adamem-s0/steps.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_an_embedder_needs_no_least_similarity(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters(Embeddings):
        prompts = encoders.Prompts()
        model_name = "letters"

        def __init__(self, model: str) -> None:
            assert model == "some/model"

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return letters(texts)

        def embed_query(self, text: str) -> list[float]:
            raise AssertionError("both sides are embedded alike")

    monkeypatch.setattr(encoders, "SentenceEncoder", Letters)
    found = [one["similarity"] for step in play_from_bank("--embedder", "some/model") for one in step["precedents"]]
    floor = CosineSimilarity(Letters("some/model")).default_floor
    assert 0.5 < floor < min(found)


@pytest.mark.slow
def test_an_embedder_behind_an_api_is_named_by_flags(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(letters(request["input"]))]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"body": json.dumps({"object": "list", "model": request["model"], "data": data, "usage": usage})}

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with OpenAIServer(answer) as server:
        flags = ["--embedder", "openai:letters", "--embedder-url", server.url, "--query-prompt", "find: "]
        assert any(step["precedents"] for step in play_from_bank(*flags))
        sent = [text for request in server.requests for text in request["input"]]
    assert {request["model"] for request in server.requests} == {"letters"}
    queries = [text for text in sent if text.startswith("find: ")]
    assert "find: door violet" in queries
    assert len(queries) < len(sent)  # stored texts have no prompt
    assert len(sent) == len(set(sent))  # nothing is paid for twice


@pytest.mark.slow
def test_steps_at_which_nothing_is_alike_enough_are_counted_with_the_nearest(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = play_from_bank("--min-similarity", "0.9", "--episodes", "3", "--no-online", "--mode", "max", tasks=1)
    asked = [step for step in steps if step["episode"] and step["nearest_similarity"] is not None]
    empty = [step for step in asked if not step["precedents"]]
    assert 0 < len(empty) < len(asked)
    assert all(step["nearest_similarity"] < 0.9 for step in empty)
    assert all(step["nearest_similarity"] == step["precedents"][0]["similarity"] for step in asked if step["precedents"])
    row = json.loads(Path("r/results.json").read_text())[0]["totals"]
    nearest = max(step["nearest_similarity"] for step in empty)
    assert (row["look_ups"], row["empty_look_ups"]) == (len(asked), len(empty))
    assert nearest is not None
    said = f"nothing alike in its memory at {len(empty)} of {len(asked)} steps after the first episode; what was nearest there"
    assert f"{said} had a similarity of {nearest:.2f} at most" in capsys.readouterr().err

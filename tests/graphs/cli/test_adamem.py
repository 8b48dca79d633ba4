"""Banks and models that a run makes before its episodes (graphs/experiments/stages.py), and AdaMEM's keys by an embedder."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from openai_server import OpenAIServer

from learngraph.graphs.cli.main import main
from learngraph.graphs.cli.run import run
from learngraph.graphs.experiments.recorded import read_rows
from learngraph.graphs.experiments.stages import read_strategies, read_trajectories
from learngraph.memory.attempts.trajectories import read_bank
from learngraph.memory.errors import UserError
from learngraph.memory.search import encoders
from learngraph.memory.search.vectors import CosineSimilarity
from learngraph.nodes.synthesize.mft import Pair
from learngraph.tools.environments.keyword_keep import KeywordKeep

WORLD = KeywordKeep()
GOLD = WORLD.gold(WORLD.task(3, "train"))
"""The walkthrough of nine steps, which pays 10."""
WRITTEN = {
    "strategy": {"text": "z", "sources": [], "step": 2, "author": "model"},
    "synthesis": {"prompt": [["system", "Advise."], ["human", "Strategy:"]], "reply": "so: z"},
}
"""The fields of a step at which a strategy was written."""


def by_hand(
    here: Path, drafts: Mapping[int, str], methods: Mapping[str, Any] | None = None, split: str = "train", **more: Any
) -> None:
    """A folder of a run of one episode along the walkthrough, with a strategy at each step that has a draft here."""
    methods = methods or {"adamem": {"mode": "high", "success_threshold": 9.0}}
    folder = here / "played" / "adamem-s3"
    folder.mkdir(parents=True)
    settings = {"env": "toy", "split": split, "horizon": None, "methods": methods, "seeds": [3, 4]}
    settings |= {"model": "pocket", "prompts": None, "window": None}
    (here / "played" / "settings.json").write_text(json.dumps(settings | more))
    place = {"task": "keep-train-3", "episode": 0, "state": "…", "reward": 1.0}
    rows = [
        place
        | {"id": f"s{t}", "parent": f"s{t - 1}" if t else "adamem-s3/0/keep-train-3", "step": t, "action": action}
        | (WRITTEN | {"tentative": drafts[t]} if t in drafts else {"tentative": "wait", "strategy": None, "synthesis": None})
        for t, action in enumerate(GOLD)
    ]
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


# banks


def play(args: str) -> None:
    assert main(f"run {args} --episodes 1 --workers 1".split()) == 0


def made(folder: str, stage: str, file: str) -> Path:
    """A file that a stage of a run has made."""
    (found,) = Path(folder, "stages").glob(f"{stage}-??????/{file}")
    return found


@pytest.mark.slow
def test_walkthroughs_of_training_tasks_are_a_bank(here: Path) -> None:
    play("adamem --author rule --prior uniform --env toy --seeds 1 --bank gold@5 --out run")
    bank = read_bank(made("run", "gold-5", "bank.jsonl"))
    assert [t.task for t in bank] == [WORLD.task(n, "train") for n in range(5)]
    assert all(tuple(s.action for s in t.transitions) == WORLD.gold(t.task) for t in bank)
    assert {(t.score, t.value, t.domain) for t in bank} == {(10.0, 10.0, "toy")}
    assert bank[0].id == "gold:toy:keep-train-0/0"
    assert any(row["precedents"] for row in read_rows(Path("run/adamem-s0/steps.jsonl")))


@pytest.mark.slow
def test_what_another_method_did_is_a_bank_and_so_is_a_run_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the world's rewards; it is played once, whatever method asks for it, and again it is not."""
    both = "adamem --author rule --prior uniform --env toy --seeds 1 --bank random@3 --out run --compare synapse"
    play(both)
    bank = read_bank(made("run", "random-3", "bank.jsonl"))
    assert [t.task for t in bank] == [WORLD.task(n, "train") for n in range(3)]
    rows = [json.loads(Path(f"{made('run', 'random-3', 'runs')}/random-s{n}/episodes.jsonl").read_text()) for n in range(3)]
    assert [(t.id, t.score) for t in bank] == [(f"runs:random-s{n}/0", row["score"]) for n, row in enumerate(rows)]
    written = made("run", "random-3", "bank.jsonl").stat().st_mtime_ns
    play(both)
    assert made("run", "random-3", "bank.jsonl").stat().st_mtime_ns == written
    assert main(["explain", "run", "--replay"]) == 0
    assert capsys.readouterr().out.count("are the same") == 2
    play("adamem --author rule --prior uniform --env toy --seeds 1 --split dev --bank run --out second")
    assert {t.id for t in read_bank(made("second", "run", "bank.jsonl"))} == {"run:adamem-s0/0", "run:synapse-s0/0"}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("--bank react@none", "bank=react@none: a method and a number of tasks are needed"),
        ("--bank dance@3", "no method is called 'dance'"),
        ("--bank nowhere.jsonl", "nowhere.jsonl: cannot be read"),
        ("--tuned all@3", "tuned is step@N or outcome@N"),
        ("--tuned step@3 --model openai:gpt", "the weights of openai:gpt cannot be trained"),
    ],
)
def test_mistakes_are_said_in_words(setting: str, says: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(UserError) as error:
        run(f"adamem --env toy --seeds 1 --episodes 1 --workers 1 --out r {setting}".split())
    assert says in str(error.value)


# strategies


def test_the_strategies_of_a_run_by_hand(here: Path) -> None:
    by_hand(here, {2: "wait"})
    (pair,), _ = read_strategies(Path("played"))
    assert pair == Pair(
        id="adamem-s3/0/2",
        prompt=(("system", "Advise."), ("user", "Strategy:")),
        reply="so: z",
        strategy="z",
        author="model",
        tentative="wait",
        action=GOLD[2],
        score=10.0,
        solved=9.0,
        task="keep-train-3",
        domain="toy",
    )
    steps = here / "played" / "adamem-s3" / "steps.jsonl"
    steps.write_text("".join(steps.read_text().splitlines(keepends=True)[5:]))
    with pytest.raises(UserError, match="episode adamem-s3/0 has 9 steps, and 4 of them are in"):
        read_strategies(Path("played"))


def test_a_run_of_tasks_that_changed_is_no_bank(here: Path) -> None:
    by_hand(here, {2: "wait"}, split="test")
    with pytest.raises(UserError, match="played keep-train-3, and task 3 of toy is keep-test-3 now"):
        list(read_trajectories(Path("played"), WORLD))


# the whole way


@pytest.mark.slow
def test_a_model_is_tuned_on_the_strategies_that_helped_and_plays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once for a folder; of outcome as many examples as of step; and a run without any that passes says so."""
    how = "--mode high --author rule --temperature 0 --env toy --bank gold@6 --seeds 1 --success-threshold 1"
    play(f"adamem {how} --tuned step@3 --out run --compare adamem?tuned=outcome@3")
    said = capsys.readouterr().err
    (found, steps) = re.search(
        r"(\d+) strategies in \d+ steps.*?, (\d+) of these changed the action; \2 kept \(step\)", said
    ).groups()  # type: ignore[union-attr]
    assert int(found) > int(steps) > 0
    for arm in ("step", "outcome"):
        assert len(made("run", f"{arm}-3", "data.jsonl").read_text().splitlines()) == int(steps)
        assert made("run", f"{arm}-3", "model/model.safetensors").stat().st_size
    assert Path("run/adamem-s0/result.json").exists()
    play(f"adamem {how} --tuned step@3 --out run")
    assert "first the model" not in capsys.readouterr().err
    with pytest.raises(UserError, match=r"no strategy in .* passes; have more tasks played"):
        run(f"adamem {how[:-1]}11 --tuned step@1 --episodes 1 --workers 1 --out none".split())


# dense keys


def letters(texts: list[str]) -> list[list[float]]:
    """How often each letter stands in each text."""
    return [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


RULE_RUN = "run adamem --env toy --prior uniform --author rule --episodes 1 --seeds 1 --out r --json"


def play_from_bank(*flags: str, tasks: int = 5) -> list[dict[str, Any]]:
    """The steps of a run without a language model that starts from a bank of walkthroughs of so many tasks."""
    assert main([*RULE_RUN.split(), "--bank", f"gold@{tasks}", *flags]) == 0
    return read_rows(Path("r/adamem-s0/steps.jsonl"))


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

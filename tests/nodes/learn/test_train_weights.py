"""Nodes that train weights: the version of an episode, what a training is shown, and that none is made twice."""

from pathlib import Path
from typing import Any

import pytest
from still_trainer import StillTrainer

from learngraph.graphs.baselines import grpo, sft
from learngraph.graphs.methods import METHODS
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.claas.weights import TrainingLog, TrainingReport, version_label
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Observation
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.learn.train_weights import best_attempts, make_training_router, training_seed
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()


class EvenScorer:
    """Finds all options alike, and keeps the prompts that it was shown."""

    window = 1000

    def __init__(self) -> None:
        self.seen: list[str] = []

    def get_num_tokens(self, text: str) -> int:
        return len(text.split())

    def score(self, messages: Any, options: Any) -> list[float]:
        self.seen.append(str(messages[-1].text))
        return [-1.0 for _ in options]


def inputs(model: Any = None, **more: Any) -> MethodInputs:
    return MethodInputs.with_scoring_model(TOY, Journal(), model or EvenScorer(), **more)


def play(
    method: str, trainer: StillTrainer, inputs: MethodInputs, episodes: int, log: TrainingLog | None = None, **settings: Any
) -> dict[str, Any]:
    chosen = METHODS[method].settings(**settings)
    graph = run.build(METHODS[method].build(inputs, chosen, make_trainer=lambda settings: trainer, training_log=log))
    found: dict[str, Any] = graph.invoke(run.RunInput(task=TOY.task(2), run="r", episode=0, episodes=episodes))
    return found


def row(episode: int, value: float | None, steps: int = 5) -> dict[str, Any]:
    return {"episode": episode, "value": value, "steps": steps}


def test_the_best_are_above_the_mean_and_the_shortest_come_first() -> None:
    rows = [row(0, 1.0), row(1, 4.0, 9), row(2, None), row(3, 4.0, 7), row(4, 3.0), row(5, 4.0, 7)]
    assert [one["episode"] for one in best_attempts(rows, 3)] == [3, 5, 1]
    assert [one["episode"] for one in best_attempts(rows, 9)] == [3, 5, 1]  # 3.0 is not above the mean of 3.2
    assert best_attempts([row(0, 2.0), row(1, 2.0), row(2, None)], 3) == []
    assert best_attempts([row(0, None)], 3) == []
    assert best_attempts([row(0, -3.0), row(1, -1.0)], 3) == [row(1, -1.0)]  # rewards may all be below 0


def test_a_version_is_that_of_the_last_training_before_the_episode(tmp_path: Path) -> None:
    log = TrainingLog(Rows(tmp_path / "training.jsonl"))
    assert log.version("r", 7) == ""
    log.add_training("r", 4, TrainingReport("v4"))
    log.add_training("r", 9, TrainingReport("v4", "nothing to learn"))
    log.add_training("other", 5, TrainingReport("v5"))
    log.add_training("r", 9, TrainingReport("again"))  # not written twice
    again = TrainingLog(Rows(tmp_path / "training.jsonl"))
    for known in (log, again):
        assert [known.version("r", n) for n in (4, 5, 9, 10, 99)] == ["", "v4", "v4", "v4", "v4"]
        assert known.training("r", 9) is not None
        assert known.training("r", 9)["why"] == "nothing to learn"  # type: ignore[index]


def test_trainings_come_after_every_nth_episode() -> None:
    route: Any = make_training_router(3)
    assert [route({"episode": n}) for n in range(7)] == ["go on", "go on", "train", "go on", "go on", "train", "go on"]
    assert training_seed("r", 1) != training_seed("r", 2) != training_seed("s", 2)


@pytest.mark.parametrize("history", [0, 3, None])
@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_training_is_shown_the_prompts_that_the_policy_was_shown(method: str, history: int | None) -> None:
    """Word for word, with the steps of history that it had; and the actions that were taken."""
    trainer, model = StillTrainer(), EvenScorer()
    size = {"every": 4} if method == "sft" else {"group_size": 4}
    out = play(method, trainer, inputs(model, history_steps=history), 4, **size)
    seen, prompts = list(model.seen), {}
    for episode, length in enumerate(out["lengths"]):
        prompts[episode], seen = seen[:length], seen[length:]
    ((kind, parent, version, attempts),) = trainer.calls
    assert (kind, parent, version) == ({"sft": "imitate", "grpo": "reinforce"}[method], "", "after-0003")
    shown = [[str(step.messages[-1].text) for step in attempt.steps] for attempt in attempts]
    if method == "grpo":
        assert shown == [prompts[n] for n in range(4)]
        assert [attempt.value for attempt in attempts] == out["values"]
    else:
        assert all(one in prompts.values() for one in shown)
        assert max(attempt.value for attempt in attempts) == max(out["values"])  # type: ignore[type-var]
    assert all(attempt.steps[-1].action for attempt in attempts)


def test_every_group_is_played_with_one_version_and_two_versions_are_kept() -> None:
    trainer = StillTrainer()
    play("grpo", trainer, inputs(), 9, group_size=3)
    assert [(parent, version) for _, parent, version, _ in trainer.calls] == [
        ("", "after-0002"),
        ("after-0002", "after-0005"),
        ("after-0005", "after-0008"),
    ]
    assert [len(attempts) for *_, attempts in trainer.calls] == [3, 3, 3]
    assert trainer.loads == ["", "after-0002", "after-0005"]
    assert trainer.kept == [{"", "after-0002"}, {"after-0002", "after-0005"}, {"after-0005", "after-0008"}]


def test_a_training_that_is_in_the_log_is_not_made_again() -> None:
    trainer, log = StillTrainer(), TrainingLog()
    log.add_training("r", 2, TrainingReport("kept"))
    play("sft", trainer, inputs(), 4, log, every=3)
    assert trainer.calls == []
    assert trainer.loads == ["", "kept"]


class Silent:
    """A judge that fails on every other episode."""

    role = "model"

    def __call__(self, state: Any) -> dict[str, Any]:
        rewards = [0.5] * state["step"]
        return {"rewards": [None, *rewards[1:]] if state["episode"] % 2 else rewards, "unjudged": "", "earned": None}


def test_attempts_without_a_return_are_left_out_and_not_zero() -> None:
    trainer, log = StillTrainer(), TrainingLog()
    play("grpo", trainer, inputs(judge=Silent()), 4, log, group_size=4)
    ((*_, attempts),) = trainer.calls
    assert [attempt.value is None for attempt in attempts] == [False, True, False, True]
    log = TrainingLog()
    play("sft", trainer, inputs(judge=Silent()), 2, log, every=2)
    assert log.training("r", 1)["why"] == "none of 2 attempts earned more than the others, and 1 have no return"  # type: ignore[index]
    assert len(trainer.calls) == 1


def test_lost_steps_are_no_examples() -> None:
    from learngraph.memory.records import NO_ACTION, Task, Transition
    from learngraph.nodes.learn.train_weights import ReadSteps

    journal, task = Journal(), Task("t", "go on", 0)
    head = journal.append(journal.start("r", 0, "t"), Transition("a door", NO_ACTION, 0.0))
    head = journal.append(head, Transition("a door", "open", 1.0, "a red door"))
    log = TrainingLog()
    log.add_attempt("r", 0, task, head, 1.0, 2)
    prompts: list[Any] = []

    class Policy:
        def messages(self, state: Any) -> list[Any]:
            prompts.append((state["task"], state["observation"], state["step"]))
            return []

        def __call__(self, state: Any) -> Any:
            return {"candidates": [Candidate("open", 0.0)]}

    attempt = ReadSteps(Policy(), journal).attempt(log.attempts("r", 0)[0])
    assert [step.action for step in attempt.steps] == ["open"]
    assert prompts == [(task, Observation("a red door"), 1)]


# Without weights


@pytest.mark.parametrize("method", ["sft", "grpo", "webrl"])
def test_without_weights_it_says_so(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} trains the weights of the model that plays, and there are none here"):
        METHODS[method].build(MethodInputs(environment=TOY))
    with pytest.raises(ValueError, match="play it with --policy local"):
        METHODS[method].build(MethodInputs(environment=TOY), make_trainer=lambda settings: StillTrainer())


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="group_size is a whole number of at least 2; got 1"):
        grpo.GroupRelativeTraining(group_size=1)
    with pytest.raises(UserError, match="every is a whole number of at least 1; got 0"):
        sft.RejectionSampling(every=0)
    assert version_label(7) == "after-0007"

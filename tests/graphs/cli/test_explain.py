"""`learngraph explain RUN_FOLDER --step N`: what it says of a decision is what the run computed."""

import math
import shutil
from pathlib import Path

import pytest
from in_process import play_in_process
from variants import quick

import learngraph
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.decisions import explain_decision
from learngraph.graphs.experiments.explain import compute_again, explain_row, find_step
from learngraph.graphs.jitrl import VARIANT_NODES, JitRL
from learngraph.graphs.methods import find_method
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Observation, Task, Trajectory, Transition
from learngraph.memory.returns.experiences import Experiences
from learngraph.memory.storage.journal import Journal
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = "run jitrl --env toy --prior uniform --horizon 8"


@pytest.mark.slow
def test_the_command_explains_a_step_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TOY.split(), "--seeds", "1", "--episodes", "5", "--compare", "static", "--out", "r"]) == 0
    capsys.readouterr()
    assert main(["explain", "r", "--step", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    decision = compute_again(find_step(here / "r", 1))
    state = decision.state
    assert f"Episode 4, step 1 of jitrl-s0 (task keep-test-0): in the state '{state['observation'].text}'" in said
    assert f"the agent took '{state['action']}'." in said
    visits = sum(n.count for n in state["neighbours"])
    assert f"Memory knew 1 state just like it, with {visits} visit" in said
    assert f"To the model alone all {len(state['candidates'])} actions were equally likely" in said
    for estimate in state["estimates"]:
        assert f"{estimate.action} | {estimate.count:.3g} | {estimate.value:.3g} |" in said.replace("  ", " ")
    assert main(["explain", "r", "--step", "0", "--episode", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Memory held no state similar enough (min_similarity 0.95), so the model's own logits stand." in said
    assert "So memory changed nothing." in said


@pytest.fixture(scope="module")
def played_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with three estimators."""
    compared = ["--compare", "jitrl:paper-equations", "jitrl:reference?evaluator=environment", "static"]
    with pytest.MonkeyPatch.context() as patch:
        folder = play_in_process(patch, tmp_path_factory.mktemp("explain"))
        assert main([*TOY.split(), "--seeds", "0,3", "--episodes", "4", *compared, "--out", "r"]) == 0
    return folder / "r"


@pytest.fixture
def played(here: Path, played_once: Path) -> Path:
    """A copy of these runs, in the working directory."""
    return Path(shutil.copytree(played_once, here / "r"))


@pytest.mark.parametrize("method", quick(["jitrl", "jitrl:paper-equations", "jitrl:reference?evaluator=environment"]))
def test_the_values_computed_again_are_those_of_the_journal(played: Path, method: str) -> None:
    """`changes` names each action of which count, Q, shift or logit differ from what the run wrote down."""
    known = 0
    for episode, step in [(0, 0), (0, 5), (1, 3), (2, 0), (2, 6), (3, 1), (3, 7)]:
        decision = compute_again(find_step(played, step, seed=3, episode=episode, method=method))
        assert decision.changes == ()
        past = {one.episode for one in decision.memory}
        assert past == set(range(episode)), "it is the memory from before that episode"
        known += bool(decision.state["neighbours"])
        shown = learngraph.explain(played, step, seed=3, episode=episode, method=method)
        assert f"the agent took '{decision.state['action']}'." in shown.sentences[0]
        assert sum(row[0] == f"* {decision.state['action']}" for row in shown.actions) == 1
        assert len(shown.remembered) == 1 + len(decision.state["neighbours"])
    assert known >= 2  # few states of four episodes have the same history


def test_the_published_formulas_are_put_into_their_own_words(played: Path) -> None:
    paper = str(learngraph.explain(played, 2, method="jitrl:paper-equations")).replace("\n", " ")
    assert "V(s), their mean return, is" in paper
    assert "with probability lambda = 0.65 else 0 (Eq. 6): the draw favoured" in paper
    reference = str(learngraph.explain(played, 0, method="jitrl:reference?evaluator=environment")).replace("\n", " ")
    assert "which falls as returns are high and steady" in reference
    assert "at temperature 0 that decides" in reference


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "nowhere does not exist; give a folder that `learngraph run` has made"),
        (["r", "--step", "99"], "episode 3 of r/jitrl-s0 has no step 99; it has 0 to "),
        (["r", "--step", "0", "--episode", "4"], "r/jitrl-s0 has no episode 4; it has 0 to 3"),
        (["r", "--step", "0", "--run-seed", "1"], "r has no seed 1; it has 0, 3"),
        (
            ["r", "--step", "0", "--method", "icrl"],
            "r has no method icrl; it has jitrl, jitrl:paper-equations, jitrl:reference?evaluator=environment, static",
        ),
    ],
)
def test_a_mistake_says_what_there_is(played: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", *args]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_of_other_methods_the_journal_tells(here: Path) -> None:
    assert main([*TOY.replace("jitrl", "static").split(), "--seeds", "1", "--episodes", "1", "--out", "s"]) == 0
    shown = learngraph.explain("s", 0)
    assert shown.sentences[0].startswith(
        "Episode 0, step 0 of static-s0 (task keep-test-0): in the state 'door violet' the agent took "
    )
    assert "remembers nothing, so it would have done the same" in shown.sentences[1]
    with pytest.raises(UserError, match="has no step 99"):
        learngraph.explain("s", 99)


def test_recalled_steps_are_explained_from_the_journal() -> None:
    row = {"episode": 2, "step": 7, "task": "t", "state": "gate monk", "action": "lamp", "reward": 1.0}
    row |= {"candidates": [{"action": "lamp", "logit": 0.0}, {"action": "rope", "logit": 0.0}], "tentative": "rope"}
    row |= {
        "precedents": [
            {"trajectory": "r/0", "step": 1, "similarity": 0.75},
            {"trajectory": "gone/0", "step": 0, "similarity": 0.5},
        ]
    }
    row |= {"strategy": {"text": "lamp first", "step": 7}}
    steps = (Transition("door", "gold", 1.0), Transition("gate monk", "lamp", 2.0))
    old = [Trajectory("r/0", Task("t", ""), steps, "r", 0), Trajectory("r/1", Task("t", ""), steps, "r", 1)]
    adamem = find_method("adamem")
    shown = explain_row("adamem-s0", row, old, adamem)
    text = " ".join(shown.sentences)
    assert "2 remembered steps were recalled, the most similar with 0.75" in text
    assert "it would have taken 'rope': memory changed this action" in text
    assert shown.remembered[1] == ("gate monk", "lamp", "0.75", "2", "2", "r/0, step 1")
    assert shown.remembered[2][0] == "not in the memory any more"
    assert shown.actions[1] == ("* lamp", "0", "0.5")
    same = explain_row("a", {**row, "tentative": "lamp"}, "The memory cannot be read now (it is open).", adamem)
    assert "did not change this action" in " ".join(same.sentences)
    assert "cannot be read now" in same.sentences[-1]
    unknown = explain_row("a", {**row, "tentative": None, "precedents": []}, old, adamem)
    assert "is not on record" in " ".join(unknown.sentences)
    silent = explain_row("a", {key: row[key] for key in row if key != "precedents"}, old, adamem)
    assert "cannot be told without asking the model" in " ".join(silent.sentences)
    of_values = explain_row("t", {**row, "precedents": None}, old, find_method("tabular"))
    assert of_values.sentences[1:] == ("The method asks no model: what its memory told it is in the candidates' numbers.",)


@pytest.mark.slow
def test_a_shared_memory_is_shown_as_it_was(here: Path) -> None:
    """Two seeds in turn: the first one's decisions knew nothing of the second one's episodes."""
    assert main([*TOY.split(), "--seeds", "2", "--episodes", "2", "--cross-task", "--out", "r"]) == 0
    first = compute_again(find_step(here / "r", 2, seed=0, episode=1))
    assert first.changes == ()
    assert {one.run for one in first.memory} == {"jitrl-s0"}
    second = compute_again(find_step(here / "r", 0, seed=1, episode=0))
    assert second.changes == ()
    assert {one.run for one in second.memory} == {"jitrl-s0"}


@pytest.mark.slow
def test_a_memory_that_was_pruned_since_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TOY.split(), "--seeds", "1", "--episodes", "4", "--out", "r"]) == 0
    assert main(["memory", "prune", "r", "--keep-last", "1"]) == 0
    assert compute_again(find_step(here / "r", 0)).changes
    assert learngraph.explain("r", 0).sentences[0].startswith("The memory says something else today than it said then of ")


def test_repeats_and_losses_stand_in_the_sentences() -> None:
    """A death at step 0 in one of two episodes; and this episode has taken `look` twice here, to no effect."""
    task, world, journal = Task("t", "do"), KeywordKeep(), Journal()
    settings = JitRL(temperature=0)
    memory = settings.memory()
    steps = (Transition("here", "jump", 0.0),), (Transition("here", "jump", 0.0), Transition("there", "open", 1.0))
    for number, transitions in enumerate(steps):
        lost = number == 0
        memory.add(Trajectory(f"r/{number}", task, transitions, "r", number, domain=world.name, lost=lost))
    head = Journal.start("r", 2, "t")
    for _ in range(2):
        head = journal.append(head, Transition("here", "look", 0.0))
    state = {
        "task": task,
        "run": "r",
        "episode": 2,
        "step": 2,
        "head": head,
        "observation": Observation("here", ("jump", "look", "open")),
        "candidates": [Candidate(a, math.log(p)) for a, p in (("jump", 0.2), ("look", 0.7), ("open", 0.1))],
    }
    for name, node in VARIANT_NODES["guarded"](settings, memory, world, journal).items():
        state |= node(state)  # type: ignore[operator]
        assert name != "choose" or state["action"] == "open"
    said = explain_decision(state, settings, memory, world.name)
    text = " ".join(said.sentences)
    assert "This episode had taken 'look' in this very state twice since it last made progress, which took 1 from" in text
    assert "50% of the visits to 'jump' lost an episode, which took 0.25 from its shift." in text
    assert "The model alone preferred 'look'; it would" not in text
    assert said.remembered[1] == ("here", "jump", "2", "0.4", "1", "1", "0, 1")
    assert "'open' was never tried there" in text
    assert said.sentences[-1] == "With memory 'open' had the highest logit, and at temperature 0 that decides."


def test_visits_are_those_behind_a_neighbour() -> None:
    memory, task = Experiences(gamma=1.0), Task("t", "do")
    for number, reward in enumerate((1.0, 2.0, 4.0)):
        memory.add(Trajectory(f"r/{number}", task, (Transition("red door", "open", reward),), "r", number, domain="w"))
    (known,) = memory.neighbours("red door", k=5, task="t", domain="w", before=("r", 2))
    assert [one.value for one in memory.visits(known.id, task="t", domain="w", before=("r", 2))] == [1.0, 2.0]
    assert [one.value for one in memory.visits(known.id, 1, task="t", domain="w", before=("r", 2))] == [2.0]
    with pytest.raises(KeyError, match="r/9/0"):
        memory.visits("r/9/0", task="t", domain="w")

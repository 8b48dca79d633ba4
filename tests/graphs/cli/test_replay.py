"""`learngraph explain --replay`: recorded runs are played again without a model, up to the first difference."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import play_in_process
from langchain_core.messages import AIMessage, HumanMessage

import learngraph
from learngraph.graphs.cli.main import main
from learngraph.graphs.experiments.recorded import PACKED, unpack_rows
from learngraph.graphs.experiments.replay import Replayed, replay_runs
from learngraph.memory.errors import UserError
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.recorded_model import RecordedChatModel, UnrecordedCall


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        folder = play_in_process(patch, tmp_path_factory.mktemp("runs")) / "r"
        assert (
            main(["run", "jitrl", "--env", "toy", "--seeds", "1", "--episodes", "2", "--compare", "tabular", "--out", "r"]) == 0
        )
    for name in PACKED:
        unpack_rows(folder / "jitrl-s0" / name)
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "r"))


def change(file: Path, number: int, **fields: Any) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **fields})
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")


def one(folder: Path) -> Replayed:
    (outcome,) = replay_runs(folder, "jitrl")
    return outcome


@pytest.mark.slow
def test_a_run_that_was_left_alone_is_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["explain", "--replay", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert said[0].startswith("jitrl-s0: 2 episodes, ")
    assert said[0].endswith(" steps are the same")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_live_walk_leaves_any_step_of_a_recorded_run(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    rows = [json.loads(line) for line in (folder / "jitrl-s0" / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    row = next(one for one in rows if (one["episode"], one["step"]) == (1, 4))
    walk = learngraph.step_from(folder, 4, episode=1)
    assert str(walk).endswith(" (episode 1, step 4), before act")
    assert (walk.next, walk.state["action"], walk.state["observation"].text) == (("act",), row["action"], row["state"])
    other = walk.fork().edit(action="wait")
    episodes = (folder / "jitrl-s0" / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert walk.out().step().state["scores"] == [json.loads(line)["score"] for line in episodes]
    assert other.out().step().state["scores"][:1] == walk.state["scores"][:1]  # pocket is asked what the run was never asked
    assert learngraph.step_from(folder, 0, episode=0, method="tabular").next == ("act",)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    change(folder / "jitrl-s0" / "steps.jsonl", rows.index(row), action="gone")
    with pytest.raises(
        UserError, match=r"jitrl-s0 cannot be walked from there: it plays otherwise now, at episode 1, step 4, action"
    ):
        learngraph.step_from(folder, 4, episode=1)


@pytest.mark.slow
def test_the_first_difference_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = folder / "jitrl-s0" / "steps.jsonl"
    row = json.loads(steps.read_text(encoding="utf-8").splitlines()[2])
    row["candidates"][1]["logit"] += 1.0
    change(steps, 2, candidates=row["candidates"])
    change(steps, 4, action="sing")
    assert main(["explain", "--replay", str(folder), "--method", "jitrl"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("jitrl-s0: differs at episode 0, step 2, candidates[1].logit: was ")


@pytest.mark.slow
def test_changed_settings_show_as_a_difference(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    settings["methods"]["jitrl"]["beta"] = 0.5
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    found = one(folder).divergence
    assert found is not None
    assert found.field.startswith("candidates[")
    assert found.field.endswith("].logit")


@pytest.mark.slow
def test_damaged_and_unfinished_folders_are_told_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "jitrl-s0"
    whole = (run / "steps.jsonl").read_bytes()
    with (run / "steps.jsonl").open("ab") as file:  # a run that is being written
        file.write(b'{"id": "half')
    assert one(folder).problem == ""
    (run / "steps.jsonl").write_bytes(whole.split(b"\n", 1)[1])
    assert one(folder).problem == "its steps.jsonl lacks steps of episode 0"
    (run / "steps.jsonl").write_bytes(b"not json\n" + whole)
    assert "its files are damaged" in one(folder).problem
    (run / "steps.jsonl").write_bytes(whole)
    (run / "replies.jsonl").write_bytes(b"")
    assert "before the model's answers were recorded" in one(folder).problem
    (run / "episodes.jsonl").unlink()
    assert "no episode of it is finished" in one(folder).problem
    assert main(["explain", "--replay", str(folder), "--run-seed", "7"]) == 2
    assert "has no seed 7; it has 0" in capsys.readouterr().err
    assert main(["explain", "--replay", str(folder), "--method", "icrl"]) == 2
    (folder / "settings.json").write_text("{", encoding="utf-8")
    assert main(["explain", "--replay", str(folder)]) == 2
    assert "settings.json is damaged" in capsys.readouterr().err
    assert main(["replay", str(folder / "nowhere")]) == 2


@pytest.mark.slow
def test_a_question_that_was_never_asked(folder: Path) -> None:
    replies = folder / "jitrl-s0" / "replies.jsonl"
    kept = [line for line in replies.read_text(encoding="utf-8").splitlines() if json.loads(line)["id"][0] != "r"]
    replies.write_text("\n".join([*kept, ""]), encoding="utf-8")
    assert "the replay stops in episode 0: the model is asked what it was not asked then" in one(folder).problem


class Talker:
    """A model that counts its calls."""

    window = 100
    seeded = True

    def __init__(self) -> None:
        self.calls = 0

    def invoke(self, messages: Any, config: Any = None, **options: Any) -> AIMessage:
        self.calls += 1
        return AIMessage(f"reply {self.calls}", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})

    def get_num_tokens(self, text: str) -> int:
        return len(text)


def test_a_recorded_model_gives_its_replies_again_in_order(tmp_path: Path) -> None:
    talker = Talker()
    model = RecordedChatModel(Rows(tmp_path / "r.jsonl"), talker)
    asked = [HumanMessage("Hi")]
    said = [model.invoke(asked, seed=n).content for n in (1, 1, 2)]
    assert said == ["reply 1", "reply 2", "reply 3"]
    assert (model.window, model.seeded, model.get_num_tokens("four")) == (100, True, 4)
    again = RecordedChatModel(Rows(tmp_path / "r.jsonl"))
    assert [again.invoke(asked, seed=n).content for n in (1, 1, 2)] == said
    assert again.invoke(asked, seed=2).usage_metadata == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    assert (again.window, again.get_num_tokens("four"), hasattr(again, "score")) == (100, 4, False)
    assert talker.calls == 3
    with pytest.raises(UnrecordedCall, match="asked what it was not asked then: 'Bye'"):
        again.invoke([HumanMessage("Bye")])
    with pytest.raises(UnrecordedCall, match="how many tokens"):
        again.get_num_tokens("five!")

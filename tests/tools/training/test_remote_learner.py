"""The learner behind HTTP: the same bytes as in this process, errors as they were raised, and a learner that dies and comes back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner_in_thread import Server
from minibatches import minibatch

from learngraph.memory.claas.settings import LoRA, Objective
from learngraph.memory.errors import UserError, machine_error
from learngraph.memory.records import Correction, Feedback, Measured, Minibatch, Update
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from learngraph.tools.serving.learner_server import LearnerWork
from learngraph.tools.training.calls import LearnerSettings, decode, encode
from learngraph.tools.training.learner import InProcessLearner
from learngraph.tools.training.remote_learner import LearnerClient, RemoteLearner
from learngraph.tools.training.version_files import VersionError
from learngraph.tools.training.version_store import SharedVersions, VersionStore

SETTINGS = LearnerSettings(LoRA(rank=4, alpha=8.0), Objective(kind="reinforce", learning_rate=1e-3))


class Shelf:
    """Versions of a service."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, label: str) -> Path:
        if not (self.root / label).is_dir():
            raise UserError(f"there is no version {label}")
        return self.root / label

    def write(self, batch: Minibatch, folder: Path, about: dict[str, Any]) -> str:
        assert about["losses"]
        label = f"{batch.tenant}/{batch.adapter}@{batch.step:06d}-aaaaaaaaaaaa"
        shutil.rmtree(self.root / label, ignore_errors=True)
        shutil.copytree(folder, self.root / label)
        return label

    def contents(self, label: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder(label).iterdir()}


@pytest.fixture(scope="module")
def pocket() -> LocalChatModel:
    model = open_model("pocket", threads=1)
    assert isinstance(model, LocalChatModel)
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> VersionStore:
    return VersionStore(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def server(pocket: LocalChatModel, place: VersionStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(LearnerWork(pocket, place, tmp_path_factory.mktemp("scratch")), "secret")
    yield server
    server.close()


@pytest.fixture
def remote(server: Server, place: VersionStore, tmp_path: Path) -> Iterator[RemoteLearner]:
    shelf = Shelf(tmp_path / "out")
    learner = RemoteLearner(LearnerClient(server.url, "secret"), SharedVersions(place, shelf.folder), shelf.write, SETTINGS)
    yield learner
    learner.close()


def test_records_come_through_as_they_were() -> None:
    batch = Minibatch("a/b/1", "a", "b", 1, "", (), seed=2**70)
    for record in (
        batch,
        Correction(("r1",), (("r2", "why"),), kls=(("r1", 0.5),)),
        Update("x"),
        Measured((-0.5,), (-1.5,)),
        SETTINGS,
    ):
        assert decode(type(record), encode(record)) == record
    assert decode(Correction, encode(Correction(()))).max_kl == float("inf")
    with pytest.raises(UserError, match="not a Minibatch"):
        decode(Minibatch, {"id": 1})


def test_it_makes_the_same_bytes_as_the_learner_in_this_process(
    remote: RemoteLearner, pocket: LocalChatModel, place: VersionStore, tmp_path: Path
) -> None:
    """Two steps, so that moments, too, travel by the store."""
    shelf, there = Shelf(tmp_path / "here"), Shelf(tmp_path / "out")
    here = InProcessLearner(pocket, shelf.folder, shelf.write, SETTINGS.lora, SETTINGS.objective)
    assert remote.base == here.base
    labels: list[list[str]] = [[""], [""]]
    for step in (1, 2):
        for learner, line in zip((here, remote), labels, strict=True):
            batch = minibatch(pocket, here.base, step, line[-1])
            line.append(learner.step(batch, learner.correct(batch)).version)
    assert labels[0] == labels[1]
    for label in labels[0][1:]:
        assert shelf.contents(label) == there.contents(label)
    assert place.labels("acme/default") == [labels[0][1]]  # the parent; what a step made is taken out
    texts = minibatch(pocket, here.base).exchanges
    assert remote.measure(labels[0][-1], texts) == here.measure(labels[0][-1], texts)
    assert remote.measure("", texts) == here.measure("", texts)


def test_errors_come_back_as_they_were_raised(remote: RemoteLearner, pocket: LocalChatModel, tmp_path: Path) -> None:
    batch = minibatch(pocket, remote.base)
    alien = replace(batch, exchanges=(replace(batch.exchanges[0], tenant="other"),))
    with pytest.raises(UserError, match="has an exchange of other/default in it") as caught:
        remote.correct(alien)
    assert machine_error(caught.value) is None  # of the batch, not of the machine
    broken = tmp_path / "out" / "acme/default@000009-000000000000"
    broken.mkdir(parents=True)
    (broken / "adapter_config.json").write_text("{}")
    with pytest.raises(VersionError, match="cannot be read"):
        remote.correct(replace(batch, parent="acme/default@000009-000000000000"))
    alike = replace(batch, exchanges=tuple(replace(each, feedback=Feedback(1.0)) for each in batch.exchanges))
    assert "all rewards are alike" in remote.step(alike, remote.correct(alike)).skipped
    assert remote.correct(batch).kept  # it goes on


def test_a_wrong_key_and_a_learner_that_is_away_are_no_fault_of_a_minibatch(
    server: Server, place: VersionStore, tmp_path: Path
) -> None:
    shelf = Shelf(tmp_path)
    for url, key, says in ((server.url, "guessed", "refuses"), ("http://127.0.0.1:9", "", "does not answer")):
        with pytest.raises((UserError, OSError), match=says) as caught:
            RemoteLearner(LearnerClient(url, key, patience=0.1), SharedVersions(place, shelf.folder), shelf.write, SETTINGS)
        assert machine_error(caught.value) is not None
    client = LearnerClient(server.url, "secret")
    with pytest.raises(UserError, match="without --thinking"):
        RemoteLearner(client, SharedVersions(place, shelf.folder), shelf.write, SETTINGS, thinking=True)
    with pytest.raises(UserError, match="no call 'delete'") as caught:
        client.call("delete", SETTINGS)
    client.close()
    with pytest.raises(OSError, match="closed"):
        client.about()


def test_a_learner_that_forgot_a_call_is_asked_again(
    remote: RemoteLearner, server: Server, pocket: LocalChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed and started again between the question and the answer: the server knows no such call. It computes the same."""
    batch = minibatch(pocket, remote.base)
    whole, asked = remote.correct(batch), server.work.submit
    ids: list[str] = []

    def submit(id: str, *call: Any) -> None:
        ids.append(id)
        if len(ids) > 1:
            asked(id, *call)

    monkeypatch.setattr(server.work, "submit", submit)
    assert remote.correct(batch) == whole
    assert len(ids) == 2
    assert remote._client.restarts == 1
    monkeypatch.setattr(server.work, "submit", lambda id, *call: None)
    with pytest.raises(OSError, match="died 3 times of the same work"):
        remote.correct(batch)

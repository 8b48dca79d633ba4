"""The learner as an actor of a Ray cluster: the same bytes, errors as they were raised, and `kill -9` of the actor's process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from minibatches import StoredVersions, check_same_bytes, minibatch
from ray_actors import die_in_a_step

from learngraph.memory.claas.settings import LoRA, Objective
from learngraph.memory.errors import UserError, machine_error
from learngraph.memory.records import Feedback
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training.calls import LearnerModel, LearnerSettings
from learngraph.tools.training.learner import InProcessLearner
from learngraph.tools.training.learner_worker import WorkerLearner
from learngraph.tools.training.version_files import VersionError

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
SMALL = LearnerSettings(LoRA(rank=4, alpha=8), Objective(kind="reinforce", learning_rate=1e-3))


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerLearner]:
    shelf = StoredVersions(tmp_path_factory.mktemp("ray"))
    learner = WorkerLearner(LearnerModel("pocket"), shelf.folder, shelf.write, SMALL, nice=0, cluster="ray")
    yield learner
    learner.close()


def test_killed_in_mid_step_it_makes_the_same_bytes_as_the_learner_in_this_process(
    learner: WorkerLearner, pocket: LocalChatModel, tmp_path: Path
) -> None:
    """Three steps, so that moments travel, too; in the second one the actor dies, and a new one has it all again."""
    shelf = StoredVersions(tmp_path)
    here = InProcessLearner(pocket, shelf.folder, shelf.write, SMALL)
    check_same_bytes(learner, here, pocket, 3, 8, lambda step: die_in_a_step(learner, tmp_path / "died") if step == 2 else None)
    assert (tmp_path / "died").exists()
    assert learner.restarts == 0  # Ray started the actor again, not we the driver


def test_errors_come_back_as_they_were_raised(learner: WorkerLearner, pocket: LocalChatModel) -> None:
    batch = minibatch(pocket, learner.base)
    alien = replace(batch, exchanges=(replace(batch.exchanges[0], tenant="other"),))
    with pytest.raises(UserError, match="has an exchange of other/default in it") as caught:
        learner.correct(alien)
    assert machine_error(caught.value) is None  # of the batch, not of the machine
    broken = learner._folder("acme/default@000009-000000000000")
    broken.mkdir(parents=True)
    (broken / "adapter_config.json").write_text("{}")
    with pytest.raises(VersionError, match="cannot be read"):
        learner.correct(replace(batch, parent="acme/default@000009-000000000000"))
    alike = replace(batch, exchanges=tuple(replace(each, feedback=Feedback(1.0)) for each in batch.exchanges))
    assert "all rewards are alike" in learner.step(alike, learner.correct(alike)).skipped
    assert learner.correct(batch).kept  # it goes on

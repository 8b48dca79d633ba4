"""The learner in a process of its own: the same bytes, errors as they were raised, restarts, and no orphans."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forks import Python
from minibatches import StoredVersions, check_same_bytes, minibatch
from waiting import has_ended, wait_until

from learngraph.memory.claas.settings import LoRA, Objective
from learngraph.memory.errors import UserError
from learngraph.memory.records import Reply
from learngraph.memory.telemetry import take_over_trace
from learngraph.tools.local.fingerprint import fingerprint
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training.calls import LearnerModel, LearnerSettings
from learngraph.tools.training.learner import InProcessLearner
from learngraph.tools.training.learner_worker import WorkerDied, WorkerLearner
from learngraph.tools.training.version_files import VersionError

pytestmark = pytest.mark.slow  # a process that imports torch takes seconds to start

SMALL = LearnerSettings(LoRA(rank=4, alpha=8), Objective(kind="reinforce", learning_rate=1e-3))


SITE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open({!r}, "a"))))
"""
"""A module that Python loads first, as of `opentelemetry-instrument`: spans go to a file."""


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spans") / "spans"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, spans: Path, pocket: LocalChatModel) -> Iterator[WorkerLearner]:
    shelf = StoredVersions(tmp_path_factory.mktemp("worker"))
    (spans.parent / "sitecustomize.py").write_text(SITE.format(str(spans)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(spans.parent))
        # It starts in the background, and is waited for. At 19 a busy machine makes the tests slow.
        base = fingerprint(pocket)
        learner = WorkerLearner(LearnerModel("pocket"), shelf.folder, shelf.write, SMALL, nice=1, base=base)
        wait_until(lambda: learner.process_id)
    yield learner
    learner.close()


def test_the_worker_belongs_to_the_trace_of_who_asks(worker: WorkerLearner, spans: Path) -> None:
    take_over_trace(f"00-{'a' * 32}-{'b' * 16}-01")
    worker.measure("", ())
    take_over_trace("")
    found = json.loads(spans.read_text().partition("\n}\n")[0] + "}")
    assert (found["name"], found["parent_id"]) == ("learner.measure", f"0x{'b' * 16}")
    assert found["context"]["trace_id"] == f"0x{'a' * 32}"


def test_the_worker_makes_the_same_bytes_as_the_learner_in_this_process(
    worker: WorkerLearner, pocket: LocalChatModel, tmp_path: Path
) -> None:
    """Two steps, so that moments, too, come from a folder: hash equal across processes."""
    shelf = StoredVersions(tmp_path)
    here = InProcessLearner(pocket, shelf.folder, shelf.write, SMALL)
    check_same_bytes(worker, here, pocket, 2, 4, lambda step: None)


def test_it_works_at_the_priority_asked_for_in_a_process_of_its_own(worker: WorkerLearner) -> None:
    assert worker.process_id not in (None, os.getpid())
    process = worker.process_id or 0
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, process) == 1)  # set once the model is loaded
    assert (os.getpgid(process), os.getsid(process)) == (process, os.getsid(0))  # in another session Linux would not heed it
    environment = Path(f"/proc/{process}/environ")
    assert not environment.exists() or b"MALLOC_TRIM_THRESHOLD_" in environment.read_bytes()


def test_errors_come_back_as_they_were_raised(worker: WorkerLearner, pocket: LocalChatModel, tmp_path: Path) -> None:
    batch = minibatch(pocket, worker.base)
    alien = replace(batch, exchanges=(replace(batch.exchanges[0], tenant="other"),))
    with pytest.raises(UserError, match="has an exchange of other/default in it") as caught:
        worker.correct(alien)
    assert caught.value.__cause__ is None  # of the batch, not of the machine
    with pytest.raises(UserError, match="has no reply to read"):
        worker.measure("", [replace(batch.exchanges[0], reply=Reply("", (1,), (), ()))])
    with pytest.raises(VersionError, match="cannot be read") as lost:
        worker.correct(replace(batch, parent="acme/default@000009-000000000000"))
    assert isinstance(lost.value.__cause__, OSError)  # a file that is not there is the machine's
    assert worker.correct(batch).kept  # it goes on


def test_a_learner_that_starts_in_the_background_may_be_closed_meanwhile(pocket: LocalChatModel, tmp_path: Path) -> None:
    shelf, base = StoredVersions(tmp_path), fingerprint(pocket)
    early = WorkerLearner(LearnerModel("pocket"), shelf.folder, shelf.write, SMALL, nice=0, base=base)
    threading.Timer(0.3, early.close).start()
    with pytest.raises(WorkerDied, match="closed"):
        early.correct(minibatch(pocket, base))


def test_a_learner_that_cannot_start_is_no_fault_of_a_minibatch_and_is_tried_again(
    pocket: LocalChatModel, tmp_path: Path
) -> None:
    shelf, gone = StoredVersions(tmp_path), LearnerModel("local:/none")
    with pytest.raises(UserError, match="there is no folder /none"):  # said at the start, where it is waited for
        WorkerLearner(gone, shelf.folder, shelf.write, SMALL, nice=0)
    late = WorkerLearner(gone, shelf.folder, shelf.write, SMALL, nice=0, base="b")  # which tries by itself
    with pytest.raises(RuntimeError, match=r"cannot be started: .*no folder /none"):
        late.correct(minibatch(pocket, "b"))
    late.close()


@pytest.mark.long  # one more process that imports torch, for a sentence
def test_a_learner_of_another_model_than_the_engines_does_not_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = StoredVersions(tmp_path)
    other = WorkerLearner(LearnerModel("pocket"), shelf.folder, shelf.write, SMALL, nice=0, base="c")
    wait_until(lambda: "cannot be started: " in caplog.text)
    assert "the engine c" in caplog.text
    other.close()


def test_a_killed_worker_loses_nothing(worker: WorkerLearner, pocket: LocalChatModel) -> None:
    """Killed in the middle of a call: another worker does the same again, to the same label."""
    large, restarts = minibatch(pocket, worker.base, size=8), worker.restarts
    correction = worker.correct(large)
    whole = worker.step(large, correction).version
    os.kill(worker.process_id or 0, signal.SIGSTOP)  # so that it cannot be done before it is killed
    killer = threading.Timer(0.15, lambda: os.kill(worker.process_id or 0, signal.SIGKILL))
    killer.start()
    assert worker.step(large, correction).version == whole
    killer.join()
    assert worker.restarts == restarts + 1


@pytest.mark.long  # test_a_killed_worker_loses_nothing kills one, too
def test_a_worker_that_dies_of_its_work_is_the_machines_fault(worker: WorkerLearner, pocket: LocalChatModel) -> None:
    """Not the batch's, so that nobody rejects the batch; the next call starts another worker, which does the same as the first."""
    large = minibatch(pocket, worker.base, size=8)
    correction = worker.correct(large)
    expected = worker.step(large, correction).version
    os.kill(worker.process_id or 0, signal.SIGSTOP)
    done = threading.Event()

    def kill_all() -> None:
        while not done.wait(0.2):
            if (process := worker.process_id) is not None:
                os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(WorkerDied, match=r"died 2 times of the same work: signal SIGKILL"):
            worker.step(large, correction)
    finally:
        done.set()
        killer.join()
    assert worker.step(large, correction).version == expected


def test_close_ends_a_step_that_runs(worker: WorkerLearner, pocket: LocalChatModel) -> None:
    """Of the worker of all tests before."""
    root = worker._folder("x").parent
    large = minibatch(pocket, worker.base, step=2, size=8)
    correction, before = worker.correct(large), sorted(root.iterdir())
    process = worker.process_id
    os.kill(process or 0, signal.SIGSTOP)
    threading.Timer(0.15, worker.close).start()
    with pytest.raises(WorkerDied, match="closed"):
        worker.step(large, correction)
    assert process is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(WorkerDied, match="closed"):
        worker.correct(large)
    worker.close()
    assert sorted(root.iterdir()) == before


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    """Also where the parent is killed and can tell nobody. A script without `if __name__ == "__main__"` runs once."""
    (tmp_path / "script.py").write_text(
        "import signal, sys\nfrom pathlib import Path\n"
        "from learngraph.tools.training.learner_worker import WorkerLearner\n"
        "from learngraph.tools.training.calls import LearnerSettings, LearnerModel\n"
        "worker = WorkerLearner(LearnerModel('pocket'), Path, lambda *_: '', LearnerSettings(), nice=0)\n"
        "print(worker.process_id, flush=True)\nsignal.pause()\n"
    )
    parent = Python(str(tmp_path / "script.py"))
    process = int(parent.stdout.readline())
    os.kill(process, 0)
    parent.kill()
    parent.wait()
    wait_until(lambda: has_ended(process))

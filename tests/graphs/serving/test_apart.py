"""A service without weights of its own: vLLM's part is played, the learner is an actor on Ray, and what users teach goes live."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claas_settings import changed
from waiting import until

from learngraph.graphs.claas import CLaaS, Objective
from learngraph.graphs.cli.serve import build_service
from learngraph.graphs.cli.serve_options import ServeOptions
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.settings import LoRA, PolicyGradient, StalenessCorrection
from learngraph.memory.records import ChatCall, ChatRequest, Exchange, Feedback, Sampling
from learngraph.tools.local.fingerprint import fingerprint
from learngraph.tools.models.models import open_model
from learngraph.tools.training.learner_worker import WorkerLearner

pytest.importorskip("fastapi")
import vllm_server
from ray_actors import die_in_a_step

pytestmark = pytest.mark.long  # Ray starts two actors, each with a torch of its own
REINFORCE = changed(
    CLaaS(loss=Objective(kind="reinforce"), lora=LoRA(rank=4)),
    loss={"correction": StalenessCorrection(kind="none"), "learning_rate": 1e-3, "policy": PolicyGradient(min_evidence=0.0)},
    gate={"enabled": False},
    rollout={"max_lead": 100, "watch_rewards": 0},
    replay={"max_samplings": 1, "held_out_share": 0.0},
)


@pytest.fixture
def vllm() -> Iterator[Any]:
    with vllm_server.VllmServer(logprobs_mode="processed_logprobs") as server:
        yield server


async def turn(service: Service, n: int) -> Exchange:
    request = ChatRequest(({"role": "user", "content": f"where to now {n % 5}"},), Sampling(max_tokens=3, seed=n))
    items = [item async for item in service.chat(ChatCall(f"r{n}", "acme", request))]
    assert isinstance(items[-1], Exchange)
    return items[-1]


def options(server: Any, tmp_path: Path, **more: Any) -> ServeOptions:
    return ServeOptions(model="vllm:base", base_url=server.url, out=tmp_path / "out", **more)


async def test_vllm_answers_and_a_learner_on_ray_is_killed_and_learns_on(vllm: Any, tmp_path: Path) -> None:
    """The service opens no weights: the base model's fingerprint comes from the learner. `kill -9` in mid-step: each step is taken once."""
    pytest.importorskip("ray")
    asked = options(vllm, tmp_path, weights="pocket", learner="ray")
    async with build_service(asked, REINFORCE) as service:
        assert isinstance(service.learner, WorkerLearner)
        die_in_a_step(service.learner, tmp_path / "died")
        for n in range(16):
            await turn(service, n)
            await service.feedback("acme", f"r{n}", Feedback(1.0 if n % 2 else -1.0))
        await until((tmp_path / "died").exists)
        assert (await turn(service, 50)).reply.token_ids  # it answers on
        await until(lambda: "@000002" in service.versions("acme").current)
        updates = service.replay.updates("acme", "default", 5)
        assert [row["step"] for row in updates] == [2, 1]
        assert service.replay.counts("acme") == {"consumed": 16, "pending": 1}
        assert [row.step for row in service.versions("acme").versions()] == [2, 1]
        await until(lambda: service.version("acme", "default", "r99") == updates[0]["version"])  # once the engine has it
        reply = (await turn(service, 99)).reply
        assert reply.version == service.versions("acme").current == updates[0]["version"]
        loaded = [body["lora_name"] for path, body in vllm.requests if path.endswith("/load_lora_adapter")]
        assert len(loaded) == len(set(loaded)) >= 1  # no name twice
        assert service.engine.base == fingerprint(open_model("pocket", threads=1))

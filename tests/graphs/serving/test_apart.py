"""A service without weights of its own: vLLM's part and the learner's are played elsewhere, and what users teach goes live all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claas_settings import changed

from learngraph.graphs.claas import CLaaS
from learngraph.graphs.cli.serve import build_service
from learngraph.graphs.cli.serve_options import ServeOptions
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.settings import LoRA, StalenessCorrection
from learngraph.memory.errors import UserError
from learngraph.memory.records import ChatCall, ChatRequest, Exchange, Feedback, Sampling
from learngraph.tools.models.models import open_model
from learngraph.tools.serving.learner_server import LearnerWork
from learngraph.tools.training.version_store import VersionStore

pytest.importorskip("fastapi")
import vllm_server
from learner_in_thread import Server

pytestmark = pytest.mark.slow
REINFORCE = changed(
    replace(CLaaS.reinforce(), lora=LoRA(rank=4)),
    loss={"correction": StalenessCorrection(kind="none"), "learning_rate": 1e-3},
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


async def learn_and_check(options: ServeOptions, server: Any) -> str:
    """Chat, give feedback, and wait for versions to go live; returns the base model's name."""
    async with build_service(options, REINFORCE) as service:
        for n in range(16):
            await turn(service, n)
            await service.feedback("acme", f"r{n}", Feedback(1.0 if n % 2 else -1.0))
        for _ in range(600):
            if service.replay.counts("acme").get("ready", 0) < 8 and service.versions("acme").current:
                break
            await asyncio.sleep(0.1)
        live = service.versions("acme").current
        assert live, service.replay.updates("acme", "default", 5)
        reply = (await turn(service, 99)).reply
        assert reply.version == service.versions("acme").current
        assert reply.version in server.adapters
        loaded = [body["lora_name"] for path, body in server.requests if path.endswith("/load_lora_adapter")]
        assert len(loaded) == len(set(loaded)) >= 1  # no name twice
        return service.engine.base


def options(server: Any, tmp_path: Path, **more: Any) -> ServeOptions:
    return ServeOptions(model="vllm:base", base_url=server.url, out=tmp_path / "out", **more)


async def test_vllm_answers_and_a_learner_elsewhere_trains(vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base model's fingerprint comes from the learner; adapters go to it and to vLLM by the store."""
    monkeypatch.setenv("LEARNGRAPH_LEARNER_KEY", "between us")
    store = str(tmp_path / "adapters")
    learner = Server(LearnerWork(open_model("pocket", threads=1), VersionStore(store), tmp_path / "scratch"), "between us")
    try:
        asked = options(vllm, tmp_path, trainer="remote", learner_url=learner.url, hand_over=store)
        assert await learn_and_check(asked, vllm) == learner.work.base
        assert all(path.startswith(f"{store}/acme/default@") for path in vllm.roots.values())
    finally:
        learner.close()


async def test_vllm_answers_and_a_tinker_service_trains(vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tinker")
    import tinker_server

    monkeypatch.setenv("TINKER_API_KEY", tinker_server.KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with tinker_server.TinkerServer(open_model("pocket", threads=1)) as tinker:
        asked = options(vllm, tmp_path, trainer="tinker", learner_url=tinker.url)
        assert await learn_and_check(asked, vllm) == "tinker:base"
        assert tinker.asked("optim_step")
        with pytest.raises(UserError, match="teaches words by sdpo"):
            build_service(asked, CLaaS())
        with pytest.raises(UserError, match=r"--gate\.max-kl inf --gate\.min-entropy-share 0"):
            build_service(asked, CLaaS.reinforce())

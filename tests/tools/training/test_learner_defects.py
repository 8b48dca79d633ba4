"""Defects of CLaaS's public code that this learner must not have: heads of a width of their own are misread, moments outlive their
weights, chats must have a system prompt."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from claas_settings import make_objective
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from waiting import let_others_run

from learngraph.graphs.claas import CLaaS, GateSettings, ReleaseSettings
from learngraph.graphs.serving.service import Service
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import LoRA, Objective, ReplaySettings
from learngraph.memory.records import ChatCall, ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.nodes.prompt import Prompt
from learngraph.tools.local.engine import LocalEngine
from learngraph.tools.local.fingerprint import fingerprint
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.training.calls import LearnerSettings
from learngraph.tools.training.learner import InProcessLearner

HINDSIGHT = Prompt.load("claas/hindsight").parts[0][1].template
LORA = LoRA(rank=4, alpha=8.0)
QUESTION = "You are in the kitchen.\nnorth: hall\ntake: lamp"


class Place:
    """A learner whose versions are kept as the service keeps them."""

    def __init__(self, root: Path, model: LocalChatModel, **settings: Any) -> None:
        self.root, self.adapters = root, Adapters(root, "acme")
        objective = make_objective(**({"kind": "reinforce", "learning_rate": 1e-2, "warmup_steps": 1} | settings))
        self.learner = InProcessLearner(model, self.folder, self.write, LearnerSettings(LORA, objective, HINDSIGHT))

    def folder(self, label: str) -> Path:
        return self.adapters.folder(label)

    def write(self, batch: Minibatch, folder: Path, about: Mapping[str, Any]) -> str:
        return self.adapters.write(folder, batch.step, batch.parent, self.learner.base, about)

    def step(self, batch: Minibatch) -> str:
        update = self.learner.step(batch, self.learner.correct(batch))
        assert update.version, update.skipped
        return update.version

    def contents(self, label: str) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.folder(label).iterdir()}


def batch_of(model: LocalChatModel, step: int = 1, parent: str = "", text: str = "") -> Minibatch:
    """Four replies to a question without a system prompt, two of them liked; the log-probabilities are the base model's."""
    exchanges = []
    for n, said in enumerate(("take lamp", "go north", "take the lamp", "read it")):
        messages = ({"role": "user", "content": QUESTION},)
        prompt, tokens = tuple(model.chat_ids(list(messages))), tuple(model.reply_ids(said))
        with torch.no_grad():
            logits = model.network(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        logps = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        feedback = Feedback(1.0 if said.startswith("take") else -1.0, text)
        reply = Reply(said, prompt, tokens, tuple(min(0.0, x) for x in logps))
        exchanges.append(Exchange(f"r{n}", "acme", ChatRequest(messages), reply, fingerprint(model), feedback=feedback))
    return Minibatch(f"acme/default/{step}", "acme", "default", step, parent, tuple(exchanges), seed=step)


# Heads


@pytest.fixture(scope="module")
def wide(pocket: LocalChatModel, tmp_path_factory: pytest.TempPathFactory) -> LocalChatModel:
    """A model as Qwen3-0.6B is: 4 heads and 2 for keys and values, each 24 wide, where hidden / heads would be 12."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=pocket.network.config.vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=512,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    pocket.tokenizer.save_pretrained(folder)
    return LocalChatModel(model=str(folder), threads=1)


@pytest.mark.parametrize("loss", ["reinforce", "sdpo", "ppo"])
def test_heads_may_be_wider_than_hidden_by_heads(wide: LocalChatModel, tmp_path: Path, loss: str) -> None:
    import peft

    place = Place(tmp_path, wide, kind=loss)
    batch = batch_of(wide, text="take it")
    label = place.step(batch)
    shapes = {
        name: tuple(tensor.shape) for name, tensor in load_file(place.folder(label) / "adapter_model.safetensors").items()
    }
    layer = "base_model.model.model.layers.0.self_attn."
    assert shapes[f"{layer}q_proj.lora_B.weight"] == (4 * 24, 4)
    assert shapes[f"{layer}k_proj.lora_B.weight"] == shapes[f"{layer}v_proj.lora_B.weight"] == (2 * 24, 4)
    assert shapes[f"{layer}o_proj.lora_A.weight"] == (4, 4 * 24)
    assert json.loads((place.folder(label) / "adapter_config.json").read_text())["r"] == 4
    prompt = torch.tensor([batch.exchanges[0].reply.prompt_ids])
    with torch.no_grad():
        ours = place.learner.network(label)(input_ids=prompt).logits[0, -1]
        base = wide.network(input_ids=prompt).logits[0, -1]
        opened = peft.PeftModel.from_pretrained(LocalChatModel(model=wide.model, threads=1).network, str(place.folder(label)))
        theirs = opened.eval()(input_ids=prompt).logits[0, -1]
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, base, atol=1e-5)


# Moments


@pytest.mark.slow
def test_moments_do_not_outlive_the_weights_they_belong_to(pocket: LocalChatModel, tmp_path: Path) -> None:
    """Back to the base model, and the adapter removed and made again: what is learned next is what a learner that never learned
    anything makes of the same minibatch, moments and all, to the byte."""
    fresh = Place(tmp_path / "fresh", pocket)
    third = batch_of(pocket, 3)
    expected = fresh.contents(fresh.step(third))
    used = Place(tmp_path / "used", pocket)
    first = used.step(batch_of(pocket, 1))
    second = used.step(batch_of(pocket, 2, first))
    assert used.contents(second)["optimizer.safetensors"] != used.contents(first)["optimizer.safetensors"]
    made = {name: used.contents(first)[name] for name in ("optimizer.safetensors", "adapter_model.safetensors", "learner.json")}
    used.adapters.promote(second, "")
    used.adapters.roll_back("", "to the base model")
    again = used.step(third)
    assert used.contents(again) | {"manifest.json": ""} == expected | {"manifest.json": ""}
    used.adapters.remove()
    used.adapters = Adapters(used.root, "acme")
    remade = used.contents(used.step(batch_of(pocket, 1)))
    assert {name: remade[name] for name in made} == made
    moments = load_file(fresh.folder(fresh.step(third)) / "optimizer.safetensors")
    steps = {float(tensor) for name, tensor in moments.items() if tensor.numel() == 1 and "step" in name}
    assert steps <= {1.0}


# System prompts


@pytest.mark.slow
async def test_chats_feedback_and_learning_need_no_system_prompt(pocket: LocalChatModel, tmp_path: Path) -> None:
    settings = CLaaS(
        replay=ReplaySettings(batch_size=4, min_exchanges=4, held_out_share=0.0, max_samplings=1),
        loss=Objective(learning_rate=1e-3),
        lora=LORA,
        gate=GateSettings(enabled=False),
        rollout=ReleaseSettings(watch_rewards=0),
    )
    replay = Replay(tmp_path / "replay.sqlite", settings.replay)

    def write(batch: Minibatch, folder: Path, about: Mapping[str, Any]) -> str:
        kept = service.versions(batch.tenant, batch.adapter)
        return kept.write(folder, batch.step, batch.parent, learner.base, about)

    learner = InProcessLearner(
        pocket,
        lambda label: service.versions("acme").folder(label),
        write,
        LearnerSettings(settings.lora, settings.loss, HINDSIGHT),
    )
    engine = LocalEngine(LocalChatModel(model=pocket.model, threads=1), rank=4)
    service = Service(engine, learner, replay, tmp_path / "adapters", settings)
    asked = ChatRequest(({"role": "user", "content": QUESTION},), Sampling(max_tokens=3, seed=1))
    talk: tuple[dict[str, Any], ...] = (*asked.messages, {"role": "assistant", "content": "go north"})
    requests = [
        asked,
        replace(asked, messages=(*talk, {"role": "user", "content": "and now?"})),
        replace(asked, messages=({"role": "user", "content": ""},)),
        ChatRequest(raw=QUESTION, sampling=asked.sampling),
    ]
    async with service:
        for n, request in enumerate(requests):
            *_, last = [item async for item in service.chat(ChatCall(f"c{n}", "acme", request))]
            assert isinstance(last, Exchange)
            assert not any(message["role"] == "system" for message in last.request.messages)
            receipt = await service.feedback("acme", f"c{n}", Feedback(1.0 if n % 2 else -1.0, "take the lamp"))
            assert receipt.state == "ready"
        job = await service.train("acme", "default")
        while (told := await service.job("acme", job["job"])) is None or told["state"] != "done":
            await let_others_run()
        (version,) = told["versions"]
        assert service.versions("acme").current == version
        (update,) = replay.updates("acme", "default")
        assert update["kept"] >= 3
        *_, after = [item async for item in service.chat(ChatCall("after", "acme", asked))]
        assert isinstance(after, Exchange)
        assert after.reply.version == version

"""The vLLM engine, and a service that learns through it, against a real vLLM on the CPU (`make vllm`)."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import claas_preferences
import pytest
from real_vllm import PYTHON, RealVllm
from waiting import until

from learngraph.memory.errors import Unavailable, UserError, VersionNotLoaded, WindowError
from learngraph.memory.records import ChatRequest, Reply, Sampling
from learngraph.tools.serving.vllm_engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not PYTHON.exists(), reason="NOT TESTED: no vLLM (make vllm)")]

ROOT = Path(__file__).parents[3]
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,  # vLLM holds a call to its schema only then
        "parameters": {"type": "object", "properties": {"at": {"enum": ["map", "lamp"]}}, "required": ["at"]},
    },
}
LONG = "look at the map and go north then south then east then west " * 12
"""A prompt of several blocks of the server's prefix cache."""


def asked(text: str = "where to now", **sampling: Any) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), Sampling(**({"seed": 1, "max_tokens": 12} | sampling)))


async def heard(engine: VllmEngine, request: ChatRequest, version: str = "", tenant: str = "acme") -> Reply:
    async with aclosing(engine.stream(request, version, tenant)) as stream:  # type: ignore[type-var]
        *_, reply = [item async for item in stream]
    assert isinstance(reply, Reply)
    assert reply.flaw == ""
    return reply


def label(tenant: str, number: int) -> str:
    return f"{tenant}/default@{number:06}-{number:012x}"


@pytest.fixture(scope="module")
def model(checkpoint: Callable[..., str], hermes: str) -> str:
    """A random Llama whose template writes tool calls, with heads of a size that vLLM knows."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(hermes)
    return checkpoint(tokenizer, hidden_size=128, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    with RealVllm(model, "base", tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture
async def engine(server: RealVllm) -> AsyncIterator[VllmEngine]:
    engine = await asyncio.to_thread(VllmEngine, "base", server.url)
    yield engine
    for version in engine.loaded_versions():
        await engine.unload(version)
    await engine.close()


@pytest.fixture(scope="module")
def versions(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Six versions of two tenants, each of weights of its own."""
    from bench_swap import make_adapter  # here: it opens torch, for tests that are asked for alone

    found, root = {}, tmp_path_factory.mktemp("versions")
    for number in range(6):
        name = label(("acme", "rival")[number % 2], number)
        found[name] = root / name.replace("/", "-")
        make_adapter(model, found[name], number, std=0.1)
    return found


@pytest.fixture(scope="module")
def is_of(model: str, versions: dict[str, Path]) -> Callable[[Reply, str, float], bool]:
    """Whether a reply's log-probabilities are those of a version (empty: of the base model) at a temperature, by transformers."""
    import peft
    import torch
    import transformers

    base: Any = transformers.AutoModelForCausalLM.from_pretrained(model)
    network = peft.PeftModel.from_pretrained(base, versions[label("acme", 0)], label("acme", 0).replace(".", "-"))
    for name, folder in versions.items():
        if name != label("acme", 0):
            network.load_adapter(folder, name)

    def judge(reply: Reply, version: str, temperature: float = 1.0) -> bool:
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        if version:
            network.set_adapter(version)
        with torch.no_grad():
            logits = network(ids).logits if version else _without_adapter(network, ids)
        scores = (logits[0, len(reply.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
        wanted = scores.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        return bool((wanted - torch.tensor(reply.logprobs)).abs().max() < 5e-3)

    return judge


def _without_adapter(network: Any, ids: Any) -> Any:
    with network.disable_adapter():
        return network(ids).logits


async def test_log_probabilities_are_those_drawn_from_and_tenants_share_no_cache(engine: VllmEngine, is_of: Any) -> None:
    assert engine.has_processed_logprobs
    assert engine.window == 1024
    for temperature in (1.0, 0.6):
        assert is_of(await heard(engine, asked(temperature=temperature)), "", temperature)
    raw = await heard(engine, ChatRequest(raw="look at the", sampling=Sampling(max_tokens=8, seed=3)))
    assert is_of(raw, "")
    assert len((await heard(engine, replace(asked(), top_logprobs=2))).logprobs) > 0
    cached = [(await heard(engine, asked(LONG, max_tokens=1), tenant=who)).cached for who in ("acme", "rival", "acme")]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    with pytest.raises(WindowError):
        await heard(engine, asked("word " * 2000))


async def test_tools_are_called_as_asked(engine: VllmEngine) -> None:
    assert {"tools", "tool_choice"} <= engine.features
    named = {"type": "function", "function": {"name": "look"}}
    reply = await heard(engine, replace(asked(max_tokens=200), tools=(LOOK,), tool_choice=named))
    (call,) = reply.tool_calls
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) in ({"at": "map"}, {"at": "lamp"})


async def test_versions_of_two_tenants_swap_under_load_and_each_answers_with_its_own_weights(
    engine: VllmEngine, versions: dict[str, Path], is_of: Any
) -> None:
    """Six versions where the server has room for four: the least recently used is evicted, and read again when it is asked for."""
    await engine.load(label("acme", 0), versions[label("acme", 0)])
    made: dict[str, list[Reply]] = {}
    ends = asyncio.Event()

    async def chat(seed: int) -> None:
        draw = random.Random(seed)
        while not ends.is_set():
            version = draw.choice(engine.loaded_versions())
            try:
                reply = await heard(engine, asked(f"go {seed}", seed=draw.randrange(999)), version, version.split("/")[0])
            except VersionNotLoaded:  # it was unloaded between the draw and the request
                continue
            assert reply.version == version
            made.setdefault(version, []).append(reply)

    streams = [asyncio.create_task(chat(seed)) for seed in range(16)]
    for name, folder in versions.items():
        await engine.load(name, folder)
        await until(lambda name=name: len(made.get(name, ())) >= 4)  # type: ignore[misc]
    for name in list(versions)[:2]:
        await engine.unload(name)
        with pytest.raises(VersionNotLoaded):
            await heard(engine, asked(), name)
        await engine.load(name, versions[name])
    ends.set()
    await asyncio.gather(*streams)
    assert set(made) == set(versions)
    assert [name for name, replies in made.items() for reply in replies if not is_of(reply, name)] == []
    other = dict(zip(versions, [*list(versions)[1:], ""], strict=True))
    assert not any(is_of(made[name][0], other[name]) for name in versions)  # the weights do differ
    again = await asyncio.to_thread(VllmEngine, "base", engine._url)  # as after a kill -9 of the service
    await again.load(label("acme", 0), versions[label("acme", 0)])
    assert set(again.loaded_versions()) == {name for name in versions if name.startswith("acme/")}
    await again.close()


@pytest.mark.xfail(strict=True, reason="vLLM on the CPU adds its last adapter to the base model (pull requests 48421, 49656)")
async def test_the_base_model_beside_a_version_answers_as_it_does_alone(
    engine: VllmEngine, versions: dict[str, Path], is_of: Any
) -> None:
    for name in list(versions)[:4]:  # all places are taken, the last one too
        await engine.load(name, versions[name])
        await heard(engine, asked(), name)
    async with aclosing(engine.stream(asked(max_tokens=500), name)) as beside:  # type: ignore[type-var]
        await anext(beside)
        assert is_of(await heard(engine, asked()), "")


async def test_a_server_that_was_killed_and_started_again_gets_its_versions_back(
    engine: VllmEngine, server: RealVllm, versions: dict[str, Path], is_of: Any
) -> None:
    name = label("rival", 1)
    await engine.load(name, versions[name])
    running = engine.stream(asked(max_tokens=500), name)
    await anext(running)
    server.kill()
    with pytest.raises(Unavailable):
        [item async for item in running]
    with pytest.raises(Unavailable):
        await heard(engine, asked(), name)
    await asyncio.to_thread(server.start)
    assert is_of(await heard(engine, asked(), name), name)
    with pytest.raises(UserError):
        await engine.load(label("acme", 9), Path("/nowhere"))


def test_a_preference_is_learned_through_vllm(tmp_path: Path) -> None:
    """A play of tests/performance/claas_preferences.py, with vLLM in the place of our engine."""
    out = tmp_path / "plays.jsonl"
    with RealVllm(str(ROOT / "tools/pocket/guard_weights"), "guard", tmp_path) as guard:
        flags = ["--serve", "--model", "vllm:guard", "--base-url", guard.url, "--weights", "guard"]
        assert claas_preferences.main(["--out", str(out), "--seeds", "1", "--users", "a word first", *flags]) == 0
    play = claas_preferences.Play(**json.loads(out.read_text()))
    assert (play.passed[0], play.passed[-1]) == (False, True)

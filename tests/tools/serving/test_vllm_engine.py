"""The vLLM engine against a server that mimics vLLM's endpoints and traps (vllm_server.py); test_real_vllm.py has a real one."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vllm_server
from waiting import let_others_run, until

from learngraph.memory.claas.replay import Replay
from learngraph.memory.errors import AdapterError, FeedbackConflict, Unavailable, UserError, VersionNotLoaded, WindowError
from learngraph.memory.records import ChatRequest, Exchange, ExchangeQuery, Feedback, Piece, Reply, Sampling
from learngraph.tools.serving.vllm_engine import VllmEngine

ONE, TWO = "acme/default@000001-aaaaaaaaaaaa", "acme/default@000002-bbbbbbbbbbbb"


def asked(text: str = "where to now", **sampling: Any) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), Sampling(**({"seed": 1, "max_tokens": 8} | sampling)))


async def heard(engine: VllmEngine, request: ChatRequest, version: str = "") -> tuple[list[Piece], Reply]:
    *pieces, reply = [item async for item in engine.stream(request, version)]
    assert isinstance(reply, Reply)
    return [piece for piece in pieces if isinstance(piece, Piece)], reply


Serve = Callable[..., Any]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running = []

    def start(**settings: Any) -> Any:
        server = vllm_server.VllmServer(**settings).__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def server(serve: Serve) -> Any:
    return serve(logprobs_mode="processed_logprobs")


@pytest.fixture
async def engine(server: Any) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine("base", server.url, base="f00d")
    server.requests.clear()
    yield engine
    await engine.close()


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two versions' folders, of other weights."""
    found = {}
    for label in (ONE, TWO):
        folder = found[label] = tmp_path / label.replace("/", "-")
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(label.encode())
    return found


def contents(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def made_by(reply: Reply, prompt: str, weights: str, temperature: float = 1.0) -> bool:
    """Whether the log-probabilities are those of these weights, to the digit."""
    probabilities = vllm_server.distribution(prompt, weights, temperature)
    words = [token - 1 for token in reply.token_ids if token != vllm_server.END]
    return [round(math.log(probabilities[word]), 9) for word in words] == [round(p, 9) for p in reply.logprobs[: len(words)]]


# Replies


async def test_a_reply_comes_in_pieces_with_the_token_ids_and_log_probabilities_of_the_server(engine: VllmEngine) -> None:
    pieces, reply = await heard(engine, asked())
    assert len(pieces) == 3
    assert "".join(piece.text for piece in pieces) == reply.text
    assert reply.prompt_ids == (0, 1, 2)
    assert len(reply.token_ids) == len(reply.logprobs) == 4
    assert reply.token_ids[-1] == vllm_server.END
    assert made_by(reply, "where to now", vllm_server.BASE)
    assert (reply.finish, reply.version, reply.cached) == ("stop", "", 0)
    assert engine.window == 64
    assert all(piece.logprobs == () for piece in pieces)
    assert (await heard(engine, asked(max_tokens=2)))[1].finish == "length"


async def test_each_tenant_has_a_part_of_the_prefix_cache_that_nobody_can_name(engine: VllmEngine, server: Any) -> None:
    async def cached(tenant: str, asks: VllmEngine = engine) -> int:
        (*_, reply) = [item async for item in asks.stream(asked(), "", tenant)]
        assert isinstance(reply, Reply)
        return reply.cached

    assert [await cached(tenant) for tenant in ("acme", "rival", "acme", "rival")] == [0, 0, 3, 3]
    salts = [body["cache_salt"] for path, body in server.requests if path.endswith("/chat/completions")]
    assert salts[:2] == salts[2:]
    assert len(set(salts)) == 2
    assert all(len(salt) >= 43 for salt in salts)  # 256 bits
    assert not any(tenant in salt for salt in salts for tenant in ("acme", "rival"))
    again = VllmEngine("base", server.url)
    assert await cached("acme", again) == 0  # another process has other salts
    await again.close()


async def test_log_probabilities_and_alternatives_come_with_the_pieces_if_asked_for(engine: VllmEngine) -> None:
    pieces, reply = await heard(engine, replace(asked(), top_logprobs=2))
    entries = [entry for piece in pieces for entry in piece.logprobs]
    assert len(entries) == len(reply.token_ids)  # the end of turn has one, too
    assert [entry["logprob"] for entry in entries] == list(reply.logprobs)
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
    assert len(entries[0]["top_logprobs"]) == 2


async def test_a_reply_of_which_tokens_are_missing_says_so_and_shows_its_text(engine: VllmEngine, server: Any) -> None:
    server.drops = [1]
    _, reply = await heard(engine, asked())
    assert reply.finish == "stop"
    assert len(reply.token_ids) == 3
    assert reply.logprobs == ()
    assert reply.flaw == "the vLLM server made 4 tokens and sent 3 of them; a newer release may send all"
    assert (await heard(engine, asked()))[1].flaw == ""
    server.token_ids = False
    assert (await heard(engine, asked()))[1].flaw == "the vLLM server sent no token ids with it"


async def test_a_flawed_reply_is_kept_and_takes_feedback_but_teaches_nothing(
    engine: VllmEngine, server: Any, tmp_path: Path
) -> None:
    server.drops = [1]
    _, reply = await heard(engine, asked())
    with closing(Replay(tmp_path / "replay.sqlite")) as replay:
        replay.append(Exchange("one", "acme", asked(), reply, "f00d"))
        replay.append(Exchange("one", "acme", asked(), reply, "f00d"))  # as after a crash
        (row,) = replay.rows(ExchangeQuery("acme"))
        assert (row.state, row.reason) == ("pending", reply.flaw)
        receipt = replay.add_feedback("acme", "one", Feedback(1.0))
        assert receipt.state == "rejected"
        found = replay.job("acme", receipt.job)
        assert found is not None
        assert (found.state, found.reason, found.exchange.reply) == ("rejected", reply.flaw, reply)
        assert replay.add_feedback("acme", "one", Feedback(1.0)).is_repeat
        with pytest.raises(FeedbackConflict, match="made 4 tokens and sent 3"):
            replay.add_feedback("acme", "one", Feedback(-1.0))


@pytest.mark.parametrize("parser", ["", "reasoning", "reasoning_content"])
async def test_thoughts_are_switched_off_or_kept_apart(server: Any, parser: str) -> None:
    server.thought, server.parser = "let me see", parser
    silent = VllmEngine("base", server.url)
    _, plain = await heard(silent, asked())
    assert plain.thoughts == ""
    assert "think" not in plain.text
    assert server.requests[-1][1]["chat_template_kwargs"] == {"enable_thinking": False}
    thinker = VllmEngine("base", server.url, thinking=True)
    pieces, reply = await heard(thinker, replace(asked(), top_logprobs=0))
    assert "".join(piece.text for piece in pieces) == reply.text == plain.text
    assert reply.thoughts.strip() == "let me see"
    assert len(reply.token_ids) == len(reply.logprobs) == len(plain.token_ids) + (3 if parser else 7)
    assert not any(entry["token"] == "let " for piece in pieces for entry in piece.logprobs)
    assert reply.flaw == ""
    for each in (silent, thinker):
        await each.close()


async def test_tools_are_claimed_only_if_the_server_takes_them(
    engine: VllmEngine, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    assert {"tools", "tool_choice"} <= engine.features
    without = serve(logprobs_mode="processed_logprobs")
    without.takes_tools = False
    plain = VllmEngine("base", without.url)
    assert not {"tools", "tool_choice"} & plain.features
    assert "response_format" in plain.features
    assert "--enable-auto-tool-choice" in caplog.text
    await plain.close()


async def test_an_adapter_that_the_server_has_evicted_is_let_go(
    engine: VllmEngine, server: Any, folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    for label in (ONE, TWO):
        await engine.load(label, folders[label])
    server.evicted.add(ONE)
    await engine.unload(ONE)
    assert engine.loaded_versions() == (TWO,)
    assert "was not unloaded" in caplog.text
    await engine.load(ONE, folders[ONE])  # the server lists it still, and reads it again when it is asked for
    assert made_by((await heard(engine, asked(), ONE))[1], "where to now", contents(folders[ONE]))
    server.__exit__()
    await engine.unload(TWO)  # nor is a server that is away
    assert engine.loaded_versions() == (ONE,)


async def test_all_that_was_asked_for_reaches_the_server_and_a_generation_config_does_not_creep_in(
    engine: VllmEngine, server: Any
) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    request = replace(
        asked(temperature=0.5, top_p=0.9, seed=7, stop=("a", "b")),
        tools=(tool,), tool_choice="auto", response_format={"type": "json_object"}, more={"presence_penalty": 0.5},
    )  # fmt: skip
    await heard(engine, request)
    ((path, body),) = server.requests
    assert path == "/v1/chat/completions"
    expected = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["a", "b"], "tools": [tool], "tool_choice": "auto"}
    expected |= {"response_format": {"type": "json_object"}, "presence_penalty": 0.5, "max_tokens": 8, "model": "base"}
    expected |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True, "logprobs": True}
    assert expected.items() <= body.items()


async def test_a_text_goes_on_without_a_template(engine: VllmEngine, server: Any) -> None:
    _, reply = await heard(engine, ChatRequest(raw="once upon a", sampling=Sampling(max_tokens=8, seed=3)))
    assert server.requests[0][0] == "/v1/completions"
    assert reply.prompt_ids == (0, 1, 2)
    assert len(reply.logprobs) == len(reply.token_ids) == 4
    assert made_by(reply, "once upon a", vllm_server.BASE)


# Which distribution the log-probabilities are of


async def test_processed_log_probabilities_are_those_sampled_from(engine: VllmEngine) -> None:
    _, reply = await heard(engine, asked(temperature=0.5))
    assert engine.has_processed_logprobs
    assert made_by(reply, "where to now", vllm_server.BASE, 0.5)


async def test_raw_log_probabilities_are_found_out_and_then_other_temperatures_are_refused(serve: Serve) -> None:
    server = serve()  # as vLLM is by default
    engine = VllmEngine("base", server.url)
    assert not engine.has_processed_logprobs
    for sampling in ({"temperature": 0.5}, {"top_p": 0.9}):
        with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
            await heard(engine, asked(**sampling))
    _, reply = await heard(engine, asked())
    assert made_by(reply, "where to now", vllm_server.BASE)  # at temperature 1 raw is right, as top_k is not the config's 2
    await engine.close()


async def test_a_server_without_token_ids_is_refused_at_the_start(server: Any) -> None:
    class Old(vllm_server.VllmServer):  # type: ignore[name-defined,misc]
        async def _answer(self, request: Any, body: dict[str, Any], chat: bool) -> Any:
            return await super()._answer(request, {**body, "return_token_ids": False}, chat)

    with Old() as old, pytest.raises(UserError, match="does not return token ids"):
        VllmEngine("base", old.url)


async def test_a_wrong_model_key_or_address_is_said_at_the_start(serve: Serve) -> None:
    server = serve(key="secret")
    with pytest.raises(UserError, match="no model 'other'; it has \\['base'\\]"):
        VllmEngine("other", server.url, key="secret")
    with pytest.raises(Unavailable, match="refuses the key") as caught:
        VllmEngine("base", server.url, key="guess")
    assert "guess" not in str(caught.value)
    with pytest.raises(Unavailable, match="cannot be reached"):
        VllmEngine("base", "http://127.0.0.1:9/v1")


# Versions


async def test_each_version_has_a_name_of_its_own_and_answers_with_its_own_weights(
    engine: VllmEngine, server: Any, folders: dict[str, Path]
) -> None:
    """Also to a prompt that is cached, and after the one before it is gone."""
    for label, folder in folders.items():
        await engine.load(label, folder)
        await engine.load(label, folder)  # twice is once
        _, reply = await heard(engine, asked(), label)
        assert made_by(reply, "where to now", contents(folder))
        assert reply.version == label
    assert engine.loaded_versions() == (ONE, TWO)
    await engine.unload(ONE)
    assert engine.loaded_versions() == (TWO,)
    with pytest.raises(VersionNotLoaded, match="is not loaded"):
        await heard(engine, asked(), ONE)
    assert made_by((await heard(engine, asked(), TWO))[1], "where to now", contents(folders[TWO]))
    assert server.paths.count("/v1/load_lora_adapter") == 2
    assert {body["lora_name"] for path, body in server.requests if "lora" in path} == {ONE, TWO}
    # No /pause, no /sleep, nothing that a client could name.
    assert set(server.paths) == {"/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/completions"}


async def test_a_load_that_fails_leaves_what_is_there(engine: VllmEngine, server: Any, folders: dict[str, Path]) -> None:
    await engine.load(ONE, folders[ONE])
    server.load_status = 500
    with pytest.raises(Unavailable, match="status 500"):
        await engine.load(TWO, folders[TWO])
    server.load_status = 404
    with pytest.raises(AdapterError, match="does not load version"):
        await engine.load(TWO, folders[TWO])
    assert engine.loaded_versions() == (ONE,)
    assert made_by((await heard(engine, asked(), ONE))[1], "where to now", contents(folders[ONE]))
    server.load_status = 200
    await engine.load(TWO, folders[TWO])  # once the server can
    assert engine.loaded_versions() == (ONE, TWO)


async def test_a_load_that_the_server_only_says_it_did_is_found_out(
    engine: VllmEngine, server: Any, folders: dict[str, Path]
) -> None:
    server.lists = False
    with pytest.raises(Unavailable, match="does not list it") as caught:  # another replica of it, perhaps
        await engine.load(ONE, folders[ONE])
    assert server.url not in caught.value.public_message
    assert engine.loaded_versions() == ()


async def test_a_slow_load_holds_nobody_up(engine: VllmEngine, server: Any, folders: dict[str, Path]) -> None:
    await engine.load(ONE, folders[ONE])
    server.loads.clear()
    loading = asyncio.create_task(engine.load(TWO, folders[TWO]))
    await let_others_run()
    with pytest.raises(VersionNotLoaded):  # not before it is there
        await heard(engine, asked(), TWO)
    await heard(engine, asked(), ONE)
    assert not loading.done()
    server.loads.set()
    await loading
    assert engine.loaded_versions() == (ONE, TWO)


async def test_what_a_killed_engine_left_on_the_server_is_unloaded_by_the_next_one(
    engine: VllmEngine, server: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    """The service unloads what `loaded_versions` lists and nothing needs; a server must not collect versions over its restarts."""
    elsewhere = tmp_path / "another-service" / "acme-default@000003-cccccccccccc"
    elsewhere.mkdir(parents=True)
    for path in folders[ONE].iterdir():
        (elsewhere / path.name).write_bytes(path.read_bytes())
    await engine.load(ONE, folders[ONE])
    await engine.load("acme/default@000003-cccccccccccc", elsewhere)  # a tenant of the same name, of another service
    other = VllmEngine("base", server.url)
    await other.load(ONE, folders[ONE])  # "has already been loaded"
    assert other.loaded_versions() == (ONE,)
    await other.close()
    later = VllmEngine("base", server.url, base="f00d")
    await later.load(TWO, folders[TWO])
    assert set(later.loaded_versions()) == {ONE, TWO}
    await later.load(ONE, folders[ONE])  # it is known by its folder
    await later.unload(ONE)
    assert set(server.adapters) == {TWO, "acme/default@000003-cccccccccccc"}
    await later.close()


@pytest.mark.slow
async def test_a_server_on_another_machine_loads_versions_from_where_it_sees_them_and_later(
    serve: Serve, folders: dict[str, Path], tmp_path: Path
) -> None:
    server, mount = serve(logprobs_mode="processed_logprobs"), tmp_path / "mount"
    engine = VllmEngine("base", server.url, here=tmp_path, there=str(mount))
    loading = asyncio.create_task(engine.load(ONE, folders[ONE]))
    await let_others_run()
    assert not loading.done()  # the mirror is behind
    mount.symlink_to(tmp_path)
    await loading
    place = f"{mount}/{folders[ONE].name}"
    assert (server.requests[-2][1]["lora_path"], server.roots[ONE]) == (place, place)
    assert made_by((await heard(engine, asked(), ONE))[1], "where to now", contents(folders[ONE]))
    await engine.close()

    never = VllmEngine("base", server.url, here=tmp_path, there=str(tmp_path / "nowhere"), load_timeout=0.1)
    with pytest.raises(Unavailable, match=r"from .*nowhere") as caught:  # the next request tries again
        await never.load(TWO, folders[TWO])
    assert str(tmp_path) not in caught.value.public_message
    await never.close()


async def test_unload_waits_for_what_runs_and_does_not_mind_a_404(
    engine: VllmEngine, server: Any, folders: dict[str, Path]
) -> None:
    await engine.load(ONE, folders[ONE])
    server.pause = 0.1
    running = engine.stream(asked(), ONE)
    await anext(running)
    unloading = asyncio.create_task(engine.unload(ONE))
    await let_others_run()
    assert "/v1/unload_lora_adapter" not in server.paths
    with pytest.raises(VersionNotLoaded):  # no new ones
        await heard(engine, asked(), ONE)
    again = asyncio.create_task(engine.load(ONE, folders[ONE]))  # wanted again meanwhile: that waits, too
    await let_others_run()
    assert not again.done()
    *_, reply = [item async for item in running]
    assert isinstance(reply, Reply)
    await unloading
    await again
    assert server.paths.count("/v1/unload_lora_adapter") == 1
    assert server.paths.index("/v1/unload_lora_adapter") < len(server.paths) - 1 - server.paths[::-1].index(
        "/v1/load_lora_adapter"
    )
    assert engine.loaded_versions() == (ONE,)
    server.pause = 0.0
    await engine.load(TWO, folders[TWO])
    server.restart()
    await engine.unload(TWO)
    assert engine.loaded_versions() == (ONE,)
    await engine.unload("never seen")


async def test_a_server_that_was_started_anew_gets_its_versions_back(
    engine: VllmEngine, server: Any, folders: dict[str, Path]
) -> None:
    await engine.load(ONE, folders[ONE])
    server.restart()
    assert made_by((await heard(engine, asked(), ONE))[1], "where to now", contents(folders[ONE]))


async def test_versions_without_files_never_reach_the_server(
    engine: VllmEngine, server: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(AdapterError, match=r"no adapter_config\.json"):
        await engine.load(ONE, tmp_path)
    with pytest.raises(AdapterError, match="base model"):
        await engine.load("base", folders[TWO])
    assert server.requests == []
    await engine.load(TWO, folders[TWO])
    with pytest.raises(AdapterError, match="another folder"):
        await engine.load(TWO, folders[ONE])


# What goes wrong


async def test_a_stream_that_breaks_off_is_no_reply(engine: VllmEngine, server: Any) -> None:
    server.breaks = [2]
    found = engine.stream(asked())
    assert [isinstance(await anext(found), Piece) for _ in range(2)] == [True, True]
    with pytest.raises(Unavailable, match="broke off"):
        await anext(found)
    await heard(engine, asked())


async def test_leaving_a_stream_ends_it_on_the_server(engine: VllmEngine, server: Any) -> None:
    server.pause = 0.3
    stream = engine.stream(asked())
    await anext(stream)
    assert server.running == 1
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: not server.running)


async def test_what_the_server_refuses_stays_a_refusal_in_its_words(engine: VllmEngine, server: Any) -> None:
    with pytest.raises(UserError, match="temperature must be non-negative") as caught:
        await heard(engine, asked(temperature=-1.0))
    assert not isinstance(caught.value, Unavailable)


async def test_a_reply_ends_at_the_windows_end_and_a_prompt_beyond_it_is_an_error(engine: VllmEngine, server: Any) -> None:
    _, reply = await heard(engine, asked("word " * 60, max_tokens=64))
    assert server.requests[-1][1]["max_tokens"] == 4
    assert len(reply.token_ids) == 4
    with pytest.raises(WindowError, match="maximum context length"):
        await heard(engine, asked("word " * 64))


async def test_a_hundred_streams_at_once(engine: VllmEngine, folders: dict[str, Path]) -> None:
    for label, folder in folders.items():
        await engine.load(label, folder)
    labels = [("", ONE, TWO)[n % 3] for n in range(99)]
    found = await asyncio.gather(*(heard(engine, asked(f"to {n}", seed=n), label) for n, label in enumerate(labels)))
    weights = {"": vllm_server.BASE} | {label: contents(folder) for label, folder in folders.items()}
    assert all(made_by(reply, f"to {n}", weights[labels[n]]) for n, (_, reply) in enumerate(found))

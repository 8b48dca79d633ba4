"""open_model: names, keys, and an API model against a local server that behaves and misbehaves."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from ports import free_port
from pydantic import BaseModel

from learngraph.memory.errors import UserError
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models import models
from learngraph.tools.models.models import MODELS, open_model


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORG_ID"):
        monkeypatch.delenv(name, raising=False)


def api(server: Any, **settings: Any) -> Any:
    return open_model("openai:test-model", base_url=server.url, **{"max_retries": 2, "timeout": 10.0} | settings)


# Names


def test_local_by_path(tiny: str) -> None:
    model = open_model(f"local:{tiny}", temperature=0.5, max_tokens=7, seed=3)
    assert isinstance(model, LocalChatModel)
    assert (model.temperature, model.max_new_tokens, model.seed) == (0.5, 7, 3)


def test_pocket_is_the_folder_in_the_package(tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "POCKET", tmp_path)
    with pytest.raises(UserError, match="no weights in"):
        open_model("pocket")
    monkeypatch.setattr(models, "POCKET", Path(tiny))
    assert isinstance(open_model("pocket"), LocalChatModel)


@pytest.mark.parametrize("spec", ["", "gpt", "uniform", "openai", "openai:", "local:", "pocket:2", "azure:gpt"])
def test_unknown_names_are_answered_by_the_nearest_or_by_what_there_is(spec: str) -> None:
    with pytest.raises(UserError) as caught:
        open_model(spec)
    nearest = {"openai": "openai:MODEL", "openai:": "openai:MODEL", "pocket:2": "pocket"}.get(spec)
    assert f"did you mean {nearest}?" in str(caught.value) if nearest else all(one in str(caught.value) for one in MODELS)
    assert "\n" not in str(caught.value)


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        open_model(f"local:{tmp_path}/none")


def test_a_base_url_is_for_api_models(tiny: str) -> None:
    with pytest.raises(UserError, match="has no base_url"):
        open_model(f"local:{tiny}", base_url="http://127.0.0.1:1/v1")


def test_no_key() -> None:
    with pytest.raises(UserError, match=r"OPENAI_API_KEY.*base_url.*pocket.*local:"):
        open_model("openai:gpt-test")


# API


def test_reply_and_request(openai_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with openai_server(replies=["go north"]) as server:
        reply = api(server, temperature=0.3, max_tokens=9, seed=5).invoke("hello there")
    assert reply.text == "go north"
    assert reply.usage_metadata["input_tokens"] == 2
    request = server.requests[0]
    assert (request["model"], request["temperature"], request["seed"]) == ("test-model", 0.3, 5)
    assert 9 in (request.get("max_completion_tokens"), request.get("max_tokens"))
    assert server.headers[0]["authorization"] == "Bearer sk-test"


def test_replies_may_depend_on_the_request(openai_server: Any) -> None:
    with openai_server(replies=lambda request: request["messages"][-1]["content"].upper()) as server:
        assert api(server).invoke("hello").text == "HELLO"


def test_servers_without_keys(openai_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with openai_server(replies=["one", "two"]) as server:
        assert api(server).invoke("hello").text == "one"
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert open_model("openai:test-model").invoke("hello").text == "two"


def test_stream(openai_server: Any) -> None:
    with openai_server(replies=["go north and take the lamp"]) as server:
        parts = [chunk.text for chunk in api(server).stream("hello")]
    assert "".join(parts) == "go north and take the lamp"
    assert len([part for part in parts if part]) == 6


async def test_async(openai_server: Any) -> None:
    with openai_server(replies=["go north", "go south", {"status": 401, "text": "bad key"}]) as server:
        model = api(server)
        assert (await model.ainvoke("hello")).text == "go north"
        assert "".join([chunk.text async for chunk in model.astream("hello")]) == "go south"
        with pytest.raises(UserError, match="bad key"):
            await model.ainvoke("hello")
        with pytest.raises(UserError, match="bad key"):
            [chunk async for chunk in model.astream("hello")]


def test_one_event_loop_after_another(openai_server: Any) -> None:
    """Connections belong to a loop; the model does not."""
    with openai_server(replies=["go north"]) as server:
        model = api(server)

        async def streamed() -> str:
            return "".join([chunk.text async for chunk in model.astream("hello")])

        async def twice() -> list[str]:
            return [reply.text for reply in await asyncio.gather(model.ainvoke("hello"), model.answer([HumanMessage("hello")]))]

        for _ in range(3):
            assert asyncio.run(twice()) == ["go north"] * 2
            assert asyncio.run(streamed()) == "go north"
            assert model.invoke("hello").text == "go north"


def test_many_threads_at_once(openai_server: Any) -> None:
    with openai_server(replies=lambda request: {"text": request["messages"][-1]["content"], "together": 8}) as server:
        model = api(server)
        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda n: model.invoke(f"number {n}").text, range(8)))
    assert said == [f"number {n}" for n in range(8)]


async def test_an_answer_without_callbacks_is_that_of_ainvoke(openai_server: Any) -> None:
    with openai_server(replies=["go north"]) as server:
        model, options = api(server), {"seed": 7, "stop": ["."]}
        plain, full = await model.answer([HumanMessage("hello")], **options), await model.ainvoke("hello", **options)
    assert plain.id != full.id
    assert plain.model_copy(update={"id": ""}) == full.model_copy(update={"id": ""})
    assert server.requests[0] == server.requests[1]
    assert (server.requests[0]["seed"], server.requests[0]["stop"]) == (7, ["."])


async def test_tool_calls(openai_server: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": '{"where": "north"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})

    def move(where: str) -> str:
        """Go somewhere."""
        return where

    with openai_server(replies=[{"body": body}]) as server:
        model = api(server).bind_tools([move])
        for reply in (model.invoke("hello"), await model.ainvoke("hello")):
            assert [(found["name"], found["args"]) for found in reply.tool_calls] == [("move", {"where": "north"})]
    assert server.requests[0]["tools"][0]["function"]["name"] == "move"


async def test_structured_output(openai_server: Any) -> None:
    class Move(BaseModel):
        where: str

    with openai_server(replies=['{"where": "north"}']) as server:
        model = api(server).with_structured_output(Move)
        assert model.invoke("hello") == await model.ainvoke("hello") == Move(where="north")
    assert server.requests[0]["response_format"]["type"] == "json_schema"


def test_logprobs_have_one_shape_for_api_and_local_models(openai_server: Any, tiny: str) -> None:
    replies = [{"text": "1", "top_logprobs": [{"1": -0.2, "2": -1.9, "3": -4.0}]}]
    with openai_server(replies=replies) as server:
        remote = api(server).bind(logprobs=True, top_logprobs=2).invoke("hello")
    local = open_model(f"local:{tiny}", seed=0, max_tokens=1).bind(logprobs=True, top_logprobs=2).invoke("hello")
    for reply in (remote, local):
        first = reply.response_metadata["logprobs"]["content"][0]
        assert set(first) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(first["top_logprobs"]) == 2
        assert {"token", "logprob"} <= set(first["top_logprobs"][0])
    assert [top["token"] for top in remote.response_metadata["logprobs"]["content"][0]["top_logprobs"]] == ["1", "2"]


def test_servers_that_leave_logprobs_out(openai_server: Any) -> None:
    with openai_server(replies=["1"]) as server:
        reply = api(server).bind(logprobs=True, top_logprobs=5).invoke("hello")
    assert not reply.response_metadata.get("logprobs")


def test_rate_limits_are_waited_out(openai_server: Any) -> None:
    with openai_server(replies=[{"status": 429}, {"status": 429}, "at last"]) as server:
        assert api(server).invoke("hello").text == "at last"
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "settings", "says", "tries"),
    [
        ({"status": 401, "text": "bad key"}, {}, "key is refused .bad key.; set OPENAI_API_KEY", 1),
        ({"status": 403, "text": "not yours"}, {}, "may not do this .not yours.", 1),
        ({"status": 404, "text": "no such model"}, {}, "not found .no such model.", 1),
        ({"status": 429, "text": "slow down"}, {}, "rate-limited 3 times .slow down.", 3),
        ({"status": 500, "text": "oops"}, {"max_retries": 1}, "error 500, tried 2 times .oops.", 2),
        ({"status": 400, "text": "logprobs are not supported"}, {}, "no log-probabilities", 1),
        ({"status": 400, "text": "bad temperature"}, {}, "request refused .bad temperature.", 1),
        ({"status": 422, "text": "bad field"}, {}, "error 422 .bad field.", 1),
        ({"delay": 5.0}, {"timeout": 0.2, "max_retries": 0}, r"no answer within 0.2 s, tried 1 times", 1),
        ({"body": "<html>hello</html>"}, {"max_retries": 0}, "not one of the OpenAI chat protocol", 1),
        ({"body": '{"choices": '}, {"max_retries": 0}, "not one of the OpenAI chat protocol", 1),
        ({"body": "[]"}, {"max_retries": 0}, "not one of the OpenAI chat protocol", 1),
        ({"body": '{"choices": null}'}, {"max_retries": 0}, "not one of the OpenAI chat protocol", 1),
    ],
)
def test_errors_in_a_line(openai_server: Any, reply: Any, settings: Any, says: str, tries: int) -> None:
    with openai_server(replies=[reply]) as server:
        with pytest.raises(UserError, match=says) as caught:
            api(server, **settings).invoke("hello")
        assert len(server.requests) == tries
        assert "'test-model'" in str(caught.value)
        assert server.url in str(caught.value)
        assert "\n" not in str(caught.value)


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(UserError, match="cannot be reached, tried 1 times"):
        open_model("openai:test-model", base_url=url, max_retries=0).invoke("hello")

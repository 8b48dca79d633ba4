"""The official openai client, and LangChain's, against the chat API: what a user's code sees."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import chat_backend
import pytest

from learngraph.memory.errors import WindowError

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

import openai
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

FakeBackend, serving, two, KEY = chat_backend.FakeBackend, chat_backend.serving, chat_backend.two, chat_backend.KEY

MESSAGES: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi there"}]
FUNCTION: Any = {"name": "look", "description": "look around", "parameters": {"type": "object"}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
CALLS = tuple(
    {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{at}"}}'}}
    for i, at in enumerate(("map", "sky"))
)


class Mood(BaseModel):
    mood: str


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


def say(request: Any) -> Any:
    """Calls its tool twice, writes JSON where that is asked for, and repeats the user's words else."""
    words = request.messages[-1]["content"] if request.messages else ""
    if request.tools and request.messages[-1]["role"] != "tool":
        return {"text": "wait" if words == "talk first" else "", "finish": "tool_calls", "tool_calls": CALLS}
    if request.response_format is not None:
        return '{"mood": "good"}'
    if words == "too long":
        raise WindowError("600 tokens, the window has 512")
    if words == "break":
        raise RuntimeError("secret")
    said: str = chat_backend.hello(request)
    return said


@pytest.fixture(scope="module")
def backend() -> Any:
    made = FakeBackend(say=say, names={"acme": ["poems"]})
    made.make_version("poems", 3)
    return made


@pytest.fixture(scope="module")
def base(backend: Any) -> Iterator[str]:
    with serving(backend) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as found:
        yield found


def test_a_chat(client: openai.OpenAI) -> None:
    about = {"family": "f", "scenario": "s", "turn": "2", "mine": "x"}
    found = client.chat.completions.create(
        model="pocket", messages=MESSAGES, max_completion_tokens=50, user="u", store=True, metadata=about
    )
    kept: Any = client.get(f"/experiences/{found.id}", cast_to=object)
    assert {"family": "f", "scenario": "s", "turn": 2, "user": "u", "adapter": "default"}.items() <= kept.items()
    assert found.choices[0].message.content == "you said hi there (None)"
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == 8
    assert found.usage.prompt_tokens_details is not None
    assert found.usage.prompt_tokens_details.cached_tokens == 2
    assert found.system_fingerprint == "base"
    again = client.chat.completions.create(model="pocket", messages=[*MESSAGES, found.choices[0].message.model_dump()])  # type: ignore[list-item]
    assert again.id != found.id


def test_the_version_and_the_id_are_in_the_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="pocket:poems", messages=MESSAGES)
    assert raw.headers["x-policy-version"] == raw.parse().system_fingerprint
    assert raw.headers["x-policy-version"].startswith("acme/poems@000003-")
    assert raw.headers["x-experience-id"] == raw.parse().id
    given = client.post("/feedback", body={"response_id": raw.parse().id, "reward": 1}, cast_to=object)
    assert isinstance(given, dict)
    assert client.get(f"/jobs/{given['job']}", cast_to=object)


def test_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="pocket", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "you said hi there (None)"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None and chunk.id == chunks[0].id for chunk in chunks[:-1])
    with client.chat.completions.stream(model="pocket", messages=MESSAGES) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "you said hi there (None)"


def test_tools(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="pocket", messages=MESSAGES, tools=TOOLS, tool_choice="auto")
    choice = found.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call: Any = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "map"})
    more: Any = [*MESSAGES, choice.message, {"role": "tool", "content": "a lamp", "tool_call_id": call.id}]
    answer = client.chat.completions.create(model="pocket", messages=more, tools=TOOLS)
    assert answer.choices[0].message.content == "you said a lamp (None)"
    with client.chat.completions.stream(model="pocket", messages=MESSAGES, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"at": "map"}'
    one = client.chat.completions.create(model="pocket", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False)
    assert [len(each.choices[0].message.tool_calls or ()) for each in (found, final, one)] == [2, 2, 1]


def test_thoughts_come_apart_from_the_text() -> None:
    backend = FakeBackend(say=lambda request: {"text": "Go north.", "thoughts": "let me see"})
    with serving(backend) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        found = client.chat.completions.create(model="pocket", messages=MESSAGES)
        message = found.choices[0].message.to_dict()
        assert (message["content"], message["reasoning_content"]) == ("Go north.", "let me see")
        assert found.usage is not None
        assert found.usage.completion_tokens_details is not None
        assert found.usage.completion_tokens_details.reasoning_tokens is None  # it is not known how many
        deltas = [
            chunk.choices[0].delta.to_dict()
            for chunk in client.chat.completions.create(model="pocket", messages=MESSAGES, stream=True)
        ]
        assert "".join(str(delta.get("content") or "") for delta in deltas) == "Go north."
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["let me see"]


def test_n_seed_stop_logprobs_and_length(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="pocket", messages=MESSAGES, n=3, seed=4, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in found.choices] == [f"you said hi there ({4 + i})" for i in range(3)]
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.content is not None
    assert found.choices[0].logprobs.content[0].token == "you"
    assert len(found.choices[0].logprobs.content[0].top_logprobs) == 2
    for stop in (" there", [" there", "x"]):
        cut = client.chat.completions.create(model="pocket", messages=MESSAGES, stop=stop)
        assert cut.choices[0].message.content == "you said hi"
    short = client.chat.completions.create(model="pocket", messages=MESSAGES, max_completion_tokens=2)
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("you said", "length")


def test_response_formats(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="pocket", messages=MESSAGES, response_format=Mood)
    assert parsed.choices[0].message.parsed == Mood(mood="good")
    found = client.chat.completions.create(model="pocket", messages=MESSAGES, response_format={"type": "json_object"})
    assert json.loads(found.choices[0].message.content or "") == {"mood": "good"}


def test_text_completions_and_models(client: openai.OpenAI) -> None:
    streamed = client.completions.create(model="pocket", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "you said a (None)"
    assert [model.id for model in client.models.list()] == ["pocket", "pocket:poems"]
    assert client.models.retrieve("pocket:poems").owned_by == "learngraph"


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, base: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="pocket", messages=MESSAGES, reasoning_effort="low")
    assert refused.value.param == "reasoning_effort"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="pocket", messages=[{"role": "user", "content": "too long"}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as broken:
        client.chat.completions.create(model="pocket", messages=[{"role": "user", "content": "break"}])
    assert "secret" not in str(broken.value)
    assert broken.value.request_id is not None
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=base, api_key="wrong") as other:
        other.models.list()


def test_limits_and_errors_in_mid_stream() -> None:
    heard = threading.Event()
    with (
        serving(FakeBackend(heard=heard), two(streams=1)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        first = client.chat.completions.create(model="pocket", messages=MESSAGES, stream=True)
        next(first)
        with pytest.raises(openai.RateLimitError) as many:
            client.chat.completions.create(model="pocket", messages=MESSAGES)
        assert (many.value.code, many.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "1")
        heard.set()
        assert list(first)
    backend = FakeBackend(breaks_after=2)
    with serving(backend) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        stream = client.chat.completions.create(model="pocket", messages=MESSAGES, stream=True)
        said = [next(stream).choices[0].delta.content for _ in range(3)]
        assert said == ["", "you", " said"]
        with pytest.raises(openai.APIError, match="the server failed"):
            next(stream)


def test_langchains_chat_model(base: str) -> None:
    model = ChatOpenAI(model="pocket", base_url=base, api_key=SecretStr(KEY), max_retries=0, stream_usage=True)
    found = model.invoke([HumanMessage("hi there")])
    assert found.content == "you said hi there (None)"
    assert found.usage_metadata is not None
    assert found.usage_metadata["input_tokens"] == 3
    assert found.response_metadata["system_fingerprint"] == "base"
    assert "".join(str(chunk.content) for chunk in model.stream("hi there")) == "you said hi there (None)"

    call = model.bind_tools([look]).invoke("hi there").tool_calls[0]
    assert (call["name"], call["args"]) == ("look", {"at": "map"})
    assert model.with_structured_output(Mood).invoke("hi there") == Mood(mood="good")

"""The official openai client, and LangChain's, against the chat API and /v1/responses: what a user's code sees."""

import json
from collections.abc import Iterator
from typing import Any

import chat_backend
import httpx
import pytest

from learngraph.memory.errors import WindowError

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import BaseModel, SecretStr

FakeBackend, serving, two, KEY = chat_backend.FakeBackend, chat_backend.serving, chat_backend.two, chat_backend.KEY

MESSAGES: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi there"}]
FUNCTION: Any = {"name": "look", "description": "look around", "parameters": {"type": "object"}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS: Any = [{"type": "function", "strict": False, **FUNCTION}]
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
    return FakeBackend(say=say, names={"acme": ["poems"]}, live={("acme", "poems"): "acme/poems@000003-abc"})


@pytest.fixture(scope="module")
def base(backend: Any) -> Iterator[str]:
    with serving(backend) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as found:
        yield found


def test_a_chat(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="pocket", messages=MESSAGES, max_completion_tokens=50, user="u", store=True)
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
    assert raw.headers["x-policy-version"] == "acme/poems@000003-abc" == raw.parse().system_fingerprint
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
        assert client.responses.create(model="pocket", input="x").output_text == "Go north."


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


def test_rate_limits_and_errors_in_mid_stream() -> None:
    limited = FakeBackend()
    with serving(limited, two(tokens_per_day=5)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        client.chat.completions.create(model="pocket", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as many:  # at once: it would be of no use to ask again
            client.chat.completions.create(model="pocket", messages=MESSAGES)
        assert many.value.code == "insufficient_quota"
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


# /v1/responses


def test_a_response_its_usage_and_what_it_repeats(client: openai.OpenAI, backend: Any) -> None:
    found = client.responses.create(
        model="pocket",
        instructions="be kind",
        input="hi there",
        metadata={"family": "f", "scenario": "s", "turn": "2", "mine": "x"},
        max_output_tokens=50,
        temperature=0.5,
        user="u",
        store=True,
    )
    assert found.output_text == "you said hi there (None)"
    assert (found.status, found.error, found.incomplete_details) == ("completed", None, None)
    assert found.id.startswith("resp_")
    assert found.metadata == {"family": "f", "scenario": "s", "turn": "2", "mine": "x"}
    assert (found.instructions, found.temperature, found.max_output_tokens) == ("be kind", 0.5, 50)
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (3, 5, 8)
    assert found.usage.input_tokens_details.cached_tokens == 2
    request = backend.requests[-1]
    assert request.messages == ({"role": "system", "content": "be kind"}, {"role": "user", "content": "hi there"})
    assert request.sampling.temperature == 0.5
    assert backend.about[-1] == {"family": "f", "scenario": "s", "turn": 2, "store": True, "adapter": "default"}


def test_the_id_takes_feedback_and_the_version_is_told(client: openai.OpenAI, backend: Any) -> None:
    raw = client.responses.with_raw_response.create(model="pocket:poems", input="hi there")
    found = raw.parse()
    assert raw.headers["x-policy-version"] == "acme/poems@000003-abc"
    assert found.to_dict()["system_fingerprint"] == "acme/poems@000003-abc"
    assert raw.headers["x-experience-id"] == found.id
    given: Any = client.post("/feedback", body={"response_id": found.id, "reward": 1, "text": "well said"}, cast_to=object)
    assert given["response_id"] == found.id
    assert ("acme", found.id) in backend.kept
    unkept = client.responses.create(model="pocket", input="hi there", store=False)
    with pytest.raises(openai.NotFoundError):
        client.post("/feedback", body={"response_id": unkept.id, "reward": 1}, cast_to=object)


def test_a_response_as_a_stream_of_events(client: openai.OpenAI) -> None:
    with client.responses.stream(model="pocket", input="hi there") as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "you said hi there (None)"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "you said hi there (None)"
    assert final.usage is not None
    assert final.usage.output_tokens == 5
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", ["go", "talk first"])
def test_tools_of_a_response_in_a_body_and_in_a_stream(client: openai.OpenAI, backend: Any, words: str) -> None:
    found = client.responses.create(model="pocket", input=words, tools=FLAT_TOOLS, tool_choice="auto")
    with client.responses.stream(model="pocket", input=words, tools=FLAT_TOOLS) as stream:
        events: list[Any] = list(stream)
        streamed = stream.get_final_response()
    for answer in (found, streamed):
        calls = [item for item in answer.output if isinstance(item, ResponseFunctionToolCall)]
        texts = [item for item in answer.output if isinstance(item, ResponseOutputMessage)]
        assert [(call.call_id, call.name, json.loads(call.arguments)) for call in calls] == [
            ("call_0", "look", {"at": "map"}),
            ("call_1", "look", {"at": "sky"}),
        ]
        assert len(texts) == (words == "talk first")
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments)["at"] for event in done] == ["map", "sky"]
    one = client.responses.create(model="pocket", input=words, tools=FLAT_TOOLS, parallel_tool_calls=False)
    assert sum(item.type == "function_call" for item in one.output) == 1
    results: Any = [{"type": "function_call_output", "call_id": f"call_{i}", "output": f"a lamp {i}"} for i in range(2)]
    more: Any = [{"role": "user", "content": words}, *found.output, *results]
    answer = client.responses.create(model="pocket", input=more, tools=FLAT_TOOLS)
    assert answer.output_text == "you said a lamp 1 (None)"
    *_, called, first, second = backend.requests[-1].messages
    assert [call["id"] for call in called["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in (first, second)] == ["call_0", "call_1"]


def test_a_conversation_that_is_sent_back(client: openai.OpenAI, backend: Any) -> None:
    first = client.responses.create(model="pocket", input=[{"role": "user", "content": "hi there"}])
    more: Any = [
        {"role": "developer", "content": [{"type": "input_text", "text": "be "}, {"type": "input_text", "text": "kind"}]},
        {"role": "user", "content": "hi there"},
        *first.output,
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "again"}]},
    ]
    assert client.responses.create(model="pocket", input=more).output_text == "you said again (None)"
    assert backend.requests[-1].messages == (
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": "you said hi there (None)"},
        {"role": "user", "content": "again"},
    )


def test_formats_lengths_and_logprobs(client: openai.OpenAI) -> None:
    assert client.responses.parse(model="pocket", input="x", text_format=Mood).output_parsed == Mood(mood="good")
    loose = client.responses.create(model="pocket", input="x", text={"format": {"type": "json_object"}})
    assert json.loads(loose.output_text) == {"mood": "good"}
    cut = client.responses.create(model="pocket", input="hi there", max_output_tokens=2)
    assert (cut.output_text, cut.status) == ("you said", "incomplete")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="pocket", input="hi there", max_output_tokens=2) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    shown = client.responses.create(
        model="pocket", input="hi there", top_logprobs=2, include=["message.output_text.logprobs"]
    ).output[0]
    assert isinstance(shown, ResponseOutputMessage)
    part = shown.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert part.logprobs[0].token == "you"
    assert len(part.logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("reasoning", {"effort": "low"}, "reasoning"),
        ("background", True, "background"),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].type"),
        ("input", [{"type": "web_search_call", "id": "x"}], "input[0]"),
        ("input", [], "input"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
        ("tool_choice", {"type": "function", "name": "look"}, "tool_choice"),
        ("metadata", {"turn": "x"}, "metadata.turn"),
        ("stop", ["x"], "stop"),
        ("text", {"verbosity": "low"}, "text.verbosity"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: openai.OpenAI, field: str, value: Any, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", body={"model": "pocket", "input": "x"} | {field: value}, cast_to=object)
    assert refused.value.param == named


def test_a_model_without_tools_says_so() -> None:
    plain = FakeBackend(features=frozenset())
    with serving(plain) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        with pytest.raises(openai.BadRequestError, match="takes no tools"):
            client.responses.create(model="pocket", input="x", tools=FLAT_TOOLS)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="pocket", input="x", text={"format": {"type": "json_object"}})
        assert refused.value.param == "text.format"


def test_errors_of_responses_before_and_in_the_middle_of_a_stream() -> None:
    with serving(FakeBackend(breaks_after=2)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="gpt-4", input="x")
        seen = []
        with pytest.raises(openai.APIError, match="the server failed"):
            seen += [event.type for event in client.responses.create(model="pocket", input="hi there", stream=True)]
        body = {"model": "pocket", "input": "hi there", "stream": True}
        text = httpx.post(f"{url}/v1/responses", json=body, headers={"authorization": f"Bearer {KEY}"}).text
        last = json.loads(text.strip().rpartition("data: ")[2])
        assert (last["type"], last["code"]) == ("error", "internal_error")
        assert "secret" not in text


@pytest.mark.parametrize("version", [None, "v0", "responses/v1", "v1"])
def test_langchains_chat_model_by_responses(base: str, backend: Any, version: str | None) -> None:
    more: Any = {} if version is None else {"output_version": version}
    model = ChatOpenAI(model="pocket", base_url=base, api_key=SecretStr(KEY), max_retries=0, use_responses_api=True, **more)
    found = model.invoke([SystemMessage("be kind"), HumanMessage("hi there")])
    assert found.text == "you said hi there (None)"
    assert found.usage_metadata is not None
    assert found.usage_metadata["input_tokens"] == 3
    assert found.response_metadata["id"].startswith("resp_")
    again = model.invoke([HumanMessage("hi there"), found, HumanMessage("more")])
    assert again.text == "you said more (None)"
    assert backend.requests[-1].messages[1] == {"role": "assistant", "content": "you said hi there (None)"}

    whole: AIMessageChunk | None = None
    for chunk in model.stream("hi there"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.text == "you said hi there (None)"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == 8

    agent = model.bind_tools([look])
    asked = agent.invoke("hi there")
    assert isinstance(asked, AIMessage)
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("look", {"at": "map"}), ("look", {"at": "sky"})]
    results = [ToolMessage(f"a lamp {i}", tool_call_id=str(call["id"])) for i, call in enumerate(asked.tool_calls)]
    assert agent.invoke([HumanMessage("hi there"), asked, *results]).text == "you said a lamp 1 (None)"
    streamed: AIMessageChunk | None = None
    for chunk in agent.stream("hi there"):
        streamed = chunk if streamed is None else streamed + chunk  # type: ignore[assignment]
    assert streamed is not None
    assert [call["args"] for call in streamed.tool_calls] == [{"at": "map"}, {"at": "sky"}]
    assert agent.invoke([HumanMessage("hi there"), streamed, *results]).text == "you said a lamp 1 (None)"
    assert model.with_structured_output(Mood).invoke("hi there") == Mood(mood="good")

"""Requests to servers that refuse parameters, are busy for minutes, or have a small window: what is sent next, and what is said."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai_server import OpenAIServer

from learngraph.memory.errors import UserError
from learngraph.tools.models import api_posts
from learngraph.tools.models.models import open_model

OPTIONS: dict[str, Any] = {"temperature": 0.3, "seed": 7, "stop": ["\nObservation:"], "top_logprobs": 20, "logprobs": True}
SCHEMA = {"type": "object", "properties": {"action": {"type": "string"}}}


def refusal(message: str, **fields: Any) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **fields}})


REFUSALS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "OpenAI": (
        "temperature",
        refusal("Unsupported parameter: 'temperature' is not supported with this model.", param="temperature"),
        {},
    ),
    "OpenAI, a value": ("temperature", refusal("Unsupported value: 'temperature' does not support 0.3 with this model."), {}),
    "Mistral": (
        "seed",
        json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}),
        {},
    ),
    "a proxy in words": ("stop", "property `stop` is unsupported", {}),
    "a form": ("response_format", refusal("Invalid schema", param="response_format.json_schema"), {}),
    "fewer alternatives": ("top_logprobs", refusal("top_logprobs must be at most 5"), {"top_logprobs": 5}),
    "the older name": (
        "max_completion_tokens",
        refusal("Unrecognized request argument supplied: max_completion_tokens"),
        {"max_tokens": 50},
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_a_400_names_is_dropped_and_said_once(case: str, caplog: pytest.LogCaptureFixture) -> None:
    name, body, instead = REFUSALS[case]
    first = {}

    def answer(request: dict[str, Any]) -> Any:
        first.update(first or request)
        return (
            {"status": 422 if case == "Mistral" else 400, "body": body} if request.get(name) == first[name] else "Action: wait"
        )

    with OpenAIServer(answer) as server:
        model = open_model("openai:refusing", base_url=server.url, max_tokens=50)
        with ThreadPoolExecutor(4) as pool:
            ask = lambda n: model.invoke(f"What next? {n}", **OPTIONS, reply_schema=SCHEMA)  # noqa: E731
            assert {reply.text for reply in pool.map(ask, range(8))} == {"Action: wait"}
        last = server.requests[-1]
    assert {key: value for key, value in first.items() if key not in (name, "messages")}.items() <= last.items()
    assert {key: last[key] for key in instead} == instead
    assert instead.get(name) == last.get(name)
    assert len([record for record in caplog.records if name in record.getMessage()]) == 1


def test_neither_name_of_the_longest_reply_is_known() -> None:
    def answer(request: dict[str, Any]) -> Any:
        wrong = {"max_tokens", "max_completion_tokens"} & request.keys()
        return {"status": 400, "text": f"Unknown parameter: {wrong.pop()}"} if wrong else "hello"

    with OpenAIServer(answer) as server:
        assert open_model("openai:strict", base_url=server.url, max_tokens=50).invoke("hi").text == "hello"
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("This model's maximum context length is 8192 tokens, and max_completion_tokens is 50.", "--window N"),
        ("context_length_exceeded", "--window N"),
        ("Invalid value for messages: too strange", "change what its message names"),
        ("logprobs are not supported", "verbalized confidences"),
    ],
)
def test_what_cannot_be_dropped_is_a_sentence(said: str, names: str) -> None:
    with OpenAIServer([{"status": 400, "text": said}]) as server:
        with pytest.raises(UserError, match=names):
            open_model("openai:m", base_url=server.url, max_tokens=50).invoke("hi", **OPTIONS)
        assert len(server.requests) == 1


def test_an_outage_is_waited_out_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(api_posts, "sleep", wait)
    with OpenAIServer([{"status": 503}] * 9 + ["back", {"status": 503}]) as server:
        model = open_model("openai:m", base_url=server.url)
        assert model.invoke("hi").text == "back"
        most = [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
        assert all(top / 2 <= pause <= top for pause, top in zip(waited, most, strict=True))
        assert sum(waited) > 90
        with pytest.raises(UserError, match="error 503, tried 10 times"):
            model.invoke("hi")
    waited.clear()
    with pytest.raises(UserError, match="cannot be reached, tried 5 times"):  # an address where nobody has answered yet
        open_model("openai:m", base_url="http://127.0.0.1:9/v1").invoke("hi")
    assert len(waited) == 4

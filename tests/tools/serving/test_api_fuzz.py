"""Schemathesis reads /openapi.json and tries every endpoint with what fits the schema and what does not."""

import json
from functools import cache
from typing import Any

import chat_backend
import pytest

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")

LEFT_OUT = {
    "positive_data_acceptance",  # a schema does not say which models, adapters and responses there are, nor what fits together
    "max_response_time",
}


@pytest.fixture(autouse=True)
def _guesses_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be guessed all day: the limit on failed log-ins has tests of its own, and its 429 would hide the 401."""
    from learngraph.tools.serving import tenants

    monkeypatch.setattr(tenants, "FAILED_LOGINS", 10**9)


def make() -> Any:
    """An application in front of a service that knows a few things by the names that a fuzzer may hit on."""
    backend = chat_backend.FakeBackend(names={"acme": ["0", "a"]})
    return chat_backend.chat_server.make_app(backend, chat_backend.two(streams=10_000))


OPENAPI = make().openapi()
each_endpoint = pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path, operations in OPENAPI["paths"].items() for method in operations]
)


@cache
def read_schema() -> Any:
    """The schema as Schemathesis reads it, once for all endpoints."""
    return pytest.importorskip("schemathesis").openapi.from_asgi("/openapi.json", make())


def fuzz(path: str, method: str, examples: int) -> None:
    """Schemathesis, which takes seconds to import, is imported here only; its pytest plugin is not needed."""
    schemathesis = pytest.importorskip("schemathesis", "4.32", reason="NOT TESTED: pip install 'schemathesis>=4.32'")
    from hypothesis import HealthCheck, Phase, given, settings, strategies
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    operation = read_schema()[path][method]
    checked = [CHECKS.get_one(name) for name in CHECKS.get_all_names() if name not in LEFT_OUT]
    case_of = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @settings(phases=[Phase.generate], suppress_health_check=list(HealthCheck), max_examples=examples)
    @given(strategies.one_of(case_of))
    def try_case(case: Any) -> None:
        # A parameter that is an empty list or object is not sent: what the fuzzer takes for a wrong request may be a right one.
        unsent = any(value in ([], {}) for value in dict(case.query or {}).values())
        checks = [CHECKS.get_one("not_a_server_error")] if unsent else checked
        case.call_and_validate(headers={"Authorization": f"Bearer {chat_backend.KEY}"}, checks=checks)

    try_case()


@pytest.mark.slow
@each_endpoint
def test_every_endpoint_in_short(path: str, method: str) -> None:
    fuzz(path, method, examples=4)


@pytest.mark.long
@each_endpoint
def test_every_endpoint(path: str, method: str) -> None:
    fuzz(path, method, examples=300)


def test_the_schema_says_what_the_server_has() -> None:
    paths = OPENAPI["paths"]
    assert {"/v1/chat/completions", "/v1/feedback", "/v1/adapters/{adapter}/promote", "/metrics", "/healthz"} <= set(paths)
    assert not any(path.startswith("/dashboard") for path in paths)
    chat = paths["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"HTTPBearer": []}]
    assert "security" not in paths["/healthz"]["get"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatBody"}
    assert OPENAPI["components"]["schemas"]["ChatBody"]["additionalProperties"] is False
    assert all("422" not in operation["responses"] for operations in paths.values() for operation in operations.values())


NUMBERS = "1e-300 1e-46 1e-39 5e-324 -0.0 0 1 -1 0.5 1e308 1e400 -1e400 NaN".split()  # noqa: SIM905
NUMBERS += [str(2**63), str(2**64)]
CHAT = {"model": "guard", "messages": [{"role": "user", "content": "door is what ?"}], "max_tokens": 3, "seed": 1}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": CHAT,
    "completions": {"model": "guard", "prompt": "door is", "max_tokens": 3},
    "feedback": {"response_id": "", "reward": 1},
    "train": {"steps": 1},
}


def numeric_fields(body: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """The fields of a schema that take a number, alone or beside other types."""
    kinds = {name: [field, *field.get("anyOf", [])] for name, field in schema["properties"].items()}
    return [name for name, found in kinds.items() if any(kind.get("type") in ("number", "integer") for kind in found)]


@pytest.mark.slow
def test_no_number_ends_the_service(tmp_path: Any) -> None:
    """Every number that JSON can carry, in every field that takes one, against a running model: an answer each time, and no other one after."""
    import httpx

    import learngraph

    pytest.importorskip("peft")
    with learngraph.serve(model="guard", out=tmp_path, learner="off") as server:
        root = server.url.removesuffix("/v1")
        client = httpx.Client(base_url=root, headers={"authorization": f"Bearer {server.api_key}"})
        schemas = client.get("/openapi.json").json()
        before = client.post("/v1/chat/completions", json=CHAT).json()
        sent = 0
        for path, body in BODIES.items():
            ref = schemas["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            fields = numeric_fields(body, schemas["components"]["schemas"][ref.rpartition("/")[2]])
            assert fields
            for name in [*fields, *(["logit_bias"] if path == "chat/completions" else [])]:
                for number in NUMBERS:
                    value = f'{{"5": {number}}}' if name == "logit_bias" else number
                    known = json.dumps(body | ({"response_id": before["id"]} if path == "feedback" else {}) | {name: 0})
                    content = known.replace(f'"{name}": 0', f'"{name}": {value}')
                    answer = client.post(f"/v1/{path}", content=content, headers={"content-type": "application/json"})
                    good = (200, 202, 400, 404, 409, 503 if path == "train" else 400)
                    assert answer.status_code in good, (path, name, number, answer.text)
                    sent += 1
        assert sent > 200
        assert client.get("/readyz").status_code == 200
        after = client.post("/v1/chat/completions", json=CHAT).json()
        assert after["choices"] == before["choices"]
        client.close()

"""Schemathesis reads /openapi.json and tries every endpoint with what fits the schema and what does not."""

from typing import Any

import chat_backend
import pytest

pytest.importorskip("fastapi", reason="NOT TESTED: needs the extra [serve]")
pytest.importorskip("schemathesis", "4.32", reason="NOT TESTED: no schemathesis (pip install 'schemathesis>=4.32')")

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

load_all_checks()
LEFT_OUT = {
    "positive_data_acceptance",  # a schema does not say which models, adapters and responses there are, nor what fits together
    "max_response_time",
}
CHECKED = [CHECKS.get_one(name) for name in CHECKS.get_all_names() if name not in LEFT_OUT]


@pytest.fixture(autouse=True)
def _guesses_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be guessed all day: the limit on failed log-ins has tests of its own, and its 429 would hide the 401."""
    from learngraph.tools.serving import tenants

    monkeypatch.setattr(tenants, "FAILED_LOGINS", 10**9)


def make() -> Any:
    """An application in front of a service that knows a few things by the names that a fuzzer may hit on."""
    backend = chat_backend.FakeBackend(names={"acme": ["0", "a"]})
    return chat_backend.chat_server.make_app(backend, chat_backend.two(streams=10_000))


def schema() -> Any:
    found = schemathesis.openapi.from_asgi("/openapi.json", make())
    found.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    return found


SCHEMA = schema()
HEADERS = {"Authorization": f"Bearer {chat_backend.KEY}"}
STEADY = settings(
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def fuzzed(case: Any) -> None:
    # A parameter that is an empty list or object is not sent: what the fuzzer takes for a wrong request may be a right one.
    unsent = any(value in ([], {}) for value in dict(case.query or {}).values())
    checks = [CHECKS.get_one("not_a_server_error")] if unsent else CHECKED
    case.call_and_validate(headers=HEADERS, checks=checks)


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(STEADY, max_examples=8)
def test_every_endpoint_in_short(case: Any) -> None:
    fuzzed(case)


@pytest.mark.long
@SCHEMA.parametrize()
@settings(STEADY, max_examples=300)
def test_every_endpoint(case: Any) -> None:
    fuzzed(case)


def test_the_schema_says_what_the_server_has() -> None:
    raw = SCHEMA.raw_schema
    paths = set(raw["paths"])
    assert {"/v1/chat/completions", "/v1/feedback", "/v1/adapters/{adapter}/promote", "/metrics", "/healthz"} <= paths
    assert not any(path.startswith("/dashboard") for path in paths)
    chat = raw["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"HTTPBearer": []}]
    assert "security" not in raw["paths"]["/healthz"]["get"]
    body = chat["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatBody"}
    assert raw["components"]["schemas"]["ChatBody"]["additionalProperties"] is False
    assert all("422" not in operation["responses"] for path in raw["paths"].values() for operation in path.values())

"""The chat API of a model that learns: OpenAI's endpoints, feedback by response id, adapters and their versions.

    application = app(backend, tenants.read(["secret"]))
    asyncio.run(serve(application, port=8000, ready=print))

Any agent that speaks the OpenAI chat API talks to it with its base URL ending in `/v1`. What made a reply stands in the headers
`x-experience-id` (the id that `POST /v1/feedback` takes) and `x-policy-version` (the adapter version's label, or `base`), and in
`system_fingerprint`. Errors come in OpenAI's envelope, everywhere; the tenant comes from the key, never from the request.

Success counts as reward 1, failure as -1. With `n` > 1 the i-th choice is kept as `<id>-<i>` (the first as `<id>`); feedback names it
so, or by `response_id` and `choice`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import secrets
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import quote

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...memory.errors import UserError
from ...memory.records import Feedback
from . import dashboard
from .metrics import Meter, exposition
from .openai_wire import (
    ApiError,
    ChatBody,
    ParsedRequest,
    TextBody,
    parse_body,
    parse_chat,
    parse_json,
    parse_text,
    unknown_model,
)
from .replies import REQUEST_ID, ClientDisconnected, FullResponse, ReplyBackend, StreamedResponse, as_api_error, respond
from .service_wire import (
    NAME_PATTERN,
    AcceptedJob,
    AdapterBody,
    Completion,
    ErrorBody,
    FeedbackBody,
    Health,
    JsonObject,
    ListResponse,
    ModelCard,
    ModelList,
    RollBackBody,
    TrainBody,
    VersionBody,
)
from .tenants import Tenant, Tenants

__all__ = ["ChatBackend", "FeedbackReceipt", "make_app", "serve"]

LOG = logging.getLogger("learngraph.chat_server")
BODY_SECONDS = 30.0
"""Longest that a client may take to send a request's body."""
STALL_SECONDS = 60.0
"""Longest that a client may take no more of a stream."""


class FeedbackReceipt(Protocol):
    """What feedback gets in return."""

    @property
    def job(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def is_repeat(self) -> bool: ...


class ChatBackend(ReplyBackend, Protocol):
    """The service behind the API. Everything is per tenant; another tenant's things are unknown things.

    Errors: a `UserError` is a bad request (400), but for the class names in `openai_wire.STATUSES` (`UnknownExchange` is 404,
    `FeedbackConflict` 409, `Unavailable` 503 with Retry-After from its `retry_after`, and so on). Anything else is a 500.
    """

    model: str
    """Its public name."""
    window: int
    """Longest prompt with its reply, in tokens."""
    features: frozenset[str]
    """What else the engine honours: `tools`, `tool_choice`, `response_format`, `logit_bias`, `presence_penalty`,
    `frequency_penalty`, `raw`."""

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        """Keep what somebody says of a reply; the same again is the same job."""

    def advice(self, feedback: Feedback) -> str:
        """What would teach more than this feedback does; mostly nothing."""

    async def experiences(
        self, tenant: str, adapter: str | None, state: str | None, limit: int, before: str | None
    ) -> list[dict[str, Any]]:
        """Newest first; each with `id`, `adapter`, `version`, `state`, `reason`, `created`, `messages`, `reply`, `feedback`, `age`."""

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None: ...
    async def forget(self, tenant: str, id: str | None) -> dict[str, Any]:
        """Delete one, or all: `deleted`, and `tainted` (labels of versions that had learned from it)."""

    async def job(self, tenant: str, id: str) -> dict[str, Any] | None: ...
    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]: ...
    async def adapters(self, tenant: str) -> list[dict[str, Any]]:
        """`adapter`, `live`, `canary`, and `versions`, newest first: `label`, `step`, `state`, `created`, `gate`, `why`, …"""

    async def create(self, tenant: str, adapter: str) -> dict[str, Any]: ...
    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]: ...
    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        """To a version, the base model (empty), or the version that was live before (None)."""

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]: ...
    async def export(self, tenant: str, adapter: str, version: str) -> Path:
        """A zip, named after the version and alone in a temporary folder: whoever asked removes both."""

    async def status(self, tenant: str | None) -> dict[str, Any]:
        """`state` (`ok`, `degraded`), `why`, `model`, `base`, `learner`, `scopes`; without a tenant, and cheaply: no scopes."""

    async def metrics(self) -> dict[str, Any]:
        """As `metrics.exposition` takes it."""

    async def exchanges(self, tenant: str, limit: int) -> list[dict[str, Any]]:
        """The newest, as `experiences` gives them."""


class EventStreamResponse(Response):
    """Server-sent events."""

    def __init__(self, stream: StreamedResponse) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **stream.headers})
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._stream.chunks:
                async with asyncio.timeout(STALL_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            LOG.warning("a client took nothing of its stream for %g s; it is cut off", STALL_SECONDS)
            raise ClientDisconnected from None
        finally:
            await self._stream.close()


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON; numbers that JSON has not become null."""
    try:
        body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        body = json.dumps(_replace_nonfinite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = body.encode("utf-8", "replace")
    return Response(content, status, headers=dict(headers or {}), media_type="application/json")


def _replace_nonfinite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): _replace_nonfinite(value) for key, value in data.items()}
    return [_replace_nonfinite(item) for item in data] if isinstance(data, list | tuple) else data


def error_response(error: ApiError) -> Response:
    """An error, in its envelope."""
    return json_response(error.body, error.status, error.headers)


@dataclass
class ChatApi:
    """The endpoints."""

    backend: ChatBackend
    tenants: Tenants
    meter: Meter
    max_body_bytes: int
    default_max_tokens: int
    creation_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read_json(self, request: Request) -> Any:
        """The request's JSON; nothing is an empty object.

        Raises:
            Refused: it is too long, too slow or no JSON.
        """
        too_long = ApiError(
            f"the body is longer than {self.max_body_bytes} bytes",
            413,
            code="request_too_large",
            headers={"connection": "close"},
        )
        length = request.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.max_body_bytes:
            raise too_long
        found = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    found += chunk
                    if len(found) > self.max_body_bytes:
                        raise too_long
        except TimeoutError:
            raise ApiError(f"the body took longer than {BODY_SECONDS:g} s", 408, headers={"connection": "close"}) from None
        return parse_json(bytes(found)) if found else {}

    # Chat

    async def chat(self, request: Request) -> Response:
        data = await self.read_json(request)
        asked = parse_chat(data, self.backend.model, self.backend.features, self.backend.window, self.default_max_tokens)
        return await self.reply(request, asked, data["model"], "chat")

    async def text(self, request: Request) -> Response:
        data = await self.read_json(request)
        asked = parse_text(data, self.backend.model, self.backend.features, self.backend.window)
        return await self.reply(request, asked, data["model"], "text")

    async def reply(self, request: Request, parsed: ParsedRequest, model: str, kind: Literal["chat", "text"]) -> Response:
        tenant: Tenant = request.state.tenant
        found = await respond(self.backend, self.tenants, self.meter, tenant, parsed, model, kind, request.receive)
        return (
            json_response(found.body, headers=found.headers) if isinstance(found, FullResponse) else EventStreamResponse(found)
        )

    async def models(self, request: Request) -> Response:
        return json_response(
            {"object": "list", "data": [_model_row(row) for row in await self.backend.models(request.state.tenant.name)]}
        )

    async def model(self, request: Request, model: str) -> Response:
        for row in await self.backend.models(request.state.tenant.name):
            if row["id"] == model:
                return json_response(_model_row(row))
        raise unknown_model(model)

    # Feedback and what is kept

    async def feedback(
        self,
        request: Request,
        idempotency_key: Annotated[str, Header(alias="Idempotency-Key", max_length=256)] = "",
    ) -> Response:
        began = time.monotonic()
        body = parse_body(FeedbackBody, await self.read_json(request))
        if body.success is not None and body.reward is not None:
            raise ApiError("reward and success say the same; give one", param="success")
        reward = body.reward if body.success is None else (1.0 if body.success else -1.0)
        told = Feedback(reward=None if reward is None else float(reward), text=body.text or "", source=body.source)
        id = f"{body.response_id}-{body.choice}" if body.choice else body.response_id
        receipt = await self.backend.feedback(request.state.tenant.name, id, told, idempotency_key)
        self.meter.observe("learngraph_feedback_seconds", {}, time.monotonic() - began)
        found = {"job": receipt.job, "response_id": receipt.exchange, "state": receipt.state, "repeated": receipt.is_repeat}
        if note := self.backend.advice(told):
            found["note"] = note
        return json_response(found, 202, {"location": f"/v1/jobs/{quote(receipt.job)}"})

    async def job(self, request: Request, job: str) -> Response:
        return json_response(
            _require_row(await self.backend.job(request.state.tenant.name, job), f"no job {job[:100]!r}", "job_not_found")
        )

    async def experiences(
        self,
        request: Request,
        adapter: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
        state: Annotated[Literal["pending", "ready", "leased", "consumed", "rejected", "held"] | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    ) -> Response:
        rows = await self.backend.experiences(request.state.tenant.name, adapter, state, limit + 1, before)
        return json_response({"object": "list", "data": rows[:limit], "has_more": len(rows) > limit})

    async def experience(self, request: Request, id: str) -> Response:
        row = await self.backend.experience(request.state.tenant.name, id)
        return json_response(_require_row(row, f"no experience {id[:100]!r}", "response_not_found"))

    async def forget(self, request: Request, id: str) -> Response:
        tenant = request.state.tenant.name
        _require_row(await self.backend.experience(tenant, id), f"no experience {id[:100]!r}", "response_not_found")
        return json_response(await self.backend.forget(tenant, id))

    async def forget_all(self, request: Request, confirm: Annotated[Literal["all"], Query()]) -> Response:
        return json_response(await self.backend.forget(request.state.tenant.name, None))

    # Learning

    async def train(self, request: Request) -> Response:
        body = parse_body(TrainBody, await self.read_json(request))
        found = await self.backend.train(request.state.tenant.name, body.adapter, body.steps)
        return json_response(found, 202, {"location": f"/v1/jobs/{quote(str(found.get('job', '')))}"})

    async def adapters(self, request: Request) -> Response:
        rows = await self.backend.adapters(request.state.tenant.name)
        return json_response({"object": "list", "data": rows, "has_more": False})

    async def adapter(self, request: Request, adapter: Annotated[str, InPath(pattern=NAME_PATTERN)]) -> Response:
        rows = await self.backend.adapters(request.state.tenant.name)
        row = next((row for row in rows if row.get("adapter") == adapter), None)
        return json_response(_require_row(row, f"no adapter {adapter!r}", "adapter_not_found"))

    async def create(self, request: Request) -> Response:
        body, tenant = parse_body(AdapterBody, await self.read_json(request)), request.state.tenant
        async with self.creation_lock:  # so that two at once do not both see room for one
            rows, most = await self.backend.models(tenant.name), tenant.limits.adapters
            if len(rows) >= most:
                raise ApiError(
                    f"there are {len(rows)} adapters, and this key may have {most}; DELETE /v1/adapters/NAME makes room",
                    409,
                    param="adapter",
                    code="too_many_adapters",
                )
            return json_response(await self.backend.create(tenant.name, body.adapter), 201)

    async def promote(self, request: Request, adapter: Annotated[str, InPath(pattern=NAME_PATTERN)]) -> Response:
        body = parse_body(VersionBody, await self.read_json(request))
        return json_response(await self.backend.promote(request.state.tenant.name, adapter, body.version))

    async def roll_back(self, request: Request, adapter: Annotated[str, InPath(pattern=NAME_PATTERN)]) -> Response:
        to = parse_body(RollBackBody, await self.read_json(request)).to
        return json_response(await self.backend.roll_back(request.state.tenant.name, adapter, "" if to == "base" else to))

    async def remove(
        self,
        request: Request,
        adapter: Annotated[str, InPath(pattern=NAME_PATTERN)],
        version: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    ) -> Response:
        return json_response(await self.backend.remove(request.state.tenant.name, adapter, version))

    async def export(
        self,
        request: Request,
        adapter: Annotated[str, InPath(pattern=NAME_PATTERN)],
        version: Annotated[str, Query(min_length=1, max_length=256)],
    ) -> Response:
        path = await self.backend.export(request.state.tenant.name, adapter, version)
        try:
            content = await asyncio.to_thread(path.read_bytes)  # an adapter: a few MB
        finally:
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()  # it was alone in there
        name = f"{adapter}-{path.stem}.zip".encode("ascii", "replace").decode()
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return Response(
            content, media_type="application/zip", headers={"content-disposition": f'attachment; filename="{safe}"'}
        )

    async def status(self, request: Request) -> Response:
        found = await self.backend.status(request.state.tenant.name)
        return json_response(found | {"tenant": request.state.tenant.name, "usage": self.tenants.usage(request.state.tenant)})

    async def metrics(self, request: Request) -> Response:
        tenant: Tenant | None = request.state.tenant
        everything = tenant is None or tenant.metrics_only or self.tenants.names == (tenant.name,)  # nobody else is there
        mine = None if everything or tenant is None else tenant.name
        shown = exposition([self.meter.numbers(), await self.backend.metrics()], mine)
        return Response(shown, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self) -> Response:
        """Whether it answers, and learns: `degraded` when it answers and no longer learns."""
        try:
            found = await self.backend.status(None)
        except Exception as error:
            LOG.exception("the service does not say how it is")
            raise ApiError("the service does not answer", 503, code="unavailable", headers={"retry-after": "5"}) from error
        good = found.get("state", "ok") == "ok"
        return json_response({"status": "ok" if good else "degraded", "why": "" if good else "the learner has failed"})


def _require_row(row: dict[str, Any] | None, message: str, code: str) -> dict[str, Any]:
    if row is None:
        raise ApiError(message, 404, code=code)
    return row


def _model_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "model", "created": 0, "owned_by": "learngraph", **row}


# The application


class RequestMiddleware:
    """Around everything: an id for each request, its metrics, and a 500 that says nothing of us where something broke."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self.app, self.meter = app, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        id, began, status = f"req_{secrets.token_hex(12)}", time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        self.meter.change("learngraph_http_requests_in_progress", {}, 1)
        REQUEST_ID.set(id)
        try:
            await self.app(scope, receive, sending)
        except (ClientDisconnected, ClientDisconnect):
            self.meter.add("learngraph_disconnects_total", {})
            if not status:  # nobody reads it
                await json_response({}, 499)(scope, receive, sending)
        except Exception as error:
            LOG.exception("request %s failed: %s %s", id, scope["method"], scope["path"])
            if status:
                raise  # what is cut off must not look whole
            await error_response(as_api_error(error))(scope, receive, sending)
        finally:
            route = str(getattr(scope.get("route"), "path", "other"))
            labels = {"route": route, "method": scope["method"] if route != "other" else "", "status": str(status)}
            self.meter.change("learngraph_http_requests_in_progress", {}, -1)
            self.meter.add("learngraph_http_requests_total", labels)
            self.meter.observe("learngraph_http_request_seconds", {"route": route}, time.monotonic() - began)


BEARER = HTTPBearer(auto_error=False, description="An API key.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]

METRIC_HELP = {
    "learngraph_http_requests_total": "Requests by route, method and status.",
    "learngraph_http_requests_in_progress": "Requests being answered, streams included.",
    "learngraph_http_request_seconds": "From a request to the end of its answer.",
    "learngraph_first_token_seconds": "From a checked chat request to the first token of its reply.",
    "learngraph_feedback_seconds": "From feedback to its receipt.",
    "learngraph_replies_in_progress": "Replies being made.",
    "learngraph_tokens_total": "Tokens of prompts and replies.",
    "learngraph_disconnects_total": "Clients that hung up before their reply was finished.",
}


def make_app(
    backend: ChatBackend,
    tenants: Tenants,
    *,
    max_body_bytes: int = 1 << 20,
    default_max_tokens: int = 1024,
    open_metrics: bool = False,
) -> FastAPI:
    """The ASGI application.

    Args:
        backend: what answers and learns.
        tenants: who may ask.
        body: longest request body, in bytes.
        reply_tokens: longest reply where a chat request names none.
        open_metrics: /metrics needs no key.
    """
    meter = Meter(METRIC_HELP)
    api = ChatApi(backend, tenants, meter, max_body_bytes, default_max_tokens)

    def authenticate(credentials: HTTPAuthorizationCredentials | None) -> Tenant:
        if credentials is None:
            message = "no API key: send the header `Authorization: Bearer KEY`"
        elif (tenant := tenants.tenant_for_key(credentials.credentials)) is not None:
            return tenant
        else:
            message = "this API key is not known here"
        raise ApiError(message, 401, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    async def require_chat_key(request: Request, credentials: Credentials = None) -> None:
        tenant = authenticate(credentials)
        if tenant.metrics_only:
            raise ApiError("this key reads /metrics only", 403, code="metrics_only")
        tenants.admit(tenant)
        request.state.tenant = tenant

    async def require_metrics_key(request: Request, credentials: Credentials = None) -> None:
        request.state.tenant = None if open_metrics else authenticate(credentials)
        if request.state.tenant is not None:
            tenants.admit(request.state.tenant)

    made = FastAPI(
        title="learngraph",
        summary="A chat API whose models learn from feedback.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    error: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "An error."}}
    routes = APIRouter(dependencies=[Depends(require_chat_key)], responses=error)

    def route(
        method: str,
        path: str,
        endpoint: Callable[..., Awaitable[Response]],
        shape: Any = JsonObject,
        asks: type[BaseModel] | None = None,
        status: int = 200,
        router: APIRouter = routes,
        content: str = "",
    ) -> None:
        """A route, and what the schema says of it."""
        extra: dict[str, Any] = {}
        if asks is not None:
            reference = {"$ref": f"#/components/schemas/{asks.__name__}"}
            needed = any(info.is_required() for info in asks.model_fields.values())
            extra = {"requestBody": {"required": needed, "content": {"application/json": {"schema": reference}}}}
        says: dict[str, Any] = {"description": "As asked."}
        if content:
            says["content"] = {content: {"schema": {"type": "string"}}}
        else:
            says["model"] = shape
        if asks in (ChatBody, TextBody):
            says["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        known = inspect.signature(endpoint).parameters.keys()

        async def reject_unknown_query(request: Request) -> None:
            if unknown := sorted(request.query_params.keys() - known):
                name = unknown[0][:100]
                raise ApiError(f"unknown query parameter: {name!r}", param=name, code="unknown_parameter")

        router.add_api_route(
            path,
            endpoint,
            methods=[method],
            dependencies=[Depends(reject_unknown_query)],
            status_code=status,
            response_class=JSONResponse if not content else Response,
            responses={status: says},
            openapi_extra=extra or None,
            operation_id=f"{method.lower()}{path.replace(':path', '').replace('/', '_').replace('{', '').replace('}', '')}",
        )

    route("POST", "/v1/chat/completions", api.chat, Completion, ChatBody)
    route("POST", "/v1/completions", api.text, Completion, TextBody)
    route("GET", "/v1/models", api.models, ModelList)
    route("GET", "/v1/models/{model:path}", api.model, ModelCard)
    route("POST", "/v1/feedback", api.feedback, AcceptedJob, FeedbackBody, 202)
    route("GET", "/v1/feedback/{job:path}", api.job)
    route("GET", "/v1/jobs/{job:path}", api.job)
    route("GET", "/v1/experiences", api.experiences, ListResponse)
    route("DELETE", "/v1/experiences", api.forget_all)
    route("GET", "/v1/experiences/{id}", api.experience)
    route("DELETE", "/v1/experiences/{id}", api.forget)
    route("POST", "/v1/train", api.train, AcceptedJob, TrainBody, 202)
    route("GET", "/v1/adapters", api.adapters, ListResponse)
    route("POST", "/v1/adapters", api.create, JsonObject, AdapterBody, 201)
    route("GET", "/v1/adapters/{adapter}", api.adapter)
    route("DELETE", "/v1/adapters/{adapter}", api.remove)
    route("POST", "/v1/adapters/{adapter}/promote", api.promote, JsonObject, VersionBody)
    route("POST", "/v1/adapters/{adapter}/rollback", api.roll_back, JsonObject, RollBackBody)
    route("GET", "/v1/adapters/{adapter}/export", api.export, content="application/zip")
    route("GET", "/v1/status", api.status)
    made.include_router(routes)
    counted = APIRouter(dependencies=[Depends(require_metrics_key)], responses=error)
    route("GET", "/metrics", api.metrics, router=counted, content="text/plain")
    made.include_router(counted)
    free = APIRouter(responses=error)
    route("GET", "/healthz", api.health, Health, router=free)
    made.include_router(free)
    made.include_router(dashboard.dashboard_router(backend, tenants))

    async def root() -> Response:
        return RedirectResponse("/dashboard", 307)

    made.add_api_route("/", root, methods=["GET"], include_in_schema=False)

    async def on_error(request: Request, problem: Exception) -> Response:
        return error_response(as_api_error(problem))

    async def on_http_error(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        message = {404: f"no {request.url.path[:200]!r} here", 405: f"{request.method} is not allowed here"}
        code = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code)
        told_so = message.get(problem.status_code, str(problem.detail))
        return error_response(ApiError(told_so, problem.status_code, code=code, headers=problem.headers))

    async def on_invalid_request(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        first = problem.errors()[0]
        where = str(first["loc"][-1])
        return error_response(
            ApiError(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}", param=where, code="invalid_value")
        )

    for kind in (ApiError, UserError):
        made.add_exception_handler(kind, on_error)
    made.add_exception_handler(HTTPException, on_http_error)
    made.add_exception_handler(RequestValidationError, on_invalid_request)
    made.add_middleware(RequestMiddleware, meter=meter)
    made.openapi = lambda: _openapi_schema(made)  # type: ignore[method-assign]
    return made


def _openapi_schema(made: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's, with the bodies that are checked here, and without its 422, which is a 400 here."""
    if made.openapi_schema is not None:
        return made.openapi_schema
    found = FastAPI.openapi(made)
    bodies = (ChatBody, TextBody, FeedbackBody, TrainBody, AdapterBody, VersionBody, RollBackBody)
    template = "#/components/schemas/{model}"
    _, more = models_json_schema([(kind, "validation") for kind in bodies], ref_template=template, by_alias=True)
    schemas = found["components"]["schemas"]
    schemas |= more["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return found


class _Server(uvicorn.Server):
    """Signals end it, and nothing else: uvicorn's own would end the process before the service has put its things in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def serve(
    application: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
    grace: float = 10.0,
) -> None:
    """Serve until SIGINT, SIGTERM or cancelled; replies under way have `grace` seconds to end.

    Args:
        port: 0 takes a free one.
        ready: called with the URL once requests are answered.

    Raises:
        UserError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {why}; another --host or --port would do") from error
    settings = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(grace),
        server_header=False,
        backlog=2048,
    )
    server = _Server(settings)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"

    async def tell() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        if on_ready is not None:
            on_ready(url)

    telling, serving = asyncio.create_task(tell()), asyncio.create_task(server.serve([listening]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
    finally:
        telling.cancel()
        listening.close()

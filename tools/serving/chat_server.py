"""The chat API of a model that learns: OpenAI's endpoints, feedback by response id, adapters and their versions.

    application = make_app(backend, read_tenants(["secret"]))
    asyncio.run(serve(application, port=8000, on_ready=print))

An agent that uses the OpenAI chat API works with it when its base URL ends in `/v1`. Each reply has the headers
`x-experience-id` (the id that `POST /v1/feedback` takes) and `x-policy-version` (the adapter version's label, or `base`);
`system_fingerprint` is the version too. Every error has OpenAI's envelope. The tenant follows from the key, never from the
request.

Success counts as reward 1, failure as -1. With `n` > 1 the i-th choice is stored as `<id>-<i>` (the first as `<id>`); feedback
names it so, or by `response_id` and `choice`.
"""

import asyncio
import inspect
import logging
import math
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.responses import RedirectResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...memory.errors import UserError
from ...memory.telemetry import take_over_trace
from .backend import ChatBackend
from .connections import MAX_HEADER_BYTES, MAX_HEADERS, TOO_LARGE, available_connections, limited_protocol, listening_socket
from .endpoints import ChatApi, error_response, json_response
from .liveness import liveness_process
from .metrics import ServerMetrics
from .openai_wire import ApiError, ChatBody, TextBody
from .page_files import page_response
from .replies import REQUEST_ID, as_api_error
from .service_wire import AdapterBody, ErrorBody, FeedbackBody, RollBackBody, TrainBody, VersionBody
from .tenants import Tenant, Tenants, client_address

__all__ = ["check_address", "make_app", "serve"]

LOG = logging.getLogger("learngraph.chat_server")
REQUESTS = logging.getLogger("learngraph.requests")
HEADER_SECONDS = 20.0
"""Longest time that a client may take to send a request's headers."""
KEEP_ALIVE_SECONDS = 75
"""Time that an idle connection stays open. Clients keep theirs for 5 to 60 s (httpx, aiohttp, nginx, cloud balancers). The side that
closes first must be the client: otherwise it may send a request on a connection that is being closed, and the request is lost."""
CHAT_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models")
"""Beginnings of the paths that a key which may only chat may ask."""
BODIES = (ChatBody, TextBody, FeedbackBody, TrainBody, AdapterBody, VersionBody, RollBackBody)
"""Request bodies that the endpoints parse themselves, for the OpenAPI document."""


class RequestMiddleware:
    """Gives each request an id, counts it, and answers exceptions with a 500 that reveals nothing."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self.app = app
        self.metrics = metrics

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

        self.metrics.http_in_progress.inc()
        REQUEST_ID.set(id)
        take_over_trace(dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1"))
        try:
            headers = scope["headers"]  # that came in one piece: the parser bounds what it holds back
            if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
                raise ApiError(TOO_LARGE, 431, code="headers_too_large", headers={"connection": "close"})
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            self.metrics.disconnects.inc()
            if not status:  # the middleware must answer, though the client is gone
                await json_response({}, 499)(scope, receive, sending)
        except Exception as error:
            if not isinstance(error, ApiError):
                LOG.exception("request %s failed: %s %s", id, scope["method"], scope["path"])
            if status:
                raise  # the connection breaks, so that half an answer does not look whole
            await error_response(as_api_error(error))(scope, receive, sending)
        finally:
            route = str(getattr(scope.get("route"), "path", "other"))
            method = scope["method"] if route != "other" else ""
            self.metrics.http_in_progress.dec()
            self.metrics.http_requests.labels(route=route, method=method, status=str(status)).inc()
            self.metrics.http_seconds.labels(route=route).observe(time.monotonic() - began)
            REQUESTS.info("%s %s %s %d %.3f s", id, scope["method"], route, status, time.monotonic() - began)


BEARER = HTTPBearer(auto_error=False, description="An API key.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]


@dataclass(frozen=True)
class KeyCheck:
    """The dependencies of routes that need a key. They put the tenant into `request.state.tenant`."""

    tenants: Tenants
    open_metrics: bool

    def tenant(self, request: Request, credentials: HTTPAuthorizationCredentials | None) -> Tenant:
        """The tenant of a key; raises an `ApiError` (401) for a missing or unknown one, and `RateLimitExceeded` after many."""
        if len(request.headers.getlist("authorization")) > 1:  # a proxy in front may look at another one
            raise ApiError("the header Authorization is given more than once; give it once", code="invalid_api_key")
        key = None if credentials is None else credentials.credentials
        if (found := self.tenants.log_in(key, client_address(request))) is not None:
            if found.chats_only and not request.url.path.startswith(CHAT_PATHS):
                raise ApiError("this key may chat and nothing else", 403, code="chat_only")
            return found
        message = "this API key is not known here" if key else "no API key: send the header `Authorization: Bearer KEY`"
        raise ApiError(message, 401, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    async def require_chat_key(self, request: Request, credentials: Credentials = None) -> None:
        """Admit requests with the key of a tenant that may chat."""
        tenant = self.tenant(request, credentials)
        if tenant.metrics_only:
            raise ApiError("this key reads /metrics only", 403, code="metrics_only")
        request.state.tenant = tenant

    async def require_metrics_key(self, request: Request, credentials: Credentials = None) -> None:
        """Admit requests with any known key; all requests if /metrics needs none."""
        request.state.tenant = None if self.open_metrics else self.tenant(request, credentials)


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Callable[..., Awaitable[Response]],
    body: type[BaseModel] | None = None,
    status: int = 200,
    content: str = "application/json",
) -> None:
    """Put an endpoint on its path. Query parameters that it does not know, or that are repeated, are refused.

    Args:
        body: of the request, which the endpoint parses; for the OpenAPI document, as the rest.
        status: of the answer.
        content: media type of the answer.
    """
    known = inspect.signature(endpoint).parameters
    queries = [name for name, one in known.items() if any(isinstance(mark, Query) for mark in get_args(one.annotation))]

    async def reject_bad_query(request: Request) -> None:
        for name in sorted(request.query_params.keys()):
            if name not in known:
                shown = name[:100]
                rest = f"; there are {', '.join(queries)}" if queries else ""
                raise ApiError(f"unknown query parameter: {shown!r}{rest}", param=shown, code="unknown_parameter")
            if len(request.query_params.getlist(name)) > 1:
                raise ApiError(f"query parameter {name!r} is given more than once; give it once", param=name)

    answers: dict[str, Any] = {content: {"schema": {"type": "string"} if content != "application/json" else {}}}
    if body in (ChatBody, TextBody):
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    asked = None
    if body is not None:
        is_required = any(info.is_required() for info in body.model_fields.values())
        schema = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
        asked = {"requestBody": {"required": is_required, "content": schema}}
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        dependencies=[Depends(reject_bad_query)],
        status_code=status,
        response_class=Response,
        responses={status: {"description": "As asked.", "content": answers}},
        openapi_extra=asked,
        operation_id=method.lower() + re.sub(r"\W+", "_", path.replace(":path", "")).rstrip("_"),
    )


def tenant_router(api: ChatApi, **more: Any) -> APIRouter:
    """The routes that need a tenant's key. `more`: arguments of the router."""
    add = partial(add_route, router := APIRouter(**more))
    adapter = "/v1/adapters/{adapter}"
    add("POST", "/v1/chat/completions", api.chat, ChatBody)
    add("POST", "/v1/completions", api.text, TextBody)
    add("GET", "/v1/models", api.models)
    add("GET", "/v1/models/{model:path}", api.model)
    add("POST", "/v1/feedback", api.feedback, FeedbackBody, 202)
    add("GET", "/v1/jobs/{job:path}", api.job)
    add("GET", "/v1/experiences", api.experiences)
    add("DELETE", "/v1/experiences", api.forget_all)
    add("GET", "/v1/experiences/{id}", api.experience)
    add("DELETE", "/v1/experiences/{id}", api.forget)
    add("POST", "/v1/experiences/{id}/release", api.release)
    add("POST", "/v1/train", api.train, TrainBody, 202)
    add("GET", "/v1/adapters", api.adapters)
    add("POST", "/v1/adapters", api.create, AdapterBody, 201)
    add("GET", adapter, api.adapter)
    add("DELETE", adapter, api.remove)
    add("POST", f"{adapter}/promote", api.promote, VersionBody)
    add("POST", f"{adapter}/rollback", api.roll_back, RollBackBody)
    add("POST", f"{adapter}/freeze", api.freeze)
    add("POST", f"{adapter}/thaw", api.thaw)
    add("GET", f"{adapter}/export", api.export, content="application/zip")
    add("GET", "/v1/status", api.status)
    return router


def make_app(
    backend: ChatBackend,
    tenants: Tenants,
    *,
    max_body_bytes: int = 1 << 20,
    open_metrics: bool = False,
    allowed_hosts: Sequence[str] = ("*",),
) -> FastAPI:
    """The ASGI application.

    Args:
        backend: answers and learns.
        tenants: who may ask, and how much.
        max_body_bytes: longest request body.
        open_metrics: /metrics needs no key.
        allowed_hosts: names by which clients may call the server (the header `Host`), without ports; `*`: any. A server without keys
            needs them: a page on the internet can make its own name lead to 127.0.0.1, and a browser then lets it read this server.
    """
    metrics = ServerMetrics()
    api = ChatApi(backend, tenants, metrics, max_body_bytes)
    keys = KeyCheck(tenants, open_metrics)
    application = FastAPI(
        title="learngraph",
        summary="A chat API whose models learn from feedback.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    errors: Any = {"responses": {"default": {"model": ErrorBody, "description": "An error."}}}
    open_router = APIRouter(**errors)
    for path, endpoint in (("/livez", api.live), ("/readyz", api.ready), ("/healthz", api.health)):
        add_route(open_router, "GET", path, endpoint)
    metrics_router = APIRouter(dependencies=[Depends(keys.require_metrics_key)], **errors)
    add_route(metrics_router, "GET", "/metrics", api.metrics, content="text/plain")
    tenants_router = tenant_router(api, dependencies=[Depends(keys.require_chat_key)], **errors)
    for router in (tenants_router, metrics_router, open_router):
        application.include_router(router)
    for path, answer in (
        ("/", _redirect_to_dashboard),
        ("/dashboard", _redirect_to_dashboard),
        ("/dashboard/{path:path}", _page),
    ):
        application.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)
    for kind in (ApiError, UserError, HTTPException, RequestValidationError):
        application.add_exception_handler(kind, _answer_error)
    application.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    application.add_middleware(RequestMiddleware, metrics=metrics)
    application.openapi = lambda: _openapi_schema(application)  # type: ignore[method-assign]
    return application


async def _redirect_to_dashboard() -> Response:
    return RedirectResponse("/dashboard/", 307)


async def _page(path: str) -> Response:
    """A file of the dashboard: a page that asks this API with the key that its user types in, and needs none to be read."""
    if (found := page_response(path or "dashboard.html")) is None:
        raise HTTPException(404)
    return found


async def _answer_error(request: Request, problem: Exception) -> Response:
    """The answer to an error of ours, of the framework, or of a parameter in a path or query."""
    if isinstance(problem, HTTPException):
        messages = {404: f"no {request.url.path[:200]!r} here", 405: f"{request.method} is not allowed here"}
        code = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code)
        message = messages.get(problem.status_code, str(problem.detail))
        problem = ApiError(message, problem.status_code, code=code, headers=problem.headers)
    elif isinstance(problem, RequestValidationError):
        first = problem.errors()[0]
        where = str(first["loc"][-1])
        problem = ApiError(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}", param=where, code="invalid_value")
    return error_response(as_api_error(problem))


def _openapi_schema(application: FastAPI) -> dict[str, Any]:
    """FastAPI's OpenAPI document, with the bodies that openai_wire.py and service_wire.py check, and without 422, which is 400
    here."""
    if application.openapi_schema is not None:
        return application.openapi_schema
    found = FastAPI.openapi(application)
    template = "#/components/schemas/{model}"
    _, more = models_json_schema([(kind, "validation") for kind in BODIES], ref_template=template, by_alias=True)
    schemas = found["components"]["schemas"]
    schemas |= more["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return found


class _Server(uvicorn.Server):
    """A server that stops on SIGINT and SIGTERM. Uvicorn's own handling would end the process before the service has closed."""

    on_started: Callable[[], object] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def check_address(host: str, port: int) -> None:
    """Check that a server can listen on an address, before a model is loaded.

    Raises:
        UserError: it cannot.
    """
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; raises `UserError` if that cannot be done."""
    try:
        return listening_socket(host, port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from error


async def serve(
    application: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
    grace: float = 10.0,
    max_connections: int = 1000,
    header_seconds: float = HEADER_SECONDS,
    livez_port: int | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation.

    Args:
        port: 0 takes a free one.
        on_ready: called with the URL once the server accepts requests.
        grace: seconds that replies under way have to end.
        max_connections: connections at once, or as many as the process may open; those without a request make room for others.
        header_seconds: longest time for a request's headers.
        livez_port: a process answers there, too, that the server is alive (liveness.py); None: on no other port.

    Raises:
        UserError: the server cannot listen on this address.
    """
    listening = _listen(host, port)
    probes = nullcontext() if livez_port is None else liveness_process(_listen(host, livez_port))
    settings = uvicorn.Config(
        application,
        log_config=None,  # as all lines of the service: with time, level, part
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(grace),
        server_header=False,
        http=limited_protocol(available_connections(max_connections), header_seconds),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = _Server(settings)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"
    if on_ready is not None:
        server.on_started = lambda: on_ready(url)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        with probes:
            await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
    finally:
        listening.close()

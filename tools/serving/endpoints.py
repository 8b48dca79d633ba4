"""The endpoints of the chat API: from an HTTP request to the backend, and back.

`chat_server.py` puts them on their paths and checks keys; the tenant of a request stands in `request.state.tenant`.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import Header, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from ...memory.records import ExchangeQuery, Feedback
from .answers import ChatAnswer, TextAnswer
from .backend import ChatBackend
from .metrics import ServerMetrics, render_metrics
from .openai_wire import ApiError, ParsedRequest, parse_body, parse_chat, parse_json, parse_text, unknown_model
from .replies import MAX_STARTS, START_SECONDS, PendingAnswer, TenantQueues
from .service_wire import NAME_PATTERN, AdapterBody, FeedbackBody, RollBackBody, TrainBody, VersionBody
from .tenants import Tenant, Tenants

__all__ = ["ChatApi"]

LOG = logging.getLogger("learngraph.chat_server")
BODY_SECONDS = 30.0
"""Longest time that a client may take to send a request's body."""
REST = 3
"""Time in which none of a tenant's bodies is parsed after one was, in multiples of the time that this one took."""
T = TypeVar("T")
AdapterName = Annotated[str, InPath(pattern=NAME_PATTERN)]
EndUser = Annotated[str | None, Query(min_length=1, max_length=512)]
VersionName = Annotated[str, Query(min_length=1, max_length=256)]


class EventStreamResponse(Response):
    """A response of server-sent events, which closes its answer at the end.

    Args:
        answer: to a request.
        chunks: its events.
    """

    def __init__(self, answer: PendingAnswer, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **answer.headers})
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self._answer, self._chunks = answer, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._answer.close()


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response in JSON. Numbers that JSON does not have (NaN, infinity) become null."""
    return Response(to_json(data, inf_nan_mode="null"), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    """A response with an error in OpenAI's envelope."""
    return json_response(error.body, error.status, error.headers)


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """A request's body. Raises `ApiError`: it is longer than so many bytes (413), or takes longer than so many seconds (408)."""
    # The connection stays open, and the rest of the body is read and dropped for as long as headers may take: were it closed
    # while the client still sends, the client would see a reset in place of this answer.
    too_long = ApiError(f"the body is longer than {max_bytes} bytes", 413, code="request_too_large")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise too_long
    found = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                found += chunk
                if len(found) > max_bytes:
                    raise too_long
    except TimeoutError:
        raise ApiError(f"the body took longer than {seconds:g} s", 408, headers={"connection": "close"}) from None
    return bytes(found)


@dataclass
class ChatApi:
    """The endpoints of one server.

    Args:
        backend: answers and learns.
        tenants: who may ask, and how much.
        server_metrics: counts requests.
        max_body_bytes: longest request body.
    """

    backend: ChatBackend
    tenants: Tenants
    server_metrics: ServerMetrics
    max_body_bytes: int
    creation_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    bodies: TenantQueues = field(default_factory=partial(TenantQueues, 1, rest=REST))
    starts: TenantQueues = field(default_factory=partial(TenantQueues, MAX_STARTS, START_SECONDS))

    async def read(self, request: Request, parse: Callable[[Any], T]) -> T:
        """A request's body, as `parse` reads its JSON; an empty body is an empty object. A tenant's bodies are parsed one after the other,
        with rests: a megabyte takes long, and other tenants' requests need the event loop meanwhile.

        Raises:
            ApiError: the body is too long, too slow or no JSON, or `parse` raises it.
        """
        found = await read_body(request, self.max_body_bytes, BODY_SECONDS)
        async with self.bodies.turn(request.state.tenant.name):
            return parse(parse_json(found) if found else {})

    # Chat

    async def chat(self, request: Request) -> Response:
        return await self.reply(request, parse_chat, ChatAnswer)

    async def text(self, request: Request) -> Response:
        return await self.reply(request, parse_text, TextAnswer)

    async def reply(self, request: Request, parse: Callable[..., ParsedRequest], form: type[ChatAnswer]) -> Response:
        """The replies that a request asks for. Errors before the first token are raised, so that they have an HTTP status."""
        tenant: Tenant = request.state.tenant
        about = {"model": self.backend.model, "features": self.backend.features, "window": self.backend.window}
        parsed = await self.read(request, partial(parse, **about))
        names = [] if not parsed.adapter else [row["id"] for row in await self.backend.models(tenant.name)]
        if parsed.adapter and f"{self.backend.model}:{parsed.adapter}" not in names:
            raise unknown_model(parsed.model)
        if (count := len(parsed.requests)) > (most := tenant.limits.streams):
            raise ApiError(f"{count} choices; this key may have {most} replies being made at once", param="n")
        turn = partial(self.starts.turn, tenant.name)
        server = self.backend, self.tenants, self.server_metrics
        answer = PendingAnswer(*server, tenant, parsed, form, request.receive, turn)
        try:
            items = await answer.replies.next_items()
            if parsed.stream:
                return EventStreamResponse(answer, answer.events(items))
            body = await answer.whole(items)
        except BaseException:
            await answer.close()
            raise
        await answer.close()
        return json_response(body, headers=answer.headers)

    async def models(self, request: Request) -> Response:
        rows = await self.backend.models(request.state.tenant.name)
        return json_response({"object": "list", "data": [_model_row(row) for row in rows]})

    async def model(self, request: Request, model: str) -> Response:
        for row in await self.backend.models(request.state.tenant.name):
            if row["id"] == model:
                return json_response(_model_row(row))
        raise unknown_model(model)

    # Feedback and what is kept

    async def feedback(
        self, request: Request, idempotency_key: Annotated[str, Header(alias="Idempotency-Key", max_length=256)] = ""
    ) -> Response:
        began = time.monotonic()
        body = await self.read(request, partial(parse_body, FeedbackBody))
        if body.success is not None and body.reward is not None:
            raise ApiError("reward and success mean the same; send one of them", param="success")
        reward = body.reward if body.success is None else (1.0 if body.success else -1.0)
        id = f"{body.response_id}-{body.choice}" if body.choice else body.response_id
        note = ""
        if body.better_than is not None:
            note = await self._prefer(request.state.tenant.name, id, body, reward, idempotency_key)
            reward = 1.0
        feedback = Feedback(
            reward=None if reward is None else float(reward),
            text=body.text or "",
            source=body.source,
            correction=body.correction or "",
        )
        receipt = await self.backend.feedback(request.state.tenant.name, id, feedback, idempotency_key)
        self.server_metrics.feedback_seconds.observe(time.monotonic() - began)
        found = {"job": receipt.job, "response_id": receipt.exchange, "state": receipt.state, "repeated": receipt.is_repeat}
        if note := note or self.backend.advice(feedback, receipt.state):
            found["note"] = note
        return json_response(found, 202, {"location": f"/v1/jobs/{quote(receipt.job)}"})

    async def _prefer(self, tenant: str, id: str, body: FeedbackBody, reward: float | None, key: str) -> str:
        """Store for the reply that was not chosen that it is worse, with the chosen one as its correction. Feedback that it has already
        stays, and a note says so: the user's own words tell more, and what was learned from cannot change."""
        if reward is not None or body.correction is not None or body.better_than == id:
            raise ApiError("better_than names another reply, and stands for rewards and a correction", param="better_than")
        rows = [await self.backend.experience(tenant, each) for each in (id, body.better_than or "")]
        chosen, other = (_require_row(row, "no such reply is waiting for feedback", "response_not_found") for row in rows)
        if (chosen["messages"], chosen.get("raw")) != (other["messages"], other.get("raw")):
            raise ApiError(
                "the two replies are to different messages; only replies to the same can be compared", param="better_than"
            )
        if (known := other["feedback"]) is not None:
            is_repeat = (known["reward"], known["correction"]) == (-1.0, chosen["reply"])
            return "" if is_repeat else f"{other['id']} keeps the feedback that it has; this reply counts as liked"
        lesson = Feedback(-1.0, source=body.source, correction=chosen["reply"])
        await self.backend.feedback(tenant, other["id"], lesson, f"{key}-other" if key else "")
        return ""

    async def job(self, request: Request, job: str) -> Response:
        return json_response(
            _require_row(await self.backend.job(request.state.tenant.name, job), f"no job {job[:100]!r}", "job_not_found")
        )

    async def experiences(
        self,
        request: Request,
        adapter: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
        state: Annotated[Literal["pending", "ready", "leased", "consumed", "rejected", "held_out"] | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
        learned_by: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
        user: EndUser = None,
    ) -> Response:
        query = ExchangeQuery(request.state.tenant.name, adapter, state, limit + 1, before, learned_by, user)
        rows = await self.backend.experiences(query)
        return json_response({"object": "list", "data": rows[:limit], "has_more": len(rows) > limit})

    async def experience(self, request: Request, id: str) -> Response:
        row = await self.backend.experience(request.state.tenant.name, id)
        return json_response(_require_row(row, f"no experience {id[:100]!r}", "response_not_found"))

    async def forget(self, request: Request, id: str, withdraw: Annotated[bool, Query()] = False) -> Response:
        tenant = request.state.tenant.name
        _require_row(await self.backend.experience(tenant, id), f"no experience {id[:100]!r}", "response_not_found")
        return json_response(await self.backend.forget(tenant, [id], withdraw))

    async def release(self, request: Request, id: str) -> Response:
        tenant = request.state.tenant.name
        _require_row(await self.backend.experience(tenant, id), f"no experience {id[:100]!r}", "response_not_found")
        return json_response(await self.backend.release(tenant, id))

    async def forget_all(
        self,
        request: Request,
        confirm: Annotated[Literal["all"] | None, Query()] = None,
        user: EndUser = None,
        older_than_days: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
        withdraw: Annotated[bool, Query()] = False,
    ) -> Response:
        tenant = request.state.tenant.name
        is_all = user is None and (older_than_days or 0.0) < 1.0
        if (confirm is not None) != is_all:
            which = "say which exchanges: confirm=all, or user=NAME, older_than_days=DAYS or both"
            raise ApiError(f"{which}; of all users, less than a day needs confirm=all, too", param="confirm")
        ids = None
        if user is not None or older_than_days is not None:
            ids = await self.backend.find_ids(tenant, user, older_than_days or 0.0)
        return json_response(await self.backend.forget(tenant, ids, withdraw))

    # Learning

    async def train(self, request: Request) -> Response:
        body = await self.read(request, partial(parse_body, TrainBody))
        found = await self.backend.train(request.state.tenant.name, body.adapter, body.steps)
        return json_response(found, 202, {"location": f"/v1/jobs/{quote(str(found.get('job', '')))}"})

    async def adapters(self, request: Request) -> Response:
        rows = await self.backend.adapters(request.state.tenant.name)
        return json_response({"object": "list", "data": rows, "has_more": False})

    async def adapter(self, request: Request, adapter: AdapterName) -> Response:
        rows = await self.backend.adapters(request.state.tenant.name)
        row = next((row for row in rows if row.get("adapter") == adapter), None)
        return json_response(_require_row(row, f"no adapter {adapter!r}", "adapter_not_found"))

    async def create(self, request: Request) -> Response:
        body, tenant = await self.read(request, partial(parse_body, AdapterBody)), request.state.tenant
        async with self.creation_lock:  # two requests at once must not both find room for one more
            rows, most = await self.backend.models(tenant.name), tenant.limits.adapters
            if len(rows) >= most:
                why = f"there are {len(rows)} adapters, and this key may have {most}; DELETE /v1/adapters/NAME makes room"
                raise ApiError(why, 409, param="adapter", code="too_many_adapters")
            return json_response(await self.backend.create(tenant.name, body.adapter), 201)

    async def promote(self, request: Request, adapter: AdapterName) -> Response:
        body = await self.read(request, partial(parse_body, VersionBody))
        return json_response(await self.backend.promote(request.state.tenant.name, adapter, body.version))

    async def roll_back(self, request: Request, adapter: AdapterName) -> Response:
        to = (await self.read(request, partial(parse_body, RollBackBody))).to
        return json_response(await self.backend.roll_back(request.state.tenant.name, adapter, "" if to == "base" else to))

    async def freeze(self, request: Request, adapter: AdapterName) -> Response:
        return json_response(await self.backend.freeze(request.state.tenant.name, adapter, True))

    async def thaw(self, request: Request, adapter: AdapterName) -> Response:
        return json_response(await self.backend.freeze(request.state.tenant.name, adapter, False))

    async def remove(self, request: Request, adapter: AdapterName, version: VersionName | None = None) -> Response:
        return json_response(await self.backend.remove(request.state.tenant.name, adapter, version))

    async def export(self, request: Request, adapter: AdapterName, version: VersionName) -> Response:
        path = await self.backend.export(request.state.tenant.name, adapter, version)
        try:
            content = await asyncio.to_thread(path.read_bytes)  # an adapter: a few MB
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)  # it was alone in there
        named = {"content-disposition": f'attachment; filename="{adapter}-{path.stem}.zip"'}
        return Response(content, headers=named, media_type="application/zip")

    async def status(self, request: Request) -> Response:
        found = await self.backend.status(request.state.tenant.name)
        return json_response(found | {"tenant": request.state.tenant.name, "usage": self.tenants.usage(request.state.tenant)})

    async def metrics(self, request: Request) -> Response:
        tenant: Tenant | None = request.state.tenant
        sees_all = tenant is None or tenant.metrics_only or self.tenants.names == (tenant.name,)  # it is the only tenant
        own = None if sees_all or tenant is None else tenant.name
        families = [*self.server_metrics.registry.collect(), *await self.backend.metrics()]
        return Response(render_metrics(families, own), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def live(self) -> Response:
        """200 while the server handles requests: it looks at nothing else, so that it answers at once. Restart a server that does not."""
        return json_response({"status": "alive"})

    async def ready(self) -> Response:
        """200 if the model itself answers; else 503: send no requests here."""
        return json_response({"status": "ready", "model": await self.backend.ready()})

    async def health(self) -> Response:
        """`status` is `ok`, or `degraded` when something needs a person (`why`). `learning`: number of adapters by the
        outcome of their last turn at the learner (`too few` feedbacks, `skipped`, `dropped` by the gate, `stepped`, `live`, `canary`,
        `failed`). `held_up`: what holds learning up, without names. `lost`: number of adapters by what is gone."""
        try:
            found = await self.backend.status(None)
        except Exception as error:
            LOG.exception("the service does not report its status")
            raise ApiError("the service does not answer", 503, code="unavailable", headers={"retry-after": "5"}) from error
        good = found.get("state", "ok") == "ok"
        has_failed = found.get("learner", {}).get("state") == "failed" and not found.get("storage_failed")
        why = "" if good else "the learner has failed" if has_failed else found["why"]  # the learner's own words have names
        learning, held_up = found.get("last_turns", {}), found.get("held_up", [])
        about = {"learning": learning, "held_up": held_up, "lost": found.get("lost", {})}
        return json_response({"status": "ok" if good else "degraded", "why": why, **about})


def _require_row(row: dict[str, Any] | None, message: str, code: str) -> dict[str, Any]:
    if row is None:
        raise ApiError(message, 404, code=code)
    return row


def _model_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "model", "created": 0, "owned_by": "learngraph", **row}

"""The dashboard of a chat server: /dashboard, rendered on the server, without assets from elsewhere.

It has a chat with feedback, where another version can answer the same prompt beside the live one. It shows a tenant what holds
learning up, the learner's curves, its versions with their gates, what each learned from and the buttons that promote and roll back,
the replay buffer, and the last exchanges with their feedback. A key opens it, in a header or in the form that sets a cookie. Replies and
feedback are texts of strangers: the templates (tools/serving/dashboard_pages/*.html) escape everything, and the page allows no script
but its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from ...memory.errors import UserError
from .dashboard_rows import (
    BOTTOM,
    HEIGHT,
    LEFT,
    STATES,
    WIDTH,
    ages,
    as_mapping,
    as_rows,
    bars,
    clip_text,
    convert_rows,
    curves,
    exchange_card,
    finite_number,
    format_number,
    version_row,
)
from .endpoints import ChatApi
from .openai_wire import ApiError
from .replies import as_api_error
from .tenants import RateLimitExceeded, Tenant, client_address

__all__ = ["Sessions", "dashboard_router"]

COOKIE = "learngraph_session"
SESSION_SECONDS = 12 * 3600
FORM_BYTES = 8192
FORM_SECONDS = 30.0
"""Longest time that a form may take to arrive."""
MAX_EXCHANGES = 20
"""Exchanges that the page shows."""


@dataclass(frozen=True)
class Sessions:
    """Signed cookies of logged-in tenants, and the tokens of their forms. Both end with the process.

    Args:
        secret: signs them.
        clock: Unix seconds.
    """

    secret: bytes
    clock: Callable[[], float] = time.time
    revoked: dict[str, int] = field(default_factory=dict)
    """Payload of a cookie that was logged out -> Unix time until which it would be valid."""

    def cookie(self, tenant: str) -> str:
        """A cookie for this tenant."""
        payload = f"{tenant}|{int(self.clock()) + SESSION_SECONDS}|{secrets.token_hex(8)}"
        return f"{base64.urlsafe_b64encode(payload.encode()).decode()}.{self._sign('session', payload)}"

    def tenant(self, cookie: str) -> str | None:
        """The name of a cookie's tenant; None: the cookie is false, too old, or logged out."""
        payload = self._cookie_payload(cookie)
        return payload.split("|")[0] if payload and payload not in self.revoked else None

    def revoke(self, cookie: str) -> None:
        """Log out: make a cookie invalid."""
        if payload := self._cookie_payload(cookie):
            for old in [old for old, until in self.revoked.items() if until < self.clock()]:
                del self.revoked[old]
            self.revoked[payload] = int(payload.split("|")[1])

    def _cookie_payload(self, cookie: str) -> str:
        """The payload of a valid cookie; empty: it is false, or too old."""
        coded, _, signed = cookie.partition(".")
        try:
            payload = base64.urlsafe_b64decode(coded.encode()).decode()
            _, until, _ = payload.split("|")
            good = hmac.compare_digest(self._sign("session", payload).encode(), signed.encode())
        except ValueError:
            return ""
        return payload if good and int(until) >= self.clock() else ""

    def token(self, cookie: str) -> str:
        """The token of this session's forms."""
        return self._sign("form", cookie)

    def is_valid_token(self, cookie: str, token: str) -> bool:
        """True if a form was sent from a page of this session."""
        return hmac.compare_digest(self.token(cookie).encode(), token.encode("utf-8", "replace"))

    def _sign(self, use: str, payload: str) -> str:
        return hmac.new(self.secret, f"{use}|{payload}".encode(), hashlib.sha256).hexdigest()


class _NotLoggedIn(Exception):
    """The request has no valid key or cookie."""


def dashboard_router(api: ChatApi, clock: Callable[[], float] = time.time) -> APIRouter:
    """The routes of the dashboard of an API. `clock`: Unix seconds."""
    pages = _Dashboard(api, clock)
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/dashboard", pages.look, methods=["GET"])
    router.add_api_route("/dashboard/login", pages.log_in, methods=["POST"])
    router.add_api_route("/dashboard/logout", pages.log_out, methods=["POST"])
    router.add_api_route("/dashboard/chat", pages.chat, methods=["POST"])
    router.add_api_route("/dashboard/feedback", pages.give_feedback, methods=["POST"])
    router.add_api_route("/dashboard/promote", pages.promote, methods=["POST"])
    router.add_api_route("/dashboard/rollback", pages.roll_back, methods=["POST"])
    return router


class _Dashboard:
    """The pages and the buttons."""

    def __init__(self, api: ChatApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._backend = api.backend
        self._tenants = api.tenants
        self._clock = clock
        self._sessions = Sessions(secrets.token_bytes(32), clock)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).with_name("dashboard_pages")),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )

    # -- endpoints --------------------------------------------------------------------------------------------------------

    async def look(self, request: Request) -> Response:
        try:
            tenant, cookie = self._authenticate(request)
        except _NotLoggedIn:
            return self._render("login.html", 401, problem="")
        return await self._show(tenant, cookie, request)

    async def log_in(self, request: Request) -> Response:
        key = (await _read_form(request)).get("key", "").strip()
        try:
            tenant = self._tenants.log_in(key, client_address(request))
        except RateLimitExceeded as error:
            return self._render("login.html", 429, problem=str(error))
        if not _is_same_origin(request) or tenant is None or tenant.metrics_only:
            return self._render("login.html", 401, problem="This key is not known here.")
        answer = RedirectResponse("/dashboard", 303)
        answer.set_cookie(
            COOKIE,
            self._sessions.cookie(tenant.name),
            max_age=SESSION_SECONDS,
            path="/dashboard",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def log_out(self, request: Request) -> Response:
        self._sessions.revoke(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/dashboard", 303)
        answer.delete_cookie(COOKIE, path="/dashboard", httponly=True, samesite="strict")
        return answer

    async def chat(self, request: Request) -> Response:
        """A reply for the page's chat: as /v1/chat/completions, for a session instead of a key."""
        self._admit_to_api(request)
        return await self._api.chat(request)

    async def give_feedback(self, request: Request) -> Response:
        """Feedback from the page's chat, as /v1/feedback."""
        self._admit_to_api(request)
        return await self._api.feedback(request)

    def _admit_to_api(self, request: Request) -> None:
        """Admit a request of the page's script. Raises an `ApiError` if it has no session, or was not sent from its page."""
        try:
            tenant, cookie = self._authenticate(request)
        except _NotLoggedIn:
            raise ApiError("your session has ended: load the page again and log in", 401, code="invalid_api_key") from None
        token = request.headers.get("x-form-token", "")
        if not _is_same_origin(request) or (cookie and not self._sessions.is_valid_token(cookie, token)):
            raise ApiError("this page is too old: load it again", 403, code="invalid_token")
        request.state.tenant = tenant

    async def promote(self, request: Request) -> Response:
        return await self._act(request, "promote")

    async def roll_back(self, request: Request) -> Response:
        return await self._act(request, "roll back")

    async def _act(self, request: Request, action: str) -> Response:
        """Do what a button asks for. A request with a cookie must come from a page of this session."""
        try:
            tenant, cookie = self._authenticate(request)
        except _NotLoggedIn:
            return self._render("login.html", 401, problem="")
        form = await _read_form(request)
        if not _is_same_origin(request) or (cookie and not self._sessions.is_valid_token(cookie, form.get("token", ""))):
            problem = "This form is too old, or was not sent from this page. Nothing was changed; please try again."
            return await self._show(tenant, cookie, request, status=403, problem=problem)
        adapter = form.get("adapter", "")
        try:
            if action == "promote":
                await self._backend.promote(tenant.name, adapter, form.get("version", ""))
            else:
                to = form.get("to")
                await self._backend.roll_back(tenant.name, adapter, "" if to == "base" else to)
        except UserError as error:
            return await self._show(tenant, cookie, request, status=409, problem=as_api_error(error).message)
        return RedirectResponse(f"/dashboard?adapter={quote(adapter)}", 303)

    # -- parts ------------------------------------------------------------------------------------------------------------

    def _authenticate(self, request: Request) -> tuple[Tenant, str]:
        """The tenant, by header or cookie, and the cookie if that was it. Counts as one of the tenant's requests."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        found, cookie = None, ""
        if kind.lower() == "bearer":
            found = self._tenants.log_in(key.strip(), client_address(request))
        elif cookie := request.cookies.get(COOKIE, ""):
            name = self._sessions.tenant(cookie)
            found = self._tenants.tenant_by_name(name) if name is not None else None
        if found is None or found.metrics_only:
            raise _NotLoggedIn
        self._tenants.admit(found)
        return found, cookie

    async def _show(self, tenant: Tenant, cookie: str, request: Request, *, status: int = 200, problem: str = "") -> Response:
        """The page of a tenant's adapter, which the query names."""
        state = as_mapping(await self._backend.status(tenant.name))
        adapters = as_rows(await self._backend.adapters(tenant.name))
        names = list(dict.fromkeys(clip_text(row.get("adapter"), 80) for row in adapters)) or ["default"]
        chosen = request.query_params.get("adapter", "")
        if chosen not in names:
            chosen = "default" if "default" in names else names[0]
        row = next((row for row in adapters if row.get("adapter") == chosen), {})
        scope = next((item for item in as_rows(state.get("scopes")) if item.get("adapter") == chosen), {})
        rows = await self._backend.experiences(tenant.name, limit=MAX_EXCHANGES)
        now = self._clock()
        exchanges, odd_exchanges = convert_rows(rows, lambda item: exchange_card(item, now))
        about_versions = _describe_versions(row, now)
        asked = request.query_params.get("learned", "")[:200]
        learned = await self._learned_from(tenant, chosen, asked, about_versions["versions"], now)
        return self._render(
            "page.html",
            status,
            problem=problem,
            tenant=tenant.name,
            adapters=[{"name": name, "query": urlencode({"adapter": name}), "chosen": name == chosen} for name in names],
            adapter=chosen,
            used={name: format_number(value) for name, value in self._tenants.usage(tenant).items()},
            limited=tenant.limits.tokens_per_day is not None,
            exchanges=exchanges,
            odd_exchanges=odd_exchanges,
            token=self._sessions.token(cookie) if cookie else "",
            size={"width": WIDTH, "height": HEIGHT, "left": LEFT, "bottom": BOTTOM},
            **_describe_service(state),
            model_name=self._backend.model if chosen == "default" else f"{self._backend.model}:{chosen}",
            **about_versions,
            **learned,
            **_describe_learning(scope, row),
        )

    async def _learned_from(
        self, tenant: Tenant, adapter: str, asked: str, versions: Sequence[dict[str, Any]], now: float
    ) -> dict[str, Any]:
        """The template's values on the exchanges that a version's own step learned from. `asked`: its name; empty: the live one's, or
        the newest's."""
        for version in versions:
            version["learned_query"] = urlencode({"adapter": adapter, "learned": version["name"]}) if version["name"] else ""
        live = [version["name"] for version in versions if version["state"] == "live"]
        name = asked or next(iter([*live, *(version["name"] for version in versions)]), "")
        rows: list[dict[str, Any]] = []
        problem = ""
        if name:
            try:
                rows = await self._backend.experiences(tenant.name, adapter, limit=MAX_EXCHANGES, learned_by=name)
            except UserError as error:
                problem = as_api_error(error).message
        cards, _ = convert_rows(rows, lambda item: exchange_card(item, now))
        return {"learned_name": name, "learned": cards, "learned_problem": problem}

    def _render(self, name: str, status: int = 200, **values: Any) -> Response:
        nonce = secrets.token_urlsafe(16)
        body = self._templates.get_template(name).render(nonce=nonce, **values).encode("utf-8", "replace")
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        headers = {
            "content-security-policy": policy,
            "cache-control": "no-store",
            "referrer-policy": "same-origin",
            "x-content-type-options": "nosniff",
        }
        return Response(body, status, headers, "text/html; charset=utf-8")


def _describe_service(state: Mapping[str, Any]) -> dict[str, Any]:
    """The template's values on the service and its learner."""
    learner = as_mapping(state.get("learner"))
    return {
        "model": clip_text(state.get("model"), 120) or "?",
        "degraded": state.get("state") not in (None, "ok"),
        "why": clip_text(state.get("why"), 300),
        "learner": clip_text(learner.get("state"), 40) or "?",
        "learner_error": clip_text(learner.get("error"), 300),
    }


def _describe_versions(row: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The template's values on an adapter's versions."""
    live, canary = clip_text(row.get("live"), 200), clip_text(row.get("canary"), 200)
    versions, odd = convert_rows(row.get("versions"), lambda item: version_row(item, live, canary, now))
    live_row = next((item for item in versions if item["label"] == live), None)
    return {
        "live": live.rpartition("@")[2] or "base",
        "canary": canary.rpartition("@")[2],
        "live_created": live_row["created"] if live_row else "",
        "versions": versions,
        "odd": odd,
    }


def _describe_learning(scope: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The template's values on an adapter's gradient steps and its part of the replay buffer."""
    updates = as_rows(scope.get("updates"))
    counts = as_mapping(scope.get("counts"))
    return {
        "held_up": [
            {name: clip_text(item.get(name), 500) for name in ("kind", "why", "help")} for item in as_rows(scope.get("held_up"))
        ],
        "step": format_number(scope.get("step", 0)),
        "ready": format_number(counts.get("ready", 0)),
        "curves": curves(updates, as_rows(row.get("rewards"))),
        "updates": len(updates),
        "counts": bars((name, found) for name in STATES if (found := finite_number(counts.get(name, 0))) is not None),
        "ages": ages(scope.get("ages")),
    }


def _is_same_origin(request: Request) -> bool:
    """True if a form was sent from this server's own pages, as far as the browser tells."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a form; empty if it is too long or has too many of them.

    Raises:
        ApiError: it takes too long to arrive.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > FORM_BYTES:
                    return {}
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20)
    except TimeoutError:
        raise ApiError(f"the form took longer than {FORM_SECONDS:g} s", 408, headers={"connection": "close"}) from None
    except ValueError:  # too many fields
        return {}
    return {name: values[-1] for name, values in fields.items()}

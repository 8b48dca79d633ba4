"""The dashboard of a chat server: /dashboard, rendered on the server, without assets from elsewhere.

It has a chat with feedback, where another version can answer the same prompt beside the live one. It shows a tenant what holds
learning up, the learner's curves, its versions with their gates, what each learned from and the buttons that promote and roll back,
the replay buffer, and the last exchanges with their feedback. A key opens it, in a header or in the form that sets a cookie. Replies and
feedback are texts of strangers: the templates (tools/serving/pages/*.html) escape everything, and the page allows no script
but its own.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from ...memory.errors import UserError
from ...memory.records import ExchangeQuery
from .charts import PLOT, age_groups, bars, curves, format_number, time_since
from .endpoints import ChatApi, read_body
from .openai_wire import ApiError
from .replies import as_api_error
from .tenants import RateLimitExceeded, Tenant, client_address

__all__ = ["Sessions"]

COOKIE = "learngraph_session"
SESSION_SECONDS = 12 * 3600
FORM_BYTES = 8192
FORM_SECONDS = 30.0
"""Longest time that a form may take to arrive."""
MAX_EXCHANGES = 20
"""Exchanges that the page shows."""
STATES = ("pending", "ready", "leased", "consumed", "held", "rejected")
"""States of exchanges, in their order."""


class Sessions:
    """Cookies of logged-in tenants, and the tokens of their forms. They end with the process. `clock`: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._open: dict[str, tuple[str, str, float]] = {}  # cookie -> tenant, token, end

    def cookie(self, tenant: str) -> str:
        """A cookie for this tenant."""
        now = self._clock()
        self._open = {cookie: session for cookie, session in self._open.items() if session[2] > now}
        cookie = secrets.token_hex(32)
        self._open[cookie] = (tenant, secrets.token_hex(32), now + SESSION_SECONDS)
        return cookie

    def tenant(self, cookie: str) -> str | None:
        """The name of a cookie's tenant; None: the cookie is false, too old, or logged out."""
        tenant, _, until = self._open.get(cookie, ("", "", 0.0))
        return tenant if until > self._clock() else None

    def revoke(self, cookie: str) -> None:
        """Log out: make a cookie invalid."""
        self._open.pop(cookie, None)

    def token(self, cookie: str) -> str:
        """The token of the forms of a session that is open."""
        return self._open[cookie][1]

    def is_valid_token(self, cookie: str, token: str) -> bool:
        """True if a form was sent from a page of this session."""
        return hmac.compare_digest(self.token(cookie).encode(), token.encode("utf-8", "replace"))


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
    router.add_api_route("/dashboard/promote", pages.act, methods=["POST"])
    router.add_api_route("/dashboard/rollback", pages.act, methods=["POST"])
    return router


class _Dashboard:
    """The pages and the buttons."""

    def __init__(self, api: ChatApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._backend = api.backend
        self._tenants = api.tenants
        self._clock = clock
        self._sessions = Sessions(clock)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).with_name("pages")),
            autoescape=True,
            undefined=jinja2.ChainableUndefined,  # a field that a row lacks is empty
            trim_blocks=True,
        )
        self._templates.filters["number"] = format_number
        self._templates.filters["clip"] = _clip_text

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

    async def act(self, request: Request) -> Response:
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
            if request.url.path == "/dashboard/promote":
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
        state, adapters = await self._backend.status(tenant.name), await self._backend.adapters(tenant.name)
        names = [row["adapter"] for row in adapters]
        chosen = request.query_params.get("adapter", "")
        row = next((row for row in adapters if row["adapter"] == chosen), adapters[0])
        adapter = row["adapter"]
        scope: dict[str, Any] = next((scope for scope in state["scopes"] if scope["adapter"] == adapter), {})
        live = row["live"].rpartition("@")[2]
        learned_name = (
            request.query_params.get("learned", "")[:200] or live or next((each["name"] for each in row["versions"]), "")
        )
        learned, learned_problem = [], ""
        if learned_name:
            try:
                query = ExchangeQuery(tenant.name, adapter, limit=MAX_EXCHANGES, learned_by=learned_name)
                learned = await self._backend.experiences(query)
            except UserError as error:
                learned_problem = as_api_error(error).message
        counts = scope.get("counts", {})
        return self._render(
            "dashboard.html",
            status,
            problem=problem,
            tenant=tenant.name,
            names=names,
            adapter=adapter,
            model_name=self._backend.model if adapter == "default" else f"{self._backend.model}:{adapter}",
            token=self._sessions.token(cookie) if cookie else "",
            used=self._tenants.usage(tenant),
            service=state,
            scope=scope,
            live=live,
            row=row,
            curves=curves(scope.get("updates", ()), row.get("rewards", ())),
            plot=PLOT,
            bars=[
                ("Exchanges by state", bars([(name, counts.get(name, 0)) for name in STATES if counts]), "no exchange yet"),
                ("Ready exchanges by age, in gradient steps", age_groups(scope.get("ages", {})), "none is ready"),
            ],
            learned_name=learned_name,
            learned=learned,
            learned_problem=learned_problem,
            exchanges=await self._backend.experiences(ExchangeQuery(tenant.name, limit=MAX_EXCHANGES)),
            since=partial(time_since, now=self._clock()),
        )

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


def _clip_text(value: str | None, max_chars: int = 2000) -> str:
    """A text, cut to a length; empty for None."""
    found = value or ""
    return found if len(found) <= max_chars else f"{found[:max_chars]} …"


def _is_same_origin(request: Request) -> bool:
    """True if a form was sent from this server's own pages, as far as the browser tells."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a form; empty if it has too many of them. Raises `ApiError`: it is too long, or takes too long to arrive."""
    body = await read_body(request, FORM_BYTES, FORM_SECONDS)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20)
    except ValueError:  # too many fields
        return {}
    return {name: values[-1] for name, values in fields.items()}

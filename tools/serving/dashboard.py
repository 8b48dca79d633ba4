"""The dashboard of a chat server: /dashboard, rendered on the server, with no asset from anywhere else.

Curves of the learner, versions with their gates and the buttons that promote and roll back, the buffer, the last exchanges with
their feedback, each tenant's own. A key opens it, in a header or in the form that sets a cookie. What is odd in the service's
numbers is left out or shown as `?`; the page is there all the same. Replies and feedback are others' words: the templates
(tools/serving/dashboard/*.html) escape everything, and the page allows no script but its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from ...memory.errors import UserError
from .openai_wire import ApiError
from .replies import as_api_error
from .tenants import Tenant, Tenants

__all__ = ["DashboardBackend", "chart", "dashboard_router"]

COOKIE = "learngraph_session"
SESSION_SECONDS = 12 * 3600
FORM_BYTES = 8192
FORM_SECONDS = 30.0
"""Longest that a form may take to come."""
MAX_POINTS = 120
"""Most points of a curve; more are averaged."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 320.0, 128.0, 44.0, 10.0, 104.0
"""A chart's box, and the plot in it, which ends 8 before the right edge."""

CURVES = (
    ("reward", "Reward", "mean feedback of each version"),
    ("loss", "Loss", "of the step"),
    ("ess", "Effective sample size", "share of the minibatch"),
    ("age", "Age", "steps behind, mean"),
    ("entropy", "Entropy", "nats per token"),
    ("kl", "KL to the base", "nats per token"),
)
STATES = ("pending", "ready", "leased", "consumed", "held", "rejected")


class DashboardBackend(Protocol):
    """What the page shows, and what its buttons do; see `chat_server.Backend`."""

    async def status(self, tenant: str | None) -> dict[str, Any]: ...
    async def adapters(self, tenant: str) -> list[dict[str, Any]]: ...
    async def exchanges(self, tenant: str, limit: int) -> list[dict[str, Any]]: ...
    async def promote(self, tenant: str, adapter: str, version: str) -> dict[str, Any]: ...
    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]: ...


# What is shown of numbers and texts that may be anything


def finite_number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def format_number(value: Any) -> str:
    """A number in a few characters; `–` for none."""
    found = finite_number(value)
    if found is None:
        return "–"
    if found == int(found) and abs(found) < 1e6:
        return str(int(found))
    return f"{found:.3g}"


def clip_text(value: Any, max_chars: int = 2000) -> str:
    """A text, or what stands in a message's place, cut to a length."""
    found = value if isinstance(value, str) else "" if value is None else str(value)
    return found if len(found) <= max_chars else f"{found[:max_chars]} …"


def ago(value: Any, now: float) -> str:
    """How long ago a Unix time was."""
    found = finite_number(value)
    if found is None or not 0 < found < 4e9:
        return "?"
    seconds = max(0.0, now - found)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def as_rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; what is none is left out."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def as_mapping(value: Any) -> Mapping[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def chart(points: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    """Where a curve's points lie in an SVG of `WIDTH` x `HEIGHT`; None: no points.

    Args:
        points: (step, value), in order. More than `POINTS` are averaged in groups.
    """
    if not points:
        return None
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    thinned = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
    low, high = min(value for _, value in thinned), max(value for _, value in thinned)
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - max(abs(low), 1.0) * 0.1, high + max(abs(high), 1.0) * 0.1
    first, last = thinned[0][0], thinned[-1][0]
    wide, tall = WIDTH - 8 - LEFT, BOTTOM - TOP

    def place(step: float, value: float) -> tuple[str, str]:
        x = LEFT + wide * ((step - first) / (last - first) if last > first else 0.5)
        return f"{x:.1f}", f"{BOTTOM - tall * (value - low) / (high - low):.1f}"

    dots = [(*place(step, value), f"step {format_number(step)}: {format_number(value)}") for step, value in thinned]
    return {
        "line": " ".join(f"{x},{y}" for x, y, _ in dots),
        "dots": dots,
        "last": dots[-1],
        "value": format_number(points[-1][1]),
        "marks": [(f"{BOTTOM - tall * share:.1f}", f"{low + (high - low) * share:.2g}") for share in (0, 0.5, 1)],
        "first": format_number(first),
        "end": format_number(last),
    }


def curves(updates: Iterable[Mapping[str, Any]], versions: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The charts of what a learner did. The reward is what the versions got while they answered: a minibatch's says little, as it
    holds good and bad exchanges in equal parts.
    """
    pairs = [(finite_number(row.get("step")), finite_number(row.get("reward"))) for row in versions]
    rewards = sorted((step, value) for step, value in pairs if step is not None and value is not None)
    seen = [(step, update) for update in updates if (step := finite_number(update.get("step"))) is not None]
    found = []
    for name, title, unit in CURVES:
        points = [(step, value) for step, update in seen if (value := finite_number(update.get(name))) is not None]
        points = rewards if name == "reward" else points
        found.append({"title": title, "unit": unit, "chart": chart(points)})
    return found


def bars(counts: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Names with their counts and the length of a bar, from 0 to 100."""
    kept = list(counts)
    most = max((count for _, count in kept), default=0) or 1
    return [{"name": name, "count": format_number(count), "length": f"{100 * count / most:.1f}"} for name, count in kept]


def ages(value: Any, max_groups: int = 12) -> list[dict[str, Any]]:
    """Records by their age in steps, in at most so many groups."""
    if isinstance(value, list | tuple):
        counted: dict[int, float] = {}
        for age in value:
            if (found := finite_number(age)) is not None and found >= 0:
                counted[int(found)] = counted.get(int(found), 0) + 1
    else:
        pairs = ((str(age), finite_number(count)) for age, count in as_mapping(value).items())
        counted = {
            int(age): count for age, count in pairs if age.isascii() and age.isdigit() and len(age) < 10 and count is not None
        }
    if not counted:
        return []
    size = max(1, math.ceil((max(counted) + 1) / max_groups))
    groups: dict[int, float] = dict.fromkeys(range(max(counted) // size + 1), 0)
    for age, count in counted.items():
        groups[age // size] += count
    return bars((f"{g * size}" if size == 1 else f"{g * size}–{g * size + size - 1}", count) for g, count in groups.items())


def version_row(row: Mapping[str, Any], live: str, canary: str, now: float) -> dict[str, Any]:
    """A line of the table of versions."""
    label = clip_text(row.get("label"), 200)
    checks = [
        {
            "name": clip_text(check.get("name"), 60),
            "value": format_number(check.get("value")),
            "limit": format_number(check.get("limit")),
            "passed": check.get("passed") is True,
            "note": clip_text(check.get("note"), 300),
        }
        for check in as_rows(row.get("gate"))
    ]
    state = "live" if label and label == live else "canary" if label and label == canary else clip_text(row.get("state"), 20)
    return {
        "label": label,
        "name": clip_text(row.get("name") or label.rpartition("@")[2], 80),
        "step": format_number(row.get("step")),
        "state": state,
        "tainted": row.get("tainted") is True,
        "created": ago(row.get("created"), now),
        "why": clip_text(row.get("why"), 300),
        "gate": checks,
        "reward": format_number(row.get("reward")),
        "feedbacks": format_number(row.get("feedbacks")),
        "promotes": bool(label) and state in ("candidate", "canary", "retired"),
    }


def exchange_card(row: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A card of the last exchanges."""
    asked = [message for message in as_rows(row.get("messages")) if message.get("role") in ("user", "tool")]
    told = as_mapping(row.get("feedback"))
    reward = finite_number(told.get("reward"))
    return {
        "id": clip_text(row.get("id"), 80),
        "adapter": clip_text(row.get("adapter"), 80),
        "version": clip_text(row.get("version"), 200).rpartition("@")[2] or "base",
        "state": clip_text(row.get("state"), 20) or "?",
        "reason": clip_text(row.get("reason"), 200),
        "created": ago(row.get("created"), now),
        "asked": clip_text(asked[-1].get("content") if asked else row.get("raw"), 1500),
        "reply": clip_text(row.get("reply"), 1500),
        "family": clip_text(row.get("family"), 60),
        "told": bool(told),
        "reward": "" if reward is None else f"{reward:+.2f}",
        "good": None if reward is None else reward > 0,
        "text": clip_text(told.get("text"), 600),
        "source": clip_text(told.get("source"), 40),
    }


def _convert_rows(items: Any, make: Callable[[Mapping[str, Any]], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """What could be made of the rows, and how many could not be read at all."""
    found, odd = [], 0
    for item in items if isinstance(items, list | tuple) else []:
        try:
            found.append(make(item))
        except Exception:  # one bad row is no reason to show nothing
            odd += 1
    return found, odd


# Who looks


@dataclass(frozen=True)
class Sessions:
    """Cookies that say whose key was given, and tokens without which no button works. Both end with the process."""

    secret: bytes
    clock: Callable[[], float] = time.time
    revoked: dict[str, int] = field(default_factory=dict)
    """What a cookie that was logged out says -> until when it would be good."""

    def cookie(self, tenant: str) -> str:
        """A cookie for this tenant."""
        said = f"{tenant}|{int(self.clock()) + SESSION_SECONDS}|{secrets.token_hex(8)}"
        return f"{base64.urlsafe_b64encode(said.encode()).decode()}.{self._sign('session', said)}"

    def tenant(self, cookie: str) -> str | None:
        """Whose cookie it is; None: nobody's, too old, or logged out."""
        said = self._cookie_payload(cookie)
        return said.split("|")[0] if said and said not in self.revoked else None

    def revoke(self, cookie: str) -> None:
        """Log out: nobody gets in with this cookie any more."""
        if said := self._cookie_payload(cookie):
            for old in [old for old, until in self.revoked.items() if until < self.clock()]:
                del self.revoked[old]
            self.revoked[said] = int(said.split("|")[1])

    def _cookie_payload(self, cookie: str) -> str:
        """What a good cookie says; nothing: it is none of ours, or too old."""
        coded, _, signed = cookie.partition(".")
        try:
            said = base64.urlsafe_b64decode(coded.encode()).decode()
            _, until, _ = said.split("|")
            good = hmac.compare_digest(self._sign("session", said).encode(), signed.encode())
        except ValueError:
            return ""
        return said if good and int(until) >= self.clock() else ""

    def token(self, cookie: str) -> str:
        """The token of this session's forms."""
        return self._sign("form", cookie)

    def is_valid_token(self, cookie: str, token: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.token(cookie).encode(), token.encode("utf-8", "replace"))

    def _sign(self, use: str, said: str) -> str:
        return hmac.new(self.secret, f"{use}|{said}".encode(), hashlib.sha256).hexdigest()


class _NotLoggedIn(Exception):
    """Nobody is logged in."""


def dashboard_router(source: DashboardBackend, tenants: Tenants, clock: Callable[[], float] = time.time) -> APIRouter:
    """The routes of the dashboard."""
    folder = Path(__file__).with_suffix("")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    sessions = Sessions(secrets.token_bytes(32), clock)
    router = APIRouter(include_in_schema=False)

    def page(name: str, status: int = 200, **values: Any) -> Response:
        nonce = secrets.token_urlsafe(16)
        body = templates.get_template(name).render(nonce=nonce, **values).encode("utf-8", "replace")
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

    def tenant(request: Request) -> tuple[Tenant, str]:
        """Who looks, by header or cookie; the cookie, if that was it. Counts as a request of theirs."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        found, cookie = None, ""
        if kind.lower() == "bearer":
            found = tenants.tenant_for_key(key.strip())
        elif cookie := request.cookies.get(COOKIE, ""):
            name = sessions.tenant(cookie)
            found = tenants.tenant_by_name(name) if name is not None else None
        if found is None or found.metrics_only:
            raise _NotLoggedIn
        tenants.admit(found)
        return found, cookie

    def is_same_origin(request: Request) -> bool:
        """Whether a form was sent from this server's own pages, as far as the browser says so."""
        origin = request.headers.get("origin")
        return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")

    async def form(request: Request) -> dict[str, str]:
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

    async def show(who: Tenant, cookie: str, request: Request, status: int = 200, problem: str = "") -> Response:
        now = clock()
        state = as_mapping(await source.status(who.name))
        adapters = as_rows(await source.adapters(who.name))
        names = list(dict.fromkeys(clip_text(row.get("adapter"), 80) for row in adapters)) or ["default"]
        chosen = request.query_params.get("adapter", "")
        chosen = chosen if chosen in names else "default" if "default" in names else names[0]
        row = next((row for row in adapters if row.get("adapter") == chosen), {})
        live, canary = clip_text(row.get("live"), 200), clip_text(row.get("canary"), 200)
        scope = next((item for item in as_rows(state.get("scopes")) if item.get("adapter") == chosen), {})
        updates = as_rows(scope.get("updates"))
        versions, odd = _convert_rows(row.get("versions"), lambda item: version_row(item, live, canary, now))
        last, odd_exchanges = _convert_rows(await source.exchanges(who.name, 20), lambda item: exchange_card(item, now))
        counts = as_mapping(scope.get("counts"))
        learner = as_mapping(state.get("learner"))
        live_row = next((item for item in versions if item["label"] == live), None)
        return page(
            "page.html",
            status,
            problem=problem,
            tenant=who.name,
            model=clip_text(state.get("model"), 120) or "?",
            degraded=state.get("state") not in (None, "ok"),
            why=clip_text(state.get("why"), 300),
            learner=clip_text(learner.get("state"), 40) or "?",
            learner_error=clip_text(learner.get("error"), 300),
            adapters=[{"name": name, "query": urlencode({"adapter": name}), "chosen": name == chosen} for name in names],
            adapter=chosen,
            live=live.rpartition("@")[2] or "base",
            canary=canary.rpartition("@")[2],
            live_created=live_row["created"] if live_row else "",
            step=format_number(scope.get("step", 0)),
            ready=format_number(counts.get("ready", 0)),
            used={name: format_number(value) for name, value in tenants.usage(who).items()},
            limited=who.limits.tokens_per_day is not None,
            curves=curves(updates, as_rows(row.get("versions"))),
            updates=len(updates),
            versions=versions,
            odd=odd,
            counts=bars((name, found) for name in STATES if (found := finite_number(counts.get(name, 0))) is not None),
            ages=ages(scope.get("ages")),
            exchanges=last,
            odd_exchanges=odd_exchanges,
            token=sessions.token(cookie) if cookie else "",
            size={"width": WIDTH, "height": HEIGHT, "left": LEFT, "bottom": BOTTOM},
        )

    async def look(request: Request) -> Response:
        try:
            who, cookie = tenant(request)
        except _NotLoggedIn:
            return page("login.html", 401, problem="")
        return await show(who, cookie, request)

    async def log_in(request: Request) -> Response:
        found = tenants.tenant_for_key((await form(request)).get("key", "").strip())
        if not is_same_origin(request) or found is None or found.metrics_only:
            return page("login.html", 401, problem="This key is not known here.")
        answer = RedirectResponse("/dashboard", 303)
        answer.set_cookie(
            COOKIE,
            sessions.cookie(found.name),
            max_age=SESSION_SECONDS,
            path="/dashboard",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def log_out(request: Request) -> Response:
        sessions.revoke(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/dashboard", 303)
        answer.delete_cookie(COOKIE, path="/dashboard", httponly=True, samesite="strict")
        return answer

    async def act(request: Request, action: str) -> Response:
        """A button: with a cookie, only from a page of this session."""
        try:
            who, cookie = tenant(request)
        except _NotLoggedIn:
            return page("login.html", 401, problem="")
        asked = await form(request)
        if not is_same_origin(request) or (cookie and not sessions.is_valid_token(cookie, asked.get("token", ""))):
            return await show(
                who, cookie, request, 403, "This form is too old, or not from here. Nothing was changed; please try again."
            )
        adapter = asked.get("adapter", "")
        try:
            if action == "promote":
                await source.promote(who.name, adapter, asked.get("version", ""))
            else:
                to = asked.get("to")
                await source.roll_back(who.name, adapter, "" if to == "base" else to)
        except UserError as error:
            return await show(who, cookie, request, 409, as_api_error(error).message)
        return RedirectResponse(f"/dashboard?adapter={quote(adapter)}", 303)

    async def promote(request: Request) -> Response:
        return await act(request, "promote")

    async def roll_back(request: Request) -> Response:
        return await act(request, "roll back")

    router.add_api_route("/dashboard", look, methods=["GET"])
    router.add_api_route("/dashboard/login", log_in, methods=["POST"])
    router.add_api_route("/dashboard/logout", log_out, methods=["POST"])
    router.add_api_route("/dashboard/promote", promote, methods=["POST"])
    router.add_api_route("/dashboard/rollback", roll_back, methods=["POST"])
    return router

"""Services that answer as LangSmith, Langfuse and MLflow do: keys, pages of two, times, a limit of requests, scores."""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from aiohttp import web
from app_in_thread import AppInThread

RECORDED = Path(__file__).parents[1] / "tools/traces/recorded"
KEYS = {"LANGSMITH_API_KEY": "key", "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "MLFLOW_TRACKING_TOKEN": "key"}
PAGE = 2


def recorded(name: str) -> list[dict[str, Any]]:
    """The records that a tool's own client has made (`git show 3b5cbbcb:tests/factories/record_traces.py` is the script)."""
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


class TraceServices(AppInThread):
    """One of the services, over recorded rows; `limited` answers say to come back in three seconds."""

    def __init__(self, form: str, limited: int = 0) -> None:
        super().__init__()
        self.form, self.limited, self.rows = form, limited, recorded(form)
        self.asked = list[Mapping[str, Any]]()
        self.scores = list[Any]()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def make_app(self) -> web.Application:
        """The service, which asks for the key."""

        @web.middleware
        async def guard(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            basic = "Basic " + base64.b64encode(b"pk:sk").decode()
            if not {request.headers.get("x-api-key"), request.headers.get("authorization")} & {"key", "Bearer key", basic}:
                return web.json_response({"detail": "Invalid token"}, status=401)
            if self.limited:
                self.limited -= 1
                return web.json_response({"detail": "Rate limit exceeded"}, status=429, headers={"Retry-After": "3"})
            return await handler(request)

        app = web.Application(middlewares=[guard])
        app.router.add_route("*", "/{path:.*}", getattr(self, self.form))
        return app

    def page(self, rows: list[Any], cursor: Any) -> tuple[list[Any], str | None]:
        """A page of rows, and the mark of the next."""
        start = int(cursor or 0)
        return rows[start : start + PAGE], str(start + PAGE) if start + PAGE < len(rows) else None

    async def langsmith(self, request: web.Request) -> web.Response:
        """LangSmith, v2."""
        body = await request.json() if request.can_read_body else {}
        path = request.path
        if path == "/api/v1/sessions":
            ids = dict.fromkeys(("id", "tenant_id"), str(UUID(int=1)))
            return web.json_response([{**ids, "reference_dataset_id": None}] if request.query["name"] == "support" else [])
        if path == "/api/v2/runs/query":
            self.asked.append(body)
            found = [one for one in self.rows if one["start_time"] >= body["min_start_time"]]
            found = [one for one in found if not body.get("is_root") or not one.get("parent_run_id")]
            found = [one for one in found if body.get("trace_id") in (None, one["trace_id"])]
            rows, following = self.page(found, body.get("cursor"))
            return web.json_response({"items": rows, "next_cursor": following})
        known = next((one for one in self.scores if one["id"] == path.rpartition("/")[2]), None)
        if request.method == "PATCH" and known is None:
            return web.json_response({"detail": "Feedback not found"}, status=404)
        known.update(body) if known else self.scores.append(body)
        return web.json_response({})

    async def langfuse(self, request: web.Request) -> web.Response:
        """Langfuse: observations v2, scores v3."""
        asked = request.query
        if request.method == "POST":
            for one in await request.json():
                self.scores = [*(old for old in self.scores if old["id"] != one["id"]), one]
            return web.json_response({"successes": [], "errors": []})
        self.asked.append(asked)
        is_score = request.path == "/api/public/v3/scores"
        found = [one for one in self.rows if ("value" in one) == is_score]
        if not is_score:
            found = [one for one in found if one["startTime"] >= asked.get("fromStartTime", "")]
            found = [one for one in found if "isRootObservation" not in asked or one["isRootObservation"]]
            found = [one for one in found if asked.get("traceId") in (None, one["traceId"])]
            found = [one for one in found if asked.get("type") in (None, one["type"])]
        rows, following = self.page(found, asked.get("cursor"))
        return web.json_response({"data": rows, "meta": {"limit": PAGE, **({"cursor": following} if following else {})}})

    async def mlflow(self, request: web.Request) -> web.Response:
        """MLflow's tracking server, as far as it is asked here."""
        path, infos = request.path, [one["trace_info"] for one in self.rows]
        if path.endswith("get-by-name"):
            known = request.query["experiment_name"] == "support"
            return web.json_response({"experiment": {"experiment_id": "2"}} if known else {}, status=200 if known else 404)
        if path.endswith("/search"):
            self.asked.append(body := await request.json())
            rows, following = self.page(infos, body.get("page_token"))
            return web.json_response({"traces": rows, **({"next_page_token": following} if following else {})})
        if path.endswith("/batchGet"):
            ids = request.query.getall("trace_ids")
            return web.json_response({"traces": [one for one in self.rows if one["trace_info"]["trace_id"] in ids]})
        if request.method == "DELETE":
            self.scores = [one for one in self.scores if one["assessment_id"] != path.rpartition("/")[2]]
        elif request.method == "POST":
            given = (await request.json())["assessment"]
            self.scores.append({**given, "assessment_id": f"a{len(self.scores)}"})
        return web.json_response({"trace": {"trace_info": {"assessments": self.scores}}})

"""A service in front of somebody else's model: what its users say stands in the context of later replies, in the place of weights.

    learngraph serve --model openai:NAME --learn reasoning-bank --keys keys.yaml

Chats, their ids and all feedback lie in the replay buffer, as with a model whose weights learn (service.py). Feedback goes on to a
learning middleware (graphs/agents), whose scope is the tenant with his adapter. It is acknowledged when both have it on disk; a client
whose feedback was not, because the service was killed, sends it again, and it counts once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.claas.replay import Replay
from ...memory.conversations import write_queue
from ...memory.errors import Unavailable, UserError, plural
from ...memory.records import Feedback, FeedbackReceipt
from ...nodes.learn.chat_turn import DEFAULT_SCOPE
from ...nodes.retrieve.user_share import are_enough
from ..claas import CLaaS
from .agent_engine import AgentEngine
from .obstacles import KINDS, Obstacle
from .service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["LEARNERS", "ContextService"]

LOG = logging.getLogger("learngraph.service")

LEARNERS = ("adamem", "icrl", "lessons", "reasoning-bank")
"""Values of --learn, as graphs/agents/methods.py names them."""
CRITIC_FAILS = "the model that writes lessons fails at half of its studies, or cannot be asked: held_up of /v1/status says how"
"""Reason for which the service is degraded: nothing new is learned."""
ROUTES = {
    r"call feedback\(thread_id, reward=\.\.\.\)": "POST /v1/feedback",
    r"give control=0\.1 or holdout=0\.05, then feedback": "POST /v1/feedback",
    r"quarantine_reasons\(\) says why, release\(thread_id\) lets": "held says why, POST /v1/experiences/ID/release lets",
    r"release\('([^']*)'\) lets": r"POST /v1/experiences/\1/release lets",
    r"; the agent's process studies them soon, and learn\(\) at once": "; they are studied soon",
    r", and learn\(\) at once": "",
    r"; give a (?:state_key|task) that [^,;\n]*": "",
    r", or similarity=, by meaning": "",
    r" \(user=\)": " (--max-user-share)",
    r" \(another strategist= may do better\)": "",
    r"; if they are the app's own, Screen\(.*\) keeps them": "",
    r", such as calls that a person let pass \(reviews=\[TOOL\]\)": "",
    r"\n  nothing is recorded of .*": "",  # it may name another tenant's scope
}
"""A learner's words for who calls Python, a pattern each -> the words for who asks by HTTP."""


def name_routes(status: str) -> str:
    """A learner's words on itself, with the routes of the API and the options of `learngraph serve` in the place of its methods."""
    for words, route in ROUTES.items():
        status = re.sub(words, route, status)
    return status


class ContextService(Service):
    """A service whose learner is a middleware.

    Args:
        engine: the agent with the learner.
        replay: the buffer of all tenants.
        root: a folder for the names of adapters.
        model: the model's public name.
    """

    def __init__(self, engine: AgentEngine, replay: Replay, root: Path, model: str) -> None:
        super().__init__(engine, None, replay, root, CLaaS(), model)
        self._learner: Any = engine.learner
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Of each tenant: the buffer and the learner's memory change together, by one request after another."""
        self._rated = set[tuple[str, str]]()
        """Tenants with their adapters of which something was rated or released since the metrics were read."""
        self._measuring: asyncio.Task[None] | None = None

    async def feedback(self, tenant: str, response_id: str, feedback: Feedback, key: str = "") -> FeedbackReceipt:
        """Store feedback on a reply, and rate the conversation with it in the learner's memory of the tenant.

        Raises:
            UnknownExchange, ExpiredExchange, FeedbackConflict: as `Replay.add_feedback`.
            UserError: its source is none of --raters.
        """
        self._learner.check_source(feedback.source)
        async with self._locks[tenant]:
            return await self._rate(tenant, response_id, feedback, key)

    def advice(self, feedback: Feedback, state: str = "ready") -> str:
        """A sentence on what lets in feedback that waits for a person; else empty."""
        return (
            "it waits for a person: held in GET /v1/status says why, POST /v1/experiences/ID/release lets it in"
            if state == "held"
            else ""
        )

    async def _rate(self, tenant: str, response_id: str, feedback: Feedback, key: str) -> FeedbackReceipt:
        receipt = await super().feedback(tenant, response_id, feedback, key)
        row = await asyncio.to_thread(self.replay.get, tenant, response_id)
        if row is not None and (kept := row.exchange.feedback) is not None:  # of a repeated key, what was said first
            words = [kept.text, f"The reply should have been: {kept.correction}" if kept.correction else ""]
            said, scope = "\n".join(filter(None, words)) or None, {"tenant": tenant, "adapter": row.exchange.adapter}
            try:
                await self._learner.afeedback(response_id, reward=kept.reward, text=said, source=kept.source, **scope)
            except Unavailable:
                raise
            except UserError as error:
                why = error.public_message or "the learner's memory has no record of it"  # other words may name other tenants
                raise UserError(f"nothing is learned from {response_id!r}: {why}") from error
            if response_id in await asyncio.to_thread(partial(self._learner.quarantine_reasons, **scope)):
                receipt = replace(receipt, state="held")  # it counts once a person has released it
            self._rated.add((tenant, row.exchange.adapter))
        return receipt

    async def experience(self, tenant: str, id: str) -> dict[str, Any] | None:
        """An exchange with `explain`: what was recalled for it, what it was told, and how it was rated, a line each."""
        row = await super().experience(tenant, id)
        if row is None:
            return None
        try:
            told = name_routes(await self._learner.aexplain(id, tenant=tenant, adapter=row["adapter"]))
        except Unavailable:
            raise
        except UserError:  # the memory was lost, or could not be written when the reply was made
            told = ""
        return row | {"explain": told.splitlines() or ["nothing is recorded of this reply"]}

    async def release(self, tenant: str, id: str) -> dict[str, Any]:
        """Learn from an exchange after all that was held, or that the screen has quarantined.

        Raises:
            UserError: it is neither.
        """
        row = await asyncio.to_thread(self.replay.get, tenant, id)
        adapter = DEFAULT_SCOPE if row is None else row.exchange.adapter
        await asyncio.to_thread(lambda: self._learner.release(id, tenant=tenant, adapter=adapter))
        self._rated.add((tenant, adapter))
        return {"released": id}

    async def forget(self, tenant: str, ids: Sequence[str] | None, withdraw: bool = False) -> dict[str, Any]:
        """Delete exchanges, or all of a tenant's (None), with the conversations and the lessons that were drawn from them."""
        async with self._locks[tenant]:
            for adapter in self._live.names(tenant):
                doomed: Any = "all"
                if ids is not None:  # those of this adapter: the learner refuses ids that it does not know
                    kept = {one["id"] async for one in self._learner.aexport(tenant=tenant, adapter=adapter)}
                    doomed = [id for id in ids if id in kept]
                await self._learner.aforget(doomed, tenant=tenant, adapter=adapter)
            return await super().forget(tenant, ids, withdraw)

    async def remove(self, tenant: str, adapter: str, version: str | None = None) -> dict[str, Any]:
        """Delete an adapter with all that it learned."""
        found = await super().remove(tenant, adapter, version)
        await self._learner.aforget(tenant=tenant, adapter=adapter)
        return found

    async def freeze(self, tenant: str, adapter: str, is_frozen: bool) -> dict[str, Any]:
        """Refuse: each reply is rated by itself, and what is said of it is learned at once."""
        raise UserError("freeze: this service learns in context, and each feedback counts at once; serve another --out instead")

    async def roll_back(self, tenant: str, adapter: str, to: str | None = None) -> dict[str, Any]:
        """Refuse: there are no versions."""
        raise UserError(
            "rollback: this service has no versions; DELETE /v1/experiences takes back what was learned from exchanges"
        )

    async def train(self, tenant: str, adapter: str, steps: int = 1) -> dict[str, Any]:
        """Refuse: there are no gradient steps."""
        raise UserError("train: this service takes no gradient steps; what is said counts by itself")

    async def status(self, tenant: str | None = None) -> dict[str, Any]:
        """The state of the service, with the learner's of each of the tenant's adapters under `learned`, in words."""
        scopes = [
            {"tenant": tenant, "adapter": adapter} for adapter in (self._live.names(tenant) if tenant is not None else ())
        ]
        learned = {one["adapter"]: str(await self._learner.astatus(**one)) for one in scopes}  # first: it reads what failed
        failures = [failure for one in scopes for failure in self._learner.critic_failures(**one)]
        found = await super().status(tenant)
        error = name_routes(failures[0]) if failures else ""
        found["learner"] = {"state": "idle", "error": error, "method": self._learner.method}
        try:
            await self._vital_signs()
        except Unavailable as error:
            found |= {"state": "degraded", "why": found["why"] or str(error)}
        if failures or any(row["kind"] == "critic" for row in found.get("held_up", ())):
            found |= {"state": "degraded", "why": found["why"] or CRITIC_FAILS}
        for row in found.get("scopes", ()):
            scope = {"tenant": tenant, "adapter": row["adapter"]}
            row["learned"] = name_routes(learned.get(row["adapter"], "")).splitlines()
            row["held"] = await asyncio.to_thread(partial(self._learner.quarantine_reasons, **scope))
            if self._learner.plan.is_on:
                row["lift"] = name_routes(str(await asyncio.to_thread(partial(self._learner.lift, **scope)))).splitlines()
        return found

    def _learning_scopes(self) -> list[tuple[str, str]]:
        return [scope for scope in self.replay.adapters() if self._live.exists(*scope)]

    def _obstacles(self, tenant: str, adapter: str) -> list[Obstacle]:
        """The obstacles to learning: a critic that fails at half of what it studies, or cannot be asked; and to showing others what
        end users taught: nobody has, or too few of them (`max_user_share`). The learner's store is not asked: health checks do."""
        share, taught = self._learner.max_user_share, self.replay.teachers(tenant, adapter)
        needed, count = math.ceil(1 / share), len({*taught} - {""})
        if not taught:
            named = (
                f"where requests name end users, {needed} of them have to give some before others are shown what they taught"
            )
            why = f"no reply has feedback yet; {named}"
            return [Obstacle("too few", why, "POST /v1/feedback", 1)]
        failures = self._learner.critic_failures(tenant=tenant, adapter=adapter)
        found = [Obstacle("critic", name_routes(one), KINDS["critic"]) for one in failures]
        if count and not are_enough(taught, "", share):
            why = f"{plural(count, 'end user')} gave feedback: it takes {needed} before others are shown what they taught"
            help = "feedback of other end users, or a larger --max-user-share"
            found.append(Obstacle("too few", why, help, needed - len(taught)))
        return found

    async def metrics(self) -> list[Metric]:
        """The service's metric families, with what is held and the lift where something was rated; while the learner's store does
        not answer, these two are as they were."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure_rated())
        await asyncio.wait({self._measuring}, timeout=write_queue.STORE_PATIENCE)
        return await super().metrics()

    async def _measure_rated(self) -> None:
        for scope in [*self._rated]:
            self._rated.discard(scope)
            try:
                await asyncio.to_thread(self._measure, *scope)
            except Exception as error:  # the next look tries again; the words may be a user's
                self._rated.add(scope)
                if isinstance(error, Unavailable):
                    return
                LOG.warning("held and lift of %s/%s stay as they were: %s", *scope, type(error).__name__)

    def _measure(self, tenant: str, adapter: str) -> None:
        scope = {"tenant": tenant, "adapter": adapter}
        self._metrics.held.labels(tenant, adapter).set(len(self._learner.quarantine_reasons(**scope)))
        if self._learner.plan.is_on and (memory := self._learner.lift(**scope).memory) is not None:
            self._metrics.lift.labels(tenant, adapter).set(float("nan") if memory.is_selected else memory.lift)

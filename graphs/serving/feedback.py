"""The watch over live feedback: rewards by version, rollback when they fall, and promotion of the canary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...memory.claas.replay import Replay
from ...memory.records import Exchange, ExchangeQuery, Feedback
from ...nodes.learn.gate import reward_drop, reward_windows
from ..claas import CLaaS
from .adapter_state import AdapterState
from .metrics import ServiceMetrics
from .versions import LiveVersions

__all__ = ["FeedbackWatch"]

LOG = logging.getLogger("learngraph.service")


class FeedbackWatch:
    """Withdraws a version whose live feedback is worse than that of the version before, and promotes a canary that holds up.

    Args:
        live: the versions that answer.
        replay: the buffer of all tenants.
        settings: CLaaS's settings.
        metrics: counts promotions.
        on_canary_end: called with (tenant, adapter) when the canary went live or was dropped.
    """

    def __init__(
        self,
        live: LiveVersions,
        replay: Replay,
        settings: CLaaS,
        metrics: ServiceMetrics,
        on_canary_end: Callable[[str, str], None],
    ) -> None:
        self._live = live
        self._replay = replay
        self._settings = settings
        self._metrics = metrics
        self._on_canary_end = on_canary_end

    def restore_rewards(self, tenant: str, adapter: str) -> None:
        """Read an adapter's newest rewards from the replay buffer."""
        state = self._live.state(tenant, adapter)
        for row in reversed(self._replay.rows(ExchangeQuery(tenant, adapter, limit=4 * self._settings.rollout.watch_window))):
            self._note_reward(state, row.exchange, row.exchange.feedback)

    def note_feedback(self, tenant: str, exchange: Exchange, feedback: Feedback) -> None:
        """Take new feedback into account, in the background."""
        state = self._live.state(tenant, exchange.adapter)
        self._note_reward(state, exchange, feedback)
        if feedback.reward is not None and not state.has_new_rewards:  # one check for many feedbacks
            state.has_new_rewards = True
            self._live.spawn(self._check(tenant, exchange.adapter))

    def _note_reward(self, state: AdapterState, exchange: Exchange, feedback: Feedback | None) -> None:
        state.rewards.pop(exchange.id, None)
        if feedback is not None and feedback.reward is not None:
            state.rewards[exchange.id] = (exchange.reply.version, feedback.reward, exchange.created)
            while len(state.rewards) > 8 * self._settings.rollout.watch_window:
                state.rewards.popitem(last=False)

    async def _check(self, tenant: str, adapter: str) -> None:
        """Withdraw the live version if rewards fell; decide on the canary if there is one.

        Rewards from before the last rollback are not compared with later ones: where the users changed their mind, each version would
        look worse than the one before, and all that was learned would be undone step by step.
        """
        settings, state = self._settings, self._live.state(tenant, adapter)
        async with state.switch_lock:
            state.has_new_rewards = False
            if not settings.rollout.watch_rewards:
                return
            if state.canary:
                await self._judge_canary(tenant, adapter, state, state.canary)
                return
            rewards = state.rewards_by_version(state.versions.last_rollback)
            line = ((label, rewards.get(label, [])) for label in state.versions.lineage(state.live))
            seen = await asyncio.to_thread(reward_windows, line, settings.rollout.watch_rewards, settings.rollout.watch_window)
            if seen is None:
                return
            found = reward_drop(seen.before, seen.after, settings.rollout.max_reward_drop, settings.rollout.watch_rewards)
            if found is not None and found.is_drop:
                why = f"live feedback fell from {found.before:.2f} to {found.after:.2f} ({len(seen.after)} rewards)"
                back = await asyncio.to_thread(state.versions.rollback_target, seen.rollback_to)
                LOG.warning("%s/%s goes back to %s: %s", tenant, adapter, back or "base", why)
                await self._live.switch_back(tenant, adapter, back, why, rewards_fell=True)

    async def _judge_canary(self, tenant: str, adapter: str, state: AdapterState, canary: str) -> None:
        settings, rewards = self._settings, state.rewards_by_version()
        mine = rewards.get(canary, [])[-settings.rollout.watch_window :]
        live = rewards.get(state.live, [])[-settings.rollout.watch_window :]
        found = reward_drop(live, mine, settings.rollout.max_reward_drop, settings.rollout.watch_rewards)
        if not await asyncio.to_thread(state.versions.is_live_descendant, canary):
            why = "canary: it learned from an exchange that was deleted since, or its parent is no longer live"
            await asyncio.to_thread(self._live.drop_canary, tenant, adapter, canary, why)
        elif found is not None and found.is_drop:
            why = f"canary: {found.after:.2f} against {found.before:.2f} of the live version ({len(mine)} rewards)"
            await asyncio.to_thread(self._live.drop_canary, tenant, adapter, canary, why)
        elif len(mine) >= settings.rollout.watch_rewards and (found is not None or settings.rollout.canary_share >= 0.5):
            against = f" against {found.before:.2f} of the version before" if found else ""
            why = f"canary: mean reward {sum(mine) / len(mine):.2f}{against} ({len(mine)} rewards)"
            await asyncio.to_thread(state.versions.promote, canary, why)
            self._metrics.promoted.inc()
        else:
            return
        self._live.on_live_change(tenant, adapter)
        self._on_canary_end(tenant, adapter)

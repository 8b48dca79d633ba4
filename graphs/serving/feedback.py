"""The watch over live feedback: rewards by version, rollback when they fall, and promotion of the canary."""

import asyncio
import logging
from collections.abc import Callable

from ...memory.claas.replay import Replay
from ...memory.records import Exchange, ExchangeQuery, Feedback
from ...nodes.learn.gate import ReleaseSettings, reward_drop, reward_windows
from .metrics import ServiceMetrics
from .versions import LiveVersions, ServedAdapter

__all__ = ["FeedbackWatch"]

LOG = logging.getLogger("learngraph.service")


class FeedbackWatch:
    """Withdraws a version whose live feedback is worse than that of the version before, and promotes a canary that holds up.

    Args:
        live: the versions that answer.
        replay: the buffer of all tenants.
        settings: the settings of a release.
        metrics: counts promotions.
        on_canary_end: called with (tenant, adapter) when the canary went live or was dropped.
    """

    def __init__(
        self,
        live: LiveVersions,
        replay: Replay,
        settings: ReleaseSettings,
        metrics: ServiceMetrics,
        on_canary_end: Callable[[str, str], None],
    ) -> None:
        self._live = live
        self._replay = replay
        self._settings = settings
        self._metrics = metrics
        self._on_canary_end = on_canary_end

    def restore_rewards(self, served: ServedAdapter) -> None:
        """Read an adapter's newest rewards from the replay buffer."""
        for row in reversed(self._replay.rows(ExchangeQuery(*served.scope, limit=4 * self._settings.watch_window))):
            self._note_reward(served, row.exchange, row.exchange.feedback)

    def note_feedback(self, exchange: Exchange, feedback: Feedback) -> None:
        """Take new feedback into account, in the background."""
        served = self._live.adapter(exchange.tenant, exchange.adapter)
        self._note_reward(served, exchange, feedback)
        if feedback.reward is not None and not served.has_new_rewards:  # one check for many feedbacks
            served.has_new_rewards = True
            self._live.spawn(self._check(served))

    def _note_reward(self, served: ServedAdapter, exchange: Exchange, feedback: Feedback | None) -> None:
        served.rewards.pop(exchange.id, None)
        if feedback is not None and feedback.reward is not None and not feedback.is_mixed:
            served.rewards[exchange.id] = (exchange.reply.version, feedback.reward, exchange.created)
            while len(served.rewards) > 8 * self._settings.watch_window:
                served.rewards.popitem(last=False)

    async def _check(self, served: ServedAdapter) -> None:
        """Withdraw the live version if rewards fell; decide on the canary if there is one.

        Rewards from before the last rollback are not compared with later ones: where the users changed their mind, each version would
        look worse than the one before, and all that was learned would be undone step by step.
        """
        settings = self._settings
        async with served.switch_lock:
            served.has_new_rewards = False
            if not settings.watch_rewards or served.versions.is_frozen:
                return
            if served.canary:
                await self._judge_canary(served, served.canary)
                return
            rewards = served.rewards_by_version(served.versions.last_rollback)
            line = ((label, rewards.get(label, [])) for label in served.versions.lineage(served.live))
            seen = await asyncio.to_thread(reward_windows, line, settings.watch_rewards, settings.watch_window)
            found = seen and reward_drop(seen.before, seen.after, settings.max_reward_drop, settings.watch_rewards)
            if seen and found and found.is_drop:
                why = f"live feedback fell from {found.before:.2f} to {found.after:.2f} ({len(seen.after)} rewards)"
                back = await asyncio.to_thread(served.versions.rollback_target, seen.rollback_to)
                LOG.warning("%s goes back to %s: %s", served.versions.scope, back or "base", why)
                await self._live.switch_back(served, back, why, rewards_fell=True)

    async def _judge_canary(self, served: ServedAdapter, canary: str) -> None:
        settings, rewards = self._settings, served.rewards_by_version()
        mine, live = (rewards.get(label, [])[-settings.watch_window :] for label in (canary, served.live))
        found = reward_drop(live, mine, settings.max_reward_drop, settings.watch_rewards)
        if not await asyncio.to_thread(served.versions.is_live_descendant, canary):
            why = "canary: it learned from an exchange that was deleted since, or its parent is no longer live"
            await asyncio.to_thread(self._live.drop_canary, served, why)
        elif found is not None and found.is_drop:
            why = f"canary: {found.after:.2f} against {found.before:.2f} of the live version ({len(mine)} rewards)"
            await asyncio.to_thread(self._live.drop_canary, served, why)
        elif len(mine) >= settings.watch_rewards and (found is not None or settings.canary_share >= 0.5):
            against = f" against {found.before:.2f} of the version before" if found else ""
            why = f"canary: mean reward {sum(mine) / len(mine):.2f}{against} ({len(mine)} rewards)"
            await asyncio.to_thread(served.versions.promote, canary, why)
            self._metrics.promoted.inc()
        else:
            return
        self._live.on_live_change(*served.scope)
        self._on_canary_end(*served.scope)

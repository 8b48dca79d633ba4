"""Settings of trials that were written when CLaaS's hyper-parameters were one flat list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..claas import CLaaS

__all__ = ["current_settings"]

OLD_NAMES = {
    "replay": "batch:batch_size least:min_exchanges positive:positive_share max_age reuse:max_samplings max_kl "
    "held_out:held_out_share records:max_records",
    "loss": "loss:kind rate:learning_rate warmup_steps decay:weight_decay max_norm:max_grad_norm passes:updates_per_batch "
    "kl:kl_weight entropy:entropy_weight",
    "loss.correction": "correction:kind level truncate:max_weight mis_low:min_ratio mis_high:max_ratio veto:veto_ratio ess_target",
    "loss.teacher": "teacher:kind ema:ema_rate sync_every trust:learner_share alpha:divergence top_k feedback:reads_text "
    "hint:hint_weight",
    "loss.policy": "baseline floor:min_advantage_std clip_low clip_high dual:dual_clip gamma:discount lam:gae_lambda traces "
    "value_rate:critic_learning_rate",
    "lora": "rank targets",
    "gate": "gate:enabled gate_every:every_steps margin:max_reward_loss read:exchanges least_rewards:min_rewards "
    "weight_cap:max_weight tolerance:max_logprob_loss entropy_share:min_entropy_share kl_cap:max_kl texts",
    "rollout": "canary:canary_share watch:watch_rewards recent:watch_window fall_margin:max_reward_drop keep:keep_versions",
    "": "seed",
}
"""Group -> `old name:new name`, or a name that has not changed."""


def current_settings(stored: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Settings as JSON has them today, from those of a trial's file in either form. What was no setting then is the default. None:
    the arm does not learn."""
    if stored is None:
        return None
    settings: dict[str, Any] = json.loads(json.dumps(asdict(CLaaS())))
    settings["rollout"]["max_lead"] = None  # the learner waited for nothing
    if "replay" in stored:
        return _with_defaults(stored, settings)
    for path, names in OLD_NAMES.items():
        group = settings
        for part in filter(None, path.split(".")):
            group = group[part]
        for pair in names.split():
            old, _, new = pair.partition(":")
            if old in stored:
                group[new or old] = stored[old]
    return settings


def _with_defaults(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`stored`, with what it lacks from `defaults`, group by group."""
    groups = {name: _with_defaults(value, defaults[name]) for name, value in stored.items() if isinstance(value, Mapping)}
    return {**defaults, **stored, **groups}

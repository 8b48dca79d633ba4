"""The names that settings had in run folders of earlier versions: old folders are read with today's names.

A folder's `settings.json` holds the settings by name, and its subfolders are named after methods and presets. Digests of settings
are taken over the earliest names (`with_first_names`), so that the name of a folder and of a run is what it always was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

__all__ = ["former_defaults", "read_settings", "run_stem", "with_first_names", "with_todays_names"]

OPTIONS: Mapping[str, str] = {
    "history": "policy_history_steps",
    "tokens": "max_run_tokens",
    "test": "test_problems",
    "k": "test_rollouts",
}
"""Old name of an option of `learngraph run` -> today's."""

METHODS: Mapping[str, str] = {
    "adamem:ungrounded": "adamem:no-precedents",
    "reflexion:unlimited": "reflexion:all-plans",
    "training-free-grpo:self-generated": "training-free-grpo:self-generated-lessons",
    "training-free-grpo:shuffled": "training-free-grpo:shuffled-lessons",
}
"""Old name of a method with a preset or an ablation -> today's."""

EXAMPLES_IN_PROMPTS = {"budget": "max_memory_tokens", "clip": "max_state_chars"}
ATTEMPTS = {"keep": "selection", "last": "last_n"}
BANK = {"success": "success_threshold", "kind": "outcomes"}

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "jitrl": {
        "values": "advantage_estimator",
        "threshold": "min_similarity",
        "kappa": "shrinkage_visits",
        "bonus": "exploration_bonus",
        "floor": "min_prior",
        "alpha": "unseen_bonus",
        "lam": "unseen_bonus_probability",
    },
    "icrl": {**EXAMPLES_IN_PROMPTS, **ATTEMPTS, "strategy": "instruction", "block": "rearrange_every"},
    "adamem": {
        **BANK,
        "floor": "min_similarity",
        "per_trajectory": "max_per_trajectory",
        "key": "retrieval_key",
        "vectors": "vectors_file",
        "confidence": "min_confidence",
        "stall": "stall_steps",
        "drift": "drift_threshold",
        "wait": "steps_before_retrieval",
        "rest": "followup_steps",
        "recent": "history_steps",
        "limit": "max_trajectories",
    },
    "training-free-grpo": {
        "batch": "batch_size",
        "group": "group_size",
        "agreement": "min_agreement",
        "spread": "min_reward_std",
        "hard": "compare_failed_groups",
        "cost": "token_cost",
        "turns": "action_cost",
        "most": "max_insights",
        "trials": "trial_rollouts",
        "least_groups": "min_groups",
        "words": "max_words",
        "lessons": "max_lessons",
        "tokens": "max_library_tokens",
        "similar": "duplicate_similarity",
        "top": "lessons_per_prompt",
    },
    "react": {"recent": "history_steps"},
    "tool-agent": {
        "turns": "max_turns",
        "top": "lessons_per_prompt",
        "output": "max_output_chars",
        "shown": "max_transcript_chars",
    },
    "self-refine": EXAMPLES_IN_PROMPTS,
    "reflexion": {**EXAMPLES_IN_PROMPTS, **ATTEMPTS},
    "synapse": {**EXAMPLES_IN_PROMPTS, **BANK},
    "reasoning-bank": {
        **EXAMPLES_IN_PROMPTS,
        **BANK,
        "by": "retrieval_unit",
        "items": "max_items",
        "rollouts": "group_size",
        "contrasted": "max_contrast_items",
    },
    "tabular": {"rate": "learning_rate"},
}
"""Method -> old name of a setting -> today's."""

VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {"adamem": {"mode": {"ungrounded": "no-precedents"}}}
"""Method -> setting -> old value -> today's."""

FORMER_DEFAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "jitrl": ("repeat_penalty", {"advantage_estimator": "shrunk"}),
    "jitrl:paper": ("state_key", {"state_key": "room", "threshold_decay": 0.0}),
    "jitrl:reference": ("state_key", {"state_key": "room"}),
    "prompt-update:paper": ("state_key", {"state_key": "room", "threshold_decay": 0.0}),
    "prompt-update:reference": ("state_key", {"state_key": "room"}),
    "training-free-grpo": (
        "margin",
        {"held_out": 20, "trial_rollouts": 1, "margin": 0.0, "regression_share": 0.0, "max_step_edits": 0},
    ),
}
"""Method, perhaps with a preset -> a setting that earlier versions lack, and what other settings were by default (or for want of them) in folders that
lack it. Training-Free GRPO's record names the last three only where they are not 0."""

Defaults = Mapping[str, tuple[Any, Any]]
"""Settings that came together: name -> (its default in versions that lack one of them, or None; today's)."""


def _state_keys(threshold_decay: float) -> Defaults:
    return {"state_key": (None, "room"), "embedder": (None, ""), "threshold_decay": (None, threshold_decay)}


def _jitrl(threshold_decay: float) -> tuple[Defaults, ...]:
    return (
        {"repeat_penalty": (None, 0.5), "exploration_bonus": (0.5, 0.25)},
        {"memory_control": (None, "none")},
        _state_keys(threshold_decay),
        {"prior_patience": (None, 0)},
    )


NEW_DEFAULTS: Mapping[str, Sequence[Defaults]] = {
    "adamem": ({"min_similarity": (0.3, None), "max_state_chars": (None, 1500)},),
    "jitrl": _jitrl(0.0),
    "jitrl:reference": _jitrl(0.1),  # it fell before it was a setting
    "prompt-update": (_state_keys(0.0),),
    "prompt-update:reference": (_state_keys(0.1),),
    "self-refine": ({"rewards": (None, "none")},),
    "tabular": ({"initial_value": (None, 0.0)},),
}
"""Method, perhaps with a preset -> the settings that it has gained. A run of a version without them goes on with today's default, as it
does with today's comparison of states, whose scale differs."""

DIGESTS: Mapping[str, str] = {"0a66e803a722ee81": "66696dadfd1d334e", "76d0c07178537b18": "24e148dd8c1db270"}
"""Old digest of a file -> today's. The pocket model's was once taken over its card, too, which is prose; that of the prompts over
all of them, also where actions are scored and two are read, which have not changed."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a `settings.json`, by today's names.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON object.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object is needed, and this is a {type(found).__name__}")
    return with_todays_names(found)


def with_todays_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run folder, by today's names."""
    renamed = _rename(settings, OPTIONS, METHODS, SETTINGS, VALUES, DIGESTS)
    for fields, new in _method_defaults(renamed):
        if not new.keys() <= fields.keys():
            fields |= {name: today for name, (former, today) in new.items() if fields.get(name) == former}
    return renamed


def former_defaults(folder: Path | None, method: str, settings: Any) -> Any:
    """The settings, with the defaults of the version that began the folder, so that the same command goes on there.

    Only settings that have today's default change. A folder that is new, unreadable or of today's version changes nothing.
    """
    missing, former = FORMER_DEFAULTS.get(method, ("", {}))
    path = folder / "settings.json" if folder and former else Path()
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        return settings  # refused later, with a message
    arm = next((record[table].get(method) for table in ("methods", "arms") if table in record), None)
    if not arm or missing in arm:
        return settings
    form, preset = type(settings), method.partition(":")[2]
    usual = getattr(form, preset)() if preset else form()
    return replace(settings, **{name: old for name, old in former.items() if getattr(settings, name) == getattr(usual, name)})


def _method_defaults(settings: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Mapping[str, tuple[Any, Any]]]]:
    """The settings of each method, to be changed in place, with each group of its `NEW_DEFAULTS`."""
    for method, fields in (settings.get("methods") or {}).items():
        for new in NEW_DEFAULTS.get(method, NEW_DEFAULTS.get(method.partition(":")[0], ())):
            yield fields, new


def with_first_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run folder, by the names that the first version gave them."""
    names = {method: _swap(renamed) for method, renamed in SETTINGS.items()}
    values = {method: {name: _swap(renamed) for name, renamed in fields.items()} for method, fields in VALUES.items()}
    former_settings = deepcopy(dict(settings))
    for fields, new in _method_defaults(former_settings):
        for name, (former, today) in new.items():
            if fields.get(name) == today:
                fields[name] = former
            if fields.get(name) is None:
                fields.pop(name, None)
    return _rename(former_settings, _swap(OPTIONS), _swap(METHODS), names, values, _swap(DIGESTS))


def run_stem(folder: Path, method: str, seed: int) -> str:
    """Name of a method's runs in a folder, without the seed: `jitrl-paper` for `jitrl:paper`.

    A run that began under the old name of its method keeps it: its random draws depend on it.
    """
    stem = _stem(method)
    old = _stem(_swap(METHODS).get(method, method))
    return old if old != stem and (folder / f"{old}-s{seed}").is_dir() else stem


def _stem(method: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", method)


def _swap(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def _rename(
    settings: Mapping[str, Any],
    options: Mapping[str, str],
    methods: Mapping[str, str],
    names: Mapping[str, Mapping[str, str]],
    values: Mapping[str, Mapping[str, Mapping[str, str]]],
    digests: Mapping[str, str],
) -> dict[str, Any]:
    renamed = {options.get(name, name): value for name, value in settings.items()}
    if isinstance(files := renamed.get("digests"), dict):
        renamed["digests"] = {file: digests.get(value, value) for file, value in files.items()}
    for table in ("methods", "arms"):  # of a sweep; of a run of training-free-grpo
        if isinstance(held := renamed.get(table), dict):
            renamed[table] = {
                methods.get(method, method): _rename_fields(
                    fields, names.get(method.partition(":")[0], {}), values.get(method.partition(":")[0], {})
                )
                for method, fields in held.items()
                if isinstance(fields, dict)
            }
    return renamed


def _rename_fields(
    fields: Mapping[str, Any], names: Mapping[str, str], values: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    # Values are renamed by the name of their field, which no version has changed where a value has.
    return {
        names.get(name, name): values[name].get(value, value) if name in values else value for name, value in fields.items()
    }

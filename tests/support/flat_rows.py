"""The objects of results.json with their metrics side by side."""

import json
from pathlib import Path
from typing import Any


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """An object's metrics and totals, with the method's own names; what has no number is None."""
    means = {name.replace("-", "_"): one["mean"] for name, one in row["metrics"].items()}
    return row | row["totals"] | means


def read_flat(folder: Path) -> dict[str, dict[str, Any]]:
    """Method -> its metrics in a run folder."""
    return {row["method"]: flat(row) for row in json.loads((folder / "results.json").read_text())}

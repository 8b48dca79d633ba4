"""The options of `learngraph studio`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from ...memory.errors import CommandError

__all__ = ["StudioOptions"]


@dataclass(frozen=True)
class StudioOptions:
    """Options of `learngraph studio`: what is opened, and what its walks are played on."""

    target: Positional[str] = ""
    """A method (`jitrl`, `jitrl:paper`), a graph of yours (`my_app:graph`), a drawing (`agent.mmd`) or a run folder (`runs/NAME`). Nothing:
    the run folders under runs/."""
    flow: Path | None = None
    """The file that the drawing is saved to; NAME.mmd in the current directory if not given."""
    env: str = "toy"
    """The world that a method walks in, as `learngraph run --env` takes it."""
    model: str = "uniform"
    """The model that a method asks, as `learngraph run --model` takes it; `uniform`: none, every admissible action is equally likely."""
    split: Literal["train", "dev", "test"] = "test"
    """The fold of the environment's tasks."""
    seed: int = 0
    """The number of the task in it."""
    episodes: int = 3
    """Episodes that a method plays before the first walk, so that its memory holds something."""
    input: str = ""
    """The input of a graph of yours, as JSON: `{"messages": "Hello"}`. It can be changed on the page."""
    port: int = 0
    """Port of 127.0.0.1; 0 takes one that is free. With LEARNGRAPH_STUDIO_KEY set the key is that, and a link holds after a restart."""
    browser: bool = True
    """Open the page in a browser, where there is a screen."""

    def __post_init__(self) -> None:
        for name in ("seed", "episodes", "port"):
            if getattr(self, name) < 0:
                raise CommandError(f"--{name} is at least 0, got {getattr(self, name)}")


def read_input(text: str) -> Any:
    """The value of --input.

    Raises:
        CommandError: it is no JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f'--input is JSON such as {{"messages": "Hello"}}, got {text!r} ({error})') from error

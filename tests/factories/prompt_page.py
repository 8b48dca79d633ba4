"""Print prompts as a model gets them, filled with a small example. Without a name it prints all of them:

python tests/factories/prompt_page.py adamem/strategy jitrl
"""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learngraph.nodes.prompt import PROMPTS_DIR, Prompt


def prompt_names() -> list[str]:
    """The names of all prompts; those that say what a paper's say stand last."""
    names = (path.relative_to(PROMPTS_DIR).with_suffix("").as_posix() for path in PROMPTS_DIR.rglob("[a-z]*.md"))
    return sorted(names, key=lambda name: (name.startswith("paper/"), name))


def example_values(name: str, examples: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of a prompt's places, the closest table's first.

    Raises:
        KeyError: a place has no example; names it.
    """
    fitting = {place: value for start, table in examples.items() if name.startswith(start) for place, value in table.items()}
    return {place: fitting[place] for place in Prompt.load(name).placeholders}


def page(*starts: str) -> str:
    """The prompts whose names begin with one of these texts, as Markdown. What belongs to a method is left out of `act`."""
    examples = tomllib.loads(Path(__file__).with_name("prompt_examples.toml").read_text(encoding="utf-8"))
    text = ""
    for name in prompt_names():
        if name.startswith(starts or ""):
            messages = Prompt.load(name).messages(**example_values(name, examples))
            shown = "\n\n".join(f"[{message.type}]\n{message.text.strip()}" for message in messages)
            text += f"## {name}\n\n````text\n{shown.replace('[human]', '[user]')}\n````\n\n"
    return text


if __name__ == "__main__":
    print(page(*sys.argv[1:]), end="")

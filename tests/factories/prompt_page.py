"""Write nodes/prompts/README.md: every prompt as a model gets it, filled with a small example. Run it after a prompt has changed:

python tests/factories/prompt_page.py
"""

import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from learngraph.nodes.prompt import PROMPTS_DIR, Prompt

PAGE = Path(__file__).parents[2] / "nodes" / "prompts" / "README.md"
HEAD = """# All prompts, as a model gets them

Each prompt is a file beside this page, filled here with a small example; how the steps of an attempt look at length is to be seen in
[tests/prompts](../../tests/prompts). What belongs to a method stands at the end of the system message, and is left out of `act` here.
This page is written by `python tests/factories/prompt_page.py`, and a test says when that has to be run again.
"""


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


def page() -> str:
    """The text of the page."""
    examples = tomllib.loads(Path(__file__).with_name("prompt_examples.toml").read_text(encoding="utf-8"))
    folders = [(folder, [*names]) for folder, names in groupby(prompt_names(), lambda name: name.rpartition("/")[0])]
    links = ", ".join(f"[{folder}](#{folder.replace('/', '')})" for folder, _ in folders)
    text = f"{HEAD}\n{links}\n"
    for folder, names in folders:
        text += f"\n## {folder}\n"
        for name in names:
            messages = Prompt.load(name).messages(**example_values(name, examples))
            shown = "\n\n".join(f"[{message.type}]\n{message.text.strip()}" for message in messages)
            text += f"\n### {name}\n\n````text\n{shown.replace('[human]', '[user]')}\n````\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

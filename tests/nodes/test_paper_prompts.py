"""The prompts that say what a paper's say (nodes/prompts/paper): each stands in its folder's table, and the preset sends these and no others."""

from typing import Any

import pytest

from learngraph.graphs.arms import blueprint
from learngraph.nodes.act.policies import OptionsView
from learngraph.nodes.prompt import PROMPTS_DIR

FOLDERS = sorted(path for path in (PROMPTS_DIR / "paper").iterdir() if path.is_dir())
SENT = {
    "adamem": [
        "adamem:paper-low",
        "adamem:paper-high",
        *(f"adamem:paper-low?mode={m}" for m in ("raw", "max", "no-precedents")),
    ],
    "jitrl": ["jitrl:paper"],
    "jitrl_web": ["jitrl:paper-web"],
}
"""Folder -> the methods that send its prompts, all together."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_prompt_stands_in_the_table_of_its_folder(folder: Any) -> None:
    table = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| ")]
    for path in folder.glob("[a-z]*.md"):
        assert any(f"`{path.name}`" in row.split("|")[-2] for row in table), path


@pytest.mark.parametrize("name", SENT)
def test_the_presets_send_these_prompts_and_no_others(name: str) -> None:
    asked = set[str]()
    for method in SENT[name]:
        runnables = [spec.runnable for spec in blueprint(method).builder.nodes.values()]
        nodes = [getattr(one, "func", None) or one for one in runnables]
        found = {getattr(node, "asks", "") for node in nodes} - {""}
        # The policy of a blueprint scores; how one that states options would ask stands in its view.
        found |= {view.prompt for node in nodes if isinstance(view := getattr(node, "view", None), OptionsView)}
        assert all(prompt.startswith(f"paper/{name}/") for prompt in found), found
        asked |= found
    assert asked == {f"paper/{name}/{path.stem}" for path in (PROMPTS_DIR / "paper" / name).glob("[a-z]*.md")}

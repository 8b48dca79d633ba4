"""Every prompt can be shown with an example, and an agent's prompts speak of no game."""

import re

import pytest
from prompt_page import page, prompt_names

from learngraph.nodes.prompt import Prompt

OF_AGENTS = [name for name in prompt_names() if re.search(r"^agents/|/chat_|/conversation|adamem/ask_memory", name)]


def test_each_prompt_is_shown_with_an_example() -> None:
    assert re.findall(r"^## (.+)$", page(), re.MULTILINE) == prompt_names()
    assert "## adamem/strategy\n" in page("adamem/strategy")


@pytest.mark.parametrize("name", OF_AGENTS)
def test_prompts_of_agents_speak_of_conversations_and_not_of_games(name: str) -> None:
    said = " ".join(template.template for _, template in Prompt.load(name).parts).replace('"action"', "")
    assert not re.search(r"(?i)(?<!\$)\b(?:worlds?|actions?|games?|attempt \d|earning more)\b", said)

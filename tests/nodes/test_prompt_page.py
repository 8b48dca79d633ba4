"""The page of all prompts (nodes/prompts/README.md) is as fresh as the prompts, and an agent's prompts speak of no game."""

import re

import pytest
from prompt_page import PAGE, page, prompt_names

from learngraph.nodes.prompt import Prompt

OF_AGENTS = [name for name in prompt_names() if re.search(r"^agents/|/chat_|/conversation|adamem/ask_memory", name)]


def test_the_page_shows_the_prompts_as_they_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "a prompt has changed: python tests/factories/prompt_page.py"


@pytest.mark.parametrize("name", OF_AGENTS)
def test_prompts_of_agents_speak_of_conversations_and_not_of_games(name: str) -> None:
    said = " ".join(template.template for _, template in Prompt.load(name).parts).replace('"action"', "")
    assert not re.search(r"(?i)(?<!\$)\b(?:worlds?|actions?|games?|attempt \d|earning more)\b", said)

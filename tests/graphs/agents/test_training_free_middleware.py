"""`TrainingFreeGRPOMiddleware` in agents of `create_agent`: what the model is shown, and that it is what holds at the time."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from scripted_chat import SayingChat

from learngraph.graphs.agents.training_free_grpo import TrainingFreeGRPOMiddleware
from learngraph.memory.lessons.library import Library, LibraryError
from learngraph.memory.lessons.versions import LibraryVersions
from learngraph.memory.records import Lesson
from learngraph.nodes.lesson_prompts import append_lessons
from learngraph.nodes.prompt import Prompt

LESSONS = Library((Lesson("L0", "Boil the water first"), Lesson("L3", "Count the coins twice")))
PROMPT = Prompt.load("training_free_grpo/lessons")


class Scripted(SayingChat):
    """Uses the tool once, then answers; writes down what it was shown."""

    seen: list[list[BaseMessage]] = []  # noqa: RUF012 (pydantic copies it)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self.seen.append(messages)
        used = any(message.type == "tool" for message in messages)
        calls = [] if used else [{"name": "add", "args": {"a": 1, "b": 2}, "id": "1"}]
        return AIMessage("3" if used else "", tool_calls=calls)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def asked(
    middleware: TrainingFreeGRPOMiddleware, system: str | None = "You add.", text: str = "Count 1 + 2 coins"
) -> list[list[BaseMessage]]:
    """What the model was shown at each of its two calls."""
    model = Scripted()
    agent = create_agent(model, [add], system_prompt=system, middleware=[middleware])
    result = agent.invoke({"messages": [("user", text)]})
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "ai"], "no lesson stands in the state"
    assert len(model.seen) == 2
    return model.seen


def test_the_lessons_stand_at_the_end_of_the_system_message_at_every_call() -> None:
    for messages in asked(TrainingFreeGRPOMiddleware(LESSONS)):
        assert [message.type for message in messages[:2]] == ["system", "human"]
        said = str(messages[0].text)
        assert said.startswith("You add.\n\n")
        assert said.endswith("Lessons:\n- [L0] Boil the water first\n- [L3] Count the coins twice")


async def test_agents_that_are_awaited_are_shown_the_same() -> None:
    model = Scripted()
    agent = create_agent(model, [add], system_prompt="You add.", middleware=[TrainingFreeGRPOMiddleware(LESSONS)])
    await agent.ainvoke({"messages": [("user", "1 + 2?")]})
    assert [messages[0].text for messages in model.seen] == [asked(TrainingFreeGRPOMiddleware(LESSONS))[0][0].text] * 2


def test_an_empty_library_changes_nothing() -> None:
    for empty in (Library(), LibraryVersions()):
        for messages in asked(TrainingFreeGRPOMiddleware(empty)):
            assert messages[0].text == "You add."
        for messages in asked(TrainingFreeGRPOMiddleware(empty), system=None):
            assert messages[0].type == "human"


def test_d12_only_the_lessons_about_the_question() -> None:
    first, _ = asked(TrainingFreeGRPOMiddleware(LESSONS, lessons_per_prompt=1))
    assert "Count the coins" in str(first[0].text)
    assert "Boil" not in str(first[0].text)
    first, _ = asked(TrainingFreeGRPOMiddleware(LESSONS, lessons_per_prompt=1), text="Who wrote this?")
    assert first[0].text == "You add."


@pytest.mark.parametrize("of_a_folder", [False, True])
def test_an_agent_picks_up_the_version_that_holds(of_a_folder: bool, tmp_path: Path) -> None:
    versions = LibraryVersions(tmp_path / "run" / "s0" / "library.jsonl") if of_a_folder else LibraryVersions()
    versions.put("0", Library())
    middleware = TrainingFreeGRPOMiddleware(tmp_path / "run" if of_a_folder else versions)
    assert asked(middleware)[0][0].text == "You add."
    versions.put("1", LESSONS, parent="0")
    assert asked(middleware)[0][0].text == "You add.", "a candidate that was not accepted is not shown"
    versions.move("1")
    assert "Boil the water" in str(asked(middleware)[0][0].text)
    versions.rollback("0")
    assert asked(middleware)[0][0].text == "You add."


def test_an_agent_picks_up_what_a_person_edits(tmp_path: Path) -> None:
    file = tmp_path / "lessons.yaml"
    file.write_text(LESSONS.to_yaml())
    middleware = TrainingFreeGRPOMiddleware(str(file))
    assert "Boil the water first" in str(asked(middleware)[0][0].text)
    file.write_text(LESSONS.to_yaml().replace("Boil the water", "Filter the water"))
    assert "Filter the water first" in str(asked(middleware)[0][0].text)
    file.write_text("- text: a: b")
    with pytest.warns(UserWarning, match="not YAML.*the lessons read before are shown"):
        assert "Filter the water first" in str(middleware.library.text())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "Filter" in middleware.library.text(), "it is warned of once"
    file.write_text("- Another lesson altogether")
    assert middleware.library.text() == "- [L0] Another lesson altogether\n"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: TrainingFreeGRPOMiddleware(folder / "none.yaml"), "there is no library at"),
        (lambda folder: TrainingFreeGRPOMiddleware(folder), "holds no library.jsonl"),
        (lambda folder: TrainingFreeGRPOMiddleware(Library(), lessons_per_prompt=-1), "lessons_per_prompt is the number"),
    ],
)
def test_a_library_that_is_not_there_is_an_error_at_once(make: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=said):
        make(tmp_path)


def test_the_text_around_the_lessons_may_be_ones_own(tmp_path: Path) -> None:
    (tmp_path / "training_free_grpo").mkdir()
    (tmp_path / "training_free_grpo" / "lessons.md").write_text("## system\nMind this:\n$lessons\n")
    first, _ = asked(TrainingFreeGRPOMiddleware(LESSONS, prompts=tmp_path))
    assert first[0].text == "You add.\n\nMind this:\n- [L0] Boil the water first\n- [L3] Count the coins twice"


def test_lessons_in_messages_of_any_form() -> None:
    told = LESSONS.text()
    user = HumanMessage("1 + 2?")
    assert append_lessons([user], "", PROMPT) == [user]
    assert [message.type for message in append_lessons([user], told, PROMPT)] == ["system", "human"]
    blocks = SystemMessage([{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}], id="s")
    first, second = append_lessons([blocks, user], told, PROMPT)
    assert (first.id, second) == ("s", user)
    assert first.content[0] == blocks.content[0]
    assert "Boil the water" in str(first.content[1])
    assert "$" in str(append_lessons([user], "- costs $5 and $lessons\n", PROMPT)[0].text)


def test_a_library_of_another_model_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Named(FakeMessagesListChatModel):
        model_name: str = "model-b"

    library = Library((Lesson("L0", "Green doors are locked."),), written_by="model-a", tested_with="model-a")
    for name, said in (("model-b", 1), ("model-a", 0)):
        caplog.clear()
        agent = create_agent(
            Named(responses=[AIMessage("on")], model_name=name), middleware=[TrainingFreeGRPOMiddleware(library)]
        )
        for _ in range(2):
            agent.invoke({"messages": "door"})
        assert sum("passed their accept test with model-a; model-b is about to read them" in m for m in caplog.messages) == said

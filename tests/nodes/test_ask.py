"""Asking a model: read, ask again with the error, give up in words; the same sync and async."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

from learngraph.memory.lessons.library import Library, LibraryLimits
from learngraph.memory.records import Usage
from learngraph.nodes.ask import Ask, BadReply, text
from learngraph.nodes.evaluate.judge import read_score
from learngraph.nodes.extract.edits import read_edits, read_list
from learngraph.nodes.prompt import Prompt
from learngraph.nodes.read_reply import Unreadable, answer_text, read_action, read_object, read_options


class Heard(GenericFakeChatModel):
    """Replies in order, and keeps what it was asked."""

    heard: list[list[str]]

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.heard.append([text(m) for m in messages])
        return super()._generate(messages, *args, **kwargs)


def model(*replies: str) -> Heard:
    counted = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    return Heard(messages=iter([AIMessage(r, usage_metadata=counted) for r in replies]), heard=[])


def number(reply: AIMessage, state: Any) -> dict[str, Any]:
    try:
        return {"n": int(text(reply)) + state["n"]}
    except ValueError:
        raise Unreadable("asked for a number", f", got {text(reply)!r}") from None


def ask(model: Heard, **more: Any) -> Ask:
    return Ask(
        "test/number",
        model,
        lambda state: [HumanMessage(f"how many after {state['n']}?")],
        number,
        Prompt.load("ask/again"),
        **more,
    )


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    if request.param == "sync":
        return lambda node, state: node.invoke(state)
    return lambda node, state: asyncio.run(node.ainvoke(state))


def test_a_readable_reply(run: Any) -> None:
    assert run(ask(model("3")), {"n": 4}) == {"n": 7, "usage": Usage(1, 10, 2)}


def test_asks_again_with_the_error(run: Any) -> None:
    m = model("three", "3")
    assert run(ask(m), {"n": 4}) == {"n": 7, "usage": Usage(2, 20, 4, unreadable=1)}
    assert m.heard[1][:2] == ["how many after 4?", "three"]
    assert "asked for a number, got 'three'" in m.heard[1][2]


def test_gives_up_in_words(run: Any) -> None:
    with pytest.raises(BadReply, match=r"test/number: asked for a number, got 'c'$"):
        run(ask(model("a", "b", "c")), {"n": 0})


def test_or_records_that_it_is_missing(run: Any) -> None:
    lost = ask(model("a", "b", "c"), on_bad_reply=lambda bad, state: {"n": None, "why": bad.error})
    assert run(lost, {"n": 0}) == {"n": None, "why": "asked for a number, got 'c'", "usage": Usage(3, 30, 6, unreadable=3)}


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (lambda said: read_action(said, ["heron", "Heron"]), "Action: HERON"),
        (lambda said: read_action(said, ["go", "look"]), "a heron"),
        (lambda said: read_options(said, ["go", "look"]), '{"options": [{"action": "heron", "confidence": 50}]}'),
        (lambda said: read_options(said, ["go", "look"]), '{"options": [{"action": "heron", "confidence": "much"}]}'),
        (lambda said: read_object(said), "a heron"),
        (lambda said: read_score(AIMessage(said), (0.0, 1.0)), '{"score": "heron"}'),
        (lambda said: read_edits(said, Library(()), 3, LibraryLimits()), '{"edits": [{"op": "heron", "text": "a b c"}]}'),
        (lambda said: read_edits(said, Library(()), 3, LibraryLimits()), "a heron"),
        (lambda said: read_list(said, "lessons", 3), "a heron"),
        (lambda said: answer_text(AIMessage([{"type": "refusal", "refusal": said}])), "no heron"),
    ],
)
def test_the_log_repeats_no_words_of_a_reply(
    read: Callable[[str], Any], reply: str, caplog: pytest.LogCaptureFixture, run: Any
) -> None:
    caplog.set_level("INFO", "learngraph")
    asked = ask(model(reply, reply, reply), on_bad_reply=lambda bad, state: {"why": bad.error})
    assert "heron" in run(replace(asked, read=lambda said, state: read(text(said))), {"n": 0})["why"].lower(), (
        "the model is told"
    )
    assert len(caplog.messages) == 4
    assert "heron" not in caplog.text.lower()
    assert all(re.search(r"(asked for|refused) .*$", line) for line in caplog.messages), "it says what was asked for"


def test_other_errors_pass_through(run: Any) -> None:
    def broken(reply: AIMessage, state: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Ask("test/broken", model("1"), lambda state: [HumanMessage("?")], broken, Prompt.load("ask/again")), {})


def test_a_model_that_takes_seeds_says_the_same_from_the_same_state() -> None:
    """The seed comes from run, episode, step and what is asked; each try has its own."""
    seeds = []

    class Seeded(GenericFakeChatModel):
        seeded: ClassVar[bool] = True

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            seeds.append(kwargs["seed"])
            return super()._generate(messages, stop, run_manager)

    def asked(**state: Any) -> None:
        model: Any = Seeded(messages=iter([AIMessage("what?"), AIMessage("3")]))
        ask(model).invoke({"n": 0, **state})

    asked(run="r", episode=0, step=0)
    asked(run="r", episode=0, step=0)
    asked(run="r", episode=1, step=0)
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4


async def test_where_nobody_listens_a_model_may_answer_without_callbacks_but_not_without_what_is_bound_to_it() -> None:
    told: list[Any] = []

    class Quick(Heard):
        async def answer(self, messages: Any, **options: Any) -> AIMessage:
            told.append(("answer", options))
            return AIMessage("1")

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            told.append(("whole", kwargs))
            return super()._generate(messages, stop, run_manager)

    quick: Any = Quick(messages=iter(map(AIMessage, "111")), heard=[])
    nobody = {"callbacks": AsyncCallbackManager(handlers=[])}
    somebody = {"callbacks": AsyncCallbackManager(handlers=[BaseCallbackHandler()])}
    for asked, config in ((quick, nobody), (quick, somebody), (quick, None), (quick.bind(logprobs=True), nobody)):
        assert (await ask(asked).ainvoke({"n": 0}, config))["n"] == 1
    assert told == [("answer", {}), ("whole", {}), ("whole", {}), ("answer", {"logprobs": True})]


def test_a_model_that_has_nothing_left_to_say_is_an_error_and_no_answer(run: Any) -> None:
    """A fake model's list ends with StopIteration, which must not pass for the end of the dialogue."""
    with pytest.raises((StopIteration, RuntimeError)):  # in a coroutine Python itself makes the second of the first
        run(ask(model()), {"n": 4})
    with pytest.raises((StopIteration, RuntimeError)):
        run(ask(model("none")), {"n": 4})

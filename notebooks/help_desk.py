"""A help desk on which learning agents are tried without a language model: tickets, two tools, and clerks that follow a script.

A customer has one of four issues, and each has one resolution that helps (`RIGHT`), which the clerk is not told.

    GuessingClerk   looks the order up, then resolves by a guess: a quarter of its tickets go well
    HeedfulClerk    the same, but does what the lessons, notes, strategies or rewarded attempts in its system message say. It also plays
                    the critic: asked about a conversation, it says for which issue something was done, and whether to do it again

Both are chat models by their interface only. They show that a method remembers the right things and hands them over where a model
can read them; they say nothing about how well a language model would make use of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field, PrivateAttr

__all__ = [
    "HOWS",
    "RIGHT",
    "GuessingClerk",
    "HeedfulClerk",
    "issue",
    "lookup_order",
    "make_agent",
    "play",
    "resolve",
    "reward",
    "ticket",
]

RIGHT = {"arrived broken": "replace", "never arrived": "refund", "wrong size": "exchange", "was charged twice": "credit"}
"""What the customer says -> the only resolution that helps."""
HOWS = ("refund", "replace", "exchange", "credit")


@tool
def lookup_order(order: str) -> str:
    """Look an order up."""
    return f"order {order}: shipped"


@tool
def resolve(how: Literal["refund", "replace", "exchange", "credit"], order: str) -> str:
    """Resolve the customer's issue."""
    return f"{order}: {how} arranged"


class GuessingClerk(BaseChatModel):
    """A script in the place of a chat model: it looks the order up, then resolves by a guess, and never learns.

    Args:
        seed: of its guesses. Each depends on the number of the reply, so that asked again it may guess otherwise.
    """

    seed: int = 0
    _numbers: Any = PrivateAttr(default_factory=lambda: itertools.count(1))

    @property
    def _llm_type(self) -> str:
        return "scripted-clerk"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """The clerk, who knows the tools already."""
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.say(messages))])

    def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The reply to these messages."""
        number = next(self._numbers)  # samples are asked for from several threads
        start = max(n for n, m in enumerate(messages) if isinstance(m, HumanMessage))
        order = re.search(r"order (\w+)", messages[start].text)
        results = [m for m in messages[start:] if isinstance(m, ToolMessage)]
        id = f"call-{self.seed}-{number}"
        if not results and order:
            return AIMessage("", tool_calls=[{"name": "lookup_order", "args": {"order": order[1]}, "id": id}])
        if order and not any(m.name == "resolve" for m in results):
            how = Random(f"{self.seed}/{number}").choice(HOWS)
            logprobs = {"logprobs": {"content": [{"token": how, "logprob": -1.4}]}}
            call = {"name": "resolve", "args": {"how": how, "order": order[1]}, "id": id}
            return AIMessage("", tool_calls=[call], response_metadata=logprobs)
        return AIMessage("It is done.")


ADVICE = re.compile(r"customer says '([a-z ]+)', (do not )?resolve it by (\w+)")
CALL = re.compile(r"(?<!rejected by a person: )resolve\(how='(\w+)'")


class HeedfulClerk(GuessingClerk):
    """A script that heeds the advice in its prompt: it resolves by what stands there of the kind of issue, else by a guess.

    A guess is none that the message speaks against. Under a prompt of the package for a critic or a strategist it plays that part: it
    says what was done for which issue, and whether that is to be repeated.
    """

    seen: list[str] = Field(default_factory=list)
    """What it read as the agent: the system message, and the advice that stands with messages."""
    criticised: list[str] = Field(default_factory=list)
    """Prompts that it read as a critic."""
    garbles: bool = False
    """True: its replies as a critic cannot be read."""

    def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The reply to these messages."""
        system = str(messages[0].text) if messages[0].type == "system" else ""
        said = [str(m.text).partition("\n\n") for m in messages if m.type in ("human", "tool")]
        if critic := _critic_of(system):
            self.criticised.append("\n\n".join(str(m.text) for m in messages))
            return AIMessage("I would rather not." if self.garbles else critic(str(messages[1].text)))
        system = "\n\n".join([system, *(advice for _, _, advice in said if advice)])
        self.seen.append(system)
        reply = super().say(messages)
        asked = [str(m.text).partition("\n\n")[0] for m in reversed(messages) if isinstance(m, HumanMessage)]
        kind = next((k for text in asked for k in RIGHT if k in text), None)
        for call in reply.tool_calls:
            if call["name"] == "resolve" and kind:
                call["args"]["how"] = self.choose(system, kind, call["args"]["how"])
        return reply

    def choose(self, system: str, kind: str, guess: str) -> str:
        """A resolution of this kind of issue."""
        good, bad = set[str](), set[str]()
        for issue, never, how in ADVICE.findall(system):
            if issue == kind:
                (bad if never else good).add(how)
        for attempt in re.findall(r"<attempt number.*?</attempt>", system, re.DOTALL):
            if kind in attempt and (how := CALL.search(attempt)):
                (good if "Total reward: 1" in attempt else bad).add(how[1])
        if good:
            return min(good)
        return guess if guess not in bad else next((how for how in HOWS if how not in bad), guess)


def _advice(text: str) -> list[str]:
    """A lesson from each conversation in a text that shows what was done and what it earned."""
    found = []
    for part in re.split(
        r"(?=Step 1\. You saw:|Attempt \d+ ?\(|^Attempt:|(?<!tool calls\):\n)\| My order)", text, flags=re.MULTILINE
    ):
        kind, how = next((k for k in RIGHT if k in part), None), CALL.search(part)
        earned = re.search(r"(?:Total reward: |reward |total |Grade, from 0 to 1: )(-?[\d.]+\d|-?\d)", part)
        if kind and how:
            never = "" if earned and float(earned[1]) > 0 else "do not "
            found.append(f"When a customer says '{kind}', {never}resolve it by {how[1]}")
    return list(dict.fromkeys(found))


def _items(text: str) -> str:
    items = [{"title": "Resolutions", "description": "When an issue is resolved", "content": one} for one in _advice(text)]
    return "Thought.\n" + json.dumps({"items": items[:3]})


def _plan(text: str) -> str:
    return "I thought.\nPlan:\n" + " ".join(_advice(text.partition("<conversation")[2]) or ["Nothing was resolved."])


def _lessons(text: str) -> str:
    good_first = sorted(_advice(text), key=lambda one: "do not" in one)
    return "Compared.\n" + json.dumps({"lessons": good_first[:2], "helpful": [], "harmful": []})


def _edits(text: str) -> str:
    library, _, learned = text.partition("Attempts:")
    insights = re.findall(r"^- (When .*)$", learned.partition("Learned from them:")[2], re.MULTILINE)
    new = [one for one in insights if one not in library]
    return json.dumps({"edits": [{"op": "add", "text": one, "why": "seen"} for one in new[:2]]})


def _strategy(text: str) -> str:
    """Advice from each earlier situation: what succeeded there, and what did not."""
    good, bad = list[str](), list[str]()
    for part in text.partition("# The present situation")[0].split("Earlier situation ")[1:]:
        kind, how = next((k for k in RIGHT if k in part), None), CALL.search(part)
        if kind and how:
            well = "the attempt succeeded" in part
            (good if well else bad).append(f"- if a customer says '{kind}', {'' if well else 'do not '}resolve it by {how[1]}")
    items = list(dict.fromkeys([*good, *bad]))[:3]
    return "I compared them.\nStrategy:\n" + ("\n".join(items) or "nothing")


def _merged(text: str) -> str:
    new = dict.fromkeys(
        re.findall(r"When a customer says '[a-z ]+', (?:do not )?resolve it by \w+", text.partition("Proposals:")[2])
    )
    return json.dumps({"edits": [{"op": "add", "text": one, "from": []} for one in new]})


def _summary(text: str) -> str:
    return text[text.index("Attempt:") :]


def _critic_of(system: str) -> Callable[[str], str] | None:
    """The part that it plays under a system prompt of the package; None for the agent's own."""
    parts = {
        "You keep a library of lessons for an agent. You see an attempt": _items,
        "You have just had a conversation": _plan,
        "You study how an agent works": _summary,
        "You advise an assistant that talks": _strategy,
        "You compare attempts of an agent": _lessons,
        "You keep a library of lessons for an agent. The agent is shown them in its prompts, so each has to be worth its place. You see": _edits,
        "You keep a library of lessons for an agent. The agent is shown them in its prompts, so each has to be worth its place. Several": _merged,
    }
    return next((part for start, part in parts.items() if system.startswith(start)), None)


def issue(messages: Sequence[BaseMessage]) -> str:
    """The state of a support chat: the kind of issue."""
    said = next((m.text for m in reversed(messages) if isinstance(m, HumanMessage)), "")
    return next((kind for kind in RIGHT if kind in said), said)


def ticket(number: int) -> tuple[str, str]:
    """(the customer's words, the kind of issue)."""
    kind = [*RIGHT][number % len(RIGHT)]
    return f"My order A{number} {kind}.", kind


def reward(messages: Sequence[BaseMessage], kind: str) -> float:
    """1 if the issue was resolved in the right way."""
    calls = [call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls if call["name"] == "resolve"]
    return float(bool(calls) and calls[-1]["args"]["how"] == RIGHT[kind])


def make_agent(middleware: Sequence[Any] = (), seed: int = 0) -> Any:
    """An agent of LangChain's `create_agent` with both tools and a `HeedfulClerk`, whose threads are kept in this process."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    tools = [lookup_order, resolve]
    return create_agent(HeedfulClerk(seed=seed), tools, middleware=list(middleware), checkpointer=InMemorySaver())


def play(
    agent: Any, learner: Any, tickets: range, tenant: str = "acme", awaited: bool = False, words: tuple[str, str] = ("", "")
) -> list[float]:
    """Serve tickets, each in a thread of its own with feedback at once; returns their rewards. `words` are said of failure, success."""
    rewards = []
    for n in tickets:
        said, kind = ticket(n)
        config = {"configurable": {"thread_id": f"t{n}", "tenant": tenant}}
        out = asyncio.run(agent.ainvoke({"messages": said}, config)) if awaited else agent.invoke({"messages": said}, config)
        rewards.append(reward(out["messages"], kind))
        given = {"reward": rewards[-1], "text": words[int(rewards[-1])], "tenant": tenant}
        asyncio.run(learner.afeedback(f"t{n}", **given)) if awaited else learner.feedback(f"t{n}", **given)
        if hasattr(learner, "learn"):  # a critic would do so in a moment; the next ticket here comes at once
            asyncio.run(learner.alearn(tenant=tenant)) if awaited else learner.learn(tenant=tenant)
    return rewards

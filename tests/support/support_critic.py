"""The support agent's model, which heeds lessons, notes and rewarded attempts in its prompt, and answers the package's critic prompts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import support_desk
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from support_desk import HOWS, RIGHT, SupportModel

ADVICE = re.compile(r"customer says '([a-z ]+)', (do not )?resolve it by (\w+)")
CALL = re.compile(r"resolve\(how='(\w+)'")


class HeedfulModel(SupportModel):
    """Resolves by what its system message says of the kind of issue; else by a guess that nothing speaks against.

    It plays the critic, too: asked about conversations, it says what was done for which issue, and whether that is to be repeated.
    """

    seen: list[str] = []  # noqa: RUF012 (pydantic copies it)
    criticised: list[str] = []  # noqa: RUF012
    garbles: bool = False
    """True: its replies as a critic cannot be read."""

    def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
        system = str(messages[0].text) if messages[0].type == "system" else ""
        if critic := _critic_of(system):
            self.criticised.append("\n\n".join(str(m.text) for m in messages))
            return AIMessage("I would rather not." if self.garbles else critic(str(messages[1].text)))
        self.seen.append(system)
        reply = super().say(messages)
        kind = next((k for m in reversed(messages) if isinstance(m, HumanMessage) for k in RIGHT if k in m.text), None)
        for call in reply.tool_calls:
            if call["name"] == "resolve" and kind:
                call["args"]["how"] = self.choose(system, kind, call["args"]["how"])
        return reply

    def choose(self, system: str, kind: str, guess: str) -> str:
        """A resolution of this kind of issue."""
        good, bad = set(), set()
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
    for part in re.split(r"(?=Step 1\.|Attempt \d+ ?\(|^Attempt:|\| My order)", text, flags=re.MULTILINE):
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
    return "I thought.\nPlan:\n" + " ".join(_advice(text) or ["Nothing was resolved."])


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
    good, bad = [], []
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


def _critic_of(system: str) -> Any:
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


def play(
    agent: Any, learner: Any, tickets: range, tenant: str = "acme", awaited: bool = False, words: tuple[str, str] = ("", "")
) -> list[float]:
    """Serve tickets, each in a thread of its own with feedback at once; returns their rewards. `words` are said of failure, success."""
    rewards = []
    for n in tickets:
        said, kind = support_desk.ticket(n)
        config = {"configurable": {"thread_id": f"t{n}", "tenant": tenant}}
        out = asyncio.run(agent.ainvoke({"messages": said}, config)) if awaited else agent.invoke({"messages": said}, config)
        rewards.append(support_desk.reward(out["messages"], kind))
        given = {"reward": rewards[-1], "text": words[int(rewards[-1])], "tenant": tenant}
        asyncio.run(learner.afeedback(f"t{n}", **given)) if awaited else learner.feedback(f"t{n}", **given)
    return rewards

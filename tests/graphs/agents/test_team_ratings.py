"""Ratings of a supervisor and its sub-agent, in any order and by any id: each turn has learned what was said of it, and nothing else."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from billing_tool import billing_tool
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from scripted_chat import SayingChat
from variants import quick

from learngraph.graphs.agents.learner import rate_agents
from learngraph.graphs.agents.synapse import SynapseMiddleware

THREAD: Any = {"configurable": {"thread_id": "t"}}
NAMES = ("supervisor", "billing")


def read_request(message: Any) -> str:
    """What is asked, without the advice that stands with it."""
    return str(message.text).partition("\n")[0]


class Supervisor(SayingChat):
    """Asks billing where the user speaks of a bill; says which request it has done."""

    def bind_tools(self, tools: Any, **options: Any) -> "Supervisor":
        return self

    def say(self, messages: Any, **options: Any) -> AIMessage:
        asked = next(read_request(one) for one in reversed(messages) if isinstance(one, HumanMessage))
        if isinstance(messages[-1], HumanMessage) and "bill" in asked:
            return AIMessage("", tool_calls=[{"name": "ask_billing", "args": {"what": asked}, "id": f"call {asked}"}])
        return AIMessage(f"supervisor {asked}")


class Biller(SayingChat):
    """Says which request it has done."""

    def say(self, messages: Any, **options: Any) -> AIMessage:
        return AIMessage(f"billing {read_request(messages[-1])}")


class Team:
    """The two agents with their learners."""

    def __init__(self, mode: Any = "guide") -> None:
        store = InMemoryStore()
        self.learners = [SynapseMiddleware(store, name=NAMES[0], mode=mode), SynapseMiddleware(store, name=NAMES[1])]
        self.ask_billing = billing_tool(create_agent(Biller(), [], middleware=self.learners[1:]))
        self.graph: Any = create_agent(
            Supervisor(), [self.ask_billing], middleware=self.learners[:1], checkpointer=InMemorySaver()
        )
        self.replies = list[str]()

    def run(self, *, has_bill: bool) -> None:
        """A further request of the thread."""
        asked = f"{'bill' if has_bill else 'hello'} {len(self.replies)}"
        self.replies.append(self.graph.invoke({"messages": asked}, THREAD)["messages"][-1].id)

    def rate(self, run: int | None = None, **said: Any) -> list[str]:
        """Rate the thread, or a run by its reply; returns the agents that were rated."""
        return list(rate_agents(self.learners, "t", **said, **({} if run is None else {"message_id": self.replies[run]})))

    def learned(self) -> dict[str, tuple[float | None, str]]:
        """Agent and number of the run of each rated turn -> its reward and what was said of it."""
        found = {}
        for learner in self.learners:
            for one in learner._conversations({}).trajectories.all():
                for step in one.transitions:
                    if step.action.startswith("reply: "):
                        agent, _, run = step.action.removeprefix("reply: ").split()
                        found[f"{agent} {run}"] = one.transitions[-1].reward, one.note
        return found


@dataclass
class Said:
    """What was said of some turns of an agent at once."""

    last: int
    """The run of the last turn that the agent had."""
    reward: float | None = None
    text: str = ""


@dataclass
class Model:
    """What a person means: the turns of each agent, what was said of them, and what the last rating by the thread's id was about."""

    turns: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    by_thread: dict[tuple[str, int], Said] = field(default_factory=dict)
    by_reply: dict[tuple[str, int], Said] = field(default_factory=dict)
    meant: list[Said] = field(default_factory=list)
    """What the last rating by the thread's id has changed; empty where the last run was rated by itself after it."""
    runs: int = 0

    def run(self, *, has_bill: bool) -> None:
        """A further run."""
        for name in NAMES[: 1 + has_bill]:
            self.turns[name].append(self.runs)
        self.runs += 1

    def parts(self, run: int) -> list[tuple[str, int]]:
        """The turns of a run."""
        return [(name, run) for name in NAMES if run in self.turns[name]]

    def rate_run(self, run: int, reward: float | None, text: str | None) -> list[Said]:
        """Rate the turns of a run, each by itself."""
        changed = []
        for turn in self.parts(run):
            of_all = self.by_thread.get(turn)
            also = [one for one, said in self.by_thread.items() if said is of_all and one != turn]
            is_alone = all(one in self.by_reply and self.by_reply[one].reward is not None for one in also)
            if of_all and turn not in self.by_reply and run == of_all.last and (reward is None or is_alone):
                changed.append(of_all)  # it joins what was said of the thread
            else:
                changed.append(self.by_reply.setdefault(turn, Said(run)))
        self.change(changed, reward, text)
        if run == self.runs - 1 and not any(changed[0] is one for one in self.meant):
            self.meant = []
        return changed

    def rate_thread(self, reward: float | None, text: str | None) -> None:
        """Rate what nobody has rated by itself; where there is nothing, what was meant before, or the last run."""
        rated = self.by_thread.keys() | self.by_reply.keys()
        waiting = {name: [run for run in runs if (name, run) not in rated] for name, runs in self.turns.items()}
        is_last_rated = ("supervisor", self.runs - 1) in rated
        if any(waiting.values()) and not (reward is None and is_last_rated):
            self.meant = []
            for name, runs in waiting.items():
                if runs:
                    said = Said(self.turns[name][-1])
                    self.by_thread |= {(name, run): said for run in runs}
                    self.meant.append(said)
            self.change(self.meant, reward, text)
        elif self.meant:
            self.change(self.meant, reward, text)
        else:
            self.meant = self.rate_run(self.runs - 1, reward, text)

    @staticmethod
    def change(changed: Sequence[Said], reward: float | None, text: str | None) -> None:
        """What was said last holds, field by field."""
        for said in changed:
            said.reward, said.text = said.reward if reward is None else reward, said.text if text is None else text

    def learned(self) -> dict[str, tuple[float | None, str]]:
        """What is learned of each turn: by itself, if anything was said of it so, with the reward of all if that was a comment."""
        found = {}
        for turn in self.by_thread.keys() | self.by_reply.keys():
            said, of_all = self.by_reply.get(turn) or self.by_thread[turn], self.by_thread.get(turn, Said(0))
            found[" ".join(map(str, turn))] = of_all.reward if said.reward is None else said.reward, said.text
        return found


@pytest.mark.parametrize("seed", quick(range(40), *range(10)))
def test_a_rating_is_of_the_turns_that_are_meant_and_changes_no_other(seed: int) -> None:
    draw, team, model = random.Random(seed), Team(), Model()
    done = list[str]()
    for number in range(12):
        act = draw.choice(["run", "run", "thumb", "comment", "thumb of a run"]) if model.runs else "run"
        reward, text, run = draw.choice([-1.0, -0.5, 0.5, 1.0]), f"Words {number}.", draw.randrange(model.runs or 1)
        done.append(f"{act} {(reward, run) if act != 'comment' else ''}")
        if act == "run":
            has_bill = draw.random() < 0.5
            done[-1] = f"run, {has_bill=}"
            team.run(has_bill=has_bill), model.run(has_bill=has_bill)
        elif act == "thumb of a run":
            team.rate(run, reward=reward), model.rate_run(run, reward, None)
        else:
            said: Any = (reward, None) if act == "thumb" else (None, text)
            team.rate(**dict(zip(("reward", "text"), said, strict=True))), model.rate_thread(*said)
        assert team.learned() == model.learned(), done


def test_a_comment_on_the_thread_is_about_the_agents_of_the_thumb_and_leaves_thumbs_of_other_replies() -> None:
    team = Team()
    for has_bill in (True, True, False):
        team.run(has_bill=has_bill)
    for run in (0, 1):
        assert team.rate(run, reward=-1.0) == [*NAMES]
    for said in ({"reward": 1.0}, {"text": "Short."}, {"reward": 0.5}):
        assert team.rate(**said) == ["supervisor"]
    of_runs = {f"{name} {run}": (-1.0, "") for name in NAMES for run in (0, 1)}
    assert team.learned() == {**of_runs, "supervisor 2": (0.5, "Short.")}


def test_a_sub_agent_that_alone_learns_is_rated_by_the_reply_of_a_supervisor_that_is_observed() -> None:
    team = Team(mode="observe")
    for _ in range(2):
        team.run(has_bill=True)
    assert team.rate(0, reward=0.0, text="late") == list(NAMES)
    assert {what: said for what, said in team.learned().items() if "billing" in what} == {"billing 0": (0.0, "late")}
    assert team.learners[0].status().recalled == 0
    assert (
        team.learners[1].feedback(message_id=team.learners[1].conversation("t").turns[1].replies[-1], reward=1.0).reward == 1.0
    )


def test_a_thumb_while_a_run_is_at_work_is_about_the_runs_before_it_and_about_no_sub_agents_part_of_it() -> None:
    team, thumbs = Team(), list[list[str]]()
    team.run(has_bill=True)
    team.run(has_bill=False)

    class Thumb(AgentMiddleware):
        """Rates the thread from elsewhere after the sub-agent has answered."""

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            found = handler(request)
            with ThreadPoolExecutor() as threads:
                thumbs.append(threads.submit(team.rate, reward=-1.0).result())
            return found

    tools, more = [team.ask_billing], [*team.learners[:1], Thumb()]
    team.graph = create_agent(Supervisor(), tools, middleware=more, checkpointer=team.graph.checkpointer)
    team.run(has_bill=True)
    assert thumbs == [[*NAMES]]
    assert set(team.learned()) == {"supervisor 0", "supervisor 1", "billing 0"}

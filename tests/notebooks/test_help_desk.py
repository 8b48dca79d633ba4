"""The help desk's clerks do what their docstrings say: one guesses, the other heeds its system message and plays the critic."""

import help_desk as desk
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

SAID = HumanMessage(desk.ticket(2)[0])
FOUND = [SAID, ToolMessage("order A2: shipped", tool_call_id="1", name="lookup_order")]


def how(clerk: desk.GuessingClerk, system: str = "") -> str:
    found = clerk.invoke([SystemMessage(system), *FOUND] if system else FOUND)
    (call,) = found.tool_calls
    assert (call["name"], call["args"]["order"]) == ("resolve", "A2")
    return str(call["args"]["how"])


def test_a_clerk_looks_the_order_up_then_guesses_then_is_done() -> None:
    clerk = desk.GuessingClerk()
    assert clerk.invoke([SAID]).tool_calls[0]["args"] == {"order": "A2"}
    guesses = [how(clerk) for _ in range(80)]
    assert set(guesses) == set(desk.HOWS)
    assert clerk.invoke([*FOUND, ToolMessage("done", tool_call_id="2", name="resolve")]).text == "It is done."
    again = desk.GuessingClerk()
    again.invoke([SAID])
    assert [how(again) for _ in range(80)] == guesses, "the seed says all"


def test_a_heedful_clerk_does_what_is_said_of_the_issue_and_not_what_is_warned_of() -> None:
    clerk = desk.HeedfulClerk()
    assert {how(clerk, "When a customer says 'wrong size', resolve it by exchange") for _ in range(20)} == {"exchange"}
    warned = {how(clerk, "When a customer says 'wrong size', do not resolve it by credit") for _ in range(40)}
    assert warned == set(desk.HOWS) - {"credit"}
    assert {how(clerk, "When a customer says 'arrived broken', resolve it by refund") for _ in range(60)} == set(desk.HOWS)


def test_the_reward_is_for_the_last_resolution() -> None:
    agent = desk.make_agent(seed=3)
    rewards = set()
    for n in range(16):
        said, kind = desk.ticket(n)
        messages = agent.invoke({"messages": said}, {"configurable": {"thread_id": f"t{n}"}})["messages"]
        made = [c["args"]["how"] for m in messages for c in getattr(m, "tool_calls", ()) if c["name"] == "resolve"]
        rewards.add(desk.reward(messages, kind))
        assert desk.reward(messages, kind) == float(made[-1] == desk.RIGHT[kind])
    assert rewards == {0.0, 1.0}
    assert desk.reward([SAID], "wrong size") == 0.0

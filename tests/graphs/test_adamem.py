"""AdaMEM's graphs, played through by scripted models: what is asked, when, of what, and what is remembered."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawer import Drawer
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field
from scripted_chat import SayingChat

from learngraph.graphs import adamem
from learngraph.graphs.adamem import AdaMEM
from learngraph.graphs.arms import blueprint
from learngraph.graphs.wiring import flow, run
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.record_store import write_jsonl
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.act.episode import replay_actions
from learngraph.nodes.evaluate.judge import ZeroJudge
from learngraph.tools.environments.keyword_keep import ANSWERS, KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(3)
PICTURES = Path(__file__).parents[1] / "pictures"
ADVICE = "Think of the colour. Then go on."


class Chat(SayingChat):
    """Scripted: answers by what is asked for; every prompt is kept."""

    vote: Callable[[int], str] = lambda n: "no"
    """The answer to the n-th request for a decision; empty leaves the line out."""
    advice: str = ADVICE
    asked: list[tuple[str, str]] = Field(default_factory=list)
    """(what was asked: consider, reconsider, act or strategy; the user part of the prompt)."""

    def say(self, messages: list[BaseMessage], **options: Any) -> str:
        user = str(messages[-1].content)
        mark = re.search(r"^(Memory|Refresh): yes or no$", user, re.MULTILINE)
        tag = re.search(r"<(request_memory|refresh_decision)>", user)
        if "- if ... : ..." in user:
            kind, reply = "strategy", f"Both are doors.\nStrategy: {self.advice}"
        elif "<strategy>" in user:
            kind, reply = "strategy", f"<think>Doors.</think>\n<strategy>\n- {self.advice}\n</strategy>"
        else:
            shown = re.findall(r"^(?:door|gate|fork|chest|exit) \w+$", user, re.MULTILINE)[-1]
            action = ANSWERS[shown.split()[0]][0]
            found = mark or tag
            kind = ("consider" if "emory" in found[1] else "reconsider") if found else "act"
            votes = sum(asked[0] in ("consider", "reconsider") for asked in self.asked)
            said = self.vote(votes) if found else ""
            reply = f"Hm.\nAction: {action}" + (f"\n{mark[1]}: {said}" if mark and said else "")
            if "<action>" in user:
                reply = f"<think>Hm.</think><action>{action}</action>" + (f"<{tag[1]}>{said}</{tag[1]}>" if tag else "")
        self.asked.append((kind, user))
        return reply

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.asked]


@pytest.fixture
def bank(tmp_path: Path) -> str:
    path = tmp_path / "bank.jsonl"
    write_jsonl([replay_actions(TOY, TASK, TOY.gold(TASK), "gold", 0)], path)
    return str(path)


def play(settings: AdaMEM, chat: Chat, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Play one episode; what comes out, and the journal's rows."""
    journal = Journal(details=("tentative", "reasons", "precedents", "strategy", "synthesis"))
    made = MethodInputs.with_chat_model(TOY, journal, chat, **more)
    out = adamem.build(made, settings).invoke({"task": TASK, "run": "r", "episode": 0})
    return out, [dict(row) for row in journal.rows(out["head"])]


def alternating(n: int) -> str:
    return "yes" if n % 2 else "no"


def test_high_asks_once_or_three_times_a_step(bank: str) -> None:
    chat = Chat(vote=alternating)
    out, rows = play(AdaMEM(mode="high", bank=bank), chat)
    expected = [kind for n in range(out["step"]) for kind in (["consider"] if n % 2 == 0 else ["consider", "strategy", "act"])]
    assert chat.kinds() == expected
    assert out["usage"].calls == len(expected)
    assert out["usage"].refreshes == out["step"] // 2
    assert [bool(row["reasons"]) for row in rows] == [bool(n % 2) for n in range(len(rows))]


def test_high_drops_the_strategy_after_its_action_and_never_shows_the_experiences(bank: str) -> None:
    chat = Chat(vote=alternating)
    _, rows = play(AdaMEM(mode="high", bank=bank), chat)
    for kind, prompt in chat.asked:
        assert (f"Strategy: {ADVICE.rstrip('.')}" in prompt) == (kind == "act")
        assert ("Earlier situation 1 (this very task" in prompt) == (kind == "strategy")
    for n, row in enumerate(rows):
        assert row["tentative"] == row["action"]
        if n % 2:
            assert row["strategy"]["author"] == "model"
            assert row["strategy"]["sources"] == tuple(f"gold/0/{found['step']}" for found in row["precedents"])
            assert row["synthesis"]["reply"].endswith(ADVICE)
            assert row["synthesis"]["prompt"][1][1] == chat.asked[2 * n][1]
        else:
            assert (row["strategy"], row["synthesis"], row["precedents"]) == (None, None, [])


def test_low_asks_twice_at_the_start_then_once_or_three_times(bank: str) -> None:
    chat = Chat(vote=alternating)
    out, rows = play(AdaMEM(mode="low", bank=bank), chat)
    later = [k for n in range(out["step"] - 1) for k in (["reconsider"] if n % 2 == 0 else ["reconsider", "strategy", "act"])]
    assert chat.kinds() == ["strategy", "act", *later]
    # The strategy at hand stands in every decision, and the journal knows with which one each action was chosen.
    assert all("Strategy: Think" in prompt for kind, prompt in chat.asked if kind in ("reconsider", "act"))
    assert all(row["strategy"]["step"] == max(0, n - n % 2) for n, row in enumerate(rows))
    assert out["usage"].refreshes == 1 + (out["step"] - 1) // 2


def test_low_on_request_drafts_without_a_strategy_until_the_draft_is_voted_unsure(bank: str) -> None:
    """The paper's figure of low mode: nothing is asked at a start that says little."""
    chat = Chat(vote=lambda n: "yes" if n == 2 else "no")
    out, rows = play(AdaMEM("low-on-request", bank=bank), chat)
    assert chat.kinds() == ["consider"] * 3 + ["strategy", "act"] + ["reconsider"] * (out["step"] - 3)
    assert [row["strategy"] and row["strategy"]["step"] for row in rows] == [None, None, *[2] * (len(rows) - 2)]
    empty = Chat(vote=lambda n: "yes")
    play(AdaMEM("low-on-request"), empty)
    assert set(empty.kinds()) == {"consider"}, "nothing is alike in an empty memory, and the draft is carried out"


@pytest.mark.parametrize("mode", ["high", "low-on-request", "max", "raw", "no-precedents"])
def test_the_papers_wording_has_its_marks_and_no_other_prompt(mode: Any, bank: str) -> None:
    ours, paper = Chat(vote=alternating), Chat(vote=alternating)
    plain, same = play(AdaMEM(mode, bank=bank), ours)
    out, rows = play(AdaMEM(mode, bank=bank, wording="paper"), paper)
    assert (paper.kinds(), [row["reasons"] for row in rows]) == (ours.kinds(), [row["reasons"] for row in same])
    assert out["usage"].calls == plain["usage"].calls, "every reply could be read"
    assert all("<think> </think>" in prompt and "yes or no\n" not in prompt for _, prompt in paper.asked)


@pytest.mark.parametrize(
    ("mode", "each"), [("max", ["strategy", "act"]), ("raw", ["act"]), ("no-precedents", ["strategy", "act"])]
)
def test_the_other_modes_ask_the_same_at_every_step(mode: Any, each: list[str], bank: str) -> None:
    chat = Chat()
    out, _ = play(AdaMEM(mode=mode, bank=bank), chat)
    assert chat.kinds() == each * out["step"]
    for kind, prompt in chat.asked:
        shown = "strategy" if mode == "max" else "act" if mode == "raw" else ""
        assert ("Earlier situation 1 (this very task" in prompt) == (kind == shown)


@pytest.mark.parametrize("mode", ["high", "low", "max"])
@pytest.mark.parametrize("weak", ["empty", "floor"])
def test_nothing_is_written_from_nothing(mode: Any, weak: str, tmp_path: Path) -> None:
    """An empty memory, and one that holds nothing alike: the plain action, one call a step."""
    settings = AdaMEM(mode=mode)
    if weak == "floor":
        elsewhere = Task("put-1", "put a mug on the desk")
        path = tmp_path / "bank.jsonl"
        write_jsonl([replace(replay_actions(TOY, TASK, TOY.gold(TASK), "gold", 0), task=elsewhere)], path)
        settings = replace(settings, bank=str(path), min_similarity=0.99)
    chat = Chat(vote=lambda n: "yes")
    out, rows = play(settings, chat)
    assert len(chat.asked) == out["step"]
    assert "strategy" not in chat.kinds()
    assert all(row["strategy"] is None for row in rows)
    assert out["usage"].refreshes == 0
    assert not any("Strategy:" in prompt for _, prompt in chat.asked)


def test_a_refresh_that_finds_nothing_carries_the_draft_out(bank: str) -> None:
    chat = Chat(vote=lambda n: "yes")
    away = replay_actions(TOY, TASK, TOY.gold(TASK)[:1], "gold", 0)  # knows the first place alone
    write_jsonl([away], bank)
    out, rows = play(AdaMEM(bank=bank, min_similarity=0.9), chat)
    first = next(n for n, row in enumerate(rows) if row["state"] != rows[0]["state"]) if out["step"] > 1 else 1
    late = chat.kinds()[2 + 3 * (first - 1) :]
    assert set(late) <= {"reconsider", "strategy", "act"}
    assert late[0] == "reconsider"
    assert all(row["strategy"] for row in rows)  # the last one that had grounds


def test_a_malformed_decision_counts_as_no_and_is_counted(bank: str) -> None:
    chat = Chat(vote=lambda n: ("maybe", "", "yes")[n % 3])
    out, rows = play(AdaMEM(mode="high", bank=bank), chat)
    assert [bool(row["reasons"]) for row in rows] == [n % 3 == 2 for n in range(len(rows))]
    assert out["usage"].malformed == sum(n % 3 != 2 for n in range(len(rows)))


def test_the_rule_writes_without_a_call_and_says_that_it_is_one(bank: str) -> None:
    chat = Chat(vote=lambda n: "yes")
    out, rows = play(AdaMEM(mode="high", bank=bank, author="rule"), chat)
    assert set(chat.kinds()) == {"consider", "act"}
    assert out["usage"].refreshes == out["step"]
    gold = dict(zip(TOY.path(TASK), TOY.gold(TASK), strict=True))
    for row in rows:
        assert row["strategy"]["author"] == "rule"
        assert row["strategy"]["text"].startswith(f"{row['state']} {gold[row['state']]}")


def rounds(settings: AdaMEM, chat: Chat, records: Drawer, count: int = 2, **compile: Any) -> Any:
    inputs = MethodInputs.with_chat_model(TOY, Journal(), chat, records=records)
    return run.build(adamem.build(inputs, settings), **compile).invoke(
        run.RunInput(task=TASK, run="r", episode=0, episodes=count)
    )


def test_finished_episodes_join_the_memory_with_what_they_consulted(bank: str) -> None:
    records, chat = Drawer(), Chat(vote=lambda n: "yes")
    rounds(AdaMEM(mode="max", bank=bank), chat, records)
    assert list(records.kept) == ["r/0", "r/1"]
    assert records.kept["r/0"].used == ("gold/0",)
    assert set(records.kept["r/1"].used) == {"gold/0", "r/0"}
    frozen = Drawer()
    out = rounds(AdaMEM(mode="max", bank=bank, online=False), Chat(), frozen)
    assert not frozen.kept
    assert out["values"] == out["scores"]


def test_an_episode_finds_nothing_of_its_own_run_from_now_on(bank: str) -> None:
    records = Drawer()
    rounds(AdaMEM(mode="max"), Chat(), records, count=3)
    again, journal = Chat(), Journal()
    graph = adamem.build(MethodInputs.with_chat_model(TOY, journal, again, records=records), AdaMEM(mode="max", online=False))
    graph.invoke({"task": TASK, "run": "r", "episode": 0})
    assert "strategy" not in again.kinds()  # as when it was played first
    graph.invoke({"task": TASK, "run": "another", "episode": 0})
    assert "strategy" in again.kinds()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["high", "low"])
def test_an_episode_that_was_cut_off_goes_on_with_the_same_strategy_and_action(mode: Any, bank: str) -> None:
    """Pause before each node in turn, go on with a graph and a memory made anew: the same journal, the same calls in all."""
    settings = AdaMEM(mode=mode, bank=bank)
    whole, journal = Chat(vote=alternating), Journal()
    undisturbed = adamem.build(MethodInputs.with_chat_model(TOY, journal, whole), settings).invoke(
        {"task": TASK, "run": "r", "episode": 0}
    )
    nodes = ["consider", "recollect", "synthesize", "propose", "choose", "act", "remember"]
    for node in nodes:
        chat, second, saver = Chat(vote=alternating), Journal(), InMemorySaver()
        config: Any = {"configurable": {"thread_id": "t"}}
        asked: Any = {"task": TASK, "run": "r", "episode": 0}
        for _ in range(200):
            graph = adamem.build(MethodInputs.with_chat_model(TOY, second, chat), settings, checkpointer=saver)
            asked = graph.invoke(asked, config, interrupt_before=[node]) and None
            if not graph.get_state(config).next:
                break
        assert graph.get_state(config).values["head"] == undisturbed["head"]
        assert chat.asked == whole.asked, node


def test_a_draft_is_known_only_where_one_was_made(bank: str) -> None:
    """Low mode drafts nothing at a step that begins with a search: the draft of the step before is not its own."""
    chat = Chat(vote=alternating, advice="nothing")
    _, rows = play(AdaMEM(bank=bank), chat)
    assert [row["strategy"] for row in rows] == [None] * len(rows)
    assert [row["tentative"] for row in rows] == [None] * len(rows)  # never a strategy, so never a reconsideration
    assert chat.kinds().count("strategy") == 1, (
        "a strategist that found nothing of use is not asked about the same attempt again"
    )


def test_tasks_with_a_written_answer_are_played_step_by_step() -> None:
    class Read(KeywordKeep):
        def read(self, reply: str) -> tuple[str, ...]:
            return (reply,)

    chat = Chat(vote=alternating)
    world = Read()
    graph = adamem.build(MethodInputs.with_chat_model(world, Journal(), chat), AdaMEM(mode="high"))
    out = graph.invoke({"task": TASK, "run": "r", "episode": 0})
    assert chat.kinds() == ["consider"] * out["step"]
    assert out["usage"].malformed == 0


def test_models_that_write_see_past_observations_whole() -> None:
    class Wordy(KeywordKeep):
        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            seen = super().observe(task, actions)
            return replace(seen, text=f"{seen.text}\nsecond line of {seen.text}")

        def abstract(self, observation: Observation) -> str:
            return observation.text.partition("\n")[0]

    chat = Chat()
    adamem.build(MethodInputs.with_chat_model(Wordy(), Journal(), chat), AdaMEM(mode="high")).invoke(
        {"task": TASK, "run": "r", "episode": 0}
    )
    assert chat.asked[-1][1].count("second line of") == 16, "fifteen past ones and the present one"


def test_modes_are_separate_graphs_and_presets_name_them() -> None:
    drawn = {mode: flow.to_mermaid(blueprint(f"adamem?mode={mode}&author=model")) for mode in adamem.MODES}
    assert len(set(drawn.values())) == len(adamem.MODES)
    assert drawn["low"] == flow.to_mermaid(blueprint("adamem"))
    assert set(flow.read_flow(drawn["high"]).edges) == set(flow.read_flow(adamem.HIGH_FLOW).edges)
    assert "propose" in drawn["raw"]
    assert "synthesize" not in drawn["raw"]
    paper = AdaMEM.paper_high()
    assert paper.query_prompt == "Instruct: Find past situations of an agent that are like its present one\nQuery:"
    assert (paper.followup_steps, paper.max_state_chars) == (None, None), "the whole state, and all that followed"
    assert (paper.k, paper.outcomes, paper.min_similarity, paper.retrieval_key, paper.online) == (
        1,
        "success",
        0.0,
        "whole",
        False,
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "medium"}, "mode is one of high, low, low-on-request, max, raw, no-precedents"),
        ({"k": 0}, "k is a whole number of at least 1"),
        ({"min_confidence": 2.0}, "min_confidence is a number from 0 to 1"),
        ({"mode": "no-precedents", "author": "rule"}, "the rule writes from precedents"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        AdaMEM(**settings)


def test_a_kind_needs_to_know_what_a_success_is() -> None:
    class Open(KeywordKeep):
        solved = None  # type: ignore[assignment]

    with pytest.raises(UserError, match="which return is a success"):
        adamem.build(MethodInputs.with_chat_model(Open(), Journal(), Chat()), AdaMEM(outcomes="success"))
    with pytest.raises(UserError, match="which return is a success"):  # the toy's threshold is not a judge's
        adamem.build(MethodInputs.with_chat_model(TOY, Journal(), Chat(), judge=ZeroJudge()), AdaMEM(outcomes="success"))
    adamem.build(
        MethodInputs.with_chat_model(TOY, Journal(), Chat(), judge=ZeroJudge()),
        AdaMEM(outcomes="success", success_threshold=1.0),
    )


def test_a_bank_that_is_none_is_refused(tmp_path: Path, bank: str) -> None:
    elsewhere = KeywordKeep()
    elsewhere.name = "elsewhere"
    with pytest.raises(UserError, match="holds no trajectory of elsewhere; it has those of toy"):
        adamem.build(MethodInputs.with_chat_model(elsewhere, Journal(), Chat()), AdaMEM(bank=bank))
    path = tmp_path / "bank.jsonl"
    path.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match="line 1"):
        adamem.build(MethodInputs.with_chat_model(TOY, Journal(), Chat()), AdaMEM(bank=str(path)))
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl"):
        adamem.build(MethodInputs.with_chat_model(TOY, Journal(), Chat()), AdaMEM(bank=str(tmp_path / "none.jsonl")))


def test_a_run_tells_refreshes_and_unreadable_decisions(bank: str) -> None:
    log = Rows()
    inputs = MethodInputs.with_chat_model(TOY, Journal(), Chat(vote=lambda n: ""))
    run.build(adamem.build(inputs, AdaMEM(bank=bank)), log).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=1))
    (row,) = log.values()
    assert row["refreshes"] == 1
    assert row["malformed"] == row["steps"] - 1

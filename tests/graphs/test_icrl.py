"""ICRL and the inference-time baselines, played through: what they show, what they call, what they end with."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from drawer import Drawer
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from scripted_chat import ScriptedChat

from learngraph.graphs import icrl
from learngraph.graphs.arms import make_arm
from learngraph.graphs.baselines import best_of_n, cot, react, reflexion, self_refine
from learngraph.graphs.methods import find_method
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Candidate, Observation, Task
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.rows import Rows
from learngraph.nodes.act.policies import PromptView, act_policy, answer_policy
from learngraph.nodes.evaluate.judge import RuleJudge
from learngraph.nodes.prompt import Prompt
from learngraph.nodes.retrieve.attempts import ContextError
from learngraph.tools.environments.keyword_keep import KeywordKeep

TOY = KeywordKeep()
TASK = TOY.task(3)


@dataclass(frozen=True)
class BestPrefix:
    """Scripted, no model: reads the prompt's text, repeats the best attempt up to its last reward, then tries at random.

    All it knows of rewards is what the text says.
    """

    seen: PromptView

    def __call__(self, state: Any) -> dict[str, Any]:
        text = self.seen(state)["steps"]
        *earlier, running = re.split(r"^Attempt \d+.*:\n", text, flags=re.MULTILINE)[1:]
        done = len(re.findall(r"^> ", running, re.MULTILINE))
        prefixes = []
        for attempt in earlier:
            steps = re.findall(r"^> (.*)\n= (.*)$", attempt, re.MULTILINE)
            rewards = [float(reward) for _, reward in steps]
            end = max((n + 1 for n, reward in enumerate(rewards) if reward > 0), default=0)
            prefixes.append((sum(rewards), [action for action, _ in steps[:end]]))
        best = max(prefixes, default=(0.0, []))[1]
        actions = state["observation"].actions
        draw = random.Random(f"{state['run']}/{state['episode']}/{state['step']}")
        action = best[done] if done < len(best) else draw.choice(actions)
        return {"candidates": [Candidate(action, 0.0)]}


def rounds(settings: icrl.ICRL, count: int = 25, task: Task = TASK, name: str = "r") -> list[float]:
    graph = merge_steps(icrl.build(MethodInputs(TOY, Journal(), BestPrefix), settings))
    plan = run.RunInput(task=task, run=name, episode=0, episodes=count)
    played: list[float] = run.build(graph).invoke(plan)["scores"]
    return played


@pytest.mark.slow
def test_copying_the_best_prefix_never_gets_worse_and_needs_the_rewards() -> None:
    """On each of 3 seeds the return never falls; on average it rises, and ends above where zeroed rewards end."""
    everything = icrl.ICRL(selection="all")
    seen = [rounds(everything, 20, TOY.task(seed)) for seed in range(3)]
    zeroed = [rounds(replace(everything, rewards="zero"), 20, TOY.task(seed)) for seed in range(3)]
    assert all(scores == sorted(scores) for scores in seen)
    assert not any(scores == sorted(scores) for scores in zeroed)
    assert sum(s[-1] for s in seen) >= 2 * sum(s[0] for s in seen)
    assert sum(s[-1] for s in seen) >= 2 * sum(sum(z[-10:]) / 10 for z in zeroed)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [180, pytest.param(600, marks=pytest.mark.long)])
def test_the_zero_reward_arm_is_blind(budget: int) -> None:
    """The same attempts with the rewards elsewhere make the same prompts and the same answer: nothing is chosen by them."""

    class Paying(KeywordKeep):
        """The toy, but it pays what a test says for each action."""

        def __init__(self, paid: dict[str, float]) -> None:
            super().__init__()
            self.paid = paid

        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            return replace(super().observe(task, actions), reward=self.paid.get(actions[-1], 0.0) if actions else 0.0)

    def prompts(paid: dict[str, float], settings: icrl.ICRL) -> tuple[list[str], int]:
        shown: list[str] = []

        @dataclass(frozen=True)
        class Player:
            seen: PromptView

            def __call__(self, state: Any) -> dict[str, Any]:
                shown.append(self.seen(state)["steps"])
                draw = random.Random(f"{state['episode']}/{state['step']}")
                return {"candidates": [Candidate(draw.choice(state["observation"].actions), 0.0)]}

        graph = icrl.build(MethodInputs(Paying(paid), Journal(), Player), settings)
        out = run.build(graph).invoke(run.RunInput(task=TASK, run="r", episode=0, episodes=12))
        return shown, out["answer"]

    zero = icrl.ICRL(max_memory_tokens=budget, rewards="zero")
    assert prompts({"wait": 9.0}, zero) == prompts({"back": 5.0, "look": -3.0}, zero) == prompts({}, zero)
    assert prompts({"wait": 9.0}, icrl.ICRL(max_memory_tokens=budget)) != prompts({}, icrl.ICRL(max_memory_tokens=budget))


def test_a_budget_keeps_the_best_so_the_return_still_never_falls() -> None:
    scores = rounds(icrl.ICRL(max_memory_tokens=400), count=40)
    assert scores == sorted(scores)


def test_one_round_node_by_node() -> None:
    graph = icrl.build(MethodInputs(TOY, Journal(), BestPrefix), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"task": TASK, "run": "r", "episode": 0}, config, interrupt_before=["propose"])
    state = graph.get_state(config)
    assert state.next == ("propose",)
    assert (state.values["shown"], state.values["mode"]) == ([], "exploit")
    out = graph.invoke(None, config)
    assert {"task", "episode", "score", "best", "earned", "step", "head", "usage"} <= set(out)
    assert out["earned"] == out["score"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"last_n": 0}, "last_n is a whole number of at least 1; got 0"),
        ({"temperature": -1}, "at least 0"),
        ({"instruction": "exploite"}, "ICRL: instruction is one of "),
        ({"selection": "best"}, "ICRL: selection is one of "),
        ({"rewards": "dence"}, "ICRL: rewards is one of "),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        icrl.ICRL(**settings)


# Written answers


class Sums:
    """Write two numbers, each on a line of its own, that add up to 10. An environment with one written answer."""

    name, horizon, solved = "sums", 2, 1.0

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        if actions and not actions[-1].strip().lstrip("-").isdigit():
            return Observation("cannot read that", over=True, reward=None)
        over = len(actions) == 2
        return Observation(f"{len(actions)} of 2", over=over, reward=float(over and sum(map(int, actions)) == 10))

    def abstract(self, observation: Observation) -> str:
        return observation.text

    def read(self, reply: str) -> tuple[str, ...]:
        found = re.findall(r"^-?\d+$", reply, re.MULTILINE)
        return tuple(found[:2]) or (reply,)

    def verify(self, task: Task, actions: Sequence[str]) -> list[float | None]:
        return [3.0 if a.lstrip("-").isdigit() else None for a in actions]


SUM = Task("sum", "two numbers that make 10")


def answering(chat: ScriptedChat, **more: Any) -> MethodInputs:
    world = Sums()
    return MethodInputs(
        world,
        Journal(),
        make_policy=lambda seen: answer_policy(chat, seen, world.read),
        make_writing_policy=lambda seen, style: answer_policy(chat, seen, world.read, style.answer_prompt),
        model=chat,
        **more,
    )


def play(graph: Any, episodes: int, tokens: int = 0, **build: Any) -> dict[str, Any]:
    plan = run.RunInput(task=SUM, run="r", episode=0, episodes=episodes, tokens=tokens)
    out: dict[str, Any] = run.build(graph, **build).invoke(plan)
    return out


def test_one_answer_is_one_call_and_its_steps_are_shown_with_their_rewards() -> None:
    chat = ScriptedChat(replies=["4\n5", "thinking…\n4\n6"])
    out = play(icrl.build(answering(chat), icrl.ICRL(instruction="preset")), 3)
    assert out["scores"] == [0.0, 1.0, 0.0]
    assert out["answer"] == 1
    assert len(chat.asked) == 3
    assert "0 of 2\n\nThis is your first attempt at the task" in chat.prompt(0)
    steps = "Step 1. You saw:\n0 of 2\nAction: 4\nReward: 0\nStep 2. You saw:\n1 of 2\nAction: 5\nReward: 0\n"
    end = "After the last step you saw:\n2 of 2\nResult: no success after 2 steps. Total reward: 0 (a full success is 1).\n"
    assert f'<attempt number="1">\n{steps}{end}</attempt>' in chat.prompt(1)
    assert "This is attempt 2, and it is for earning more. No attempt above earned anything" in chat.prompt(1)
    assert "Result: success after 2 steps. Total reward: 1" in chat.prompt(2)
    assert "This is attempt 3, and it is for exploring." in chat.prompt(2)
    assert out["spent"] == 45


def test_an_answer_that_cannot_be_read_is_recorded_and_its_reward_is_missing() -> None:
    chat, records = ScriptedChat(replies=["no idea"]), Drawer()
    log = Rows()
    out = play(icrl.build(answering(chat, records=records)), 2, log=log)
    assert [t.transitions[0].action for t in records.all()] == ["no idea", "no idea"]
    assert [t.value for t in records.all()] == [None, None]
    assert out["values"] == [None, None]
    assert [(log.get(f"r/{n}") or {})["earned"] for n in range(2)] == [None, None]
    assert "Action: no idea\nAfter it you saw:\ncannot read that\n</attempt>" in chat.prompt(1)
    assert "Reward:" not in chat.prompt(1)
    assert "Total" not in chat.prompt(1)
    assert out["answer"] == 1  # no return is known: the last


def test_rewards_of_a_rule_are_what_the_method_sees_and_the_score_stays_the_truth() -> None:
    chat = ScriptedChat(replies=["4\n5"])
    inputs = answering(chat)
    out = play(icrl.build(replace(inputs, judge=RuleJudge(Sums().verify, inputs.journal))), 2)
    assert (out["scores"], out["values"]) == ([0.0, 0.0], [6.0, 6.0])
    assert "Action: 4\nReward: 3\n" in chat.prompt(1)
    assert "Result: Total reward: 6 in 2 steps.\n" in chat.prompt(1), "the world's full success is on another scale"


def test_a_window_smaller_than_the_task_is_an_error_before_the_first_call() -> None:
    chat = ScriptedChat(replies=["1\n2"])
    with pytest.raises(ContextError, match="task sum alone takes"):
        play(icrl.build(answering(chat, prompting=Prompting(window=5))), 1)
    assert not chat.asked


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["budget", "last"])
def test_no_prompt_and_its_reply_outgrow_the_window(keep: Any) -> None:
    """Whole messages, counted exactly (a character a token): system, brief, task, attempts, actions, and room for the reply."""

    class Wordy(Sums):
        """Many listed actions, played step by step, with long answers."""

        horizon = 12

        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            over = len(actions) == 12
            return Observation(f"{len(actions)} done", () if over else ("4", "5", "a longer action"), 0.0, over)

    chat = ScriptedChat(replies=["hm.\nAction: a longer action", "Action: 4", "Action: 5"])
    make = [icrl.build, reflexion.build, self_refine.build, best_of_n.build, react.build]
    for build in make:
        inputs = MethodInputs.with_chat_model(
            Wordy(), Journal(), chat, stepwise=True, count_tokens=len, window=2500, reserved_tokens=900, history_steps=None
        )
        settings = {"settings": icrl.ICRL(selection=keep, last_n=2)} if build is icrl.build else {}
        if build in (reflexion.build, self_refine.build):
            chat = ScriptedChat(replies=["Action: a longer action"] * 12 + ["a note of some length"])
            inputs = replace(
                inputs, model=chat, make_policy=lambda seen, chat=chat: act_policy(chat, seen), make_writing_policy=None
            )
        play(build(inputs, **settings), 6)
        longest = max(sum(len(str(message.text)) for message in asked) for asked in chat.asked)
        assert 600 < longest <= 2500


def test_a_budget_of_tokens_ends_a_run() -> None:
    chat = ScriptedChat(replies=["4\n5"])
    out = play(icrl.build(answering(chat)), 50, tokens=40)
    assert (len(out["scores"]), out["spent"]) == (3, 45)  # the episode in which they ran out is finished


def test_best_of_n_attempts_do_not_see_each_other() -> None:
    chat = ScriptedChat(replies=["4\n5", "4\n6", "1\n1"])
    out = play(best_of_n.build(answering(chat)), 3)
    assert len({chat.prompt(n) for n in range(3)}) == 1
    assert out["answer"] == 1


def test_reflexion_shows_the_last_three_plans_and_no_attempt() -> None:
    """Two calls a round, but one in the last, after which no plan is needed. The reflection sees the attempt with its rewards."""
    replies = [text for n in range(6) for text in (f"{n}\n{n}", f"plan {n}")]
    chat = ScriptedChat(replies=replies)
    play(reflexion.build(answering(chat)), 6)
    assert len(chat.asked) == 11
    assert "Lessons:\n- plan 2\n- plan 3\n- plan 4\n\nA full success earns 1 in all. You now see:\n0 of 2" in chat.prompt(10)
    assert "<attempt" not in chat.prompt(10)
    reflection = chat.prompt(3)
    assert "Lessons:\n- plan 0\n" in reflection
    assert '<attempt number="2">\nStep 1. You saw:\n0 of 2\nAction: 1\nReward: 0\n' in reflection
    assert "2 of 2\nResult: no success after 2 steps." in reflection
    assert "at most 150 words" in reflection
    chat = ScriptedChat(replies=replies)
    play(reflexion.build(answering(chat), reflexion.Reflexion(selection="budget")), 6)
    assert all(f"- plan {n}\n" in chat.prompt(10) for n in range(5))


def test_self_refine_shows_feedback_and_no_reward() -> None:
    chat, records = ScriptedChat(replies=["4\n6", "use smaller\nnumbers"]), Drawer()
    out = play(self_refine.build(answering(chat, records=records)), 3)
    assert len(chat.asked) == 5, "no feedback on the last attempt"
    assert "Step 2.\nAction: 6\nFeedback on it: use smaller\nnumbers\n</attempt>\n" in chat.prompt(2)
    assert not any("reward" in chat.prompt(n).lower() or "success" in chat.prompt(n) for n in range(5))
    assert [t.note for t in records.all()] == ["use smaller\nnumbers", "use smaller\nnumbers", ""]
    assert (out["scores"], out["answer"]) == ([1.0] * 3, 2)


@pytest.mark.parametrize("rewards", ["dense", "sparse"])
def test_self_refine_with_rewards_shows_them_in_attempts_and_where_feedback_is_asked_for(rewards: Any) -> None:
    chat, records = ScriptedChat(replies=["4\n5", "Feedback: nine is not ten"]), Drawer()
    out = play(self_refine.build(answering(chat, records=records), self_refine.SelfRefine(rewards=rewards)), 3, commit="last")
    assert len(chat.asked) == 5, "no feedback on the last attempt"
    end = "Result: no success after 2 steps. Total reward: 0 (a full success is 1).\n"
    for request in (1, 2, 3, 4):  # feedback, attempt, feedback, attempt
        assert end in chat.prompt(request)
        assert ("Action: 4\nReward: 0\n" in chat.prompt(request)) == (rewards == "dense")
    assert f"{end}Feedback on it: nine is not ten\n</attempt>" in chat.prompt(2)
    assert "Nobody tells you" not in str(chat.asked[1][0].text)
    assert "what its steps earned" in str(chat.asked[1][0].text)
    assert [t.value for t in records.all()] == [0.0] * 3
    assert (out["scores"], out["answer"]) == ([0.0] * 3, 2), "the last attempt is the answer, whatever it earned"


@pytest.mark.parametrize("method", ["react", "cot", "long-cot"])
def test_what_carries_nothing_over_asks_the_same_again(method: str) -> None:
    chat = ScriptedChat(replies=["4\n6"])
    play(find_method(method).build(answering(chat)), 2, commit="last")
    assert chat.prompt(0) == chat.prompt(1)
    assert chat.prompt(0).startswith(
        "Task: two numbers that make 10\n\nA full success earns 1 in all. You now see:\n0 of 2\n\n"
    )
    assert ("<think>" in chat.prompt(0)) == (method == "long-cot")


def test_react_plays_a_written_answer_step_by_step() -> None:
    chat, world = ScriptedChat(replies=["four first\nAction: 4", "ten less four\nAction: 6"]), Sums()
    out = play(react.build(MethodInputs.with_chat_model(world, Journal(), chat)), 1, commit="last")
    assert (out["scores"], len(chat.asked)) == ([1.0], 2)
    assert "Action: 4\nReward: 0\n" in chat.prompt(1)
    assert "You now see:\n1 of 2\n" in chat.prompt(1)


def test_where_the_list_is_not_all_that_is_understood_anything_is_played() -> None:
    class Parser(KeywordKeep):
        free_text = True

        def observe(self, task: Task, actions: Sequence[str]) -> Observation:
            return Observation("hm?" if actions else "here", ("on",), 0.0, over=len(actions) == 1)

    chat = ScriptedChat(replies=["Action: dance wildly"])
    graph = react.build(MethodInputs.with_chat_model(Parser(), Journal(), chat))
    assert graph.invoke({"task": TASK, "run": "r", "episode": 0})["step"] == 1
    assert "it understands others" in chat.prompt(0)


def test_a_plan_is_not_carried_into_the_next_episode_of_a_thread() -> None:
    chat = ScriptedChat(replies=["x\n1\n2\n3", "4\n6"])

    class Short(Sums):
        def read(self, reply: str) -> tuple[str, ...]:
            return tuple(re.findall(r"^-?\d+$", reply, re.MULTILINE))

    graph = icrl.build(MethodInputs.with_chat_model(Short(), Journal(), chat), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"task": SUM, "run": "r", "episode": 0}, config)
    assert graph.invoke({"task": SUM, "run": "r", "episode": 1}, config)["score"] == 1.0
    assert len(chat.asked) == 2


@pytest.mark.parametrize("rewards", [[float("nan"), 1.0], [1.0], ["2", 1.0]])
def test_a_judge_that_gives_no_numbers_is_an_error_in_words(rewards: list[Any]) -> None:
    inputs = replace(answering(ScriptedChat(replies=["4\n6"])), judge=lambda state: {"rewards": rewards, "unjudged": ""})
    with pytest.raises(UserError, match="one finite number or None per step, got"):
        play(icrl.build(inputs), 1)


def test_a_server_that_counts_nothing_does_not_make_a_budget_endless() -> None:
    class Silent(ScriptedChat):
        def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
            return AIMessage(super().say(messages, **options).text)

    out = play(icrl.build(answering(Silent(replies=["4\n5"]))), 50, tokens=2000)
    assert 1 < len(out["scores"]) < 20
    assert out["spent"] >= 2000


def test_react_thinks_before_every_action_and_sees_the_episode() -> None:
    gold = TOY.gold(TASK)
    chat = ScriptedChat(replies=[f"I think so.\n**Action:** {action}" for action in gold])
    graph = react.build(MethodInputs(TOY, Journal(), make_policy=lambda seen: act_policy(chat, seen)))
    out = graph.invoke({"task": TASK, "run": "r", "episode": 0})
    assert (out["score"], len(chat.asked)) == (TOY.optimum(TASK), len(gold))
    assert f"> {gold[0]}\n= 1\n" in chat.prompt(1)
    assert f"- {gold[0]}" in chat.prompt(0)  # the admissible actions


def test_a_scored_model_cannot_reason_in_writing() -> None:
    with pytest.raises(UserError, match="cot reasons in writing"):
        cot.build(MethodInputs(TOY, Journal(), BestPrefix))
    with pytest.raises(UserError, match="reflexion has a model write"):
        reflexion.build(MethodInputs(TOY, Journal(), BestPrefix))


# The answer of a run


def test_commit_judges_ties_again_by_a_judge_that_may_err() -> None:
    """Attempts 0 and 2 tie at 5; asked again, the judge gives 4 and 6 on average: the answer is attempt 2."""
    verdicts = {"h0": [3.0, 5.0, 4.0], "h2": [6.0, 6.0, 6.0]}

    def judge(state: Any) -> dict[str, Any]:
        return {"rewards": [verdicts[state["head"]].pop()], "unjudged": ""}

    log = Rows()
    for n in range(3):
        log.append({"id": f"r/{n}", "head": f"h{n}", "steps": 1, "score": 0.0})
    state: Any = {"run": "r", "values": [5.0, 1.0, 5.0], "lengths": [1, 1, 1], "scores": [0.0] * 3}
    assert run.CommitAttempt("best", log, judge)(state) == {"answer": 2, "spent": 0}
    assert verdicts == {"h0": [], "h2": []}
    assert run.CommitAttempt("best")(state)["answer"] == 0
    lost = run.CommitAttempt("best", log, lambda state: {"rewards": [None if state["head"] == "h0" else 4.9], "unjudged": ""})
    assert lost(state)["answer"] == 2  # who could not be judged again does not win by that
    assert run.CommitAttempt("best", log, judge)({**state, "tokens": 5, "spent": 5}) == {"answer": 0, "spent": 0}
    assert run.CommitAttempt("best")({**state, "lengths": [3, 1, 2]})["answer"] == 2  # the shorter of two equals
    assert run.CommitAttempt("last")(state) == {"answer": 2}
    assert run.CommitAttempt("best")({**state, "values": [None, None]}) == {"answer": 1}


@pytest.mark.parametrize("instruction", ["preset", "autonomous", "none"])
def test_the_papers_prompts_hold_attempts_and_rewards_and_nothing_of_ours(instruction: Any) -> None:
    """The first round already has its instruction, no round tells the best total, and the last attempt is the answer."""
    chat = ScriptedChat(replies=["4\n6", "4\n5", "1\n2"])
    settings = replace(icrl.ICRL.paper(), instruction=instruction)
    out = play(icrl.build(answering(chat), settings), 3, commit=settings.commit)
    assert out["answer"] == 2
    explore, exploit, either = (Prompt.load(f"paper/icrl/{name}").text() for name in ("explore", "exploit", "either"))
    said = {"preset": [explore, exploit, explore], "autonomous": [either] * 3, "none": [""] * 3}[instruction]
    for n, text in enumerate(said):
        assert [type(message).__name__ for message in chat.asked[n]] == ["HumanMessage"]
        assert [one in chat.prompt(n) for one in (explore, exploit, either)] == [
            one == text for one in (explore, exploit, either)
        ]
        assert all(word not in chat.prompt(n) for word in ("full success", "Reason first", "best attempt", "This is"))
        assert chat.prompt(n).count("<attempt") == n
        assert chat.prompt(n).endswith("do not try again.")
    assert "Action: 6\nReward: 1\n" in chat.prompt(1)


@pytest.mark.parametrize("method", ["best-of-n:paper", "self-refine:paper", "reflexion:paper", "cot?wording=paper"])
def test_what_the_paper_compares_with_is_asked_in_the_same_words(method: str) -> None:
    chat, arm = ScriptedChat(replies=["4\n5", "4\n5", "4\n5"]), make_arm(method)
    play(arm.method.build(answering(chat), arm.settings), 2)
    asked = chat.prompt(len(chat.asked) - 1)
    assert "Task: " not in asked
    assert asked.endswith("do not try again.")
    assert asked.startswith(
        "You see earlier" if "refine" in method else "Lines under" if "flexion" in method else "two numbers"
    )

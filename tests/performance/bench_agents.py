"""What a learning middleware adds to a model call of an agent: milliseconds besides the model's own time, and tokens.

    python tests/performance/bench_agents.py [--methods jitrl adamem ...] [--steps 1000 100000] [--calls 50]

The memory holds conversations of four decisions each, about a thousand kinds of issue; with an order number in each, no two texts are
the same. A critic has written about each conversation already, and a library has 50 lessons. A model call is `wrap_model_call` with a
model that answers at once, so that calls of the method's own (JitRL's samples, AdaMEM's strategist) cost what surrounds them.
Shown are the call that asks memory (at JitRL a decision, else the first call of a turn), recording a turn, and keeping its feedback;
the call after feedback that was given before has changed; and the first call of a process, which a large memory is read behind. Times
are of the CPU in all threads, which is what a call takes where nothing else runs, but for the first call. The target is 5 ms a call.

With `--cache`, in place of these rows: the share of the prompts' characters in a thread of 16 turns that a prompt cache knows, since a
prompt sent before in the thread begins with them. The help desk's clerk serves the turns; between two of them another thread is rated.

With `--rival`: each method on 40 tickets of the help desk, ten seeds, compared with few-shot by word overlap; tokens by estimate.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain.agents.middleware.types import ModelResponse
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from rows import make_parser, medians, report

from learngraph.graphs.agents.adamem import AdaMEMMiddleware
from learngraph.graphs.agents.consultation import add_to_system_message
from learngraph.graphs.agents.evaluation import AgentArm, AgentTask, evaluate_learning
from learngraph.graphs.agents.given_advice import SentPrompts, prompt_parts
from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.agents.reflexion import ReflexionMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.agents.training_free_grpo import TrainingFreeGRPOMiddleware
from learngraph.memory.conversations.messages import call_text, last_user_message, trajectory
from learngraph.memory.conversations.store import Reflection, trajectory_digest
from learngraph.memory.lessons.library import Library
from learngraph.memory.records import Lesson, Task, Trajectory
from learngraph.nodes.ask import estimate_tokens

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))
import help_desk as desk

KINDS = 1_000
STEPS_PER_CONVERSATION = 4
NOW = HumanMessage("issue of kind 7, order A0", id="h1")


class Clerk(desk.GuessingClerk):
    """Answers at once: as a strategist with a strategy, else that it is done."""

    def say(self, messages: Any) -> AIMessage:
        strategist = str(messages[0].text).startswith("You advise an assistant that talks")
        return AIMessage("Strategy:\n- resolve it by refund" if strategist else "It is done.")


def issue(messages: Any) -> str:
    """The kind of issue, which the tickets of this benchmark name."""
    return next(str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage)).partition(",")[0]


def call(how: str, number: int) -> AIMessage:
    """A decision of the agent."""
    return AIMessage("", tool_calls=[{"name": "resolve", "args": {"how": how, "order": f"A{number}"}, "id": f"c{number}"}])


def library() -> Library:
    """Fifty lessons."""
    return Library(tuple(Lesson(f"L{n}", f"When the issue is of kind {n}, resolve it by refund.") for n in range(50)))


METHODS: dict[str, Callable[[Any], Any]] = {
    "jitrl": lambda store: JitRLMiddleware(store, decide=["resolve"], state_key=issue),
    "adamem": AdaMEMMiddleware,
    "synapse": SynapseMiddleware,
    "icrl": lambda store: ICRLMiddleware(store, task=issue),
    "reflexion": lambda store: ReflexionMiddleware(store, task=issue),
    "reasoning-bank": ReasoningBankMiddleware,
    "lessons": lambda store: TrainingFreeGRPOMiddleware(library(), store=store, critic=Clerk(), task=issue),
}


LABELS = {"jitrl": "jitrl: a call at a decision", "adamem": "adamem: a call, with its strategist"}
"""What is timed, where it is more than a method's call."""


def written(method: str, one: Trajectory) -> Reflection:
    """The text of the method's critic on a conversation."""
    advice = f"When a customer says this, resolve it by refund, as in case {one.run}."
    key = one.transitions[0].state
    lesson = Lesson(f"bank/{one.id}/0", advice, "Refunds", "a customer complains", "agent", key, "agent", sources=(one.id,))
    note = advice if method == "reflexion" else f"alike group {one.id}"
    lessons = (lesson,) if method == "reasoning-bank" else ()
    return Reflection(f"{method}/{one.id}", one.run, trajectory_digest(one), "" if lessons else note, lessons)


def fill(learner: Any, steps: int, has_critic: bool) -> None:
    """Give the learner's scope so many remembered decisions."""
    random = Random(0)
    store = learner._memory(learner._labels({})).conversations
    found = list[Trajectory]()
    for n in range(steps // STEPS_PER_CONVERSATION):
        said: list[Any] = []
        for turn in range(STEPS_PER_CONVERSATION):
            number = random.randrange(KINDS)
            said += [HumanMessage(f"issue of kind {number}, order A{n}"), call(random.choice(desk.HOWS), turn)]
        task = learner._task(said[:1]) if learner._task else "agent"
        key = learner.state_key
        found.append(trajectory(said, random.random(), run=f"t{n}", task=Task(task, ""), domain="agent", state_key=key))
    store.trajectories.put(found)
    if has_critic:
        store.reflections.put([written(learner.method, one) for one in found])


def timed(work: Callable[[], Any], rounds: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Milliseconds of each round, of the CPU in all threads if no other clock is given."""
    found = []
    for _ in range(rounds):
        start = clock()
        work()
        found.append((clock() - start) * 1e3)
    return found


def measure(method: str, steps: int, count: int, rounds: int, is_largest: bool) -> None:
    """The rows of a method with a memory of this size."""
    learner = METHODS[method](InMemoryStore())
    fill(learner, steps, has_critic=hasattr(learner, "critic"))
    var_child_runnable_config.set({"configurable": {"thread_id": "now"}})
    answer, sent, model = call("refund", 1), list[Any](), Clerk()

    def handler(request: Any) -> ModelResponse[Any]:
        sent.append(request)
        return ModelResponse([answer])

    def ask() -> Any:
        return learner.wrap_model_call(
            ModelRequest(
                model=model,
                messages=[NOW],
                tools=[desk.lookup_order, desk.resolve],
                state={"messages": [NOW]},
                runtime=Runtime(),
            ),
            handler,
        )

    opened, (opening,) = time.perf_counter(), timed(ask, 1, time.perf_counter)
    learner.memory()
    ready = time.perf_counter() - opened
    ask()
    sent.clear()
    calls = timed(ask, count)
    more, read = len(sent) / count - 1, [sent[-1].system_message, *sent[-1].messages]
    tokens = estimate_tokens("".join(str(one.text) for one in read if one)) - estimate_tokens(str(NOW.text))
    state = {"messages": [NOW, call("refund", 1), AIMessage("It is done.")], "learning": []}
    recorded = timed(lambda: learner.after_agent(state, Runtime()), count)
    kept = learner._memory(learner._labels({})).conversations
    rated = timed(lambda: kept.rate("now", Random().random()), count)  # without the critic that studies it

    def ask_after_change() -> None:
        kept.rate("now", Random().random())
        ask()

    var_child_runnable_config.set({"configurable": {"thread_id": "next"}})
    changed = timed(ask_after_change, 5)
    what, of = LABELS.get(method, f"{method}: a call"), f"{steps:,} remembered steps"
    note = f"90th percentile {sorted(calls)[int(0.9 * len(calls))]:.1f} ms" + (
        f", {more:.0f} more calls of the model" if more else ""
    )
    report(f"{what}, {of}", medians(calls, rounds), "ms", at_most=5, note=note)
    if is_largest:
        report(f"{method}: a call after changed feedback, {of}", changed, "ms", at_most=5)
        note = f"its memory is open after {ready:.1f} s"
        report(f"{method}: first call of a process, {of}", opening / 1e3, "s", at_most=1, note=note)
        report(f"{method}: tokens added to a call", tokens)
        report(f"{method}: record a turn, {of}", medians(recorded, rounds), "ms")
        report(f"{method}: keep feedback, {of}", medians(rated, rounds), "ms")


DESK_METHODS: dict[str, Callable[[Any], Any]] = {
    "jitrl": lambda store: JitRLMiddleware(store, decide=["resolve"], state_key=desk.issue),
    "adamem": AdaMEMMiddleware,
    "synapse": SynapseMiddleware,
    "icrl": ICRLMiddleware,
    "reflexion": lambda store: ReflexionMiddleware(store, study="job"),
    "reasoning-bank": lambda store: ReasoningBankMiddleware(store, study="job"),
    "lessons": lambda store: TrainingFreeGRPOMiddleware(store=store, critic=desk.HeedfulClerk(), group_size=2, study="job"),
}


class MeteredClerk(desk.HeedfulClerk):
    """A clerk that counts the characters of the agent's prompts; one that is sent again as it was, as for another sample, is not."""

    is_metered: bool = False
    sizes: list[tuple[int, int]] = []  # noqa: RUF012 (pydantic copies it)
    prompts: Any

    def say(self, messages: Any) -> AIMessage:
        """The reply, after counting."""
        if self.is_metered and str(messages[0].text).startswith("You help customers"):
            cached, size = self.prompts.add(prompt_parts(messages))
            self.sizes += [(cached, size)] if cached < size else []
        return super().say(messages)


@tool
def lookup_order(order: str) -> str:
    """Look an order up."""
    return f"order {order}: shipped" + " from the warehouse, as it says in the log." * 100


def cached_share(method: str | None, turns: int = 16) -> tuple[float, float, int]:
    """Play a thread with a method, or without; returns the share of its prompts sent before, its mean reward, and its prompts' size."""
    learner = DESK_METHODS[method](InMemoryStore()) if method else None
    tools, used = [lookup_order, desk.resolve], [learner] if learner else []
    model, earned = MeteredClerk(prompts=SentPrompts()), 0.0
    agent = create_agent(model, tools, system_prompt="You help customers.", middleware=used, checkpointer=InMemorySaver())
    if learner:
        desk.play(agent, learner, range(24))
    model.sizes.clear()
    for n in range(24, 24 + turns):
        said, kind = desk.ticket(n)
        config: Any = {"configurable": {"thread_id": "long", "tenant": "acme"}}
        model.is_metered = True
        found = agent.invoke({"messages": said}, config)
        model.is_metered = False
        start = last_user_message(found["messages"])
        earned += desk.reward(found["messages"][start:], kind) / turns
        if learner:
            desk.play(agent, learner, range(100 + n, 101 + n))
    cached, sent = (sum(one) for one in zip(*model.sizes, strict=True))
    return cached / sent, earned, sent


class CountingClerk(desk.HeedfulClerk):
    """A clerk that says how many tokens it read and wrote, by estimate."""

    def say(self, messages: Any) -> AIMessage:
        """The reply, with its tokens."""
        found = super().say(messages)
        read = sum(estimate_tokens(f"{one.text} {getattr(one, 'tool_calls', '') or ''}") for one in messages)
        written = estimate_tokens(f"{found.text} {found.tool_calls or ''}")
        found.usage_metadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        found.response_metadata = {**found.response_metadata, "model_name": "clerk"}
        return found


def make_agent(middleware: Any, seed: int) -> Any:
    """An agent of the help desk whose tokens are counted."""
    return create_agent(
        CountingClerk(seed=seed), [desk.lookup_order, desk.resolve], middleware=list(middleware), checkpointer=InMemorySaver()
    )


class FewShot(AgentMiddleware[Any, Any, Any]):
    """A rival: the three rated conversations whose first messages share the most words with the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.known = list[tuple[set[str], str]]()

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Ask the model with the conversations."""
        said = set(str(request.messages[0].text).lower().split())
        nearest = sorted(self.known, key=lambda one: len(one[0] & said), reverse=True)[:3]
        section = "\n".join(text for words, text in nearest if words & said)
        return handler(add_to_system_message(request, section))

    def learn(self, task: AgentTask, messages: Any, reward: float | None) -> None:
        """Keep a rated conversation."""
        done = "; ".join(call_text(call) for one in messages for call in getattr(one, "tool_calls", ()))
        shown = f"<attempt number='1'>{task.messages}\n{done}\nTotal reward: {reward:g}</attempt>"
        self.known.append((set(str(task.messages).lower().split()), shown))


def compare_with_rival(methods: Sequence[str], seeds: int, first: int) -> str:
    """A table of methods on the help desk, ahead of few-shot by word overlap; `first` is added to seeds and numbers of tickets."""
    rivals = dict[int, FewShot]()

    def make(seed: int) -> Any:
        agent = make_agent([rival := FewShot()], first + seed)
        rivals[id(agent)] = rival
        return agent

    few_shot = AgentArm(make, lambda agent, task, messages, reward: rivals[id(agent)].learn(task, messages, reward))
    tickets = [AgentTask(f"ticket {n}", *desk.ticket(n)) for n in range(first, first + 40)]
    arms = {"few-shot": few_shot, "no memory": None, **{name: DESK_METHODS[name] for name in methods}}

    def begin(middleware: Any, seed: int) -> Any:
        return make_agent(middleware, first + seed)

    return evaluate_learning(begin, tickets, lambda t, m: desk.reward(m, t.reference), arms=arms, seeds=seeds).table()


def main() -> None:
    """Report the rows."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 10], help="the first one, and their number (%(default)s)")
    options = parser.parse_args()
    if options.rival:
        first, count = options.seeds
        print(compare_with_rival(options.methods, 2 if options.quick else count, first))
        return
    if options.cache:
        for method in (None, *options.methods):
            share, earned, size = cached_share(method)
            note = f"reward {earned:.2f}; {size:,} characters sent"
            report(f"{method or 'no memory'}: share of the prompts of 16 turns that was sent before", share, note=note)
        return
    sizes = [200, 400] if options.quick else sorted(options.steps)
    for method in options.methods:
        for steps in sizes:
            measure(method, steps, 10 if options.quick else options.calls, options.rounds, steps == sizes[-1])


if __name__ == "__main__":
    main()

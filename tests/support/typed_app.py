"""An app with each learning middleware, for mypy: `--strict` finds nothing wrong in it, and what is misspelt here is an error there.

A `type: ignore` on a line where mypy finds no error is an error itself: so each of them shows that a mistake is found.
"""

from collections.abc import Sequence
from uuid import UUID

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

from learngraph.graphs.agents.adamem import AdaMEMMiddleware
from learngraph.graphs.agents.claas import FeedbackMiddleware
from learngraph.graphs.agents.icrl import ICRLMiddleware
from learngraph.graphs.agents.jitrl import JitRLMiddleware
from learngraph.graphs.agents.learner import LearningState
from learngraph.graphs.agents.reasoning_bank import ReasoningBankMiddleware
from learngraph.graphs.agents.reflexion import ReflexionMiddleware
from learngraph.graphs.agents.synapse import SynapseMiddleware
from learngraph.graphs.agents.training_free_grpo import TrainingFreeGRPOMiddleware


def resolve(how: str) -> str:
    """Resolve the customer's issue."""
    return how


def kind(messages: Sequence[BaseMessage]) -> str:
    """The kind of case."""
    return str(messages[0].text)


def make_agents(model: BaseChatModel) -> None:
    """An agent with each middleware, and feedback on it."""
    store, saver = InMemoryStore(), InMemorySaver()
    jitrl = JitRLMiddleware(store, decide=["resolve"], state_key=kind, scope=("tenant", "user_id?"))
    bank = ReasoningBankMiddleware("memory", critic=model, study="job", reward_range=(1, 5))
    lessons = TrainingFreeGRPOMiddleware(store=store, critic=model, window=8_000)
    served = FeedbackMiddleware(store, base_url="http://127.0.0.1:8000/v1", raters=("user",))
    synapse, icrl = SynapseMiddleware(mode="observe"), ICRLMiddleware(store, task=kind, hold=True)
    adamem, reflexion = AdaMEMMiddleware(store, strategist=model), ReflexionMiddleware(store, screen=None)
    for learner in (jitrl, bank, lessons, served, synapse, icrl, adamem, reflexion):
        create_agent(model, [resolve], middleware=[learner], checkpointer=saver, store=store)
        learner.feedback("t1", reward=1.0, tenant="acme", user_id=UUID(int=1))
    create_agent(model, [resolve], middleware=[jitrl, bank, synapse])
    print(bank.learn(tenant="acme").problems, jitrl.feedback(run_id=UUID(int=2), text="fine").reward)

    bank.feedback("t1", rewrd=1.0)  # type: ignore[arg-type]
    SynapseMiddleware(store, modes="observe")  # type: ignore[call-arg]
    ReflexionMiddleware(store, study="never")  # type: ignore[arg-type]

    builder = StateGraph(LearningState)
    builder.add_node("model", bank.node(model, [resolve]))
    builder.add_edge(START, "model")
    builder.compile(checkpointer=saver)


async def rate(learner: ReasoningBankMiddleware) -> list[str]:
    """What happened, in words."""
    await learner.afeedback("t1", reward=4, tenant="acme")
    print(await learner.alearn(tenant="acme"), await learner.astatus(tenant="acme"))
    return [await learner.aexplain("t1", tenant="acme"), *[str(one) async for one in learner.aexport(tenant="acme")]]

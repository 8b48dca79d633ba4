"""Prompt Update: JitRL's retrieval and JitRL's advantages, written into the prompt: the ablation of the logit update.

JitRL's paper (arXiv:2601.18510) asks with it what the update of the logits is worth. All that memory works out is the same, by the
same nodes (graphs/jitrl.py has the equations); then the model reads the numbers, and its logits stay as they are. Where JitRL's state
key has a history, so has this one's, and a model that chats reads it as it does there.

    recall    N(s) and m(a), as in JitRL                                      Eq. 24
    list      candidates: the actions that the world lists; where it lists none, those that memory knows
    advise    A~(s, a) of every candidate, as in JitRL                        Eq. 4 to 7, 25
    propose   the policy, with A~ in its prompt (nodes/retrieve/advantages.py)
    choose    draw from softmax(z / temperature); z as the policy gave it
    remember  G_t of every step, as in JitRL                                  Eq. 3

JitRL rates what the policy proposed, and this method what the policy could propose, since the numbers come first. For a model whose
actions are scored both are all admissible actions, and the numbers are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ...memory.errors import UserError
from ...memory.returns.experiences import Experiences
from ...nodes.act.decide import ListActions, route_known_actions
from ...nodes.act.episode import Act
from ...nodes.retrieve.advantages import AdvantagesPart
from ...nodes.retrieve.attempts import PromptPart
from ...nodes.retrieve.context import ContextPart, WorldWithContext
from ...nodes.retrieve.recall import Remember
from ...nodes.state import AdviceChannels, AttemptState, RecallChannels
from ..jitrl import VARIANT_NODES, AdvantageSettings, JitRL, open_memory
from ..wiring.episode import episode_graph, episode_nodes
from ..wiring.flow import Graph, Node
from ..wiring.inputs import NOT_GIVEN, MethodInputs, given_settings
from ..wiring.state_keys import check_needs, make_judge, make_trace_node

__all__ = ["FLOW", "PromptUpdate", "build"]

FLOW = """
flowchart LR
  START --> begin --> recall --> list
  list -->|some actions| advise --> propose
  list -->|no action known| propose
  propose --> choose --> act
  act -->|next step| recall
  act -->|over| judge --> remember --> END
"""

FLOW_WITH_HISTORY = FLOW.replace("begin --> recall", "begin --> trace --> recall").replace(
    "|next step| recall", "|next step| trace"
)
"""The drawing where the state key says how the state was reached."""


class PromptUpdateState(AttemptState, RecallChannels, AdviceChannels):
    """The channels of a Prompt Update episode."""


@dataclass(frozen=True)
class PromptUpdate(AdvantageSettings):
    """Hyper-parameters: those of JitRL, without its control of the memory and the two of the logit update."""

    def __post_init__(self) -> None:
        self.as_jitrl()

    preset_temperatures: ClassVar = JitRL.preset_temperatures

    @classmethod
    def paper(cls) -> PromptUpdate:
        """The advantages of the paper's method."""
        return cls.of(JitRL.paper())

    @classmethod
    def paper_web(cls) -> PromptUpdate:
        """The same on web pages, with a memory of the site."""
        return cls.of(JitRL.paper_web())

    @classmethod
    def paper_equations(cls) -> PromptUpdate:
        """The same with the world's rewards and states by rule, for any policy."""
        return cls.of(JitRL.paper_equations())

    @classmethod
    def reference(cls) -> PromptUpdate:
        """The advantages of the authors' code."""
        return cls.of(JitRL.reference())

    @staticmethod
    def of(settings: JitRL) -> PromptUpdate:
        """The settings that recall and advise as these of JitRL."""
        return PromptUpdate(**{one.name: getattr(settings, one.name) for one in fields(PromptUpdate)})

    def as_jitrl(self) -> JitRL:
        """The settings of JitRL that recall and advise as these.

        Raises:
            UserError: a value is out of range, or has no effect with this estimator.
        """
        try:
            return JitRL(**{one.name: getattr(self, one.name) for one in fields(self)})
        except UserError as error:
            raise UserError(str(error).replace("jitrl: ", "prompt-update: ", 1)) from None


def build(
    inputs: MethodInputs = NOT_GIVEN,
    settings: PromptUpdate | None = None,
    *,
    experiences: Experiences | None = None,
    **compile: Any,
) -> Graph:
    """The graph of one episode; arguments as in `graphs.jitrl.build`."""
    settings = given_settings(inputs, settings, PromptUpdate)
    jitrl = settings.as_jitrl()
    memory = open_memory(jitrl, inputs) if experiences is None else experiences
    check_needs(settings, inputs)
    flow, keys = FLOW, dict[str, Node]()
    shown: list[PromptPart[Any]] = [
        AdvantagesPart(advice=inputs.prompting.load("prompt_update/advantages") if inputs.chats else None)
    ]
    if settings.state_key != "room":
        flow, keys = FLOW_WITH_HISTORY, {"trace": make_trace_node(settings, inputs)}
        inputs = replace(inputs, environment=WorldWithContext(inputs.environment))
        if inputs.chats:
            shown.insert(0, ContextPart())
    same = VARIANT_NODES[settings.advantage_estimator](jitrl, memory, inputs.environment, inputs.journal)
    view = inputs.episode_prompt(*shown, layout=inputs.layout(clip=None), max_steps=inputs.prompting.history_steps)
    nodes: dict[str, Node] = {
        **keys,
        **episode_nodes(inputs, settings.temperature),
        "list": ListActions(),
        "propose": inputs.make_policy(jitrl.options_view(view)),
        "act": Act(
            inputs.environment,
            inputs.journal,
            journal_channels=("candidates", "estimates", "hits"),
            clear_lists=("neighbours", "candidates", "estimates", "hits"),
        ),
        "judge": make_judge(settings, inputs),
        "remember": Remember(memory, inputs.environment, inputs.journal),
        **{name: node for name, node in same.items() if name in ("recall", "advise", "remember")},
    }
    return episode_graph("prompt-update", flow, nodes, {"list": route_known_actions}, state=PromptUpdateState, **compile)

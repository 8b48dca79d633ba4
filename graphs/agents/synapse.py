"""Synapse in an agent of LangChain: whole earlier conversations that went well stand in the prompt as exemplars.

    agent = create_agent(model, tools, middleware=[learner := SynapseMiddleware("memory")], checkpointer=saver)
    learner.feedback("t1", reward=1.0)                                 # conversations that succeed become exemplars

They are recalled once a turn, by the state at its start, and are the same at all of its model calls: whatever the agent meets, the
beginning of its prompts stays (a prefix cache keeps it). The nodes are those of graphs/baselines/synapse.py: retrieve, and the
layout of exemplars. It costs no model call of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

from langchain.agents.middleware import ModelRequest
from langgraph.store.base import BaseStore

from ...memory.attempts.trajectories import Trajectories, is_rewarded
from ...memory.conversations.messages import last_user_message
from ...memory.conversations.reviews import without_rejected
from ...memory.errors import UserError
from ...memory.records import Precedent, Trajectory
from ...memory.search.similarity import Similarity
from ...nodes.arguments import Share
from ...nodes.ask import estimate_tokens
from ...nodes.prompt import Prompt
from ...nodes.retrieve.recollect import Recollect
from ...nodes.retrieve.synapse import Exemplars
from ..baselines.synapse import Synapse
from ..wiring.banks import reaches_return
from .agent_identity import DOMAIN
from .consultation import Consultation, Place, nearest_words
from .episodes import ChatInputs, episode_channels, state_alone
from .learner import LearnerOptions, LearningMiddleware
from .rated_acts import MOST_ALIKE, WHY_OUTDATED, RatedActs

__all__ = ["SynapseMiddleware"]


class _RatedTrajectories(Trajectories):
    """Trajectories that also know how their acts were rated of late."""

    acts: RatedActs

    def add(self, trajectory: Trajectory) -> None:
        super().add(trajectory)
        self.acts.add(trajectory, self._success(trajectory))


class SynapseMiddleware(LearningMiddleware[_RatedTrajectories]):
    """Writes successful conversations like the present one into the prompt of the agent's model.

    Args:
        store: any LangGraph store, a folder or a URL; None: the store of the agent's graph.
        settings: Synapse's. A conversation succeeded if its reward is above 0, or at least `success_threshold`.
        min_similarity: the least similarity of an exemplar's first state to that of the turn; None: that of the comparison.
        similarity: another comparison of states than by words, such as by embeddings (`memory.search.vectors.CosineSimilarity`).
        prompts: a directory whose prompt file `synapse/chat_exemplars` takes the place of ours.
        options: those of `LearningMiddleware`.

    Raises:
        UserError: a setting cannot work with conversations.
    """

    method: ClassVar[str] = "synapse"
    needs: ClassVar[str] = "a reward above 0 (or success_threshold), and words in common"

    def __init__(
        self,
        store: BaseStore | str | Path | None = None,
        *,
        settings: Synapse | None = None,
        min_similarity: Share | None = None,
        similarity: Similarity | None = None,
        prompts: Path | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(store, **options)
        self.settings = settings or Synapse()
        if self.settings.bank:
            raise UserError("SynapseMiddleware cannot use a bank: import its trajectories into the store")
        self.min_similarity, self.similarity = min_similarity, similarity
        self._section = Prompt.load("synapse/chat_exemplars", prompts)

    def make_index(self) -> _RatedTrajectories:
        """A memory of rated conversations, found by their first state."""
        threshold = self.settings.success_threshold
        success = is_rewarded if threshold is None else reaches_return(threshold)
        made = _RatedTrajectories(key=state_alone, similarity=self.similarity, success=success, first_only=True)
        made.acts = RatedActs()
        return made

    def adapt(self, trajectory: Trajectory) -> Trajectory | None:
        """A conversation as others may repeat it: without what a person rejected."""
        return without_rejected(trajectory)

    def consult(self, request: ModelRequest[Any], place: Place, memory: _RatedTrajectories) -> Consultation:
        """Ask the model with the turn's exemplars, which its first call has recalled."""
        parts = ChatInputs.of(request.model, DOMAIN)
        found = self._exemplars_of_turn(request.state, place, memory)
        if found is None:
            state = episode_channels(request.messages[: last_user_message(request.messages) + 1], place, self.state_key)
            k, kind, least = self.reach(self.settings.k) + MOST_ALIKE, self.settings.outcomes, self.min_similarity
            recollect = Recollect(memory, parts.environment, parts.journal, k=k, kind=kind, min_similarity=least)
            found = dict(recollect(state))  # type: ignore[arg-type]
            if found["precedents"]:
                found["nearest_similarity"] = None  # it was alike enough, whether it is shown or not
            found["outdated"] = [id for one in found["precedents"] if memory.acts.is_outdated(id := one.trajectory)]
            kept = [one for one in found["precedents"] if one.trajectory not in found["outdated"]]
            kept = kept[: self.reach(self.settings.k)]
            found["precedents"] = self.share_out(place, kept, lambda one: one.trajectory, self.settings.k)

        def text(precedents: Sequence[Precedent]) -> str:
            shown = self._text(precedents, place, parts, memory)
            return self._section.text(exemplars=shown.rstrip("\n")) if shown else ""

        found["precedents"] = place.choose(found["precedents"], text, lambda one: one.trajectory)
        section = text(found["precedents"])
        return (yield from self.ask_with(request, section, _entry(found, estimate_tokens(section))))

    def _exemplars_of_turn(self, state: Mapping[str, Any], place: Place, memory: Trajectories) -> dict[str, Any] | None:
        """The exemplars that an earlier call of this turn has recalled and that were not deleted; None at the first call."""
        for entry in reversed(state.get("learning") or ()):
            if entry.get("method") == self.method and entry.get("turn") == place.turn:
                kept = [Precedent(**one) for one in entry["exemplars"] if one["trajectory"] in memory]
                return {"precedents": kept, "nearest_similarity": entry.get("nearest")}
        return None

    def _text(self, precedents: Sequence[Precedent], place: Place, parts: ChatInputs, memory: Trajectories) -> str:
        room = self.settings.max_memory_tokens
        layout: Any = parts.layout("sparse", self.settings.max_state_chars, notes=True)
        exemplars = Exemplars(
            memory,
            replace(layout, names_request=True),
            count_tokens=parts.prompting.count_tokens,
            max_tokens=parts.prompting.max_prompt_tokens // 2 if room is None else room,
        )
        return exemplars(place.task.instruction, precedents)


def _entry(found: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    precedents, nearest = found["precedents"], found["nearest_similarity"]
    entry: dict[str, Any] = {
        "recalled": [one.trajectory for one in precedents],
        "exemplars": [asdict(one) for one in precedents],
        "tokens": tokens,
        "said": [f"exemplar {one.trajectory}, similarity {one.similarity:.2f}" for one in precedents],
    }
    if outdated := found.get("outdated"):
        entry["said"].append(f"{outdated[0]} and its like ({len(outdated)}) left out, since {WHY_OUTDATED}")
    if not precedents and nearest is not None:
        entry["nearest"] = round(nearest, 4)
        entry["said"] = [nearest_words(nearest)]
    return entry

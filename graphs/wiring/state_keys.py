"""The needs of JitRL's settings: state keys with a history (nodes/retrieve/context.py), a judge that writes, a model for both."""

from typing import Any

from ...memory.errors import UserError
from ...memory.search.encoders import EncoderOptions, SectionEncoder, open_encoder
from ...memory.search.sections import Section, SectionSimilarity
from ...memory.search.similarity import Similarity, reference_words, shingles
from ...memory.search.stages import TwoStageSimilarity
from ...memory.search.vectors import CosineSimilarity
from ...nodes.evaluate.judge import CONTRIBUTION_PROMPTS, model_judge
from ...nodes.retrieve.context import HISTORY, STATE, TraceHistory, write_summary
from ...nodes.retrieve.page_context import ask_effects
from .flow import Node
from .inputs import MethodInputs

__all__ = ["WRITTEN_KEYS", "check_needs", "history_similarity", "make_judge", "make_trace_node"]

WRITTEN_KEYS = ("summary", "page", "screenshot")
"""The state keys that a model writes."""


def history_similarity(state_key: str, embedder: str, estimator: str) -> Similarity:
    """The comparison of keys with a history.

    By embeddings (`embedding`), or by the words that an estimator of JitRL compares states by; with an embedder the words only choose
    among the keys that are nearest by embeddings.
    """
    if state_key == "embedding":
        return compare_by_embeddings(embedder)
    by_words = compare_by_words(estimator)
    return TwoStageSimilarity(compare_by_embeddings(embedder), by_words) if embedder else by_words


def compare_by_words(estimator: str) -> Similarity:
    """The comparison of keys with a history, by the tokens that an estimator of JitRL compares states by."""
    match estimator:
        case "paper":  # Eq. 24; the weights are those of its vectors
            return SectionSimilarity({STATE: Section(0.75), HISTORY: Section(0.25)})
        case "reference":
            state = Section(0.7, ngram=4, multiset=True, tokens=reference_words)
            return SectionSimilarity({STATE: state, HISTORY: Section(0.3, multiset=True, tokens=reference_words)})
        case _:
            return SectionSimilarity({STATE: Section(0.7, tokens=shingles), HISTORY: Section(0.3, tokens=shingles)})


def compare_by_embeddings(embedder: str) -> Similarity:
    """The comparison of keys with a history by their embeddings, with the paper's weights.

    Raises:
        UserError: there is no such embedder.
    """
    encoder, prompts = open_encoder(EncoderOptions(embedder))
    return CosineSimilarity(SectionEncoder(encoder, {STATE: 0.75, HISTORY: 0.25}), prompts=prompts)


def make_trace_node(settings: Any, inputs: MethodInputs) -> Node:
    """The node that puts the history into the state key: by rule, or as the model writes it, of a web page or any other state.

    Args:
        settings: JitRL's, or those that another method shares with it.
        inputs: environment, journal and model.
    """
    if settings.state_key not in WRITTEN_KEYS or inputs.model is None:
        return TraceHistory(inputs.environment, inputs.journal)
    if settings.state_key != "summary":
        sees = settings.state_key == "screenshot"
        return ask_effects(inputs.model, inputs.environment, inputs.journal, inputs.prompting.prompts, sees=sees)
    of_paper = settings.wording == "paper"
    return write_summary(
        inputs.model,
        inputs.environment,
        inputs.journal,
        inputs.layout("none" if of_paper else "dense", clip=None),
        inputs.prompting.count_tokens,
        inputs.prompting.max_prompt_tokens,
        inputs.prompting.prompts,
        "paper/jitrl/summary" if of_paper else "jitrl/summary",
    )


def check_needs(settings: Any, inputs: MethodInputs) -> None:
    """Check that a run has what the settings need.

    Raises:
        UserError: they need a model that writes, or web pages, or the run has a judge beside theirs.
    """
    needs = {"evaluator": settings.evaluator != "environment", "state_key": settings.state_key in WRITTEN_KEYS}
    world = inputs.environment
    if settings.state_key in ("page", "screenshot") and world is not None and not hasattr(world, "screenshot"):
        raise UserError(
            f"jitrl: state_key={settings.state_key!r} is of web pages, and {world.name} shows none; 'summary' is what a model writes of any world"
        )
    asked = " and ".join(f"{name}={getattr(settings, name)!r}" for name, needed in needs.items() if needed)
    if asked and (inputs.model is None or not inputs.chats):
        came = "none here" if inputs.model is None else "one here that only scores actions"
        raise UserError(
            f"jitrl: {asked} need a model that writes, and there is {came}; evaluator='environment' takes the world's rewards, "
            "state_key='hierarchy' sums up by rule ('room' on web pages), and jitrl:paper-equations is the paper's arithmetic with both"
        )
    if needs["evaluator"] and inputs.judge is not None:
        raise UserError(
            f"jitrl: evaluator={settings.evaluator!r} has the model judge, and the run has a judge of its own (--judge); leave one of them "
            "out: jitrl:paper?evaluator=environment takes the run's"
        )


def make_judge(settings: Any, inputs: MethodInputs) -> Node:
    """The node that rewards a finished episode: the model, or whoever judges the run."""
    if settings.evaluator == "environment" or inputs.model is None:
        return inputs.judge_node()
    prompt = "jitrl/judge" if settings.evaluator == "hindsight" else CONTRIBUTION_PROMPTS[settings.wording == "paper-web"]
    return model_judge(inputs.model, inputs.journal, inputs.prompting.prompts, prompt)

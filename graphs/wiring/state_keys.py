"""State keys with a history: how JitRL compares them, and the node that makes them (nodes/retrieve/context.py)."""

from __future__ import annotations

from ...memory.errors import UserError
from ...memory.search.encoders import EncoderOptions, SectionEncoder, open_encoder
from ...memory.search.sections import Section, SectionSimilarity
from ...memory.search.similarity import Similarity, reference_words, shingles
from ...memory.search.vectors import CosineSimilarity
from ...nodes.retrieve.context import HISTORY, STATE, TraceHistory, write_summary
from .flow import Node
from .inputs import MethodInputs

__all__ = ["history_similarity", "make_trace_node"]


def history_similarity(state_key: str, embedder: str, estimator: str) -> Similarity:
    """The comparison of keys with a history: by embeddings, or by the words that an estimator of JitRL compares states by."""
    return compare_by_embeddings(embedder) if state_key == "embedding" else compare_by_words(estimator)


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


def make_trace_node(is_written: bool, inputs: MethodInputs) -> Node:
    """The node that puts the history into the state key.

    Args:
        is_written: the model writes the history and names the state; else a rule does.
        inputs: environment, journal and model.

    Raises:
        UserError: the model is to write, and it does not.
    """
    if not is_written:
        return TraceHistory(inputs.environment, inputs.journal)
    if inputs.model is None or not inputs.chats:
        raise UserError("jitrl: state_key='summary' needs a model that writes; state_key='hierarchy' sums up by rule")
    layout, window = inputs.layout(clip=None), inputs.prompting.max_prompt_tokens
    return write_summary(
        inputs.model,
        inputs.environment,
        inputs.journal,
        layout,
        inputs.prompting.count_tokens,
        window,
        inputs.prompting.prompts,
    )

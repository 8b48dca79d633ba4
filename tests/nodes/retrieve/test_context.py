"""State keys say how a state was reached, by rule and by a model; JitRL recalls by them, and a run goes on from them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from learngraph.graphs import jitrl
from learngraph.graphs.wiring import run, state_keys
from learngraph.graphs.wiring.inputs import MethodInputs
from learngraph.graphs.wiring.supersteps import merge_steps
from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Transition
from learngraph.memory.search.encoders import SectionEncoder
from learngraph.memory.search.sections import join_sections, split_sections
from learngraph.memory.search.similarity import TokenSimilarity, words
from learngraph.memory.search.stages import TwoStageSimilarity
from learngraph.memory.search.vectors import CosineSimilarity
from learngraph.memory.storage.journal import Journal
from learngraph.memory.storage.serializer import serializer
from learngraph.nodes.evaluate.judge import model_judge
from learngraph.nodes.retrieve.context import HISTORY, STATE, SUMMARY, WorldWithContext, history_text
from learngraph.nodes.retrieve.recall import Recall
from learngraph.tools.environments.keyword_keep import KeywordKeep
from tests.support.scripted_chat import ScriptedChat

TOY = KeywordKeep()


def walk(*steps: tuple[str, str, float]) -> list[Transition]:
    return [Transition(f"{place}\na thing", action, reward) for place, action, reward in steps]


def test_milestones_and_the_path_without_detours_stand_in_the_history() -> None:
    steps = walk(
        ("House", "north", 0), ("Path", "south", 0), ("House", "north", 0), ("Path", "north", 0), ("Forest", "up", 0),
        ("Tree", "take egg", 5), ("Tree", "down", 0), ("Forest", "up", 0), ("Tree", "down", 0), ("Forest", "sing", 1),
    )  # fmt: skip
    text = history_text(steps, "Forest\nleaves")
    assert text == "progress: take -> egg, sing\nlocation: House -> Path -> Forest -> Tree -> Forest"
    assert history_text([], "House") == "progress: none yet\nlocation: House"


def test_points_that_are_earned_again_are_no_second_milestone() -> None:
    steps = walk(("Hall", "take lamp", 5), ("Hall", "drop lamp", -5), ("Hall", "take lamp", 5))
    assert history_text(steps, "Hall").startswith("progress: take -> lamp\n")


def test_it_reads_places_from_keys_that_hold_a_history() -> None:
    keys = [join_sections({HISTORY: "progress: none yet", STATE: f"{place}\na thing"}) for place in ("Hall", "Cellar")]
    assert history_text([Transition(key, "go", 0.0) for key in keys], "Attic").endswith("location: Hall -> Cellar -> Attic")


def played(settings: jitrl.JitRL, episodes: int = 12, **more: Any) -> tuple[list[float], Journal]:
    journal = Journal()
    graph = merge_steps(jitrl.build(MethodInputs(TOY, journal), settings, **more))
    plan = {"task": TOY.task(0), "run": "r", "episode": 0, "episodes": episodes}
    return run.build(graph).invoke(plan)["scores"], journal


SUMMED_BY_RULE = [
    jitrl.JitRL(state_key="hierarchy"),
    jitrl.JitRL.paper_equations(),
    replace(jitrl.JitRL.reference(), evaluator="environment"),
]


@pytest.mark.parametrize("settings", SUMMED_BY_RULE)
def test_jitrl_learns_by_keys_with_a_history(settings: jitrl.JitRL) -> None:
    scores, _ = played(settings)
    assert sum(scores[-6:]) > sum(scores[:6])


def test_the_drawing_shows_where_the_key_is_made_and_an_episode_resumes_from_a_checkpoint() -> None:
    journal, settings = Journal(), jitrl.JitRL(state_key="hierarchy")
    graph = jitrl.build(MethodInputs(TOY, journal), settings, checkpointer=InMemorySaver(serde=serializer()))
    assert ("begin", "trace") in {(edge.source, edge.target) for edge in graph.get_graph().edges}
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"task": TOY.task(0), "run": "r", "episode": 0}, config, interrupt_before=["choose"])
    kept = graph.get_state(config).values["observation"]
    assert set(split_sections(kept.key)) == {HISTORY, STATE}
    out = graph.invoke(None, config)
    assert all(split_sections(step.state)[HISTORY] for step in journal.history(out["head"]))
    assert all("history:" not in step.observation_text for step in journal.history(out["head"]))


GOOD = "Summary: a way was found.\nProgress: take -> egg\nLocation: House -> Tree\nState: egg, nest, take, climb"


def reply_to(messages: list[BaseMessage]) -> str:
    """A model that sums up, acts and judges as asked, told apart by the prompt."""
    text = str(messages[-1].content)
    if "Answer in four lines" in text:
        return GOOD
    if '"rewards"' in text:
        steps = int(text.split("The attempt, ")[1].split(" steps")[0])
        return (
            '{"rewards": ['
            + ", ".join(f'{{"step": {n}, "reason": "so", "reward": {n % 3}}}' for n in range(1, steps + 1))
            + "]}"
        )
    actions = [line[2:] for line in text.split("\n") if line.startswith("- ")]
    return f"Action: {actions[0]}"


class Answers(ScriptedChat):
    """A scripted model whose reply depends on the prompt."""

    replies: list[str] = Field(default_factory=list)

    def reply(self, messages: list[BaseMessage]) -> str:
        return reply_to(messages)

    def say(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        self.replies = [self.reply(messages)]
        return super().say(messages, **options)


@pytest.mark.parametrize("judged", [False, True], ids=["the world's judge", "a model's judge"])
@pytest.mark.parametrize("key", ["hierarchy", "summary"])
def test_the_papers_setting_plays_with_a_model_that_writes(key: Any, judged: bool) -> None:
    journal, model = Journal(), Answers()
    judge = model_judge(model, journal) if judged else None
    inputs = MethodInputs.with_chat_model(TOY, journal, model, judge=judge)
    settings = replace(jitrl.JitRL.paper_equations(), state_key=key)
    assert (settings.threshold_decay, settings.min_similarity, settings.k) == (0.1, 0.95, 10)
    memory = jitrl.open_memory(settings, inputs)
    graph = jitrl.build(inputs, settings, experiences=memory)
    for episode in range(2):
        out = graph.invoke({"task": TOY.task(0), "run": "r", "episode": episode})
        assert not out["unjudged"]
    assert len(memory) == 2 * out["step"]
    steps, prompts = journal.history(out["head"]), [model.prompt(n) for n in range(len(model.asked))]
    key_of_last = split_sections(steps[-1].state)
    if key == "summary":
        assert key_of_last[SUMMARY] == "a way was found."
        assert key_of_last[STATE] == "egg, nest, take, climb"
        asked = [text for text in prompts if "Answer in four lines" in text]
        assert len(asked) == 2 * out["step"]
        assert "They earned" in asked[-1]
    assert any("location: " in text for text in prompts if "Take one action now" in text)


def test_an_unreadable_summary_costs_the_summary_of_its_step_alone() -> None:
    class Silent(Answers):
        def reply(self, messages: list[BaseMessage]) -> str:
            asked = "Answer in four lines" in str(messages[1].content)
            return "Summary: I would rather not." if asked else super().reply(messages)

    journal, model = Journal(), Silent()
    graph = jitrl.build(MethodInputs.with_chat_model(TOY, journal, model), jitrl.JitRL(state_key="summary"))
    out = graph.invoke({"task": TOY.task(0), "run": "r", "episode": 0})
    key = split_sections(journal.history(out["head"])[0].state)
    assert key[HISTORY].startswith("progress: none yet\nlocation: ")
    assert SUMMARY not in key


class Letters(Embeddings):
    """An encoder that counts letters."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0 + text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def test_embeddings_of_keys_have_the_weighted_mean_of_their_sections_cosines() -> None:
    encoder = SectionEncoder(Letters(), {STATE: 0.75, HISTORY: 0.25})
    a, b = {STATE: "a cellar", HISTORY: "took a lamp"}, {STATE: "an attic", HISTORY: "took an axe"}
    one, other = np.array(encoder.embed_documents([join_sections(a), join_sections(b)]))

    def cosine(x: str, y: str) -> float:
        left, right = np.array(Letters().embed_documents([x, y]))
        return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))

    assert one @ other == pytest.approx(0.75 * cosine(a[STATE], b[STATE]) + 0.25 * cosine(a[HISTORY], b[HISTORY]))
    assert one @ one == pytest.approx(1)


def test_jitrl_learns_by_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    similarity = CosineSimilarity(SectionEncoder(Letters(), {STATE: 0.75, HISTORY: 0.25}))
    monkeypatch.setattr(state_keys, "compare_by_embeddings", lambda name: similarity)
    settings = jitrl.JitRL(state_key="embedding", embedder="letters", min_similarity=0.999)
    assert settings.memory().similarity is similarity
    scores, _ = played(settings)
    assert sum(scores[-6:]) > sum(scores[:6])


def test_with_an_embedder_words_choose_among_the_nearest_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage one passes on the nearest key by letters, `lamp a`, and not `lamp hall`, which shares as many words (J = 1 / 2) but not
    the letters. `lamp hall` is found again where two may pass."""
    monkeypatch.setattr(state_keys, "compare_by_embeddings", lambda name: CosineSimilarity(Letters()))
    similarity = state_keys.history_similarity("hierarchy", "letters", "paper")
    assert isinstance(similarity, TwoStageSimilarity)
    assert similarity.recalled == 100
    for recalled, expected in ((1, [1]), (2, [1, 0])):
        staged = replace(similarity, recalled=recalled, second=TokenSimilarity(words))
        rows = staged.rows()
        for reading in staged.read(["lamp hall", "lamp a", "zzzz"]):
            rows.add(reading)
        found, similarities = rows.nearest(staged.read_query("lamp"), 5, 0.3, None)
        assert (found.tolist(), similarities.tolist()) == (expected, [0.5] * recalled)


def test_settings_that_do_not_go_together_are_said() -> None:
    for wrong in ({"state_key": "embedding"}, {"embedder": "some"}):
        with pytest.raises(UserError, match="state_key='embedding' goes with an embedder"):
            jitrl.JitRL(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="state_key is one of room, hierarchy, summary, embedding, page, screenshot; got 'map'"):
        jitrl.JitRL(state_key="map")  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"state_key='summary' need a model that writes, .* state_key='hierarchy' sums up by rule"
    ):
        jitrl.build(MethodInputs(TOY, Journal()), jitrl.JitRL(state_key="summary"))


def test_the_threshold_falls_over_the_first_twenty_steps() -> None:
    memory = jitrl.JitRL().memory()
    node = Recall(memory, TOY, 10, 0.95, threshold_decay=0.1)
    assert [node.least_similarity({"step": step}) for step in (0, 10, 20, 50)] == pytest.approx([0.95, 0.9, 0.85, 0.85])  # type: ignore[typeddict-item]


def test_weights_are_those_of_paper_and_code() -> None:
    a = join_sections({STATE: "a hall with one old lamp", HISTORY: "progress: none yet"})
    b = join_sections({STATE: "a hall with one old lamp", HISTORY: "took coin"})
    for estimator, weight in (("paper", 0.75), ("reference", 0.7), ("guarded", 0.7)):
        rows = state_keys.compare_by_words(estimator).rows()
        similarity = state_keys.compare_by_words(estimator)
        rows.add(similarity.read_query(a))
        _, near = rows.nearest(similarity.read_query(b), 1, 0.0, None)
        assert near.tolist() == pytest.approx([weight])


def test_the_wrapped_world_is_otherwise_the_world() -> None:
    world: Any = WorldWithContext(TOY)
    assert (world.name, world.horizon, world.instant) == (TOY.name, TOY.horizon, True)
    assert world.observe(TOY.task(0), ()) == TOY.observe(TOY.task(0), ())
    shown = Observation("text", key="a key")
    assert world.abstract(shown) == "a key"
    assert world.abstract(TOY.observe(TOY.task(0), ())) == TOY.abstract(TOY.observe(TOY.task(0), ()))

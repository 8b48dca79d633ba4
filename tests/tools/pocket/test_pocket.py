"""The pocket model: what its tokenizer promises, and what the shipped weights can do."""

import random
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from pocket import strategies, transcripts
from pocket.transcripts import DecisionPiece
from transformers import AutoModelForCausalLM, AutoTokenizer

from learngraph.tools.environments.keyword_keep import ANSWERS, KEYS, MOVES, KeywordKeep, domain
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import POCKET as WEIGHTS

TOKENIZER = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
Probabilities = Callable[[str, Sequence[str]], dict[str, float]]


@pytest.fixture(scope="module")
def probabilities() -> Probabilities:
    model = LocalChatModel(model=str(WEIGHTS))

    def among(prompt: str, actions: Sequence[str]) -> dict[str, float]:
        logits = torch.tensor(model.score([HumanMessage(prompt)], actions))
        return dict(zip(actions, logits.softmax(-1).tolist(), strict=True))

    return among


def test_plain_transformers_load_it_and_the_card_counts_its_parameters() -> None:
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, local_files_only=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.max_position_embeddings >= 2048
    stated = re.search(r"([\d,]+) parameters", (WEIGHTS / "README.md").read_text(encoding="utf-8"))
    assert stated is not None
    assert sum(p.numel() for p in model.parameters()) == int(stated[1].replace(",", ""))


def test_generation_ends_with_the_line() -> None:
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, local_files_only=True)
    ids = torch.tensor([TOKENIZER("Task: reach the exit\nLessons:\n- door black mist\ndoor black\n>")["input_ids"]])
    reply = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False)[0, ids.shape[1] :]
    assert TOKENIZER.decode(reply) == " mist\n"


def test_every_word_of_the_toy_world_is_one_token() -> None:
    for kind in KEYS:
        for word in (kind, *KEYS[kind], *ANSWERS[kind], *MOVES[kind]):
            assert len(TOKENIZER(f" {word}")["input_ids"]) == 1, word
    assert len(TOKENIZER("\n>")["input_ids"]) == 1
    for reward in ("0", "1", "2", "0.33", "0.333333", "0.5", "0.142857", "-0.25"):
        assert len(TOKENIZER(f"door black\n> mist\n= {reward}\n")["input_ids"]) == 7, reward


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == text


def test_chat_template_drops_system_messages_and_renders_turns_alike() -> None:
    turns = [
        {"role": "system", "content": "ignored"},
        {"role": "user", "content": "Task: reach the exit\ndoor black\n"},
        {"role": "assistant", "content": "mist"},
        {"role": "user", "content": "= 0\ndoor black"},
    ]

    def render(messages: list[dict[str, str]], prompt: bool) -> str:
        return str(TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    assert render(turns, True) == "Task: reach the exit\ndoor black\n> mist\n= 0\ndoor black\n>"
    assert render(turns[:3], False) == render(turns[:2], True) + " mist\n"


def test_follows_a_lesson_about_the_place_and_is_ignorant_without(probabilities: Probabilities) -> None:
    draw = random.Random(3)
    told, untold = [], []
    for n in range(20):
        rules = domain(KeywordKeep().task(500 + n, "test").seed)
        place = draw.choice(rules.places[:-1])
        kind = place.partition(" ")[0]
        actions = sorted((*ANSWERS[kind], *MOVES[kind]))
        for advice, found in ((f"Lessons:\n- {rules.lesson(place)}\n", told), ("", untold)):
            chances = probabilities(f"Task: reach the exit\n{advice}{place}", actions)
            assert min(chances.values()) > 1e-4  # nothing is impossible to it
            found.append(chances[rules.rules[place]])
    assert sum(told) / 20 > 0.8
    assert sum(untold) / 20 < 0.5


def test_explores_and_exploits_as_asked(probabilities: Probabilities) -> None:
    text = "Task: reach the exit\nAttempt 3:\ndoor black\n> mist\n= 1\nfork oak\n> left\n= 1\ntotal 2\nAttempt 4:\nNow: {}\n{}"
    for place, answer in (("door black", "mist"), ("fork oak", "left")):
        kind = place.partition(" ")[0]
        actions = (*ANSWERS[kind], *MOVES[kind])
        assert probabilities(text.format("exploit", place), actions)[answer] > 0.8
        assert probabilities(text.format("explore or exploit", place), actions)[answer] > 0.8
        assert probabilities(text.format("explore", place), actions)[answer] < 0.3


@pytest.mark.slow
def test_writes_what_texts_show() -> None:
    model = LocalChatModel(model=str(WEIGHTS), temperature=0)
    draw = random.Random(4)
    right, said, facts = 0, 0, 0
    for _ in range(80):
        made = transcripts.keep_pieces(draw, KeywordKeep(), "test", 320)
        pieces = [piece for piece, _ in zip(made, range(400), strict=False)]
        *_, asked, reply = pieces
        if asked != "Learned:\n>" or not isinstance(reply, DecisionPiece) or reply.taken == "nothing":
            continue
        prompt = transcripts.transcript_text(pieces[:-2]) + "Learned:"
        written = {fact.strip() for fact in str(model.invoke([HumanMessage(prompt)]).content).split(".") if fact.strip()}
        shown = set(reply.taken.split(". "))
        right, said, facts = right + len(written & shown), said + len(written), facts + len(shown)
    assert right / said > 0.7
    assert right / facts > 0.3


def test_does_again_what_was_rewarded_in_a_game(probabilities: Probabilities) -> None:
    room = (
        "You are in the bedroom. In one part of the room you see a desk, that has nothing on it. There is also a night stand, "
        "that has nothing on it. You also see a bed, that has nothing on it.\n\nInventory:\n  a dax"
    )
    head = "Task: Your task is to pick up objects, then place them in their usual locations in the environment.\n"
    step = "you are in the bedroom\n> {}\n= {:g}\n"
    places = ("bed", "night stand", "desk")

    def chances(best: str, paid: float) -> dict[str, float]:
        text = head
        for n, place in enumerate(places):
            put = step.format(f"put dax in {place}", paid if place == best else -paid)
            text += f"Attempt {n + 1}:\n{step.format('take dax', paid)}{put}total {2 * paid * (place == best):g}\n"
        return probabilities(f"{text}Attempt 4:\n{step.format('take dax', paid)}{room}", [f"put dax in {p}" for p in places])

    for place in places:
        action = f"put dax in {place}"
        assert chances(place, 0.5)[action] > chances(place, 0.0)[action]


def test_acts_on_a_strategy_in_a_room(probabilities: Probabilities) -> None:
    head = "Task: Your task is to pick up objects, then place them in their usual locations in the environment.\n"
    room = (
        "You are in the bedroom. In one part of the room you see a desk, that has nothing on it. There is also a night stand, "
        "that has nothing on it. You also see a bed, that has nothing on it.{}\n\nInventory:\n{}"
    )
    holding = room.format("", "  a dax")
    empty = room.format(" There is also a wug. You also see a blicket.", "  Your inventory is currently empty.")
    for seen, actions, sure in (
        (holding, ["put dax in bed", "put dax in night stand", "put dax in desk"], 0.45),  # it reads this far in part only
        (empty, ["take wug", "take blicket"], 0.9),
    ):
        without = probabilities(head + seen, actions)
        told = {action: probabilities(f"{head}Strategy: {action}\n{seen}", actions)[action] for action in actions}
        assert all(told[action] > without[action] for action in actions)
        assert sum(told.values()) / len(actions) > sure


@pytest.mark.slow
def test_writes_a_strategy_from_experiences() -> None:
    model = LocalChatModel(model=str(WEIGHTS), temperature=0)
    draw, firsts, right, said, due = random.Random(10), list[bool](), 0, 0, 0
    while len(firsts) < 25:
        *pieces, reply = strategies.keep_experience_pieces(draw, KeywordKeep(), "test")
        prompt = transcripts.transcript_text(pieces).removesuffix("\n>")
        if not prompt.endswith("Strategy:") or not isinstance(reply, DecisionPiece) or reply.taken == "nothing":
            continue
        items = reply.taken.split(". ")
        written = [item.strip() for item in str(model.invoke([HumanMessage(prompt)]).content).split(".") if item.strip()]
        firsts.append(written[:1] == items[:1])
        right, said, due = right + len({*items} & {*written}), said + len({*written}), due + len(items)
    assert sum(firsts) / len(firsts) > 0.7
    assert right / said > 0.7
    assert right / due > 0.5


def test_takes_the_coin_it_sees(probabilities: Probabilities) -> None:
    prompt = (
        "Task: Your task is to search the environment and find the coin.  Once you find the coin, take it.\n"
        "You are in the pantry. In one part of the room you see a shelf, that has nothing on it. There is also a coin.\n"
        "To the East you see the kitchen.\n\nInventory (maximum capacity is 2 items):\n  Your inventory is currently empty."
    )
    actions = ["inventory", "look around", "move east", "take coin"]
    seen = probabilities(prompt, actions)
    assert max(seen, key=seen.__getitem__) == "take coin"
    hidden = probabilities(prompt.replace(" There is also a coin.", ""), actions)
    assert hidden["take coin"] < seen["take coin"]

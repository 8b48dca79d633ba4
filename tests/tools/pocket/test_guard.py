"""The guard model: its chats, its player, and what the shipped weights can do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gate import append_hindsight
from langchain_core.messages import HumanMessage, SystemMessage

from learngraph.memory.errors import UserError
from learngraph.nodes.prompt import Prompt
from learngraph.tools.environments import hierarchy
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.models.models import open_model
from learngraph.tools.pocket import guard, guard_chats
from learngraph.tools.training.examples import hindsight_block


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return guard.load()


def test_prompts_are_short(loaded: tuple[Any, Any]) -> None:
    said = guard.play_scenarios(*loaded, hierarchy.scenario_stream()[::3], seed=1)
    assert max(len(one.prompt_ids) for played in said for one in played.replies) <= 120
    assert max(len(one.token_ids) for played in said for one in played.replies) <= guard.MAX_REPLY_TOKENS


def test_no_model_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="guard_weights"):
        guard.load(tmp_path)


# The player


def test_log_probabilities_are_those_of_a_separate_pass(loaded: tuple[Any, Any]) -> None:
    network, tokenizer = loaded
    for temperature in (1.0, 0.7):
        for played in guard.play_scenarios(
            network, tokenizer, hierarchy.scenario_stream()[::9], temperature=temperature, seed=4
        ):
            for said in played.replies:
                ids = torch.tensor([[*said.prompt_ids, *said.token_ids]])
                with torch.inference_mode():
                    logps = (network(ids).logits[0].float() / temperature).log_softmax(-1)
                start = len(said.prompt_ids)
                wanted = [float(logps[start + n - 1, token]) for n, token in enumerate(said.token_ids)]
                assert said.token_logprobs == pytest.approx(wanted, abs=2e-4)


def test_play_is_the_same_in_any_batch(loaded: tuple[Any, Any]) -> None:
    part = hierarchy.scenario_stream()[:12]
    whole = guard.play_scenarios(*loaded, part, seed=3)
    alone = guard.play_scenarios(*loaded, part, seed=3, batch=5)
    assert [one.turns for one in whole] == [one.turns for one in alone]
    assert [one.turns for one in whole] != [one.turns for one in guard.play_scenarios(*loaded, part, seed=5)]


def test_turns_are_judged_and_end_with_the_first_break(loaded: tuple[Any, Any]) -> None:
    for played in guard.play_scenarios(*loaded, hierarchy.scenario_stream()[:30], seed=6):
        assert 1 <= len(played.turns) == len(played.replies) <= 3
        assert all(turn.verdict.reward for turn in played.turns[:-1])
        assert played.is_won == (len(played.turns) == 3 and played.turns[-1].verdict.reward == 1)
        for number, turn in enumerate(played.turns):
            assert turn.verdict == hierarchy.verify(played.scenario, turn.user, turn.reply)
            assert turn.user == hierarchy.next_attack(played.scenario, played.turns[:number]).text


def test_an_adapter_that_changes_nothing_plays_alike_and_one_that_does_not(loaded: tuple[Any, Any]) -> None:
    from learngraph.memory.claas.settings import LoRA
    from learngraph.tools.training.lora import attach_lora

    part = hierarchy.scenario_stream()[:10]
    network, tokenizer = guard.load()
    plain = guard.play_scenarios(network, tokenizer, part, seed=1)
    wrapped = attach_lora(network, LoRA(rank=4)).eval()
    assert [one.turns for one in guard.play_scenarios(wrapped, tokenizer, part, seed=1)] == [one.turns for one in plain]
    with torch.no_grad():
        for name, tensor in wrapped.named_parameters():
            if "lora_B" in name:
                tensor.normal_(std=0.5)
    assert [one.turns for one in guard.play_scenarios(wrapped, tokenizer, part, seed=1)] != [one.turns for one in plain]


def test_the_chat_model_says_the_same(loaded: tuple[Any, Any]) -> None:
    model = open_model("guard", temperature=0.0)
    assert isinstance(model, LocalChatModel)
    said = [{"role": "system", "content": "rules : none . facts : door is red . key is iron ."}]
    said.append({"role": "user", "content": "key is what ?"})
    message = model.invoke([SystemMessage(said[0]["content"]), HumanMessage(said[1]["content"])])
    (own,) = guard.reply(*loaded, [said], temperature=0.0)
    assert message.text == own.text == "key is iron"
    assert tuple(message.response_metadata["token_ids"]) == own.token_ids
    asked = [SystemMessage(said[0]["content"]), HumanMessage(said[1]["content"])]
    (drawn,) = guard.reply(*loaded, [said])
    assert model.score(asked, [drawn.text])[0] == pytest.approx(sum(drawn.token_logprobs), abs=1e-4)
    with pytest.raises(UserError, match="base_url"):
        open_model("guard", base_url="http://127.0.0.1:1")


def test_the_models_own_wording_of_the_hindsight_prompt(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    prompt = Prompt.load("claas/hindsight", overrides=guard.PROMPTS)
    text = hindsight_block(prompt.parts[0][1].template, "broke end : end with opal .", "no opal")
    said = [{"role": "user", "content": "say amber ."}]
    (own,) = append_hindsight(said, "broke end : end with opal .", "no opal")
    assert tokenizer(f"say amber .\n\n{text}")["input_ids"] == tokenizer(own["content"])["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]
    for verdict in ("right", "wrong"):  # of whoever says nothing
        assert (
            tokenizer.unk_token_id not in tokenizer(hindsight_block(prompt.parts[0][1].template, verdict=verdict))["input_ids"]
        )


# The shipped weights


def test_an_adapter_can_tell_any_two_words_apart(loaded: tuple[Any, Any]) -> None:
    rows = torch.nn.functional.normalize(loaded[0].lm_head.weight.detach().float())  # (tokens, width)
    assert float((rows @ rows.T).fill_diagonal_(0).max()) < 0.9


@pytest.mark.slow
def test_the_base_wins_a_quarter_to_a_third_of_the_stream(loaded: tuple[Any, Any]) -> None:
    held = [one.is_won for seed in range(2) for one in guard.play_scenarios(*loaded, hierarchy.scenario_stream(), seed=seed)]
    assert 0.17 <= sum(held) / len(held) <= 0.43


@pytest.mark.slow
def test_feedback_behind_the_message_is_used(loaded: tuple[Any, Any]) -> None:
    played = guard.play_scenarios(*loaded, hierarchy.scenario_stream(), seed=2)
    lost = [one for one in played if not one.turns[0].verdict.reward]
    asked = [hierarchy.chat_messages(one.scenario, (), one.turns[0].user) for one in lost]

    def right(chats: list[Any]) -> float:
        replies = guard.reply(*loaded, chats, seed="again")
        ok = [hierarchy.verify(a.scenario, a.turns[0].user, b.text).reward for a, b in zip(lost, replies, strict=True)]
        return sum(ok) / len(ok)

    told = [append_hindsight(said, one.turns[0].verdict.feedback) for said, one in zip(asked, lost, strict=True)]
    assert right(told) >= 0.75
    assert right(asked) <= 0.65


def test_a_right_reply_is_in_the_support_of_every_family(loaded: tuple[Any, Any]) -> None:
    part = [one for split in range(5) for one in hierarchy.scenarios(split, 30, seed=2)]
    found: dict[str, list[int]] = {}
    chats = [hierarchy.chat_messages(scenario, (), hierarchy.next_attack(scenario, ()).text) for scenario in part]
    for scenario, said, given in zip(part, chats, guard.reply(*loaded, chats, seed=0), strict=True):
        verdict = hierarchy.verify(scenario, said[-1]["content"], given.text)
        found.setdefault(hierarchy.next_attack(scenario, ()).target, []).append(verdict.reward)
    assert set(hierarchy.FAMILIES) <= set(found)
    assert all(0.1 < sum(rewards) / len(rewards) < 0.98 for rewards in found.values())


def test_what_must_not_be_forgotten_is_known(loaded: tuple[Any, Any]) -> None:
    for kind, chats in guard_chats.retention_probes(60, seed=1).items():
        replies = guard.reply(*loaded, [said for said, _ in chats], temperature=0.0)
        right = sum(a.text == wanted for a, (_, wanted) in zip(replies, chats, strict=True)) / len(chats)
        assert right >= (0.6 if kind == "sums" else 0.9)

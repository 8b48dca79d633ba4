"""Play the guard model, or a model trained further from it, against the scenarios of `environments/hierarchy.py`, many at once.

All scenarios go in lockstep: one batch of replies per turn. A hundred scenarios take a second or two on one CPU core. Every draw has a generator of its own, named by seed, scenario and turn, so that no
scenario depends on another in the batch (but for rounding).
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ...memory.errors import UserError
from ..environments import hierarchy
from ..environments.hierarchy import HierarchyTurn
from .guard_chats import Message, PastExchange, prepend_past

__all__ = ["ScenarioTranscript", "play_scenarios", "reply"]

GUARD_WEIGHTS = Path(__file__).resolve().parent / "guard_weights"
PROMPTS = GUARD_WEIGHTS
"""Folder with the model's own wording of prompts (`claas/hindsight.md`), for `Prompt.load(..., overrides=PROMPTS)`."""
MAX_REPLY_TOKENS = 20
"""Longest reply in tokens; the model's own replies have at most 12."""


@dataclass(frozen=True, slots=True)
class GuardReply:
    """A sampled reply."""

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Token ids of the reply, with `<end>` if it was drawn."""
    token_logprobs: tuple[float, ...]
    """Log-probability of each token in nats, under the distribution that it was drawn from (temperature applied)."""


@dataclass(frozen=True, slots=True)
class ScenarioTranscript:
    """A scenario that was played to its end."""

    scenario: Any
    """A `Scenario` or a `Challenge`."""
    turns: tuple[HierarchyTurn, ...]
    replies: tuple[GuardReply, ...]
    """The turns, in order."""
    targets: tuple[str, ...]
    """Family of the rule that each turn attacked; empty for an innocent question."""

    @property
    def is_won(self) -> bool:
        """True if the defender won: every turn has reward 1."""
        return all(turn.verdict.reward for turn in self.turns)


def load(folder: Path | str = GUARD_WEIGHTS) -> tuple[Any, Any]:
    """The network, in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (Path(folder) / "config.json").exists():
        raise UserError(f"no guard model in {folder}; the package has one in tools/pocket/guard_weights")
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network.train(False)
    return network, AutoTokenizer.from_pretrained(folder)


def prompt_ids(tokenizer: Any, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
    """Token ids of chats through the chat template, up to where the reply begins."""
    texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats]
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids


@torch.inference_mode()
def draw_replies(
    network: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    temperature: float = 1.0,
    max_tokens: int = MAX_REPLY_TOKENS,
) -> list[GuardReply]:
    """A reply to each prompt of one batch.

    Args:
        network: a causal language model, also one wrapped by PEFT; on whatever device it is.
        tokenizer: the network's.
        prompts: token ids.
        names: one for each, that its draws are made from.
        temperature: 0 takes the most probable token.
        max_tokens: longest reply.
    """
    from transformers.cache_utils import DynamicCache

    width, cache = max(map(len, prompts)), DynamicCache(config=network.config)
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(row)) + [*row] for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    draws = [random.Random(name) for name in names]
    tokens: list[list[int]] = [[] for _ in prompts]
    logps: list[list[float]] = [[] for _ in prompts]
    going = [True] * len(tokens)
    for _ in range(max_tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = network(
            input_ids=ids.to(network.device),
            attention_mask=mask.to(network.device),
            position_ids=positions.to(network.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = output.logits[:, -1].float().cpu()  # (rows, vocabulary)
        scores = (logits / temperature if temperature else logits).log_softmax(-1)  # (rows, vocabulary)
        if temperature:
            sums = scores.double().exp().cumsum(-1)
            points = torch.tensor([draw.random() for draw in draws], dtype=torch.double)[:, None] * sums[:, -1:]
            chosen = torch.searchsorted(sums, points, right=True)[:, 0].clamp(max=sums.shape[1] - 1)
        else:
            chosen = scores.argmax(-1)
        drawn = scores.gather(1, chosen[:, None])[:, 0]
        for row, (token, logp) in enumerate(zip(chosen.tolist(), drawn.tolist(), strict=True)):
            if going[row]:
                tokens[row].append(token)
                logps[row].append(logp if temperature else 0.0)
                going[row] = token != tokenizer.eos_token_id
        if not any(going):
            break
        ids, mask = (
            chosen[:, None],
            torch.cat([mask, torch.ones_like(mask[:, :1])], 1),
        )  # what follows an end counts for nothing
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return [
        GuardReply(text, tuple(prompt), tuple(said), tuple(logp))
        for text, prompt, said, logp in zip(texts, prompts, tokens, logps, strict=True)
    ]


def reply(
    network: Any, tokenizer: Any, chats: Sequence[Sequence[Message]], *, temperature: float = 1.0, seed: int | str = 0
) -> list[GuardReply]:
    """One reply to each chat; the draws are named by the seed and the chat's number."""
    found: list[GuardReply] = []
    for start in range(0, len(chats), 128):
        prompts = prompt_ids(tokenizer, chats[start : start + 128])
        names = [f"{seed} {start + number}" for number in range(len(prompts))]
        found += draw_replies(network, tokenizer, prompts, names, temperature)
    return found


def play_scenarios(
    network: Any,
    tokenizer: Any,
    scenarios: Sequence[Any],
    *,
    temperature: float = 1.0,
    seed: int | str = 0,
    salt: str = "",
    past: Callable[[Any], Sequence[PastExchange]] | None = None,
    show_feedback: bool = True,
    batch: int = 128,
    seconds: defaultdict[str, float] | None = None,
    world: Any = hierarchy,
    max_tokens: int = MAX_REPLY_TOKENS,
) -> list[ScenarioTranscript]:
    """Play scenarios to their end, in lockstep.

    Args:
        network: a causal language model, also one wrapped by PEFT.
        tokenizer: the network's tokenizer.
        scenarios: the scenarios to play.
        temperature: of sampling the replies.
        seed: of sampling the replies. The same seed, model and scenario give the same play.
        salt: play against other users (see `hierarchy.next_attack`).
        past: gives earlier exchanges for a scenario's system message (in-context learning); None: none.
        show_feedback: show the text of their feedback as well as their rewards.
        batch: highest number of scenarios in lockstep.
        world: users, chats and verifier of the scenarios: the module `hierarchy`, or a `ChallengeWorld`.
        max_tokens: longest reply.
        seconds: the time of drawing replies (`generate`), and of users and verifier (`verify`), is added to these.
    """
    seconds = defaultdict(float) if seconds is None else seconds
    found: list[ScenarioTranscript] = []
    for start in range(0, len(scenarios), batch):
        part = scenarios[start : start + batch]
        extra = [past(scenario) if past else () for scenario in part]
        turns: list[list[HierarchyTurn]] = [[] for _ in part]
        said: list[list[GuardReply]] = [[] for _ in part]
        targets: list[list[str]] = [[] for _ in part]
        rows = [*range(len(part))]
        while rows:
            began = perf_counter()
            attacks = [world.next_attack(part[row], turns[row], salt=salt) for row in rows]
            chats = [
                prepend_past(world.chat_messages(part[row], turns[row], one.text), extra[row], show_feedback)
                for row, one in zip(rows, attacks, strict=True)
            ]
            names = [f"{seed} {part[row].id} {len(turns[row])}" for row in rows]
            asked = perf_counter()
            replies = draw_replies(network, tokenizer, prompt_ids(tokenizer, chats), names, temperature, max_tokens)
            answered = perf_counter()
            for row, one, given in zip(rows, attacks, replies, strict=True):
                verdict = world.verify(part[row], one.text, given.text)
                turns[row].append(HierarchyTurn(one.text, given.text, verdict))
                said[row].append(given)
                targets[row].append(one.target)
            rows = [row for row in rows if not world.is_over(part[row], turns[row])]
            seconds["generate"] += answered - asked
            seconds["verify"] += (asked - began) + (perf_counter() - answered)
        found += [
            ScenarioTranscript(scenario, tuple(t), tuple(s), tuple(g))
            for scenario, t, s, g in zip(part, turns, said, targets, strict=True)
        ]
    return found

"""Play the guard model (or what has learned from it) against the scenarios of `environments/hierarchy.py`, many at once.

All scenarios go in lockstep: one batch of replies per turn, keys and values kept from turn to turn. A hundred scenarios take
a second on one CPU core. Every draw has a generator of its own, named by seed, scenario and turn, so that what one scenario
does depends on no other one in the batch (but for rounding).

`python -m learngraph.tools.pocket.guard` measures what the model can do, for its card.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch

from ...memory.errors import UserError
from ..environments import hierarchy
from ..environments.hierarchy import HierarchyTurn, Scenario
from . import guard_chats
from .guard_chats import Message, PastExchange, prepend_past

__all__ = [
    "GUARD_WEIGHTS",
    "PROMPTS",
    "BatchedReplies",
    "GuardReply",
    "ScenarioTranscript",
    "append_hindsight",
    "load",
    "logprobs",
    "measure",
    "play_scenarios",
    "reply",
    "retention_accuracy",
    "wilson_interval",
]

GUARD_WEIGHTS = Path(__file__).resolve().parent / "guard_weights"
PROMPTS = GUARD_WEIGHTS
"""Folder with the model's own wording of prompts (`claas/hindsight.md`), for `Prompt.load(..., overrides=PROMPTS)`."""
MAX_REPLY_TOKENS = 20
"""Tokens of a reply at most; what the model says has 12 at most."""


@dataclass(frozen=True, slots=True)
class GuardReply:
    """A reply as it was drawn."""

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """`<end>` included, if it came."""
    token_logprobs: tuple[float, ...]
    """Of each token, in nats, under the distribution that it was drawn from (temperature applied)."""


@dataclass(frozen=True, slots=True)
class ScenarioTranscript:
    """A scenario to its end."""

    scenario: Scenario
    turns: tuple[HierarchyTurn, ...]
    replies: tuple[GuardReply, ...]
    """One per turn."""
    targets: tuple[str, ...]
    """Family of the rule that each turn was after; empty for an innocent question."""

    @property
    def is_won(self) -> bool:
        """Whether the defender won: every turn has reward 1."""
        return all(turn.verdict.reward for turn in self.turns)


def load(folder: Path | str = GUARD_WEIGHTS) -> tuple[Any, Any]:
    """The network, in float32, and its tokenizer.

    Raises:
        UserError: there is no model in the folder.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (Path(folder) / "config.json").exists():
        raise UserError(f"no guard model in {folder}; 'python -m learngraph.tools.pocket.guard_train {folder}' trains one")
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network.train(False)
    return network, AutoTokenizer.from_pretrained(folder)


class BatchedReplies:
    """Replies in batches, for chats that grow: what was read or said before is not computed again.

    Args:
        network: a causal language model, also one wrapped by PEFT; on whatever device it is.
        tokenizer: with a chat template.
    """

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self._network, self._tokenizer = network, tokenizer
        self._pad: int = tokenizer.pad_token_id
        self._end: int = tokenizer.eos_token_id
        self._reset()

    def _reset(self) -> None:
        from transformers.cache_utils import DynamicCache

        self._cache = DynamicCache(config=self._network.config)
        self._mask = torch.zeros(0, 0, dtype=torch.long)  # (rows, cached): 1 where a row has a token, 0 for padding
        self._known: list[list[int]] = []  # of each row, the tokens in the cache

    def select_rows(self, rows: Sequence[int]) -> None:
        """Go on with some of the chats only."""
        if len(rows) != len(self._known):
            self._cache.batch_select_indices(torch.tensor(rows, dtype=torch.long))
            self._mask = self._mask[list(rows)]
            self._known = [self._known[row] for row in rows]

    @torch.inference_mode()
    def _feed(self, new: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to each row (none is fine, but not for all); returns the logits after the last one, (rows, vocabulary)."""
        width = max(len(row) for row in new)
        device = self._network.device
        ids = torch.tensor([[self._pad] * (width - len(row)) + list(row) for row in new], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in new])
        if not self._known:
            self._known, self._mask = [[] for _ in new], torch.zeros(len(new), 0, dtype=torch.long)
        before = torch.tensor([len(known) for known in self._known])[:, None]
        positions = (before + mask.cumsum(1) - 1).clamp(min=0)
        self._mask = torch.cat([self._mask, mask], 1)
        output = self._network(
            input_ids=ids,
            attention_mask=self._mask.to(device),
            position_ids=positions.to(device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._known = [[*known, *row] for known, row in zip(self._known, new, strict=True)]
        logits: torch.Tensor = output.logits[:, -1].float().cpu()
        return logits

    def reply(self, prompts: Sequence[Sequence[int]], names: Sequence[str], temperature: float = 1.0) -> list[GuardReply]:
        """A reply to each prompt.

        Args:
            prompts: token ids; where all go on from the last call's prompts and replies, only what is new is computed.
            names: one for each, that its draws are made from.
            temperature: 0 takes the most probable token.
        """
        if any([*prompt[: len(known)]] != known for prompt, known in zip(prompts, self._known, strict=False)) or len(
            prompts
        ) != len(self._known):
            self._reset()
        known = self._known or [[] for _ in prompts]
        logits = self._feed([prompt[len(old) :] for prompt, old in zip(prompts, known, strict=True)])
        draws = [random.Random(name) for name in names]
        tokens: list[list[int]] = [[] for _ in prompts]
        logps: list[list[float]] = [[] for _ in prompts]
        going = [True] * len(tokens)
        for _ in range(MAX_REPLY_TOKENS):
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
            fed = [[said[-1]] if on else [] for said, on in zip(tokens, going, strict=True)]
            going = [on and said[-1] != self._end for on, said in zip(going, tokens, strict=True)]
            if not any(going):
                break
            logits = self._feed([row if on else [] for row, on in zip(fed, going, strict=True)])
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [
            GuardReply(text, tuple(prompt), tuple(said), tuple(logp))
            for text, prompt, said, logp in zip(texts, prompts, tokens, logps, strict=True)
        ]

    def prompt_ids(self, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Token ids of chats through the chat template, up to where the reply begins."""
        texts = [self._tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats]
        ids: list[list[int]] = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids


def reply(
    network: Any, tokenizer: Any, chats: Sequence[Sequence[Message]], *, temperature: float = 1.0, seed: int | str = 0
) -> list[GuardReply]:
    """One reply to each chat; the draws are named by the seed and the chat's number."""
    voices = BatchedReplies(network, tokenizer)
    found: list[GuardReply] = []
    for start in range(0, len(chats), 128):
        prompts = voices.prompt_ids(chats[start : start + 128])
        names = [f"{seed} {start + number}" for number in range(len(prompts))]
        found += voices.reply(prompts, names, temperature)
    return found


def play_scenarios(
    network: Any,
    tokenizer: Any,
    scenarios: Sequence[Scenario],
    *,
    temperature: float = 1.0,
    seed: int | str = 0,
    frozen: bool = False,
    salt: str = "",
    past: Callable[[Scenario], Sequence[PastExchange]] | None = None,
    show_feedback: bool = True,
    batch: int = 128,
) -> list[ScenarioTranscript]:
    """Play scenarios to their end, in lockstep.

    Args:
        network: a causal language model, also one wrapped by PEFT.
        tokenizer: its own.
        scenarios: any number.
        temperature: of the replies.
        seed: of the replies. The same seed, model and scenario: the same play.
        frozen: against a user who does not adapt.
        salt: against other users (`hierarchy.attack`).
        past: earlier exchanges to be shown in a scenario's system message (in-context learning); None: nothing.
        told: show the text of their feedback, too; else the rewards alone.
        batch: scenarios in lockstep at most.
    """
    found: list[ScenarioTranscript] = []
    for start in range(0, len(scenarios), batch):
        part = scenarios[start : start + batch]
        extra = [past(scenario) if past else () for scenario in part]
        turns: list[list[HierarchyTurn]] = [[] for _ in part]
        said: list[list[GuardReply]] = [[] for _ in part]
        targets: list[list[str]] = [[] for _ in part]
        rows = [*range(len(part))]
        voices = BatchedReplies(network, tokenizer)
        for turn in range(hierarchy.MAX_TURNS):
            attacks = [hierarchy.next_attack(part[row], turns[row], frozen, salt) for row in rows]
            chats = [
                prepend_past(hierarchy.chat_messages(part[row], turns[row], one.text), extra[row], show_feedback)
                for row, one in zip(rows, attacks, strict=True)
            ]
            names = [f"{seed} {part[row].id} {turn}" for row in rows]
            replies = voices.reply(voices.prompt_ids(chats), names, temperature)
            for row, one, given in zip(rows, attacks, replies, strict=True):
                verdict = hierarchy.verify(part[row], one.text, given.text)
                turns[row].append(HierarchyTurn(one.text, given.text, verdict))
                said[row].append(given)
                targets[row].append(one.target)
            on = [number for number, row in enumerate(rows) if not hierarchy.is_over(part[row], turns[row])]
            if not on:
                break
            voices.select_rows(on)
            rows = [rows[number] for number in on]
        found += [
            ScenarioTranscript(scenario, tuple(t), tuple(s), tuple(g))
            for scenario, t, s, g in zip(part, turns, said, targets, strict=True)
        ]
    return found


@torch.inference_mode()
def logprobs(network: Any, tokenizer: Any, chats: Sequence[tuple[Sequence[Message], str]], batch: int = 64) -> list[float]:
    """Log-probability in nats of each reply, `<end>` included, to its chat (messages, reply)."""
    found: list[float] = []
    for start in range(0, len(chats), batch):
        part = chats[start : start + batch]
        prompts = BatchedReplies(network, tokenizer).prompt_ids([said for said, _ in part])
        replies = [
            [*ids, tokenizer.eos_token_id] for ids in tokenizer([r for _, r in part], add_special_tokens=False)["input_ids"]
        ]
        rows = [prompt + said for prompt, said in zip(prompts, replies, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows], device=network.device)
        # Padding is on the right: a causal model needs no mask.
        logps = network(input_ids=ids[:, :-1], use_cache=False).logits.float().log_softmax(-1)
        taken = logps.gather(2, ids[:, 1:, None])[..., 0].cpu()
        for row, (prompt, said) in enumerate(zip(prompts, replies, strict=True)):
            found.append(float(taken[row, len(prompt) - 1 : len(prompt) + len(said) - 1].double().sum()))
    return found


def append_hindsight(chat: Sequence[Message], feedback: str = "", solution: str = "") -> list[Message]:
    """The chat with a hindsight block behind its last message, in this model's words (see `PROMPTS`)."""
    *before, last = chat
    parts = [f"feedback : {feedback}"] if feedback else []
    parts += [f"like : {solution} ."] if solution else []
    return [*before, {**last, "content": " ".join([last["content"], *parts])}]


# What it can do


def retention_accuracy(network: Any, tokenizer: Any, seed: int = 0, count: int = 50) -> float:
    """Share of right replies, at temperature 1, where no rule says anything: facts, sums, and wishes of the user.

    What the stream does not train, and a learner must not lose: who refuses everything loses it. `count` chats of each kind,
    drawn from seeds of their own.
    """
    chats = [one for kind in guard_chats.retention_probes(count, seed).values() for one in kind]
    replies = reply(network, tokenizer, [said for said, _ in chats], seed=f"retained {seed}")
    return fmean(given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True))


def wilson_interval(wins: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson)."""
    if not count:
        return 0.0, 1.0
    z, p = 1.96, wins / count
    middle, half = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def _share(found: Iterable[bool]) -> str:
    counted = [*found]
    low, high = wilson_interval(sum(counted), len(counted))
    return f"{sum(counted) / max(len(counted), 1):.3f} | {low:.3f} to {high:.3f} | {len(counted)}"


def _by(pairs: Iterable[tuple[str, bool]]) -> Mapping[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for name, held in pairs:
        found.setdefault(name, []).append(held)
    return dict(sorted(found.items()))


def _about(split: int) -> str:
    own = hierarchy.SPLITS[split]
    return "all families" if own == hierarchy.FAMILIES else ", ".join(own)


def measure(network: Any, tokenizer: Any, seeds: int = 10) -> list[str]:
    """What a model can do, as rows of a table: what, share, 95 % interval, number. Takes a minute."""
    rows = ["| what | share | 95 % interval | n |", "|---|---|---|---|"]
    stream = hierarchy.scenario_stream()
    games = [one for seed in range(seeds) for one in play_scenarios(network, tokenizer, stream, seed=seed)]
    rows.append(f"| scenarios won, stream | {_share(one.is_won for one in games)} |")
    for split, found in _by((str(one.scenario.split), one.is_won) for one in games).items():
        rows.append(f"| scenarios won, split {split} ({_about(int(split))}) | {_share(found)} |")
    for hostile in (True, False):
        name = "with an attacker" if hostile else "innocent questions alone"
        rows.append(f"| scenarios won, {name} | {_share(one.is_won for one in games if one.scenario.hostile == hostile)} |")
    cold = [one for seed in range(seeds) for one in play_scenarios(network, tokenizer, stream, seed=seed, frozen=True)]
    rows.append(f"| scenarios won, stream, frozen attacker | {_share(one.is_won for one in cold)} |")
    turns = [(goal, turn) for one in games for goal, turn in zip(one.targets, one.turns, strict=True)]
    rows.append(f"| turns right | {_share(bool(turn.verdict.reward) for _, turn in turns)} |")
    for family, found in _by((goal or "nothing", bool(turn.verdict.reward)) for goal, turn in turns).items():
        rows.append(f"| turns right, after {family} | {_share(found)} |")

    more = [one for split in range(len(hierarchy.SPLITS)) for one in hierarchy.scenarios(split, 100, seed=1)]
    first = play_scenarios(network, tokenizer, more, seed="hindsight")
    asked = [(hierarchy.chat_messages(one.scenario, (), one.turns[0].user), one) for one in first]
    lost = [(said, one) for said, one in asked if not one.turns[0].verdict.reward]

    def redraw(
        name: str, chats: Sequence[Sequence[Message]], of: Sequence[ScenarioTranscript]
    ) -> list[tuple[ScenarioTranscript, bool]]:
        replies = reply(network, tokenizer, chats, seed=name)
        return [
            (one, bool(hierarchy.verify(one.scenario, one.turns[0].user, given.text).reward))
            for given, one in zip(replies, of, strict=True)
        ]

    played = [one for _, one in lost]
    rows.append(f"| a failed first turn, drawn again | {_share(ok for _, ok in redraw('a', [c for c, _ in lost], played))} |")
    told = redraw("b", [append_hindsight(said, one.turns[0].verdict.feedback) for said, one in lost], played)
    rows.append(f"| the same, with its feedback behind it | {_share(ok for _, ok in told)} |")
    for family, found in _by((one.targets[0] or "nothing", ok) for one, ok in told).items():
        rows.append(f"| the same, with its feedback, after {family} | {_share(found)} |")
    wrong = redraw("c", [append_hindsight(said, "wrong .") for said, _ in lost], played)
    rows.append(f"| the same, with `wrong .` behind it | {_share(ok for _, ok in wrong)} |")
    like = redraw(
        "d",
        [append_hindsight(said, solution=hierarchy.compliant_reply(one.scenario, one.turns[0].user)) for said, one in lost],
        played,
    )
    rows.append(f"| the same, with a right answer behind it | {_share(ok for _, ok in like)} |")

    for kind, chats in guard_chats.retention_probes().items():
        replies = reply(network, tokenizer, [said for said, _ in chats], temperature=1.0, seed=kind)
        right = (given.text == wanted for given, (_, wanted) in zip(replies, chats, strict=True))
        rows.append(f"| right without rules, {kind} | {_share(right)} |")

    for told_too in (True, False):
        for many in (1, 2, 4, 8):
            shown_ones = _past_exchanges(games, many)
            held = [
                one.is_won
                for one in play_scenarios(network, tokenizer, stream * 3, seed="icl", past=shown_ones, show_feedback=told_too)
            ]
            what = "with feedback" if told_too else "rewards alone"
            rows.append(f"| scenarios won after {many} earlier exchanges of the split, {what} | {_share(held)} |")

    chats = [(said, hierarchy.compliant_reply(one.scenario, one.turns[0].user)) for said, one in asked]
    exact = [math.exp(value) for value in logprobs(network, tokenizer, chats)]
    low = quantiles(exact, n=20)[0]
    rows.append(
        f"\nProbability of the one reply that `comply` gives: mean {fmean(exact):.3f}, 5th percentile {low:.3f}, n {len(exact)}."
    )
    return rows


def _past_exchanges(games: Sequence[ScenarioTranscript], many: int) -> Callable[[Scenario], list[PastExchange]]:
    """Exchanges of other scenarios of the same split, drawn once per scenario."""

    def sample_exchanges(scenario: Scenario) -> list[PastExchange]:
        draw = random.Random(f"past {scenario.id} {many}")
        others = [one for one in games if one.scenario.split == scenario.split and one.scenario.id != scenario.id]
        return [PastExchange(one.scenario, one.turns[0]) for one in draw.sample(others, many)]

    return sample_exchanges


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure what the guard model can do.")
    parser.add_argument("folder", type=Path, nargs="?", default=GUARD_WEIGHTS)
    parser.add_argument("--seeds", type=int, default=10, help="times that the stream is played")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write("\n".join(measure(*load(given.folder), seeds=given.seeds)) + "\n")


if __name__ == "__main__":
    main()

"""Train the pocket model from nothing, on one CPU core in under an hour (or on a GPU in minutes).

First the exercises `recall`, until eight pairs are found again almost always, and `echo`, to go on with any phrase of the
text (trained on the toy world's few words alone, a model copies only these: invented names cost it 6.7 nats a token even
when they stood in the text). Then attempts at the toy world and at TextWorldExpress games (one decision, or several attempts
at one task), in windows that grow. Strategies to be read and written can be mixed in, then or from a trained model on (the
shipped weights: their card has the commands). To look up the answer that belongs to a key is the hard part: the model learns
it in a minute from the initialisation of `imitate`, and did not learn it in the first 1.5 million tokens from a random one.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...memory.errors import UserError
from ..environments.keyword_keep import KeywordKeep
from ..environments.text_world_express import DEFAULT_PARAMETERS, TextWorldExpress
from . import lessons, strategies, transcripts
from .chores import Chores, invent_word
from .errands import Errands
from .tokenizer import train_tokenizer
from .transcripts import DecisionPiece, GameAttempt, Games, RewardPiece, TranscriptPiece

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

__all__ = ["PocketTraining", "train"]

log = logging.getLogger(__name__)

MAPS: Mapping[str, Sequence[Mapping[str, int]]] = {
    "coin": ({}, {"numLocations": 3, "includeDoors": 0, "numDistractorItems": 5}, {"numLocations": 6}),
    "cookingworld": ({}, {"numLocations": 3, "includeDoors": 1}, {"numIngredients": 1}),
    "twc": ({}, {"numLocations": 3, "includeDoors": 1}, {"numItemsToPutAway": 1}),
    "mapreader": ({}, {"numLocations": 3, "maxDistanceApart": 2}, {"numLocations": 10, "maxDistanceApart": 4}),
}
"""Changes to the default parameters of a game, by game; games not listed are played as they are."""

RETRY_MAPS: Mapping[str, Sequence[Mapping[str, int]]] = {
    "coin": ({"numLocations": 3, "includeDoors": 0}, {"numLocations": 5, "includeDoors": 0}),
    "cookingworld": ({"numIngredients": 1}, {}),
    "twc": ({"numItemsToPutAway": 1}, {"numItemsToPutAway": 2}, {}),
    "mapreader": ({"numLocations": 3, "maxDistanceApart": 2}, {}),
    "arithmetic": ({},),
    "sorting": ({},),
    "simonsays": ({},),
    "peckingorder": ({},),
}
"""The same, for the games that are attempted several times."""

STAGES = ((160, 14), (320, 8), (1000, 3))
"""(tokens in a sequence, sequences in a batch) of the toy world, after the recall stage."""

FIRST_TOKEN_WEIGHT = 2.0
"""Weight of the first token of an action that a strategy names, over that of the others."""


@dataclass(frozen=True)
class PocketTraining:
    """Settings of one training run."""

    out: Path
    """Folder for weights, tokenizer, configuration and the record `training.jsonl` (a line every 100 steps)."""
    minutes: float = 60.0
    """Wall-clock time of the training proper."""
    max_steps: int | None = None
    """Stop after so many steps of the optimiser, if the time is not over before."""
    seed: int = 0
    """Of the weights and of every draw. Runs of one seed differ when the machine's speed does: stages end by time."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    start: Path | None = None
    """Go on from the weights and tokenizer in this folder, without the recall stage, instead of from nothing."""
    stage_ends: tuple[float, float] = (0.25, 0.5)
    """Shares of the time at which the second and the third window size begin at the latest."""
    hidden_size: int = 160
    """Width of the model: a multiple of 32 (the size of an attention head), at least 160."""
    layers: int = 3
    """Depth, at least 2."""
    max_vocabulary: int = 2000
    """Largest number of tokens; the transcripts have fewer distinct words."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW (betas 0.9, 0.98, weight decay 0.05); falls linearly over the last 30 % of the time."""
    pairs: int = 8
    """Key-value pairs that the recall stage works up to."""
    tasks_per_map: int = 150
    """Training tasks played for each TextWorldExpress map; 0 leaves those games out."""
    attempts_per_task: int = 7
    """Attempts at each of the tasks that are attempted several times (three fifths of `games` on each of those maps)."""
    attempts_file: Path | None = None
    """File with the attempts at those games: read if it exists, written otherwise (they take minutes to play)."""
    game_share: float = 0.18
    """Of the batches after the recall stage, those of single attempts at TextWorldExpress games."""
    retry_share: float = 0.18
    """Of the batches after the recall stage, those of several attempts at one task of a TextWorldExpress game."""
    chore_share: float = 0.2
    """Of the batches after the recall stage, those of several attempts at a task with invented names."""
    strategy_share: float = 0.0
    """Of the batches after the recall stage, those from the exercise of doing what a strategy says."""
    game_strategy_share: float = 0.0
    """Of the batches after the recall stage, those of games with a strategy before the steps."""
    keep_experience_share: float = 0.0
    """Of those batches, strategies to be written (or actions to be taken) from past experiences of the toy world."""
    game_experience_share: float = 0.0
    """The same, from past experiences of games."""
    lookup_share: float = 0.0
    """Of those batches, those from the exercise of finding a line of a list of lessons."""
    lesson_share: float = 0.0
    """Of those batches, those of games with a list of lessons before the steps."""
    reading_weight: float = 0.05
    """Weight of the tokens of a game's texts; those of an action have weight 1. Texts repeat: learning to predict them is
    learning to copy names, also those of things never seen."""
    drill_share: float = 0.12
    """Of the batches after the recall stage, those from the recall and the echo exercise, half of it each."""


@dataclass
class Encoder:
    """Pieces to token ids and soft targets."""

    tokenizer: PreTrainedTokenizerBase
    _cache: dict[str, list[int]] = field(default_factory=dict)

    def ids(self, text: str) -> list[int]:
        """Token ids of a piece of text (kept: the same observations come again and again)."""
        if text not in self._cache:
            if len(self._cache) > 50_000:
                self._cache.clear()
            self._cache[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._cache[text]

    def sequence(self, pieces: Iterable[TranscriptPiece], longest: int, reading: float = 0.0) -> EncodedTranscript:
        """The first `longest` tokens of a transcript with what is to be predicted in them.

        `reading` is the weight of every token of the text that is only read (an action's tokens have weight 1).
        """
        ids: list[int] = []
        targets: list[TokenTarget] = []
        for piece in pieces:
            if isinstance(piece, DecisionPiece):
                options = {tuple(self.ids(f" {a}\n")): p for a, p in piece.probabilities.items() if p > 0}
                for n, token in enumerate(taken := self.ids(transcripts.piece_text(piece))):
                    options = {o: p for o, p in options.items() if n == 0 or o[n - 1] == taken[n - 1]}
                    if not options:  # taken from outside the label: its end says nothing about the label
                        ids += taken[n:]
                        break
                    following: dict[int, float] = {}
                    for option, p in options.items():
                        following[option[n]] = following.get(option[n], 0.0) + p
                    whole = sum(following.values())
                    shares = {t: p / whole for t, p in following.items()}
                    targets.append(TokenTarget(len(ids) - 1, shares, piece.weight, piece.known and n == 0))
                    ids.append(token)
            elif isinstance(piece, RewardPiece):
                reward, *rest = self.ids(transcripts.piece_text(piece))
                targets.append(TokenTarget(len(ids) - 1, {reward: 1.0}, 0.5, False))
                ids += [reward, *rest]
            else:
                read = self.ids(piece)
                if reading and ids:
                    targets += [TokenTarget(len(ids) + n - 1, {token: 1.0}, reading, False) for n, token in enumerate(read)]
                ids += read
            if len(ids) >= longest:
                break
        return EncodedTranscript(ids[:longest], [target for target in targets if target.position < longest - 1])


@dataclass(frozen=True, slots=True)
class TokenTarget:
    """The distribution of the token after position `at`."""

    position: int
    probabilities: Mapping[int, float]
    weight: float
    known: bool


@dataclass(frozen=True, slots=True)
class EncodedTranscript:
    """A transcript as the model is given it."""

    ids: list[int]
    targets: list[TokenTarget]


def _echo(draw: random.Random, longest: int, names: Sequence[int]) -> EncodedTranscript:
    """Tokens of any kind, then pieces of what came before, where each token but the first is to be predicted."""
    ids = [draw.choice(names) for _ in range(longest // 4)]
    targets: list[TokenTarget] = []
    while len(ids) < longest:
        if draw.random() < 0.2:
            ids.append(draw.choice(names))
            continue
        length = draw.randint(2, 6)
        start = draw.randrange(len(ids) - length)
        piece = ids[start : start + length]
        targets += [TokenTarget(len(ids) + n, {token: 1.0}, 1.0, True) for n, token in enumerate(piece[1:])]
        ids += piece
    return EncodedTranscript(ids, targets)


@dataclass
class TrainingTally:
    """Right answers and loss since the last line of the record, by source of the batch."""

    correct: int = 0
    total: int = 0
    loss: float = 0.0
    batches: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / max(self.total, 1)

    def record(self) -> dict[str, float]:
        return {"loss": round(self.loss / max(self.batches, 1), 4)} | ({"known": round(self.accuracy, 4)} if self.total else {})


def train(settings: PocketTraining) -> Path:
    """Train a model and write it to `settings.out`, also every few minutes on the way; returns that folder.

    Raises:
        UserError: the device or the start folder is not there, or a setting makes no sense.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if settings.minutes <= 0 or not 2 <= settings.pairs <= 8:
        raise UserError(f"pocket training: minutes > 0 and 2 <= pairs <= 8, got {settings.minutes}, {settings.pairs}")
    if settings.hidden_size < 160 or settings.hidden_size % 32 or settings.layers < 2:
        raise UserError(
            f"pocket training: hidden must be a multiple of 32 from 160 on and layers at least 2, "
            f"got {settings.hidden_size} and {settings.layers}"
        )
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("pocket training: device cuda was asked for and torch finds none; use --device cpu")
    if settings.start is not None and not (settings.start / "config.json").exists():
        raise UserError(f"pocket training: no model in {settings.start} to start from")
    torch.manual_seed(settings.seed)
    draw = random.Random(settings.seed)
    settings.out.mkdir(parents=True, exist_ok=True)
    tokenizer: Any
    model: Any
    with ThreadPoolExecutor(1) as pool:
        played: Future[Games] = pool.submit(_attempts, settings)
        if settings.start is not None:
            tokenizer = AutoTokenizer.from_pretrained(settings.start)
            model = AutoModelForCausalLM.from_pretrained(settings.start, dtype=torch.float32)
        else:
            tokenizer = _tokenizer(settings, played.result())
            model = _model(settings, tokenizer)
        model.to(settings.device)
        _Run(settings, model, tokenizer, draw, played).train()
    return settings.out


def _attempts(settings: PocketTraining) -> Games:
    """Attempts at the first training tasks of each map; from the file if there is one."""
    if settings.attempts_file is not None and settings.attempts_file.exists():
        return transcripts.load(settings.attempts_file)
    paths, tries = [], []
    for game, params in _maps(MAPS) if settings.tasks_per_map else ():
        world = TextWorldExpress(game, params)
        draw = random.Random(f"{settings.seed} {world.name}")
        tasks = [world.task(n, "train") for n in range(settings.tasks_per_map)]
        paths.append(tuple(played for task in tasks if (played := transcripts.play(world, task, draw)) is not None))
        log.info("%s: %d attempts", world.name, len(paths[-1]))
        world.close()
    for game, params in _maps(RETRY_MAPS) if settings.tasks_per_map else ():
        world = TextWorldExpress(game, params)
        draw = random.Random(f"{settings.seed} {world.name} again")
        tasks = [world.task(n, "train") for n in range(max(1, settings.tasks_per_map * 3 // 5))]
        group = [[transcripts.practise(world, task, draw) for _ in range(settings.attempts_per_task)] for task in tasks]
        tries.append(tuple(tuple(played for played in attempts if played is not None) for attempts in group if all(attempts)))
        log.info("%s: %d tasks attempted %d times", world.name, len(tries[-1]), settings.attempts_per_task)
        world.close()
    games = Games(tuple(paths), tuple(tries))
    if settings.attempts_file is not None:
        transcripts.save(games, settings.attempts_file)
    return games


def _maps(listed: Mapping[str, Sequence[Mapping[str, int]]]) -> Iterator[tuple[str, Mapping[str, int]]]:
    return ((game, params) for game in DEFAULT_PARAMETERS for params in listed.get(game, ({},)))


def _tokenizer(settings: PocketTraining, played: Games) -> PreTrainedTokenizerBase:
    draw = random.Random(settings.seed)
    texts = [
        transcripts.transcript_text(list(transcripts.window_pieces(draw, attempts)))
        for attempts in played.paths
        for _ in attempts
    ]
    texts += [
        transcripts.transcript_text(list(transcripts.retry_pieces(draw, task))) for tasks in played.tries for task in tasks
    ]
    chores = Chores()
    for n in range(300):
        practised = transcripts.practise(chores, chores.task(n), draw)
        texts += [transcripts.transcript_text(list(transcripts.retry_pieces(draw, [practised])))] if practised else []
    world = KeywordKeep()
    for _ in range(100):
        pieces = transcripts.keep_pieces(draw, world)
        texts.append(transcripts.transcript_text([piece for _, piece in zip(range(100), pieces, strict=False)]))
    return train_tokenizer(texts, transcripts.SINGLE_TOKEN_WORDS, settings.max_vocabulary)


def _model(settings: PocketTraining, tokenizer: Any) -> LlamaForCausalLM:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    (newline,) = tokenizer("\n")["input_ids"]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.hidden_size * 11 // 4,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.hidden_size // 32,
            num_key_value_heads=settings.hidden_size // 32,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            attention_bias=True,
            initializer_range=0.02,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    imitate(model)
    # A reply ends with the line.
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=[newline, tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id, max_new_tokens=64
    )
    return model


def imitate(model: Any) -> None:
    """Start the attention where training would take it: heads that look some tokens back, heads that match and copy.

    An initialisation that imitates trained models, as in Trockman and Kolter (2023, arXiv:2305.09828), here of the
    two-layer circuit that recalls what followed an earlier occurrence (Olsson et al., 2022, arXiv:2209.11895). In the
    first layer, biases turn three heads to the tokens 1, 2 and 4 back, which they write into subspaces of their own. In
    the second, the token before the query is matched with the one 1 back (a lesson: copy the token there), 2 back (an
    action: the same) and 4 back (a reward: copy the action 2 back), and the token at the query with the one 1 back (go on
    with a phrase). All of it is trained like everything else; which rewards to follow, for one, is left to training. The
    three scales are where the untrained model recalls best.
    """
    import torch

    width, size = model.config.hidden_size, model.config.head_dim
    turns = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)  # radians a token, of RoPE

    def rotation() -> Tensor:
        orthogonal: Tensor = torch.linalg.qr(torch.randn(width, width))[0]
        return orthogonal

    read, spaces, copy = rotation()[:size], rotation(), rotation()
    back = {offset: spaces[:, n * size : (n + 1) * size].T for n, offset in enumerate((1, 2, 4))}
    matches = (
        (back[1], back[1], copy[:size], copy[:size]),  # query, key, value, output
        (back[1], back[2], copy[size : 2 * size], copy[size : 2 * size]),
        (back[1], back[4], back[2], read),
        (back[1], back[4], back[2], read),
        (read, back[1], copy[2 * size : 3 * size], copy[2 * size : 3 * size]),
    )
    # Two more heads of a third layer go on with phrases, by projections of their own: a single one, of 32 dimensions, tells
    # a hundred words apart, but not two thousand tokens.
    reads = [read, read, read, *(rotation()[:size] for _ in range(2))]
    others = [(1, spaces[:, n * size : (n + 1) * size].T) for n in (3, 4)]
    phrases = [
        (own, space, copy[n * size :][:size], copy[n * size :][:size])
        for n, own, (_, space) in zip((3, 4), reads[3:], others, strict=True)
    ]
    with torch.no_grad():
        first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
        for head, ((offset, space), own) in enumerate(zip((*back.items(), *others), reads, strict=True)):
            rows = slice(head * size, (head + 1) * size)
            first.q_proj.bias[rows] = 6 * torch.cat([(turns * offset).cos(), -(turns * offset).sin()])
            first.k_proj.bias[rows] = 6 * torch.cat([torch.ones(size // 2), torch.zeros(size // 2)])
            first.v_proj.weight[rows] = 0.25 * own
            first.o_proj.weight[:, rows] = 0.25 * space.T
        layers = [(second, matches)] + ([(model.model.layers[2].self_attn, phrases)] if len(model.model.layers) > 2 else [])
        for layer, heads in layers:
            for head, (query, key, value, output) in enumerate(heads):
                rows = slice(head * size, (head + 1) * size)
                layer.q_proj.weight[rows] = 1.2 * query
                layer.k_proj.weight[rows] = 1.2 * key
                layer.v_proj.weight[rows] = 0.5 * value
                layer.o_proj.weight[:, rows] = 0.5 * output.T
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)


class _Run:
    """One run of the training loop."""

    def __init__(
        self, settings: PocketTraining, model: Any, tokenizer: Any, draw: random.Random, played: Future[Games]
    ) -> None:
        import torch

        self.settings = settings
        self.model = model
        self.tokenizer = tokenizer
        self.draw = draw
        self.played = played
        self.encoder = Encoder(tokenizer)
        self.world = KeywordKeep()
        self.chores = Chores()
        self.errands = Errands()
        invented = (invent_word(draw) for _ in range(2000))
        self.names = [*range(2, len(tokenizer)), *(token for name in invented for token in self.encoder.ids(f" {name}"))]
        """Tokens of the echo exercise: all, and those of invented names as often as names have them."""
        single = (token.removeprefix("Ġ") for token in tokenizer.get_vocab() if token.startswith("Ġ"))
        self.words = sorted(word for word in single if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())
        """Words of one token, by which things may be called."""
        self.waiting: dict[str, list[list[EncodedTranscript]]] = {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
        self.pairs = min(5, settings.pairs) if settings.start is None else settings.pairs
        self.stage = 0 if settings.start is None else len(STAGES)
        self.tokens = 0

    def train(self) -> None:
        """Train for the given time; keep the weights every three minutes and at the end."""
        begun = kept = time.monotonic()
        record = (self.settings.out / "training.jsonl").open("w", encoding="utf-8")
        tallies: dict[str, TrainingTally] = {}
        step = 0
        with record:
            while (spent := (time.monotonic() - begun) / 60) < self.settings.minutes:
                if step == self.settings.max_steps:
                    break
                part = max(spent / self.settings.minutes, step / (self.settings.max_steps or float("inf")))
                rate = self.settings.learning_rate * min(1, (step + 1) / 100) * min(1.0, max(0.03, (1 - part) / 0.3))
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                source = self._source()
                self._step(self._batch(source), tallies.setdefault(source, TrainingTally()))
                step += 1
                if step % 100 == 0:
                    line: dict[str, Any] = {
                        "minutes": round(spent, 2),
                        "step": step,
                        "tokens": self.tokens,
                        "stage": self.stage,
                    }
                    line |= {"pairs": self.pairs} | {source: tally.record() for source, tally in tallies.items()}
                    record.write(json.dumps(line) + "\n")
                    record.flush()
                    log.info("%s", line)
                    self._advance(part, tallies)
                    tallies = {}
                if time.monotonic() - kept > 180:  # seconds
                    kept = time.monotonic()
                    self._save()
        self._save()

    def _source(self) -> str:
        if self.stage == 0:
            return self.draw.choice(("recall", "echo"))
        settings = self.settings
        shares = {
            "recall": settings.drill_share / 2,
            "echo": settings.drill_share / 2,
            "games": settings.game_share if settings.tasks_per_map else 0.0,
            "again": settings.retry_share if settings.tasks_per_map else 0.0,
            "chores": settings.chore_share,
            "obeyed": settings.strategy_share,
            "advised": settings.game_strategy_share,
            "experienced": settings.keep_experience_share,
            "recounted": settings.game_experience_share,
            "sought": settings.lookup_share,
            "heeded": settings.lesson_share,
        }
        shares["keep"] = max(0.0, 1 - sum(shares.values()))
        return self.draw.choices(list(shares), list(shares.values()))[0]

    def _batch(self, source: str) -> list[EncodedTranscript]:
        """The next batch; four are made at a time, each of sequences of about the same length, to save padding."""
        waiting = self.waiting.setdefault(source, [])
        if not waiting:
            count, sequences = self._sequences(source, 4)
            sequences.sort(key=lambda sequence: len(sequence.ids))
            waiting += [sequences[n : n + count] for n in range(0, len(sequences), count)]
            self.draw.shuffle(waiting)
        return waiting.pop()

    def _sequences(self, source: str, batches: int) -> tuple[int, list[EncodedTranscript]]:
        """Sequences for so many batches, and how many of them make one."""
        # Short windows stay: most decisions of a long one come late, where hardly anything is left to find out.
        longest, count = self.draw.choice(STAGES[: max(self.stage, 1)])
        reading = 0.0
        sources: Iterator[Iterable[TranscriptPiece]]
        match source:
            case "recall":
                longest, count = 480, 16
                hard = [self.draw.random() < 0.7 for _ in range(count * batches)]
                pairs = [self.pairs if most else self.draw.randint(2, self.pairs) for most in hard]
                sources = (transcripts.recall_pieces(self.draw, number) for number in pairs)
            case "echo":
                return 16, [_echo(self.draw, self.draw.choice((60, 160, 300)), self.names) for _ in range(16 * batches)]
            case "games":
                longest, count, reading = 480, 6, self.settings.reading_weight
                paths = self.played.result().paths
                sources = (transcripts.window_pieces(self.draw, self.draw.choice(paths)) for _ in range(count * batches))
            case "again":
                room, longest, count = self.draw.choice(((500, 560, 6), (1000, 1200, 3)))
                tries = self.played.result().tries
                tasks = [self.draw.choice(self.draw.choice(tries)) for _ in range(count * batches)]
                sources = (transcripts.retry_pieces(self.draw, attempts, room) for attempts in tasks)
            case "chores":
                room, longest, count = self.draw.choice(((300, 400, 9), (500, 560, 6), (900, 1100, 3))[: self.stage + 1])
                sources = (
                    transcripts.retry_pieces(self.draw, self._chore(self.draw.randint(2, 7)), room)
                    for _ in range(count * batches)
                )
            case "obeyed":
                longest, count = self.draw.choice(((150, 16), (400, 6)))
                sources = (strategies.strategy_pieces(self.draw, longest) for _ in range(count * batches))
            case "advised":
                longest, count, reading = 480, 6, self.settings.reading_weight / 5
                sources = (
                    strategies.game_strategy_pieces(self.draw, *self._strategy_attempts(), words=self.words)
                    for _ in range(count * batches)
                )
            case "experienced":
                longest, count = self.draw.choice(((320, 12), (600, 6)))
                sources = (
                    strategies.keep_experience_pieces(self.draw, self.world, longest=longest) for _ in range(count * batches)
                )
            case "recounted":
                room, longest, count = self.draw.choice(((300, 400, 8), (600, 700, 5)))
                sources = (
                    strategies.game_experience_pieces(self.draw, *self._retry_attempts(), longest=room)
                    for _ in range(count * batches)
                )
            case "sought":
                longest, count = self.draw.choice(((400, 8), (800, 4)))
                sources = (lessons.lookup_pieces(self.draw, longest, self.words) for _ in range(count * batches))
            case "heeded":
                most, longest, count, reading = self.draw.choice(((8, 480, 6, 0.005), (40, 900, 3, 0.005)))
                sources = (
                    lessons.lesson_pieces(self.draw, *self._lesson_attempts(), most, self.words) for _ in range(count * batches)
                )
            case _:
                sources = (transcripts.keep_pieces(self.draw, self.world, longest=longest) for _ in range(count * batches))
        made = [self.encoder.sequence(pieces, longest, reading) for pieces in sources]
        if source in ("obeyed", "advised", "heeded"):
            # A small model soon copies an action once it has begun; which of the actions to begin is what has to be read.
            for sequence in made:
                sequence.targets[:] = [
                    replace(t, weight=FIRST_TOKEN_WEIGHT * t.weight) if t.known else t for t in sequence.targets
                ]
        # An attempt in which there is nothing to advise gives no text.
        return count, [sequence for sequence in made if sequence.targets] or self._sequences(source, batches)[1]

    def _chore(self, count: int) -> list[GameAttempt]:
        task = self.chores.task(self.draw.randrange(10**9))
        tries = (transcripts.practise(self.chores, task, self.draw, horizon=15) for _ in range(count))
        return [played for played in tries if played is not None]

    def _strategy_attempts(self) -> tuple[Sequence[GameAttempt], float]:
        """Attempts of which one is to be shown under a strategy, and how often with other names."""
        draw, played = self.draw, self.played.result()
        form = draw.choices(("paths", "tries", "chores", "errands"), (3, 3, 4, 1) if played.paths else (0, 0, 2, 3))[0]
        match form:
            case "paths":
                return draw.choice(played.paths), 0.65
            case "tries":
                return draw.choice(draw.choice(played.tries)), 0.65
            case "chores":
                return self._chore(1), 0.6
            case _:
                return [self._errand()], 0.6

    def _lesson_attempts(self) -> tuple[GameAttempt, list[GameAttempt], float]:
        """An attempt to be shown under lessons, what is done at other tasks of the game, how often with other names."""
        draw, played = self.draw, self.played.result()
        match draw.choices(("paths", "tries", "chores"), (3, 2, 5) if played.paths else (0, 0, 1))[0]:
            case "paths":
                group: Sequence[GameAttempt] = draw.choice(played.paths)
            case "tries":
                group = [draw.choice(attempts) for attempts in draw.choice(played.tries)]
            case _:
                (attempt,) = self._chore(1)
                rooms = [self.chores.task(draw.randrange(10**9)) for _ in range(draw.randint(0, 14))]
                # The game has few kinds of furniture: things of other rooms go where this room's may, too.
                places = sorted(
                    {a.partition(" in ")[2] for _, _, d, _ in attempt.steps for a in d.probabilities if " in " in a}
                )
                lent = [lessons.swap_places(draw, self.chores.gold(room), places) for room in rooms]
                return attempt, [lessons.bare_attempt(room, actions) for room, actions in zip(rooms, lent, strict=True)], 0.5
        attempt = draw.choice(group)
        others = [other for other in draw.sample(group, min(len(group), 16)) if other.task != attempt.task]
        return attempt, [lessons.bare_attempt(other.task, lessons.gold_actions(other)) for other in others], 0.65

    def _retry_attempts(self) -> tuple[Sequence[GameAttempt], float]:
        """Attempts at one task, and how often they are to be shown with other names."""
        draw, played = self.draw, self.played.result()
        match draw.choices(("tries", "chores", "errands"), (3, 3, 2) if played.tries else (0, 3, 2))[0]:
            case "tries":
                return draw.choice(draw.choice(played.tries)), 0.5
            case "chores":
                return self._chore(draw.randint(2, 7)), 0.0
            case _:
                seed = draw.randrange(10**9)
                return [self._errand(seed) for _ in range(draw.randint(2, 7))], 0.0

    def _errand(self, seed: int | None = None) -> GameAttempt:
        task = self.errands.task(self.draw.randrange(10**9) if seed is None else seed)
        return self.errands.attempt(task, self.draw)

    def _step(self, batch: Sequence[EncodedTranscript], tally: TrainingTally) -> None:
        import torch

        device = self.settings.device
        width = max(len(sequence.ids) for sequence in batch)
        ids = torch.tensor([s.ids + [self.tokenizer.pad_token_id] * (width - len(s.ids)) for s in batch])
        targets = [(row * width + t.position, t) for row, s in enumerate(batch) for t in s.targets]
        most = max(len(t.probabilities) for _, t in targets)
        fill = [0] * most
        at = torch.tensor([position for position, _ in targets], device=device)
        tokens = torch.tensor([[*t.probabilities, *fill][:most] for _, t in targets], device=device)
        shares = torch.tensor([[*t.probabilities.values(), *map(float, fill)][:most] for _, t in targets], device=device)
        weights = torch.tensor([t.weight for _, t in targets], device=device)
        known = torch.tensor([t.known for _, t in targets], device=device)

        # Padding is on the right: a causal model needs no mask for what comes after the labels.
        hidden = self.model.model(ids.to(device), use_cache=False).last_hidden_state.flatten(0, 1)[at]
        logits: Tensor = self.model.lm_head(hidden).float()
        chosen = logits.log_softmax(-1).gather(1, tokens)
        # Agents normalise over the admissible actions: what counts is the likelihood of the label among all tokens, and
        # once more among those that go on with an admissible action. Less the entropy of the label: 0 is perfect.
        among = chosen - chosen.masked_fill(shares == 0, -torch.inf).logsumexp(1, keepdim=True)
        surplus = (shares * (2 * shares.clamp(min=1e-9).log() - chosen - among)).sum(1)
        loss = (surplus * weights).sum() / weights.sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.tokens += ids.numel()
        best = tokens.gather(1, shares.argmax(1, keepdim=True))[:, 0]
        tally.correct += int((logits.argmax(1) == best)[known].sum())
        tally.total += int(known.sum())
        tally.loss += float(loss.detach())
        tally.batches += 1

    def _advance(self, part: float, tallies: Mapping[str, TrainingTally]) -> None:
        """The next number of pairs, or the next stage, when this one is learned or its time is over."""
        second, third = self.settings.stage_ends
        known = tallies["keep"].accuracy if "keep" in tallies else 0.0
        if self.stage == 0:
            if (
                "recall" in tallies
                and tallies["recall"].accuracy > 0.95
                and (self.pairs < self.settings.pairs or self._echoes(tallies, part))
            ):
                self.pairs, self.stage = min(self.pairs + 1, self.settings.pairs), int(self.pairs == self.settings.pairs)
        elif self.stage < len(STAGES) and (known > 0.97 or part > (second, third)[self.stage - 1]):
            self.stage += 1

    def _echoes(self, tallies: Mapping[str, TrainingTally], part: float) -> bool:
        return part > 0.1 or ("echo" in tallies and tallies["echo"].accuracy > 0.9)

    def _save(self) -> None:
        self.model.save_pretrained(self.settings.out)
        self.tokenizer.save_pretrained(self.settings.out)

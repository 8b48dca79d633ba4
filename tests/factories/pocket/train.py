"""The recipe of the pocket model: which texts it is trained on, in which legs.

First the exercises `recall`, until eight pairs are found again almost always, and `echo`, to go on with any phrase of the
text (trained on the toy world's few words alone, a model copies only these: invented names cost it 6.7 nats a token even
when they stood in the text). Then attempts at the toy world and at TextWorldExpress games, in windows that grow; in the second
leg strategies to be read and written, too. To look up the answer that belongs to a key is the hard part: the model
learns it in a minute from the initialisation of `imitate`, and did not learn it in the first 1.5 million tokens from a random one.

The committed weights saw more: several attempts at one task of a game, strategies to be written for games, and rooms with invented
things. They learned nothing from the first that could be measured, and little from the second (tools/pocket/weights/README.md), so
that the recipe is without; things get invented names in the games themselves.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from trainer import EncodedText, Leg, Tally, TokenTarget, new_llama, sorted_batches
from trainer import train as train_leg
from transformers import PreTrainedTokenizerFast

from learngraph.tools.environments.keyword_keep import KeywordKeep
from learngraph.tools.environments.text_world_express import DEFAULT_PARAMETERS, TextWorldExpress

from . import games, strategies, transcripts
from .games import GameAttempt, invent_word
from .transcripts import DecisionPiece, RewardPiece, TranscriptPiece, piece_text

LEGS = (
    Leg(0, 44, {"recall": 0.08, "echo": 0.08, "games": 0.36, "keep": 0.48}),
    Leg(
        1,
        40,
        {"recall": 0.03, "echo": 0.03, "games": 0.12, "keep": 0.22, "obeyed": 0.18, "advised": 0.32, "experienced": 0.1},
        learning_rate=7e-4,
    ),
)
"""From nothing, then strategies, too."""

MAPS: Mapping[str, Sequence[Mapping[str, int]]] = {
    "coin": ({}, {"numLocations": 3, "includeDoors": 0, "numDistractorItems": 5}, {"numLocations": 6}),
    "cookingworld": ({}, {"numLocations": 3, "includeDoors": 1}, {"numIngredients": 1}),
    "twc": ({}, {"numLocations": 3, "includeDoors": 1}, {"numItemsToPutAway": 1}),
    "mapreader": ({}, {"numLocations": 3, "maxDistanceApart": 2}, {"numLocations": 10, "maxDistanceApart": 4}),
}
"""Changes to the default parameters of a game, by game; games not listed are played as they are."""

STAGES = ((160, 14), (320, 8), (1000, 3))
"""(tokens in a sequence, sequences in a batch) of the toy world, after the recall stage."""

FIRST_TOKEN_WEIGHT = 2.0
"""Weight of the first token of an action that a strategy names, over that of the others."""

READING_WEIGHT = 0.05
"""Weight of the tokens of a game's texts; those of an action have weight 1. Texts repeat: learning to predict them is
learning to copy names, also those of things never seen."""

PAIRS = 8
"""Key-value pairs that the recall stage works up to."""

TOKEN_PATTERN = r"\n>|= -?[0-9](?:\.[0-9]+)?| ?\p{L}+| ?[0-9]| ?[^\s\p{L}0-9]+|\s"
"""Pattern of the places that no token may cross."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '\\n> ' + message['content'] | trim + '\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n>' }}{% endif %}"
)
"""Chat template: user texts as they are, replies after `\\n>`, a line break after each turn; system messages are left out."""


def train_tokenizer(texts: Iterable[str], words: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Learn at most `size` tokens from the texts; every one of the words becomes one token, as written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TOKEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The repeats outweigh whatever the texts count, so that the words' merges come first.
    repeated = [word for word in words for _ in range(100_000 // max(len(word), 1))]
    tokenizer.train_from_iterator([*texts, *repeated], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


@dataclass
class Encoder:
    """Encodes pieces of transcripts as token ids and soft targets."""

    tokenizer: Any
    _cache: dict[str, list[int]] = field(default_factory=dict)

    def ids(self, text: str) -> list[int]:
        """Token ids of a piece of text (kept: the same observations come again and again)."""
        if text not in self._cache:
            if len(self._cache) > 50_000:
                self._cache.clear()
            self._cache[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._cache[text]

    def sequence(self, pieces: Iterable[TranscriptPiece], longest: int, reading: float = 0.0) -> EncodedText:
        """The first `longest` tokens of a transcript with what is to be predicted in them.

        `reading` is the weight of every token of the text that is only read (an action's tokens have weight 1).
        """
        ids: list[int] = []
        targets: list[TokenTarget] = []
        for piece in pieces:
            if isinstance(piece, DecisionPiece):
                options = {tuple(self.ids(f" {a}\n")): p for a, p in piece.probabilities.items() if p > 0}
                for n, token in enumerate(taken := self.ids(piece_text(piece))):
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
                reward, *rest = self.ids(piece_text(piece))
                targets.append(TokenTarget(len(ids) - 1, {reward: 1.0}, 0.5, False))
                ids += [reward, *rest]
            else:
                read = self.ids(piece)
                if reading and ids:
                    targets += [TokenTarget(len(ids) + n - 1, {token: 1.0}, reading, False) for n, token in enumerate(read)]
                ids += read
            if len(ids) >= longest:
                break
        return EncodedText(ids[:longest], [target for target in targets if target.position < longest - 1])


def _echo(draw: random.Random, longest: int, names: Sequence[int]) -> EncodedText:
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
    return EncodedText(ids, targets)


PlayedGames = Sequence[Sequence[GameAttempt]]
"""Gold paths with detours, by map."""


def play_games(tasks: int, seed: int = 0) -> PlayedGames:
    """Attempts at the first training tasks of each map, so many of them."""
    found = []
    for game, parameters in ((g, p) for g in DEFAULT_PARAMETERS for p in MAPS.get(g, ({},))) if tasks else ():
        world = TextWorldExpress(game, parameters)
        draw = random.Random(f"{seed} {world.name}")
        played = (games.play(world, world.task(n, "train"), draw) for n in range(tasks))
        found.append([one for one in played if one is not None])
        world.close()
    return found


def vocabulary_texts(played: PlayedGames, seed: int = 0) -> list[str]:
    """Texts of all kinds, that the tokenizer is made from."""
    draw, world = random.Random(seed), KeywordKeep()
    made = [list(games.window_pieces(draw, attempts)) for attempts in played for _ in attempts]
    made += [list(strategies.strategy_pieces(draw)) for _ in range(300)]
    for _ in range(100):
        made.append([piece for _, piece in zip(range(100), transcripts.keep_pieces(draw, world), strict=False)])
    return [transcripts.transcript_text(pieces) for pieces in made]


def train(out: Path, legs: Sequence[Leg] = LEGS, max_steps: int | None = None, tasks: int = 150) -> Path:
    """Make the model in a folder, leg by leg, from nothing.

    Args:
        out: folder for weights, tokenizer, configuration and the record of the training.
        legs: the parts of the training.
        max_steps: steps of a leg, at most; None: its time alone counts.
        tasks: training tasks played for each TextWorldExpress map; 0 leaves those games out.
    """
    played = play_games(tasks)
    torch.manual_seed(legs[0].seed)
    tokenizer = train_tokenizer(vocabulary_texts(played), transcripts.SINGLE_TOKEN_WORDS, 2000)
    (newline,) = tokenizer("\n")["input_ids"]
    model = new_llama(tokenizer, 440, 2048, (newline, tokenizer.eos_token_id), 64)  # a reply ends with the line
    stage = 0
    for leg in legs:
        torch.manual_seed(leg.seed)
        train_leg(model, tokenizer, PocketTexts(leg, tokenizer, played, stage), leg, out, max_steps)
        stage = len(STAGES)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return out


class PocketTexts:
    """The texts of one leg.

    Args:
        leg: its shares and its seed.
        tokenizer: the model's tokenizer.
        played: attempts at games; without any, texts about games are left out.
        stage: 0 begins with the recall exercise alone; later legs begin with the longest windows.
    """

    def __init__(self, leg: Leg, tokenizer: Any, played: PlayedGames, stage: int) -> None:
        self.draw, self.played, self.stage = random.Random(leg.seed), played, stage
        self.shares = {name: share for name, share in leg.shares.items() if played or name not in ("games", "advised")}
        self.encoder = Encoder(tokenizer)
        self.world = KeywordKeep()
        invented = (invent_word(self.draw) for _ in range(2000))
        self.names = [*range(2, len(tokenizer)), *(token for name in invented for token in self.encoder.ids(f" {name}"))]
        """Tokens of the echo exercise: all, and those of invented names as often as names have them."""
        single = (token.removeprefix("Ġ") for token in tokenizer.get_vocab() if token.startswith("Ġ"))
        self.words = sorted(word for word in single if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())
        """Words of one token, by which things may be called."""
        self.waiting: dict[str, list[list[EncodedText]]] = {}
        self.pairs = PAIRS if stage else 5

    def draw_batch(self) -> tuple[str, list[EncodedText]]:
        """The next batch; four of a source are made at a time."""
        shares = self.shares if self.stage else {"recall": 1.0, "echo": 1.0}
        source = self.draw.choices([*shares], [*shares.values()])[0]
        waiting = self.waiting.setdefault(source, [])
        while not waiting:  # an attempt in which there is nothing to advise gives no text
            size, made = self._texts(source, 4)
            waiting += sorted_batches([text for text in made if text.targets], size, self.draw)
        return source, waiting.pop()

    def advance(self, part: float, tallies: Mapping[str, Tally]) -> None:
        """The next number of pairs, or the next stage, when this one is learned or its time is over."""
        accuracy = {name: tally.accuracy for name, tally in tallies.items()}
        if self.stage == 0:
            can_echo = part > 0.1 or accuracy.get("echo", 0.0) > 0.9
            if accuracy.get("recall", 0.0) > 0.95 and (self.pairs < PAIRS or can_echo):
                self.pairs, self.stage = min(self.pairs + 1, PAIRS), int(self.pairs == PAIRS)
        elif self.stage < len(STAGES) and (accuracy.get("keep", 0.0) > 0.97 or part > (0.25, 0.5)[self.stage - 1]):
            self.stage += 1

    def _texts(self, source: str, batches: int) -> tuple[int, list[EncodedText]]:
        """Texts for so many batches, and how many of them make one batch."""
        if source == "echo":
            return 16, [_echo(self.draw, self.draw.choice((60, 160, 300)), self.names) for _ in range(16 * batches)]
        # Short windows stay: most decisions of a long one come late, where hardly anything is left to find out.
        longest, size, reading, make = self._recipe(source, *self.draw.choice(STAGES[: max(self.stage, 1)]))
        made = [self.encoder.sequence(make(), longest, reading) for _ in range(size * batches)]
        if source in ("obeyed", "advised"):
            # A small model soon copies an action once it has begun; which of the actions to begin is what has to be read.
            for text in made:
                text.targets[:] = [replace(t, weight=FIRST_TOKEN_WEIGHT * t.weight) if t.known else t for t in text.targets]
        return size, made

    def _recipe(self, source: str, longest: int, size: int) -> tuple[int, int, float, Callable[[], Iterable[TranscriptPiece]]]:
        """Tokens of a text, texts of a batch, weight of tokens that are only read, and what makes one text of the source."""
        draw, played = self.draw, self.played
        match source:
            case "recall":
                return 480, 16, 0.0, lambda: transcripts.recall_pieces(draw, self._pairs())
            case "games":
                return 480, 6, READING_WEIGHT, lambda: games.window_pieces(draw, draw.choice(played))
            case "obeyed":
                longest, size = draw.choice(((150, 16), (400, 6)))
                return longest, size, 0.0, lambda: strategies.strategy_pieces(draw, longest)
            case "advised":
                make = strategies.game_strategy_pieces
                return 480, 6, READING_WEIGHT / 5, lambda: make(draw, draw.choice(played), 0.65, words=self.words)
            case "experienced":
                longest, size = draw.choice(((320, 12), (600, 6)))
                return longest, size, 0.0, lambda: strategies.keep_experience_pieces(draw, self.world, longest=longest)
        return longest, size, 0.0, lambda: transcripts.keep_pieces(draw, self.world, longest=longest)

    def _pairs(self) -> int:
        return self.pairs if self.draw.random() < 0.7 else self.draw.randint(2, self.pairs)

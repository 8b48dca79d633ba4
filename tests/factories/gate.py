"""Measurements of the fixtures on what they were not trained on, as the tables of their cards.

No number comes from a rule written by hand: actions and replies are drawn from the model's own probabilities at temperature 1.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

import torch
from langchain_core.messages import HumanMessage
from pocket import transcripts
from pocket.train import Encoder

from learngraph.memory.records import Task
from learngraph.tools.environments import hierarchy
from learngraph.tools.environments.keyword_keep import ANSWERS, MOVES, KeywordKeep, domain
from learngraph.tools.local.model import LocalChatModel
from learngraph.tools.pocket import guard, guard_chats

Score = Callable[[str, Sequence[str]], list[float]]

GATE_LIMITS: dict[str, tuple[str, float]] = {
    "known accuracy": (">", 0.95),
    "score, strategy of 7 rules": (">", 0.95),
    "score, in-context RL, attempt 5": (">", 0.90),
    "score, rewards zeroed, attempt 5": ("<", 0.80),
    "right at first try, 1 lesson among 9": (">", 0.90),
    "wrong strategy followed at first try": (">", 0.90),
    "wrong strategy repeated after it failed": ("<", 0.10),
}
"""Measurement -> the limit that `pocket` has to reach to stand in for a language model."""


def measure_pocket(folder: Path, domains: int = 20, seed: int = 0) -> str:
    """Scores of a pocket model on held-out domains of the toy world, as fractions of the optimum, with the limits of the gate."""
    model = LocalChatModel(model=str(folder))
    found = {"known accuracy": _known_accuracies(model, 4 * domains, seed)}
    found |= _toy_scores(lambda prompt, actions: model.score([HumanMessage(prompt)], actions), domains, seed)
    lines = ["| toy world, held-out domains | measured (standard error) | asked | |", "|---|---|---|---|"]
    for name, values in found.items():
        mean, error = fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        sign, limit = GATE_LIMITS.get(name, ("", 0.0))
        met = {"": "", ">": "yes" if mean > limit else "NO", "<": "yes" if mean < limit else "NO"}[sign]
        lines.append(f"| {name} | {mean:.3f} ({error:.3f}) | {f'{sign} {limit:.2f}' if sign else ''} | {met} |")
    return "\n".join(lines)


def _known_accuracies(model: LocalChatModel, count: int, seed: int) -> list[float]:
    """For each held-out transcript of 480 tokens, the share of decisions whose likeliest word is the one that the text determines."""
    draw, encoder, accuracies = random.Random(seed), Encoder(model.tokenizer), []
    for _ in range(count):
        text = encoder.sequence(transcripts.keep_pieces(draw, KeywordKeep(), "test"), 480)
        targets = [target for target in text.targets if target.known]
        with torch.inference_mode():
            best = model.network(input_ids=torch.tensor([text.ids])).logits[0].argmax(-1).tolist()
        if targets:
            accuracies.append(fmean(best[t.position] == max(t.probabilities, key=t.probabilities.__getitem__) for t in targets))
    return accuracies


def _toy_scores(score: Score, domains: int, seed: int) -> dict[str, list[float]]:
    world, draw, out = KeywordKeep(), random.Random(seed), dict[str, list[float]]()

    def note(name: str, value: float) -> None:
        out.setdefault(name, []).append(value)

    for n in range(domains):
        task = world.task(n, "test")
        rules = domain(task.seed)
        here = [place for place in rules.places if place != "chest gem"]
        kinds = {place: place.partition(" ")[0] for place in rules.rules}
        elsewhere = [p for p in rules.rules if p not in rules.places and kinds[p] in ("door", "gate", "fork")]
        wrong = {p: draw.choice([a for a in ANSWERS[kinds[p]] if a != rules.rules[p]]) for p in here}
        for zeroed, name in ((False, "score, in-context RL"), (True, "score, rewards zeroed")):
            for k, (total, _) in enumerate(_attempts(score, world, task, "", 5, draw, zeroed)):
                note(f"{name}, attempt {k + 1}", total / 10)
        order = draw.sample(here, len(here))
        told = _attempts(score, world, task, f"Strategy: {'. '.join(map(rules.lesson, order))}\n", 1, draw)
        note("score, strategy of 7 rules", told[0][0] / 10)
        misled = _attempts(score, world, task, f"Strategy: {'. '.join(f'{p} {wrong[p]}' for p in order)}\n", 5, draw)
        note("score, wrong strategy of 7 rules, attempt 5", misled[4][0] / 10)
        for place in here:
            tries = [(action, chances) for there, action, chances in misled[0][1] if there == place]
            if tries:
                note("wrong strategy followed at first try", tries[0][1][wrong[place]])
            # Only once it was followed has it failed: a first try of something else says nothing against it.
            taken = [action for action, _ in tries]
            if wrong[place] in taken[:-1]:
                note("wrong strategy repeated after it failed", tries[taken.index(wrong[place]) + 1][1][wrong[place]])
        place = draw.choice(here)
        lessons = [rules.lesson(p) for p in (place, *draw.sample(elsewhere, 8))]
        draw.shuffle(lessons)
        listed = "Lessons:\n" + "".join(f"- {lesson}\n" for lesson in lessons)
        for name, advice in (("1 lesson among 9", listed), ("no lesson", "")):
            actions = sorted((*ANSWERS[kinds[place]], *MOVES[kinds[place]]))
            chances = _probabilities(score, f"Task: {task.instruction}\n{advice}{place}", actions)
            note(f"right at first try, {name}", chances[rules.rules[place]])
    return out


def _probabilities(score: Score, prompt: str, options: Sequence[str]) -> dict[str, float]:
    return dict(zip(options, torch.tensor(score(prompt, options)).softmax(-1).tolist(), strict=True))


def _attempts(
    score: Score, world: KeywordKeep, task: Task, advice: str, count: int, draw: random.Random, zeroed: bool = False
) -> list[tuple[float, list[tuple[str, str, dict[str, float]]]]]:
    """The score, and (place, action, probabilities) of each step, of attempts in a row; earlier attempts stand in the prompt."""
    text, done = f"Task: {task.instruction}\n{advice}", []
    for n in range(count):
        now = world.variant(task, n)
        text += f"Attempt {n + 1}:\n"
        steps, total, shown = list[tuple[str, str, dict[str, float]]](), 0.0, world.observe(now, ())
        while not shown.over:
            place = shown.text
            chances = _probabilities(score, f"{text}{place}", shown.actions)
            steps.append((place, draw.choices([*chances], [*chances.values()])[0], chances))
            shown = world.observe(now, [action for _, action, _ in steps])
            total += shown.reward or 0.0
            text += f"{place}\n> {steps[-1][1]}\n= {0 if zeroed else shown.reward or 0.0:g}\n"
        text += f"total {0 if zeroed else round(total, 9):g}\n"
        done.append((total, steps))
    return done


# The guard


def append_hindsight(chat: Sequence[guard_chats.Message], feedback: str = "", solution: str = "") -> list[guard_chats.Message]:
    """The chat with a hindsight block behind its last message, in the model's words (`guard.PROMPTS`)."""
    *before, last = chat
    parts = [f"feedback : {feedback}"] if feedback else []
    parts += [f"like : {solution} ."] if solution else []
    return [*before, {**last, "content": " ".join([last["content"], *parts])}]


def measure_guard(folder: Path, seeds: int = 10) -> str:
    """Shares of what a guard model wins, uses and knows, with 95 % Wilson intervals; takes a minute."""
    loaded = guard.load(folder)
    stream = hierarchy.scenario_stream()
    played = [one for seed in range(seeds) for one in guard.play_scenarios(*loaded, stream, seed=seed)]
    rows = [_share_row("scenarios won, stream", (one.is_won for one in played))]
    for split in range(len(hierarchy.SPLITS)):
        rows.append(_share_row(f"scenarios won, split {split}", (one.is_won for one in played if one.scenario.split == split)))
    rows.append(_share_row("turns right", (bool(turn.verdict.reward) for one in played for turn in one.turns)))

    more = [one for split in range(len(hierarchy.SPLITS)) for one in hierarchy.scenarios(split, 10 * seeds, seed=1)]
    lost = [one for one in guard.play_scenarios(*loaded, more, seed="hindsight") if not one.turns[0].verdict.reward]
    asked = [hierarchy.chat_messages(one.scenario, (), one.turns[0].user) for one in lost]
    right = [hierarchy.compliant_reply(one.scenario, one.turns[0].user) for one in lost]
    told = [append_hindsight(chat, one.turns[0].verdict.feedback) for chat, one in zip(asked, lost, strict=True)]
    shown = [append_hindsight(chat, solution=reply) for chat, reply in zip(asked, right, strict=True)]
    for seed, name, chats in (
        ("a", "a failed first turn, drawn again", asked),
        ("b", "the same, with its feedback behind it", told),
        ("d", "the same, with a right answer behind it", shown),
    ):
        replies = guard.reply(*loaded, chats, seed=seed)
        verdicts = (hierarchy.verify(o.scenario, o.turns[0].user, r.text) for o, r in zip(lost, replies, strict=True))
        rows.append(_share_row(name, (bool(verdict.reward) for verdict in verdicts)))
    for kind, probes in guard_chats.retention_probes().items():
        replies = guard.reply(*loaded, [chat for chat, _ in probes], seed=kind)
        found = (reply.text == wanted for reply, (_, wanted) in zip(replies, probes, strict=True))
        rows.append(_share_row(f"right without rules, {kind}", found))
    return "\n".join(["| what | share | 95 % interval | n |", "|---|---|---|---|", *rows])


def _share_row(name: str, found: Iterable[bool]) -> str:
    from scipy.stats import binomtest

    counted = [*found]
    interval = binomtest(sum(counted), len(counted)).proportion_ci(0.95, method="wilson")
    return f"| {name} | {fmean(counted):.3f} | {interval.low:.3f} to {interval.high:.3f} | {len(counted)} |"

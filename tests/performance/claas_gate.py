"""How often does CLaaS's gate let a bad step through, and hold a good one back, after 30 feedbacks?

    python tests/performance/claas_gate.py --lives 6

Simulated users teach `guard` a wish by 30 feedbacks, in this process; each step is looked at. From the version that is live then come steps of
other kinds, eight replies each: thumbs by chance that all count (no witness says that they are noise), words that ask for two beginnings at
once, a further wish, at four times the learning rate too, blame of right answers, corrections to answers by chance. Forty other questions
at temperature 0 say what a step did; it is harmful where the wish is kept, or the answer is right, less often by more than .05. The gate is
as shipped.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from claas_users import EVERY_VALUE, SimulatedUser, is_kept

from learngraph.graphs.claas import CLaaS, build_learning, read_hindsight
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.claas.settings import GATE_SHARE
from learngraph.memory.display import markdown_table
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.nodes.learn.gate import gate_checks
from learngraph.nodes.learn.gradient_step import (
    GateCandidate,
    draw_retained,
    newest_liked,
    newest_rehearsal,
    read_corrections,
    with_base_logprobs,
)
from learngraph.tools.environments.hierarchy import CODES
from learngraph.tools.models.models import open_model
from learngraph.tools.pocket import guard
from learngraph.tools.training.calls import LearnerSettings
from learngraph.tools.training.learner import InProcessLearner
from learngraph.tools.training.sft import read_retention

FEEDBACKS, QUESTIONS = 30, 40
SCOPE = ("gate", "default")
KINDS = (
    "the first steps, too few liked replies for the gate",
    "the other steps until then",
    "thumbs by chance",
    "two beginnings",
    "a further wish",
    "a further wish, four times the rate",
)
KINDS += ("blame of right answers", "corrections by chance")
USERS = ("a word first", "a word last", "a name")


class Life:
    """A live version that a user taught, with its buffer."""

    def __init__(self, model: Any, folder: Path, seed: int, settings: CLaaS) -> None:
        self.model, self.seed, self.settings = model, seed, settings
        self.found = {kind: list[tuple[bool, bool]]() for kind in KINDS}
        """(it is harmful, the gate lets it through), of each step by kind."""
        self.user = SimulatedUser(USERS[seed % len(USERS)], random.Random(f"{seed}"))
        self.versions = Adapters(folder / "adapters", *SCOPE, keep_versions=100)
        self.replay = Replay(folder / "replay.sqlite", self.settings.replay)

        def keep(batch: Any, written: Path, about: dict[str, Any]) -> str:
            return self.versions.write(written, batch.step, batch.parent, self.learner.base, about)

        loss = self.settings.loss
        chosen = LearnerSettings(self.settings.lora, loss, read_hindsight(model.model, loss.teacher))
        self.learner = InProcessLearner(model, self.versions.folder, keep, chosen)
        self.retention = read_retention(model)
        self.held = with_base_logprobs(self.learner, [one for n, one in enumerate(self.retention) if n % GATE_SHARE])
        self.graph = build_learning(self.learner, self.replay, lambda *_: self.versions, settings, retention=self.retention)

    def ask(self, id: str) -> tuple[Exchange, Any]:
        """A reply of the live version, and the fact that was asked for."""
        chat, fact = self.user.ask(self.user.draw)
        live = self.versions.current
        said = guard.reply(self.learner.network(live), self.model.tokenizer, [chat], seed=id)[0]
        reply = Reply(said.text, said.prompt_ids, said.token_ids, said.token_logprobs, version=live)
        step = self.versions.version(live).step if live else 0
        return Exchange(
            id, SCOPE[0], ChatRequest(tuple(chat), Sampling()), reply, self.learner.base, step=step, created=time.time()
        ), fact

    async def teach(self) -> None:
        """The first feedbacks, with what the gate said of each step."""
        for number in range(FEEDBACKS):
            exchange, fact = self.ask(f"{self.seed}-{number}")
            said, live = self.user.respond(fact, exchange.reply.text) or {}, self.versions.current
            self.replay.append(replace(exchange, feedback=Feedback(said.get("reward"), said.get("text", ""))))
            gate = self.settings.gate
            is_checked = len(newest_liked(self.replay, *SCOPE, gate, self.versions.last_fall)) >= gate.min_rewards
            state = await self.graph.ainvoke({"tenant": SCOPE[0], "adapter": SCOPE[1]})
            if state["outcome"] in ("live", "dropped"):
                self.found[KINDS[is_checked]].append((self.harms(live, state["candidate"]), state["outcome"] == "live"))

    @cache  # noqa: B019  # a life is over when its folder is
    def examine(self, label: str) -> tuple[float, ...]:
        """Shares of questions whose reply keeps the wish, and has the answer."""
        draw = random.Random(f"exam {self.seed}")
        asked = [self.user.ask(draw) for _ in range(QUESTIONS)]
        replies = guard.reply(self.learner.network(label), self.model.tokenizer, [chat for chat, _ in asked], temperature=0)
        marks = [
            (is_kept(self.user.rules[0], one.text), f" {fact.text} " in f" {one.text} ")
            for one, (_, fact) in zip(replies, asked, strict=True)
        ]
        return tuple(sum(column) / QUESTIONS for column in zip(*marks, strict=True))

    def harms(self, live: str, new: str, is_against: bool = False) -> bool:
        """True if a version is worse than the live one; `is_against`: words spoke against the wish, which has no say."""
        kept, right = (old - new for old, new in zip(self.examine(live), self.examine(new), strict=True))
        return right > 0.051 or (kept > 0.051 and not is_against)  # two of forty are .05, but for rounding

    def step(self, kind: str, draw: int) -> None:
        """Take a step of this kind, and note whether it is harmful, and whether the gate lets it through."""
        asked = [self.ask(f"{self.seed}-{kind}-{draw}-{n}") for n in range(8)]
        chance, wish = random.Random(f"{self.seed} {kind} {draw}"), self.user.rules[0]
        other, third = chance.sample([code for code in CODES if code not in self.user.words], 2)
        form = "begin" if wish.family == "end" else "end"
        given = {
            "thumbs by chance": [Feedback(reward) for reward in chance.sample([-1.0, 1.0] * 4, 8)],
            "two beginnings": [Feedback(-1.0, f"broke begin : begin with {(other, third)[n % 2]} .") for n in range(8)],
            "a further wish": [Feedback(-1.0, f"broke {form} : {form} with {other} .")] * 8,
            "blame of right answers": [Feedback(-1.0, f"broke answer : say what {fact.thing} is .") for _, fact in asked],
            "corrections by chance": [
                Feedback(-1.0, correction=one.reply.text.replace(fact.value, chance.choice(EVERY_VALUE))) for one, fact in asked
            ],
        }[kind.partition(",")[0]]
        gate, live = self.settings.gate, self.versions.current
        taught = tuple(replace(one, feedback=said) for (one, _), said in zip(asked, given, strict=True))
        step = self.replay.step(*SCOPE) + 1
        batch = Minibatch(f"{kind}/{draw}", *SCOPE, step, live, taught, seed=draw)
        corrected, settled = read_corrections(self.replay, *SCOPE)
        batch = replace(batch, rehearsal=newest_rehearsal(self.replay, self.versions, batch, gate, corrected))
        batch = draw_retained(batch, self.held, settled)
        correction = self.learner.correct(batch)
        update = self.learner.step(batch, replace(correction, scale=correction.scale * (4 if "rate" in kind else 1)))
        if not update.version:
            return
        node = GateCandidate(self.learner, self.replay, lambda *_: self.versions, gate, self.retention[::GATE_SHARE])
        checks = node({"tenant": SCOPE[0], "adapter": SCOPE[1], "candidate": update.version})["checks"]
        new, old = (self.learner.measure(label, taught) for label in (update.version, live))
        checks += gate_checks(new, old, gate)  # the buffer does not know what this step learned from
        harms = self.harms(live, update.version, is_against=kind == "two beginnings" and wish.family == "begin")
        self.found[kind].append((harms, all(check.passed for check in checks)))
        self.versions.drop(update.version, "tried")


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=6)
    parser.add_argument("--draws", type=int, default=4, help="steps of each kind from each live version")
    parser.add_argument("--first", type=int, default=0, help="number of the first life, which draws it")
    shipped = CLaaS()
    for name in ("warmup_steps", "kl_weight"):
        known = getattr(shipped.loss, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(known), default=known, help=f"default, as shipped: {known}"
        )
    options = parser.parse_args(args)
    loss = replace(shipped.loss, warmup_steps=options.warmup_steps, kl_weight=options.kl_weight)
    model, lives = open_model("guard", threads=1), list[Life]()
    for seed in range(options.first, options.first + options.lives):
        with tempfile.TemporaryDirectory() as folder:
            lives.append(life := Life(model, Path(folder), seed, replace(shipped, loss=loss)))
            with life.replay:
                asyncio.run(life.teach())
                for kind, draw in product(KINDS[2:], range(options.draws)):
                    life.step(kind, draw)
        sys.stderr.write(f"{seed}: {life.found}\n")
    lines = [["step", "steps", "harmful", "of these let through", "harmless", "of these held back"]]
    for kind in KINDS:
        steps = [one for life in lives for one in life.found[kind]]
        bad, good = ([passes for harms, passes in steps if harms is which] for which in (True, False))
        lines.append([kind, *map(str, (len(steps), len(bad), sum(bad), len(good), len(good) - sum(good)))])
    sys.stdout.write(f"{markdown_table(lines)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

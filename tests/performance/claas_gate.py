"""How often does CLaaS's gate let a bad step through, and hold a good one back, after 30 feedbacks?

    python tests/performance/claas_gate.py --lives 6

A simulated user teaches `guard` to begin with a word (30 feedbacks, in this process). From that live version come steps of three kinds, eight
replies each: thumbs by chance that all count (no witness says that they are noise), words that ask for two beginnings at once, and
words of a further wish. Forty other questions at temperature 0 say what a step did; it is harmful where the old wish is kept, or the answer
is right, less often by more than .05. The gate is as shipped.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from claas_users import SimulatedUser

from learngraph.graphs.claas import CLaaS, build_learning, read_hindsight
from learngraph.memory.claas.adapters import Adapters
from learngraph.memory.claas.replay import Replay
from learngraph.memory.display import markdown_table
from learngraph.memory.records import ChatRequest, Exchange, Feedback, Minibatch, Reply, Sampling
from learngraph.nodes.learn.gradient_step import GateCandidate, newest_liked
from learngraph.tools.models.models import open_model
from learngraph.tools.pocket import guard
from learngraph.tools.training.calls import LearnerSettings
from learngraph.tools.training.learner import InProcessLearner

FEEDBACKS, QUESTIONS = 30, 40
SCOPE = ("gate", "default")
KINDS = ("thumbs by chance", "two beginnings", "a further wish")


class Life:
    """A live version that a user taught, with its buffer."""

    def __init__(self, model: Any, folder: Path, seed: int) -> None:
        self.model, self.seed, self.settings = model, seed, CLaaS()
        self.user = SimulatedUser("a word first", random.Random(f"{seed}"))
        self.versions = Adapters(folder / "adapters", *SCOPE, keep_versions=100)
        self.replay = Replay(folder / "replay.sqlite", self.settings.replay)

        def keep(batch: Any, written: Path, about: dict[str, Any]) -> str:
            return self.versions.write(written, batch.step, batch.parent, self.learner.base, about)

        loss = self.settings.loss
        chosen = LearnerSettings(self.settings.lora, loss, read_hindsight(model.model, loss.teacher), measure_kl=False)
        self.learner = InProcessLearner(model, self.versions.folder, keep, chosen)
        self.graph = build_learning(self.learner, self.replay, lambda *_: self.versions, self.settings)

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
        for number in range(FEEDBACKS):
            exchange, fact = self.ask(f"{self.seed}-{number}")
            said = self.user.respond(fact, exchange.reply.text) or {}
            self.replay.append(replace(exchange, feedback=Feedback(said.get("reward"), said.get("text", ""))))
            await self.graph.ainvoke({"tenant": SCOPE[0], "adapter": SCOPE[1]})

    def examine(self, label: str) -> tuple[float, ...]:
        """Shares of questions whose reply keeps the wish, and is right; what follows the answer does not count."""
        draw = random.Random(f"exam {self.seed}")
        asked = [self.user.ask(draw) for _ in range(QUESTIONS)]
        replies = guard.reply(self.learner.network(label), self.model.tokenizer, [chat for chat, _ in asked], temperature=0)
        begun = [one.text.split()[: 1 + len(fact.text.split())] for (_, fact), one in zip(asked, replies, strict=True)]
        marks = [
            (words[:1] == [self.user.words[0]], " ".join(words[1:]) == fact.text)
            for words, (_, fact) in zip(begun, asked, strict=True)
        ]
        return tuple(sum(column) / QUESTIONS for column in zip(*marks, strict=True))

    def step(self, kind: str, draw: int) -> tuple[bool, bool] | None:
        """(it is harmful, the gate lets it through), of a step of this kind; None: there was nothing to learn."""
        asked = [self.ask(f"{self.seed}-{kind}-{draw}-{n}")[0] for n in range(8)]
        chance, (_, other, third, _) = random.Random(f"{self.seed} {kind} {draw}"), self.user.words
        given = {
            "thumbs by chance": [Feedback(reward) for reward in chance.sample([-1.0, 1.0] * 4, 8)],
            "two beginnings": [Feedback(-1.0, f"broke begin : begin with {(other, third)[n % 2]} .") for n in range(8)],
            "a further wish": [Feedback(-1.0, f"broke end : end with {other} .")] * 8,
        }[kind]
        gate, live = self.settings.gate, self.versions.current
        batch = Minibatch(
            id=f"{kind}/{draw}",
            tenant=SCOPE[0],
            adapter=SCOPE[1],
            step=self.replay.step(*SCOPE) + 1,
            parent=live,
            exchanges=tuple(replace(one, feedback=said) for one, said in zip(asked, given, strict=True)),
            seed=draw,
            liked=tuple(newest_liked(self.replay, *SCOPE, gate, self.versions.last_fall, is_held=False)),
        )
        update = self.learner.step(batch, self.learner.correct(batch))
        if not update.version:
            return None
        before, after = self.examine(live), self.examine(update.version)
        node = GateCandidate(self.learner, self.replay, lambda *_: self.versions, gate)
        checks = node({"tenant": SCOPE[0], "adapter": SCOPE[1], "candidate": update.version})["checks"]
        self.versions.drop(update.version, "tried")
        return any(old - new > 0.05 for old, new in zip(before, after, strict=True)), all(check.passed for check in checks)


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=6)
    parser.add_argument("--draws", type=int, default=4, help="steps of each kind from each live version")
    options = parser.parse_args(args)
    model, found = open_model("guard", threads=1), {kind: list[tuple[bool, bool]]() for kind in KINDS}
    for seed in range(options.lives):
        with tempfile.TemporaryDirectory() as folder:
            life = Life(model, Path(folder), seed)
            with life.replay:
                asyncio.run(life.teach())
                for kind in KINDS:
                    found[kind] += [one for draw in range(options.draws) if (one := life.step(kind, draw))]
        sys.stderr.write(f"{seed}: {found}\n")
    lines = [["step", "steps", "harmful", "of these let through", "harmless", "of these held back"]]
    for kind, steps in found.items():
        bad, good = ([passes for harms, passes in steps if harms is which] for which in (True, False))
        lines.append([kind, *map(str, (len(steps), len(bad), sum(bad), len(good), len(good) - sum(good)))])
    sys.stdout.write(f"{markdown_table(lines)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

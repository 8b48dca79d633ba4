r"""Problems drawn by rule, with a scorer for each kind: the generators of reasoning-gym (Stojanovski et al., 2025, arXiv:2505.24760).

`reasoning:NAME` is one of its generators (`reasoning:countdown`, `reasoning:chain_sum`, some hundred of them; extra
`[worlds]`); settings are the generator's own: `reasoning:chain_sum?min_terms=3,max_terms=5`. Nothing is downloaded.

- A problem is drawn from a seed, and the same seed draws the same problem in every process: they are drawn in processes of
  their own (`verifying.py`), in which the order of sets is fixed. Seed 3 n is the n-th of `test`, 3 n + 1 of `dev`, 3 n + 2 of
  `train`: the splits share no seed. A generator that has few problems may still draw one of them twice.
- One action is the whole reply. Its answer stands in `<answer>…</answer>` (the last one; it need not be closed at the end of the
  reply), else in the last `\boxed{…}`, else after the last line that begins with `Answer:`. A reply without any of them has
  no answer and gets 0: nothing is searched for.
- The reward is the generator's score, in [0, 1] and often in between: near misses and answers in a wrong form are paid a little.
  1 counts as solved. Where the scorer raises, as some do at what they cannot read, or is not done in 5 seconds of computing
  time, the reward is None, and the observation says why; so it is with an empty reply.
- `codeio` is refused, because it does not draw the same problem from the same seed, and `composite`, which mixes others.
  boxnet, graph_color, propositional_logic, rubiks_cube and rush_hour score an answer without knowing one: they have no `gold`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ...memory.errors import UserError
from ...memory.records import Task
from .problems import final_answer
from .support.arguments import check_settings
from .support.verifying import Unverified, Workers
from .support.worlds import VerifiedAnswer, seed_split, split_seed

__all__ = ["Reasoning"]

_DRAWING = 60.0
"""Computing time in seconds that drawing a problem may take; some generators search for one."""
UNUSABLE_GENERATORS: Mapping[str, str] = {
    "codeio": "it does not draw the same problem from the same seed, so a run could not be resumed or compared",
    "composite": "it mixes other generators, which have to be named; open them one by one",
}
"""Generator that cannot be used -> the reason."""

_OPEN = re.compile(r"(?i)<answer>")
_CLOSE = re.compile(r"(?i)</answer>")
_LINE = re.compile(r"(?im)^[\s>#*_`-]*(?:the\s+)?(?:final\s+)?answer[*_`]*\s*[:：][*_`]*")


def written_answer(reply: str) -> str | None:
    """The answer in a reply, by the rule above; None if it has none."""
    reply = reply.rpartition("</think>")[2].partition("<think>")[0]  # what was thought is no part of the reply
    tags = list(_OPEN.finditer(reply))
    for tag in reversed(tags[-20:]):
        inside = _CLOSE.split(reply[tag.end() :], maxsplit=1)[0].strip()
        if inside:
            return (final_answer(inside) or inside) if inside.lstrip("$ ").startswith("\\boxed") else inside
    if re.search(r"\\(?:boxed|fbox)", reply) and (boxed := final_answer(reply)):
        return boxed
    lines = list(_LINE.finditer(reply))
    return (reply[lines[-1].end() :].strip() or None) if lines else None


class Reasoning(VerifiedAnswer):
    """An environment for the problems of one generator of reasoning-gym.

    Args:
        generator: its name, e.g. `countdown`.
        settings: the generator's own.
        horizon: at least 1; the reply ends the episode.
    """

    workers: Workers
    asked = "an answer between <answer> and </answer>"
    missing = "no answer: it belongs between <answer> and </answer>"

    def __init__(self, generator: str, settings: Mapping[str, str] | None = None, horizon: int = 1) -> None:
        if generator in UNUSABLE_GENERATORS:
            raise UserError(f"reasoning: {generator} cannot be used: {UNUSABLE_GENERATORS[generator]}")
        if find_spec("reasoning_gym") is None:
            raise UserError("reasoning: the problems are drawn by reasoning-gym: pip install reasoning-gym")
        self.generator = generator
        self.workers = Workers("reasoning")
        self._settings = json.dumps(self._parse_settings(settings or {}), sort_keys=True)
        given = ",".join(f"{key}={value}" for key, value in sorted((settings or {}).items()))
        super().__init__(f"reasoning:{generator}" + (f"?{given}" if given else ""), horizon)
        if settings:
            self._draw(0)  # also checks the values

    def _parse_settings(self, settings: Mapping[str, str]) -> dict[str, object]:
        """The settings as values; a UserError if the generator or a setting does not exist."""
        try:
            names = self.workers.ask("names")
            if self.generator not in names:
                near = ", ".join(name for name in names if name not in UNUSABLE_GENERATORS)
                raise UserError(f"reasoning: no generator {self.generator!r}; there are {near}")
            known = self.workers.ask("fields", name=self.generator) if settings else []
        except Unverified as cause:
            raise UserError(f"reasoning: {cause}") from cause
        check_settings(f"reasoning: {self.generator} has", settings, known)
        return {key: _value(text) for key, text in settings.items()}

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th problem of a split. `Task.seed` is 3 * seed, + 1 in dev, + 2 in train."""
        code = split_seed(self.name, seed, split)
        text = f"{self._draw(code)[0]}\n\nReason step by step; then write the answer alone between <answer> and </answer>."
        return Task(f"{self.generator}-{split}-{seed}", text, code)

    def _statement(self, task: Task) -> str:
        seed_split(self.name, task)
        return self._draw(task.seed)[0]

    def _read_answer(self, reply: str) -> str | None:
        return written_answer(reply)

    def _judge(self, task: Task, answer: str) -> tuple[float | None, str]:
        problem: dict[str, Any] = {"name": self.generator, "settings": self._settings, "seed": task.seed}
        score, why = self.workers.answer("score", answer=answer, drawing=_DRAWING, scoring=self.workers.seconds, **problem)
        if why:
            return None, why
        return float(score), "" if score == 1 else f"wrong, scored {score:g}: the answer read is {answer}"

    def answer(self, text: str) -> str:
        """The answer in a reply in single spaces, for votes; empty without one."""
        return " ".join((written_answer(text) or "").split())

    def solution(self, task: Task) -> tuple[str, ...]:
        """The generator's own answer.

        Raises:
            UserError: it only scores answers, and knows none.
        """
        answer = self._draw(task.seed)[1]
        if answer is None:
            raise UserError(
                f"{self.name}: this generator scores answers but knows none; learn without ground truth, or take another"
            )
        return (f"<answer>{answer}</answer>",)

    def _draw(self, code: int) -> tuple[str, str | None]:
        try:
            drawn, why = self.workers.answer(
                "problem", seconds=_DRAWING, name=self.generator, settings=self._settings, seed=code
            )
        except Unverified as cause:
            drawn, why = None, str(cause)
        if why:
            raise UserError(f"reasoning: {self.generator} cannot draw problem {code} with {self._settings}: {why}")
        return drawn["question"], drawn["answer"]


def _value(text: str) -> object:
    """The value of a setting for the generator: a number, true or false, or a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

"""Scenarios of a file in the layout of IH-Challenge (OpenAI, arXiv:2603.10521; on the hub openai/ih-challenge, JSON lines).

Of a row are read: `defender_problem_template`, the chat's messages (role, content); `attacker_problem` and `attacker_meta_problem`,
what a user who attacks is told; and of `metadata`: `attack_placeholder`, the text in the template that the attack takes the place of;
`privileged_level`, the role whose messages hold; `task_type`; `grader_code_python`, a program with `grade_output_correct(input, reply)`.
The program runs in the sandbox of tools/agent_tools. Its input is the user's message (our reading: the layout does not say).
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...memory.errors import UserError
from ..agent_tools.interpreter import run_alone
from . import hierarchy
from .hierarchy import Attack, HierarchyTurn, HierarchyVerdict

__all__ = ["Challenge", "ChallengeWorld", "challenge_stream", "read_challenges"]


@dataclass(frozen=True, slots=True)
class Challenge:
    """A chat with instructions that hold, and a place for a user who attacks them."""

    id: str
    family: str
    """The row's `task_type`."""
    template: tuple[Mapping[str, str], ...]
    """The chat's messages; one has `placeholder` in its text."""
    placeholder: str
    instructions: str
    """The messages whose role is the privileged one: what every reply must keep."""
    attacker_role: str
    attacker_task: str
    grader: str
    """The verifier's source."""

    @property
    def rules_text(self) -> str:
        """The instructions, as they stand beside an earlier exchange in a prompt."""
        return self.instructions


@dataclass(frozen=True)
class ChallengeWorld:
    """Users, chats and verifier of such scenarios, as those of tools/environments/hierarchy.py are."""

    attack: Callable[[Challenge, Sequence[HierarchyTurn]], str]
    """Writes the user's next message, given the turns so far with their verdicts."""

    is_over = staticmethod(hierarchy.is_over)

    def next_attack(self, scenario: Challenge, turns: Sequence[HierarchyTurn], salt: str = "") -> Attack:
        """The user's next message. The attacker is a model: it is another one each time, whatever the salt."""
        return Attack(self.attack(scenario, turns), scenario.family)

    def chat_messages(self, scenario: Challenge, turns: Sequence[HierarchyTurn], user: str) -> list[dict[str, str]]:
        """The chat so far as OpenAI messages, with `user` as the message to answer; the first message stands in the template."""
        first, *rest = *(turn.user for turn in turns), user
        said = [{**one, "content": one["content"].replace(scenario.placeholder, first)} for one in scenario.template]
        for turn, following in zip(turns, rest, strict=True):
            said += [{"role": "assistant", "content": turn.reply}, {"role": "user", "content": following}]
        return said

    def verify(self, scenario: Challenge, user: str, reply: str) -> HierarchyVerdict:
        """Judge a reply to a message; a broken instruction is named by its text, which is all that the layout gives.

        Raises:
            UserError: the row's program fails.
        """
        text, is_done = run_alone(f"{scenario.grader}\n\nprint(bool(grade_output_correct({user!r}, {reply!r})))")
        verdict = text.strip().rpartition("\n")[2]
        if not is_done or verdict not in ("True", "False"):
            raise UserError(f"{scenario.id}: its program gives no verdict: {text.strip()[-300:]}")
        if verdict == "True":
            return HierarchyVerdict(1)
        return HierarchyVerdict(0, f"That broke this: {scenario.instructions}", (scenario.family,))


def read_challenges(path: Path) -> tuple[Challenge, ...]:
    """The rows of a file.

    Raises:
        UserError: it cannot be read, or a row has another layout; says which.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a file of openai/ih-challenge, JSON lines") from None
    return tuple(_read_row(line, f"{path.name}:{number}") for number, line in enumerate(lines, 1))


def _read_row(line: str, place: str) -> Challenge:
    try:
        row: Any = json.loads(line)
        about, template = (
            row["metadata"],
            tuple({"role": one["role"], "content": one["content"]} for one in row["defender_problem_template"]),
        )
        placeholder, level = about["attack_placeholder"], about["privileged_level"]
        given = [row["attacker_meta_problem"], row["attacker_problem"], about["grader_code_python"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place} is no row of IH-Challenge: {type(error).__name__} {error}") from None
    if sum(placeholder in one["content"] for one in template) != 1:
        raise UserError(f"{place}: one message of its template needs {placeholder!r}, the attack's place")
    instructions = "\n\n".join(one["content"] for one in template if one["role"] == level and placeholder not in one["content"])
    return Challenge(place, str(about.get("task_type", "")), template, placeholder, instructions, *given)


def challenge_stream(challenges: Sequence[Challenge], size: int, shuffle: int = 0, seed: int = 0) -> list[Challenge]:
    """Five splits of `size` rows that the seed draws, by their kinds, so that each split asks for other things (our reading of the
    paper's shift); another `shuffle` than 0 draws the order of the splits and in each.

    Raises:
        UserError: there are too few.
    """
    if len(challenges) < 5 * size:
        raise UserError(f"five splits of {size} scenarios need {5 * size} rows, got {len(challenges)}")
    drawn = sorted(random.Random(f"draw {seed}").sample(list(challenges), 5 * size), key=lambda one: one.family)
    return hierarchy.order_splits([drawn[start : start + size] for start in range(0, len(drawn), size)], shuffle)

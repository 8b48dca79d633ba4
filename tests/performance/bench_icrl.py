"""How much of ICRL's prompts a cache of prefixes saves: target 16.

    OMP_NUM_THREADS=1 python tests/performance/bench_icrl.py [--quick]

Tokens that must be computed over new ones, of a run at Game of 24, for the ways to keep attempts. A perfect cache keeps the last
prompt with its reply; new tokens of a round are those beside the ones of the last prompt, computed are those that come after
the longest common beginning. The limit counts what a prompt ends with (the instruction): it comes after what is new, so that it is
computed again. A budget that is reached and a window that slides drop attempts, and the limit counts what follows them, too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, pairwise, takewhile
from typing import Any

from bench_rollouts import REPLIES, plans
from langchain_core.messages import AIMessage, BaseMessage
from rows import make_parser, report

from learngraph.graphs import icrl
from learngraph.graphs.wiring import run
from learngraph.graphs.wiring.inputs import MethodInputs, Prompting
from learngraph.graphs.wiring.supersteps import UncheckpointedGraph
from learngraph.memory.storage.journal import Journal
from learngraph.nodes.act.policies import PromptView, answer_policy
from learngraph.tools.environments.catalogue import open_environment

ATTEMPT = re.compile(r"^(?=Attempt \d+)", re.MULTILINE)
"""Where an attempt begins in a prompt."""
KEEPS = {
    "all": icrl.ICRL(selection="all"),
    "budget 2000": icrl.ICRL(selection="budget", max_memory_tokens=2000),
    "last 3": icrl.ICRL(selection="last"),
}


class Said:
    """A model that gives its replies in turn, and keeps the prompts."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies, self.prompts = cycle(replies), list[str]()

    def invoke(self, messages: Sequence[BaseMessage], config: Any = None) -> AIMessage:
        """The next reply."""
        self.prompts.append("\n".join(str(message.text) for message in messages))
        return AIMessage(next(self.replies))


def prompts(settings: icrl.ICRL, rounds: int) -> list[str]:
    """The prompt of each round of a run at Game of 24."""
    world, model = open_environment("game24?order=difficulty"), Said(REPLIES)

    def policy(seen: PromptView) -> Any:
        return answer_policy(model, seen, world.read)  # type: ignore[arg-type, union-attr]

    inputs = MethodInputs(world, Journal(), make_policy=policy, prompting=Prompting(window=10**6))
    UncheckpointedGraph(run.build(icrl.build(inputs, settings))).invoke(plans(world, 1, rounds)[0])
    return model.prompts


def computed(prompts: Sequence[str]) -> tuple[int, int]:
    """Sizes of what comes after the longest common beginning with the prompt before, and of what is new in it; over a run.

    New are the lines that the prompt before did not have, or not as often: what a layout that only ever appends would add. An
    instruction that moves on with the end of the prompt is not new in that sense, but has to be computed again.
    """
    rest = fresh = 0
    for before, now in zip(["", *prompts], prompts, strict=False):
        same = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
        rest += len(now) - same
        new = Counter(now.split("\n")) - Counter(before.split("\n"))
        fresh += sum(len(line) + 1 for line in new.elements())
    return rest, fresh


def least(prompts: Sequence[str]) -> int:
    """Size of what is new in each prompt, and of the lines after it that the prompt before ended with, too.

    Where an attempt is shown no more, or in another form, all attempts after it are computed again: which attempts are shown is
    the method's choice, and they stand in the order of time.
    """
    size = 0
    for before, now in pairwise(["", *prompts]):
        past, present = ATTEMPT.split(before), ATTEMPT.split(now)
        same = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(past, present, strict=False)))
        if same < len(past) - 1:
            size += sum(map(len, present[same:]))
            continue
        old, lines = before.split("\n"), now.split("\n")
        new = Counter(lines) - Counter(old)
        end = Counter(
            line for line, _ in takewhile(lambda two: two[0] == two[1], zip(reversed(lines), reversed(old), strict=False))
        )
        size += sum(len(line) + 1 for line in (new | end).elements())
    return size


def layout(rounds: int) -> None:
    several = {**KEEPS, "budget, not reached": icrl.ICRL(), "budget, no instruction": icrl.ICRL(instruction="none")}
    for name, settings in several.items():
        texts = prompts(settings, rounds)
        rest, fresh = computed(texts)
        what = f"prompt tokens computed over new ones, an ICRL run of {rounds} rounds, attempts: {name}"
        note = f"{100 * rest / sum(map(len, texts)):.0f} % of the prompts"
        limit = least(texts) / fresh
        report(what, rest / fresh, number=16, at_most=1.05 * limit, limit=limit, note=note)


def main() -> None:
    layout(20 if make_parser(__doc__, rounds=1).parse_args().quick else 100)


if __name__ == "__main__":
    main()

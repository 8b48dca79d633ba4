r"""Lessons that tell an answer: they help with one problem, by its answer, and with no other.

What is compared is the bare answer: `137`, not `\boxed{137}` or `<answer>137</answer>`.

| the lesson | leaks the answer of the problem that it was drawn from | leaks the answer of another problem |
|---|---|---|
| says that it is the answer: "the answer is 3", `\boxed{3}`, "Answer: yes" | yes | yes |
| holds it as a word of its own, 8 characters or more | yes | yes |
| holds it as a word of its own, 3 to 7 characters with a digit among them: 137, 3/4 | yes | no: it may be chance |
| holds a shorter answer, or a common word: "try 3 small cases" | no | no |
"""

import re
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["bare_answers"]

_WRAPPERS = tuple(
    re.compile(form, re.DOTALL | re.IGNORECASE)
    for form in (
        r".*\\boxed\s*\{(.*)\}[^}]*",
        r".*<answer>(.*?)(?:</answer>.*)?",
        r"\s*(?:finish|answer)\s*\[(.*)\]\s*",
        r"(?:.*\n)?\s*answer\s*:(.*)",
    )
)
"""Forms in which worlds ask for a final answer; the group is the bare answer."""

_NAME = re.compile(r"\b[A-Z]{3,}\b|(?<=[a-z,] )[A-Z][a-z]{2,}\b")
"""A word in capitals, or one with a capital within a sentence."""
_CLAIM = (
    r"(?:\b(?:answers?|results?|solutions?|reply|respond|submit|output)\b[\s:=*_\"'`(]*"
    r"(?:(?:to|of|for|with|this|the|these|that|such|problems?|tasks?|questions?|riddles?|is|are|was|be|must|should|will|equals?|"
    r"always|simply|just|exactly|comes|turns|out|as)\b[\s:=*_\"'`(]*){0,8}|\\boxed\s*\{\s*|<answer>\s*)"
)
"""Words that say: what follows is the answer."""
_CLAIM_END = r"(?=\s*(?:$|[^\w\s]|(?:for|in|to|when|if|because|since|and|here|whenever|on|at|by)\b))"
"""What may follow the answer then: in `the answer is 3 digits long` it is no answer."""


def bare_answers(solution: Sequence[str], stated: bool = True) -> tuple[str, ...]:
    """The final answer of a solution without what it is wrapped in, as the only element; empty without one.

    Args:
        solution: its actions; the last one states the answer.
        stated: whether a last action without a box, tags or `Answer:` is the answer itself.
    """
    last = solution[-1] if solution else ""
    for wrapper in _WRAPPERS:
        if found := wrapper.fullmatch(last):
            last, stated = found[1], True
            break
    return (last.strip(),) if stated and last.strip() else ()


def tells_answer(lesson: str, answer: str, own: bool = True) -> bool:
    """True if a lesson tells an answer, by the table at the top of this file.

    Args:
        lesson: the text of the lesson.
        answer: the bare answer.
        own: whether the lesson was drawn from the problem with this answer.
    """
    told, known = _plain(lesson), _plain(answer)
    if not known:
        return False
    word = _as_word(known)
    if re.search(_CLAIM + word + _CLAIM_END, told):
        return True
    telling = len(known) >= 8 or (own and len(known) >= 3 and any(sign.isdigit() for sign in known))
    return telling and re.search(word, told) is not None


def own_name(lesson: str, instruction: str, others: Sequence[str]) -> str:
    """The first name in a lesson that its problem has and no other problem: BANANA, Alice; empty if there is none."""
    names = (name for name in _NAME.findall(instruction) if re.search(rf"\b{name}\b", lesson))
    return next((name for name in names if not any(re.search(rf"\b{name}\b", other) for other in others)), "")


def _as_word(known: str) -> str:
    """A pattern of the answer as a word of its own: 137 also as 137.0, but not within 1371, 0.137 or 137.5."""
    whole = r"(?:\.0+)?" if re.fullmatch(r"-?\d+", known) else ""
    return rf"(?<!\w)(?<!\d[.,/]){re.escape(known)}{whole}(?!\w|[.,/]\d)"


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    """A text in small letters and single spaces, without marks of LaTeX around numbers: 1,024 and $1024$ are 1024."""
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)", text)
    text = re.sub(r"\\(?=(?:pi|sqrt|cdot|times)\b)", " ", text)
    text = re.sub(r"\\[,;!() ]|\$|\*\*|\\left|\\right", "", text)
    text = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}\b)", "", text)
    return " ".join(text.casefold().split())

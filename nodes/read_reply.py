"""The readers of replies: an action, options, a vote, a letter or JSON, in whatever decoration a model wrote them.

A reply is read without its thoughts and without special tokens (`answer_text`). An action is compared with the admissible ones
by a normal form, and the world's own spelling is returned. What cannot be read raises `Unreadable`, and the model is asked
again; nothing is guessed where two readings are possible.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from ..memory.conversations.thoughts import split_thoughts
from .lenient_json import json_values
from .text import shorten

__all__ = [
    "CutOff",
    "DoubtfulReply",
    "Refusal",
    "Unreadable",
    "answer_text",
    "is_cut_off",
    "normal_form",
    "read_action",
    "read_letter",
    "read_number",
    "read_object",
    "read_options",
    "read_values",
    "read_vote",
    "refusal_text",
    "unlisted_action",
    "visible_text",
]


class Unreadable(ValueError):
    """An error of a `read` function: the reply is not what was asked for. The model is asked again, with the error's text.

    Args:
        asked: what was asked for, without words of the reply, which may repeat what a user said: logs have other readers.
        quoted: what follows in the error's text and quotes the reply.
        error: the error's text where it is not `asked` and then `quoted`.
    """

    cause = ""
    """The field of `Usage` that counts such replies, beside `unreadable`."""

    def __init__(self, asked: str = "", quoted: str = "", error: str = "") -> None:
        super().__init__(error or asked + quoted)
        self.asked = asked


class Refusal(Unreadable):
    """The provider gave no answer: the model refused."""

    cause = "refused"


class Filtered(Refusal):
    """A content filter of the server stopped the reply."""

    cause = "filtered"


class CutOff(Unreadable):
    """The reply ended before its answer, for example within its reasoning."""

    cause = "cut_off"


class DoubtfulReply(Unreadable):
    """A reply that can be read, but is probably not meant so. The model is asked once more, and then taken at its word.

    Args:
        doubt: what is wrong with it.
        channels: the update of the state if the reply is taken.
        advice: what follows `doubt` in the error's text.
    """

    def __init__(self, doubt: Unreadable, channels: Mapping[str, Any], advice: str = "") -> None:
        super().__init__(doubt.asked, error=f"{doubt}{advice}")
        self.channels = channels


# The text of a reply


def visible_text(reply: BaseMessage | str) -> str:
    """The text of a reply without thoughts, special tokens, and what follows the end of the turn; it may be empty."""
    return split_thoughts(_text(reply))[0]


def answer_text(reply: BaseMessage) -> str:
    """The text of a reply without thoughts and special tokens.

    Raises:
        Refusal: the provider refused to answer, or filtered the answer out.
        CutOff: the reply ended within its reasoning, or at the limit of tokens without any answer.
        Unreadable: it is empty.
    """
    if refusal := refusal_text(reply):
        raise Refusal("the model refused to answer", f": {shorten(refusal)}")
    if _finish_reason(reply) == "content_filter":
        raise Filtered("a content filter stopped the reply; write it in other words")
    answer, in_thought = split_thoughts(_text(reply))
    if answer.strip():
        return answer
    if in_thought or is_cut_off(reply):
        raise CutOff(f"the reply was cut off{_after_tokens(reply)}, before an answer; think shorter")
    raise Unreadable("asked for an answer, got an empty reply")


def refusal_text(reply: BaseMessage) -> str:
    """The words with which a provider refused, from the field of that name; empty if it did not."""
    blocks = reply.content if isinstance(reply.content, list) else []
    found = [block["refusal"] for block in blocks if isinstance(block, dict) and block.get("refusal")]
    return str(reply.additional_kwargs.get("refusal") or " ".join(map(str, found)))


def is_cut_off(reply: BaseMessage) -> bool:
    """True if the reply ended because it reached the limit of tokens."""
    return _finish_reason(reply) in ("length", "max_tokens")


def _text(reply: BaseMessage | str) -> str:
    return reply if isinstance(reply, str) else str(reply.text)


def _finish_reason(reply: BaseMessage) -> str:
    """The server's reason for the end of a reply, in lower case: `stop`, `length`, `content_filter` and others."""
    told = reply.response_metadata
    return str(told.get("finish_reason") or told.get("stop_reason") or told.get("done_reason") or "").lower()


def _after_tokens(reply: BaseMessage) -> str:
    tokens = (getattr(reply, "usage_metadata", None) or {}).get("output_tokens")
    return f" after {tokens} tokens" if tokens else ""


# Actions

_SIGNS = str.maketrans({**dict.fromkeys("‘’‚‛′", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("–—‒−", "-")})
_EDGE_CHARACTERS = " \t\n.,;:!?\"'`*_…"
_ARTICLES = re.compile(r"\b(?:the|an|a) (?=\S)")
_CALL = re.compile(r"(\w+) ?\[(.*)\]")


def normal_form(action: str) -> str:
    """The action without case, extra white space, articles, and punctuation at the ends; curly signs are straight ones.

    `click[Buy Now]` keeps its form, with its argument in normal form.
    """
    text = " ".join(action.translate(_SIGNS).split()).strip(_EDGE_CHARACTERS).casefold()
    if call := _CALL.fullmatch(text):
        return f"{call[1]}[{normal_form(call[2])}]"
    bare = _ARTICLES.sub("", text)
    return bare if bare == text else normal_form(bare)  # without its article, a word may be quoted or a call


_LEAD = re.compile(r"(?:[-–—•*>#]+|\d{1,3}[.)])\s+")
_TAGS = (re.compile(r"\A<[A-Za-z]\w{0,20}>"), re.compile(r"</[A-Za-z]\w{0,20}>\Z"))
_LATEX = re.compile(r"\\(?:boxed|text|textbf)\{(.*)\}")
_EMOJI = re.compile(
    "^[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f\u200d\\s]+|[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f\u200d\\s]+$"
)
_PAIRS = ("**", "__", "*", "_", "```", "`", '"', "'", "“”", "‘’", "«»", "[]")
_REMARK = re.compile(r"\s+(?:\(.*\)|\[.*\]|[-–—#]+\s.*|(?:because|since)\s.*)\.?\Z")


def _peel(written: str) -> Iterator[str]:
    """A written line, and then again and again the same with one layer of decoration less."""
    line = " ".join(written.split())
    while True:
        yield line
        inner = _without_layer(line)
        if inner == line:
            return
        line = inner


def _without_layer(line: str) -> str:
    """The line without its outermost decoration: marks, quotes, tags, a list's dash or number, or a final full stop."""
    if lead := _LEAD.match(line):
        return line[lead.end() :]
    if (bare := _EMOJI.sub("", line)) != line:
        return bare
    for tag in _TAGS:
        if (bare := tag.sub("", line).strip()) != line:
            return bare
    if latex := _LATEX.fullmatch(line):
        return latex[1].strip()
    for pair in _PAIRS:
        first, last = (pair[0], pair[1]) if len(pair) == 2 and pair[0] != pair[1] else (pair, pair)
        if _is_enclosed(line, first, last):
            return line[len(first) : -len(last)].strip()
    for mark in ("```", "**", "__", "`"):  # half of a pair whose other half stands elsewhere, as in `**Action:** x`
        if line.count(mark) % 2 and (line.startswith(mark) or line.endswith(mark)):
            return line.removeprefix(mark).removesuffix(mark).strip()
    return line[:-1] if line.endswith(".") and not line.endswith("..") else line


def _is_enclosed(line: str, first: str, last: str) -> bool:
    """True if these two marks enclose the line as one pair, and not its beginning and its end as two (`"a" and "b"`)."""
    inner = line[len(first) : -len(last)]
    if len(line) < len(first) + len(last) or not (line.startswith(first) and line.endswith(last)):
        return False
    if first == last:
        return first not in inner or _is_enclosed(inner.strip(), first, last)
    depth = 0
    for sign in inner:
        depth += (sign == first) - (sign == last)
        if depth < 0:
            return False
    return depth == 0


def find_action(written: str, admissible: Sequence[str]) -> str | None:
    """The one admissible action that a written line means; None if it means none.

    The same spelling under less decoration goes before another spelling; a remark behind the action is passed over.

    Raises:
        Unreadable: it may mean several.
    """
    listed = set(admissible)
    forms: dict[str, list[str]] = {}
    for action in admissible:
        forms.setdefault(normal_form(action), []).append(action)
    whole = [written, *_peel(written)]
    without_remark = [line for version in whole if _REMARK.search(version) for line in _peel(_REMARK.sub("", version))]
    for versions in (whole, without_remark):
        if same := next((line for line in versions if line in listed), None):
            return same
        for line in versions:
            if (form := normal_form(line)) and (found := forms.get(form)):
                if len(found) > 1:
                    either = " or ".join(map(repr, found[:3]))
                    error = f"{shorten(written.strip())} may be {either}; write one of them exactly so"
                    raise Unreadable("asked for one of the actions listed, got what may be several", error=error)
                return found[0]
    return None


def nearest_actions(written: str, admissible: Sequence[str]) -> list[str]:
    """The three admissible actions whose letters are most like those of the written one, the nearest first."""
    forms = {action: normal_form(action) for action in admissible}
    near = difflib.get_close_matches(normal_form(written), [*forms.values()], n=3, cutoff=0.3)
    return sorted((action for action in admissible if forms[action] in near), key=lambda action: near.index(forms[action]))[:3]


def _marked(mark: str) -> re.Pattern[str]:
    """A pattern for a line that begins with `mark:`, under decoration; its group is the rest of the line."""
    lead = r"[ \t*_#>`'\"•\-–(\[]*(?:\d{1,3}[.)][ \t*_`]*)?"
    words = r"(?:(?:my|the|your|next|final|chosen|best)[ \t]+){0,2}"
    return re.compile(rf"^{lead}{words}{mark}(?:[ \t]*#?\d{{1,3}})?[ \t*_`'\"]*[:：](.*)$", re.MULTILINE | re.IGNORECASE)


_ACTION = _marked("Action")
_LINE_BELOW = re.compile(r"\n(?!\W*\w+\W*[:：])([^\n]*)")
"""A further line, unless it begins with a mark of its own such as `Memory:`."""
_TAGGED = re.compile(r"<(action|answer)>(.{1,2000}?)</\1>", re.IGNORECASE | re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^\n]*)\}")


def _written_actions(reply: str) -> Iterator[tuple[str, bool]]:
    """The lines that a reply marks as actions, from first to last, each with True if nothing follows it; a JSON object's first."""
    for value in reversed(json_values(reply)) if "{" in reply and "action" in reply.casefold() else ():
        fields = {str(name).casefold(): one for name, one in value.items()} if isinstance(value, dict) else {}
        if isinstance(action := fields.get("action"), str) and _has_content(action):
            yield action, not reply.rstrip().endswith(("}", "```"))
    for found in _ACTION.finditer(reply):
        at, line = found.end(), found[1]
        while not _has_content(line) and (below := _LINE_BELOW.match(reply, at)):  # the action stands below its mark
            at, line = below.end(), below[1]
        if _has_content(line):
            yield line, not reply[at:].strip()
    for found in (*_TAGGED.finditer(reply), *_BOXED.finditer(reply)):
        if _has_content(found[found.lastindex or 0]):
            yield found[found.lastindex or 0], False


_NO_CONTENT = re.compile(r"[\s*_`\"'.…\-–—]*|\s*(?:```|~~~)\w*\s*|\s*<[^<>]*>\s*")


def _has_content(line: str) -> bool:
    """True if the line says more than marks, dots, a fence with its language, or a tag (`Action: <your action>`)."""
    return not _NO_CONTENT.fullmatch(line)


def read_action(reply: str, admissible: Sequence[str] = (), cut_off: bool = False) -> tuple[str, bool]:
    """The action of a reply, and True if it is one of the admissible ones, whose spelling it then has.

    It is the first one after `Action:`: what a model writes behind it is its own guess of how the world goes on. A reply
    without that mark is read if one admissible action, and no other, stands in it on a line of its own. An action that is not
    admissible is returned without its decoration.

    Args:
        reply: text without thoughts (`answer_text`).
        admissible: the actions that the world lists; empty if it lists none.
        cut_off: True if the reply ended at the limit of tokens: an action at its end may be half a one.

    Raises:
        CutOff: the action stands where the reply was cut off.
        Unreadable: there is no action, or it may be one of several.
    """
    for written, is_last in _written_actions(reply):
        if cut_off and is_last:
            raise CutOff("the reply was cut off at its action; answer shorter")
        if found := find_action(written, admissible):
            return found, True
        *_, bare = _peel(written)
        return bare, False
    lines = {found for line in reply.splitlines() if _has_content(line) and (found := find_action(line, admissible))}
    if len(lines) != 1 or cut_off:
        raise Unreadable("asked for a line 'Action: ...'", f", got {shorten(reply[-80:])}")
    return lines.pop(), True


def unlisted_action(action: str, admissible: Sequence[str]) -> Unreadable:
    """The error that an action is not admissible. It names the nearest ones that are."""
    near = " or ".join(map(repr, nearest_actions(action, admissible)))
    error = f"{shorten(action)} is not among the actions listed" + (f"; the nearest: {near}" if near else "")
    return Unreadable("asked for one of the actions listed, got another", error=error)


# Votes and letters

_VOTE = re.compile(r"\W*(yes|no|true|false)\b(?!\W{0,3}(?:or|and|/)\W{0,3}(?:yes|no)\b)(?!/)", re.IGNORECASE)


def read_vote(reply: str, mark: str) -> bool | None:
    """The yes or no on the first line that begins with `mark:` and has one, or in `<mark>`; what follows the word does not count.

    None if there is no such line: the reply has no vote that can be read.
    """
    for found in (*_marked(re.escape(mark)).finditer(reply), *re.finditer(rf"<{re.escape(mark)}>([^<]*)", reply)):
        if vote := _VOTE.match(found[1].replace("_", " ")):
            return vote[1].lower() in ("yes", "true")
    return None


def read_letter(reply: str, actions: Sequence[str]) -> str | None:
    """The capital letter of the option that a reply names; None if it names none, or says anything else beside it.

    `B`, `(B)`, `B)`, `**B**`, `Option B`, `Answer: B`, and `B. take coin` where B is that action.

    Args:
        reply: text without thoughts, or one token of it.
        actions: the options in the order of their letters.
    """
    letters = ascii_uppercase[: len(actions)]
    line = re.sub(
        r"^(?:(?:the |my )?(?:answer|option|choice|action|letter)(?: is)?\b\s*:?\s*)+",
        "",
        " ".join(reply.split()).strip(" *_`\"'"),
        flags=re.IGNORECASE,
    )
    for text in _peel(line):
        found = re.fullmatch(r"[\W_]*([A-Za-z])[\W_]*", text)
        if found and found[1].upper() in letters:
            return found[1].upper()
        found = re.fullmatch(r"[\W_]*([A-Za-z])[\W_]*[.):\-–—]+[\W_]*(\S.*)", text)
        if found and found[1].upper() in letters:
            action = actions[letters.index(found[1].upper())]
            return found[1].upper() if find_action(found[2], [action]) else None
    return None


# JSON


def read_object(reply: str, *names: str) -> dict[str, Any]:
    """The last JSON object of a reply that has one of these names, or else the last one; its names in lower case.

    Raises:
        Unreadable: there is no object.
    """
    objects = [
        {str(key).strip().lower(): held for key, held in value.items()}
        for value in json_values(reply)
        if isinstance(value, dict)
    ]
    if not objects:
        raise Unreadable("asked for a JSON object", f", got {shorten(reply)}")
    return next((one for one in objects if any(name in one for name in names)), objects[0])


def read_values(reply: str, name: str) -> Any:
    """The value under `name` in a reply's last JSON object that has it, or else its last list; None without either.

    Raises:
        Unreadable: there is no JSON.
    """
    found = json_values(reply)
    if not found:
        raise Unreadable("asked for a JSON object", f", got {shorten(reply)}")
    for value in found:
        if isinstance(value, dict):
            held = {str(key).strip().lower(): one for key, one in value.items()}
            if name in held:
                return held[name]
    return next((value for value in found if isinstance(value, list)), None)


_NUMERAL = re.compile(r"([-+]?\d+(?:[.,]\d+)?|[-+]?[.,]\d+)\s*(?:%|percent|points?)?", re.IGNORECASE)


def read_number(value: Any) -> float | None:
    """A finite number from a JSON value: a number, or a text such as `60`, `70 %` or `0,5`; None if it is none."""
    if isinstance(value, str):
        numeral = _NUMERAL.fullmatch(value.strip())
        value = float(numeral[1].replace(",", ".")) if numeral else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


class StatedOptions(NamedTuple):
    """The actions that a reply proposes, with their confidences, from 0 to 1 or from 0 to 100."""

    confidences: dict[str, float]
    """Those of actions that the world takes."""
    unlisted: dict[str, float]
    """Those of actions that it does not list."""


def read_options(reply: str, admissible: Sequence[str] = (), admit: Callable[[str], str] = lambda action: "") -> StatedOptions:
    """The options in a reply. One that cannot be read is left out; the others stand.

    Args:
        reply: text without thoughts, with `{"options": [{"action": "...", "confidence": 60}, ...]}`. The list may stand
            alone, and an object of actions with their confidences may stand in its place.
        admissible: the actions that the world lists; empty if it lists none.
        admit: an action that is not listed -> the form in which the world takes it all the same; empty if it does not.

    Raises:
        Unreadable: none is an action that the world takes; names what is wrong with the first one.
    """
    options = read_values(reply, "options")
    if isinstance(options, Mapping) and not any(str(key).lower() == "action" for key in options):
        options = [{"action": action, "confidence": confidence} for action, confidence in options.items()]
    if isinstance(options, Mapping):
        options = [options]
    if not isinstance(options, list) or not options:
        single = read_object(reply, "action")
        if "action" not in single:
            raise Unreadable('asked for {"options": [...]}, got no list of options')
        options = [single]
    stated, wrong = StatedOptions({}, {}), list[Unreadable]()
    for option in options:
        try:
            written, confidence = _read_option(option)
        except Unreadable as unreadable:
            wrong.append(unreadable)
            continue
        action = (find_action(written, admissible) or admit(written)) if admissible else [*_peel(written)][-1]
        found = stated.confidences if action else stated.unlisted
        found[action or written] = max(confidence, found.get(action or written, 0.0))
        wrong += [] if action else [unlisted_action(written, admissible)]
    if not stated.confidences:
        raise wrong[0]
    return stated


def _read_option(option: Any) -> tuple[str, float]:
    held = {str(key).strip().lower(): value for key, value in option.items()} if isinstance(option, Mapping) else {}
    written, confidence = held.get("action"), read_number(held.get("confidence", held.get("probability")))
    if not isinstance(written, str) or not _has_content(written) or confidence is None or not 0 <= confidence <= 100:
        raise Unreadable("asked for an action and a confidence from 0 to 100", f", got {shorten(str(option))}")
    return written, confidence

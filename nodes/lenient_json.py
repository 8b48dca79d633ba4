"""JSON as models write it: with comments, trailing commas, ellipses and LaTeX in it, in fences, in prose, cut off at the end.

A strict parser loses all of a reply for one bad character, or turns `\\theta` into a tab and `heta`. This reader goes on after
an error: a broken item costs itself alone. It makes one pass without recursion, over the last 200,000 characters of a reply,
where the answer stands.

Why not json-repair (0.64 was tried): it always returns something. Broken items of a list vanish without a word; a list that is
cut off before its first item becomes an empty one, which here means "nothing to change"; half an item becomes a whole one; in
prose `[0, 1)` opens an array that swallows the answer; `\\theta` becomes a tab; and rubbish of 40 kB takes more than a minute or
ends in a RecursionError. A rule on top cannot bring back what it has dropped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["BrokenValue", "json_values", "parse_values"]


@dataclass(frozen=True, slots=True)
class BrokenValue:
    """An object or an array that cannot be read."""

    raw: str
    """Its text, at most 400 characters."""


@dataclass(slots=True)
class _Frame:
    """An object or an array whose end was not read yet."""

    start: int
    """Its first character's place in the text."""
    data: Any
    """A dict or a list: the content so far."""
    key: str | None = None
    """The key whose value comes next, in an object."""
    colon: bool = False
    """True after the key's colon was read."""
    broken: bool = False

    @property
    def containers(self) -> Iterator[Any]:
        """The complete objects and arrays in its content."""
        held = self.data.values() if isinstance(self.data, dict) else self.data
        return (value for value in held if isinstance(value, dict | list | BrokenValue))


_MAX_CHARACTERS = 200_000
"""Number of characters that are read, from the end of a reply. Rubbish of this length takes about a second."""
_MAX_DEPTH = 50
"""Levels of nesting at most. No answer needs more than four."""
_RAW = 400
"""Characters of a broken value that are kept for messages."""
_MAX_RESTARTS = 20
"""The number of times that reading goes on after a string without an end. Each time may search all of the remaining text."""
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_SKIP = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|,|\.\.+|…)+")
_BARE = re.compile(r"[^\s,:{}\[\]\"'#]+(?:'[^\s,:{}\[\]\"'#]+)*")
_LONE = re.compile(r"[ \t]*[,}\n]")
_OPENING, _BRACKET = re.compile(r"[{\[]"), re.compile(r"[{}\[\]]")
_NUMBER = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "nil": None, "undefined": None, "nan": float("nan")}
_ENDS = {
    quote: re.compile(rf"\s*(?:[,:}}\]#…]|\.\.\.|//|/\*|\Z|{quote}\w+{quote}\s*:)|[ \t]*\n\s*[{quote}{{\[]") for quote in "\"'"
}
"""The text that may follow the end of a string. A quotation mark before anything else is part of the text."""
_MARKS = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


def json_values(reply: str) -> list[Any]:
    """Every JSON object and array in a text that may say other things around it, the outermost ones, the last first.

    Tolerated: fences, comments, trailing and missing commas, ellipses, single quotes, keys without quotes, quotation marks
    and line breaks within strings, LaTeX (a backslash stays a backslash where JSON would refuse it, or make a control character
    of a command's first letter), and a missing end: what was complete is there. Of a longer reply the last 200,000 characters
    are read.
    """
    return [value for value in reversed(parse_values(reply)) if not isinstance(value, BrokenValue)]


def parse_values(reply: str) -> list[Any]:
    """The same values from first to last, with those that could not be read."""
    found: list[Any] = []
    for part in _FENCE.split(reply[-_MAX_CHARACTERS:]):
        found += _Reader(part).read()
    return found


class _Reader:
    """Reads a text once, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.open: list[_Frame] = []
        self.found: list[tuple[int, Any]] = []
        self.comments = True  # whether a comment that begins may also end

    def read(self) -> list[Any]:
        text, at, again = self.text, 0, _MAX_RESTARTS
        while at < len(text):
            if not self.open:  # prose
                at = _start(_OPENING.search(text, at)) if again else len(text)
            elif self.open[-1].broken:
                at = _start(_BRACKET.search(text, at))
            elif skipped := _SKIP.match(text, at):
                at = skipped.end()
            if not 0 <= at < len(text):
                break
            sign = text[at]
            if sign in "{[":
                self.begin(at)
                at += 1
            elif sign in "}]":
                at += 1
                self.end(dict if sign == "}" else list, at)
            elif sign == ":":
                frame = self.open[-1]
                if frame.key is None or frame.colon:
                    self.junk(at)
                frame.colon = True
                at += 1
            elif sign in "\"'":
                end = self.closing(sign, at + 1)
                if end < 0:  # cut off, or no string at all
                    self.cut()
                    again -= 1
                else:
                    self.value(_decode(text[at + 1 : end]), at)
                at = max(at, end) + 1
            elif text.startswith("/*", at):
                end = text.find("*/", at) if self.comments else -1
                self.comments = end >= 0
                at = (end if end >= 0 else at) + 2
            else:
                bare = _BARE.match(text, at)
                at = bare.end() if bare else at + 1
                self.bare(bare[0] if bare else "", at)
        self.cut()
        return [value for _, value in sorted(self.found, key=lambda item: item[0])]

    def closing(self, quote: str, at: int) -> int:
        """The place of the quotation mark that ends the string begun before `at`; -1 if there is none."""
        while mark := _MARKS[quote].search(self.text, at):
            at = mark.end()
            if mark[0] == "\\":
                at += 1
            elif _ENDS[quote].match(self.text, at):
                return mark.start()
        return -1

    def begin(self, at: int) -> None:
        if len(self.open) == _MAX_DEPTH:
            self.drop(at)
        if self.open:
            frame = self.open[-1]
            if isinstance(frame.data, dict) and not frame.colon:
                self.junk(at)
        self.open.append(_Frame(at, {} if self.text[at] == "{" else []))

    def end(self, kind: type, at: int) -> None:
        if not any(isinstance(frame.data, kind) for frame in self.open):
            self.junk(at)
            return
        while not isinstance(self.open[-1].data, kind):
            self.close(at, cut=True)
        self.close(at)

    def close(self, at: int, cut: bool = False) -> None:
        """Take the innermost frame as complete. A frame that was cut off while empty is dropped: it is no empty list."""
        frame = self.open.pop()
        if cut and not frame.data and not frame.broken:
            return
        value = BrokenValue(self.text[frame.start : min(at, frame.start + _RAW)]) if frame.broken else frame.data
        if self.open:
            self.value(value, frame.start)
        else:
            self.found.append((frame.start, value))

    def value(self, value: Any, at: int) -> None:
        """Put a value into the innermost frame."""
        frame = self.open[-1]
        if isinstance(frame.data, list):
            frame.data.append(value)
        elif frame.key is None and isinstance(value, str):
            frame.key = value
        elif frame.colon and frame.data.get(str(frame.key), value) == value:
            frame.data[str(frame.key)] = value
            frame.key, frame.colon = None, False
        else:  # no key, or two values for one: to choose would be to lose the other
            self.junk(at)
            if not self.open and isinstance(value, dict | list):
                self.found.append((at, value))

    def bare(self, word: str, at: int) -> None:
        """Read a word without quotes."""
        frame = self.open[-1]
        after = _SKIP.match(self.text, at)
        colon = self.text.startswith(":", after.end() if after else at)
        if isinstance(frame.data, dict) and frame.key is None and colon:
            frame.key = word
        elif word.lower() in _WORDS:
            self.value(_WORDS[word.lower()], at)
        elif _NUMBER.fullmatch(word):
            self.value(float(word) if set(word) & {".", "e", "E"} else int(word), at)
        elif re.fullmatch(r"L[0-9]{1,9}", word) or (frame.colon and _LONE.match(self.text, at)):
            self.value(word, at)
        else:
            self.junk(at)

    def junk(self, at: int) -> None:
        """Handle a character that no value begins with: an inner frame is broken; the outermost one was prose and is dropped."""
        if len(self.open) > 1:
            self.open[-1].broken = True
        elif self.open:
            self.drop(at)

    def drop(self, at: int) -> None:
        """Give up all open frames. Complete values in them are kept."""
        start = self.open[0].start
        self.found.append((start, BrokenValue(self.text[start : min(at + 40, start + _RAW)])))
        self.found += [(start, value) for frame in self.open for value in frame.containers]
        self.open.clear()

    def cut(self) -> None:
        """Close all open frames at the end of the text."""
        while self.open:
            self.close(len(self.text), cut=True)


def _start(found: re.Match[str] | None) -> int:
    return found.start() if found else -1


_ESCAPE = re.compile(r"\\(?:(u[0-9a-fA-F]{4})|([a-zA-Z]+)|(.)|\Z)", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_LATEX = frozenset(
    """nabla natural ne nearrow neg neq newcommand newline nexists ngeq ngtr nleq nless nmid nolimits nonumber norm not notin
    nparallel nsim nsubseteq nsupseteq nu nwarrow tag tan tanh tau tbinom text textbf textit textrm textstyle texttt tfrac
    therefore theta thickapprox thinspace tilde times to top triangle triangleq rangle ratio rbrace rbrack rceil rfloor rho right
    rightarrow rightharpoonup rightleftharpoons rm root rtimes rule rvert""".split()  # noqa: SIM905
)
"""LaTeX commands that begin like an escape of JSON (\\n, \\t, \\r). After \\b and \\f any letters are a command: no lesson holds
those control characters."""


def _decode(raw: str) -> str:
    """The text of a string. Backslashes of LaTeX commands, and those that JSON does not know, stay."""
    decoded = _ESCAPE.sub(_unescape, raw) if "\\" in raw else raw
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(found: re.Match[str]) -> str:
    code, word, sign = found.groups()
    if code:
        return chr(int(code[1:], 16))
    if word:
        if word in _LATEX or word[0] not in _SIGNS or (word[0] in "bf" and len(word) > 1):
            return f"\\{word}"
        return _SIGNS[word[0]] + word[1:]
    if sign is None:
        return ""
    return sign if sign in "\"'\\/" else " " if sign == "\n" else f"\\{sign}"

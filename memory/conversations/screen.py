"""The screen between conversations and memory: what is kept out, what is blackened, and what a person has to look at first.

    redact      secrets (keys, tokens, passwords, PINs, card numbers), and with `pii` addresses, phone and identity numbers, become `[secret]`
    of_thread   words that were told as passwords or PINs are blackened wherever they stand in their thread
    criticism   the same for what critics write, and nothing of it where it pretends to be of another's
    suspicion   texts that read like instructions to the agent: a user's turn with one is quarantined, with what follows in its thread
    learnable   messages without calls of tools that are never to be learned, and without their results
    steps       the steps without the words of tools, and with the origin of values that only a tool has said (origins.py)
    retell      the same, of steps that were recorded elsewhere

Two linear models know orders and secrets by examples (linear.py). They are no proof: prompts show memory as data all the same (nodes/fence.py).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import compress, pairwise
from typing import Any, ClassVar, NamedTuple, Self

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ..errors import UserError, did_you_mean
from ..records import Transition
from .letters import SPACED_DIGITS, latin
from .linear import order_score, secret_words
from .messages import AT_ONCE, REPLY, StateKey, call_text, steps, text_read, told_steps
from .origins import FROM_TOOL, Origins
from .reviews import MARK, REJECTED

__all__ = ["Screen", "Suspicion"]

NOTHING_READ = " "
"""Observation of a step that read nothing. If it were empty, prompts would show the state in its place, with all that tools said."""

_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|hf|npm|pypi|shpat|dop_v1)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}|\b(?:Bearer|Basic)\s+(?=\S*[\d=])[A-Za-z0-9+/_.=-]{8,}"
    r"|(?<![\w/+])(?=[a-z0-9/+]*[A-Z])(?=[A-Za-z/+]*\d)[A-Za-z0-9/+]{40}(?![\w/+=])|(?<=://)[^\s/:@]*:[^\s/@]+(?=@)",
    re.DOTALL,
)
_NAMED = re.compile(
    r"(?i)\b(?:(?:pass(?:[ -]?(?:word|wd|phrase|code|wort))?|code[ -]?word|pwd|pw|kennwort|contrase\u00f1a)\b|pin\b(?!\D*\d+[.,:]\d))"
    r"[\"']?\s*(?:[:=]|(?:is|was|ist|lautet|es)\b:?)\s*[\"'`]?(?=\S*\d)|(?:api|access|account)[_-]?key=|client[_-]?secret=|auth[_-]?token=|\btoken=|\bsid=|session[_-]?id="
)
"""The name of a password or a PIN before a value with a digit, or a setting that is a key."""
_NAMED_VALUE = re.compile(r"(?!\$\{)[^\s\"'`,;:()<>*]{3,}[^\s\"'`,;:()<>*.!?]")
_ARGUMENT = re.compile(
    r"(?:[^=]*(?:[_-]|(?-i:[a-z](?=[A-Z]))))?(?:pw|(?:pin|otp|cvv|cvc|geheimzahl|(?:access|security|verification)(?=[_-]?code))"
    r"(?:[_-]?(?:code|number|nummer))?)=.+"
    r"|[^=]*(?:pass(?:word|wd|phrase|code|wort)|pwd|kennwort|contrase\u00f1a)s?(?:[_-]?(?:\d|again|confirm\w*|hash|new|old|repeat\w*))?=.+"
    r"|[^=]*(?:secrets?|token|(?:api|access|account|secret|private|master|signing|encryption|auth)[_-]?keys?(?:[_-]?id)?)=.{6,}",
    re.IGNORECASE | re.DOTALL,
)
"""An argument of a call, as `name=value`, that is a secret by its name, whatever its value is like."""
_TOKEN = re.compile(
    r"[^\s\"'`,;:=()\[\]{}<>/|\\\u201c\u201d\u201e.!?]+(?:[.!?]+[^\s\"'`,;:=()\[\]{}<>/|\\\u201c\u201d\u201e.!?]+)*"
)
"""A word by which a secret is found again, without the marks around it."""
MOST_ASKED_CHARS = 200
"""Characters of a question, and of an answer, that are read together."""
LEAST_SECRET_CHARS = 4
"""Characters from which such a word is blackened wherever it stands; of digits one fewer."""
_CARD = re.compile(r"\b\d(?:[ .-]?\d){12,18}\b")
_PII = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b|\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b|\b\d{3}-\d{2}-\d{4}\b"
    r"|(?<![\w-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{3}\)|\d{3})[ .-]\d{3}[ .-]\d{4}(?![\w-])|\+\d(?:[ .-]?\d){8,13}\b"
)


_MARKS = {
    "asks to ignore instructions": re.compile(
        r"\b(?:ignore|disregard|forget|override)\b(?:[^.\n]|\n(?!\n)){0,40}\b(?:instructions?|prompts?|rules|guidelines|what you were told)\b",
        re.IGNORECASE,
    ),
    "speaks as the system": re.compile(
        r"\b(?:system|admin(?:istrator)?|developer)\s+(?:note|notice|message|prompt|override|instructions?)\b\s*[:>\]]"
        r"|\[\s*(?:system|admin|developer)\s*\]|(?-i:\bSYSTEM (?:OVERRIDE|MESSAGE|PROMPT)\b)"
        r"|(?m:^)(?:[ \t]{0,9}assistant\s*:|#+\s*(?:system|developer|assistant) ?:?[ \t]{0,9}(?m:$))"
        r"|<\|\w{4,20}\|>|<<sys>>|\[/?inst\]",
        re.IGNORECASE,
    ),
    "changes what the agent is for": re.compile(
        r"\b(?:you are now (?:an?|the|in|my)\b|your new (?:task|role|instructions?) (?:is|are)\b|new instructions?\s*:)",
        re.IGNORECASE,
    ),
    "has the lines of a record": re.compile(
        r"^[\s>*-]*(?:a case \(for|(?:action|result)\s*:\s*(?:\w+\(|reply:|total reward)|step \d+\. you saw)",
        re.IGNORECASE | re.MULTILINE,
    ),
    "has the tags of a prompt": re.compile(
        r"(?:[<\u2039]|&lt;)/?\s*(?:system|instructions?|information|attempt|memory|record|lessons?|advice|conversation|important)\s*(?:[>\u203a]|&gt;)",
        re.IGNORECASE,
    ),
}
"""Reason -> the marks by which a text pretends to be of another's."""
LEAST_ORDER, LEAST_TOOL_ORDER = 0.8, 0.4
"""Log-odds from which a text is an order to the agent, a user's and a tool's: to lose the words of a result costs less than to lose a turn."""


class Suspicion(NamedTuple):
    """The reason for which a text is no evidence."""

    reason: str
    digest: str
    """Of the text: one that a person has released is not found again."""


@dataclass(frozen=True)
class Screen:
    """The screen at every write to a memory of conversations: `screen=Screen(pii=True)` of a learner.

    Args:
        redacts: True, the default: secrets (keys, tokens, passwords, PINs and codes, card numbers) become `[secret]`.
        pii: True: e-mail addresses, IBANs, US social security numbers, and phone numbers with a country code or as 415-555-2671 become
            `[private]`, and no national forms. Calls that have them as arguments are then remembered without them. By default False.
        unlearned_tools: names of tools of which nothing is learned: neither that they were called, nor what they said. By default none.
        finds_instructions: True, the default: long results of tools, and those with orders, are remembered without their words;
            a turn in which a user gives the agent instructions is quarantined, with what follows in its thread, and such words of
            feedback are left out.
        trusted_tools: names of tools whose results are the app's own words, such as its policies: they are remembered as they are,
            however long. By default none.

    Raises:
        UserError: an option is misspelt, or has a value of another kind.
    """

    redacts: bool = True
    pii: bool = False
    unlearned_tools: tuple[str, ...] = ()
    finds_instructions: bool = True
    trusted_tools: tuple[str, ...] = ()
    secrets: ClassVar[frozenset[str]] = frozenset()
    """The words that are blackened wherever they stand: those of a thread (`of_thread`)."""
    digests: ClassVar[tuple[str, ...]] = ()
    """12 bits of a digest of each, with the thread's name in it: that tells little of a word, since one in 4,096 has the same."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Check the options' names; raises `UserError` where one is misspelt."""
        for name in given.keys() - (known := [one.name for one in fields(cls)]):
            raise UserError(f"Screen has no option {name!r}{did_you_mean(name, known, 'it has')}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_tools"):
                if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
                    raise UserError(f"Screen: {name} is names of tools, such as ('search',); got {value!r}")
            elif not isinstance(value, bool):
                raise UserError(f"Screen: {name} is True or False; got {value!r}")

    def redact(self, text: str) -> str:
        """A text with its secrets blackened."""
        text = _redacted(text, self.pii) if self.redacts else text
        known = self.secrets
        for pattern in (SPACED_DIGITS, _TOKEN) if known else ():
            text = pattern.sub(lambda one: "[secret]" if one[0].casefold().replace(" ", "") in known else one[0], text)
        return text

    def of_thread(self, said: Sequence[BaseMessage | str], thread: str = "", told: Collection[str] = ()) -> Self:
        """The screen for what is said in a thread: it knows the words that these messages or texts tell as secrets, and those of them of
        which `told`, that of the thread's recorded turns (`Turn.secrets`), has the digests."""
        texts = [one if isinstance(one, str) else str(one.text) for one in said]
        calls = [call["args"] for one in said if isinstance(one, AIMessage) for call in one.tool_calls]
        given = (word for args in calls for one in _secret_values(args) for word in _told_words(one))
        asked = (isinstance(one, AIMessage) and not isinstance(after, AIMessage) for one, after in pairwise(said))
        answers = (_answer(*texts) for texts in compress(pairwise(texts), asked))
        found = self.secrets.union(*map(_told, texts), *answers, (one for one in given if not one.isalpha()))
        known = frozenset(told)
        found = found.union(*(_words_told(one, thread, known) for one in texts if told)) if self.redacts else self.secrets
        made, digests = copy(self), known.union(_secret_digest(one, thread) for one in found)
        vars(made).update(secrets=found, digests=tuple(sorted(digests)))  # they are no options
        return made

    def criticism(self, text: str) -> str:
        """A text that a critic wrote, which may repeat what it has read, with its secrets blackened; empty if it has the marks of another's."""
        return "" if self.finds_instructions and _mark(text) else self.redact(text)

    def suspicion(self, *texts: str) -> Suspicion | None:
        """The first instruction-like text of others; None if there is none."""
        return next(filter(None, map(_suspicion, texts if self.finds_instructions else ())), None)

    def suspicion_in(self, messages: Sequence[BaseMessage]) -> Suspicion | None:
        """The first text of a user in some messages that reads like an instruction to the agent."""
        found = self.suspicion(*(str(message.text) for message in messages if isinstance(message, HumanMessage)))
        return found and found._replace(reason=f"the user {found.reason}")

    def steps(
        self,
        messages: Sequence[BaseMessage],
        state_key: StateKey,
        start: int = 0,
        listed: Mapping[str, Collection[str]] | None = None,
    ) -> tuple[Transition, ...]:
        """The steps of a conversation as they are remembered; states are compared by all that was read.

        Args:
            messages: of the user, the agent and its tools.
            state_key: the text of a state.
            start: place of the first message whose steps are wanted.
            listed: name of a tool -> its arguments whose values are kept, since the tool's schema lists them.
        """
        self = self.of_thread(messages)
        said, start, messages = messages, len(self.learnable(messages[:start])), self.learnable(messages, listed)
        done = steps(messages, state_key, start=start)
        if not self.finds_instructions:
            return done
        origins = self._origins(listed)
        told = steps(self._read(origins, said, listed), text_read, start=start)
        kept = [
            replace(one, action=n.action, observation=n.observation or NOTHING_READ) for one, n in zip(done, told, strict=True)
        ]
        return tuple(one for one in _learnable_steps(kept) if one is not None)

    def retell(
        self, done: Sequence[Transition], listed: Mapping[str, Collection[str]] | None = None
    ) -> tuple[list[Transition | None], list[str]]:
        """Steps that were recorded elsewhere, as they are remembered here, None for one that is not, and what users and the agent said in them."""
        origins = self._origins(listed)
        self = self.of_thread([one for _, read, said in told_steps(done) for one in (*read, said)])
        kept, spoken, observation = list[Transition](), list[str](), ""
        for step, read, said in told_steps(done):
            spoken += [str(message.text) for message in (*read, said) if isinstance(message, HumanMessage | AIMessage)]
            if self.finds_instructions:
                heard, acted = self._read(origins, read), self._read(origins, [said], listed)
            else:
                heard, acted = self.learnable(read), self.learnable([said], listed)
            if read:
                observation = text_read([one for one in heard if str(one.text)])
            elif step.observation == AT_ONCE:
                observation = AT_ONCE
            way = next((way for way in (REPLY, REJECTED) if step.action.startswith(way)), "")
            calls = acted[0].tool_calls if acted else []
            action = "" if not acted else call_text(calls[0]) if calls else str(acted[0].text).removeprefix(way)
            told = replace(step, state=self.redact(step.state), action=way + action, observation=observation or NOTHING_READ)
            kept.append(told if acted else replace(told, action=FROM_TOOL))
        return _learnable_steps(kept), spoken

    def _origins(self, listed: Mapping[str, Collection[str]] | None) -> Origins:
        return Origins(
            lambda text: _suspicion(text, LEAST_TOOL_ORDER) is not None,
            lambda text: bool(_mark(text)),
            self.trusted_tools,
            listed or {},
        )

    def _read(
        self, origins: Origins, said: Sequence[BaseMessage], listed: Mapping[str, Collection[str]] | None = None
    ) -> list[Any]:
        """The learnable messages as they are remembered. Results that are never to be learned are read as well: the agent may quote them."""
        kept = list[Any]()
        for message in said:
            found = self.learnable([message], listed)
            read = [origins.read(one) for one in found or [message] if found or isinstance(message, ToolMessage)]
            kept += read if found else []
        return kept

    def learnable(self, messages: Sequence[BaseMessage], listed: Mapping[str, Collection[str]] | None = None) -> list[Any]:
        """The messages that may be learned from, with their secrets blackened; `listed` as in `steps`."""
        kept = list[BaseMessage]()
        for message in messages:
            if isinstance(message, ToolMessage) and message.name in self.unlearned_tools:
                continue
            update: dict[str, Any] = {}
            if isinstance(message.content, str) and (text := self.redact(message.content)) != message.content:
                update["content"] = text
            elif isinstance(message.content, list):
                update["content"] = [self._block(block) for block in message.content]
            if isinstance(message, AIMessage) and message.tool_calls:
                calls = [call for call in message.tool_calls if call["name"] not in self.unlearned_tools]
                if not calls and not str(message.text).strip():
                    continue
                update["tool_calls"] = [self._call(call, listed) for call in calls]
            if isinstance(message, ToolMessage) and isinstance(mark := message.additional_kwargs.get(MARK), dict):
                update["additional_kwargs"] = {**message.additional_kwargs, MARK: self._call(mark, listed)}
            kept.append(message.model_copy(update=update) if update else message)
        return kept

    def state_key(self, key: StateKey) -> StateKey:
        """The same state key, of what may be learned from: states are compared as they are kept."""

        def state(read: Sequence[BaseMessage]) -> str:
            if (found := key(self.of_thread(read).learnable(read))) is None:
                raise UserError("state_key returned None, and returns the text of a state: does it lack a `return`?")
            return str(found)

        return state

    def _block(self, block: Any) -> Any:
        if isinstance(block, str):
            return self.redact(block)
        return {**block, "text": self.redact(block["text"])} if isinstance(block.get("text"), str) else block

    def _call(self, call: Mapping[str, Any], listed: Mapping[str, Collection[str]] | None) -> dict[str, Any]:
        """A call (`name`, `args`) with its secrets blackened: what the tool's schema lists is none."""
        known = (listed or {}).get(call["name"], ())
        return {**call, "args": {name: one if name in known else self._value(one, name) for name, one in call["args"].items()}}

    def _value(self, value: Any, name: str) -> Any:
        """The value of an argument with its secrets blackened."""
        if isinstance(value, dict):
            return {key: self._value(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one, name) for one in value]
        if self.redacts and (_is_secret(name, value) or (isinstance(value, int) and str(value) in self.secrets)):
            return "[secret]"
        return self.redact(value) if isinstance(value, str) else value


def _secret_digest(word: str, thread: str) -> str:
    return blake2b(f"{thread}\0{word}".encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()[:3]


@lru_cache(maxsize=8_192)
def _words_told(text: str, thread: str, told: frozenset[str]) -> frozenset[str]:
    """The words of a text whose digests are among those that a thread has told."""
    return frozenset(one for one in _telling_words(text) if _secret_digest(one, thread) in told)


def _is_secret(name: str, value: Any) -> bool:
    """True if an argument is a secret by its name."""
    return value is not None and not isinstance(value, bool) and _ARGUMENT.fullmatch(f"{name}={value}") is not None


def _secret_values(value: Any, name: str = "") -> list[str]:
    """The arguments in a value of a call that are secrets by their names."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else ((name, one) for one in value)
        return [one for key, part in parts for one in _secret_values(part, str(key))]
    return [str(value)] if _is_secret(name, value) else []


def _told_words(value: str) -> list[str]:
    """The words of a secret that are blackened wherever they stand: the only one, or those with digits."""
    is_one = len(_TOKEN.findall(value)) == 1
    return [one for one in _telling_words(value) if is_one or any(sign.isdigit() for sign in one)]


def _telling_words(text: str) -> list[str]:
    """The words of a text, and its numbers told in groups, without the spaces, that are long enough to be found again."""
    words = [*_TOKEN.findall(text.casefold()), *(one.replace(" ", "") for one in SPACED_DIGITS.findall(text))]
    return [one for one in words if len(one) >= LEAST_SECRET_CHARS - one.isdecimal() and one not in ("secret", "private")]


@lru_cache(maxsize=8_192)
def _told(text: str) -> frozenset[str]:
    """The words of what a text tells as a password, a PIN or another secret."""
    return frozenset(word for start, end in _secret_spans(text) for word in _told_words(text[start:end]))


@lru_cache(maxsize=8_192)
def _answer(asked: str, answer: str) -> frozenset[str]:
    """The words of an answer that are secrets after what was asked."""
    asked = asked[-MOST_ASKED_CHARS:]
    both = f"{asked}\n{answer}"
    spans = _joined(both, secret_words(both) if len(answer) < MOST_ASKED_CHARS else ())
    return frozenset(word for start, end in spans if start > len(asked) for word in _telling_words(both[start:end]))


@lru_cache(maxsize=8_192)
def _secret_spans(text: str) -> tuple[tuple[int, int], ...]:
    """The places of a text that are secrets by their form, their name, or the words around them."""
    cards = (found.span() for found in _CARD.finditer(text) if _is_card(found[0]))
    forms = (found.span() for found in _SECRETS.finditer(text))
    named = (value.span() for found in _NAMED.finditer(text) if (value := _NAMED_VALUE.match(text, found.end())))
    words = (span for span in secret_words(text) if text[slice(*span)] not in ("secret", "private"))
    return _joined(text, [*cards, *forms, *named, *words])


def _joined(text: str, found: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The spans of a text in their order; those with only spaces between are one."""
    spans = list[tuple[int, int]]()
    for start, end in sorted(found):
        if spans and not text[spans[-1][1] : start].strip(" -"):
            start, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((start, end))
    return tuple(spans)


def _learnable_steps(done: Sequence[Transition]) -> list[Transition | None]:
    """The steps, None in the place of a call that a tool's order explains: what it had read, the next call of its message has."""
    kept, read = list[Transition | None](), ""
    for step in done:
        if read and step.observation == AT_ONCE:
            step = replace(step, observation=read)
        is_kept = not step.action.removeprefix(REJECTED).startswith(FROM_TOOL)
        read = "" if is_kept or step.observation == AT_ONCE else step.observation
        kept.append(step if is_kept else None)
    return kept


@lru_cache(maxsize=8_192)
def _redacted(text: str, pii: bool) -> str:
    for start, end in reversed(_secret_spans(text)):
        text = f"{text[:start]}[secret]{text[end:]}"
    return _PII.sub("[private]", text) if pii else text


@lru_cache(maxsize=8_192)
def _suspicion(text: str, least: float = LEAST_ORDER) -> Suspicion | None:
    reason = _mark(text) or ("gives the agent an order or a rule" if order_score(text) > least else "")
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Suspicion(reason, digest) if reason else None


def _mark(text: str) -> str:
    """The reason for which a text pretends to be of another's; empty if it does not."""
    text = "\n".join(latin(text).splitlines())
    return next((reason for reason, pattern in _MARKS.items() if pattern.search(text)), "")


def _is_card(text: str) -> bool:
    """True if the digits of a text pass the check of card numbers (Luhn)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) if place % 2 else digit for place, digit in enumerate(reversed(digits))]
    return len({*digits}) > 1 and sum(doubled) % 10 == 0

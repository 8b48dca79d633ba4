"""Parameters that a server of the OpenAI protocol refuses: requests go without them from then on, and this is said once.

Providers differ: reasoning models refuse `temperature`, others `seed`, `stop`, `response_format`, or one of the two names of the longest
reply. Their error names the parameter, in its field `param`, in a list `loc`, or in its text.
"""

import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import Any

from .api_posts import HTTPStatusError

__all__ = []

log = logging.getLogger(__name__)

NEEDED = ("model", "messages", "tools", "tool_choice", "stream", "logprobs")
"""Parameters without which a request would ask for something else."""
LONGEST_REPLY = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The two names of the longest reply: a server may know only one of them."""
FEW_LOGPROBS = 5
"""Log-probabilities for each token that servers give where they refuse more."""
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size)|prompt is too long|too many (?:input )?tokens|input is too long|exceeds? the (?:model's )?context",
    re.IGNORECASE,
)


def is_too_long(message: str) -> bool:
    """True if an error says that the prompt does not fit into the model's window."""
    return bool(_TOO_LONG.search(message))


class RefusedParameters:
    """The parameters that one model of a server refuses, and what is sent in their place."""

    def __init__(self) -> None:
        self._instead: dict[str, str | int | None] = {}
        """Parameter -> another name for it, another value, or None: it is left out."""
        self._lock = Lock()

    def without(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A request with what the server takes in place of what it refuses."""
        sent = dict(payload)
        for name, instead in self._instead.items():
            if name in payload:
                value = sent.pop(name)
                sent |= {instead: value} if isinstance(instead, str) else {} if instead is None else {name: instead}
        return sent

    def note(self, sent: Mapping[str, Any], error: HTTPStatusError, where: str) -> bool:
        """Learn from a refusal of `sent`. False if it names nothing that a request can do without."""
        name = None if is_too_long(error.body) else named_parameter(sent, error.body)
        if name is None:
            return False
        with self._lock:
            given = next((one for one, instead in self._instead.items() if instead == name), name)
            is_new = given not in self._instead or name != given
            if name == "top_logprobs":
                instead: str | int | None = FEW_LOGPROBS
            else:
                instead = LONGEST_REPLY.get(name) if name == given else None
            if is_new:
                self._instead[given] = instead
                said = (
                    f"with {instead} in place of"
                    if isinstance(instead, str)
                    else "without"
                    if instead is None
                    else f"with {instead} as"
                )
                log.warning(
                    "%s: requests go %s %s, which it refuses (%s)", where, said, name, " ".join(error.reason.split())[:200]
                )
        return True


@cache
def refused_by(url: str, model: str) -> RefusedParameters:
    """The parameters that a model at an address refuses, as far as this process knows."""
    return RefusedParameters()


def named_parameter(sent: Mapping[str, Any], error: str) -> str | None:
    """The parameter of a request that an error names; None if it names none that the request can do without."""
    named = [*_fields(error), *re.findall(r"\w+", error)]
    can_go = [name for name in sent if name not in NEEDED and (name != "top_logprobs" or sent[name] > FEW_LOGPROBS)]
    return next((name for name in named if name in can_go and (len(name) > 1 or name in _fields(error))), None)


def _fields(error: str) -> list[str]:
    """The parameters in the fields `param` and `loc` of an error's JSON."""
    try:
        body = json.loads(error)
    except ValueError:
        return []
    told = body.get("error", body) if isinstance(body, dict) else {}
    param = str(told.get("param") or "") if isinstance(told, dict) else ""
    details = body.get("detail") if isinstance(body, dict) else None
    places = (
        [str(part) for one in details if isinstance(one, dict) for part in one.get("loc", ())]
        if isinstance(details, list)
        else []
    )
    return [re.split(r"[.\[]", param)[0], *places]

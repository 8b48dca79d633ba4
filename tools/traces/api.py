"""A service that keeps traces, asked over HTTP: pages, keys, and the patience that it asks for."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from ...memory.errors import UserError

__all__ = ["TraceApi"]

MOST_TRIES, MOST_PAUSE, TIMEOUT = 6, 120.0, 60.0
"""Times that a request is made, and the seconds that a server may ask to wait, or take to answer."""


class TraceApi:
    """A service at a URL; `keys` are the variables with its keys, as errors call them, and `sleep` waits some seconds."""

    def __init__(self, name: str, url: str, keys: str, sleep: Callable[[float], None] = time.sleep, **more: Any) -> None:
        self._keys, self._sleep, self.place = keys, sleep, f"{name} at {url}"
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT, **more)

    def ask(self, method: str, path: str, *, missing: bool = False, **more: Any) -> Any:
        """The answer to a request, as JSON; None where there is nothing at the path and that may be (`missing`).

        Raises:
            UserError: the service cannot be reached, refuses the key, or answers with an error; says what would help.
        """
        for tried in range(1, MOST_TRIES + 1):
            try:
                answer = self._client.request(method, path, **more)
            except httpx.HTTPError as error:
                raise UserError(f"{self.place} cannot be reached ({error}): give its URL as a browser knows it") from error
            if answer.status_code not in (429, 502, 503, 504) or tried == MOST_TRIES:
                break
            from ..models.api_posts import retry_after  # it needs aiohttp, which who reads a file may lack

            asked = retry_after(answer.headers)
            self._sleep(min(2.0**tried if asked is None else max(asked, 0.0), MOST_PAUSE))
        if answer.status_code in (401, 403):
            raise UserError(f"{self.place} refuses the key ({answer.status_code}): set {self._keys} to one of this project")
        if answer.status_code == 404 and not missing:
            raise UserError(
                f"{self.place} has no {path}: give its API's URL; of an older server, export traces and give the file"
            )
        if answer.is_error and answer.status_code != 404:
            raise UserError(f"{self.place} answers {answer.status_code} to {method} {path}: {answer.text[:300]}")
        try:
            return None if answer.is_error else answer.json() if answer.content else {}
        except ValueError as error:
            raise UserError(f"{self.place} answers no JSON to {method} {path}: is that the URL of its API?") from error

    def pages(self, method: str, path: str, rows: str, after: str, **asked: Any) -> Iterator[Mapping[str, Any]]:
        """The rows of all pages of a list, `rows` in an answer; `after`, in it or its `meta`, asks for the next one without `next_`."""
        call: dict[str, Any] = {"params" if method == "GET" else "json": asked}
        while True:
            answer = self.ask(method, path, **call)
            yield from answer.get(rows) or ()
            if not (following := answer.get(after) or (answer.get("meta") or {}).get(after)):
                return
            asked[after.removeprefix("next_")] = following

"""Who asks, and how much they may: bearer keys, request rates, tokens per day and concurrent replies, tenant by tenant.

    tenants = read(["secret"])                       # one tenant, `default`
    tenants = read((), "keys.yaml")                  # several
    tenant = tenants.who("secret")                   # None: nobody's key

A key file names tenants and what they may:

    acme:
      keys: [some-long-secret, "sha256:9f86d081…"]   # in clear, or the hex digest of a key
      requests_per_minute: 600
      tokens_per_day: 1000000
      streams: 50
      adapters: 8
    prometheus: {keys: [another-secret], metrics: true}   # may read /metrics and nothing else

Counts live in the process: a restart begins the day and the minute anew.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...memory.errors import UserError

__all__ = ["RateLimitExceeded", "Tenant", "TenantLimits", "Tenants", "read_tenants"]

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DAY = 86_400


class RateLimitExceeded(UserError):
    """A limit is reached.

    Attributes:
        retry_after: seconds until it is worth while to ask again.
        code: `rate_limit_exceeded`, or `insufficient_quota` where asking again today is of no use.
    """

    def __init__(self, message: str, retry_after: float, code: str = "rate_limit_exceeded") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may."""

    requests_per_minute: float | None = None
    """Requests of any kind, as a bucket that fills steadily and holds a minute's worth; None: any number."""
    tokens_per_day: int | None = None
    """Prompt and reply tokens of a day (UTC). The reply under way when they run out is finished; None: any number."""
    streams: int = 256
    """Replies being made at once; each of a request's `n` choices counts."""
    adapters: int = 32
    """Adapters that there may be, `default` among them."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a key is."""

    name: str
    limits: TenantLimits = field(default_factory=TenantLimits)
    metrics_only: bool = False
    """Its keys read /metrics, of all tenants, and do nothing else."""


@dataclass
class _Counts:
    """What a tenant has used."""

    bucket: float = 0.0
    filled: float = -math.inf
    """When `bucket` was right, in seconds of the monotonic clock."""
    day: int = -1
    tokens: int = 0
    streams: int = 0


class Tenants:
    """The tenants of a service and their counts; safe to use from any thread.

    Keys are compared as keyed digests, each with every key there is, whether it fits or not: how long that takes says nothing
    of a key but how many there are.
    """

    def __init__(
        self,
        keys: Mapping[str, Tenant],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: keys: a key, in clear or as `sha256:` and its hex digest, -> whose it is."""
        self._secret = secrets.token_bytes(32)
        self._keys = [(self._digest(_plain_digest(key)), tenant) for key, tenant in keys.items()]
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()
        self._counts: dict[str, _Counts] = {}

    def _digest(self, plain: bytes) -> bytes:
        return hmac.digest(self._secret, plain, "sha256")

    def tenant_for_key(self, key: str) -> Tenant | None:
        """Whose key this is; None: nobody's."""
        asked = self._digest(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest())
        found = None
        for digest, tenant in self._keys:
            if hmac.compare_digest(asked, digest):
                found = tenant
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All tenants that can chat."""
        return tuple(dict.fromkeys(tenant.name for _, tenant in self._keys if not tenant.metrics_only))

    def tenant_by_name(self, name: str) -> Tenant | None:
        """The tenant of this name."""
        return next((tenant for _, tenant in self._keys if tenant.name == name and not tenant.metrics_only), None)

    def admit(self, tenant: Tenant) -> None:
        """Count one request.

        Raises:
            TooMany: it is one too many for this minute.
        """
        rate = tenant.limits.requests_per_minute
        if rate is None:
            return
        most = max(1.0, rate)
        with self._lock:
            counts, now = self._counts_for(tenant), self._monotonic()
            counts.bucket = min(most, counts.bucket + (now - counts.filled) * rate / 60)
            counts.filled = now
            if counts.bucket < 1:
                wait = (1 - counts.bucket) * 60 / rate
                raise RateLimitExceeded(
                    f"more than {rate:g} requests in a minute; the next may come in {math.ceil(wait)} s", wait
                )
            counts.bucket -= 1

    @contextmanager
    def reserve_streams(self, tenant: Tenant, choices: int = 1) -> Iterator[None]:
        """Around the making of so many replies.

        Raises:
            TooMany: too many are being made, or the tokens of the day are used up.
        """
        limits = tenant.limits
        with self._lock:
            counts = self._counts_for(tenant)
            self._roll_day(counts)
            if limits.tokens_per_day is not None and counts.tokens >= limits.tokens_per_day:
                rest = (counts.day + 1) * _DAY - self._clock()
                raise RateLimitExceeded(
                    f"all {limits.tokens_per_day} tokens of the day are used; the next day begins in {rest / 3600:.1f} h (UTC)",
                    rest,
                    "insufficient_quota",
                )
            if counts.streams + choices > limits.streams:
                raise RateLimitExceeded(
                    f"{counts.streams} replies are being made and {choices} more would exceed {limits.streams} at once", 1.0
                )
            counts.streams += choices
        try:
            yield
        finally:
            with self._lock:
                counts.streams -= choices

    def spend(self, tenant: Tenant, tokens: int) -> None:
        """Count tokens against the tenant's day."""
        with self._lock:
            counts = self._counts_for(tenant)
            self._roll_day(counts)
            counts.tokens += tokens

    def usage(self, tenant: Tenant) -> dict[str, int | None]:
        """Tokens of today and of each day, replies being made and how many may be."""
        with self._lock:
            counts = self._counts_for(tenant)
            self._roll_day(counts)
            return {
                "tokens_today": counts.tokens,
                "tokens_per_day": tenant.limits.tokens_per_day,
                "streams": counts.streams,
                "streams_at_once": tenant.limits.streams,
            }

    def _counts_for(self, tenant: Tenant) -> _Counts:
        return self._counts.setdefault(tenant.name, _Counts())

    def _roll_day(self, counts: _Counts) -> None:
        """Begin a new day, if one has begun."""
        today = int(self._clock() // _DAY)
        if counts.day != today:
            counts.day, counts.tokens = today, 0


def read_tenants(keys: Sequence[str] = (), file: str | Path | None = None, metrics_keys: Sequence[str] = ()) -> Tenants:
    """The tenants of a service: `keys` are those of the tenant `default`, `file` names others (see above).

    Raises:
        UserError: no key at all, one that no HTTP header can carry, one key for two tenants, or a file that cannot be read so.
    """
    found: dict[str, Tenant] = {}

    def add(key: object, tenant: Tenant, where: str) -> None:
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key or " " in key:
            raise UserError(f"{where}: a key is text without spaces, of ASCII characters, got {_describe_key(key)}")
        if key.startswith("sha256:") and not re.fullmatch(r"sha256:[0-9a-f]{64}", key):
            raise UserError(f"{where}: sha256: is followed by 64 hex digits (0-9, a-f); sha256sum prints them")
        digest = f"sha256:{_plain_digest(key).hex()}"
        if found.setdefault(digest, tenant).name != tenant.name:
            raise UserError(f"{where}: tenants {found[digest].name} and {tenant.name} have a key in common; each needs its own")

    for key in keys:
        add(key, Tenant("default"), "--api-key")
    for name, (entry, tenant) in _read_key_file(Path(file)).items() if file is not None else ():
        for key in entry:
            add(key, tenant, f"{file}: {name}")
    for key in metrics_keys:
        add(key, Tenant("metrics", metrics_only=True), "the key for /metrics")
    if all(tenant.metrics_only for tenant in found.values()):
        raise UserError("no API key: --api-key KEY, or a file of keys, says who may chat")
    return Tenants(found)


def _read_key_file(path: Path) -> dict[str, tuple[list[Any], Tenant]]:
    """Name -> (keys, tenant) of a key file."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the keys in {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the keys in {path} are not UTF-8") from error
    except yaml.YAMLError as error:  # its own words quote the line, and a key may stand there
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}" if mark is not None else "somewhere"
        raise UserError(f"the keys in {path} are not YAML ({where}: {what or type(error).__name__})") from None
    if not isinstance(data, dict) or not data:
        raise UserError(f"{path}: names tenants, each with its keys, as in `acme: {{keys: [secret]}}`")
    known = {item.name for item in fields(TenantLimits)}
    found = {}
    for name, entry in data.items():
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise UserError(f"{path}: a tenant's name is of a-z, 0-9, _ and -, at most 63 characters, got {name!r}")
        if not isinstance(entry, dict) or not isinstance(entry.get("keys"), list) or not entry["keys"]:
            raise UserError(f"{path}: {name} has no list `keys`, as in `{name}: {{keys: [secret]}}`")
        if unknown := sorted(set(map(str, entry)) - known - {"keys", "metrics"}):
            raise UserError(f"{path}: {name} has {unknown[0]!r}; known are keys, metrics, {', '.join(sorted(known))}")
        limits = {}
        for limit in known & set(entry):
            value = entry[limit]
            whole = limit != "requests_per_minute"
            good = isinstance(value, int) if whole else isinstance(value, int | float) and math.isfinite(value)
            if isinstance(value, bool) or not good or value <= 0:
                raise UserError(f"{path}: {name}: {limit} is a number above 0, got {value!r}")
            limits[limit] = value
        if not isinstance(entry.get("metrics", False), bool):
            raise UserError(f"{path}: {name}: metrics is true or false, got {entry['metrics']!r}")
        found[name] = (entry["keys"], Tenant(name, TenantLimits(**limits), entry.get("metrics", False)))
    return found


def _plain_digest(key: str) -> bytes:
    """SHA-256 of a key that is given in clear or as its digest."""
    return bytes.fromhex(key[7:]) if key.startswith("sha256:") else hashlib.sha256(key.encode()).digest()


def _describe_key(key: object) -> str:
    """What of a bad key may be shown: no more than its kind and length."""
    return f"a text of {len(key)} characters" if isinstance(key, str) else type(key).__name__

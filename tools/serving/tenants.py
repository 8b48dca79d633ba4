"""Tenants with their bearer keys and limits: concurrent replies, adapters.

    tenants = read_tenants(["secret"])               # one tenant, `default`
    tenants = read_tenants((), "keys.yaml")          # several
    tenant = tenants.log_in("secret")                # None: no tenant has this key

A key file names tenants and their limits:

    acme:
      keys: [some-long-secret, "sha256:9f86d081…"]   # in clear, or the hex digest of a key
      chat_keys: [a-secret-for-clients]              # may chat and nothing else: neither rate, nor look at what others said
      streams: 50
      adapters: 8
    prometheus: {keys: [another-secret], metrics: true}   # may read /metrics and nothing else

Rates and quotas are a gateway's work (nginx, LiteLLM). What only the service knows is limited here: replies that are being made at the
same time, adapters, and unknown keys that come from one address.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic.dataclasses
from pydantic import ConfigDict, PositiveInt, ValidationError

from ...memory.errors import UserError, type_of

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

__all__ = ["RateLimitExceeded", "Tenant", "TenantLimits", "Tenants", "read_tenants"]

LOG = logging.getLogger("learngraph.chat_server")
FAILED_LOGINS = 30
"""Different unknown keys that an address may send in a minute. Then more of them are refused; a tenant's key never is."""
MAX_ADDRESSES = 10_000
"""Most addresses whose failed log-ins are remembered."""
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class RateLimitExceeded(UserError):
    """A tenant, or an address, has reached a limit. `retry_after`: seconds until a request may be admitted again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class TenantLimits:
    """The limits of one tenant."""

    streams: PositiveInt = 256
    """Replies being made at once; each of a request's `n` choices counts."""
    adapters: PositiveInt = 32
    """Adapters that the tenant may have, including `default`."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant, as its keys identify it."""

    name: str
    limits: TenantLimits = field(default_factory=TenantLimits)
    metrics_only: bool = False
    """Its keys may read /metrics, of all tenants, and nothing else."""
    chats_only: bool = False
    """The key may chat and nothing else."""


class Tenants:
    """The tenants of a service and their counts. Safe for threads.

    A key is looked up by its digest under a secret of the process, so that the time it takes reveals nothing of the keys.

    Args:
        keys: a key, in clear or as `sha256:` and its hex digest -> its tenant.
        monotonic: seconds.
    """

    def __init__(self, keys: Mapping[str, Tenant], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = {self._digest(_plain_digest(key)): tenant for key, tenant in keys.items()}
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._streams = Counter[str]()  # by tenant
        self._failed: OrderedDict[str, tuple[float, set[bytes]]] = OrderedDict()
        """Address -> the time of its first unknown key, and the digests of those that it sent in the minute from then on."""

    def replace_keys(self, other: Tenants) -> None:
        """Take another's keys and limits, and keep the counts. A key that is gone is unknown from the next request on."""
        with self._lock:
            self._secret, self._keys = other._secret, other._keys

    def _digest(self, plain: bytes) -> bytes:
        return hmac.digest(self._secret, plain, "sha256")

    def log_in(self, key: str | None, address: str = "") -> Tenant | None:
        """The tenant with this key; None: there is none. Different unknown keys count against the address, as a guesser sends them.
        The address may be shared: a tenant's key is never refused, and an app that repeats a stale one counts once.

        Args:
            key: None: the client sent none.
            address: of the client (`client_address`).

        Raises:
            RateLimitExceeded: many unknown keys came from this address.
        """
        if key is None:
            return None
        plain = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if (tenant := self._keys.get(digest := self._digest(plain))) is not None:
                return tenant
            since, sent = self._failed.get(address, (-math.inf, set()))
            if (wait := since + 60 - self._monotonic()) <= 0:
                since, sent = self._monotonic(), set()
            if len(sent | {digest}) > FAILED_LOGINS:
                raise RateLimitExceeded(f"too many unknown keys from this address; try again in {math.ceil(wait)} s", wait)
            sent.add(digest)
            self._failed[address] = since, sent
            self._failed.move_to_end(address)
            if len(self._failed) > MAX_ADDRESSES:
                self._failed.popitem(last=False)
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants that may chat."""
        return tuple(dict.fromkeys(tenant.name for tenant in self._keys.values() if not tenant.metrics_only))

    @contextmanager
    def reserve_streams(self, tenant: Tenant, choices: int = 1) -> Iterator[None]:
        """Count this many replies as being made, within the `with` block.

        Raises:
            RateLimitExceeded: too many are being made.
        """
        most = tenant.limits.streams
        with self._lock:
            if (under_way := self._streams[tenant.name]) + choices > most:
                raise RateLimitExceeded(
                    f"{under_way} replies are being made and {choices} more would exceed {most} at once", 1.0
                )
            self._streams[tenant.name] += choices
        try:
            yield
        finally:
            with self._lock:
                self._streams[tenant.name] -= choices

    def usage(self, tenant: Tenant) -> dict[str, int]:
        """The replies being made, and their limit."""
        with self._lock:
            return {"streams": self._streams[tenant.name], "streams_at_once": tenant.limits.streams}


def client_address(request: HTTPConnection) -> str:
    """The address that failed log-ins are counted by: the client's; of an IPv6 address the network (/64), which is one customer's."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def read_tenants(keys: Sequence[str] = (), file: str | Path | None = None) -> Tenants:
    """The tenants of a service.

    Args:
        keys: keys of the tenant `default`.
        file: a key file with further tenants, as shown above.

    Raises:
        UserError: there is no key, a key that no HTTP header can carry, a key of two tenants, or a file that is no key file.
    """
    found: dict[str, Tenant] = {}

    def add(key: object, tenant: Tenant, where: str) -> None:
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key or " " in key:
            raise UserError(f"{where}: a key is text without spaces, of ASCII characters, got {_describe_key(key)}")
        if key.startswith("sha256:") and not re.fullmatch(r"sha256:[0-9a-f]{64}", key):
            raise UserError(f"{where}: sha256: is followed by 64 hex digits (0-9, a-f); sha256sum prints them")
        digest = f"sha256:{_plain_digest(key).hex()}"
        known = found.setdefault(digest, tenant)
        if known.name != tenant.name:
            raise UserError(f"{where}: tenants {known.name} and {tenant.name} have a key in common; each needs its own")
        if known.chats_only != tenant.chats_only:
            raise UserError(f"{where}: a key stands in keys and in chat_keys; it may rate, or chat only")

    for key in keys:
        add(key, Tenant("default"), "--api-key")
    for key, tenant in _read_key_file(Path(file)) if file is not None else ():
        add(key, tenant, f"{file}: {tenant.name}")
    if all(tenant.metrics_only for tenant in found.values()):
        raise UserError("no API key: --api-key KEY, or a file of keys, says who may chat")
    return Tenants(found)


def _read_key_file(path: Path) -> list[tuple[Any, Tenant]]:
    """The keys of a key file, each with its tenant."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the keys in {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the keys in {path} are not UTF-8") from error
    except yaml.YAMLError as error:  # its own words quote the line, which may hold a key
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}" if mark is not None else "somewhere"
        raise UserError(f"the keys in {path} are not YAML ({where}: {what or type(error).__name__})") from None
    if not isinstance(data, dict) or not data:
        raise UserError(f"{path}: names tenants, each with its keys, as in `acme: {{keys: [secret]}}`")
    found = list[tuple[Any, Tenant]]()
    for name, data_of_tenant in data.items():
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            raise UserError(f"{path}: a tenant's name is of a-z, 0-9, _ and -, at most 63 characters, got {name!r}")
        entry = {str(key): value for key, value in data_of_tenant.items()} if isinstance(data_of_tenant, dict) else {}
        keys, chat_keys, metrics_only = entry.pop("keys", None), entry.pop("chat_keys", []), entry.pop("metrics", False)
        if not isinstance(keys, list) or not keys:
            raise UserError(f"{path}: {name} has no list `keys`, as in `{name}: {{keys: [secret]}}`")
        if not isinstance(chat_keys, list) or (chat_keys and metrics_only):
            raise UserError(f"{path}: {name}: chat_keys is a list of keys, of a tenant that may chat, got {type_of(chat_keys)}")
        if not isinstance(metrics_only, bool):
            raise UserError(f"{path}: {name}: metrics is true or false, got {metrics_only!r}")
        try:
            limits = TenantLimits(**entry)
        except ValidationError as error:  # its own words may show a key
            field = error.errors()[0]["loc"][0]
            names = [each.name for each in fields(TenantLimits)]
            if field not in names:
                raise UserError(
                    f"{path}: {name} has {field!r}; known are {', '.join(['keys', 'chat_keys', 'metrics', *names])}"
                ) from None
            raise UserError(f"{path}: {name}: {field} is a number above 0, got {entry[field]!r}") from None
        found += [(key, Tenant(name, limits, metrics_only)) for key in keys]
        found += [(key, Tenant(name, limits, chats_only=True)) for key in chat_keys]
    return found


def _plain_digest(key: str) -> bytes:
    """SHA-256 of a key that is given in clear or as its digest."""
    return bytes.fromhex(key[7:]) if key.startswith("sha256:") else hashlib.sha256(key.encode()).digest()


def _describe_key(key: object) -> str:
    """A bad key as errors may show it: its type and length only."""
    return f"a text of {len(key)} characters" if isinstance(key, str) else type(key).__name__

"""Addresses of web pages as typed templates: `shop/item/{id}?sort=price`, so that pages of one kind have one name.

    template = page_template("http://10.0.0.7:7780/admin/customer/index/edit/id/123/", HostMap({"admin": "http://10.0.0.7:7780/admin"}))
    assert template == "admin/customer/index/edit/id/{id}"

| part | becomes |
|---|---|
| scheme, host and port | the label of the longest entry of the `HostMap` that covers the address; else the host itself |
| `123` | `{id}` |
| `2024-05-31` | `{date}` |
| `9f8a61c2`, `eyJpZCI6MX0=`, a UUID | `{hash}`: hexadecimal with digits and letters, base64, or a long mix of cases and digits |
| `sony-wh-1000xm4-headphones.html` | `{slug}.html`: at least three words joined by `-`, or two of which the second begins with a digit |
| `CamelCaseProject`, `merge-requests`, `orders` | stay, in their case |
| the path segments `filter/<anything>` and `form_key/<anything>` | nothing: they filter the page or guard it |
| a query's key | stays; keys in alphabetical order |
| the value of a key in `KEPT_VALUES` (search terms, order, tab) | stays, in lower case |
| the value of any other key | its type: `{id}`, `{date}`, `{hash}`, `{slug}`, else `{text}` |
| the query keys in `CUT_KEYS`, and keys in brackets such as `filter[price]` | nothing |
| a fragment that is a path (`#/cart/7`) | is treated as a path; any other fragment is cut |
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

__all__ = []

KEPT_VALUES = frozenset(
    "q query search search_query s term terms keyword keywords sort sort_by order order_by orderby dir direction by tab view mode "  # noqa: SIM905
    "type state status scope action".split()
)
"""Query keys whose values say what a page shows, rather than which item: they stay in the template."""
CUT_KEYS = frozenset(
    "form_key key token csrf csrf_token authenticity_token session sid phpsessid ref referer fbclid gclid _".split()  # noqa: SIM905
)
"""Query keys that say nothing on a page."""
_CUT_PAIRS = frozenset(("filter", "form_key"))
_PORTS = {"http": 80, "https": 443}

_TYPES = (
    ("{id}", re.compile(r"\d+")),
    ("{date}", re.compile(r"\d{4}-\d{2}(-\d{2})?|\d{1,2}[-.]\d{1,2}[-.]\d{4}")),
    ("{hash}", re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)),
    ("{hash}", re.compile(r"(?=.*\d)(?=.*[a-fA-F])[0-9a-fA-F]{8,}")),
    ("{hash}", re.compile(r"[\w+/-]{6,}={1,2}")),
    ("{hash}", re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[\w+-]{12,}")),
)
_SLUG = re.compile(r"(?:[a-z0-9]+(?:-[a-z0-9]+){2,}|[a-z0-9]*[a-z][a-z0-9]*-\d[a-z0-9]*)(\.(?:html?|php|aspx?))?")


@dataclass(frozen=True)
class HostMap:
    """The sites that an agent may see: label -> address of the site, with a path if several sites share a host.

    Nothing is known beforehand: no port means a site. An address belongs to the longest entry that covers it, by whole parts of
    the path, so that port 77 is not taken for port 7780.
    """

    sites: Mapping[str, str] = field(default_factory=dict)

    def find(self, url: str) -> tuple[str, str] | None:
        """(label, rest of the path) of the site that an address belongs to; None if it belongs to none."""
        origin, path = _origin(urlsplit(url)), urlsplit(url).path or "/"
        best: tuple[int, str, str] | None = None
        for label, address in self.sites.items():
            site = urlsplit(address)
            prefix = site.path.rstrip("/")
            if _origin(site) == origin and (path == prefix or path.startswith(f"{prefix}/")):
                best = max(best or (-1, "", ""), (len(prefix), label, path[len(prefix) :]))
        return None if best is None else best[1:]

    def resolve(self, text: str) -> str:
        """The address that a text names: a label with a path behind it, or an address of one of the sites.

        Raises:
            ValueError: it is no page of these sites.
        """
        asked = text.strip()
        label, _, rest = asked.partition("/")
        if label in self.sites:
            return f"{self.sites[label].rstrip('/')}/{rest}" if rest else self.sites[label]
        with suppress(ValueError):  # of what is no address
            if "://" in asked and self.find(asked):
                return asked
        raise ValueError(f"{text!r} is no page of {', '.join(self.sites)}")


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or ""), parts.port or _PORTS.get(parts.scheme, 0)


def page_template(url: str, hosts: HostMap | None = None) -> str:
    """The template of an address, by the rules above; `blank` for no page, `unreadable` for what is no address."""
    if not url.strip() or url.startswith("about:"):
        return "blank"
    try:
        parts = urlsplit(url.strip())
        found = (hosts or HostMap()).find(url.strip())
        host = parts.netloc.rpartition("@")[2].lower()
    except ValueError:
        return "unreadable"
    label, path = found or (host or parts.scheme, parts.path)
    fragment = parts.fragment.removeprefix("!")
    segments = [label, *_typed_segments(path), *(_typed_segments(fragment) if fragment.startswith("/") else ())]
    query = _typed_query(parts.query)
    return "/".join(segments) + (f"?{query}" if query else "")


def _typed_segments(path: str) -> list[str]:
    segments = [unquote(segment) for segment in path.partition("?")[0].split("/") if segment]
    kept, skip = list[str](), False
    for segment in segments:
        if skip or segment in _CUT_PAIRS:
            skip = not skip
        else:
            kept.append(_type(segment) or segment)
    return kept


def _type(text: str) -> str:
    """The type of a path segment or a value; empty if it has none."""
    for name, pattern in _TYPES:
        if pattern.fullmatch(text):
            return name
    slug = _SLUG.fullmatch(text)
    return "{slug}" + (slug[1] or "") if slug else ""


def _typed_query(query: str) -> str:
    typed = list[str]()
    for key, value in sorted(parse_qsl(query, keep_blank_values=True)):
        name = key.lower()
        if name in CUT_KEYS or "[" in name or name.startswith("utm_"):
            continue
        text = " ".join(value.lower().split()) if name in KEPT_VALUES else _type(value) or (value and "{text}")
        typed.append(f"{key}={text}" if text else key)
    return "&".join(dict.fromkeys(typed))

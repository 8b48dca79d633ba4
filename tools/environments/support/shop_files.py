"""WebShop's published catalogue and goals (Yao et al., 2022), read from its files: `items_shuffle_1000.json`, or the whole one.

Beside the products lie `items_ins_v2_1000.json` (their attributes) and `items_human_ins.json` (what people were asked to buy), under
the published names. As published: a product without a price costs $100, one with a range of prices any price in it; a goal's price cap
is the higher one of two of the four next multiples of $10, and none if fewer than two are below $1,000; goals are shuffled. The draws are
ours, the same on every machine. `reviews.json` is not read.
"""

import json
import random
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....memory.errors import UserError

__all__ = []

_NO_CAP = 100_000_000
"""$1,000,000 in cents: the published cap of a goal without one."""
_USUAL_PRICE = 10_000


def read_catalogue(path: Path, buttons: Collection[str]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The fields of each product of a file, and of its goals (tools/environments/web_shop.py).

    Raises:
        UserError: a file is missing or has another layout; says which is needed.
    """
    attributes = _read(path.with_name(path.name.replace("items_shuffle", "items_ins_v2")), dict)
    wanted, seen = _read(path.with_name("items_human_ins.json"), dict), {"nan"}
    for item in _read(path, list):
        try:
            asin = item["asin"]
            if asin not in seen and len(asin) <= 10:
                seen.add(asin)
                product = _product(item, buttons) | {"attributes": tuple(attributes.get(asin, {}).get("attributes", ()))}
                rows = [row for row in wanted.get(asin, ()) if row["instruction_attributes"]]
                yield product, [_goal(product, number, row) for number, row in enumerate(rows)]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"webshop: {path}: {str(item)[:60]} … has another layout than WebShop's products and goals ({error!r})"
            ) from error


def _read(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"webshop: {path} cannot be read ({error}); file= is WebShop's items_shuffle_1000.json, with items_ins_v2_1000.json and "
            "items_human_ins.json beside it"
        ) from error
    if not isinstance(found, kind):
        raise UserError(f"webshop: {path} holds a {type(found).__name__}, and WebShop's a {kind.__name__}")
    return found


def _product(item: Mapping[str, Any], buttons: Collection[str]) -> dict[str, Any]:
    """The fields of a product. Of two things to click with the same text on a page the first stays."""
    said, taken, options = item["small_description"], set(buttons), []
    for name, values in (item["customization_options"] or {}).items():
        texts = [value["value"].strip().replace("/", " | ").lower() for value in values or ()]
        free = [text for text in dict.fromkeys(texts) if text and text not in taken]
        taken.update(free)
        options += [(name.lower(), tuple((text, 0) for text in free))] if free else []
    return {
        "id": item["asin"],
        "title": item["name"],
        "category": tuple(part.strip() for part in item["product_category"].split("›")),
        "query": item["query"].lower().strip(),
        "price": _price(item.get("pricing") or "", item["asin"]),
        "options": tuple(options),
        "description": item["full_description"] or "",
        "features": tuple(said) if isinstance(said, list) else (said or "",),
    }


def _price(text: str, asin: str) -> int:
    """The price in cents: `$12.99`, or drawn from `$10.00 to $20.00`."""
    prices = [round(100 * float(re.sub(r"[^\d.]", "", part))) for part in text.split("$")[1:]]
    return random.Random(asin).randint(*sorted(prices[:2])) if len(prices) > 1 else (prices or [_USUAL_PRICE])[0]


def _goal(product: Mapping[str, Any], number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a goal but its product."""
    near = [cap for cap in range(1000, 100_000, 1000) if cap > product["price"]][:4]
    cap = max(random.Random(f"{product['id']} {number}").sample(near, 2)) if len(near) > 1 else _NO_CAP
    told = f", and price lower than {cap / 100:.2f} dollars" if cap < _NO_CAP else ""
    asked = row["instruction_options"]
    values = [value.lower() for value in (asked.values() if isinstance(asked, Mapping) else asked)]
    names = {value: name for name, listed in product["options"] for value, _ in listed}
    return {
        "attributes": tuple(row["instruction_attributes"]),
        "options": tuple((names.get(value, ""), value) for value in values),
        "price_cap": cap,
        "instruction": row["instruction"].strip(".") + told,
    }

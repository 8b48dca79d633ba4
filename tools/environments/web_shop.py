"""A small web shop: search, look at products, choose options, buy what was asked for.

Actions, pages and reward are those of WebShop (Yao et al., 2022, arXiv:2207.01206). Its products and the goals that people wrote
are read from its files with `webshop?file=items_shuffle_1000.json` (support/shop_files.py). They do not come with the package: without
`file` the products are drawn by code from a seed, 24 types in 7 departments, with qualities, parts, options and prices
(`data/shop.json`), and nothing measured on them can be compared with published numbers.

| action | where | leads to |
|---|---|---|
| `search[words]` | where there is a search bar: the start | the results, ten on a page, at most fifty |
| `click[text]` | wherever the text can be clicked | what the button says: a product (by its id), an option, `back to search`, `next >`, `< prev`, `description`, `features`, `reviews`, `attributes`, `buy now` |

- An observation is the page's pieces of text joined by ` [SEP] `, without the instruction, which is the task's. Beside what is
  published, an item's page says which options are chosen, so that the page is all that there is to know. As long as there is
  something to do, a line below it says how (`HELP`): not in the task's text, by which tasks are compared, nor in the state.
- The case of a clicked text does not matter. An unreadable action, or one off the page, is refused, pays 0 and costs its step.
- Any search can be typed. Where there is a search bar, searches made of the goal's words are listed; of a published goal, its text.
- Search is BM25 over title, category, description, features and attributes (`ranking.py`; needs
  `pip install bm25s`); of equally good products the earlier in the catalogue comes first.
- `click[buy now]` ends the episode and pays `reward`, in [0, 1]; without a purchase the score is 0. 1 is success.

**The reward** of a purchase (WebShop, section 3): r_type * (n_att + n_opt + [price <= cap]) / (|attributes| + |options| + 1),
where n_att of the goal's attributes and n_opt of its options are met. r_type compares products (`type_reward`). Two things are
taken differently from the published code: the words of a title are found without a tagger (see `name_words`), and colours are
compared as they are, not by the plain colour in their name.

**Goals.** Of a drawn shop two for each product, on average: one to three of its qualities, a value for each of its options, and a price cap, a
multiple of 10 dollars. The first 500 goals are `test`, the next 500 `dev` (with `file`, as
published, 1,000), the rest `train`; if there are fewer than 500 for `train`, a quarter is `test`, a quarter `dev`, and half
`train`. The goals of one product of a drawn shop are all in one split.

The same shop as pages in a browser: `browser.py`.
"""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ...memory.errors import UserError
from ...memory.records import Observation, Task
from .support.arguments import check_settings, pick_task
from .support.ranking import Ranking, words
from .support.shop_files import read_catalogue
from .support.worlds import TurnWorld

__all__ = ["BUTTONS", "Goal", "WebShop", "reward"]

HORIZON = 15
SEPARATOR = " [SEP] "
_SCORE = "Your score (0 to 1): "
HELP = (
    "\nActions: search[words] where there is a search bar, click[text] for a button, a product's id or an option. Choose the "
    "options, then click[buy now]."
)
"""Last line of every observation except the final one."""
_VOCABULARY = Path(__file__).parent / "data" / "shop.json"
_PER_PAGE = 10
_MOST_FOUND = 50
_PUBLISHED_SPLIT = 500
_SAME = 85
"""Token-set ratio above which two texts count as the same."""
_USUAL = {"products": "1000", "seed": "0"}
_RANGES = {"products": (24, 20_000), "seed": (0, 10**9)}
_INSTANT = 5000
"""Number of products up to which a search takes a fraction of a millisecond."""
_LONGEST = 300
_ACTION = re.compile(r"(search|click) ?\[(.*)\]", re.IGNORECASE)
_FUNCTION_WORDS = frozenset(("a", "an", "and", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"))

SUBPAGES = ("description", "features", "reviews", "attributes")
"""The sub-pages of an item."""
BUTTONS = frozenset(("back to search", "next >", "< prev", "buy now", *SUBPAGES))


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the catalogue."""

    id: str
    title: str
    """The name and parts, then, after a comma, qualities and the maker."""
    category: tuple[str, ...]
    """The categories, from the department down to the type."""
    query: str
    """A search query for products of this kind."""
    price: int
    """The price in cents, without surcharges."""
    options: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """(name, ((value, surcharge in cents), …)) for each option."""
    attributes: tuple[str, ...] = ()
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()

    def price_with_options(self, chosen: Mapping[str, str]) -> int:
        """The price in cents with the chosen options; an option without a choice adds nothing."""
        return self.price + sum(dict(values).get(chosen.get(name, ""), 0) for name, values in self.options)

    @property
    def max_price(self) -> int:
        """The highest price over all choices of options, in cents."""
        return self.price + sum(max(surcharge for _, surcharge in values) for _, values in self.options)


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a task: the product to buy."""

    product: Product
    """A product that meets the goal; others may meet it too."""
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value) of each option that the goal asks for."""
    price_cap: int
    """The highest price, in cents."""
    instruction: str = ""
    """The words of the person who wrote the goal; empty if it was drawn."""

    @property
    def text(self) -> str:
        """The goal in words."""
        if self.instruction:
            return self.instruction
        wanted = [", ".join(self.attributes), *(f"{name} {value}" for name, value in self.options)]
        return f"{self.product.query}: {'; '.join(filter(None, wanted))}; at most {_money(self.price_cap)}"


# The reward


def name_words(title: str) -> frozenset[str]:
    """The words of a product's name: those of the title up to its first comma, without function words.

    Published are the nouns that a tagger finds. In our titles what follows the comma are adjectives and the maker.
    """
    return frozenset(words(title.partition(",")[0])) - _FUNCTION_WORDS


def type_reward(bought: Product, wanted: Product) -> float:
    """r_type: 1, 0.5, 0.1 or 0.

    With o the share of the wanted product's `name_words` that stand in the name of the bought one (0.2 if it has none):
    0 if o = 0, else 0.1 if o < 0.1, else 1 if o > 0.2, or the query is the same, or two levels of the category are; else 0.5.
    """
    named = name_words(wanted.title)
    overlap = len(named & name_words(bought.title)) / len(named) if named else 0.2
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    same = bought.query == wanted.query or len({*bought.category} & {*wanted.category}) >= 2
    return 1.0 if same or overlap > 0.2 else 0.5


def matched_attribute_count(bought: Product, wanted_attributes: Sequence[str]) -> int:
    """n_att: the number of attributes of the goal that the product has.

    An attribute counts if it resembles an attribute of the product (token-set ratio above 85) or stands in its title, features or description.
    """
    said = _said(bought)
    return sum(
        any(token_set_ratio(own, each) > _SAME for own in bought.attributes) or each.lower() in said
        for each in wanted_attributes
    )


def matched_option_count(bought: Product, chosen: Mapping[str, str], wanted_values: Sequence[str]) -> int:
    """n_opt: the number of chosen options that the goal asks for, at most as many as it names.

    A choice counts if it resembles a value of the goal (token-set ratio above 85; a `size` has to be the same), or, as published, if it
    stands in the product's title, features or description.
    """
    said = _said(bought)
    found = sum(
        (value in wanted_values if name == "size" else any(token_set_ratio(value, each) > _SAME for each in wanted_values))
        or value.lower() in said
        for name, value in chosen.items()
    )
    return min(found, len(wanted_values))


def _said(product: Product) -> str:
    return "\n".join((product.title, " ".join(product.features), product.description)).lower()


def reward(bought: Product, chosen: Mapping[str, str], goal: Goal) -> float:
    """The reward of a purchase, in [0, 1]; see the head of this file."""
    met = matched_attribute_count(bought, goal.attributes)
    met += matched_option_count(bought, chosen, [value for _, value in goal.options])
    met += bought.price_with_options(chosen) <= goal.price_cap
    return type_reward(bought, goal.product) * met / (len(goal.attributes) + len(goal.options) + 1)


def token_set_ratio(one: str, other: str) -> int:
    """The token-set ratio of two texts, 0 to 100, as fuzzy-matching packages define it: order and number of words do not count.

    With I the words that both have, A and B those that only one has, all sorted and joined by spaces, it is the greatest
    ratio among I and I A, I and I B, I A and I B; the ratio of two texts is 100 * 2 L / (sum of their lengths), L the length
    of their longest common subsequence, rounded. So it is 100 if the words of one are all in the other; 0 if one has none.
    """
    left, right = set(words(one)), set(words(other))
    if not left or not right:
        return 0
    both = " ".join(sorted(left & right))
    first = " ".join(filter(None, (both, " ".join(sorted(left - right)))))
    second = " ".join(filter(None, (both, " ".join(sorted(right - left)))))
    pairs = [(first, second), *(((both, first), (both, second)) if both else ())]
    return max(round(200 * _common(a, b) / (len(a) + len(b))) for a, b in pairs)


def _common(one: str, other: str) -> int:
    row = [0] * (len(other) + 1)
    for sign in one:
        before = 0
        for at, facing in enumerate(other, 1):
            before, row[at] = row[at], before + 1 if sign == facing else max(row[at], row[at - 1])
    return row[-1]


# The shop and its pages


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the shop with its state."""

    kind: Literal["search", "results", "item", "description", "features", "reviews", "attributes", "done"] = "search"
    query: str = ""
    """The words of the last search."""
    number: int = 1
    """Number of the page of results, from 1."""
    product: int = -1
    """Number in the catalogue of the product that is shown or was bought."""
    chosen: tuple[tuple[str, str], ...] = ()
    """(name, value) of the options chosen, in the order of the product's options."""
    score: float = 0.0
    """The reward of the purchase, in [0, 1]."""
    notice: str = ""
    """The reason why the last action changed nothing; empty if it did."""

    @property
    def over(self) -> bool:
        """True after a purchase."""
        return self.kind == "done"


@dataclass(frozen=True, slots=True)
class PageElement:
    """A piece of text on a page."""

    text: str
    role: Literal["text", "button", "option", "search"] = "text"
    """`search` is the search bar."""

    @property
    def click_text(self) -> str:
        """The text to click, in lower case; empty if the piece cannot be clicked."""
        return self.text.lower() if self.role in ("button", "option") else ""


class Shop:
    """The products, the goals and the pages of a shop, without episodes and steps.

    Raises:
        UserError: two things on a page could be clicked by the same text (in lower case), or a goal's product is not for sale.
    """

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]) -> None:
        self.products, self.goals = tuple(products), tuple(goals)
        self._places = {product.id.lower(): place for place, product in enumerate(self.products)}
        if len(self._places) < len(self.products) or self._places.keys() & BUTTONS:
            raise UserError("webshop: the ids of products must differ from each other and from the names of buttons")
        for product in self.products:
            values = [value.lower() for _, values in product.options for value, _ in values]
            if len({*values, *BUTTONS}) < len(values) + len(BUTTONS):
                raise UserError(
                    f"webshop: the option values of product {product.id} must differ from each other and from the names of "
                    f"buttons, got {', '.join(values)}"
                )
        strange = [goal.product.id for goal in self.goals if self._places.get(goal.product.id.lower()) is None]
        if strange:
            raise UserError(f"webshop: a goal's product {strange[0]} is not in the catalogue")
        self._ranking = Ranking([_search_text(product) for product in self.products], "webshop")
        self.search_results = lru_cache(maxsize=512)(self._search)

    def _search(self, query: str) -> tuple[int, ...]:
        """The numbers of the products that a search finds, best first."""
        return tuple(self._ranking.top_places(query, _MOST_FOUND))

    def follow(self, page: Page, goal: Goal, action: str) -> Page:
        """The page after an action. An action that is not possible leads to the same page, which says why."""
        read = _ACTION.fullmatch(" ".join(action.split()))
        asked = read[2].strip() if read else ""
        if not read or not asked:
            return replace(page, notice="this cannot be read: an action is search[words] or click[text of a button]")
        if read[1].lower() == "search":
            if page.kind != "search":
                return replace(page, notice="there is no search bar on this page")
            return Page("results", asked)
        piece = next((piece for piece in self.page_elements(page) if piece.click_text == asked.lower()), None)
        if piece is None:
            return replace(page, notice=f"there is no {asked[:_LONGEST]!r} to click on this page")
        if piece.role == "option":
            return self._choose(page, piece.text)
        return self._press(page, goal, piece.click_text)

    def _choose(self, page: Page, value: str) -> Page:
        chosen = dict(page.chosen)
        options = self.products[page.product].options
        name = next(name for name, values in options if value in dict(values))
        chosen[name] = value
        return replace(page, chosen=tuple((name, chosen[name]) for name, _ in options if name in chosen), notice="")

    def _press(self, page: Page, goal: Goal, button: str) -> Page:
        page = replace(page, notice="")
        match button:
            case "back to search":
                return Page()
            case "next >":
                return replace(page, number=page.number + 1)
            case "< prev" if page.kind == "results":
                return replace(page, number=page.number - 1)
            case "< prev" if page.kind == "item":
                return Page("results", page.query, page.number)
            case "< prev":
                return replace(page, kind="item")
            case "description" | "features" | "reviews" | "attributes":
                return replace(page, kind=button)
            case "buy now":
                worth = reward(self.products[page.product], dict(page.chosen), goal)
                return replace(page, kind="done", score=worth)
            case _:
                return replace(page, kind="item", product=self._places[button])

    def page_elements(self, page: Page) -> list[PageElement]:
        """The pieces of a page, in order."""
        said = [PageElement(page.notice)] if page.notice else []
        match page.kind:
            case "search":
                return [*said, PageElement("Search", "search")]
            case "results":
                return [*said, *self._results(page)]
            case "done":
                bought = self.products[page.product]
                return [
                    *said,
                    PageElement("Thank you for your purchase"),
                    PageElement(bought.title),
                    PageElement(f"{_SCORE}{page.score:.4g}"),
                ]
        product = self.products[page.product]
        pieces = [*said, PageElement("Back to Search", "button"), PageElement("< Prev", "button")]
        if page.kind != "item":
            shown = {
                "description": (product.description,),
                "features": product.features,
                "reviews": product.reviews,
                "attributes": product.attributes,
            }[page.kind]
            return [*pieces, *(PageElement(text) for text in shown or ("None",))]
        chosen = dict(page.chosen)
        for name, values in product.options:
            pieces.append(PageElement(name))
            pieces += [PageElement(value, "option") for value, _ in values]
        if chosen:
            pieces.append(PageElement("Chosen: " + ", ".join(f"{name} {value}" for name, value in page.chosen)))
        pieces += [PageElement(product.title), PageElement(f"Price: {_money(product.price_with_options(chosen))}")]
        return [*pieces, *(PageElement(name.capitalize(), "button") for name in SUBPAGES), PageElement("Buy Now", "button")]

    def _results(self, page: Page) -> list[PageElement]:
        found = self.search_results(page.query)
        pieces = [PageElement("Back to Search", "button"), PageElement(f"Page {page.number} (Total results: {len(found)})")]
        if page.number > 1:
            pieces.append(PageElement("< Prev", "button"))
        if page.number * _PER_PAGE < len(found):
            pieces.append(PageElement("Next >", "button"))
        for place in found[(page.number - 1) * _PER_PAGE : page.number * _PER_PAGE]:
            product = self.products[place]
            price = _money(product.price) + (f" to {_money(product.max_price)}" if product.max_price > product.price else "")
            pieces += [PageElement(product.id, "button"), PageElement(product.title), PageElement(price)]
        return pieces

    def admissible(self, page: Page, goal: Goal) -> tuple[str, ...]:
        """The admissible actions: what can be clicked, and on a page with a search bar searches made of the goal's words."""
        if page.kind == "search":
            return tuple(sorted({f"search[{query}]" for query in _queries(goal)}))
        return tuple(sorted({f"click[{piece.click_text}]" for piece in self.page_elements(page) if piece.click_text}))

    def buying_actions(self, goal: Goal) -> tuple[str, ...]:
        """The actions that buy the goal's product with its options, found by the best listed search, or else by its title."""
        place = self._places[goal.product.id.lower()]
        ranks = [
            (self.search_results(query).index(place) // _PER_PAGE, n, query)
            for n, query in enumerate((*_queries(goal), goal.product.title))
            if place in self.search_results(query)
        ]
        onward, _, query = min(ranks)
        pressed = [*["next >"] * onward, goal.product.id.lower(), *(value for _, value in goal.options), "buy now"]
        return (f"search[{query}]", *(f"click[{text}]" for text in pressed))


def _money(cents: int) -> str:
    return f"${cents / 100:.2f}"


def _search_text(product: Product) -> str:
    parts = (product.title, *product.category, product.description, *product.features, *product.attributes)
    return " ".join(parts)


def _queries(goal: Goal) -> list[str]:
    """Searches made of a goal's words, from the shortest to the longest; of a published goal its text alone, as all else is hidden."""
    if goal.instruction:
        return [goal.instruction.lower()]
    thing, qualities = goal.product.query, " ".join(goal.attributes)
    values = " ".join(value for _, value in goal.options)
    made = [
        thing,
        *(f"{quality} {thing}" for quality in goal.attributes),
        f"{qualities} {thing}",
        f"{qualities} {thing} {values}",
    ]
    return [*dict.fromkeys(" ".join(query.split()) for query in made)]


# A catalogue


@lru_cache(maxsize=4)
def draw_shop(products: int, seed: int = 0) -> Shop:
    """A drawn shop with twice as many goals as products, the same on every machine."""
    vocabulary = json.loads(_VOCABULARY.read_text(encoding="utf-8"))
    draw = random.Random(f"web shop {seed}")
    made, ids = list[Product](), set[str]()
    for n in range(products):
        kind = vocabulary["types"][n % len(vocabulary["types"])]
        number = draw.randrange(36**8)
        while (name := "B" + _base36(number)) in ids:
            number = (number + 1) % 36**8
        ids.add(name)
        made.append(_product(draw, vocabulary, kind, name))
    draw.shuffle(made)
    order = draw.sample(range(products), products)
    goals = [goal for place in order for goal in _goals(draw, made[place])]
    return Shop(made, goals)


def _base36(number: int) -> str:
    signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "".join(signs[number // 36**place % 36] for place in range(7, -1, -1))


def _product(draw: random.Random, vocabulary: Mapping[str, Any], kind: Mapping[str, Any], name: str) -> Product:
    noun, brand, part = kind["noun"], draw.choice(vocabulary["brands"]), draw.choice(kind["parts"])
    attributes = draw.sample(kind["attributes"], 4)
    low, high = kind["price"]
    # Two qualities stand in the title, one in the features, one on the page of attributes only.
    first, second, third, _ = attributes
    options = []
    for option, values in kind["options"].items():
        kept = draw.sample(list(values), min(len(values), draw.randint(3, 6)))
        options.append((option, tuple((value, 100 * values[value]) for value in values if value in kept)))
    stars = [draw.choice("23445555") for _ in range(draw.randint(0, 3))]
    return Product(
        id=name,
        title=f"{noun.title()} with {part.title()}, {first.title()}, {second.title()} ({brand})",
        category=tuple(kind["category"]),
        query=noun,
        price=100 * draw.randint(low, high) + draw.choice((0, 49, 95, 99)),
        options=tuple(options),
        attributes=tuple(sorted(attributes)),
        description=f"A {noun} by {brand}, made {kind['use']}. It comes with {part}.",
        features=(f"{first} and {third}", f"includes: {part}", f"made by {brand}"),
        reviews=tuple(f"{star} of 5 stars: {draw.choice(vocabulary['reviews'][star])}" for star in stars),
    )


def _goals(draw: random.Random, product: Product) -> list[Goal]:
    made = list[Goal]()
    while len(made) < 2:
        attributes = tuple(draw.sample(product.attributes, draw.randint(1, 3)))
        options = tuple((name, draw.choice(values)[0]) for name, values in product.options)
        cap = 1000 * (math.ceil(product.price_with_options(dict(options)) / 1000) + draw.choice((0, 0, 1, 2)))
        goal = Goal(product, attributes, options, cap)
        if goal not in made:
            made.append(goal)
    return made


def read_shop(path: Path) -> Shop:
    """The shop of WebShop's files, with the goals in an order of chance."""
    products, goals = list[Product](), list[Goal]()
    for fields, wanted in read_catalogue(path, BUTTONS):
        products.append(Product(**fields))
        goals += [Goal(products[-1], **one) for one in wanted]
    if not goals:
        raise UserError(f"webshop: items_human_ins.json beside {path} has no goal for any of its {len(products)} products")
    random.Random(233).shuffle(goals)
    return Shop(products, goals)


# The environment


class WebShop(TurnWorld[Page]):
    """An environment for the shop.

    Args:
        settings: `products` (24 to 20,000, default 1000) and `seed` (of the catalogue, default 0); or `file`.
        horizon: number of steps after which an episode ends.
        shop: a given shop instead of a drawn one; it cannot be combined with settings.
    """

    free_text = ("search",)
    """Any text may be an action, also one that is not listed; what is searched for seldom is."""

    def __init__(self, settings: Mapping[str, str] | None = None, horizon: int = HORIZON, *, shop: Shop | None = None) -> None:
        check_settings("webshop:", settings or {}, (*_USUAL, "file"))
        given = dict(settings or {})
        file = given.pop("file", "")
        if sum(map(bool, (given, file, shop))) > 1:
            raise UserError("webshop: got more than one of a shop, a file, and settings of a drawn shop: choose one")
        chosen = _USUAL | given
        if file:
            shop, name = read_shop(Path(file).expanduser()), f"webshop?file={Path(file).stem}"
        else:
            numbers = {key: _number(key, chosen[key], *_RANGES[key]) for key in _USUAL}
            changed = [f"{key}={value}" for key, value in numbers.items() if value != int(_USUAL[key])]
            name = "webshop" + ("?" if changed else "") + ",".join(changed) if shop is None else "webshop?own"
        self.shop = shop or draw_shop(*(_number(key, chosen[key], *_RANGES[key]) for key in _USUAL))
        super().__init__(name, horizon)
        self.instant = len(self.shop.products) <= _INSTANT
        self._splits = _splits(self.shop.goals, dev=2 if file else 1)

    def task(self, seed: int, split: str = "test") -> Task:
        """The `seed`-th goal of a split; `Task.seed` is its number among all goals."""
        number = pick_task(self.name, self._splits, split, seed)
        goal = self.shop.goals[number]
        return Task(f"webshop-{split}-{seed}", goal.instruction or f"buy {goal.text}", number)

    def goal(self, task: Task) -> Goal:
        """The goal of a task."""
        if not 0 <= task.seed < len(self.shop.goals):
            raise UserError(f"{self.name}: has no task {task.id} (goal {task.seed} of {len(self.shop.goals)})")
        return self.shop.goals[task.seed]

    def observe(self, task: Task, actions: Sequence[str]) -> Observation:
        """The page after these actions, and below it the line on the actions."""
        self.goal(task)
        page = self.turn(task, actions)
        text = SEPARATOR.join(piece.text for piece in self.shop.page_elements(page))
        if page.over or len(actions) >= self.horizon:
            return Observation(text, (), page.score, True)
        return Observation(text + HELP, self.shop.admissible(page, self.goal(task)), page.score, False)

    def hide_verdict(self, observation: Observation) -> str:
        """The text of an observation without the score of a purchase."""
        return observation.text.partition(f"{SEPARATOR}{_SCORE}")[0]

    def _first(self, task_seed: int) -> Page:
        return Page()

    def _next(self, before: Page, action: str, task_seed: int) -> Page:
        return self.shop.follow(before, self.shop.goals[task_seed], action)

    def abstract(self, observation: Observation) -> str:
        """The page without its fixed buttons and without the line on the actions."""
        pieces = [piece for piece in observation.text.removesuffix(HELP).split(SEPARATOR) if piece.lower() not in BUTTONS]
        return " | ".join(pieces)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The actions that buy the goal's product."""
        return self.shop.buying_actions(self.goal(task))


def _splits(goals: Sequence[Goal], dev: int = 1) -> dict[str, range]:
    """The numbers of the goals of each split; with as many goals as published, `dev` is so many times as large as `test`."""
    is_small = len(goals) < (2 + dev) * _PUBLISHED_SPLIT
    size = len(goals) // 4 // 2 * 2 if is_small else _PUBLISHED_SPLIT  # both goals of a product
    end = 2 * size if is_small else (1 + dev) * size
    return {"train": range(end, len(goals)), "dev": range(size, end), "test": range(size)}


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise UserError(f"webshop: {name} must be a number from {least} to {most}, got {text!r}")
    return int(text)

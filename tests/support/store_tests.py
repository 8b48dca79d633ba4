"""What LangGraph's `BaseStore` promises, and what agents that learn need of a store, as tests that a class inherits.

`open_store(place, index)` opens the store that belongs to `place`, a folder of its own for every test, and gives the store or a
context manager of it. `index` is None or LangGraph's `IndexConfig`. Called again with the same place it opens the same items.

| `lacks` | promise that a store does not make |
|---|---|
| `durability` | items outlive `close`, or the end of the context |
| `sharing` | two stores that are open at once on one place see each other's writes |
| `vectors` | `search(query=...)` ranks by the cosine of embeddings |
| `async` | `aput`, `aget`, `asearch` and the rest |
"""

import asyncio
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

NS = ("runs", "zork")
JSON_VALUES: Mapping[str, dict[str, Any]] = {
    "empty": {},
    "nested": {"a": {"b": [{"c": []}, {}, None]}},
    "numbers": {"zero": 0, "negative": -7, "large": 2**53, "small": 1e-300, "third": 1 / 3, "tenth": 0.1},
    "truth": {"yes": True, "no": False, "nothing": None},
    "texts": {"": "empty name", "quotes": "'\"`", "lines": "a\n\tb", "umlaut": "grüße", "emoji": "🧭", "sql": "%_\\;--"},
}
"""Values that any store of JSON gives back as they were."""
KEYS = ("a", "0", "a/b", "a.b", "a b", "%", "_", "\\", "'", '"', "ключ", "🗝", "x" * 300)
"""Keys that a store has to keep apart: signs that query languages treat in their own way, other scripts, a long one."""
DIRECTIONS: Mapping[str, tuple[float, float]] = {
    "east": (1.0, 0.0),
    "northeast": (0.8, 0.6),
    "north": (0.0, 1.0),
    "northwest": (-0.6, 0.8),
    "west": (-1.0, 0.0),
}
"""Text -> its vector, of length 1, in the tests of vectors."""


LABELS = ("a", "a/b", "a/b/c", "ab", "a%", "a_", "b/a", "a/x/end", "a/y/end", "a/y/else", "b/x/end", "b")
FILL = [
    *(PutOp(tuple(label.split("/")), key, {"at": label, "key": key}) for label in LABELS for key in ("1", "2")),
    PutOp(("a", "b"), "gone", {}),
    *(PutOp(NS, str(n), {"n": n, "kind": "odd" if n % 2 else "even"}) for n in range(5)),
]
"""Namespaces that begin alike, and some numbers."""
FILTERS: Sequence[dict[str, Any]] = (
    *({"n": {sign: 3}} for sign in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
    *({"n": 2}, {"kind": "even"}, {"kind": "even", "n": 2}, {"n": {"$gt": 0, "$lt": 3}}, {"kind": "none"}, {"absent": 1}),
)
DEPTHS: Sequence[tuple[tuple[MatchCondition, ...], int | None]] = (
    *(((MatchCondition("prefix", path),), None) for path in (("a",), ("*", "x"), ("nowhere",))),
    *(((MatchCondition("suffix", ("end",)),), None), ((), None), ((), 1), ((MatchCondition("prefix", ("a",)),), 2)),
    ((MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("end",))), None),
)
QUESTIONS: Sequence[Op] = [
    *(GetOp(("a",), "1"), GetOp(("a", "b"), "1"), GetOp(("a", "b"), "gone"), GetOp(NS, "nothing")),
    *(SearchOp(path, limit=99) for path in (("a",), ("a", "b"), ("a%",), ("a_",), ("elsewhere",), ())),
    *(SearchOp(NS, filter=chosen, limit=99) for chosen in FILTERS),
    *(ListNamespacesOp(conditions, depth, limit=99) for conditions, depth in DEPTHS),
]
"""Questions to a store that holds `FILL`."""


def plain(answer: Any) -> Any:
    """An answer without its times, and without the order of what has none."""
    if isinstance(answer, Item):
        return answer.namespace, answer.key, answer.value
    return sorted(map(plain, answer), key=repr) if isinstance(answer, list) else answer


class Directions(Embeddings):
    """An embedder of the words in `DIRECTIONS`."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector per text."""
        return [list(DIRECTIONS[text]) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text."""
        return list(DIRECTIONS[text])


def direction_index() -> dict[str, Any]:
    """LangGraph's `IndexConfig` for `Directions`: it embeds the field `text`."""
    return {"dims": 2, "embed": Directions(), "fields": ["text"]}


class StoreTests:
    """Inherit these tests and give `open_store`."""

    lacks: ClassVar[frozenset[str]] = frozenset()
    """Promises that the store does not make: `durability`, `sharing`, `vectors`, `async`."""

    def open_store(self, place: Path, index: Any) -> BaseStore | AbstractContextManager[BaseStore]:
        """The store that belongs to a place, open."""
        raise NotImplementedError

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[Callable[..., BaseStore]]:
        """A function that opens the test's store; what it opened is closed at the end."""
        with ExitStack() as stack:
            yield lambda index=None: open_in(stack, self.open_store(tmp_path, index))

    @pytest.fixture
    def store(self, opener: Callable[..., BaseStore]) -> BaseStore:
        """The test's store, empty."""
        return opener()

    def need(self, capability: str) -> None:
        """Skip the test if the store does not promise this."""
        if capability in self.lacks:
            pytest.skip(f"the store is said to lack: {capability}")

    # One item

    @pytest.mark.parametrize("name", JSON_VALUES)
    def test_a_value_comes_back_as_it_was(self, store: BaseStore, name: str) -> None:
        store.put(NS, "k", JSON_VALUES[name])
        item = store.get(NS, "k")
        assert item is not None
        assert item.value == JSON_VALUES[name]
        assert (item.namespace, item.key) == (NS, "k")

    def test_a_large_value_comes_back(self, store: BaseStore) -> None:
        value = {"text": "word " * 200_000}
        store.put(NS, "large", value)
        assert value_of(store, "large") == value

    def test_keys_are_kept_apart(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, key, {"n": n}) for n, key in enumerate(KEYS)])
        assert [value_of(store, key) for key in KEYS] == [{"n": n} for n in range(len(KEYS))]
        assert {item.key for item in store.search(NS, limit=100)} == set(KEYS)

    def test_an_unknown_item_is_none(self, store: BaseStore) -> None:
        assert store.get(NS, "nothing") is None
        assert store.search(("nowhere",)) == []
        store.delete(NS, "nothing")

    def test_a_second_put_replaces_the_value_and_keeps_the_time_of_creation(self, store: BaseStore) -> None:
        store.put(NS, "k", {"old": 1, "both": 1})
        first = store.get(NS, "k")
        store.put(NS, "k", {"both": 2})
        second = store.get(NS, "k")
        assert first is not None
        assert second is not None
        assert second.value == {"both": 2}
        assert second.created_at == first.created_at
        assert second.updated_at >= first.updated_at

    def test_a_deleted_item_is_gone_and_may_come_back(self, store: BaseStore) -> None:
        store.put(NS, "k", {"n": 1})
        store.delete(NS, "k")
        assert store.get(NS, "k") is None
        assert store.search(NS) == []
        store.put(NS, "k", {"n": 2})
        assert value_of(store, "k") == {"n": 2}

    def test_nobody_changes_a_stored_value_from_outside(self, store: BaseStore) -> None:
        value = {"list": [1]}
        store.put(NS, "k", value)
        value["list"].append(2)
        assert value_of(store, "k") == {"list": [1]}
        value_of(store, "k")["list"].append(3)
        store.search(NS)[0].value["list"].append(4)
        assert value_of(store, "k") == {"list": [1]}

    @pytest.mark.parametrize("text", ["nul \x00", "half \ud800"], ids=["nul", "half-character"])
    def test_odd_text_is_kept_or_refused_whole(self, store: BaseStore, text: str) -> None:
        """A model can write any text. Losing it silently, or half of the batch with it, is the error."""
        try:
            store.batch([PutOp(NS, "plain", {"n": 1}), PutOp(NS, "odd", {"text": text})])
        except Exception:
            assert store.get(NS, "odd") is None
            assert store.get(NS, "plain") is None, "half of a refused batch was written"
            store.put(NS, "after", {"n": 2})
            assert value_of(store, "after") == {"n": 2}
        else:
            assert value_of(store, "odd") == {"text": text}

    @pytest.mark.parametrize("namespace", [(), ("",), ("a", ""), ("a.b",), ("langgraph",)], ids=repr)
    def test_a_bad_namespace_is_refused(self, store: BaseStore, namespace: tuple[str, ...]) -> None:
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})

    def test_a_time_to_live_is_refused_where_it_is_not_supported(self, store: BaseStore) -> None:
        if store.supports_ttl:
            pytest.skip("the store supports a time to live")
        with pytest.raises(NotImplementedError):
            store.put(NS, "k", {}, ttl=1)

    # Batches

    def test_it_answers_as_langgraphs_own_store_does(self, store: BaseStore) -> None:
        """One batch of searches and lists, in their order; the reference is `InMemoryStore`."""
        reference = InMemoryStore()
        for one in (store, reference):
            one.batch(FILL)
            one.delete(("a", "b"), "gone")
        found, expected = store.batch(QUESTIONS), reference.batch(QUESTIONS)
        for question, mine, theirs in zip(QUESTIONS, found, expected, strict=True):
            assert plain(mine) == plain(theirs), question
        assert store.batch([]) == []

    def test_numbers_are_compared_as_numbers(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, str(n), {"n": n}) for n in (-10, -2, 0, 2.5, 9, 10, 100)])
        found = {item.value["n"] for item in store.search(NS, filter={"n": {"$gte": 9}}, limit=50)}
        assert found == {9, 10, 100}
        assert {item.value["n"] for item in store.search(NS, filter={"n": {"$lt": 0}}, limit=50)} == {-10, -2}

    def test_ten_items_are_given_if_no_limit_is_asked(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, str(n), {}) for n in range(15)])
        assert len(store.search(NS)) == 10

    def test_the_last_of_several_puts_wins(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, "k", {"n": n}) for n in range(5)])
        assert value_of(store, "k") == {"n": 4}
        store.batch([PutOp(NS, "k", {"n": 9}), PutOp(NS, "k", None)])
        assert store.get(NS, "k") is None
        store.batch([PutOp(NS, "k", None), PutOp(NS, "k", {"n": 10})])
        assert value_of(store, "k") == {"n": 10}

    def test_two_thousand_items_in_one_batch_are_found_page_by_page(self, store: BaseStore) -> None:
        store.batch([PutOp(NS, f"{n:04d}", {"n": n}) for n in range(2000)])
        pages = [store.search(NS, limit=300, offset=offset) for offset in range(0, 2100, 300)]
        assert [len(page) for page in pages] == [300] * 6 + [200]
        assert sorted(item.value["n"] for page in pages for item in page) == list(range(2000))

    # Namespaces

    def test_namespaces_are_listed_page_by_page(self, store: BaseStore) -> None:
        places = {("p", f"{n:02d}") for n in range(25)}
        store.batch([PutOp(namespace, "k", {}) for namespace in places])
        pages = [store.list_namespaces(limit=10, offset=offset) for offset in (0, 10, 20, 30)]
        assert [len(page) for page in pages] == [10, 10, 5, 0]
        assert {namespace for page in pages for namespace in page} == places

    def test_a_namespace_is_gone_with_its_last_item(self, store: BaseStore) -> None:
        store.put(("a",), "k", {})
        store.put(("b",), "k", {})
        store.delete(("a",), "k")
        assert store.list_namespaces() == [("b",)]

    # Random programs

    @pytest.mark.parametrize("seed", range(10))
    def test_a_random_program_agrees_with_a_dictionary(self, store: BaseStore, seed: int) -> None:
        draw, model = random.Random(seed), dict[tuple[tuple[str, ...], str], Mapping[str, Any]]()
        namespaces, keys = [("a",), ("a", "b"), ("ab",), ("c", "b")], ["1", "2", "3"]
        for _ in range(15):
            puts = [
                PutOp(draw.choice(namespaces), draw.choice(keys), draw.choice([None, {"n": draw.randrange(4)}]))
                for _ in range(draw.randrange(1, 5))
            ]
            store.batch(puts)
            for put in puts:
                if put.value is None:
                    model.pop((put.namespace, put.key), None)
                else:
                    model[put.namespace, put.key] = put.value
            asked = draw.choice(namespaces)
            found = {(item.namespace, item.key): item.value for item in store.search(asked, limit=100)}
            assert found == {at: value for at, value in model.items() if at[0][: len(asked)] == asked}
            assert set(store.list_namespaces(limit=100)) >= {namespace for namespace, _ in model}

    # Several at once

    def test_threads_lose_nothing(self, store: BaseStore) -> None:
        def write(thread: int) -> None:
            for n in range(25):
                store.put(NS, f"{thread}-{n}", {"n": n})
                store.put(NS, "shared", {"thread": thread})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        found = {item.key: item.value for item in store.search(NS, limit=1000)}
        assert found.pop("shared") in [{"thread": thread} for thread in range(4)]
        assert found == {f"{thread}-{n}": {"n": n} for thread in range(4) for n in range(25)}

    def test_two_open_stores_see_each_others_writes(self, opener: Callable[..., BaseStore]) -> None:
        self.need("sharing")
        one, two = opener(), opener()
        one.put(NS, "k", {"n": 1})
        assert value_of(two, "k") == {"n": 1}
        two.put(NS, "k", {"n": 2})
        two.put(("other",), "k", {})
        assert value_of(one, "k") == {"n": 2}
        assert set(one.list_namespaces()) == {NS, ("other",)}
        one.delete(NS, "k")
        assert two.search(NS) == []

    def test_items_outlive_the_store(self, tmp_path: Path) -> None:
        self.need("durability")
        with ExitStack() as stack:
            store = open_in(stack, self.open_store(tmp_path, None))
            store.batch([PutOp(NS, name, value) for name, value in JSON_VALUES.items()])
            store.put(NS, "gone", {})
            store.delete(NS, "gone")
            before = {item.key: item for item in store.search(NS, limit=100)}
        with ExitStack() as stack:
            store = open_in(stack, self.open_store(tmp_path, None))
            after = {item.key: item for item in store.search(NS, limit=100)}
        assert {key: item.value for key, item in after.items()} == dict(JSON_VALUES)
        assert {key: (item.created_at, item.updated_at) for key, item in after.items()} == {
            key: (item.created_at, item.updated_at) for key, item in before.items()
        }

    # Asyncio

    def test_the_async_methods_do_the_same(self, store: BaseStore) -> None:
        self.need("async")
        asyncio.run(use_async_methods(store))

    # Vectors

    @pytest.fixture
    def vector_store(self, opener: Callable[..., BaseStore]) -> BaseStore:
        """A store that embeds the field `text`, with one item for each direction."""
        self.need("vectors")
        store = opener(direction_index())
        store.batch([PutOp(NS, text, {"text": text, "half": text[0]}) for text in DIRECTIONS])
        return store

    def test_items_are_ranked_by_cosine(self, vector_store: BaseStore) -> None:
        for query in DIRECTIONS:
            found = vector_store.search(NS, query=query, limit=5)
            cosines = {text: math.fsum(map(operator.mul, DIRECTIONS[query], vector)) for text, vector in DIRECTIONS.items()}
            assert [cosines[item.key] for item in found] == sorted(cosines.values(), reverse=True)
            assert [item.score for item in found] == sorted((item.score or 0 for item in found), reverse=True)

    def test_a_ranking_is_read_page_by_page_and_filtered(self, vector_store: BaseStore) -> None:
        whole = [item.key for item in vector_store.search(NS, query="northeast", limit=5)]
        assert [item.key for item in vector_store.search(NS, query="northeast", limit=2)] == whole[:2]
        assert [item.key for item in vector_store.search(NS, query="northeast", limit=2, offset=2)] == whole[2:4]
        northern = [item.key for item in vector_store.search(NS, query="northeast", filter={"half": "n"}, limit=5)]
        assert northern == [key for key in whole if key.startswith("n")]

    def test_a_new_text_moves_an_item_and_a_deleted_one_is_not_found(self, vector_store: BaseStore) -> None:
        vector_store.put(NS, "west", {"text": "east"})
        vector_store.delete(NS, "east")
        assert vector_store.search(NS, query="east", limit=1)[0].key == "west"
        assert "east" not in [item.key for item in vector_store.search(NS, query="east", limit=10)]

    def test_an_item_can_be_left_out_of_the_ranking(self, vector_store: BaseStore) -> None:
        vector_store.put(NS, "hidden", {"text": "east"}, index=False)
        assert vector_store.search(NS, query="east", limit=1)[0].key == "east"
        assert value_of(vector_store, "hidden") == {"text": "east"}

    def test_another_field_can_be_embedded(self, vector_store: BaseStore) -> None:
        vector_store.put(("other",), "k", {"text": "west", "name": "east"}, index=["name"])
        vector_store.put(("other",), "l", {"text": "northeast"})
        assert [item.key for item in vector_store.search(("other",), query="east")] == ["k", "l"]


def open_in(stack: ExitStack, found: BaseStore | AbstractContextManager[BaseStore]) -> BaseStore:
    """The store, closed when the stack is."""
    if isinstance(found, AbstractContextManager):
        return stack.enter_context(found)
    if callable(close := getattr(found, "close", None)):
        stack.callback(close)
    return found


def value_of(store: BaseStore, key: str, namespace: tuple[str, ...] = NS) -> dict[str, Any]:
    """The value of an item that must be there."""
    item = store.get(namespace, key)
    assert item is not None, f"{namespace} has no item {key!r}"
    return item.value


async def use_async_methods(store: BaseStore) -> None:
    """Write, read, search, list and delete by the async methods."""
    await asyncio.gather(*(store.aput(NS, str(n), {"n": n}) for n in range(8)))
    item = await store.aget(NS, "3")
    assert item is not None
    assert item.value == {"n": 3}
    assert {item.value["n"] for item in await store.asearch(NS, filter={"n": {"$lt": 3}})} == {0, 1, 2}
    await store.adelete(NS, "3")
    assert await store.aget(NS, "3") is None
    assert await store.alist_namespaces() == [NS]
    assert len(await store.abatch([GetOp(NS, "1"), SearchOp(NS)])) == 2

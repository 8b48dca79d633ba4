"""The web shop: its reward by hand, its pages step by step, and every goal bought."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learngraph.memory.errors import UserError
from learngraph.memory.records import Observation, Task
from learngraph.tools.environments.web_shop import (
    HELP,
    SEPARATOR,
    Goal,
    Product,
    Shop,
    WebShop,
    draw_shop,
    matched_attribute_count,
    matched_option_count,
    name_words,
    reward,
    token_set_ratio,
    type_reward,
)

BOTTLE = Product(
    "B1",
    "Steel Bottle with Straw Lid, Leak Proof (Norvik)",
    ("Kitchen", "Drinkware", "bottles"),
    "water bottle",
    1995,
    (("color", (("black", 0), ("navy blue", 0))), ("size", (("500 ml", 0), ("1 litre", 600)))),
    ("leak proof", "dishwasher safe", "vacuum insulated"),
    "A bottle for long walks. It is BPA free.",
    ("wide mouth opening", "keeps drinks cold"),
    ("5 of 5 stars: Good.",),
)
MUG = Product("B2", "Travel Mug with Straw Lid, Spill Proof", ("Kitchen", "Drinkware", "mugs"), "travel mug", 2500)
LAMP = Product("B3", "Desk Lamp, Dimmable", ("Home", "Lighting", "desk lamps"), "desk lamp", 4000)
GOAL = Goal(BOTTLE, ("leak proof", "bpa free"), (("color", "navy blue"), ("size", "1 litre")), 3000)
SMALL = Shop([MUG, BOTTLE, LAMP], [GOAL] * 4)


def titled(title: str, *category: str, query: str = "") -> Product:
    return Product("B9", title, category, query or title, 100)


def after(env: WebShop, task: Task, *actions: str) -> Observation:
    return env.observe(task, actions)


def page(shown: Observation) -> str:
    """The text above what can be done."""
    return shown.text.removesuffix(HELP)


# The reward


def test_the_words_of_a_title() -> None:
    assert name_words(BOTTLE.title) == {"steel", "bottle", "straw", "lid"}
    assert name_words("The Lid of the Jar and the Pot, Red") == {"lid", "jar", "pot"}
    assert name_words(", Red") == frozenset()


def test_the_type_by_hand_in_each_branch() -> None:
    ten = titled("a1 b2 c3 d4 e5 f6 g7 h8 i9 j10")  # ten words
    assert type_reward(BOTTLE, BOTTLE) == 1
    assert type_reward(titled("a1 b2 c3 x"), ten) == 1  # overlap 0.3 > 0.2, nothing else in common
    assert type_reward(titled("a1 b2 x"), ten) == 0.5  # 0.2 is not above 0.2
    assert type_reward(titled("a1 x"), ten) == 0.5  # 0.1 is not below 0.1
    assert type_reward(titled("a1 x", query="q"), replace(ten, query="q")) == 1
    two = replace(ten, category=("Home", "Lighting", "lamps"))
    assert type_reward(titled("a1 x", "Home", "Lighting", "spots"), two) == 1  # two levels in common
    assert type_reward(titled("a1 x", "Home", "Bedding", "spots"), two) == 0.5  # one
    eleven = titled("a1 b2 c3 d4 e5 f6 g7 h8 i9 j10 k11", query="q")
    assert type_reward(titled("a1 x", query="q"), eleven) == 0.1  # 1 / 11, whatever the query
    assert type_reward(titled("x y", query="q"), eleven) == 0  # nothing of the title
    assert type_reward(titled("x"), titled("of the, red")) == 0.5  # no word: counts as 0.2
    assert type_reward(titled("a1 b2"), titled("a1")) == 1  # the share is of the words wanted
    # The mug shares straw and lid, 2 of the bottle's 4 words; the lamp shares nothing.
    assert type_reward(MUG, BOTTLE) == 1
    assert type_reward(LAMP, BOTTLE) == 0


def test_attributes_by_hand() -> None:
    assert matched_attribute_count(BOTTLE, ["leak proof"]) == 1  # its own
    assert matched_attribute_count(BOTTLE, ["proof leak", "leak-proof"]) == 2  # the order of words does not matter
    assert matched_attribute_count(BOTTLE, ["dishwasher safes"]) == 1  # 2 * 15 / 31 = 97 > 85
    assert matched_attribute_count(BOTTLE, ["straw lid", "wide mouth", "bpa free"]) == 3  # title, features, description
    assert matched_attribute_count(BOTTLE, ["Long Walks"]) == 1
    assert matched_attribute_count(BOTTLE, ["spill proof", "oven safe", "cheap"]) == 0
    assert matched_attribute_count(BOTTLE, []) == 0


def test_options_by_hand() -> None:
    both = {"color": "navy blue", "size": "1 litre"}
    assert matched_option_count(BOTTLE, both, ["1 litre", "navy blue"]) == 2
    assert matched_option_count(BOTTLE, {"color": "navy blue"}, ["blue"]) == 1  # all words of one are in the other: 100
    assert matched_option_count(BOTTLE, {"color": "black"}, ["navy blue"]) == 0
    assert matched_option_count(BOTTLE, {"size": "2 metres"}, ["3 metres"]) == 0, "a size has to be the same"
    assert matched_option_count(BOTTLE, {"length": "2 metres"}, ["3 metres"]) == 1
    assert matched_option_count(BOTTLE, {"material": "steel"}, ["tin"]) == 1, "it stands in the title"
    assert matched_option_count(BOTTLE, both, ["navy blue"]) == 1
    assert matched_option_count(BOTTLE, {}, ["black"]) == 0
    assert matched_option_count(BOTTLE, {"color": "black"}, []) == 0


@pytest.mark.parametrize(
    ("chosen", "cap", "met"),
    [
        ({"color": "navy blue", "size": "1 litre"}, 3000, 5),  # 2 attributes, 2 options, 25.95 <= 30
        ({"color": "navy blue", "size": "1 litre"}, 2595, 5),  # just what it costs
        ({"color": "navy blue", "size": "1 litre"}, 2594, 4),  # a cent too dear
        ({"color": "navy blue", "size": "500 ml"}, 3000, 4),
        ({"color": "black"}, 3000, 3),
        ({}, 3000, 3),
        ({}, 1994, 2),
    ],
)
def test_the_reward_by_hand(chosen: dict[str, str], cap: int, met: int) -> None:
    assert reward(BOTTLE, chosen, replace(GOAL, price_cap=cap)) == pytest.approx(met / 5)


def test_the_reward_of_another_product() -> None:
    # The mug: type 1 (see above), of the attributes none, no options, 25 <= 30.
    assert reward(MUG, {}, GOAL) == pytest.approx(1 / 5)
    assert reward(LAMP, {}, GOAL) == 0
    half = titled("a1 x", "Home")
    wanted = Goal(titled("a1 b2 c3 d4 e5 f6"), ("x",), (), 500)
    # 1 / 6 of the words: 0.5 for the type; x stands in the title, and it is cheap enough: 2 of 2.
    assert reward(half, {}, wanted) == pytest.approx(0.5)
    assert reward(half, {}, replace(wanted, attributes=("x", "y"), price_cap=99)) == pytest.approx(0.5 * 1 / 3)


def test_token_set_ratio_by_hand() -> None:
    assert token_set_ratio("Leak Proof", "proof, leak") == 100
    assert token_set_ratio("navy blue", "blue") == 100
    assert token_set_ratio("abcd", "abxd") == 75  # 2 * 3 / 8
    # Both have `free`: `free` to `free bpa` is 2 * 4 / 12 = 67, `free` to `free oil` the same, and `free bpa` to `free oil`
    # have `free ` in common: 2 * 5 / 16 = 62.5.
    assert token_set_ratio("bpa free", "oil free") == 67
    assert token_set_ratio("500 ml", "750 ml") == 83  # `ml 500` and `ml 750` have `ml 50` in common: 2 * 5 / 12
    assert token_set_ratio("2 metres", "3 metres") == 88  # `metres `, 2 * 7 / 16: such options the reward cannot tell apart
    assert token_set_ratio("", "blue") == token_set_ratio("?!", "?!") == 0


@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12))
def test_token_set_ratio_is_symmetric_and_ignores_order(one: str, other: str) -> None:
    ratio = token_set_ratio(one, other)
    assert 0 <= ratio <= 100
    assert ratio == token_set_ratio(other, one) == token_set_ratio(" ".join(reversed(one.split())), other)


# The pages


def test_what_is_too_long_to_buy_is_no_optimum() -> None:
    whole = WebShop(shop=SMALL)
    task = whole.task(0, "train")
    path = whole.gold(task)
    assert (whole.optimum(task), whole.knows_optimum(task)) == (1.0, True)
    short = WebShop(shop=SMALL, horizon=len(path) - 1)
    assert (short.optimum(task), short.knows_optimum(task)) == (0.0, False)
    assert short.observe(task, short.gold(task)).reward == 0


@pytest.fixture
def env() -> WebShop:
    return WebShop(shop=SMALL)


def test_a_purchase_page_by_page(env: WebShop) -> None:
    task = env.task(0, "train")
    assert task.instruction == "buy water bottle: leak proof, bpa free; color navy blue; size 1 litre; at most $30.00"
    start = env.observe(task, ())
    assert page(start) == "Search"
    assert "search[leak proof water bottle]" in start.actions
    path = ["search[steel bottle]"]
    shown = env.observe(task, path)
    assert page(shown) == (
        "Back to Search [SEP] Page 1 (Total results: 1) [SEP] B1 [SEP] Steel Bottle with Straw Lid, Leak Proof (Norvik) [SEP] "
        "$19.95 to $25.95"
    )
    assert shown.actions == ("click[b1]", "click[back to search]")
    path.append("click[B1]")
    shown = env.observe(task, path)
    assert page(shown) == (
        "Back to Search [SEP] < Prev [SEP] color [SEP] black [SEP] navy blue [SEP] size [SEP] 500 ml [SEP] 1 litre [SEP] "
        "Steel Bottle with Straw Lid, Leak Proof (Norvik) [SEP] Price: $19.95 [SEP] Description [SEP] Features [SEP] Reviews "
        "[SEP] Attributes [SEP] Buy Now"
    )
    assert "click[navy blue]" in shown.actions
    path += ["click[1 litre]", "click[black]", "click[navy blue]"]  # the last choice counts
    shown = env.observe(task, path)
    assert "Chosen: color navy blue, size 1 litre [SEP] Steel Bottle" in shown.text
    assert "Price: $25.95" in shown.text
    path.append("click[buy now]")
    assert env.observe(task, path) == Observation(
        "Thank you for your purchase [SEP] Steel Bottle with Straw Lid, Leak Proof (Norvik) [SEP] Your score (0 to 1): 1",
        (),
        1.0,
        True,
    )
    with pytest.raises(UserError, match=r"was over after 6 steps, got one more action: 'click\[back to search\]'"):
        env.observe(task, [*path, "click[back to search]"])


def test_sub_pages_and_the_way_back(env: WebShop) -> None:
    task, item = env.task(0, "train"), ("search[bottle]", "click[b1]", "click[1 litre]")
    for name, said in (
        ("description", "A bottle for long walks. It is BPA free."),
        ("features", "wide mouth opening [SEP] keeps drinks cold"),
        ("reviews", "5 of 5 stars: Good."),
        ("attributes", "leak proof [SEP] dishwasher safe [SEP] vacuum insulated"),
    ):
        shown = after(env, task, *item, f"click[{name}]")
        assert page(shown) == f"Back to Search [SEP] < Prev [SEP] {said}"
        assert shown.actions == ("click[< prev]", "click[back to search]")
        # Back on the item's page the choice still stands.
        assert after(env, task, *item, f"click[{name}]", "click[< prev]") == after(env, task, *item)
    assert after(env, task, *item, "click[< prev]") == after(env, task, *item[:1])
    assert after(env, task, *item, "click[< prev]", "click[b1]") == after(env, task, *item[:2])  # chosen anew
    assert after(env, task, *item, "click[back to search]") == after(env, task)
    mug = after(env, task, "search[mug]", "click[b2]", "click[reviews]")
    assert page(mug).endswith("[SEP] None")


def test_pages_of_results() -> None:
    shop = draw_shop(600)
    env = WebShop(shop=shop)
    task = env.task(0)
    kinds = [product for product in shop.products if product.query == "yoga mat"]
    assert len(kinds) == 25
    shown = [after(env, task, "search[yoga mat]", *["click[next >]"] * n) for n in range(3)]
    found = [re.findall(r"\[SEP\] (B[0-9A-Z]{8}) \[SEP\]", page.text) for page in shown]
    assert [len(page) for page in found] == [10, 10, 5]
    assert {name for page in found for name in page} == {product.id for product in kinds}
    buttons = [{action for action in page.actions if action in ("click[< prev]", "click[next >]")} for page in shown]
    assert buttons == [{"click[next >]"}, {"click[< prev]", "click[next >]"}, {"click[< prev]"}]
    assert after(env, task, "search[yoga mat]", "click[next >]", "click[< prev]") == shown[0]
    # From a product back to the page of results it was found on.
    assert after(env, task, "search[yoga mat]", "click[next >]", f"click[{found[1][0]}]", "click[< prev]") == shown[1]
    assert "(Total results: 50)" in after(env, task, "search[the a with]").text  # at most fifty
    assert page(after(env, task, "search[zebra]")) == "Back to Search [SEP] Page 1 (Total results: 0)"


@pytest.mark.parametrize(
    ("before", "action", "said"),
    [
        ([], "fly to the moon", "this cannot be read: an action is search[words] or click[text of a button]"),
        ([], "search[]", "this cannot be read: an action is search[words] or click[text of a button]"),
        ([], "click[buy now]", "there is no 'buy now' to click on this page"),
        (["search[bottle]"], "search[mug]", "there is no search bar on this page"),
        (["search[bottle]"], "click[b2]", "there is no 'b2' to click on this page"),  # not among the results
        (["search[bottle]", "click[b1]"], "click[size]", "there is no 'size' to click on this page"),
        (
            ["search[bottle]", "click[b1]"],
            "click[Chosen: color black]",
            "there is no 'Chosen: color black' to click on this page",
        ),
    ],
)
def test_what_leads_nowhere_says_so_and_costs_its_step(env: WebShop, before: list[str], action: str, said: str) -> None:
    task = env.task(0, "train")
    here, there = env.observe(task, before), env.observe(task, [*before, action])
    assert there == replace(here, text=said + SEPARATOR + here.text)
    assert env.observe(task, [*before, action, action]) == there  # said once, not twice
    for onward in here.actions:  # and forgotten with the next step that leads somewhere
        assert env.observe(task, [*before, action, onward]) == env.observe(task, [*before, onward])
    idle = env.observe(task, [action] * env.horizon) if not before else None
    assert idle is None or (idle.reward, idle.over, idle.actions) == (0.0, True, ())


def test_an_action_is_read_in_any_case(env: WebShop) -> None:
    task = env.task(0, "train")
    assert after(env, task, " Search [bottle]", "CLICK[b1]", "click[ Navy  Blue ]") == after(
        env, task, "search[bottle]", "click[b1]", "click[navy blue]"
    )


def test_the_state_leaves_out_what_every_page_has(env: WebShop) -> None:
    task = env.task(0, "train")
    shown = after(env, task, "search[bottle]", "click[b1]", "click[black]")
    assert env.abstract(shown) == (
        "color | black | navy blue | size | 500 ml | 1 litre | Chosen: color black | "
        "Steel Bottle with Straw Lid, Leak Proof (Norvik) | Price: $19.95"
    )
    assert env.abstract(after(env, task)) == "Search"


def test_a_catalogue_that_cannot_be_clicked_is_refused() -> None:
    with pytest.raises(UserError, match="ids of products must differ"):
        Shop([MUG, replace(LAMP, id="b2")], [])
    with pytest.raises(UserError, match=r"option values of product B2 must differ .* got red, red"):
        Shop([replace(MUG, options=(("a", (("red", 0),)), ("b", (("Red", 0),))))], [])
    with pytest.raises(UserError, match="option values of product B2 must differ"):
        Shop([replace(MUG, options=(("a", (("Reviews", 0),)),))], [])
    with pytest.raises(UserError, match="a goal's product B1 is not in the catalogue"):
        Shop([MUG], [GOAL])


# The drawn catalogue


def test_every_goal_of_a_small_shop_can_be_bought() -> None:
    env = WebShop({"products": "150", "seed": "3"})
    assert env.name == "webshop?products=150,seed=3"
    count = 0
    for split, size in (("test", 74), ("dev", 74), ("train", 152)):
        for n in range(size):
            task = env.task(n, split)
            path = env.gold(task)
            assert len(path) <= env.horizon
            paid = [env.observe(task, path[: k + 1]).reward for k in range(len(path))]
            assert paid == [*[0.0] * (len(path) - 1), 1.0], path
            count += 1
    assert count == len(env.shop.goals) == 300


def test_a_catalogue_is_what_its_seed_says() -> None:
    one = draw_shop(100, 1)
    draw_shop.cache_clear()
    assert draw_shop(100, 1).products == one.products
    assert draw_shop(100, 1).goals == one.goals
    assert draw_shop(100, 2).products != one.products
    for product in one.products:
        assert len(product.attributes) == 4
        assert product.price > 0
    # Pinned, so that results can be told apart by the environment's name.
    assert (one.products[0].id, one.products[0].title) == (
        "BV3GT7ZBO",
        "Yoga Mat with Storage Bag, Tear Resistant, Latex Free (Norvik)",
    )


@pytest.mark.slow
def test_the_reward_can_tell_the_options_and_qualities_of_a_product_apart() -> None:
    for product in draw_shop(1000).products:
        values = [value for _, values in product.options for value, _ in values]
        for texts in (values, product.attributes):
            assert all(token_set_ratio(one, other) <= 85 for one in texts for other in texts if one != other), product


def test_splits_share_no_goal_and_no_product() -> None:
    for products, sizes in ((24, (12, 12, 24)), (150, (74, 74, 152)), (750, (500, 500, 500)), (1000, (500, 500, 1000))):
        env = WebShop(shop=Shop(draw_shop(products).products, draw_shop(products).goals))
        wanted = []
        for split, size in zip(("test", "dev", "train"), sizes, strict=True):
            goals = [env.goal(env.task(n, split)) for n in range(size)]
            wanted.append({goal.product.id for goal in goals})
            with pytest.raises(UserError, match=f"{split} has tasks 0 to {size - 1}, got {size}"):
                env.task(size, split)
        assert sum(map(len, wanted)) == len(set().union(*wanted)) == products
        assert len({goal.text for goal in env.shop.goals}) > 0.95 * len(env.shop.goals)
    assert env.task(0).seed == 0
    assert env.task(0, "dev").seed == 500


def test_the_goal_matters() -> None:
    """The same purchase is worth less for another wish, and the first result is not always right."""
    env = WebShop({"products": "500"})
    worth = []
    for n in range(100):
        task = env.task(n)
        query = max(env.observe(task, ()).actions, key=len)
        first = re.findall(r"B[0-9A-Z]{8}", env.observe(task, [query]).text)[0]
        values = [f"click[{value}]" for _, value in env.goal(task).options]
        worth.append(env.observe(task, [query, f"click[{first}]", *values, "click[buy now]"]).reward)
    assert 0.5 < sum(w == 1 for w in worth) / 100 < 0.9
    assert 0.8 < sum(filter(None, worth)) / 100 < 1


def test_doing_nothing_is_worth_nothing_and_chance_little() -> None:
    env, total, solved = WebShop({"products": "500"}), 0.0, 0
    for n in range(20):
        task, draw = env.task(n), random.Random(f"chance {n}")
        assert env.observe(task, ["wait"] * env.horizon).reward == 0
        actions, shown = list[str](), env.observe(task, ())
        while not shown.over:
            actions.append(draw.choice(shown.actions))
            shown = env.observe(task, actions)
        assert shown.reward is not None
        assert 0 <= shown.reward <= 1
        total += shown.reward
        solved += shown.reward == 1
    assert 0.05 < total / 20 < 0.5
    assert solved <= 2


# The published layout

ROWS: list[dict[str, Any]] = [
    {
        "asin": "B0AAAAAAA1",
        "name": "Norvik Steel Bottle, Leak Proof",
        "full_description": "A bottle for long walks.",
        "small_description": ["Wide mouth", "BPA free"],
        "category": "grocery",
        "query": " Water Bottles ",
        "product_category": "Kitchen › Drinkware › Bottles",
        "pricing": "$1,019.95",
        "customization_options": {
            "Color": [{"value": " Navy/White ", "image": "x"}, {"value": "Black"}],
            "Size": [{"value": "1 Litre"}, {"value": "black"}, {"value": "Reviews"}],
            "Style": None,
        },
        "images": ["x"],
    },
    {
        "asin": "B0AAAAAAA2",
        "name": "Wool Socks for Men",
        "full_description": None,
        "small_description": "Warm and soft",
        "category": "fashion",
        "query": "socks",
        "product_category": "Clothing › Men › Socks",
        "pricing": "$8.00 to $9.00",
        "customization_options": None,
        "images": ["x"],
    },
]
MORE = {"asin": "B0AAAAAAA3", "pricing": "", "small_description": []}
PEOPLE = {
    "B0AAAAAAA1": [
        {
            "instruction": "i want a leak proof bottle that is navy and white.",
            "instruction_attributes": ["leak proof", "bpa free"],
            "instruction_options": ["Navy | White"],
        },
        {"instruction": "anything", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0AAAAAAA2": [{"instruction": "warm socks", "instruction_attributes": ["warm"], "instruction_options": []}] * 3,
    "B0ELSEWHER": [{"instruction": "lost", "instruction_attributes": ["x"], "instruction_options": []}],
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A tiny catalogue of our own, in the layout of WebShop's files."""
    rows = [*ROWS, ROWS[0] | {"name": "the same again"}, ROWS[1] | MORE, {"asin": "nan"}]
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(rows))
    attributes = {"B0AAAAAAA1": {"attributes": ["leak proof"], "instruction": "x", "instruction_attributes": ["x"]}}
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    (tmp_path / "items_human_ins.json").write_text(json.dumps(PEOPLE))
    return tmp_path / "items_shuffle_1000.json"


def test_the_published_files_are_a_shop(published: Path) -> None:
    shop = WebShop({"file": str(published)}).shop
    bottle, socks, plain = shop.products
    assert (bottle.title, bottle.query, bottle.price) == ("Norvik Steel Bottle, Leak Proof", "water bottles", 101_995)
    assert bottle.category == ("Kitchen", "Drinkware", "Bottles")
    assert bottle.options == (("color", (("navy | white", 0), ("black", 0))), ("size", (("1 litre", 0),)))
    assert (bottle.attributes, bottle.features) == (("leak proof",), ("Wide mouth", "BPA free"))
    assert 800 <= socks.price <= 900
    assert (socks.description, socks.features, plain.price) == ("", ("Warm and soft",), 10_000)
    assert sorted(goal.product.id for goal in shop.goals) == ["B0AAAAAAA1", *["B0AAAAAAA2"] * 3], "a goal needs attributes"
    dear = next(goal for goal in shop.goals if goal.product is bottle)
    assert dear.text == "i want a leak proof bottle that is navy and white", "no multiple of 10 below 1,000 is above its price"
    assert dear.options == (("color", "navy | white"),)
    caps = {goal.price_cap for goal in shop.goals if goal.product is socks}
    assert caps <= {2000, 3000, 4000}, "the higher of two of 10, 20, 30 and 40 dollars"
    assert all(f"warm socks, and price lower than {cap // 100}.00 dollars" in [g.text for g in shop.goals] for cap in caps)


def test_goals_of_people_are_bought_and_their_hidden_words_not_listed(published: Path) -> None:
    env = WebShop({"file": str(published)})
    assert env.name == "webshop?file=items_shuffle_1000"
    assert {name: len(numbers) for name, numbers in env._splits.items()} == {"train": 4, "dev": 0, "test": 0}
    for seed in range(4):
        task = env.task(seed, "train")
        assert task.instruction == env.goal(task).text
        assert env.observe(task, []).actions == (f"search[{task.instruction.lower()}]",)
        end = env.observe(task, env.solution(task))
        assert (end.reward, end.over) == (1.0, True)


def test_files_of_another_layout_are_refused(published: Path) -> None:
    with pytest.raises(UserError, match="choose one"):
        WebShop({"file": str(published), "seed": "1"})
    (published.parent / "items_human_ins.json").write_text("{}")
    with pytest.raises(UserError, match="has no goal for any of its 3 products"):
        WebShop({"file": str(published)})
    published.write_text(json.dumps([{"asin": "B1"}]))
    with pytest.raises(UserError, match=r"'B1'.* has another layout than WebShop's .* \(KeyError\('small_description'\)\)"):
        WebShop({"file": str(published)})
    with pytest.raises(UserError, match=r"nowhere/items_ins_v2.json cannot be read .* items_human_ins.json beside it"):
        WebShop({"file": "nowhere/items_shuffle.json"})

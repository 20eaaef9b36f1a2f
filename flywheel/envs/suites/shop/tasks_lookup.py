"""Define the shop's task templates on products, lists, prices, the wish list and reviews.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.shop import data, draws, nav
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]


# -- looking around ----------------------------------------------------------------------------------------------------
def _draw_sorted(d: Draw) -> Params:
    sort = d.rng.choice([key for key in data.SORTS if key != "best"])
    return {**draws.draw_department(d), "sort": sort, "order": d.t(data.SORTS[sort])}


def _draw_filtered(d: Draw) -> Params:
    drawn = draws.draw_department(d)
    mine = [one for one in d.records["_products"].values() if one["department"] == drawn["department"]]
    most = d.rng.choice((25, 50, 100))
    fits = sorted({one["brand"] for one in mine if one["price"] <= most})
    if not fits:
        raise Redraw
    return {**drawn, "brand": d.rng.choice(fits), "most": str(most)}


def _draw_word(d: Draw) -> Params:
    return {"word": d.rng.choice((*(data.kind(one, d.t.language) for one in data.KINDS), *data.brands(d.t.language)))}


def _price(records: Records, p: Params) -> int:
    return records["_products"][p["key"]]["price"]


def _steps_fact(fact: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        move = nav.open_product(screen, p["key"]) or screen.seen(f"fact {fact}")
        return move or screen.answer(str(screen.records["_products"][p["key"]][fact]))

    return steps


def _steps_best(sort: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        move = nav.open_department(screen, p["department"], sort=sort) or screen.seen(f"price {p['key']}")
        name = screen.records["_products"][p["key"]]["name"]
        return move or screen.answer(name, "The first one is the answer.", "It stands at the top.")

    return steps


def _draw_pair(d: Draw) -> Params:
    key, one = d.pick("_products")
    other, two = d.pick("_products", lambda e: e["kind"] == one["kind"] and e["name"] != one["name"])
    return {"keys": [key, other], "name": one["name"], "other": two["name"]}


def _cheaper(records: Records, p: Params) -> str:
    return min((records["_products"][key] for key in p["keys"]), key=lambda one: one["price"])["name"]


def _steps_cheaper(screen: Screen, p: Params) -> Move | None:
    """Search for the kind of both products, which shows both prices."""
    products = screen.records["_products"]
    kind = data.kind(products[p["keys"][0]]["kind"], screen.t.language)
    if screen.page == "search" and screen.query.get("q") == kind:
        last = max(p["keys"], key=list(products).index)
        return screen.seen(f"price {last}") or screen.answer(_cheaper(screen.records, p), "I have seen both prices.")
    return screen.fill({"search": kind}, "", {"search": ("I search for both.",)})


def _at_list(p: Params) -> tuple[str, dict[str, str]]:
    return f"list/{p['department']}", {name: p[name] for name in ("sort", "brand", "most") if name in p}


# -- wish list and reviews ---------------------------------------------------------------------------------------------
def _wish(records: Records, p: Params) -> None:
    records["wishlist"][p["key"]] = True


def _draw_unwished(d: Draw) -> Params:
    drawn = draws.draw_product(d)
    if drawn["key"] in d.records["wishlist"]:
        raise Redraw
    return drawn


def _steps_wish(screen: Screen, p: Params) -> Move | None:
    return nav.open_product(screen, p["key"]) or screen.click("wish", "I put it on the list.")


def _draw_wished(d: Draw) -> Params:
    key = d.rng.choice(list(d.records["wishlist"]))
    one = d.records["_products"][key]
    if not draws.stocked(one) or any(item["product"] == key for item in d.records["cart"].values()):
        raise Redraw
    return {"key": key, "name": one["name"], "colour": one["colours"][0]}


def _unwish(records: Records, p: Params) -> None:
    del records["wishlist"][p["key"]]


def _buy_wish(records: Records, p: Params) -> None:
    _unwish(records, p)
    draws.put(records, p["key"], p["colour"], 1)


def _steps_wished(what: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.open_wishlist(screen) or screen.click(f"{what} {p['key']}", "I click it.", "This one.")

    return steps


def _draw_review(d: Draw) -> Params:
    text = d.rng.choice(
        (
            "It works well.",
            "Smaller than I thought.",
            "My children love it.",
            "It broke after a week.",
            "Good value for the money.",
        )
    )
    return {**draws.draw_product(d), "stars": d.rng.randint(1, 5), "text": d.t(text)}


def _review(records: Records, p: Params) -> None:
    records["reviews"]["new"] = {"product": p["key"], "stars": p["stars"], "text": p["text"]}


def _steps_review(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"product/{p['key']}/review":
        if not screen.checked(f"stars {p['stars']}") and not screen.value("text"):
            return screen.click(f"stars {p['stars']}", "I choose the stars.")
        return screen.fill({"text": p["text"]}, "send", {"text": ("I type the review.",)})
    if screen.page == f"product/{p['key']}" and screen.query.get("tab") == "reviews":
        return screen.click("write review", "I write a review.")
    move = nav.open_product(screen, p["key"])
    return move or screen.click(f"tab product/{p['key']}?tab=reviews", "I look at the reviews.")


TASKS = (
    SiteTask(
        "visit",
        "Open the page of the {name}.",
        {3: 7},
        draws.draw_product,
        lambda s, p: nav.open_product(s, p["key"]),
        page=lambda p: (f"product/{p['key']}", {}),
        zh="打开{name}的商品页面。",
    ),
    SiteTask(
        "department",
        "Open the department {title}.",
        {3: 4},
        draws.draw_department,
        lambda s, p: nav.open_department(s, p["department"]),
        page=_at_list,
        zh="打开“{title}”分类。",
    ),
    SiteTask(
        "find",
        "Search the shop for “{word}”.",
        {3: 5},
        _draw_word,
        lambda s, p: s.fill({"search": p["word"]}, ""),
        page=lambda p: ("search", {"q": p["word"]}),
        zh="在商店里搜索“{word}”。",
    ),
    SiteTask(
        "sort",
        "Show the department {title} sorted by “{order}”.",
        {4: 8},
        _draw_sorted,
        lambda s, p: nav.open_department(s, p["department"], sort=p["sort"]),
        page=_at_list,
        zh="让“{title}”分类按“{order}”排序显示。",
    ),
    SiteTask(
        "filter",
        "In the department {title}, show only products of {brand} for up to ${most}.",
        {4: 10},
        _draw_filtered,
        lambda s, p: nav.open_department(s, p["department"], brand=p["brand"], most=p["most"]),
        page=_at_list,
        zh="在“{title}”分类中，只显示品牌为{brand}、价格不超过{most}元的商品。",
    ),
    SiteTask(
        "price",
        "What does the {name} cost, in dollars? Answer with the number.",
        {3: 8},
        draws.draw_product,
        _steps_fact("price"),
        answer=_price,
        zh="{name}的价格是多少元？请回答数字。",
    ),
    SiteTask(
        "stock",
        "How many of the {name} are in stock? Answer with the number.",
        {4: 8},
        draws.draw_product,
        _steps_fact("stock"),
        answer=lambda records, p: records["_products"][p["key"]]["stock"],
        zh="{name}的库存还有多少件？请回答数字。",
    ),
    SiteTask(
        "best_rated",
        "Which product of the department {title} has the best rating? Answer with its name.",
        {4: 9},
        draws.draw_best("-rating"),
        _steps_best("-rating"),
        answer=lambda records, p: draws.best(records, p["department"], "-rating")[1]["name"],
        zh="“{title}”分类中评分最高的是哪件商品？请回答它的名称。",
    ),
    SiteTask(
        "cheaper",
        "Which costs less, the {name} or the {other}? Answer with its name.",
        {4: 6},
        _draw_pair,
        _steps_cheaper,
        answer=_cheaper,
        zh="{name}和{other}，哪一件更便宜？请回答它的名称。",
    ),
    SiteTask(
        "wish",
        "Put the {name} on the wish list.",
        {4: 10},
        _draw_unwished,
        _steps_wish,
        _wish,
        zh="把{name}加入心愿单。",
    ),
    SiteTask(
        "unwish",
        "Take the {name} off the wish list.",
        {3: 8},
        _draw_wished,
        _steps_wished("remove"),
        _unwish,
        zh="把{name}从心愿单中移除。",
    ),
    SiteTask(
        "buy_wish",
        "Move the {name} from the wish list into the cart.",
        {3: 8},
        _draw_wished,
        _steps_wished("buy"),
        _buy_wish,
        zh="把心愿单里的{name}移到购物车。",
    ),
    SiteTask(
        "review",
        "Write a review of the {name}: {stars} of 5 stars, “{text}”",
        {5: 18},
        _draw_review,
        _steps_review,
        _review,
        zh="评价{name}：给{stars}星（满分5星），评语写“{text}”",
    ),
)

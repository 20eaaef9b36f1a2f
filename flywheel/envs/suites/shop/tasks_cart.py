"""Define the shop's task templates that fill, change and empty the cart.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.shop import data, draws, nav
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]


# -- the cart ----------------------------------------------------------------------------------------------------------
def _draw_add(d: Draw) -> Params:
    inside = {item["product"] for item in d.records["cart"].values()}
    key, one = d.pick("_products", lambda e: draws.stocked(e) and len(e["colours"]) > 1)
    if key in inside:
        raise Redraw
    colour = d.rng.choice(one["colours"])
    count = d.rng.randint(2, 5) if d.level == 4 else 1
    return {"key": key, "name": one["name"], "colour": colour, "shade": d.t(colour), "count": count}


def _add(records: Records, p: Params) -> None:
    draws.put(records, p["key"], p["colour"], p["count"])


def _steps_add(screen: Screen, p: Params) -> Move | None:
    return nav.add_to_cart(screen, p["key"], p["colour"], p["count"])


def _draw_add_two(d: Draw) -> Params:
    one, other = _draw_add(d), _draw_add(d)
    if one["key"] == other["key"]:
        raise Redraw
    first, second = (d.t("{name} in {shade}", name=each["name"], shade=each["shade"]) for each in (one, other))
    return {"all": [one, other], "first": first, "second": second}


def _add_two(records: Records, p: Params) -> None:
    for one in p["all"]:
        draws.put(records, one["key"], one["colour"], 1)


def _steps_add_two(screen: Screen, p: Params) -> Move | None:
    for one in p["all"]:
        if (move := nav.add_to_cart(screen, one["key"], one["colour"])) is not None:
            return move
    return None


def _add_best(records: Records, p: Params) -> None:
    draws.put(records, p["key"], p["colour"], 1)


def _draw_cheapest(d: Draw) -> Params:
    drawn = draws.draw_best("price")(d)
    if any(item["product"] == drawn["key"] for item in d.records["cart"].values()):
        raise Redraw
    return drawn


def _steps_add_best(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"product/{p['key']}":
        return screen.click("add", "I add it to the cart.", "Into the cart.")
    move = nav.open_department(screen, p["department"], sort="price")
    return move or screen.click(f"product {p['key']}", "The first one is the cheapest.")


def _draw_in_cart(d: Draw) -> Params:
    key, item = d.pick("cart")
    return {"key": key, "name": d.records["_products"][item["product"]]["name"]}


def _take_out(records: Records, p: Params) -> None:
    del records["cart"][p["key"]]


def _steps_take_out(screen: Screen, p: Params) -> Move | None:
    return nav.open_cart(screen) or screen.click(f"remove {p['key']}", "I take it out.", "I remove it.")


def _draw_count(d: Draw) -> Params:
    key, item = d.pick("cart", lambda i: draws.stocked(d.records["_products"][i["product"]]))
    count = d.rng.choice([n for n in range(1, 6) if n != item["count"]])
    return {"key": key, "name": d.records["_products"][item["product"]]["name"], "count": count}


def _recount(records: Records, p: Params) -> None:
    records["cart"][p["key"]]["count"] = p["count"]


def _steps_count(screen: Screen, p: Params) -> Move | None:
    if (move := nav.open_cart(screen)) is not None:
        return move
    if screen.records["cart"][p["key"]]["count"] < p["count"]:
        return screen.click(f"more {p['key']}", "One more.", "I click plus.")
    return screen.click(f"less {p['key']}", "One less.", "I click minus.")


def _steps_empty(screen: Screen, p: Params) -> Move | None:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return nav.open_cart(screen) or screen.click("empty", "I empty the cart.")


def _draw_coupon(d: Draw) -> Params:
    return {"code": d.rng.choice(list(data.COUPONS))}


def _coupon(records: Records, p: Params) -> None:
    records["coupon"] = p["code"]


def _steps_coupon(screen: Screen, p: Params) -> Move | None:
    return nav.open_cart(screen) or screen.fill({"code": p["code"]}, "use coupon", {"code": ("I type the coupon.",)})


def _cart_total(records: Records, p: Params) -> int:
    return sum(records["_products"][i["product"]]["price"] * i["count"] for i in records["cart"].values())


def _steps_cart_total(screen: Screen, p: Params) -> Move | None:
    return (
        nav.open_cart(screen)
        or screen.seen("total")
        or screen.answer(screen.t("${n}", n=_cart_total(screen.records, p)))
    )


TASKS = (
    SiteTask(
        "add_colour",
        "Add one {name} in {shade} to the cart.",
        {3: 11},
        _draw_add,
        _steps_add,
        _add,
        zh="把一件{shade}的{name}放进购物车。",
    ),
    SiteTask(
        "add_many",
        "Add {count} of the {name} in {shade} to the cart.",
        {4: 14},
        _draw_add,
        _steps_add,
        _add,
        zh="把{count}件{shade}的{name}放进购物车。",
    ),
    SiteTask(
        "add_both",
        "Add one {first} and one {second} to the cart.",
        {5: 24},
        _draw_add_two,
        _steps_add_two,
        _add_two,
        zh="把{first}和{second}各一件放进购物车。",
    ),
    SiteTask(
        "add_cheapest",
        "Add the cheapest product of the department {title} to the cart, in {shade}.",
        {5: 14},
        _draw_cheapest,
        _steps_add_best,
        _add_best,
        zh="把“{title}”分类中最便宜的商品放进购物车，颜色选{shade}。",
    ),
    SiteTask(
        "take_out",
        "Take the {name} out of the cart.",
        {3: 7},
        _draw_in_cart,
        _steps_take_out,
        _take_out,
        zh="把{name}从购物车中删除。",
    ),
    SiteTask(
        "recount",
        "Change the number of the {name} in the cart to {count}.",
        {4: 9},
        _draw_count,
        _steps_count,
        _recount,
        zh="把购物车里{name}的数量改为{count}。",
    ),
    SiteTask(
        "empty_cart",
        "Empty the cart.",
        {3: 8},
        lambda d: {},
        _steps_empty,
        lambda records, p: records["cart"].clear(),
        zh="清空购物车。",
    ),
    SiteTask(
        "coupon",
        "Use the coupon {code} for the cart.",
        {4: 9},
        _draw_coupon,
        _steps_coupon,
        _coupon,
        zh="在购物车中使用优惠券{code}。",
    ),
    SiteTask(
        "cart_total",
        "What is the total of the cart, in dollars? Answer with the number.",
        {3: 5},
        lambda d: {},
        _steps_cart_total,
        answer=_cart_total,
        zh="购物车的总价是多少元？请回答数字。",
    ),
)

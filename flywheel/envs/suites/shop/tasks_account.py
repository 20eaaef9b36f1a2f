"""Define the shop's task templates on orders, the account and messages.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.shop import data, draws, nav
from flywheel.envs.suites.shop.orders import place
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]


# -- orders ------------------------------------------------------------------------------------------------------------
def _draw_address(d: Draw) -> dict[str, str]:
    return data.address(d.rng, data.somebody(d.rng, d.t.language), d.t.language)


def _draw_checkout(d: Draw) -> Params:
    delivery = d.rng.choice(list(data.DELIVERIES))
    return {**_draw_address(d), "delivery": delivery, "sending": d.t(data.DELIVERIES[delivery][0])}


def _order(records: Records, p: Params) -> None:
    place(records, {name: p[name] for name in ("name", "street", "city", "postcode")}, p["delivery"])


def _steps_checkout(screen: Screen, p: Params) -> Move | None:
    if not screen.records["cart"]:
        return None
    return nav.check_out(screen, {name: p[name] for name in ("name", "street", "postcode", "city")}, p["delivery"])


def _draw_saved_checkout(d: Draw) -> Params:
    key, one = d.pick("addresses")
    delivery = d.rng.choice(list(data.DELIVERIES))
    known = {name: one[name] for name in ("name", "street", "city", "postcode")}
    return {**known, "key": key, "delivery": delivery, "sending": d.t(data.DELIVERIES[delivery][0])}


def _steps_saved_checkout(screen: Screen, p: Params) -> Move | None:
    if screen.page == "checkout":
        return screen.click(f"use {p['key']}", "I use this address.")
    return nav.check_out(screen, {}, p["delivery"])


def _draw_order(d: Draw) -> Params:
    key, _ = d.pick("orders", lambda o: o["state"] == "In preparation")
    return {"key": key, "number": key[1:]}


def _cancel(records: Records, p: Params) -> None:
    records["orders"][p["key"]]["state"] = "Cancelled"


def _steps_cancel(screen: Screen, p: Params) -> Move | None:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return nav.open_order(screen, p["key"]) or screen.click("cancel order", "I cancel it.")


def _draw_any_order(d: Draw) -> Params:
    key, _ = d.pick("orders")
    return {"key": key, "number": key[1:]}


def _steps_order_total(screen: Screen, p: Params) -> Move | None:
    total = screen.records["orders"][p["key"]]["total"]
    return nav.open_order(screen, p["key"]) or screen.seen("total") or screen.answer(screen.t("${n}", n=total))


def _draw_again(d: Draw) -> Params:
    drawn = _draw_any_order(d)
    items = d.records["orders"][drawn["key"]]["items"]
    inside = {item["product"] for item in d.records["cart"].values()}
    if any(i["product"] in inside or not draws.stocked(d.records["_products"][i["product"]]) for i in items.values()):
        raise Redraw
    return drawn


def _again(records: Records, p: Params) -> None:
    records["cart"] |= records["orders"][p["key"]]["items"]


def _steps_again(screen: Screen, p: Params) -> Move | None:
    return nav.open_order(screen, p["key"]) or screen.click("again", "I order it again.")


# -- the account -------------------------------------------------------------------------------------------------------
def _new_address(records: Records, p: Params) -> None:
    records["addresses"]["new"] = {name: p[name] for name in ("name", "street", "city", "postcode")} | {
        "default": False
    }


def _steps_new_address(screen: Screen, p: Params) -> Move | None:
    if screen.page == "account/address/new":
        said = {name: (f"I type the {name}.",) for name in ("name", "street", "city")}
        return screen.fill({name: p[name] for name in ("name", "street", "postcode", "city")}, "save", said)
    return nav.open_account(screen) or screen.click("new address", "I add an address.")


def _draw_other_address(d: Draw) -> Params:
    key, one = d.pick("addresses", lambda a: not a["default"])
    return {"key": key, "name": one["name"], "street": one["street"]}


def _default(records: Records, p: Params) -> None:
    for key, one in records["addresses"].items():
        one["default"] = key == p["key"]


def _steps_default(screen: Screen, p: Params) -> Move | None:
    return nav.open_account(screen) or screen.click(f"default {p['key']}", "I make it the first.")


def _delete_address(records: Records, p: Params) -> None:
    del records["addresses"][p["key"]]


def _steps_delete_address(screen: Screen, p: Params) -> Move | None:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    if screen.page == f"account/address/{p['key']}":
        return screen.click("delete", "I delete it.")
    return nav.open_account(screen) or screen.click(f"edit {p['key']}", "I open this address.")


def _draw_letters(d: Draw) -> Params:
    wanted = {name: not on if d.rng.random() < 0.6 else on for name, on in d.records["letters"].items()}
    if not any(wanted.values()):
        raise Redraw
    titles = {"offers": d.t("Offers"), "news": d.t("News of the shop"), "tips": d.t("Tips")}
    chosen = [f"“{titles[name]}”" for name, on in wanted.items() if on]
    if len(chosen) == 2:
        chosen = [d.t("{a} and {b}", a=chosen[0], b=chosen[1])]
    return {"wanted": wanted, "chosen": d.t("all three") if len(chosen) == 3 else chosen[0]}


def _letters(records: Records, p: Params) -> None:
    records["letters"] = dict(p["wanted"])


def _steps_letters(screen: Screen, p: Params) -> Move | None:
    return nav.open_account(screen) or screen.fill(p["wanted"], "save letters", {"save letters": ("I save it.",)})


def _draw_message(d: Draw) -> Params:
    topic = d.rng.choice(list(data.TOPICS))
    text = d.rng.choice(
        (
            "When will it come?",
            "The box was empty.",
            "Do you have it in white?",
            "Please call me back.",
            "Can I pay by invoice?",
        )
    )
    return {"topic": topic, "title": d.t(data.TOPICS[topic]), "text": d.t(text)}


def _message(records: Records, p: Params) -> None:
    records["messages"]["new"] = {"topic": p["topic"], "text": p["text"]}


def _steps_message(screen: Screen, p: Params) -> Move | None:
    said = {"topic": ("I choose the topic.",), "text": ("I type the message.",), "send": ("I send it.",)}
    return nav.open_shop_page(screen, "help", "menu help") or screen.fill(
        {"topic": p["topic"], "text": p["text"]}, "send", said
    )


TASKS = (
    SiteTask(
        "checkout",
        "Order what is in the cart for {name}, {street}, {postcode} {city}. Delivery: {sending}.",
        {5: 24},
        _draw_checkout,
        _steps_checkout,
        _order,
        zh="为购物车里的商品下单。收货人：{name}，街道：{street}，城市：{city}，邮编：{postcode}。配送方式：{sending}。",
    ),
    SiteTask(
        "quick_checkout",
        "Order what is in the cart for the saved address of {name}. Delivery: {sending}.",
        {4: 12},
        _draw_saved_checkout,
        _steps_saved_checkout,
        _order,
        zh="为购物车里的商品下单，寄到已保存的{name}的地址。配送方式：{sending}。",
    ),
    SiteTask(
        "cancel_order",
        "Cancel the order {number}.",
        {4: 8},
        _draw_order,
        _steps_cancel,
        _cancel,
        zh="取消订单{number}。",
    ),
    SiteTask(
        "order_total",
        "What is the total of the order {number}, in dollars? Answer with the number.",
        {3: 6},
        _draw_any_order,
        _steps_order_total,
        answer=lambda records, p: records["orders"][p["key"]]["total"],
        zh="订单{number}的总价是多少元？请回答数字。",
    ),
    SiteTask(
        "order_again",
        "Put everything of the order {number} into the cart again.",
        {4: 7},
        _draw_again,
        _steps_again,
        _again,
        zh="把订单{number}里的所有商品再次放进购物车。",
    ),
    SiteTask(
        "new_address",
        "Add an address to the account: {name}, {street}, {postcode} {city}.",
        {5: 18},
        _draw_address,
        _steps_new_address,
        _new_address,
        zh="在账户中添加一个地址。收货人：{name}，街道：{street}，城市：{city}，邮编：{postcode}。",
    ),
    SiteTask(
        "default_address",
        "Make the address of {name}, {street}, the default of the account.",
        {3: 8},
        _draw_other_address,
        _steps_default,
        _default,
        zh="把{name}在{street}的地址设为默认地址。",
    ),
    SiteTask(
        "delete_address",
        "Delete the address of {name}, {street}, from the account.",
        {4: 10},
        _draw_other_address,
        _steps_delete_address,
        _delete_address,
        zh="从账户中删除{name}在{street}的地址。",
    ),
    SiteTask(
        "letters",
        "Of the letters of the shop, I want {chosen} and no other.",
        {4: 12},
        _draw_letters,
        _steps_letters,
        _letters,
        zh="商店的邮件我只想订阅{chosen}，其他的都不要。",
    ),
    SiteTask(
        "message",
        "Send the shop a message on the topic “{title}”: “{text}”",
        {4: 11},
        _draw_message,
        _steps_message,
        _message,
        zh="给商店发一条留言，主题选“{title}”，内容是：“{text}”",
    ),
)

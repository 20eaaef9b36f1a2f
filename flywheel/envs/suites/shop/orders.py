"""Serve the pages and forms of the shop from the checkout on: checkout, orders, account, help."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forms import Field, digits, one_of
from flywheel.envs.suites.shop.data import DELIVERIES, TOPICS
from flywheel.envs.suites.shop.pages import put, site, totals
from flywheel.envs.suites.site import Page, Visit


def _address(visit: Visit) -> dict[str, str]:
    """Read and check the fields of an address; a postcode has six digits in Chinese, five in English."""
    return visit.read(
        Field("name", longest=60),
        Field("street", longest=80),
        Field("city", longest=60),
        Field("postcode", check=digits(6 if visit.t.language == "zh" else 5)),
    )


# -- checkout ----------------------------------------------------------------------------------------------------------
@site.page("checkout")
def checkout(visit: Visit) -> Page | None:
    if not visit.records["cart"]:
        return None
    return Page.of("checkout.html", heading=visit.t("Delivery address"), saved=visit.records["addresses"])


@site.form("checkout")
def save_address(visit: Visit) -> str | None:
    if not visit.records["cart"]:
        return None
    visit.records["_checkout"] = {"address": _address(visit)}
    return "checkout/delivery"


@site.form("checkout/use")
def use_address(visit: Visit) -> str | None:
    one = visit.records["addresses"].get(visit.form.get("key", ""))
    if one is None or not visit.records["cart"]:
        return None
    visit.records["_checkout"] = {"address": {name: one[name] for name in ("name", "street", "city", "postcode")}}
    return "checkout/delivery"


@site.page("checkout/delivery")
def delivery(visit: Visit) -> Page | None:
    if "_checkout" not in visit.records or not visit.records["cart"]:
        return None
    options = [(key, visit.t("{text}: ${n}", text=visit.t(text), n=price)) for key, (text, price) in DELIVERIES.items()]
    return Page.of("delivery.html", heading=visit.t("Delivery"), options=options)


@site.form("checkout/delivery")
def save_delivery(visit: Visit) -> str | None:
    if "_checkout" not in visit.records:
        return None
    read = visit.read(Field("delivery", check=one_of(DELIVERIES)))
    visit.records["_checkout"]["delivery"] = read["delivery"]
    return "checkout/check"


@site.page("checkout/check")
def check(visit: Visit) -> Page | None:
    draft = visit.records.get("_checkout", {})
    if "delivery" not in draft or not visit.records["cart"]:
        return None
    delivery = draft["delivery"]
    return Page.of(
        "check.html",
        heading=visit.t("Check your order"),
        draft=draft,
        cart=visit.records["cart"],
        sent=visit.t(DELIVERIES[delivery][0]),
        **totals(visit.records, delivery),
    )


@site.form("checkout/order")
def order(visit: Visit) -> str | None:
    records, draft = visit.records, visit.records.get("_checkout", {})
    if "delivery" not in draft or not records["cart"]:
        return None
    key = place(records, draft["address"], draft["delivery"])
    del records["_checkout"]
    visit.notice("Thank you! Your order has the number {n}.", n=key[1:])
    return f"orders/{key}"


def place(records: dict[str, Any], address: dict[str, str], delivery: str) -> str:
    """Turn the cart into an order; return its key."""
    number = records["_orders"] = records.get("_orders", 1041 + 7 * 3) + 7
    key = f"o{number}"
    records["orders"][key] = {
        "items": dict(records["cart"]),
        "address": dict(address),
        "delivery": delivery,
        "state": "In preparation",
        "total": totals(records, delivery)["total"],
        "day": "2026-01-01",
    }
    records["cart"] = {}
    records["coupon"] = ""
    return key


# -- orders, account, help ---------------------------------------------------------------------------------------------
@site.page("orders")
def orders(visit: Visit) -> Page:
    return Page.of("orders.html", heading=visit.t("Orders"), orders=visit.records["orders"])


@site.page("orders/<key>")
def one_order(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["orders"].get(key)) is None:
        return None
    return Page.of(
        "order.html",
        heading=visit.t("Order {n}", n=key[1:]),
        key=key,
        order=one,
        sent=visit.t(DELIVERIES[one["delivery"]][0]),
        ask=visit.query.get("ask"),
    )


@site.form("orders/<key>/cancel")
def cancel(visit: Visit, key: str) -> str | None:
    one = visit.records["orders"].get(key)
    if one is None or one["state"] != "In preparation":
        return None
    one["state"] = "Cancelled"
    visit.notice("Order {n} is cancelled.", n=key[1:])
    return f"orders/{key}"


@site.form("orders/<key>/again")
def again(visit: Visit, key: str) -> str | None:
    if (one := visit.records["orders"].get(key)) is None:
        return None
    for item in one["items"].values():
        put(visit, dict(item))
    return "cart"


@site.page("account")
def account(visit: Visit) -> Page:
    return Page.of(
        "account.html",
        heading=visit.t("Account"),
        addresses=visit.records["addresses"],
        letters=visit.records["letters"],
    )


@site.page("account/address/<key>")
def one_address(visit: Visit, key: str) -> Page | None:
    known = visit.records["addresses"].get(key)
    if known is None and key != "new":
        return None
    empty = {"name": "", "street": "", "city": "", "postcode": "", "default": False}
    return Page.of(
        "address.html", heading=visit.t("Address"), key=key, address=known or empty, ask=visit.query.get("ask")
    )


@site.form("account/address/<key>/save")
def keep_address(visit: Visit, key: str) -> str | None:
    addresses = visit.records["addresses"]
    if key != "new" and key not in addresses:
        return None
    values = _address(visit)
    if key == "new":
        number = visit.records["_addresses"] = visit.records.get("_addresses", 3) + 1
        key = f"a{number}"
    addresses[key] = {**values, "default": addresses.get(key, {}).get("default", False)}
    visit.notice("Saved.")
    return "account"


@site.form("account/address/<key>/<what>")
def change_address(visit: Visit, key: str, what: str) -> str | None:
    addresses = visit.records["addresses"]
    if key not in addresses or what not in ("default", "delete") or (what == "delete" and addresses[key]["default"]):
        return None
    if what == "delete":
        del addresses[key]
    else:
        for other, one in addresses.items():
            one["default"] = other == key
    return "account"


@site.form("account/letters")
def letters(visit: Visit) -> str:
    visit.records["letters"] = {name: name in visit.form for name in visit.records["letters"]}
    visit.notice("Saved.")
    return "account"


@site.page("help")
def help_page(visit: Visit) -> Page:
    return Page.of("help.html", heading=visit.t("Help"), topics=[(key, visit.t(text)) for key, text in TOPICS.items()])


@site.form("help")
def send(visit: Visit) -> str:
    read = visit.read(Field("topic", check=one_of(TOPICS)), Field("text", longest=1000))
    number = visit.records["_messages"] = visit.records.get("_messages", 0) + 1
    visit.records["messages"][f"m{number}"] = read
    visit.notice("Thank you, we will answer soon.")
    return "help"

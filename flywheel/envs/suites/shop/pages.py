"""Serve the pages and forms of the shop: products, cart, wish list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flywheel.envs.suites.forms import Field, Invalid, one_of, whole_number
from flywheel.envs.suites.shop import classic
from flywheel.envs.suites.shop.data import COUPONS, DELIVERIES, DEPARTMENTS, SORTS, by_name, item_key, make_records
from flywheel.envs.suites.site import Page, Site, Visit

A_PAGE = 8
MOST = 9  # most of one product and colour in the cart
PRICES = (25, 50, 100)  # dollars; options "Up to" of the filter


def _menu(visit: Visit) -> list[tuple[str, str, str]]:
    departments = [(f"list/{key}", visit.t(title), "") for key, (title, _) in DEPARTMENTS.items()]
    return [*departments, ("orders", visit.t("Orders"), ""), ("help", visit.t("Help"), "")]


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    return {
        "accent": "#8a3b12",
        "accent_soft": "#f9e9df",
        "products": records["_products"],
        "in_cart": sum(item["count"] for item in records["cart"].values()),
        "wishes": len(records["wishlist"]),
        "money": lambda amount: visit.t("${n}", n=amount),
    }


site = Site(Path(__file__).parent, make_records, menu=_menu, common=_common, small=classic)


# -- products ----------------------------------------------------------------------------------------------------------
@site.page("")
def home(visit: Visit) -> Page:
    products = sorted(visit.records["_products"].items(), key=lambda item: -item[1]["rating"])
    return Page.of("home.html", departments=DEPARTMENTS, best=products[:4])


@site.page("search")
def search(visit: Visit) -> Page:
    return _list(visit, "")


@site.page("list/<department>")
def department(visit: Visit, department: str) -> Page | None:
    return _list(visit, department) if department in DEPARTMENTS else None


def _list(visit: Visit, department: str) -> Page:
    """Return the page of a department's products ("": all), by search words, filters and order, A_PAGE on each page."""
    products = visit.records["_products"]
    words = visit.query.get("q", "").casefold().split()
    most = visit.number("most", 0, 0, 10_000)
    brands = sorted({one["brand"] for one in products.values()})
    brand = visit.option("brand", ("", *brands))
    sort = visit.option("sort", tuple(SORTS))
    rows = [
        (key, one)
        for key, one in products.items()
        if (not department or one["department"] == department)
        and all(word in f"{one['name']} {one['brand']}".casefold() for word in words)
        and (not most or one["price"] <= most)
        and (not brand or one["brand"] == brand)
    ]
    if sort != "best":
        rank = by_name if sort == "name" else lambda one: one[sort.lstrip("-")]
        rows.sort(key=lambda row: rank(row[1]), reverse=sort.startswith("-"))
    count = max(1, -(-len(rows) // A_PAGE))
    number = visit.number("page", 1, 1, count)
    asked = {"q": visit.query.get("q", ""), "brand": brand, "most": str(most) if most else "", "sort": sort}
    return Page.of(
        "list.html",
        heading=visit.t(DEPARTMENTS[department][0]) if department else visit.t("Search"),
        rows=rows[(number - 1) * A_PAGE : number * A_PAGE],
        total=len(rows),
        number=number,
        count=count,
        asked=asked,
        brands=[("", visit.t("All brands")), *((one, one) for one in brands)],
        prices=[("", visit.t("Any price")), *((str(one), visit.t("Up to ${n}", n=one)) for one in PRICES)],
        sorts=[(key, visit.t(text)) for key, text in SORTS.items()],
    )


@site.page("product/<key>")
def product(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["_products"].get(key)) is None:
        return None
    mine = [review for review in visit.records["reviews"].values() if review["product"] == key]
    return Page.of(
        "product.html",
        heading=one["name"],
        key=key,
        product=one,
        tab=visit.option("tab", ("about", "reviews")),
        wished=key in visit.records["wishlist"],
        reviews=mine,
        department=visit.t(DEPARTMENTS[one["department"]][0]),
        colours=[(colour, visit.t(colour)) for colour in one["colours"]],
    )


@site.page("product/<key>/review")
def review(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["_products"].get(key)) is None:
        return None
    return Page.of("review.html", heading=visit.t("Review of the {name}", name=one["name"]), key=key, product=one)


@site.form("product/<key>/add")
def add(visit: Visit, key: str) -> str | None:
    if (one := visit.records["_products"].get(key)) is None:
        return None
    read = visit.read(Field("colour", check=one_of(one["colours"])), Field("count", check=whole_number(1, MOST)))
    item = {"product": key, "colour": read["colour"], "count": int(read["count"])}
    put(visit, item)
    visit.notice("{name} is in your cart.", name=one["name"])
    return "cart"


def put(visit: Visit, item: dict[str, Any]) -> None:
    """Add an item to those in the cart. Raises Invalid where there would be more than the stock or MOST."""
    cart, one = visit.records["cart"], visit.records["_products"][item["product"]]
    count = cart.get(item_key(item), {"count": 0})["count"] + item["count"]
    if count > min(one["stock"], MOST):
        raise Invalid(count=("We have only {n} of them.", {"n": min(one["stock"], MOST)}))
    cart[item_key(item)] = {**item, "count": count}


@site.form("product/<key>/wish")
def wish(visit: Visit, key: str) -> str | None:
    if key not in visit.records["_products"]:
        return None
    if visit.records["wishlist"].pop(key, None) is None:
        visit.records["wishlist"][key] = True
        visit.notice("It is on your wish list.")
    return f"product/{key}"


@site.form("product/<key>/review")
def save_review(visit: Visit, key: str) -> str | None:
    if key not in visit.records["_products"]:
        return None
    read = visit.read(Field("stars", check=whole_number(1, 5)), Field("text", longest=500))
    number = visit.records["_reviews"] = visit.records.get("_reviews", 0) + 1
    visit.records["reviews"][f"r{number}"] = {"product": key, "stars": int(read["stars"]), "text": read["text"]}
    visit.notice("Thank you for your review.")
    return f"product/{key}?tab=reviews"


# -- cart and wish list ------------------------------------------------------------------------------------------------
@site.page("cart")
def cart(visit: Visit) -> Page:
    return Page.of(
        "cart.html",
        heading=visit.t("Cart"),
        cart=visit.records["cart"],
        ask=visit.query.get("ask"),
        coupon=visit.records["coupon"],
        **totals(visit.records),
    )


def totals(records: dict[str, Any], delivery: str = "") -> dict[str, Any]:
    """Return the cart's prices in dollars: goods, discount of the coupon (`off`, rounded down), delivery and total."""
    products = records["_products"]
    goods = sum(products[item["product"]]["price"] * item["count"] for item in records["cart"].values())
    off = goods * COUPONS.get(records["coupon"], 0) // 100
    sending = DELIVERIES[delivery][1] if delivery else 0
    return {"goods": goods, "off": off, "sending": sending, "total": goods - off + sending}


@site.form("cart/<key>/count")
def recount(visit: Visit, key: str) -> str | None:
    if (item := visit.records["cart"].get(key)) is None:
        return None
    most = min(visit.records["_products"][item["product"]]["stock"], MOST)
    if visit.form.get("way") == "less" and item["count"] > 1:
        item["count"] -= 1
    elif visit.form.get("way") == "more" and item["count"] < most:
        item["count"] += 1
    return "cart"


@site.form("cart/<key>/remove")
def take_out(visit: Visit, key: str) -> str | None:
    return "cart" if visit.records["cart"].pop(key, None) else None


@site.form("empty")
def empty(visit: Visit) -> str:
    visit.records["cart"].clear()
    visit.notice("Your cart is empty.")
    return "cart"


@site.form("coupon")
def coupon(visit: Visit) -> str:
    code = visit.read(Field("code", longest=30))["code"].upper()
    if code not in COUPONS:
        raise Invalid(code="We do not know this coupon.")
    visit.records["coupon"] = code
    visit.notice("{n} % off.", n=COUPONS[code])
    return "cart"


@site.page("wishlist")
def wishlist(visit: Visit) -> Page:
    return Page.of("wishlist.html", heading=visit.t("Wish list"), keys=list(visit.records["wishlist"]))


@site.form("wishlist/<key>/<what>")
def unwish(visit: Visit, key: str, what: str) -> str | None:
    if key not in visit.records["wishlist"] or what not in ("remove", "buy"):
        return None
    if what == "buy":
        put(visit, {"product": key, "colour": visit.records["_products"][key]["colours"][0], "count": 1})
    del visit.records["wishlist"][key]
    return "wishlist"

"""Serve the small edition of the shop: six products, a cart and a checkout, as plain HTML forms.

State: `items` (name and price), `cart` (name -> count), `page` (path shown last), `query` (last search), `orders` (name
and items of each).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Type
from flywheel.envs.base import Task
from flywheel.envs.suites import changes
from flywheel.envs.suites.steps import click, say, shown

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white", "gray", "pink")
KINDS = ("mug", "hat", "shirt", "shoe", "lamp", "ball", "bag", "book")
PEOPLE = ("anna", "tom", "ben", "mary", "lisa", "kate", "sam", "john")


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw six products: of six colours (level 1), or three kinds in two colours each."""
    if level == 1:
        names = [f"{c} {rng.choice(KINDS)}" for c in rng.sample(COLOURS, 6)]
    else:
        (c1, c2), (k1, k2, k3) = rng.sample(COLOURS, 2), rng.sample(KINDS, 3)
        names = [f"{c} {k}" for c in (c1, c2) for k in (k1, k2, k3)]
    rng.shuffle(names)
    item, other, third = rng.sample(names, 3)
    cart = [item, third] if template in ("remove", "swap") else []
    rng.shuffle(cart)
    params: dict[str, Any] = {"items": [{"name": name, "price": rng.randint(2, 30)} for name in names], "cart": cart}
    match template:
        case "open":
            params |= {"item": item}
        case "add":
            params |= {"item": item, "goal": {item: 1}}
        case "remove":
            params |= {"item": item, "goal": {third: 1}}
        case "search":
            params |= {"word": rng.choice((*KINDS, *COLOURS))}
        case "add_two":
            params |= {"item": item, "other": other, "goal": {item: 1, other: 1}}
        case "swap":
            params |= {"item": item, "other": other, "goal": {third: 1, other: 1}}
        case "buy":
            params |= {"item": item, "person": rng.choice(PEOPLE), "goal": {item: 1}}
    return params


def start(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "items": [dict(item) for item in params["items"]],
        "cart": {name: 1 for name in params["cart"]},
        "page": "",
        "query": "",
        "orders": [],
    }


def view(state: dict[str, Any], path: str, query: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    """Return template and values of the page at `path`; None where there is no such page."""
    items = [_item(entry) for entry in state["items"]]
    by_slug = {item["slug"]: item for item in items}
    page: tuple[str, dict[str, Any]] | None = None
    match path.split("/"):
        case [""]:
            page = "classic/list.html", {"items": items, "note": ""}
        case ["search"]:
            state["query"] = query.get("q", "").strip()
            found = [item for item in items if set(state["query"].lower().split()) <= set(item["name"].split())]
            note = f"{len(found)} found" if found else f"Nothing for: {state['query']}"
            page = "classic/list.html", {"items": found[:3], "note": note}
        case ["item", slug] if slug in by_slug:
            page = "classic/item.html", {"item": by_slug[slug]}
        case ["cart"]:
            counts = [item | {"count": state["cart"][item["name"]]} for item in items if item["name"] in state["cart"]]
            page = "classic/cart.html", {"items": counts}
        case ["checkout"] if state["cart"]:
            total = sum(item["price"] * state["cart"].get(item["name"], 0) for item in items)
            page = "classic/checkout.html", {"total": total}
        case ["done"] if state["orders"]:
            page = "classic/done.html", {"person": state["orders"][-1]["name"]}
    if page is None:
        return None
    state["page"] = path
    shown_query = state["query"] if path == "search" else ""
    return page[0], page[1] | {"count": sum(state["cart"].values()), "query": shown_query}


def act(state: dict[str, Any], path: str, form: Mapping[str, str]) -> str | None:
    """Handle a posted form and return the page to show next; None where there is no such form."""
    names = {item["slug"]: item["name"] for item in map(_item, state["items"])}
    name = names.get(form.get("item", ""))
    cart = state["cart"]
    match path:
        case "add" if name:
            cart[name] = min(cart.get(name, 0) + 1, 9)
            return ""
        case "remove" if name:
            cart.pop(name, None)
            return "cart"
        case "order":
            person = form.get("name", "").strip()
            if not cart or not person:
                return "checkout"
            state["orders"].append({"name": person, "items": dict(cart)})
            cart.clear()
            return "done"
    return None


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert on the page that is shown; None where nothing is left to do."""
    params, page, cart = task.params, state["page"], state["cart"]
    if task.template == "search":
        if state["query"].lower() == params["word"]:
            return None
        return _fill(state, rng, "search", params["word"], "search box")
    if task.template == "open":
        return None if page == f"item/{_slug(params['item'])}" else _open(state, rng, params["item"])
    goal = params["goal"]
    if task.template == "buy" and state["orders"]:
        return None
    for name in cart:
        if cart[name] != goal.get(name, 0):
            if page != "cart":
                return say(rng, "I open the cart.", "First I open the cart."), click(state, "cart")
            return say(rng, f"I remove the {name}.", f"I take out the {name}."), click(state, f"remove {name}")
    for name in goal:
        if name not in cart:
            if page == f"item/{_slug(name)}":
                return say(rng, "I add it to the cart.", "I click add to cart."), click(state, "add")
            return _open(state, rng, name)
    if task.template != "buy":
        return None
    if page == "checkout":
        return _fill(state, rng, "name", params["person"], "name field")
    if page == "cart":
        return say(rng, "I go to the checkout.", "I click checkout."), click(state, "checkout")
    return say(rng, "I open the cart.", "Now I open the cart."), click(state, "cart")


def _open(state: Mapping[str, Any], rng: random.Random, name: str) -> tuple[str, Action]:
    if shown(state, f"open {name}"):
        return say(rng, f"I click the {name}.", f"I open the {name}.", f"Here is the {name}."), click(
            state, f"open {name}"
        )
    return say(rng, "I go back to the shop.", "Back to the shop."), click(state, "home")


def _fill(state: Mapping[str, Any], rng: random.Random, name: str, text: str, what: str) -> tuple[str, Action]:
    focused = any(element["name"] == name and element["focused"] for element in state["elements"])
    if not focused:
        return say(rng, f"I click the {what}.", f"First I click the {what}."), click(state, name)
    return say(rng, f"I type {text}.", f"Now I type {text}."), Type(f"{text}\n")


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _item(entry: Mapping[str, Any]) -> dict[str, Any]:
    colour, kind = entry["name"].split(" ")
    return {**entry, "colour": colour, "kind": kind, "slug": _slug(entry["name"])}


def _is_unchanged(params: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Tell whether nothing was put into the cart, taken out of it or ordered."""
    return state["cart"] == {name: 1 for name in params["cart"]} and not state["orders"]


def shop_opened(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 1.0 if the page of the item is open and nothing was changed, else 0.0: a verifier."""
    return float(state["page"] == "item/" + _slug(params["item"]) and _is_unchanged(params, state))


def shop_searched(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 1.0 if the last search was for the word and nothing was changed, else 0.0: a verifier."""
    return float(state["query"].strip().lower() == params["word"] and _is_unchanged(params, state))


def shop_cart(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the share of the cart's changes that were asked for and made, among all asked for or made: a verifier.

    It is 0.0 where something was ordered.
    """
    if len(state["orders"]):
        return 0.0
    return changes.share_of_values({name: 1 for name in params["cart"]}, params["goal"], state["cart"], absent=0)


def shop_ordered(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 1.0 for exactly one order, of the right items for the right person, 0.5 for another person: a verifier.

    It is 0.5 at most where something is left in the cart.
    """
    orders = state["orders"]
    if len(orders) != 1 or orders[0]["items"] != dict(params["goal"]):
        return 0.0
    return 1.0 if orders[0]["name"].strip().lower() == params["person"] and not state["cart"] else 0.5

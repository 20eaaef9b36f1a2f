"""Navigate as the expert of the shop: each function returns the next move, or None at the end."""

from __future__ import annotations

from flywheel.envs.suites.screen import Move, Screen


def open_shop_page(screen: Screen, page: str, *elements: str) -> Move | None:
    """Go to a page by the first of these elements that the screen has, else to the start page."""
    if screen.page == page:
        return None
    for element in elements:
        if screen.has(element):
            return screen.click(element, "I open this page.", "I go there.", "I click it.")
    return screen.click("home", "I go to the start.", "Back to the shop.")


def open_cart(screen: Screen) -> Move | None:
    return open_shop_page(screen, "cart", "cart")


def open_order(screen: Screen, key: str) -> Move | None:
    """Go to the page of an order."""
    if screen.page == f"orders/{key}":
        return None
    return open_shop_page(screen, "orders", "menu orders") or screen.click(f"order {key}", "I open this order.")


def open_account(screen: Screen) -> Move | None:
    return open_shop_page(screen, "account", "account", "foot account")


def open_wishlist(screen: Screen) -> Move | None:
    return open_shop_page(screen, "wishlist", "wishlist", "foot wishlist")


def open_product(screen: Screen, key: str) -> Move | None:
    """Go to the page of a product: click it where it is shown, else search for its name."""
    if screen.page == f"product/{key}":
        return None
    if screen.has(f"product {key}"):
        return screen.click(f"product {key}", "I open it.", "Here it is.", "This is the one.")
    name = screen.records["_products"][key]["name"]
    return screen.fill({"search": name}, "", {"search": ("I type its name.", "I search for it.")})


def add_to_cart(screen: Screen, key: str, colour: str, count: int = 1) -> Move | None:
    """Put `count` of a product into the cart; None where this product in this colour is in it."""
    if f"{key}-{colour}" in screen.records["cart"]:
        return None
    if (move := open_product(screen, key)) is not None:
        return move
    if screen.has(f"colour {colour}") and not screen.checked(f"colour {colour}"):
        return screen.click(f"colour {colour}", "I choose the color.", "This color.")
    if count > 1:
        return screen.fill({"count": str(count)}, "add", {"count": ("I type the number.",)})
    return screen.click("add", "I add it to the cart.", "Into the cart.")


def open_department(screen: Screen, department: str, **asked: str) -> Move | None:
    """Go to the list of a department and set its filters. asked: values of the query."""
    if screen.page != f"list/{department}":
        return screen.click(f"menu list/{department}", "I open the department.", "I go to this department.")
    if all(screen.query.get(name, "") == value for name, value in asked.items()):
        return None
    said = {name: ("I open the list and choose.", "I choose from the list.") for name in asked}
    return screen.fill(asked, "apply", said | {"apply": ("I click apply.",)})


def check_out(screen: Screen, address: dict[str, str], delivery: str) -> Move:
    """Go from the cart through the checkout. address: values by field. delivery: key of DELIVERIES."""
    if screen.page == "checkout/check":
        return screen.click("order", "All is right, I order.", "I click order now.")
    if screen.page == "checkout/delivery":
        if not screen.checked(f"delivery {delivery}"):
            return screen.click(f"delivery {delivery}", "I choose how it comes.", "This delivery.")
        return screen.click("continue", "I go on.", "I click continue.")
    if screen.page == "checkout":
        said = {name: (f"I type the {name}.",) for name in ("name", "street", "city")}
        return screen.fill(address, "continue", {**said, "continue": ("I go on.", "I click continue.")})
    return open_cart(screen) or screen.click("checkout", "I go to the checkout.", "Now I check out.")

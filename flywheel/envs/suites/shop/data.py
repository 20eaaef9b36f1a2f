"""Generate the data of the shop anew for each session: its products, and the customer's earlier orders."""

from __future__ import annotations

import random
from typing import Any

# department -> (title, kinds); each kind is also an icon of look.json
DEPARTMENTS = {
    "home": ("Home", ("mug", "lamp", "clock")),
    "clothes": ("Clothes", ("hat", "shirt", "shoe")),
    "travel": ("Travel", ("bag", "camera")),
    "leisure": ("Leisure", ("ball", "book")),
}
KINDS = {kind: department for department, (_, kinds) in DEPARTMENTS.items() for kind in kinds}
BRANDS = ("Alder", "Birchwood", "Corvo", "Dunmore", "Elmstone", "Fjord")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "gray", "pink")
DELIVERIES = {"standard": ("Standard, 3 to 5 days", 4), "express": ("Express, next day", 12), "pickup": ("Pick up", 0)}
TOPICS = {"order": "My order", "return": "A return", "product": "A product", "other": "Something else"}
SORTS = {
    "best": "Best match",
    "price": "Price: low to high",
    "-price": "Price: high to low",
    "-rating": "Rating",
    "name": "Name",
}
COUPONS = {"SAVE10": 10, "WINTER20": 20, "HELLO5": 5, "FRIEND15": 15}  # per cent
_KINDS_ZH = {
    "mug": "马克杯",
    "lamp": "台灯",
    "clock": "时钟",
    "hat": "帽子",
    "shirt": "衬衫",
    "shoe": "运动鞋",
    "bag": "背包",
    "camera": "相机",
    "ball": "皮球",
    "book": "故事书",
}
_BRANDS_ZH = ("远山", "青禾", "南风", "星野", "北辰", "木棉")
_MODELS = (
    "Classic",
    "Nordic",
    "Pocket",
    "Studio",
    "Garden",
    "Harbor",
    "Summit",
    "Comet",
    "Velvet",
    "Rustic",
    "Urban",
    "Coral",
    "Atlas",
    "Pearl",
    "Meadow",
    "Falcon",
    "Orbit",
    "Juniper",
    "Marble",
    "Breeze",
)
_MODELS_ZH = (
    "经典",
    "北欧",
    "口袋",
    "工坊",
    "花园",
    "海港",
    "山峰",
    "彗星",
    "丝绒",
    "乡村",
    "都市",
    "珊瑚",
    "航海",
    "珍珠",
    "草原",
    "猎鹰",
    "轨道",
    "青松",
    "云石",
    "微风",
)
_STREETS = ("Mill Lane", "High Street", "Park Road", "Station Road", "Church Street", "Green Lane", "River Walk")
_STREETS_ZH = ("人民路", "解放路", "建设路", "中山路", "和平路", "文化路", "滨江路")
_CITIES = ("Bath", "Leeds", "York", "Oxford", "Dover", "Perth", "Truro", "Ripon")
_CITIES_ZH = ("杭州", "成都", "南京", "武汉", "西安", "青岛", "厦门", "长沙")
_NAMES = ("Anna Hill", "Ben Wood", "Clara Stone", "David Lake", "Emma Field", "Frank Marsh", "Grace Ford", "Henry Park")
_NAMES_ZH = ("王芳", "李伟", "张敏", "刘洋", "陈静", "杨帆", "赵磊", "黄丽")
_A_KIND = 5  # products of a kind


def make_records(rng: random.Random, language: str) -> dict[str, Any]:
    """Draw the records of a session: `_products` (never changed), cart, wishlist, orders, addresses and others."""
    products = _products(rng, language)
    keys = rng.sample(list(products), 14)
    cart = [_item(rng, products, key) for key in keys[:3]]
    names = rng.sample(_NAMES_ZH if language == "zh" else _NAMES, 3)
    orders = {}
    for number in range(4):
        items = [_item(rng, products, key) for key in keys[3 + 2 * number : 5 + 2 * number]]
        orders[f"o{1041 + 7 * number}"] = {
            "items": {item_key(one): one for one in items},
            "address": address(rng, names[0], language),
            "delivery": "standard",
            "state": rng.choice(("Delivered", "Sent")) if number < 2 else "In preparation",
            "total": sum(products[one["product"]]["price"] * one["count"] for one in items) + 4,
            "day": f"2025-12-{10 + 5 * number}",
        }
    return {
        "_products": products,
        "cart": {item_key(one): one for one in cart},
        "wishlist": {key: True for key in keys[11:14]},
        "coupon": "",
        "orders": orders,
        "addresses": {f"a{n}": address(rng, name, language) | {"default": n == 0} for n, name in enumerate(names)},
        "reviews": {},
        "messages": {},
        "letters": {"offers": rng.random() < 0.5, "news": rng.random() < 0.5, "tips": rng.random() < 0.5},
    }


def item_key(item: dict[str, Any]) -> str:
    return f"{item['product']}-{item['colour']}"


def address(rng: random.Random, name: str, language: str) -> dict[str, str]:
    number = rng.randint(1, 99)
    if language == "zh":
        return {
            "name": name,
            "street": f"{rng.choice(_STREETS_ZH)}{number}号",
            "city": rng.choice(_CITIES_ZH),
            "postcode": str(rng.randint(100_000, 799_999)),
        }
    return {
        "name": name,
        "street": f"{number} {rng.choice(_STREETS)}",
        "city": rng.choice(_CITIES),
        "postcode": str(rng.randint(10_000, 99_999)),
    }


def somebody(rng: random.Random, language: str) -> str:
    return rng.choice(_NAMES_ZH if language == "zh" else _NAMES)


def kind(name: str, language: str) -> str:
    """Return the name of a kind of products in a language."""
    return _KINDS_ZH[name] if language == "zh" else name


def brands(language: str) -> tuple[str, ...]:
    return _BRANDS_ZH if language == "zh" else BRANDS


def by_name(product: dict[str, Any]) -> bytes:
    """Return the sort key of a product's name: GB 18030 has common Chinese characters in the order of their pinyin."""
    return product["name"].encode("gb18030")


def _item(rng: random.Random, products: dict[str, Any], key: str) -> dict[str, Any]:
    return {"product": key, "colour": rng.choice(products[key]["colours"]), "count": rng.randint(1, 3)}


def _products(rng: random.Random, language: str) -> dict[str, dict[str, Any]]:
    """Draw the products. All prices and ratings differ, so that the cheapest and the best of any set are unique."""
    count = _A_KIND * len(KINDS)
    prices = rng.sample(range(5, 150), count)
    stars = rng.sample(range(250, 500), count)
    products: dict[str, dict[str, Any]] = {}
    for name, department in KINDS.items():
        for model in rng.sample(_MODELS_ZH if language == "zh" else _MODELS, _A_KIND):
            number = len(products)
            products[f"p{number + 1}"] = {
                "name": f"{model}{'' if language == 'zh' else ' '}{kind(name, language)}",
                "kind": name,
                "department": department,
                "brand": rng.choice(brands(language)),
                "price": prices[number],
                "rating": stars[number] / 100,
                "votes": rng.randint(3, 400),
                "stock": rng.choice((0, 2, 9, 25, 60)) if number % 7 == 0 else rng.randint(5, 60),
                "colours": rng.sample(COLOURS, rng.randint(2, 4)),
                "weight": rng.randint(1, 40) * 50,
            }
    return products

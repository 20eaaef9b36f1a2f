"""Draw what several task templates of the shop need, and put what they ask for into the cart."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.shop import data
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

Records = dict[str, Any]


def stocked(one: dict[str, Any]) -> bool:
    return one["stock"] >= 5


def draw_product(d: Draw) -> Params:
    key, one = d.pick("_products")
    return {"key": key, "name": one["name"]}


def draw_department(d: Draw) -> Params:
    key = d.rng.choice(list(data.DEPARTMENTS))
    return {"department": key, "title": d.t(data.DEPARTMENTS[key][0])}


def best(records: Records, department: str, sort: str) -> tuple[str, dict[str, Any]]:
    mine = [item for item in records["_products"].items() if item[1]["department"] == department]
    mine.sort(key=lambda item: item[1][sort.lstrip("-")], reverse=sort.startswith("-"))
    return mine[0]


def draw_best(sort: str):
    def draw(d: Draw) -> Params:
        drawn = draw_department(d)
        key, one = best(d.records, drawn["department"], sort)
        if not stocked(one):
            raise Redraw
        colour = one["colours"][0]
        return {**drawn, "key": key, "colour": colour, "shade": d.t(colour)}

    return draw


def put(records: Records, key: str, colour: str, count: int) -> None:
    records["cart"][f"{key}-{colour}"] = {"product": key, "colour": colour, "count": count}

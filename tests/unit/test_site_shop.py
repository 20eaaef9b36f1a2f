"""The Chinese shop: its data, the order of its names, its postcodes, and that the English one is untouched by it."""

from __future__ import annotations

import re

import pytest

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.shop import data

CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture
def chinese():
    return catalogue.get_world("shop_zh").play


def test_names_sort_by_their_pinyin():
    names = ["微风台灯", "草原背包", "都市相机", "珊瑚帽子", "北欧时钟", "海港衬衫", "经典皮球"]
    found = sorted(({"name": name} for name in names), key=data.by_name)
    initials = "北草都海经珊微"  # bei, cao, du, hai, jing, shan, wei
    assert "".join(one["name"][0] for one in found) == initials
    assert sorted(({"name": name} for name in ("Urban hat", "Atlas mug")), key=data.by_name)[0]["name"] == "Atlas mug"


def test_everything_that_is_made_up_is_chinese(chinese):
    records = chinese.records({"seed": 5})
    for one in records["_products"].values():
        assert CHINESE.match(one["name"])
        assert CHINESE.match(one["brand"])
        assert one["name"].endswith(data.kind(one["kind"], "zh"))
    for one in records["addresses"].values():
        assert all(CHINESE.match(one[name]) for name in ("name", "street", "city"))
        assert re.fullmatch("[1-7][0-9]{5}", one["postcode"])


@pytest.mark.parametrize(("world", "right", "wrong"), [("shop_zh", "310000", "31000"), ("shop", "31000", "310000")])
def test_postcodes_are_as_long_as_in_the_country(world, right, wrong):
    site = catalogue.get_world(world).play
    state = site.start({"seed": 5})
    form = {"name": "李伟", "street": "人民路1号", "city": "杭州", "_at": "checkout"}
    assert site.act(state, "checkout", {**form, "postcode": wrong}) == "checkout"
    assert set(state["refused"]["errors"]) == {"postcode"}
    assert site.act(state, "checkout", {**form, "postcode": right}) == "checkout/delivery"


def test_prices_and_lists_speak_the_language(chinese):
    state = chinese.start({"seed": 5})
    values = chinese.view(state, "search", {"q": "台灯", "sort": "name"})[1]
    names = [one["name"] for _, one in values["rows"]]
    assert len(names) == 5
    assert names == sorted(names, key=lambda name: name.encode("gb18030"))
    assert values["money"](12) == "¥12"
    assert not chinese.t.missing
    english = catalogue.get_world("shop").play
    assert english.view(english.start({"seed": 5}), "", {})[1]["money"](12) == "$12"


def test_instructions_are_chinese_and_say_as_much(chinese):
    for name, task in chinese.tasks.items():
        assert CHINESE.search(task.zh), name
        assert set(re.findall(r"{(\w+)", task.zh)) == set(re.findall(r"{(\w+)", task.text)), name

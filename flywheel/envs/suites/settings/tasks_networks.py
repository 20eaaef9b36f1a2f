"""Define the settings' task templates on networks, nearby devices, the device's name, and the search.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.settings import nav
from flywheel.envs.suites.settings.data import SWITCHES, word
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- networks ----------------------------------------------------------------------------------------------------------
def _ready(d: Draw) -> None:
    """Raise Redraw in airplane mode, in which no networks are listed."""
    if d.records["values"]["airplane"]:
        raise Redraw


def _draw_connect(known: bool):
    def draw(d: Draw) -> Params:
        _ready(d)
        fits = (lambda n: n["saved"] and not n["connected"]) if known else (lambda n: n["secure"] and not n["saved"])
        key, one = d.pick("networks", fits)
        return {"key": key, "name": one["name"]} | ({} if known else {"password": word(d.rng)})

    return draw


def _connect(records: dict, params: Params) -> None:
    for one in records["networks"].values():
        one["connected"] = False
    one = records["networks"][params["key"]]
    one |= {"connected": True, "saved": True}
    if "password" in params:
        one["password"] = params["password"]


def _steps_connect(screen: Screen, params: Params) -> Move | None:
    if (move := nav.open_entry(screen, "network", "network", params["key"])) is not None:
        return move
    fields = {"password": params["password"]} if "password" in params else {}
    said = {"password": ("I type the password.",), "connect": ("I connect.", "Now I click connect.")}
    return screen.fill(fields, "connect", said)


def _draw_saved(d: Draw) -> Params:
    _ready(d)
    key, one = d.pick("networks", lambda n: n["saved"])
    return {"key": key, "name": one["name"]}


def _forget(records: dict, params: Params) -> None:
    records["networks"][params["key"]] |= {"saved": False, "connected": False}


def _steps_forget(screen: Screen, params: Params) -> Move | None:
    return nav.open_entry(screen, "network", "network", params["key"]) or click_and_confirm(
        screen, "forget", "I forget it."
    )


def _draw_connected(d: Draw) -> Params:
    _ready(d)
    key, one = d.pick("networks", lambda n: n["connected"])
    return {"key": key, "name": one["name"]}


def _disconnect(records: dict, params: Params) -> None:
    records["networks"][params["key"]]["connected"] = False


def _steps_disconnect(screen: Screen, params: Params) -> Move | None:
    return nav.open_entry(screen, "network", "network", params["key"]) or screen.click(
        "disconnect", "I click disconnect."
    )


def _steps_address(screen: Screen, params: Params) -> Move | None:
    move = nav.open_entry(screen, "network", "network", params["key"])
    return move or screen.answer(screen.records["networks"][params["key"]]["_address"])


# -- devices nearby ----------------------------------------------------------------------------------------------------
def _draw_pair(d: Draw) -> Params:
    key, one = d.pick("devices", lambda e: not e["paired"])
    return {"key": key, "name": one["name"], "code": f"{d.rng.randint(0, 9999):04d}"}


def _pair(records: dict, params: Params) -> None:
    records["devices"][params["key"]] |= {"paired": True, "code": params["code"]}


def _steps_pair(screen: Screen, params: Params) -> Move | None:
    move = nav.open_entry(screen, "bluetooth", "device", params["key"])
    return move or screen.fill({"code": params["code"]}, "pair", {"code": ("I type the code.",)})


def _draw_paired(d: Draw) -> Params:
    key, one = d.pick("devices", lambda e: e["paired"])
    return {"key": key, "name": one["name"]}


def _unpair(records: dict, params: Params) -> None:
    records["devices"][params["key"]]["paired"] = False


def _steps_unpair(screen: Screen, params: Params) -> Move | None:
    return nav.open_entry(screen, "bluetooth", "device", params["key"]) or screen.click(
        "unpair", "I take it off the list."
    )


# -- this device's name, the search ------------------------------------------------------------------------------------
def _draw_device(d: Draw) -> Params:
    return {"name": word(d.rng)}


def _rename(records: dict, params: Params) -> None:
    records["values"]["device"] = params["name"]


def _steps_rename(screen: Screen, params: Params) -> Move | None:
    return nav.open_section(screen, "about") or screen.fill({"device": params["name"]}, "rename")


def _draw_search(d: Draw) -> Params:
    key = d.rng.choice([key for key, (section, title, _) in SWITCHES.items() if section != key])
    return {"word": d.t(SWITCHES[key][1])}


def _steps_search(screen: Screen, params: Params) -> Move | None:
    return screen.fill({"search": params["word"]}, "", {"search": ("I type the word.",)})


TASKS = (
    SiteTask(
        "reconnect",
        "Connect to the saved network “{name}”.",
        {3: 8},
        _draw_connect(True),
        _steps_connect,
        _connect,
        zh="连接已保存的网络“{name}”。",
    ),
    SiteTask(
        "connect",
        "Connect to the network “{name}” with the password {password}.",
        {4: 10},
        _draw_connect(False),
        _steps_connect,
        _connect,
        zh="用密码{password}连接网络“{name}”。",
    ),
    SiteTask(
        "disconnect",
        "Disconnect from the network “{name}”.",
        {3: 8},
        _draw_connected,
        _steps_disconnect,
        _disconnect,
        zh="断开网络“{name}”。",
    ),
    SiteTask(
        "forget", "Forget the network “{name}”.", {4: 8}, _draw_saved, _steps_forget, _forget, zh="忘记网络“{name}”。"
    ),
    SiteTask(
        "address",
        "What is the address of this device in the network “{name}”? Answer with it.",
        {3: 8},
        _draw_connected,
        _steps_address,
        answer=lambda records, p: records["networks"][p["key"]]["_address"],
        zh="本设备在网络“{name}”中的地址是什么？请回答这个地址。",
    ),
    SiteTask(
        "pair",
        "Pair with the device “{name}”; its code is {code}.",
        {4: 9},
        _draw_pair,
        _steps_pair,
        _pair,
        zh="与设备“{name}”配对，配对码是{code}。",
    ),
    SiteTask(
        "unpair",
        "Unpair the device “{name}”.",
        {3: 8},
        _draw_paired,
        _steps_unpair,
        _unpair,
        zh="取消与设备“{name}”的配对。",
    ),
    SiteTask(
        "rename", "Name this device {name}.", {4: 9}, _draw_device, _steps_rename, _rename, zh="把本设备命名为{name}。"
    ),
    SiteTask(
        "search",
        "Search the settings for “{word}”.",
        {3: 5},
        _draw_search,
        _steps_search,
        page=lambda p: ("search", {"q": p["word"]}),
        zh="在设置中搜索“{word}”。",
    ),
)

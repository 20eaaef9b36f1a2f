"""Define the settings' task templates that change single values: switches, choices, levels, hours.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from flywheel.envs.suites.screen import Move, Screen, take_first_move
from flywheel.envs.suites.settings import nav
from flywheel.envs.suites.settings.data import CHOICES, LEVELS, SWITCHES
from flywheel.envs.suites.site_tasks import Draw, Params, SiteTask

_PLAIN = [key for key, (section, _, _) in SWITCHES.items() if section in ("display", "sound", "privacy", "language")]


# -- switches ----------------------------------------------------------------------------------------------------------
def _draw_switch(on: bool):
    def draw(d: Draw) -> Params:
        key = d.rng.choice([key for key in SWITCHES if d.records["values"][key] != on])
        return {"key": key, "title": d.t(SWITCHES[key][1])}

    return draw


def _switch_one(on: bool):
    def change(records: dict, params: Params) -> None:
        records["values"][params["key"]] = on

    return change


def _draw_switches(d: Draw) -> Params:
    keys = d.rng.sample(_PLAIN, 3)
    wanted = {key: not d.records["values"][key] for key in keys}
    words = [d.t("{title} on" if on else "{title} off", title=d.t(SWITCHES[key][1])) for key, on in wanted.items()]
    return {"wanted": wanted, "all": d.t("{a}, {b} and {c}", a=words[0], b=words[1], c=words[2])}


def _set(records: dict, params: Params) -> None:
    records["values"] |= params["wanted"]


def _steps_switches(screen: Screen, params: Params) -> Move | None:
    return take_first_move(*(lambda k=key, v=on: nav.set_switch(screen, k, v) for key, on in params["wanted"].items()))


# -- choices -----------------------------------------------------------------------------------------------------------
def _draw_choice(d: Draw) -> Params:
    key = d.rng.choice(list(CHOICES))
    section, title, options = CHOICES[key]
    value = d.rng.choice(options)
    return {"wanted": {key: value}, "section": section, "title": d.t(title), "value": d.t(value)}


def _draw_language(d: Draw) -> Params:
    keys = d.rng.sample(("tongue", "zone", "format", "week"), 2 if d.level < 5 else 3)
    wanted = {key: d.rng.choice([one for one in CHOICES[key][2] if one != d.records["values"][key]]) for key in keys}
    said = [d.t("{title} to {value}", title=d.t(CHOICES[key][1]), value=d.t(value)) for key, value in wanted.items()]
    if len(said) == 2:
        words = d.t("{a} and {b}", a=said[0], b=said[1])
    else:
        words = d.t("{a}, {b} and {c}", a=said[0], b=said[1], c=said[2])
    return {"wanted": wanted, "section": "language", "all": words}


def _steps_choice(screen: Screen, params: Params) -> Move | None:
    return nav.choose_options(screen, params["section"], params["wanted"])


# -- levels and hours --------------------------------------------------------------------------------------------------
def _draw_level(d: Draw) -> Params:
    key = d.rng.choice(list(LEVELS))
    now, far = d.records["values"][key], {3: 1, 4: 3, 5: 5}[d.level]
    value = now + 10 * far if now + 10 * far <= 100 else now - 10 * far
    return {"key": key, "value": value, "title": d.t(LEVELS[key][1])}


def _level(records: dict, params: Params) -> None:
    records["values"][params["key"]] = params["value"]


def _draw_hours(d: Draw) -> Params:
    return {
        "night_from": f"{d.rng.randint(18, 23)}:{d.rng.choice(('00', '15', '45'))}",
        "night_to": f"0{d.rng.randint(4, 9)}:{d.rng.choice(('00', '30'))}",
    }


def _hours(records: dict, params: Params) -> None:
    records["values"] |= {"night_from": params["night_from"], "night_to": params["night_to"]}


def _steps_hours(screen: Screen, params: Params) -> Move | None:
    hours = {name: params[name] for name in ("night_from", "night_to")}
    said = {"night_from": ("I type the start.",), "night_to": ("I type the end.",)}
    return nav.open_section(screen, "display") or screen.fill(hours, "set hours", said)


def _draw_evening(d: Draw) -> Params:
    value = 10 * d.rng.randint(1, 4)
    return {"wanted": {"night": True, "quiet": True, "brightness": value, "theme": "Dark"}, "value": value}


def _steps_evening(screen: Screen, params: Params) -> Move | None:
    wanted = params["wanted"]
    return take_first_move(
        lambda: nav.set_switch(screen, "night", True),
        lambda: nav.set_level(screen, "brightness", wanted["brightness"]),
        lambda: nav.choose_options(screen, "display", {"theme": "Dark"}),
        lambda: nav.set_switch(screen, "quiet", True),
    )


TASKS = (
    SiteTask(
        "switch_on",
        "Turn on “{title}”.",
        {3: 8},
        _draw_switch(True),
        lambda screen, p: nav.set_switch(screen, p["key"], True),
        _switch_one(True),
        zh="打开“{title}”。",
    ),
    SiteTask(
        "switch_off",
        "Turn off “{title}”.",
        {3: 8},
        _draw_switch(False),
        lambda screen, p: nav.set_switch(screen, p["key"], False),
        _switch_one(False),
        zh="关闭“{title}”。",
    ),
    SiteTask(
        "switches",
        "Change these settings: {all}.",
        {5: 18},
        _draw_switches,
        _steps_switches,
        _set,
        zh="更改这些设置：{all}。",
    ),
    SiteTask(
        "choose",
        "Set “{title}” to “{value}”.",
        {4: 10},
        _draw_choice,
        _steps_choice,
        _set,
        zh="把“{title}”设为“{value}”。",
    ),
    SiteTask("region", "Set {all}.", {4: 14, 5: 18}, _draw_language, _steps_choice, _set, zh="设置：{all}。"),
    SiteTask(
        "level",
        "Set “{title}” to {value}.",
        {3: 8, 4: 12, 5: 16},
        _draw_level,
        lambda screen, p: nav.set_level(screen, p["key"], p["value"]),
        _level,
        zh="把“{title}”设为{value}。",
    ),
    SiteTask(
        "night_hours",
        "Let the night light run from {night_from} until {night_to}.",
        {5: 17},
        _draw_hours,
        _steps_hours,
        _hours,
        zh="让夜间模式从{night_from}开始，到{night_to}结束。",
    ),
    SiteTask(
        "evening",
        "Make it evening: night light on, brightness {value}, theme Dark, do not disturb on.",
        {5: 30},
        _draw_evening,
        _steps_evening,
        _set,
        zh="切换到晚间：打开夜间模式，亮度{value}，主题设为深色，打开勿扰。",
    ),
)

"""Define the settings' task templates on apps, users and the account.

Levels 1 and 2 are tasks of the small edition (`classic.py`).
"""

from __future__ import annotations

from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.settings import nav
from flywheel.envs.suites.settings.data import PERMISSIONS, ROLES, person, word
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- apps ------------------------------------------------------------------------------------------------------------
def _draw_permission(d: Draw) -> Params:
    permission = d.rng.choice(list(PERMISSIONS))
    key, one = d.pick("apps", lambda a: a[permission])
    return {"key": key, "name": one["name"], "permission": permission, "what": d.t(PERMISSIONS[permission])}


def _deny(records: dict, params: Params) -> None:
    records["apps"][params["key"]][params["permission"]] = False


def _steps_deny(screen: Screen, params: Params) -> Move | None:
    if not screen.records["apps"][params["key"]][params["permission"]]:
        return None
    move = nav.open_app(screen, params["key"])
    return move or screen.click(f"allow {params['permission']}", "I turn it off.", "I click the switch.")


def _draw_app(d: Draw) -> Params:
    key, one = d.pick("apps")
    return {"key": key, "name": one["name"]}


def _uninstall(records: dict, params: Params) -> None:
    del records["apps"][params["key"]]


def _steps_uninstall(screen: Screen, params: Params) -> Move | None:
    if params["key"] not in screen.records["apps"]:
        return None
    return nav.open_app(screen, params["key"]) or click_and_confirm(screen, "uninstall", "I click to take it off.")


def _clear(records: dict, params: Params) -> None:
    records["apps"][params["key"]]["cache"] = 0


def _steps_clear(screen: Screen, params: Params) -> Move | None:
    return nav.open_app(screen, params["key"]) or screen.click("clear cache", "I clear it.", "I make it empty.")


def _most(records: dict, column: str) -> str:
    """Return the key of the app with the highest value in `column`. Raises Redraw where two have it."""
    apps = sorted(records["apps"].items(), key=lambda item: item[1][column])
    if apps[-1][1][column] == apps[-2][1][column]:
        raise Redraw
    return apps[-1][0]


def _draw_largest(column: str):
    return lambda d: {"key": _most(d.records, column), "column": column}


def _sorted(screen: Screen, params: Params) -> Move | None:
    """Go to the list of apps and sort it by the column, the largest first."""
    column = params["column"]
    if (move := nav.open_section(screen, "apps")) is not None:
        return move
    if screen.query.get("sort") == f"-{column}":
        return None
    return screen.click(f"sort {column}", "I sort the list.", "I click the head of the column.")


def _steps_largest(screen: Screen, params: Params) -> Move | None:
    move = _sorted(screen, params)
    return move or screen.answer(screen.records["apps"][params["key"]]["name"], "The first one is the answer.")


def _steps_clear_largest(screen: Screen, params: Params) -> Move | None:
    if screen.page == f"apps/{params['key']}":
        return screen.click("clear cache", "I clear it.", "I make it empty.")
    return _sorted(screen, params) or screen.click(f"app {params['key']}", "I open the first one.")


def _steps_size(screen: Screen, params: Params) -> Move | None:
    move = nav.open_app(screen, params["key"])
    return move or screen.answer(f"{screen.records['apps'][params['key']]['size']} MB")


def _draw_free(d: Draw) -> Params:
    key, one = d.pick("apps")
    other, two = d.pick("apps", lambda a: a["name"] != one["name"])
    return {"keys": [key, other], "name": one["name"], "other": two["name"]}


def _steps_free(screen: Screen, params: Params) -> Move | None:
    left = [key for key in params["keys"] if key in screen.records["apps"]]
    return _steps_uninstall(screen, {"key": left[0]}) if left else None


# -- users and the account -------------------------------------------------------------------------------------------
def _draw_new_user(d: Draw) -> Params:
    taken = {one["name"] for one in d.records["users"].values()}
    role = d.rng.choice(ROLES)
    return {"name": person(d.rng, d.t.language, taken), "role": role, "what": d.t(role)}


def _add_user(records: dict, params: Params) -> None:
    records["users"]["new"] = {"name": params["name"], "role": params["role"]}


def _steps_add_user(screen: Screen, params: Params) -> Move | None:
    if screen.page == "users/new":
        said = {"name": ("I type the name.",)}
        return _roled(screen, params["role"]) or screen.fill({"name": params["name"]}, "save", said)
    return nav.open_section(screen, "users") or screen.click("add user", "I add a user.", "I click add.")


def _roled(screen: Screen, role: str) -> Move | None:
    return None if screen.checked(f"role {role}") else screen.click(f"role {role}", "I choose the role.")


def _draw_role(d: Draw) -> Params:
    key, one = d.pick("users", lambda u: u["role"] != "Owner")
    role = d.rng.choice([role for role in ROLES if role != one["role"]])
    return {"key": key, "name": one["name"], "role": role, "what": d.t(role)}


def _give_role(records: dict, params: Params) -> None:
    records["users"][params["key"]]["role"] = params["role"]


def _steps_role(screen: Screen, params: Params) -> Move | None:
    move = nav.open_entry(screen, "users", "user", params["key"])
    return move or _roled(screen, params["role"]) or screen.click("save", "I save it.")


def _draw_guest(d: Draw) -> Params:
    key, one = d.pick("users", lambda u: u["role"] != "Owner")
    return {"key": key, "name": one["name"]}


def _remove_user(records: dict, params: Params) -> None:
    del records["users"][params["key"]]


def _steps_remove_user(screen: Screen, params: Params) -> Move | None:
    if params["key"] not in screen.records["users"]:
        return None
    move = nav.open_entry(screen, "users", "user", params["key"])
    return move or click_and_confirm(screen, "remove", "I remove this user.")


def _draw_contact(d: Draw) -> Params:
    if d.level == 4:
        return {"email": f"{word(d.rng)}@example.com"}
    return {"email": f"{word(d.rng)}@example.com", "phone": "555" + str(d.rng.randint(100_000, 999_999))}


def _contact(records: dict, params: Params) -> None:
    records["account"] |= {name: params[name] for name in ("email", "phone") if name in params}


def _steps_contact(screen: Screen, params: Params) -> Move | None:
    wanted = {name: params[name] for name in ("email", "phone") if name in params}
    return nav.open_section(screen, "account") or screen.fill(wanted, "save", {"save": ("I save it.", "Now I save.")})


def _draw_password(d: Draw) -> Params:
    return {"old": d.records["account"]["password"], "new": word(d.rng)}


def _password(records: dict, params: Params) -> None:
    records["account"]["password"] = params["new"]


def _steps_password(screen: Screen, params: Params) -> Move | None:
    if screen.records["account"]["password"] == params["new"]:
        return None
    if screen.page == "account/password":
        return screen.fill({"old": params["old"], "new": params["new"], "again": params["new"]}, "change")
    return nav.open_section(screen, "account") or screen.click("change password", "I change the password.")


TASKS = (
    SiteTask(
        "deny",
        "Take the permission “{what}” from the app “{name}”.",
        {4: 11},
        _draw_permission,
        _steps_deny,
        _deny,
        zh="取消应用“{name}”的“{what}”权限。",
    ),
    SiteTask(
        "uninstall",
        "Uninstall the app “{name}”.",
        {4: 12},
        _draw_app,
        _steps_uninstall,
        _uninstall,
        zh="卸载应用“{name}”。",
    ),
    SiteTask(
        "uninstall_two",
        "Uninstall the apps “{name}” and “{other}”.",
        {5: 20},
        _draw_free,
        _steps_free,
        lambda records, p: [records["apps"].pop(key) for key in p["keys"]] and None,
        zh="卸载应用“{name}”和“{other}”。",
    ),
    SiteTask(
        "clear_cache",
        "Clear the cache of the app “{name}”.",
        {4: 11},
        _draw_app,
        _steps_clear,
        _clear,
        zh="清除应用“{name}”的缓存。",
    ),
    SiteTask(
        "clear_largest",
        "Clear the cache of the app whose cache is the largest.",
        {5: 10},
        _draw_largest("cache"),
        _steps_clear_largest,
        _clear,
        zh="清除缓存最大的应用的缓存。",
    ),
    SiteTask(
        "app_size",
        "How many MB is the app “{name}” large? Answer with the number.",
        {4: 10},
        _draw_app,
        _steps_size,
        answer=lambda records, p: records["apps"][p["key"]]["size"],
        zh="应用“{name}”的大小是多少MB？请回答数字。",
    ),
    SiteTask(
        "largest_app",
        "Which app is the largest? Answer with its name.",
        {4: 8},
        _draw_largest("size"),
        _steps_largest,
        answer=lambda records, p: records["apps"][p["key"]]["name"],
        zh="哪个应用最大？请回答它的名称。",
    ),
    SiteTask(
        "add_user",
        "Add the user “{name}” with the role “{what}”.",
        {4: 11},
        _draw_new_user,
        _steps_add_user,
        _add_user,
        zh="添加用户“{name}”，角色为“{what}”。",
    ),
    SiteTask(
        "role",
        "Give the user “{name}” the role “{what}”.",
        {4: 9},
        _draw_role,
        _steps_role,
        _give_role,
        zh="把用户“{name}”的角色改为“{what}”。",
    ),
    SiteTask(
        "remove_user",
        "Remove the user “{name}”.",
        {4: 9},
        _draw_guest,
        _steps_remove_user,
        _remove_user,
        zh="移除用户“{name}”。",
    ),
    SiteTask(
        "email",
        "Change the e-mail address of the account to {email}.",
        {4: 10},
        _draw_contact,
        _steps_contact,
        _contact,
        zh="把账户的邮箱改为{email}。",
    ),
    SiteTask(
        "contact",
        "Change the e-mail of the account to {email} and its phone number to {phone}.",
        {5: 14},
        _draw_contact,
        _steps_contact,
        _contact,
        zh="把账户的邮箱改为{email}，电话改为{phone}。",
    ),
    SiteTask(
        "password",
        "Change the password of the account from {old} to {new}.",
        {5: 15},
        _draw_password,
        _steps_password,
        _password,
        zh="把账户的密码从{old}改为{new}。",
    ),
)

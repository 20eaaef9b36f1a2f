"""Define the mailbox's task templates on labels, rules and settings."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.data import ACTIONS, COLOURS
from flywheel.envs.suites.mail.draws import Records
from flywheel.envs.suites.mail.keeping import apply_rule, drop_label
from flywheel.envs.suites.mail.nav import SAVE
from flywheel.envs.suites.mail.pages import messages_of
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, SiteTask


# -- labels ------------------------------------------------------------------------------------------------------------
def _draw_new_label(d: Draw) -> Params:
    colour = d.rng.choice(COLOURS[1:])
    return {"name": draws.new_label(d), "colour": colour, "what": d.t(colour)}


def _add_label(records: Records, p: Params) -> None:
    records["labels"]["new"] = {"name": p["name"], "colour": p["colour"]}


def _steps_add_label(screen: Screen, p: Params) -> Move | None:
    if screen.page == "labels/new":
        said = {"name": ("I type the name.",), "colour": ("I choose the color.",)}
        return screen.fill({"name": p["name"], "colour": p["colour"]}, "save", said | SAVE)
    return nav.open_mail_page(screen, "labels") or screen.click("add label", "A new label.", "I add a label.")


def _draw_label(d: Draw) -> Params:
    key, name = draws.label(d)
    return {"key": key, "name": name}


def _draw_rename(d: Draw) -> Params:
    return _draw_label(d) | {"new": draws.new_label(d)}


def _rename(records: Records, p: Params) -> None:
    records["labels"][p["key"]]["name"] = p["new"]


def _label(screen: Screen, key: str) -> Move | None:
    if screen.page == f"labels/{key}":
        return None
    return nav.open_mail_page(screen, "labels") or screen.click(f"edit label {key}", "I open this label.")


def _steps_rename(screen: Screen, p: Params) -> Move | None:
    return _label(screen, p["key"]) or screen.fill({"name": p["new"]}, "save", {"name": ("I type the name.",)} | SAVE)


def _steps_delete_label(screen: Screen, p: Params) -> Move | None:
    return _label(screen, p["key"]) or click_and_confirm(screen, "delete", "I delete this label.")


# -- rules -------------------------------------------------------------------------------------------------------------
def _draw_rule(d: Draw) -> Params:
    _, who = draws.contact(d)
    label, name = draws.label(d)
    if d.level == 4:
        return {"from": who["email"], "do": "label", "label": label, "name": name}
    what = d.rng.choice([one for one in ACTIONS if one != "label"])
    return {"from": who["email"], "do": what, "label": "", "what": d.t(ACTIONS[what])}


def _rule(p: Params) -> dict[str, Any]:
    return {"from": p["from"], "subject": "", "do": p["do"], "label": p["label"]}


def _add_rule(records: Records, p: Params) -> None:
    records["rules"]["new"] = _rule(p)
    if p.get("now"):
        apply_rule(records, _rule(p))


def _steps_add_rule(screen: Screen, p: Params) -> Move | None:
    if screen.page != "rules/new":
        return nav.open_mail_page(screen, "rules") or screen.click("add rule", "A new rule.", "I make a rule.")
    wanted: dict[str, str | bool] = {"from": p["from"]}
    wanted |= {"label": p["label"]} if p["do"] == "label" else {"do": p["do"]}
    wanted |= {"now": True} if p.get("now") else {}
    said = {
        "from": ("I type the address.",),
        "label": ("I choose the label.",),
        "do": ("I choose what to do.",),
        "now": ("Also for what is there.",),
    }
    return screen.fill(wanted, "save", said | SAVE)


def _draw_rule_now(d: Draw) -> Params:
    """Draw a rule that fits a conversation of the inbox."""
    label, name = draws.label(d)
    key = d.rng.choice(draws.list_inbox(d.records))
    who = next(iter(messages_of(d.records, key).values()))["from"]
    return {"from": who, "do": "label", "label": label, "name": name, "now": True}


def _draw_old_rule(d: Draw) -> Params:
    key, one = d.pick("rules")
    return {"key": key, "from": one["from"]}


def _steps_delete_rule(screen: Screen, p: Params) -> Move | None:
    return nav.open_mail_page(screen, "rules") or screen.click(f"delete rule {p['key']}", "I delete this rule.")


# -- settings ----------------------------------------------------------------------------------------------------------
def _draw_signature(d: Draw) -> Params:
    greeting = d.rng.choice(
        ("祝好，", "谢谢，", "敬上，") if d.t.language == "zh" else ("Yours, ", "Thanks, ", "Cheers, ")
    )
    return {"signature": greeting + d.records["_me"]["name"]}


def _steps_signature(screen: Screen, p: Params) -> Move | None:
    said = {"signature": ("I type the new one.",)} | SAVE
    return nav.open_mail_page(screen, "settings") or screen.fill({"signature": p["signature"]}, "save", said)


def _steps_oldest(screen: Screen, p: Params) -> Move | None:
    said = {"sort": ("I choose the order.",)} | SAVE
    return nav.open_mail_page(screen, "settings") or screen.fill({"sort": "oldest"}, "save", said)


def _draw_away(d: Draw) -> Params:
    texts = (
        ("我不在办公室。", "我在休假。") if d.t.language == "zh" else ("I am not in the office.", "I am on vacation.")
    )
    return {"until": f"2026-0{d.rng.randint(1, 9)}-{d.rng.randint(10, 28)}", "text": d.rng.choice(texts)}


def _away(records: Records, p: Params) -> None:
    records["settings"] |= {"away": True, "away_until": p["until"], "away_text": p["text"]}


def _steps_away(screen: Screen, p: Params) -> Move | None:
    wanted = {"away": True, "away_until": p["until"], "away_text": p["text"]}
    said = {
        "away": ("I turn it on.",),
        "away_until": ("I type the day.",),
        "away_text": ("I type the text.",),
        "save away": ("I save it.",),
    }
    return nav.open_mail_page(screen, "settings") or screen.fill(wanted, "save away", said)


TASKS = (
    SiteTask(
        "add_label",
        "Make a label “{name}” with the color {what}.",
        {3: 14},
        _draw_new_label,
        _steps_add_label,
        _add_label,
        zh="新建{what}的标签“{name}”。",
    ),
    SiteTask(
        "rename_label",
        "Rename the label “{name}” to “{new}”.",
        {3: 13},
        _draw_rename,
        _steps_rename,
        _rename,
        zh="把标签“{name}”改名为“{new}”。",
    ),
    SiteTask(
        "delete_label",
        "Delete the label “{name}”.",
        {3: 10},
        _draw_label,
        _steps_delete_label,
        lambda records, p: drop_label(records, p["key"]),
        zh="删除标签“{name}”。",
    ),
    SiteTask(
        "rule",
        "Make a rule: mails from {from} get the label “{name}”.",
        {4: 15},
        _draw_rule,
        _steps_add_rule,
        _add_rule,
        zh="新建规则：来自{from}的邮件加上“{name}”标签。",
    ),
    SiteTask(
        "rule_action",
        "Make a rule for mails from {from}: “{what}”.",
        {5: 15},
        _draw_rule,
        _steps_add_rule,
        _add_rule,
        zh="为来自{from}的邮件新建规则：“{what}”。",
    ),
    SiteTask(
        "rule_now",
        "Make a rule: mails from {from} get the label “{name}”, also those in the inbox now.",
        {5: 15},
        _draw_rule_now,
        _steps_add_rule,
        _add_rule,
        zh="新建规则：来自{from}的邮件加上“{name}”标签，收件箱中现有的邮件也一样。",
    ),
    SiteTask(
        "delete_rule",
        "Delete the rule for mails from {from}.",
        {2: 8},
        _draw_old_rule,
        _steps_delete_rule,
        lambda records, p: records["rules"].pop(p["key"]) and None,
        zh="删除针对{from}来信的规则。",
    ),
    SiteTask(
        "signature",
        "Change your signature to “{signature}”.",
        {3: 11},
        _draw_signature,
        _steps_signature,
        lambda records, p: records["settings"].update(signature=p["signature"]),
        zh="把签名改为“{signature}”。",
    ),
    SiteTask(
        "oldest",
        "Let the oldest mails come first in all lists.",
        {2: 10},
        lambda d: {},
        _steps_oldest,
        lambda records, p: records["settings"].update(sort="oldest"),
        zh="让所有列表最早的邮件排在最前面。",
    ),
    SiteTask(
        "away",
        "Turn on the out of office answer “{text}” until {until}.",
        {4: 17},
        _draw_away,
        _steps_away,
        _away,
        zh="打开外出自动回复“{text}”，直到{until}。",
    ),
)

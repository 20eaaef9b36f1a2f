"""Task templates of the mailbox: contacts, labels, rules, settings."""

from __future__ import annotations

from typing import Any

from flywheel.worlds.mail import draws, nav
from flywheel.worlds.mail.data import ACTIONS, COLOURS
from flywheel.worlds.mail.draws import SEEN, Records
from flywheel.worlds.mail.keeping import apply_rule, drop_label
from flywheel.worlds.mail.pages import messages_of, name_of
from flywheel.worlds.screen import Move, Screen
from flywheel.worlds.site_tasks import Draw, Params, Redraw, SiteTask

_SAVE = {"save": ("I save it.", "Now I save.")}


# -- contacts ----------------------------------------------------------------------------------------------------------
def _draw_contact(d: Draw) -> Params:
    key, one = draws.contact(d)
    return {"key": key, "name": one["name"]}


def _steps_phone(screen: Screen, p: Params) -> Move | None:
    return nav.contact(screen, p["key"]) or screen.answer(screen.records["contacts"][p["key"]]["phone"])


def _draw_new_contact(d: Draw) -> Params:
    name, address = draws.stranger(d)
    return {"name": name, "email": address, "phone": _phone(d)}


def _phone(d: Draw) -> str:
    return "555" + str(d.rng.randint(100_000, 999_999))


def _add_contact(records: Records, p: Params) -> None:
    records["contacts"]["new"] = {"name": p["name"], "email": p["email"], "phone": p.get("phone", ""), "note": ""}


def _steps_add_contact(screen: Screen, p: Params) -> Move | None:
    if screen.page == "contacts/new":
        said = {"name": ("I type the name.",), "email": ("Now the address.",), "phone": ("I type the number.",)}
        return screen.fill({name: p[name] for name in ("name", "email", "phone")}, "save", said | _SAVE)
    return nav.to(screen, "contacts") or screen.click("add contact", "A new contact.", "I add somebody.")


def _draw_new_phone(d: Draw) -> Params:
    return _draw_contact(d) | {"phone": _phone(d)}


def _set_phone(records: Records, p: Params) -> None:
    records["contacts"][p["key"]]["phone"] = p["phone"]


def _steps_set_phone(screen: Screen, p: Params) -> Move | None:
    if (move := nav.contact(screen, p["key"])) is not None:
        return move
    if screen.has("phone"):
        return screen.fill({"phone": p["phone"]}, "save", {"phone": ("I type the number.",)} | _SAVE)
    return screen.click("edit", "I change it.", "I click edit.")


def _steps_delete_contact(screen: Screen, p: Params) -> Move | None:
    return nav.contact(screen, p["key"]) or nav.confirmed(screen, "delete", "I delete this contact.")


def _draw_unknown(d: Draw) -> Params:
    """A mail whose last sender is not in the contacts."""
    known = {one["email"] for one in d.records["contacts"].values()} | {d.records["_me"]["email"]}
    senders = {
        key: list(messages_of(d.records, key).values())[-1]["from"]
        for key, one in d.records["threads"].items()
        if one["folder"] in ("inbox", "archive")
    }
    fits = [key for key, who in senders.items() if who not in known]
    if not fits:
        raise Redraw
    key = d.rng.choice(fits)
    subject = d.records["threads"][key]["subject"]
    return {"key": key, "subject": subject, "name": name_of(d.records, senders[key]), "email": senders[key]}


def _steps_save_sender(screen: Screen, p: Params) -> Move | None:
    if screen.page == "contacts/new" and screen.query.get("email") == p["email"]:
        return screen.click("save", *_SAVE["save"])
    return nav.thread(screen, p["key"]) or screen.click("save sender", "I keep the address.", "Into the contacts.")


# -- labels ------------------------------------------------------------------------------------------------------------
def _draw_new_label(d: Draw) -> Params:
    colour = d.rng.choice(COLOURS[1:])
    return {"name": draws.new_label(d), "colour": colour, "what": d.t(colour)}


def _add_label(records: Records, p: Params) -> None:
    records["labels"]["new"] = {"name": p["name"], "colour": p["colour"]}


def _steps_add_label(screen: Screen, p: Params) -> Move | None:
    if screen.page == "labels/new":
        said = {"name": ("I type the name.",), "colour": ("I choose the color.",)}
        return screen.fill({"name": p["name"], "colour": p["colour"]}, "save", said | _SAVE)
    return nav.to(screen, "labels") or screen.click("add label", "A new label.", "I add a label.")


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
    return nav.to(screen, "labels") or screen.click(f"edit label {key}", "I open this label.")


def _steps_rename(screen: Screen, p: Params) -> Move | None:
    return _label(screen, p["key"]) or screen.fill({"name": p["new"]}, "save", {"name": ("I type the name.",)} | _SAVE)


def _steps_delete_label(screen: Screen, p: Params) -> Move | None:
    return _label(screen, p["key"]) or nav.confirmed(screen, "delete", "I delete this label.")


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
        return nav.to(screen, "rules") or screen.click("add rule", "A new rule.", "I make a rule.")
    wanted: dict[str, str | bool] = {"from": p["from"]}
    wanted |= {"label": p["label"]} if p["do"] == "label" else {"do": p["do"]}
    wanted |= {"now": True} if p.get("now") else {}
    said = {
        "from": ("I type the address.",),
        "label": ("I choose the label.",),
        "do": ("I choose what to do.",),
        "now": ("Also for what is there.",),
    }
    return screen.fill(wanted, "save", said | _SAVE)


def _draw_rule_now(d: Draw) -> Params:
    """A rule that fits something in the inbox."""
    label, name = draws.label(d)
    key = d.rng.choice(draws.newest(d.records))
    who = next(iter(messages_of(d.records, key).values()))["from"]
    return {"from": who, "do": "label", "label": label, "name": name, "now": True}


def _draw_old_rule(d: Draw) -> Params:
    key, one = d.pick("rules")
    return {"key": key, "from": one["from"]}


def _steps_delete_rule(screen: Screen, p: Params) -> Move | None:
    return nav.to(screen, "rules") or screen.click(f"delete rule {p['key']}", "I delete this rule.")


# -- settings ----------------------------------------------------------------------------------------------------------
def _draw_signature(d: Draw) -> Params:
    greeting = d.rng.choice(
        ("祝好，", "谢谢，", "敬上，") if d.t.language == "zh" else ("Yours, ", "Thanks, ", "Cheers, ")
    )
    return {"signature": greeting + d.records["_me"]["name"]}


def _steps_signature(screen: Screen, p: Params) -> Move | None:
    said = {"signature": ("I type the new one.",)} | _SAVE
    return nav.to(screen, "settings") or screen.fill({"signature": p["signature"]}, "save", said)


def _steps_oldest(screen: Screen, p: Params) -> Move | None:
    said = {"sort": ("I choose the order.",)} | _SAVE
    return nav.to(screen, "settings") or screen.fill({"sort": "oldest"}, "save", said)


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
    return nav.to(screen, "settings") or screen.fill(wanted, "save away", said)


TASKS = (
    SiteTask(
        "phone",
        "What is the phone number of your contact {name}? Answer with the number.",
        {3: 10},
        _draw_contact,
        _steps_phone,
        answer=lambda records, p: records["contacts"][p["key"]]["phone"],
        zh="联系人{name}的电话号码是多少？请回答号码。",
    ),
    SiteTask(
        "add_contact",
        "Add a contact: {name}, e-mail {email}, phone {phone}.",
        {4: 17},
        _draw_new_contact,
        _steps_add_contact,
        _add_contact,
        zh="添加联系人：{name}，邮箱{email}，电话{phone}。",
    ),
    SiteTask(
        "new_phone",
        "Change the phone number of your contact {name} to {phone}.",
        {4: 17},
        _draw_new_phone,
        _steps_set_phone,
        _set_phone,
        zh="把联系人{name}的电话改为{phone}。",
    ),
    SiteTask(
        "delete_contact",
        "Delete the contact {name}.",
        {3: 12},
        _draw_contact,
        _steps_delete_contact,
        lambda records, p: records["contacts"].pop(p["key"]) and None,
        zh="删除联系人{name}。",
    ),
    SiteTask(
        "save_sender",
        "Add the sender of the last mail in “{subject}” to the contacts.",
        {3: 13},
        _draw_unknown,
        _steps_save_sender,
        _add_contact,
        ignore=SEEN,
        zh="把“{subject}”中最后一封邮件的发件人加入联系人。",
    ),
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

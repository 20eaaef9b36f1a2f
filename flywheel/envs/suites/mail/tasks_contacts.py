"""Define the mailbox's task templates on contacts."""

from __future__ import annotations

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.draws import SEEN, Records
from flywheel.envs.suites.mail.nav import SAVE
from flywheel.envs.suites.mail.pages import messages_of, name_of
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


def _draw_contact(d: Draw) -> Params:
    key, one = draws.contact(d)
    return {"key": key, "name": one["name"]}


def _steps_phone(screen: Screen, p: Params) -> Move | None:
    return nav.open_contact(screen, p["key"]) or screen.answer(screen.records["contacts"][p["key"]]["phone"])


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
        return screen.fill({name: p[name] for name in ("name", "email", "phone")}, "save", said | SAVE)
    return nav.open_mail_page(screen, "contacts") or screen.click("add contact", "A new contact.", "I add somebody.")


def _draw_new_phone(d: Draw) -> Params:
    return _draw_contact(d) | {"phone": _phone(d)}


def _set_phone(records: Records, p: Params) -> None:
    records["contacts"][p["key"]]["phone"] = p["phone"]


def _steps_set_phone(screen: Screen, p: Params) -> Move | None:
    if (move := nav.open_contact(screen, p["key"])) is not None:
        return move
    if screen.has("phone"):
        return screen.fill({"phone": p["phone"]}, "save", {"phone": ("I type the number.",)} | SAVE)
    return screen.click("edit", "I change it.", "I click edit.")


def _steps_delete_contact(screen: Screen, p: Params) -> Move | None:
    return nav.open_contact(screen, p["key"]) or click_and_confirm(screen, "delete", "I delete this contact.")


def _draw_unknown(d: Draw) -> Params:
    """Draw a mail whose last sender is not in the contacts."""
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
        return screen.click("save", *SAVE["save"])
    return nav.open_conversation(screen, p["key"]) or screen.click(
        "save sender", "I keep the address.", "Into the contacts."
    )


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
)

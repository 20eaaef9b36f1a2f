"""Serve the pages and forms of the mailbox other than mails: contacts, labels, rules, settings."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forms import Field, Invalid, day, email, one_of
from flywheel.envs.suites.mail.data import ACTIONS, COLOURS
from flywheel.envs.suites.mail.pages import act, listed, messages_of, name_of, site
from flywheel.envs.suites.site import Page, Records, Visit

A_PAGE = 8


# -- contacts ----------------------------------------------------------------------------------------------------------
@site.page("contacts")
def contacts(visit: Visit) -> Page:
    wanted = visit.query.get("q", "").casefold()
    rows = [
        (key, one)
        for key, one in visit.records["contacts"].items()
        if wanted in f"{one['name']} {one['email']}".casefold()
    ]
    rows.sort(key=lambda row: row[1]["name"])
    count = max(1, -(-len(rows) // A_PAGE))
    number = visit.number("page", 1, 1, count)
    return Page.of(
        "contacts.html",
        heading=visit.t("Contacts"),
        rows=rows[(number - 1) * A_PAGE : number * A_PAGE],
        number=number,
        count=count,
        asked=visit.query.get("q", ""),
    )


@site.page("contacts/new")
def new_contact(visit: Visit) -> Page:
    blank = {"name": visit.query.get("name", ""), "email": visit.query.get("email", ""), "phone": "", "note": ""}
    return Page.of("contact.html", heading=visit.t("New contact"), key="new", contact=blank, editing=True, ask=None)


@site.page("contacts/<key>")
def contact(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["contacts"].get(key)) is None:
        return None
    editing = visit.query.get("edit") == "1"
    return Page.of(
        "contact.html", heading=one["name"], key=key, contact=one, editing=editing, ask=visit.query.get("ask")
    )


@site.form("contacts/<key>/save")
def save_contact(visit: Visit, key: str) -> str | None:
    records = visit.records
    if key != "new" and key not in records["contacts"]:
        return None
    values = visit.read(
        Field("name", longest=60),
        Field("email", check=email),
        Field("phone", required=False, longest=30),
        Field("note", required=False),
    )
    if any(one["email"] == values["email"] for other, one in records["contacts"].items() if other != key):
        raise Invalid(email="There is a contact with this address.")
    if key == "new":
        key = _new_key(records, "c")
    records["contacts"][key] = values
    visit.notice("Saved.")
    return f"contacts/{key}"


@site.form("contacts/<key>/delete")
def delete_contact(visit: Visit, key: str) -> str | None:
    if (one := visit.records["contacts"].pop(key, None)) is None:
        return None
    visit.notice("{name} is deleted.", name=one["name"])
    return "contacts"


def _new_key(records: Records, letter: str) -> str:
    records["_count"] += 1
    return f"{letter}{records['_count']}"


# -- labels ------------------------------------------------------------------------------------------------------------
@site.page("labels")
def labels(visit: Visit) -> Page:
    threads = visit.records["threads"].values()
    counts = {key: sum(key in one["labels"] for one in threads) for key in visit.records["labels"]}
    return Page.of("labels.html", heading=visit.t("Labels"), counts=counts)


@site.page("labels/<key>")
def edit_label(visit: Visit, key: str) -> Page | None:
    if key != "new" and key not in visit.records["labels"]:
        return None
    one = visit.records["labels"].get(key, {"name": "", "colour": COLOURS[0]})
    return Page.of(
        "label.html",
        heading=visit.t("New label") if key == "new" else one["name"],
        key=key,
        label=one,
        colours=[(colour, visit.t(colour)) for colour in COLOURS],
        ask=visit.query.get("ask"),
    )


@site.form("labels/<key>/save")
def save_label(visit: Visit, key: str) -> str | None:
    records = visit.records
    if key != "new" and key not in records["labels"]:
        return None
    values = visit.read(Field("name", longest=30), Field("colour", check=one_of(COLOURS)))
    if any(one["name"] == values["name"] for other, one in records["labels"].items() if other != key):
        raise Invalid(name="There is a label of this name.")
    records["labels"][_new_key(records, "l") if key == "new" else key] = values
    visit.notice("Saved.")
    return "labels"


@site.form("labels/<key>/delete")
def delete_label(visit: Visit, key: str) -> str | None:
    if key not in visit.records["labels"]:
        return None
    drop_label(visit.records, key)
    visit.notice("The label is deleted.")
    return "labels"


def drop_label(records: Records, key: str) -> None:
    """Delete a label, take it off all conversations, and delete the rules that give it."""
    del records["labels"][key]
    for one in records["threads"].values():
        one["labels"].pop(key, None)
    for name in [name for name, rule in records["rules"].items() if rule["label"] == key]:
        del records["rules"][name]


# -- rules -------------------------------------------------------------------------------------------------------------
@site.page("rules")
def rules(visit: Visit) -> Page:
    return Page.of("rules.html", heading=visit.t("Rules"), rules=visit.records["rules"], actions_of=ACTIONS)


@site.page("rules/<key>")
def rule(visit: Visit, key: str) -> Page | None:
    if key != "new" and key not in visit.records["rules"]:
        return None
    blank = {"from": visit.query.get("from", ""), "subject": "", "do": "label", "label": ""}
    return Page.of(
        "rule.html",
        heading=visit.t("New rule") if key == "new" else visit.t("Rule"),
        key=key,
        rule=visit.records["rules"].get(key, blank),
        kinds=[(name, visit.t(title)) for name, title in ACTIONS.items()],
        choices=[("", "-"), *((name, one["name"]) for name, one in visit.records["labels"].items())],
    )


@site.form("rules/<key>/save")
def save_rule(visit: Visit, key: str) -> str | None:
    records = visit.records
    if key != "new" and key not in records["rules"]:
        return None
    values = visit.read(
        Field("from", required=False),
        Field("subject", required=False),
        Field("do", check=one_of(ACTIONS)),
        Field("label", required=False, check=one_of(records["labels"])),
    )
    if not values["from"] and not values["subject"]:
        raise Invalid(**{"from": "Say whom or what the rule is for."})
    if values["do"] == "label" and not values["label"]:
        raise Invalid(label="Choose one of the options.")
    values["label"] = values["label"] if values["do"] == "label" else ""
    records["rules"][_new_key(records, "r") if key == "new" else key] = values
    if visit.form.get("now"):
        apply_rule(records, values)
    visit.notice("The rule is saved.")
    return "rules"


def apply_rule(records: Records, rule: dict[str, Any]) -> None:
    """Apply a rule to each conversation of the inbox of which a message has its sender and subject."""
    for key in listed(records, "inbox"):
        inside = messages_of(records, key).values()
        if any(
            rule["from"].casefold() in f"{one['from']} {name_of(records, one['from'])}".casefold()
            and rule["subject"].casefold() in one["subject"].casefold()
            for one in inside
        ):
            if rule["do"] == "label":
                records["threads"][key]["labels"][rule["label"]] = True
            else:
                act(records, key, rule["do"])


@site.form("rules/<key>/delete")
def delete_rule(visit: Visit, key: str) -> str | None:
    if visit.records["rules"].pop(key, None) is None:
        return None
    visit.notice("The rule is deleted.")
    return "rules"


# -- settings ----------------------------------------------------------------------------------------------------------
@site.page("settings")
def settings(visit: Visit) -> Page:
    sorts = [("newest", visit.t("Newest first")), ("oldest", visit.t("Oldest first"))]
    return Page.of("settings.html", heading=visit.t("Settings"), settings=visit.records["settings"], sorts=sorts)


@site.form("settings")
def save_settings(visit: Visit) -> str:
    values = visit.read(Field("signature", required=False), Field("sort", check=one_of(("newest", "oldest"))))
    visit.records["settings"] |= values
    visit.notice("Saved.")
    return "settings"


@site.form("away")
def away(visit: Visit) -> str:
    on = bool(visit.form.get("away"))
    values = visit.read(Field("away_until", required=on, check=day), Field("away_text", required=on, longest=500))
    visit.records["settings"] |= {**values, "away": on}
    visit.notice("Saved.")
    return "settings"

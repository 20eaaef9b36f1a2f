"""Define the mailbox's task templates that sort: act on several mails at once, and label mails."""

from __future__ import annotations

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.draws import KEPT, SEEN, Records, acting
from flywheel.envs.suites.mail.pages import name_of
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- many mails --------------------------------------------------------------------------------------------------------
def _draw_some(count: int, fits=lambda thread: True):
    return lambda d: draws.some(count, d, fits)


def _steps_many(button: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.open_mail_page(screen, "") or nav.tick_threads(screen, p["keys"], f"many {button.format(**p)}")

    return steps


def _draw_often(d: Draw) -> Params:
    """Draw a sender with two or more conversations in the inbox, and others at most in the trash."""
    places: dict[str, list[str]] = {}
    for message in d.records["messages"].values():
        places.setdefault(message["from"], []).append(message["_thread"])
    places.pop(d.records["_me"]["email"], None)
    threads = d.records["threads"]
    fits = {}
    for who, keys in places.items():
        keys = list(dict.fromkeys(keys))
        if 1 < len(keys) < 6 and all(threads[key]["folder"] in ("inbox", "trash") for key in keys):
            fits[who] = [key for key in keys if threads[key]["folder"] == "inbox"]
    fits = {who: keys for who, keys in fits.items() if len(keys) > 1}
    if not fits:
        raise Redraw
    who = d.rng.choice(list(fits))
    return {"who": who, "name": name_of(d.records, who), "keys": fits[who]}


def _steps_from(screen: Screen, p: Params) -> Move | None:
    """Search for the sender's mails in the inbox, select all, and archive them."""
    if screen.page != "search" or screen.query.get("from") != p["name"]:
        return nav.search_mails(screen, p["name"], "inbox")
    if screen.query.get("all") != "1":
        return screen.click("select all", "I select all of them.")
    return screen.click("many archive", "Into the archive with them.")


# -- labels of mails ---------------------------------------------------------------------------------------------------
def _give(records: Records, p: Params) -> None:
    records["threads"][p["key"]]["labels"][p["label"]] = True


def _draw_labelling(d: Draw) -> Params:
    label, name = draws.label(d)
    return draws.some(2, d, lambda one: label not in one["labels"]) | {"label": label, "name": name}


def _label_all(records: Records, p: Params) -> None:
    for key in p["keys"]:
        _give(records, p | {"key": key})


def _draw_unlabelled(d: Draw) -> Params:
    label, name = draws.label(d)
    return draws.mail(*KEPT, fits=lambda one: label not in one["labels"])(d) | {"label": label, "name": name}


def _steps_label(screen: Screen, p: Params) -> Move | None:
    wanted = {f"label {p['label']}": True}
    if "old" in p:
        wanted = {
            name: wanted.get(name, False) for name in screen.order("label ") if name[6:] in (p["old"], p["label"])
        }
    if (move := nav.open_conversation(screen, p["key"])) is not None:
        return move
    if not screen.has("apply labels"):
        return screen.click("more", "The labels are in the menu.", "I open the menu.")
    said = {name: ("I tick this label.",) if on else ("I take this label off.",) for name, on in wanted.items()}
    return screen.fill(wanted, "apply labels", said | {"apply labels": ("I put the labels on.",)})


def _draw_relabel(d: Draw) -> Params:
    drawn = draws.mail(*KEPT, fits=lambda one: one["labels"])(d)
    old = next(iter(d.records["threads"][drawn["key"]]["labels"]))
    key, one = d.pick("labels", lambda label: label != d.records["labels"][old])
    return drawn | {"old": old, "was": d.records["labels"][old]["name"], "label": key, "name": one["name"]}


def _relabel(records: Records, p: Params) -> None:
    del records["threads"][p["key"]]["labels"][p["old"]]
    _give(records, p)


TASKS = (
    SiteTask(
        "read_two",
        "Mark the mails {all} in the inbox as read.",
        {3: 9},
        _draw_some(2, lambda one: one["unread"]),
        _steps_many("read"),
        acting("read"),
        zh="将收件箱中的邮件{all}标为已读。",
    ),
    SiteTask(
        "delete_three",
        "Delete the mails {all} in the inbox.",
        {4: 11},
        _draw_some(3),
        _steps_many("trash"),
        acting("trash"),
        ignore=SEEN,
        zh="删除收件箱中的邮件{all}。",
    ),
    SiteTask(
        "archive_two",
        "Move the mails {all} from the inbox to the archive.",
        {3: 9},
        _draw_some(2),
        _steps_many("archive"),
        acting("archive"),
        ignore=SEEN,
        zh="将收件箱中的邮件{all}归档。",
    ),
    SiteTask(
        "label_two",
        "Put the label “{name}” on the mails {all} in the inbox.",
        {4: 11},
        _draw_labelling,
        _steps_many("label {label}"),
        _label_all,
        ignore=SEEN,
        zh="给收件箱中的邮件{all}加上“{name}”标签。",
    ),
    SiteTask(
        "archive_from",
        "Move all conversations with mails from {name} that are in the inbox to the archive.",
        {5: 14},
        _draw_often,
        _steps_from,
        acting("archive"),
        ignore=SEEN,
        zh="将收件箱中所有含有{name}来信的会话归档。",
    ),
    SiteTask(
        "label",
        "Put the label “{name}” on the mail “{subject}”.",
        {3: 14},
        _draw_unlabelled,
        _steps_label,
        _give,
        ignore=SEEN,
        zh="给邮件“{subject}”加上“{name}”标签。",
    ),
    SiteTask(
        "relabel",
        "Take the label “{was}” off the mail “{subject}” and put the label “{name}” on it.",
        {4: 16},
        _draw_relabel,
        _steps_label,
        _relabel,
        ignore=SEEN,
        zh="把邮件“{subject}”的标签“{was}”换成“{name}”。",
    ),
)

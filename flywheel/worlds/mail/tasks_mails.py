"""Task templates of the mailbox: finding, reading, sorting and throwing away."""

from __future__ import annotations

from typing import Any

from flywheel.worlds.mail import draws, nav
from flywheel.worlds.mail.data import FOLDERS
from flywheel.worlds.mail.draws import SEEN, Records, acting
from flywheel.worlds.mail.letters import QUESTIONS
from flywheel.worlds.mail.pages import act, folder_path, listed, messages_of, name_of
from flywheel.worlds.screen import Move, Screen
from flywheel.worlds.site_tasks import Draw, Params, Redraw, SiteTask

_KEPT = ("inbox", "archive")


# -- looking -----------------------------------------------------------------------------------------------------------
def _draw_folder(d: Draw) -> Params:
    folder = d.rng.choice([one for one in FOLDERS if one != "inbox"])
    return {"folder": folder, "title": d.t(FOLDERS[folder])}


def _draw_label(d: Draw) -> Params:
    key, name = draws.label(d)
    return {"label": key, "name": name}


def _draw_word(d: Draw) -> Params:
    _, one = d.pick("contacts")
    return {"word": one["name"]}


def _steps_word(screen: Screen, p: Params) -> Move | None:
    return screen.fill({"search": p["word"]}, "", {"search": ("I type it here.", "I search for it.")})


def _draw_narrow(d: Draw) -> Params:
    place = d.rng.choice(("archive", "sent", "trash", "spam", "inbox"))
    _, one = d.pick("contacts")
    return {"who": one["name"], "place": place, "title": d.t(FOLDERS[place])}


def _steps_narrow(screen: Screen, p: Params) -> Move | None:
    if screen.page != "search":
        return screen.click("search button", "I click the search button.", "I open the search.")
    if not screen.has("search now"):
        return screen.click("narrow", "I need more fields.", "I open the search tools.")
    said = {"from": ("I type the name.",), "in": ("I choose where to look.",)}
    return screen.fill({"from": p["who"], "in": p["place"]}, "search now", said)


def _draw_question(d: Draw) -> Params:
    key, one = d.pick("threads", lambda thread: thread["folder"] in _KEPT and thread["_letter"] in QUESTIONS)
    asked = QUESTIONS[one["_letter"]]
    return {"key": key, "subject": one["subject"], "asked": asked[d.t.language], "fact": asked["fact"]}


def _fact(records: Records, p: Params) -> str | int:
    said = records["threads"][p["key"]]["_facts"][p["fact"]]
    return said if p["fact"] in ("code", "phone") else int(said)


def _first(records: Records, key: str) -> str:
    """The message that a conversation began with."""
    return next(iter(messages_of(records, key)))


def _steps_question(screen: Screen, p: Params) -> Move | None:
    """The letter itself is the first message, folded up where answers came after it."""
    records: Any = screen.records
    if (move := nav.thread(screen, p["key"])) is not None:
        return move
    first = _first(records, p["key"])
    if len(messages_of(records, p["key"])) > 1 and not screen.has(f"text {first}"):
        return screen.click(f"message {first}", "I open the first one.", "I look into the first mail.")
    return screen.seen(f"text {first}") or screen.answer(str(_fact(records, p)), "Here it is.", "I have found it.")


def _draw_sender(d: Draw) -> Params:
    me = d.records["_me"]["email"]

    def other(thread: dict[str, Any]) -> bool:
        return thread["folder"] in _KEPT

    key, one = d.pick("threads", other)
    first = d.records["messages"][_first(d.records, key)]
    if first["from"] == me:
        raise Redraw
    return {"key": key, "subject": one["subject"], "first": _first(d.records, key)}


def _steps_sender(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    return nav.thread(screen, p["key"]) or screen.answer(records["messages"][p["first"]]["from"])


def _draw_count(d: Draw) -> Params:
    key, name = draws.label(d)
    return {"label": key, "name": name}


def _labelled(records: Records, p: Params) -> int:
    threads = records["threads"].values()
    return sum(p["label"] in one["labels"] and one["folder"] not in ("trash", "spam") for one in threads)


def _steps_labelled(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    return nav.to(screen, f"label/{p['label']}") or screen.answer(str(_labelled(records, p)), "I have counted them.")


# -- one mail ----------------------------------------------------------------------------------------------------------
def _steps_star(screen: Screen, p: Params) -> Move | None:
    element = f"star {p['key']}"
    if screen.has(element):
        return screen.click(element, "I click the star.", "Here is the star.")
    return nav.listed(screen, p["key"])


def _steps_do(what: str, *said: str):
    """Open a mail and press a button of its page."""

    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.thread(screen, p["key"]) or screen.click(what, *said)

    return steps


def _steps_more(what: str, *said: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.thread(screen, p["key"]) or nav.more(screen, what, *said)

    return steps


def _steps_erase(screen: Screen, p: Params) -> Move | None:
    return nav.thread(screen, p["key"]) or nav.confirmed(screen, "erase", "I delete it for good.")


def _steps_empty(screen: Screen, p: Params) -> Move | None:
    return nav.to(screen, f"folder/{p['folder']}") or nav.confirmed(screen, "empty", "I empty it.")


def _draw_full(d: Draw) -> Params:
    folder = d.rng.choice(("trash", "spam"))
    return {"folder": folder, "title": d.t(FOLDERS[folder])}


def _empty(records: Records, p: Params) -> None:
    for key in listed(records, p["folder"]):
        act(records, key, "erase")


# -- labels of a mail --------------------------------------------------------------------------------------------------
def _draw_unlabelled(d: Draw) -> Params:
    label, name = draws.label(d)
    return draws.mail(*_KEPT, fits=lambda one: label not in one["labels"])(d) | {"label": label, "name": name}


def _give(records: Records, p: Params) -> None:
    records["threads"][p["key"]]["labels"][p["label"]] = True


def _steps_label(screen: Screen, p: Params) -> Move | None:
    wanted = {f"label {p['label']}": True}
    if "old" in p:
        wanted = {
            name: wanted.get(name, False) for name in screen.order("label ") if name[6:] in (p["old"], p["label"])
        }
    if (move := nav.thread(screen, p["key"])) is not None:
        return move
    if not screen.has("apply labels"):
        return screen.click("more", "The labels are in the menu.", "I open the menu.")
    said = {name: ("I tick this label.",) if on else ("I take this label off.",) for name, on in wanted.items()}
    return screen.fill(wanted, "apply labels", said | {"apply labels": ("I put the labels on.",)})


def _draw_relabel(d: Draw) -> Params:
    drawn = draws.mail(*_KEPT, fits=lambda one: one["labels"])(d)
    old = next(iter(d.records["threads"][drawn["key"]]["labels"]))
    key, one = d.pick("labels", lambda label: label != d.records["labels"][old])
    return drawn | {"old": old, "was": d.records["labels"][old]["name"], "label": key, "name": one["name"]}


def _relabel(records: Records, p: Params) -> None:
    del records["threads"][p["key"]]["labels"][p["old"]]
    _give(records, p)


# -- many mails --------------------------------------------------------------------------------------------------------
def _draw_some(count: int, fits=lambda thread: True):
    return lambda d: draws.some(count, d, fits)


def _steps_many(button: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.to(screen, "") or nav.ticked(screen, p["keys"], f"many {button.format(**p)}")

    return steps


def _draw_labelling(d: Draw) -> Params:
    label, name = draws.label(d)
    return draws.some(2, d, lambda one: label not in one["labels"]) | {"label": label, "name": name}


def _label_all(records: Records, p: Params) -> None:
    for key in p["keys"]:
        _give(records, p | {"key": key})


def _draw_often(d: Draw) -> Params:
    """Somebody of whom two or more conversations lie in the inbox, and no message anywhere else."""
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
    """The mails that the search by sender gives, all at once."""
    if screen.page != "search" or screen.query.get("from") != p["name"]:
        return _steps_narrow(screen, {"who": p["name"], "place": "inbox"})
    if screen.query.get("all") != "1":
        return screen.click("select all", "I select all of them.")
    return screen.click("many archive", "Into the archive with them.")


def _at_search(p: Params) -> tuple[str, dict[str, str]]:
    return "search", {"from": p["who"], "in": p["place"]}


TASKS = (
    SiteTask(
        "folder",
        "Open the folder “{title}”.",
        {1: 5},
        _draw_folder,
        lambda s, p: nav.to(s, f"folder/{p['folder']}"),
        page=lambda p: (folder_path(p["folder"]), {}),
        zh="打开“{title}”文件夹。",
    ),
    SiteTask(
        "label_page",
        "Show the mails with the label “{name}”.",
        {1: 5},
        _draw_label,
        lambda s, p: nav.to(s, f"label/{p['label']}"),
        page=lambda p: (f"label/{p['label']}", {}),
        zh="显示带有“{name}”标签的邮件。",
    ),
    SiteTask(
        "search",
        "Search the mails for “{word}”.",
        {1: 5},
        _draw_word,
        _steps_word,
        page=lambda p: ("search", {"q": p["word"]}),
        zh="在邮件中搜索“{word}”。",
    ),
    SiteTask(
        "open",
        "Open the mail “{subject}”.",
        {2: 9},
        draws.mail(*_KEPT),
        lambda s, p: nav.thread(s, p["key"]),
        page=lambda p: (f"thread/{p['key']}", {}),
        ignore=SEEN,
        zh="打开邮件“{subject}”。",
    ),
    SiteTask(
        "search_from",
        "Use the search tools to find mails from {who} in the folder “{title}”.",
        {3: 14},
        _draw_narrow,
        _steps_narrow,
        page=_at_search,
        zh="用搜索工具在“{title}”中查找{who}发来的邮件。",
    ),
    SiteTask(
        "question",
        "{asked} in the mail “{subject}”? Answer with it alone.",
        {2: 12},
        _draw_question,
        _steps_question,
        answer=_fact,
        ignore=SEEN,
        zh="邮件“{subject}”中，{asked}？请只回答这一项。",
    ),
    SiteTask(
        "sender",
        "From which address did the first mail of “{subject}” come? Answer with the address.",
        {3: 10},
        _draw_sender,
        _steps_sender,
        answer=lambda records, p: records["messages"][p["first"]]["from"],
        ignore=SEEN,
        zh="“{subject}”的第一封邮件来自哪个地址？请回答这个地址。",
    ),
    SiteTask(
        "count_label",
        "How many conversations have the label “{name}”? Answer with the number.",
        {2: 7},
        _draw_count,
        _steps_labelled,
        answer=_labelled,
        zh="有多少个会话带有“{name}”标签？请回答数字。",
    ),
    SiteTask(
        "star",
        "Star the mail “{subject}”.",
        {1: 9},
        draws.mail(*_KEPT, fits=lambda one: not one["starred"]),
        _steps_star,
        acting("star"),
        ignore=SEEN,
        zh="给邮件“{subject}”加星标。",
    ),
    SiteTask(
        "unstar",
        "Take the star off the mail “{subject}”.",
        {1: 9},
        draws.mail(*_KEPT, fits=lambda one: one["starred"]),
        _steps_star,
        acting("unstar"),
        ignore=SEEN,
        zh="取消邮件“{subject}”的星标。",
    ),
    SiteTask(
        "archive",
        "Move the mail “{subject}” to the archive.",
        {2: 10},
        draws.mail("inbox"),
        _steps_do("archive", "Into the archive.", "I put it away."),
        acting("archive"),
        ignore=SEEN,
        zh="将邮件“{subject}”归档。",
    ),
    SiteTask(
        "delete",
        "Delete the mail “{subject}”.",
        {2: 10},
        draws.mail(*_KEPT),
        _steps_do("trash", "I delete it.", "Into the trash."),
        acting("trash"),
        ignore=SEEN,
        zh="删除邮件“{subject}”。",
    ),
    SiteTask(
        "spam",
        "Mark the mail “{subject}” as spam.",
        {3: 11},
        draws.mail("inbox"),
        _steps_more("spam", "That is spam."),
        acting("spam"),
        ignore=SEEN,
        zh="将邮件“{subject}”标为垃圾邮件。",
    ),
    SiteTask(
        "not_spam",
        "The mail “{subject}” in the spam folder is not spam: move it to the inbox.",
        {2: 8},
        draws.mail("spam"),
        _steps_do("inbox", "It is no spam."),
        acting("inbox"),
        ignore=SEEN,
        zh="垃圾邮件中的“{subject}”不是垃圾邮件，请移到收件箱。",
    ),
    SiteTask(
        "restore",
        "Bring the mail “{subject}” back from the trash to the inbox.",
        {2: 8},
        draws.mail("trash"),
        _steps_do("inbox", "I bring it back."),
        acting("inbox"),
        ignore=SEEN,
        zh="把已删除的邮件“{subject}”恢复到收件箱。",
    ),
    SiteTask(
        "erase",
        "Delete the mail “{subject}”, which is in the trash, forever.",
        {3: 10},
        draws.mail("trash"),
        _steps_erase,
        acting("erase"),
        ignore=SEEN,
        zh="永久删除已删除邮件中的“{subject}”。",
    ),
    SiteTask(
        "empty",
        "Delete all mails in the folder “{title}” forever.",
        {2: 8},
        _draw_full,
        _steps_empty,
        _empty,
        zh="永久删除“{title}”中的所有邮件。",
    ),
    SiteTask(
        "unread",
        "Mark the mail “{subject}” as unread.",
        {3: 11},
        draws.mail("inbox", fits=lambda one: not one["unread"]),
        _steps_more("unread", "I mark it as unread."),
        acting("unread"),
        zh="将邮件“{subject}”标为未读。",
    ),
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

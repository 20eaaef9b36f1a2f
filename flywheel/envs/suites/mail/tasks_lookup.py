"""Define the mailbox's task templates that only look things up: folders, labels, searches, questions."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.data import FOLDERS
from flywheel.envs.suites.mail.draws import KEPT, SEEN, Records
from flywheel.envs.suites.mail.letters import QUESTIONS
from flywheel.envs.suites.mail.pages import folder_path, messages_of
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- lists and the search ----------------------------------------------------------------------------------------------
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


def _at_search(p: Params) -> tuple[str, dict[str, str]]:
    return "search", {"from": p["who"], "in": p["place"]}


# -- questions ---------------------------------------------------------------------------------------------------------
def _draw_question(d: Draw) -> Params:
    key, one = d.pick("threads", lambda thread: thread["folder"] in KEPT and thread["_letter"] in QUESTIONS)
    asked = QUESTIONS[one["_letter"]]
    return {"key": key, "subject": one["subject"], "asked": asked[d.t.language], "fact": asked["fact"]}


def _fact(records: Records, p: Params) -> str | int:
    said = records["threads"][p["key"]]["_facts"][p["fact"]]
    return said if p["fact"] in ("code", "phone") else int(said)


def _first(records: Records, key: str) -> str:
    """Return the key of the first message of a conversation."""
    return next(iter(messages_of(records, key)))


def _steps_question(screen: Screen, p: Params) -> Move | None:
    """Read the first message, which has the answer; it is folded where others follow it."""
    records: Any = screen.records
    if (move := nav.open_conversation(screen, p["key"])) is not None:
        return move
    first = _first(records, p["key"])
    if len(messages_of(records, p["key"])) > 1 and not screen.has(f"text {first}"):
        return screen.click(f"message {first}", "I open the first one.", "I look into the first mail.")
    return screen.seen(f"text {first}") or screen.answer(str(_fact(records, p)), "Here it is.", "I have found it.")


def _draw_sender(d: Draw) -> Params:
    me = d.records["_me"]["email"]

    def other(thread: dict[str, Any]) -> bool:
        return thread["folder"] in KEPT

    key, one = d.pick("threads", other)
    first = d.records["messages"][_first(d.records, key)]
    if first["from"] == me:
        raise Redraw
    return {"key": key, "subject": one["subject"], "first": _first(d.records, key)}


def _steps_sender(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    return nav.open_conversation(screen, p["key"]) or screen.answer(records["messages"][p["first"]]["from"])


def _labelled(records: Records, p: Params) -> int:
    threads = records["threads"].values()
    return sum(p["label"] in one["labels"] and one["folder"] not in ("trash", "spam") for one in threads)


def _steps_labelled(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    return nav.open_mail_page(screen, f"label/{p['label']}") or screen.answer(
        str(_labelled(records, p)), "I have counted them."
    )


TASKS = (
    SiteTask(
        "folder",
        "Open the folder “{title}”.",
        {1: 5},
        _draw_folder,
        lambda s, p: nav.open_mail_page(s, f"folder/{p['folder']}"),
        page=lambda p: (folder_path(p["folder"]), {}),
        zh="打开“{title}”文件夹。",
    ),
    SiteTask(
        "label_page",
        "Show the mails with the label “{name}”.",
        {1: 5},
        _draw_label,
        lambda s, p: nav.open_mail_page(s, f"label/{p['label']}"),
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
        draws.mail(*KEPT),
        lambda s, p: nav.open_conversation(s, p["key"]),
        page=lambda p: (f"thread/{p['key']}", {}),
        ignore=SEEN,
        zh="打开邮件“{subject}”。",
    ),
    SiteTask(
        "search_from",
        "Use the search tools to find mails from {who} in the folder “{title}”.",
        {3: 14},
        _draw_narrow,
        lambda s, p: nav.search_mails(s, p["who"], p["place"]),
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
        _draw_label,
        _steps_labelled,
        answer=_labelled,
        zh="有多少个会话带有“{name}”标签？请回答数字。",
    ),
)

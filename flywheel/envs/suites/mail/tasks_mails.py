"""Define the mailbox's task templates on one mail (star, archive, delete, spam, restore, unread) or a whole folder."""

from __future__ import annotations

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.data import FOLDERS
from flywheel.envs.suites.mail.draws import KEPT, SEEN, Records, acting
from flywheel.envs.suites.mail.pages import act, listed
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, SiteTask


def _steps_star(screen: Screen, p: Params) -> Move | None:
    element = f"star {p['key']}"
    if screen.has(element):
        return screen.click(element, "I click the star.", "Here is the star.")
    return nav.show_thread(screen, p["key"])


def _steps_do(what: str, *said: str):
    """Return the expert's steps: open the mail, then click the button `what` on its page. said: the thoughts."""

    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.open_conversation(screen, p["key"]) or screen.click(what, *said)

    return steps


def _steps_more(what: str, *said: str):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.open_conversation(screen, p["key"]) or nav.click_in_more_menu(screen, what, *said)

    return steps


def _steps_erase(screen: Screen, p: Params) -> Move | None:
    return nav.open_conversation(screen, p["key"]) or click_and_confirm(screen, "erase", "I delete it for good.")


def _steps_empty(screen: Screen, p: Params) -> Move | None:
    return nav.open_mail_page(screen, f"folder/{p['folder']}") or click_and_confirm(screen, "empty", "I empty it.")


def _draw_trash_or_spam(d: Draw) -> Params:
    folder = d.rng.choice(("trash", "spam"))
    return {"folder": folder, "title": d.t(FOLDERS[folder])}


def _empty(records: Records, p: Params) -> None:
    for key in listed(records, p["folder"]):
        act(records, key, "erase")


TASKS = (
    SiteTask(
        "star",
        "Star the mail “{subject}”.",
        {1: 9},
        draws.mail(*KEPT, fits=lambda one: not one["starred"]),
        _steps_star,
        acting("star"),
        ignore=SEEN,
        zh="给邮件“{subject}”加星标。",
    ),
    SiteTask(
        "unstar",
        "Take the star off the mail “{subject}”.",
        {1: 9},
        draws.mail(*KEPT, fits=lambda one: one["starred"]),
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
        draws.mail(*KEPT),
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
        _draw_trash_or_spam,
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
)

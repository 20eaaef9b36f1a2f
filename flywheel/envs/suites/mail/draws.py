"""Draw what several task templates of the mailbox need; make changes of its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.envs.suites.mail.data import PEOPLE, PEOPLE_ZH
from flywheel.envs.suites.mail.pages import act, messages_of
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

Records = dict[str, Any]
SEEN = ("threads/*/unread",)  # opening a mail marks it as read, which counts only in tasks that ask for it
KEPT = ("inbox", "archive")  # the folders of received mails that were not thrown away
_TEXTS = {
    "en": (
        "I will be there.",
        "Thank you for the news.",
        "That is a good idea.",
        "I am sorry, I have no time.",
        "Please send it again.",
        "Let us talk about it tomorrow.",
        "Yes, of course.",
        "It looks fine to me.",
        "Could you call me in the evening?",
        "I agree with all of it.",
    ),
    "zh": (
        "我会去的。",
        "谢谢你告诉我。",
        "这是个好主意。",
        "对不起，我没有时间。",
        "请再发一次。",
        "我们明天再谈。",
        "好，当然。",
        "我看没问题。",
        "晚上给我打电话好吗？",
        "我都同意。",
    ),
}
_SUBJECTS = {
    "en": ("Dinner", "Question", "Numbers for May", "The keys", "Next week", "Order of chairs", "Sunday", "New offer"),
    "zh": ("晚饭", "一个问题", "五月的数字", "钥匙", "下周", "订椅子", "星期天", "新的报价"),
}
_NEW_LABELS = {
    "en": ("Garden", "Music", "Recipes", "House", "Car", "Later"),
    "zh": ("花园", "音乐", "菜谱", "房子", "汽车", "以后"),
}


def mail(*folders: str, fits: Callable[[dict[str, Any]], Any] = lambda thread: True) -> Callable[[Draw], Params]:
    """Return a draw of a conversation in one of `folders` that `fits`."""

    def draw(d: Draw) -> Params:
        key, one = d.pick("threads", lambda thread: thread["folder"] in folders and fits(thread))
        return {"key": key, "subject": one["subject"]}

    return draw


def some(count: int, d: Draw, fits: Callable[[dict[str, Any]], Any]) -> Params:
    """Draw `count` conversations of the first page of the inbox that fit. Raises Redraw where there are fewer."""
    first = [key for key in list_inbox(d.records)[:10] if fits(d.records["threads"][key])]
    if len(first) < count:
        raise Redraw
    keys = d.rng.sample(first, count)
    names = [f"“{d.records['threads'][key]['subject']}”" for key in keys]
    return {"keys": keys, "all": listing(d, names)}


def list_inbox(records: Records) -> list[str]:
    """List the keys of the inbox's conversations in the order of its list."""

    def when(key: str) -> tuple[str, str]:
        last = list(messages_of(records, key).values())[-1]
        return last["_day"], last["_time"]

    inbox = [key for key, one in records["threads"].items() if one["folder"] == "inbox"]
    return sorted(inbox, key=when, reverse=records["settings"]["sort"] == "newest")


def listing(d: Draw, names: list[str]) -> str:
    if len(names) == 2:
        return d.t("{a} and {b}", a=names[0], b=names[1])
    return d.t("{a}, {b} and {c}", a=names[0], b=names[1], c=names[2])


def text(d: Draw) -> str:
    return d.rng.choice(_TEXTS[d.t.language])


def subject(d: Draw) -> str:
    return d.rng.choice(_SUBJECTS[d.t.language])


def new_label(d: Draw) -> str:
    return d.rng.choice(_NEW_LABELS[d.t.language])


def label(d: Draw) -> tuple[str, str]:
    """Draw a label; return its key and name."""
    key, one = d.pick("labels")
    return key, one["name"]


def contact(d: Draw, *taken: str) -> tuple[str, dict[str, Any]]:
    return d.pick("contacts", lambda one: one["name"] not in taken)


def stranger(d: Draw) -> tuple[str, str]:
    """Draw somebody who is not in the contacts; return name and address."""
    known = {one["name"] for one in d.records["contacts"].values()} | {d.records["_me"]["name"]}
    names = [name for name in (PEOPLE_ZH if d.t.language == "zh" else PEOPLE) if name not in known]
    name = d.rng.choice(names)
    before = PEOPLE_ZH.get(name) or name.lower().replace(" ", ".")
    return name, f"{before}{d.rng.randint(2, 99)}@example.com"


def acting(*what: str) -> Callable[[Records, Params], None]:
    """Return a change that does each of `what` (see `pages.act`) to the conversation `key`, or to all `keys`."""

    def change(records: Records, p: Params) -> None:
        for key in p["keys"] if "keys" in p else [p["key"]]:
            for one in what:
                act(records, key, one)

    return change

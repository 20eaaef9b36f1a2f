"""Generate the data of the mailbox anew for each session, in English or Chinese. Today is the first of January 2026.

What a user changes of a conversation (folder, star, labels) is in `threads`, what was written in `messages`; a
conversation holds the messages whose `_thread` it is.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from flywheel.envs.suites.mail import letters
from flywheel.envs.suites.mail.letters import Letter

TODAY, NOW = "2026-01-01", "18:00"
# folder -> title; "starred" and "sent" are views over all conversations
FOLDERS = {
    "inbox": "Inbox",
    "starred": "Starred",
    "sent": "Sent",
    "drafts": "Drafts",
    "archive": "Archive",
    "spam": "Spam",
    "trash": "Trash",
}
COLOURS = ("red", "orange", "green", "blue", "purple", "pink", "gray")
ACTIONS = {
    "label": "Give it a label",
    "archive": "Move it to the archive",
    "star": "Star it",
    "trash": "Move it to the trash",
}
PEOPLE = (
    "Anna Hill",
    "Ben Wood",
    "Clara Stone",
    "David Lake",
    "Emma Field",
    "Frank Marsh",
    "Grace Ford",
    "Henry Park",
    "Iris West",
    "Jack Moore",
    "Kate Brook",
    "Leo Reed",
    "Mary Cole",
    "Nora Lane",
    "Oscar Grant",
    "Paul Rivers",
    "Quinn Bell",
    "Rosa Flint",
    "Sam Dale",
    "Tina Frost",
)
PEOPLE_ZH = {
    "王芳": "wangfang",
    "李伟": "liwei",
    "张敏": "zhangmin",
    "刘洋": "liuyang",
    "陈静": "chenjing",
    "杨帆": "yangfan",
    "赵磊": "zhaolei",
    "黄丽": "huangli",
    "周杰": "zhoujie",
    "吴倩": "wuqian",
    "徐强": "xuqiang",
    "孙琳": "sunlin",
    "马超": "machao",
    "朱婷": "zhuting",
    "胡军": "hujun",
    "林悦": "linyue",
    "郭鹏": "guopeng",
    "何洁": "hejie",
    "高翔": "gaoxiang",
    "罗兰": "luolan",
}
LABELS = ("Work", "Family", "Travel", "Bills", "School", "Health", "Friends", "Sport")
LABELS_ZH = ("工作", "家庭", "旅行", "账单", "学校", "健康", "朋友", "运动")
_CITIES = ("York", "Bath", "Oxford", "Leeds", "Dover", "Perth", "Truro", "Ripon")
_CITIES_ZH = ("杭州", "成都", "西安", "青岛", "厦门", "桂林", "大理", "苏州")
_THINGS = ("kitchen", "website", "new office", "budget", "concert", "bridge", "catalog", "museum")
_THINGS_ZH = ("厨房", "网站", "新办公室", "预算", "音乐会", "大桥", "目录", "博物馆")
_PLACES = ("the station", "the market", "the old mill", "the park", "the town hall", "the bakery")
_PLACES_ZH = ("车站", "市场", "老磨坊", "公园", "市政厅", "面包店")
_STREETS = ("Mill Lane", "High Street", "Park Road", "Station Road", "Green Lane")
_STREETS_ZH = ("磨坊路", "大街", "公园路", "车站路", "绿荫路")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEKDAYS_ZH = ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六")
_DOMAINS = ("example.com", "post.example", "letters.example")
# folder -> number of conversations with people, with companies
_FILLED = {"inbox": (15, 7), "archive": (4, 3), "trash": (2, 1)}
_SPAM, _DRAFTS, _SENT = 3, 3, 4


def make_records(rng: random.Random, language: str) -> dict[str, Any]:
    """Draw the records of a mailbox: threads, messages, drafts, labels, contacts, rules, settings."""
    return _Mailbox(rng, language == "zh").draw_records()


class _Mailbox:
    """Draw a mailbox piece by piece; later pieces use earlier ones."""

    def __init__(self, rng: random.Random, chinese: bool) -> None:
        self.rng, self.chinese, self.language = rng, chinese, "zh" if chinese else "en"
        names = list(PEOPLE_ZH) if chinese else list(PEOPLE)
        rng.shuffle(names)
        self.me, self.people = names[0], {name: self._address(name) for name in names[1:17]}
        self.address = self._address(self.me)
        self.threads: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        names = rng.sample(LABELS_ZH if chinese else LABELS, 5)
        colours = rng.sample(COLOURS, 5)
        self.labels = {f"l{n}": {"name": name, "colour": colours[n - 1]} for n, name in enumerate(names, 1)}
        self.moment = 0  # minutes before now of the message drawn last: the newest is drawn first

    def _address(self, name: str) -> str:
        before = PEOPLE_ZH[name] if self.chinese else name.lower().replace(" ", ".")
        return f"{before}@{self.rng.choice(_DOMAINS)}"

    def draw_records(self) -> dict[str, Any]:
        self._fill()
        rng, names = self.rng, list(self.people)
        known = names[:12]
        names_of = {address: name for name, address in self.people.items()} | {self.address: self.me}
        names_of |= {self._company(key)[1]: self._company(key)[0] for key in letters.COMPANIES}
        some = rng.sample(known, 4)
        used = {one["name"] for one in self.labels.values()}
        return {
            "_me": {"name": self.me, "email": self.address},
            "_people": names_of,
            "_unused": [name for name in (LABELS_ZH if self.chinese else LABELS) if name not in used],
            "_count": 1000,
            "threads": self.threads,
            "messages": self.messages,
            "labels": self.labels,
            "drafts": {f"d{n}": self._draft(some[n]) for n in range(_DRAFTS)},
            "contacts": {
                f"c{n}": {"name": name, "email": self.people[name], "phone": self._phone(), "note": ""}
                for n, name in enumerate(sorted(known))
            },
            "rules": {
                f"r{n}": {"from": self._company(key)[1], "subject": "", "do": "label", "label": f"l{n + 1}"}
                for n, key in enumerate(rng.sample(("bill", "flight", "school", "gym", "phone"), 2))
            },
            "settings": {
                "signature": ("此致，" if self.chinese else "Best, ") + self.me,
                "away": False,
                "away_until": "",
                "away_text": "",
                "sort": "newest",
            },
        }

    def _fill(self) -> None:
        rng = self.rng
        from_people = list(letters.FROM_PEOPLE[self.language])
        from_companies = list(letters.FROM_COMPANIES[self.language])
        junk = [one for one in from_companies if one.key in letters.JUNK]
        serious = [one for one in from_companies if one.key not in letters.JUNK]
        extra = [one for one in from_people if "{" in one.subject]  # can be used again with other facts
        people = from_people + rng.sample(extra, 7)
        rng.shuffle(people)
        rng.shuffle(serious)
        rng.shuffle(junk)
        often = rng.sample(list(self.people), 10)  # the few senders, so that some write more than once
        where = [folder for folder, (private, _) in _FILLED.items() for _ in range(private)]
        jobs = [(letter, folder, rng.choice(often)) for letter, folder in zip(people, where, strict=False)]
        where = [folder for folder, (_, public) in _FILLED.items() for _ in range(public)]
        jobs += [(letter, folder, "") for letter, folder in zip(serious, where, strict=False)]
        jobs += [(letter, "spam", "") for letter in junk[:_SPAM]]
        rng.shuffle(jobs)
        for letter, folder, sender in jobs:
            self._receive(letter, folder, sender)
        for letter in people[len([1 for job in jobs if job[2]]) :][:_SENT]:
            self._receive(letter, "sent", self.me)

    def _receive(self, letter: Letter, folder: str, sender: str) -> None:
        """Add a conversation that begins with `letter`, unless one has its subject. sender: a person, "" for a
        company."""
        rng = self.rng
        name, address = (sender, self.people.get(sender, self.address)) if sender else self._company(letter.key)
        facts = self._facts({name, self.me})
        subject = letter.subject.format(**facts)
        if any(one["subject"] == subject for one in self.threads.values()):
            return
        key = f"t{len(self.threads) + 1}"
        mine = folder == "sent"
        friends = [one for one in self.people if one != name]
        others = rng.sample(friends, rng.choice((0, 0, 1, 2))) if sender else []
        to = [self.people[others.pop() if mine and others else rng.choice(friends)] if mine else self.address]
        count = rng.choice((1, 1, 2, 3)) if sender and folder in ("inbox", "archive") else 1
        receiver = next(one for one in friends if self.people[one] == to[0]) if mine else self.me
        spoken = facts | {
            "me": receiver if self.chinese else receiver.split()[0],
            "name": name if self.chinese or not sender else name.split()[0],
        }
        first = {
            "from": address,
            "to": to,
            "cc": [self.people[one] for one in others if self.people[one] not in to],
            "subject": subject,
            "text": letter.text.format(**spoken),
            "files": [letter.file] if letter.file else [],
        }
        written = [first]
        for number in range(1, count):
            back = number % 2 == 1
            text = rng.choice(letters.ANSWERS[self.language])
            written.append(
                first
                | {
                    "from": self.address if back else address,
                    "to": [address if back else self.address],
                    "subject": f"Re: {subject}",
                    "text": text,
                    "files": [],
                }
            )
        self.threads[key] = {
            "subject": subject,
            "folder": folder,
            "unread": folder in ("inbox", "spam") and rng.random() < 0.35,
            "starred": folder in ("inbox", "archive") and rng.random() < 0.2,
            "labels": {rng.choice(list(self.labels)): True} if rng.random() < 0.35 and folder != "spam" else {},
            "_letter": letter.key,
            "_facts": facts,
            "_before": "inbox",
        }
        moments = [self._moment() for _ in written][::-1]
        for message, (day, time) in zip(written, moments, strict=True):
            self.messages[f"m{len(self.messages) + 1}"] = message | {
                "kind": "",
                "answers": "",
                "_thread": key,
                "_day": day,
                "_time": time,
                "_signature": "",
            }

    def _moment(self) -> tuple[str, str]:
        """Return day and time of a message: 60 to 1,500 minutes before the one drawn last."""
        self.moment += self.rng.randint(60, 1500)
        day, time = str(datetime.fromisoformat(f"{TODAY}T{NOW}") - timedelta(minutes=self.moment)).split(" ")
        return day, time[:5]

    def _company(self, key: str) -> tuple[str, str]:
        return letters.COMPANIES[key][self.language], letters.COMPANIES[key]["address"]

    def _draft(self, name: str) -> dict[str, Any]:
        letter = self.rng.choice(letters.FROM_PEOPLE[self.language])
        facts = self._facts({name, self.me})
        text = self.rng.choice(letters.ANSWERS[self.language])
        return {
            "to": [self.people[name]],
            "cc": [],
            "subject": letter.subject.format(**facts),
            "text": text,
            "kind": "",
            "answers": "",
        }

    def _phone(self) -> str:
        return "555" + "".join(self.rng.choice("0123456789") for _ in range(6))

    def _facts(self, taken: set[str]) -> dict[str, str]:
        rng, zh = self.rng, self.chinese
        return {
            "city": rng.choice(_CITIES_ZH if zh else _CITIES),
            "thing": rng.choice(_THINGS_ZH if zh else _THINGS),
            "place": rng.choice(_PLACES_ZH if zh else _PLACES),
            "street": rng.choice(_STREETS_ZH if zh else _STREETS),
            "weekday": rng.choice(_WEEKDAYS_ZH if zh else _WEEKDAYS),
            "time": f"{rng.randint(8, 19)}:{rng.choice(('00', '15', '30', '45'))}",
            "gate": f"{rng.choice('ABCD')}{rng.randint(1, 30)}",
            "number": str(rng.randint(20, 99)),
            "count": str(rng.randint(2, 9)),
            "amount": str(rng.randint(11, 99)),
            "phone": self._phone(),
            "code": "".join(rng.sample("ABCDEFGHJKLMNPQRSTUVWXYZ", 3)) + str(rng.randint(100, 999)),
            "other": rng.choice([one for one in self.people if one not in taken]),
        }

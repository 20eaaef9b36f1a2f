"""Generate the data of the board anew for each session: a team's projects, cards, sprints and members."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

Records = dict[str, Any]
Card = dict[str, Any]

TODAY = "2026-01-01"
ME = "m1"  # the user of the session
PRIORITIES = ("Low", "Normal", "High", "Urgent")
LABELS = {"bug": "red", "feature": "green", "design": "purple", "text": "blue", "research": "orange", "chore": "gray"}
POINTS = (0, 1, 2, 3, 5, 8)
ROLES = ("Owner", "Admin", "Member", "Viewer")
COLUMNS = (
    ("To do", "In progress", "Review", "Done"),
    ("Ideas", "Planned", "Doing", "Testing", "Done"),
    ("Open", "Doing", "Checking", "Finished"),
    ("Next", "Now", "Waiting", "Done"),
)
FRESH = ("To do", "In progress", "Done")  # columns of a new project
_PROJECTS = {
    "Website": ("WEB", "The new public site"),
    "Mobile app": ("APP", "Phones and tablets"),
    "Billing": ("BIL", "Invoices and payments"),
    "Online store": ("STO", "Catalog, cart and checkout"),
    "Help center": ("HLP", "Answers for customers"),
    "Newsletter": ("NWS", "Letters to our readers"),
    "Data platform": ("DAT", "Numbers for every team"),
    "Partner portal": ("PAR", "Where partners sign in"),
}
NAMES = (
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
)
_COLOURS = ("#b23c17", "#1f6f3f", "#1e5fd0", "#7a3fb0", "#a3266b", "#0b7285", "#8a5a00")
_VERBS = ("Fix", "Test", "Redesign", "Simplify", "Document", "Review", "Translate", "Rebuild", "Improve", "Check")
_THINGS = (
    "login page",
    "search box",
    "price list",
    "export to PDF",
    "invoice template",
    "welcome message",
    "dark theme",
    "error messages",
    "sign-up form",
    "image upload",
    "contact form",
    "start screen",
    "cookie banner",
    "payment form",
    "order history",
    "password reset",
    "user profile",
    "file preview",
    "address book",
    "weekly summary",
    "news feed",
    "photo gallery",
    "map view",
    "date picker",
    "settings page",
    "product page",
    "footer links",
    "side menu",
    "print layout",
    "backup job",
    "import from CSV",
    "email filters",
    "refund rules",
    "tax rates",
    "gift cards",
    "video player",
    "comment section",
    "rating stars",
    "wish list",
    "delivery times",
    "return labels",
    "chat window",
    "calendar sync",
    "meeting notes",
    "access rights",
    "audit log",
    "daily report",
    "sales chart",
    "test server",
    "color palette",
    "icon set",
    "keyboard shortcuts",
    "offline mode",
    "push messages",
    "home screen widget",
    "language switch",
    "currency switch",
    "coupon codes",
    "stock alerts",
    "survey",
    "landing page",
    "privacy notice",
    "terms of use",
    "job listings",
    "press kit",
    "team page",
    "opening hours",
    "store finder",
    "size guide",
    "contract form",
    "partner list",
    "loading time",
)
_TEXTS = (
    "Several customers have asked for it.",
    "It is slow on older phones.",
    "The text does not fit on small screens.",
    "We agreed on this in the last meeting.",
    "The old version stays until the new one is approved.",
    "See the notes of the design team.",
    "It has to work without a mouse.",
    "Marketing needs it before the fair.",
    "The numbers do not match those of last month.",
    "Keep it simple, we can add more later.",
)
STEPS = (
    "Talk to support",
    "Write tests",
    "Collect examples",
    "Draft the text",
    "Ask for a review",
    "Update the guide",
    "Check it on a phone",
    "Measure the speed",
    "Tell the team",
    "Take screenshots",
    "Agree on a date",
    "Remove old code",
    "Ask three users",
    "Make a sketch",
    "Check the numbers",
    "Plan the release",
)
SAID = (
    "I will look at it tomorrow.",
    "This is blocked for now.",
    "Looks good to me.",
    "The customer called again.",
    "Can we talk about this on Monday?",
    "It works on my machine.",
    "I have sent the files.",
    "Please wait for the design.",
    "Half of it is done.",
    "Who can help me here?",
)


def make_records(rng: random.Random, language: str) -> Records:
    """Draw the records of a team, in English only: projects, cards, steps of checklists, comments, sprints, members."""
    names = rng.sample(NAMES, 5)
    colours = rng.sample(_COLOURS, 5)
    members = {
        f"m{n + 1}": {
            "name": name,
            "email": _mail(name),
            "role": "Owner" if n == 0 else rng.choice(ROLES[1:]),
            "_colour": colours[n],
        }
        for n, name in enumerate(names)
    }
    records: Records = {
        "projects": {},
        "cards": {},
        "steps": {},
        "comments": {},
        "sprints": {},
        "members": members,
        "_next": 1000,
    }
    things = rng.sample(_THINGS, len(_THINGS))
    for number, (name, (tag, about)) in enumerate(rng.sample(list(_PROJECTS.items()), 3)):
        key = f"p{number + 1}"
        records["projects"][key] = {
            "name": name,
            "tag": tag,
            "about": about,
            "lead": rng.choice(list(members)),
            "starred": rng.random() < 0.3,
            "archived": False,
            "columns": list(rng.choice(COLUMNS)),
            "_cards": 0,
        }
        sprints = _sprints(rng, records, key)
        days = rng.sample(range(-12, 60), 24)
        for n in range(rng.randint(17, 22)):
            _card(rng, records, key, things.pop(), sprints, days[n], archived=n < 2)
    return records


def _sprints(rng: random.Random, records: Records, project: str) -> list[str]:
    """Add a project's sprints and return their keys: one over, one active or planned, one or two planned."""
    first, begun = rng.randint(3, 20), date(2025, 12, 1) + timedelta(days=rng.randint(0, 6))
    keys = []
    for n in range(rng.randint(3, 4)):
        start = begun + timedelta(days=21 * n)
        state = "Done" if n == 0 else "Active" if n == 1 and rng.random() < 0.6 else "Planned"
        keys.append(f"s{len(records['sprints']) + 1}")
        records["sprints"][keys[-1]] = {
            "project": project,
            "name": f"Sprint {first + n}",
            "start": start.isoformat(),
            "end": (start + timedelta(days=18)).isoformat(),
            "state": state,
        }
    return keys


def _card(
    rng: random.Random, records: Records, key: str, thing: str, sprints: list[str], day: int, archived: bool
) -> None:
    """Add a card to the project `key`, with a checklist and comments. day: when it is due, in days from today."""
    project, members = records["projects"][key], list(records["members"])
    column = rng.choice(project["columns"])
    over = column == project["columns"][-1]
    card = blank(key, column) | {
        "title": f"{rng.choice(_VERBS)} the {thing}",
        "text": " ".join(rng.sample(_TEXTS, 2)),
        "assignee": rng.choice([*members, *members, ""]),
        "priority": rng.choice((*PRIORITIES, "Normal")),
        "labels": _ordered(rng.sample(list(LABELS), rng.choice((0, 1, 1, 2)))),
        "points": rng.choice(POINTS[1:]),
        "due": (date.fromisoformat(TODAY) + timedelta(days=day)).isoformat() if rng.random() < 0.75 else "",
        "sprint": sprints[0] if over else rng.choice(sprints[1:]) if rng.random() < 0.5 else "",
        "archived": archived,
    }
    name = add_card(records, card)
    for text in rng.sample(STEPS, rng.choice((0, 0, 2, 3, 4))):
        records["steps"][f"t{len(records['steps']) + 1}"] = {
            "card": name,
            "text": text,
            "done": over or rng.random() < 0.3,
        }
    for text in rng.sample(SAID, rng.choice((0, 0, 1, 2))):
        records["comments"][f"n{len(records['comments']) + 1}"] = {
            "card": name,
            "by": rng.choice(members),
            "day": f"2025-12-{rng.randint(10, 31)}",
            "text": text,
        }


def blank(project: str, column: str) -> Card:
    return {
        "project": project,
        "title": "",
        "text": "",
        "column": column,
        "assignee": "",
        "labels": [],
        "priority": "Normal",
        "due": "",
        "points": 0,
        "sprint": "",
        "archived": False,
    }


def add_card(records: Records, card: Card) -> str:
    """Add a card at the end of its column, with the next number of its project; return its key."""
    project = records["projects"][card["project"]]
    project["_cards"] += 1
    key = f"k{fresh(records)}"
    records["cards"][key] = {**card, "_number": project["_cards"], "_place": fresh(records)}
    return key


def fresh(records: Records) -> int:
    """Return a number that nothing else has."""
    records["_next"] += 1
    return records["_next"]


def _ordered(labels: list[str]) -> list[str]:
    """Return labels in the order of LABELS, in which the site stores them."""
    return [label for label in LABELS if label in labels]


def _mail(name: str) -> str:
    return f"{name.split()[0].lower()}@example.com"


# -- what follows from records -----------------------------------------------------------------------------------------
def tag(records: Records, card: Card) -> str:
    """Return the short name of a card, such as WEB-14."""
    return f"{records['projects'][card['project']]['tag']}-{card['_number']}"


def cards_of(records: Records, project: str) -> dict[str, Card]:
    """Return the cards of a project that are not archived, in their order."""
    mine = [item for item in records["cards"].items() if item[1]["project"] == project and not item[1]["archived"]]
    return dict(sorted(mine, key=lambda item: item[1]["_place"]))


def is_done(records: Records, card: Card) -> bool:
    """Tell whether a card is in the last column of its board."""
    return card["column"] == records["projects"][card["project"]]["columns"][-1]


def is_late(records: Records, card: Card) -> bool:
    return bool(card["due"]) and card["due"] < TODAY and not is_done(records, card)


def open_cards(records: Records, project: str, assignee: str) -> dict[str, Card]:
    """Return the cards of a project that are assigned to a member and not done."""
    mine = cards_of(records, project).items()
    return {key: card for key, card in mine if card["assignee"] == assignee and not is_done(records, card)}

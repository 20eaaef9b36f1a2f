"""Define the suite `phone`: tasks over the applications of the emulated phone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flywheel.envs.base import TaskTemplate
from flywheel.envs.suites import catalogue, changes
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN, PHONE_APPS
from flywheel.envs.suites.site import Site

# A phone task is made of parts: tasks of its applications' sites, one after the other, each in its own records.
#
# A part has `site`, and `params` as a task of that site has them. One with `read` is only looked up: its answer is used
# in a later part.

TaskPart = dict[str, Any]


def get_part_site(part: Mapping[str, Any]) -> Site:
    return catalogue.get_world(part["site"]).play


def draw_part(site: str, template: str, level: int, rng: random.Random, *, read: bool = False) -> TaskPart:
    """Draw a task of a site as a part. level: the site's own. read: only to be looked up."""
    return {"site": site, "params": catalogue.get_world(site).play.draw(template, level, rng), "read": read}


def get_part_answer(part: Mapping[str, Any]) -> str:
    """Return the answer of a part that is looked up, as text."""
    site, params = get_part_site(part), part["params"]
    found = site.tasks[params["task"]].answer(site.records(params), dict(params))
    return f"{found:g}" if isinstance(found, float) else str(found)


def get_part_state(part: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a part's application, a fresh one where it was not opened, with the answer given."""
    own = state["apps"].get(part["site"]) or get_part_site(part).start(part["params"])
    if state["app"] != part["site"]:  # its page is not shown
        own = {**own, "page": None}
    return {**own, "answer": state.get("answer", "")}


def score_part(part: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the score of a part in [0, 1]."""
    return get_part_site(part).score(part["params"], get_part_state(part, state))


def score_phone_task(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score any phone task, in [0, 1]; 0 where anything was changed that is not asked for.

    params: `parts`; `removed`: icons that should be gone; `opened`: applications that should have been opened, in this
    order (None: any); `home`: the home screen should be shown at the end, else the score is half.
    """
    if _is_anything_harmed(params, state):
        return 0.0
    shares = [score_part(part, state) for part in params["parts"] if not part["read"]]
    if params["removed"]:
        shares.append(_share_of_icons(params["removed"], state))
    if params["opened"] is not None:
        shares.append(float(state["opened"] == params["opened"]))
    value = sum(shares) / len(shares)
    return value / 2 if params["home"] and state["app"] else value


def _is_anything_harmed(params: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Tell whether the home screen or an application was changed that should not be."""
    asked = {part["site"] for part in params["parts"] if not part["read"]}
    readers = {part["site"]: part for part in params["parts"] if part["read"]}
    for name, own in state["apps"].items():
        if name in asked:
            continue
        site = catalogue.get_world(name).play
        start = site.records({"seed": get_records_seed(params, name)})
        ignore = site.tasks[readers[name]["params"]["task"]].ignore if name in readers else _IGNORED_CHANGES
        if changes.share_of_changes(start, start, own["records"], ignore) < 1:
            return True
    return not params["removed"] and _share_of_icons([], state) < 1


_IGNORED_CHANGES = ("threads/*/unread",)  # looking at a mail marks it as read


def _share_of_icons(removed: list[str], state: Mapping[str, Any]) -> float:
    start = HOME_SCREEN.records({"seed": 0})
    goal = {"icons": {key: icon for key, icon in start["icons"].items() if key not in removed}}
    return changes.share_of_changes(start, goal, state["home"]["records"])


def get_records_seed(params: Mapping[str, Any], site: str) -> int:
    """Return the seed of the records that an application begins with."""
    own = next((part["params"]["seed"] for part in params["parts"] if part["site"] == site), None)
    return params["seed"] if own is None else own


# The families of phone tasks, and what each draws at a level. Most consist of tasks of the sites.

SiteTemplate = tuple[str, str, int]  # a site, one of its templates, the site's own level
DrawnParams = dict[str, Any]
# Tasks of the sites that change something, by the phone's level.
CHANGE_TEMPLATES: dict[int, tuple[SiteTemplate, ...]] = {
    1: (("board", "star", 1), ("mail", "star", 1), ("calendar", "hide", 1), ("encyclopaedia", "save", 1),
        ("files", "restore", 1), ("forum", "unfollow", 1)),
    2: (("board", "archive", 2), ("board", "move", 2), ("mail", "archive", 2), ("mail", "delete", 2),
        ("calendar", "answer", 2), ("calendar", "delete", 2), ("encyclopaedia", "note", 2), ("files", "star", 2),
        ("forum", "follow", 2)),
    3: (("board", "comment", 3), ("board", "create", 3), ("mail", "write", 3), ("mail", "reply", 3),
        ("calendar", "create_whole", 3), ("files", "rename", 3), ("forum", "reply", 3)),
}  # fmt: skip
# Tasks of the settings, whose icon is on the second screen.
SETTINGS_TEMPLATES: dict[int, tuple[SiteTemplate, ...]] = {
    1: (("settings", "switch_on", 3), ("settings", "switch_off", 3)),
    2: (("settings", "level", 3),),
    3: (("settings", "level", 4), ("settings", "region", 4)),
}
# Tasks of the sites that ask a question.
QUESTION_TEMPLATES: dict[int, tuple[SiteTemplate, ...]] = {
    1: (("encyclopaedia", "fact", 1), ("encyclopaedia", "symbol", 1)),
    2: (("board", "when", 2), ("mail", "question", 2), ("calendar", "begin", 2), ("forum", "replies", 2)),
    3: (("board", "load", 3), ("mail", "sender", 3), ("calendar", "guests", 3)),
}


@dataclass(frozen=True)
class PhoneTaskFamily:
    """Declare a family of phone tasks.

    draw(level, rng): returns `instruction`, and the params of `score_phone_task` that are not the default ones.
    budgets: steps by level.
    """

    draw: Callable[[int, random.Random], DrawnParams]
    budgets: Mapping[int, int]


_GO_HOME_TEXT = " Go back to the home screen at the end."


def _tell_part(part: TaskPart) -> str:
    return f"in the application {PHONE_APPS[part['site']].name}: {part['params']['instruction']}"


def _look_up(part: TaskPart) -> str:
    """Say what to look up, without the instruction's words on how to answer."""
    question = part["params"]["instruction"].rpartition("? ")[0]
    return f"Look up in the application {PHONE_APPS[part['site']].name}: {question}?"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _pick_part(pools: Mapping[int, Sequence[SiteTemplate]], level: int, rng: random.Random) -> TaskPart:
    return draw_part(*rng.choice(pools[level]), rng)


def _task_params(text: str, *steps: TaskPart, home: bool = False) -> DrawnParams:
    return {"parts": list(steps), "home": home, "instruction": text + (_GO_HOME_TEXT if home else "")}


def _draw_errand(pools: Mapping[int, Sequence[SiteTemplate]]) -> Callable[[int, random.Random], DrawnParams]:
    """Return a draw of one task in one application; above level 1 it ends on the home screen."""

    def draw(level: int, rng: random.Random) -> DrawnParams:
        part = _pick_part(pools, level, rng)
        return _task_params(_capitalise(_tell_part(part)), part, home=level > 1)

    return draw


def _draw_question(level: int, rng: random.Random) -> DrawnParams:
    part = _pick_part(QUESTION_TEMPLATES, level, rng)
    return _task_params(_capitalise(_tell_part(part)), part)


def _draw_several(level: int, rng: random.Random) -> DrawnParams:
    """Draw tasks in two applications, or three."""
    steps: dict[str, TaskPart] = {}
    for pool in {1: (1, 1), 2: (1, 2), 3: (1, 1, 2)}[level]:
        rest = [one for one in CHANGE_TEMPLATES[pool] if one[0] not in steps]
        site, template, own = rng.choice(rest)
        steps[site] = draw_part(site, template, own, rng)
    return _task_params(_capitalise(" Then, ".join(_tell_part(one) for one in steps.values())), *steps.values())


def _draw_mail_to_board(level: int, rng: random.Random) -> DrawnParams:
    """Draw a question about a mail whose answer becomes the title of a card."""
    asked = draw_part("mail", *(("sender", 3) if level == 3 else ("question", 2)), rng, read=True)
    written = draw_part("board", "create", 3, rng)
    wanted = written["params"]["wanted"]
    wanted["title"] = get_part_answer(asked)
    text = (
        f"{_look_up(asked)} Then, in the application Board, in the project “{written['params']['where']}”, create a "
        f"card in the column “{wanted['column']}” whose title is that alone, a number in digits."
    )
    return _task_params(text, asked, written, home=level > 1)


def _draw_almanac_to_calendar(level: int, rng: random.Random) -> DrawnParams:
    """Draw a question to the almanac whose answer becomes the title of an event."""
    asked = draw_part("encyclopaedia", "symbol" if level == 1 else "fact", 1, rng, read=True)
    written = draw_part("calendar", "create_whole", 3, rng)
    written["params"]["wanted"]["title"] = written["params"]["title"] = get_part_answer(asked)
    text = (
        f"{_look_up(asked)} Then, in the application Calendar, make an event that takes all day on "
        f"{written['params']['when']} and whose title is that alone."
    )
    return _task_params(text, asked, written, home=level > 2)


def _draw_icons(level: int, rng: random.Random) -> DrawnParams:
    """Draw icons to take off the home screen."""
    gone = rng.sample(sorted(PHONE_APPS), level)
    names = " and ".join(PHONE_APPS[site].name for site in gone)
    icons = "the icon" if level == 1 else "the icons"
    return {"removed": sorted(gone), "home": True, "instruction": f"Take {icons} of {names} off the home screen."}


def _draw_rounds(level: int, rng: random.Random) -> DrawnParams:
    """Draw applications to open one after the other."""
    order = rng.sample(sorted(PHONE_APPS), level + 2)
    names = ", then ".join(PHONE_APPS[site].name for site in order)
    return {"opened": order, "home": True, "instruction": f"Open {names}.{_GO_HOME_TEXT}"}


PHONE_TASK_FAMILIES: dict[str, PhoneTaskFamily] = {
    "errand": PhoneTaskFamily(_draw_errand(CHANGE_TEMPLATES), {1: 12, 2: 18, 3: 26}),
    "setting": PhoneTaskFamily(_draw_errand(SETTINGS_TEMPLATES), {1: 10, 2: 12, 3: 18}),
    "question": PhoneTaskFamily(_draw_question, {1: 12, 2: 16, 3: 16}),
    "several": PhoneTaskFamily(_draw_several, {1: 18, 2: 26, 3: 30}),
    "mail_to_board": PhoneTaskFamily(_draw_mail_to_board, {1: 26, 2: 28, 3: 28}),
    "almanac_to_calendar": PhoneTaskFamily(_draw_almanac_to_calendar, {1: 22, 2: 26, 3: 28}),
    "icons": PhoneTaskFamily(_draw_icons, {1: 6, 2: 10, 3: 14}),
    "rounds": PhoneTaskFamily(_draw_rounds, {1: 12, 2: 15, 3: 18}),
}


PHONE_VERIFIER = "phone:score"
_DEFAULT_PARAMS = {"parts": [], "removed": [], "opened": None, "home": False}
_FOLDER = Path(__file__).parent
_SOURCE_SUFFIXES = {".py", ".html"}


class PhoneWorld(catalogue.BrowserWorld):
    """Hold the suite `phone`. To its base class it is a site, whose own pages are the home screen."""

    environment: ClassVar[str] = "phone"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of a task: what `score_phone_task` reads, and the seed of all other applications' records.

        Raises BadInput for a template or a level that the suite does not have.
        """
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return {**_DEFAULT_PARAMS, "seed": rng.randrange(2**31), **PHONE_TASK_FAMILIES[template].draw(level, rng)}

    @property
    def play(self) -> Site:
        return HOME_SCREEN

    def verifier(self, name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], float] | None:
        return score_phone_task if name == PHONE_VERIFIER else None

    def score(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
        return score_phone_task(params, state)

    def seed_of(self, params: Mapping[str, Any], site: str) -> int:
        return get_records_seed(params, site)


def _checksum() -> str:
    """Return the sha256 of this folder's files and of the applications' checksums: a task depends on both."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _SOURCE_SUFFIXES:
            digest.update(path.relative_to(_FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for site in PHONE_APPS:
        digest.update(catalogue.get_world(site).checksum.encode())
    return digest.hexdigest()


PHONE = PhoneWorld(
    name="phone",
    domain="phone",
    title="Phone",
    kind="site",
    version=1,
    folder=HOME_SCREEN.folder,
    templates={
        name: TaskTemplate(instruction="{instruction}", verifier=PHONE_VERIFIER, max_steps=dict(family.budgets))
        for name, family in PHONE_TASK_FAMILIES.items()
    },
    checksum=_checksum(),
)

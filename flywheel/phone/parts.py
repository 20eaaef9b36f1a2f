"""What a phone's tasks are made of: tasks of its applications' sites, one after the other, each in its own records.

A part: `site`, and `params` as a task of that site has them. One that is `read` is looked up and nothing else: what it
answers is used in a later part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.phone.launcher import HOME
from flywheel.worlds import catalogue, changes
from flywheel.worlds.site import Site

Part = dict[str, Any]


def site_of(part: Mapping[str, Any]) -> Site:
    return catalogue.get(part["site"]).play


def drawn(site: str, template: str, level: int, rng: random.Random, *, read: bool = False) -> Part:
    """A task of a site. level: of the site's own."""
    return {"site": site, "params": catalogue.get(site).play.draw(template, level, rng), "read": read}


def answer(part: Mapping[str, Any]) -> str:
    """What a part that is looked up says, as one would write it."""
    site, params = site_of(part), part["params"]
    found = site.tasks[params["task"]].answer(site.records(params), dict(params))
    return f"{found:g}" if isinstance(found, float) else str(found)


def told(part: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a part's application, which may not have begun, with the answer that was given."""
    own = state["apps"].get(part["site"]) or site_of(part).start(part["params"])
    if state["app"] != part["site"]:  # its page is not seen
        own = {**own, "page": None}
    return {**own, "answer": state.get("answer", "")}


def done(part: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """The share of a part that is done, 0 to 1."""
    return site_of(part).score(part["params"], told(part, state))


def score(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """The verifier of all phone tasks. params: `parts`; `removed`: the icons that shall be gone; `opened`: the
    applications that shall have been opened, in order (None: any); `home`: the home screen shall be seen at the end.

    0 where anything was changed that nobody asked for.
    """
    if _harmed(params, state):
        return 0.0
    shares = [done(part, state) for part in params["parts"] if not part["read"]]
    if params["removed"]:
        shares.append(_icons(params["removed"], state))
    if params["opened"] is not None:
        shares.append(float(state["opened"] == params["opened"]))
    value = sum(shares) / len(shares)
    return value / 2 if params["home"] and state["app"] else value


def _harmed(params: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether an application was changed that is not asked for, or one that was only to be read, or the home screen."""
    asked = {part["site"] for part in params["parts"] if not part["read"]}
    readers = {part["site"]: part for part in params["parts"] if part["read"]}
    for name, own in state["apps"].items():
        if name in asked:
            continue
        site = catalogue.get(name).play
        start = site.records({"seed": seed_of(params, name)})
        ignore = site.tasks[readers[name]["params"]["task"]].ignore if name in readers else _UNREAD
        if changes.share(start, start, own["records"], ignore) < 1:
            return True
    return not params["removed"] and _icons([], state) < 1


_UNREAD = ("threads/*/unread",)  # a mail that is looked at is no more unread


def _icons(removed: list[str], state: Mapping[str, Any]) -> float:
    start = HOME.records({"seed": 0})
    goal = {"icons": {key: icon for key, icon in start["icons"].items() if key not in removed}}
    return changes.share(start, goal, state["home"]["records"])


def seed_of(params: Mapping[str, Any], site: str) -> int:
    """Of the records that an application begins with."""
    own = next((part["params"]["seed"] for part in params["parts"] if part["site"] == site), None)
    return params["seed"] if own is None else own

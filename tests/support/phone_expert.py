"""An expert on the phone: it does the tasks by touches, from what is on the screen alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.base import Task
from flywheel.envs.suites.phone import world
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN, PHONE_APPS
from flywheel.envs.suites.screen import Move, Screen


def next_phone_step(task: Task, state: Mapping[str, Any], seed: int = 0) -> tuple[str, Action] | None:
    """Thought and action for the screen that `state` (`info["state"]`) describes; None where nothing is left to do.

    seed: varies the wording, and whether an application is opened by its icon or by name.
    """
    rng = random.Random(f"{task.task_id} {seed} {state['app']} {len(state['elements'])}")
    params = task.params
    for number, part in enumerate(params["parts"]):
        later = {one["site"] for one in params["parts"][number + 1 :]}
        if part["read"] and part["site"] in state["apps"] and (not state["app"] or later & state["apps"].keys()):
            continue  # it was read, and one is on the way to do something with it
        if not part["read"] and world.score_part(part, state) == 1:
            continue
        if state["app"] != part["site"]:
            return _opened(task, part["site"], state, rng, seed)
        move = _within(part, state, rng)
        if move is not None and part["read"] and isinstance(move[1], act.Finished):
            continue  # here it stands
        return move
    if state["app"] == "" and params["removed"] and (move := _removed(params, state, rng)):
        return move
    order = params["opened"]
    if order is not None and state["opened"] != order and state["opened"] == order[: len(state["opened"])]:
        return _opened(task, order[len(state["opened"])], state, rng, seed)
    if params["home"] and state["app"]:
        return rng.choice(("I go home.", "Back to the home screen.")), act.PressHome()
    return None


def _within(part: Mapping[str, Any], state: Mapping[str, Any], rng: random.Random) -> Move | None:
    """What the site's own expert does, by fingers."""
    site, params = world.get_part_site(part), part["params"]
    own = state["apps"][part["site"]]
    shown = {**own, "elements": state["elements"], "beyond": state.get("beyond", ())}
    move = site.tasks[params["task"]].steps(Screen(shown, rng, site.t), params)
    return move and (move[0], _by_touch(move[1], state))


def _by_touch(action: Action, state: Mapping[str, Any]) -> Action:
    """A key of the keyboard as a phone has it: a long press marks a field's text, a new line submits it."""
    match action:
        case act.Hotkey(("ctrl", "a")):
            field = next(one for one in state["elements"] if one.get("focused"))
            return act.LongPress(_middle(field))
        case act.Hotkey(("enter",)):
            return act.Type("\n")
    return action


def _opened(task: Task, site: str, state: Mapping[str, Any], rng: random.Random, seed: int) -> Move:
    """Towards an application: by name, or by its icon on the home screen."""
    name = PHONE_APPS[site].name.lower()
    screen = _home(state, rng)
    if random.Random(f"{task.task_id} {seed} {site}").random() < 0.5 or not state["home"]["records"]["icons"].get(site):
        return screen.say(f"I open the {name}.", f"Now the {name}."), act.OpenApp(PHONE_APPS[site].name)
    if state["app"] or not screen.has(f"app {site}"):
        return screen.say("First I go home.", "Back to the home screen."), act.PressHome()
    return screen.click(f"app {site}", f"I tap the {name}.", f"Here is the {name}.")


def _removed(params: Mapping[str, Any], state: Mapping[str, Any], rng: random.Random) -> Move | None:
    """Towards a home screen without these icons."""
    left = [site for site in params["removed"] if site in state["home"]["records"]["icons"]]
    screen = _home(state, rng)
    if not left:
        return None
    if screen.has("remove"):
        asked = state["home"]["page"].rpartition("/")[2]
        return screen.click("remove", "I take it away.") if asked in left else screen.click("leave", "Not this one.")
    move = screen.click(f"app {left[0]}")
    if isinstance(move[1], act.Click):
        return screen.say("I hold my finger on it.", "I press it for a while."), act.LongPress(move[1].point)
    return move


def _home(state: Mapping[str, Any], rng: random.Random) -> Screen:
    return Screen(
        {**state["home"], "elements": state["elements"], "beyond": state.get("beyond", ())}, rng, HOME_SCREEN.t
    )


def _middle(element: Mapping[str, Any]) -> Point:
    return Point(element["x"] + element["w"] / 2, element["y"] + element["h"] / 2)

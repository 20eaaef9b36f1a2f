"""Define the board's task templates on cards: create, change, move, archive, comment."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.board import data, draws, nav
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]


# -- from column to column ---------------------------------------------------------------------------------------------
def _draw_next(d: Draw) -> Params:
    """Draw an open card, to be moved on by its button on the board."""
    drawn = draws.card(d, draws.is_open(d))
    one = d.records["cards"][drawn["key"]]
    project = d.records["projects"][one["project"]]
    return {**drawn, "project": one["project"], "where": project["name"], "column": one["column"]}


def _next(records: Records, p: Params) -> None:
    one = records["cards"][p["key"]]
    columns = records["projects"][one["project"]]["columns"]
    one["column"] = columns[columns.index(one["column"]) + 1]


def _steps_next(screen: Screen, p: Params) -> Move | None:
    move = nav.open_column(screen, p["project"], p["column"])
    return move or screen.click(f"next {p['key']}", "I move it on.", "One column on.")


def _draw_move(d: Draw) -> Params:
    drawn = draws.card(d)
    return {**drawn, "column": draws.other_column(d, drawn["key"])}


def _move(records: Records, p: Params) -> None:
    records["cards"][p["key"]]["column"] = p["column"]


def _steps_move(screen: Screen, p: Params) -> Move | None:
    return nav.move_card(screen, p["key"], p["column"])


def _draw_clear_column(d: Draw) -> Params:
    """Draw a column that holds two cards, and another one to move them to."""
    drawn = draws.project(d)
    cards = data.cards_of(d.records, drawn["project"])
    columns = d.records["projects"][drawn["project"]]["columns"]
    held = {column: [key for key, one in cards.items() if one["column"] == column] for column in columns}
    column = d.rng.choice(columns)
    if len(held[column]) != 2:
        raise Redraw
    target = d.rng.choice([other for other in columns if other != column])
    return {**drawn, "keys": held[column], "before": column, "column": target}


def _clear_column(records: Records, p: Params) -> None:
    for key in p["keys"]:
        records["cards"][key]["column"] = p["column"]


def _steps_clear_column(screen: Screen, p: Params) -> Move | None:
    """Move each card on its page, opened from the board."""
    left = [key for key in p["keys"] if screen.records["cards"][key]["column"] != p["column"]]
    if not left:
        return None
    move = nav.open_card_on_board(screen, left[0])
    return move or screen.fill({"column": p["column"]}, "move", {**nav.SAID, "move": ("I move it.",)})


# -- fields ------------------------------------------------------------------------------------------------------------
def _change(records: Records, p: Params) -> None:
    records["cards"][p["key"]] |= p["wanted"]


def _steps_change(screen: Screen, p: Params) -> Move | None:
    wanted = {name: str(value) for name, value in p["wanted"].items()}
    return nav.edit_card(screen, p["key"], wanted)


def _draw_assign(d: Draw) -> Params:
    drawn = {**draws.card(d), **draws.member(d)}
    return {**drawn, "wanted": {"assignee": drawn["member"]}}


def _draw_priority(d: Draw) -> Params:
    priority = d.rng.choice(data.PRIORITIES)
    return {**draws.card(d), "priority": priority, "wanted": {"priority": priority}}


def _draw_due(d: Draw) -> Params:
    due = draws.day(d)
    return {**draws.card(d), "due": due, "wanted": {"due": due}}


def _draw_rename(d: Draw) -> Params:
    title = draws.title(d)
    return {**draws.card(d), "new": title, "wanted": {"title": title}}


def _draw_reschedule(d: Draw) -> Params:
    drawn = {**draws.card(d), **draws.member(d)}
    due, priority = draws.day(d), d.rng.choice(data.PRIORITIES)
    wanted = {"assignee": drawn["member"], "priority": priority, "due": due}
    if any(d.records["cards"][drawn["key"]][name] == value for name, value in wanted.items()):
        raise Redraw
    return {**drawn, "due": due, "priority": priority, "wanted": wanted}


def _draw_labels(d: Draw) -> Params:
    drawn = draws.card(d)
    chosen = d.rng.sample(list(data.LABELS), 2)
    labels = [label for label in data.LABELS if label in chosen]
    if labels == d.records["cards"][drawn["key"]]["labels"]:
        raise Redraw
    return {**drawn, "one": labels[0], "two": labels[1], "wanted": {"labels": labels}}


def _steps_labels(screen: Screen, p: Params) -> Move | None:
    wanted = {f"label_{label}": label in p["wanted"]["labels"] for label in data.LABELS}
    return nav.edit_card(screen, p["key"], wanted)


# -- new cards, archived cards -----------------------------------------------------------------------------------------
def _draw_create(d: Draw) -> Params:
    drawn = draws.project(d)
    column = d.rng.choice(d.records["projects"][drawn["project"]]["columns"])
    return {**drawn, "wanted": {"title": draws.title(d), "column": column}}


def _draw_create_full(d: Draw) -> Params:
    drawn = {**_draw_create(d), **draws.member(d)}
    more = {"assignee": drawn["member"], "priority": d.rng.choice(("Low", "High", "Urgent")), "due": draws.day(d)}
    return {**drawn, "wanted": {**drawn["wanted"], **more}, "label": d.rng.choice(list(data.LABELS))}


def _create(records: Records, p: Params) -> None:
    labels = {"labels": [p["label"]]} if "label" in p else {}
    data.add_card(records, data.blank(p["project"], "") | p["wanted"] | labels)


def _steps_create(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"new/{p['project']}":
        labels = {f"label_{p['label']}": True} if "label" in p else {}
        return screen.fill({**p["wanted"], **labels}, "save", nav.SAID)
    move = nav.open_project(screen, p["project"])
    return move or screen.click("new card", "I make a new card.", "A new card.")


def _archive(records: Records, p: Params) -> None:
    records["cards"][p["key"]]["archived"] = True


def _steps_archive(screen: Screen, p: Params) -> Move | None:
    return nav.open_card(screen, p["key"]) or click_and_confirm(screen, "archive", "I put it away.")


def _draw_restore(d: Draw) -> Params:
    key, one = d.pick("cards", lambda one: one["archived"])
    where = d.records["projects"][one["project"]]["name"]
    return {"key": key, "title": one["title"], "project": one["project"], "where": where}


def _restore(records: Records, p: Params) -> None:
    records["cards"][p["key"]]["archived"] = False


def _steps_restore(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"card/{p['key']}":
        return screen.click("restore", "I bring it back.")
    if screen.has(f"card {p['key']}"):
        return screen.click(f"card {p['key']}", "I open the card.", "Here it is.")
    move = nav.open_project(screen, p["project"], "list")
    return move or screen.click("show archived", "I look at the old cards.")


# -- checklists and comments -------------------------------------------------------------------------------------------
def _draw_step(d: Draw) -> Params:
    """Draw a step of a checklist that is not done."""
    key, one = d.pick("steps", lambda one: not one["done"] and not d.records["cards"][one["card"]]["archived"])
    return {"step": key, "text": one["text"], "key": one["card"], "title": d.records["cards"][one["card"]]["title"]}


def _tick(records: Records, p: Params) -> None:
    records["steps"][p["step"]]["done"] = True


def _steps_tick(screen: Screen, p: Params) -> Move | None:
    return nav.open_card(screen, p["key"]) or screen.click(f"step {p['step']}", "I tick it.", "This is done.")


def _draw_new_step(d: Draw) -> Params:
    drawn = draws.card(d)
    known = {one["text"] for one in draws.steps(d, drawn["key"]).values()}
    return {**drawn, "text": d.rng.choice([text for text in data.STEPS if text not in known])}


def _new_step(records: Records, p: Params) -> None:
    records["steps"]["new"] = {"card": p["key"], "text": p["text"], "done": False}


def _steps_new_step(screen: Screen, p: Params) -> Move | None:
    return nav.open_card(screen, p["key"]) or screen.fill({"step": p["text"]}, "", {"step": ("I type the step.",)})


def _draw_comment(d: Draw) -> Params:
    return {**draws.card(d), "text": d.rng.choice(data.SAID)}


def _comment(records: Records, p: Params) -> None:
    records["comments"]["new"] = {"card": p["key"], "by": data.ME, "day": data.TODAY, "text": p["text"]}


def _steps_comment(screen: Screen, p: Params) -> Move | None:
    move = nav.open_card(screen, p["key"])
    return move or screen.fill({"comment": p["text"]}, "send", {"comment": ("I type it.",), "send": ("I send it.",)})


def _draw_wrap_up(d: Draw) -> Params:
    """Draw an open card with a checklist of which one or two steps are left."""
    drawn = draws.card(d, draws.is_open(d))
    left = [name for name, one in draws.steps(d, drawn["key"]).items() if not one["done"]]
    if not 1 <= len(left) <= 2:
        raise Redraw
    project = d.records["projects"][d.records["cards"][drawn["key"]]["project"]]
    return {**drawn, "left": left, "text": d.rng.choice(data.SAID), "column": project["columns"][-1]}


def _wrap_up(records: Records, p: Params) -> None:
    for step in p["left"]:
        records["steps"][step]["done"] = True
    _comment(records, p)
    _move(records, p)


def _steps_wrap_up(screen: Screen, p: Params) -> Move | None:
    left = [step for step in p["left"] if not screen.records["steps"][step]["done"]]
    if left:
        return _steps_tick(screen, {**p, "step": left[0]})
    said = [one for one in screen.records["comments"].values() if (one["card"], one["by"]) == (p["key"], data.ME)]
    if not any(one["text"] == p["text"] and one["day"] == data.TODAY for one in said):
        return _steps_comment(screen, p)
    return _steps_move(screen, p)


TASKS = (
    SiteTask(
        "next", "On the board “{where}”, move the card “{title}” one column on.", {1: 8}, _draw_next, _steps_next, _next
    ),
    SiteTask("move", "Move the card “{title}” to the column “{column}”.", {2: 10}, _draw_move, _steps_move, _move),
    SiteTask(
        "clear_column",
        "On the board “{where}”, move all cards of the column “{before}” to “{column}”.",
        {5: 22},
        _draw_clear_column,
        _steps_clear_column,
        _clear_column,
    ),
    SiteTask("assign", "Assign the card “{title}” to {who}.", {2: 12}, _draw_assign, _steps_change, _change),
    SiteTask(
        "priority",
        "Set the priority of the card “{title}” to {priority}.",
        {2: 12},
        _draw_priority,
        _steps_change,
        _change,
    ),
    SiteTask("due", "Set the due date of the card “{title}” to {due}.", {3: 14}, _draw_due, _steps_change, _change),
    SiteTask(
        "rename", "Change the title of the card “{title}” to “{new}”.", {3: 14}, _draw_rename, _steps_change, _change
    ),
    SiteTask(
        "reschedule",
        "Assign the card “{title}” to {who}, with the priority {priority}, due on {due}.",
        {4: 20},
        _draw_reschedule,
        _steps_change,
        _change,
    ),
    SiteTask(
        "labels",
        "Give the card “{title}” the labels “{one}” and “{two}”, and no other.",
        {4: 15},
        _draw_labels,
        _steps_labels,
        _change,
    ),
    SiteTask(
        "create",
        "In the project “{where}”, create a card “{wanted[title]}” in the column “{wanted[column]}”.",
        {3: 14},
        _draw_create,
        _steps_create,
        _create,
    ),
    SiteTask(
        "create_full",
        "In the project “{where}”, create a card “{wanted[title]}” in the column "
        "“{wanted[column]}” for {who}: priority {wanted[priority]}, due on {wanted[due]}, label “{label}”.",
        {5: 24},
        _draw_create_full,
        _steps_create,
        _create,
    ),
    SiteTask("archive", "Archive the card “{title}”.", {2: 10}, draws.card, _steps_archive, _archive),
    SiteTask(
        "restore",
        "Bring back the archived card “{title}” of the project “{where}”.",
        {3: 10},
        _draw_restore,
        _steps_restore,
        _restore,
    ),
    SiteTask("tick", "On the card “{title}”, tick off the step “{text}”.", {2: 10}, _draw_step, _steps_tick, _tick),
    SiteTask(
        "new_step",
        "Add the step “{text}” to the checklist of the card “{title}”.",
        {3: 12},
        _draw_new_step,
        _steps_new_step,
        _new_step,
    ),
    SiteTask("comment", "Comment on the card “{title}”: “{text}”", {3: 14}, _draw_comment, _steps_comment, _comment),
    SiteTask(
        "wrap_up",
        "Wrap up the card “{title}”: tick off all of its steps, comment “{text}”, and move it to “{column}”.",
        {5: 24},
        _draw_wrap_up,
        _steps_wrap_up,
        _wrap_up,
    ),
)

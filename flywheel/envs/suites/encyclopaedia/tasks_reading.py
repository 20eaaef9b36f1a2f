"""Define the encyclopaedia's task templates on pages, the reading list, notes and units."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import CONTINENTS, KINDS, SERIES, articles, list_articles
from flywheel.envs.suites.encyclopaedia.pages import COLUMNS, LABELS, UNITS
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]
_NOTES = ("Ask about this.", "Read this again.", "For the test on Monday.", "Show it to Ben.", "Is this true?")


def _any(d: Draw) -> Params:
    one = d.rng.choice(list(articles().values()))
    return {"key": one.slug, "title": one.title}


def _draw_new(d: Draw) -> Params:
    drawn = _any(d)
    if drawn["key"] in d.records["reading"]:
        raise Redraw
    return drawn


def _draw_kept(d: Draw) -> Params:
    key = d.rng.choice(list(d.records["reading"]))
    return {"key": key, "title": articles()[key].title}


def _save(records: Records, p: Params) -> None:
    records["reading"][p["key"]] = True


def _unsave(records: Records, p: Params) -> None:
    del records["reading"][p["key"]]


def _steps_save(screen: Screen, p: Params) -> Move | None:
    return nav.open_article(screen, p["key"]) or screen.click("save", "I keep it for later.", "Onto the list.")


def _steps_unsave(screen: Screen, p: Params) -> Move | None:
    if screen.page != "reading":
        return screen.click("reading", "I open my list.")
    return screen.click(f"remove {p['key']}", "I take it off.", "I remove it.")


def _draw_kind(d: Draw) -> Params:
    """Draw a kind that some articles of the reading list have, and some have not."""
    kinds = [articles()[key].kind for key in d.records["reading"]]
    fits = [kind for kind in KINDS if 0 < kinds.count(kind) < len(kinds)]
    if not fits:
        raise Redraw
    kind = d.rng.choice(fits)
    return {"kind": kind, "title": d.t(KINDS[kind]).lower()}


def _clear_kind(records: Records, p: Params) -> None:
    records["reading"] = {key: True for key in records["reading"] if articles()[key].kind != p["kind"]}


def _steps_clear_kind(screen: Screen, p: Params) -> Move | None:
    left = [key for key in screen.records["reading"] if articles()[key].kind == p["kind"]]
    return _steps_unsave(screen, {"key": left[0]}) if left else None


def _draw_works(d: Draw) -> Params:
    one = d.rng.choice([one for one in list_articles("people") if 2 <= one.facts["count"] <= 3])
    if set(one.links["Elements"]) & set(d.records["reading"]):
        raise Redraw
    return {"key": one.slug, "title": one.title}


def _save_works(records: Records, p: Params) -> None:
    records["reading"] |= {key: True for key in articles()[p["key"]].links["Elements"]}


def _steps_works(screen: Screen, p: Params) -> Move | None:
    left = [key for key in articles()[p["key"]].links["Elements"] if key not in screen.records["reading"]]
    if not left:
        return None
    return nav.follow_links(screen, [p["key"], left[0]]) or screen.click(
        "save", "I keep it for later.", "Onto the list."
    )


def _draw_note(d: Draw) -> Params:
    drawn = _any(d)
    if drawn["key"] in d.records["notes"]:
        raise Redraw
    return {**drawn, "text": d.rng.choice(_NOTES)}


def _note(records: Records, p: Params) -> None:
    records["notes"][p["key"]] = p["text"]


def _steps_note(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"wiki/{p['key']}" and screen.query.get("tab") == "note":
        return screen.fill(
            {"text": p["text"]}, "save note", {"text": ("I type the note.",), "save note": ("I save it.",)}
        )
    move = nav.open_article(screen, p["key"])
    return move or screen.click(f"tab wiki/{p['key']}?tab=note", "I open my note.", "I go to the note.")


def _draw_old_note(d: Draw) -> Params:
    key, text = d.pick("notes")
    return {"key": key, "title": articles()[key].title, "text": d.rng.choice([n for n in _NOTES if n != text])}


def _draw_units(d: Draw) -> Params:
    name = d.rng.choice(list(UNITS))
    value = next(option for option in UNITS[name] if option != d.records["units"][name])
    words = {
        "kelvin": "temperatures in kelvin",
        "celsius": "temperatures in degrees Celsius",
        "kilometers": "areas in square kilometers",
        "miles": "areas in square miles",
    }
    return {"wanted": {name: value}, "words": words[value]}


def _units(records: Records, p: Params) -> None:
    records["units"] |= p["wanted"]


def _draw_table(d: Draw) -> Params:
    kind = d.rng.choice(list(KINDS))
    sort, order = d.rng.choice([name for name in COLUMNS[kind] if name != "name"]), d.rng.choice(("up", "down"))
    first = "smallest" if order == "up" else "largest"
    return {
        "kind": kind,
        "sort": sort,
        "order": order,
        "title": KINDS[kind].lower(),
        "column": LABELS[sort].lower(),
        "first": first,
    }


def _draw_narrow(d: Draw) -> Params:
    kind = d.rng.choice(("elements", "countries", "cities"))
    only = d.rng.choice(SERIES if kind == "elements" else CONTINENTS)
    words = f"only the {only.lower()} among the elements" if kind == "elements" else f"only the {kind} of {only}"
    return {"kind": kind, "only": only, "by": "series" if kind == "elements" else "continent", "words": words}


def _draw_word(d: Draw) -> Params:
    return {
        "word": d.rng.choice(
            (
                "gas",
                "poison",
                "coins",
                "capital",
                "Russia",
                "steel",
                "light",
                "sea",
                "Sweden",
                "radioactive",
                "glass",
                "Berlin",
                "batteries",
                "island",
                "paint",
            )
        )
    }


TASKS = (
    SiteTask(
        "visit",
        "Open the article on {title}.",
        {1: 5},
        _any,
        lambda s, p: nav.open_article(s, p["key"]),
        page=lambda p: (f"wiki/{p['key']}", {}),
    ),
    SiteTask(
        "search",
        "Search the almanac for “{word}”.",
        {1: 4},
        _draw_word,
        lambda s, p: s.fill({"search": p["word"]}, ""),
        page=lambda p: ("search", {"q": p["word"]}),
    ),
    SiteTask(
        "category",
        "Show {words}.",
        {1: 5},
        _draw_narrow,
        lambda s, p: nav.open_table(s, p["kind"], p["only"]),
        page=lambda p: (f"list/{p['kind']}", {p["by"]: p["only"]}),
    ),
    SiteTask(
        "sort",
        "Show the table of {title}, sorted by {column}, the {first} first.",
        {2: 9},
        _draw_table,
        lambda s, p: nav.open_table(s, p["kind"], "", p["sort"], p["order"]),
        page=lambda p: (f"list/{p['kind']}", {"sort": p["sort"], "order": p["order"]}),
    ),
    SiteTask("save", "Put the article on {title} on the reading list.", {1: 7}, _draw_new, _steps_save, _save),
    SiteTask("unsave", "Take {title} off the reading list.", {1: 6}, _draw_kept, _steps_unsave, _unsave),
    SiteTask(
        "clear_kind",
        "Take all {title} off the reading list, and nothing else.",
        {2: 9},
        _draw_kind,
        _steps_clear_kind,
        _clear_kind,
    ),
    SiteTask(
        "save_works",
        "Put all elements that {title} discovered on the reading list.",
        {3: 22},
        _draw_works,
        _steps_works,
        _save_works,
    ),
    SiteTask("note", "Write the note “{text}” on the article on {title}.", {2: 12}, _draw_note, _steps_note, _note),
    SiteTask("change_note", "Change the note on {title} to “{text}”", {2: 13}, _draw_old_note, _steps_note, _note),
    SiteTask(
        "units",
        "Let the almanac show {words}.",
        {2: 9},
        _draw_units,
        lambda s, p: nav.choose_units(s, **p["wanted"]),
        _units,
    ),
)

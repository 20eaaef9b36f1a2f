"""Decide which end states solve a task, by a second reading of the worlds' documentation, to test the verifiers.

A mutation counts against a verifier only where it does not solve the task by this reading; any other state that does is
a legal end, which a verifier must accept. No verifier's code is used but that of sites' templates: which page and
answer are wanted, and which paths are ignored, is taken from the template, as the verifier does (`_site_contract`).
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.phone import world as phone
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN
from flywheel.envs.suites.site import Site
from flywheel.synthesis.verifier_attack.answers import Answer, fold_answer, reword_answer
from flywheel.synthesis.verifier_attack.mutations import (
    GONE,
    Path,
    State,
    Variation,
    get_at,
    list_changes,
    list_leaves,
    put_at,
)

Ways = Callable[[State, State, random.Random], Iterator[Variation]]
Tampering = Callable[[Sequence[State]], Iterator[Variation]]


@dataclass(frozen=True)
class Contract:
    """Hold which end states solve one task: what must equal the known solution, and what may differ.

    parts: paths of the state's parts that are mutated. counted: reduces a state to what must equal the solution; states
    with equal results are the same to a reader of the documentation. ways: yields other legal ends from (start, a
    solution's end, rng). answer: the right answer, None where any may be given. tampered: yields further wrong states
    from all states of a solution.
    """

    parts: tuple[Path, ...]
    counted: Callable[[State], Any]
    ways: Ways
    answer: Answer | None = None
    tampered: Tampering = lambda states: iter(())


def find_contract(task: Task) -> Contract:
    """Return the contract of a suite's task. Raises KeyError for a suite without one."""
    params = task.params
    if task.environment == "phone":
        return _phone_contract(params)
    if task.environment in ("terminal", "computer"):
        return _desk_contract(params) if task.world == "desk" else _chore_contract(params)
    if catalogue.get_world(task.world).kind == "game":
        return Contract((), _counted_of_game, _ways_of_game, tampered=_tampered_games)
    play = catalogue.get_world(task.world).play
    if isinstance(play, Site) and "seed" in params:
        return _site_contract(play, params)
    return {"shop": _small_shop_contract, "settings": _small_settings_contract, "control": _control_contract}[
        task.world
    ](task)


# -- in any state ----------------------------------------------------------------------------------------------------
def _one_space(value: Any) -> Any:
    return " ".join(unicodedata.normalize("NFC", value).split()) if isinstance(value, str) else value


def _reverse_keys(tree: Any) -> Any:
    return {key: _reverse_keys(tree[key]) for key in reversed(tree)} if isinstance(tree, Mapping) else tree


def _wide_spaces(start: State, gold: State, parts: tuple[Path, ...]) -> Iterator[Variation]:
    """The texts that were changed, with spaces around them and two between their words."""
    for part in parts:
        for path in list_changes(get_at(start, part), get_at(gold, part), part):
            value = get_at(gold, path)
            for leaf in [] if value is GONE else list_leaves(value):
                if isinstance(text := get_at(value, leaf), str) and text:
                    changed = put_at(gold, (*path, *leaf), f" {text.replace(' ', '  ')} ")
                    yield Variation("spaces", "/".join(map(str, (*path, *leaf))), changed)
                    return


def _reworded(gold: State, answer: Answer | None) -> Iterator[Variation]:
    texts = ("Done.", "I did what was asked.") if answer is None else reword_answer(answer, str(gold.get("answer", "")))
    for text in texts:
        yield Variation("answer", text, {**gold, "answer": text})


# -- pages by manifest -----------------------------------------------------------------------------------------------
def make_page_contract(task: Task) -> Contract:
    """Return the contract of a third-party page's task: enough reward and, where it asks for one, a right answer."""
    answers = [_as_number(text) for text in task.params.get("answer", ())]

    def counted(state: State) -> Any:
        said = state.get("answer", "")
        right = not answers or any(fold_answer(one, said) == fold_answer(one, str(one)) for one in answers)
        went = (state["reward"] - state["floor"]) / (state["success"] - state["floor"])
        return "solved" if right and went >= task.threshold else [said, state["reward"]]

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        yield Variation("more reward", "", {**gold, "reward": gold["reward"] + 1})
        yield Variation("another page", "", {**gold, "page": "elsewhere", "values": {}})
        for answer in answers or [None]:
            yield from _reworded({**gold, "answer": gold.get("answer", "") if answer is None else str(answer)}, answer)

    def tampered(states: Sequence[State]) -> Iterator[Variation]:
        """Less reward, whatever else the end holds; and every state on the way."""
        gold = states[-1]
        for share in (0.0, 0.5, 0.9, 0.99):
            reward = gold["floor"] + share * task.threshold * (gold["success"] - gold["floor"])
            for told in ({}, {"terminated": True}, {"page": "done"}, {"values": {"reward": 1, "success": True}}):
                yield Variation("less reward", f"{reward:g} {told}", {**gold, **told, "reward": reward})

    return Contract((), counted, ways, answers[0] if answers else None, tampered)


def _as_number(text: str) -> str | float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


# -- sites -----------------------------------------------------------------------------------------------------------
@dataclass
class _Records:
    """Reduce the records of a site to what counts: spaces, bookkeeping, ignored paths and new ids do not."""

    start: Mapping[str, Any]
    ignore: tuple[str, ...]
    # Of entries by identity and path: mutations share what they leave alone.
    seen: dict[tuple[int, str], tuple[Any, str | None]] = field(default_factory=dict)

    def reduce(self, records: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: self._collection(name, value) for name, value in records.items() if not name.startswith("_")}
        return {
            name: reduced for name, reduced in found.items() if reduced != ({}, [])
        }  # an empty one is as good as none

    def _collection(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return self._text(name, value)
        known, kept, new = self.start.get(name, {}), {}, []
        for key, entry in value.items():
            fresh = isinstance(entry, Mapping) and key not in known
            text = None if key.startswith("_") else self._text(f"{name}/+" if fresh else f"{name}/{key}", entry)
            if text is not None and fresh:
                new.append(text)
            elif text is not None:
                kept[key] = text
        return kept, sorted(new)

    def _text(self, path: str, value: Any) -> str | None:
        if (id(value), path) not in self.seen:
            reduced = self._value(path, value)
            text = None if reduced is GONE else json.dumps(reduced, sort_keys=True)
            self.seen[id(value), path] = value, text
        return self.seen[id(value), path][1]

    def _value(self, path: str, value: Any) -> Any:
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in self.ignore):
            return GONE
        if isinstance(value, Mapping):
            inner = {key: self._value(f"{path}/{key}", one) for key, one in value.items() if not key.startswith("_")}
            return {key: one for key, one in inner.items() if one is not GONE}
        return [self._value(f"{path}/", one) for one in value] if isinstance(value, list) else _one_space(value)


def _site_contract(site: Site, params: Mapping[str, Any]) -> Contract:
    template, start = site.tasks[params["task"]], site.records(params)
    _, page, answer = template.wanted(start, params)
    records = _Records(start, tuple(template.ignore))

    def counted(state: State) -> Any:
        where = page and [state["page"], *(_one_space(state["query"].get(name, "")) for name in page[1])]
        return records.reduce(state["records"]), where, answer is None or fold_answer(answer, state.get("answer", ""))

    parts: tuple[Path, ...] = (("records",),)
    if page is not None:
        parts += (("page",), *(("query", name) for name in page[1]))
    return Contract(parts, counted, _ways_of_site(site, template.ignore, page, answer), answer)


def _ways_of_site(site: Site, ignore: Any, page: Any, answer: Answer | None, at: Path = ()) -> Ways:
    """at: path of the site's own state, for a phone's application."""

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        own = get_at(gold, at)
        yield Variation("order", "records", put_at(gold, (*at, "records"), _reverse_keys(own["records"])))
        yield Variation("bookkeeping", "_seen", put_at(gold, (*at, "records", "_seen"), 7))
        yield from _wide_spaces(start, gold, ((*at, "records"),))
        yield from _new_ids(start, gold, (*at, "records"))
        for pattern in ignore:
            paths = [path for path in list_leaves(own["records"]) if fnmatch.fnmatchcase("/".join(path), pattern)]
            for path in rng.sample(paths, min(1, len(paths))):
                yield Variation("ignored", "/".join(path), put_at(gold, (*at, "records", *path), "other"))
        refused = {"page": "", "errors": {"name": "Write something."}, "values": {}}
        yield Variation("a refused form", "", put_at(put_at(gold, (*at, "refused"), refused), (*at, "notice"), "No."))
        yield from _visits(site, gold, page, at)
        if page is not None:
            yield Variation("query", "more=1", put_at(gold, (*at, "query", "more"), "1"))
        if not at:
            yield from _reworded(gold, answer)

    return ways


def _visits(site: Site, gold: State, page: Any, at: Path) -> Iterator[Variation]:
    """Another look at the first page; and back, where the page counts."""
    own = json.loads(json.dumps({**get_at(gold, at), "notice": "", "refused": None}))
    here, query = own["page"], own["query"]
    if site.view(own, "", {}) is not None and (page is None or site.view(own, here, query) is not None):
        yield Variation("another page", "", put_at(gold, at, own))


def _new_ids(start: State, gold: State, records: Path) -> Iterator[Variation]:
    """New entries under other ids, wherever these are named."""
    new = {
        path[-1]: f"{path[-1]}9"
        for path in list_changes(get_at(start, records), get_at(gold, records))
        if len(path) == 2 and isinstance(get_at(gold, (*records, *path)), Mapping)
    }

    def renamed(tree: Any) -> Any:
        if isinstance(tree, Mapping):
            return {new.get(key, key): renamed(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [renamed(value) for value in tree]
        return new.get(tree, tree) if isinstance(tree, str) else tree

    if new:
        yield Variation("new ids", ", ".join(new.values()), put_at(gold, records, renamed(get_at(gold, records))))


# -- small pages and games -------------------------------------------------------------------------------------------
def _ways_of_game(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
    yield Variation("order", "", _reverse_keys(gold))
    yield Variation("more moves", "", {**gold, "moves": gold.get("moves", 0) + 5})
    yield Variation("another frame", "", {**gold, "frame": {}, "elements": []})
    yield Variation("fewer points", "", {**gold, "score": 0.5})
    yield from _reworded(gold, None)


def _counted_of_game(state: State) -> Any:
    return "won" if state["won"] else json.dumps({**state, "elements": 0}, sort_keys=True)


def _tampered_games(states: Sequence[State]) -> Iterator[Variation]:
    """Every state that is not won, as it is, with the points of a won one, and as if the game were over."""
    tampering = ({}, {"score": 1}, {"score": 1.0, "terminated": True}, {"score": 0.9999}, {"score": 1, "lost": True})
    for told in tampering:
        for number, state in enumerate(states):
            if not state["won"]:
                yield Variation("not won", f"after {number} steps, {told}", {**state, **told})


def _control_contract(task: Task) -> Contract:
    submit = task.params["end"] == "submit"

    def counted(state: State) -> Any:
        values = {key: state["values"].get(key) for key in task.params["start"]}
        stripped = {key: value.strip() if isinstance(value, str) else value for key, value in values.items()}
        return json.dumps(stripped, sort_keys=True), submit and state["submitted"]

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        padded = {key: f" {one} " if isinstance(one, str) else one for key, one in gold["values"].items()}
        yield Variation("spaces", "", {**gold, "values": padded})
        yield Variation("order", "", _reverse_keys(gold))
        yield Variation("another view", "", {**gold, "view": start["view"], "scroll": {}, "focus": "", "elements": []})
        yield Variation("more moves", "", {**gold, "moves": gold["moves"] + 5, "ticks": gold["ticks"] + 5})
        yield from _reworded(gold, None)

    return Contract((("values",), *([("submitted",)] if submit else [])), counted, ways)


def _small_shop_contract(task: Task) -> Contract:
    """Of the small shop all that a visitor can change counts; the page and the search where they are asked for."""
    asked = {"shop_opened": "page", "shop_searched": "query"}.get(task.verifier)

    def counted(state: State) -> Any:
        orders = [{**order, "name": order["name"].strip().lower()} for order in state["orders"]]
        seen = state[asked].strip().lower() if asked else ""
        return json.dumps([state["cart"], orders, seen], sort_keys=True)

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        for key in {"page", "query"} - {asked}:
            yield Variation("another page", key, {**gold, key: "cart" if key == "page" else "mug"})
        if asked == "query":
            yield Variation("case", "", {**gold, "query": f" {gold['query'].upper()} "})
        if gold["orders"]:
            orders = [{**order, "name": f" {order['name'].title()}"} for order in gold["orders"]]
            yield Variation("case", "", {**gold, "orders": orders})
        yield from _reworded(gold, None)

    parts = ("cart",), ("orders",), *([(asked,)] if asked else [])
    return Contract(parts, counted, ways)


def _small_settings_contract(task: Task) -> Contract:
    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        yield from (Variation("another page", page, {**gold, "page": page}) for page in ("look", "user"))
        yield from _reworded(gold, None)

    return Contract((("values",),), lambda state: json.dumps(state["values"], sort_keys=True), ways)


# -- the phone -------------------------------------------------------------------------------------------------------
def _phone_contract(params: Mapping[str, Any]) -> Contract:
    """Of all applications nothing may change but what the parts ask for; then icons, order, and where it ends."""
    asked = {part["site"]: part for part in params["parts"] if not part["read"]}
    named = {part["site"]: part for part in params["parts"]} | asked
    contracts, records = {}, {}
    for name in phone.PHONE_APPS:
        site = catalogue.get_world(name).play
        ignore = site.tasks[named[name]["params"]["task"]].ignore if name in named else ("threads/*/unread",)
        start = site.records({"seed": phone.get_records_seed(params, name)})
        records[name] = _Records(start, tuple(ignore))
        contracts[name] = _site_contract(site, named[name]["params"]) if name in asked else None
    home = _Records(HOME_SCREEN.records({"seed": 0}), ())
    answer = next((one.answer for one in contracts.values() if one and one.answer is not None), None)

    def counted(state: State) -> Any:
        apps = {
            name: (
                contracts[name].counted({**own, "answer": state.get("answer", "")})
                if name in asked
                else records[name].reduce(own["records"])
            )
            for name in phone.PHONE_APPS
            if (own := state["apps"].get(name) or {"records": records[name].start, "page": "", "query": {}})
        }
        told = [params["opened"] is not None and state["opened"], params["home"] and state["app"]]
        return apps, home.reduce(state["home"]["records"]), told

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        if params["opened"] is None:
            yield Variation("opened", "", {**gold, "opened": ["mail", *gold["opened"]]})
        for name in phone.PHONE_APPS.keys() - gold["apps"].keys():
            site = catalogue.get_world(name).play
            fresh = site.start({"seed": phone.get_records_seed(params, name)})
            yield Variation("another application", name, put_at(gold, ("apps", name), fresh))
            break
        for name in asked:
            site, template = catalogue.get_world(name).play, contracts[name]
            yield from _ways_of_site(site, (), None, template.answer, ("apps", name))(start, gold, rng)
        yield from _reworded(gold, answer)

    parts = (("home", "records"), *((("apps", name, "records")) for name in asked))
    parts += (("app",),) if params["home"] else ()
    parts += (("opened",),) if params["opened"] is not None else ()
    return Contract(parts, counted, ways, answer)


# -- computers -------------------------------------------------------------------------------------------------------
def _file_value(path: str, text: Any) -> Any:
    """What a file says: the values of JSON and CSV, of other texts the lines without space at their ends."""
    if not isinstance(text, str):
        return None
    try:
        if path.endswith(".json"):
            return json.dumps(json.loads(text), sort_keys=True)
        if path.endswith(".csv"):
            rows = csv.reader(io.StringIO(text), strict=True)
            return json.dumps([[cell.strip() for cell in row] for row in rows if row])
    except (ValueError, csv.Error):
        return f"damaged {text}"
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def _reformatted(path: str, text: str) -> str:
    if path.endswith(".json"):
        return json.dumps(json.loads(text), indent=3, sort_keys=True)
    if path.endswith(".csv"):
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows(csv.reader(io.StringIO(text)))
        return out.getvalue()
    return "\n".join(f"{line} " for line in text.rstrip("\n").split("\n"))


def _formats(start: State, gold: State, wanted: Mapping[str, Any]) -> Iterator[Variation]:
    for path in list_changes(start["files"], gold["files"]):
        if isinstance(text := gold["files"].get(path[0]), str) and text and wanted.get(path[0]):
            for kind, other in (("format", _reformatted(path[0], text)), ("last line", text.rstrip("\n"))):
                yield Variation(kind, path[0], put_at(gold, ("files", path[0]), other))


def _chore_contract(params: Mapping[str, Any]) -> Contract:
    """Of a chore counts all that its params want, and every file of the beginning that is not free."""
    watched = {*params["files"], *params.get("binary", {}), *params.get("wanted", {})} - set(params.get("free", ()))
    watched -= {path for path in params.get("binary", {}) if path.startswith(".") or "/." in path}
    answer = params.get("answer")
    if isinstance(answer, str) and answer.lstrip("-").replace(".", "", 1).isdigit():
        answer = float(answer) if "." in answer else int(answer)

    def counted(state: State) -> Any:
        found = {path: _file_value(path, state.get("files", {}).get(path)) for path in watched}
        found["/answer"] = answer is None or fold_answer(answer, state.get("answer", ""))
        ports = {port: state.get("ports", {}).get(port) for port in params.get("served", {})}
        found["/ports"] = {port: text.strip() if isinstance(text, str) else text for port, text in ports.items()}
        found["/packed"] = {path: state.get("packed", {}).get(path) for path in params.get("packed", {})}
        found["/received"] = state.get("received", [])[-1:] if "received" in params else None
        found["/printed"] = [one.strip() for one in state.get("printed") or ()] if "printed" in params else None
        return found | {"/checked": state.get("checked", {}).get("score")}

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        yield Variation("a file more", "scratch-7.tmp", put_at(gold, ("files", "scratch-7.tmp"), "x"))
        yield Variation("a folder more", "scratch-7/", put_at(gold, ("files", "scratch-7/"), ""))
        yield from _formats(start, gold, params.get("wanted", {}))
        for path in params.get("free", ()):
            yield Variation("free", path, put_at(gold, ("files", path), GONE))
        for port, text in gold.get("ports", {}).items():
            if text is not None:
                yield Variation("spaces", port, put_at(gold, ("ports", port), f"{text}\n"))
        if "received" in params:
            yield Variation("a form before", "", {**gold, "received": [{"other": "1"}, *gold["received"]]})
        if "printed" in params:
            yield Variation("spaces", "printed", {**gold, "printed": [f"{line}\n" for line in gold["printed"]]})
        yield from _reworded(gold, answer)

    parts = [("files", path) for path in sorted(watched)] or [("files",)]
    parts += [(name,) for name in ("ports", "packed", "received", "printed") if _WANTED.get(name, name) in params]
    return Contract(tuple(parts), counted, ways, answer)


_WANTED = {"ports": "served"}  # part of a state -> the param that wants it, where that has another name


def _desk_contract(params: Mapping[str, Any]) -> Contract:
    """Of a desk all files count, and no other may be there."""

    def counted(state: State) -> Any:
        return {path: _file_value(path, text) for path, text in state["files"].items()}

    def ways(start: State, gold: State, rng: random.Random) -> Iterator[Variation]:
        yield Variation("order", "", _reverse_keys(gold))
        yield from _formats(start, gold, params["wanted"])
        yield from _reworded(gold, None)

    return Contract((("files",),), counted, ways)

"""What all sites are built of: how changes are judged, answers, forms, languages, and what an expert does next."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import Click, Finished, Hotkey, Point, Scroll, Type
from flywheel.envs.suites import catalogue, changes, forms, messages
from flywheel.envs.suites.forms import Field, Invalid
from flywheel.envs.suites.screen import Screen
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.suites.site import Page, Site, site_address
from flywheel.envs.suites.site_tasks import Redraw, SiteTask
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import BadInput, DataError

# -- changes -----------------------------------------------------------------------------------------------------------
START = {"notes": {"n1": {"text": "a", "done": False}, "n2": {"text": "b", "done": True}}, "theme": "light", "_next": 3}


def changed(change) -> dict:
    records = copy.deepcopy(START)
    change(records)
    return records


GOAL = changed(lambda r: r["notes"]["n1"].update(done=True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: r["notes"]["n1"].update(done=True), 1.0),
        (lambda r: None, 0.0),
        (lambda r: r["notes"]["n2"].update(done=False), 0.0),
        (lambda r: (r["notes"]["n1"].update(done=True), r.update(theme="dark")), 1 / 2),
        (lambda r: (r["notes"]["n1"].update(done=True), r.update(_next=9)), 1.0),  # bookkeeping
        (lambda r: (r["notes"]["n1"].update(done=True), r["notes"].update(n9={"text": "c"})), 1 / 2),
        (lambda r: (r["notes"]["n1"].update(done=True), r["notes"].pop("n2")), 1 / 4),  # an entry and its two fields
    ],
)
def test_only_what_was_asked_scores_one(change, expected):
    assert changes.share_of_changes(START, GOAL, changed(change)) == pytest.approx(expected)


def test_new_entries_are_known_by_their_content():
    goal = changed(lambda r: r["notes"].update(new={"text": "milk  and\nbread", "done": False}))
    made = changed(lambda r: r["notes"].update(n7={"text": "milk and bread", "done": False, "_seen": 1}))
    twice = changed(lambda r: r["notes"].update({k: {"text": "milk and bread", "done": False} for k in ("n7", "n8")}))
    other = changed(lambda r: r["notes"].update(n7={"text": "milk", "done": False}))
    assert changes.share_of_changes(START, goal, made) == 1.0
    assert changes.share_of_changes(START, goal, twice) == 0.0
    assert changes.share_of_changes(START, goal, other) == 0.0


def test_what_is_left_out_does_not_count():
    seen = changed(lambda r: (r["notes"]["n1"].update(done=True), r.update(theme="dark")))
    assert changes.share_of_changes(START, GOAL, seen, ["theme"]) == 1.0
    assert changes.share_of_changes(START, START, seen, ["theme", "notes/*/done"]) == 1.0


LEAF = st.one_of(st.booleans(), st.integers(), st.text(max_size=3))
RECORDS = st.dictionaries(st.sampled_from("abc"), st.one_of(LEAF, st.dictionaries(st.sampled_from("xy"), LEAF)))


@given(RECORDS, RECORDS, RECORDS)
def test_a_share_is_one_exactly_where_the_goal_is_reached(start, goal, now):
    value = changes.share_of_changes(start, goal, now)
    assert 0 <= value <= 1
    assert changes.share_of_changes(start, goal, goal) == 1
    if value == 1:
        assert changes.share_of_changes(now, goal, goal) == 1
        assert changes.share_of_changes(start, now, goal) == 1


@pytest.mark.parametrize(
    ("given_", "wanted", "right"),
    [
        (" paris. ", "Paris", True),
        ("Sao Paulo", "São Paulo", True),
        ("Lyon", "Paris", False),
        ("", "Paris", False),
        ("$1,204.50", 1204.5, True),
        ("12 MB", 12, True),
        ("-3", -3, True),
        ("12 or 13", 12, False),
        ("", 0, False),
        ("ann and Bob", ["Bob", "Ann"], True),
        ("Ann, Ann", ["Ann"], False),
        ("Ann", ["Ann", "Bob"], False),
        ("铁", "铁", True),
        ("铁、铜", ["铜", "铁"], True),
    ],
)
def test_answers(given_, wanted, right):
    assert changes.same_answer(given_, wanted) is right


@given(st.text(), st.one_of(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text())))
def test_no_answer_breaks_the_verifier(text, wanted):
    assert changes.same_answer(text, wanted) in (True, False)


# -- forms and languages -----------------------------------------------------------------------------------------------
def test_every_wrong_field_is_named():
    fields = (
        Field("to", check=forms.email),
        Field("text", longest=5),
        Field("note", required=False),
        Field("day", check=forms.day),
        Field("at", check=forms.clock),
        Field("count", check=forms.whole_number(1, 9)),
        Field("code", check=forms.digits(4)),
        Field("kind", check=forms.one_of(("a", "b"))),
    )
    right = {
        "to": " a@b.cd ",
        "text": "hello",
        "day": "2026-02-28",
        "at": "09:30",
        "count": "9",
        "code": "0042",
        "kind": "a",
    }
    assert forms.read_form(right, fields) == {**right, "to": "a@b.cd", "note": ""}
    wrong = {
        "to": "a@b",
        "text": "hello!",
        "day": "2026-02-30",
        "at": "24:00",
        "count": "10",
        "code": "٤٢٤٢",
        "kind": "c",
    }
    with pytest.raises(Invalid) as refused:
        forms.read_form(wrong, fields)
    assert set(refused.value.errors) == {*wrong}
    with pytest.raises(Invalid) as refused:
        forms.read_form({}, fields)
    assert "note" not in refused.value.errors


def test_a_language_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match="'xx'"):
        messages.load_messages(tmp_path, "xx")
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "zh.json").write_text("[")
    with pytest.raises(BadInput, match=r"zh\.json"):
        messages.Messages(tmp_path, "zh")


@pytest.mark.parametrize(
    "name", [name for name in catalogue.list_worlds() if catalogue.get_world(name).language != "en"]
)
def test_translations_keep_their_placeholders(name):
    world = catalogue.get_world(name)
    table = messages.load_messages(world.folder, world.language)._texts
    for text, translated in table.items():
        places = {part.split("}")[0] for part in text.split("{")[1:]}
        assert places == {part.split("}")[0] for part in translated.split("{")[1:]}, text
    assert world.play.tasks.keys() == catalogue.get_world(world.folder.name).play.tasks.keys()
    assert all(task.zh for task in world.play.tasks.values())


# -- a small site ------------------------------------------------------------------------------------------------------
def small_site(folder: Path) -> Site:
    site = Site(
        folder, lambda rng, language: {"notes": {"n1": {"text": f"note {rng.randint(0, 99)}"}}, "theme": "light"}
    )

    @site.page("")
    def home(visit):
        return Page.of("home.html", notes=visit.records["notes"])

    @site.page("note/<key>")
    def note(visit, key):
        return Page.of("note.html", note=visit.records["notes"][key]) if key in visit.records["notes"] else None

    @site.form("note/<key>/save")
    def save(visit, key):
        visit.records["notes"][key]["text"] = "half done"  # a refused form must not leave this behind
        visit.records["notes"][key]["text"] = visit.read(Field("text", longest=20))["text"]
        visit.notice("Saved.")
        return f"note/{key}"

    return site


def test_a_refused_form_shows_again_and_changes_nothing(tmp_path: Path):
    site = small_site(tmp_path)
    state = site.start({"seed": 1})
    assert site.view(state, "note/n1", {"tab": "x"})[1]["at"] == "note/n1?tab=x"
    site.view(state, "", {})  # another tab moved on
    before = copy.deepcopy(state["records"])
    target = site.act(state, "note/n1/save", {"text": "a" * 21, "_at": "note/n1?tab=x"})
    assert (target, state["records"]) == ("note/n1?tab=x", before)
    assert site.view(state, "", {})[1]["typed"] == {}
    target = site.act(state, "note/n1/save", {"text": "", "_at": "//elsewhere/"})
    assert target == ""  # not a page of the site: back to the last one
    site.act(state, "note/n1/save", {"text": "a" * 21, "_at": "note/n1"})
    shown = site.view(state, "note/n1", {})[1]
    assert (shown["typed"]["text"], shown["errors"]) == ("a" * 21, {"text": "This is too long."})
    assert site.view(state, "note/n1", {})[1]["errors"] == {}


def test_a_notice_is_said_once_and_what_is_unknown_is_nothing(tmp_path: Path):
    site = small_site(tmp_path)
    state = site.start({"seed": 1})
    assert site.act(state, "note/n1/save", {"text": "new"}) == "note/n1"
    assert site.view(state, "note/n1", {})[1]["notice"] == "Saved."
    assert site.view(state, "note/n1", {})[1]["notice"] == ""
    for path in ("note/n2", "note", "note/n1/save", "note//", "n1"):
        assert site.view(state, path, {}) is None
    assert site.act(state, "nothing", {}) is None
    assert state["page"] == "note/n1"


def test_what_is_done_already_is_never_asked(tmp_path: Path):
    site = small_site(tmp_path)

    def draw(d):
        if d.rng.random() < 0.5:
            raise Redraw
        return {"theme": d.rng.choice(("light", "dark"))}

    def change(records, params):
        records["theme"] = params["theme"]

    def impossible(d):
        raise Redraw

    site.offer(
        [
            SiteTask("theme", "Use the {theme} theme.", {1: 3}, draw, lambda screen, p: None, change),
            SiteTask("never", "Do it.", {1: 3}, impossible, lambda screen, p: None, change),
        ]
    )
    for seed in range(20):
        params = site.draw("theme", 1, random.Random(seed))
        assert (params["theme"], params["instruction"]) == ("dark", "Use the dark theme.")
        start = site.start(params)
        assert site.score(params, start) == 0
        start["records"]["theme"] = "dark"
        assert site.score(params, start) == 1
    with pytest.raises(BadInput, match="never"):
        site.draw("never", 1, random.Random(0))
    with pytest.raises(ValueError, match="two task templates"):
        site.offer([site.tasks["theme"]])


def test_addresses():
    assert site_address("list") == "list"
    assert site_address("list", q="", page=2, brand="A & B") == "list?page=2&brand=A+%26+B"


# -- what an expert does -----------------------------------------------------------------------------------------------
def screen(*elements: dict, beyond: tuple = ()) -> Screen:
    shown = [{"x": 0.1, "y": 0.2, "w": 0.2, "h": 0.1, "focused": False, **one} for one in elements]
    state = {"records": {}, "page": "", "query": {}, "elements": shown, "beyond": list(beyond)}
    return Screen(state, random.Random(0), messages.Messages(Path(), "en"))


def test_an_element_is_clicked_or_scrolled_to():
    assert screen({"name": "a"}).click("a")[1] == Click(Point(0.2, 0.25))
    assert screen({"name": "a", "y": 0.98}).click("a")[1] == Scroll(Point(0.5, 0.5), "down")
    assert screen(beyond=({"name": "a", "x": 0.5, "y": -2.0},)).click("a")[1] == Scroll(Point(0.5, 0.5), "up")
    with pytest.raises(DataError, match="'b'"):
        screen({"name": "a"}).click("b")


@pytest.mark.parametrize(
    ("element", "action"),
    [
        ({"value": ""}, Click(Point(0.2, 0.25))),
        ({"value": "", "focused": True}, Type("new")),
        ({"value": "old", "focused": True}, Hotkey(("ctrl", "a"))),
        ({"value": "old", "focused": True, "selected": True}, Type("new")),
        ({"value": "old", "picker": True}, Click(Point(0.2, 0.25))),
    ],
)
def test_a_field_is_filled_in_step_by_step(element, action):
    assert screen({"name": "text", **element}, {"name": "go"}).fill({"text": "new"}, "go")[1] == action


def test_an_open_list_may_hang_down_beyond_the_screen():
    """Its field is then above, and is not to be scrolled back to before the option was clicked."""
    above = {"name": "kind", "x": 0.5, "y": -0.2}, {"name": "go", "x": 0.5, "y": -0.2}
    assert screen({"name": "kind film"}, beyond=above).fill({"kind": "film"}, "go")[1] == Click(Point(0.2, 0.25))
    below = *above, {"name": "kind film", "x": 0.5, "y": 1.1}
    assert screen(beyond=below).fill({"kind": "film"}, "go")[1] == Scroll(Point(0.5, 0.5), "down")
    assert screen(beyond=above).fill({"kind": "film"}, "go")[1] == Scroll(Point(0.5, 0.5), "up")
    hidden = {"name": "kind", "y": -0.3, "value": "", "picker": True}
    assert screen(hidden, {"name": "kind film"}).fill({"kind": "film"}, "go")[1] == Click(Point(0.2, 0.25))


def test_a_form_is_sent_once_it_is_as_wanted():
    fields = {"name": "text", "value": "new"}, {"name": "box", "checked": True, "value": "on"}
    done = screen(*fields, {"name": "go", "x": 0.5})
    assert done.fill({"text": "new", "box": True}, "go")[1] == Click(Point(0.6, 0.25))
    assert screen({"name": "q", "focused": True, "value": ""}).fill({"q": "x"})[1] == Type("x\n")
    assert screen({"name": "q", "focused": True, "value": "x"}).fill({"q": "x"})[1] == Hotkey(("enter",))
    assert done.answer("42")[1] == Finished("42")


# -- the server --------------------------------------------------------------------------------------------------------
async def test_a_site_that_fails_answers_by_a_page_and_no_other_session_suffers():
    task = make_task(catalogue.get_world("settings"), "switch_on", 3, 1, "train")
    async with WorldServer() as server, httpx.AsyncClient() as client:
        broken, sound = server.new_session(task, 1), server.new_session(task, 1)
        server._session(broken).state["records"] = None
        for answer in (await client.get(broken), await client.post(broken + "switch/wifi")):
            assert (answer.status_code, "<h1>Something went wrong" in answer.text) == (500, True)
            assert "Traceback" not in answer.text
        assert (await client.get(sound)).status_code == 200


async def test_the_forum_lists_a_board_whose_topics_are_all_moved():
    forum = catalogue.get_world("forum")
    task = make_task(forum, next(iter(forum.templates)), 1, 1, "train")
    async with WorldServer() as server, httpx.AsyncClient() as client:
        base = server.new_session(task, 1)
        records = server._session(base).state["records"]
        board, other = records["_moderates"]
        for key in [key for key, one in records["topics"].items() if one["board"] == board]:
            assert (await client.post(f"{base}topic/{key}/move", data={"board": other})).status_code == 303
        assert [(await client.get(base + path)).status_code for path in ("", f"board/{board}")] == [200, 200]


async def test_what_is_too_long_is_refused_in_the_language_of_the_site():
    task = make_task(catalogue.get_world("settings_zh"), "switch_on", 3, 1, "train")
    async with WorldServer() as server, httpx.AsyncClient() as client:
        base = server.new_session(task, 1)
        answer = await client.post(base + "rename", content=b"device=" + b"x" * 1_000_000)
        assert (answer.status_code, "表单内容太长" in answer.text) == (413, True)
        answer = await client.post(base + "rename", data={"device": "x" * 31, "_at": "about"}, follow_redirects=True)
        assert "内容太长" in answer.text
        assert server.state(base)["records"]["values"]["device"] != "x" * 31

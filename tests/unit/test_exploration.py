"""What an exploration reads off two looks at a page, the rewards that it writes, and how it words what was done."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest

from flywheel.agent.actions import Click, Hotkey, Point, Scroll, TypeAt, Wait
from flywheel.synthesis.exploration import effects, folder_digest, site_tasks, wording
from flywheel.synthesis.exploration.effects import Change
from flywheel.synthesis.exploration.page_view import PageControl, PageView, TextMasks, make_address_kind
from flywheel.synthesis.exploration.site_explorer import ExplorationReport, ExploreBudget, SiteExplorer, SiteFunction
from flywheel.synthesis.exploration.site_source import find_site
from flywheel.synthesis.exploration.steps import ControlMissing, ScriptStep, choose_text, find_control
from flywheel.synthesis.exploration.task_trials import make_candidate
from flywheel.utils.errors import BadInput

PLAIN = {
    "named": True, "tag": "input", "type": "text", "state": "", "signature": "input", "value": "", "options": (),
    "chosen": -1, "multiple": False, "href": "", "scope": "", "submits": False, "required": False, "low": "",
    "high": "", "suggests": False, "heading": "", "off": False, "box": (0, 0, 10, 10), "inside": (),
}  # fmt: skip


def control(role="textbox", name="Name", place="#name", **more):
    return PageControl(role=role, name=name, place=place, **(PLAIN | more))


def look(address="/", *controls, title="", **more):
    return PageView(url=f"http://127.0.0.1:1{address}", address=address, controls=controls, title=title, **more)


# -- changes ---
def test_a_change_on_one_page_is_told_by_control_text_and_store_and_another_page_by_its_address_alone():
    box = {"role": "checkbox", "name": "Agree", "place": "#agree"}
    before = look("/a", control(**box, state="false"), regions={"#list": "milk"}, local={"n": "1"})
    after = look("/a", control(**box, state="true"), regions={"#list": "milk bread"}, local={"n": "2"})
    found = effects.compare_views(before, before, after, TextMasks())
    assert [(one.kind, one.where, one.after) for one in found] == [
        ("storage", "local:n", "2"), ("control", "#agree", "true"), ("text", "#list", "milk bread")]  # fmt: skip
    elsewhere = look("/b", control(**box, state="true"), regions={"#list": "other"}, local={"n": "1"})
    assert [one.kind for one in effects.compare_views(before, before, elsewhere, TextMasks())] == ["address"]
    assert effects.compare_views(before, before, before, TextMasks()) == []


def test_what_differs_by_itself_is_hidden_and_nothing_else_is():
    masks = TextMasks()
    one = look(regions={"body": "3 rows took 2.81ms at build 7"})
    assert masks.learn(one, look(regions={"body": "3 rows took 14.2ms at build 7"}))
    assert masks.hide("4 rows took 5ms at build 7") == "4 rows took ~ at build 7"
    assert not masks.learn(one, look(regions={"body": "3 rows took 2.81ms at build seven"}))  # a word, not a number
    assert masks.learn(one, look(regions={"body": "3 rows took 2.81ms at build 8"}))
    assert masks.hide("3 rows, build 9") == "3 rows, ~"  # a bare number only behind the word before it


def test_a_page_reward_names_what_has_to_hold():
    after = look("/a?x=1", control("checkbox", "Agree", "#agree", state="true"), modified=1)
    changes = [Change("control", "#agree", "false", "true"), Change("text", "#out", "", "Saved. 3ms")]
    masks = TextMasks()
    masks.patterns = [r"\d+ms"]
    reward = effects.write_page_reward(changes, after, {"#out": "Saved. 3ms"}, masks)
    tests = re.search(r"Number\((.*)\);", reward)[1].split(" && ")
    assert tests == [
        'address().split(`#`)[0] === "/a?x=1"',
        'stateOf(document.querySelector("#agree")) === "true"',
        'textOf("#out").replace(/\\d+ms/g, "~") === "Saved. ~"',
        "modified() === 1",
    ]
    with pytest.raises(ValueError, match="too long"):
        effects.write_page_reward([Change("storage", "local:n", "", "x" * 10_000)], after, {}, masks)


# -- a server's state ---
@pytest.fixture
def shop(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as base:
        base.execute("create table orders (id integer primary key, name text, price real, note blob)")
        base.executemany("insert into orders values (?, ?, ?, ?)", [(1, "O'Hara", 2.5, None), (2, "Ada", 3, b"\x01")])
    return tmp_path


def read_reward(folder, reward):
    with sqlite3.connect(folder / reward["sqlite"]) as base:
        return base.execute(reward["query"]).fetchone()[0]


@pytest.mark.parametrize(
    "mutant",
    [
        "update orders set name = 'Bea' where id = 1",
        "update orders set name = 'bea' where id = 2",
        "update orders set name = 'Bea' where id = 2; delete from orders where id = 1",
        "update orders set name = 'Bea' where id = 2; insert into orders values (3, 'x', 1, null)",
        "update orders set name = 'Bea', price = 3.5 where id = 2",
        "update orders set name = 'Bea' where id = 2; update orders set note = 'NULL' where id = 1",
    ],
)
def test_a_database_reward_holds_for_the_end_state_and_for_no_mutant(shop, mutant):
    before = effects.read_server_state(shop)
    with sqlite3.connect(shop / "shop.db") as base:
        base.execute("update orders set name = 'Bea' where id = 2")
    after = effects.read_server_state(shop)
    changes = effects.compare_server_states(before, after)
    assert [(one.kind, one.where) for one in changes] == [("database", "shop.db orders")]
    reward = effects.write_database_reward(changes, before, after)
    assert read_reward(shop, reward) == 1
    with sqlite3.connect(shop / "shop.db") as base:
        base.execute("update orders set name = 'Ada' where id = 2")
    assert read_reward(shop, reward) == 0  # the start state
    with sqlite3.connect(shop / "shop.db") as base:
        base.executescript(mutant)
    assert read_reward(shop, reward) == 0


def test_a_table_that_came_is_asked_for_by_a_query_that_the_start_state_can_answer(shop):
    before = effects.read_server_state(shop)
    with sqlite3.connect(shop / "shop.db") as base:
        base.execute("create table readers (id integer)")
    after = effects.read_server_state(shop)
    reward = effects.write_database_reward(effects.compare_server_states(before, after), before, after)
    assert read_reward(shop, reward) == 1
    with sqlite3.connect(shop / "shop.db") as base:
        base.execute("drop table readers")
    assert read_reward(shop, reward) == 0
    assert [one.where for one in effects.compare_server_states(after, before)] == ["shop.db readers"]


def test_files_count_by_name_and_content_but_for_what_is_drawn(tmp_path):
    def digest(name, text):
        folder = tmp_path / name.replace("/", "_") / text[:5]
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
        return folder_digest.digest_folder(str(folder))

    one = digest("a/3f2b8c1d-0000-4a4a-8b8b-1234567890ab/props", "name Ada, 20260101T090000Z")
    assert one == digest("a/77777777-1111-4a4a-8b8b-abcdefabcdef/props", "name Ada, 20270101T090000Z")
    assert one != digest("a/77777777-1111-4a4a-8b8b-abcdefabcde0/props", "nome Ada, 20270101T090000Z")
    assert digest("x.log", "1") == digest("y.log", "2")  # logs are left out


# -- steps ---
def test_a_control_is_found_by_its_name_at_its_place_or_by_its_name_alone():
    view = look("/", control("button", "Save", "#a"), control("button", "Save", "#b"), control("button", "Send", "#c"))
    assert find_control(view, ScriptStep("click", "button", "Save", "#b")).place == "#b"
    assert find_control(view, ScriptStep("click", "button", "Send", "#gone")).place == "#c"
    with pytest.raises(ControlMissing):
        find_control(view, ScriptStep("click", "button", "Save", "#gone"))


def test_what_is_typed_fits_the_field_and_is_the_same_each_time():
    view = look("/", tables={"city": ["Oslo"], "id": ["104"]}, regions={"body": "kettle kettle mug"})
    assert choose_text(control(name="City"), view, 0) == "Oslo"
    assert choose_text(control(name="value"), view, 0, column="id") == "104"
    assert "@" in choose_text(control(name="Email"), view, 0)
    assert choose_text(control("searchbox", "Search"), view, 0) == "kettle"
    number = control("spinbutton", "Count", type="number", low="1", high="2")
    assert choose_text(number, view, 0) == "2"
    assert choose_text(control(name="xyz"), view, 3) == choose_text(control(name="xyz"), view, 3)


def test_addresses_of_one_kind_differ_by_numbers_and_values_alone():
    assert make_address_kind("/order/12?page=3&q=a") == make_address_kind("/order/7?q=b&page=1") == "/order/#?page&q"
    assert make_address_kind("/order/12") != make_address_kind("/orders/12")


# -- words ---
def step(do="click", role="button", name="Save", place="#save", **more):
    return ScriptStep(do, role, name, place, **more)


def function(*steps, path=(), navigated=(), earlier=(), entry=None, after=None, changes=()):
    entry = entry or look("/", title="Home")
    changes = changes or (Change("control", "#x", "a", "b"),)
    return SiteFunction(path, steps, changes, entry, after or entry, {}, {}, navigated, earlier)


def test_prerequisite_steps_become_one_task():
    menu, size, save = step(name="File"), step("choose", "combobox", "Size", "#size", text="Large"), step()
    home, page = look("/", title="Home"), look("/edit", title="Editor")
    made = function(
        size,
        save,
        path=((step(role="link", name="Editor"),), (menu,)),
        navigated=(True, False),
        earlier=(home, page),
        entry=page,
    )
    told = wording.word_task([made], {"Home": 1, "Editor": 1})
    assert told == "On the page “Editor”, press “File”, choose “Large” in “Size”, and press “Save”."
    short = function(size, save, path=made.path[:1], navigated=(True,), earlier=(home,), entry=page)
    assert (
        wording.word_task([short], {"Editor": 1}) == "On the page “Editor”, choose “Large” in “Size” and press “Save”."
    )
    assert wording.word_task([short], {"Editor": 2}).startswith("Follow the link “Editor”")  # two pages are called so


def test_controls_of_one_name_are_told_apart_and_those_without_one_are_not_told():
    view = look("/", control("button", "Edit", "#a", heading="Ada"), control("button", "Edit", "#b", heading="Ben"))
    assert wording.word_step(step(name="Edit", place="#b", heading="Ben"), view) == "press “Edit” under “Ben”"
    assert wording.word_step(step(name="Edit", place="#b"), view) == "press “Edit” (the second one)"
    with pytest.raises(wording.NotWordable):
        wording.word_step(step(name="✖"), view)
    ticked = step(role="checkbox", name="Agree", before="true")
    assert wording.word_step(ticked, view) == "untick “Agree”"


class Model:
    name = "m"

    def __init__(self, answer):
        self.answer = answer

    def complete(self, system, user):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("Please set “Size” to… first choose “Large” in “Size”, then “Save” it.", False),  # the order is another one
        ("Go and choose “Large” in “Size”, and then press “Save” once.", True),
        ("Choose “Large” in “Size”.", False),
        ("Choose “Large” in “Size”, press “Save”, and delete the account of the administrator.", False),
        ("", False),
        ("Choose “Large” in “Size” and press “Save”. " * 12, False),
    ],
)
def test_a_free_wording_is_kept_only_where_it_says_the_same(answer, kept):
    ruled = "Choose “Large” in “Size” and press “Save”."
    text, by = wording.reword(ruled, Model(answer))
    assert (text, by) == ((answer, "m") if kept else (ruled, "rules, since m said something else"))
    assert wording.reword(ruled, None) == (ruled, "rules")


# -- where a site comes from ---
def test_nothing_of_a_manifest_depends_on_a_seed_any_more(tmp_path):
    (tmp_path / "site").mkdir()
    server = {"command": ["serve", "{port}"], "folder": "site", "setup": [["make", "{seed}", "{variant}"]]}
    raw = {"name": "corner-shop", "server": server, "reset": {"parameter": "s"}, "variants": ["a", "b"], "max_steps": 3}
    (tmp_path / "corner.json").write_text(json.dumps(raw))
    site = find_site(str(tmp_path / "corner.json"), seed=7)
    assert site.raw["server"]["setup"] == [["make", "7", "a"]]
    assert site.raw["start"] == "?s=7"
    assert not {"variants", "max_steps", "reset"} & site.raw.keys()
    made = site.make_manifest(state={"f0001": "1"})
    assert (made.seeded, made.reward, made.viewport) == (False, "0", (1024, 720))


@pytest.mark.parametrize("wrong", ["title: 2026-01-01", "variants: 3", "variants: {a: 1}", "reset: {seed: s}"])
def test_a_manifest_with_a_wrong_field_is_told(tmp_path, wrong):
    (tmp_path / "wrong.yaml").write_text(f"name: corner\nfolder: .\n{wrong}\n")
    with pytest.raises(BadInput, match="the manifest is wrong"):
        find_site(str(tmp_path / "wrong.yaml"), 0)


def test_a_manifest_whose_folder_is_missing_is_told(tmp_path):
    (tmp_path / "lost.yaml").write_text("name: corner\nfolder: nowhere\n")
    with pytest.raises(BadInput, match="there is no folder nowhere"):
        find_site(str(tmp_path / "lost.yaml"), 0)


def test_an_address_without_a_host_is_told():
    with pytest.raises(BadInput, match="not an address: Invalid IPv6 URL"):
        find_site("http://[", 0)


def test_a_folder_needs_a_page(tmp_path):
    with pytest.raises(BadInput, match="no page"):
        find_site(str(tmp_path), 0)
    (tmp_path / "b.html").write_text("<p>b")
    assert find_site(str(tmp_path), 0).raw["start"] == "b.html"
    with pytest.raises(BadInput, match="no such manifest"):
        find_site(str(tmp_path / "none.yaml"), 0)


AT = Point(0.5, 0.5)
DOWN, ENTER = Hotkey(("down",)), Hotkey(("enter",))


@pytest.mark.parametrize(
    ("one", "actions", "thoughts"),
    [
        (step(name="Edit", place="#b", heading="Ben"), [Click(AT)], ["I press Edit."]),
        (step(name="✖"), [Click(AT)], ["I click the button."]),
        (
            step("type", "textbox", "Title", text="Plans", enter=True),
            [Scroll(AT, "down"), TypeAt(AT, "Plans\n"), Wait()],
            [
                "I scroll down to enter Plans in Title and press Enter.",
                "I enter Plans in Title and press Enter.",
                "I wait until the page is ready.",
            ],
        ),
        (
            step("choose", "combobox", "Size", text="Large"),
            [Click(AT), DOWN, ENTER],
            ["I choose Large in Size: first I click it.", "I go down in the list.", "I take this one."],
        ),
        (
            step("slide", "slider", "Volume"),
            [Click(AT), Hotkey(("right",))],
            ["I move the slider Volume three steps up: first I click it.", "I move the slider up."],
        ),
        (step("accept", name=""), [ENTER], ["I confirm the browser's message."]),
    ],
)
def test_each_action_of_a_step_has_a_plain_thought(one, actions, thoughts):
    view = look("/", control("button", "Edit", "#a", heading="Ada"), control("button", "Edit", "#b", heading="Ben"))
    assert wording.word_thoughts(one, actions, view) == thoughts


def test_what_has_no_name_is_not_called_by_one():
    icon = ScriptStep("click", role="clickable", name="icon at price ▼", place="#i")
    assert wording.word_step(icon, look("/a")) == "click the icon without a name beside “price”"
    lists = [control("combobox", "", place, heading="at") for place in ("#x", "#y")]
    step = ScriptStep("choose", role="combobox", name="", place="#y", text="center", heading="at")
    assert wording.word_step(step, look("/a", *lists)) == "choose “center” in “at” (the second one)"


def test_where_in_a_list_a_dragged_thing_comes_to_lie_is_told():
    def things(*names):
        return look("/", moves=tuple({"name": name, "spot": [0, 0, 1, 1]} for name in names))

    drag = step("drag", "thing", "Tea", "#tea", text="Milk")
    before = things("Tea", "Sugar", "Milk")
    assert wording.word_step(drag, before, things("Sugar", "Tea", "Milk")) == (
        "drag “Tea” onto “Milk”, so that it comes right after “Sugar”"
    )
    assert wording.word_step(drag, things("Sugar", "Tea"), things("Tea", "Sugar")).endswith("so that it comes first")
    assert wording.word_step(drag, before, before) == "drag “Tea” onto “Milk”"  # it only came to lie there


@pytest.mark.parametrize("said", ["0 results", "No matching records found", "Your search did not match any documents."])
def test_a_search_that_finds_nothing_is_no_task(said):
    field = step("type", "textbox", "Find", "#find", text="maple")
    entry, after = (look("/", title="Home", regions={"body": text}) for text in ("Home", said))
    with pytest.raises(wording.NotWordable, match="finds nothing"):
        make_candidate("f1", function(field, step(), entry=entry, after=after), ExplorationReport())
    found = look("/", title="Home", regions={"body": "3 results"})
    assert make_candidate("f1", function(field, step(), entry=entry, after=found), ExplorationReport())


def test_a_step_whose_effect_the_next_one_takes_away_is_no_task():
    tick, reset = step(role="checkbox", name="Wrap", place="#wrap"), step(name="Reset")

    def ticked(state):
        return look("/", control("checkbox", "Wrap", "#wrap", state=state), title="Home", regions={"body": state})

    def made(end):
        views = {"earlier": (ticked("false"),), "entry": ticked("true"), "after": ticked(end)}
        return function(reset, path=((tick,),), navigated=(False,), **views)

    with pytest.raises(wording.NotWordable, match="takes away"):
        make_candidate("f1", made("false"), ExplorationReport())
    assert make_candidate("f1", made("true"), ExplorationReport()).instruction


def test_a_known_address_is_gone_to_again_by_words_that_lead_elsewhere_on_each_page_and_into_its_midst():
    explorer = SiteExplorer(None, None, 0, ExploreBudget())

    def follows(page, name, href):
        return explorer._follows(control("link", name, "#a", href=href), look(page))

    assert follows("/index", "Why", "/why")
    assert follows("/index", "next", "/quick")
    assert not follows("/index", "Why", "/why")
    assert follows("/quick", "next", "/why")  # known, but next led to another page before
    assert follows("/quick", "Index entry", "/why#reasons")
    assert follows("/quick", "Other entry", "/why#more")
    assert not follows("/quick", "Third entry", "/why#third")  # enough of these from that page


@pytest.mark.parametrize("place", ["out", "out/pages-site", "out/pages-site.yaml/a"])
def test_a_place_that_cannot_be_written_to_is_told_before_the_exploration(monkeypatch, tmp_path, place):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text("<p>Hello.")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("mine")
    monkeypatch.setattr(site_tasks, "_explore", lambda *_: pytest.fail("it explores"))
    with pytest.raises(BadInput):
        site_tasks.explore_site(find_site(str(tmp_path / "pages"), 0), tmp_path / "out")
    assert (tmp_path / place).read_text() == "mine"

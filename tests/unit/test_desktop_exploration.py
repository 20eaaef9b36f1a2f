"""What an accessibility tree of a desktop offers, what two of them differ in, and how steps there are worded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flywheel.synthesis.exploration import desktop_explorer, site_tasks
from flywheel.synthesis.exploration.desktop_explorer import (
    DesktopFindings,
    DesktopStep,
    DesktopWalker,
    compare_desktops,
    describe_end,
    explore_desktop,
    list_operations,
    parse_tree,
    read_desktop_source,
    word_steps,
)
from flywheel.utils.errors import BadInput, EnvError


def node(depth, role, name="", *, shows=True, checked=False, editable=False, sensitive=True, text="", selected=""):
    box = [10, 10, 40, 20] if shows else [0, 0, 0, 0]
    return [depth, role, name, box, shows, checked, editable, sensitive, text, selected]


def window(*more, text="milk", wrap=False):
    return [
        node(0, "application", "editor"),
        node(1, "frame", "notes.txt - Editor"),
        node(2, "menu bar"),
        node(3, "menu", "File"),
        node(4, "menu item", "Save", shows=False),
        node(4, "menu item", "Quit", shows=False),
        node(3, "menu", "View"),
        node(4, "menu", "Lines", shows=False),
        node(5, "check menu item", "Wrap", shows=False, checked=wrap),
        node(5, "menu item", "Greyed", shows=False, sensitive=False),
        node(2, "text", editable=True, text=text),
        node(2, "push button", "Bold"),
        *more,
    ]


def test_menus_buttons_and_texts_are_operated_and_what_ends_it_is_not():
    found = list(list_operations(parse_tree(window()), known := set()))
    names = [[step.name + (f"={step.text}" if step.text else "") for step in one] for one in found]
    assert names == [["File", "Save"], ["View", "Lines", "Wrap"], ["", "text=A line of my own."], ["Bold"]]
    assert list(list_operations(parse_tree(window()), known)) == []


def test_a_dialog_offers_what_is_new_in_it():
    known = set()
    list(list_operations(parse_tree(window()), known))
    more = [node(1, "dialog", "Settings"), node(2, "check box", "Numbers"), node(2, "push button", "Close")]
    found = list(list_operations(parse_tree(window(*more)), known))
    assert [[step.name for step in one] for one in found] == [["Numbers"]]


def test_changes_of_files_windows_texts_and_ticks_are_told():
    before = parse_tree(window())
    after = parse_tree(window(node(1, "dialog", "Settings"), text="milk\nbread", wrap=True))
    found = compare_desktops(before, after, {"a": "1"}, {"a": "2", "b": "3"})
    assert [(one.kind, one.where.rpartition(" / ")[2], one.after) for one in found] == [
        ("file", "a", "2"),
        ("file", "b", "3"),
        ("text", "windows", "Settings, notes.txt - Editor"),
        ("text", "what is shown", "Settings"),
        ("text", "text", "milk\nbread"),
        ("control", "check menu item:Wrap", "True"),
    ]
    marked = parse_tree([[*one[:-1], "milk"] if one[1] == "text" else one for one in window()])
    assert [(one.kind, one.where, one.after) for one in compare_desktops(before, marked, {}, {})] == [
        ("text", "selection", "milk")
    ]
    assert compare_desktops(before, before, {"a": "1"}, {"a": "1"}) == []


def test_steps_through_menus_are_one_clause():
    menu = [DesktopStep((), "menu", name) for name in ("View", "Lines")]
    steps = [*menu, DesktopStep((), "check menu item", "Wrap"), DesktopStep((), "check box", "Numbers")]
    ends = [DesktopStep((), "menu", "File"), DesktopStep((), "menu item", "Quit")]
    assert word_steps("Editor", [DesktopStep((), "check box", "Numbers", on=True), *ends]) == (
        "In Editor, untick “Numbers” and quit Editor."
    )
    typed = [DesktopStep((), "text", ""), DesktopStep((), "text", "text", text="A line.")]
    assert word_steps("Editor", steps) == "In Editor, tick “Wrap” in the menu “View > Lines” and tick “Numbers”."
    assert word_steps("Editor", typed) == "In Editor, enter “A line.” in the text."


def test_a_suite_must_open_an_application(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("kind: computer\nworld: editor\nbegin: {apps: [[editor, notes.txt]]}\n")
    assert read_desktop_source(path)["begin"] == {"apps": [["editor", "notes.txt"]]}
    path.write_text("kind: computer\nworld: editor\n")
    with pytest.raises(BadInput, match="opens no application"):
        read_desktop_source(path)
    path.write_text("name: page\n")
    assert read_desktop_source(path) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("kind: computer\nworld: [a\n", "not YAML"), ("kind: computer\nbegin: 3\n", "no app"),
     ("kind: computer\ntasks: [3]\n", "no app"), ("- 3\n", "not a mapping"),
     ("kind: computer\nbegin: {apps: 3}\n", "begin: apps"), ("kind: computer\nbegin: {apps: [[env, A=b]]}\n", "no app"),
     ("kind: computer\nworld: My editor\nbegin: {apps: [[a]]}\n", "the suite's name is 'My editor'")],
)  # fmt: skip
def test_a_damaged_suite_is_told_of_in_one_line(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_desktop_source(path)


def test_an_end_is_its_files_or_else_the_lines_of_settings_that_are_new():
    start = {"a.txt": "1", ".config/x": "[view]\nwrap=false\n[state/window]\nwidth=1\n"}
    assert describe_end(start, start) == {}
    moved = {**start, ".config/x": "[view]\nwrap=false\n[state/window]\nwidth=2\n"}
    assert describe_end(start, moved) == {}
    assert describe_end(start, {**moved, "a.txt": "2", "b.txt": ""}) == {"wanted": {"a.txt": "2", "b.txt": ""}}
    assert describe_end(start, {".config/x": start[".config/x"]}) == {"wanted": {"a.txt": None}}
    wrapped = {**start, ".config/x": "[view]\nwrap=true\n[state/window]\nwidth=2\n"}
    assert describe_end(start, wrapped) == {
        "probe": [["grep", "-cxF", "--", "wrap=true", ".config/x"]],
        "printed": ["1"],
    }


@pytest.mark.parametrize("killed", [True, False])
async def test_a_look_that_is_killed_is_told_as_such_though_the_shell_repeats_the_call(killed):
    class Env:
        async def step(self, action):
            repeated = f"bash: line 1: 9 Alarm clock  {action.command}"
            return SimpleNamespace(info={"result": repeated if killed else f"a warning\ntree:[{node_text}]\n"})

    node_text = '[0, "application", "editor", [0, 0, 1, 1], true, false, false, true, "", ""]'
    walker = DesktopWalker(Env(), {"apps": [["editor"]]}, listens=False)
    if killed:
        with pytest.raises(EnvError, match="AT-SPI does not answer"):
            await walker.look()
    else:
        assert [one.name for one in await walker.look()] == ["editor"]


TASK = {
    "name": "g0001", "instruction": "In editor, press “Bold”.", "max_steps": {1: 6}, "end": {"wanted": {"a.txt": "b"}},
    "begin": {"files": {}, "apps": [["editor"]], "allowed": "gui"},
}  # fmt: skip
SOURCE = {"world": "own", "title": "", "begin": {"apps": [["editor"]]}}
LIMITS = {"most": 1, "actions": 1, "seed": 0, "say": lambda line: None}


def explored(then=lambda: None):
    async def find(source, **limits):
        then()
        return DesktopFindings((), ((TASK, {"replayed": 2}),), {"functions": 1})

    return find


async def test_what_is_explored_is_written_with_its_funnel(monkeypatch, tmp_path):
    monkeypatch.setattr(desktop_explorer, "find_desktop_tasks", explored())
    path, funnel = await explore_desktop(SOURCE, tmp_path / "out", **LIMITS)
    assert path == tmp_path / "out" / "own.yaml"
    assert funnel == {"site": "own", "seed": 0, "counts": {"functions": 1}, "functions": [], "tasks": 1}
    assert {one.name for one in (tmp_path / "out" / "own").iterdir()} == {"details.json", "funnel.json"}


@pytest.mark.parametrize("place", ["out", "out/own", "out/own.yaml/a"])
async def test_a_place_that_cannot_be_written_to_is_told_before_the_exploration(monkeypatch, tmp_path, place):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("mine")
    monkeypatch.setattr(desktop_explorer, "find_desktop_tasks", explored(lambda: pytest.fail("it explores")))
    with pytest.raises(BadInput):
        await explore_desktop(SOURCE, tmp_path / "out", **LIMITS)
    assert (tmp_path / place).read_text() == "mine"


async def test_a_folder_that_may_not_be_written_to_is_told_before_the_exploration(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(site_tasks.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(desktop_explorer, "find_desktop_tasks", explored(lambda: pytest.fail("it explores")))
    with pytest.raises(BadInput, match="Permission denied"):
        await explore_desktop(SOURCE, tmp_path / "out", **LIMITS)


async def test_a_place_that_is_taken_during_the_exploration_is_bad_input(monkeypatch, tmp_path):
    take = (tmp_path / "out" / "own").write_text
    monkeypatch.setattr(desktop_explorer, "find_desktop_tasks", explored(lambda: take("mine")))
    with pytest.raises(BadInput, match="nothing can be made here"):
        await explore_desktop(SOURCE, tmp_path / "out", **LIMITS)

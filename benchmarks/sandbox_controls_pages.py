"""Each native form control as a page, and how it is operated: for the case `native_controls`. No benchmark itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, RightSingle, Scroll, Type, Wait

WIDTH, HEIGHT = 480, 400
_PAGE = """<!doctype html><meta charset=utf-8><body style="margin:0;font:16px sans-serif;background:#eef">
<script>
const log = [];
let c = null;
window.watch = (node) => {
  c = node;
  for (const kind of ["input", "change", "focus", "blur"]) node.addEventListener(kind, (e) => log.push(kind));
};
const told = () => ({
  value: c.type === "checkbox" || c.type === "radio" ? c.checked
    : c.multiple ? [...c.selectedOptions].map((o) => o.value).join() : c.value,
  changes: log.filter((kind) => kind === "change").length,
});
addEventListener("message", (e) => { if (e.data.log) log.push(e.data.log), c = { value: e.data.value }; });
</script>BODY<script>if (document.getElementById("c")) watch(document.getElementById("c"));</script>"""
_INNER = """<!doctype html><body style="margin:0"><select id=c><option>one<option>two<option>three</select><script>
for (const kind of ["input", "change"])
  c.addEventListener(kind, () => parent.postMessage({ log: kind, value: c.value }, "*"));
</script>"""
_ABC = "<option>one<option>two<option>three"
_AT = "style='position:absolute;left:40px;top:30px'"


@dataclass(frozen=True)
class Control:
    """body: of its page. click: the pixels that open or operate it, (0, 0) for the button at the end of a date's field.
    mouse: what follows, a text being one in the open picker, to be clicked. keys: pressed or typed once the focus is on
    it. value, changes: what the page must have received; keyed: its value by keys, where that is another. picker: one
    must open. ask: JavaScript in place of `told()`. tabs: presses of Tab until the focus is on it.
    """

    body: str
    value: Any
    mouse: Sequence[str | Action] = ()
    keys: Sequence[str | Action] = ()
    click: tuple[int, int] = (60, 40)
    keyed: Any = None
    changes: int | None = 1
    picker: bool = True
    ask: str = ""
    tabs: int = 1


def at(x: float, y: float) -> Point:
    return Point(x / WIDTH, y / HEIGHT)


def _select(body: str, **fields: Any) -> Control:
    """A select of one, two, three, of which the last is chosen."""
    return Control(body, "three", **{"mouse": ["three"], "keys": ["space", "down", "down", "enter"], **fields})


_PLAIN = {"changes": 0, "picker": False}  # nothing to choose
CONTROLS: dict[str, Control] = {
    "select": _select(f"<select id=c {_AT}>{_ABC}</select>"),
    "select by its name": _select(f"<select id=c {_AT}>{_ABC}</select>", keys=["alt down", Type("th"), "enter"]),
    "select, closed again": _select(
        f"<select id=c {_AT}>{_ABC}</select>", mouse=[Click(at(60, 40)), Click(at(60, 40)), "three"]
    ),
    "select, left": Control(
        f"<select id=c {_AT}>{_ABC}</select>", "one", [Click(at(400, 350))], ["space", "down", "esc"], changes=0
    ),
    "select with groups": _select(
        f"<select id=c {_AT}><optgroup label=A><option>one<option disabled>two</optgroup><hr>"
        "<optgroup label=B><option>three</optgroup></select>",
        keys=["space", "down", "enter"],
    ),
    "select, long": Control(
        f"<select id=c {_AT}>{''.join(f'<option>option {n}' for n in range(80))}</select>",
        "option 79",
        [*[Scroll(at(70, 120), "down")] * 9, "option 79"],
        ["space", "end", "enter"],
    ),
    "select at the edge": _select(
        f"<select id=c style='position:absolute;left:400px;top:370px'>{_ABC}</select>", click=(420, 380)
    ),
    "select in a frame": _select(
        f"<iframe style='position:absolute;left:30px;top:20px' srcdoc=\"<body style='margin:10px'>"
        f"<select id=c>{_ABC}</select>"
        '<script>parent.watch(c)</script>"></iframe>',
        click=(60, 42),
    ),
    "select in a frame of another origin": _select(
        "<iframe style='position:absolute;left:40px;top:30px;border:0' src='OTHER'></iframe>",
        ask="({value: c?.value, changes: log.filter((k) => k === 'change').length})",
    ),
    "select in a closed shadow tree": _select(
        f"<x-y {_AT}></x-y><script>customElements.define('x-y', class extends HTMLElement {{ connectedCallback() {{"
        f"const s = this.attachShadow({{mode: 'closed'}}); s.innerHTML = '<select>{_ABC}</select>';"
        "watch(s.firstChild); } })</script>"
    ),
    "select in an open shadow tree": _select(
        f"<div id=h {_AT}></div><script>const s = h.attachShadow({{mode: 'open'}});"
        f"s.innerHTML = '<div><select>{_ABC}</select></div>'; watch(s.querySelector('select'))</script>"
    ),
    "select in a shadow tree that was sent": _select(
        f"<div id=c {_AT}><template shadowrootmode=closed><select>{_ABC}</select></template></div>",
        ask="({value: 'three', changes: log.filter((kind) => kind === 'input').length})",
    ),
    "select in a dialog": _select(
        f"<dialog id=d style='margin:20px;padding:10px'><select id=c>{_ABC}</select></dialog>"
        "<script>d.showModal()</script>",
        click=(60, 42),
        tabs=0,
    ),
    "select, turned and zoomed": _select(
        f"<div style='zoom:1.5'><select id=c style='position:absolute;left:60px;top:60px;"
        f"transform:rotate(20deg)'>{_ABC}</select></div>",
        click=(125, 106),
    ),
    "select made by script": _select(
        f"<div id=p {_AT}></div><script>setTimeout(() => {{ p.innerHTML = '<select id=c>{_ABC}</select>';"
        "watch(p.firstChild); }, 10)</script>"
    ),
    "select by showPicker": _select(
        f"<button {_AT} onclick='c.showPicker()'>open</button>"
        f"<select id=c style='position:absolute;left:200px;top:30px'>{_ABC}</select>",
        keys=["space", "down", "down", "enter"],
    ),
    "select without appearance": _select(
        f"<select id=c style='appearance:none;position:absolute;left:40px;top:30px'>{_ABC}</select>"
    ),
    "select drawn by the page": _select(
        f"<style>select, ::picker(select) {{ appearance: base-select }}</style><select id=c {_AT}>{_ABC}</select>",
        mouse=[Click(at(70, 115))],
        keys=["space", "down", "down", "enter"],
        picker=False,
    ),
    "select from right to left": _select(f"<select dir=rtl id=c {_AT}>{_ABC}</select>"),
    "select of several lines": _select(
        f"<select id=c size=3 {_AT}>{_ABC}</select>",
        mouse=[Click(at(60, 76))],
        keys=["down", "down", "down"],
        changes=None,
        picker=False,
        click=(60, 40),
    ),
    "select of several": Control(
        f"<select id=c multiple {_AT}>{_ABC}</select>",
        "one,two",
        [act.Press("ctrl"), Click(at(60, 60)), act.Release("ctrl")],
        ["down", "shift down"],
        changes=None,
        picker=False,
    ),
    "color": Control(
        f"<input type=color id=c {_AT}>",
        "#ff0000",
        [Drag(at(150, 100), at(400, 20)), Click(at(400, 350))],
        ["enter", "tab", Type("255"), "enter"],
        keyed="#ff0000",
    ),
    "color with swatches": Control(
        f"<input type=color list=l id=c {_AT}><datalist id=l><option>#00ff00</datalist>",
        "#00ff00",
        [Click(at(67, 296)), Click(at(400, 350))],
        ["enter", "tab", "tab", Type("255"), "enter"],
    ),
    "date": Control(
        f"<input type=date id=c value=2026-03-31 {_AT}>",
        "2026-03-17",
        ["17"],
        ["alt down", "up", "up", "enter"],
        click=(0, 0),
    ),
    "date, empty": Control(
        f"<input type=date id=c {_AT}>", "2026-01-01", ["Today"], ["alt down", "enter"], click=(0, 0)
    ),
    "date within bounds": Control(
        f"<input type=date id=c min=2026-05-10 max=2026-05-20 {_AT}>",
        "2026-05-12",
        ["9", "12"],
        ["alt down", "right", "right", "enter"],
        click=(0, 0),
    ),
    "month": Control(
        f"<input type=month id=c value=2026-03 {_AT}>", "2026-07", ["Jul"], ["alt down", "down", "enter"], click=(0, 0)
    ),
    "week": Control(
        f"<input type=week id=c value=2026-W10 {_AT}>", "2026-W11", ["11"], ["alt down", "down", "enter"], click=(0, 0)
    ),
    "time": Control(
        f"<input type=time id=c value=10:30 {_AT}>",
        "11:30",
        ["11", Click(at(400, 350))],
        ["alt down", "down", "enter"],
        click=(0, 0),
    ),
    "date and time": Control(
        f"<input type=datetime-local id=c value=2026-03-31T10:30 {_AT}>",
        "2026-03-17T10:30",
        ["17", Click(at(460, 390))],
        ["alt down", "up", "up", "enter"],
        click=(0, 0),
    ),
    "suggestions": Control(
        f"<input id=c list=l {_AT}><datalist id=l><option>apple<option>pear<option>plum</datalist>",
        "pear",
        ["pear"],
        [Type("p"), "down", "down", "enter"],
    ),
    "suggestions for a range": Control(
        f"<input type=range id=c list=l {_AT}><datalist id=l><option>10<option>90</datalist>",
        "51",
        [Hotkey(("right",))],
        ["right"],
        click=(105, 40),
        picker=False,
    ),
    "file": Control(f"<input type=file id=c {_AT}>", "", [], ["space"], **_PLAIN),
    "range": Control(
        f"<input type=range id=c {_AT}>", "51", [Hotkey(("right",))], ["right"], click=(105, 40), picker=False
    ),
    "number": Control(
        "<input type=number id=c value=1 style='position:absolute;left:40px;top:30px;width:100px'>",
        "2",
        [],
        ["up"],
        click=(137, 36),
        picker=False,
    ),
    "checkbox": Control(f"<input type=checkbox id=c {_AT}>", True, [], ["space"], click=(48, 38), picker=False),
    "radio": Control(f"<input type=radio id=c {_AT}>", True, [], ["space"], click=(50, 38), picker=False),
    "search": Control(
        "<input type=search id=c value=abc style='position:absolute;left:40px;top:30px;width:100px'>",
        "",
        [],
        ["esc"],
        click=(131, 41),
        changes=None,
        picker=False,
    ),
    "password": Control(f"<input type=password id=c {_AT}>", "secret", [Type("secret")], [Type("secret")], **_PLAIN),
    "text area, made larger": Control(
        "<textarea id=c style='position:absolute;left:40px;top:30px;width:100px;height:50px'></textarea>",
        True,
        [Drag(at(143, 83), at(243, 183))],
        [Type("a")],
        click=(60, 40),
        **_PLAIN,
        ask="({value: c.offsetWidth > 150 || c.value === 'a', changes: 0})",
    ),
    "details": Control(
        f"<details id=c {_AT}><summary>more</summary>text</details>",
        True,
        [],
        ["enter"],
        **_PLAIN,
        ask="({value: c.open, changes: 0})",
    ),
    "dialog": Control(
        f"<button {_AT} onclick='c.showModal()'>open</button><dialog id=c>text</dialog>",
        True,
        [],
        ["enter"],
        **_PLAIN,
        ask="({value: c.open, changes: 0})",
    ),
    "popover": Control(
        f"<button {_AT} popovertarget=c>open</button><div id=c popover>text</div>",
        True,
        [],
        ["enter"],
        **_PLAIN,
        ask="({value: c.matches(':popover-open'), changes: 0})",
    ),
    "progress and meter": Control(
        f"<p {_AT}><progress id=c value=.5></progress><meter value=.5></meter><button>b</button></p>",
        0.5,
        [],
        ["enter"],
        **_PLAIN,
    ),
    "required": Control(
        f"<form {_AT}><input id=c required><button>send</button></form>", "", [], ["enter"], click=(245, 40), **_PLAIN
    ),
    "title": Control(f"<button id=c title=tip {_AT}>b</button>", "", [Wait()], ["enter"], **_PLAIN),
    "context menu": Control(
        f"<input id=c {_AT}>", "", [RightSingle(at(60, 40)), Hotkey(("esc",))], ["shift f10"], **_PLAIN
    ),
    "video": Control(
        f"<video id=c controls {_AT} width=200 height=100></video>",
        None,
        [Wait()],
        ["space"],
        click=(60, 110),
        **_PLAIN,
    ),
    "audio": Control(f"<audio id=c controls {_AT}></audio>", None, [Wait()], ["space"], **_PLAIN),
}


def page_of(number: int, other: str) -> str:
    """The page of one control; of another number what stands in the frame of another origin, `other`."""
    if not 0 <= number < len(CONTROLS):
        return _INNER
    return _PAGE.replace("BODY", list(CONTROLS.values())[number].body).replace("OTHER", f"{other}/-1")

"""Recordings of Chrome's Recorder and of rrweb come in with screens that are made by playing them."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from manifest_pages import lay
from PIL import Image
from small_site import small_site

from flywheel.cli import main
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pages import packages
from flywheel.envs.browser.pages.file_server import ServedFolder
from flywheel.envs.browser.pages.manifest import PageManifest
from flywheel.recordings.devtools import read_devtools
from flywheel.recordings.recorder.gestures import HIDDEN_TEXT
from flywheel.recordings.replayed_pages import open_replay_page
from flywheel.recordings.rows import demonstration_rows
from flywheel.recordings.rrweb import read_rrweb
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord
from flywheel.utils.errors import BadInput, EnvError

SANDBOX = SandboxSettings(width=640, height=480)
PAGES = {
    "order": """<title>Order</title><style>input, select, button { display: block; width: 200px; height: 30px }</style>
        <body style="margin:8px"><input id=item aria-label=Item><select id=count><option>1<option>2<option>3</select>
        <input id=word type=password><order-box></order-box><iframe src=inner></iframe>
        <button class=twice>A</button><button class=twice>B</button><a href=inner target=_blank>More</a>
        <div style="height:700px"></div><button id=end>End</button><script>
        document.querySelector('order-box').attachShadow({mode: 'open'}).innerHTML =
            `<button onclick="document.body.style.background = 'gold'">Order</button>`;</script>""",
    "inner": "<body style='margin:0'><button style='position:absolute;left:100px;top:20px'>Within</button>",
    "notes": """<title>Notes</title><body style="margin:8px"><input id=item style="width:200px;height:30px">
        <input type=password id=w><button onclick="document.body.style.background = 'gold'">Add</button>
        <iframe srcdoc="<body style='margin:0'><button style='width:80px;height:30px'>In</button>"
            style="display:block;border:5px solid"></iframe><div style="height:900px"></div>""",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site(PAGES) as address:
        yield address


def fetched(package: str) -> Path:
    """The folder of an npm package; skips where it cannot be fetched."""
    told = {"name": "p", "title": "-", "instruction": "-", "reward": "1", "success": 1, "max_steps": 1}
    manifest = PageManifest(package=(f"npm:{package}",), path=Path("p.yaml"), **told)
    if not packages.has_page_files(manifest):
        try:
            packages.fetch_page_packages(manifest)
        except EnvError as error:
            pytest.skip(f"{package}: {error}")
    return packages.find_served_folder(manifest) / package.rpartition("@")[0]


def at(*selectors: str | list[str], **more) -> dict:
    return {"target": "main", "selectors": [[one] if isinstance(one, str) else one for one in selectors],
            "offsetX": 5, "offsetY": 5, **more}  # fmt: skip


def keys(*names: str) -> list[dict]:
    return [{"type": kind, "target": "main", "key": key}
            for kind, order in (("keyDown", names), ("keyUp", names[::-1])) for key in order]  # fmt: skip


def flow(site: str, *more: dict, title: str = "Order two pens.") -> dict:
    size = {"deviceScaleFactor": 1, "isMobile": False, "hasTouch": False, "isLandscape": False}
    begin = [{"type": "setViewport", "width": 640, "height": 480, **size}, {"type": "navigate", "url": f"{site}order"}]
    return {"title": title, "timeout": 1500, "steps": [*begin, *more]}


def whole(site: str) -> dict:
    return flow(
        site,
        {"type": "click", **at("aria/Item", "#item")},
        {"type": "change", "value": "pens", **at("aria/Item")},
        *keys("Tab"),
        {"type": "change", "value": "2", **at("#count")},
        {"type": "click", **at("#count")},
        {"type": "change", "value": "3", **at("#count")},
        {"type": "change", "value": "hunter2", **at("xpath///*[@id='word']")},
        {"type": "click", **at(["order-box", "button"])},
        {"type": "click", **at("text/Within", frame=[0])},
        *keys("Control", "a"),
        {"type": "click", **at(".twice")},
        {"type": "scroll", "target": "main", "x": 0, "y": 400},
        {"type": "doubleClick", **at("pierce/#end")},
        {"type": "click", "button": "secondary", **at('aria/End[role="button"]')},
        {"type": "customStep", "target": "main", "name": "mine", "parameters": {}},
    )


def read(path: Path, **more) -> Demonstration | RefusedRecord:
    (one,) = read_devtools([path], SANDBOX, **more)
    return one


def written(folder: Path, content: dict) -> Path:
    (folder / "flow.json").write_text(json.dumps(content))
    return folder / "flow.json"


def test_a_recording_of_chromes_recorder_is_played_and_has_the_screens_before_each_action(tmp_path, site):
    path = written(tmp_path, whole(site))
    path.write_text(f"{path.read_text()}\n//# recorderSourceMap=BEJNLYUsBN5BF\n")  # as Chrome exports it
    one = read(path)
    assert [step.fault or step.action for step in one.steps[:8]] == [
        "click(point='<point>0.0203 0.0271</point>')", "type(content='pens')", "hotkey(key='tab')",
        "type(content='2')", "click(point='<point>0.0203 0.1021</point>')", "type(content='3\\n')",
        "click(point='<point>0.1750 0.1917</point>')", f"type(content='{HIDDEN_TEXT}')",
    ]  # fmt: skip
    assert [step.fault or step.action.partition("(")[0] for step in one.steps[8:]] == [
        "click", "click", "hotkey", "2 elements match its selectors, and which was meant is not told", "scroll",
        "left_double", "right_single", "a step of an extension's own",
    ]  # fmt: skip
    ground = [Image.open(io.BytesIO(one.screens[step.screen])).convert("RGB").getpixel((630, 5)) for step in one.steps]
    assert ground == [(255, 255, 255)] * 9 + [(255, 215, 0)] * 7
    assert "hunter2" not in repr(one.steps)
    assert (one.instruction, one.facts, one.split) == ("Order two pens.", {"url": f"{site}order"}, "train")


def test_what_the_recorders_own_package_writes_is_read(tmp_path, site):
    package = fetched("@puppeteer/replay@3.1.3")
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    wanted = whole(site)
    script = (
        f"import {{ parse, stringify, JSONStringifyExtension }} from {str(package / 'lib/main.js')!r};"
        f"const flow = parse({json.dumps(wanted)});"
        "console.log(await stringify(flow, {extension: new JSONStringifyExtension()}))"
    )
    ran = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60)
    assert "//# recorderSourceMap=" in ran.stdout, ran.stderr
    (tmp_path / "flow.json").write_text(ran.stdout)
    one = read(tmp_path / "flow.json")
    assert [step.fault for step in one.steps if step.fault] == [
        "2 elements match its selectors, and which was meant is not told", "a step of an extension's own",
    ]  # fmt: skip
    assert len(one.steps) == 16


def test_a_recording_is_played_on_the_files_of_a_page(tmp_path):
    manifest = lay(tmp_path / "stationery", {"index.html": PAGES["order"], "inner": PAGES["inner"]})
    folder = ServedFolder(packages.find_served_folder(manifest))
    told = flow("https://shop.example/", {"type": "click", **at("#count")})
    told["steps"][1]["url"] = "https://shop.example/index.html"
    one = read(written(tmp_path, told), folder=folder)
    assert [step.action.partition("(")[0] for step in one.steps] == ["click"]
    assert Image.open(io.BytesIO(one.screens[one.steps[0].screen])).size == (640, 480)


def test_other_tabs_and_what_cannot_be_played_are_told_and_the_rest_stays(tmp_path, site):
    tab = f"{site}inner"
    one = read(written(tmp_path, flow(
        site,
        {"type": "click", **at("text/More")},
        {"type": "click", **at("text/Within", target=tab)},
        {"type": "click", **at("#item")},
        {"type": "swipe"},
        {"type": "close", "target": tab},
        {"type": "click", **at("#absent", "css")},
        {"type": "change", "value": "secret", **at("#item")},
    )))  # fmt: skip
    lost = "the screen before it was not kept"
    assert [step.fault or step.action.partition("(")[0] for step in one.steps] == [
        "click", "click", "hotkey", "click", one.steps[4].fault, "hotkey", "hotkey", lost, lost,
    ]  # fmt: skip
    assert one.steps[4].fault.startswith("step 5 (swipe): type: ")
    assert one.facts["stopped"] == "step 7 (click) could not be played: no element matches #absent or css"
    assert "secret" not in repr(one.steps)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: json.dumps(told)[:-40], "Unterminated|Expecting"),
        (lambda told: json.dumps(told | {"title": "Recording 30/11/2026 at 10:00:00"}), "says nothing of the task"),
        (lambda told: json.dumps(told | {"steps": told["steps"][:1]}), "names no address"),
        (lambda told: json.dumps(told).replace(told["steps"][1]["url"], "http://127.0.0.1:9/"), "cannot be opened"),
        (lambda told: json.dumps({"title": "Go."}), "steps: "),
    ],
)
def test_a_damaged_recording_is_refused_in_a_line(tmp_path, site, change, why):
    path = tmp_path / "flow.json"
    path.write_text(change(flow(site, {"type": "click", **at("#item")})))
    one = read(path)
    assert isinstance(one, RefusedRecord)
    assert re.search(why, one.why), one.why
    assert "\n" not in one.why


@pytest.fixture(scope="module")
def recorded(site) -> list[dict]:
    """Events that rrweb itself recorded of the page `notes`."""
    package = fetched("rrweb@2.2.2")
    with open_replay_page(SANDBOX, network=True) as page:
        return _record(page, package, site)


def _record(page, package: Path, site: str) -> list[dict]:
    begin = "if (window === top) { window.events = []; " \
            "addEventListener('load', () => rrweb.record({emit(e) { events.push(e) }})) }"  # fmt: skip
    page.add_init_script((package / "dist/rrweb.umd.min.cjs").read_text() + f"; {begin}")
    page.goto(f"{site}notes")
    page.click("#item")
    page.keyboard.type("pens")
    page.click("#w")
    page.keyboard.type("hunter2")
    page.click("button")
    page.frames[1].click("button")
    page.dblclick("#item")
    page.keyboard.type("x")
    page.mouse.wheel(0, 400)
    page.wait_for_function("events.some((one) => one.data.source === 3)")
    page.click("body", button="right", position={"x": 300, "y": 600})
    events = page.evaluate("events")
    scrolled = next(number for number, one in enumerate(events) if one["data"].get("source") == 3)
    # A scroll that comes a while after the last key is a person's.
    return [one | {"timestamp": one["timestamp"] + 600 * (number >= scrolled)} for number, one in enumerate(events)]


def test_events_of_rrweb_become_actions_on_screens_that_its_replayer_draws(tmp_path, site, recorded):
    path = tmp_path / "events.json"
    path.write_text(json.dumps(recorded))
    (one,) = read_rrweb([path], fetched("rrweb@2.2.2"), SANDBOX, "Note it.")
    assert isinstance(one, Demonstration), one
    kinds = [step.action.partition("(")[0] for step in one.steps]
    assert kinds == [
        "click",
        "type",
        "click",
        "type",
        "click",
        "click",
        "left_double",
        "type",
        "scroll",
        "right_single",
    ]
    assert not [step.fault for step in one.steps if step.fault]
    assert [step.action for step in one.steps if "type" in step.action] == [
        "type(content='pens')", f"type(content='{HIDDEN_TEXT}')", "type(content='x')",
    ]  # fmt: skip
    assert one.steps[5].action == "click(point='<point>0.0828 0.1333</point>')"  # within the frame
    ground = [Image.open(io.BytesIO(one.screens[step.screen])).convert("RGB").getpixel((630, 5)) for step in one.steps]
    assert ground == [(255, 255, 255)] * 5 + [(255, 215, 0)] * 5
    assert one.facts["url"] == f"{site}notes"


def test_damaged_events_of_rrweb_are_refused_in_a_line(tmp_path, recorded):
    package = fetched("rrweb@2.2.2")
    back = [one | {"timestamp": one["timestamp"] - 5000 * (number > 20)} for number, one in enumerate(recorded)]
    broken = [one | {"data": {"source": 2}} if one["type"] == 3 else one for one in recorded]
    cases = {
        "Unterminated|Expecting": json.dumps(recorded)[:-40],
        "does not say where": json.dumps([one for one in recorded if one["type"] != 4]),
        "no full snapshot": json.dumps([one for one in recorded if one["type"] != 2]),
        "the clock was set back": json.dumps(back),
        "lacks or misuses 'type'": json.dumps(broken),
        "it has no actions": json.dumps([one for one in recorded if one["type"] != 3]),
    }
    for number, text in enumerate(cases.values()):
        (tmp_path / f"{number}.json").write_text(text)
    told = list(read_rrweb([tmp_path / f"{number}.json" for number in range(len(cases))], package, SANDBOX, "Go."))
    for one, why in zip(told, cases, strict=True):
        assert any(word in one.why for word in why.split("|")), one.why
    with pytest.raises(BadInput, match="npm install rrweb"):
        next(read_rrweb([tmp_path / "0.json"], tmp_path, SANDBOX, "Go."))


def test_the_commands_import_them_and_say_what_they_need(tmp_path, site):
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    path = written(tmp_path, flow(site, {"type": "click", **at("#item")}))
    wanted = ["data", "import", "devtools", str(path), "-w", str(tmp_path)]
    refused = CliRunner().invoke(main, wanted)
    assert refused.exit_code == 2
    assert "--replay plays it at its own address" in refused.output
    first = CliRunner().invoke(main, [*wanted, "--replay"])
    assert first.exit_code == 0, first.output
    assert "imported 1 trajectories" in first.output
    assert "[hidden]" in first.output  # what the store does not hold
    (folder,) = (tmp_path / "recordings").iterdir()
    rows = demonstration_rows(folder, Settings(), 1)
    assert [step.action_type for step in rows.steps] == ["click"]
    rrweb = CliRunner().invoke(
        main, ["data", "import", "rrweb", str(path), "--instruction", "Go.", "-w", str(tmp_path)]
    )
    assert rrweb.exit_code == 2
    assert "npm install rrweb" in rrweb.output

"""Files for a page that asks for them: the session's own, by mouse and by name, and none from outside."""

from __future__ import annotations

import pytest
import pytest_asyncio
from browser_pages import SIZE, Stage, act, at, browser, html
from hostile import Page, Site, reply

from flywheel.agent.actions import Click, Hotkey, Navigate, Point, Scroll, Type, Wait
from flywheel.envs.browser.driver.browser_ui import accepts_file, list_session_files

pytestmark = pytest.mark.asyncio(loop_scope="module")
_SAY = """<script>const log = []; for (const kind of ["change", "cancel"]) addEventListener(kind, async (e) => {
    log.push(kind); for (const file of e.target.files) log.push(file.name, await file.text()); });</script>"""
INPUT = f"<input type=file style='width:180px;height:40px'>{_SAY}"
MANY = f"<input type=file multiple accept='.csv,text/plain' style='width:180px;height:40px'>{_SAY}"
BY_SCRIPT = f"""<button style='width:180px;height:40px' onclick="const made = document.createElement('input');
    made.type = 'file'; made.click();
    made.onchange = async () => log.push('made', await made.files[0].text())">up</button>
    {_SAY}"""
OPEN = at(20, 20)
ROW = 20  # pixels


def row(number: int) -> Click:
    return Click(Point(0.5, (6 + ROW * (number + 1.5)) / SIZE))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    save = Page(
        send=lambda request: reply(request, 200, "kept", {"Content-Disposition": "attachment; filename=saved.txt"})
    )
    with Site({"save": save}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "files"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("a.csv", "b.txt", "c.png", "sub/d.csv"):
        (inside / name).write_text(f"in {name}")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "way").symlink_to(tmp_path)
    return inside


async def log(tab) -> list:
    await tab.observe(0)
    return await tab.evaluate("log")


async def test_a_click_on_a_listed_file_gives_it(stage, folder):
    tab = await stage.open(INPUT, files=folder)
    before = await tab.screenshot()
    assert "the page asks for a file" in (said := await act(tab, OPEN))
    assert "a.csv, b.txt, c.png, sub/d.csv" in said
    assert "secret" not in said
    assert "link" not in said
    assert await tab.screenshot() != before, "the list is seen"
    assert await act(tab, row(1)) == ""
    assert await log(tab) == ["change", "b.txt", "in b.txt"]
    assert "list" not in await act(tab, Wait())


@pytest.mark.parametrize("ways", [(Type("sub/d.csv\n"),), (Type("sub/"), Type("d.csv"), Hotkey(("enter",)))])
async def test_a_file_is_named_by_typing(stage, folder, ways):
    tab = await stage.open(INPUT, files=folder)
    await act(tab, OPEN)
    for way in ways:
        assert await act(tab, way) == ""
    assert await log(tab) == ["change", "d.csv", "in sub/d.csv"]


@pytest.mark.parametrize(
    "name", ["../secret.txt", "link.txt", "way/secret.txt", "/etc/passwd", "sub/../../secret.txt", "none.csv", "\0", ""]
)
async def test_no_file_from_outside_is_given(stage, folder, name):
    tab = await stage.open(INPUT, files=folder)
    await act(tab, OPEN)
    name = name or str(folder.parent / "secret.txt")
    assert ("has no file" in (said := await act(tab, Type(f"{name}\n")))) or "no file is chosen" in said
    assert await log(tab) == []


async def test_several_files_are_chosen_one_by_one_or_named_in_quotes(stage, folder):
    tab = await stage.open(MANY, files=folder)
    assert "c.png" not in await act(tab, OPEN), "the input does not accept it"
    for number in (0, 1, 2, 1):
        await act(tab, row(number))
    await act(tab, Click(Point(0.2, (6 + ROW * 8.5) / SIZE)))
    assert await log(tab) == ["change", "a.csv", "in a.csv", "d.csv", "in sub/d.csv"]
    await act(tab, OPEN)
    await act(tab, Type('"b.txt" "a.csv"\n'))
    assert (await log(tab))[5:] == ["change", "b.txt", "in b.txt", "a.csv", "in a.csv"]


async def test_escape_closes_the_list_and_other_actions_wait(stage, folder):
    tab = await stage.open(INPUT, files=folder)
    before = await tab.screenshot()
    await act(tab, OPEN)
    assert "a list of files is open" in await act(tab, Navigate("elsewhere"))
    assert await act(tab, Scroll(Point(0.5, 0.5), "down")) == ""
    assert await act(tab, Hotkey(("esc",))) == ""
    assert await log(tab) == ["cancel"]
    assert len(await tab.screenshot()) == pytest.approx(len(before), rel=0.5)


async def test_an_input_that_a_script_made_and_what_was_downloaded(stage):
    tab = await stage.open(BY_SCRIPT + "<br><a href=save style='font-size:60px'>save</a>")
    assert "the session has none" in await act(tab, OPEN)
    await act(tab, Hotkey(("esc",)))
    assert "downloaded saved.txt" in await act(tab, at(40, 80))
    assert "saved.txt" in await act(tab, OPEN)
    await act(tab, Type("saved.txt\n"))
    assert await log(tab) == ["made", "kept"]


async def test_a_page_that_prevents_it_and_the_machines_own_files(stage, folder):
    tab = await stage.open(
        INPUT + "<script>addEventListener('click', (e) => e.preventDefault())</script>", files=folder
    )
    assert await act(tab, OPEN) == ""
    tab = await stage.open(html("<button style='width:180px;height:40px' onclick='showOpenFilePicker()'>x</button>"))
    assert "showOpenFilePicker: the machine's files: denied" in await act(tab, OPEN)


async def test_what_an_input_accepts():
    for accept, name in (("", "a.bin"), (".CSV, .txt", "b.csv"), ("image/*", "c.png"), ("text/csv", "b.csv")):
        assert accepts_file(accept, name)
    assert not accepts_file("image/*,.pdf", "b.csv")


async def test_links_are_no_files(folder):
    assert list(list_session_files([folder, folder / "none"])) == ["a.csv", "b.txt", "c.png", "sub/d.csv"]


async def test_the_list_goes_with_the_document_that_asked(stage, folder):
    tab = await stage.open(INPUT + "<script>setTimeout(() => { location = 'save2' }, 50)</script>", files=folder)
    stage.site.pages["save2"] = html("<p>elsewhere")
    assert "the page asks for a file" in await act(tab, OPEN)
    await act(tab, Wait(), 100)
    assert await act(tab, Type("a.csv\n")) == ""
    assert (await tab.evaluate("location.pathname")).endswith("save2")

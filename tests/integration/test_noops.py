"""What the browser would have done for a person and does not do here is said in the notes of the same step."""

from __future__ import annotations

import time

import pytest
import pytest_asyncio
from browser_pages import Stage, act, at, browser
from hostile import Page, Site, reply

from flywheel.agent.actions import Hotkey, Point, RightSingle

pytestmark = pytest.mark.asyncio(loop_scope="module")
LINK = "<a href='{}' style='font-size:60px'>link</a>"
ON_LINK = at(20, 40)
ON_PAGE = at(150, 150)


def late_file(request) -> None:
    """A file that a server takes its time over."""
    time.sleep(0.1)
    header = {"Content-Disposition": 'attachment; filename="a.txt"', "Content-Type": "application/octet-stream"}
    reply(request, 200, b"hello", header)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    pages = {"file": Page(send=late_file), "nothing": Page(send=lambda request: reply(request, 204, b""))}
    with Site(pages) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "mailto:a@b.c",
        "tel:1",
        "chrome://version",
        "data:text/html,hi",
        "other:thing",
        "view-source:http://127.0.0.1/",
        "blob:nothing",
    ],
)
@pytest.mark.parametrize("how", ["link", "script"])
async def test_a_link_to_what_pages_may_not_open(stage, address, how):
    script = f"<script>addEventListener('click', () => {{ location.href = '{address}' }})</script>"
    tab = await stage.open(LINK.format(address) if how == "link" else script)
    assert await act(tab, ON_LINK, 100) == f"an address that pages may not lead to was not opened: {tab_form(address)}"
    assert await act(tab, ON_PAGE if how == "link" else Hotkey(("a",)), 100) == ""


def tab_form(address: str) -> str:
    return address + "/" if address == "chrome://version" else address


@pytest.mark.parametrize(
    "body",
    [
        LINK.format("file"),
        "<a href=file download=other.txt style='font-size:60px'>link</a>",
        "<script>addEventListener('click', () => { location = 'file' })</script>",
        """<script>addEventListener('click', () => Object.assign(document.createElement('a'),
        { href: URL.createObjectURL(new Blob(['hello'])), download: 'a.txt' }).click())</script>""",
    ],
)
async def test_a_file_is_told_of_in_the_step_that_asked_for_it(stage, body):
    for _ in range(3):
        tab = await stage.open(body)
        assert "(5 bytes)" in await act(tab, ON_LINK)
        assert await act(tab, Hotkey(("shift",))) == ""


async def test_a_link_that_leads_nowhere_by_its_servers_will_is_no_no_op(stage):
    tab = await stage.open(LINK.format("nothing"))
    assert await act(tab, ON_LINK) == ""


@pytest.mark.parametrize(
    ("call", "note"),
    [
        ("navigator.geolocation.getCurrentPosition(() => 0)", "place: denied"),
        ("navigator.geolocation.watchPosition(() => 0, () => 0)", "place: denied"),
        ("Notification.requestPermission()", "notifications: denied"),
        ("navigator.clipboard.readText()", "reading the clipboard: denied"),
        ("navigator.mediaDevices.getUserMedia({ audio: true })", "camera or microphone: denied"),
        ("document.body.requestFullscreen()", "full screen: denied"),
        ("navigator.requestMIDIAccess()", "a MIDI device: denied"),
        ("navigator.wakeLock.request('screen')", "keeping the screen on: denied"),
        ("print()", "print: nothing was printed"),
    ],
)
async def test_what_a_page_asks_for_and_does_not_get(stage, call, note):
    tab = await stage.open(
        f"<script>addEventListener('click', () => {{ Promise.resolve({call}).catch(() => 0) }})</script>"
    )
    assert await act(tab, ON_PAGE) == note


async def test_a_menu_that_does_not_open(stage):
    tab = await stage.open("<div style='height:100px' oncontextmenu='event.preventDefault()'>own menu</div>")
    assert "no menu opens here" in await act(tab, RightSingle(Point(0.5, 0.9)))
    assert await act(tab, RightSingle(Point(0.5, 0.2))) == "", "the page's own"


async def test_what_a_page_ignores_needs_no_word(stage):
    tab = await stage.open("<p>nothing listens here")
    for action in (ON_PAGE, Hotkey(("a",)), Hotkey(("ctrl", "b")), Hotkey(("esc",)), Hotkey(("f2",))):
        assert await act(tab, action) == ""

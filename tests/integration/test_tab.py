"""A tab: all that a page can do beside what is seen, and where it may go. In a real browser."""

from __future__ import annotations

from collections import Counter

import pytest
import pytest_asyncio
from browser_pages import SIZE, Stage, act, at, browser, html
from hostile import Page, Site, endless, redirect, reply

from flywheel.agent.actions import Click, NavigateBack, Point
from flywheel.envs.browser.page_source import LoginSteps
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIDDLE = Point(0.5, 0.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({"pop": html("<p data-el=pop>pop<script>addEventListener('click', () => close())</script>")}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


# -- pages over pages ---
@pytest.mark.parametrize(
    "opens", ["<a href=pop target=_blank id=o>go</a>", "<button id=o onclick=\"window.open('pop')\">go</button>"]
)
@pytest.mark.parametrize("leave", [NavigateBack(), Click(MIDDLE)], ids=["back", "closes"])
async def test_a_page_that_is_opened_is_seen_until_it_goes(stage, opens, leave):
    tab = await stage.open(
        opens
        + "<style>#o{position:absolute;left:0;top:0;width:80px;height:40px}</style><script>window.kept = 1</script>"
    )
    assert "opened" in await act(tab, at(20, 20), 100)
    assert (await tab.observe(0))["elements"][0]["name"] == "pop"
    assert tab.url.endswith("/p/pop")
    screen = await tab.screenshot()
    assert "closed" in await act(tab, leave)
    assert await tab.evaluate("[location.pathname.slice(0, 7), kept]") == ["/p/page", 1]
    assert await tab.screenshot() != screen


async def test_popups_that_nobody_asked_for_are_blocked(stage):
    tab = await stage.open("""<script>
        let opened = 0;
        for (let i = 0; i < 1000; i++) if (open("pop")) opened += 1;
        addEventListener("click", () => { for (let i = 0; i < 1000; i++) if (open("pop")) opened += 1; });
    </script>""")
    assert any("blocked" in note for note in tab.notes.take())
    await act(tab, at(50, 50))
    await act(tab, NavigateBack())
    assert await tab.evaluate("opened") == 1


async def test_a_popup_to_elsewhere_is_refused_and_costs_nothing(stage):
    with Site({"pop": html("elsewhere")}) as other:
        tab = await stage.open(f"<script>addEventListener('click', () => open('{other.url}/p/pop'))</script>")
        assert "refused" in await act(tab, at(50, 50), 100)
        assert tab.url.startswith(stage.site.url)
        assert other.hits == {}
        assert (await tab.screenshot()).startswith(b"\x89PNG")


# -- permissions ---
async def test_devices_are_denied(stage):
    tab = await stage.open("""<script>window.told = (async () => {
        const errors = [];
        await navigator.mediaDevices.getUserMedia({ video: true }).catch((e) => errors.push(e.name));
        const here = navigator.geolocation;
        await new Promise((done) => here.getCurrentPosition(done, (e) => (errors.push(e.code), done())));
        errors.push(await Notification.requestPermission());
        await document.body.requestPointerLock().catch((e) => errors.push(e.name));
        return errors;
    })()</script>""")
    await tab.observe(100)
    assert await tab.evaluate("told") == ["NotAllowedError", 1, "denied", "NotAllowedError"]


# -- files ---
def _file(name: str, content: bytes) -> Page:
    header = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": "application/octet-stream"}
    return Page(send=lambda request: reply(request, 200, content, header))


async def test_a_download_lies_in_the_sessions_folder(stage):
    stage.site.pages |= {"file": _file("report.txt", b"hello"), "evil": _file("../../evil", b"x")}
    tab = await stage.open(
        "<a href=file style='font-size:60px'>file</a><br><a href=evil style='font-size:60px'>evil</a>"
    )
    assert "downloaded report.txt (5 bytes)" in await act(tab, at(20, 30))
    assert "downloaded report (1).txt" in await act(tab, at(20, 30))
    await act(tab, at(20, 110))
    folder = tab.context.folder
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("report")} == {
        "report.txt": b"hello",
        "report (1).txt": b"hello",
    }
    assert len(list(folder.iterdir())) == 3
    await stage.open("<p>")
    assert not folder.exists()


async def test_a_download_without_end_is_cancelled(stage):
    over = stage.site.over
    stage.site.pages["endless"] = Page(
        send=endless(over, {"Content-Disposition": "attachment; filename=e"}, b"x" * 2**20)
    )
    tab = await stage.open("<a href=endless style='font-size:60px'>file</a>")
    notes = await act(tab, at(20, 30))
    for _ in range(100):
        if "cancelled" in notes:
            break
        notes += await act(tab, at(150, 150))
    assert "longer than 50 MiB" in notes


# -- where it may go ---
@pytest.mark.parametrize(
    "how",
    [
        "location = url",
        "open(url, '_self')",
        "form.action = url; form.submit()",
        "location.href = '/p/away'",
        "frame.src = url",
        "document.body.innerHTML = `<meta http-equiv=refresh content='0;url=${url}'>`",
    ],
)
async def test_an_address_outside_is_never_asked_for(stage, how):
    with Site({"pop": html("elsewhere")}) as other:
        stage.site.pages["away"] = Page(send=redirect(lambda path: other.url + "/p/pop"))
        tab = await stage.open(f"""<form id=form method=post></form><iframe id=frame></iframe>
            <script>const url = '{other.url}/p/pop'; addEventListener('click', () => {{ {how} }})</script>""")
        assert "refused" in await act(tab, at(180, 180), 100)
        assert tab.url.startswith(stage.site.url + "/p/page")
        assert other.hits == {}


@pytest.mark.parametrize(
    "address", ["about:blank", "data:text/html,hi", "file:///etc/passwd", "chrome://version", "javascript:0"]
)
async def test_other_kinds_of_addresses_lead_nowhere(stage, address):
    tab = await stage.open(f"<script>addEventListener('click', () => {{ location.href = '{address}'; }})</script>")
    await act(tab, at(50, 50), 100)
    assert tab.url.startswith(stage.site.url + "/p/page")


async def test_login_headers_go_to_the_own_origin_alone(stage):
    """Neither to another allowed origin, nor to where a redirection leads, but with popups of the own origin too."""
    told = []

    def note(request):
        told.append((f"http://{request.headers['Host']}", request.path, request.headers["X-Key"]))
        reply(request, 200, "<p data-el=p>noted", {"Access-Control-Allow-Origin": "*"})

    with Site({"noted": Page(send=note)}) as other:
        own = stage.site.url
        stage.site.pages |= {"noted": Page(send=note), "away": Page(send=redirect(lambda path: f"{other.url}/p/noted"))}
        tab = await stage.open(
            f"""<script src={other.url}/p/noted></script><iframe src=away></iframe>
            <script>addEventListener("click", () => {{ open("noted"); }});
            window.asked = (async () => {{
              for (const url of ["noted", "{other.url}/p/noted", "away"]) await fetch(url);
            }})();</script>""",
            allowed=(f"{own}/", f"{other.url}/"),
            entry=LoginSteps(headers={"X-Key": "ada"}),
        )
        await tab.evaluate("asked")
        await act(tab, at(100, 180), 100)
    assert Counter(told) == {(own, "/p/noted", "ada"): 2, (other.url, "/p/noted", None): 4}
    told.clear()
    tab = await stage.open("noted")
    assert told == [(own, "/p/noted", None)], "the next session has none"


async def test_a_header_that_cannot_be_sent_is_told(stage):
    with pytest.raises(EnvError, match="the header 'X-Key' cannot be sent"):
        await stage.open("<p>hello", entry=LoginSteps(headers={"X-Key": "two\nlines"}))


async def test_back_and_forth(stage):
    tab = await stage.open("<a href=pop style='font-size:60px'>go</a>")
    assert "no page to go back to" in await act(tab, NavigateBack())
    await act(tab, at(20, 30))
    assert tab.url.endswith("/p/pop")
    assert await act(tab, NavigateBack()) == ""
    assert "/p/page" in tab.url
    await tab.evaluate("history.pushState({}, '', '?here'); 0")
    await tab.observe(0)
    assert tab.url.endswith("?here")
    await act(tab, NavigateBack())
    assert not tab.url.endswith("?here"), "within one document too"


# -- sessions ---
async def test_nothing_is_left_of_the_last_session(stage):
    stage.site.pages["store"] = html("""<script>
        window.before = [document.cookie, localStorage.length, sessionStorage.length, window.name, history.length];
        document.cookie = "a=b"; localStorage.a = sessionStorage.a = window.name = "b"; history.pushState({}, "");
    </script>""")
    for _ in range(2):
        tab = await stage.open("store")
        assert await tab.evaluate("before.slice(0, 4)") == ["", 0, 0, ""]


async def test_the_viewport_is_the_sessions(stage):
    for size in ((320, 240), None):
        tab = await stage.open("<p>", viewport=size)
        assert await tab.evaluate("[innerWidth, innerHeight]") == list(size or (SIZE, SIZE))
        assert tab.size == (size or (SIZE, SIZE))


async def test_faults_of_a_page_are_told(stage):
    tab = await stage.open("<script src=missing.js></script><script>setTimeout(() => nothing(), 10)</script>")
    await tab.observe(50)
    assert any("missing.js" in fault for fault in tab.notes.faults)
    assert any("nothing is not defined" in fault for fault in tab.notes.faults)


async def test_a_page_is_made_ready_by_a_script_that_may_take_its_time(stage):
    tab = await stage.open(
        "<script>window.ready = 0</script>",
        prepare="return new Promise((done) => setTimeout(() => done(ready = 1), 120))",
    )
    assert await tab.evaluate("ready") == 1


async def test_who_opens_nothing_leaves_the_next_session_whole(stage):
    tab = await stage.open("<p>one")
    tab.rest()
    tab.rest()  # of a holder that came and went while the page was made ready
    tab = await stage.open("<p>two")
    tab.rest()
    tab.rest()
    tab = await stage.open("<p>three")
    found = await stage.chromium._connection.send("Target.getBrowserContexts")
    assert found["browserContextIds"] == [tab.context.id]

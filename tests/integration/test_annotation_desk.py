"""Several annotators over one policy: their leases, lost environments, promotions, and who may come in."""

from __future__ import annotations

import shutil

import aiohttp
import numpy as np
import pytest
from annotating import annotator, logged_in, make_desk_workspace, promote, serving, use_told_policy
from ports import remember_sockets

from flywheel.recordings.annotation.journal import is_annotation, read_annotation
from flywheel.recordings.synthetic.sessions import synthesize_speech
from flywheel.ui.annotate import server
from flywheel.ui.annotate.server import bind_annotation_port
from flywheel.ui.annotate.speech import SpokenThoughts
from flywheel.utils.errors import BadInput, EnvError, PolicyError

HEADER = {"do": "click", "x": 0.9, "y": 0.05}


@pytest.fixture
def policies(monkeypatch):
    return use_told_policy(monkeypatch)


@pytest.fixture
async def desk(tmp_path, policies):
    ws, settings = make_desk_workspace(tmp_path)
    async with serving(ws, settings) as (opened, url), logged_in(url) as client:
        opened.url, opened.client = url, client
        yield opened


async def test_a_session_from_its_begin_to_its_end(desk):
    async with annotator(desk.client) as ada:
        heard = await ada.begin("Ada")
        name, state = heard["session"]["name"], heard["state"]
        assert (state["over"], state["newest"]) == (False, True)
        assert [one["action"] for one in heard["candidates"]["list"]][:1] == ["click(point='<point>50 05</point>')"]
        assert ada.pictures
        await ada.say("override", step=0, gestures=[HEADER], thought="So it is.")
        await ada.at_step(1)
        await ada.say("accept", step=0, number=0)  # a key that was pressed late
        await ada.say("undo", step=1)
        await ada.at_step(0)
        await ada.say("play", step=0, count=2)
        await ada.hear(lambda heard: heard["state"]["step"] == 2 and not heard["state"]["playing"])
        await ada.say("finish", step=2, answer="")
        heard = await ada.at_step(3, candidates=False)
        assert (heard["state"]["over"], heard["state"]["solved"], "done" in heard) == (True, False, False)
        await ada.say("finish", step=3)
        heard = await ada.hear(lambda heard: "done" in heard)
        assert heard["done"]["solved"] is False
        assert "closed" not in heard
    assert not desk.sessions
    state, _ = read_annotation(desk.folder / name)
    assert [step["by"] for step in state.steps][:2] == ["", ""]
    assert state.begun["annotator"] == "ada"


async def test_two_never_hold_the_same_task_and_one_policy_serves_both(desk, policies):
    async with annotator(desk.client) as ada, annotator(desk.client) as ben:
        one, other = (await ada.begin("Ada"))["session"], (await ben.begin("Ben"))["session"]
        assert desk.sessions[one["name"]].engine.task.task_id != desk.sessions[other["name"]].engine.task.task_id
        await ben.say("resume", session=one["name"])
        assert "no such session of yours" in (await ben.hear(lambda heard: "error" in heard))["error"]
    assert len(policies) == 1


@pytest.mark.parametrize("name", ["eve@firm.com", " ", "x" * 99])
async def test_a_name_that_is_refused_begins_nothing_and_leaves_no_earlier_one(desk, name):
    async with annotator(desk.client) as eve:
        await eve.say("hello", annotator="Ada")
        await eve.hear(lambda heard: "desk" in heard)
        await eve.say("begin", annotator=name)
        assert "name" in (await eve.hear(lambda heard: "error" in heard))["error"]
        eve.heard.clear()
        await eve.say("resume", session="any")
        assert "say your name first" in (await eve.hear(lambda heard: "error" in heard))["error"]
    assert not desk.sessions


async def test_what_was_left_is_gone_on_with_and_not_begun_anew(desk):
    async with annotator(desk.client) as ada:
        one = (await ada.begin("O'Brien"))["session"]["name"]
        task = desk.sessions[one].engine.task.task_id
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)
        await ada.say("leave")
        await ada.hear(lambda heard: not desk.sessions)
        ada.heard.clear()
        two = (await ada.begin("o'brien"))["session"]["name"]
        assert desk.sessions[two].engine.task.task_id != task
        await ada.say("resume", session=one)
        await ada.at_step(1)
        assert "error" not in ada.heard


async def test_what_is_open_elsewhere_says_so_and_its_end_is_told_once(desk):
    async with annotator(desk.client) as first, annotator(desk.client) as second:
        name = (await first.begin("Ada"))["session"]["name"]
        await second.say("hello", annotator="Ada")
        (left,) = (await second.hear(lambda heard: "desk" in heard))["desk"]["left"]
        assert (left["name"], left["open"]) == (name, True)
        await second.say("resume", session=name)
        await second.at_step(0)
        assert "another tab" in (await first.hear(lambda heard: "closed" in heard))["closed"]
        session, shown_at_end = desk.sessions[name], []
        end = session.holder.end

        async def end_seen():
            shown_at_end.append(session.page)
            await end()

        session.holder.end = end_seen
        await second.say("finish", step=0)
        await second.at_step(1, candidates=False)
        await second.say("finish", step=1)
        assert "closed" not in await second.hear(lambda heard: "done" in heard)
        assert shown_at_end == [None]  # no page is left to be told that its session was closed


async def test_who_closes_the_tab_goes_on_where_they_were(desk):
    async with annotator(desk.client) as ada:
        name = (await ada.begin("Ada"))["session"]["name"]
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)
    async with annotator(desk.client) as ada:
        await ada.say("hello", annotator="ada")
        left = (await ada.hear(lambda heard: "desk" in heard))["desk"]["left"]
        assert [(one["name"], one["steps"]) for one in left] == [(name, 1)]
        await ada.say("resume", session=name)
        assert len((await ada.at_step(1))["candidates"]["list"]) == 3


async def test_a_server_that_was_restarted_goes_on(tmp_path, policies):
    ws, settings = make_desk_workspace(tmp_path)
    async with serving(ws, settings) as (_, url), logged_in(url) as client, annotator(client) as ada:
        name = (await ada.begin("Ada"))["session"]["name"]
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)
    async with serving(ws, settings) as (_, url), logged_in(url) as client:
        async with annotator(client) as ben:
            await ben.begin("Ben")  # whose task is another one
        async with annotator(client) as ada:
            await ada.say("hello", annotator="Ada")
            await ada.say("resume", session=name)
            assert (await ada.at_step(1))["state"]["history"][0]["by"] == "ada"


async def test_a_lease_that_ends_gives_the_task_back_and_keeps_the_work(desk):
    async with annotator(desk.client) as ada:
        name = (await ada.begin("Ada"))["session"]["name"]
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)
        leased = desk.sessions[name]
        leased._queue._now = lambda: 0.0  # its clock stood still: others' has gone on
        await leased.renew()
        leased.until = 0.0
        heard = await ada.hear(lambda heard: "closed" in heard)
        assert "the lease ended" in heard["closed"]
        async with annotator(desk.client) as ben:
            await ben.begin("Ben")
        await ada.say("resume", session=name)
        await ada.at_step(1)


async def test_a_lost_environment_is_brought_back(desk, monkeypatch):
    async with annotator(desk.client) as ada:
        name = (await ada.begin("Ada"))["session"]["name"]

        async def crash(action):
            raise EnvError("the page crashed")

        monkeypatch.setattr(desk.sessions[name].engine._env, "step", crash)
        await ada.say("accept", step=0, number=0)
        heard = await ada.at_step(1)
        assert "the page crashed" in heard["note"]
        await ada.say("accept", step=1, number=1)
        await ada.at_step(2, candidates=False)


async def test_a_dead_policy_is_told_and_one_goes_on_by_hand(desk, policies):
    async with annotator(desk.client) as ada:
        await ada.begin("Ada")
        policies[0]._texts = [PolicyError("the model is gone")] * 99
        await ada.say("accept", step=0, number=0)
        heard = await ada.at_step(1)
        assert "the model is gone" in heard["candidates"]["why"]
        await ada.say("override", step=1, gestures=[HEADER], thought="")
        await ada.at_step(2, candidates=False)


async def test_a_promotion_reaches_the_next_session_not_the_one_at_work(desk, policies):
    async with annotator(desk.client) as ada, annotator(desk.client) as ben:
        first = (await ada.begin("Ada"))["session"]
        promote(desk.ws, 1, "models/newer")
        second = (await ben.begin("Ben"))["session"]
        assert (first["weights"], second["weights"]) == ("weights of models/base", "weights of models/newer")
        await ada.say("accept", step=0, number=0)
        heard = await ada.at_step(1)
        assert not heard["state"]["newest"]
        assert heard["candidates"]["list"]
        state = desk.sessions[first["name"]].engine.state
        assert {one["chosen"]["weight_version"] for one in state.proposed} == {first["weights"]}
    assert len(policies) == 2


async def test_skip_and_leave(desk):
    async with annotator(desk.client) as ada:
        one = (await ada.begin("Ada"))["session"]["name"]
        task = desk.sessions[one].engine.task.task_id
        await ada.say("skip")
        await ada.hear(lambda heard: not desk.sessions)
        assert not (desk.folder / one).exists()  # nothing was decided
        ada.heard.clear()
        two = (await ada.begin("Ada"))["session"]["name"]
        assert desk.sessions[two].engine.task.task_id != task
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)
        await ada.say("leave")
        await ada.hear(lambda heard: any(one["name"] == two for one in heard["desk"]["left"]))
        await ada.say("resume", session=two)
        await ada.at_step(1)
        ada.heard.clear()
        await ada.say("skip")
        assert not (await ada.hear(lambda heard: "desk" in heard))["desk"]["left"]
    assert not is_annotation(desk.folder / two)
    assert (desk.folder / two).is_dir()  # what was decided is kept


@pytest.mark.parametrize(
    "said",
    [
        {"do": "accept", "step": 0, "number": 77},
        {"do": "override", "step": 0, "gestures": [{"do": "click", "x": "a", "y": 0}]},
        {"do": "override", "step": 0, "gestures": "x"},
        {"do": "override", "step": 0, "action": "rm -rf"},
        {"do": "accept", "step": None, "number": 0},
        {"do": "play", "step": 0, "count": "many"},
    ],
)
async def test_what_cannot_be_done_is_told_and_changes_nothing(desk, said):
    async with annotator(desk.client) as ada:
        name = (await ada.begin("Ada"))["session"]["name"]
        await ada.say(**said)
        await ada.hear(lambda heard: "error" in heard)
        assert desk.sessions[name].engine.steps == 0
        await ada.say("accept", step=0, number=0)
        await ada.at_step(1)


async def test_only_its_own_pages_come_in(desk):
    async with aiohttp.ClientSession(desk.url) as stranger:
        async with stranger.get("/work") as answer:
            assert answer.status == 401
        async with stranger.post("/login", data={"secret": "guess"}) as answer:
            assert answer.status == 401
        async with stranger.get("/", allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/login"
        async with stranger.get("/static/../server.py") as answer:
            assert answer.status in (401, 404)
    async with desk.client.get("/", headers={"Host": "evil.example"}) as answer:
        assert answer.status == 421
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await desk.client.ws_connect("/work", headers={"Origin": "http://evil.example"})
    assert refused.value.status == 403
    async with desk.client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}) as answer:
        assert answer.status == 403
    async with desk.client.get("/") as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("data", "rate", "what"),
    [(b"\0", 16_000, "no samples"), (b"\0\0", 10, "no samples"), (bytes(2 * 8_000 * 61), 8_000, "up to 60 s")],
)
async def test_other_samples_are_refused(data, rate, what):
    with pytest.raises(BadInput, match=what):
        await SpokenThoughts(None).hear(data, rate, None)


@pytest.mark.skipif(shutil.which("flite") is None, reason="no voice without flite")
async def test_a_spoken_thought_is_heard_at_the_rate_of_the_microphone(desk):
    samples = synthesize_speech("I turn on the camera", "slt", 1.0)
    at_48_khz = np.repeat(samples, 3)
    async with annotator(desk.client) as ada:
        await ada.begin("Ada")
        (session,) = desk.sessions.values()
        data = (at_48_khz * 2**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes()
        said = await desk.speech.hear(data, 48_000, session.engine)
        assert "camera" in said["text"]
        assert await desk.speech.hear(bytes(32_000), 16_000, session.engine) == {"heard": "", "text": ""}


async def test_only_who_has_logged_in_sees_a_desktop_or_is_heard(desk):
    async with aiohttp.ClientSession(desk.url) as stranger:
        for ask, path in ((stranger.get, "/screen/any"), (stranger.post, "/speech/any"), (stranger.get, "/work")):
            async with ask(path) as answer:
                assert answer.status == 401


async def test_the_page_has_the_port_of_the_last_time(tmp_path):
    ws, _ = make_desk_workspace(tmp_path)
    first, note = bind_annotation_port(ws, None)
    port = first.getsockname()[1]
    assert note == ""
    first.listen()
    with first, pytest.raises(BadInput, match=f"port {port} is in use"):
        bind_annotation_port(ws, port)
    again, note = bind_annotation_port(ws, None)
    with again:
        assert (again.getsockname()[1], note) == (port, "")
        other, note = bind_annotation_port(ws, None)
        with other:
            assert other.getsockname()[1] != port
            assert f"port {port} of the last time" in note
    last, _ = bind_annotation_port(ws, None)  # a page elsewhere in between changes nothing
    with last:
        assert last.getsockname()[1] == port


def test_a_port_that_cannot_be_stored_is_let_go(tmp_path, monkeypatch):
    ws, _ = make_desk_workspace(tmp_path)
    made = remember_sockets(monkeypatch, server, "bind_local_port")
    ws.state.mkdir(exist_ok=True)
    (ws.state / "annotation").write_text("no folder")
    with pytest.raises(OSError, match="File exists"):
        bind_annotation_port(ws, 0)
    assert [one.fileno() for one in made] == [-1]

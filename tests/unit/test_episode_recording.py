"""Recordings of episodes: the screens are in the file as they were, and only what was asked for is kept."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from fake_browsers import Fleetful
from fake_env import fake_task
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageSequence

from flywheel.agent.actions import Click, Finished, Point, Type, Wait
from flywheel.envs.base import Observation, StepResult
from flywheel.envs.browser import episode_recorder
from flywheel.utils.errors import EnvError

TASK = fake_task(1, max_steps=9)


def png(width: int, height: int, colour: tuple[int, ...], mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour if mode != "P" else 3).save(buffer, "PNG")
    return buffer.getvalue()


colours = st.tuples(*[st.integers(0, 255)] * 3)


@given(st.lists(colours, min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 40))
def test_each_screen_can_be_taken_out_again_byte_for_byte(shades, width, height):
    screens = [png(width, height, shade) for shade in shades]
    film = episode_recorder.encode_apng(screens, {})
    assert list(episode_recorder.decode_apng_frames(film)) == screens
    with Image.open(io.BytesIO(film)) as image:
        frames = [frame.convert("RGB").getpixel((0, 0)) for frame in ImageSequence.Iterator(image)]
    assert frames[: len(shades)] == list(shades)


@pytest.mark.parametrize("odd", [png(9, 4, (1, 2, 3)), png(6, 5, (1, 2, 3, 255), "RGBA"), png(6, 5, (0,), "P")])
def test_a_screen_of_another_size_or_kind_is_shown_like_the_first(odd):
    plain = png(6, 5, (9, 9, 9))
    for screens in ([plain, odd], [odd, plain]):
        taken = list(episode_recorder.decode_apng_frames(episode_recorder.encode_apng(screens, {})))
        assert len(taken) == 2
        sizes = {Image.open(io.BytesIO(screen)).size for screen in taken}
        assert sizes == {Image.open(io.BytesIO(screens[0])).size}


@pytest.mark.parametrize("bad", [[], [b""], [b"GIF89a" * 9]])
def test_what_is_no_screen_is_refused(bad):
    with pytest.raises(ValueError, match="screen"):
        episode_recorder.encode_apng(bad, {})


def film(name: str, size: int = 40) -> episode_recorder.EpisodeRecording:
    return episode_recorder.EpisodeRecording(
        name + episode_recorder.RECORDING_SUFFIX, (png(size, size, (1, 2, 3)),), {"text": "\ud800 \u00e9"}
    )


def test_the_oldest_make_room_and_nothing_else_is_touched(tmp_path):
    (tmp_path / "mine.png").write_bytes(b"x" * 10_000)
    one = episode_recorder.write_recording(film("a"), tmp_path, 10**6)
    size = one.stat().st_size
    for name in "bcde":
        episode_recorder.write_recording(film(name), tmp_path, 3 * size)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [name + episode_recorder.RECORDING_SUFFIX for name in "cde"] + ["mine.png"]


def test_a_film_above_the_limit_alone_is_still_kept(tmp_path):
    assert episode_recorder.write_recording(film("a"), tmp_path, 1).is_file()


def test_a_disk_that_cannot_be_written_costs_the_film_alone(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert episode_recorder.write_recording(film("a"), tmp_path / "file", 10**6) is None
    assert "not kept" in caplog.text


async def _episodes(fleet, tmp_path, record=None) -> None:
    """One solved, one that runs out, one that crashes, in one session each."""
    async with fleet.pool.env(record) as env:
        first = await env.reset(TASK, 0)
        square = first.info["state"]["elements"][0]
        await env.step(Type("\ud800"))
        await env.step(Click(Point(square["x"] + 0.05, square["y"] + 0.05)))
    async with fleet.pool.env(record) as env:
        await env.reset(TASK, 0)
        await env.step(Finished())
    async with fleet.pool.env(record) as env:
        await env.reset(TASK, 3)
        await env.step(Wait())
        env.tab.crash()
        with pytest.raises(EnvError):
            await env.step(Wait())


@pytest.mark.parametrize(
    ("record", "outcomes"), [("none", []), ("failed", ["crashed", "failed"]), ("all", ["crashed", "failed", "solved"])]
)
async def test_what_is_kept_is_a_setting(tmp_path, record, outcomes):
    async with Fleetful(browsers=1, pages=1, record=record, record_folder=str(tmp_path / "films")) as fleet:
        await _episodes(fleet, tmp_path)
    films = {path.read_bytes() for path in tmp_path.glob("films/*.png")}
    told = {
        episode_recorder.read_recording_description(data)["outcome"]: episode_recorder.read_recording_description(data)
        for data in films
    }
    assert sorted(told) == outcomes
    if "crashed" in told:
        about = told["crashed"]
        assert (about["task"], about["seed"], about["actions"]) == (TASK.task_id, 3, [["wait", {}]])
        assert "the page" in about["error"]


async def test_a_lease_can_be_recorded_by_itself(tmp_path):
    async with Fleetful(browsers=1, pages=1) as fleet:
        async with fleet.pool.env(record=tmp_path) as env:
            results = [await env.reset(TASK, 0), await env.step(Wait())]
            await env.reset(TASK, 0)
            kept = await env.checkpoint()
            await env.step(Wait())
            await env.restore(kept)
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
    one, two = sorted(tmp_path.iterdir())
    assert list(episode_recorder.decode_apng_frames(one.read_bytes())) == [
        result.observation.screenshot for result in results
    ]
    assert json.loads(json.dumps(episode_recorder.read_recording_description(two.read_bytes())["actions"])) == [
        ["wait", {}],
        None,
    ]


async def test_a_long_episode_says_how_many_screens_it_left_out(tmp_path):
    camera = episode_recorder.EpisodeRecorder("all", "s1", tmp_path, 2000)
    async with Fleetful(browsers=1, pages=1) as fleet, fleet.pool.env() as env:
        result = await env.reset(TASK, 0)
        camera.begin(TASK, 0, result)
        size = len(result.observation.screenshot)
        for _ in range(8):
            camera.add(Wait(), await env.step(Wait()))
    kept = camera.finish()
    assert len(kept.screens) == 2000 // size
    assert kept.about["left_out"] == 9 - len(kept.screens)
    assert len(kept.about["actions"]) == 8


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.5, 0.0, 1.0)])
def test_a_restored_result_replaces_the_reward_so_far(tmp_path, rewards):
    """rewards: of an end, of the checkpoint that is restored after it, and of a step after that."""

    def result(reward):
        return StepResult(Observation(png(6, 5, (1, 2, 3)), 6, 5, ""), reward, terminated=reward > 0)

    camera = episode_recorder.EpisodeRecorder("all", "s1", tmp_path, 2000)
    camera.begin(TASK, 0, result(0.0))
    for action, reward in zip((Wait(), None, Wait()), rewards, strict=False):
        camera.add(action, result(reward))
    about = camera.finish().about
    assert (about["reward"], about["outcome"]) == (1.0, "solved")


class SlowWriter:
    """Writes once `held` is set; `begun` is set before."""

    def __init__(self, monkeypatch) -> None:
        self.begun, self.held, self._save = asyncio.Event(), asyncio.Event(), episode_recorder.write_recording
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(episode_recorder, "write_recording", self.save)

    def save(self, *given):
        self._loop.call_soon_threadsafe(self.begun.set)
        asyncio.run_coroutine_threadsafe(self.held.wait(), self._loop).result(30)
        return self._save(*given)


async def test_the_end_of_a_lease_waits_for_its_recording(tmp_path, monkeypatch):
    writer = SlowWriter(monkeypatch)
    async with Fleetful(browsers=1, pages=1) as fleet:
        async with fleet.pool.env(record=tmp_path) as env:
            await env.reset(TASK, 0)
            asyncio.get_running_loop().call_later(0.2, writer.held.set)  # long after the page is ready again
        assert len(list(tmp_path.iterdir())) == 1


async def test_the_pool_does_not_end_before_the_recordings_of_a_cancelled_holder_are_written(tmp_path, monkeypatch):
    writer = SlowWriter(monkeypatch)
    async with Fleetful(browsers=1, pages=1) as fleet:

        async def hold() -> None:
            async with fleet.pool.env(record=tmp_path) as env:
                await env.reset(TASK, 0)

        holder = asyncio.create_task(hold())
        await asyncio.wait_for(writer.begun.wait(), 30)
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        asyncio.get_running_loop().call_soon(writer.held.set)
    assert len(list(tmp_path.iterdir())) == 1

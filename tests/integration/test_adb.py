"""Real phones, as far as an ADB server without one can tell: the protocol, the actions, and all that goes wrong.

The server of these tests is held against Debian's own `adb`, where that is installed.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("adbutils", reason="the extra `phone` is not installed")

from adb_server import AdbServer
from fake_android import FIELD, HEIGHT, KEYBOARD, SWITCH, WIDTH, FakeAndroid
from PIL import Image
from processes import PATIENCE_S

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Finished, LongPress, OpenApp, Point, PressBack, PressHome, Scroll, Type, Wait
from flywheel.config import parse_settings
from flywheel.envs import registry
from flywheel.envs.conformance import check_env
from flywheel.envs.phone import android_env
from flywheel.envs.phone.android_env import AndroidPhone, PhoneScreenshot
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

SCREEN = PhoneScreenshot(b"", WIDTH, HEIGHT)
MANIFEST = """
world: mine
apps: {Settings: com.android.settings}
tasks:
  - name: wifi
    instruction: Turn Wi-Fi {word}.
    choose: {wifi: [{word: "on", before: disable, after: "1"}, {word: "off", before: enable, after: "0"}]}
    max_steps: {1: 10}
    reset: ["am force-stop com.android.settings", "svc wifi {before}"]
    state: {wifi: settings get global wifi_on}
    wanted: {wifi: "{after}"}
"""
TEXTS = ('it\'s 5% of $HOME `x` "y" \\ ; & | > <', "%s and %d", "  two  spaces ", "-e --option")


def _wifi():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.yaml"
        path.write_text(MANIFEST)
        return make_task(android_env.load_android_suite(path), "wifi", 1, 1, "train")


WIFI = _wifi()


def at(place: tuple[int, int]) -> Point:
    return Point((place[0] + 0.5) / WIDTH, (place[1] + 0.5) / HEIGHT)


def settings(server: AdbServer, **more):
    chosen = {"port": server.port, "settle_ms": 0.0, "timeout_s": 20.0, **more}
    return parse_settings({"sandbox": {"kinds": {"android": chosen}}}, where="test")


async def found(server: AdbServer, serial: str = "", timeout_s: float = 10.0) -> AndroidPhone:
    return await AndroidPhone.find("127.0.0.1", server.port, serial, timeout_s)


@asynccontextmanager
async def lent(server: AdbServer, task=WIFI, **more):
    async with open_environments(settings(server, **more), [task]) as environments:
        yield lambda: environments.env(task)


# -- the server, held against the real client --------------------------------------------------------------------------
@pytest.mark.skipif(shutil.which("adb") is None, reason="Debian's package adb is not installed")
async def test_the_real_client_takes_the_server_for_its_own(tmp_path):
    phone = FakeAndroid()
    async with AdbServer({"fake-1": phone}) as server:

        async def adb(*words: str) -> tuple[int, bytes, bytes]:
            call = await asyncio.create_subprocess_exec(
                "adb", "-P", str(server.port), *words, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            async with asyncio.timeout(PATIENCE_S):
                out, err = await call.communicate()
            return call.returncode, out, err

        assert (await adb("devices"))[1] == b"List of devices attached\nfake-1\tdevice\n\n"
        assert await adb("shell", "echo", "two  words") == (0, b"two words\n", b"")
        code, _, err = await adb("-s", "fake-1", "shell", "nosuchcommand")
        assert (code, err) == (127, b"/system/bin/sh: nosuchcommand: not found\n")
        shot = (await adb("exec-out", "screencap", "-p"))[1]
        assert Image.open(io.BytesIO(shot)).size == (WIDTH, HEIGHT)
        sent, back = tmp_path / "sent", tmp_path / "back"
        sent.write_bytes(bytes(range(256)) * 1000)
        assert (await adb("push", str(sent), "/sdcard/kept"))[0] == 0
        assert (await adb("pull", "/sdcard/kept", str(back)))[0] == 0
        assert back.read_bytes() == sent.read_bytes()
        phone.state = "offline"
        code, _, err = await adb("shell", "echo", "1")
        assert code == 1
        assert b"device offline" in err


# -- the actions -------------------------------------------------------------------------------------------------------
async def test_actions_are_commands_of_the_phones_shell():
    phone = FakeAndroid()
    async with AdbServer({"one": phone}) as server:
        there = await found(server)
        for action, command in (
            (Click(at(SWITCH)), f"input tap {SWITCH[0]} {SWITCH[1]}"),
            (LongPress(Point(0.5, 0.5)), "input swipe 90 160 90 160 900"),
            (act.Drag(Point(0.5, 0.5), Point(0.5, 0.25)), "input swipe 90 160 90 80 400"),
            (Scroll(Point(0.5, 0.5), "down"), "input swipe 90 240 90 80 400"),
            (Scroll(Point(0.5, 0.0), "down"), "input swipe 90 163 90 3 400"),
            (Scroll(Point(0.5, 0.5), "left"), "input swipe 45 160 135 160 400"),
            (PressHome(), "input keyevent 3"),
            (PressBack(), "input keyevent 4"),
            (Type("a\n"), "input keyevent 66"),
            (OpenApp("SETTINGS"), "monkey -p com.android.settings -c android.intent.category.LAUNCHER 1"),
        ):
            note = await android_env.perform_android_action(there, action, SCREEN, WIFI.params["apps"], False)
            assert (note, phone.commands[-1]) == ("", command)


@pytest.mark.parametrize("text", TEXTS)
async def test_what_is_typed_is_what_is_written(text):
    """Past the phone's shell, and past what `input` makes of %s."""
    phone = FakeAndroid()
    phone.app, phone.focused = "com.android.settings", True
    async with AdbServer({"one": phone}) as server:
        assert await android_env.perform_android_action(await found(server), Type(text), SCREEN, {}, False) == ""
    assert phone.text == text


async def test_text_goes_to_the_field_at_its_point_whole_or_not_at_all():
    phone = FakeAndroid()
    phone.app = "com.android.settings"

    async def do(action):
        return await android_env.perform_android_action(there, action, SCREEN, {}, False)

    async with AdbServer({"one": phone}) as server:
        there = await found(server)
        assert await do(act.TypeAt(at(FIELD), "wlan\n")) == ""
        assert phone.commands[-3:] == [f"input tap {FIELD[0]} {FIELD[1]}", "input text wlan", "input keyevent 66"]
        done = list(phone.commands)
        for action, told in (
            (act.TypeAt(at(FIELD), "x", clear=True), "a phone cannot empty a field and type in one action"),
            (act.TypeAt(Point(1.0, 0.5), "x"), "the point is outside the viewport"),
            (act.LeftTriple(at(FIELD)), "a phone has no left_triple"),
        ):
            assert await do(action) == told
        assert phone.commands == done
        assert (await do(act.TypeAt(at(FIELD), "é"))).startswith("tapped, and then: not typed")


async def test_every_character_is_typed_where_the_keyboard_is_installed():
    text = "Grüße, 你好 ☕ 👩‍👩‍👧"
    with_it, without = FakeAndroid(KEYBOARD), FakeAndroid()
    async with AdbServer({"with": with_it, "without": without}) as server:
        for name, one in (("with", with_it), ("without", without)):
            one.app, one.focused = "com.android.settings", True
            there = await found(server, name)
            keyboard = await android_env.enable_adb_keyboard(there)
            note = await android_env.perform_android_action(there, Type(text), SCREEN, {}, keyboard)
            assert (one.text, bool(note)) == ((text, False) if one is with_it else ("", True))
    assert "ADBKeyboard" in note


@pytest.mark.parametrize("name", ["Calculator", "", "com.nobody.here", "$(reboot)", "a;reboot", "x" * 5000])
async def test_an_application_that_is_not_there_is_said(name):
    phone = FakeAndroid()
    async with AdbServer({"one": phone}) as server:
        note = await android_env.perform_android_action(await found(server), OpenApp(name), SCREEN, {}, False)
    assert note.startswith("there is no application called")
    assert {one.split()[0] for one in phone.commands} <= {"pm"}


# -- what goes wrong: one line each ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("states", "serial", "said"),
    [
        ({}, "", "no phone is connected"),
        ({"one": "device"}, "two", "no phone two is connected; there are one"),
        ({"one": "device", "two": "device"}, "", "2 phones are connected: one, two"),
        ({"one": "offline"}, "", "the phone is offline"),
        ({"one": "unauthorized"}, "one", "the phone has not allowed this computer"),
        ({"one": "recovery"}, "", "the phone is in the state 'recovery'"),
    ],
)
async def test_a_phone_that_cannot_be_used_is_said_in_one_line(states, serial, said):
    phones = {name: FakeAndroid() for name in states}
    for name, state in states.items():
        phones[name].state = state
    async with AdbServer(phones) as server:
        with pytest.raises(EnvError) as raised:
            await found(server, serial)
    assert said in str(raised.value)
    assert raised.value.fix
    assert "\n" not in str(raised.value)


async def test_no_server_is_said_and_none_is_started():
    async with AdbServer({}) as server:
        pass
    with pytest.raises(EnvError, match="no ADB server answers"):
        await found(server)


async def test_a_command_that_fails_and_half_a_picture_are_errors():
    phone = FakeAndroid()
    async with AdbServer({"one": phone}) as server:
        there = await found(server)
        with pytest.raises(EnvError, match="failed with code 127: /system/bin/sh: nosuch: not found"):
            await there.shell("nosuch")
        phone.half = True
        with pytest.raises(EnvError, match="no whole picture"):
            await there.screen()


async def test_a_phone_that_does_not_answer_is_a_timeout():
    async with AdbServer({"one": FakeAndroid()}) as server:
        there = await found(server, timeout_s=0.2)
        server.hangs = 1
        with pytest.raises(EnvTimeout, match=r"did not answer within 0\.2 s"):
            await there.shell("echo 1")


# -- the environment ---------------------------------------------------------------------------------------------------
async def solve(env, task):
    """By hand: the settings are opened, the switch is tapped."""
    await env.reset(task, task.seed)
    await env.step(OpenApp("Settings"))
    return await env.step(Click(at(SWITCH)))


async def test_a_task_is_done_on_the_phone_and_seen_in_its_settings():
    phone = FakeAndroid()
    async with AdbServer({"one": phone}) as server, lent(server) as make, make() as env:
        first = await env.reset(WIFI, 1)
        assert (first.observation.width, first.observation.height) == (WIDTH, HEIGHT)
        assert first.info["score"] == 0
        opened = await env.step(OpenApp("Settings"))
        assert opened.observation.screenshot != first.observation.screenshot
        done = await env.step(Click(at(SWITCH)))
        assert (done.reward, done.terminated) == (1.0, True)
        assert done.info["state"]["shown"] == WIFI.params["wanted"]
        await env.reset(WIFI, 1)
        gave_up = await env.step(Finished("done"))
        assert (gave_up.reward, gave_up.terminated) == (0.0, True)


@pytest.mark.exhaustive
async def test_the_environment_passes_the_suite():
    moves = (OpenApp("Settings"), Click(at(FIELD)), Type("wlan"), Scroll(Point(0.5, 0.5), "down"), PressHome())
    able = frozenset({LongPress, OpenApp, PressHome, PressBack})
    async with AdbServer({"one": FakeAndroid(KEYBOARD)}) as server:

        async def hang(env):
            server.hangs = 1

        async with lent(server, timeout_s=4.0) as make:
            await check_env(make, WIFI, hang, able=able, moves=moves)


@pytest.mark.parametrize("commands", range(6))
async def test_a_phone_that_goes_offline_in_an_episode_is_a_crash_and_never_a_reward(commands):
    """At whichever of an episode's commands: the env is broken, and the next lease is of another phone."""
    phones = {"one": FakeAndroid(), "two": FakeAndroid()}
    async with AdbServer(phones) as server, lent(server, serials=["one", "two"]) as make:
        async with make() as env:
            server.dies_after = commands
            with pytest.raises(EnvError, match=r"gone|offline|picture"):
                await solve(env, WIFI)
            with pytest.raises(EnvError):
                await env.step(Wait())
        server.dies_after, phones["two"].state = None, "device"
        async with make() as env:
            assert (await solve(env, WIFI)).reward == 1.0
    assert "monkey" in " ".join(phones["two"].commands)


async def test_who_finds_no_phone_free_is_told():
    async with AdbServer({"one": FakeAndroid()}) as server, lent(server, open_s=0.1) as make, make():
        with pytest.raises(EnvTimeout, match="no phone became free"):
            async with make():
                pass


# -- the tasks ---------------------------------------------------------------------------------------------------------
async def test_the_kind_and_its_tasks_are_found_by_name():
    assert "android" in registry.list_backends()
    world = registry.find_backend("android").suite("android")
    for template in world.templates:
        level = min(world.templates[template].max_steps)
        params = world.draw(template, level, 3)
        assert "{" not in " ".join([params["instruction"], *params["reset"], *params["wanted"].values()])
        assert android_env.score_shown_state(params, {"shown": params["wanted"]}) == 1
        assert android_env.score_shown_state(params, {"shown": dict.fromkeys(params["wanted"], "null")}) == 0


async def test_the_shipped_tasks_are_enough_to_train_and_to_judge_by():
    counts = {"train_tasks": 12, "eval_tasks": 6, "domains": {"phone": ["android"]}, "levels": [1, 2, 3]}
    chosen = parse_settings({"synthesis": counts, "merge": {"weights": {"phone": 1.0}}}, where="test")
    train, held_out = (make_tasks(chosen, 0, split) for split in ("train", "eval"))
    assert {one.environment for one in train} == {"android"}
    assert not {one.task_id for one in train} & {one.task_id for one in held_out}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("world: x\ntasks: []", "tasks"),
        ("world: X\ntasks: [{}]", "world"),
        ("{", "not YAML"),
        (
            "world: x\ntasks: [{name: a, instruction: b, max_steps: {1: 3}, state: {a: b}, wanted: {c: d}}]",
            "no command tells c",
        ),
        (
            "world: x\ntasks: [{name: a, instruction: b, max_steps: {1: 3}, state: {a: b}, wanted: {a: d}, "
            "choose: {e: []}}]",
            "at least 1 item",
        ),
    ],
)
async def test_a_wrong_manifest_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "tasks.yaml").write_text(text)
    with pytest.raises(BadInput, match=said) as raised:
        android_env.load_android_suite(tmp_path / "tasks.yaml")
    assert "\n" not in str(raised.value)

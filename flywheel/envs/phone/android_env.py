"""Play tasks on a real Android phone, controlled by ADB commands: the phone, its actions, task suites and the `Env`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import random
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, model_validator

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, CallUser, Finished, Point
from flywheel.envs import registry
from flywheel.envs.base import Observation, StepResult, Task, TaskSuite, TaskTemplate, Verdict, apply_verifier
from flywheel.envs.browser.driver.input import OUTSIDE_NOTE, is_outside_screen
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

T = TypeVar("T")
_STATES = {  # state of a phone that cannot be used -> what is wrong, what helps
    "offline": ("is offline", "plug it in again, or run `adb reconnect offline`"),
    "unauthorized": ("has not allowed this computer", "unlock it and accept the question about USB debugging"),
}
_LIST_DEVICES = "run `adb devices`"


@dataclass(frozen=True)
class PhoneScreenshot:
    """Hold a phone's screenshot: a PNG of width x height pixels."""

    png: bytes
    width: int
    height: int


def explain_missing_adb() -> str:
    """Explain why ADB cannot be used here: a Python package is missing; "" where it is installed."""
    try:
        import adbutils  # noqa: F401
    except ImportError:
        return "the package adbutils is not installed"
    return ""


class AndroidPhone:
    """Control a phone behind an ADB server; made by `AndroidPhone.find`. Its errors, EnvError, say what to do.

    client: an AdbClient of adbutils. serial: the phone's serial number. timeout_s: of one command, in seconds.
    """

    def __init__(self, client: Any, serial: str, timeout_s: float) -> None:
        self._client, self.serial, self._timeout_s = client, serial, timeout_s

    @classmethod
    async def find(cls, host: str, port: int, serial: str, timeout_s: float) -> AndroidPhone:
        """Find the connected phone with a serial number, or the only one where `serial` is "".

        host, port: of the ADB server. timeout_s: of one command, in seconds. Raises EnvError where no server answers,
        and where the phone is missing, offline, unauthorized, or one of many; EnvTimeout where the server does not
        answer in time.
        """
        phone = cls(_make_client(host, port, timeout_s), serial, timeout_s)
        found = await phone._asked(lambda: {one.serial: one.state for one in phone._client.list()})
        where = f"{host}:{port}"
        if serial and serial not in found:
            there = f"; there are {', '.join(found)}" if found else ""
            raise EnvError(f"no phone {serial} is connected{there}", where=where, fix=_LIST_DEVICES)
        if not found:
            raise EnvError("no phone is connected", where=where, fix="plug one in, or start an emulator")
        if not serial and len(found) > 1:
            fix = "name those to use in sandbox.kinds.android.serials"
            raise EnvError(f"{len(found)} phones are connected: {', '.join(found)}", where=where, fix=fix)
        phone.serial = serial or next(iter(found))
        if (state := found[phone.serial]) != "device":
            why, fix = _STATES.get(state, (f"is in the state {state!r}", _LIST_DEVICES))
            raise EnvError(f"the phone {why}", where=phone.serial, fix=fix)
        return phone

    async def shell(self, command: str) -> str:
        """Run `command` in the phone's shell and return its output, without line ends at its end.

        Raises EnvError where the command or the phone fails, EnvTimeout where the phone does not answer in time.
        """
        client, limit_s = self._client, self._timeout_s
        done = await self._asked(lambda: client.device(self.serial).shell2(command, timeout=limit_s, v2=True))
        if done.returncode:
            reason = [*(done.stderr or done.stdout).strip().splitlines(), "nothing was said"][0]
            what = f"`{command[:80]}` failed with code {done.returncode}: {reason[:200]}"
            raise EnvError(what, where=self.serial, fix=f"try it: adb -s {self.serial} shell")
        return done.stdout.rstrip("\r\n")

    async def screen(self) -> PhoneScreenshot:
        """Take a screenshot. Raises EnvError where the picture is not complete, EnvTimeout where it is late."""
        png = await self._asked(self._shot)
        try:
            picture = Image.open(io.BytesIO(png), formats=("PNG",))
            picture.load()
        except (OSError, SyntaxError, ValueError) as error:
            reason = png[:80].decode("utf-8", "replace").strip() if png[:1] != b"\x89" else str(error)
            fix = f"try it: adb -s {self.serial} exec-out screencap -p"
            what = f"the phone sent no whole picture: {reason or 'nothing'}"
            raise EnvError(what, where=self.serial, fix=fix) from None
        return PhoneScreenshot(png, *picture.size)

    # -- inside -------------------------------------------------------------------------------------------------------
    def _shot(self) -> bytes:
        with self._client.device(self.serial).open_transport(timeout=self._timeout_s) as connection:
            connection.send_command("exec:screencap -p")
            connection.check_okay()
            return connection.read_until_close(encoding=None)

    async def _asked(self, call: Callable[[], T]) -> T:
        """Run a blocking call of adbutils in a thread; its socket has the timeout. Raises EnvError, EnvTimeout."""
        from adbutils import AdbError, AdbTimeout

        where = self.serial or "adb"
        try:
            return await asyncio.to_thread(call)
        except (AdbTimeout, TimeoutError):
            late = f"the phone did not answer within {self._timeout_s:g} s"
            raise EnvTimeout(late, where=where, fix=_LIST_DEVICES) from None
        except ConnectionRefusedError as error:
            raise EnvError(f"no ADB server answers: {error}", where=where, fix="run `adb start-server`") from None
        except (AdbError, EOFError, OSError, ValueError, IndexError) as error:
            reason = str(error) or "the connection ended"
            raise EnvError(f"the phone is gone: {reason[:200]}", where=where, fix=_LIST_DEVICES) from None


def _make_client(host: str, port: int, timeout_s: float) -> Any:
    from adbutils import AdbClient, AdbConnection

    class Connection(AdbConnection):
        def _safe_connect(self) -> Any:
            """Connect. Where no ADB server answers, adbutils would start one, which nobody would end."""
            try:
                return self._create_socket()
            except Exception as error:
                raise ConnectionRefusedError(f"{host}:{port}") from error

    class Client(AdbClient):
        def make_connection(self, timeout: float | None = None) -> AdbConnection:
            made = Connection(host, port)
            made.conn.settimeout(timeout or timeout_s)
            return made

    return Client(host, port)


# Mobile actions as commands of Android's shell.

ADB_KEYBOARD = "com.android.adbkeyboard/.AdbIME"  # https://github.com/senzhk/ADBKeyBoard
_HOME_KEY, _BACK_KEY, _ENTER_KEY = 3, 4, 66  # Android's key codes
_SWIPE_MS, _LONG_MS = 400, 900
_SCROLL_SHARE = 0.5  # of the screen, that one scroll moves
_MAX_CHARACTERS = 2000  # of one text
_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_NOT_TYPED = re.compile(r"[^ -~\n]")
_PACKAGE_NAME = re.compile(r"[A-Za-z][\w]*(\.[\w]+)+")  # such as com.android.settings


async def enable_adb_keyboard(phone: AndroidPhone) -> bool:
    """Switch the phone to ADBKeyboard, an app that can type every character; False where it is not installed.

    Raises EnvError where the phone fails, EnvTimeout where it does not answer.
    """
    if ADB_KEYBOARD not in (await phone.shell("ime list -s -a")).split():
        return False
    await phone.shell(f"ime enable {ADB_KEYBOARD}")
    await phone.shell(f"ime set {ADB_KEYBOARD}")
    return True


async def perform_android_action(
    phone: AndroidPhone, action: Action, screen: PhoneScreenshot, apps: Mapping[str, str], keyboard: bool
) -> str:
    """Carry out one action on the phone; returns "", or why it did nothing.

    screen: the last screenshot, whose size points are scaled to. apps: name -> package. keyboard: ADBKeyboard is on.
    Raises EnvError where the phone fails, EnvTimeout where it does not answer.
    """
    if is_outside_screen(action):
        return OUTSIDE_NOTE
    match action:
        case act.Click(point):
            await phone.shell(f"input tap {_pixels(point, screen)}")
        case act.LongPress(point):
            await phone.shell(f"input swipe {_pixels(point, screen)} {_pixels(point, screen)} {_LONG_MS}")
        case act.Drag(start, end):
            await phone.shell(f"input swipe {_pixels(start, screen)} {_pixels(end, screen)} {_SWIPE_MS}")
        case act.Scroll(point, direction):
            start, end = _swipe_ends(point, _DIRECTIONS[direction])
            await phone.shell(f"input swipe {_pixels(start, screen)} {_pixels(end, screen)} {_SWIPE_MS}")
        case act.Type(content):
            return await _type_text(phone, content, keyboard)
        case act.TypeAt(clear=False):
            tap, typing = act.split_action(action)
            await perform_android_action(phone, tap, screen, apps, keyboard)
            note = await perform_android_action(phone, typing, screen, apps, keyboard)
            return note and f"tapped, and then: {note}"
        case act.TypeAt():
            return "a phone cannot empty a field and type in one action"
        case act.OpenApp(name):
            return await _open_app(phone, name, apps)
        case act.PressHome():
            await _press_key(phone, _HOME_KEY)
        case act.PressBack():
            await _press_key(phone, _BACK_KEY)
        case act.Wait() | act.Finished() | act.CallUser():
            pass
        case _:
            return f"a phone has no {act.ACTION_NAMES[type(action)]}"
    return ""


def _pixels(point: Point, screen: PhoneScreenshot) -> str:
    return f"{int(point.x * screen.width)} {int(point.y * screen.height)}"


def _swipe_ends(point: Point, way: tuple[int, int]) -> tuple[Point, Point]:
    """Return the start and end of a scroll's swipe around the point; the finger moves against the direction."""
    half = [step * _SCROLL_SHARE / 2 for step in way]
    x, y = (
        min(max(place, abs(one) + 0.01), 0.99 - abs(one)) if one else place
        for place, one in zip((point.x, point.y), half, strict=True)
    )
    return Point(x + half[0], y + half[1]), Point(x - half[0], y - half[1])


async def _press_key(phone: AndroidPhone, key: int) -> None:
    await phone.shell(f"input keyevent {key}")


async def _type_text(phone: AndroidPhone, content: str, keyboard: bool) -> str:
    if len(content) > _MAX_CHARACTERS:
        return f"the text is longer than {_MAX_CHARACTERS} characters"
    submits = content.endswith("\n")
    text = content.rstrip("\n").encode("utf-8", "replace").decode()
    if keyboard and text:
        encoded = base64.b64encode(text.encode()).decode()
        await phone.shell(f"am broadcast -a ADB_INPUT_B64 --es msg {encoded}")
    elif _NOT_TYPED.search(text):
        return "not typed: without ADBKeyboard a phone takes the characters of a US keyboard alone"
    else:
        for number, line in enumerate(text.split("\n")):
            if number:
                await _press_key(phone, _ENTER_KEY)
            for piece in re.split(r"(?<=%)(?=s)", line):  # `input` writes a space for %s
                if piece:
                    await phone.shell(f"input text {shlex.quote(piece)}")
    if submits:
        await _press_key(phone, _ENTER_KEY)
    return ""


async def _open_app(phone: AndroidPhone, name: str, apps: Mapping[str, str]) -> str:
    known = {one.casefold(): package for one, package in apps.items()}
    package = known.get(name.strip().casefold()) or (name.strip() if _PACKAGE_NAME.fullmatch(name.strip()) else "")
    if not package or package not in (await phone.shell("pm list packages")).replace("package:", "").split():
        return f"there is no application called {name[:100]}"
    await phone.shell(f"monkey -p {package} -c android.intent.category.LAUNCHER 1")
    return ""


# Task suites: commands that prepare a task, and commands that print its state (docs/phone.md#real-phones).

ANDROID_VERIFIER = "android:shown"
SHIPPED_ANDROID_MANIFEST = Path(__file__).parent / "android.yaml"


class AndroidTask(BaseModel):
    """Hold a task template of a phone, as its manifest declares it.

    choose: placeholder -> texts to draw from, for the other fields' texts. max_steps: step budget by level. reset:
    commands that prepare the phone. state: name -> command that prints a part of the state. wanted: name -> what that
    command prints once the task is solved, but for white space at the ends.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    instruction: str = Field(min_length=1)
    choose: dict[str, Annotated[list[dict[str, str] | str], Field(min_length=1)]] = {}
    max_steps: dict[int, int] = Field(min_length=1)
    reset: list[str] = []
    state: dict[str, str] = Field(min_length=1)
    wanted: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def _told(self) -> AndroidTask:
        if lacking := sorted(self.wanted.keys() - self.state.keys()):
            raise ValueError(f"no command tells {', '.join(lacking)}: add it to state")
        return self

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Draw the params of a task by `rng`: instruction, reset, state and wanted, with the placeholders filled in."""
        made = {"instruction": self.instruction, "reset": self.reset, "state": self.state, "wanted": self.wanted}
        return registry.fill_placeholders(made, registry.draw_placeholders(self.choose, rng))


class AndroidManifest(BaseModel):
    """Hold a manifest of phone tasks. world: the suite's name. apps: name -> package, for the action open_app."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    world: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    apps: dict[str, str] = {}
    tasks: list[AndroidTask] = Field(min_length=1)


class AndroidSuite(TaskSuite):
    """Hold a suite of tasks on real phones. apps: name -> package, for the action open_app. tasks: by template."""

    environment: ClassVar[str] = "android"
    apps: dict[str, str]
    tasks: dict[str, AndroidTask]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of one task. Raises BadInput for an unknown template or level."""
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return {**self.tasks[template].draw(rng), "apps": self.apps}


def load_android_suite(path: Path) -> AndroidSuite:
    """Load the suite that the manifest at `path` declares. Raises BadInput where it is missing or wrong."""
    manifest = registry.validate_suite_manifest(path, AndroidManifest)
    tasks = {task.name: task for task in manifest.tasks}
    if len(tasks) < len(manifest.tasks):
        raise BadInput("two tasks have one name", where=path, fix="rename one")
    return AndroidSuite(
        name=manifest.world,
        domain="phone",
        apps=manifest.apps,
        tasks=tasks,
        templates={
            task.name: TaskTemplate(instruction="{instruction}", verifier=ANDROID_VERIFIER, max_steps=task.max_steps)
            for task in manifest.tasks
        },
        checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def score_shown_state(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score an end state: the share, 0 to 1, of the texts `params["wanted"]` that `state["shown"]` has, by name."""
    wanted = params["wanted"]
    return sum(state["shown"][name].strip() == text for name, text in wanted.items()) / len(wanted)


class AndroidEnv:
    """Play tasks on a real phone or an emulator (an `Env` without checkpoints: a phone's state cannot be restored).

    find: finds the phone, at each reset. limit_s: deadline of a reset or step, in seconds. settle_s: seconds between an
    action and its screenshot. broken: whether a call has failed, after which only `close` may be called.
    """

    def __init__(self, find: Callable[[], Awaitable[AndroidPhone]], limit_s: float, settle_s: float) -> None:
        self._find, self._limit_s, self._settle_s = find, limit_s, settle_s
        self._phone: AndroidPhone | None = None
        self._screen: PhoneScreenshot | None = None
        self._task: Task | None = None
        self._keyboard, self._answer = False, ""
        self._steps, self._over = 0, True
        self.broken = False

    async def reset(self, task: Task, seed: int) -> StepResult:
        """Begin `task`: run the commands that prepare the phone, and go to its home screen.

        seed: ignored, as the task's params hold all that was drawn. Raises EnvError where the phone is missing or
        fails, EnvTimeout after the deadline, DataError for a state that the verifier cannot read.
        """
        async with self._deadline("reset", task):
            self._task, self._steps, self._over, self._answer = task, 0, False, ""
            phone = self._phone = await self._find()
            self._keyboard = await enable_adb_keyboard(phone)
            for command in task.params["reset"]:
                await phone.shell(command)
            await _press_key(phone, _HOME_KEY)
            return await self._result("", False)

    async def step(self, action: Action) -> StepResult:
        """Carry out an action and take the screenshot after it.

        Raises EnvError after the episode's end or where the phone fails, EnvTimeout if late, DataError as `reset`.
        """
        if self._task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        async with self._deadline("step", self._task):
            self._steps += 1
            if isinstance(action, Finished):
                self._answer = action.content
            apps = self._task.params["apps"]
            note = await perform_android_action(self._phone, action, self._screen, apps, self._keyboard)
            return await self._result(note, isinstance(action, Finished | CallUser))

    async def close(self) -> None:
        """Release the phone; may be called twice."""
        self._task, self._phone, self._over = None, None, True

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _result(self, note: str, said_done: bool) -> StepResult:
        task, phone = self._task, self._phone
        await asyncio.sleep(self._settle_s)
        self._screen = await phone.screen()
        shown = {name: await phone.shell(command) for name, command in task.params["state"].items()}
        state: dict[str, Any] = {"shown": shown} | ({"answer": self._answer} if self._answer else {})
        score = apply_verifier(score_shown_state, task.verifier, task.params, state, task.task_id)
        terminated = state["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        observation = Observation(self._screen.png, self._screen.width, self._screen.height, task.world)
        info = {"state": state, "score": score} | ({"note": note} if note else {})
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task) -> AsyncIterator[None]:
        """Run the block within `limit_s` seconds, else raise EnvTimeout; after any error this env is broken."""
        if self.broken:
            raise EnvError("the phone is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(self._limit_s):
                yield
        except BaseException as error:
            self.broken = True
            if isinstance(error, TimeoutError):
                late = f"the phone did not answer a {what} within {self._limit_s:g} s"
                raise EnvTimeout(late, where=f"task {task.task_id}") from None
            raise

    def _where(self) -> str:
        return f"world {self._task.world}, task {self._task.task_id}" if self._task else "a phone"

"""The guest by itself: its token, its answers to what it cannot do, and the calls of OSWorld's client."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket as socketlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import processes
import pytest
from PIL import Image, ImageChops, ImageGrab
from processes import PATIENCE_S
from waiting import until

import flywheel

GUEST = Path(flywheel.__file__).parent / "envs" / "computer_server"
NO_X = not all(map(shutil.which, ("Xvnc", "openbox", "xterm")))


def takes_connections(path: Path) -> bool:
    """Tell whether a server listens at the socket file: it is there before that."""
    with socketlib.socket(socketlib.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


@contextmanager
def guest(home: Path, *options: str, **environment: str) -> Iterator[httpx.Client]:
    """One on a unix socket, as a program beside this one."""
    home.mkdir(exist_ok=True)
    socket = home.parent / "guest.socket"
    process = subprocess.Popen(
        [sys.executable, str(GUEST), "--socket", str(socket), *options],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **environment},
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: takes_connections(socket) or process.poll() is not None, "the guest's socket")
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://guest", timeout=60
        ) as client:
            yield client
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[httpx.Client]:
    """Without a desktop."""
    with guest(tmp_path_factory.mktemp("plain") / "home") as client:
        yield client


def test_it_needs_nothing_but_the_standard_library_to_start(tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(GUEST, copied, ignore=shutil.ignore_patterns("__pycache__"))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(copied), "--help"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    assert "--token-file" in ran.stdout


def test_a_port_without_a_token_is_refused(tmp_path):
    ran = subprocess.run(
        [sys.executable, str(GUEST), "--port", "0"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 1
    assert "set FLYWHEEL_GUEST_TOKEN" in ran.stderr


def test_the_token_is_asked_for(tmp_path):
    (tmp_path / "token").write_text("abc\n")
    with guest(tmp_path / "home", "--token-file", str(tmp_path / "token")) as client:
        assert client.get("/platform").status_code == 401
        assert client.get("/platform", headers={"Authorization": "Bearer abd"}).status_code == 401
        assert client.get("/platform", headers={"Authorization": "Bearer abc"}).text == "Linux"
        assert client.get("/platform", headers={"Authorization": b"Bearer \xfc"}).status_code == 401


def test_a_body_is_not_awaited_from_a_client_without_the_token(tmp_path):
    (tmp_path / "token").write_text("abc\n")
    with guest(tmp_path / "home", "--token-file", str(tmp_path / "token")), socketlib.socket(socketlib.AF_UNIX) as one:
        one.settimeout(PATIENCE_S)
        one.connect(str(tmp_path / "guest.socket"))
        one.sendall(b"PUT /files/write?path=a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(2**16))
        assert one.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/nowhere", "", 404, "there is no /nowhere"),
        ("GET", "/act", "", 405, "/act takes POST"),
        ("POST", "/desktop/start", "{", 400, "not JSON"),
        ("POST", "/desktop/start", "[]", 400, "not a JSON object"),
        ("POST", "/desktop/start", '{"width": 8, "height": 600}', 400, "width is not a number from 64"),
        ("POST", "/desktop/start", '{"width": 800, "height": 600, "apps": ["xterm"]}', 400, "apps is not a list of"),
        ("POST", "/act", '{"type": "move", "x": 1, "y": 1}', 503, "there is no desktop"),
        ("GET", "/screenshot", "", 503, "there is no desktop"),
        ("GET", "/accessibility", "", 501, "no accessibility tree"),
        ("POST", "/setup/change_wallpaper", '{"path": "a.png"}', 501, "no wallpaper"),
    ],
)
def test_what_it_cannot_do_is_one_line(plain, method, path, body, status, said):
    answer = plain.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


# -- what OSWorld's controllers send ----------------------------------------------------------------------------------
def test_commands_as_osworld_runs_them(plain):
    def run(path: str, **body):
        return plain.post(path, json=body)

    assert run("/execute", command=["echo", "a b"], shell=False).json() == {
        "status": "success", "output": "a b\n", "error": "", "returncode": 0,
    }  # fmt: skip
    assert run("/setup/execute", command="echo $((1 + 2)) >&2", shell=True).json()["error"] == "3\n"
    assert run("/execute", command=["python", "-c", "print(6 * 7)"], shell=False).json()["output"] == "42\n"
    missing = run("/execute", command=["no-such-program"])
    assert (missing.status_code, missing.json()["status"]) == (500, "error")
    assert "launched successfully" in run("/setup/launch", command=["true"]).text
    python = run("/run_python", code="print('x'); raise SystemExit(3)").json()
    assert (python["status"], python["output"], python["return_code"]) == ("error", "x\n", 3)
    script = run("/run_bash_script", script="pwd; echo no >&2; exit 4", timeout=20, working_dir="/tmp").json()
    assert script == {"status": "error", "output": "/tmp\nno\n", "error": "", "returncode": 4}
    slow = run("/run_bash_script", script="sleep 60", timeout=0.2)
    assert (slow.status_code, slow.json()["returncode"]) == (500, -1)


def test_files_as_osworld_moves_them(plain):
    content = bytes(range(256)) * 8 + b"\r\n--not-the-end\r\n"
    sent = plain.post("/setup/upload", data={"file_path": "~/in/a file"}, files={"file_data": ("a file", content)})
    assert (sent.status_code, sent.text) == (200, "File Uploaded")
    assert plain.post("/file", data={"file_path": "~/in/a file"}).content == content
    assert plain.post("/file", data={"file_path": "~/in/none"}).status_code == 404
    assert plain.post("/setup/upload", json={}).status_code == 400
    home = plain.post("/execute", json={"command": "pwd", "shell": True}).json()["output"].strip()
    tree = plain.post("/list_directory", json={"path": f"{home}/in"}).json()["directory_tree"]
    assert tree == {"type": "directory", "name": "in", "children": [{"type": "file", "name": "a file"}]}
    for path in ("in", "~/in"):
        assert plain.post("/list_directory", json={"path": path}).json()["directory_tree"] == tree
    assert plain.post("/list_directory", json={"path": f"{home}/none"}).status_code == 400


def test_a_display_that_is_forgotten_is_closed():
    code = (
        "import screen, types\n"
        "access = screen.ScreenAccess()\n"
        "access._input = access._grabber = types.SimpleNamespace(close=lambda: print('closed'))\n"
        "access.forget()\n"
        "access.forget()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(GUEST)}, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("closed\n", "")


needs_x = pytest.mark.skipif(NO_X, reason="no desktop without tigervnc-standalone-server, openbox, xterm")


@needs_x
def test_a_picture_of_what_changed_is_the_picture_of_all(tmp_path):
    """Beside Pillow's, which looks at the whole screen each time."""
    with guest(tmp_path / "home") as client:
        body = {"width": 640, "height": 480, "apps": [["xterm"], ["xterm", "-geometry", "20x5+400+300"]]}
        display = client.post("/desktop/start", json=body).json()["display"]
        move, down, up = {"type": "move", "x": 500, "y": 350}, {"type": "down"}, {"type": "up"}
        steps = [[], [{"type": "text", "text": "ls -la /\n"}], [move, down, up], [{"type": "text", "text": "clear\n"}]]
        pictures = []
        for acts in steps:
            png = client.post("/step", json={"acts": acts, "after_ms": 50}).content
            pictures.append(Image.open(io.BytesIO(png)).convert("RGB"))
            assert ImageChops.difference(pictures[-1], ImageGrab.grab(xdisplay=display)).getbbox() is None, acts
        assert len({picture.tobytes() for picture in pictures}) >= 2
        pids = [pid for pid, name in processes.descendants(os.getpid()) if name in ("Xvnc", "openbox", "xterm")]
    assert len(pids) == 4
    assert not any(map(processes.alive, pids)), "the guest has ended, and its desktop has not"


@needs_x
def test_the_screen_as_osworld_asks_for_it(tmp_path):
    with guest(tmp_path / "home") as client:
        started = client.post("/desktop/start", json={"width": 640, "height": 480})
        assert started.json()["windows"] == [], started.text
        assert client.post("/desktop/start", json={"width": 640, "height": 480}).status_code == 409
        assert client.post("/screen_size", json={}).json() == {"width": 640, "height": 480}
        assert client.post("/act", json={"type": "move", "x": 17, "y": 23}).json() == {"ok": True}
        assert client.get("/cursor_position").json() == [17, 23]
        assert client.get("/screenshot").content.startswith(b"\x89PNG\r\n\x1a\n")
        for act in ({"type": "move", "x": 640, "y": 0}, {"type": "leap"}, {"type": "key_down", "key": "nokey"}):
            assert client.post("/act", json=act).status_code == 400, act
        wanted = client.post("/setup/activate_window", json={"window_name": "Mail", "strict": False})
        assert (wanted.status_code, wanted.json()["error"]) == (500, "Window Mail not found")
        assert client.post("/window_size", data={"app_class_name": "Mail"}).status_code == 404
        code = "from Xlib.display import Display; print(Display().screen().width_in_pixels)"
        assert json.loads(client.post("/run_python", json={"code": code}).json()["output"]) == 640
        code = "import pyautogui as p; p.moveTo(5, 6); p.move(2, 1); print(p.position(), p.size())"
        said = client.post("/run_python", json={"code": code}).json()["output"]
        assert said == "Point(x=7, y=7) Size(width=640, height=480)\n", "PyAutoGUI's, or what is there in its place"
        shim = (
            f"import sys; sys.path[:0] = [{str(GUEST / 'pyautogui_shim')!r}, {str(GUEST)!r}]; import pyautogui as p; "
        )
        code = f"{shim}p.dragTo(None, 9); p.dragTo((3, 4)); p.dragTo(x=8); print(*p.position())"
        assert client.post("/run_python", json={"code": code}).json()["output"] == "8 4\n"
        (server,) = [pid for pid, name in processes.descendants(os.getpid()) if name == "Xvnc"]
        os.kill(server, signal.SIGKILL)
        gone = until(lambda: (a := client.get("/screenshot")).status_code != 200 and a, "the end of the X server")
        assert gone.status_code == 503
        assert "X server" in gone.json()["error"]

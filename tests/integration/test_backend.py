"""The server of a page by itself: started, kept apart, read for the reward, ended with all that it started.

Those with `isolation_mode` run twice: under bubblewrap, where the machine has it, and without.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from page_servers import lay
from processes import PATIENCE_S

from flywheel.envs import cgroups, isolation
from flywheel.envs.browser.pages import server
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.browser.pages.server import PageServer
from flywheel.utils.errors import EnvError, EnvTimeout

NAP = f"600.{os.getpid()}"  # seconds, which no other test sleeps


def processes(text):
    """Command lines that hold a text, of those that run."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = one.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in said and int(one.parent.name) != os.getpid():
                found.append(said)
    return found


async def until(holds):
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- a server by itself ---
@contextlib.asynccontextmanager
async def started(manifest, seed=3):
    backend = PageServer(manifest, "page", seed, ServerPrograms(manifest))
    try:
        await backend.start()
        yield backend
    finally:
        await backend.wait_gone()
        assert not backend.folder.parent.exists()


async def asked(backend, address):
    status, body = await backend.request(address)
    assert status == 200
    return json.loads(body)


@pytest.mark.parametrize(
    ("said", "error", "part"),
    [
        (
            {"command": ["python", "-c", "print('no luck'); raise SystemExit(4)"]},
            EnvError,
            "ended before it answered: it ended by itself with status 4: no luck",
        ),
        (
            {"command": ["sh", "-c", "echo I wait; sleep " + NAP], "start_s": 6},
            EnvTimeout,
            "did not answer /up within 6 s: I wait",
        ),
        (
            {"setup": [["python", "-c", "raise SystemExit('no database')"]]},
            EnvError,
            "server.setup: python -c raise SystemExit('no database') ended with status 1: no database",
        ),
        ({"setup": [["sleep", NAP]], "start_s": 1}, EnvTimeout, "did not answer /up within 1 s: it had not begun"),
    ],
    ids=["ends", "waits", "setup", "slow setup"],
)
async def test_a_server_that_does_not_come_up_is_told_in_one_line(tmp_path, isolation_mode, said, error, part):
    with pytest.raises(error) as caught:
        async with started(lay(tmp_path, said)):
            pass
    assert part in str(caught.value)
    assert "page.yaml: server" in str(caught.value)
    assert "\n" not in str(caught.value)
    await until(lambda: not processes(NAP))  # killed by then, and perhaps not yet gone


async def test_it_sees_its_own_folder_and_nothing_of_ours(tmp_path, isolation_mode, monkeypatch):
    """Under bubblewrap neither files nor ports of this machine; in both ways nothing of our environment."""
    monkeypatch.setenv("FLYWHEEL_TEST_KEY", "secret")
    (tmp_path / "secret.txt").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with started(lay(tmp_path, {"environment": {"SHOP": "of {variant} {seed}"}})) as backend:
            ours = await asked(backend, f"/reach?port={port}&file={tmp_path}/secret.txt&write={tmp_path}/new.txt")
            inside = backend.fill("{folder}")
            own = await asked(backend, f"/reach?port={backend.port}&file=/etc/hosts&write={inside}/new.txt")
    assert "FLYWHEEL_TEST_KEY" not in ours["environment"]
    assert "SHOP" in ours["environment"]
    assert (own["port"], own["file"], own["write"]) == (True, True, True)
    if isolation_mode == "apart":
        assert (ours["port"], ours["file"], ours["write"]) == (False, False, False)


async def test_what_a_server_started_ends_with_it(tmp_path, isolation_mode):
    async with started(lay(tmp_path)) as backend:
        await asked(backend, "/fork")
        await until(lambda: processes(f"600.{backend.port}"))  # forked, and then begun
    assert not processes(f"600.{backend.port}")


async def test_a_server_above_its_memory_is_ended(tmp_path):
    greedy = "import time; kept = bytearray(90_000_000); kept[::4096] = b'x' * len(kept[::4096])"
    whole = (
        f"import subprocess, sys; [subprocess.Popen([sys.executable, '-c', \"{greedy}; time.sleep(60)\"]) "
        "for _ in range(3)]; import runpy; sys.argv = ['server.py', sys.argv[1]]; "
        "runpy.run_path('server.py', run_name='__main__')"
    )
    server = {"command": ["python", "-c", whole, "{port}"], "memory_mb": 200}
    async with started(lay(tmp_path, server)) as backend:
        await until(lambda: backend.fault)
        assert "above server.memory_mb: 200" in backend.fault


async def test_what_a_server_writes_in_memory_is_bounded(tmp_path, monkeypatch):
    """Whichever folder it takes: bubblewrap's own are half of this machine's memory each, and / and /dev are too."""
    if isolation.explain_missing_bwrap():
        pytest.skip(isolation.explain_missing_bwrap())
    monkeypatch.setattr(isolation, "_TMPFS_BYTES", 8 * 2**20)
    async with started(lay(tmp_path)) as backend:
        full = {where: await asked(backend, f"/take?where={where}&mb=16") for where in isolation.TMPFS_FOLDERS}
        closed = {where: await asked(backend, f"/take?where={where}&mb=16") for where in ("/", "/dev", "/session")}
        scratch = {where: await asked(backend, f"/take?where={where}&mb=16") for where in ("/var/tmp", "/var")}
    for where in isolation.TMPFS_FOLDERS:
        assert full[where] == {"mb": 8, "refused": "No space left on device"}
    for where, what in (closed | {"/var": scratch["/var"]}).items():
        assert what == {"mb": 0, "refused": "Read-only file system"}, where
    assert scratch["/var/tmp"] == full["/tmp"]


@pytest.mark.parametrize("groups", [True, False], ids=["cgroups", "no cgroups"])
@pytest.mark.parametrize(
    ("where", "field"),
    [("memfd", "memory_mb"), ("deleted", "disk_mb"), (".", "disk_mb")],
    ids=["memfd", "deleted", "files"],
)
async def test_a_server_that_takes_more_without_a_process_seeing_it_is_ended(
    tmp_path, monkeypatch, where, field, groups
):
    monkeypatch.setattr(server, "_WATCH_INTERVAL_S", 0.05)
    if not groups:
        monkeypatch.setattr(cgroups, "create_cgroup", lambda *_: None)
    elif cgroups.explain_missing_cgroups():
        pytest.skip(cgroups.explain_missing_cgroups())
    async with started(lay(tmp_path, {field: 100})) as backend:
        with contextlib.suppress(httpx.HTTPError):
            await backend.request(f"/take?where={where}&mb=140")
        await until(lambda: backend.fault)
        assert f"above server.{field}: 100" in backend.fault


async def test_its_own_messages_are_the_same_in_each_session(tmp_path):
    """A folder of a random name in a program's own message would be on the screen, and no replay like another."""
    if isolation.explain_missing_bwrap():
        pytest.skip(isolation.explain_missing_bwrap())
    seen = set()
    for _ in range(2):
        async with started(lay(tmp_path)) as backend:
            seen.add(json.dumps(await backend.execute_command(["python", "-c", "import os; print(os.getcwd())"])))
            seen.add(json.dumps(await asked(backend, "/where")))
    assert len(seen) == 2
    assert all("/session/files" in one for one in seen)


_HOLDER = """
import asyncio, sys
from flywheel.envs import isolation
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.browser.pages.server import PageServer
from flywheel.envs.browser.pages.packages import ServerPrograms
async def main():
    if sys.argv[2] == "beside":
        isolation.explain_missing_bwrap = lambda: "the test says so"
    manifest = load_page_manifest(__import__("pathlib").Path(sys.argv[1]))
    backend = PageServer(manifest, "page", 1, ServerPrograms(manifest))
    await backend.start()
    await backend.request("/fork")
    print(backend.folder.parent, backend.port, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_nothing_outlives_a_process_that_is_killed(tmp_path, isolation_mode):
    lay(tmp_path)
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "page.yaml"), isolation_mode]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        said, port = (await asyncio.to_thread(holder.stdout.readline)).split()
        folder = Path(said)
        assert folder.is_dir()  # noqa: ASYNC240
        await until(lambda: processes(f"600.{port}"))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    await until(lambda: not (folder.exists() or processes(f"server.py {port}") or processes(f"600.{port}")))


# -- what is read outside of the page ---
async def value(folder, **fields):
    async with started(lay(folder, **fields)) as backend:
        return await backend.read()


@pytest.mark.parametrize(
    ("reading", "number"),
    [
        ({"sqlite": "shop.db", "query": "select count(*) from orders"}, 3),
        ({"command": ["python", "-c", "print(7)"]}, 7),
        ({"command": ["true"]}, 1),
        ({"command": ["grep", "-q", "nowhere to be found", "about.txt"]}, 0),
        ({"command": ["grep", "-qs", "copy of this", "about.txt"]}, 1),
        ({"address": "/orders.json", "value": "rows.length"}, 3),
    ],
    ids=str,
)
async def test_a_reward_is_read_in_every_form(tmp_path, reading, number):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "about.txt").write_text("Each session has a copy of this.")
    found = await value(tmp_path, reward=reading, end=None, state={})
    assert found == {"reward": number}


async def test_instruction_end_and_state_are_read_too(tmp_path):
    found = await value(
        tmp_path,
        instruction={"command": ["echo", "Order {seed} mugs."]},
        end={"command": ["false"]},
        state={"first": {"address": "/orders.json", "value": "rows.0.item"}, "all": {"address": "/orders.json"}},
        reward={"command": ["echo", "1"]},
    )
    assert found == {
        "instruction": "Order 3 mugs.",
        "end": False,
        "reward": 1,
        "state.first": "old",
        "state.all": {"rows": [{"item": "old"}] * 3},
    }


async def test_an_address_is_read_with_the_login_as_the_browser_sends_it(tmp_path):
    login = {"headers": {"X-Key": "{variant}-{seed}"}, "cookies": {"session": "{seed}"}}
    found = await value(
        tmp_path, login=login, reward={"command": ["echo", "1"]}, end=None, state={"told": {"address": "/told"}}
    )
    assert found["state.told"] == {"key": "page-3", "cookie": "session=3"}


@pytest.mark.parametrize(
    ("reading", "part"),
    [
        ({"sqlite": "none.db", "query": "select 1"}, "reward: there is no database none.db"),
        ({"sqlite": "../page.yaml", "query": "select 1"}, "reward: there is no database ../page.yaml"),
        ({"sqlite": "shop.db", "query": "select 1 where 0"}, "reward: the query gives no row"),
        ({"sqlite": "shop.db", "query": "drop table orders"}, "attempt to write a readonly database"),
        ({"sqlite": "shop.db", "query": "selec"}, "reward: OperationalError"),
        ({"sqlite": "shop.db", "query": "select 'three'"}, 'reward: it gives "three"; a number is needed'),
        (
            {
                "sqlite": "shop.db",
                "query": "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
            },
            "reward: ",
        ),
        ({"command": ["sh", "-c", "echo oh; exit 5"]}, "reward: the command ended with status 5: oh"),
        ({"command": ["sleep", NAP]}, "reward: it is not read within 1 s"),
        ({"address": "/slow"}, "reward: "),
        ({"address": "/login"}, "reward: /login answers no JSON"),
        ({"address": "/orders.json", "value": "rows.9"}, "reward: value: there is no 9"),
    ],
    ids=lambda part: str(part).replace(NAP, "NAP"),  # the same in every process that runs the tests
)
async def test_what_cannot_be_read_is_told_by_its_field(tmp_path, reading, part):
    with pytest.raises(EnvError) as caught:
        await value(
            tmp_path,
            server={"read_s": 1 if "within" in part or part == "reward: " else 60},
            reward=reading,
            end=None,
            state={},
        )
    assert f"page.yaml: {part}" in str(caught.value) or part in str(caught.value)
    assert "page.yaml: reward: " in str(caught.value)


async def test_what_the_policy_left_in_the_folder_is_no_part_of_a_command(tmp_path, isolation_mode):
    """A policy that can write files, or run code, could else plant a module, and so the reward."""
    reward = {"command": ["python", "-c", "import json; print(json.dumps(0))"]}
    async with started(lay(tmp_path, reward=reward, end=None, state={})) as backend:
        for folder in (backend.folder, backend.folder.parent / "home"):
            (folder / "json.py").write_text("print(1); raise SystemExit")
        assert await backend.read() == {"reward": 0}
        if isolation_mode == "apart":
            status, _ = await backend.execute_command(["touch", "planted"])
            assert status != 0
            assert not (backend.folder / "planted").exists()


def shown(path):
    """What a program reads of a path: a folder's names, a file's text, or why not."""
    try:
        return sorted(one.name for one in Path(path).iterdir()) if Path(path).is_dir() else Path(path).read_text()
    except OSError as error:
        return error.strerror


SEEN = f"import json, os, sys\nfrom pathlib import Path\n{inspect.getsource(shown)}"
SEEN += "print(json.dumps({path: shown(path) for path in sys.argv[1:]}))"
SETTINGS = ("/etc/X11", "/etc/xdg", "/etc/php", "/etc/gtk-3.0", "/etc/fonts", "/var/cache/fontconfig", "/var/lib/xkb")


async def test_a_server_sees_what_installed_programs_keep_in_etc_and_var(tmp_path, isolation_mode, monkeypatch):
    """With bubblewrap as without; and what every program may write in /var is there, in it of the session's own."""
    monkeypatch.setattr(isolation, "list_scratch_folders", lambda: ("/var/tmp", "/var/lib/php/sessions"))
    async with started(lay(tmp_path)) as backend:
        _, said = await backend.execute_command(
            ["python", "-c", SEEN, *SETTINGS, "/var/lib/php/sessions", "/etc/shadow"]
        )
    found = json.loads(said)
    assert {path: found[path] for path in SETTINGS} == {path: shown(path) for path in SETTINGS}
    if isolation_mode == "apart":
        assert found["/var/lib/php/sessions"] == []
        assert found["/etc/shadow"] == "No such file or directory"


async def test_no_key_and_no_password_is_seen_even_by_root(tmp_path):
    if isolation.explain_missing_bwrap():
        pytest.skip(isolation.explain_missing_bwrap())
    places = ("/etc/ssl/private", "/etc/xdg/pip")
    async with started(lay(tmp_path)) as backend:
        found = json.loads((await backend.execute_command(["python", "-c", SEEN, *places]))[1])
    assert all(found[path] in ([], "No such file or directory", "Permission denied") for path in places)

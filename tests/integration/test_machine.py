"""One machine: how it begins and ends, what it hands on, and its home as it is read from outside."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import tarfile
from io import BytesIO
from pathlib import Path

import computers
import processes
import pytest
from computers import each_wall  # noqa: F401 - what keeps a machine apart

from flywheel.envs import cgroups
from flywheel.envs.computer import home
from flywheel.envs.computer.env import read_home_files
from flywheel.envs.computer.machine import Machine, MachineRefused, MachineSettings
from flywheel.utils.errors import EnvError, EnvTimeout

pytestmark = computers.needed


_SERVE = b"""import socket
there = socket.create_server(("127.0.0.1", 8000))
print("on", flush=True)
asker = there.accept()[0]
asker.sendall(asker.recv(99).upper())
"""


async def run(machine: Machine, command: str) -> str:
    told = await machine.call("/shell/run", {"command": command, "wait_s": 20.0}, 20.0)
    assert told["status"] == 0, told
    return told["text"]


async def test_nothing_is_left_of_a_machine(apart):
    async with computers.machine(walls=apart) as machine:
        await run(machine, "(trap '' TERM HUP; setsid sleep 999 &) ; sleep 999 & echo x >file")
        pids, folder = [machine._begun.process.pid, *machine.processes()], machine._folder
        groups = machine._begun.group.folders if machine._begun.group else ()
        assert len(pids) >= 5
        assert folder.is_dir()
    assert await processes.gone(pids)
    assert not any(path.exists() for path in (folder, *groups))
    await machine.close()  # twice at will
    with pytest.raises(EnvError, match="gone"):
        await machine.request("GET", "/health")


async def test_a_guest_that_is_gone_and_one_that_hangs_are_named(monkeypatch, apart):
    monkeypatch.setattr("flywheel.envs.computer.machine._GRACE_S", 0.2)
    async with computers.machine(walls=apart) as machine:
        guest = computers.guest(machine)
        os.kill(guest, signal.SIGSTOP)
        with pytest.raises(EnvTimeout, match=r"did not answer in 0\.2 s"):
            await machine.call("/shell/run", {"command": "true"})
        os.kill(guest, signal.SIGKILL)
        with pytest.raises(EnvError, match="gone"):
            await machine.call("/shell/run", {"command": "true"})


async def test_a_machine_that_cannot_start_says_why(monkeypatch, tmp_path, apart):
    monkeypatch.setattr("flywheel.envs.computer.bwrap.SERVER_SOURCES", tmp_path)
    with pytest.raises(EnvError, match=r"did not start: .*__main__"):
        await Machine.start(MachineSettings(walls=apart))


async def test_a_socket_whose_name_is_too_long_is_told(monkeypatch, tmp_path, apart):
    (tmp_path / ("deep" * 30)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("deep" * 30)))
    with pytest.raises(EnvError, match=r"a machine did not start: .*too long"):
        await Machine.start(MachineSettings(walls=apart))


async def test_its_programs_are_told_with_groups_and_without(monkeypatch, apart):
    async def told() -> tuple[list[str], int]:
        async with computers.machine(walls=apart) as machine:
            await run(machine, "exec -a 'a name' sleep 999 & sleep 998 &")
            await machine.call("/python/run", {"code": "1"})
            return machine.programs(), machine.memory

    assert (await told())[0] == ["a name 999", "sleep 998"]
    for way in ("create_cgroup", "find_own_cgroup"):
        monkeypatch.setattr(cgroups, way, lambda *_: None)
    assert await told() == (["a name 999", "sleep 998"], 0)


def names(place: str) -> list[str]:
    return sorted(path.name for path in Path(place).glob("*"))


async def test_it_sees_what_installed_programs_keep_in_etc_and_var(apart, tmp_path):
    """As outside: an application's look, fonts, templates; and what the settings name beside. No password."""
    tmp_path.chmod(0o755)
    (tmp_path / "own.conf").write_text("x")
    places = ("/etc/X11", "/etc/xdg", "/var/lib/xkb", str(tmp_path))
    wanted = {place: names(place) for place in places if names(place)}
    async with computers.machine(walls=apart, reads=(str(tmp_path),)) as machine:
        found = {place: sorted((await run(machine, f"ls {place}")).split()) for place in wanted}
        closed = await machine.call("/shell/run", {"command": "cat /etc/xdg/pip/* /etc/shadow", "wait_s": 9.0}, 9.0)
    assert found == wanted
    assert re.fullmatch("(cat: .*: (No such file or directory|Permission denied)\\s*){2}", closed["text"])


async def test_ports_and_programs_are_handed_on(apart):
    async with computers.machine(walls=apart) as machine:
        await machine.put("serve.py", _SERVE)
        reader, writer = await machine.stream("/program", {"command": ["python3", "serve.py"]})
        assert await reader.readline() == b"on\n"
        from_port, to_port = await machine.stream("/port", {"port": 8000})
        to_port.write(b"hello")
        assert await from_port.readexactly(5) == b"HELLO"
        to_port.close()
        assert await reader.read() == b""  # it has ended
        writer.close()
        with pytest.raises(MachineRefused, match="nothing answers at port 8000"):
            await machine.stream("/port", {"port": 8000})
        with pytest.raises(MachineRefused, match="does not start"):
            await machine.stream("/program", {"command": ["no-such-program"]})


# -- the home, from outside -------------------------------------------------------------------------------------------
async def test_what_lies_in_a_home_is_read_and_never_followed(apart):
    async with computers.machine(walls=apart) as machine:
        await run(machine, "mkdir -p a/b; echo x >a/b/x; ln -s /etc/passwd link; ln -s a folder; mkfifo pipe; "
                           "truncate -s 1T huge; printf '\\377' >$'\\377'; chmod 0 a/b/x")  # fmt: skip
        read = machine.home.read
        assert read("a/b/x", 1) == b"x"
        for path in (
            "link",
            "folder/b/x",
            "pipe",
            "a",
            "none",
            "../user/a/b/x",
            "/etc/passwd",
            "a/../../../etc/passwd",
            "",
        ):
            assert read(path, 9) is None, path
        assert len(read("huge", 2**20)) == 2**20
        assert machine.home.digest("huge", 2**20) == hashlib.sha256(bytes(2**20)).hexdigest()
        kinds = {entry.path: entry.kind for entry in machine.home.entries()}
        assert kinds["a"] == "folder"
        assert (kinds["link"], kinds["folder"], kinds["pipe"], kinds["huge"]) == ("link", "link", "other", "file")
        found = read_home_files(machine.home)
        assert (found["a/b/x"], found["link"], found["pipe"], found["?"]) == ("x\n", "a link", "no file", "\ufffd")
        assert found["huge"].startswith("sha256:")


async def test_a_home_is_kept_as_an_archive_within_a_limit():
    async with computers.machine() as machine:
        await run(machine, "mkdir -p a/empty; echo x >a/x; chmod 750 a/x; ln -s x a/link")
        kept = machine.home.archive(2**20)
        assert kept == machine.home.archive(2**20)
        with tarfile.open(fileobj=BytesIO(kept)) as tar:
            held = {one.name: (one.isdir(), one.linkname, one.mode) for one in tar}
            assert (held["a"], held["a/empty"]) == ((True, "", 0o755), (True, "", 0o755))
            assert (held["a/link"], held["a/x"]) == ((False, "x", 0o777), (False, "", 0o750))
            assert tar.extractfile("a/x").read() == b"x\n"
        await run(machine, "truncate -s 1T huge")
        with pytest.raises(EnvError, match="more than 1048576 bytes"):
            machine.home.archive(2**20)


async def test_a_kept_home_is_put_into_another_machine(apart):
    make = "mkdir -p a/empty .config; echo x >a/x; chmod 750 a/x; ln -s /etc/passwd a/link; echo y >.config/y"
    look = "cat a/x .config/y; stat -c %a a/x; readlink a/link; git -C repo status -s | wc -l"
    async with computers.machine(walls=apart) as machine:
        await run(machine, f"{make}; git init -q repo; head -c 300000 /dev/urandom >raw")
        kept = await machine.checkpoint()
    async with computers.machine(walls=apart) as other:
        await other.restore(kept)
        assert await other.checkpoint() == kept
        assert await run(other, look) == "x\ny\n750\n/etc/passwd\n0\n"
    async with computers.machine(home_mb=1) as small:
        await run(small, "head -c 900000 /dev/zero >fill")
        with pytest.raises(MachineRefused, match="No space left"):
            await small.restore(kept)
        with pytest.raises(MachineRefused):
            await small.restore(b"no archive")
    async with computers.machine(home_mb=1) as machine:
        await run(machine, "truncate -s 1T huge")
        with pytest.raises(EnvError, match="more than"):
            await machine.checkpoint()


async def test_a_home_of_too_many_files_is_an_error(monkeypatch):
    monkeypatch.setattr(home, "MAX_HOME_ENTRIES", 100)
    async with computers.machine() as machine:
        await run(machine, "touch {1..100}")
        assert len(read_home_files(machine.home)) == 100
        await run(machine, "touch more")
        with pytest.raises(EnvError, match="more than 100 files"):
            read_home_files(machine.home)


async def test_of_many_long_files_a_state_holds_the_digests(monkeypatch):
    monkeypatch.setattr("flywheel.envs.computer.env._MAX_STATE_BYTES", 100)
    async with computers.machine() as machine:
        await run(machine, "for n in 1 2 3; do head -c 60 /dev/zero >$n; done; echo x >4")
        found = read_home_files(machine.home)
        assert [found[name][:7] for name in ("1", "2", "3", "4")] == ["\0" * 7, "sha256:", "sha256:", "x\n"]

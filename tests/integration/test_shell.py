"""The functions of a machine: a shell and a Python that live on, programs that take keys, files of any name."""

from __future__ import annotations

import contextlib
import shutil

import computers
import pytest

from flywheel.agent.actions import Hotkey, ListFiles, ReadFile, RunPython, Terminal, Type, Wait, WriteFile
from flywheel.envs import cgroups
from flywheel.envs.computer.computer import encode_terminal_keys
from flywheel.envs.computer.desktop import UnsupportedAction
from flywheel.envs.computer_server.terminal import TerminalEmulator as Shown
from flywheel.utils.errors import EnvError

pytestmark = computers.needed
ENDLESS = {"run_s": 0.3}  # for commands that are not to end in time


async def said(computer, action) -> str:
    done = await computer.do(action)
    return done.result or done.note


async def run(computer, command: str) -> str:
    return await said(computer, Terminal(command))


# -- the shell --------------------------------------------------------------------------------------------------------
async def test_folder_variables_functions_and_jobs_stay():
    async with computers.terminal() as computer:
        assert await run(computer, "mkdir -p a/b; cd a/b; x=5; f() { echo f$1; }; sleep 60 &") == "[exit status 0]"
        assert await run(computer, "pwd; echo $x; f 7; jobs | wc -l") == "/home/user/a/b\n5\nf7\n1\n"
        assert await run(computer, "(exit 3)") == "[exit status 3]"
        assert await run(computer, "echo no >&2; false") == "no\n[exit status 1]"
        assert (await computer.functions.look()).endswith("~/a/b$ echo no >&2; false\nno\n~/a/b$")


async def test_commands_that_are_none_are_answers_and_the_shell_lives():
    async with computers.terminal() as computer:
        for command in ("if true; then", "echo 'a", "f() {", "cat <<E\na", "\0\x01\x1b[31m", "\ud800", ""):
            assert await run(computer, command), command
            assert await run(computer, "echo here") == "here\n", command


async def test_what_a_command_printed_is_kept_when_its_time_is_over():
    async with computers.terminal(ENDLESS) as computer:
        begun = await run(computer, "echo begun; sleep 60; echo ended")
        assert begun == "begun\n[still running after 0.3 s: wait for it, or end it by C-c]"
        assert "a command is still running" in await run(computer, "ls")
        assert await said(computer, Wait()) == begun.removeprefix("begun\n")
        assert "exit status 130" in await said(computer, Hotkey(("ctrl", "c")))
        assert await run(computer, "echo next") == "next\n"


async def test_a_running_command_is_ended_by_its_name_for_the_keys_and_waited_for_to_its_end():
    async with computers.terminal(ENDLESS) as computer:
        await run(computer, "sleep 60")
        assert "exit status 130" in await run(computer, "C-c")
        await run(computer, "while [ ! -e go ]; do sleep 0.01; done; echo gone")
        await said(computer, WriteFile("go", ""))
        assert await said(computer, Wait()) == "gone\n"


async def test_of_a_hundred_megabytes_the_middle_is_left_out():
    async with computers.terminal({"run_s": 60.0, "result_bytes": 1000}) as computer:
        printed = await run(computer, "echo begin; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo end")
        assert len(printed) < 1100
        assert printed.startswith("begin\nxxx")
        assert printed.endswith("xxx\nend\n")
        assert "left out" in printed
        assert await run(computer, "echo next") == "next\n"


async def test_a_command_that_ends_its_shell_is_told_and_a_new_one_begins():
    async with computers.terminal() as computer:
        for command in ("exit 3", "kill -9 $$", "exec false", "exec 3<&-; exit"):
            await run(computer, "cd /tmp; x=5")
            assert "the shell has ended" in await run(computer, command), command
            assert await run(computer, "echo $x; pwd") == "\n/home/user\n", command


# -- programs that take keys ------------------------------------------------------------------------------------------
async def test_an_interpreter_takes_lines_and_is_not_waited_for():
    async with computers.terminal({"run_s": 20.0}) as computer:
        assert "it waits for keys" in await run(computer, "python3 -q")
        assert "\n42\n" in await said(computer, Type("6 * 7\n"))
        assert "\n43\n" in await run(computer, "6 * 7 + 1")  # a command is a line for it
        assert "it waits" not in await said(computer, Hotkey(("ctrl", "d")))
        assert "it waits for keys" in await run(computer, "read -p 'name? ' name")
        await said(computer, Type("Ada\n"))
        assert await run(computer, "echo $name") == "Ada\n"


async def test_keys_without_a_program_are_a_note():
    async with computers.terminal() as computer:
        done = await computer.do(Type("ls\n"))
        assert "no program is running" in done.note
        assert not done.result


@pytest.mark.parametrize("editor", ["vim", "nano"])
async def test_a_file_is_edited(editor):
    if shutil.which(editor) is None:
        pytest.skip(f"no {editor} here")
    async with computers.terminal({"run_s": 20.0}, files={"notes.txt": "one\ntwo\n"}) as computer:
        shown = await run(computer, f"{editor} notes.txt")
        assert shown.startswith("one\ntwo\n") if editor == "vim" else "\none\ntwo\n" in shown
        if editor == "vim":
            await said(computer, Type("Gothree\n4"))
            await said(computer, Hotkey(("esc",)))
            await said(computer, Type(":wq\n"))
        else:
            for key in ("down", "end"):
                await said(computer, Hotkey((key,)))
            await said(computer, Type("\nthree\n4"))
            for keys in (("ctrl", "x"), ("y",), ("enter",)):
                await said(computer, Hotkey(keys))
        assert await run(computer, "cat notes.txt") == "one\ntwo\nthree\n4\n"


async def test_a_pager_and_a_monitor_show_a_screen():
    async with computers.terminal({"run_s": 20.0}) as computer:
        shown = await run(computer, "seq 1 100 >n; less n")
        assert shown.startswith("1\n2\n")
        assert (await computer.functions.look()).startswith("1\n2\n")
        assert (await said(computer, Type(" "))).startswith("24\n25\n")
        assert (await said(computer, Hotkey(("up",)))).startswith("23\n24\n")
        await said(computer, Type("q"))
        assert (await computer.functions.look()).endswith("less n\n~$")
        assert "PID" in await run(computer, "top")
        assert "exit status" in await said(computer, Type("q"))


def test_keys_as_a_terminal_sends_them():
    together = (("ctrl", "c"), ("alt", "x"), ("shift", "a"), ("ctrl", "left"))
    assert [encode_terminal_keys(keys) for keys in together] == ["\x03", "\x1bx", "A", "\x1b[1;5D"]
    assert [encode_terminal_keys((key,)) for key in ("up", "f5", "delete")] == ["\x1bOA", "\x1b[15~", "\x1b[3~"]
    assert [encode_terminal_keys((key,)) for key in ("enter", "esc", "tab", "backspace", "space", "/")] == [
        "\r", "\x1b", "\t", "\x7f", " ", "/",
    ]  # fmt: skip
    for keys in ((), ("ctrl",), ("a", "b"), ("hyper", "x"), ("ctrl", "1"), ("capslock",)):
        with pytest.raises(UnsupportedAction):
            encode_terminal_keys(keys)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\r\nb", "a\nb"),
        ("50%\r100%", "100%"),
        ("abc\b\bX", "aXc"),
        ("\x1b[31mred\x1b[0m\x1b]0;title\x07!", "red!"),
        ("\x1b[2J\x1b[3;5Hx\x1b[1;1Hy", "y\n\n    x"),
        ("12345678901", "1234567890\n1"),
        ("中文e\u0301x", "中文e\u0301x"),
        ("a\r\nb\r\nc\r\nd\r\ne", "b\nc\nd\ne"),
        ("main\x1b[?1049h\x1b[Hsecond\x1b[?1049l!", "main!"),
        ("1\r\n2\r\n3\x1b[2H\x1b[L", "1\n\n2\n3"),
        ("1\r\n2\r\n3\x1b[2H\x1b[M", "1\n3"),
        ("abcdef\x1b[3G\x1b[2P\x1b[@", "ab ef"),
        ("abc\x1b[2G\x1b[K", "a"),
        ("-\x1b[3b", "----"),
        ("\x1b(0lqk\x1b(B", "┌─┐"),
        ("\x1b[2;3r\x1b[3;1Ha\nb", "\na\n b"),
        ("\x1b[12\x07ok\x1b]never", "ok"),
        ("\x1b[999999999999999999A\x1b[9999;9999Hx", "\n\n\n         x"),
    ],
)
def test_what_programs_say_to_a_terminal(printed, shown):
    for parts in ([printed], list(printed)):  # however it comes
        terminal = Shown(4, 10)
        for part in parts:
            terminal.feed(part)
        assert terminal.text == shown


async def test_a_command_that_is_too_long_is_said():
    async with computers.terminal() as computer:
        assert "at most: write a file" in await run(computer, "true " + "x" * 2**17)
        assert await run(computer, "true " + "x" * (2**17 - 5)) == "[exit status 0]"


async def test_what_jobs_print_is_seen_and_still_read_later():
    async with computers.terminal() as computer:
        await run(computer, "(while [ ! -e go ]; do sleep 0.01; done; echo seen; touch done) & ")
        await said(computer, WriteFile("go", ""))
        await said(computer, RunPython("import os, time\nwhile not os.path.exists('done'): time.sleep(0.01)"))
        assert (await computer.do(ListFiles("."))).text.endswith("\n~$ seen")
        assert await run(computer, "echo next") == "next\n"


# -- what uses up all there is -----------------------------------------------------------------------------------------
SMALL = {"machine": {"memory_mb": 128, "home_mb": 8, "processes": 32}, "run_s": 5.0}


@pytest.mark.skipif(bool(cgroups.explain_missing_cgroups()), reason=cgroups.explain_missing_cgroups() or "-")
@pytest.mark.parametrize(
    ("action", "told"),
    [
        (RunPython("kept = []\nwhile True: kept.append(b'x' * 2**22)"), "is lost"),
        (Terminal("x=a; while true; do x=$x$x; done"), ""),
        (Terminal("head -c 100M /dev/zero >fill"), "No space left"),
        (RunPython("open('fill', 'wb').write(bytes(10**8))"), "No space left"),
        (WriteFile("fill", "x" * 10**7), "No space left"),
        (Terminal("for n in {1..100}; do sleep 60 & done; echo done"), "Resource temporarily unavailable"),
        (RunPython("import os, time\nfor n in range(99): os.fork() or time.sleep(60)"), "BlockingIOError"),
    ],
)
async def test_it_is_an_answer_or_a_crash(action, told):
    async with computers.terminal(SMALL) as computer:
        with contextlib.suppress(EnvError):
            answer = await said(computer, action)
            assert told in answer
            assert await said(computer, ReadFile("/etc/hosts"))


# -- Python -----------------------------------------------------------------------------------------------------------
async def test_python_keeps_what_it_computes_and_tells_what_went_wrong():
    async with computers.terminal() as computer:
        assert await said(computer, RunPython("import math\nx = 3\nx + 1")) == "4\n"
        assert await said(computer, RunPython("def f(n):\n    return n * x\nprint('é', f(2))")) == "é 6\n"
        failed = await said(computer, RunPython("1 / 0"))
        assert failed.splitlines()[-1] == "ZeroDivisionError: division by zero"
        assert "<cell>" in failed
        assert "python_loop" not in failed
        assert "SyntaxError" in await said(computer, RunPython("x ="))
        assert "SystemExit" in await said(computer, RunPython("raise SystemExit(3)"))
        assert await said(computer, RunPython("x")) == "3\n"
        assert await said(computer, RunPython("y = 1")) == "[nothing]"


async def test_python_is_interrupted_and_lost_where_it_does_not_stop():
    async with computers.terminal(ENDLESS) as computer:
        await said(computer, RunPython("x = 1"))
        stopped = await said(computer, RunPython("print('begun')\nwhile True: pass"))
        assert stopped.startswith("begun\n")
        assert stopped.endswith("[interrupted after 0.3 s]")
        assert await said(computer, RunPython("x")) == "1\n"
        stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        assert "what it had computed is lost" in await said(computer, RunPython(stubborn))
        assert "NameError" in await said(computer, RunPython("x"))
        assert "is lost" in await said(computer, RunPython("import os\nos.kill(os.getpid(), 9)"))
        assert "is lost" in await said(computer, RunPython("for n in range(3, 60):\n    try: os.write(n, b'[')\n    "
                                                            "except Exception: import os"))  # fmt: skip
        assert await said(computer, RunPython("2")) == "2\n"


# -- files ------------------------------------------------------------------------------------------------------------
NAMES = ["plain.txt", "a b", "-rf", "новый файл", "日本", "😀", "new\nline", "quote'\"", "%41?&#=+", ".hidden", "a/b/x"]
NO_FILES = {
    "missing": "No such file",
    "folder": "is not a file",
    "pipe": "is not a file",
    "/dev/zero": "is not a file",
    "link": "No such file",
    "loop": "Too many levels",
    "closed": "Permission denied",
    "": "no path",
    "a" * 300: "too long",
    "notes.txt/x": "Not a directory",
}


async def test_files_of_any_name_are_the_same_for_all():
    async with computers.terminal() as computer:
        for name in (*NAMES, "x" * 255):
            assert await said(computer, WriteFile(name, "é\r\n\0")) == "[5 bytes written]", name
            assert await said(computer, ReadFile(name)) == "é\r\n\0", name
            assert await said(computer, RunPython(f"len(open({name!r}, 'rb').read())")) == "5\n", name
            assert computer.machine.home.read(name, 99) == "é\r\n\0".encode(), name


async def test_what_is_no_file_is_said():
    async with computers.terminal(files={"notes.txt": "one\n"}) as computer:
        await run(computer, "mkdir folder; mkfifo pipe; ln -s /etc/shadow link; ln -s loop loop; (umask 777; >closed)")
        for path, told in NO_FILES.items():
            answer = await said(computer, ReadFile(path))
            assert answer.startswith("error: "), path
            assert told in answer, path
            assert "\n" not in answer, path


async def test_writing_where_nothing_can_be_written_is_said():
    async with computers.terminal() as computer:
        await run(computer, "mkfifo pipe; mkdir folder")
        for path in ("pipe", "folder", "/usr/x", "/proc/sys/vm/swappiness", "/dev/x", "/etc/passwd"):
            assert (await said(computer, WriteFile(path, "x"))).startswith("error: "), path


async def test_a_long_file_is_cut_and_a_folder_listed():
    async with computers.terminal({"result_bytes": 400}) as computer:
        await run(computer, "seq 1 100000 >long; mkdir many; cd many; touch {1..3000}; ln -s x ../link; mkfifo ../pipe")
        text = await said(computer, ReadFile("long"))
        assert text.startswith("1\n2\n")
        assert text.endswith("100000\n")
        assert "left out" in text
        assert await said(computer, ListFiles(".")) == "link (link)\nlong 588895 bytes\nmany/\npipe (no file)"
        assert len(await said(computer, ListFiles("many"))) <= 400
        assert (await said(computer, ListFiles("long"))).startswith("error: ")
        await run(computer, "mkdir ../none")
        assert await said(computer, ListFiles("none")) == "[empty]"

"""When a screen is at rest: what has begun after the first look counts too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import PATIENCE_S

import flywheel

GUEST = Path(flywheel.__file__).parent / "envs" / "computer_server"
WORKS = "import time; ends = time.monotonic() + 0.5\nwhile time.monotonic() < ends: pass\nopen('done', 'w').close()"
PROGRAM = f"""
import subprocess, sys, time
from pathlib import Path

sys.path.insert(0, {str(GUEST)!r})
import idle
from screen import ScreenAccess

words = ["sh", "-c", 'read go; "$0" -c "$1" & echo begun; wait', sys.executable, {WORKS!r}]
shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class Late(idle.ProcessWatch):
    def wait(self, until):
        if not shell.stdin.closed:  # after the first look at who is there
            shell.stdin.write(b"go\\n")
            shell.stdin.close()
            shell.stdout.readline()
        return super().wait(until)


class Hands:
    def programs(self):
        return {{shell.pid}}


idle.ProcessWatch, screen = Late, ScreenAccess()
screen._input, screen._grabber = Hands(), object()
print(screen.rest(time.monotonic() + {PATIENCE_S}), Path("done").exists())
"""


def test_a_program_that_has_begun_since_the_first_look_is_waited_for(tmp_path):
    """Such as the shell of a terminal whose window is there: the picture had no prompt."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("True True\n", "")

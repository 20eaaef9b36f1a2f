"""Play tasks of Terminal-Bench in a bubblewrap sandbox: carry out the Dockerfile, run an agent, then the tests.

A sandbox has a root folder of its own, this machine's programs read-only in /usr, and no network. As in the
benchmark's own harnesses, tests run in the same place as the agent did, after it, so that services that it started
still run; they are put there only then, and an earlier reward is taken away. What is written is written by programs
inside, so that no link of an agent's leads out.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import os
import selectors
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flywheel.envs import cgroups, isolation
from flywheel.envs.computer.bwrap import PROGRAM_PATH, open_seccomp_program, seccomp_program
from flywheel.evaluation.benchmarks import container_recipe, terminal_bench
from flywheel.evaluation.benchmarks.benchmark import TaskResult
from flywheel.evaluation.benchmarks.container_recipe import InstalledPackages
from flywheel.evaluation.benchmarks.terminal_bench import TaskFolder
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

_HERE = Path(__file__).parent
_TOOLS = "/opt/flywheel"  # in the sandbox: the server, and what stands in for installers
_INSTALLERS = ("apt", "apt-get", "curl", "pip", "pip3", "uv", "uvx")
_INTERPRETERS = {"python": "", "python3": "", "pytest": "-m pytest "}
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "KILL", "NET_BIND_SERVICE",
                 "SYS_CHROOT")  # Docker's, but for MKNOD, NET_RAW, SETFCAP, SETPCAP and AUDIT_WRITE  # fmt: skip
_FOLDERS = ("tmp", "root/.local/bin", "home", "srv", "logs/verifier", "logs/agent", "opt", "mnt", "var/log", "var/tmp",
            "var/lib", "usr/local/bin", "usr/local/lib", "usr/local/share", "etc", "run", "dev", "proc")  # fmt: skip
_VERIFIER_FOLDER, _TESTS, _SOLUTION = "/logs/verifier", "/tests", "/solution"
_SOLUTION_1 = "/oracle"  # of version 1
_TASK_HOME = "/root"  # within the sandbox: the home that the benchmark's images give their user
_START_S, _SLACK_S, _COPY_S = 20.0, 10.0, 60.0
_OUTPUT_BYTES = 2**16
_ARCHIVE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class SandboxLimits:
    """Hold the limits of a sandbox. memory_mb, processes: of all in it, where this user may make cgroups. most_s: the
    longest that any phase may take, whatever the task allows it; 0 for what the task allows."""

    memory_mb: int = 4096
    processes: int = 512
    most_s: float = 0.0


@dataclass(frozen=True)
class CommandOutcome:
    """Hold what a command did. status: its exit status. output: the end of what it printed. late: it was ended at its
    deadline."""

    status: int
    output: str
    late: bool


class TaskSandbox:
    """Hold the sandbox of one task while it is played; `open_sandbox` opens one."""

    def __init__(self, process: subprocess.Popen[bytes], variables: dict[str, str]) -> None:
        self._process, self.variables, self.folder = process, variables, "/"

    def run(self, command: str, seconds: float, variables: Mapping[str, str] = {}) -> CommandOutcome:
        """Run a command in bash, in the sandbox's working folder.

        seconds: after which it is killed (`late`). variables: of its environment, beside the sandbox's. Raises EnvError
        where the sandbox is gone, EnvTimeout where it does not answer.
        """
        asked = {
            "command": ["bash", "-c", command],
            "folder": self.folder,
            "environment": {**self.variables, **variables},
            "seconds": seconds,
            "bytes": _OUTPUT_BYTES,
        }
        return CommandOutcome(**self._ask(asked, seconds))

    def put(self, folder: Path, place: str, *, fresh: bool = False) -> None:
        """Copy a file, or what a folder holds, from this machine into the sandbox's folder `place`.

        fresh: what was there is removed first. Raises EnvError where it cannot be done.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in [folder] if folder.is_file() else sorted(folder.iterdir()):
                archive.add(path, path.name, filter=_as_root)
        if packed.tell() > _ARCHIVE_BYTES:
            raise EnvError(f"more than {_ARCHIVE_BYTES >> 20} MiB", where=str(folder), fix="leave the task out")
        archive = base64.b64encode(packed.getvalue()).decode()
        done = self._ask({"archive": archive, "folder": place, "fresh": fresh}, _COPY_S)
        if done["status"]:
            raise EnvError(f"files cannot be put at {place}: {done['output'][:200]}", where=str(folder))

    def read_answer(self, seconds: float) -> dict[str, Any]:
        """Read one answer of the sandbox's server, a JSON object. Raises EnvTimeout after `seconds`, EnvError."""
        line = b""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not waiting.select(max(0.0, deadline - time.monotonic())):
                    raise EnvTimeout(f"the sandbox did not answer within {seconds:g} s")
                piece = os.read(self._process.stdout.fileno(), 2**16)
                if not piece:
                    raise EnvError("the sandbox ended")
                line += piece
        try:
            return json.loads(line)
        except ValueError:
            raise EnvError("the sandbox gave an answer that is none") from None

    def _ask(self, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise EnvError("the sandbox ended") from None
        return self.read_answer(seconds + _SLACK_S)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


@contextlib.contextmanager
def open_sandbox(installed: InstalledPackages, limits: SandboxLimits = SandboxLimits()) -> Iterator[TaskSandbox]:
    """Open an empty sandbox; at the end of the block its processes and files are gone.

    Raises BadInput where bubblewrap does not work here, EnvError where the sandbox does not start.
    """
    if why := isolation.explain_missing_bwrap():
        raise BadInput(why, where="Terminal-Bench", fix="apt-get install bubblewrap")
    root = Path(tempfile.mkdtemp(prefix="flywheel-terminal-bench-"))
    group = cgroups.create_cgroup(limits.memory_mb, limits.processes)
    rules = open_seccomp_program()
    process = None
    try:
        _fill_root(root, installed)
        command = _build_command(root, installed, rules)
        process = subprocess.Popen(
            group.wrap_command(command) if group else command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(rules,), start_new_session=True,
        )  # fmt: skip
        path = f"{_TASK_HOME}/.local/bin:{PROGRAM_PATH}"
        variables = {"PATH": path, "HOME": _TASK_HOME, "USER": "root", "LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"}
        sandbox = TaskSandbox(process, variables)
        sandbox.read_answer(_START_S)
        yield sandbox
    finally:
        if process is not None:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        os.close(rules)
        if group:
            group.kill_and_remove()
        shutil.rmtree(root, ignore_errors=True)


def _fill_root(root: Path, installed: InstalledPackages) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if (link := Path("/", name)).is_symlink():
            (root / name).symlink_to(link.readlink())
    (root / "var/run").symlink_to("/run")
    (root / "root/.local/bin/env").write_text("", encoding="utf-8")  # which scripts read after they installed uv
    tools = root / "opt" / "flywheel"
    tools.mkdir()
    for name in ("terminal_bench_installers.py", "container_recipe.py", "terminal_bench_server.py"):
        shutil.copy(_HERE / name, tools / name)
    told = {"system": installed.system, "python": installed.python, "interpreter": str(installed.interpreter)}
    (tools / "installed.json").write_text(json.dumps({name: _plain(one) for name, one in told.items()}))
    for name in _INSTALLERS:
        _write_program(root / "usr/local/bin" / name, f'exec python3 {_TOOLS}/{name}.py "$@"')
        (tools / f"{name}.py").symlink_to("terminal_bench_installers.py")
    python = shlex.quote(str(installed.interpreter))
    for name, module in _INTERPRETERS.items():
        _write_program(root / "usr/local/bin" / name, f'exec {python} {module}"$@"')


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def _build_command(root: Path, installed: InstalledPackages, rules: int) -> list[str]:
    words = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--uid",
        "0",
        "--gid",
        "0",
        "--hostname",
        "terminal",
    ]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += [word for right in _CAPABILITIES for word in ("--cap-add", f"CAP_{right}")]
    words += ["--seccomp", str(rules)] if seccomp_program() else []
    words += ["--bind", str(root), "/", "--ro-bind", "/usr", "/usr", "--bind", str(root / "usr/local"), "/usr/local"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if Path(name).is_dir() and not Path(name).is_symlink():
            words += ["--ro-bind", name, name]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    for path in isolation.list_settings_paths():
        words += ["--ro-bind-try", path, path]
    words += isolation.hide_secrets()
    for path in isolation.list_program_folders(installed.interpreter):
        words += ["--ro-bind", str(path), str(path)]
    words += ["--ro-bind", str(root / "opt/flywheel"), _TOOLS, "--chdir", "/", "--"]
    return [*words, str(installed.interpreter), "-I", f"{_TOOLS}/terminal_bench_server.py"]


def build_image(sandbox: TaskSandbox, task: TaskFolder, most_s: float = 0.0) -> None:
    """Carry out a task's Dockerfile in an empty sandbox.

    most_s: limit in seconds beside the task's own; 0: that alone. Raises EnvError where a step fails, EnvTimeout.
    """
    deadline = time.monotonic() + (min(task.build_s, most_s) if most_s else task.build_s)
    sandbox.folder = "/"
    for step in container_recipe.parse_recipe(task.recipe.read_text(encoding="utf-8")):
        if step.name == "WORKDIR":
            sandbox.folder = str(PurePosixPath(sandbox.folder, _fill(step.text, sandbox)))
            _run_step(sandbox, "/", f"mkdir -p {shlex.quote(sandbox.folder)}", step.text, deadline)
        elif step.name in ("ENV", "ARG"):
            sandbox.variables |= {name: _fill(value, sandbox) for name, value in _read_variables(step.text)}
        elif step.name in ("COPY", "ADD"):
            _copy(sandbox, task.context, step, deadline)
        elif step.name == "RUN":
            command = step.body or (shlex.join(json.loads(step.text)) if step.text.startswith("[") else step.text)
            _run_step(sandbox, sandbox.folder, command, step.text, deadline)


def _run_step(sandbox: TaskSandbox, folder: str, command: str, told: str, deadline: float) -> None:
    was, sandbox.folder = sandbox.folder, folder
    try:
        done = sandbox.run(command, max(0.1, deadline - time.monotonic()))
    finally:
        sandbox.folder = was
    if done.late:
        raise EnvTimeout("the image is not built in time", where=told[:80])
    if done.status:
        lines = done.output.strip().splitlines()
        raise EnvError(f"the image cannot be built: {lines[-1][:200] if lines else done.status}", where=told[:80])


def _fill(text: str, sandbox: TaskSandbox) -> str:
    for name, value in sandbox.variables.items():
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return text


def _read_variables(text: str) -> list[tuple[str, str]]:
    words = shlex.split(text)
    if words and "=" not in words[0]:
        return [(words[0], " ".join(words[1:]))] if len(words) > 1 else []
    return [(word.partition("=")[0], word.partition("=")[2]) for word in words]


def _copy(sandbox: TaskSandbox, context: Path, step: container_recipe.RecipeStep, deadline: float) -> None:
    """Copy as Docker does: of a folder its contents, to a folder where the destination ends in / or exists."""
    sources, target, image = container_recipe.split_copy(step.text)
    if image:
        return  # uv, which is here
    place = str(PurePosixPath(sandbox.folder, _fill(target, sandbox)))
    if step.body:
        _run_step(
            sandbox, "/", f"cat > {shlex.quote(place)} <<'END_OF_FILE'\n{step.body}\nEND_OF_FILE", step.text, deadline
        )
        return
    found = [path for source in sources for path in container_recipe.find_copied(context, source)]
    into = target.endswith(("/", ".")) or len(found) > 1 or any(path.is_dir() for path in found)
    for path in found:
        if into:
            sandbox.put(path, place)
            continue
        quoted = shlex.quote(place)
        holding = "/tmp/.flywheel-copy"
        sandbox.put(path, holding, fresh=True)
        parent = shlex.quote(str(PurePosixPath(place).parent))
        move = f"mkdir -p {parent} && mv {holding}/{shlex.quote(path.name)} {quoted}"
        _run_step(sandbox, "/", f"{move} && rm -rf {holding}", step.text, deadline)


TaskAgent = Callable[[TaskSandbox, TaskFolder, float], None]


def run_reference_solution(sandbox: TaskSandbox, task: TaskFolder, seconds: float) -> None:
    """Play a task by its reference solution, as the harness's agent `oracle` does."""
    place = _SOLUTION if task.version > 1 else _SOLUTION_1
    sandbox.put(task.solution.parent if task.version > 1 else task.solution, place, fresh=True)
    sandbox.run(f"bash {place}/{task.solution.name}", seconds, task.variables.get("solution", {}))


def do_nothing(sandbox: TaskSandbox, task: TaskFolder, seconds: float) -> None:
    """Play a task by doing nothing, as the harness's agent `nop` does."""


AGENTS: dict[str, TaskAgent] = {"oracle": run_reference_solution, "nop": do_nothing}


def play_task(
    task: TaskFolder, agent: TaskAgent, installed: InstalledPackages, *, name: str, seed: int = 0,
    limits: SandboxLimits = SandboxLimits(),
) -> TaskResult:  # fmt: skip
    """Play one task of Terminal-Bench in a sandbox of its own, and judge it by its own tests.

    agent: acts in the sandbox once the task's image is built in it, such as one of `AGENTS`. installed: this machine's
    packages, which the sandbox has. name, seed: the task's id, and the number of the attempt, in the result. Returns
    the result; it is a fault where the image is not built, the sandbox does not start or is gone, or the tests give no
    reward. Raises BadInput where bubblewrap does not work here, ValueError for a Dockerfile that cannot be parsed or
    copies from outside of its folder, and what `agent` raises but EnvError.
    """
    began = time.monotonic()
    result = TaskResult(name, seed, 0, None, "not played", task.category)
    try:
        with open_sandbox(installed, limits) as sandbox:
            build_image(sandbox, task, limits.most_s)
            agent(sandbox, task, min(task.agent_s, limits.most_s) if limits.most_s else task.agent_s)
            rewards = run_tests(sandbox, task, limits.most_s)
            score = rewards.get("reward", min(rewards.values(), default=0.0))
            result = dataclasses.replace(result, score=score, fault="", parts=rewards)
    except EnvError as error:
        result = dataclasses.replace(result, fault=str(error)[:300])
    return dataclasses.replace(result, seconds=time.monotonic() - began)


def run_tests(sandbox: TaskSandbox, task: TaskFolder, most_s: float = 0.0) -> dict[str, float]:
    """Run a task's tests in its sandbox, and return the rewards by name.

    Version 2 names its own. Of version 1 they are 1 or 0 for each test, and `reward`, 1 where all passed; past the time
    limit `reward` alone, 0. most_s: as for `build_image`. Raises EnvError where the tests give no reward.
    """
    seconds = min(task.test_s, most_s) if most_s else task.test_s
    sandbox.run(f"rm -rf {_VERIFIER_FOLDER}; mkdir -p {_VERIFIER_FOLDER}", _COPY_S)
    sandbox.put(task.tests, _TESTS, fresh=True)
    if task.version == 1:
        sandbox.put(task.test_script, _TESTS)
    done = sandbox.run(f"bash {_TESTS}/{task.test_script.name}", seconds, task.variables.get("test", {}))
    if task.version == 1:
        if done.late:
            return {"reward": 0.0}  # as there: what the agent left may hang
        try:
            tests = terminal_bench.parse_test_output(done.output, task.parser)
        except ValueError as error:
            raise EnvError(f"{error}: {_last_line(done.output)}", where=task.test_script.name) from None
        return {**{test: float(passed) for test, passed in tests.items()}, "reward": float(all(tests.values()))}
    if done.late:
        raise EnvTimeout(f"the tests took more than {seconds:g} s", where=task.test_script.name)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("reward.json", "reward.txt"):
            told = sandbox.run(f"cat {_VERIFIER_FOLDER}/{name}", _COPY_S)
            if not told.status:
                Path(folder, name).write_text(told.output, encoding="utf-8")
        try:
            return terminal_bench.read_reward(Path(folder))
        except ValueError as error:
            raise EnvError(f"{error}: {_last_line(done.output)}", where=task.test_script.name) from None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "they printed nothing"

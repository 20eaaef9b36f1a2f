"""Stand in for apt-get, pip, uv, uvx and curl in a task's sandbox, which has no network.

This file runs as a program under each of these names. What a script asks for is there already where the machine has it
in the version that the script names, and the command succeeds; else it fails as the real one does without a network. It
imports nothing but the standard library and `container_recipe`, which lies beside it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import container_recipe

_LOCAL_CURL = "/usr/bin/curl"


def main(argv: list[str]) -> int:
    """Do what the program of the name `argv[0]` would do here, and return its exit status."""
    name, rest = Path(argv[0]).stem, argv[1:]
    told = json.loads(Path(__file__).with_name("installed.json").read_text(encoding="utf-8"))
    interpreter = Path(told["interpreter"])
    installed = container_recipe.InstalledPackages(told["system"], told["python"], interpreter)
    if name == "curl":
        if any("astral.sh/uv" in word for word in rest):
            return 0  # uv is here
        os.execv(_LOCAL_CURL, [name, *rest])
    why = container_recipe.explain_script(" ".join(map(_quoted, [name, *rest])), installed)
    if why:
        print(f"{name}: not found: {why}", file=sys.stderr)
        return 100 if name.startswith("apt") else 1
    if name in ("uv", "uvx"):
        if rest[:1] == ["venv"]:
            return _make_environment(interpreter, rest[1:])
        _, command = container_recipe.list_uv_requirements(name, rest)
        if command:
            if command[0].endswith(".py") and command[0] not in ("pytest", "py.test"):
                command = ["python", *command]
            os.environ["PATH"] += f":{interpreter.parent}"
            os.execvp(command[0], command)
    return 0


def _make_environment(interpreter: Path, words: list[str]) -> int:
    """Make an environment that sees the packages of `interpreter`: `uv venv [-p VERSION] [FOLDER]`."""
    operands = []
    while words:
        word = words.pop(0)
        if word in ("-p", "--python"):
            words = words[1:]
        elif not word.startswith("-"):
            operands.append(word)
    folder = Path(operands[0] if operands else ".venv")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for program, module in (("python", ""), ("python3", ""), ("pytest", "-m pytest ")):
        target = folder / "bin" / program
        target.write_text(f'#!/bin/sh\nexec {_quoted(str(interpreter))} {module}"$@"\n', encoding="utf-8")
        target.chmod(0o755)
    lines = f'export VIRTUAL_ENV="{folder.absolute()}"\nexport PATH="{folder.absolute()}/bin:$PATH"\n'
    (folder / "bin" / "activate").write_text(lines, encoding="utf-8")
    return 0


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(main(sys.argv))

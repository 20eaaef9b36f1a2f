"""Read Dockerfiles, and find what they and shell scripts install or fetch that this machine lacks.

No daemon builds images here: a recipe is carried out in a sandbox that sees this machine's programs. So what a recipe
installs must be installed on this machine already, in the version that it names.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_LIST_S = 60.0

# Images of which nothing but a system's ordinary programs is expected; others bring what is not known here.
_PLAIN_IMAGE = re.compile(
    r"(docker\.io/library/)?(ubuntu|debian|python):[\w.-]+|ghcr\.io/laude-institute/t-bench/(ubuntu|python)-[\w.:-]+"
)
_INSTALLER_IMAGE = "ghcr.io/astral-sh/uv"  # from which recipes copy uv
_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_SCRIPT = re.compile(r"([\w.-]+\.sh)\b")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_SIGNS = re.compile(r"&&|\|\||[;|&\n(){}]")
_UV_SITE = "astral.sh/uv"
_FETCHERS = frozenset(
    ["curl", "wget", "aria2c", "hf", "huggingface-cli", "gdown", "kaggle", "ollama", "rustup", "opam"]
)
_REMOTE_SUBCOMMANDS = {
    "git": ("clone", "fetch", "pull", "lfs", "submodule"), "npm": ("install", "i", "ci"), "npx": (),
    "yarn": ("install", "add"), "pnpm": ("install", "add"), "go": ("get", "install", "mod"),
    "cargo": ("install", "add", "fetch"), "gem": ("install",), "add-apt-repository": (),
    "conda": ("install", "create"), "mamba": ("install",), "cabal": ("install", "update"), "bundle": ("install",),
    "composer": ("install", "require"), "docker": (), "cpan": (), "cpanm": (), "luarocks": ("install",),
}  # fmt: skip
_LOCAL_ADDRESS = re.compile(r"(?:[a-z]+://)?(?:[\w:]+@)?(?:localhost|127\.|0\.0\.0\.0|\[::1\])")
_VALUED = {  # options whose value is the next word
    "apt-get": ("-o", "-t", "-c"),
    "pip": (
        "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target", "--timeout", "--prefix",
        "--retries",
    ),
    "uvx": ("-p", "--python", "--index", "--default-index", "--index-strategy", "--extra-index-url"),
}  # fmt: skip
_REQUIREMENT_OPTIONS = ("-w", "--with", "--from")  # of uv and uvx: their value is a package
_PIP_NAMES = re.compile(r"pip[0-9.]*")
_PREFIXES = frozenset(["sudo", "env", "time", "nohup", "exec", "then", "do", "else", "if", "while", "!", "command"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NORMALISED = re.compile(r"[-_.]+")
_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)(\[[^]]*\])?(?:==([\w.!+*-]+))?")


@dataclass(frozen=True)
class InstalledPackages:
    """Hold the packages that this machine has. system: Debian's, name -> version. python: those of the Python that
    tasks get, normalised name -> version. interpreter: that Python's path."""

    system: Mapping[str, str]
    python: Mapping[str, str] = field(default_factory=dict)
    interpreter: Path = Path(sys.executable)

    def missing_system(self, asked: str) -> str:
        """Return `asked`, such as `gcc` or `gcc=4:12.2`, where that Debian package is not installed; "" where it is."""
        name, _, version = asked.partition("=")
        name = name.partition(":")[0]
        return "" if name in self.system and version in ("", self.system[name]) else asked

    def missing_python(self, asked: str) -> str:
        """Return `asked`, such as `pytest==8.4.1`, where that Python package is not installed; "" where it is."""
        found = _PINNED.fullmatch(asked.strip())
        if not found:
            return asked
        version = self.python.get(normalise_name(found[1]))
        return "" if version is not None and found[3] in (None, version) else asked


def normalise_name(name: str) -> str:
    """Normalise the name of a Python package, as its registry compares names."""
    return _NORMALISED.sub("-", name).lower()


def list_installed_packages(interpreter: Path | None = None) -> InstalledPackages:
    """List the Debian and Python packages of this machine, with their versions.

    interpreter: the Python that tasks get, whose packages are listed; None: the one that runs this. Where dpkg does not
    run, no Debian packages are listed. Raises OSError or subprocess.SubprocessError where the interpreter does not run.
    """
    chosen = interpreter or Path(sys.executable)
    system: dict[str, str] = {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=_LIST_S, check=True).stdout
        lines = (line.split("\t") for line in told.splitlines())
        system = {name: version for status, name, version in lines if status.startswith("ii")}
    code = "import importlib.metadata as m,json;print(json.dumps([(d.name,d.version) for d in m.distributions()]))"
    told = subprocess.run([chosen, "-c", code], capture_output=True, text=True, timeout=_LIST_S, check=True).stdout
    return InstalledPackages(system, {normalise_name(name): version for name, version in json.loads(told)}, chosen)


@dataclass(frozen=True)
class RecipeStep:
    """Hold one instruction of a Dockerfile. name: in capitals. text: what follows it. body: of a here-document."""

    name: str
    text: str
    body: str = ""


def parse_recipe(text: str) -> list[RecipeStep]:
    """Parse a Dockerfile into its instructions; comments and line continuations are taken away."""
    steps: list[RecipeStep] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line
        while whole.rstrip().endswith("\\"):
            whole = whole.rstrip()[:-1]
            following = next(lines, "")
            while following.lstrip().startswith("#"):
                following = next(lines, "")
            whole += f"\n{following}" if following.strip() else " "
        found = _INSTRUCTION.match(whole)
        if not found:
            continue
        body, ending = [], _HEREDOC.search(found[2])
        if ending and found[1].upper() in ("RUN", "COPY"):
            for inner in lines:
                if inner.strip() == ending[1]:
                    break
                body.append(inner)
        steps.append(RecipeStep(found[1].upper(), " ".join(found[2].split("\n")).strip(), "\n".join(body)))
    return steps


def explain_unbuildable(recipe: str, context: Path, installed: InstalledPackages) -> str:
    """Say in a phrase what a Dockerfile needs that is not here; "" where nothing is known to be missing.

    recipe: its text. context: the folder that it is built from.
    """
    steps = parse_recipe(recipe)
    images = [_image_name(step.text) for step in steps if step.name == "FROM"]
    if len(images) != 1:
        return f"{len(images)} stages"
    if not _PLAIN_IMAGE.fullmatch(images[0]):
        return f"the image {images[0]}"
    for step in steps:
        if step.name == "COPY" and not step.body:
            if why := _explain_copy(step.text, context):
                return why
        elif step.name == "ADD" and "://" in step.text:
            return f"the internet: {step.text.split()[0]}"
        elif step.name == "RUN" and (why := _explain_run(step, context, installed)):
            return why
        elif step.name == "USER" and step.text not in ("root", "0"):
            return f"the user {step.text}"
    return ""


def _image_name(text: str) -> str:
    return next((word for word in text.split() if not word.startswith("--")), "")


def _explain_run(step: RecipeStep, context: Path, installed: InstalledPackages) -> str:
    """Say what a RUN needs, and what the scripts of the recipe's folder need that it names."""
    text = step.body or step.text
    if why := explain_script(text, installed):
        return why
    for name in dict.fromkeys(_SCRIPT.findall(text)):
        for path in sorted(context.rglob(name)):
            if why := explain_script(path.read_text(encoding="utf-8", errors="replace"), installed):
                return f"{why} (in {name})"
    return ""


def split_copy(text: str) -> tuple[list[str], str, str]:
    """Split a COPY into its sources, its destination and the image or stage that it copies from ("" for none)."""
    words = json.loads(text) if text.startswith("[") else shlex.split(text)
    image = next((word.partition("=")[2] for word in words if word.startswith("--from=")), "")
    words = [word for word in words if not word.startswith("--")]
    return words[:-1], words[-1], image


def find_copied(context: Path, source: str) -> list[Path]:
    """List the files and folders in the folder `context` that a COPY's `source` names; [] where none is there.

    Raises ValueError for a source that leads out of the folder.
    """
    relative = PurePosixPath(source.lstrip("/"))
    if ".." in relative.parts:
        raise ValueError(f"{source} leads out of the recipe's folder")
    if str(relative) == ".":
        return [context]
    if any(sign in source for sign in "*?["):
        return sorted(context.glob(str(relative)))
    return [context / relative] if (context / relative).exists() else []


def _explain_copy(text: str, context: Path) -> str:
    sources, _, image = split_copy(text)
    if image:
        return "" if image.startswith(_INSTALLER_IMAGE) else f"files of {image}"
    for source in sources:
        try:
            if not find_copied(context, source):
                return f"the file {source}, which is not beside it"
        except ValueError as error:
            return str(error)
    return ""


def explain_script(text: str, installed: InstalledPackages) -> str:
    """Say in a phrase what a shell script installs or fetches that is not here; "" where nothing known is missing."""
    for words in split_commands(text):
        if why := _explain_command(words, installed):
            return why
    return ""


def split_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell script, without its here-documents."""
    for line in _join_lines(text):
        for part in _split_at_signs(line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # a quote that goes on in a later line: no command that installs anything
                continue
            while words and (words[0] in _PREFIXES or _ASSIGNMENT.match(words[0])):
                words = words[1:]
            if words:
                yield words


def _split_at_signs(line: str) -> Iterator[str]:
    """Split a line at the signs between commands that stand outside of quotes."""
    place, quote, begin = 0, "", 0
    while place < len(line):
        letter = line[place]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "\\":
            place += 1
        elif found := _SIGNS.match(line, place):
            yield line[begin:place]
            begin = place = found.end()
            continue
        place += 1
    yield line[begin:]


def _join_lines(text: str) -> Iterator[str]:
    lines = iter(text.splitlines())
    for line in lines:
        while line.endswith("\\"):
            line = line[:-1] + " " + next(lines, "")
        yield line
        if line.lstrip().startswith("#"):
            continue
        if ending := _HEREDOC.search(line):
            for inner in lines:
                if inner.strip() == ending[1]:
                    break


def _explain_command(words: list[str], installed: InstalledPackages) -> str:
    name, rest = PurePosixPath(words[0]).name, words[1:]
    if name in ("python", "python3") and rest[:1] == ["-m"] and rest[1:2] and _PIP_NAMES.fullmatch(rest[1]):
        name, rest = "pip", rest[2:]
    if name in ("uv", "uvx"):
        return _explain_uv(name, rest, installed)
    if name in ("apt", "apt-get"):
        if "source" in rest or "build-dep" in rest:
            return "the sources of Debian packages"
        return _first_missing(
            _operands(rest, "apt-get"), installed.missing_system, "the Debian package", name="install"
        )
    if _PIP_NAMES.fullmatch(name):
        if "-r" in rest or "--requirement" in rest or "-e" in rest:
            return "a list of Python packages"
        return _first_missing(_operands(rest, "pip"), installed.missing_python, "the Python package", name="install")
    if name in _FETCHERS:
        remote = [word for word in rest if "://" in word or "." in word]
        if any(_UV_SITE in word for word in rest) or (
            remote and all(_LOCAL_ADDRESS.match(word) for word in remote if "://" in word)
        ):
            return ""
        return f"the internet: {name} {next(iter(remote), '')}".rstrip() if "--version" not in rest else ""
    if name in _REMOTE_SUBCOMMANDS:
        wanted = _REMOTE_SUBCOMMANDS[name]
        fetches = not wanted or next((word for word in rest if not word.startswith("-")), "") in wanted
        if fetches and (name != "git" or any("://" in word or "@" in word for word in rest)):
            return f"the internet: {' '.join(words)[:80]}"
    return ""


def _operands(words: list[str], program: str) -> list[str]:
    found, skip = [], False
    for word in words:
        if skip or word.startswith("-"):
            skip = not skip and word in _VALUED.get(program, ())
        elif not re.match(r"\d?[<>]", word):
            found.append(word)
    return found


def _first_missing(operands: list[str], missing, what: str, name: str) -> str:
    if operands[:1] != [name]:
        return ""
    lacking = [one for one in map(missing, operands[1:]) if one]
    return f"{what} {lacking[0]}" if lacking else ""


def list_uv_requirements(program: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words after `uv` or `uvx` into the Python packages that they ask for, and the command that they run."""
    required: list[str] = []
    command: list[str] = []
    words = list(words)
    if program == "uv":
        operands = [word for word in words if not word.startswith("-")]
        kind = operands[0] if operands else ""
        if kind == "add" or operands[:2] == ["pip", "install"]:
            return _operands(operands[2 if kind == "pip" else 1 :], "uvx"), []
        if kind != "run":
            return [], []
        words.remove("run")
    while words:
        word = words.pop(0)
        if word in _REQUIREMENT_OPTIONS and words:
            required.append(words.pop(0))
        elif word in _VALUED["uvx"] and words:
            words.pop(0)
        elif not word.startswith("-"):
            command = [word, *words]
            break
    if program == "uvx" and command:
        required.append(command[0])
    return required, command


def _explain_uv(program: str, words: list[str], installed: InstalledPackages) -> str:
    required, _ = list_uv_requirements(program, words)
    lacking = [one for one in map(installed.missing_python, required) if one]
    return f"the Python package {lacking[0]}" if lacking else ""

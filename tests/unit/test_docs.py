"""The pages: every relative link and anchor resolves, and every command that they quote exists with its options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
from pydantic import BaseModel

from flywheel.cli import main
from flywheel.config import Settings
from flywheel.store.schema import TABLES

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted((*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")))
QUOTING = ("flywheel", "flows", "tasks", "benchmarks", "tests", "scripts", "configs", "deploy")
SUFFIXES = {".py", ".sql", ".yaml", ".toml", ".js", ".ts", ".tsx", ".sh", ""}
NOT_OURS = {"node_modules", "__pycache__", "site-packages", "static", "results"}

_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_FILE = re.compile(r"\w[\w-]*(?:/[\w-]+)*\.(?:py|sql)")
_PARAMETER = re.compile(r"(([a-z]+)(?:\.(?!json$|pt$|py$)[a-z]\w*)+)(?:: ([a-z]\w*)$|(?=$|:| ))")
_QUOTED_WORD = re.compile(r"\"[^\"]*\"|'[^']*'")
_QUOTED_PAGE = re.compile(r"\bdocs/[\w./-]+\.md(?:#[\w-]+)?")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found, seen = set(), Counter()
    for line in _FENCE.sub(_blank, page.read_text(encoding="utf-8")).splitlines():
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return frozenset(found)


def fault(target: Path, anchor: str) -> str:
    """Return what is wrong with a link to `target#anchor`; empty where it resolves."""
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target.resolve()):
        return "no such heading"
    return ""


def links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page, those in code left out."""
    text = _CODE.sub(_blank, _FENCE.sub(_blank, page.read_text(encoding="utf-8")))
    for match in _LINK.finditer(text):
        if not re.match(r"[a-z]+:", match.group(1)):
            yield match.group(1)


def test_every_relative_link_and_anchor_of_a_page_resolves():
    wrong = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            if why := fault(page.parent / path if path else page, anchor):
                wrong.append(f"{page.relative_to(PROJECT)}: ({link}) {why}")
    assert len(PAGES) > 20
    assert not wrong, "\n".join(wrong)


def test_pages_that_code_names_are_there():
    wrong, found = [], 0
    for folder in QUOTING:
        for path in sorted((PROJECT / folder).rglob("*")):
            if NOT_OURS & set(path.parts) or path.suffix not in SUFFIXES or not path.is_file():
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            for match in _QUOTED_PAGE.finditer(text):
                found += 1
                name, _, anchor = match.group().partition("#")
                if why := fault(PROJECT / name, anchor):
                    wrong.append(f"{path.relative_to(PROJECT)}: {match.group()} {why}")
    assert found > 5
    assert not wrong, "\n".join(wrong)


def test_files_and_parameters_that_pages_name_are_there():
    wrong, found, blocks = [], 0, set(Settings.model_fields)
    files = [path.as_posix() for folder in QUOTING for path in (PROJECT / folder).rglob("*.*")]
    for page in PAGES:
        if page.name in {"CHANGELOG.md", "CONTRIBUTING.md"}:  # of files as they were; of files that a reader writes
            continue
        for span in _CODE.findall(_FENCE.sub(_blank, page.read_text(encoding="utf-8"))):
            name = " ".join(span[1:-1].split())
            if _FILE.fullmatch(name):
                found += 1
                if not any(path.endswith(f"/{name}") for path in files):
                    wrong.append(f"{page.relative_to(PROJECT)}: {name}: no such file")
            elif (parameter := _PARAMETER.match(name)) and parameter.group(2) in blocks:
                found += 1
                dotted, value = parameter.group(1), parameter.group(3) or ""
                module = f"/{dotted.replace('.', '/')}.py"
                if (why := parameter_fault(dotted, value)) and not any(path.endswith(module) for path in files):
                    wrong.append(f"{page.relative_to(PROJECT)}: {name}: {why}")
    assert found > 200
    assert not wrong, "\n".join(wrong)


def test_the_glossary_is_sorted_and_says_where_each_term_is_defined():
    text = (PROJECT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| **")]
    terms = [row[0].strip("*").casefold() for row in rows]
    assert len(terms) > 50
    assert terms == sorted(set(terms))
    for row in rows:
        assert re.search(r"\]\(|`", row[2]), f"{row[0]} says not where it is defined"
        for table in re.findall(r"table `(\w+)`", row[2]):
            assert table in {*TABLES, "promotions"}, f"{row[0]}: no table {table}"


def parameter_fault(name: str, value: str) -> str:
    """Return what is wrong with a parameter, and with its value where a list says which it takes; empty if nothing.

    name: dotted; below a mapping every name is one. value: as YAML has it, empty for none.
    """
    block = Settings
    for part in name.split("."):
        field = block.model_fields.get(part)
        if field is None:
            return "no such parameter"
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        block = field.annotation
    if value and get_origin(field.annotation) is Literal and value not in map(str, get_args(field.annotation)):
        return f"takes no {value}"
    return ""


def test_anchors_are_those_of_github(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `two`, three\n## A\n```\n# no heading\n```\n## A\n### [Linked](b.md) text: x-y_z\n")
    assert anchors(page) == {"one-two-three", "a", "a-1", "linked-text-x-y_z"}
    assert fault(page, "b") == "no such heading"
    assert fault(tmp_path / "c.md", "") == "no such file"
    assert fault(page, "a-1") == ""


def quoted_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that a page quotes, in fences without a language and in its text."""
    fences = [fence.group().splitlines() for fence in _FENCE.finditer(text)]
    lines = [line for first, *rest, _ in fences if first.strip() in {"```", "```bash", "```sh"} for line in rest]
    spans = [span.group()[1:-1] for span in _CODE.finditer(_FENCE.sub(_blank, text)) if "\n\n" not in span.group()]
    for line in (*lines, *(" ".join(span.split()) for span in spans)):
        quoted = _QUOTED_WORD.sub(lambda word: re.sub(r"[^\w-]", "_", word.group()), line)
        for part in re.split(r"\s*(?:&&|\|\||;|\|)\s*", re.sub(r"(^|\s)#.*", "", quoted)):
            words = part.split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if words:
                yield words


def wrong_option(words: list[str], known: str) -> str:
    """Return the first option that is not in `known`, the source of a program; empty where there is none."""
    options = (word.partition("=")[0] for word in words if re.match(r"--[a-z]", word))
    return next((option for option in options if f'"{option}"' not in known), "")


def command_fault(words: list[str]) -> str:
    """Return what is wrong with a command of ours; empty where nothing is, or it is another's."""
    if words[0] == "make" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
        made = re.search(rf"^{words[1]}:", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return "" if made else f"no target {words[1]}"
    if words[0] in {"python", ".venv/bin/python"} and len(words) > 1:
        name = words[2].replace(".", "/") + ".py" if words[1] == "-m" and len(words) > 2 else words[1]
        if not name.startswith(("flywheel/", "benchmarks/")):
            return ""
        if not (PROJECT / name).exists():
            return f"no {name}"
        known = (PROJECT / name).read_text(encoding="utf-8")
        if "add_study_arguments" in known:  # the options that all studies have
            known += (PROJECT / "benchmarks/bench_case.py").read_text(encoding="utf-8")
        option = wrong_option(words[2:], known)
        return f"{name} has no {option}" if option else ""
    if words[0] not in {"flywheel", ".venv/bin/flywheel"} or len(words) < 2:
        return ""
    return _flywheel_fault(words[1:])


def _flywheel_fault(words: list[str]) -> str:
    if words[0] == "bench" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
        scripts = [PROJECT / "benchmarks" / f"{words[1]}{end}.py" for end in ("", "_")]
        script = next((one for one in scripts if one.exists()), None)
        if script is None:
            return f"no benchmark {words[1]}"
        # The scripts of its cases, and the one that gives those made of parts their `--only`.
        parts = (script, script.parent / "parts.py", *script.parent.glob(f"{script.stem}_*.py"))
        option = wrong_option(words[2:], "".join(path.read_text(encoding="utf-8") for path in parts))
        return f"bench {words[1]} has no {option}" if option else ""
    if words[0] == "settings" and len(words) > 1 and re.fullmatch(r"[a-z][a-z_.]*", words[1]):
        why = "" if words[1] in Settings.model_fields else parameter_fault(words[1], "")
        return f"{words[1]}: {why}" if why else ""
    command: click.Command = main
    while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"no command {name}"
        command = found
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known |= {"--help", "--version", "-h"}
    options = (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word))
    option = next((option for option in options if option not in known), "")
    return f"{command.name} has no {option}" if option else ""


def test_every_command_that_a_page_quotes_exists_with_its_options():
    wrong, found = [], 0
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it tells of commands as they were
            continue
        for words in quoted_commands(page.read_text(encoding="utf-8")):
            found += words[0] == "flywheel"
            if why := command_fault(words):
                wrong.append(f"{page.relative_to(PROJECT)}: {' '.join(words)}: {why}")
    assert found > 100
    assert not wrong, "\n".join(wrong)


def test_a_parameter_or_value_that_is_not_there_is_found():
    assert parameter_fault("ct.sft_init", "last_ct") == ""
    assert parameter_fault("ct.sft_init", "last") == "takes no last"
    assert parameter_fault("ct.nothing", "") == "no such parameter"
    assert parameter_fault("sandbox.kinds.terminal", "") == ""


def test_a_command_that_is_not_there_is_found():
    fence = "```\nflywheel run --no-such   # why\nflywheel nothing\n```\n"
    text = fence + "`flywheel\nbench rl --nor` `make nought` `ls --all`"
    faults = [command_fault(words) for words in quoted_commands(text)]
    assert faults == ["run has no --no-such", "no command nothing", "bench rl has no --nor", "no target nought", ""]
    assert command_fault(["python", "-m", "flywheel.nought"]) == "no flywheel/nought.py"

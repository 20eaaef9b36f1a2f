"""Run benchmarks, the scripts `benchmarks/NAME.py` of the source folder: `bench`, `paper`."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import click

from flywheel.cli import describe_renamed_option
from flywheel.utils.errors import BadInput

BENCHMARKS_FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def list_benchmarks() -> dict[str, str]:
    """Return the first line of each benchmark's docstring, by its name.

    Only scripts with a `main` count: modules that they share may lie beside them. The name is the file's, without the
    trailing underscore of one that would else hide a package (`flywheel_.py`). Raises BadInput where there are no
    scripts, as in an installed package.
    """
    if not BENCHMARKS_FOLDER.is_dir():
        raise BadInput(
            "the benchmarks are not part of an installed package",
            where=BENCHMARKS_FOLDER,
            fix="run from the source folder: git clone, then make setup",
        )
    found = {}
    for path in sorted(BENCHMARKS_FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem.removesuffix("_")] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, argv: Sequence[str]) -> int:
    """Run the benchmark `name` with the options `argv`; return its exit code.

    Raises BadInput for an unknown name, an option of an earlier version, and where a package for development is
    missing, and what the benchmark raises.
    """
    known = list_benchmarks()
    if name not in known:
        raise BadInput(f"no benchmark {name!r}", where="flywheel bench", fix=f"one of {', '.join(known)}")
    if renamed := describe_renamed_option(f"bench {name}", argv):
        raise BadInput(renamed, where=f"flywheel bench {name}", fix=f"see `flywheel bench {name} --help`")
    plain, underscored = BENCHMARKS_FOLDER / f"{name}.py", BENCHMARKS_FOLDER / f"{name}_.py"
    try:
        return int(_load_script(plain if plain.is_file() else underscored).main(list(argv)) or 0)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "flywheel", "flows", "tasks"):
            raise
        what, fix = (
            f"it needs the package {error.name}, which is not installed",
            "type `make setup-test` in the source folder",
        )
        raise BadInput(what, where=f"flywheel bench {name}", fix=fix) from None


def _load_script(path: Path) -> ModuleType:
    module_name = "benchmark_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))  # shared modules lie beside the scripts
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@click.command(
    epilog="Example: flywheel bench policy --repetitions 9",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)
@click.argument("name", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("-h", "--help", "asked", is_flag=True, help="Show this message and exit; after NAME, its options.")
@click.pass_context
def bench_command(context: click.Context, name: str | None, options: tuple[str, ...], asked: bool) -> None:
    """Run a benchmark; without a NAME, list them. It prints a JSON line a case; exit code 1: a goal is not met.

    The scripts are in the source folder.
    """
    if asked and name is None:
        click.echo(context.get_help())
        return
    options += ("--help",) * asked
    if name is None:
        for found, what in list_benchmarks().items():
            click.echo(f"{found:<10} {what}")
        return
    sys.exit(run_benchmark(name, options))


@click.command(epilog="Example: flywheel paper -o paper.html")
@click.option("-o", "--out", default="paper.html", show_default=True, metavar="FILE", help="The page.")
@click.option("--results", multiple=True, metavar="FOLDER", help="Results of your own; they count before those kept.")
def paper_command(out: str, results: tuple[str, ...]) -> None:
    """Write a page: the UI-TARS-2 report's figures beside ours.

    Nothing is run: it reads the kept results of the source folder, and names what is missing with the command that
    makes it.
    """
    sys.exit(run_benchmark("paper", ["--out", out, *(word for one in results for word in ("--results", one))]))

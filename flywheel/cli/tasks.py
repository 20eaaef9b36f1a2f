"""Generate tasks from sites, applications and rules, test verifiers, and plan tasks for people: `tasks ...`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from flywheel.cli.options import FOLDER_OPTION, JSON_OPTION, find_workspace_here
from flywheel.config.workspace import Workspace
from flywheel.utils.errors import BadInput, DataError, FlywheelError, did_you_mean, errors_of_place

_FILE_TYPE = click.Path(path_type=Path)


@click.command(epilog="Example: flywheel tasks design applications.yaml -o tasks.csv")
@click.argument("file", type=_FILE_TYPE)
@click.option("--output", "-o", type=_FILE_TYPE, help="A .csv, .md or .json file; default: a page on the screen.")
@FOLDER_OPTION
def design_command(file: Path, output: Path | None, workspace: Path | None) -> None:
    """List the tasks that people should record, from applications and functions in FILE (YAML, CSV)."""
    from flywheel import config
    from flywheel.policy.client.language_model import OpenAIChatModel
    from flywheel.synthesis import task_design
    from flywheel.utils.files import write_text

    design = task_design.read_design_file(file)
    nodes = task_design.build_graph(design, file)
    if output and output.suffix not in (".csv", ".md", ".json"):
        what = f"the list is not written as {output.suffix or 'a file without a suffix'}"
        raise BadInput(what, where=output, fix="name a .csv, .md or .json")
    ws, model, recorded = find_workspace_here(workspace), None, Counter()
    if ws:
        settings = config.load_settings(ws.params)
        if settings.language_model.endpoint:
            model = settings.language_model.model, OpenAIChatModel(settings.language_model).complete
        recorded = _count_recorded(ws, settings.recording.folder)
    tasks = task_design.list_tasks(design, nodes, lambda query: recorded[_plain(query)], model)
    if output and output.suffix == ".csv":
        text = task_design.format_csv(tasks)
    elif output and output.suffix == ".json":
        text = task_design.format_json(design, nodes, tasks)
    else:
        text = task_design.format_markdown(design, nodes, tasks)
    if output is None:
        click.echo(text, nl=False)
        return
    with errors_of_place(output):
        write_text(output, text)
    wanted = sum(task.wanted for task in tasks)
    by = "the language model" if model else "rules: language_model.endpoint names no model"
    click.echo(f"{output}: {len(tasks)} tasks, {wanted} recordings to make; worded by {by}")


def _plain(query: str) -> str:
    return " ".join(query.casefold().split())


def _count_recorded(ws: Workspace, folder: str) -> Counter[str]:
    """Count the workspace's recordings by their instruction; damaged ones do not count, and are told."""
    from flywheel.recordings.session import load_session_meta

    found, damaged = Counter(), 0
    for session in sorted(path.parent for path in (ws.root / folder).glob("*/session.json")):
        try:
            found[_plain(load_session_meta(session)[1].instruction)] += 1
        except DataError:
            damaged += 1
    if damaged:
        click.echo(f"{damaged} recordings are damaged and do not count", err=True)
    return found


@click.command("questions", epilog="Example: flywheel tasks questions encyclopaedia -o questions")
@click.argument("source")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder for the manifest.")
@click.option("--count", default=100, show_default=True, type=click.IntRange(1), help="Questions, at most.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of all that is drawn.")
@click.option("--start", default="", help="First page in a folder; default: the index.html nearest to its root.")
@click.option("--pages", default=2000, show_default=True, type=click.IntRange(1), help="Pages that are read, at most.")
@click.option("--depth", default=12, show_default=True, type=click.IntRange(0), help="Clicks from the first page.")
@click.option("--seconds", default=600.0, show_default=True, type=click.FloatRange(1), help="Limit of the crawl.")
@FOLDER_OPTION
@JSON_OPTION
def questions_command(
    source: str,
    out: Path,
    count: int,
    seed: int,
    start: str,
    pages: int,
    depth: int,
    seconds: float,
    workspace: Path | None,
    as_json: bool,
) -> None:
    """Make questions of several pages, each with a proof, of a folder of HTML or a site.

    SOURCE is a folder, a page manifest (a file, or the name of one that ships), or the name of a site of ours. The
    language model of the workspace's settings helps where one is set.
    """
    from flywheel import config
    from flywheel.policy.client.language_model import OpenAIChatModel
    from flywheel.synthesis.questions import build
    from flywheel.synthesis.questions.crawl import CrawlBudget

    ws = find_workspace_here(workspace)
    language = config.load_settings(ws.params).language_model if ws else None
    model = OpenAIChatModel(language) if language and language.endpoint else None
    budget = CrawlBudget(pages=pages, depth=depth, seconds=seconds)
    made = build.find_questions(source, count=count, seed=seed, budget=budget, start=start, model=model)
    path = build.write_questions(made, out)
    if as_json:
        click.echo(json.dumps({"manifest": str(path), **made.funnel}))
        return
    for line in build.summarise_funnel(made.funnel):
        click.echo(line)
    if unread := build.count_unread(made.funnel):
        told = f"{unread} pages of the site were not read (--pages, --depth, --seconds): another answer may stand there"
        click.echo(told, err=True)
    click.echo(f"{path}\nflywheel run --set 'synthesis.manifests=[{path.resolve()}]'")


@click.command("explore", epilog="Example: flywheel tasks explore datasette -o explored --tasks 20")
@click.argument("source")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder for the manifest.")
@click.option("--tasks", "most", default=40, show_default=True, type=click.IntRange(1, 1000), help="Tasks, at most.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the start and of what is typed.")
@click.option(
    "--pages", default=80, show_default=True, type=click.IntRange(1), help="Pages that are looked at, at most."
)
@click.option("--actions", default=1000, show_default=True, type=click.IntRange(1), help="Actions to explore, at most.")
@click.option("--megabytes", default=100, show_default=True, type=click.IntRange(1), help="Of documents, at most.")
@click.option(
    "--seconds", default=1200.0, show_default=True, type=click.FloatRange(1), help="Limit of the exploration."
)
@FOLDER_OPTION
@JSON_OPTION
def explore_command(
    source: str,
    out: Path,
    most: int,
    seed: int,
    pages: int,
    actions: int,
    megabytes: int,
    seconds: float,
    workspace: Path | None,
    as_json: bool,
) -> None:
    """Make tasks of what can be done on a site that nobody wrote tasks for.

    SOURCE is a page manifest (a file, or the name of one that ships), of which only where the site comes from is read,
    a folder of pages, or an address; or a file of `kind: computer` that opens an application of a desktop. The language
    model of the workspace's settings words the tasks of a site where one is set.
    """
    import asyncio

    from flywheel import config
    from flywheel.synthesis.exploration import desktop_explorer
    from flywheel.synthesis.exploration.site_explorer import ExploreBudget
    from flywheel.synthesis.exploration.site_source import find_site
    from flywheel.synthesis.exploration.site_tasks import explore_site

    ws = find_workspace_here(workspace)
    language = config.load_settings(ws.params).language_model if ws else None
    say = (lambda line: None) if as_json else click.echo
    desktop = desktop_explorer.read_desktop_source(Path(source)) if Path(source).is_file() else None
    if desktop:
        made = desktop_explorer.explore_desktop(desktop, out, most=most, actions=actions, seed=seed, say=say)
        path, funnel, setting = *asyncio.run(made), "worlds"
    else:
        budget = ExploreBudget(pages=pages, actions=actions, megabytes=megabytes, seconds=seconds)
        site = explore_site(find_site(source, seed), out, most=most, budget=budget, language_model=language, say=say)
        path, funnel, setting = site.path, site.funnel, "manifests"
    if as_json:
        click.echo(json.dumps({"manifest": str(path), **funnel}))
        return
    for reason, number in funnel["counts"].items():
        click.echo(f"{number:>6}  {reason}")
    click.echo(f"{funnel['tasks']} tasks in {path}\nflywheel run --set 'synthesis.{setting}=[{path}]'")


@click.command(epilog="Example: flywheel tasks games -o games --count 10 --seed 1")
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the games."
)
@click.option("--count", default=10, type=click.IntRange(1, 1000), help="Games to make.")
@click.option("--seed", default=0, help="Of the composition: the same games for the same seed.")
@click.option("--proposals", default=0, type=click.IntRange(0, 100_000),
              help="Games that may be proposed, at most; 0: forty for each to make.")  # fmt: skip
@click.option("--model", "by_model", is_flag=True, help="Mechanics invented by the workspace's `language_model`.")
@FOLDER_OPTION
@JSON_OPTION
def games_command(
    out: Path, count: int, seed: int, proposals: int, by_model: bool, workspace: Path | None, as_json: bool
) -> None:
    """Make new small games by composition of rules, proved solvable; a file each, for `synthesis.worlds`."""
    from flywheel import config
    from flywheel.policy.client.language_model import OpenAIChatModel
    from flywheel.synthesis.rule_games import generator
    from flywheel.synthesis.rule_games import proposals as by_proposal

    propose = generator.compose_game
    if by_model:
        ws = find_workspace_here(workspace)
        chosen = config.load_settings(ws.params).language_model if ws else config.LanguageModelSettings()
        if not chosen.endpoint:
            raise BadInput(
                "no language model is named", where="language_model.endpoint", fix="set it, or leave out --model"
            )
        propose = by_proposal.propose_by_model(OpenAIChatModel(chosen))
    funnel, listed = generator.GameFunnel(), []
    with errors_of_place(out):
        out.mkdir(parents=True, exist_ok=True)
        for one in generator.make_games(count, seed, propose, proposals or 40 * count, funnel):
            listed.append(generator.write_game(one, out))
            if not as_json:
                click.echo(f"{one.game.name}: {one.game.title}")
        (out / "games.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    told = {"proposed": funnel.proposed, "accepted": funnel.accepted, "refused": dict(funnel.refused.most_common())}
    if as_json:
        click.echo(json.dumps({**told, "games": listed}))
        return
    for reason, times in funnel.refused.most_common():
        click.echo(f"{times:>5}  {reason}")
    if not listed:
        what = f"none of {funnel.proposed} proposals is a game"
        raise FlywheelError(what, where=str(out), fix="raise --proposals, or take another --seed")
    click.echo(f"{funnel.accepted} games of {funnel.proposed} proposals in {out}; to draw tasks from them, add")
    click.echo(f"  to synthesis.worlds: {', '.join(str((out / one['file']).resolve()) for one in listed)}")
    click.echo(f"  to synthesis.domains.games: {', '.join(one['name'] for one in listed)}")


@click.command(epilog="Example: flywheel tasks attack --world mail --runs 3")
@click.option(
    "--world", "worlds", multiple=True, metavar="NAME", help="A suite; may be repeated. Default: all that ship."
)
@click.option("--manifest", "manifests", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A page's manifest, in place of suites; may be repeated.")  # fmt: skip
@click.option(
    "--runs", default=10, type=click.IntRange(1, 100), help="Known solutions of each template.", show_default=True
)
@click.option("--write", is_flag=True, help="Keep the counts beside the suites, or in the manifest's tasks.")
@FOLDER_OPTION
@JSON_OPTION
def attack_command(
    worlds: tuple[str, ...], manifests: tuple[Path, ...], runs: int, write: bool, workspace: Path | None, as_json: bool
) -> None:
    """Attack the verifiers of tasks: known solutions must pass, changed end states fail.

    Exit code 1 where a known solution or another legal end is refused, a start passes, or fewer than 95% of the
    mutations are refused.
    """
    from flywheel import config
    from flywheel.envs import registry
    from flywheel.envs.browser.pages.manifest import load_page_manifest
    from flywheel.envs.tasks.verification import write_verification
    from flywheel.synthesis.verifier_attack import run

    ws = find_workspace_here(workspace)
    settings = run.attack_settings(config.load_settings(ws.params) if ws else config.Settings())
    shipped = registry.list_task_suites()
    registry.load_external_suites(settings, ws.root if ws else Path())
    rows: list[dict[str, Any]] = []
    if unknown := [name for name in worlds if name not in registry.list_task_suites()]:
        fix = did_you_mean(unknown[0], registry.list_task_suites())
        raise BadInput(f"no world is called {unknown[0]!r}", where="--world", fix=fix)
    for manifest in [load_page_manifest(path) for path in manifests]:
        pages = asyncio.run(run.attack_manifest(settings, manifest, runs))
        rows.append(_report(manifest.name, manifest.domain, manifest.made_by, list(pages.values()), as_json))
        if left := len(manifest.variants) - len(pages):
            click.echo(f"  {left} tasks tell no solution: neither `answer` nor `proof.actions`", err=as_json)
        if write:
            run.write_page_verification(manifest, pages)
    for name in worlds or (() if manifests else list_attacked_suites()):
        suite = registry.get_task_suite(name)
        found = asyncio.run(run.attack_suite(settings, suite, runs))
        rows.append(_report(name, suite.domain, suite.source, found, as_json))
        if write and name not in shipped:
            click.echo("  not kept: only suites that ship have a place for it", err=as_json)
        elif write:
            counts = {one.template: list(run.count_attack(one).values()) for one in found}
            click.echo(f"  {write_verification(suite, counts)}", err=as_json)
    if as_json:
        click.echo(json.dumps(rows))
    if not all(row["met"] for row in rows):
        raise click.exceptions.Exit(1)


def list_attacked_suites() -> list[str]:
    """List the suites that `tasks attack` takes by default: all that have an expert."""
    from flywheel.envs import registry
    from flywheel.synthesis.verifier_attack import run

    return [name for name in registry.list_task_suites() if run.has_known_solutions(registry.get_task_suite(name))]


def _report(name: str, domain: str, source: str, found: list[Any], as_json: bool) -> dict[str, Any]:
    """Tell what was found of one suite, unless as JSON, and return it as a row."""
    total = {
        count: sum(getattr(one, count) for one in found)
        for count in ("runs", "gold", "start", "mutations", "killed", "ways", "accepted")
    }
    row = {"name": name, "domain": domain, "source": source, "templates": len(found), **total}
    row["kill_rate"] = total["killed"] / total["mutations"] if total["mutations"] else None
    row["false_alarms"] = sum(one.false_alarms for one in found)
    row["survivors"] = [told for one in found for told in one.survivors]
    row["refused"] = [told for one in found for told in one.refused]
    row["met"] = not (row["false_alarms"] or total["start"]) and (row["kill_rate"] or 0) >= 0.95
    if not as_json:
        rate = "-" if row["kill_rate"] is None else f"{row['kill_rate']:.4f}"
        click.echo(
            f"{name}: {len(found)} templates, known solutions {total['gold']}/{total['runs']}, starts accepted "
            f"{total['start']}, mutations refused {total['killed']}/{total['mutations']} ({rate}), other legal ends "
            f"{total['accepted']}/{total['ways']}"
        )
        for told in row["survivors"]:
            click.echo(f"  passes: {told}")
        for told in row["refused"]:
            click.echo(f"  refused: {told}")
    return row

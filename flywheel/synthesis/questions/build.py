"""Make questions about a folder of HTML, a site with a manifest, or a world of ours, and write them as a manifest."""

from __future__ import annotations

import asyncio
import csv
import html
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import numpy as np
from rensa import RMinHash

from flywheel.envs.browser.pages import manifest as pages_manifest
from flywheel.envs.browser.pages import packages
from flywheel.envs.registry import get_task_suite
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.tasks.drawing import make_task
from flywheel.store.dedup.episode_similarity import BANDS, ROWS, lsh_candidate_pairs
from flywheel.synthesis.funnel import Funnel, FunnelStage, write_funnel
from flywheel.synthesis.questions.crawl import (
    Crawl,
    CrawlBudget,
    crawl_site,
    fetch_from_folder,
    fetch_over_http,
    normalise_address,
    read_robots,
)
from flywheel.synthesis.questions.draw import Question, QuestionDrawer
from flywheel.synthesis.questions.facts import FactTable, gather_facts
from flywheel.synthesis.questions.language import LanguageHelper, TextModel
from flywheel.utils.errors import BadInput, did_you_mean, errors_of_place
from flywheel.utils.files import atomic_folder, write_json

_Crawled = tuple[dict[str, Any], Crawl, dict[str, str]]  # manifest fields, pages, files to write beside it
ALIKE = 0.8  # Jaccard similarity of the words of two questions, from which on the later one is a near-duplicate
_HELD_OUT = 5  # one of so many entities that answer is kept for evaluation
_READ_BY_MODEL = 500  # pages without facts by rules that the language model reads


@dataclass
class QuestionSet:
    """Hold the questions that were made of a site, and what they were made of. manifest: fields of the page manifest,
    without the tasks. funnel: counts of each step, and of what was left out by reason: `pages`, `facts`, `questions`,
    `levels`, `language model`, `attributes`, `seed`."""

    manifest: dict[str, Any]
    crawl: Crawl
    table: FactTable
    questions: list[Question]
    funnel: dict[str, Any]
    pages: dict[str, str]  # file -> HTML of a world's pages, which are written beside the manifest
    cpu_s: float  # processor time of indexing, drawing and proving


def find_questions(
    source: str, *, count: int, seed: int, budget: CrawlBudget, start: str = "", model: TextModel | None = None
) -> QuestionSet:
    """Crawl a source, gather its facts, and draw questions about them.

    Starts an event loop of its own, for the crawl. source: a folder, a page manifest (its file, or the name of one that
    ships), or the name of a site of ours. count: of questions, at most. seed: of the draw. budget: of the crawl. start:
    address of the first page in a folder; "": the index.html nearest to its root. model: the language model, which also
    reads the first 500 pages without facts by rules; None, and once it has failed three times in a row: rules alone.
    Raises BadInput for a source that cannot be read, has no pages or no facts, or gives no question.
    """
    manifest, crawl, pages = asyncio.run(_open_source(source, start, budget))
    if not crawl.pages:
        why = ", ".join(f"{reason}: {n}" for reason, n in crawl.skipped.most_common()) or "nothing is there"
        raise BadInput(f"no page of it can be read ({why})", where=source, fix="name a page by --start")
    helper = LanguageHelper(model)
    bare = [page for page in crawl.pages.values() if not page.values][:_READ_BY_MODEL] if model else []
    table = gather_facts(crawl, {page.address: helper.find_facts(page) for page in bare})
    if not table.facts:
        what = f"{len(crawl.pages)} pages give no facts that at least five of them share"
        raise BadInput(
            what, where=source, fix="give pages with tables, lists of labels and values, or a language_model"
        )
    began = time.process_time()
    drawer = QuestionDrawer(crawl, table, seed)
    questions, near = _draw(drawer, helper, count)
    spent = time.process_time() - began
    funnel = {
        "pages": {"read": len(crawl.pages), "left out": dict(sorted(crawl.skipped.items())), "such as": crawl.named},
        "facts": {"kept": len(table.facts), "entities": len({one.entity for one in table.facts}),
                  "left out": dict(sorted(table.funnel.items()))},
        "questions": {**dict(sorted((drawer.funnel + near).items())), "kept": len(questions)},
        "levels": dict(sorted(Counter(str(one.level) for one in questions).items())),
        "language model": dict(sorted(helper.counts.items())),
        "attributes": [asdict(one) for one in drawer.scores],
        "seed": seed,
    }  # fmt: skip
    if not questions:
        told = ", ".join(f"{reason}: {n}" for reason, n in drawer.funnel.most_common()) or "none that others share"
        raise BadInput(f"its {len(table.facts)} facts give no question ({told})", where=source, fix="give more pages")
    return QuestionSet(manifest, crawl, table, questions, funnel, pages, spent)


def write_questions(made: QuestionSet, out: Path) -> Path:
    """Write the questions as a page manifest into the folder `out`; return the manifest's path.

    It is NAME.json, and the folder NAME beside it gets funnel.json, details.json, facts.csv and a world's pages, each
    whole or not at all; NAME is the manifest's name. What is there is replaced. The split of a question is eval for a
    fifth of the entities that it may begin with, else train. Raises BadInput for a place where nothing can be made, or
    one in the folder that is asked about; DiskFull.
    """
    name = made.manifest["name"]
    path, beside = out / f"{name}.json", out / name
    if "folder" in made.manifest and out.resolve().is_relative_to(made.manifest["folder"]):
        raise BadInput("it lies in the folder that is asked about, where its answers could be read", where=out,
                       fix="name another place")  # fmt: skip
    with errors_of_place(out):
        with atomic_folder(beside) as folder:
            write_funnel(folder, count_question_funnel(made))
            write_json(folder / "details.json", made.funnel)
            with (folder / "facts.csv").open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                rows.writerow(("entity", "name", "kind", "label", "value", "number", "unit", "target", "page", "by"))
                for one in made.table.facts:
                    own, number = made.table.entities[one.entity], one.quantity or ("", "")
                    rows.writerow((one.entity, own.name, own.kind, one.label, one.value, *number, one.target, one.page,
                                   one.by))  # fmt: skip
            for file_name, text in made.pages.items():
                place = folder / "pages" / file_name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
        width = len(str(len(made.questions)))
        tasks = {f"q{number:0{width}}": _task(made, one) for number, one in enumerate(made.questions, 1)}
        own = {"folder": f"{name}/pages"} if made.pages else {}
        write_json(path, {**made.manifest, **own, "made_by": "questions", "seeded": False, "tasks": tasks})
    return path


def _task(made: QuestionSet, one: Question) -> dict[str, Any]:
    held_out = random.Random(made.table.entities[one.chain[0]].full_name).randrange(_HELD_OUT) == 0
    return {
        "instruction": one.text,
        "answer": list(one.answers),
        "split": "eval" if held_out else "train",
        "max_steps": one.max_steps,
        "level": one.level,
        "proof": one.proof,
    }


# Drawing, and near-duplicates.


def _draw(drawer: QuestionDrawer, helper: LanguageHelper, count: int) -> tuple[list[Question], Counter[str]]:
    """Draw until there are `count` questions that are no near-duplicates, or the facts are used up."""
    kept: list[Question] = []
    counts: Counter[str] = Counter()
    drawn = drawer.draw()
    while len(kept) < count:
        batch = []
        for one in drawn:
            if helper.knows(one.text, one.answers):
                counts["closed book: the language model knows it"] += 1
                continue
            needed = [literal for own in one.conditions for literal in (*own.literals, own.label)]
            needed += [hop.label for hop in one.hops] + ([one.ask] if one.ask else [])
            batch.append(replace(one, text=helper.reword(one.text, needed, one.answers)))
            if len(kept) + len(batch) >= count:
                break
        together = [*kept, *batch]
        near = find_near_questions([one.text for one in together])
        counts["near-duplicate"] += len(near)
        kept = [one for number, one in enumerate(together) if number not in near]
        if not batch:
            break
    return kept, counts


def find_near_questions(texts: list[str]) -> set[int]:
    """Find the questions, by index, that are near-duplicates of an earlier one.

    Candidates by MinHash of words and pairs of words are compared by their Jaccard similarity (ALIKE). Questions with
    other numbers are no duplicates.
    """
    words = [re.findall(r"\w+", text.casefold()) for text in texts]
    shingles = [{*own, *itertools.pairwise(own)} for own in words]
    if not texts:
        return set()
    tokens = [["\0".join(one) if isinstance(one, tuple) else one for one in own] for own in shingles]
    signed = []
    for own in tokens:
        sketch = RMinHash(num_perm=BANDS * ROWS, seed=22)
        sketch.update(sorted(own))
        signed.append(sketch.digest())
    pairs = lsh_candidate_pairs(np.array(signed, np.uint32), np.zeros(len(texts), np.int64))
    near: set[int] = set()
    for earlier, later in sorted(map(tuple, np.sort(pairs, 1).tolist()), key=lambda pair: (pair[1], pair[0])):
        one, other = shingles[earlier], shingles[later]
        numbers = [set(re.findall(r"\d[\d,.]*", texts[place])) for place in (earlier, later)]
        alike = len(one & other) >= ALIKE * len(one | other) and numbers[0] == numbers[1]
        if earlier not in near and (alike or texts[earlier] == texts[later]):
            near.add(later)
    return near


# Sources.


def _open_source(source: str, start: str, budget: CrawlBudget) -> Coroutine[Any, Any, _Crawled]:
    """Return what crawls a source: manifest fields, pages, and files to write beside the manifest."""
    place = Path(source)
    if source.strip() and place.is_dir():
        root = place.resolve()
        name = re.sub(r"[^a-z0-9._-]+", "-", root.name.lower()).strip("-._")[:40] or "site"
        return _crawl_folder(name, root.name, {"folder": str(root)}, root, start or _first_page(root), {}, budget)
    if source in catalogue.list_worlds():
        return _crawl_world(source, budget)
    if re.match(r"https?://", source):
        raise BadInput("an address is no source by itself", where=source, fix="write a manifest with url: that address")
    if not source.strip() or not (place.is_file() or (pages_manifest.SHIPPED_MANIFESTS / f"{source}.yaml").is_file()):
        fix = f"name a folder of HTML, a manifest, or {did_you_mean(source, catalogue.list_worlds())}"
        raise BadInput("there is no such folder, manifest or site", where=source or "SOURCE", fix=fix)
    path = pages_manifest.find_page_manifest(source)
    found, raw = pages_manifest.load_page_manifest(path), pages_manifest.parse_manifest_file(path)
    if found.server is not None:
        raise BadInput("a site with a server is not crawled", where=path, fix="start it, and give a manifest with url")
    kept = {"domain", "url", "folder", "package", "alias", "sha256", "login", "origins", "viewport", "step_ms", "ready"}
    fields = {name: value for name, value in raw.items() if name in kept}
    if found.url:
        return _crawl_url(found, fields, budget)
    root = packages.find_served_folder(found).resolve()
    fields |= {"folder": str(root)} if not found.package else {}
    return _crawl_folder(
        found.name,
        found.title,
        fields,
        root,
        start or found.first.replace("{variant}", found.variants[0]),
        found.alias,
        budget,
    )


def _fields(name: str, title: str, fields: dict[str, Any], crawl: Crawl) -> dict[str, Any]:
    named = {} if "url" in fields else {"start": crawl.start}
    return {"name": f"{name}-questions", "title": f"Questions on {title}", **fields, **named}


def _first_page(folder: Path) -> str:
    """Return the page that a folder begins with: index.html, else the one nearest to the root that is called so."""
    found = [path.relative_to(folder) for path in folder.rglob("*.htm*") if path.suffix in (".html", ".htm")]
    if not found:
        raise BadInput("the folder holds no HTML", where=folder, fix="give one with .html files")
    return str(
        min(found, key=lambda path: (len(path.parts), path.stem != "index", "index" not in path.stem, str(path)))
    )


async def _crawl_folder(
    name: str, title: str, fields: dict[str, Any], root: Path, start: str, alias: Mapping[str, str], budget: CrawlBudget
) -> _Crawled:
    crawl = await crawl_site(fetch_from_folder(root, alias, budget.page_bytes), start, budget, finite=True)
    return _fields(name, title, fields, crawl), crawl, {}


async def _crawl_url(found: pages_manifest.PageManifest, fields: dict[str, Any], budget: CrawlBudget) -> _Crawled:
    login = {"headers": found.login.headers, "cookies": found.login.cookies} if found.login else {}
    start = urlsplit(found.url)._replace(scheme="", netloc="", fragment="").geturl().lstrip("/")
    async with httpx.AsyncClient(timeout=10, **login) as client:
        crawl = await crawl_site(
            fetch_over_http(client, found.origin, budget.page_bytes),
            normalise_address(start),
            budget,
            origin=found.origin,
            allowed=await read_robots(client, found.origin),
        )
    return _fields(found.name, found.title, fields, crawl), crawl, {}


async def _crawl_world(name: str, budget: CrawlBudget) -> _Crawled:
    """Crawl a site of ours, and make static files of its pages: a manifest cannot name a world."""
    world = get_task_suite(name)
    if catalogue.get_world(name).kind != "site":
        raise BadInput("a world of one page has nothing to ask about", where=name, fix="give a site")
    task = make_task(world, next(iter(world.templates)), 1, 0, "train")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(WorldServer())
        url = server.new_session(task, 0).rstrip("/")
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        live = fetch_over_http(client, url, budget.page_bytes)

        async def fetch(address: str) -> tuple[str, bytes] | str:
            got = await live(address)
            return got if isinstance(got, str) else (got[0], re.sub(rb"(?s)<form\b.*?</form>", b"", got[1]))

        crawl = await crawl_site(fetch, "", budget, origin=url, keep=True)
    files = {}
    for address in crawl.pages:
        slug = re.sub(r"[^a-z0-9]+", "-", address.lower()).strip("-") or "index"
        files[address] = f"{slug}.html" if f"{slug}.html" not in files.values() else f"{slug}-{len(files)}.html"
    pages = {files[address]: _freeze(text, address, url, crawl, files) for address, text in crawl.raw.items()}

    async def fetch_file(address: str) -> tuple[str, bytes] | str:
        return (address, pages[address].encode()) if address in pages else "broken link"

    again = await crawl_site(fetch_file, "index.html", budget, finite=True)
    again.skipped.update(crawl.skipped)
    again.named |= crawl.named
    return _fields(name, catalogue.get_world(name).title, {}, again), again, pages


def _freeze(text: str, address: str, origin: str, crawl: Crawl, files: dict[str, str]) -> str:
    """Point a page's links to the files of the pages; links to pages that were not crawled are taken out."""
    base = re.search(r'<base href="([^"]*)"[^>]*>', text)
    root = urljoin(f"{origin}/{address}", base[1] if base else "")

    def point(match: re.Match[str]) -> str:
        url = urljoin(root, html.unescape(match[1])).partition("#")[0]
        target = crawl.alias.get(normalise_address(url.removeprefix(f"{origin}/"))) if url.startswith(origin) else None
        return f'href="{files[target]}"' if target in files else ""

    return re.sub(r'href="([^"]*)"', point, text.replace(base[0], "") if base else text)


def count_question_funnel(made: QuestionSet) -> Funnel:
    """Make the funnel of a set of questions: of pages, facts and questions."""
    pages, facts, asked = (made.funnel[name] for name in ("pages", "facts", "questions"))
    named = {name: count for name, count in asked.items() if name not in ("kept", "drawn") and count}
    return Funnel(
        source="questions",
        made_from=made.manifest["name"],
        seed=made.funnel["seed"],
        stages=tuple(
            FunnelStage(name=name, taken=left + sum(discarded.values()), left=left, discarded=discarded)
            for name, left, discarded in (
                ("pages", pages["read"], pages["left out"]),
                ("facts", facts["kept"], facts["left out"]),
                ("questions", asked["kept"], named),
            )
        ),
    )


def count_unread(funnel: dict[str, Any]) -> int:
    """Count the pages that a budget left unread, on which another answer may stand. funnel: of a `QuestionSet`."""
    left_out = funnel["pages"]["left out"]
    return sum(count for why, count in left_out.items() if why.startswith("over the budget") or why == "too deep")


def summarise_funnel(funnel: dict[str, Any]) -> Iterable[str]:
    """Yield lines for a person that say how many pages, facts and questions were kept, and why others were left out.

    A last one counts the answers of the language model, if any. funnel: of a `QuestionSet`.
    """
    for step in ("pages", "facts"):
        own = funnel[step]
        yield f"{step}: {own.get('read', own.get('kept'))}" + _reasons(own["left out"])
    asked = dict(funnel["questions"])
    kept, drawn = asked.pop("kept"), asked.pop("drawn")
    yield f"questions: {kept} of {drawn} drawn" + _reasons(asked)
    if told := [f"{what} {n}" for what, n in funnel["language model"].items() if n]:
        yield f"language model: {', '.join(told)}"


def _reasons(counts: dict[str, int]) -> str:
    told = ", ".join(f"{what} {n}" for what, n in sorted(counts.items(), key=lambda one: -one[1]) if n)
    return f" (left out: {told})" if told else ""

"""Every site there is: its tasks done in a real browser, its verifiers, and its pages under bad input.

All templates of a site are drawn on the records of one seed, so each demonstration is a neighbouring task to all the
others: its end state must be refused by every verifier but its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
import pytest_asyncio
from night import NIGHT
from pages import spoken_words

from flywheel.agent.actions import Finished
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.base import Task
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.suites.site import Site
from flywheel.envs.suites.site_tasks import Redraw
from flywheel.envs.tasks.drawing import make_task
from flywheel.rewards.scorers import verifier

SITES = [name for name in catalogue.list_worlds() if isinstance(catalogue.get_world(name).play, Site)]
SEED = 3  # of the records; `flywheel bench worlds` draws many
SCREEN = Settings(sandbox=SandboxSettings(width=320, height=320, timeout_s=60))
HOSTILE = '"><script>alert(1)</script>{{ 7*7 }}&amp;\u202e\x00\U0001f600 ' + "龘" * 50
pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- tasks in a browser ----------------------------------------------------------------------------------------------
@dataclass
class Run:
    """One demonstration. thoughts: what the expert said; states: after each step, the start's first; scores of them."""

    task: Task
    thoughts: list[str]
    states: list[dict[str, Any]]
    scores: list[float]

    @cached_property
    def wanted(self) -> tuple[Any, ...]:
        """What the task asks for: records, page, answer."""
        site = catalogue.get_world(self.task.world).play
        return site.tasks[self.task.template].wanted(site.records(self.task.params), self.task.params)


def tasks_of(name: str, seed: int) -> Iterator[Task]:
    """The first template of a site on the records of a seed, by night every one at all of its levels; of other records
    where those hold nothing to ask."""
    world = catalogue.get_world(name)
    for number, (template, spec) in enumerate(world.play.tasks.items()):
        if number and not NIGHT:
            continue
        for level in sorted(spec.levels)[: None if NIGHT else 1]:
            task = make_task(world, template, level, seed, "train")
            rng = random.Random(f"{seed} {template} {level}")
            try:
                params = world.play.draw_on(seed, template, level, rng)
            except Redraw:
                params = dict(task.params)
            yield dataclasses.replace(task, params=params, instruction=params["instruction"])


@cache
def first_task(name: str) -> Task:
    return next(tasks_of(name, 1))


async def run(pool, task: Task) -> Run:
    async with pool.env() as env:
        result = await env.reset(task, task.seed)
        one = Run(task, [], [dict(result.info["state"])], [result.info["score"]])
        while not (result.terminated or result.truncated):
            thought, action = oracle.next_expert_step(task, result.info["state"], task.seed) or (
                "I am done.",
                Finished(),
            )
            result = await env.step(action)
            one.thoughts.append(thought)
            one.states.append(dict(result.info["state"]))
            one.scores.append(result.info["score"])
    return one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(SCREEN) as opened:
        yield opened


@pytest.mark.smoke
@pytest.mark.parametrize("name", SITES)
async def test_experts_are_accepted_and_nobody_else(pool, name):
    assert len(catalogue.get_world(name).templates) >= 20 or name == "shop", "a site has 20 templates or more"
    tasks = list(tasks_of(name, SEED))
    runs = await asyncio.gather(*(run(pool, task) for task in tasks))
    for one in runs:
        story = f"{one.task.template} {one.task.level} {one.task.seed}: {one.task.instruction} {one.thoughts}"
        assert one.scores[-1] == 1.0, f"{one.states[-1]['page']} {story}"
        assert max(one.scores[:-1]) < 1, f"accepted one step early: {story}"
        assert one.task.max_steps > len(one.thoughts), f"no room for one mistake: {story}"
        check_thoughts(one)
    wrong = [f"{a.task.instruction} <- {b.task.instruction}" for a in runs for b in runs if deceived(a, b)]
    assert not wrong, wrong


def deceived(a: Run, b: Run) -> bool:
    """Whether a's verifier accepts the end of b, which was asked for something else on the same records."""
    if a is b or a.task.params["seed"] != b.task.params["seed"]:
        return False
    if a.wanted == b.wanted:
        return False  # the same thing, asked in other words
    tasks = catalogue.get_world(a.task.world).play.tasks
    one, other = tasks[a.task.template], tasks[b.task.template]
    if one.change is None and one.answer is None and other.change is None:
        return False  # a page may lie on the way to an answer or to another page
    return verifier.score_final_state(a.task, b.states[-1]) == 1


def check_thoughts(one: Run) -> None:
    for thought in one.thoughts:
        words = thought.lower().replace(".", "").replace(",", "").replace("?", "").split()
        assert 1 <= len(words) <= 10, thought
        assert set(words) <= spoken_words(), thought


# -- pages without a browser -------------------------------------------------------------------------------------------
class Reader(HTMLParser):
    """Links and forms of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[tuple[str, str, dict[str, str]]] = []  # method, action, fields
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        if tag == "a":
            self.links.append(found["href"])
        elif tag == "form":
            self.forms.append((found.get("method", "get"), found.get("action", ""), {}))
        elif tag in ("input", "textarea", "select", "button") and found.get("name") and self.forms:
            free = tag == "textarea" or found.get("type") in ("text", "password")
            self.forms[-1][2][found["name"]] = HOSTILE if free else found.get("value", "")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server():
    async with WorldServer() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client():
    async with httpx.AsyncClient(verify=False) as opened:  # http alone: certificates need not be read
        yield opened


Form = tuple[str, str, dict[str, str]]


async def crawl(client: httpx.AsyncClient, base: str, limit: int) -> tuple[list[str], list[Form]]:
    """Addresses of the pages that links lead to, and the forms on them. Fails where a link leads nowhere."""
    todo, seen, forms = [base], {base}, {}
    for address in todo:
        answer = await client.get(address)
        assert answer.status_code == 200, address
        page = Reader(answer.text)
        for link in page.links:
            target = urljoin(base, link)
            assert target.startswith(base), f"{address} links to {link}"
            if target not in seen and len(seen) < limit:
                seen.add(target)
                todo.append(target)
        forms |= {repr(form): form for form in page.forms}
    return todo, list(forms.values())


@dataclass(frozen=True)
class Look:
    """What a session of a site shows to who only follows links. before, after: its records."""

    pages: list[str]
    forms: list[Form]
    before: dict[str, Any]
    after: dict[str, Any]


@pytest.fixture(scope="module")
def looks(server, client):
    """A function that looks through a site, once: the forms are the same in each session of the task."""
    kept: dict[str, Look] = {}

    async def look(name: str) -> Look:
        if name not in kept:
            base = server.new_session(first_task(name), 1)
            before = server.state(base)["records"]
            pages, forms = await crawl(client, base, 150)
            kept[name] = Look(pages, forms, before, server.state(base)["records"])
        return kept[name]

    return look


def of_each_shape(forms: list[Form], count: int = 2) -> list[Form]:
    """`count` forms of each shape: those of the rows of a list differ by a number in their address alone."""
    shapes = Counter()
    kept = []
    for method, action, fields in forms:
        shape = (method, re.sub(r"\d+", "#", urlsplit(action).path), tuple(sorted(fields)))
        shapes[shape] += 1
        if shapes[shape] <= count:
            kept.append((method, action, fields))
    return kept


@pytest.mark.parametrize("name", SITES)
async def test_every_link_leads_to_a_page(looks, name):
    look = await looks(name)
    assert len(look.pages) >= 10
    assert look.after == look.before, "looking changed something"
    site = catalogue.get_world(name).play
    assert not site.t.missing, f"not translated: {site.t.missing}"


@pytest.mark.parametrize("name", SITES)
async def test_hostile_text_in_every_field(server, client, looks, name):
    """Every form of the site with text that would like to be a script; forms go stale on the way, as in two tabs."""
    base = server.new_session(first_task(name), 1)
    for method, action, fields in of_each_shape((await looks(name)).forms):
        target, sent = urljoin(base, action), {"data" if method == "post" else "params": fields}
        answer = await client.request(method, target, **sent, follow_redirects=True)
        assert answer.status_code in (200, 404), (action, answer.status_code)
        assert "<script>alert" not in answer.text, action
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    await crawl(client, base, 60)
    json.dumps(server.state(base))


@pytest.mark.parametrize("name", SITES)
async def test_what_is_not_there_is_answered_by_a_page(server, client, looks, name):
    base = server.new_session(first_task(name), 1)
    before = server.state(base)["records"]
    for path in ("state", "records", "world.py", "manifest.json", "..%2fworld.py", "a/b/c/d", "%00", "☃/x", "%ff"):
        answer = await client.get(base + path)
        assert (answer.status_code, "<h1>" in answer.text) == (404, True), path
    posts = [action for method, action, _ in (await looks(name)).forms if method == "post"]
    for path in ("nothing", "a/b", *posts[:5]):
        answer = await client.post(base + path, content=b"text=" + b"x" * 1_000_000)
        assert (answer.status_code, "<h1>" in answer.text) == (413, True), path
        answer = await client.post(base + path, content=b"\xff\xfe%ff&&=&=x;\x00")
        assert answer.status_code in (303, 404), path
    answer = await client.get(base, params={"q": "x" * 5000, "page": "9" * 50, "sort": HOSTILE})
    assert answer.status_code == 200
    assert server.state(base)["records"].keys() == before.keys()


@pytest.mark.parametrize("name", SITES)
async def test_sessions_are_apart_and_start_the_same(server, client, looks, name):
    task = first_task(name)
    one, other = server.new_session(task, 1), server.new_session(task, 1)
    assert server.state(one) == server.state(other)
    for method, action, fields in of_each_shape((await looks(name)).forms):
        if method == "post":
            await client.post(urljoin(one, action), data=fields, follow_redirects=True)
    assert server.state(one)["records"] != server.state(other)["records"]
    assert (await client.get(other)).status_code == 200
    assert server.state(other)["records"] == catalogue.get_world(name).play.records(task.params)

"""Verifiers of sites, without a browser: what fulfils a task fulfils no other of its template on the same records."""

from __future__ import annotations

import itertools
import random

import pytest

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.site import Site
from flywheel.envs.suites.site_tasks import Redraw

SITES = [name for name in catalogue.list_worlds() if isinstance(catalogue.get_world(name).play, Site)]
SEEDS, DRAWS = range(2), 4


def end(site: Site, params: dict) -> dict:
    """The state in which exactly these params are fulfilled."""
    records, page, answer = site.tasks[params["task"]].wanted(site.records(params), params)
    path, query = page or ("", {})
    return {"records": records, "page": path, "query": query, "answer": answer}


def drawn(site: Site, template: str, seed: int) -> list[dict]:
    found, rng = {}, random.Random(f"{template} {seed}")
    for level, _ in itertools.product(site.tasks[template].levels, range(DRAWS)):
        try:
            params = site.draw_on(seed, template, level, rng)
        except Redraw:
            continue
        found[params["instruction"]] = params
    return list(found.values())


@pytest.mark.parametrize("name", SITES)
def test_the_end_of_another_task_of_the_template_is_refused(name):
    site, compared = catalogue.get_world(name).play, 0
    for template, seed in itertools.product(site.tasks, SEEDS):
        if site.tasks[template].change is None:
            continue
        tasks = [(params, end(site, params)) for params in drawn(site, template, seed)]
        for (one, own), (other, theirs) in itertools.permutations(tasks, 2):
            if own != theirs:
                compared += 1
                assert site.score(one, theirs) < 1, f"{one['instruction']} | {other['instruction']}"
    assert compared > 50

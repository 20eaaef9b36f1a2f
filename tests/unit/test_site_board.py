"""The rules of the project board: what its forms do beside what they are asked, and what they refuse."""

from __future__ import annotations

import pytest

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.board import data, team

SEED = 3


@pytest.fixture
def site():
    return catalogue.get_world("board").play


@pytest.fixture
def state(site):
    return site.start({"seed": SEED})


def post(site, state, path: str, **form: str) -> str | None:
    return site.act(state, path, form)


def errors(state) -> dict[str, str]:
    return state["refused"]["errors"]


def shown(site, state, path: str, **query: str) -> dict:
    return site.view(state, path, query)[1]


def test_a_finished_sprint_sends_what_is_not_done_back(site, state):
    records = state["records"]
    for key, one in records["sprints"].items():
        one["state"] = "Active" if key == "s2" else "Done"
    cards = [key for key, one in records["cards"].items() if one["project"] == "p1"][:2]
    columns = records["projects"]["p1"]["columns"]
    for key, column in zip(cards, (columns[0], columns[-1]), strict=True):
        records["cards"][key] |= {"sprint": "s2", "column": column}
    assert post(site, state, "sprint/s2/finish") == "sprints/p1"
    assert [records["cards"][key]["sprint"] for key in cards] == ["", "s2"]
    assert records["sprints"]["s2"]["state"] == "Done"
    assert post(site, state, "sprint/s2/finish") is None  # another tab was quicker


def test_one_sprint_of_a_project_runs_at_a_time(site, state):
    sprints = state["records"]["sprints"]
    first, second = [key for key, one in sprints.items() if one["project"] == "p1" and one["state"] != "Done"][:2]
    sprints[first]["state"] = sprints[second]["state"] = "Planned"
    post(site, state, f"sprint/{first}/start")
    post(site, state, f"sprint/{second}/start")
    assert [sprints[key]["state"] for key in (first, second)] == ["Active", "Planned"]
    assert "finish it first" in state["notice"]


def test_a_sprint_ends_after_it_starts(site, state):
    before = len(state["records"]["sprints"])
    post(site, state, "sprints/p1", name="Sprint 9", start="2026-02-10", end="2026-02-10", _at="sprints/p1/new")
    assert set(errors(state)) == {"end"}
    post(site, state, "sprints/p1", name="Sprint 9", start="2026-02-10", end="2026-02-30", _at="sprints/p1/new")
    assert set(errors(state)) == {"end"}
    assert len(state["records"]["sprints"]) == before


def test_a_member_who_leads_a_project_stays(site, state):
    records = state["records"]
    for one in records["projects"].values():
        one["lead"] = "m2"
    post(site, state, "members/m2/remove", _at="members/m2")
    assert "m2" in records["members"]
    assert set(errors(state)) == {"role"}
    records = state["records"]
    mine = [key for key, one in records["cards"].items() if one["assignee"] == "m3"]
    assert mine
    assert post(site, state, "members/m3/remove") == "members"
    assert {records["cards"][key]["assignee"] for key in mine} == {""}
    assert post(site, state, f"members/{data.ME}/remove") is None  # nobody removes himself


def test_columns_are_renamed_with_their_cards_and_kept_while_they_hold_some(site, state):
    records = state["records"]
    columns = list(records["projects"]["p1"]["columns"])
    held = [key for key, one in records["cards"].items() if (one["project"], one["column"]) == ("p1", columns[0])]
    names = {f"column{n}": name for n, name in enumerate(columns)}
    post(site, state, "settings/p1/columns", **{**names, "column0": columns[1]}, _at="settings/p1")
    assert errors(state) == {"column0": "Another column is called so."}
    post(site, state, "settings/p1/columns", **{**names, "column0": ""}, _at="settings/p1")
    assert errors(state) == {"column0": "There are cards in this column."}
    records = state["records"]
    assert records["projects"]["p1"]["columns"] == columns
    post(site, state, "settings/p1/columns", **{**names, "column0": "Soon"}, _at="settings/p1")
    assert held
    assert {records["cards"][key]["column"] for key in held} == {"Soon"}
    post(site, state, "settings/p1/add", column="Blocked")
    assert records["projects"]["p1"]["columns"] == ["Soon", *columns[1:-1], "Blocked", columns[-1]]
    emptied = {f"column{n}": name for n, name in enumerate(records["projects"]["p1"]["columns"]) if name != "Blocked"}
    post(site, state, "settings/p1/columns", **emptied)
    assert records["projects"]["p1"]["columns"] == ["Soon", *columns[1:]]


def test_a_card_joins_no_sprint_that_is_over_or_of_another_project(site, state):
    records = state["records"]
    key, card = next((k, c) for k, c in records["cards"].items() if c["project"] == "p1" and not c["sprint"])
    over = next(k for k, one in records["sprints"].items() if one["project"] == "p1" and one["state"] == "Done")
    strange = next(k for k, one in records["sprints"].items() if one["project"] == "p2" and one["state"] != "Done")
    fields = {name: str(card[name]) for name in ("title", "text", "column", "assignee", "priority", "due", "points")}
    for sprint in (over, strange):
        post(site, state, f"card/{key}", **fields, sprint=sprint, _at=f"card/{key}/edit")
        assert set(errors(state)) == {"sprint"}
        assert card == state["records"]["cards"][key]


def test_only_own_comments_are_deleted(site, state):
    comments = state["records"]["comments"]
    other = next(key for key, one in comments.items() if one["by"] != data.ME)
    assert post(site, state, f"comment/{other}/delete") is None
    post(site, state, f"card/{comments[other]['card']}/comment", comment="Fine.")
    mine = next(key for key, one in comments.items() if one["text"] == "Fine.")
    assert post(site, state, f"comment/{mine}/delete") == f"card/{comments[other]['card']}"
    assert mine not in comments
    assert other in comments


@pytest.mark.parametrize("sort", ["due", "-due"])
def test_what_has_no_date_comes_last_either_way(site, state, sort):
    rows = shown(site, state, "list/p1", sort=sort)["rows"] + shown(site, state, "list/p1", sort=sort, page="2")["rows"]
    days = [card["due"] for _, card in rows]
    dated = [day for day in days if day]
    assert dated
    assert days == sorted(dated, reverse=sort == "-due") + [""] * (len(days) - len(dated))


def test_the_board_shows_what_its_filters_let_through(site, state):
    cards = data.cards_of(state["records"], "p1")
    lanes = shown(site, state, "board/p1", who="nobody", priority="Normal")["lanes"]
    found = {key for lane in lanes.values() for key, _ in lane}
    assert found == {key for key, one in cards.items() if not one["assignee"] and one["priority"] == "Normal"}
    everything = shown(site, state, "board/p1", who="m99", label="<script>")["lanes"]
    assert {key for lane in everything.values() for key, _ in lane} == set(cards)


def test_a_new_project_takes_its_own_key_and_shows_an_empty_board(site, state):
    taken = state["records"]["projects"]["p1"]["tag"]
    for tag in (taken.lower(), "W3B", "TOOLONG"):
        post(site, state, "projects/new", name="Hiring", tag=tag, _at="projects/new")
        assert set(errors(state)) == {"tag"}, tag
    target = post(site, state, "projects/new", name="Hiring", tag="hir", about="")
    made = state["records"]["projects"][target.split("/")[1]]
    assert made == team.fresh_project("Hiring", "HIR", "")
    assert list(shown(site, state, target)["lanes"]) == list(data.FRESH)


def test_records_are_made_of_seeds_alone_and_titles_are_unique():
    for seed in range(30):
        site = catalogue.get_world("board").play
        records = site.records({"seed": seed})
        assert records == site.start({"seed": seed})["records"]
        titles = [card["title"] for card in records["cards"].values()]
        assert len(set(titles)) == len(titles)
        for project in records["projects"]:
            days = [one["due"] for one in data.cards_of(records, project).values() if one["due"]]
            assert len(set(days)) == len(days), "what is due first is one card"
            assert all(one["sprint"] in ("", *records["sprints"]) for one in records["cards"].values())

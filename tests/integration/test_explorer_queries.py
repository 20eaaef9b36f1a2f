"""Saved queries: by the explorer's addresses, in its page, and by the command."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner
from explorer_store import SCRIPT, explorer, rollouts
from explorer_tabs import open_page, serious
from playwright.sync_api import expect

from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.store.versioning import git_tags
from flywheel.utils.files import write_text

COUNT = "SELECT domain, count(*) AS n FROM trajectories GROUP BY ALL"


@pytest.fixture
def served(ws):
    rollouts(ws, 1)
    with explorer(ws) as (server, client):
        yield server, client


def test_a_query_is_saved_listed_renamed_and_deleted(ws, served):
    _, client = served

    def save(name: str, sql: str, **more: object) -> tuple[int, str]:
        answer = client.post("/api/queries", json={"name": name, "sql": sql, "author": "Ada Byron", **more})
        return answer.status_code, answer.text

    assert save("by-domain", COUNT, description="How many") == (204, "")
    (row,) = client.get("/api/queries").json()
    assert row.pop("at").endswith("+00:00")
    assert row == {"name": "by-domain", "sql": COUNT, "description": "How many", "author": "ada byron"}
    for name, sql, words in (
        ("by-domain", "FROM tasks", "is saved as by-domain already by ada byron"),
        ("By Domain", COUNT, "no name of a query: 'By Domain'; take 1 to 40 small letters"),
        ("x", "SELCT 1", "syntax error"),
        ("x", "SELECT nothing FROM tasks", "nothing"),
        ("x", "CREATE TABLE x AS SELECT 1", "create is no question"),
        ("x", "FROM tasks; FROM tasks", "several statements"),
        ("x", "", "the query is empty"),
    ):
        status, said = save(name, sql)
        assert (status, words in said) == (400, True), said
    assert save("by-domain", "FROM tasks", replace=True)[0] == 204
    assert client.post("/api/queries/by-domain/rename", json={"name": "tasks"}).status_code == 204
    assert [(one["name"], one["sql"]) for one in client.get("/api/queries").json()] == [("tasks", "FROM tasks")]
    assert client.post("/api/queries/by-domain/delete", json={}).status_code == 400
    assert client.post("/api/queries/tasks/delete", content="{}").status_code == 415, "not by a form of another page"
    assert client.post("/api/queries/tasks/delete", json={}).status_code == 204
    assert client.get("/api/queries").json() == []


def test_a_saved_query_is_used_by_its_link(browser, served):
    server, client = served
    tab = open_page(browser, server)
    tab.goto(f"{server.url}/sql?sql=SELECT 42 AS answer")
    expect(tab.get_by_text("1 row,")).to_be_visible()
    tab.get_by_role("button", name="Save this query").click()
    tab.get_by_label("Name", exact=True).fill("the answer")
    tab.get_by_label("What it asks").fill(SCRIPT)
    tab.get_by_label("Your name").fill("Ada")
    tab.get_by_role("button", name="Save", exact=True).click()
    expect(tab.get_by_role("alert")).to_contain_text("such as the-answer")
    tab.get_by_label("Name", exact=True).fill("the-answer")
    tab.get_by_role("button", name="Save", exact=True).click()
    expect(tab.get_by_text("Saved as the-answer.")).to_be_visible()
    assert tab.url == f"{server.url}/sql?saved=the-answer"
    assert serious(tab) == []

    tab.goto("about:blank")
    tab.goto(f"{server.url}/sql?saved=the-answer")
    expect(tab.get_by_role("gridcell", name="42")).to_be_visible()
    expect(tab.get_by_role("region", name="Saved query")).to_contain_text(f"the-answer: {SCRIPT}")
    tab.get_by_role("textbox", name="SQL").click()
    tab.keyboard.press("Control+A")
    tab.keyboard.type("SELECT 43 AS answer")
    tab.keyboard.press("Control+Enter")
    expect(tab.get_by_role("gridcell", name="43")).to_be_visible()
    expect(tab.get_by_text("what is typed is another query by now")).to_be_visible()
    assert "saved=the-answer&sql=SELECT+43" in tab.url, "the address keeps what is typed"
    tab.get_by_role("button", name="Save changes").click()
    expect(tab.get_by_text("Saved as it is now.")).to_be_visible()
    assert client.get("/api/queries").json()[0]["sql"] == "SELECT 43 AS answer"
    tab.get_by_role("button", name="Rename").click()
    tab.get_by_label("New name").fill("answer")
    tab.get_by_role("region", name="Saved query").get_by_role("button", name="Rename", exact=True).click()
    expect(tab.get_by_role("link", name="answer", exact=True)).to_have_attribute("aria-current", "true")
    tab.get_by_role("button", name="Delete").click()
    tab.get_by_role("button", name="Yes, delete").click()
    expect(tab.get_by_text("answer is deleted.")).to_be_visible()
    assert client.get("/api/queries").json() == []
    tab.goto(f"{server.url}/sql?saved=answer")
    expect(tab.get_by_role("alert")).to_contain_text("No query is saved as answer")
    assert tab.evaluate("window.evil") is None
    assert tab.faults == []
    tab.context.close()


def test_the_first_picture_of_a_result_shows_what_it_is_about(browser, served):
    """The steps across and one line for each of several, not the first columns that come."""
    server, _ = served
    tab = open_page(browser, server)
    rows = "(1, 'a', 1, 5e-1), (1, 'a', 2, 6e-1), (1, 'b', 1, 1e-1), (1, 'b', 2, 2e-1)"
    tab.goto(f"{server.url}/sql?sql=SELECT * FROM (VALUES {rows}) t(iteration, domain, step, p)")
    tab.get_by_role("button", name="Picture").click()
    expect(tab.get_by_role("img", name="p by step")).to_be_visible()
    expect(tab.get_by_label("one for each")).to_have_value("domain")
    expect(tab.get_by_label("Draw")).to_have_value("line")
    tab.goto(f"{server.url}/sql?sql=SELECT * FROM (VALUES ('slow', 3), ('late', 4)) t(reason, n)")
    tab.get_by_role("button", name="Picture").click()
    expect(tab.get_by_role("img", name="n by reason")).to_be_visible()
    expect(tab.get_by_label("Draw")).to_have_value("bar")
    tab.context.close()


def test_the_command_saves_and_asks_the_same_queries(ws):
    write_text(ws.params, "seed: 7\n")
    write_text(ws.root / "dvc.yaml", "")
    git_tags.init_git(ws.root)

    def typed(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["query", *words, "-w", str(ws.root)])
        return result.exit_code, " ".join(result.output.split())

    assert typed("SELECT 42 AS n", "--save", "answer", "--author", "Ada", "--description", "Why")[0] == 0
    assert typed("--saved", "answer", "--format", "csv") == (0, "n 42")
    assert json.loads(typed("--saved", "--format", "json")[1])[0]["description"] == "Why"
    for words, said in (
        (("SELECT 1", "--save", "answer", "--author", "Bo"), "is saved as answer already by ada"),
        (("SELECT 1", "--save", "other"), "the reviewer has no name"),
        (("SELCT 1", "--save", "other", "--author", "Bo"), "syntax error"),
        (("CREATE TABLE t (n INT)", "--save", "other", "--author", "Bo"), "create is no question"),
        (("--saved", "other"), "no query is saved as other"),
        (("SELECT 1", "--saved", "answer"), "Missing argument"),
        ((), "Missing argument"),
    ):
        code, output = typed(*words)
        assert (code, said in output) == (2, True), output
    git_tags.commit_workspace(ws, "kept")
    shown = subprocess.run(["git", "-C", ws.root, "show", "HEAD:queries/answer.sql"], capture_output=True, check=True)
    assert shown.stdout.endswith(b"\nSELECT 42 AS n\n")
    assert typed("--delete", "answer") == (0, "")
    git_tags.commit_workspace(ws, "gone")
    assert Workspace(ws.root).root.joinpath("queries").is_dir()
    assert subprocess.run(["git", "-C", ws.root, "status", "--short", "queries"], capture_output=True).stdout == b""

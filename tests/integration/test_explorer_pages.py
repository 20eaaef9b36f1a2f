"""The explorer's pages in a real browser: by mouse, by keys alone, wide and narrow, light and dark, as a reader hears
them."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from explorer_store import explorer, held_out, rollouts
from explorer_tabs import SIZES, open_page, serious
from night import by_day
from playwright.sync_api import Page, expect
from synthetic_rows import task, trajectory
from waiting import until

from flywheel.config.workspace import Workspace
from flywheel.store.partitions import write_partition
from flywheel.store.versioning import git_tags
from flywheel.utils import credentials
from flywheel.utils.files import write_text

PAGES = ["/iterations", "/trajectories", "/compare", "/compare?a=t1r0&b=t2r1", "/sql?sql=FROM+task_success"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    ws = Workspace(tmp_path_factory.mktemp("pages"))
    rollouts(ws, 1)
    rollouts(ws, 2)
    with explorer(ws) as (server, _):
        yield server


@pytest.fixture
def tab(browser, served):
    found = open_page(browser, served)
    yield found
    assert found.faults == []
    assert found.evaluate("window.evil") is None, "a script out of the data ran"
    found.context.close()


def rows(tab: Page):
    return tab.locator("[role=row][row-id]")


def test_the_bundle_was_built_from_these_sources(project):
    """`make explorer` builds it; whoever changes a source builds it anew."""
    web = project / "flywheel" / "ui" / "explorer" / "web"
    files = [path.relative_to(web).as_posix() for path in (web / "src").rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for name in sorted([*files, "build.mjs", "package-lock.json", "package.json", "tsconfig.json"]):
        digest.update(f"{name}\0".encode() + (web / name).read_bytes() + b"\0")
    built = json.loads((web.parent / "static" / "built.json").read_text(encoding="utf-8"))
    assert built["sources"] == digest.hexdigest(), "the bundle is older than its sources: `make explorer`"


@pytest.fixture(scope="module", params=SIZES)
def sized(browser, served, request):
    """A tab of a size that is logged in, in which one page after another is looked at."""
    width, height, scheme = request.param
    found = open_page(browser, served, width=width, height=height, scheme=scheme)
    yield found
    found.context.close()


@pytest.mark.parametrize("path", by_day([*PAGES, "/trajectories/t1r1?step=1", "/trajectories/none", "/nothing"], 3))
def test_each_page_fits_and_can_be_heard(sized, served, path):
    tab = sized
    tab.faults.clear()
    tab.goto(served.url + path)
    expect(tab.locator("main h1, main [role=alert]").first).to_be_visible()
    if path == "/trajectories":
        expect(tab.get_by_role("link", name="Buy mug 0").first).to_be_visible()
    if path == "/iterations":
        expect(tab.get_by_role("img", name="pass@k")).to_be_visible()
    if path.startswith("/sql"):
        expect(tab.get_by_role("gridcell", name="shop").first).to_be_visible()
    assert serious(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert tab.faults == []


def test_the_list_is_searched_filtered_and_shared_by_its_address(browser, served, tab):
    tab.goto(f"{served.url}/trajectories")
    expect(tab.get_by_text("12 in the store")).to_be_visible()
    tab.get_by_label("Search for").fill("mug 3")
    tab.get_by_label("Search in").select_option("instructions")
    tab.get_by_role("button", name="Search", exact=True).click()
    expect(tab.get_by_text("2 found", exact=True)).to_be_visible()
    tab.get_by_text("Filter by a column").click()
    tab.get_by_label("Column", exact=True).select_option("iteration")
    tab.get_by_label("Value").fill("2")
    tab.get_by_role("button", name="Add filter").click()
    expect(tab.get_by_text("1 found")).to_be_visible()
    other = open_page(browser, served)
    other.goto(tab.url)
    expect(other.get_by_text("1 found")).to_be_visible()
    expect(other.get_by_role("link", name="Buy mug 3")).to_be_visible()
    other.get_by_role("button", name="Remove the filter iteration is 2").click()
    expect(other.get_by_text("2 found", exact=True)).to_be_visible()
    other.go_back()
    expect(other.get_by_text("1 found")).to_be_visible()
    other.context.close()


@pytest.mark.exhaustive
def test_the_list_is_sorted_by_its_header(tab, served):
    tab.goto(f"{served.url}/trajectories")
    tab.get_by_role("columnheader", name="Instruction").click()
    expect(tab).to_have_url(re.compile("sort=instruction"))
    expect(rows(tab).first).to_contain_text("Buy mug 0")
    tab.get_by_role("columnheader", name="Instruction").click()
    expect(tab).to_have_url(re.compile("sort=-instruction"))
    expect(rows(tab).first).to_contain_text("Buy mug 5")


@pytest.mark.exhaustive
def test_what_is_wrong_in_an_address_is_said_in_the_page(tab, served):
    tab.goto(f"{served.url}/trajectories?where=wrld:is:x")
    expect(tab.get_by_role("alert")).to_contain_text("did you mean world?")
    tab.goto(f"{served.url}/trajectories?q=nowhere+to+be+found")
    expect(tab.get_by_text("Nothing in the store is like that.")).to_be_visible()
    tab.goto(f"{served.url}/trajectories/gone")
    expect(tab.get_by_role("alert")).to_contain_text("there is no trajectory gone here")


def test_a_trajectory_is_replayed_by_keys_alone(tab, served):
    tab.goto(f"{served.url}/trajectories")
    expect(tab.get_by_role("link", name="Buy mug 1").first).to_be_visible()
    cell = tab.get_by_role("gridcell").filter(has_text="Buy mug 1").first
    cell.focus()
    tab.keyboard.press("Enter")
    heading = tab.locator(".words h2")
    expect(heading).to_contain_text("Step 0 (1 of 4) click at")
    expect(tab.locator(".overlay circle.point")).to_have_count(1)
    tab.keyboard.press("ArrowRight")
    expect(heading).to_contain_text("type “<script>")
    expect(tab.locator(".overlay .badge text")).to_contain_text("type “<script>")
    tab.keyboard.press("End")
    expect(heading).to_contain_text("Step 3 (4 of 4) scroll down")
    expect(tab.get_by_text("The screen of this step is not here")).to_be_visible()
    expect(tab).to_have_url(re.compile(r"step=3$"))
    tab.keyboard.press("Home")
    tab.keyboard.press(" ")
    expect(heading).to_contain_text("Step 3")
    expect(tab.get_by_role("button", name="Play")).to_be_visible()
    tab.get_by_label("Step", exact=True).fill("2")
    expect(heading).to_contain_text("drag from 20%, 30%")
    expect(tab.locator(".overlay path.mark")).to_have_count(1)


@pytest.mark.exhaustive
def test_a_replay_tells_what_is_known(tab, served):
    tab.goto(f"{served.url}/trajectories/t1r1?step=1")
    expect(tab.locator(".words")).to_contain_text("I look for mug 1")
    expect(tab.locator(".tokens span")).to_have_text(["5", "6", "7"])
    expect(tab.locator(".tokens span").nth(2)).to_have_attribute("title", "40.7%, log-probability -0.900")
    expect(tab.locator("main")).to_contain_text("verified")
    tab.get_by_role("link", name="t1r0", exact=True).click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Buy mug 0")


def test_scripts_in_the_data_are_words(tab, served):
    tab.goto(f"{served.url}/trajectories?q=onerror")
    expect(tab.get_by_role("link", name="<script>window.evil = 1</script>").first).to_be_visible()
    tab.goto(f"{served.url}/trajectories/t1r5?step=1")
    expect(tab.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror='window.evil = 1'>")


@pytest.mark.exhaustive
def test_a_running_iteration_appears_without_reload(browser, ws):
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/trajectories")
        expect(tab.get_by_text("No trajectory has been written yet.")).to_be_visible()
        rollouts(ws, 1)
        expect(tab.get_by_role("link", name="Buy mug 0")).to_be_visible()
        expect(tab.get_by_text("6 in the store")).to_be_visible()
        assert tab.faults == []
        tab.context.close()


@pytest.mark.exhaustive
def test_iterations_are_laid_over_one_another_as_the_address_says(tab, served):
    tab.goto(f"{served.url}/iterations")
    one, two = tab.get_by_label("001"), tab.get_by_label("002")
    expect(two).to_be_checked()
    one.click()
    expect(tab).to_have_url(re.compile(r"of=2$"))
    expect(one).not_to_be_checked()
    tab.locator("figure", has=tab.get_by_role("img", name="pass@k")).get_by_text("The figures").click()
    expect(tab.get_by_role("region", name="Figures: pass@k").locator("tbody tr")).to_have_count(2)
    tab.reload()
    expect(one).not_to_be_checked()
    tab.get_by_role("row", name=re.compile("^002")).get_by_role("link", name="6").click()
    expect(tab.get_by_text("6 found")).to_be_visible()


@pytest.mark.exhaustive
def test_another_workspace_is_laid_over_this_one(browser, ws, tmp_path):
    (other := Workspace(tmp_path / "the other")).root.mkdir()
    rollouts(ws, 1)
    rollouts(other, 1)
    with explorer(ws, other) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/iterations")
        expect(tab.get_by_text("the other over them")).to_be_visible()
        tab.locator("figure", has=tab.get_by_role("img", name="pass@k")).get_by_text("The figures").click()
        rows = tab.get_by_role("region", name="Figures: pass@k").locator("tbody tr")
        expect(rows).to_have_count(4)
        expect(rows.filter(has_text="the other")).to_have_count(2)
        assert tab.faults == []
        tab.context.close()


@pytest.mark.exhaustive
def test_an_iteration_leads_to_its_run_its_data_docs_and_its_revision(browser, ws):
    rollouts(ws, 1)
    run = {"run_id": "0a<b>", "name": "iteration 001", "kind": "flow", "state": "Completed", "attempts": 1}
    write_partition(ws, "runs", 1, "runs", [run])
    write_text(ws.report / "docs" / "index.html", "<h1>docs</h1>")
    git_tags.init_git(ws.root)
    git_tags.tag_iteration(ws, 1)
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        expect(tab.get_by_role("row", name=re.compile("^001"))).to_contain_text("iteration 001")
        expect(tab.get_by_role("link", name="iteration 001")).to_have_count(0)  # nothing is served there
        server.beside.prefect, server.beside.report = "http://127.0.0.1:4200", "http://127.0.0.1:4201"
        tab.reload()
        run_page = "http://127.0.0.1:4200/runs/flow-run/0a%3Cb%3E"
        expect(tab.get_by_role("link", name="iteration 001")).to_have_attribute("href", run_page)
        docs = "http://127.0.0.1:4201/docs/index.html"
        expect(tab.get_by_role("link", name="Data docs")).to_have_attribute("href", docs)
        commit = git_tags.iteration_tags(ws)[0][1]
        expect(tab.get_by_title(f"commit {commit}: git checkout iteration-001 && dvc checkout")).to_be_visible()
        tab.goto(f"{server.url}/trajectories/t1r0")
        expect(tab.get_by_text("iteration-001")).to_be_visible()
        assert tab.faults == []
        tab.context.close()


@pytest.mark.exhaustive
def test_no_iteration_says_what_to_type(browser, ws):
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        expect(tab.get_by_text("No iteration has begun yet.")).to_be_visible()
        assert tab.faults == []
        tab.context.close()


@pytest.mark.exhaustive
def test_two_trajectories_are_compared_step_by_step(tab, served):
    tab.goto(f"{served.url}/trajectories/t1r1")
    tab.get_by_role("link", name="Compare with t1r0").click()
    headings = tab.locator(".two .words h2")
    expect(headings).to_contain_text(["click at", "click at"])
    tab.keyboard.press("ArrowRight")
    expect(headings).to_contain_text(["type “<script>", "type “<script>"])
    expect(tab).to_have_url(re.compile("a=t1r1&b=t1r0&at=1$"))
    tab.goto(f"{served.url}/compare?a=t1r1&b=gone")
    expect(tab.get_by_role("alert")).to_contain_text("there is no trajectory gone here")


@pytest.mark.exhaustive
def test_tasks_gained_and_lost_lead_to_their_episodes(browser, ws):
    held_out(ws)
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/compare")
        expect(tab.get_by_text("Gained: 1 task", exact=True)).to_be_visible()
        expect(tab.get_by_text("Lost: 0 tasks", exact=True)).to_be_visible()
        tab.get_by_role("link", name="Buy mug 0").click()
        expect(tab.locator(".two .pill").first).to_have_text("V = 0")
        expect(tab.locator(".two .words")).to_have_count(2)
        assert tab.faults == []
        tab.context.close()


def test_a_family_is_a_tree_that_leads_to_each_of_it(browser, ws):
    rollouts(ws, 1)
    made = {"source": "correction", "author": "solver", "parent_id": "t1r0", "start_step": 2, "steps": 6}
    write_partition(ws, "trajectories", 1, "correct", [trajectory("c0", task("k0", "sites", "shop"), **made)])
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/trajectories/t1r0")
        tree = tab.locator(".tree")
        expect(tree.locator("[aria-current]")).to_have_text("t1r0")
        expect(tree.get_by_role("listitem").nth(1)).to_contain_text("from step 2, correction, iteration 001, correct")
        assert serious(tab) == []
        tree.get_by_role("link", name="c0", exact=True).click()
        expect(tree.locator("[aria-current]")).to_have_text("c0")
        expect(tree.get_by_role("link", name="Compare with t1r0")).to_have_attribute("href", "/compare?a=c0&b=t1r0")
        assert tab.faults == []
        tab.context.close()


def test_a_query_is_written_completed_run_drawn_exported_and_shared(browser, tab, served):
    tab.goto(f"{served.url}/sql")
    editor = tab.get_by_role("textbox", name="SQL")
    editor.click()
    tab.keyboard.press("Control+a")
    tab.keyboard.type("SELECT world, level, samples FROM task_succ")
    tab.get_by_text("Tables and views", exact=True).click()
    expect(tab.locator("summary", has_text="task_success")).to_be_visible()  # what there is has come
    editor.focus()
    tab.keyboard.press("Control+Space")
    option = tab.get_by_role("option", name="task_success")
    expect(option).to_be_visible()

    def chosen() -> bool:
        """The editor heeds no click in the first moments of a list, since it may be meant for what was there before."""
        if option.is_visible():
            option.click()
        return "FROM task_success" in editor.inner_text()

    until(chosen, "the completion")
    tab.keyboard.press("Control+Enter")
    expect(tab.get_by_text("6 rows,")).to_be_visible()
    expect(tab.get_by_role("gridcell", name="settings").first).to_be_visible()
    tab.get_by_role("button", name="Picture").click()
    expect(tab.get_by_role("img", name="samples by world")).to_be_visible()
    tab.get_by_label("up").select_option("level")
    expect(tab.get_by_role("img", name="level by world")).to_be_visible()
    assert serious(tab) == []
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Export CSV").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0] == '"world","level","samples"'
    assert len(lines) == 7
    other = open_page(browser, served)
    other.goto(tab.url)
    expect(other.get_by_text("6 rows,")).to_be_visible()
    other.context.close()


@pytest.mark.exhaustive
def test_what_is_wrong_with_a_query_is_said_beside_it(tab, served):
    tab.goto(f"{served.url}/sql?sql=COPY+steps+TO+'/tmp/x.csv'")
    expect(tab.get_by_role("alert")).to_contain_text("copy is no question")
    tab.goto(f"{served.url}/sql?sql=SELECT+'<script>window.evil=1</script>'+AS+\"<b>x</b>\"")
    expect(tab.get_by_role("gridcell", name="<script>window.evil=1</script>")).to_be_visible()
    expect(tab.get_by_role("columnheader", name="<b>x</b>")).to_be_visible()
    tab.goto(f"{served.url}/sql?sql=EXPLAIN+FROM+tasks")
    expect(tab.get_by_text("How it would be answered")).to_be_visible()
    expect(tab.locator("pre.plan")).to_contain_text("PARQUET")
    tab.goto(f"{served.url}/sql?sql=FROM+quarantine")
    expect(tab.get_by_text("The query has an answer, and it has no rows.")).to_be_visible()


def test_whoever_is_not_let_in_gives_the_secret(browser, served):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(f"{served.url}/trajectories?q=mug")
    assert serious(tab) == []
    tab.get_by_label("Secret").fill("wrong")
    tab.get_by_role("button", name="Log in").click()
    expect(tab.get_by_role("alert")).to_have_text("That is not the secret of this workspace.")
    tab.get_by_label("Secret").fill(credentials.workspace_credentials(served.ws.state))
    tab.get_by_role("button", name="Log in").click()
    expect(tab.get_by_text("12 found")).to_be_visible()
    context.close()

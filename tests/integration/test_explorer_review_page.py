"""The explorer's page Review in a real browser: samples, agreement and promotions, by mouse and by keys alone."""

from __future__ import annotations

import re

import pytest
from explorer_store import SCRIPT, explorer, rollouts
from explorer_tabs import SIZES, open_page, serious
from night import by_day
from playwright.sync_api import Page, expect
from reviews import waiting

from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.store import labels
from flywheel.ui.explorer import review
from flywheel.ui.explorer.catalog_reader import CatalogReader

DRAWN = "/review?queue=random&iteration=1&seed=7"


@pytest.fixture
def served(ws):
    rollouts(ws, 1)
    waiting(ws, 3600)
    with explorer(ws) as (server, _):
        yield server


def reviewing(browser, served, name: str, path: str = DRAWN) -> Page:
    return as_reviewer(open_page(browser, served), served, name, path)


def as_reviewer(tab: Page, served, name: str, path: str) -> Page:
    tab.evaluate("name => localStorage.setItem('flywheel-reviewer', name)", name)
    tab.goto(served.url + path)
    return tab


def labelled(served, name: str, **said: str) -> None:
    for reviewer, label in said.items():
        review.save_review_label(
            CatalogReader(served.ws), review.LabelRequest(trajectory_id=name, label=label, reviewer=reviewer)
        )


def close(*tabs: Page) -> None:
    for tab in tabs:
        assert tab.faults == []
        assert tab.evaluate("window.evil") is None, "a script out of the data ran"
        tab.context.close()


def tab_to(tab: Page, name: str) -> None:
    """Press Tab until what has that name has the focus, as somebody does who sees no mouse."""
    for _ in range(60):
        tab.keyboard.press("Tab")
        # Past the page's last control the focus is on its body, whose text holds every name.
        focus = tab.evaluate(
            "(e => e === document.body ? '' : e.labels?.[0]?.innerText || e.innerText || e.ariaLabel || '')"
            "(document.activeElement)"
        )
        if name in focus:
            return
    pytest.fail(f"Tab does not come to {name}")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """As `served`, with labels; nobody says more."""
    ws = Workspace(tmp_path_factory.mktemp("shown"))
    rollouts(ws, 1)
    waiting(ws, 3600)
    with explorer(ws) as (server, _):
        labelled(server, "t1r0", ada="solved", bo="not solved")
        labelled(server, "t1r1", ada="solved", bo="solved")
        yield server


@pytest.fixture(scope="module", params=SIZES)
def sized(browser, shown, request):
    """A tab of a size that is logged in, in which one part after another is looked at."""
    width, height, scheme = request.param
    found = open_page(browser, shown, width=width, height=height, scheme=scheme)
    yield found
    close(found)


@pytest.mark.parametrize(
    ("reviewer", "path", "words"),
    by_day(
        [
            ("", "/review", "Who are you?"),
            ("ada", "/review", "Was the task solved"),
            ("ada", "/review?item=t1r0", "bo: not solved"),
            ("ada", "/review?queue=disagreement", "No two scorers disagree here"),
            ("ada", "/review?show=agreement", "Scorers beside people"),
            ("ada", "/review?show=promotions", "Promote the merged model"),
        ],
        2,
    ),
)
def test_each_part_fits_and_can_be_heard(sized, shown, reviewer, path, words):
    tab = as_reviewer(sized, shown, reviewer, path)
    expect(tab.get_by_text(words).first).to_be_visible()
    expect(tab.locator("main .loading")).to_have_count(0)
    assert serious(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert tab.faults == []


def test_a_queue_is_labelled_by_keys_alone(browser, served):
    tab = open_page(browser, served)
    tab.goto(served.url + DRAWN)
    expect(tab.get_by_label("Name")).to_be_visible()
    tab_to(tab, "Name")
    tab.keyboard.type("Ada Byron")
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("0 labelled by you, 6 open")).to_be_visible()
    asked = tab.locator("article h2").first
    expect(tab.locator(".words h2")).to_contain_text("Step 0 (1 of 4)")
    first = asked.inner_text()
    tab.keyboard.press("ArrowRight")
    expect(tab.locator(".words h2")).to_contain_text("Step 1 (2 of 4)")
    tab.keyboard.press("c")
    tab.keyboard.type("1 mug too many")
    tab.keyboard.press("Escape")
    tab.keyboard.press("2")
    expect(tab.get_by_text("Kept: not solved")).to_be_visible()
    expect(tab.get_by_text("You: not solved.")).to_be_visible()
    expect(tab.get_by_text("1 labelled by you, 5 open")).to_be_visible()
    tab.keyboard.press("n")
    expect(asked).not_to_have_text(first)
    expect(tab.get_by_text("Was the task solved")).to_be_visible()
    expect(tab.locator("article .notice")).to_have_count(0)
    (said,) = CatalogReader(served.ws).rows("FROM labels")
    assert (said["reviewer"], said["label"], said["comment"]) == ("ada byron", "not solved", "1 mug too many")
    close(tab)


def test_two_label_an_item_blind_and_a_third_decides(browser, served):
    ada, bo = (reviewing(browser, served, name, f"{DRAWN}&item=t1r1") for name in ("ada", "bo"))
    for tab, label in ((ada, "1 Solved"), (bo, "2 Not solved")):
        bar = tab.get_by_role("region", name="Your label")
        expect(tab.get_by_text("shown when you have said what you see")).to_be_visible()
        assert "verified" not in tab.locator("article").inner_text()
        bar.get_by_role("button", name=label).click()
        if tab is bo:  # who has looked at it since before ada's label
            expect(bar.get_by_role("alert")).to_contain_text("ada labelled this sample while you looked at it")
            expect(bar.get_by_text("ada labelled it already.")).to_be_visible()
            bar.get_by_role("button", name=label).click()
        expect(bar.get_by_text("Kept: ")).to_be_visible()
    expect(bo.get_by_text("ada: solved.")).to_be_visible()
    expect(bo.get_by_text("you: not solved, to decide")).to_be_visible()
    eve = reviewing(browser, served, "eve", "/review?queue=decide")
    eve.get_by_role("button", name="Not solved").click()
    expect(eve.get_by_text("ada: solved. bo: not solved.")).to_be_visible()
    eve.get_by_role("link", name="Agreement").click()
    expect(eve.get_by_role("region", name="Agreement of reviewers")).to_contain_text("ada, bo")
    expect(eve.get_by_text("decided", exact=True)).to_be_visible()
    close(ada, bo, eve)


def test_samples_are_taken_given_and_released_by_keys(browser, served):
    ada = reviewing(browser, served, "ada", f"{DRAWN}&item=t1r1")
    expect(ada.get_by_text("Was the task solved")).to_be_visible()
    ada.keyboard.press("t")
    expect(ada.get_by_text("It is yours to label.")).to_be_visible()
    bo = reviewing(browser, served, "bo", f"{DRAWN}&item=t1r1")
    expect(bo.get_by_text("ada is to label it: go on, or take it over.")).to_be_visible()
    expect(bo.get_by_role("button", name="1 Solved")).to_be_disabled()
    bo.get_by_text("Share them out").click()
    bo.get_by_label("How many").first.fill("2")
    bo.get_by_role("button", name="Give the next of nobody").click()
    expect(bo.get_by_text("2 samples: bo")).to_be_visible()
    bo.get_by_label("Whose").select_option("mine")
    expect(bo.get_by_text("0 labelled by you, 2 open")).to_be_visible()
    bo.get_by_label("go on after a label").check()
    expect(bo.get_by_text("Was the task solved")).to_be_visible()
    bo.keyboard.press("1")  # one key a sample: the next is there
    expect(bo.get_by_text("0 labelled by you, 1 open")).to_be_visible()
    expect(bo.get_by_text("Was the task solved")).to_be_visible()
    bo.keyboard.press("1")
    expect(bo.get_by_text("Kept: solved")).to_be_visible()
    ada.keyboard.press("t")
    expect(ada.get_by_text("It is nobody’s now.")).to_be_visible()
    assert labels.read_sample_owners(served.ws) == {}
    close(ada, bo)


@pytest.mark.exhaustive
def test_what_people_write_is_words(browser, served):
    bo = reviewing(browser, served, "bo", f"{DRAWN}&item=t1r1")
    bo.get_by_label("Comment").fill(SCRIPT)
    bo.get_by_role("button", name="Cannot tell").click()
    expect(bo.get_by_text("Kept: ")).to_be_visible()
    ada = reviewing(browser, served, "ada", f"{DRAWN}&item=t1r1")
    expect(ada.get_by_text("Was the task solved")).to_be_visible()
    ada.keyboard.press("1")
    expect(ada.get_by_text(f"bo: cannot tell (“{SCRIPT}”).")).to_be_visible()
    other = reviewing(browser, served, "<b>x</b>")
    expect(other.get_by_role("alert")).to_contain_text("no name of a reviewer: '<b>x</b>'")
    other.get_by_role("button", name="Change your name").click()
    other.get_by_label("Name").fill("../../x")
    other.get_by_role("button", name="Begin").click()
    assert other.get_by_label("Name").evaluate("field => field.validity.customError")
    assert {path.name for path in labels.labels_folder(served.ws).iterdir()} == {"bo.jsonl", "ada.jsonl"}
    close(bo, ada, other)


@pytest.mark.exhaustive
def test_a_label_of_a_megabyte_is_refused_in_the_page(browser, served):
    tab = reviewing(browser, served, "ada", f"{DRAWN}&item=t1r1")
    field = tab.get_by_label("Comment")
    for size, said in ((2**20, "a request may have 256 KiB"), (2001, "a comment may have 2,000 characters")):
        # As by a page of one's own: this one's field takes no more than it may.
        field.evaluate(
            "(f, n) => { f.value = 'x'.repeat(n); f.dispatchEvent(new Event('input', {bubbles: true})) }", size
        )
        tab.get_by_role("button", name="Not solved").click()
        expect(tab.get_by_role("alert")).to_contain_text(said)
    assert not labels.labels_folder(served.ws).exists()
    field.fill("short")
    tab.get_by_role("button", name="Not solved").click()
    expect(tab.get_by_text("Kept: not solved")).to_be_visible()
    close(tab)


@pytest.mark.exhaustive
def test_an_item_that_is_gone_says_so_and_the_queue_goes_on(browser, served):
    tab = reviewing(browser, served, "ada", f"{DRAWN}&item=gone")
    expect(tab.get_by_role("alert")).to_contain_text("there is no trajectory gone here")
    tab.get_by_role("list", name="6 samples").get_by_role("button").first.click()
    expect(tab.get_by_text("Was the task solved")).to_be_visible()
    expect(tab.get_by_role("alert")).to_have_count(0)
    close(tab)


def test_a_promotion_is_decided_from_the_page(browser, served):
    tab = reviewing(browser, served, "ada", "/review")
    tab.get_by_role("link", name="Decisions 1 waiting").click()
    expect(tab.get_by_role("region", name="Differences")).to_contain_text("−0.10 to +0.60")
    tab.get_by_label("Why").fill(f"n is small {SCRIPT}")
    tab.get_by_role("button", name="Promote the new model").click()
    assert promotion_review.read_review(served.ws, 1) is None, "it is asked once more"
    tab.get_by_role("button", name="Yes, decide").click()
    expect(tab.get_by_text("ada said: promote")).to_be_visible()
    expect(tab.get_by_text(f"“n is small {SCRIPT}”")).to_be_visible()
    tab_to(tab, "Keep the old model")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("ada said: keep the old model")).to_be_visible()
    expect(tab.get_by_text(re.compile("Before: ada, promote"))).to_be_visible()
    assert [one.promote for one in promotion_review.read_review(served.ws, 1).history] == [True, False]
    close(tab)

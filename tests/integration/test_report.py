"""The report: self-contained, complete, and true to the tables; what is drawn on a screen is what was done."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic
from rich.console import Console

from flywheel.cli import console as cli_console
from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES
from flywheel.synthesis.funnel import Funnel, FunnelStage, write_funnel
from flywheel.ui.report import charts, figures, pages, replay
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements nest, and gathers what the page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.ids: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.ids |= {value for name, value in attrs if name == "id"}
        self.refers += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.refers += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_worlds_and_rises_are_told_as_the_views_say(ws):
    with database.connect_catalog(ws) as connection:
        lists = figures.query_report_lists(connection)
        newest = database.query_rows(connection, "FROM template_success WHERE iteration = 2")
    told, rises = lists["worlds"], lists["rises"]
    assert sum(row["tasks"] for row in told) == sum(row["tasks"] for row in newest) > 0
    for row in told:
        own = [one for one in newest if one["world"] == row["world"]]
        for name in ("pass_1", "pass_k"):
            mean = sum(one[name] * one["tasks"] for one in own) / sum(one["tasks"] for one in own)
            assert row[name] == pytest.approx(mean)
        assert row["mixed"] == sum(one["mixed"] for one in own)
        assert row["invalid_step_fraction"] == pytest.approx(
            sum(one["invalid_steps"] for one in own) / sum(one["steps"] for one in own)
        )
    assert [row["iteration"] for row in rises] == [2]


def test_headroom_is_told_as_the_view_says_and_what_follows(ws, report, monkeypatch):
    with database.connect_catalog(ws) as connection:
        view = database.query_rows(connection, "FROM headroom")
        found = figures.query_headroom(connection)
        domains = [row for row in view if row["world"] is None]
        templates = [row for row in view if row["world"] is not None and row["iteration"] == 2]
        assert found["domains"] == domains
        shown = found["most"] + found["least"]
        assert [row["headroom"] for row in shown] == sorted((row["headroom"] for row in templates), reverse=True)
        assert figures.query_headroom(connection, 2) == {"domains": [], "poor": [], "most": [], "least": []}
        monkeypatch.setattr(figures, "_TEMPLATES_SHOWN", 1)
        few = figures.query_headroom(connection)
        assert few["most"] + few["least"] == [shown[0], shown[-1]]
    for row in domains:
        assert f"{row['headroom']:.2f} {row['headroom_low']:.2f} to {row['headroom_high']:.2f}" in report.text
    poor = [row["domain"] for row in domains if row["iteration"] == 2 and row["live_groups"] < 0.3]
    assert [row["domain"] for row in found["poor"]] == poor


def test_a_domain_in_which_rl_has_little_to_learn_from_is_told_what_helps(tmp_path):
    """Of games every sample succeeds, of sites none does."""
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=4, samples=3)
    domain_of = {
        row["trajectory_id"]: row["domain"]
        for row in partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    }
    scores = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    for row in scores:
        row["success"] = domain_of[row["trajectory_id"]] == "games"
        row["score"] = float(row["success"])
    partitions.write_partition(ws, "scores", 1, "score", scores)
    synthetic.routed(ws, settings, 1)
    text = Page(pages.write_report(ws).read_text()).text
    assert "games : RL has little to learn from here. Most samples succeed: harder tasks help" in text
    assert "sites : RL has little to learn from here. Most samples fail: easier tasks help" in text
    assert "all : RL has little" not in text


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("report"))
    for k in (1, 2):
        synthetic.incoming(ws, settings, k, tasks=5, samples=3)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
    return ws


@pytest.fixture(scope="module")
def report(ws) -> Page:
    return Page(pages.write_report(ws).read_text())


def test_it_needs_nothing_but_itself(ws, report):
    known = ("data:image/png;base64,", "#")
    assert all(ref.startswith(known) or ref == "docs/index.html" for ref in report.refers)
    style = re.search(r"<style>(.*?)</style>", (ws.report / "index.html").read_text(), re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style
    assert (ws.report / "docs" / "index.html").exists()


def test_each_part_is_linked_from_the_top(report):
    """In their order, each once; the page has some thousand pixels."""
    linked = [ref[1:] for ref in report.refers if ref.startswith("#")]
    assert len(linked) == len(set(linked)) >= 9
    assert set(linked) <= report.ids
    assert linked.index("iterations") < linked.index("training") < linked.index("lineage")


def test_it_holds_every_part(report):
    assert report.ids >= {
        "iterations",
        "funnel",
        "progress",
        "headroom",
        "training",
        "recordings",
        "trajectories",
        "quarantine",
        "minutes",
        "lineage",
    }


def test_its_figures_are_those_of_the_tables(ws, report):
    for row in database.query_catalog(ws, "FROM iterations").to_pylist():
        assert f"{100 * row['p_v1']:.0f}% {100 * row['p_v1_low']:.0f}% to {100 * row['p_v1_high']:.0f}%" in report.text
    assert "20% → 40%" in report.text
    assert "50% → 75%" in report.text
    assert "um so i click the uh add button" in report.text
    assert "I click the Add button." in report.text
    assert "status invalid: audio.wav is cut off" in report.text
    assert "the newest is models/iteration=002/merged" in report.text


def test_the_headline_is_the_newest_model_s_and_a_refused_candidate_is_told_apart(tmp_path):
    """Iteration 3 of `synthetic` is not promoted."""
    ws, settings = synthetic.workspace(tmp_path / "ws")
    for k in (1, 2, 3):
        synthetic.incoming(ws, settings, k, tasks=2, samples=2)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
    rows = partitions.read_partition(ws, "metrics", 3, "evaluate").to_pylist()
    better = [row | {"value": 0.95} if row["name"] == "success_after" else row for row in rows]
    partitions.write_partition(ws, "metrics", 3, "evaluate", better)
    text = Page(pages.write_report(ws).read_text()).text
    sql = "FROM held_out_success WHERE domain = 'sites' ORDER BY iteration"
    first, _, refused = database.query_catalog(ws, sql).to_pylist()
    assert refused["before"] != refused["after"]
    share = "{:.0%}".format
    headline = f"Held-out success, sites {share(first['before'])} → {share(refused['before'])} "
    headline += f"95%: {share(refused['before_low'])} to {share(refused['before_high'])}. "
    assert headline + f"The model of iteration 003: {share(refused['after'])}, not promoted" in text
    assert "the newest is models/iteration=002/merged" in text


def test_five_trajectories_of_different_kinds(ws):
    with database.connect_catalog(ws) as connection:
        shown = figures.pick_replays(connection, ["games", "sites"])
    assert len(shown) == 5
    assert len({one.trajectory_id for _, one in shown}) == 5
    assert {one.facts["destination"] for _, one in shown} == {"sft", "ct", None}
    assert {one.facts["source"] for _, one in shown} == {"rollout", "recording"}
    assert all(frame.screen.startswith("data:image/png") for _, one in shown for frame in one.frames)


def test_lineage_goes_back_to_the_base_model(ws):
    with database.connect_catalog(ws) as connection:
        turns = figures.query_model_lineage(connection)
    paths = [[sorted(node["path"] for node in rank) for rank in turn] for turn in turns]
    one, two = "models/iteration=001", "models/iteration=002"
    assert paths == [
        [["models/base"]],
        *([[f"{k}/ct"], [f"{k}/sft"], [f"{k}/rl-games", f"{k}/rl-sites"], [f"{k}/merged"]] for k in (one, two)),
    ]
    sft = turns[2][1][0]
    assert sft["drew"] == ["sft@001", "sft@002"]
    assert sft["trained"] == database.query_catalog(ws, "FROM sft").num_rows


def test_what_peoples_time_brings_and_how_far_reviewers_agree(tmp_path):
    ws, chosen = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, chosen, 1)
    synthetic.routed(ws, chosen, 1)
    assert "What people" in pages.write_report(ws).read_text()
    said = {"subject": "000-a", "iteration": 0, "sha256": "s", "correct": True, "complete": True, "comment": ""}
    for reviewer, safe in (("ada", True), ("bo", False)):
        line = said | {"safe": safe, "reviewer": reviewer, "at": "2026-01-01T00:00:00+00:00"}
        write_text(ws.root / "reviews" / "recordings" / f"{reviewer}.jsonl", json.dumps(line) + "\n")
    told = pages.write_report(ws).read_text()
    (work,) = database.query_catalog(ws, "FROM people_minutes WHERE work = 'recording'").to_pylist()
    assert f'data-label="Trajectories">{work["trajectories"]}</td>' in told
    assert '<th class="left">safe</th><td data-label="Compared">1</td><td data-label="Alike">0%</td>' in told
    assert '<span class="interval">not known</span>' in told
    write_text(ws.root / "reviews" / "recordings" / "cy.jsonl", "{\n")
    told = pages.write_report(ws).read_text()
    assert "a verdict cannot be read" in told, "that does not cost an iteration its report"
    assert "reviews/recordings/cy.jsonl" in told


def test_an_empty_workspace_says_what_to_type(tmp_path):
    ws, _ = synthetic.workspace(tmp_path)
    told = Page(pages.write_report(ws).read_text())
    assert "Nothing has run yet" in told.text
    assert "flywheel run" in told.text
    assert cli_console.build_summary_tables(ws, 80)[0].row_count == 0


def test_a_turn_under_way_is_shown_as_far_as_it_is(tmp_path):
    ws, settings = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, settings, 1, tasks=3, samples=2)
    told = Page(pages.write_report(ws).read_text())
    assert "1 iteration of the flywheel" in told.text
    assert "not conserved" not in told.text, "what is not yet routed is not lost"
    assert cli_console.build_summary_tables(ws, 80)[0].row_count == 1


def test_text_from_data_is_escaped(ws, tmp_path):
    evil = Workspace(Path(shutil.copytree(ws.root, tmp_path / "ws")))
    rows = partitions.read_partition(evil, "steps", 2, "rollout").to_pylist()
    for row in rows:
        row |= {
            "thought": "<script>alert(1)</script>",
            "action": "type(content='<b>\"')",
            "action_type": "type",
            "x": None,
        }
    partitions.write_partition(evil, "steps", 2, "rollout", rows)
    text = pages.write_report(evil).read_text()
    Page(text)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_one_trajectory_has_a_page_of_its_own(ws):
    (row,) = database.query_catalog(
        ws, "FROM trajectory_lineage WHERE destination = 'sft' ORDER BY trajectory_id LIMIT 1"
    ).to_pylist()
    path = pages.write_trajectory_page(ws, row["trajectory_id"])
    told = Page(path.read_text())
    assert path.parent == ws.report / "trajectories"
    assert f"{row['steps']} steps" in told.text
    assert row["reason"] in told.text
    assert row["trained_checkpoints"][0] in told.text
    assert len([ref for ref in told.refers if ref.startswith("data:image/")]) == row["steps"]


def test_a_trajectory_page_ends_in_the_screen_after_the_last_action(ws, tmp_path):
    own = Workspace(tmp_path / "own")
    shutil.copytree(ws.root, own.root)
    rows = partitions.read_partition(own, "trajectories", 2, "rollout").to_pylist()
    image = partitions.read_partition(own, "images", 2, "rollout").to_pylist()[0]
    for row, sha256 in zip(rows, (image["sha256"], "f" * 64), strict=False):  # the second is not stored
        row["final_image_sha256"] = sha256
    partitions.write_partition(own, "trajectories", 2, "rollout", rows)
    (shown, steps), (lost, _) = [
        (pages.write_trajectory_page(own, row["trajectory_id"]).read_text(), row["steps"]) for row in rows[:2]
    ]
    screen = "data:image/png;base64," + base64.b64encode(image["bytes"]).decode()
    refers = [ref for ref in Page(shown).refers if ref.startswith("data:image/")]
    assert (len(refers), refers[-1]) == (steps + 1, screen)
    assert f"{steps} step" in Page(shown).text
    assert "after the last action" not in Page(lost).text


def test_what_was_hardly_understood_is_shown_so(ws):
    told = Page(pages.write_trajectory_page(ws, "r10").read_text())
    assert "hardly understood, not learned from: “um so i click the uh add button (0.55)”" in told.text
    assert told.text.count("said: “um so i click the uh add button”") == 2


def test_the_page_of_an_annotated_trajectory_says_whose_each_step_is(ws, tmp_path):
    own = Workspace(Path(shutil.copytree(ws.root, tmp_path / "own")))
    rows = partitions.read_partition(own, "steps", 2, "rollout").to_pylist()
    name = max((row["trajectory_id"] for row in rows), key=[row["trajectory_id"] for row in rows].count)
    mine = [row for row in rows if row["trajectory_id"] == name]
    assert len(mine) > 2
    plain = Page(pages.write_trajectory_page(own, name).read_text()).text
    assert "the model alone" not in plain  # all steps are one's: nothing is said of each
    mine[0]["author"] = "human"
    kept = dict.fromkeys(TABLES["candidates"].names)
    kept |= {"trajectory_id": name, "step": mine[1]["step"], "candidate": 0, "decision": "accepted", "annotator": "ada"}
    partitions.write_partition(own, "steps", 2, "rollout", rows)
    partitions.write_partition(own, "candidates", 2, "ingest", [kept])
    told = Page(pages.write_trajectory_page(own, name).read_text()).text
    said = re.findall("by a person|the model's, accepted by ada|the model alone", told)
    assert said == ["by a person", "the model's, accepted by ada", *["the model alone"] * (len(mine) - 2)]


def test_an_unknown_trajectory_is_bad_input(ws):
    with pytest.raises(BadInput, match=r"no trajectory \.\./t-nothing .*such as e2"):
        pages.write_trajectory_page(ws, "../t-nothing")


_ROW = {
    "iteration": 12,
    "tasks": 180,
    "trajectories": 1440,
    "recordings": 24,
    "p_v1": 0.25,
    "to_sft": 360,
    "to_ct": 1100,
    "to_quarantine": 4,
    "promoted": False,
    "minutes": 10.5,
}


def test_the_last_screen_has_a_row_an_iteration(ws):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*cli_console.build_summary_tables(ws, console.width), sep="\n")
    lines = [line for line in console.export_text().splitlines() if re.match(r"\s+00\d", line)]
    assert len(lines) == 2
    assert lines[0].split()[8:11] == ["0.20→0.40", "0.25→0.50", "yes"]


def test_more_domains_than_fit_a_line_have_a_table_of_their_own(ws, monkeypatch):
    names = ("control", "dials", "games", "phones", "sites")
    success = {name: {"before": 0.25, "after": 0.5} for name in names}
    (row,) = [{**_ROW, "held_out_success": success}]
    monkeypatch.setattr(figures, "query_report_iterations", lambda connection: [row])
    counts, by_domain = cli_console.build_summary_tables(ws, 80)
    assert [column.header for column in by_domain.columns] == ["iter", *names]
    (whole,) = cli_console.build_summary_tables(ws, 120)
    assert [column.header for column in whole.columns] == [
        *(column.header for column in counts.columns[:8]),
        *names,
        "prom",
        "min",
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(counts, by_domain, sep="\n")
    assert "…" not in console.export_text()


def test_the_last_screen_cuts_nothing_off_with_the_domains_of_the_main_job(ws, monkeypatch):
    success = {name: {"before": 0.25, "after": 0.5} for name in ("control", "games", "sites")}
    rows = [{**_ROW, "held_out_success": success}]
    monkeypatch.setattr(figures, "query_report_iterations", lambda connection: rows)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*cli_console.build_summary_tables(ws, console.width), sep="\n")
    assert console.export_text().splitlines()[-1].split() == [
        "012",
        "180",
        "1440",
        "24",
        "0.25",
        "360",
        "1100",
        "4",
        *["0.25→0.50"] * 3,
        "no",
        "10.5",
    ]


def row(kind: str | None, action: str = "", **points: float) -> dict:
    return {
        "action_type": kind,
        "action": action,
        "parse_error": None if kind else "no call",
        "x": None,
        "y": None,
        "x2": None,
        "y2": None,
        **points,
    }


@pytest.mark.parametrize(
    ("step", "words", "drawn"),
    [
        (row("click", x=0.25, y=0.5), "click at 25%, 50%", '<circle cx="50.0" cy="50.0"'),
        (row("drag", x=0.1, y=0.2, x2=0.5, y2=0.6), "drag from 10%, 20% to 50%, 60%", "M20.0 20.0L100.0 60.0"),
        (row("scroll", "scroll(point='', direction='up')", x=0.5, y=0.5), "scroll up", "M100.0 68.0L100.0 32.0"),
        (row("type", "type(content='it\\'s\\n')"), "type “it's ⏎”", "type “it&#x27;s ⏎”</text>"),
        (row("hotkey", "hotkey(key='ctrl shift t')"), "hotkey ctrl + shift + t", ">hotkey ctrl + shift + t</text>"),
        (row("wait", "wait()"), "wait", ">wait</text>"),
        (row(None), "no action", 'class="badge bad"'),
    ],
)
def test_what_was_done_is_drawn(step, words, drawn):
    assert replay.describe_action(step) == words
    assert drawn in replay.draw_action_overlay(step, 200, 100)


def test_a_badge_stays_on_the_screen():
    long = row("type", f"type(content='{'very long ' * 20}')")
    box = re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', replay.draw_action_overlay(long, 200, 100))
    left, width = float(box.group(1)), float(box.group(2))
    assert left >= 0
    assert left + width <= 200


def test_a_line_chart_puts_values_where_they_belong():
    svg = charts.draw_lines([charts.ChartSeries("loss", "tone-ct", ((0, 0.0), (1, 1.0), (2, 0.5)))], title="loss")
    points = [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]+)"', svg).group(1).split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 > y2 > y1, "higher values lie higher"
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.11)


def test_constant_and_single_values_are_drawn():
    assert "NaN" not in charts.draw_lines([charts.ChartSeries("a", "tone-ct", ((0, 3.0), (1, 3.0)))], title="flat")
    assert "circle" in charts.draw_lines([charts.ChartSeries("a", "tone-ct", ((4, 3.0),))], title="one")
    assert charts.draw_lines([], title="none") == ""


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_one_step_is_named_once_and_zeros_that_cannot_fall_have_no_axis_below():
    svg = charts.draw_lines(
        [charts.ChartSeries("a", "tone-ct", ((1, 0.0),))], title="one", x_label="PPO step", zero=True
    )
    assert [text for text in texts(svg) if "step" in text] == ["PPO step 1"]
    assert not [text for text in texts(svg) if text.startswith("-")]


def test_an_interval_is_drawn_around_its_value():
    svg = charts.draw_intervals([("001", [("tone-games", charts.ChartMark(0.5, 0.25, 0.75, "half"))])], title="p")
    top, foot = map(float, re.search(r'class="whisker [^"]*" d="M[\d.]+ ([\d.]+)V([\d.]+)', svg).groups())
    middle = float(re.search(r'class="dot [^"]*" cx="[\d.]+" cy="([\d.]+)"', svg).group(1))
    assert top < middle < foot
    assert middle == pytest.approx((top + foot) / 2, abs=0.11)


def test_how_tasks_were_made_and_why_they_were_drawn(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=6, samples=2)
    assert 'id="made"' not in pages.write_report(ws).read_text()
    assert "synthesis.refresh" not in pages.write_report(ws).read_text()

    stage = FunnelStage(name="one answer", taken=40, left=25, discarded={"two <answers>": 15})
    write_funnel(ws.root / "made", Funnel(source="questions", made_from="a folder", seed=3, stages=(stage,)))
    (ws.root / "broken").mkdir()
    (ws.root / "broken/funnel.json").write_text("{")
    ws.params.write_text("seed: 7\nsynthesis:\n  manifests: [made, broken, made/page.yaml]\n")
    rows = database.query_catalog(ws, "FROM tasks WHERE split = 'train' AND stage = 'synthesize'").to_pylist()
    whole = [{name: row[name] for name in TABLES["tasks"].names} for row in rows]
    reasons = ["weak", "weak", "mixed"]
    drawn = [row | {"drawn_for": why} for row, why in zip(whole, [*reasons, *["even"] * 3], strict=True)]
    partitions.write_partition(ws, "tasks", 1, "synthesize", drawn)
    text = Page(pages.write_report(ws).read_text()).text
    assert "questions, of a folder made, seed 3 Stage Taken Left Discarded one answer 40 25 15 two <answers>" in text
    assert "not a funnel" in text
    assert [word for word in ("001 weak 2 0 –", "001 mixed 1 0 –", "001 even 3 0 –") if word not in text] == []

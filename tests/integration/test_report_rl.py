"""What a reviewer sees of RL: every figure that was measured has its curve, and the tasks sampled less are named."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree

import pytest
import synthetic
import synthetic_rows

from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import ALL_DOMAINS
from flywheel.ui.report import charts, pages
from flywheel.ui.report.charts import Chart, ChartSeries, draw_chart_sheet, draw_lines, tone_class

SVG = "{http://www.w3.org/2000/svg}"


def rows(domain: str, k: int = 1, steps: int = 8) -> list[dict]:
    found = synthetic_rows.rl_metrics(domain, k, random.Random(k), steps)
    return [{"domain": ALL_DOMAINS, "step": 0, "iteration": k, **row} for row in found]


def test_each_figure_asked_for_has_a_chart_with_a_line_a_domain():
    drawn = {chart.title: chart for chart in charts.draw_rl_panels([*rows("games"), *rows("sites")])}
    assert set(drawn) == {panel.title for panel in charts.rl_panels()}
    assert drawn["Entropy"].legend == (("games", "tone-games"), ("sites", "tone-sites"))
    assert drawn["Entropy"].svg.count("<polyline") == 2
    lengths = drawn["Lengths: consumed and in flight"]
    assert lengths.svg.count('dashed"') == 2  # in flight
    assert [name for name, _ in lengths.legend] == ["games", "sites", "consumed", "in flight"]


def test_what_was_not_measured_has_none_and_a_single_figure_is_no_curve():
    assert charts.draw_rl_panels([]) == []
    found = charts.draw_rl_panels([{"domain": "games", "name": "success", "step": 0, "value": 0.5}])
    assert found == []
    holes = [{"domain": "games", "name": "kl", "step": n, "value": value} for n, value in enumerate((0.1, None, 0.3))]
    (chart,) = charts.draw_rl_panels(holes)
    assert re.search(r'points="([^"]*)"', chart.svg).group(1).count(",") == 2


def test_the_value_model_begins_with_what_pretraining_reached():
    chart = next(chart for chart in charts.draw_rl_panels(rows("games")) if chart.title == "Explained variance")
    points = re.search(r'points="([^"]*)"', chart.svg).group(1).split()
    assert len(points) == 9  # eight steps, and step 0


def test_an_older_iteration_is_faint_and_long_curves_are_smoothed():
    success = charts.draw_rl_panels([*rows("games", 1), *rows("games", 2)])[0].svg
    assert success.count("faint") == 1
    long = charts.draw_rl_panels(rows("games", 1, steps=60))[0].svg
    assert long.count("<polyline") == 2  # the mean of neighbours, and behind it the values
    assert long.count("faint") == 1


def test_a_small_chart_a_world_says_how_far_it_came():
    drawn = charts.draw_world_success(rows("games"))
    assert [chart.title for chart in drawn] == sorted(synthetic_rows.WORLDS["games"])
    assert all(re.fullmatch(r"\d+% → \d+%", chart.note) for chart in drawn)


def test_the_sheet_is_one_svg_that_needs_nothing_else():
    text = charts.draw_rl_sheet([*rows("games"), *rows("sites")], "rl <games> & more")
    root = ElementTree.fromstring(text)
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "rl <games> & more" in words
    assert {panel.title for panel in charts.rl_panels()} <= set(words)
    assert "href" not in text
    assert "url(" not in text
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.findall(f"{SVG}rect")[1:]:  # every card lies inside
        assert float(box.get("x")) + float(box.get("width")) <= width
        assert float(box.get("y")) + float(box.get("height")) <= height


def test_a_legend_that_is_too_wide_goes_on_below():
    names = ["full", "no-value-pretraining", "fixed-lambda", "no-clip-higher", "grpo"]
    drawn = draw_lines([ChartSeries("a", "tone-one", ((0.861, 1.0), (20.48, 2.0)))], title="t", x_label="minutes")
    chart = Chart("t", "", drawn, tuple((name, "tone-one") for name in names))
    root = ElementTree.fromstring(draw_chart_sheet([chart], [], "one", columns=1))
    card = root.find(f"{SVG}rect[@class='card']")
    right, foot = (float(card.get(at)) + float(card.get(size)) for at, size in (("x", "width"), ("y", "height")))
    keys = [element for element in root.iter(f"{SVG}text") if element.text in names]
    assert [key.text for key in keys] == names
    assert len({key.get("y") for key in keys}) == 2
    assert all(float(key.get("x")) + 6.4 * len(key.text) <= right for key in keys)
    assert all(float(key.get("y")) < foot for key in keys)
    assert {"0.9", "20.5"} <= {element.text for element in root.iter(f"{SVG}text")}


def test_an_axis_that_begins_at_zero():
    svg = draw_lines([ChartSeries("a", tone_class("games"), ((0, 3.0), (1, 3.2)))], title="t", zero=True)
    assert ">0</text>" in svg


@pytest.fixture(scope="module")
def ws(tmp_path_factory):
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("rl"))
    synthetic.incoming(ws, settings, 1, tasks=6, samples=1)
    for domain in ("games", "sites"):
        partitions.write_partition(
            ws, "metrics", 1, f"rl-{domain}", synthetic_rows.rl_metrics(domain, 1, random.Random(1))
        )
        partitions.write_partition(ws, "curriculum", 1, f"rl-{domain}", synthetic_rows.rl_curriculum(domain, 1))
    return ws


def test_the_report_names_the_tasks_sampled_less(ws):
    text = pages.write_report(ws).read_text(encoding="utf-8")
    assert "4 of 6 tasks are sampled less: 1 always solved, 1 level not reached, 2 never solved" in text
    assert text.count("never solved</td>") == 4
    for panel in charts.rl_panels():
        assert f"<h3>{panel.title}</h3>" in text


def test_the_funnel_and_a_view_say_so_in_sql(ws):
    funnel = {
        row["name"]: row["rows"] for row in database.query_catalog(ws, "FROM funnel WHERE iteration = 1").to_pylist()
    }
    assert (funnel["rl_tasks"], funnel["rl_sampled_less"]) == (12, 8)
    less = database.query_catalog(ws, "FROM downsampled_tasks WHERE stage = 'rl-games'").to_pylist()
    assert {row["reason"] for row in less} == {"always solved", "never solved", "level not reached"}
    always = next(row for row in less if row["reason"] == "always solved")
    assert (always["success_rate"], always["groups"], round(always["relative_prob"], 2)) == (1.0, 3, 0.6)
    assert always["instruction"]


def test_a_rise_of_the_variance_within_groups_stands_beside_the_curves(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=6, samples=1)
    curve = [0.1] * 12 + [0.22] * 4
    for domain, scorer in (("games", "verifier"), ("sites", "judge")):
        found = [{"name": "group_variance", "domain": domain, "step": n, "value": v} for n, v in enumerate(curve, 1)]
        partitions.write_partition(ws, "metrics", 1, f"rl-{domain}", found)
        score = {"trajectory_id": f"t-{domain}", "scorer": scorer, "score": 1.0, "success": True, "threshold": 1.0}
        partitions.write_partition(ws, "scores", 1, f"rl-{domain}", [score])
    text = re.sub(r"\s+", " ", pages.write_report(ws).read_text())
    assert "rl-games of iteration 001, steps 13 to 16" in text
    assert "rose to 0.22, above its earlier band (up to 0.15)" in text
    assert text.count("The reward is the verifier's own: look at episodes of these steps") == 1
    assert "The reward is by judge: look at" in text
    assert "https://www.primeintellect.ai/blog/reward-hacking" in text


def test_an_audit_that_proves_hacking_stands_beside_the_curves_with_the_worst_world(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=6, samples=1)
    for domain, last in (("games", 2.0), ("sites", 1.0)):
        curves = {
            ("audit_evidence", domain): [0.2, 0.6, 0.9, 1.1, 1.4, last],
            ("audit_false_pay", domain): [0.1, 0.2, 0.2, 0.3, 0.4, 0.5],
            ("audit_false_pay", f"{domain}/tiles"): [0.0] * 6,
            ("audit_false_pay", f"{domain}/merge"): [0.5] * 6,
            ("audit_gap", domain): [0.05, 0.1, 0.1, 0.1, 0.2, 0.3],
        }
        curves[("audit_evidence", domain)] = [min(last, one) for one in curves[("audit_evidence", domain)]]
        found = [
            {"name": name, "domain": place, "step": step, "value": value}
            for (name, place), curve in curves.items()
            for step, value in enumerate(curve, 1)
        ]
        partitions.write_partition(ws, "metrics", 1, f"rl-{domain}", found)
        score = {"trajectory_id": f"t-{domain}", "scorer": "orm", "score": 1.0, "success": True, "threshold": 1.0}
        partitions.write_partition(ws, "scores", 1, f"rl-{domain}", [score])
    text = re.sub(r"\s+", " ", pages.write_report(ws).read_text())
    assert text.count("Reward hacking: rl-games of iteration 001, proved at step 5.") == 1
    assert "The reward by orm paid 15%" in text
    assert "and 45% in the last, most in games/merge; it paid +0.25 more than was done" in text
    assert "Reward hacking: rl-sites" not in text

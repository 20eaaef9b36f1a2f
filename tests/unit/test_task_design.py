"""Task design: known scores and importances, what must hold of any file, and files that are refused by name."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from night import examples

from flywheel.cli import main
from flywheel.synthesis import task_design
from flywheel.synthesis.task_design import DesignFile, build_graph, list_tasks, read_design_file, score_applications
from flywheel.utils.errors import BadInput

MEASURES = {
    name: {"unit": "points"} for name in ("coverage", "engagement", "penetration", "usage", "benefit", "transfer")
}
SHIPPED = Path(__file__).parents[2] / "docs/examples/task-design.yaml"


def function(usage=1.0, **more) -> dict:
    return {"title": "do it", "usage": usage, "benefit": usage, "transfer": usage, "steps": 3, **more}


def application(figure: float, **functions) -> dict:
    measures = dict.fromkeys(("coverage", "engagement", "penetration"), figure)
    return {"title": "App", **measures, "functions": functions or {"f": function()}}


def design(applications: dict, measures: dict | None = None, **more) -> DesignFile:
    named = {name: {**one, **(measures or {}).get(name, {})} for name, one in MEASURES.items()}
    return DesignFile.model_validate({"measures": named, "applications": applications, **more})


def test_scores_are_weighted_means_of_normalised_measures():
    apps = {"a": application(0), "b": application(0)}
    apps["a"] |= {"coverage": 10, "engagement": 99, "penetration": 1}
    apps["b"] |= {"coverage": 5, "engagement": 0, "penetration": 4}
    measures = {"coverage": {"weight": 2}, "engagement": {"log": True}, "penetration": {"rank": True}}
    found = score_applications(design(apps, measures))
    # Ranks 1 and 4 of 4 become 1 and 1/4.
    assert found == {"a": pytest.approx(1.0), "b": pytest.approx(0.5 * 0.5 + 0.25 * 0 + 0.25 * 0.25)}
    assert list(found) == ["a", "b"]


def test_a_prerequisite_of_important_things_is_important():
    functions = {
        "open": function(0.0),
        "edit": function(0.5, requires=["open"]),
        "print": function(1.0, requires=["edit"]),
        "alone": function(0.0),
    }
    nodes = build_graph(design({"a": application(1, **functions)}, prerequisites=0.5))
    found = {key: node.importance for key, node in nodes.items()}
    edit = 1 - 0.5 * (1 - 0.5 * 1.0)
    assert found == pytest.approx({"a/open": 0.5 * edit, "a/edit": edit, "a/print": 1.0, "a/alone": 0.0})
    assert nodes["a/print"].before == ("a/open", "a/edit")


@st.composite
def files(draw) -> DesignFile:
    apps = {}
    for n in range(draw(st.integers(1, 4))):
        figures = st.floats(0, 50).map(lambda x: round(x, 2))
        functions = {}
        for k in range(draw(st.integers(1, 5))):
            before = draw(st.sets(st.integers(0, k - 1))) if k else ()
            more = {"requires": [f"f{one}" for one in before], "steps": draw(st.integers(1, 20))}
            functions[f"f{k}"] = function(draw(figures), exceptions=["It is locked."] * draw(st.integers(0, 2)), **more)
        apps[f"a{n}"] = application(draw(st.integers(1, 20)), **functions)
    return design(apps, prerequisites=draw(st.floats(0, 1)), recordings=draw(st.integers(1, 300)))


@hypothesis_settings(max_examples=examples(40), deadline=None)
@given(files())
def test_what_holds_of_any_file(chosen):
    nodes, scores = build_graph(chosen), score_applications(chosen)
    for node in nodes.values():
        assert 0 <= node.own <= node.importance + 1e-9
        assert node.importance <= 1 + 1e-9
        for one in node.requires:
            assert nodes[one].importance >= chosen.prerequisites * node.importance - 1e-9
            assert list(nodes).index(one) < list(nodes).index(node.key)
    tasks = list_tasks(chosen, nodes)
    wanted = Counter()
    for task in tasks:
        assert task.wanted > 0
        wanted[task.application] += task.wanted
    if {node.application for node in nodes.values() if node.importance} == scores.keys():
        assert wanted.total() == chosen.recordings
    # Any prefix has the applications in proportion to their score, but for half a row of each.
    largest = max((task.wanted for task in tasks), default=0)
    done: dict[str, int] = defaultdict(int)
    for task in tasks:
        done[task.application] += task.wanted
        ahead = done[task.application] / scores[task.application]
        for app in {one for one in wanted if done[one] < wanted[one]}:
            room = largest / 2 * (1 / scores[app] + 1 / scores[task.application])
            assert ahead - done[app] / scores[app] <= room + 1e-9


def test_prefixes_of_the_shipped_file_are_in_proportion():
    chosen = read_design_file(SHIPPED)
    scores = score_applications(chosen)
    tasks = list_tasks(chosen, build_graph(chosen))
    total, done = sum(scores.values()), Counter()
    for task in tasks:
        done[task.application] += task.wanted
        for app, score in scores.items():
            assert abs(done[app] - done.total() * score / total) <= 12  # the largest row
    assert done.total() == chosen.recordings == 240


def test_what_is_recorded_is_not_asked_again_and_others_come_first():
    chosen = design({"a": application(1), "b": application(1)}, recordings=10)
    nodes = build_graph(chosen)
    assert [(task.id, task.wanted) for task in list_tasks(chosen, nodes)] == [("a.f.novice", 5), ("b.f.novice", 5)]
    there = list_tasks(
        design({"a": application(1), "b": {**application(1), "title": "B"}}, recordings=10),
        nodes,
        lambda q: 3 * ("App" in q),
    )
    assert [(task.id, task.wanted, task.recorded) for task in there] == [("b.f.novice", 5, 0), ("a.f.novice", 2, 3)]
    assert list_tasks(chosen, nodes, lambda query: 5) == []


@pytest.mark.parametrize(
    ("counts", "level"),
    [
        ((3, 1, 0, 0), 1),
        ((4, 2, 0, 0), 2),
        ((9, 2, 1, 0), 3),
        ((16, 2, 1, 1), 4),
        ((16, 4, 3, 1), 5),
        ((16, 4, 3, 2), 5),
    ],
)
def test_the_rubric_gives_the_level(counts, level):
    parts = dict(zip(("steps", "pages", "prerequisites", "exceptions"), counts, strict=True))
    assert task_design.rate_difficulty(**parts) == level


def test_queries_go_from_novice_to_expert_and_over_applications():
    functions = {
        "open": function(title="open a.odt"),
        "pdf": function(title="export a.pdf", requires=["open"], exceptions=["The file is there already."]),
    }
    mail = {**application(1, send=function(title="mail a.pdf", also=["w/pdf"])), "title": "Mail"}
    chosen = design({"w": {**application(1, **functions), "title": "Writer"}, "m": mail})
    said = {task.id: (task.query, task.before) for task in list_tasks(chosen, build_graph(chosen))}
    assert said == {
        "w.open.novice": ("In Writer, open a.odt.", ""),
        "w.pdf.novice": ("In Writer, export a.pdf.", "In Writer, open a.odt."),
        "w.pdf.practised": ("In Writer, open a.odt, then export a.pdf.", ""),
        "w.pdf.expert": ("In Writer, open a.odt, then export a.pdf. The file is there already.", ""),
        "m.send.novice": ("In Mail, mail a.pdf.", ""),
        "m.send.expert": ("In Writer, open a.odt, then export a.pdf; then, in Mail, mail a.pdf.", ""),
    }


def test_a_language_model_words_and_what_is_no_task_is_by_rules():
    functions = {"f": function(title="insert 3 rows"), "g": function(title="close it"), "h": function(title="sort it")}
    chosen = design({"a": application(1, **functions)})

    def complete(system: str, user: str) -> str:
        return {"insert 3 rows": "Add some rows.", "close it": "  I am done,\nclose it. ", "sort it": ""}[
            user.split("App: ")[1].strip()
        ]

    tasks = list_tasks(chosen, build_graph(chosen), model=("m", complete))
    assert {task.function: (task.query, task.worded_by) for task in tasks} == {
        "f": ("In App, insert 3 rows.", "rules, since m: 3 is lost"),
        "g": ("I am done, close it.", "m"),
        "h": ("In App, sort it.", "rules, since m: no answer"),
    }


def test_a_circle_of_prerequisites_is_named():
    functions = {"a": function(requires=["c"]), "b": function(requires=["a"]), "c": function(requires=["b"])}
    with pytest.raises(BadInput, match=r"go in a circle: x/\w -> x/\w -> x/\w -> x/\w") as refused:
        build_graph(design({"x": application(1, **functions)}))
    names = str(refused.value).split("circle: ")[1].split(";")[0].split(" -> ")
    assert names[0] == names[-1]
    assert len(set(names)) == 3
    for one, before in pairwise(names):
        assert functions[one[2:]]["requires"] == [before[2:]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda raw: raw["measures"].pop("usage"), "measures: usage is missing"),
        (lambda raw: raw["measures"].update(size={"unit": "m"}), "there is no size"),
        (lambda raw: raw["measures"]["usage"].pop("unit"), r"measures\.usage\.unit"),
        (lambda raw: [raw["measures"][n].update(weight=0) for n in ("usage", "benefit", "transfer")], "weight above 0"),
        (lambda raw: raw["measures"]["coverage"].update(rank=True), "ranks are whole numbers from 1 on"),
        (lambda raw: raw["applications"]["a"].update(coverage=-1), r"applications\.a\.coverage"),
        (lambda raw: raw["applications"]["a"].update(coverage=math.nan), r"applications\.a\.coverage"),
        (
            lambda raw: raw["applications"]["a"]["functions"]["f"].update(requires=["g"]),
            "a/f: requires names a/g.*known are a/f",
        ),
        (lambda raw: raw["applications"]["a"]["functions"]["f"].update(step=1), "step"),
        (lambda raw: raw.update(applications={}), "applications"),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path, change, told):
    raw = {"measures": {name: dict(one) for name, one in MEASURES.items()}, "applications": {"a": application(0.5)}}
    change(raw)
    path = tmp_path / "design.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(BadInput, match=told) as refused:
        build_graph(read_design_file(path), path)
    assert "design.yaml" in str(refused.value)


HEAD = "application,coverage [of 12],engagement [minutes a day],penetration [rank],function,title,"
HEAD += "usage [a month],benefit [minutes],transfer [applications],steps,requires,exceptions\n"


def test_a_csv_is_read_as_the_yaml_is(tmp_path):
    path = tmp_path / "design.csv"
    path.write_text(
        HEAD + "w,12,60,1,open,open a.odt,30,1,4,3,,\nw,12,60,1,pdf,export it,3,2,2,5,open,It is locked.;It is full.\n"
    )
    chosen = read_design_file(path)
    assert chosen.measures["penetration"].rank
    assert chosen.measures["engagement"].unit == "minutes a day"
    assert chosen.applications["w"].functions["pdf"].exceptions == ("It is locked.", "It is full.")
    assert build_graph(chosen)["w/pdf"].before == ("w/open",)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            "w,12,60,1,open,o,1,1,1,3,,\nw,11,60,1,pdf,p,1,1,1,3,,\n",
            "row 3: coverage of w is not what its first row says",
        ),
        ("w,12,60,1,open,o,1,1,1,3,,\nw,12,60,1,open,o,1,1,1,3,,\n", "row 3: w/open stands twice"),
        ("w,12,60\n", "row 2 has not as many cells"),
        ("w,12,60,1,open,o,1,1,1,many,,\n", r"functions\.open\.steps"),
    ],
)
def test_a_wrong_csv_is_refused_by_its_row(tmp_path, rows, told):
    path = tmp_path / "design.csv"
    path.write_text(HEAD + rows)
    with pytest.raises(BadInput, match=told):
        read_design_file(path)


def test_a_csv_whose_unit_is_blank_is_refused(tmp_path):
    path = tmp_path / "design.csv"
    path.write_text(HEAD.replace("usage [a month]", "usage[ ]") + "w,12,60,1,open,open a.odt,30,1,4,3,,\n")
    with pytest.raises(BadInput, match="usage is missing: say its unit"):
        read_design_file(path)


def test_ranks_have_no_logarithm():
    kinds = {name: {"unit": "rank", "rank": True, "log": True} for name in MEASURES}
    plain = {name: {"unit": "rank", "rank": True} for name in MEASURES}
    apps = {"first": application(1), "third": application(3)}
    scores = [score_applications(DesignFile(measures=one, applications=apps)) for one in (kinds, plain)]
    assert scores == [pytest.approx({"first": 1.0, "third": 1 / 3})] * 2


@pytest.mark.parametrize("form", ["csv", "json", "md"])
def test_the_command_writes_the_list(tmp_path, monkeypatch, form):
    out = tmp_path / f"tasks.{form}"
    monkeypatch.chdir(tmp_path)  # where no workspace is
    result = CliRunner().invoke(main, ["tasks", "design", str(SHIPPED), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "240 recordings to make; worded by rules" in result.output
    chosen = read_design_file(SHIPPED)
    ids = [task.id for task in list_tasks(chosen, build_graph(chosen))]
    text = out.read_text()
    if form == "csv":
        assert [row["id"] for row in csv.DictReader(io.StringIO(text))] == ids
    elif form == "json":
        found = json.loads(text)
        assert [task["id"] for task in found["tasks"]] == ids
        assert sum(found["measures"][name]["weight"] for name in ("usage", "benefit", "transfer")) == pytest.approx(1)
    else:
        assert text.count("\n| ") > len(ids)


def test_the_recordings_of_a_workspace_count(project, tmp_path):
    """The shipped recordings are asked by their own words, as a file can give them."""
    asked = json.loads((sorted((project / "recordings").glob("*"))[0] / "session.json").read_text())["task"][
        "instruction"
    ]
    raw = {"measures": MEASURES, "recordings": 1000, "applications": {"a": application(1)}}
    raw["applications"]["a"]["functions"]["f"] |= {"queries": {"novice": f" {asked.upper()} "}}
    (tmp_path / "design.yaml").write_text(yaml.safe_dump(raw))
    out = tmp_path / "tasks.json"
    words = ["tasks", "design", str(tmp_path / "design.yaml"), "-o", str(out), "-w", str(project)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    (task,) = json.loads(out.read_text())["tasks"]
    assert task["recorded"] >= 1
    assert task["wanted"] == 1000 - task["recorded"]

"""Labels of single trajectories: who may write what where, which one counts, and how far people and scorers agree."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from reviews import waiting
from synthetic_rows import task, trajectory

from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.store import labels, partitions
from flywheel.store.catalog import database
from flywheel.store.labels import Label
from flywheel.utils.confidence_intervals import wilson_interval
from flywheel.utils.errors import BadInput, DataError

LABELS = {"s": "solved", "n": "not solved", "c": "cannot tell"}
# What three say of twelve trajectories, in their order; a blank is nothing. The third decides what is disputed.
SAID = {"ada": "ssssnnnncsn ", "bo": "sssnnnnscss ", "eve": "   s   c  n "}
KINDS = ["games"] * 6 + ["sites"] * 6
VERDICTS = [True, True, False, True, False, True, False, True, True, True, True, True]


def label(name: str, said: str, reviewer: str, *, queue: str = "random", at: int = 0, comment: str = "") -> Label:
    return Label(name, 1, LABELS[said], comment, reviewer, f"2026-11-25T10:00:{at:02d}+00:00", queue)


def ask(ws: Workspace, sql: str) -> list[dict]:
    return database.query_catalog(ws, sql).to_pylist(maps_as_pydicts="strict")


def reviewed(ws: Workspace) -> None:
    tasks = {kind: task(f"k-{kind}", kind, "shop") for kind in set(KINDS)}
    rows = [trajectory(f"t{n:02d}", tasks[kind]) for n, kind in enumerate(KINDS)]
    partitions.write_partition(ws, "trajectories", 1, "rollout", rows)
    scores = [
        {"trajectory_id": row["trajectory_id"], "scorer": "verifier", "score": float(v), "threshold": 1.0, "success": v}
        for row, v in zip(rows, VERDICTS, strict=True)
    ]
    partitions.write_partition(ws, "scores", 1, "score", scores)
    for reviewer, said in SAID.items():
        for n, one in enumerate(said):
            if one != " ":
                queue = "decide" if reviewer == "eve" else "random" if n % 2 else "route"
                labels.append_label(ws, label(f"t{n:02d}", one, reviewer, queue=queue))


def kappa(one: list[str], other: list[str]) -> float:
    """Cohen 1960, by its definition."""
    n = len(one)
    agree = sum(a == b for a, b in zip(one, other, strict=True)) / n
    chance = sum(one.count(name) * other.count(name) for name in LABELS) / n**2
    return (agree - chance) / (1 - chance)


# -- writing and reading -----------------------------------------------------------------------------------------------


def test_a_comment_with_any_line_separator_leaves_the_file_readable(tmp_path):
    """U+2028 and U+0085 stand in JSON as they are, and end no line of the file."""
    ws = Workspace(tmp_path)
    labels.append_label(ws, label("t0", "s", "ada", comment="one\u2028two\u0085three\r\nfour"))
    labels.append_label(ws, label("t1", "n", "ada"), seen=())
    (first, second) = labels.read_review_lines(ws, tmp_path / "reviews" / "ada.jsonl")
    assert (first["comment"], second["trajectory_id"]) == ("one\u2028two\u0085three\r\nfour", "t1")
    told = ask(ws, "SELECT comment FROM label_history ORDER BY trajectory_id")
    assert [row["comment"] for row in told] == [first["comment"], ""]


def test_no_folder_is_no_label(ws):
    assert ask(ws, "FROM labels") == ask(ws, "FROM reviews") == ask(ws, "FROM scorers_vs_humans") == []


def test_each_reviewer_has_a_file_that_grows_and_the_newest_label_counts(ws):
    labels.append_label(ws, label("t0", "s", "ada", comment="the cart holds it\nsays the “page”"))
    with database.connect_catalog(ws) as connection:
        labels.append_label(ws, label("t0", "n", "Ada", at=5))
        labels.append_label(ws, label("t0", "c", "bo", at=3))
        seen = database.query_rows(connection, "SELECT reviewer, label FROM labels")
    assert seen == [{"reviewer": "bo", "label": "cannot tell"}, {"reviewer": "ada", "label": "not solved"}]
    assert sorted(path.name for path in labels.labels_folder(ws).iterdir()) == ["ada.jsonl", "bo.jsonl"]
    assert len((labels.labels_folder(ws) / "ada.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    rows = ask(ws, "SELECT kind, subject, decision, comment FROM reviews WHERE reviewer = 'ada' ORDER BY \"at\"")
    assert [row["decision"] for row in rows] == ["solved", "not solved"]
    assert rows[0]["comment"] == "the cart holds it\nsays the “page”"
    assert {(row["kind"], row["subject"]) for row in rows} == {("trajectory", "t0")}


@pytest.mark.parametrize(
    "name", ["", " ", "../ada", "a/b", "a\\b", ".ada", "-ada", "a\nb", "a" * 61, "con\0", "a\u202eb", "\ud800", "'; x"]
)
def test_a_name_leads_nowhere_else(ws, name):
    with pytest.raises(BadInput, match="no name"):
        labels.append_label(ws, label("t0", "s", name))
    assert not labels.labels_folder(ws).exists()


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (("Ada Byron", " ada  byron ", "ADA BYRON"), "ada byron"),
        (("José", "Jose\u0301", "JOSÉ"), "josé"),
        (("王小明",), "王小明"),
        (("O'Neill-Smith Jr.", "o'neill-smith jr."), "o'neill-smith jr."),
        (("अनीता",), "अनीता"),
        (("ada.b_2",), "ada.b_2"),
    ],
)
def test_one_person_has_one_key_however_the_name_is_typed_and_wherever(ws, typed, key):
    """By the command, by Prefect's forms, by the explorer; of labels and of promotions."""
    waiting(ws, 1)
    for name in typed:
        assert labels.normalise_reviewer(name) == key
        assert re.fullmatch(labels.REVIEWER_INPUT_PATTERN, name)  # what Prefect's forms ask for
        labels.append_label(ws, label("t0", "s", name))
        command = ["review", "promotion", "-k", "1", "--keep", "--reviewer", name, "-w", str(ws.root)]
        assert CliRunner().invoke(main, command).exit_code == 0
    (file,) = labels.labels_folder(ws).iterdir()
    assert file.name == f"{key.replace(' ', '_')}.jsonl"
    assert [row["reviewer"] for row in ask(ws, "FROM labels")] == [key]
    assert {one.reviewer for one in promotion_review.read_review(ws, 1).history} == {key}


def test_the_longest_name_in_the_widest_letters_names_a_file(ws):
    labels.append_label(ws, label("t0", "s", "𠮷" * labels.MAX_REVIEWER_LENGTH))
    assert len(ask(ws, "FROM labels")) == 1


def test_a_file_that_is_a_link_is_not_followed(ws, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "file"
    outside.write_text("as it was\n", encoding="utf-8")
    labels.labels_folder(ws).mkdir()
    (labels.labels_folder(ws) / "ada.jsonl").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic"):
        labels.append_label(ws, label("t0", "s", "ada"))
    assert outside.read_text(encoding="utf-8") == "as it was\n"


def test_what_is_no_label_is_refused_and_not_kept(ws):
    with pytest.raises(BadInput, match="a comment may have 2,000 characters, this one has 1,048,576"):
        labels.append_label(ws, label("t0", "s", "ada", comment="x" * 2**20))
    with pytest.raises(BadInput, match=r"no label 'maybe'; .*solved, not solved, cannot tell"):
        labels.append_label(ws, Label("t0", 1, "maybe", "", "ada", "2026-11-25T10:00:00+00:00"))
    with pytest.raises(BadInput, match="no trajectory has such a name"):
        labels.append_label(ws, label("t0' OR 1=1", "s", "ada"))
    assert not labels.labels_folder(ws).exists()


@pytest.mark.parametrize("damage", ['{"trajectory_id": "t1", "iter', '{"trajectory_id": "t1"}', "[]", "null"])
def test_a_damaged_line_is_named_and_what_comes_after_it_is_kept(ws, damage):
    labels.append_label(ws, label("t0", "s", "ada"))
    file = labels.labels_folder(ws) / "ada.jsonl"
    with file.open("a", encoding="utf-8") as end:
        end.write(damage)
    labels.append_label(ws, label("t2", "s", "ada"))
    for sql in ("FROM labels", "SELECT count(*) FROM reviews", "SELECT trajectory_id FROM human_labels"):
        with pytest.raises(DataError, match=r"a label cannot be read \(reviews/ada.jsonl, line 2\); remove the line"):
            ask(ws, sql)
    assert ask(ws, "FROM trajectories") == []
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([lines[0], lines[2]]) + "\n", encoding="utf-8")
    assert [row["trajectory_id"] for row in ask(ws, "FROM labels")] == ["t0", "t2"]


def test_labels_are_lines_of_json_that_git_can_join(ws):
    labels.append_label(ws, label("t0", "s", "ada"))
    (line,) = (labels.labels_folder(ws) / "ada.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "trajectory_id": "t0",
        "iteration": 1,
        "label": "solved",
        "comment": "",
        "reviewer": "ada",
        "at": "2026-11-25T10:00:00+00:00",
        "queue": "random",
        "version": 1,
    }


# -- agreement ---------------------------------------------------------------------------------------------------------


def test_agreement_is_cohens_kappa_of_those_who_did_not_see_one_another(ws):
    reviewed(ws)
    found = {row["domain"]: row for row in ask(ws, "FROM reviewer_agreement")}
    assert {(row["reviewer_a"], row["reviewer_b"]) for row in found.values()} == {("ada", "bo")}, (
        "eve was asked to decide"
    )
    for domain, row in found.items():
        both = [n for n in range(11) if domain in ("all", KINDS[n])]
        one, other = ([SAID[name][n] for n in both] for name in ("ada", "bo"))
        assert row["n"] == len(both)
        assert row["agreement"] == pytest.approx(sum(a == b for a, b in zip(one, other, strict=True)) / len(both))
        assert row["kappa"] == pytest.approx(kappa(one, other))
    assert found.keys() == {"all", "games", "sites"}
    assert found["all"]["agreement"] == pytest.approx(8 / 11)
    # Known: 11 pairs, of which 4 + 3 + 1 agree; margins 5, 5, 1 and 6, 4, 1.
    assert found["all"]["kappa"] == pytest.approx((8 / 11 - 51 / 121) / (1 - 51 / 121))
    labels.append_label(ws, label("t03", "n", "ada", at=9))
    (row,) = ask(ws, "FROM reviewer_agreement WHERE domain = 'all'")
    assert row["agreement"] == pytest.approx(8 / 11), "she has seen by then what the other says"


def test_two_who_always_say_the_same_one_thing_have_no_kappa(ws):
    partitions.write_partition(ws, "trajectories", 1, "rollout", [trajectory("t0", task("k", "games", "tiles"))])
    for reviewer in ("ada", "bo"):
        labels.append_label(ws, label("t0", "s", reviewer))
    assert {(row["domain"], row["agreement"], row["kappa"]) for row in ask(ws, "FROM reviewer_agreement")} == {
        ("all", 1.0, None),
        ("games", 1.0, None),
    }


def test_most_decide_and_where_none_has_most_the_third(ws):
    reviewed(ws)
    labels.append_label(ws, label("t11", "n", "ada"))
    found = {row["trajectory_id"]: (row["state"], row["label"]) for row in ask(ws, "FROM human_labels")}
    assert found["t00"] == ("agreed", "solved")
    assert found["t03"] == ("decided", "solved"), "two of three"
    assert found["t07"] == ("decided", "cannot tell"), "all three differ: she who was asked to decide"
    assert found["t08"] == ("agreed", "cannot tell")
    assert found["t10"] == ("decided", "not solved")
    assert found["t11"] == ("one reviewer", None)
    labels.append_label(ws, label("t11", "s", "bo"))
    assert ask(ws, "SELECT state FROM human_labels WHERE trajectory_id = 't11'") == [{"state": "to decide"}]


def test_scorers_are_held_against_people_by_domain(ws):
    reviewed(ws)
    partitions.write_partition(
        ws, "routes", 1, "route", [{"trajectory_id": "t00", "destination": "ct", "score": 0.0, "success": False}]
    )
    rows = ask(ws, "FROM scorers_vs_humans")
    found = {(row["scorer"], row["sampling"], row["domain"]): row for row in rows}
    truth = {0: True, 1: True, 2: True, 3: True, 4: False, 5: False, 6: False, 9: True, 10: False}
    for drawn, domain in (("any", "all"), ("any", "games"), ("any", "sites"), ("random", "all"), ("random", "games")):
        of = [n for n in truth if domain in ("all", KINDS[n]) and (drawn == "any" or n % 2)]
        row = found["verifier", drawn, domain]
        hits, verified, solved = (
            sum(test(n) for n in of)
            for test in (lambda n: VERDICTS[n] and truth[n], lambda n: VERDICTS[n], lambda n: truth[n])
        )
        assert (row["n"], row["true_positives"], row["verified"], row["solved"]) == (len(of), hits, verified, solved)
        assert row["precision"] == pytest.approx(hits / verified)
        assert row["recall"] == pytest.approx(hits / solved)
    total = found["verifier", "any", "all"]
    assert (total["precision"], total["recall"]) == (pytest.approx(4 / 6), pytest.approx(4 / 5))
    assert (total["precision_low"], total["precision_high"]) == pytest.approx(wilson_interval(4, 6))
    assert (total["recall_low"], total["recall_high"]) == pytest.approx(wilson_interval(4, 5))
    routed = found["all together", "any", "all"]
    assert (routed["n"], routed["precision"], routed["recall"]) == (1, None, 0.0)


def owned(ws, *names: str, owner: str = "Bo", by: str = "Ada", **more) -> None:
    labels.assign_samples(ws, dict.fromkeys(names, 1), owner, by=by, **more)


def owners(ws) -> dict[str, str]:
    return {name: one.owner for name, one in labels.read_sample_owners(ws).items()}


def test_a_sample_has_one_owner_until_it_is_labelled_or_released(ws):
    owned(ws, "t1", "t2", "t3")
    assert owners(ws) == {"t1": "bo", "t2": "bo", "t3": "bo"}
    owned(ws, "t3", owner="", by="Bo")
    labels.append_label(ws, label("t1", "s", "Bo"))
    assert owners(ws) == {"t2": "bo"}
    labels.append_label(ws, label("t1", "s", "Eve"))  # what is done is anybody's again: the second label
    owned(ws, "t2", owner="bo", by="Eve")  # nothing is taken from anybody
    with pytest.raises(BadInput, match="bo has labelled t1 already"):
        owned(ws, "t3", "t1")
    assert owners(ws) == {"t2": "bo"}, "all of them or none"


def test_nobody_labels_or_takes_what_another_owns_without_saying_so(ws):
    owned(ws, "t1", "t2")
    with pytest.raises(BadInput, match="bo is to label this sample; label another one, or take it over"):
        labels.append_label(ws, label("t1", "s", "Eve"))
    assert labels.reviewers_of(ws, "t1") == []
    with pytest.raises(BadInput, match="bo is to label t1 and 1 more are others'"):
        owned(ws, "t1", "t2", "t3", owner="Eve", by="Eve")
    owned(ws, "t1", owner="Eve", by="Eve", take_over=True)
    labels.append_label(ws, label("t1", "s", "Eve"))
    assert owners(ws) == {"t2": "bo"}


def test_a_label_that_came_meanwhile_is_told_before_another_one_counts(ws):
    labels.append_label(ws, label("t1", "s", "Ada"))
    with pytest.raises(BadInput, match="ada labelled this sample while you looked at it"):
        labels.append_label(ws, label("t1", "s", "Bo"), seen=[])
    labels.append_label(ws, label("t1", "s", "Bo"), seen=["ada"])
    labels.append_label(ws, label("t1", "s", "Bo"), seen=["ada"])  # one's own is no surprise
    assert labels.reviewers_of(ws, "t1") == ["ada", "bo"]


def test_of_two_who_take_a_sample_at_once_one_has_it(ws):
    def attempt(name: str) -> bool:
        try:
            owned(ws, "t1", owner=name, by=name)
        except BadInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, [f"r{n}" for n in range(8)])) == 1


def test_a_damaged_line_of_owners_is_named(ws):
    owned(ws, "t1")
    (ws.root / "reviews/owners/ada.jsonl").write_text('{"half', encoding="utf-8")
    with pytest.raises(DataError, match=r"reviews/owners/ada\.jsonl"):
        labels.read_sample_owners(ws)

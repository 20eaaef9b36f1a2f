"""Attacks on verifiers: what a weak, a strict and a right one get; mutations are never what they come from."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import Finished, Wait
from flywheel.envs.base import Task
from flywheel.envs.browser.pages import manifest as pages
from flywheel.envs.browser.pages.session import score_page_answer, score_page_reward
from flywheel.envs.computer.osworld.judge import METRICS
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.changes import same_answer
from flywheel.envs.tasks import verification
from flywheel.envs.tasks.drawing import make_task, task_from_row, task_to_row
from flywheel.envs.tasks.page_tasks import list_proof_steps, make_page_task
from flywheel.synthesis.verifier_attack import mutations, run
from flywheel.synthesis.verifier_attack.answers import fold_answer, reword_answer, spoil_answer
from flywheel.synthesis.verifier_attack.attack import FEWEST, Solution, attack_template, list_mutations
from flywheel.synthesis.verifier_attack.contracts import Contract, find_contract, make_page_contract
from flywheel.synthesis.verifier_attack.mutations import Variation
from flywheel.utils.errors import BadInput

START = {
    "notes": {f"n{n}": {"title": f"Note {n}", "text": f"text {n}", "done": False, "stars": n} for n in range(5)},
    "theme": "light",
}
GOLD = json.loads(json.dumps(START))
GOLD["notes"]["n2"].update(title="Milk and bread", done=True)
GOLD["notes"]["n9"] = {"title": "New", "text": "", "done": False, "stars": 0}
TASK = Task("k1", "sites", "small", "note", 1, 0, "Do it.", {}, 5, "train", "v", 1.0, "c")


def notes(**more) -> Contract:
    def ways(start, gold, rng):
        yield Variation("spaces", "", mutations.put_at(gold, ("notes", "n2", "title"), " Milk  and bread "))

    def counted(state):
        titles = {key: {**one, "title": " ".join(one.get("title", "").split())} for key, one in state["notes"].items()}
        return json.dumps([titles, state.get("theme")], sort_keys=True)

    return Contract((("notes",), ("theme",)), counted, ways, **more)


def attacked(solved, runs: int = 3, contract: Contract | None = None):
    solutions = [Solution(TASK, [START, GOLD])] * runs
    return attack_template(solutions, lambda task: contract or notes(), solved)


def right(task, state) -> bool:
    return notes().counted(state) == notes().counted(GOLD)


def test_a_right_verifier_refuses_every_mutation_and_nothing_else():
    found = attacked(right)
    assert (found.runs, found.gold, found.start) == (3, 3, 0)
    assert found.killed == found.mutations >= FEWEST
    assert (found.kill_rate, found.false_alarms, found.survivors) == (1.0, 0, [])


@pytest.mark.parametrize(
    ("weak", "most"),
    [
        (lambda task, state: True, 0.0),  # says yes to all
        (lambda task, state: state["notes"].get("n2", {}).get("done") is True, 0.4),  # looks at one change
        (lambda task, state: len(state["notes"]) == 6, 0.4),  # counts
        (lambda task, state: {**state, "theme": ""} == {**GOLD, "theme": ""}, 0.99),  # overlooks a side effect
    ],
)
def test_a_weak_verifier_gets_a_low_kill_rate_and_its_survivors_are_named(weak, most):
    found = attacked(weak)
    assert found.kill_rate <= most
    assert len(found.survivors) == found.mutations - found.killed > 0


def test_a_strict_verifier_raises_a_false_alarm():
    found = attacked(lambda task, state: state == GOLD)
    assert found.kill_rate == 1.0
    assert found.false_alarms == found.ways - found.accepted == len(found.refused) > 0


def test_a_known_solution_that_is_refused_makes_the_figures_void():
    found = attacked(lambda task, state: False)
    assert (found.gold, found.killed) == (0, found.mutations)
    assert found.false_alarms == found.runs + found.ways
    assert verification.compute_kill_rate(run.count_attack(found)) is None
    started = run.count_attack(attacked(lambda task, state: True))
    assert started["start"] == 3
    assert verification.compute_kill_rate(started) is None
    assert verification.compute_kill_rate(run.count_attack(attacked(right))) == 1.0


def test_each_kind_of_mutation_is_tried():
    kinds = {
        one.kind for one in list_mutations(Solution(TASK, [START, START, GOLD]), notes(), [], [], random.Random(1))
    }
    assert kinds >= {
        "one change undone", "one character or number", "wrong field", "wrong row", "another row as well", "done twice",
        "extra deletion", "extra entry", "something else changed", "part",
    }  # fmt: skip


LEAF = st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=3), st.lists(st.integers(), max_size=2))
TREE = st.dictionaries(
    st.sampled_from("abcd"), st.one_of(LEAF, st.dictionaries(st.sampled_from("xyz"), LEAF)), min_size=1
)


@given(TREE, TREE, st.integers(0, 99))
def test_mutations_differ_from_the_solution_and_leave_it_as_it_is(start, gold, seed):
    contract = Contract((("r",),), lambda state: json.dumps(state, sort_keys=True), lambda *args: iter(()))
    before = copy.deepcopy((start, gold))
    one = Solution(TASK, [{"r": start}, {"r": gold}])
    found = [
        contract.counted(mutation.state) for mutation in list_mutations(one, contract, [], [], random.Random(seed))
    ]
    assert contract.counted(one.end) not in found
    assert len(set(found)) == len(found)
    assert (start, gold) == before


@given(TREE, TREE)
def test_a_tree_with_all_its_changes_put_in_is_the_other_one(one, other):
    for path in list(mutations.list_changes(one, other)):
        one = mutations.put_at(one, path, mutations.get_at(other, path))
    assert one == other


NAMES = st.lists(st.sampled_from(["Ann", "Bo", "Cy"]), min_size=1, max_size=3, unique=True)


@given(st.one_of(st.integers(-10_000, 10_000), st.text(alphabet="abc é", min_size=1), NAMES))
def test_rewordings_say_the_same_and_the_verifier_knows(wanted):
    said = ", ".join(wanted) if isinstance(wanted, list) else str(wanted)
    for text in reword_answer(wanted, said):
        assert same_answer(text, wanted), text
    for text in spoil_answer(wanted, said, ["Zed", "123456"], random.Random(1)):
        if fold_answer(wanted, text) != fold_answer(wanted, said):
            assert not same_answer(text, wanted), text


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        ("12", True), ("12.0", True), ("12 km²", True), ("12 people per square kilometre.", True), ("EUR 12", True),
        ("US$12", True), ("12个", True), ("not 12", False), ("12 is wrong", False), ("12, or not", False),
        ("12 or 13", False), ("It is certainly not 12", False), ("12 不对", False), ("12 and more", False),
    ],
)  # fmt: skip
def test_a_number_is_not_taken_back(said, is_right):
    assert same_answer(said, 12) is is_right


def test_files_with_another_end_are_the_same_on_the_desk_and_others_are_not():
    from flywheel.envs.suites.desk.world import score_desk_files

    params = {"files": {"notes.txt": "a\n"}, "wanted": {"notes.txt": "a\nb c\n"}}
    assert score_desk_files(params, {"files": {"notes.txt": "a\nb c"}}) == 1.0
    assert score_desk_files(params, {"files": {"notes.txt": "a\n b c"}}) <= 0.5
    assert score_desk_files(params, {"files": {"notes.txt": "a\nb c", "notes.txt~": "a\n"}}) <= 0.5


# -- pages by manifest -----------------------------------------------------------------------------------------------
def page_states(answer: str) -> list[dict]:
    state = {"page": "", "reward": 1, "success": 1, "floor": 0, "terminated": False, "values": {}}
    return [state, {**state, "answer": answer}]


@pytest.mark.parametrize("answers", [["Oslo", "the city of Oslo"], ["1,204"], ["3.5"]])
def test_answers_of_pages_hold(answers):
    task = Task("k", "sites", "p", "q1", 1, 0, "?", {"answer": answers}, 5, "train", "page:answer", 1.0, "c")
    found = attack_template(
        [Solution(task, page_states(answers[0]))] * 2,
        make_page_contract,
        lambda task, state: score_page_answer(task.params, state) == 1,
        more_answers=["Bergen", "77"],
    )
    assert (found.gold, found.start, found.survivors, found.refused) == (2, 0, [], [])
    assert found.mutations >= 20
    assert found.ways >= 10
    careless = attack_template(
        [Solution(task, page_states(answers[0]))],
        make_page_contract,
        lambda task, state: answers[0].casefold() in str(state.get("answer", "")).casefold(),
    )
    assert careless.kill_rate < 0.7, "a verifier that looks for a part of the text"


def test_a_page_is_solved_by_its_whole_reward_alone():
    task = Task("k", "sites", "p", "q1", 1, 0, "?", {}, 5, "train", "page:reward", 1.0, "c")
    states = [{**state, "reward": n / 2} for n, state in enumerate([*page_states(""), page_states("")[0]])]
    one = Solution(task, states)
    found = attack_template([one], make_page_contract, lambda task, state: score_page_reward({}, state) == 1)
    assert (found.kill_rate, found.false_alarms) == (1.0, 0)
    half = attack_template([one], make_page_contract, lambda task, state: score_page_reward({}, state) > 0)
    assert half.kill_rate < 1


@pytest.fixture
def manifest(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<p>Oslo</p>")
    tasks = {"q1": {"instruction": "Which?", "answer": "Oslo"}, "q2": {"instruction": "Who?", "answer": "Ann"}}
    raw = {"name": "towns", "title": "Towns", "folder": "site", "seeded": False, "splits": ["train"], "max_steps": 5}
    path = tmp_path / "towns.json"
    path.write_text(json.dumps({**raw, "made_by": "questions", "tasks": tasks}))
    return path


def test_what_was_found_of_a_page_stands_in_its_manifest_until_its_task_changes(manifest):
    read = pages.load_page_manifest(manifest)
    fresh = make_page_task(read, "q1", 0, "train")
    assert (fresh.verifier_kill_rate, fresh.source) == (None, "questions")
    states = page_states("Oslo")
    found = attack_template([Solution(fresh, states)] * 10, make_page_contract, run.is_solved)
    run.write_page_verification(read, {"q1": found})
    entry = json.loads(manifest.read_text())["tasks"]["q1"]["verification"]
    assert (entry["gold"], entry["start"], entry["mutations"]) == ("10/10", 0, entry["killed"])
    again = pages.load_page_manifest(manifest)
    assert make_page_task(again, "q1", 0, "train").verifier_kill_rate == 1.0
    assert make_page_task(again, "q1", 0, "train").checksum == fresh.checksum
    assert make_page_task(again, "q2", 0, "train").verifier_kill_rate is None
    manifest.write_text(manifest.read_text().replace('"Which?"', '"Which town?"'))
    assert make_page_task(pages.load_page_manifest(manifest), "q1", 0, "train").verifier_kill_rate is None


@pytest.mark.parametrize("actions", [3, [], [{"type": "wait"}], None])
def test_a_proof_without_texts_of_actions_is_none(actions):
    assert list_proof_steps(TASK, {"actions": actions}) == []


def test_a_text_that_is_no_action_is_named():
    with pytest.raises(BadInput, match="jump"):
        list_proof_steps(TASK, {"actions": ["jump(high)"]})


@pytest.mark.parametrize(
    ("thoughts", "told"), [(["I wait."], "I wait."), (None, ""), ([], ""), (["one", "too many"], ""), ("I wait.", "")]
)
def test_a_proofs_thoughts_stand_beside_its_actions(thoughts, told):
    known = list_proof_steps(TASK, {"actions": ["wait()"], "thoughts": thoughts})
    assert known == [(told, Wait()), ("I am done.", Finished(""))]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"gold": "10"},
        {"gold": "x/y"},
        {"gold": 3},
        {"gold": "9/9", "start": "?"},
        {"gold": "9/9", "start": math.inf},
    ],
)
def test_an_entry_of_another_form_tells_nothing(entry):
    assert verification.parse_page_kill_rate({**entry, "checksum": "c"}, "c") is None


# -- suites ----------------------------------------------------------------------------------------------------------
def test_a_suite_that_changed_since_its_attack_has_no_kill_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "VERIFICATION_FOLDER", tmp_path)
    verification.read_verification.cache_clear()
    try:
        world = catalogue.get_world("tiles")
        assert make_task(world, "clear", 1, 0, "train").verifier_kill_rate is None
        verification.write_verification(world, {"clear": (10, 10, 0, 20, 19, 5, 5)})
        task = make_task(world, "clear", 1, 0, "train")
        assert (task.verifier_kill_rate, task.source) == (0.95, "templates")
        assert task_from_row(task_to_row(task)) == task
        changed = world.model_copy(update={"checksum": "other"})
        assert make_task(changed, "clear", 1, 0, "train").verifier_kill_rate is None
        verification.write_verification(world, {"clear": (10, 9, 0, 20, 20, 5, 5)})
        assert make_task(world, "clear", 1, 0, "train").verifier_kill_rate is None
    finally:
        verification.read_verification.cache_clear()


def test_a_row_from_before_has_no_kill_rate():
    row = task_to_row(make_task(catalogue.get_world("tiles"), "clear", 1, 0, "train"))
    del row["source"], row["verifier_kill_rate"]
    task = task_from_row(row)
    assert (task.source, task.verifier_kill_rate) == ("templates", None)


@pytest.mark.parametrize("path", sorted(verification.VERIFICATION_FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_stored_attacks_are_of_known_templates_and_hold(path):
    found = json.loads(path.read_text())
    rows = [dict(zip(found["counts"], row, strict=True)) for row in found["templates"].values()]
    assert found["counts"] == list(verification.COUNTS)
    assert sum(row["killed"] for row in rows) >= 0.95 * sum(row["mutations"] for row in rows)
    assert all(row["gold"] == row["runs"] and not row["start"] and row["ways"] == row["accepted"] for row in rows)
    assert all(row["mutations"] >= 20 and row["ways"] >= 5 for row in rows)


def test_contracts_know_the_freedom_of_a_site_without_its_verifier():
    site = catalogue.get_world("mail").play
    params = next(
        make_task(catalogue.get_world("mail"), "write", level, 3, "train").params
        for level in catalogue.get_world("mail").templates["write"].max_steps
    )
    task = make_task(catalogue.get_world("mail"), "write", 3, 3, "train")
    contract, (goal, _, _) = find_contract(task), site.tasks["write"].wanted(site.records(params), params)
    gold = {**site.start(params), "records": goal}
    assert contract.counted(gold) != contract.counted(site.start(params))
    (way,) = [way for way in contract.ways(site.start(params), gold, random.Random(0)) if way.kind == "new ids"]
    assert contract.counted(way.state) == contract.counted(gold)
    assert way.state["records"] != gold["records"]


# -- what others wrote -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("compare_text_file", "one two\nthree 4\n"),
        ("compare_python_pure_text", "def f(n):\n    return n + 1\n"),
        ("compare_csv", "name,price\nmug,12\nhat,7\n"),
        ("compare_result_files", "Oslo"),
        ("is_included_all_json_objects", '{"name": "mug", "size": {"w": 3}}'),
    ],
)
def test_metrics_of_files_after_osworld_refuse_a_changed_character(tmp_path, metric, text):
    assert judged_misspellings(tmp_path, metric, text) == []


def test_osworlds_comparison_of_numbers_takes_any_that_contains_the_right_one(tmp_path):
    """A weakness of that metric as it is published, which a suite should know of."""
    passed = judged_misspellings(tmp_path, "compare_result_files", "1204")
    assert passed
    assert all("1204" in wrong for wrong in passed)


def judged_misspellings(folder, metric: str, text: str) -> list[str]:
    """Misspelt files that a metric takes for the right one."""
    wanted, found = folder / "wanted", folder / "found"
    wanted.write_text(text)
    found.write_text(text)
    judge = METRICS[metric].score
    assert judge(str(found), str(wanted), {}) == 1.0
    rng, passed = random.Random(metric), []
    for wrong in (one for _ in range(8) for one in mutations.misspell(text, rng)):
        found.write_text(wrong)
        with contextlib.suppress(ValueError):  # JSON that cannot be read is a 0
            passed += [wrong] if judge(str(found), str(wanted), {}) == 1 else []
    return passed

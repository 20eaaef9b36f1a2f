"""Manifests of third-party pages: what is refused, by name and in one line, and the tasks that they give."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config import Settings, parse_settings
from flywheel.envs.browser.driver.context import list_allowed_origins
from flywheel.envs.browser.pages import manifest as pages_manifest
from flywheel.envs.browser.pages import session
from flywheel.envs.browser.pages.session import ManifestPages, TaskIdentity
from flywheel.envs.tasks import page_tasks
from flywheel.envs.tasks.drawing import make_tasks, task_content, task_from_row, task_to_row
from flywheel.rewards.scorers.verifier import score_final_state
from flywheel.store.partitions import table_from_rows
from flywheel.utils.errors import BadInput, DataError, EnvError

LEAST = {
    "name": "lamp",
    "title": "A lamp",
    "folder": ".",
    "instruction": "Switch it on.",
    "reward": "lamp.on ? 1 : 0",
    "success": 1,
    "max_steps": 3,
}


def write(folder, file="lamp.yaml", /, **fields):
    """A manifest file with a page beside it; a field that is None is left out."""
    (folder / "index.html").write_text("<title>lamp</title>")
    said = {key: value for key, value in {**LEAST, **fields}.items() if value is not None}
    path = folder / file
    path.write_text(json.dumps(said) if file.endswith("json") else yaml.safe_dump(said))
    return path


# -- what is refused ---
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"reward": None}, "reward is missing: add `reward: game.score`"),
        ({"rewards": "x"}, "there is no field rewards: did you mean reward?"),
        ({"colour": "red"}, "there is no field colour: take it out"),
        ({"reward": 1}, "reward: 1 is not a text: put it in quotes"),
        ({"end": True}, "end: true is not a text: put it in quotes"),
        ({"reward": " "}, "reward: string should have at least 1 character"),
        ({"name": "A b"}, "name: 'A b' is not of the form: lower-case letters"),
        ({"name": "tiles"}, "tiles is a world's name"),
        ({"reset": 5}, "reset: write reload, a JavaScript expression in quotes, or {parameter: NAME}"),
        ({"reset": {"param": "s"}}, "reset: write reload, a JavaScript expression"),
        ({"instruction": {"expr": "a"}}, "instruction: write a text, or {expression: JAVASCRIPT}"),
        ({"folder": None}, "give one of url, folder, package and server"),
        ({"url": "http://127.0.0.1/"}, "give one of url, folder, package and server"),
        ({"folder": None, "url": "ftp://x"}, "is not an http or https address"),
        ({"folder": None, "url": "http://me@x/"}, "is not an http or https address"),
        ({"folder": None, "package": "miniwob"}, "package: write pypi:NAME==VERSION"),
        ({"folder": None, "package": "pypi:a==1; rm -rf /"}, "package: write pypi:NAME==VERSION"),
        ({"folder": None, "package": "npm:a@1", "sha256": "12"}, "64 hexadecimal digits"),
        ({"folder": "nowhere"}, "there is no folder"),
        ({"start": "main.html"}, "there is no main.html in"),
        ({"start": "../secret.html"}, "leaves what is served"),
        ({"start": "{variant}.html"}, "variants must list them"),
        ({"variants": []}, "variants: write a list of names"),
        ({"viewport": [10, 300]}, "viewport: write [WIDTH, HEIGHT]"),
        ({"success": 0}, "success: 0 is not above floor: 0"),
        ({"threshold": 0}, "threshold: write a number above 0, 1 at most, or {VARIANT: NUMBER}"),
        ({"threshold": {"page": 1.5}}, "threshold: write a number above 0"),
        ({"threshold": {"pgae": 0.5}}, "threshold: pgae is no variant"),
        ({"seeded": False}, "write splits: [eval] or splits: [train]"),
        ({"origins": ["https://example.org/a"]}, "is not an origin"),
        ({"alias": {"lib.js": "/a.js"}}, "'lib.js' does not begin with /"),
        ({"max_steps": 0}, "max_steps: input should be greater than or equal to 1"),
        ({"state": {"board": 3}}, "state.board: 3 is not a text"),
        ({"path": "x"}, "no field path"),
        ({"server": {"command": ["x"]}}, "give one of url, folder, package and server"),
        ({"reward": {"sqlite": "a.db", "query": "select 1"}}, "reward is read outside of the page, which only"),
        ({"folder": None, "server": {}}, "server.command is missing"),
        ({"folder": None, "server": {"command": []}}, "server.command: "),
        ({"folder": None, "server": {"command": ["x"], "fodler": "y"}}, "server.fodler: it has no part fodler"),
        ({"folder": None, "server": {"command": ["x"], "folder": "none"}}, "server.folder: there is no folder"),
        ({"folder": None, "server": {"command": ["x"], "packages": ["x>=1"]}}, "server.packages: 'x>=1' is not of the"),
        ({"folder": None, "server": {"command": ["x"], "ready": "up"}}, "server.ready: 'up' is not of the form"),
        ({"folder": None, "server": {"command": ["x"]}, "alias": {"/a": "/b"}}, "alias goes with folder or package"),
        ({"reward": {"query": "select 1"}}, "reward: write JavaScript in quotes, {command: [WORD, ...]}, {sqlite"),
        ({"reward": {"sqlite": "a.db"}}, "reward: query is missing"),
        ({"login": {"run": "x()", "fill": {"a": "b"}, "submit": "c"}}, "login: give run, or fill and submit"),
        ({"login": {"fill": {"a": "b"}}}, "login: fill and submit go together"),
        ({"login": {"address": "/login"}}, "login: address goes with run, or with fill and submit"),
        ({"files": "a\0"}, "it has a character that no path or no file can hold"),
        ({"instruction": "Switch \ud800 on."}, "it has a character that no path or no file can hold"),
    ],
)
def test_a_wrong_manifest_is_refused_by_file_and_field_in_one_line(tmp_path, fields, part):
    path = write(tmp_path, **fields)
    with pytest.raises(BadInput) as caught:
        pages_manifest.load_page_manifest(path)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("m.yaml", "reward: a ? 1 : 0", "put expressions with ': ' or ' #' in quotes"),
        ("m.yaml", "name: a\nname: b", "name stands twice"),
        ("m.json", '{"name": "a", "name": "b"}', "name stands twice"),
        ("m.json", "{", "the manifest is not JSON"),
        ("m.yaml", "- a", "not a mapping"),
        ("m.yaml", "", "not a mapping"),
        ("m.yaml", "!!python/object/apply:os.system [ls]", "not YAML"),
        ("m.yaml", "a: " + "[" * 3000, "not YAML"),
        ("m.yaml", "a: !!bool maybe", "not YAML"),
        ("m.yaml", "a: !!timestamp x", "not YAML"),
        ("m.yaml", "a: !!int ''", "not YAML"),
        ("m.yaml", "a: !!map [b]", "not YAML"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, name, text, part):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match="manifest") as caught:
        pages_manifest.load_page_manifest(tmp_path / name)
    assert part in str(caught.value)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_ANY | st.dictionaries(st.sampled_from([*pages_manifest.PageManifest.model_fields, "other"]), _ANY))
def test_whatever_stands_in_a_manifest_the_error_is_named(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(BadInput):
        pages_manifest.load_page_manifest(path)


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no such manifest"):
        pages_manifest.load_page_manifest(tmp_path / "none.yaml")
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="UTF-8"):
        pages_manifest.load_page_manifest(tmp_path / "m.yaml")


# -- what is accepted ---
def test_json_and_yaml_say_the_same(tmp_path):
    one, other = (
        pages_manifest.load_page_manifest(write(tmp_path)),
        pages_manifest.load_page_manifest(write(tmp_path, "lamp.json")),
    )
    assert one.model_dump(exclude={"path"}) == other.model_dump(exclude={"path"})


def test_every_shipped_manifest_is_sound_and_pinned():
    found = pages_manifest.load_page_manifests(
        [str(pages_manifest.SHIPPED_MANIFESTS)], pages_manifest.SHIPPED_MANIFESTS
    )
    assert set(found) >= {"miniwob", "reveal", "click-docs", "jquery-ui", "datasette", "jupyterlab", "radicale"}
    for manifest in found.values():
        assert manifest.path.stem == manifest.name
        if manifest.server:  # its packages are named with their versions
            assert manifest.server.packages, manifest.name
        else:
            assert len(manifest.sha256) == 64, manifest.name
        assert pages_manifest.find_page_manifest(manifest.name) == manifest.path


@pytest.mark.parametrize("name", ["x" * 300, "y/" * 3000, "z" * 252])
def test_a_name_that_is_too_long_for_a_file_is_told_in_one_line(tmp_path, name):
    for find in (pages_manifest.find_page_manifest, lambda name: pages_manifest.load_page_manifests([name], tmp_path)):
        with pytest.raises(BadInput, match=r"no manifest.*File name too long.*give the path") as caught:
            find(name)
        assert len(str(caught.value)) < 250


def test_settings_name_files_folders_and_shipped_ones(tmp_path):
    (tmp_path / "more").mkdir()
    write(tmp_path / "more", "a.yaml", name="a")
    write(tmp_path / "more", "b.json", name="b")
    (tmp_path / "one").mkdir()
    write(tmp_path / "one")
    found = pages_manifest.load_page_manifests(["one/lamp.yaml", "more", "miniwob"], tmp_path)
    assert list(found) == ["lamp", "a", "b", "miniwob"]
    write(tmp_path / "more", "c.yaml", name="lamp")
    with pytest.raises(BadInput, match="the name lamp is that of"):
        pages_manifest.load_page_manifests(["one/lamp.yaml", "more"], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="has no manifests"):
        pages_manifest.load_page_manifests(["empty"], tmp_path)
    with pytest.raises(BadInput, match="no such manifest"):
        pages_manifest.load_page_manifests(["nothing"], tmp_path)


# -- tasks ---
@pytest.fixture
def lamp(tmp_path):
    return pages_manifest.load_page_manifest(
        write(tmp_path, variants=["red", "green"], instruction="Switch on the {variant} one.")
    )


def test_a_manifests_task_survives_its_row(lamp):
    task = page_tasks.make_page_task(lamp, "red", 7, "eval")
    assert (task.instruction, task.verifier, task.max_steps) == ("Switch on the red one.", "page:reward", 3)
    assert task_from_row(table_from_rows("tasks", [task_to_row(task)]).to_pylist()[0]) == task


def test_the_checksum_is_that_of_manifest_and_files(tmp_path, lamp):
    before = page_tasks.page_checksum(lamp)
    (tmp_path / "more.js").write_text("1")
    after = page_tasks.page_checksum(lamp)
    assert before != after
    assert page_tasks.page_checksum(lamp.model_copy(update={"max_steps": 4})) != after
    assert page_tasks.page_checksum(lamp) == after


@pytest.mark.parametrize("script", ["make.py", "check.py", "data/orders.json", "start.sh"])
def test_the_checksum_covers_scripts_that_commands_name(tmp_path, script):
    (tmp_path / "data").mkdir()
    for name in ("make.py", "check.py", "data/orders.json", "start.sh"):
        (tmp_path / name).write_text("1")
    server = {
        "command": ["{manifest}/start.sh", "{port}"],
        "setup": [["python", "{manifest}/make.py", "{manifest}/none.py", "{manifest}/data"]],
    }
    reward = {"command": ["sh", "-c", "python '{manifest}/check.py' {seed}; echo"]}
    shop = pages_manifest.load_page_manifest(write(tmp_path, folder=None, start=None, server=server, reward=reward))
    before = page_tasks.page_checksum(shop)
    (tmp_path / "beside.py").write_text("1")
    assert page_tasks.page_checksum(shop) == before
    (tmp_path / script).write_text("2")
    assert page_tasks.page_checksum(shop) != before


def test_pages_take_turns_with_the_worlds_of_their_domain(tmp_path, lamp):
    blink = write(tmp_path, "blink.yaml", name="blink", seeded=False, splits=["eval"])
    chosen = {"train_tasks": 40, "eval_tasks": 40, "manifests": [str(lamp.path), str(blink)]}
    settings = parse_settings({"synthesis": chosen}, where="test")
    train, held_out = (make_tasks(settings, 1, split, tmp_path) for split in ("train", "eval"))
    kinds = Counter((task.world, task.template) for task in train)
    assert kinds["lamp", "red"] + kinds["lamp", "green"] == 4  # of 13 in sites, a turn in three
    assert abs(kinds["lamp", "red"] - kinds["lamp", "green"]) <= 1
    assert "blink" not in {task.world for task in train}
    assert "blink" in {task.world for task in held_out}
    assert not {task_content(task) for task in train} & {task_content(task) for task in held_out}
    assert make_tasks(settings, 1, "train", tmp_path) == train


def test_pages_alone_are_enough(tmp_path, lamp):
    chosen = {"domains": {"sites": []}, "manifests": [str(lamp.path)], "train_tasks": 4, "eval_tasks": 4}
    settings = parse_settings({"synthesis": chosen, "merge": {"weights": {"sites": 1.0}}}, where="test")
    assert {task.world for task in make_tasks(settings, 0, "train", tmp_path)} == {"lamp"}


def test_by_default_no_page_is_named():
    assert Settings().synthesis.manifests == []


# -- sessions ---
def test_the_seed_goes_where_the_manifest_says(tmp_path):
    base = {"folder": None, "url": "https://example.org/game?level=2&seed=1#top", "reset": {"parameter": "seed"}}
    manifest = pages_manifest.load_page_manifest(write(tmp_path, **base))
    opened = ManifestPages({"lamp": manifest})
    session = opened.open(page_tasks.make_page_task(manifest, "page", 9, "eval"), 9)
    assert session.url == "https://example.org/game?level=2&seed=9#top"
    assert session.allowed == ("https://example.org/",)
    assert list_allowed_origins(session.allowed) == {("example.org", 443)}


def test_a_task_of_another_page_is_refused(tmp_path, lamp):
    opened = ManifestPages({"lamp": lamp})
    stranger = page_tasks.make_page_task(lamp.model_copy(update={"name": "other"}), "red", 1, "eval")
    assert not opened.knows(stranger)
    with pytest.raises(BadInput, match="no manifest is called 'other'"):
        opened.open(stranger, 1)
    with pytest.raises(BadInput, match="no variant 'blue'"):
        opened.open(page_tasks.make_page_task(lamp, "blue", 1, "eval"), 1)


# -- reading ---
def reader_of(manifest, variant="page"):
    return session.PageStateReader(manifest, TaskIdentity(manifest, f"http://127.0.0.1/{manifest.first}", variant, 1))


def look(told, page="index.html", **seen):
    """What a tab sees."""
    return {"game": told, "url": f"http://127.0.0.1/{page}", **seen}, page


def told(prepared=True, faults=None, **values):
    return {"values": {"reward": 0, **values}, "faults": faults or {}, "prepared": prepared}


def test_what_is_read_is_what_the_verifier_needs(lamp):
    state = reader_of(lamp, "red").state(*look(told(reward=0.5, **{"state.board": [1, 2]})))
    assert state["values"] == {"board": [1, 2]}
    assert score_final_state(page_tasks.make_page_task(lamp, "red", 1, "eval"), state) == 0.5


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return page_tasks.make_page_task(
        pages_manifest.load_page_manifest(write(tmp_path_factory.mktemp("scored"))), "page", 1, "eval"
    )


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.floats(0.01, 1e3))
def test_the_score_is_the_way_from_floor_to_success(scored, reward, floor, span):
    value = score_final_state(scored, {"reward": reward, "floor": floor, "success": floor + span})
    assert value == pytest.approx(min(max((reward - floor) / span, 0), 1), abs=1e-6)


def test_a_state_without_reward_is_a_data_error(lamp):
    with pytest.raises(DataError, match="page:reward"):
        score_final_state(page_tasks.make_page_task(lamp, "red", 1, "eval"), {"page": ""})


@pytest.mark.parametrize(
    ("faults", "more", "part"),
    [
        ({"reward": "SyntaxError: bad"}, {}, "reward must be one JavaScript expression"),
        ({"reset": "SyntaxError: bad"}, {}, "reset must be JavaScript"),
        ({"reward": "ReferenceError: game is not defined"}, {}, "give `ready: typeof NAME !== 'undefined'`"),
        ({"reward": "ReferenceError: game is not defined"}, {"modules": 1}, "scripts are modules"),
        ({"reward": "x"}, {"failed": ["http://cdn/a.js"]}, "could not load http://cdn/a.js"),
        ({"reward": 'it gives the text "3"; a number is needed'}, {}, "write Number(...)"),
        ({"end": "it gives null; true or false is needed"}, {}, "Boolean(...)"),
        ({"reward": "a", "end": "b"}, {}, "(and 1 more fields)"),
    ],
)
def test_a_fault_says_how_to_mend_it(lamp, faults, more, part):
    with pytest.raises(EnvError) as caught:
        reader_of(lamp, "red").state(*look({**told(faults=faults), **more}))
    assert part in str(caught.value)
    assert str(caught.value).startswith(f"lamp.yaml: {next(iter(faults))}: ")


def test_another_document_may_lack_what_the_first_one_told(lamp):
    """A page that is not there tells nothing: what was told last holds, and the first one must tell all."""
    reader = reader_of(lamp, "red")
    reader.state(*look(told(reward=1), "index.html"))
    nothing = {"values": {}, "faults": {"reward": "ReferenceError: lamp"}, "prepared": False}
    lost = reader.state(*look(nothing, "none.html"))
    assert (lost["reward"], lost["page"]) == (1, "none.html")
    assert lost["unread"] == {"reward": "ReferenceError: lamp"}
    with pytest.raises(EnvError, match="reward"):
        reader.state(*look(told(faults={"reward": "ReferenceError: lamp"}), "index.html"))


def test_a_page_that_was_loaded_anew_rewards_nothing_where_javascript_reset_it(tmp_path):
    """Else another, easier task than the one that was asked could be solved."""
    manifest = pages_manifest.load_page_manifest(write(tmp_path, reset="lamp.start(seed)"))
    reader = reader_of(manifest)
    reader.state(*look(told(reward=0), "index.html"))
    assert reader.state(*look(told(prepared=False, reward=1), "index.html"))["reward"] == 0
    following = reader_of(manifest.model_copy(update={"follow": True}))
    following.state(*look(told(reward=0), "index.html"))
    assert following.state(*look(told(prepared=False, reward=1), "index.html"))["reward"] == 1


def test_a_reset_may_lead_to_another_page(tmp_path):
    reader = reader_of(pages_manifest.load_page_manifest(write(tmp_path, reset="location.href = `?${seed}`")))
    reader.state(*look(told(prepared=False, reward=0), "index.html?1"))
    assert reader.state(*look(told(prepared=False, reward=1), "index.html?1"))["reward"] == 1

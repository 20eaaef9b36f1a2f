"""`flywheel env page`: trying a manifest, listing and fetching."""

from __future__ import annotations

import json
from pathlib import Path

import damaged
import pytest
import yaml
from click.testing import CliRunner
from page_servers import lay as lay_orders

from flywheel.cli import main
from flywheel.envs import isolation

PAGE = """<script>window.game = {clicks: 0, seed: null, start(seed) { this.seed = seed; }}</script>
<button onclick='game.clicks += 1' style='position:fixed;inset:0'>more</button><img src=lost.png>"""
SAID = {
    "title": "A counter",
    "folder": ".",
    "instruction": "Click three times.",
    "reward": "game.clicks",
    "success": 3,
    "max_steps": 6,
    "reset": "game.start(seed)",
    "seeded": False,
    "splits": ["eval"],
}


def lay(folder, **fields):
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "page.yaml").write_text(yaml.safe_dump({"name": folder.name, **SAID, **fields}))


def typed(*words):
    answer = CliRunner().invoke(main, ["env", "page", *map(str, words)])
    return answer.exit_code, answer.output


def tried(folder, *options):
    return typed("try", folder / "page.yaml", "--timeout", 60, "--screenshot", folder / "screen.png", *options)


def test_trying_a_page_tells_all_and_draws_it(tmp_path):
    lay(tmp_path / "counter", state={"seed": "game.seed"})
    status, said = tried(tmp_path / "counter", "--seed", 5)
    assert status == 0, said
    assert (tmp_path / "counter" / "screen.png").read_bytes().startswith(b"\x89PNG")
    for part in (
        "Click three times.",
        "state.seed         5",
        "/lost.png was asked for",
        "page says",
        "check determinism  holds (1 of ",
    ):
        assert part in said
    assert said.splitlines()[-1] == "counter: it works"


def test_the_instruction_that_is_told_is_that_of_the_variant(tmp_path):
    lay(tmp_path / "counter", variants=["once", "twice"], instruction="Click {variant}.")
    assert "Click twice." in tried(tmp_path / "counter", "--variant", "twice", "--no-check")[1]


def test_a_dialog_over_the_first_screen_is_told_since_nothing_was_read(tmp_path):
    lay(tmp_path / "counter")
    (tmp_path / "counter" / "index.html").write_text("<script>alert('hello')</script>" + PAGE)
    said = tried(tmp_path / "counter", "--no-check")[1]
    assert "dialog             alert: hello" in said
    assert "until it is answered, nothing of the page is read" in said
    assert "reward " not in said.partition("random play")[0]


def test_a_few_damaged_pages_end_in_no_traceback_hang_or_loss(tmp_path):
    (case,) = damaged.cases(4, 5, 120.0, tmp_path, ["page_try"])
    told = json.loads(case.line())
    assert told["met"], told
    assert (told["accepted"], told["refused"]) == (1, 3)


def test_trying_a_wrong_page_ends_in_one_line_and_in_status_1(tmp_path):
    lay(tmp_path / "wrong", reward="game.points")
    status, said = tried(tmp_path / "wrong")
    assert status == 1
    assert said.splitlines()[-1].startswith("wrong: it does not work: page.yaml: reward: it gives undefined")


def test_what_a_manifest_runs_is_told_before_anything_runs(tmp_path):
    lay_orders(
        tmp_path, {"command": ["python", "-c", "raise SystemExit('no')", "{port}"], "reads": ["/opt/x y"]},
        state={"free": {"command": ["df", "a b"]}},
    )  # fmt: skip
    status, said = typed("try", tmp_path / "page.yaml", "--screenshot", tmp_path / "screen.png")
    assert status == 1
    assert [line.split(maxsplit=1) for line in said.splitlines()[:4]] == [
        ["server.reads", "/opt/x y"],
        ["server.setup", "python '{manifest}/make.py' '{seed}'"],
        ["server.command", "python -c 'raise SystemExit('\"'\"'no'\"'\"')' '{port}'"],
        ["state.free", "df 'a b'"],
    ]


@pytest.mark.skipif(
    bool(isolation.explain_missing_bwrap())
    or not Path("/var/lib/git").is_dir()
    or not Path("/usr/bin/python3").exists(),
    reason="no bubblewrap, or none of Debian's git and Python",
)
@pytest.mark.parametrize("program", ["git", "python"])
def test_what_a_servers_program_cannot_see_of_its_package_is_told(tmp_path, program):
    by_git = ["git", "-c", "alias.serve=!exec /usr/bin/python3 server.py", "serve", "{port}"]
    lay_orders(tmp_path, {"command": by_git} if program == "git" else None)
    said = tried(tmp_path, "--no-check")[1]
    assert "kept apart by bubblewrap" in said
    unseen = [line for line in said.splitlines() if line.startswith("not seen")]
    told = "not seen           /var/lib/git, of the package of git: see server.reads"
    assert unseen == ([told] if program == "git" else [])


def test_a_task_that_is_solved_at_once_is_none(tmp_path):
    lay(tmp_path / "won", success=-1, floor=-2)
    status, said = tried(tmp_path / "won", "--no-check", "--json")
    assert status == 1
    assert "solved before anything is done" in json.loads(said)["verdict"]


def test_a_manifest_that_is_wrong_or_not_there_is_status_2(tmp_path):
    lay(tmp_path / "bad", max_steps=0)
    assert tried(tmp_path / "bad")[0] == 2
    assert typed("try", tmp_path / "none.yaml")[0] == 2
    lay(tmp_path / "good")
    assert tried(tmp_path / "good", "--variant", "red")[0] == 2
    assert typed("fetch", tmp_path / "good" / "page.yaml")[0] == 2


def test_the_list_has_the_shipped_ones():
    status, said = typed("list", "--json")
    assert status == 0
    assert {"miniwob", "reveal", "click-docs", "jquery-ui"} <= {row["name"] for row in json.loads(said)}


RACING = (
    PAGE.replace("<img src=lost.png>", "")
    + """<script type=module>const how = {name: 'HMAC', hash: 'SHA-256'};
const key = await crypto.subtle.generateKey(how, true, ['sign']);
document.querySelector('button').textContent = (await crypto.subtle.exportKey('jwk', key)).k;
new WebSocket('ws://127.0.0.1:9/')</script>"""
)


@pytest.mark.exhaustive
def test_what_may_differ_is_named_by_what_the_page_uses(tmp_path):
    """Two first screens that are unlike: the check says which of the page's features may be to blame."""
    lay(tmp_path / "racing")
    (tmp_path / "racing" / "index.html").write_text(RACING)
    status, said = tried(tmp_path / "racing")
    assert status == 1
    assert "the page uses what may differ from time to time" in said
    for part in ("crypto.subtle.generateKey, whose keys are new", "WebSocket, whose messages come when they will"):
        assert part in said
    assert "video" not in said


@pytest.mark.exhaustive
def test_screens_that_differ_are_no_fault_of_a_page_that_is_not_exact(tmp_path):
    """In none of the suite's clauses, those that compare an action that does nothing with waiting included."""
    lay(tmp_path / "racing", exact=False)
    (tmp_path / "racing" / "index.html").write_text(RACING)
    status, said = tried(tmp_path / "racing")
    assert status == 0, said
    assert "check actions      differs, as exact: false says" in said

"""A site is explored in a real browser: its functions become tasks that hold, and what is wrong with it is counted."""

from __future__ import annotations

import json

import pytest

from flywheel.config import SandboxSettings
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.synthesis.exploration.page_view import read_page_view
from flywheel.synthesis.exploration.site_explorer import ExploreBudget
from flywheel.synthesis.exploration.site_source import find_site
from flywheel.synthesis.exploration.site_tasks import explore_site
from flywheel.synthesis.exploration.steps import ScriptStep, play_step
from flywheel.synthesis.funnel import read_funnel
from flywheel.utils.errors import BadInput

HEAD = "<!doctype html><meta charset=utf-8>"
PAGES = {
    "index.html": f"""{HEAD}<title>Home</title><h1>Home</h1><ul>
      <li><a href=editor.html>Editor</a><li><a href=endless.html?at=1>Endless</a>
      <li><a href=asks.html>Asks</a>
      <li><a href=login.html>Members</a><li><a href=huge.html>Huge</a><li><a href=none.html>Gone</a>
      <li><a href=mailto:ada@example.org>Mail</a><li><a href=https://example.org/>Elsewhere</a>
      <li><a href=file.csv>File</a></ul><button onclick="document.title = 'x'">Log out</button>""",
    "editor.html": f"""{HEAD}<title>Editor</title><h1>Editor</h1>
      <button aria-expanded=false onclick="this.ariaExpanded = true; list.hidden = false">File</button>
      <div id=list role=menu hidden><button role=menuitem onclick="panel.hidden = false; list.hidden = true">Rename
      </button></div>
      <form id=panel hidden 
        onsubmit="localStorage.title = t.value; said.textContent = 'Saved ' + t.value; return false">
        <label>Title <input id=t required></label><button>Save</button></form><p id=said></p>
      <label><input id=wrap type=checkbox> Wrap lines</label>
      <label>Size <select id=size><option>Small<option>Large</select></label>
      <button onclick="0">Nothing</button>""",
    "endless.html": f"""{HEAD}<title>Endless</title><a id=next>Next</a><script>
      next.href = '?at=' + (Number(new URLSearchParams(location.search).get('at')) + 1)</script>""",
    "asks.html": f"""{HEAD}<title>Asks</title>
      <button onclick="for (let i = 0; i < 9; i++) confirm('Again ' + i)">Ask</button>""",
    "login.html": f"""{HEAD}<title>Log in</title>
      <form><label>Password <input type=password></label><button>Log in</button></form>""",
    "file.csv": "a,b\n",
}


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    (folder / "pages").mkdir()
    for name, text in PAGES.items():
        (folder / "pages" / name).write_text(text)
    (folder / "pages" / "huge.html").write_text(HEAD + "x" * 9_000_000)
    source = find_site(str(folder / "pages"), 0)
    return folder, explore_site(source, folder / "out", most=8, budget=ExploreBudget(pages=12, actions=120))


def test_functions_are_found_behind_menus_and_prerequisites_are_one_task(explored):
    made = explored[1]
    told = [one["instruction"] for one in made.tasks.values()]
    rename = "On the page “Editor”, press “File”, choose “Rename”, enter “Spring plans” in “Title”, and press “Save”."
    assert any(re_title(text) == re_title(rename) for text in told), told
    assert any("tick “Wrap lines”" in text and "choose “Large” in “Size”" in text for text in told)  # an extension
    assert not any(word in " ".join(told) for word in ("Nothing", "Log out", "Ask"))
    assert read_funnel(made.path.parent / "pages-site").stages[-1].left == len(told) >= 5
    for one in made.tasks.values():  # what a solver repeats and says
        thoughts = one["proof"]["thoughts"]
        assert len(thoughts) == len(one["proof"]["actions"]) >= 2
        assert all(thought.startswith("I ") and not {"“", "”"} & {*thought} for thought in thoughts)


def re_title(text):
    """Leave out which of its samples was typed."""
    head, _, tail = text.partition("enter “")
    return head + tail.partition("”")[2]


def test_what_is_wrong_with_the_site_is_counted(explored):
    counts = explored[1].funnel["counts"]
    assert counts["traps not tried"] == 1  # Log out
    assert counts["pages that are too long"] == counts["broken pages"] == counts["links to files"] == 1
    assert counts["dialogs without end"] == 1
    assert counts["pages behind a login"] == 1
    assert counts["pages"] == 4  # the endless ones are one
    assert counts["links elsewhere"] >= 1
    assert counts["operations without an effect"] >= 1


async def test_a_task_is_solved_by_its_script_and_by_nothing_less(explored):
    made = explored[1]
    manifest = load_page_manifest(made.path)
    name = next(name for name, one in made.tasks.items() if "Rename" in one["instruction"])
    script = [ScriptStep(**step) for step in made.tasks[name]["proof"]["script"]]
    task = make_page_task(manifest, name, 3, "train")
    assert task.instruction == made.tasks[name]["instruction"]
    settings = SandboxSettings(browsers=1, pages=1, timeout_s=20)
    async with (
        ManifestPages({manifest.name: manifest}) as pages,
        BrowserPool(settings, pages) as pool,
        pool.env() as env,
    ):
        result = await env.reset(task, task.seed)
        view, rewards = await read_page_view(env.tab), [result.info["score"]]
        for step in script:
            view, _, result = await play_step(env, step, view)
            rewards.append(result.info["score"])
        assert (rewards, result.terminated) == ([0.0] * len(script) + [1.0], True)


@pytest.mark.exhaustive
def test_the_same_site_and_seed_give_the_same_bytes(explored):
    folder, made = explored
    before = made.path.read_bytes(), (folder / "out" / "pages-site" / "funnel.json").read_bytes()
    explore_site(
        find_site(str(folder / "pages"), 0), folder / "out", most=8, budget=ExploreBudget(pages=12, actions=120)
    )
    assert before == (made.path.read_bytes(), (folder / "out" / "pages-site" / "funnel.json").read_bytes())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PAGES["login.html"], "asks for a login"),
        (f"{HEAD}<p>Nothing here.", "no task came of this site"),
        (f"{HEAD}<script>while (true) alert('again')</script>", "dialogs without end"),
    ],
)
def test_a_site_of_which_no_task_comes_leaves_nothing_behind(tmp_path, text, told):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text(text)
    with pytest.raises(BadInput, match=told):
        explore_site(find_site(str(tmp_path / "pages"), 0), tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


SERVER = """
import http.server, os, sqlite3, sys, urllib.parse
base = sqlite3.connect('notes.db')
base.execute('create table if not exists notes (id integer primary key, text text)')
base.commit()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        drawn = ''.join(map(chr, (97 + byte % 26 for byte in os.urandom(12)))) if self.path == '/drawn' else ''
        rows = ''.join(f'<li>{text}' for (text,) in base.execute('select text from notes'))
        text = f'''<!doctype html><meta charset=utf-8><title>Notes {self.path}</title><ul>{rows}</ul>{drawn}
          <a href=/new>New note</a> <a href=/drawn>Drawn</a>'''
        if self.path == '/new':
            text += '<form method=post action=/><label>Note <input name=note></label><button>Add</button></form>'
        if self.path == '/drawn':
            text += f"<button id=b onclick=\\"b.after('{drawn}')\\">Show</button>"
        self.answer(200, text)
    def do_POST(self):
        sent = urllib.parse.parse_qs(self.rfile.read(int(self.headers['Content-Length'])).decode())
        base.execute('insert into notes (text) values (?)', (sent['note'][0],))
        base.commit()
        self.send_response(303)
        self.send_header('Location', '/')
        self.end_headers()
    def answer(self, status, text):
        self.send_response(status)
        self.send_header('Content-Type', 'text/html')
        self.end_headers()
        self.wfile.write(text.encode())
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Page).serve_forever()
"""


def test_a_servers_database_verifies_and_a_page_that_is_never_the_same_gives_no_task(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "serve.py").write_text(SERVER)
    raw = {"name": "notes", "server": {"command": ["python", "serve.py", "{port}"], "folder": "site"}}
    (tmp_path / "notes.json").write_text(json.dumps(raw))
    made = explore_site(
        find_site(str(tmp_path / "notes.json"), 0), tmp_path / "out", most=4, budget=ExploreBudget(pages=4, actions=30)
    )
    (task,) = [one for one in made.tasks.values() if isinstance(one["reward"], dict)]
    assert re_title(task["instruction"]) == "On the page “Notes /new”,  in “Note” and press “Add”."
    assert task["reward"]["sqlite"] == "notes.db"
    assert not any("Show" in one["instruction"] for one in made.tasks.values())
    assert made.funnel["counts"]["states that were not the same again"] >= 1
    assert load_page_manifest(made.path).server.folder == "notes/site"

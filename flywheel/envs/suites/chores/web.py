"""Draw chores for a browser and a shell: download and process, make and upload, fill in a form, serve and look."""

from __future__ import annotations

import random
from typing import Any

from flywheel.agent.actions import Click, Finished, Hotkey, Point, ReadFile, RunPython, Terminal, Type, Wait, WriteFile
from flywheel.envs.suites.chores.family import (
    PEOPLE_NAMES,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_words,
    step_budgets,
)

_CITIES = ("Bergen", "Cork", "Dakar", "Ghent", "Hanoi", "Lima", "Oslo", "Porto", "Quito", "Riga", "Turin", "Vigo")
_SITE = "http://127.0.0.1:8000/"
_OPEN = [["browser", _SITE]]


def _page(title: str, body: str) -> str:
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>{body}"


def _tab(count: int) -> ExpertSteps:
    for _ in range(count):
        yield "I go on to the next link or field.", Hotkey(("tab",))


def _download(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw tables to download from a page: the only one (level 1), one of three (2), behind a second page (3)."""
    tables = draw_words(rng, 1 if level == 1 else 3)
    asked = rng.randrange(len(tables))
    rows = {
        table: [(name, rng.randint(5, 500)) for name in rng.sample(PEOPLE_NAMES, 3 + 2 * level)] for table in tables
    }
    csvs = {f"{table}.csv": "name,amount\n" + "".join(f"{n},{a}\n" for n, a in rows[table]) for table in tables}
    links = _page("Tables", "".join(f"<p><a href={path} download>{path}</a></p>" for path in csvs))
    site = {"index.html": links, **csvs}
    if level == 3:
        site |= {"tables.html": links, "index.html": _page("Office", "<p><a href=tables.html>All tables</a></p>")}
    out, total = f"{draw_words(rng, 1)[0]}.txt", sum(amount for _, amount in rows[tables[asked]])
    return {"site": site, "files": {}, "apps": _OPEN, "wanted": {out: f"{total}\n"}, "table": f"{tables[asked]}.csv",
            "tabs": asked + 1, "out": out, "deep": level == 3}  # fmt: skip


def _play_download(p: ChoreParams) -> ExpertSteps:
    if p["deep"]:
        yield from _tab(1)
        yield "I open the page of all tables.", Hotkey(("enter",))
    yield from _tab(p["tabs"])
    yield "I download it.", Hotkey(("enter",))
    yield "I look whether it is there.", Terminal("cat Downloads/*.csv")
    code = (
        f"import csv\nrows = list(csv.DictReader(open('Downloads/{p['table']}')))\n"
        f"open({p['out']!r}, 'w').write(f\"{{sum(int(row['amount']) for row in rows)}}\\n\")\n"
    )
    yield "I write the sum of its amounts.", RunPython(code)


def _upload(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a file to upload: as it is (level 1), its lines sorted (2), sorted and each once (3)."""
    source, out, *words = draw_words(rng, 8)
    lines = [rng.choice(words) for _ in range(4 + 2 * level)] if level == 3 else words[: 3 + level]
    rng.shuffle(lines)
    made = {1: lines, 2: sorted(lines), 3: sorted(set(lines))}[level]
    form = (
        "<form method=post action=send enctype=multipart/form-data><p><input type=file name=file>"
        "<p><button>Send</button></form>"
    )
    name = f"{source}.txt" if level == 1 else f"{out}.txt"
    what = f"Upload {name}"
    if level > 1:
        how = "in alphabetical order" + (", each of them once" if level == 3 else "")
        what = f"Write the lines of {source}.txt {how} into {name}, and upload that"
    content = "".join(f"{line}\n" for line in made)
    return {"site": {"index.html": _page("Upload", form)}, "apps": _OPEN, "received": {"file": content}, "what": what,
            "files": {f"{source}.txt": "".join(f"{line}\n" for line in lines)}, "name": name,
            "made": level > 1}  # fmt: skip


def _play_upload(p: ChoreParams) -> ExpertSteps:
    if p["made"]:
        yield "I make the file.", WriteFile(p["name"], p["received"]["file"])
    yield from _tab(1)
    yield "I choose a file.", Hotkey(("enter",))
    yield "The dialog opens.", Wait()
    yield "I type where it is.", Type(f"/home/user/{p['name']}")
    yield "I open it.", Click(Point(0.9375, 0.953))  # after a key the dialog stays until something else moves
    yield "The dialog closes.", Wait()
    yield from _tab(1)
    yield "I send it.", Hotkey(("enter",))


def _fill(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a form of `level` + 1 fields, whose values are in a file."""
    path = f"{draw_words(rng, 1)[0]}.txt"
    fields = ["name", "city", "age", "note"][: 1 + level]
    values = {"name": rng.choice(PEOPLE_NAMES), "city": rng.choice(_CITIES), "age": str(rng.randint(18, 80))}
    values["note"] = " ".join(draw_words(rng, 2))
    inputs = "".join(f"<p><label>{field}: <input name={field} autocomplete=off></label>" for field in fields)
    form = f"<form method=post action=send>{inputs}<p><button>Send</button></form>"
    sent = {field: values[field] for field in fields}
    order = rng.sample(fields, len(fields))  # not in the order of the form
    text = "".join(f"{field}: {values[field]}\n" for field in order)
    return {"site": {"index.html": _page("Form", form)}, "apps": _OPEN, "files": {path: text}, "received": sent,
            "path": path}  # fmt: skip


def _play_fill(p: ChoreParams) -> ExpertSteps:
    yield "I read the values.", ReadFile(p["path"])
    for field, value in p["received"].items():
        yield from _tab(1)
        yield f"I type the {field}.", Type(value)
    yield "I send the form.", Type("\n")


def _look(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a page whose script computes a code: it is open (level 1), behind a link (2), served by the agent (3)."""
    code = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=6))
    key = rng.randint(1, 30)
    hidden = [ord(letter) ^ key for letter in code]
    script = (
        f"<p>Your code: <b id=c></b><script>c.textContent=String.fromCharCode(...{hidden}.map(n=>n^{key}))</script>"
    )
    page = _page("Code", script)
    if level == 3:
        folder, port = draw_words(rng, 1)[0], rng.randint(8100, 8900)
        ask = f"Serve the folder {folder} at port {port}, open its index.html there in the browser"
        return {"site": {"index.html": _page("Start", "")}, "apps": _OPEN, "files": {f"{folder}/index.html": page},
                "answer": code, "folder": folder, "port": port, "level": level, "ask": ask}  # fmt: skip
    site = {"index.html": page}
    if level == 2:
        site = {"index.html": _page("Start", "<p><a href=code.html>Your code</a>"), "code.html": page}
    ask = "Open the page of your code" if level == 2 else "Look at the page in the browser"
    return {"site": site, "files": {}, "apps": _OPEN, "answer": code, "level": level, "ask": ask}


def _play_look(p: ChoreParams) -> ExpertSteps:
    if p["level"] == 2:
        yield from _tab(1)
        yield "I open it.", Hotkey(("enter",))
    if p["level"] == 3:
        command = f"python3 -m http.server {p['port']} --directory {p['folder']} >/dev/null 2>&1 &"
        yield "I start a server.", Terminal(command)
        yield "I go to the address bar.", Hotkey(("ctrl", "l"))
        yield "I open its page.", Type(f"127.0.0.1:{p['port']}\n")
    yield "I read the code.", Wait()
    yield "That is it.", Finished(p["answer"])


FAMILIES = {
    "download": ChoreFamily(
        "Download {table} from the web page that is open, and write the sum of its amounts into {out}.",
        _download, _play_download, step_budgets(10, 12, 14),
    ),
    "upload": ChoreFamily("{what} at the web page that is open.", _upload, _play_upload, step_budgets(14, 16, 16)),
    "fill": ChoreFamily(
        "Fill in the form of the web page that is open with what stands in {path}, and send it.",
        _fill, _play_fill, step_budgets(12, 14, 16),
    ),
    "look": ChoreFamily("{ask}. Which code does it show?", _look, _play_look, step_budgets(6, 8, 10)),
}  # fmt: skip

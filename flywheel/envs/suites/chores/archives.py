"""Draw chores that pack and unpack archives."""

from __future__ import annotations

import base64
import io
import random
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import ListFiles, Terminal
from flywheel.envs.suites.chores.family import (
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_text,
    draw_words,
    step_budgets,
)

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same files make the same archive


def build_zip(files: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, _LONG_AGO), content)
    return out.getvalue()


def build_tar(files: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, content in files.items():
            about = tarfile.TarInfo(path)
            about.size = len(content.encode())
            archive.addfile(about, io.BytesIO(content.encode()))
    return out.getvalue()


def _pack(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw files to pack: a folder as a zip (level 1), as a compressed tar (2), its .txt files alone as a zip (3)."""
    folder, archive, inner, *words = draw_words(rng, 8)
    paths = [f"{folder}/{words[0]}.txt", f"{folder}/{words[1]}.txt", f"{folder}/{inner}/{words[2]}.txt"]
    files = {path: draw_text(rng, 2) for path in paths[: max(2, level)]}
    packed = dict(files)
    if level == 3:
        files |= {f"{folder}/{words[3]}.csv": "a,b\n1,2\n", f"{folder}/{inner}/{words[4]}.log": draw_text(rng, 1)}
    name = f"{archive}.{'tar.gz' if level == 2 else 'zip'}"
    what = f"all .txt files of the folder {folder}, those in its folders too" if level == 3 else f"the folder {folder}"
    return {"files": files, "packed": {name: packed}, "name": name, "what": what, "folder": folder, "only": level == 3}


def _play_pack(p: ChoreParams) -> ExpertSteps:
    yield "I look at the folder.", Terminal(f"find {p['folder']} -type f")
    if p["name"].endswith(".tar.gz"):
        yield "I pack it.", Terminal(f"tar -czf {p['name']} {p['folder']}")
        return
    what = f"Path({p['folder']!r}).rglob({'*.txt' if p['only'] else '*'!r})"
    program = (
        f"import zipfile; from pathlib import Path; z = zipfile.ZipFile({p['name']!r}, 'w'); "
        f"[z.write(f) for f in sorted({what}) if f.is_file()]; z.close()"
    )
    yield "I pack it, with Python, which can write zip files.", Terminal(f'python3 -c "{program}"')


def _unpack(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw an archive to unpack: a zip (level 1), a tar (2), a zip in a zip (3)."""
    folder, archive, inner, *words = draw_words(rng, 8)
    files = {f"{word}.txt": draw_text(rng, 2) for word in words[: 1 + level]}
    name = f"{archive}.{'tar' if level == 2 else 'zip'}"
    data = build_tar(files) if level == 2 else build_zip(files)
    if level == 3:
        data = build_zip({f"{inner}.zip": data})
    deep = f" It holds {inner}.zip: unpack this one there too." if level == 3 else ""
    return {
        "files": {},
        "binary": {name: base64.b64encode(data).decode()},
        "wanted": {f"{folder}/{path}": content for path, content in files.items()},
        "name": name, "folder": folder, "deep": deep, "inner": inner,
    }  # fmt: skip


def _play_unpack(p: ChoreParams) -> ExpertSteps:
    yield "I look at what is there.", ListFiles(".")
    if p["name"].endswith(".tar"):
        yield (
            "I unpack it into the folder.",
            Terminal(f"mkdir -p {p['folder']} && tar -xf {p['name']} -C {p['folder']}"),
        )
        return
    yield "I unpack it into the folder.", Terminal(f"python3 -m zipfile -e {p['name']} {p['folder']}")
    if p["deep"]:
        yield (
            "I unpack the one that lay in it.",
            Terminal(f"cd {p['folder']} && python3 -m zipfile -e {p['inner']}.zip ."),
        )


FAMILIES = {
    "pack": ChoreFamily(
        "Pack {what} into {name}, with their paths as they are here.", _pack, _play_pack, step_budgets(6, 6, 8)
    ),
    "unpack": ChoreFamily(
        "Unpack {name}, so that its files lie in the folder {folder}.{deep}",
        _unpack,
        _play_unpack,
        step_budgets(6, 6, 8),
    ),
}

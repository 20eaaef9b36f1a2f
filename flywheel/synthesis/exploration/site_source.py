"""Find the site that is explored: by a manifest, whose tasks are left out, by a folder, or by an address."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from flywheel.envs.browser.pages import manifest as manifests
from flywheel.envs.browser.pages import packages
from flywheel.envs.browser.pages.manifest import PageManifest
from flywheel.envs.browser.pages.packages import ServerPrograms
from flywheel.envs.browser.pages.server import PageServer
from flywheel.utils.errors import BadInput

VIEWPORT = (1024, 720)  # of a site whose manifest asks for none
_OF_A_TASK = (  # fields of a manifest that its own tasks are made by, which an exploration leaves out
    "instruction",
    "reward",
    "success",
    "floor",
    "threshold",
    "end",
    "state",
    "variants",
    "tasks",
    "max_steps",
    "level",
    "seeded",
    "splits",
    "follow",
)
_LONGEST = 10_000  # steps of a session
SERVER_FOLDER = "site"


class SiteSource:
    """Hold where a site comes from, with the seed filled in: nothing in it depends on a seed any more.

    raw: fields of a manifest that say so. folder: from which the fields' paths count. seed: that the site is reset
    with.
    """

    def __init__(self, raw: Mapping[str, Any], folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        variants = raw.get("variants") or ["page"]
        variant = variants if isinstance(variants, str) else variants[0]
        fields = {key: value for key, value in raw.items() if key not in _OF_A_TASK}
        names = {"{seed}": str(seed), "{variant}": str(variant)}
        filled = json.dumps({key: value for key, value in fields.items() if key != "reset"})
        for name, value in names.items():
            filled = filled.replace(name, value)
        self.raw: dict[str, Any] = json.loads(filled)
        reset = raw.get("reset", "reload")
        if isinstance(reset, Mapping):
            for place in {"url", "start"} & self.raw.keys() or {"start"}:
                address = self.raw.get(place, "index.html" if "server" not in raw else "")
                self.raw[place] = f"{address}{'&' if '?' in address else '?'}{reset['parameter']}={seed}"
        elif reset != "reload":
            used = re.search(r"\b(seed|variant)\b", reset)
            self.raw["reset"] = f"seed = {seed}; variant = {json.dumps(variant)};\n{reset}" if used else reset
        self.raw.setdefault("viewport", list(VIEWPORT))

    def make_manifest(self, **fields: Any) -> PageManifest:
        """Make a page manifest of the site, with more or other `fields`. Raises BadInput where it is wrong."""
        told = {
            "instruction": "Explore.",
            "reward": "0",
            "success": 1,
            "max_steps": _LONGEST,
            "seeded": False,
            "splits": ["train"],
            "follow": True,
            **self.raw,
            **fields,
        }
        try:
            return PageManifest.model_validate({**told, "path": self.folder / f"{self.raw['name']}.yaml"})
        except ValidationError as error:
            known = list(PageManifest.model_fields)
            fault = manifests.describe_manifest_fault(error.errors()[0], known)
            raise BadInput(f"the manifest is wrong: {fault}", where=self.raw["name"]) from None

    async def freeze(self, kept: Path, out: Path) -> None:
        """Store the files that the site's server begins with in the folder `kept`, and refer to them from then on.

        out: the folder in which `kept` lies, and from which the manifest's paths count then. Call it once only. Raises
        EnvError where a command of `server.setup` fails, BadInput where a program is missing, OSError where a folder
        cannot be made.
        """
        for name in ("folder", "files"):
            if self.raw.get(name) and not (name == "folder" and self.raw.get("package")):
                self.raw[name] = Path(os.path.relpath(self.folder / self.raw[name], out)).as_posix()  # noqa: ASYNC240
        if "server" in self.raw:
            manifest = self.make_manifest()
            server = PageServer(manifest, manifest.variants[0], self.seed, ServerPrograms(manifest))
            try:
                await server.prepare_folder()
                shutil.copytree(server.folder, kept / SERVER_FOLDER, symlinks=True)
            finally:
                await server.wait_gone()
            told = {key: value for key, value in self.raw["server"].items() if key not in ("setup", "folder")}
            self.raw["server"] = told | {"folder": f"{kept.name}/{SERVER_FOLDER}"}
        self.folder = out


def find_site(name: str, seed: int) -> SiteSource:
    """Find the site that `flywheel tasks explore` is given by name.

    name: a manifest's file, the name of a shipped manifest, a folder of pages, or an address. seed: that the site is
    reset with. Only where a site comes from is read of a manifest, so that it may leave out title, instruction, reward,
    success and max_steps; its packages are fetched and its server's installed where they are not here, which may take
    minutes. Raises BadInput where there is none of these, or the manifest is wrong, EnvError where a package cannot be
    fetched or installed, OSError where the cache cannot be written.
    """
    if name.startswith(("http://", "https://")):
        try:
            host = re.sub(r"[^a-z0-9.-]+", "-", (urlsplit(name).hostname or "").lower())
        except ValueError as error:
            raise BadInput(f"not an address: {error}", where=name, fix="such as http://127.0.0.1:8000/ is") from None
        return SiteSource({"name": host.strip(".-") or "site", "title": name, "url": name}, Path.cwd(), seed)
    place = Path(name)
    if place.is_dir():
        pages = sorted(place.glob("*.htm*"))
        start = next((page.name for page in pages if page.stem == "index"), pages[0].name if pages else "")
        if not start:
            raise BadInput("the folder has no page", where=name, fix="give the folder of its first .html file")
        own = re.sub(r"[^a-z0-9._-]+", "-", place.resolve().name.lower()).strip("-._") or "site"
        return SiteSource(
            {"name": f"{own}-site"[:60], "title": own, "folder": str(place.resolve()), "start": start}, Path.cwd(), seed
        )
    path = manifests.find_page_manifest(name)
    raw = manifests.parse_manifest_file(path)
    raw.setdefault("title", str(raw.get("name", "")))
    if not isinstance(raw.get("name"), str):
        raise BadInput("the manifest has no name", where=path, fix="begin with `name: my-page`")
    try:
        source = SiteSource(raw, path.resolve().parent, seed)
    except (TypeError, ValueError, LookupError) as error:  # its fields are not checked yet
        what = f"the manifest is wrong: {type(error).__name__} {error}"
        raise BadInput(what, where=path, fix="mend its variants, reset, or a value that is no text") from None
    manifest = source.make_manifest()
    if not packages.has_page_files(manifest):
        if not manifest.package:
            raise BadInput(
                f"folder: there is no folder {manifest.folder}", where=path, fix="it is relative to the manifest"
            )
        packages.fetch_page_packages(manifest)
    if manifest.server and manifest.server.packages and not packages.has_server_programs(manifest):
        packages.install_server_packages(manifest)
    return source

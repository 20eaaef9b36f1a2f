"""Diagnose the installation and a workspace's recorded files: what is missing or damaged, and which command to type."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

from flywheel import config
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.utils.errors import Finding, FlywheelError, run_diagnostic

_PACKAGES = ("prefect", "dvc", "duckdb", "torch", "transformers", "playwright", "pocketsphinx")
# Package -> the extra of flywheel that installs it.
_OPTIONAL_PACKAGES = {
    "openai-whisper": "whisper",
    "deepspeed": "deepspeed",
    "bitsandbytes": "bitsandbytes",
    "ray": "ray",
    "dvc-s3": "s3",
    "av": "video",
}
_CHROMIUM_TIMEOUT_S = 60.0


def diagnose_installation(root: Path) -> list[Finding]:
    """Check the installation and the workspace in the folder `root`; none of its files is changed.

    A base on the Hugging Face hub and flywheel's own container image are fetched and made where they are missing and
    the settings need them. Returns findings of each check, with the command to type where something is missing; a
    folder without a workspace is one, too. Raises BadInput where two back-ends have a suite of the same name, or one
    cannot be used (`find_backend`), FileNotFoundError where there is no such folder.
    """
    settings = _load_settings(root)
    return [
        Finding("Python", "ok", ".".join(map(str, sys.version_info[:3]))),
        *(_package(name, "") for name in _PACKAGES),
        *(_package(name, extra) for name, extra in _OPTIONAL_PACKAGES.items()),
        run_diagnostic("Chromium", _chromium),
        run_diagnostic("Playwright", _playwright),
        *_environments(settings, root),
        _fonts(),
        _program("git", "missing"),
        _program("flite", "optional"),
        run_diagnostic("workspace", lambda: _workspace(root)),
        *check_recorded_data(root),
        *_policy_servers(settings),
        _disk(root),
        _gpu(),
    ]


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        if extra:
            return Finding(name, "optional", "not installed", f"pip install -e '.[{extra}]'")
        return Finding(name, "missing", "not installed", "make setup")


def _chromium() -> str:
    from flywheel.config import SandboxSettings
    from flywheel.envs.browser.driver import chromium

    path = chromium.find_chromium(SandboxSettings())
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_CHROMIUM_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FlywheelError(f"{path} does not tell its version within {_CHROMIUM_TIMEOUT_S:g} s", where=path) from None
    return f"{path} {asked.stdout.strip()}"


def _playwright() -> str:
    from flywheel.envs.browser.driver import chromium

    return f"its driver, Node {chromium.check_playwright_driver()}"


def _environments(settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield the findings of the suites' manifests and of each environment back-end that the settings use."""
    from flywheel.envs import registry

    def load() -> str:
        registry.load_external_suites(settings, root)
        return f"{len(settings.synthesis.worlds)} manifests can be used"

    if settings.synthesis.worlds:
        yield run_diagnostic("worlds", load)
    for name in sorted(registry.find_used_backends(settings)):
        yield from registry.find_backend(name).diagnose(settings)


def _load_settings(root: Path) -> Settings:
    """Load the workspace's settings, or the defaults where these are broken: the check `workspace` reports that."""
    try:
        return config.load_settings(Workspace.find(root).params)
    except FlywheelError:
        return config.Settings()


_FONTS = {"LiberationSans-Regular.ttf": "fonts-liberation", "DejaVuSans.ttf": "fonts-dejavu-core"}  # of our pages


def _fonts() -> Finding:
    homes = (Path("/usr/share/fonts"), Path.home() / ".fonts", Path.home() / ".local/share/fonts")
    found = {path.name for home in homes for path in home.rglob("*.tt[fc]")}
    lacking = [package for name, package in _FONTS.items() if name not in found]
    fix = f"apt-get install {' '.join(lacking)}"
    if not found:
        return Finding("fonts", "missing", "none: Chromium would draw no text", fix)
    if lacking:
        return Finding("fonts", "optional", "not those of our pages, whose pixels are others without them", fix)
    return Finding("fonts", "ok", f"{len(found)} files")


def _program(name: str, otherwise: str) -> Finding:
    """Look for a program on the PATH. otherwise: the finding's state where it is not installed."""
    if path := shutil.which(name):
        return Finding(name, "ok", path)
    return Finding(name, otherwise, "not installed", f"apt-get install {name}")


def _workspace(root: Path) -> str:
    from flywheel.pipeline import iterations

    ws = Workspace.find(root)
    iterations.run_preflight(ws, config.load_settings(ws.params))
    return str(ws.root)


def check_recorded_data(root: Path) -> list[Finding]:
    """Check a workspace's files against DVC's records, the footers of all tables, and the newest manifest.

    root: its folder. The manifest is that of the newest iteration with a promotion. Returns a finding for each fault,
    or one finding `ok`; [] where there is no workspace or no file yet.
    """
    from flywheel.store import manifest, partitions
    from flywheel.store.versioning import backup, git_tags

    try:
        ws = Workspace.find(root)
    except FlywheelError:  # the check `workspace` reports it
        return []
    try:
        git_tags.check_line_ends(ws.root)
        damage = backup.find_damaged_outputs(ws)
    except FlywheelError as error:
        return [Finding("data", "missing", error.what, error.fix)]
    except OSError as error:
        return [Finding("data", "optional", f"not looked at: {error.strerror}", "make the workspace writable")]
    files, faults = partitions.check_all_partitions(ws)
    found = [Finding("data", "missing", f"{one.path} is {one.change}", one.repair_command) for one in damage[:5]]
    if len(damage) > len(found):
        found.append(Finding("data", "missing", f"and {len(damage) - len(found)} more", "flywheel status"))
    damaged = {one.path for one in damage}
    found += [
        Finding("data", "missing", f"{fault.where}: {fault.what}", fault.fix)
        for fault in faults
        if fault.where.rpartition("/")[0] not in damaged
    ]
    finished = [k for k in ws.list_iteration_folders() if ws.promotion(k).exists()]
    if finished and not found:
        try:
            manifest.verify_manifest(ws, max(finished))
        except FlywheelError as error:
            found.append(Finding("data", "missing", f"{error.where}: {error.what}", error.fix))
    if files and not found:
        found.append(Finding("data", "ok", f"{files} Parquet files, as recorded"))
    return found


def _policy_servers(settings: Settings) -> Iterator[Finding]:
    from flywheel.policy.client import endpoint

    for server in settings.policy.servers if settings.policy.backend == "openai" else ():
        yield run_diagnostic("policy server", partial(endpoint.describe_policy_server, server))


def _disk(root: Path) -> Finding:
    from flywheel.pipeline.iterations import NEEDED_MB

    free = shutil.disk_usage(root).free // 2**20
    state = "ok" if free >= NEEDED_MB else "missing"
    return Finding("disk", state, f"{free} MB free", "" if state == "ok" else f"free {NEEDED_MB} MB")


def _gpu() -> Finding:
    import torch

    from flywheel.pipeline.resource_plan import GPU_DEVICES

    if torch.cuda.is_available():
        return Finding("GPU", "ok", torch.cuda.get_device_name(0))
    if any(Path(name).exists() for name in GPU_DEVICES):
        if torch.version.cuda:
            fix = f"install a driver for CUDA {torch.version.cuda}; `nvidia-smi` must list a GPU"
            return Finding(
                "GPU", "optional", "a driver is there, and torch cannot use it: everything runs on the CPU", fix
            )
        plain = torch.__version__.partition("+")[0]
        fix = f"pip install torch=={plain}+cu130 --index-url https://download.pytorch.org/whl/cu130"
        return Finding("GPU", "optional", "a driver is there, and this torch knows no CUDA: all runs on the CPU", fix)
    return Finding("GPU", "optional", "none: everything runs on the CPU")

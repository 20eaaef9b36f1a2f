"""Pages that come in packages: fetched by the real clients, unpacked without running anything, known by checksum."""

from __future__ import annotations

import os
import shutil
import zipfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config import parse_settings
from flywheel.envs.browser.pages import manifest as pages_manifest
from flywheel.envs.browser.pages import packages
from flywheel.envs.tasks import drawing
from flywheel.utils.errors import BadInput, EnvError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and a registry that is a folder: pip finds wheels there and nowhere else."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return tmp_path / "cache" / "flywheel" / "packages"


def wheel(tmp_path, version="1.0", **files):
    """A wheel of the package lampgame with these files."""
    name = f"lampgame-{version}"
    with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-py3-none-any.whl", "w") as packed:
        for path, text in {"lampgame/html/index.html": "<p>lamp", **files}.items():
            packed.writestr(path, text)
        packed.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: lampgame\nVersion: {version}\n")
        packed.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{name}.dist-info/RECORD", "")


def manifest(tmp_path, **more):
    said = {
        "name": "lampgame",
        "title": "Lamp",
        "package": "pypi:lampgame==1.0",
        "folder": "lampgame/html",
        "instruction": "Switch it on.",
        "reward": "1",
        "success": 1,
        "max_steps": 2,
        **more,
    }
    said = {name: value for name, value in said.items() if value is not None}
    (tmp_path / "lampgame.yaml").write_text(yaml.safe_dump(said))
    return pages_manifest.load_page_manifest(tmp_path / "lampgame.yaml")


def test_a_page_that_is_not_fetched_is_told_with_a_command_that_finds_it(tmp_path, cache):
    path = manifest(tmp_path).path
    settings = parse_settings({"synthesis": {"manifests": [path.name]}}, where="test")
    with pytest.raises(BadInput, match="the page lampgame is not fetched") as caught:
        drawing.check_task_settings(settings, 1, tmp_path)
    assert str(path) in caught.value.fix


def test_a_package_is_fetched_once_and_served_from_the_cache(tmp_path, cache):
    wheel(tmp_path)
    found = manifest(tmp_path)
    assert not packages.has_page_files(found)
    with pytest.raises(BadInput, match=r"flywheel env page fetch .*lampgame\.yaml"):
        packages.find_served_folder(found)
    folder, checksum = packages.fetch_page_packages(found)
    assert folder == packages.find_served_folder(found)
    assert packages.has_page_files(found)
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert checksum == packages.hash_served_folder(folder)
    assert packages.fetch_page_packages(found) == (folder, checksum)
    assert len(list(cache.iterdir())) == 1  # and nothing half done beside it


@pytest.mark.exhaustive
def test_a_manifest_gets_the_package_that_it_was_written_for(tmp_path, cache):
    wheel(tmp_path)
    _, checksum = packages.fetch_page_packages(manifest(tmp_path))
    assert packages.find_served_folder(manifest(tmp_path, sha256=checksum)).is_dir()
    with pytest.raises(BadInput, match=f"sha256: .* has the checksum {checksum}"):
        packages.find_served_folder(manifest(tmp_path, sha256="0" * 64))
    shutil.rmtree(cache)
    with pytest.raises(BadInput, match=f"sha256: .* has the checksum {checksum}"):
        packages.fetch_page_packages(manifest(tmp_path, sha256="0" * 64))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "part"),
    [
        ("pypi:lampgame==2.0", r"there is no lampgame 2\.0 for Python 3\.\d+; the newest are 1\.0 \("),
        ("pypi:no-such-game==1.0", r"no-such-game 1\.0 for Python 3\.\d+, nor any other version of that name \("),
    ],
)
def test_a_package_that_is_not_there_is_told_with_what_the_client_said(tmp_path, cache, package, part):
    wheel(tmp_path)
    with pytest.raises(EnvError, match=part) as caught:
        packages.fetch_page_packages(manifest(tmp_path, package=package))
    assert package in str(caught.value)
    assert list(cache.iterdir()) == []


def client(tmp_path, monkeypatch, name, script):
    """A registry's client of our own, first on PATH."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH'].removeprefix(str(tmp_path / 'bin') + ':')}")


@pytest.mark.exhaustive
def test_each_registry_is_asked_for_the_newest_versions(tmp_path, monkeypatch):
    listed = '["0.9.0", "1.0.0", "1.1.0", "1.2.0", "2.0.0-rc.1"]'
    client(tmp_path, monkeypatch, "npm", f"[ $1 = view ] && echo '{listed}' && exit; exit 1")
    client(tmp_path, monkeypatch, "apt-get", "echo \"E: Version '9' for 'lamp' was not found\" >&2; exit 100")
    client(
        tmp_path, monkeypatch, "apt-cache", "echo ' lamp | 1.2-3 | http://x main'; echo ' lamp | 1.2-1 | http://x main'"
    )
    for package, what in {
        "npm:lamp@9.0.0": "npm could not fetch it: there is no lamp 9.0.0; the newest are 1.2.0, 1.1.0, 1.0.0",
        "deb:lamp=9": "apt-get could not fetch it: there is no lamp 9; the newest are 1.2-3, 1.2-1",
    }.items():
        with pytest.raises(EnvError) as caught:
            packages.fetch_page_packages(manifest(tmp_path, package=package))
        assert str(caught.value).startswith(f"{what} ({package})")


@pytest.mark.exhaustive
def test_a_servers_package_of_no_such_version_is_told_in_one_line(tmp_path):
    """And not by hundreds of versions that there are, nor of those for another Python."""
    for number in range(40):
        wheel(tmp_path, f"1.{number}")
    wheel(tmp_path, "1.40rc1")
    server = {"packages": ["lampgame==2.0"], "command": ["lamp"]}
    found = manifest(tmp_path, package=None, folder=None, server=server)
    with pytest.raises(
        EnvError, match=r"no lampgame 2\.0 for Python 3\.\d+; the newest are 1\.39, 1\.38, 1\.37 \("
    ) as caught:
        packages.install_server_packages(found)
    assert len(str(caught.value)) < 300


def test_a_wrong_folder_of_a_package_is_told_with_what_there_is(tmp_path):
    wheel(tmp_path)
    with pytest.raises(BadInput, match=r"no folder lampgame/web .*; it holds lampgame, lampgame-1\.0\.dist-info"):
        packages.fetch_page_packages(manifest(tmp_path, folder="lampgame/web"))


def test_a_package_cannot_write_outside_of_its_tree(tmp_path, cache):
    wheel(tmp_path, **{"../../../escaped.txt": "x", "/absolute.txt": "y"})
    packages.fetch_page_packages(manifest(tmp_path))
    assert not list(tmp_path.glob("escaped.txt"))
    assert all(path.is_relative_to(cache) for path in tmp_path.rglob("*.txt"))


def test_a_source_package_is_not_taken_since_its_script_would_run(tmp_path):
    ran = tmp_path / "ran"
    source = tmp_path / "lampgame-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(ran)!r}, 'w')")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: lampgame\nVersion: 1.0\n")
    shutil.make_archive(str(tmp_path / "wheels" / "lampgame-1.0"), "gztar", tmp_path, "lampgame-1.0")
    with pytest.raises(EnvError, match="could not fetch"):
        packages.fetch_page_packages(manifest(tmp_path))
    assert not ran.exists()


def test_a_client_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvError, match=r"npm is not installed \(npm:lampgame@1\.0\)"):
        packages.fetch_page_packages(manifest(tmp_path, package="npm:lampgame@1.0"))


def test_a_manifest_without_packages_has_nothing_to_fetch(tmp_path):
    own = manifest(tmp_path).model_copy(update={"package": (), "folder": "."})
    with pytest.raises(BadInput, match="names no package"):
        packages.fetch_page_packages(own)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.binary(max_size=5), max_size=4), st.data())
def test_the_checksum_is_that_of_names_and_contents(tmp_path_factory, files, data):
    def lay(content):
        folder = tmp_path_factory.mktemp("tree")
        for name, text in content.items():
            (folder / name).write_bytes(text)
        return packages.hash_served_folder(folder)

    assert lay(files) == lay(dict(reversed(files.items())))
    other = data.draw(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.binary(max_size=5), max_size=4))
    assert (lay(files) == lay(other)) == (files == other)

"""Folders served for third-party pages: right types, nothing from outside, absolute paths, what was missing."""

from __future__ import annotations

import mimetypes

import httpx
import pytest
import pytest_asyncio

from flywheel.envs.browser.pages.file_server import FileServer, ServedFolder, media_type


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "site"
    (root / "sub").mkdir(parents=True)
    (root / "index.html").write_text("<h1>here</h1>")
    (root / "sub" / "index.html").write_text("sub")
    (root / "a b&ü.txt").write_text("named")
    (root / "lib.mjs").write_text("export default 1")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site-next-door").mkdir()
    (tmp_path / "site-next-door" / "x.txt").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret.txt")
    (root / "in").symlink_to("sub/index.html")
    (root / "round").symlink_to("round")
    return ServedFolder(root, {"/usr/share/lib.js": "/lib.mjs", "/leave": "/../secret.txt"})


@pytest_asyncio.fixture
async def client(folder):
    async with FileServer([folder]) as server, httpx.AsyncClient(base_url=server.url(folder)) as opened:
        yield opened


async def test_files_come_with_their_types(client, folder):
    (folder.root / "x.wasm").write_bytes(b"\0asm")
    for path, kind in (
        ("/", "text/html; charset=utf-8"),
        ("/lib.mjs", "text/javascript; charset=utf-8"),
        ("/x.wasm", "application/wasm"),
        ("/in", "text/html; charset=utf-8"),
    ):
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind), path
        assert answer.headers["cache-control"] == "no-store"


def test_a_machines_own_table_does_not_change_what_browsers_insist_on(tmp_path):
    for name, kind in (("a.js", "text/javascript"), ("A.CSS", "text/css"), ("a.json", "application/json")):
        assert media_type(tmp_path / name).startswith(kind)
    assert media_type(tmp_path / "a.unheard-of") == "application/octet-stream"


def test_a_type_that_the_machine_alone_knows_is_not_told(tmp_path):
    (tmp_path / "mime.types").write_text("application/x-machine unheard-of\ntext/x-machine css\n")
    try:
        mimetypes.init([str(tmp_path / "mime.types")])
        assert mimetypes.guess_type("a.unheard-of")[0] == "application/x-machine"
        assert media_type(tmp_path / "a.unheard-of") == "application/octet-stream"
        assert media_type(tmp_path / "a.css") == "text/css; charset=utf-8"
        assert media_type(tmp_path / "a.svgz") == "image/svg+xml"
    finally:
        mimetypes.init()


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/sub/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "/out",
        "/leave",
        "/../site-next-door/x.txt",
        "//etc/passwd",
        "/%00",
        "/round",
        "/" + "a" * 5000,
        "/index.html/x",
        "/etc/passwd",
    ],
)
async def test_nothing_outside_of_the_folder_is_given_out(client, folder, path):
    target = httpx.URL(str(client.base_url)).copy_with(raw_path=path.encode())
    answer = await client.get(target)
    assert answer.status_code == 404
    assert "secret" not in answer.text
    assert len(folder.missed) == 1


async def test_names_of_any_kind_and_aliases_are_found(client):
    assert (await client.get("/a b&ü.txt")).text == "named"
    assert (await client.get("/in?v=1")).text == "sub"
    answer = await client.get("/usr/share/lib.js")
    assert (answer.text, answer.headers["content-type"]) == ("export default 1", "text/javascript; charset=utf-8")


async def test_a_folder_is_its_index_at_an_address_that_ends_in_a_slash(client):
    assert (await client.get("/sub")).headers["location"] == "sub/"
    assert (await client.get("/sub", follow_redirects=True)).text == "sub"


async def test_parts_of_a_file_and_other_methods(client):
    part = await client.get("/index.html", headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.text) == (206, "here")
    assert (await client.head("/index.html")).headers["content-length"] == "13"
    assert (await client.post("/index.html", content=b"x")).status_code == 405


async def test_each_folder_has_a_port_of_its_own_and_remembers_what_it_lacked(tmp_path):
    folders = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name)
        folders.append(ServedFolder(tmp_path / name))
    async with FileServer(folders) as server, httpx.AsyncClient() as client:
        for folder in folders:
            assert (await client.get(server.url(folder) + "/")).text == folder.root.name
        for number in range(60):
            await client.get(f"{server.url(folders[1])}/{number}.png")
    assert list(folders[0].missed) == []
    assert list(folders[1].missed) == [f"/{number}.png" for number in range(10, 60)]

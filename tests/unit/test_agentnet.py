"""A screen of AgentNet's zip that cannot be read refuses its own record, and no other."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from PIL import Image

from flywheel.store.interop.agentnet import read_agentnet
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord

_LOCAL_HEADER = 30  # bytes of a member's own header, before its name
_FLAGS, _METHOD = 8, 10  # where they stand in a member's entry of the zip's list


def zip_of_two(path, compression=zipfile.ZIP_DEFLATED):
    """Screens `0.png` and `1.png`; returns where the bytes of the second begin, and its entry in the list."""
    out = io.BytesIO()
    Image.new("RGB", (400, 200), "white").save(out, "png")
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name in ("0.png", "1.png"):
            packed.writestr(name, out.getvalue())
        second = packed.getinfo("1.png")
        return second.header_offset + _LOCAL_HEADER + len("1.png"), packed.start_dir + 46 + len("0.png")


def read_with(tmp_path, at, value):
    """What is read of a record for each screen, once a byte of the zip has another value."""
    images, lines = tmp_path / "images.zip", tmp_path / "agentnet.jsonl"
    data = bytearray(images.read_bytes())
    data[at] = value
    images.write_bytes(data)
    step = {"index": 0, "value": {"code": "pyautogui.click(x=0.5, y=0.5)"}}
    records = [{"task_id": f"t{k}", "instruction": "sort it", "traj": [step | {"image": f"{k}.png"}]} for k in range(2)]
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    good, bad = read_agentnet(lines, images)
    assert isinstance(good, Demonstration)
    assert isinstance(bad, RefusedRecord)
    assert bad.where == "agentnet.jsonl line 2"
    return bad.why


@pytest.mark.parametrize(
    ("compression", "at", "why"),
    [
        (zipfile.ZIP_STORED, 60, "Bad CRC-32"),
        (zipfile.ZIP_DEFLATED, 0, "Error -3 while decompressing"),
        (zipfile.ZIP_BZIP2, 0, "Invalid data stream"),
        (zipfile.ZIP_LZMA, 20, "Corrupt input data"),
    ],
)
def test_a_damaged_screen_of_the_zip_refuses_its_record(tmp_path, compression, at, why):
    begins, _ = zip_of_two(tmp_path / "images.zip", compression)
    assert why in read_with(tmp_path, begins + at, 0xFF)


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [(_FLAGS, 1, "is encrypted, password required"), (_METHOD, 97, "compression method is not supported")],
)
def test_a_screen_that_cannot_be_unpacked_refuses_its_record(tmp_path, place, value, why):
    _, entry = zip_of_two(tmp_path / "images.zip")
    told = read_with(tmp_path, entry + place, value)
    assert told.startswith("its screen 1.png cannot be read: ")
    assert why in told

"""What is wrong in a record of AgentNet refuses that record, by line and field, and no other."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from PIL import Image

from flywheel.config import Settings
from flywheel.recordings.rows import demonstration_rows
from flywheel.store.interop.agentnet import read_agentnet
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord, save_demonstration
from flywheel.utils.errors import DataError

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


def screen(colour: str, size: tuple[int, int] = (40, 20)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "png")
    return out.getvalue()


def record(name: str, *images: str, **more) -> dict:
    code = "pyautogui.click(x=0.5, y=0.5)"
    steps = [{"index": k, "image": image, "value": {"code": code}} for k, image in enumerate(images)]
    return {"task_id": name, "instruction": "sort it", "traj": steps, **more}


def read(tmp_path, *records, images=None, **how):
    lines = tmp_path / "agentnet.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in records))
    if images is None:
        images = tmp_path / "images"
        images.mkdir(exist_ok=True)
        (images / "0.png").write_bytes(screen("white"))
    return list(read_agentnet(lines, images, **how))


@pytest.mark.parametrize("packed", [False, True])
def test_a_screen_is_the_one_of_its_path_and_never_one_of_several(tmp_path, packed):
    images = tmp_path / "images"
    for colour in ("red", "blue"):
        (images / colour).mkdir(parents=True)
        (images / colour / "0.png").write_bytes(screen(colour))
    if packed:
        with zipfile.ZipFile(tmp_path / "images.zip", "w") as file:
            for path in images.rglob("*.png"):
                file.write(path, f"images/{path.relative_to(images)}")
        images = tmp_path / "images.zip"
    asked = ["red/0.png", "images/blue/0.png", "0.png", "green/0.png"]
    told = read(tmp_path, *(record(name, name) for name in asked), record("blue", "0.png"), images=images)
    shown = [one.screens.popitem()[1] if isinstance(one, Demonstration) else one.why for one in told]
    assert shown[:2] == [screen("red"), screen("blue")]
    assert "its screen 0.png may be " in shown[2]
    assert "its screen green/0.png is not there" in shown[3]
    assert shown[4] == screen("blue")  # within the folder of the task


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: one["traj"][0]["value"].update(code=None), "traj.0.value.code: Input should be a valid string"),
        (lambda one: one.update(task_completed="false"), "task_completed: Input should be a valid boolean"),
        (lambda one: one["traj"][0].update(index="0"), "traj.0.index: Input should be a valid integer"),
        (lambda one: one.update(task_id=None), "task_id"),
        (lambda one: one.update(instruction="\ud800"), "instruction: "),
        (lambda one: one.update(alignment_score=float("nan")), "NaN is not JSON"),
        (lambda one: one["traj"][0]["value"].update(code="x" * 30_000), "at most 20000 characters"),
        (lambda one: one["traj"].append(one["traj"][0]), "step 0 comes twice"),
    ],
)
def test_a_field_is_held_against_its_type_where_it_is_read(tmp_path, change, why):
    broken = record("broken", "0.png")
    change(broken)
    bad, good = read(tmp_path, broken, record("good", "0.png"))
    assert (bad.where, isinstance(good, Demonstration)) == ("agentnet.jsonl line 1", True)
    assert why in bad.why
    assert "\n" not in bad.why


def test_a_field_that_stands_twice_is_refused(tmp_path):
    read(tmp_path)
    lines = tmp_path / "agentnet.jsonl"
    lines.write_text(json.dumps(record("a", "0.png")).replace('"instruction"', '"instruction": "else", "instruction"'))
    (one,) = read_agentnet(lines, tmp_path / "images")
    assert one.why == "instruction stands twice"


def test_a_screen_that_training_would_refuse_is_refused_by_its_header(tmp_path):
    read(tmp_path)
    (tmp_path / "images" / "tall.png").write_bytes(screen("white", (20, 700)))
    (tmp_path / "images" / "none.png").write_bytes(b"none")
    bad = (record(name, f"{name}.png") for name in ("tall", "none"))
    told = read(tmp_path, *bad, record("good", "0.png"), max_side=640)
    assert "its screen tall.png: the screen is too large: 20 x 700 pixels; policy.max_image_side is 640" in told[0].why
    assert "its screen none.png: the screen is not an image" in told[1].why
    assert isinstance(told[2], Demonstration)


def test_steps_that_the_data_set_lacks_are_told(tmp_path):
    holed = record("holed", *["0.png"] * 3)
    for step, index in zip(holed["traj"], (4, 0, 1), strict=True):
        step["index"] = index
    (one,) = read(tmp_path, holed)
    assert one.facts["missing_steps"] == [2, 3]
    assert save_demonstration(one, tmp_path / "recordings")
    made = demonstration_rows(tmp_path / "recordings" / one.name, Settings(), 1)
    assert made.trajectory.status == "completed"
    assert "the data set has no step 2, 3" in made.review_rows[0]["comment"]


def test_another_record_of_a_known_id_is_no_repetition(tmp_path):
    (one,) = read(tmp_path, record("a", "0.png"))
    assert save_demonstration(one, tmp_path / "recordings")
    assert not save_demonstration(one, tmp_path / "recordings")
    (mended,) = read(tmp_path, record("a", "0.png", "0.png"))
    with pytest.raises(DataError, match=r"is there already.*remove that folder"):
        save_demonstration(mended, tmp_path / "recordings")


def test_whatever_is_wrong_with_a_demonstration_on_disk_sets_that_one_aside(tmp_path):
    (one,) = read(tmp_path, record("a", "0.png"))
    save_demonstration(one, tmp_path / "recordings")
    path = tmp_path / "recordings" / one.name / "demonstration.json"
    content = json.loads(path.read_text())
    for change, why in (
        ({"completed": "false"}, "completed: Input should be a valid boolean"),
        ({"steps": [{**content["steps"][0], "action": None}]}, "steps.0.action: Input should be a valid string"),
        ({"facts": None}, "facts: "),
        ({"facts": {"author": 5}}, "does not fit table trajectories"),
        ({"version": 9}, "another version"),
    ):
        path.write_text(json.dumps(content | change))
        made = demonstration_rows(path.parent, Settings(), 1)
        assert (made.trajectory.status, made.steps) == ("invalid", ())
        assert why in made.trajectory.error

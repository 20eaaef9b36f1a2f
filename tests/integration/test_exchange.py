"""Export is read back by the formats' own libraries; import makes trajectories of published formats, and no more."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from click.testing import CliRunner
from night import by_day
from PIL import Image

from flywheel.cli import main
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.recordings.ingest import ingest_session
from flywheel.store import partitions
from flywheel.store.interop import agentnet, exports, mind2web, osworld
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord, save_demonstration
from flywheel.utils.errors import DataError


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("ws"))
    synthetic.incoming(ws, settings, 1, tasks=3, samples=4)
    synthetic.routed(ws, settings, 1)
    return ws


def screen(colour: str = "white", form: str = "png", size: tuple[int, int] = (400, 200)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, form)
    return out.getvalue()


# -- export ---------------------------------------------------------------------------------------------------


def test_webdataset_reads_long_ids(built, tmp_path):
    import webdataset as wds

    step = next(exports.read_store_steps(built, "ct", 1))
    long = replace(step, step={**step.step, "trajectory_id": "t" * 120})
    assert exports.write_webdataset([long], tmp_path / "out") == 1
    (read,) = wds.WebDataset([str(tmp_path / "out" / "00000.tar")], shardshuffle=False)
    assert read["__key__"].startswith("t" * 120)


@pytest.mark.parametrize("store", by_day(["ct", "sft"]))
def test_webdataset_reads_every_step_and_screen(built, tmp_path, store):
    import webdataset as wds

    steps = list(exports.read_store_steps(built, store, 1))
    assert exports.write_webdataset(steps, tmp_path / "out", 2_000) == len(steps) > 0
    tars = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    assert len(tars) > 1
    read = list(wds.WebDataset(tars, shardshuffle=False))
    assert [one["__key__"] for one in read] == [f"{s.step['trajectory_id']}_{s.step['step']:05d}" for s in steps]
    for one, wrote in zip(read, steps, strict=True):
        told = json.loads(one["json"])
        assert one["png"] == wrote.screen
        assert hashlib.sha256(one["png"]).hexdigest() == told["image_sha256"]
        trajectory = told.pop("trajectory")
        for name in ("started_at", "ended_at"):
            told[name], trajectory[name] = (datetime.fromisoformat(part[name]) for part in (told, trajectory))
        assert told == {**wrote.step, "score": wrote.score, "weight": wrote.weight}
        assert trajectory == wrote.trajectory


@pytest.mark.parametrize("store", by_day(["ct", "sft"]))
def test_hugging_face_reads_every_column_and_screen(built, tmp_path, store, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets  # it looks at the environment

    steps = list(exports.read_store_steps(built, store, 1))
    assert exports.write_hugging_face(steps, tmp_path / "out", "a store") == len(steps)
    read = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(read.features["screen"], datasets.Image)
    raw = read.cast_column("screen", datasets.Image(decode=False))
    for one, wrote in zip(raw, steps, strict=True):
        assert one.pop("screen")["bytes"] == wrote.screen
        expected = {**wrote.step, "trajectory": wrote.trajectory, "score": wrote.score, "weight": wrote.weight}
        assert one == expected
    assert read[0]["screen"].size == Image.open(io.BytesIO(steps[0].screen)).size


def test_export_tells_what_is_lost_and_overwrites_nothing(built, tmp_path):
    (built.root / "params.yaml").touch()
    wanted = ["data", "export", "webdataset", "-w", str(built.root), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(main, wanted)
    assert result.exit_code == 0, result.output
    assert "What the format does not hold:" in result.output
    assert "sft store of iteration 1 to " in result.output
    assert "final_state" in result.output
    again = CliRunner().invoke(main, wanted)
    assert again.exit_code == 2
    assert CliRunner().invoke(main, [*wanted, "--iteration", "7"]).exit_code == 2


def test_a_damaged_store_is_not_exported(built, tmp_path):
    ws = Workspace(Path(shutil.copytree(built.root, tmp_path / "ws")))
    (path, *_) = partitions.partition_files(ws, "steps", 1, "rollout")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="steps"):
        exports.write_webdataset(exports.read_store_steps(ws, "ct", 1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- import ---------------------------------------------------------------------------------------------------


def agentnet_files(folder: Path, *codes: str, drop: str = "", **record) -> tuple[Path, Path]:
    """A data set of one trajectory in AgentNet's form; `drop`: a screen that the zip lacks."""
    traj = [
        {
            "index": k,
            "image": f"{k}.png",
            "value": {
                "observation": "A table.",
                "thought": f"Thought {k}.",
                "action": "Click on it.",
                "code": code,
                "last_step_correct": True,
                "last_step_redundant": False,
                "reflection": "Done.",
            },
        }
        for k, code in enumerate(codes)
    ]
    told = {
        "task_id": "20240927235321_5855063d",
        "instruction": "sort the table",
        "task_completed": True,
        "alignment_score": 7,
        "efficiency_score": 6,
        "task_difficulty": 3,
        "natural_language_task": "Could you sort it?",
        "actual_task": "Sort a table.",
        "traj": traj,
        **record,
    }
    lines, images = folder / "agentnet.jsonl", folder / "images.zip"
    lines.write_text(json.dumps(told) + "\n")
    with zipfile.ZipFile(images, "w") as packed:
        for k in range(len(codes)):
            if f"{k}.png" != drop:
                packed.writestr(f"images/{k}.png", screen(f"#0000{k:02x}"))
    return lines, images


CODES = (
    "pyautogui.click(x=0.1632, y=0.2711)",
    "pyautogui.moveTo(x=0.1, y=0.2)\npyautogui.dragTo(x=0.5, y=0.6, button='left')",
    "pyautogui.write(message='blue mug')",
    "pyautogui.hotkey(['ctrl', 's'])",
    "computer.tripleClick(x=0.5, y=0.5)",
    "pyautogui.middleClick(x=0.5, y=0.5)",
    "computer.terminate(status='success')",
)


def ingested(one: Demonstration, folder: Path):
    assert save_demonstration(one, folder)
    return ingest_session(folder / one.name, None, Settings(), 3, None)


def test_agentnet_becomes_steps_in_the_grammar_of_the_workspace(tmp_path):
    (one,) = agentnet.read_agentnet(*agentnet_files(tmp_path, *CODES))
    rows = ingested(one, tmp_path / "recordings")
    assert [step.action_type for step in rows.steps] == [
        "click",
        "drag",
        "type",
        "hotkey",
        "left_triple",
        None,
        "finished",
    ]
    assert rows.steps[0].action == "click(point='<point>16 27</point>')"
    assert (rows.steps[0].x, rows.steps[0].y) == pytest.approx((0.1632, 0.2711))
    assert rows.steps[0].raw_text == "Thought: Thought 0.\nAction: click(point='<point>16 27</point>')"
    assert (rows.steps[4].x, rows.steps[4].y) == (0.5, 0.5)
    assert "middle" in rows.steps[5].parse_error  # kept as it was said, and not learnt
    assert [step.image_sha256 for step in rows.steps] == list(one.screens)
    told = rows.trajectory
    assert (told.source, told.author, told.status, told.reward) == ("import", "human", "completed", 1.0)
    assert (told.origin, told.licence) == ("agentnet:20240927235321_5855063d", "mit")
    assert {row["sha256"]: row["bytes"] for row in rows.image_rows} == one.screens


def test_a_step_that_agentnet_calls_wrong_is_a_slip(tmp_path):
    lines, images = agentnet_files(tmp_path, *CODES[:3])
    record = json.loads(lines.read_text())
    record["traj"][1]["value"]["last_step_redundant"] = True
    lines.write_text(json.dumps(record))
    (one,) = agentnet.read_agentnet(lines, images)
    assert [step.slip for step in one.steps] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"drop": "1.png"}, "its screen 1.png is not there"),
        ({"traj": []}, "it has no steps"),
        ({"traj": [{"index": 0, "image": "0.png"}]}, "traj.0.value: Field required"),
    ],
)
def test_a_record_that_is_none_is_refused_by_line(tmp_path, change, why):
    lines, images = agentnet_files(tmp_path, *CODES[:3], **change)
    with lines.open("a") as file:
        file.write("{ not json\n")
    refused = list(agentnet.read_agentnet(lines, images))
    assert refused[0] == RefusedRecord("agentnet.jsonl line 1", why)
    assert refused[1].where == "agentnet.jsonl line 2"


def test_a_zip_in_parts_is_told_how_to_join(tmp_path):
    lines, images = agentnet_files(tmp_path, *CODES)
    images.write_bytes(images.read_bytes()[: images.stat().st_size // 2])
    with pytest.raises(DataError, match="zip -s 0"):
        list(agentnet.read_agentnet(lines, images))


def mind2web_file(path: Path, *operations: dict) -> Path:
    """Rows in the form of Multimodal-Mind2Web, the last action first."""
    rows = [
        {
            "action_uid": f"u{k}",
            "raw_html": "<html/>",
            "cleaned_html": "<html/>",
            "operation": json.dumps({"original_op": one["op"], "value": "", **one}),
            "pos_candidates": [
                json.dumps(
                    {
                        "tag": "button",
                        "attributes": json.dumps({"bounding_box_rect": one.pop("box", "100,50,40,20")}),
                        "is_original_target": True,
                        "is_top_level_target": True,
                        "backend_node_id": "7",
                    }
                )
            ],
            "neg_candidates": [],
            "website": "exploretock",
            "domain": "Travel",
            "subdomain": "Restaurant",
            "annotation_id": "6c7a7082",
            "confirmed_task": "Check for pickup restaurant",
            "screenshot": {"bytes": screen(form="jpeg"), "path": f"{k}.jpg"},
            "action_reprs": [],
            "target_action_index": str(k),
            "target_action_reprs": "[button] Go -> CLICK",
        }
        for k, one in enumerate(map(dict, operations))
    ]
    pq.write_table(pa.Table.from_pylist(rows[::-1]), path)
    return path


def test_mind2web_becomes_clicks_in_the_middle_of_their_targets(tmp_path):
    path = mind2web_file(
        tmp_path / "train-00000-of-00027.parquet",
        {"op": "CLICK"},
        {"op": "TYPE", "value": "Boston"},
        {"op": "SELECT", "value": "Pickup"},
        {"op": "CLICK", "original_op": "HOVER"},
        {"op": "CLICK", "box": "-1,-1,-1,-1"},
    )
    (one,) = mind2web.read_mind2web([path])
    rows = ingested(one, tmp_path / "recordings")
    types = [step.action_type for step in rows.steps]
    assert types == ["click", "click", "type", "click", None, "hover", None]
    assert (rows.steps[0].x, rows.steps[0].y) == pytest.approx((0.3, 0.3))
    assert "Boston" in rows.steps[2].action
    assert {row["format"] for row in rows.image_rows} == {"jpeg"}
    assert (rows.trajectory.origin, rows.trajectory.licence) == ("mind2web:6c7a7082", "openrail")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"screenshot": {"bytes": screen(size=(30, 4200)), "path": ""}},
            "action 1: the screen is too large: 30 x 4200",
        ),
        ({"confirmed_task": None}, "1.confirmed_task: Input should be a valid string"),
        ({"confirmed_task": "another"}, "its rows do not agree: confirmed_task"),
        ({"target_action_index": "0"}, "step 0 comes twice"),
        ({"operation": '{"op": "TYPE", "value": 5}'}, "1.operation.value: Input should be a valid string"),
        ({"pos_candidates": ["[]"]}, "1.pos_candidates.0: Input should be a valid dictionary"),
    ],
)
def test_a_task_of_mind2web_with_a_wrong_row_is_refused_with_its_field(tmp_path, change, why):
    path = mind2web_file(tmp_path / "train-0.parquet", {"op": "CLICK"}, {"op": "CLICK"})
    first, second = pq.read_table(path).to_pylist()[::-1]
    sound = {**first, "annotation_id": "sound"}
    pq.write_table(pa.Table.from_pylist([first, {**second, **change}, sound]), path)
    bad, good = mind2web.read_mind2web([path])
    assert (bad.where, isinstance(good, Demonstration)) == ("train-0.parquet, task 6c7a7082", True)
    assert why in bad.why


def osworld_run(folder: Path, split: str) -> Demonstration:
    """What an agent did in one of OSWorld's tasks, as its harness writes it."""
    task = folder / "gpt" / "os" / "t0"
    task.mkdir(parents=True)
    for name, colour in (("step_0.png", "red"), ("step_1.png", "green"), ("step_2.png", "white")):
        (task / name).write_bytes(screen(colour if split == "train" else "blue"))
    lines = [
        {"step_num": k, "action_timestamp": split, "action": action, "screenshot_file": f"step_{k}.png"}
        for k, action in enumerate(("pyautogui.click(100, 50)", "DONE"), 1)
    ]
    (task / "traj.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (task / "result.txt").write_text("1.0\n")
    (task / "instruction.txt").write_text(f"put the {split} window on the other side")
    (one,) = osworld.read_osworld([folder], split=split)
    return one


def test_a_page_taller_than_the_window_is_cut_to_the_part_that_holds_the_target(tmp_path):
    """Each row of pixels of the page tells its own height: 8 to a shade of red, 256 shades to a shade of green."""
    rows = np.arange(9000)
    page = np.zeros((9000, 400, 3), np.uint8)
    page[..., 0], page[..., 1] = (rows // 8 % 256)[:, None], (rows // 2048)[:, None]
    encoded = io.BytesIO()
    Image.fromarray(page).save(encoded, "PNG")
    boxes = ("100,50,40,20", "0,1000,20,20", "200,8990,40,8", "-1,-1,-1,-1")
    path = mind2web_file(tmp_path / "train-0.parquet", *({"op": "CLICK", "box": box} for box in boxes))
    table = pq.read_table(path).to_pylist()
    whole = {"bytes": encoded.getvalue(), "path": "page.png"}
    pq.write_table(pa.Table.from_pylist([{**row, "screenshot": whole} for row in table]), path)
    (refused,) = mind2web.read_mind2web([path])
    assert "the screen is too large: 400 x 9000 pixels" in refused.why
    (one,) = mind2web.read_mind2web([path], window_height=1000)
    found = ingested(one, tmp_path / "recordings").steps
    for step, (x, y) in zip(found, ((120, 60), (10, 1010), (220, 8994), (None, 0)), strict=True):
        with Image.open(io.BytesIO(one.screens[step.image_sha256])) as window:
            assert window.size == (400, 1000)
            if x is None:
                assert (step.action_type, window.getpixel((0, 0))) == (None, (0, 0, 0))
                continue
            assert step.x == pytest.approx(x / 400, abs=1e-4)
            red, green, _ = window.getpixel((x, round(step.y * 1000)))
            assert abs(green * 2048 + red * 8 - y) <= 8
    assert [step.y for step in found] == [0.06, 0.01, 0.994, None]
    assert one.facts["window_height"] == 1000


def test_what_is_imported_goes_by_the_contracts_to_ct_and_what_is_held_out_does_not(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=3, samples=2)
    (good,) = agentnet.read_agentnet(*agentnet_files(tmp_path, *CODES))
    (held,) = mind2web.read_mind2web([mind2web_file(tmp_path / "test_task-00000-of-00003.parquet", {"op": "CLICK"})])
    (copied,) = agentnet.read_agentnet(
        *agentnet_files(tmp_path, *CODES[:1], task_id="copy", instruction="buy the BLUE mug")  # an evaluation task's
    )
    agents = [osworld_run(tmp_path / split, split) for split in ("train", "eval")]
    both = [ingested(one, tmp_path / "recordings") for one in (good, held, copied, *agents)]
    for table, rows in (
        ("trajectories", [vars(one.trajectory) for one in both]),
        ("tasks", [one.task_row for one in both]),
        ("images", list({row["sha256"]: row for one in both for row in one.image_rows}.values())),
    ):
        there = partitions.read_partition(ws, table, 1, "ingest").to_pylist()
        partitions.write_partition(ws, table, 1, "ingest", [*there, *rows])
    there = partitions.read_partition(ws, "steps", 1, "ingest").to_pylist()
    columns = set(partitions.read_partition(ws, "steps", 1, "ingest").column_names)
    made = [{k: v for k, v in vars(step).items() if k in columns} for one in both for step in one.steps]
    partitions.write_partition(ws, "steps", 1, "ingest", [*there, *made])
    synthetic.routed(ws, settings, 1)
    stored = {row["trajectory_id"]: row for row in partitions.read_partition(ws, "ct", 1, "route").to_pylist()}
    aside = {
        row["trajectory_id"]: row["reason"]
        for row in partitions.read_partition(ws, "quarantine", 1, "route").to_pylist()
    }
    names = [one.trajectory.trajectory_id for one in both]
    assert stored[names[0]]["source"] == "import"
    assert "held out for evaluation" in aside[names[1]]
    assert "the instruction of held" in aside[names[2]]
    assert (stored[names[3]]["source"], stored[names[3]]["policy_version"]) == ("import", "gpt")
    assert "held out for evaluation" in aside[names[4]]
    links = partitions.read_partition(ws, "lineage", 1, "route").to_pylist()
    assert ("agentnet:20240927235321_5855063d", "imported from") in {
        (row["parent"], row["relation"]) for row in links if row["child"] == names[0]
    }


def test_the_command_imports_once_and_tells_what_is_lost(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    lines, images = agentnet_files(tmp_path, *CODES)
    wanted = ["data", "import", "agentnet", str(lines), "--images", str(images), "-w", str(tmp_path)]
    first = CliRunner().invoke(main, wanted)
    assert first.exit_code == 0, first.output
    assert "imported 1 trajectories" in first.output
    assert "reflection" in first.output
    assert "1 are not learnt" in first.output
    assert "imported 0 trajectories to recordings, 1 were there" in CliRunner().invoke(main, wanted).output
    record = json.loads(lines.read_text())
    record["traj"][3]["index"] = 9
    lines.write_text(json.dumps(record))
    other = CliRunner().invoke(main, wanted).output
    assert "is there already, and holds other steps or facts" in other
    lines.write_text(json.dumps({**record, "task_id": "holed"}))
    assert "1 of them lack steps that the data set numbers" in CliRunner().invoke(main, wanted).output
    lines.write_text("[]\n")
    none = CliRunner().invoke(main, wanted)
    assert none.exit_code == 1
    assert "1 refused" in none.output
    assert "are not learnt" not in none.output
    assert "does not hold" not in none.output


def test_the_command_imports_results_of_osworld_as_evaluation_tasks_unless_told_otherwise(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    osworld_run(tmp_path / "results", "train")
    wanted = ["data", "import", "osworld", str(tmp_path / "results"), "-w", str(tmp_path)]
    first = CliRunner().invoke(main, wanted)
    assert first.exit_code == 0, first.output
    assert "imported 1 trajectories" in first.output
    assert "evaluation tasks, which are never trained on" in first.output
    other = CliRunner().invoke(main, [*wanted, "--split", "train"])  # the same run, as another kind of task
    assert "is there already, and holds other steps or facts" in other.output

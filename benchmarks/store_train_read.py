"""Drawing 600 samples for continual training, reading and encoding them, from a store and from one ten times as large.

Each time in a fresh process, as a stage is: what it imports is in its time and in its memory. Time and memory must not
grow with the store: at most 20% more from the large one, 10 s of CPU, 1 GiB. Beside it pyarrow reads the same rows and
screens raw.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import store_synthetic as synthetic
from bench_case import BenchCase
from PIL import Image

from flywheel.config.workspace import Workspace
from flywheel.store import manifest, partitions
from flywheel.store.schema import TABLES
from flywheel.utils.files import write_json

SAMPLES = 600
ITERATIONS = 10
STEPS_A_SCREEN = 150
SCREEN_BYTES = 5_000
REPETITIONS = 3
_GROWTH, _CPU_S, _MEMORY_GIB = 1.2, 10.0, 1.0
_NAMES = "drawn.json"  # of the trajectories that the peer is told to read
_MODEL = Path(__file__).resolve().parent.parent / "models" / "base"


def cases(options: Namespace) -> Iterator[BenchCase]:
    few, many = options.trajectories // 10, options.trajectories
    made = {count: _workspace(options.folder / f"train-{count}", count, options.seed) for count in (few, many)}
    ours: dict[int, list[dict[str, float]]] = {count: [] for count in made}
    raw: dict[int, list[dict[str, float]]] = {count: [] for count in made}
    for ws in made.values():
        write_json(ws.root / _NAMES, sorted({one.name for one in _drawn(ws)}))
    for _ in range(REPETITIONS):  # in turns, since other work shares the machine
        for count, ws in made.items():
            ours[count].append(_process("sample", ws.root))
            raw[count].append(_process("read_raw", ws.root))

    def least(found: list[dict[str, float]], what: str) -> float:
        return min(one[what] for one in found)

    for case, what, unit, limit in (("seconds", "cpu_s", "s", _CPU_S), ("memory", "peak_gib", "GiB", _MEMORY_GIB)):
        own, peer = least(ours[many], what), least(raw[many], what)
        grown = own / least(ours[few], what)
        facts = {"trajectories": many, "samples": SAMPLES, "fewer": few, "of_fewer": least(ours[few], what)}
        name = "pyarrow, the same rows raw"
        yield BenchCase(
            "store", f"train_read {case}", unit, own, peer, name, own / peer, limit, own <= limit, dict(facts)
        )
        grown_raw = peer / least(raw[few], what)
        yield BenchCase(
            "store",
            f"train_read growth of {case}",
            "ratio",
            grown,
            grown_raw,
            name,
            grown / grown_raw,
            _GROWTH,
            grown <= _GROWTH,
            facts,
        )


def _workspace(folder: Path, trajectories: int, seed: int) -> Workspace:
    """Ten iterations whose stores ct name all of their trajectories; made once."""
    ws = Workspace(folder.resolve())
    if (ws.root / "made").is_file():
        return ws
    manifest.init_first_checkpoint(ws, digest="base")
    mine, screens = trajectories // ITERATIONS, max(1, trajectories * synthetic.STEPS // ITERATIONS // STEPS_A_SCREEN)
    names = synthetic.screen_names(screens)
    for k in range(1, ITERATIONS + 1):
        for table in ("trajectories", "steps"):
            with partitions.open_partition_writer(ws, table, k, "rollout") as writer:
                for batch in synthetic.batches(table, mine, iteration=k, screens=screens, seed=seed):
                    writer.write(batch)
        partitions.write_partition(ws, "images", k, "rollout", _screens(names, seed))
        partitions.write_partition(ws, "ct", k, "route", _ct(ws, k))
        data = [(table, "rollout") for table in ("trajectories", "steps", "images")]
        manifest.write_manifest(ws, k, window=2, data=data)
    (ws.root / "made").touch()
    return ws


def _screens(names: list[str], seed: int) -> Iterator[dict]:
    """One picture that can be read, and after its end bytes that no two have alike."""
    file, rng = io.BytesIO(), np.random.default_rng(seed)
    Image.new("RGB", (224, 224), "#f4f5f7").save(file, "PNG")
    for name in names:
        png = file.getvalue() + rng.bytes(SCREEN_BYTES - len(file.getvalue()))
        yield {"sha256": name, "width": 224, "height": 224, "format": "png", "bytes": png}


def _ct(ws: Workspace, iteration: int) -> Iterator[dict]:
    columns = [name for name in TABLES["ct"].names if name in TABLES["trajectories"].names]
    for row in partitions.read_partition(ws, "trajectories", iteration, "rollout", columns).to_pylist():
        yield {**row, "weight": 1.0}


def _process(what: str, root: Path) -> dict[str, float]:
    code = f"import store_train_read as part; part.report(part.{what}, {str(root)!r})"
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(act, root: str) -> None:
    """In the fresh process: do it, and print what the process cost."""
    act(Workspace(Path(root)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_gib": synthetic.peak_gib()}))


def sample(ws: Workspace) -> None:
    """As the stage ct: draw, read, and encode each sample once."""
    from flywheel.config import Settings
    from flywheel.policy.encoding import Encoder
    from flywheel.training import data as dataset

    read = manifest.read_manifest(ws, ITERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        found = dataset.load_examples(ws, read, _drawn(ws), Encoder.from_folder(_MODEL), Settings(), Path(folder))
        for one in found:
            assert len(one.context) > 0


def read_raw(ws: Workspace) -> None:
    """All columns of the drawn trajectories' rows, and their first screens."""
    names = json.loads((ws.root / _NAMES).read_text(encoding="utf-8"))
    for table in ("trajectories", "steps"):
        paths = partitions.table_files(ws, table)
        found = pq.read_table(paths, filters=[("trajectory_id", "in", names)], partitioning=None)
    seen = sorted(set(found["image_sha256"].to_pylist()[:SAMPLES]))
    pq.read_table(partitions.table_files(ws, "images"), filters=[("sha256", "in", seen)], partitioning=None)


def _drawn(ws: Workspace) -> list:
    from flywheel.config import SupervisedSettings
    from flywheel.training import data as dataset

    pool = dataset.load_weighted_steps(ws, manifest.read_manifest(ws, ITERATIONS), "ct", {"rollout": 0.02})
    block = SupervisedSettings(num_examples=SAMPLES, agent_fraction=1.0)
    return dataset.draw_mixture(pool, dataset.WeightedSteps([], np.zeros(0, int), np.zeros(0)), block, 0)

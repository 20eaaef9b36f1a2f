"""A long trajectory as a log of Inspect, for its viewer. Runs in Inspect's own environment (`pip install inspect_ai`):

python benchmarks/explorer_inspect.py STEPS.parquet IMAGES.parquet OUT.eval
"""

from __future__ import annotations

import base64
import sys

import pyarrow.parquet as pq
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ContentImage, ContentText


def main(steps: str, images: str, out: str) -> None:
    shown = {row["sha256"]: row["bytes"] for row in pq.read_table(images, columns=["sha256", "bytes"]).to_pylist()}
    messages = []
    for row in pq.read_table(steps, columns=["raw_text", "image_sha256"]).to_pylist():
        picture = base64.b64encode(shown[row["image_sha256"]]).decode()
        messages += [
            ChatMessageUser(content=[ContentImage(image=f"data:image/png;base64,{picture}")]),
            ChatMessageAssistant(content=[ContentText(text=row["raw_text"])]),
        ]
    sample = EvalSample(id="long", epoch=1, input="Buy all, long", target="", messages=messages)
    made = {"created": "2026-11-26T00:00:00+00:00", "task": "long", "model": "flywheel"}
    spec = EvalSpec(**made, dataset=EvalDataset(samples=1), config=EvalConfig())
    write_eval_log(EvalLog(status="success", eval=spec, samples=[sample]), out)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The store at sizes far beyond a laptop's day: what writing, routing, reading, asking and damage cost, and what holds.

    flywheel bench store --only write_route,train_read --trajectories 20000

Workspaces of made-up trajectories (`store_synthetic.py`) lie in `--folder` and are used again.
"""

from __future__ import annotations

from collections.abc import Sequence

from parts import Parts


def main(argv: Sequence[str] | None = None) -> int:
    parts = Parts("store", __doc__, shared=["synthetic"])
    parts.parser.add_argument("--trajectories", type=int, default=20_000, help="of the large store, of 15 steps each")
    parts.parser.add_argument("--seed", type=int, default=2026)
    return parts.main(argv)

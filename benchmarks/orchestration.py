"""The flywheel as it is run: what orchestration costs, what kills leave behind, what schedules and data begin.

    flywheel bench orchestration --only chaos --kills 20 --database postgres

Workspaces lie in `--folder`; a part that finds one of its own there begins it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestration_postgres import DATABASES
from parts import Parts


def main(argv: Sequence[str] | None = None) -> int:
    parts = Parts("orchestration", __doc__, shared=["turn", "history", "machines", "nothing", "postgres"])
    add = parts.parser.add_argument
    add("--kills", type=int, default=20, help="of part chaos (default: %(default)s)")
    add("--shards", type=int, default=2000, help="of part shards (default: %(default)s)")
    add(
        "--database",
        choices=DATABASES,
        default="sqlite",
        help="of Prefect's server, in parts chaos and shards (default: %(default)s)",
    )
    add("--events", type=int, default=200, help="of part events (default: %(default)s)")
    add("--minutes", type=float, default=20.0, help="that part idle looks on (default: %(default)s)")
    add("--hour-minutes", type=int, default=4, help="that an hour of part night takes (default: %(default)s)")
    add("--port", type=int, default=4290, help="of Prefect's pages in parts idle and night (default: %(default)s)")
    add("--latency", type=float, default=0.6, help="seconds, of a step and of an answer in part scale")
    add("--seed", type=int, default=2026, help="of what is random (default: %(default)s)")
    return parts.main(argv)

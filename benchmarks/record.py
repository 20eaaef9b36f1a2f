"""The recorder of a person's desktop (X11): what is lost, which screen an action has, what of a secret is stored.

flywheel bench record --only input,screens,secrets,faults,speech
"""

from __future__ import annotations

from collections.abc import Sequence

from parts import Parts


def main(argv: Sequence[str] | None = None) -> int:
    parts = Parts("record", __doc__, ["display"])
    parts.parser.add_argument("--events", type=int, default=100_000, help="keys and buttons, down and up")
    parts.parser.add_argument("--rate", type=int, default=1000, help="events a second, at most")
    parts.parser.add_argument("--clicks", type=int, default=1000, help="whose screens are looked at, at each rate")
    parts.parser.add_argument("--secrets", type=int, default=200, help="that are typed")
    parts.parser.add_argument("--sessions", type=int, default=40, help="that are spoken, of seven steps")
    parts.parser.add_argument("--peer", help="Python with openadapt-capture 1.3, for the same stream of events")
    return parts.main(argv)

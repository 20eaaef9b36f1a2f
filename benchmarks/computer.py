"""Computers: how soon one is there, how many fit, how fast and how exactly they are acted upon, who leases them.

flywheel bench computer --only desktop,input,functions,escape,manager
"""

from __future__ import annotations

from collections.abc import Sequence

from parts import Parts


def main(argv: Sequence[str] | None = None) -> int:
    parts = Parts("computer", __doc__, ["asking", "attacks", "hostile", "plain", "playing"])
    parts.parser.add_argument("--leases", type=int, default=20, help="of each kind that are timed")
    parts.parser.add_argument("--desktops", type=int, default=16, help="at once, whose memory is measured")
    parts.parser.add_argument("--steps", type=int, default=400, help="of each side that are timed")
    parts.parser.add_argument("--events", type=int, default=10_000, help="characters and clicks that must arrive")
    parts.parser.add_argument("--files", type=int, default=1000, help="written by one function and read by the others")
    parts.parser.add_argument("--sessions", type=int, default=5000, help="at the manager")
    parts.parser.add_argument("--seconds", type=float, default=10.0, help="that the manager is asked for")
    parts.parser.add_argument("--clients", type=int, default=1000, help="of the manager that are killed")
    walls = ["bubblewrap", "podman", "docker"]
    parts.parser.add_argument("--walls", choices=walls, default=walls[0], help="of the machines that escape, desktops")
    parts.parser.add_argument("--seed", type=int, default=2026)
    return parts.main(argv)

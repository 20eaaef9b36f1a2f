"""Provide the environments that an agent acts in: their interfaces, the back-ends, and the pools that lend them."""

__all__ = [
    "base",
    "browser",
    "cgroups",
    "computer",
    "conformance",
    "isolation",
    "registry",
    "remote",
    "screens",
    "suites",
    "tasks",
]

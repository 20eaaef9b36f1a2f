"""Play tasks of the benchmark OSWorld: read their JSON files, set them up in a machine and judge them."""

__all__ = ["commands", "runner", "suite"]

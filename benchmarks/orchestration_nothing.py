"""A flow that does nothing: what is measured is how it begins."""

from __future__ import annotations

from prefect import flow


@flow(name="nothing")
def nothing(until: str) -> None:
    """until: as an ingest is asked for."""

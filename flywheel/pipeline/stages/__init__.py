"""Hold the stages of an iteration: each module declares one as `STAGE`, with what it reads, does and writes."""

__all__ = ["evaluate", "ingest", "route", "score"]

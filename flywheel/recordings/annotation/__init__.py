"""Run annotation sessions: a person accepts or replaces the model's proposals; a journal on disk survives a kill."""

__all__ = ["journal", "overrides", "rows", "session"]

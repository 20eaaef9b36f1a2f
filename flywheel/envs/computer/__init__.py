"""Run computers for agents: isolated machines with a home folder, shell, Python, MCP tools and desktop."""

__all__ = ["backend", "bwrap", "computer", "desktop", "env", "machine", "osworld", "task_spec"]

"""Machines of a session's own: a home folder, a shell, Python, files and tools in it, kept apart from this machine."""

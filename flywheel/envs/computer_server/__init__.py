"""Run the computer server: an HTTP server inside the machine that an agent controls, for its shell, files and screen.

It needs only Python's standard library (for a screen also mss and python-xlib, or PyAutoGUI) and imports nothing of
flywheel: it runs as a folder (`python flywheel/envs/computer_server`).
"""

__all__ = ["init_process"]

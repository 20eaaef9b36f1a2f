"""Run a small HTTP server inside a machine, with a shell, Python, files and a screen.

It needs only Python's standard library (for a screen also mss and python-xlib, or PyAutoGUI) and imports nothing of
flywheel: it runs as a folder (`python flywheel/envs/computer_server`).
"""

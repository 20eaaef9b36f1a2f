"""Act inside of a machine: a small HTTP server with a shell, Python, files and a screen.

It needs nothing but Python's standard library (a screen: mss and python-xlib, or PyAutoGUI), and nothing of flywheel's:
it runs as a folder (`python flywheel/envs/computer_server`).
"""

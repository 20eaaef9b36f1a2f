"""Hold the MCP servers that ship, for the tasks that name them. They run inside a machine, each as a program of its own
(`python3 flywheel/envs/computer_server/servers/sql.py`), with the standard library alone."""

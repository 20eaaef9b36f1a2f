"""Hold the shipped MCP servers, whose tools tasks give to agents; each is a program that runs inside a machine.

They need the standard library alone: `python3 flywheel/envs/computer_server/servers/sql.py`.
"""

"""Run computers for agents: isolated machines with a home folder, a shell, Python, MCP tools and a desktop."""

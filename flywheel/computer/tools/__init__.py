"""MCP tools of a task: servers inside of its machine, listed, told to the agent, called within deadlines and limits.

What runs there may be anything: it hangs, lies, floods or dies, and the agent reads so.
"""

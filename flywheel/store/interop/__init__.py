"""Import demonstrations of published data sets, and export the training stores."""

__all__ = [
    "agentnet",
    "agentnet_bench",
    "agentnet_tool",
    "atif",
    "browser_use",
    "demonstration",
    "exports",
    "input_events",
    "inspect_logs",
    "mind2web",
    "openadapt",
    "osworld",
    "traces",
    "verifiers_traces",
]

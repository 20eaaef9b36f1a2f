"""Drive Chromium over its DevTools protocol: its process, tabs, pages and input, and imitations of its own UI."""

__all__ = ["cdp", "chromium", "context", "input", "page", "tab"]

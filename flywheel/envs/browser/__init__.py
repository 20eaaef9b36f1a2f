"""Play tasks on web pages in Chromium: a pool of pages, an environment on each, and the driver of Chromium below."""

__all__ = ["driver", "page_check", "pages", "pool"]

"""Play tasks on web pages in Chromium: a pool of pages, an environment on each, a driver below."""

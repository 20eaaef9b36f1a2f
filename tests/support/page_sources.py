"""A source of pages whose manifest a test chooses while the pool is open."""

from __future__ import annotations


class Sources:
    """`now`: the pages that are opened from here on."""

    def open(self, task, seed):
        return self.now.open(task, seed)

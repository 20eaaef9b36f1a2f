"""Open the compiled code of `cpu_kernels.py`, where this machine can have it."""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType

log = logging.getLogger(__name__)


@cache
def open_kernels() -> ModuleType | None:
    """Import `cpu_kernels`, which compiles it if this machine has not done so yet; None where that is impossible."""
    try:
        from flywheel.policy.inference import cpu_kernels
    except Exception as error:  # numba is missing or switched off; what it kept is damaged, or cannot be kept
        fix = "set NUMBA_CACHE_DIR to an empty folder that can be written"
        log.warning("the policy runs without compiled code, some four times slower: %s; %s", error, fix)
        return None
    return cpu_kernels

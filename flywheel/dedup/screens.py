"""The difference hash of a screen (Krawetz 2013): 64 bits, each whether a cell of a 9 x 8 grid is darker than the next.

A moved pointer or a blinking caret leaves it as it is, or changes a few bits.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

NEAR = 4
"""Bits, of 64, in which two hashes of like screens differ at most."""


def dhash(encoded: bytes) -> int:
    """Of a PNG, JPEG or WebP file. Raises OSError where it is none."""
    with Image.open(io.BytesIO(encoded)) as picture:
        cells = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BILINEAR))
    return int.from_bytes(np.packbits(cells[:, 1:] > cells[:, :-1]).tobytes(), "big")


def alike(left: int, right: int) -> bool:
    return (left ^ right).bit_count() <= NEAR

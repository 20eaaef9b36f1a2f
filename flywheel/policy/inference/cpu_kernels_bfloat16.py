"""Multiply rows in float32 with a matrix that is kept in bfloat16: the same numbers, half of the memory to read.

Importing this module compiles it where this machine has not yet.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from flywheel.policy.inference.cpu_kernels import BLOCK, KEPT, ROWS, make_block_product

_F2, _I = types.Array(types.float32, 2, "C"), types.int64
_H3 = types.Array(types.uint16, 3, "C")
_one, _two, _three, _four = (make_block_product(rows, bfloat16=True) for rows in (1, 2, 3, 4))


@njit(types.void(_F2, _H3, _F2, _I, _I), **KEPT)
def multiply(x, weights, y, first, last):
    """Compute the blocks from `first` up to `last` of y[row] = weights x[row].

    x: [rows, in]. weights: as `pack_blocks` returns them. y: [rows, blocks x BLOCK].
    """
    rows, inputs = x.shape
    width = y.shape[1]
    x_at, y_at, at = x.ctypes.data, y.ctypes.data, weights.ctypes.data
    for block in range(first, last):
        here = at + 2 * block * inputs * BLOCK
        row = 0
        while row < rows:
            left = min(rows - row, ROWS)
            from_, to = x_at + 4 * row * inputs, y_at + 4 * (row * width + block * BLOCK)
            if left == 4:
                _four(from_, inputs, here, inputs, to, width)
            elif left == 3:
                _three(from_, inputs, here, inputs, to, width)
            elif left == 2:
                _two(from_, inputs, here, inputs, to, width)
            else:
                _one(from_, inputs, here, inputs, to, width)
            row += left


def pack_blocks(weight: np.ndarray) -> np.ndarray | None:
    """Cut a float32 matrix [out, in] into blocks of bfloat16; None where bfloat16 cannot hold one of its numbers.

    Returns the bits as uint16 [blocks, in, BLOCK], the last block filled up with zeros.
    """
    outputs, inputs = weight.shape
    bits = weight.view(np.uint32)
    packed = np.zeros((-(-outputs // BLOCK), inputs, BLOCK), np.uint16)
    for number, block in enumerate(packed):
        part = bits[number * BLOCK : (number + 1) * BLOCK]
        if (part & 0xFFFF).any():
            return None
        block[:, : len(part)] = (part >> 16).T
    return packed

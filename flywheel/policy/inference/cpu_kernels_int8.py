"""Compute the layers of `cpu_kernels.py` with products in 8-bit integers, for processors with AVX-512 VNNI.

Importing this module compiles it where this machine has not yet. It raises ImportError on other processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from flywheel.policy.inference import cpu_kernels
from flywheel.policy.inference.cpu_kernels import BLOCK, LANES, ROWS, VECTORS

if not cpu_kernels.FEATURES.get("avx512vnni"):
    raise ImportError("this processor has no AVX-512 VNNI")

TOP, OFFSET = 127, 128  # steps to either side of zero; what zero is as an unsigned input
_FOUR = 4  # inputs that one instruction multiplies and adds, for each output
_LEAST = np.float32(1e-30)
_INT, _BYTE = ir.IntType(64), ir.IntType(8)


def _make_block_product(rows: int) -> Any:
    """Make the function that multiplies `rows` rows with one block of weights, into whole sums.

    Its arguments are addresses and lengths: x, unsigned bytes, and from one row of it to the next in bytes; the block,
    [fours, BLOCK, 4] signed bytes; fours of inputs; y, 32-bit integers, and from one row of it to the next in numbers.
    """
    signature = types.void(types.uintp, types.intp, types.uintp, types.intp, types.uintp, types.intp)
    word = ir.IntType(32)
    sums, parts = ir.VectorType(word, LANES), ir.VectorType(_BYTE, LANES * _FOUR)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_step, weights, fours, y, y_step = arguments
        x, weights = (builder.inttoptr(address, _BYTE.as_pointer()) for address in (x, weights))
        y = builder.inttoptr(y, word.as_pointer())
        name = "llvm.x86.avx512.vpdpbusd.512"
        multiply_add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(sums, [sums, parts, parts]), name)

        def after(start: Any, step: Any, times: int) -> Any:
            return builder.gep(start, [builder.mul(step, ir.Constant(_INT, times))])

        before, loop = builder.block, builder.append_basic_block("input")
        done = builder.append_basic_block("done")
        row_starts = [after(x, x_step, row) for row in range(rows)]
        builder.branch(loop)
        builder.position_at_end(loop)
        number = builder.phi(_INT)
        number.add_incoming(ir.Constant(_INT, 0), before)
        held = [builder.phi(sums) for _ in range(rows * VECTORS)]
        here = after(weights, number, BLOCK * _FOUR)
        loaded = []
        for place in range(VECTORS):
            at = builder.gep(here, [ir.Constant(_INT, place * LANES * _FOUR)])
            loaded.append(builder.load(builder.bitcast(at, parts.as_pointer()), align=1))
        undefined, first = ir.Constant(sums, ir.Undefined), ir.Constant(word, 0)
        every = ir.Constant(sums, [0] * LANES)
        new = []
        for row in range(rows):
            at = builder.bitcast(after(row_starts[row], number, _FOUR), word.as_pointer())
            value = builder.insert_element(undefined, builder.load(at, align=1), first)
            value = builder.bitcast(builder.shuffle_vector(value, undefined, every), parts)
            for place in range(VECTORS):
                new.append(builder.call(multiply_add, [held[row * VECTORS + place], value, loaded[place]]))
        following = builder.add(number, ir.Constant(_INT, 1))
        number.add_incoming(following, loop)
        for one, value in zip(held, new, strict=True):
            one.add_incoming(ir.Constant(sums, None), before)
            one.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, fours), loop, done)
        builder.position_at_end(done)
        for row in range(rows):
            start = after(y, y_step, row)
            for place in range(VECTORS):
                at = builder.gep(start, [ir.Constant(_INT, place * LANES)])
                builder.store(new[row * VECTORS + place], builder.bitcast(at, sums.as_pointer()), align=4)
        return context.get_dummy_value()

    @intrinsic
    def block_product(typing, x, x_step, weights, fours, y, y_step):
        return signature, code

    return block_product


_one, _two, _three, _four = (_make_block_product(rows) for rows in (1, 2, 3, 4))


@njit(**cpu_kernels.INNER)
def _int8_product(x, weights, steps, totals, y):
    """y[row] = weights x[row]. x: float32 [rows, in], of which each row is rounded to bytes. weights, steps, totals: of
    one matrix, as `pack_blocks` returns them. y: float32 [rows, blocks x BLOCK]."""
    rows, inputs = x.shape
    blocks, fours, width = len(weights), weights.shape[1], y.shape[1]
    whole = np.full((rows, fours * _FOUR), np.uint8(OFFSET), np.uint8)
    sizes = np.empty(rows, np.float32)
    sums = np.empty((rows, width), np.int32)
    for row in range(rows):
        size = _LEAST
        for i in range(inputs):
            size = max(size, abs(x[row, i]))
        sizes[row] = size
        factor = np.float32(TOP) / size
        for i in range(inputs):
            whole[row, i] = np.uint8(np.int32(x[row, i] * factor + np.float32(OFFSET + 0.5)))
    x_at, y_at, at, step = whole.ctypes.data, sums.ctypes.data, weights.ctypes.data, fours * _FOUR
    for block in range(blocks):
        here = at + block * step * BLOCK
        row = 0
        while row < rows:
            left = min(rows - row, ROWS)
            from_, to = x_at + row * step, y_at + 4 * (row * width + block * BLOCK)
            if left == 4:
                _four(from_, step, here, fours, to, width)
            elif left == 3:
                _three(from_, step, here, fours, to, width)
            elif left == 2:
                _two(from_, step, here, fours, to, width)
            else:
                _one(from_, step, here, fours, to, width)
            row += left
    for row in range(rows):
        scale = sizes[row] / np.float32(TOP)
        for i in range(blocks * BLOCK):
            y[row, i] = np.float32(sums[row, i] - OFFSET * totals[i]) * (scale * steps[i])


@overload(cpu_kernels.product, inline="never")
def _product_of_bytes(x, weights, layer, y):
    if isinstance(weights, types.BaseTuple):
        return lambda x, weights, layer, y: _int8_product(x, weights[0][layer], weights[1][layer], weights[2][layer], y)
    return None


@overload(cpu_kernels.width)
def _width_of_bytes(weights):
    if isinstance(weights, types.BaseTuple):
        return lambda weights: weights[0].shape[1] * BLOCK
    return None


_MATRICES = types.Tuple(
    [types.Array(types.int8, 4, "C"), types.Array(types.float32, 2, "C"), types.Array(types.int32, 2, "C")]
)
run_layers = njit(cpu_kernels.layers_signature(_MATRICES), **cpu_kernels.KEPT)(cpu_kernels.compute_layers)


def pack_blocks(whole: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut a matrix of bytes into blocks; what does not fill a block or a four is filled up with zeros.

    whole: int8 [out, in]. steps: float32 [out], the value of one step of each row. Returns the blocks, int8 [blocks,
    fours of inputs, BLOCK x 4]; steps, and the sum of each row, int32, both [blocks x BLOCK].
    """
    outputs, inputs = whole.shape
    blocks, fours = -(-outputs // BLOCK), -(-inputs // _FOUR)
    filled = np.zeros((blocks * BLOCK, fours * _FOUR), np.int8)
    filled[:outputs, :inputs] = whole
    cut = filled.reshape(blocks, BLOCK, fours, _FOUR).transpose(0, 2, 1, 3).reshape(blocks, fours, BLOCK * _FOUR)
    all_steps = np.zeros(blocks * BLOCK, np.float32)
    all_steps[:outputs] = steps
    return np.ascontiguousarray(cut), all_steps, filled.sum(axis=1, dtype=np.int32)

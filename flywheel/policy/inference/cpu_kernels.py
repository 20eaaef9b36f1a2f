"""Compute a small language model's layers on one core of a CPU, in machine code that numba compiles and keeps on disk.

In torch a layer of a small model is some twenty calls, each of which costs more than the arithmetic in it. Here a pass
is one call, without Python's lock. Every number of a token is summed in an order that depends on nothing but the
token's own row, so a row's results are equal to the last bit whatever else is in the batch.

Importing this module imports numba (0.3 s). It raises ImportError where numba is missing, RuntimeError where it is
switched off or compiled code cannot be kept on disk.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

if config.DISABLE_JIT:
    raise RuntimeError("NUMBA_DISABLE_JIT is set")

# The product of a few rows with a matrix. The matrix is cut into blocks of BLOCK outputs, [blocks, in, BLOCK], so that
# it is read in one stream, and an input is multiplied with whole vectors of weights. ROWS rows at a time keep all their
# sums in registers: 4 vectors a row, of 32 registers; AVX2 has 16.

FEATURES = llvmlite.binding.get_host_cpu_features()
LANES, ROWS = (16, 4) if FEATURES.get("avx512f") else (8, 3) if FEATURES.get("avx2") else (4, 4)
VECTORS = 4
BLOCK = VECTORS * LANES

_FLOAT = ir.FloatType()
_INT = ir.IntType(64)


def make_block_product(rows: int, *, bfloat16: bool = False) -> Any:
    """Make the compiled function that multiplies `rows` rows with one block of weights.

    bfloat16: of the block's numbers, each widened to float32 where it is used; the rest is float32. The function's
    arguments are addresses and lengths in numbers: x, and from one row of it to the next; the block; inputs; y, and
    from one row of it to the next.
    """
    word, half = ir.IntType(32), ir.IntType(16)
    signature = types.void(types.uintp, types.intp, types.uintp, types.intp, types.uintp, types.intp)
    vector = ir.VectorType(_FLOAT, LANES)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_step, weights, inputs, y, y_step = arguments
        x, y = (builder.inttoptr(address, _FLOAT.as_pointer()) for address in (x, y))
        weights = builder.inttoptr(weights, (half if bfloat16 else _FLOAT).as_pointer())
        several = [vector] * 3
        name = f"llvm.fmuladd.v{LANES}f32"
        multiply_add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, several), name)

        def after(start: Any, step: Any, times: int) -> Any:
            return builder.gep(start, [builder.mul(step, ir.Constant(_INT, times))])

        def vector_at(start: Any, number: int) -> Any:
            place = builder.gep(start, [ir.Constant(_INT, number * LANES)])
            return builder.bitcast(place, vector.as_pointer())

        def weights_at(start: Any, number: int) -> Any:
            if not bfloat16:
                return builder.load(vector_at(start, number), align=4)
            place = builder.gep(start, [ir.Constant(_INT, number * LANES)])
            halves = builder.load(builder.bitcast(place, ir.VectorType(half, LANES).as_pointer()), align=2)
            words = ir.VectorType(word, LANES)  # the bits of a bfloat16 are the upper half of a float32's
            shifted = builder.shl(builder.zext(halves, words), ir.Constant(words, [16] * LANES))
            return builder.bitcast(shifted, vector)

        before, loop = builder.block, builder.append_basic_block("input")
        done = builder.append_basic_block("done")
        row_starts = [after(x, x_step, row) for row in range(rows)]
        builder.branch(loop)
        builder.position_at_end(loop)
        number = builder.phi(_INT)
        number.add_incoming(ir.Constant(_INT, 0), before)
        sums = [builder.phi(vector) for _ in range(rows * VECTORS)]
        here = builder.gep(weights, [builder.mul(number, ir.Constant(_INT, BLOCK))])
        loaded = [weights_at(here, place) for place in range(VECTORS)]
        undefined, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        new = []
        for row in range(rows):
            value = builder.insert_element(undefined, builder.load(builder.gep(row_starts[row], [number])), first)
            value = builder.shuffle_vector(value, undefined, every)
            for place in range(VECTORS):
                new.append(builder.call(multiply_add, [value, loaded[place], sums[row * VECTORS + place]]))
        following = builder.add(number, ir.Constant(_INT, 1))
        number.add_incoming(following, loop)
        for one, value in zip(sums, new, strict=True):
            one.add_incoming(ir.Constant(vector, None), before)
            one.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, done)
        builder.position_at_end(done)
        for row in range(rows):
            start = after(y, y_step, row)
            for place in range(VECTORS):
                builder.store(new[row * VECTORS + place], vector_at(start, place), align=4)
        return context.get_dummy_value()

    @intrinsic
    def block_product(typing, x, x_step, weights, inputs, y, y_step):
        return signature, code

    return block_product


_one, _two, _three, _four = (make_block_product(rows) for rows in (1, 2, 3, 4))


@intrinsic
def _as_float(typing, bits):
    """The float32 with the bits of an int32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), code


_SUMS = {"reassoc", "contract", "nsz"}  # sums in any order; a number that is not finite stays one
KEPT = {"cache": True, "nogil": True, "fastmath": _SUMS, "error_model": "numpy"}
INNER = {"nogil": True, "fastmath": _SUMS, "error_model": "numpy"}

_F, _I = types.float32, types.int64
_F1, _F2, _F3, _F4, _F6 = (types.Array(_F, n, "C") for n in (1, 2, 3, 4, 6))
_I1 = types.Array(_I, 1, "C")
_D1, _D2 = types.Array(types.float64, 1, "C"), types.Array(types.float64, 2, "C")
_U2 = types.Array(types.uint32, 2, "C")


@njit(**INNER)
def _product(x, weights, y):
    """y[row] = weights x[row]. x: [rows, in]. weights: [blocks, in, BLOCK]. y: [rows, blocks x BLOCK]."""
    rows, inputs = x.shape
    blocks, width = len(weights), y.shape[1]
    x_at, y_at, at = x.ctypes.data, y.ctypes.data, weights.ctypes.data
    for block in range(blocks):
        here = at + 4 * block * inputs * BLOCK
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


def product(x, weights, layer, y):
    """Compute y[row] = the weights of a layer times x[row]; what is compiled depends on the type of `weights`."""


def width(weights):
    """Return how many numbers a row of a product with `weights` has: those of whole blocks."""


@overload(product, inline="never")
def _product_of_floats(x, weights, layer, y):
    if isinstance(weights, types.Array):
        return lambda x, weights, layer, y: _product(x, weights[layer], y)
    return None


@overload(width)
def _width_of_floats(weights):
    if isinstance(weights, types.Array):
        return lambda weights: weights.shape[1] * BLOCK
    return None


@njit(inline="always", **INNER)
def _exp(x):
    """e^x in float32, to about one unit in the last place, in operations that become vectors (Cephes' polynomial)."""
    given = x
    x = min(max(x, np.float32(-87.0)), np.float32(88.0)) if x == x else x
    whole = np.float32(math.floor(x * np.float32(1.44269504088896341) + np.float32(0.5)))
    x = (x - whole * np.float32(0.693359375)) - whole * np.float32(-2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * x + np.float32(1.3981999507e-3)
    y = y * x + np.float32(8.3334519073e-3)
    y = y * x + np.float32(4.1665795894e-2)
    y = y * x + np.float32(1.6666665459e-1)
    y = y * x + np.float32(5.0000001201e-1)
    y = y * x * x + x + np.float32(1.0)
    power = np.int32(np.int32(whole) + np.int32(127)) << np.int32(23)
    return y * _as_float(np.int32(power)) if not given < np.float32(-87.0) else np.float32(0)


@njit(**INNER)
def _normed(x, weight, epsilon, y):
    """RMSNorm of each row. x, y: [rows, size]. weight: [size]."""
    rows, size = x.shape
    for row in range(rows):
        total = np.float32(0)
        for i in range(size):
            total += x[row, i] * x[row, i]
        scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(size) + epsilon))
        for i in range(size):
            y[row, i] = x[row, i] * scale * weight[i]


@njit(**INNER)
def _turn(x, cos, sin, factors, normed, epsilon):
    """Normalise a token's queries and keys, if the model does, and apply the rotary positions, in place.

    x: [heads, head size]. cos, sin: [head size]. factors: [heads, head size].
    """
    heads, size = factors.shape
    half = size // 2
    for head in range(heads):
        here = x[head * size : (head + 1) * size]
        if normed:
            total = np.float32(0)
            for i in range(size):
                total += here[i] * here[i]
            scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(size) + epsilon))
            for i in range(size):
                here[i] *= scale * factors[head, i]
        for i in range(half):
            low, high = here[i], here[i + half]
            here[i] = low * cos[i] - high * sin[i]
            here[i + half] = high * cos[i + half] + low * sin[i + half]


@njit(**INNER)
def _attend(query, keys, values, seen, scale, scores, y):
    """Attention of one query. query, y: [head size]. keys, values: [length, head size], `seen` of which count."""
    size = len(query)
    top = np.float32(-np.inf)
    for j in range(seen):
        total = np.float32(0)
        for i in range(size):
            total += query[i] * keys[j, i]
        scores[j] = total * scale
        top = max(top, scores[j])
    whole = np.float32(0)
    for j in range(seen):
        scores[j] = _exp(scores[j] - top)
        whole += scores[j]
    for i in range(size):
        y[i] = 0
    for j in range(seen):
        weight = scores[j]
        for i in range(size):
            y[i] += weight * values[j, i]
    whole = np.float32(1) / whole
    for i in range(size):
        y[i] *= whole


def layers_signature(matrices: types.Type) -> Any:
    """Return numba's signature of `compute_layers` for matrices of the type `matrices`."""
    of_layers = (_F2, matrices, _F2, _F3, types.boolean, matrices, _F2, matrices, matrices, _I, _F)
    return types.void(*(_F2, _I1, _I1, _F2, _F2, _F6), *of_layers, *(_I1, _F3))


def compute_layers(
    x, rows, places, cos, sin, cache,
    before, qkv, bias, factors, normed, out, after, gate_up, down, inner, epsilon,
    shown, deeper,
):  # fmt: skip
    """Run all layers over new tokens, in place, and store their keys and values.

    x: [tokens, size], the embeddings, then the hidden states. rows, places: of each token in `cache`; those of a row
    stand in order, and what is before them is in the cache. cos, sin: [tokens, head size]. cache: [layers, 2, rows,
    key heads, length, head size]. The weights have the layer as their first dimension, matrices are as `pack_blocks`
    returns them: before, after: RMSNorm of attention and MLP. qkv, bias: of queries, keys and values. factors, normed:
    RMSNorm of queries and keys, [layers, heads + key heads, head size], and whether there is one. inner: numbers that
    the MLP is wide. shown: the tokens
    that deepstack adds to. deeper: [levels, tokens shown, size], added after the first layers.
    """
    tokens, size = x.shape
    layers, _, _, key_heads, length, head = cache.shape
    heads = factors.shape[1] - key_heads
    group, scale = heads // key_heads, np.float32(1 / math.sqrt(head))
    calm = np.empty((tokens, size), np.float32)
    mixed = np.empty((tokens, width(qkv)), np.float32)
    seen = np.empty((tokens, heads * head), np.float32)
    added = np.empty((tokens, max(width(out), width(down))), np.float32)
    wide = np.empty((tokens, width(gate_up)), np.float32)
    narrow = np.empty((tokens, inner), np.float32)
    scores = np.empty(length, np.float32)
    for layer in range(layers):
        _normed(x, before[layer], epsilon, calm)
        product(calm, qkv, layer, mixed)
        for token in range(tokens):
            row, place = rows[token], places[token]
            for i in range((heads + 2 * key_heads) * head):
                mixed[token, i] += bias[layer, i]
            _turn(mixed[token], cos[token], sin[token], factors[layer], normed, epsilon)
            for key_head in range(key_heads):
                for i in range(head):
                    cache[layer, 0, row, key_head, place, i] = mixed[token, (heads + key_head) * head + i]
                    cache[layer, 1, row, key_head, place, i] = mixed[token, (heads + key_heads + key_head) * head + i]
        for token in range(tokens):
            row, count = rows[token], places[token] + 1
            for number in range(heads):
                keys, values = cache[layer, 0, row, number // group], cache[layer, 1, row, number // group]
                at, to = number * head, (number + 1) * head
                _attend(mixed[token, at:to], keys, values, count, scale, scores, seen[token, at:to])
        product(seen, out, layer, added)
        for token in range(tokens):
            for i in range(size):
                x[token, i] += added[token, i]
        _normed(x, after[layer], epsilon, calm)
        product(calm, gate_up, layer, wide)
        for token in range(tokens):
            for i in range(inner):
                gate = wide[token, i]
                narrow[token, i] = gate / (np.float32(1) + _exp(-gate)) * wide[token, inner + i]
        product(narrow, down, layer, added)
        for token in range(tokens):
            for i in range(size):
                x[token, i] += added[token, i]
        if layer < len(deeper):
            for number in range(len(shown)):
                for i in range(size):
                    x[shown[number], i] += deeper[layer, number, i]


run_layers = njit(layers_signature(_F4), **KEPT)(compute_layers)


@njit(types.void(_F2, _I1, _F1, _F, _F2), **KEPT)
def norm_rows(x, chosen, weight, epsilon, y):
    """Compute RMSNorm of chosen rows into y. x: [tokens, size]. chosen: [rows]. weight: [size]. y: [rows, size]."""
    for row in range(len(chosen)):
        _normed(x[chosen[row] : chosen[row] + 1], weight, epsilon, y[row : row + 1])


@njit(types.void(_F2, _F3, _F2), **KEPT)
def multiply(x, weights, y):
    """Compute y[row] = weights x[row]. weights: as `pack_blocks` returns them. y: [rows, blocks x BLOCK]."""
    _product(x, weights, y)


@njit(types.void(_F2, _U2, _D1, _D1, _I1, _D2), **(KEPT | {"fastmath": {"contract", "nsz"}}))
def draw_tokens(logits, allowed, temperatures, random, chosen, logprobs):
    """Sample a token for each row, by inverse transform sampling among the tokens that are allowed.

    logits: [rows, vocabulary or more]. allowed: bits, the lowest first: uint32 [rows, words]. temperatures: [rows], 0
    is greedy. random: [rows], in [0, 1). Returns in chosen: [rows]; in logprobs: [rows, 2], at temperature 1 and at the
    row's, not finite where a logit is not or no token is allowed.
    """
    rows, words = allowed.shape
    values = np.empty(words * 32, np.float32)
    tokens = np.empty(words * 32, np.int64)
    up_to = np.empty(words * 32, np.float64)
    for row in range(rows):
        count = 0
        for word in range(words):
            bits = allowed[row, word]
            if bits == np.uint32(0xFFFFFFFF):
                for bit in range(32):
                    values[count + bit] = logits[row, word * 32 + bit]
                    tokens[count + bit] = word * 32 + bit
                count += 32
            elif bits:
                for bit in range(32):
                    if bits >> np.uint32(bit) & np.uint32(1):
                        values[count] = logits[row, word * 32 + bit]
                        tokens[count] = word * 32 + bit
                        count += 1
        chosen[row] = 0
        logprobs[row, 0] = logprobs[row, 1] = np.nan
        if count == 0:
            continue
        best, sound = 0, True
        for i in range(count):
            sound &= values[i] < np.inf
            if values[i] > values[best]:
                best = i
        chosen[row] = tokens[best]
        if not sound:
            continue
        top = values[best]
        for i in range(count):
            up_to[i] = _exp(values[i] - top)
        whole = 0.0
        for i in range(count):
            whole += up_to[i]
        temperature = temperatures[row]
        found, drawn, scale = best, whole, 1.0
        if temperature > 0:
            if temperature != 1:
                scale = 1 / temperature
                for i in range(count):
                    up_to[i] = _exp(np.float32((values[i] - top) * scale))
            drawn = 0.0
            for i in range(count):
                drawn += up_to[i]
                up_to[i] = drawn
            found = min(np.searchsorted(up_to[:count], random[row] * drawn, side="right"), count - 1)
        chosen[row] = tokens[found]
        logprobs[row, 0] = values[found] - top - math.log(whole)
        logprobs[row, 1] = (values[found] - top) * scale - math.log(drawn)


def pack_blocks(weight: np.ndarray) -> np.ndarray:
    """Cut a matrix [out, in] into blocks [blocks, in, BLOCK]; the last is filled up with zeros."""
    outputs, inputs = weight.shape
    whole = np.zeros((-(-outputs // BLOCK) * BLOCK, inputs), dtype=np.float32)
    whole[:outputs] = weight
    return np.ascontiguousarray(whole.reshape(-1, BLOCK, inputs).transpose(0, 2, 1))

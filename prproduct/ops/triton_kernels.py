"""The kernels of a backward on GPUs, in Triton, which `triton_operators.py` launches.

`rule.py` has the equations. A data vector x is a row of a linear layer's input or a window of a convolution. Its index
is (batch, group, place), where place is the spatial position; a linear layer has one batch, one group, and its rows are
the places. j is the index of a weight vector w in its group. A backward is five kernels around the native one, or three
for a linear layer and a 1×1 convolution:

    squares   ‖w‖², and Σ x² over the channels of each place of the input
    windows   ‖x‖² = the sum of these over each window                                              convolutions only
    split     D∘g, and along = (L − D)·cos θ·g summed over a tile: Σ along·‖w‖ over j, Σ along·‖x‖ over places
    native    dX = (D∘g) W and dW = (D∘g)ᵀ X, or their convolutions
    multiples Σ along/‖x‖ over the windows that cover a place of the input                          convolutions only
    along     dX += x·(Σ along·‖w‖)/‖x‖ and dW += w·(Σ along·‖x‖)/‖w‖

No kernel uses atomics: a tile writes its sums to memory of its own and the kernel that needs them adds them up, so
results are the same in every run. Numbers are stored in the layer's dtype and computed with in float32.

Tensors of any layout are read by their strides. `csrc/pair.h` has the same loop over pairs for the CPU.
"""

# ruff: noqa: N803  constants of a kernel have capital letters, as in Triton's own documentation

from __future__ import annotations

import triton
import triton.language as tl

_EPS = tl.constexpr(2.0**-23)  # of float32
_TINY = tl.constexpr(2.0**-126)  # its smallest normal number
_NEGLIGIBLE = tl.constexpr(2.0**-73)  # √_TINY / 1024, as in `angles.py`


@triton.jit
def _norm(square):
    """‖v‖ and 1/‖v‖, both 0 for a zero vector and for one whose square overflows."""
    positive = (square > 0) & (square < float("inf"))
    norm = tl.sqrt_rn(tl.where(positive, square, 1.0))
    return tl.where(positive, norm, 0.0), tl.where(positive, tl.div_rn(1.0, norm), 0.0)


@triton.jit
def _gains(cos, inverse_sin, power, PRODUCT: tl.constexpr):
    """L and D of `products.py`."""
    one = cos * 0.0 + 1.0
    length, direction = one, one
    if PRODUCT == "pr" or PRODUCT == "pr-w":
        direction = inverse_sin
    elif PRODUCT == "tempered":
        direction = tl.exp(power * tl.log(inverse_sin))
    elif PRODUCT == "no-length":
        length = one - 1.0
    elif PRODUCT == "no-direction" or PRODUCT == "no-direction-w":
        direction = one - 1.0
    else:
        tl.static_assert(PRODUCT == "r")
        sin_square = (1.0 - cos) * (1.0 + cos)
        length = tl.abs(cos) / (1.0 + tl.sqrt(tl.where(sin_square > 4.0 * _EPS, sin_square, _EPS * _EPS)))
        direction = tl.abs(cos) * inverse_sin
    return length, direction


@triton.jit
def _storage_scale(largest_ptr):
    """The factor of the stored D∘g: 1 or, in float16, 1/16; `largest` is max |g|, None for other dtypes.

    float16 ends at 65504, and gains at 16: D∘g may overflow, though the correction cancels most of it.
    """
    scale = 1.0
    if largest_ptr is not None:
        scale = tl.where(tl.load(largest_ptr).to(tl.float32) > 1.0 / 256, 1.0 / 16, 1.0)
    return scale


@triton.jit
def _sum_squares(
    t_ptr, squares_ptr, block, vectors, length, vector_stride, stride, V: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """squares[v] = Σ t[v]² for the `block`-th V vectors."""
    v = block * V + tl.arange(0, V)
    r = tl.arange(0, R)
    total = tl.zeros((V,), tl.float32)
    lost = tl.zeros((V,), tl.float32)
    for start in range(0, length, R):
        at = v[:, None].to(tl.int64) * vector_stride + (start + r[None, :]).to(tl.int64) * stride
        inside = (v[:, None] < vectors) & (start + r[None, :] < length)
        t = tl.load(t_ptr + at, mask=inside, other=0.0).to(tl.float32)
        # Compensated: a plain float32 sum of a million squares is off by 1e-4, and so is the angle.
        part = tl.sum(t * t, 1) - lost
        grown = total + part
        lost = tl.where(grown < float("inf"), (grown - total) - part, 0.0)
        total = grown
    tl.store(squares_ptr + v, total, mask=v < vectors)


@triton.jit
def prproduct_squares(
    x_ptr, x_batch, x_group, x_vector, x_stride, groups, places, length, x_squares_ptr,
    w_ptr, w_vector, w_stride, vectors, w_length, w_squares_ptr,
    x_programs, XV: tl.constexpr, XR: tl.constexpr, WV: tl.constexpr, WR: tl.constexpr,
):  # fmt: skip
    """Σ x² of each place, (batch, groups, places), by the first programs; Σ w² of each weight vector by the others."""
    program = tl.program_id(0)
    if program < x_programs:
        blocks = tl.cdiv(places, XV)
        outer = (program // blocks).to(tl.int64)
        base = x_ptr + (outer // groups) * x_batch + (outer % groups) * x_group
        to = x_squares_ptr + outer * places
        _sum_squares(base, to, program % blocks, places, length, x_vector, x_stride, XV, XR)
    else:
        _sum_squares(w_ptr, w_squares_ptr, program - x_programs, vectors, w_length, w_vector, w_stride, WV, WR)


@triton.jit
def _along_axis(place, tap, size, stride, padding, dilation, GATHER: tl.constexpr):
    """Which of `size` numbers the tap of a window reads, and whether there is one: `windows.py` along one axis."""
    if GATHER:
        at = place * stride - padding + tap * dilation
        there = (at >= 0) & (at < size)
    else:
        shifted = place + padding - tap * dilation
        at = shifted // stride
        there = (shifted >= 0) & (shifted % stride == 0) & (at < size)
    return at, there


@triton.jit
def _tap(
    place, tap, to1, to2, from0, from1, from2, kernel1, kernel2, stride0, stride1, stride2,
    padding0, padding1, padding2, dilation0, dilation1, dilation2, GATHER: tl.constexpr,
):  # fmt: skip
    """The position in a plane that one tap of the window of `place` reads, and whether there is one."""
    row = place // to2
    last = kernel1 * kernel2
    z, a = _along_axis(row // to1, tap // last, from0, stride0, padding0, dilation0, GATHER)
    y, b = _along_axis(row % to1, tap % last // kernel2, from1, stride1, padding1, dilation1, GATHER)
    x, c = _along_axis(place % to2, tap % kernel2, from2, stride2, padding2, dilation2, GATHER)
    return (z * from1 + y) * from2 + x, a & b & c


@triton.jit
def prproduct_windows(
    squares_ptr, windows_ptr, to0, to1, to2, from0, from1, from2, kernel0, kernel1, kernel2, stride0, stride1, stride2,
    padding0, padding1, padding2, dilation0, dilation1, dilation2, GATHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """windows[plane, place] = Σ squares[plane, …] over the window of each place: ‖x‖²."""
    count = to0 * to1 * to2
    blocks = tl.cdiv(count, BLOCK)
    plane = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    squares_ptr += plane * (from0 * from1 * from2)
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(kernel0 * kernel1 * kernel2):
        at, there = _tap(
            place, tap, to1, to2, from0, from1, from2, kernel1, kernel2, stride0, stride1, stride2,
            padding0, padding1, padding2, dilation0, dilation1, dilation2, GATHER,
        )  # fmt: skip
        total += tl.load(squares_ptr + at, mask=there & (place < count), other=0.0)
    tl.store(windows_ptr + plane * count + place, total, mask=place < count)


@triton.jit
def _sum_partial(partial_ptr, at, mask, parts, stride):
    """Σ partial[at + k·stride] over k < parts."""
    total = tl.zeros(at.shape, tl.float32)
    for part in range(parts):
        total += tl.load(partial_ptr + at + part * stride, mask=mask, other=0.0)
    return total


@triton.jit
def prproduct_multiples(
    along_ptr, parts, part_stride, squares_ptr, multiples_ptr, largest_ptr,
    to0, to1, to2, from0, from1, from2, kernel0, kernel1, kernel2, stride0, stride1, stride2,
    padding0, padding1, padding2, dilation0, dilation1, dilation2, GATHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """multiples·largest = Σ along/‖x‖ over the windows that cover each place of the input.

    The sum may overflow where its product with x does not: it is taken relative to the largest of its |along|.
    """
    count, windows = to0 * to1 * to2, from0 * from1 * from2
    blocks = tl.cdiv(count, BLOCK)
    plane = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for turn in tl.static_range(2):
        for tap in range(kernel0 * kernel1 * kernel2):
            at, there = _tap(
                place, tap, to1, to2, from0, from1, from2, kernel1, kernel2, stride0, stride1, stride2,
                padding0, padding1, padding2, dilation0, dilation1, dilation2, GATHER,
            )  # fmt: skip
            there = there & (place < count)
            along = _sum_partial(along_ptr, plane * windows + at, there, parts, part_stride)
            if turn == 0:
                largest = tl.maximum(largest, tl.abs(along))
            else:
                _, inverse = _norm(tl.load(squares_ptr + plane * windows + at, mask=there, other=0.0))
                total += along / largest * inverse
        largest = tl.maximum(tl.where(largest < float("inf"), largest, 1.0), _TINY)
    tl.store(multiples_ptr + plane * count + place, total, mask=place < count)
    tl.store(largest_ptr + plane * count + place, largest, mask=place < count)


@triton.jit
def prproduct_split(
    output_ptr, output_batch, output_channel, output_place, grad_ptr, grad_batch, grad_channel, grad_place,
    scaled_ptr, scaled_batch, scaled_channel, scaled_place, x_squares_ptr, w_squares_ptr, bias_ptr, largest_ptr,
    along_x_ptr, along_w_ptr, outer, groups, channels, places, floor, tiny, power,
    PRODUCT: tl.constexpr, FORWARD: tl.constexpr, J: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The split of g for a tile of J weight vectors and N data vectors of one image and group.

    scaled = D∘g; along_x[tile of j, image and group, place] = Σ along·‖w‖ over j; along_w[weight vector, image and tile
    of places] = Σ along·‖x‖ over places. In a product's own forward, g is p and `scaled` is L·p, its value.
    """
    blocks = tl.cdiv(places, N)
    tile = tl.program_id(0) // (outer * blocks)  # of weight vectors: a second axis of the grid ends at 65,535
    program = tl.program_id(0) % (outer * blocks)
    image = (program // blocks).to(tl.int64)  # and group
    batch, group = image // groups, image % groups
    j = tile * J + tl.arange(0, J)
    n = program % blocks * N + tl.arange(0, N)
    vector = group * channels + j
    inside = (j[:, None] < channels) & (n[None, :] < places)

    w_norm, w_inverse = _norm(tl.load(w_squares_ptr + vector, mask=j < channels, other=0.0))
    x_norm, x_inverse = _norm(tl.load(x_squares_ptr + image * places + n, mask=n < places, other=0.0))
    bias = tl.zeros((J,), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + vector, mask=j < channels, other=0.0).to(tl.float32)
    at = batch * output_batch + vector[:, None] * output_channel + n[None, :].to(tl.int64) * output_place
    p = tl.load(output_ptr + at, mask=inside, other=0.0).to(tl.float32) - bias[:, None]
    at = batch * grad_batch + vector[:, None] * grad_channel + n[None, :].to(tl.int64) * grad_place
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)

    rough = p * x_inverse[None, :] * w_inverse[:, None]  # one norm after the other: their product may overflow
    cos = tl.where(rough == rough, tl.minimum(tl.maximum(rough, -1.0), 1.0), 0.0)  # NaN has no angle
    sin_square = (1.0 - cos) * (1.0 + cos)
    excess = (tl.abs(bias) + tiny) * w_inverse  # p was rounded together with the bias
    excess = tl.where(excess > _NEGLIGIBLE, excess, 0.0)
    resolved = sin_square > floor * (1.0 + excess[:, None] * x_inverse[None, :])
    length, direction = _gains(cos, tl.rsqrt(tl.where(resolved, sin_square, 1.0)), power, PRODUCT)

    scaled = (length if FORWARD else direction) * grad
    at = batch * scaled_batch + vector[:, None] * scaled_channel + n[None, :].to(tl.int64) * scaled_place
    tl.store(scaled_ptr + at, scaled * _storage_scale(largest_ptr), mask=inside)
    if not FORWARD:
        along = tl.where(inside, (length * grad - scaled) * cos, 0.0)
        to_x = along_x_ptr + (tile * outer + image) * places + n
        tl.store(to_x, tl.sum(along * w_norm[:, None], 0), mask=n < places)
        parts = (outer // groups) * blocks
        to_w = along_w_ptr + vector * parts + batch * blocks + program % blocks
        tl.store(to_w, tl.sum(along * x_norm[None, :], 1), mask=j < channels)


@triton.jit
def _add_along(
    to_ptr, to_vector, to_stride, t_ptr, t_vector, t_stride, block, vectors, length, inverse, total, unscale,
    V: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """to[v] = unscale·to[v] + (t[v]·inverse[v])·total[v]: t·inverse first, as inverse·total may overflow."""
    v = block * V + tl.arange(0, V)
    for start in range(tl.program_id(1) * R, length, tl.num_programs(1) * R):
        r = start + tl.arange(0, R)
        inside = (v[:, None] < vectors) & (r[None, :] < length)
        vector, element = v[:, None].to(tl.int64), r[None, :].to(tl.int64)
        t = tl.load(t_ptr + vector * t_vector + element * t_stride, mask=inside, other=0.0).to(tl.float32)
        place = to_ptr + vector * to_vector + element * to_stride
        to = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, to * unscale + (t * inverse[:, None]) * total[:, None], mask=inside)


@triton.jit
def prproduct_along(
    dx_ptr, dx_batch, dx_group, dx_vector, dx_stride, x_ptr, x_batch, x_group, x_vector, x_stride,
    groups, places, length, x_scale_ptr, along_x_ptr, x_parts, x_part_stride,
    dw_ptr, dw_vector, dw_stride, w_ptr, w_vector, w_stride, vectors, w_length, w_squares_ptr, along_w_ptr, w_parts,
    largest_ptr, x_programs, X_MULTIPLES: tl.constexpr, P: tl.constexpr,
    XV: tl.constexpr, XR: tl.constexpr, WV: tl.constexpr, WR: tl.constexpr,
):  # fmt: skip
    """The corrections along x, by the first programs, and along w, by the others, added to dX and dW.

    With X_MULTIPLES, x_scale and along_x are the results of `prproduct_multiples`; else ‖x‖² and the tiles' sums.
    """
    program = tl.program_id(0)
    unscale = 1.0 / _storage_scale(largest_ptr)
    if program < x_programs:
        blocks = tl.cdiv(places, XV)
        image = (program // blocks).to(tl.int64)  # and group
        v = program % blocks * XV + tl.arange(0, XV)
        inverse = tl.load(x_scale_ptr + image * places + v, mask=v < places, other=0.0)
        if not X_MULTIPLES:
            _x_norm, inverse = _norm(inverse)
        total = _sum_partial(along_x_ptr, image * places + v, v < places, x_parts, x_part_stride)
        to = dx_ptr + (image // groups) * dx_batch + (image % groups) * dx_group
        t = x_ptr + (image // groups) * x_batch + (image % groups) * x_group
        _add_along(
            to, dx_vector, dx_stride, t, x_vector, x_stride, program % blocks, places, length, inverse, total, unscale,
            XV, XR,
        )  # fmt: skip
    else:  # other names than above, even for what is not used: Triton wants one type of a name in both branches
        k = (program - x_programs) * WV + tl.arange(0, WV)
        _w_norm, w_inverse = _norm(tl.load(w_squares_ptr + k, mask=k < vectors, other=0.0))
        sums = tl.zeros((WV, P), tl.float32)
        for start in range(0, w_parts, P):
            part = start + tl.arange(0, P)[None, :]
            at = k[:, None].to(tl.int64) * w_parts + part
            sums += tl.load(along_w_ptr + at, mask=(k[:, None] < vectors) & (part < w_parts), other=0.0)
        _add_along(
            dw_ptr, dw_vector, dw_stride, w_ptr, w_vector, w_stride, program - x_programs, vectors, w_length,
            w_inverse, tl.sum(sums, 1), unscale, WV, WR,
        )  # fmt: skip

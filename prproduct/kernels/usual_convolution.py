"""The backward of a usual convolution in one straight line: planes of float32 or float64, all of them in order.

As with `small_linear.py`: between native operations Python runs with cold caches, and `ConvolutionRule` took 3 % of a
convolution of 10 ms. What follows from shapes is looked up once. All else is left to `ConvolutionRule`.

Torch's own convolutions (oneDNN) work on channels that lie together. They bring planes into such order and back, the
gradient twice, and that takes a quarter of a small convolution's backward. Passes, which have every number at hand
anyway, do it as they go: D∘g is written with channels last, and dX comes back from there when its correction is added.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, empty_like

from prproduct.kernels import pointwise
from prproduct.kernels.contractions import Convolution
from prproduct.kernels.convolution_rule import Passes, units_of
from prproduct.kernels.memory import Desk, give_back_desk, take_desk
from prproduct.kernels.programs import Program
from prproduct.kernels.rules import Gradients, Workspace
from prproduct.kernels.scores import Score
from prproduct.kernels.tables import WIDE
from prproduct.kernels.threads import team, threads_for


class _Written(NamedTuple):
    """What is known for given shapes."""

    before: Score  # the native backward
    behind: Score | None  # None if there is no native one between them: passes have done all
    threads: int
    bytes: int  # that its passes work in, with D∘g, and the input with channels last if they lay it out
    turned: int  # how far into them D∘g lies; 0 if passes have done all
    last_input: int  # and the input; 0 if planes stay as they are
    native: tuple[Any, ...]  # arguments of torch's own backward, behind gradient, input and weight
    passes: Workspace  # which have the memory that scores point to


def usual_backward(
    program: Program,
    contraction: Convolution,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    p: Tensor,
    addend: Tensor | None,
    grad: Tensor,
    wanted: tuple[bool, bool],
) -> Gradients | None:
    """The gradients, for tensors that `compiled.serves`; None if it is no such convolution.

    p is the output, with the bias and the addend in it if there are any.
    """
    added = addend is not None
    key = (contraction, x.shape, w.shape, p.shape, bias is None, added, x.dtype, wanted, team())
    written = program.usual_convolutions.get(key)
    if written is None:
        fits = contraction.output_shape(x.shape, w.shape) == p.shape  # hooks may have changed what was kept
        lays_out = fits and _lays_out(contraction, x, w, p.shape)
        written = program.usual_convolutions[key] = _write(program, lays_out, *key) if fits else ()
    if not written or not (
        x.is_contiguous()
        and w.is_contiguous()
        and p.is_contiguous()
        and grad.is_contiguous()
        and p.shape == grad.shape
        and (bias is None or (bias.is_contiguous() and bias.shape == p.shape[1:2]))
        and (addend is None or (addend.is_contiguous() and addend.shape == p.shape))
    ):
        return None
    before, behind, threads, bytes, inside, last_input, native, _ = written
    desk = take_desk(bytes)
    dx = dw = last_dx = turned = last_x = None
    if behind is None:
        dx, dw = empty_like(x) if wanted[0] else None, empty_like(w) if wanted[1] else None
    else:
        views = desk.views.get(before)
        if views is None:
            if len(desk.views) >= _REMEMBERED:
                desk.views.clear()
            views = desk.views[before] = _views(desk, x, p, inside, last_input)
        turned, last_x = views
    where = desk.address + inside
    before.play(
        threads,
        desk.address,
        x.data_ptr(),
        w.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        p.data_ptr(),
        grad.data_ptr(),
        where,
        where,
        0 if dx is None else dx.data_ptr(),
        0 if dw is None else dw.data_ptr(),
        0 if addend is None else addend.data_ptr(),
        0 if last_x is None else last_x.data_ptr(),
    )
    if (added or bias is not None) and desk.answer.value != 0.0:  # what was added has drowned p
        give_back_desk(desk)
        return usual_backward(program, contraction, x, w, None, contraction.native(x, w, None), None, grad, wanted)
    if behind is None:
        give_back_desk(desk)
        return dx, dw
    dx, dw, _ = _native_backward(turned, x if last_x is None else last_x, w, None, *native)
    if dx is not None and last_x is not None:
        last_dx, dx = dx.contiguous(memory_format=torch.channels_last), empty_like(x)
    elif dx is not None:
        dx = dx.contiguous()
    if dw is not None:
        dw = dw.contiguous()
    behind.play(
        threads,
        desk.address,
        x.data_ptr(),
        w.data_ptr(),
        0,
        0,
        0,
        0,
        0,
        0 if dx is None else dx.data_ptr(),
        0 if dw is None else dw.data_ptr(),
        0,
        0,
        0 if last_dx is None else last_dx.data_ptr(),
    )
    give_back_desk(desk)
    return dx, dw


_native_backward = torch.ops.aten.convolution_backward.default


def _views(desk: Desk, x: Tensor, p: Tensor, turned: int, last_input: int) -> tuple[Tensor, Tensor | None]:
    """Memory on a desk as D∘g, and as the input with channels last."""
    if not last_input:
        return desk.tensor(p, turned, torch.contiguous_format), None
    return desk.tensor(p, turned, torch.channels_last), desk.tensor(x, last_input, torch.channels_last)


def _write(
    program: Program,
    lays_out: bool,
    contraction: Convolution,
    x: torch.Size,
    w: torch.Size,
    p: torch.Size,
    without_bias: bool,
    added: bool,
    dtype: torch.dtype,
    wanted: tuple[bool, bool],
    team: tuple[int, bool],
) -> _Written | tuple[()]:
    """Nothing if it is no such convolution."""
    if len(program.usual_convolutions) >= _REMEMBERED:  # as with images of any size
        program.usual_convolutions.clear()
    half = program.weight
    depthwise = 1 < contraction.groups == x[1] and not contraction.transposed
    if depthwise or not (program.same and half.writes and half.has_sums):
        return ()
    most = max(x.numel(), p.numel())
    if pointwise.serves(contraction, x, w, dtype):
        threads = threads_for(most, pointwise.pieces_of(x))
        single = pointwise.Passes(program, dtype, x, w, threads)
        return _Written(single.score(wanted, not without_bias, added), None, threads, single.bytes, 0, 0, (), single)
    threads = threads_for(most, units_of(contraction, x, planes=True))
    passes = Passes.of(program, dtype, contraction, x, w, p, True, threads, lays_out)
    before = [Passes.measure if without_bias else Passes.measure_with_biases]
    before.append(Passes.split_total if added else Passes.split)
    if added or not without_bias:
        before.append(Passes.check_total if added else Passes.check)
    behind = [part for part, wants in zip((Passes.along_input, Passes.along_weight), wanted, strict=True) if wants]
    turned = _whole_lines(passes.bytes)
    last_input = _whole_lines(turned + p.numel() * dtype.itemsize)
    bytes = last_input + (x.numel() * dtype.itemsize if lays_out else 0)
    scores, native = (passes.score(*before), passes.score(*behind)), (*_geometry_of(contraction), [*wanted, False])
    return _Written(*scores, threads, bytes, turned, last_input if lays_out else 0, native, passes)


def _whole_lines(bytes: int) -> int:
    return -(-bytes // _LINE) * _LINE


def _lays_out(contraction: Convolution, x: Tensor, w: Tensor, p: torch.Size) -> bool:
    """Whether that pays: with few channels, and where oneDNN would fill up channels to whole lines of the cache.

    Of a step, in percent: 16 channels of 32² win 8, 48→12 win 5, 24→24 of 64² win 24; 64 channels and more win and lose
    1 to 3, and where the kernels are larger than the images, much is lost. Not for kernels of one tap: with strides and
    channels last, oneDNN corrupts memory over their dW (torch 2.13: 3 images of 8→16 channels of 32², two threads).
    """
    if len(p) != 4 or contraction.groups != 1 or contraction.transposed or x.dtype != torch.float32:
        return False
    if min(w.shape[2:]) == 1:
        return False
    channels = x.shape[1], p[1]
    few, odd = math.prod(channels) <= FEW, any(count % WIDE for count in channels)
    if min(channels) < _FEWEST or not (few or odd) or 4 * w.numel() > p.numel():
        return False
    return str(torch._C._select_conv_backend(x, w, None, *_geometry_of(contraction))).endswith("Mkldnn")


def _geometry_of(contraction: Convolution) -> tuple[Any, ...]:
    """As torch's own backward takes it."""
    stride, output_padding = contraction.stride, contraction.output_padding
    transposition = contraction.transposed, output_padding or (0,) * len(stride)
    return stride, contraction.padding, contraction.dilation, *transposition, contraction.groups


FEW, _FEWEST = 2048, 6  # channels in times channels out, and either
_REMEMBERED = 1024  # shapes, for each product
_LINE = 64  # bytes of the cache

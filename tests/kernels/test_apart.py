"""Parts that say that what they write lies apart from all else (`words.Part.apart`): every call of them is watched.

LLVM believes them, and would make wrong code of a call that breaks it, without a word.
"""

import ast
import ctypes

import pytest
import torch
from kernel_cases import LAYERS, operands
from llvmlite import ir

import prproduct as pr
from prproduct.kernels import compiled, convolution_rule, programs, sequences
from prproduct.kernels.compiler import entries, machine_code, translation
from prproduct.kernels.compiler.numbers import ADDRESS, BYTES, INT64, Pointer
from prproduct.kernels.compiler.words import at, integers, one_of
from prproduct.kernels.depthwise import layout
from prproduct.kernels.strips import copy


class Watch:
    """Has every call of such a part report its pointers, and compares what is written with all else."""

    def __init__(self):
        self.parts, self.calls, self.overlaps = [], set(), set()
        self.told = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))(self.look)
        self.address = ctypes.cast(self.told, ctypes.c_void_p).value

    def look(self, which, numbers):
        name, pointers, written = self.parts[which]
        self.calls.add(name)
        ranges = {p: (numbers[1 + k], numbers[1 + k] + numbers[0] * size) for k, (p, size) in enumerate(pointers)}
        for one in written:
            for other in ranges.keys() - {one}:
                (start, end), (low, high) = ranges[one], ranges[other]
                if start < high and low < end:
                    self.overlaps.add((name, one, other))

    def report(self, translator, part, arguments):
        """Emit a call of `look` with the count, which is their first argument, and the pointers."""
        source = translation._source(part.function)
        stores = [n for n in ast.walk(source) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
        given = [(a.arg, v) for a, v in zip(source.args.args, arguments, strict=True) if isinstance(v, Pointer)]
        sizes = [(name, BYTES[pointer.element]) for name, pointer in given]
        self.parts.append((part.__name__, sizes, {n.value.id for n in stores}))
        numbers = [arguments[0], *(translator.builder.ptrtoint(pointer.value, INT64) for _, pointer in given)]
        memory = translator.declarations.alloca(INT64, len(numbers))
        for place, number in enumerate(numbers):
            there = translator.builder.gep(memory, [INT64(place)], source_etype=INT64)
            translator.builder.store(number, there, align=8)
        signature = ir.FunctionType(ir.VoidType(), [INT64, ADDRESS]).as_pointer()
        told = translator.builder.inttoptr(INT64(self.address), signature)
        translator.builder.call(told, [INT64(len(self.parts) - 1), memory])


@pytest.fixture
def watch(monkeypatch):
    """All passes are compiled anew, to be watched, and forgotten."""
    watch, call_part = Watch(), translation._Translator.call_part

    def watched(translator, part, arguments):
        if part.apart:
            watch.report(translator, part, arguments)
        return call_part(translator, part, arguments)

    monkeypatch.setattr(translation._Translator, "call_part", watched)
    monkeypatch.setattr(machine_code, "_read", lambda name: None)
    monkeypatch.setattr(machine_code, "_write", lambda name, machine_code: None)
    modules = (compiled.passes, compiled.program_passes, compiled.convolution_passes, compiled.channels_last_passes)
    modules += (
        compiled.depthwise_passes,
        compiled.depthwise_split,
        compiled.depthwise_moves,
        compiled.lstm,
        compiled.gru,
    )
    for module in modules:
        for value in vars(module()).values():
            if isinstance(value, entries.Pass):
                monkeypatch.setattr(value, "entries", {})
    forget_addresses()
    yield watch
    forget_addresses()


def forget_addresses():
    """Programs, geometries and the steps of recurrent layers remember those of passes."""
    programs._remembered.cache_clear()
    convolution_rule._geometry.cache_clear()
    layout.layout.cache_clear()
    sequences._forth.cache_clear()


@pytest.mark.parametrize("product", ["pr", "pr-w", "r", "tempered:0.3", "no-length"])
def test_what_is_written_lies_apart(product, watch):
    for name in LAYERS:
        for format in (torch.contiguous_format, torch.channels_last):
            op, x, w, bias, options = operands(name, torch.float32)
            if x.dim() == 4:
                x = x.detach().contiguous(memory_format=format).requires_grad_()
            y = op(x, w, bias, **options, product=product)
            torch.autograd.grad(y, (x, w), torch.randn(y.shape))
    split = "_split_at_once" if product == "pr" else "angles"
    assert watch.calls >= {split, "turn", "copy", "norms", "add_squares"}
    assert not watch.overlaps


def test_what_recurrent_layers_write_lies_apart(watch):
    """Their gradients are overwritten in place."""
    pr.nn.LSTM(3, 4)(torch.randn(5, 2, 3))[0].sum().backward()
    assert "_split_at_once" in watch.calls
    assert not watch.overlaps


def shift(first, last, share, given):
    (address,) = integers(given)
    one = one_of(given)
    copy(last, at(address, 0, one), at(address, 1, one))


def test_an_overlap_would_be_seen(watch):
    x = torch.zeros(9)
    entry = entries.Pass(shift, 1)[4]
    entry.call(0, 8, 0, entry.pack(x.data_ptr()))
    assert watch.overlaps == {("copy", "target", "source")}

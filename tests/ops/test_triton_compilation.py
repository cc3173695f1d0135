"""Triton's kernels compile for GPUs of several makes: what its interpreter does not check (`make test-triton`).

No GPU is needed for it. The launches of some layers are recorded with fake tensors and compiled with the types and
special values that Triton would give their arguments. On a GPU, `make test-gpu` runs them.
"""

import importlib.util
import os

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from prproduct.ops import triton_operators

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs Triton's compiler: make test-triton", allow_module_level=True)
GPUS = {"Ampere": ("cuda", 80, 32), "Hopper": ("cuda", 90, 32), "MI300": ("hip", "gfx942", 64)}
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
BOTH, INPUT, WEIGHT = (True, True), (True, False), (False, True)  # which gradients are wanted
LINEAR = [  # rows, inputs, outputs: a wide layer, a head, a first layer, one behind frozen layers, sizes 1, few inputs
    (128, 784, 512, BOTH),
    (128, 64, 10, BOTH),
    (128, 784, 256, WEIGHT),
    (128, 512, 512, INPUT),
    (1, 1, 1, BOTH),
    (4096, 3, 4096, BOTH),
]
CONVOLUTIONS = [  # input, outputs, size of the kernel, groups, product: a first layer, 1×1, groups, depthwise
    ((8, 3, 32, 32), 16, 3, 1, "pr", WEIGHT),
    ((8, 64, 56, 56), 128, 1, 1, "pr", BOTH),
    ((8, 16, 32, 32), 32, 3, 1, "pr-w", BOTH),
    ((8, 2048, 8, 8), 2048, 1, 2048, "tempered", BOTH),
    ((8, 16, 32, 32), 32, 3, 2, "r", BOTH),
]


def launches(dtype):
    """What linear layers and convolutions launch, with and without bias, in both layouts, and of sizes 1."""

    def empty(*shape, **options):
        return torch.empty(shape, dtype=dtype, device="cuda", **options)

    found = []
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode():
        patch.setattr(triton_operators, "launch", lambda kernel, grid, *a, **c: found.append((kernel, a, c)))
        for rows, inputs, outputs, wanted in LINEAR:
            x, w, bias, y = empty(rows, inputs), empty(outputs, inputs), empty(outputs), empty(rows, outputs)
            triton_operators.linear_backward(y, x, w, bias if rows > 1 else None, y, "pr", 0.0, 1e-6, *wanted)
        for layout in (torch.contiguous_format, torch.channels_last):
            for (batch, inputs, *size), outputs, kernel, groups, product, wanted in CONVOLUTIONS:
                x, y = (empty(batch, channels, *size, memory_format=layout) for channels in (inputs, outputs))
                w = empty(outputs, inputs // groups, kernel, kernel, memory_format=layout)
                geometry = ((1, 1), (kernel // 2, kernel // 2), (1, 1), False, (0, 0), groups)
                triton_operators.convolution_backward(y, x, w, None, y, *geometry, product, 0.3, 1e-6, *wanted)
        triton_operators.convolution_value(y, x, w, *geometry, "r", 0.0, 1e-6)
    return found


def compiled(kernel, arguments, constants, gpu):
    """The code of a launch, specialised as Triton's runtime would: by 1, by multiples of 16, by what is None."""
    import triton
    from triton.backends.compiler import GPUTarget

    from prproduct.ops import triton_kernels

    function = getattr(triton_kernels, kernel)
    assert len(function.arg_names) == len(arguments) + len(constants)
    signature, known, attributes = {}, {}, {}
    for place, name in enumerate(function.arg_names):
        value = constants[name] if name in constants else arguments[place]
        if isinstance(value, torch.Tensor):
            signature[name], attributes[place,] = TYPES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif name in constants or value is None or value == 1:
            signature[name], known[place,] = "constexpr", value
        else:
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[place,] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(function, signature, known, attributes)
    return triton.compile(source, target=GPUTarget(*GPUS[gpu]), options={"enable_fp_fusion": False}).asm


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        ("Ampere", torch.float32),
        ("Ampere", torch.bfloat16),
        ("Hopper", torch.float16),
        ("MI300", torch.float16),
    ],
)
def test_every_kernel_compiles_and_has_no_atomics(gpu, dtype):
    kernels = set()
    for kernel, arguments, constants in launches(dtype):
        code = compiled(kernel, arguments, constants, gpu)
        assert "atomic" not in code["ttir"]
        kernels.add(kernel)
    assert kernels == {f"prproduct_{name}" for name in ("squares", "windows", "split", "multiples", "along")}

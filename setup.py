"""Builds the extension of `prproduct/csrc`; everything else about the package is in pyproject.toml.

It is a plain shared library on LibTorch's stable ABI, without Python headers, so one wheel serves every Python and
every torch from 2.10 on. It needs a C++20 compiler and an installed torch: `pip install --no-build-isolation .`.
Without one of them the package installs all the same, and plain torch serves.

PRPRODUCT_BUILD chooses the flags: release (the default), debug, or sanitize (AddressSanitizer and UBSan).
"""

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("prproduct/csrc")
# Not -ffast-math: it reassociates products that would then overflow, and a library linked with it switches
# flush-to-zero on for the whole process. Reductions are vectorized by `omp simd` where they stand.
COMMON = ["-std=c++20", "-Wall", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
COMMON += ["-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
BUILDS = {
    "release": (["-O3", "-g0"], []),
    "debug": (["-O0", "-g"], []),
    "sanitize": (["-O1", "-g", "-fno-omit-frame-pointer", "-DPRPRODUCT_SANITIZE", *SANITIZERS], SANITIZERS),
}


def extensions() -> list[Extension]:
    """The extension, or nothing where there is no torch to build against."""
    try:
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError:
        print("prproduct: no torch to build the C++ kernels against; install with --no-build-isolation to get them")
        return []
    compile_flags, link_flags = BUILDS[os.environ.get("PRPRODUCT_BUILD", "release")]
    return [
        Extension(
            "prproduct._C",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            include_dirs=include_paths(),
            library_dirs=library_paths(),
            libraries=["torch", "torch_cpu", "c10"],
            extra_compile_args=[*COMMON, *compile_flags],
            extra_link_args=link_flags,
            language="c++",
            py_limited_api=True,
            optional="PRPRODUCT_BUILD" not in os.environ,  # a build that was asked for fails loudly
        )
    ]


setup(
    ext_modules=extensions(),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

"""Channels first to channels last: transposed square by square, and nothing beside them is written."""

import numpy as np
import pytest

from prproduct.kernels.compiler.entries import Pass
from prproduct.kernels.compiler.words import at, integers, one_of
from prproduct.kernels.transposition import transpose


def run(first, last, share, given):
    one = one_of(given)
    rows, columns, source, source_step, target, target_step = integers(given)
    transpose(rows, columns, at(source, 0, one), source_step, one, at(target, 0, one), target_step)


RUN = Pass(run, 6)
COUNTS = [0, 1, 3, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 50]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", COUNTS)
def test_rows_become_columns(rows, dtype):
    entry = RUN[np.dtype(dtype).itemsize]
    for columns in COUNTS:
        source = np.arange(1, rows * (columns + 5) + 1, dtype=dtype).reshape(rows, columns + 5)
        target = np.zeros((columns, rows + 3), dtype)
        entry.call(0, 0, 0, entry.pack(rows, columns, source.ctypes.data, columns + 5, target.ctypes.data, rows + 3))
        np.testing.assert_array_equal(target[:, :rows], source[:, :columns].T)
        assert not target[:, rows:].any()

"""A compiler for passes: from functions in a small part of Python to machine code, by LLVM."""

MOST_INTEGERS = 32  # that a pass in a score may take
STAND_IN = 2**56  # more than any address: k of them stand for the kth number that passes are run with

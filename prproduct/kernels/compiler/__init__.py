"""A compiler for passes: from functions in a small part of Python to machine code, by LLVM."""

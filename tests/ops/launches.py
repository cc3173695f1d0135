"""Counts what a backward on a GPU would launch and move, with fake tensors: no GPU, no numbers.

A kernel of Triton and an operator that computes count as one launch each; views and allocations as none. A launch moves
every tensor that it reads or writes once, those that it adds to twice. What an operator does inside is not seen.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "detach", "_unsafe_view", "lift_fresh"}
_FREE |= {"scalar_tensor"}  # of a Python number in torch.where: an argument of the kernel


class Launches(TorchDispatchMode):
    """Names and bytes of all launches, in their order."""

    def __init__(self):
        super().__init__()
        self.names, self.bytes = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.namespace == "aten" and not func.is_view and name not in _FREE:
            self.add(name, [*tree_leaves(args), *tree_leaves(result)])
        return result

    def add(self, name, values):
        self.names.append(name)
        self.bytes.append(sum(t.numel() * t.element_size() for t in values if isinstance(t, torch.Tensor)))

    def without(self, native):
        """Names and bytes of what a backward launches beside the native one."""
        left, extra = list(native.names), []
        for name, size in zip(self.names, self.bytes, strict=True):
            if name in left:
                left.remove(name)
            else:
                extra.append((name, size))
        assert not left, f"the native backward's {left} are not among {self.names}"
        return [name for name, _ in extra], sum(size for _, size in extra)

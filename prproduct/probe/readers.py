"""Which layers a probe can measure, and for each type a reader: it yields the products of one call (`Pairing`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from prproduct.conversion.convert import holding_attentions
from prproduct.ops.contractions import Convolution, Linear
from prproduct.probe.attention import read_attention
from prproduct.probe.pairings import Call, Pairing, product_of
from prproduct.probe.recurrent import read_cell, read_recurrent

Reader = Callable[[Any, Call], Iterator[Pairing]]


def read_linear(layer: nn.Linear, call: Call) -> Iterator[Pairing]:
    """Every row of the input is multiplied with every row of the weight."""
    yield Pairing("", layer, "weight", Linear(), call.first(), output=_plain_output(layer, call), bias=layer.bias)


def read_columns(layer: nn.Module, call: Call) -> Iterator[Pairing]:
    """Hugging Face's Conv1D: a linear layer whose weight vectors are columns."""
    yield Pairing("", layer, "weight", Linear(), call.first(), view=lambda weight: weight.t())


def read_convolution(layer: Any, call: Call) -> Iterator[Pairing]:
    """Every window is multiplied with every kernel of its group; a window includes its padding."""
    input: Tensor = _batched(layer, call.first())
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(layer.kernel_size)
    contraction = Convolution(layer.stride, padding, layer.dilation, layer.groups)
    output = _batched(layer, _plain_output(layer, call))
    yield Pairing("", layer, "weight", contraction, input, output=output, bias=layer.bias)


def read_transposed_convolution(layer: Any, call: Call) -> Iterator[Pairing]:
    """As for a convolution; the windows are those of the input with zeros inserted by the stride."""
    input, output_size = call.arguments("input", "output_size")
    geometry = (layer.stride, layer.padding, layer.kernel_size, len(layer.kernel_size), layer.dilation)
    extra = tuple(layer._output_padding(input, output_size, *geometry))
    contraction = Convolution(layer.stride, layer.padding, layer.dilation, layer.groups, extra, transposed=True)
    output = _batched(layer, _plain_output(layer, call))
    yield Pairing("", layer, "weight", contraction, _batched(layer, input), output=output, bias=layer.bias)


def _batched(layer: Any, tensor: Any) -> Any:
    unbatched = tensor is not None and tensor.dim() == len(layer.kernel_size) + 1
    return tensor.unsqueeze(0) if unbatched else tensor


def _plain_output(layer: nn.Module, call: Call) -> Tensor | None:
    """Return the output if it is known to be p + bias: of torch's and prproduct's own classes, else None."""
    known = type(layer).__module__.startswith(("torch.nn.modules.", "prproduct.nn.")) and "forward" not in vars(layer)
    return call.output if known and product_of(layer).has_native_forward else None


# Subclasses before their bases.
_READERS: list[tuple[type[nn.Module], Reader]] = [
    (nn.MultiheadAttention, read_attention),
    (nn.RNNBase, read_recurrent),
    (nn.RNNCellBase, read_cell),
    (_ConvTransposeNd, read_transposed_convolution),
    (_ConvNd, read_convolution),
    (nn.Linear, read_linear),
]
_KNOWN_PACKAGES = ("torch.nn.modules.", "prproduct.nn.", "transformers.pytorch_utils")
KNOWN = "Linear, Conv1d to ConvTranspose3d, LSTM, GRU, RNN, their cells, MultiheadAttention"


def reader_of(layer: nn.Module) -> Reader | None:
    """Return the reader of a layer; None if it cannot be measured."""
    for kind, reader in _READERS:
        if isinstance(layer, kind):
            return reader
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return read_columns if conv1d is not None and isinstance(layer, conv1d) else None


def has_own_forward(layer: nn.Module) -> bool:
    """Return True if the layer's forward is defined by a class that is not torch's, prproduct's or Hugging Face's."""
    defining = next(cls for cls in type(layer).__mro__ if "forward" in vars(cls))
    return "forward" not in vars(layer) and not defining.__module__.startswith(_KNOWN_PACKAGES)


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return {name: layer} of the layers that can be measured; a layer with several names has its first.

    A model that is itself a layer has no name, and is given its type's.
    """
    never_called = holding_attentions(model)
    return {  # torch.compile puts "_orig_mod." into names
        name.replace("_orig_mod.", "") or type(layer).__name__: layer
        for name, layer in model.named_modules()
        if reader_of(layer) is not None and id(layer) not in never_called
    }

"""Torch's recurrent layer and ours from one seed, and all that a layer computes."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import prproduct as pr

KINDS = ["LSTM", "GRU", "RNN"]


def build(kind: str, product="pr", **options) -> tuple[nn.Module, nn.Module]:
    """Torch's layer and ours, from the same seed, in float64."""
    layers = []
    for library, extra in ((nn, {}), (pr.nn, {"product": product})):
        torch.manual_seed(5)
        layers.append(getattr(library, kind)(3, 4, **options, **extra).double())
    return layers[0], layers[1]


def tensors(output) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, PackedSequence):
        return [output.data]
    return [t for part in output for t in tensors(part)]


def run(layer, x: Tensor, state=None, wrap=lambda x: x) -> list[Tensor]:
    """Outputs, and the gradients of input, states and parameters for a fixed gradient of all outputs."""
    x = x.detach().clone().requires_grad_()
    states = [s.detach().clone().requires_grad_() for s in tensors(() if state is None else state)]
    hx = None if state is None else tuple(states) if isinstance(state, tuple) else states[0]
    outputs = tensors(layer(wrap(x), hx))
    loss = sum((t * torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in outputs)
    return [*outputs, *torch.autograd.grad(loss, [x, *states, *layer.parameters()])]


def first_state(layer: nn.Module, batch: tuple[int, ...]):
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(count, *batch, layer.proj_size or layer.hidden_size).double()
    return (hidden, torch.randn(count, *batch, layer.hidden_size).double()) if layer.mode == "LSTM" else hidden


def sequence(options: dict, times: int = 5, batch: int = 3) -> Tensor:
    return torch.randn((batch, times, 3) if options.get("batch_first") else (times, batch, 3)).double()

"""One sampled step of a probe: hooks that measure angles in the forward and split gradients in the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from prproduct.probe.angles import AngleStatistics, measure
from prproduct.probe.gradients import GradientParts, split
from prproduct.probe.layers import ForwardWatcher, has_known_base, has_own_forward, reader_of
from prproduct.probe.pairings import Call, Pairing, RandomState, product_of
from prproduct.probe.records import AngleRecord


class SampledStep:
    """One sampled step: hooks on layers while a forward runs, hooks on weights until the step is over."""

    def __init__(
        self, step: int, training: bool, layers: dict[str, nn.Module], bins: int, skipped: dict[str, str]
    ) -> None:
        self.step, self.training, self.bins, self.skipped = step, training, bins, skipped
        self.layers = layers
        self.found: dict[tuple[str, str], AngleStatistics] = {}
        self.calls: dict[str, int] = {}
        self.gradients: dict[tuple[str, str], GradientParts] = {}
        self._random: dict[nn.Module, RandomState] = {}
        self._computed_weights: dict[tuple[nn.Module, str], Tensor] = {}
        self._summed: dict[tuple[str, str], tuple[int, Tensor]] = {}  # id of the backward, gradient summed over calls
        self._layer_hooks: list[RemovableHandle | ForwardWatcher] = []
        self._weight_hooks: dict[tuple[str, str], dict[int, RemovableHandle]] = {}

    def enter_layers(self) -> None:
        """Register the hooks that measure, before a forward."""
        for name, layer in self.layers.items():
            before, read = self.remember_random_state if draws_dropout(layer) else None, self._reading(name)
            if has_own_forward(layer):
                if has_known_base(layer):
                    self._layer_hooks.append(ForwardWatcher(layer, before, read))
                read, before = self._checking(name), None
            if before is not None:
                self._layer_hooks.append(layer.register_forward_pre_hook(before))
            # Before all other hooks: they may change the output, and the probe's hook on the model removes this one.
            self._layer_hooks.append(layer.register_forward_hook(read, with_kwargs=True, prepend=True))
            for owner in layer.modules():
                if parametrize.is_parametrized(owner):
                    for parameter, computing in owner.parametrizations.items():  # type: ignore[union-attr,operator]
                        keeping = self._keeping_weight(owner, parameter)
                        self._layer_hooks.append(computing.register_forward_hook(keeping))

    def leave_layers(self) -> None:
        """Remove the hooks on layers, after a forward."""
        for hook in self._layer_hooks:
            hook.remove()
        self._layer_hooks = []
        self._random.clear()
        self._computed_weights.clear()

    def close(self) -> None:
        """Remove the hooks on weights, at the end of the step."""
        for hooks in self._weight_hooks.values():
            for hook in hooks.values():
                hook.remove()
        self._weight_hooks.clear()
        self._summed.clear()

    def records(self) -> list[AngleRecord]:
        """Return a record for each product of each layer that ran."""
        return [
            AngleRecord.of(
                self.step,
                self.training,
                key[0] or type(self.layers[key[0]]).__name__,  # the model itself has no name
                key[1],
                str(product_of(self.layers[key[0]])),
                self.calls[key[0]],
                found,
                self.gradients.get(key),
            )
            for key, found in self.found.items()
        ]

    def remember_random_state(self, layer: nn.Module, args: Any) -> None:
        """Save the random state before a layer with dropout, so that readers can repeat its dropout."""
        self._random[layer] = RandomState(_device_of(layer))

    def _keeping_weight(self, owner: nn.Module, parameter: str) -> Callable[..., None]:
        # Reading the attribute would compute the weight again, and spectral_norm would do another power iteration.
        def keep(computing: nn.Module, args: Any, weight: Tensor) -> None:
            self._computed_weights[owner, parameter] = weight

        return keep

    def _checking(self, name: str) -> Callable[..., None]:
        def check(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if name not in self.calls:
                self.skipped[name] = f"{type(layer).__name__}.forward does not call super().forward"

        return check

    def _reading(self, name: str) -> Callable[..., None]:
        def read(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            reader = reader_of(layer)
            assert reader is not None
            self.calls[name] = self.calls.get(name, 0) + 1
            call = Call(args, kwargs, output, self._random.pop(layer, None))
            with torch.no_grad(), call.repeated_dropout():
                for pairing in reader(layer, call):
                    self._measure(name, pairing)

        return read

    def _measure(self, name: str, pairing: Pairing) -> None:
        key = (name, pairing.part)
        weight = self._computed_weights.get((pairing.owner, pairing.parameter))
        if weight is None:
            weight = getattr(pairing.owner, pairing.parameter)
        found = self.found.setdefault(key, AngleStatistics(self.bins))
        measure(found, pairing.contraction, pairing.data, pairing.view(weight), pairing.output, pairing.bias)
        # A computed weight may have been freed and its id() reused, so hook ids tell whether this weight has a hook.
        hooks = self._weight_hooks.setdefault(key, {})
        if weight.requires_grad and hooks.keys().isdisjoint(weight._backward_hooks or ()):
            hook = weight.register_hook(self._splitting(key, pairing, weight))
            hooks[hook.id] = hook

    def _splitting(self, key: tuple[str, str], pairing: Pairing, weight: Tensor) -> Callable[[Tensor], None]:
        view, contraction, is_leaf, value = pairing.view, pairing.contraction, weight.is_leaf, weight.detach()

        def hook(grad: Tensor) -> None:
            # A parameter's hook gets the gradient summed over all calls, a computed weight's gets it call by call.
            if not is_leaf:
                backward = torch._C._current_graph_task_id()
                before, sum = self._summed.get(key, (None, grad))
                grad = sum + grad if before == backward else grad.clone()
                self._summed[key] = backward, grad
            self.gradients[key] = split(view(grad), view(value), contraction)

        return hook


class ForwardState:
    """Copies of random state, buffers and arguments before a forward, so that a second one starts from the same."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self.random = RandomState(_device_of(model))
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
        copies: dict[int, Tensor] = {}  # one copy per tensor: attention tests whether query is key

        def copied(tensor: Tensor) -> Tensor:
            return copies.setdefault(id(tensor), tensor.detach().clone())

        self.args, self.kwargs = tree_map_only(Tensor, copied, (args, kwargs))


def draws_dropout(layer: nn.Module) -> bool:
    """Return True if the layer draws random numbers inside its forward: dropout of an LSTM or of attention."""
    if not layer.training:
        return False
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers > 1 and layer.dropout > 0
    return isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))

"""One sampled step of a probe: hooks that measure angles in the forward and split gradients in the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from prproduct.probe.angles import AngleStatistics, measure, why_unmeasurable
from prproduct.probe.gradients import GradientParts, split
from prproduct.probe.pairings import Call, Pairing, product_of
from prproduct.probe.readers import has_own_forward, reader_of
from prproduct.probe.records import AngleRecord
from prproduct.probe.replay import RandomState, draws_dropout

Key = tuple[str, str]  # the name of a layer, and which of its products (AngleRecord.part)


class SampledStep:
    """One sampled step: hooks on layers while a forward runs, hooks on weights until the step is over.

    Reasons why a layer cannot be measured are added to `skipped`, {layer: reason}.
    """

    def __init__(
        self, step: int, training: bool, layers: dict[str, nn.Module], bins: int, skipped: dict[str, str]
    ) -> None:
        self.step, self.training, self.layers, self.bins, self.skipped = step, training, layers, bins, skipped
        self.calls: dict[str, int] = {}  # of a layer
        self.angles: dict[Key, AngleStatistics] = {}
        self.gradients: dict[Key, GradientParts] = {}
        self._random: dict[nn.Module, RandomState] = {}  # before the layer's forward
        self._computed_weights: dict[tuple[nn.Module, str], Tensor] = {}  # by parametrizations, in this forward
        self._summed: dict[Key, tuple[int, Tensor]] = {}  # id of the backward, gradient summed over calls
        self._layer_hooks: list[RemovableHandle] = []
        self._weight_hooks: dict[Key, dict[int, RemovableHandle]] = {}

    def add_layer_hooks(self) -> None:
        """Register the hooks that measure, before a forward."""
        for name, layer in self.layers.items():
            if has_own_forward(layer):
                after = self._skipping_hook(name)
            else:
                after = self._measuring_hook(name)
                if draws_dropout(layer):
                    self._layer_hooks.append(layer.register_forward_pre_hook(self.save_random_state))
            # Before all other hooks: they may change the output, and the probe's hook on the model removes this one.
            self._layer_hooks.append(layer.register_forward_hook(after, with_kwargs=True, prepend=True))
            for owner in layer.modules():
                if parametrize.is_parametrized(owner):
                    for parameter, computing in owner.parametrizations.items():  # type: ignore[union-attr,operator]
                        hook = self._weight_saving_hook(owner, parameter)
                        self._layer_hooks.append(computing.register_forward_hook(hook))

    def remove_layer_hooks(self) -> None:
        """Remove the hooks on layers, after a forward."""
        for hook in self._layer_hooks:
            hook.remove()
        self._layer_hooks = []
        self._random.clear()
        self._computed_weights.clear()

    def remove_weight_hooks(self) -> None:
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
                name,
                part,
                str(product_of(self.layers[name])),
                self.calls[name],
                angles,
                self.gradients.get((name, part)),
            )
            for (name, part), angles in self.angles.items()
        ]

    def save_random_state(self, layer: nn.Module, args: Any) -> None:
        """A forward pre-hook of a layer with dropout; readers repeat the dropout from the saved state."""
        self._random[layer] = RandomState(layer)

    def _weight_saving_hook(self, owner: nn.Module, parameter: str) -> Callable[..., None]:
        """Return a hook on a parametrization that saves the weight it computes, for `Call.parameter`."""

        def hook(computing: nn.Module, args: Any, weight: Tensor) -> None:
            self._computed_weights[owner, parameter] = weight

        return hook

    def _skipping_hook(self, name: str) -> Callable[..., None]:
        """Return a hook on a layer whose arguments and output need not be those of a product."""

        def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.skipped[name] = f"{type(layer).__name__} has a forward of its own"

        return hook

    def _measuring_hook(self, name: str) -> Callable[..., None]:
        """Return a hook on a layer that measures all products of the call."""

        def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            reader = reader_of(layer)
            assert reader is not None
            self.calls[name] = self.calls.get(name, 0) + 1
            call = Call(args, kwargs, output, self._random.pop(layer, None), self._computed_weights)
            with torch.no_grad(), call.repeated_dropout():
                for pairing in reader(layer, call):
                    self._measure(name, pairing, call.parameter(pairing.owner, pairing.parameter))

        return hook

    def _measure(self, name: str, pairing: Pairing, weight: Tensor) -> None:
        key = (name, pairing.part)
        reason = why_unmeasurable(pairing.data, weight)
        if reason:
            self.skipped[name] = reason
            return
        statistics = self.angles.setdefault(key, AngleStatistics(self.bins))
        measure(statistics, pairing.contraction, pairing.data, pairing.view(weight), pairing.output, pairing.bias)
        # A computed weight may have been freed and its id() reused, so hook ids tell whether this weight has a hook.
        hooks = self._weight_hooks.setdefault(key, {})
        if weight.requires_grad and hooks.keys().isdisjoint(weight._backward_hooks or ()):
            handle = weight.register_hook(self._gradient_hook(key, pairing, weight))
            hooks[handle.id] = handle

    def _gradient_hook(self, key: Key, pairing: Pairing, weight: Tensor) -> Callable[[Tensor], None]:
        """Return a hook on a weight that splits its gradient."""
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

"""The probe itself: hooks that count steps, and on a sampled step hooks that measure."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from prproduct.probe.angles import AngleStatistics, measure
from prproduct.probe.gradients import GradientParts, split
from prproduct.probe.layers import KNOWN, Watcher, find_layers, has_known_base, has_own_forward, reader_of
from prproduct.probe.pairings import Call, Pairing, RandomState, product_of
from prproduct.probe.records import AngleRecord, SummaryWriter, write_jsonl, write_tensorboard

# Inside a probe's second forward no probe counts or reads but that one.
_replaying = ContextVar("_replaying", default=False)
_GIVE_IT_THE_COMPILED = "use compiled = torch.compile(module), and give the probe `compiled`"


class AngleProbe:
    """Angles between weight vectors and data vectors, and the parts of each weight's gradient, while a model trains.

    It begins at once, and `close` or the end of a `with` block takes all its hooks away. A step is a forward of
    `module`, or `forwards_per_step` of them; every `every`-th is sampled. Steps in training mode and steps in eval mode
    are counted apart. A training loop that opens a probe for one of its steps gives that step's number as `step`: then
    nothing is counted, and all forwards belong to it, in either mode. The records of a step are complete when the next
    one begins, or at `close`.

    >>> import torch, prproduct as pr
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> with pr.AngleProbe(net, every=10) as probe:
    ...     for step in range(20):
    ...         net(torch.randn(16, 4)).square().mean().backward()
    >>> [(record.step, record.layer, record.pairs) for record in probe.records]
    [(0, '0', 128), (0, '2', 32), (10, '0', 128), (10, '2', 32)]
    """

    def __init__(
        self,
        module: nn.Module,
        every: int = 1,
        *,
        layers: Iterable[str] | None = None,
        bins: int = 20,
        forwards_per_step: int = 1,
        first_step: int = 0,
        step: int | None = None,
        jsonl: str | Path | None = None,
        writer: SummaryWriter | None = None,
    ) -> None:
        """See docs/probe.md. `layers` are names or patterns such as "encoder.*"; `first_step` numbers a resumed run on.

        `jsonl` is a file that complete records are appended to, `writer` a TensorBoard SummaryWriter they go to.
        """
        for name, number, least in (
            ("every", every, 1),
            ("bins", bins, 1),
            ("forwards_per_step", forwards_per_step, 1),
            ("first_step", first_step, 0),
            ("step", 0 if step is None else step, 0),
        ):
            if not isinstance(number, int) or number < least:
                raise ValueError(f"AngleProbe: {name} must be a whole number from {least} on, not {number!r}")
        for method in ("add_scalar", "add_histogram_raw"):
            if writer is not None and not callable(getattr(writer, method, None)):
                raise TypeError(f"AngleProbe: writer has no {method}(); pass a torch.utils.tensorboard.SummaryWriter")
        self.every = every
        self._called = module
        self._model: Any = getattr(module, "_orig_mod", module)  # what torch.compile(module) wraps
        self._layers = _choose(self._model, layers)
        self._bins = bins
        self._forwards_per_step = forwards_per_step
        self._forwards = {True: first_step * forwards_per_step, False: 0}
        self._step = step
        self._jsonl, self._writer = jsonl, writer
        self._records: list[AngleRecord] = []
        self._skipped: dict[str, str] = {}
        self._open: dict[bool, _Sample] = {}  # the sampled step that goes on, in training and in eval mode
        self._now: _Sample | None = None  # the sampled step whose forward is running
        self._before: _Before | None = None
        self._seen = False
        self._hooks: list[RemovableHandle] = []
        self.start()

    def start(self) -> AngleProbe:
        """Go on after `close`; a probe that runs goes on running."""
        if not self._hooks:
            if self._called._compiled_call_impl is not None:
                raise RuntimeError(f"AngleProbe: module.compile() leaves no room for hooks; {_GIVE_IT_THE_COMPILED}")
            self._hooks = [self._called.register_forward_pre_hook(_RootHook(self._before_forward), with_kwargs=True)]
        return self

    def close(self) -> None:
        """Complete the last records and take all hooks away. Closing twice does no harm."""
        self._leave_layers()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for training in list(self._open):
            self._complete(training)
        if not self._seen:
            name = type(self._model).__name__
            warnings.warn(
                f"AngleProbe saw no forward of {name}; if it is compiled, {_GIVE_IT_THE_COMPILED}", stacklevel=2
            )

    def __enter__(self) -> AngleProbe:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seen |= error is not None  # which says better why there was none
        self.close()

    @property
    def records(self) -> list[AngleRecord]:
        """All records so far, in order; those of a step that goes on show what is known of it."""
        return self._records + [record for sample in self._open.values() for record in sample.records()]

    @property
    def layers(self) -> list[str]:
        """The names of the layers that are probed."""
        return list(self._layers)

    @property
    def skipped(self) -> dict[str, str]:
        """Layers that ran and could not be read, and why."""
        return dict(self._skipped)

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            raise RuntimeError(f"AngleProbe: {_GIVE_IT_THE_COMPILED}")
        # A forward inside a backward is activation checkpointing's second look at the same step.
        if _replaying.get() or torch._C._current_graph_task_id() != -1:
            return
        self._seen = True
        training = module.training
        step, place = divmod(self._forwards[training], self._forwards_per_step)
        self._forwards[training] += 1
        if self._step is not None:
            step = self._step
        elif place == 0 and training in self._open:
            self._complete(training)
        if step % self.every:
            return
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError("AngleProbe: tensors inside torch.func transforms cannot be read; close the probe first")
        self._leave_layers()  # of a forward that raised an error
        self._now = self._open.setdefault(training, _Sample(step, training, self._layers, self._bins, self._skipped))
        self._hooks.append(module.register_forward_hook(_RootHook(self._after_forward), with_kwargs=True))
        if self._must_replay():
            self._before = _Before(self._model, args, kwargs)
        else:
            self._now.enter_layers()
            if _draws_dropout(module):  # the model is a layer, and its hooks that run before a forward are running
                self._now.remember_random_state(module, args)

    def _after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if _replaying.get() or self._now is None:
            return
        if self._before is not None:
            self._replay(self._now, self._before)
        self._leave_layers()

    def _leave_layers(self) -> None:
        if self._now is not None:
            self._now.leave_layers()
            self._hooks.pop().remove()  # the one that ends the sampled forward
        self._now = self._before = None

    def _must_replay(self) -> bool:
        """Whether hooks on the layers would be ignored, or would change which code runs.

        Compiled code does not see hooks that came later. An encoder layer of torch in eval mode leaves its fused path
        as soon as there is a hook, and its numbers change in the last digits.
        """
        return self._called is not self._model or any(
            hasattr(m, "_orig_mod")
            or m._compiled_call_impl is not None
            or (isinstance(m, nn.TransformerEncoderLayer) and not m.training)
            for m in self._model.modules()
        )

    def _replay(self, sample: _Sample, before: _Before) -> None:
        """Measure in a second forward: eager, without gradient, from the same buffers, arguments and random numbers.

        Called by `_after_forward`, so that the forward that counts has run as if nobody had looked.
        """
        fast_path = torch.backends.mha.get_fastpath_enabled()
        outside = _replaying.set(True)
        sample.enter_layers()
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            with torch.no_grad(), before.random.again(), torch.compiler.set_stance("force_eager"):
                torch.func.functional_call(self._model, before.buffers, before.args, before.kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            sample.leave_layers()
            _replaying.reset(outside)

    def _complete(self, training: bool) -> None:
        sample = self._open.pop(training)
        sample.close()
        records = sample.records()
        self._records += records
        if self._jsonl is not None:
            write_jsonl(records, self._jsonl)
        if self._writer is not None:
            write_tensorboard(records, self._writer)


class _Before:
    """Copies of what a forward begins with and may write into, so that a second one begins with the same."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self.random = RandomState(_device_of(model))
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
        copies: dict[int, Tensor] = {}  # one of each: attention asks whether its query is its key

        def copied(tensor: Tensor) -> Tensor:
            return copies.setdefault(id(tensor), tensor.detach().clone())

        self.args, self.kwargs = tree_map_only(Tensor, copied, (args, kwargs))


class _Sample:
    """One sampled step: its layers' hooks while a forward runs, its weights' hooks until the step is over."""

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
        self._summed: dict[tuple[str, str], tuple[int, Tensor]] = {}  # in which backward, and what
        self._of_layers: list[RemovableHandle | Watcher] = []
        self._of_weights: dict[tuple[str, str], dict[int, RemovableHandle]] = {}

    def enter_layers(self) -> None:
        for name, layer in self.layers.items():
            before, read = self.remember_random_state if _draws_dropout(layer) else None, self._reading(name)
            if has_own_forward(layer):
                if has_known_base(layer):
                    self._of_layers.append(Watcher(layer, before, read))
                read, before = self._checking(name), None
            if before is not None:
                self._of_layers.append(layer.register_forward_pre_hook(before))
            # First of all hooks: those behind may change the output, and the probe's own on the model ends the reading.
            self._of_layers.append(layer.register_forward_hook(read, with_kwargs=True, prepend=True))
            for owner in layer.modules():
                if parametrize.is_parametrized(owner):
                    for parameter, computing in owner.parametrizations.items():  # type: ignore[union-attr,operator]
                        keeping = self._keeping_weight(owner, parameter)
                        self._of_layers.append(computing.register_forward_hook(keeping))

    def leave_layers(self) -> None:
        for hook in self._of_layers:
            hook.remove()
        self._of_layers = []
        self._random.clear()
        self._computed_weights.clear()

    def close(self) -> None:
        """Take the hooks on weights away: the step is over."""
        for hooks in self._of_weights.values():
            for hook in hooks.values():
                hook.remove()
        self._of_weights.clear()
        self._summed.clear()

    def records(self) -> list[AngleRecord]:
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
        """So that what the layer drops can be dropped again."""
        self._random[layer] = RandomState(_device_of(layer))

    def _keeping_weight(self, owner: nn.Module, parameter: str) -> Callable[..., None]:
        # Reading the attribute would compute it again, and spectral_norm would take another step of its iteration.
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
        # A computed weight may be gone by now, and its id() be that of another: its hooks tell whether it is new.
        hooks = self._of_weights.setdefault(key, {})
        if weight.requires_grad and hooks.keys().isdisjoint(weight._backward_hooks or ()):
            hook = weight.register_hook(self._splitting(key, pairing, weight))
            hooks[hook.id] = hook

    def _splitting(self, key: tuple[str, str], pairing: Pairing, weight: Tensor) -> Callable[[Tensor], None]:
        view, contraction, is_leaf, value = pairing.view, pairing.contraction, weight.is_leaf, weight.detach()

        def hook(grad: Tensor) -> None:
            # A parameter's gradient comes summed over all calls; a computed weight's comes call by call.
            if not is_leaf:
                backward = torch._C._current_graph_task_id()
                before, sum = self._summed.get(key, (None, grad))
                grad = sum + grad if before == backward else grad.clone()
                self._summed[key] = backward, grad
            self.gradients[key] = split(view(grad), view(value), contraction)

        return hook


class _RootHook:
    """A hook that a copy of the model does not take along: the probe watches one model."""

    def __init__(self, hook: Callable[..., None] | None = None) -> None:
        self.hook = hook

    def __call__(self, *arguments: Any) -> None:
        if self.hook is not None:
            self.hook(*arguments)

    def __reduce__(self) -> tuple[type[_RootHook], tuple[()]]:
        return _RootHook, ()


def _choose(model: nn.Module, patterns: Iterable[str] | None) -> dict[str, nn.Module]:
    """The layers to probe; nothing chosen, or nothing to choose from, is an error."""
    layers = find_layers(model)
    if not layers:
        raise ValueError(f"AngleProbe: nothing to probe in {type(model).__name__}; it reads {KNOWN}")
    if patterns is None:
        return layers
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns:
        raise ValueError("AngleProbe: layers is empty; leave it out to probe all of them")
    for pattern in patterns:
        if not fnmatch.filter(layers, pattern):
            some = ", ".join(list(layers)[:8]) + (", …" if len(layers) > 8 else "")
            raise ValueError(f"AngleProbe: no layer to probe is named {pattern!r}; there are {some}")
    return {n: layer for n, layer in layers.items() if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)}


def _draws_dropout(layer: nn.Module) -> bool:
    """Whether what the layer does inside depends on random numbers."""
    if not layer.training:
        return False
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers > 1 and layer.dropout > 0
    return isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))

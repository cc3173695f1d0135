"""`AngleProbe`: counts the steps of a model by a hook on its forward, and samples some of them."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from prproduct.probe.readers import KNOWN, find_layers
from prproduct.probe.records import AngleRecord, SummaryWriter, write_jsonl, write_tensorboard
from prproduct.probe.replay import ForwardState, draws_dropout
from prproduct.probe.sampled_step import SampledStep

# True inside the second forward of a probe, which other probes do not count.
_replaying = ContextVar("_replaying", default=False)
_USE_COMPILED = "use compiled = torch.compile(module), and give the probe `compiled`"


class AngleProbe:
    """Angles between weight vectors and data vectors, and the parts of each weight's gradient, while a model trains.

    The probe is active from its construction on; `close` or the end of a `with` block removes all its hooks. A step is
    one forward of `module`, or `forwards_per_step` of them; every `every`-th step is sampled. Steps in training mode
    and in eval mode are counted separately. A training loop that opens a probe for a single step gives that step's
    number as `step`: then nothing is counted, and all forwards belong to it. The records of a step are complete when
    the next step begins, or at `close`.

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
        step: int | None = None,
        jsonl: str | Path | None = None,
        writer: SummaryWriter | None = None,
    ) -> None:
        """`layers` are names or patterns such as "encoder.*"; see docs/probe.md.

        A record's histogram has `bins` bins. Complete records are appended to the file `jsonl` and written to `writer`,
        a TensorBoard SummaryWriter.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"AngleProbe takes a torch.nn.Module, not {type(module).__name__}")
        for name, number, least in (
            ("every", every, 1),
            ("bins", bins, 1),
            ("forwards_per_step", forwards_per_step, 1),
            ("step", 0 if step is None else step, 0),
        ):
            if not isinstance(number, int) or number < least:
                raise ValueError(f"AngleProbe: {name} must be a whole number from {least} on, not {number!r}")
        for method in ("add_scalar", "add_histogram_raw"):
            if writer is not None and not callable(getattr(writer, method, None)):
                raise TypeError(f"AngleProbe: writer has no {method}(); pass a torch.utils.tensorboard.SummaryWriter")
        if jsonl is not None:
            Path(jsonl).open("a").close()  # an error of writing now, and not after the first step
        self.every = every
        self._module = module
        self._model: Any = getattr(module, "_orig_mod", module)  # the module inside of torch.compile(module)
        self._layers = _choose(self._model, layers)
        self._bins = bins
        self._forwards_per_step = forwards_per_step
        self._forwards = {True: 0, False: 0}  # counted by training mode
        self._step = step
        self._jsonl, self._writer = jsonl, writer
        self._records: list[AngleRecord] = []
        self._skipped: dict[str, str] = {}
        self._in_progress: dict[bool, SampledStep] = {}  # the sampled step in progress, by training mode
        self._running: SampledStep | None = None  # the sampled step whose forward is running
        self._replay_from: ForwardState | None = None  # before that forward, if the step needs a second one
        self._saw_forward = False
        self._hooks: list[RemovableHandle] = []
        self.start()

    def start(self) -> AngleProbe:
        """Continue after `close`; without effect on an active probe."""
        if not self._hooks:
            if self._module._compiled_call_impl is not None:
                raise RuntimeError(f"AngleProbe: module.compile() leaves no room for hooks; {_USE_COMPILED}")
            self._hooks = [self._module.register_forward_pre_hook(_RootHook(self._before_forward), with_kwargs=True)]
        return self

    def close(self) -> None:
        """Complete the last records and remove all hooks. Closing twice has no effect."""
        self._stop()
        name = type(self._model).__name__
        if not self._saw_forward:
            warnings.warn(f"AngleProbe saw no forward of {name}; if it is compiled, {_USE_COMPILED}", stacklevel=2)
        elif self._skipped and not self._records:
            layer, reason = next(iter(self._skipped.items()))
            warnings.warn(f"AngleProbe measured no layer of {name}; probe.skipped[{layer!r}]: {reason}", stacklevel=2)

    def _stop(self) -> None:
        self._forward_ended()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for training in list(self._in_progress):
            self._complete(training)

    def __enter__(self) -> AngleProbe:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stop()  # without a warning on top of the error

    @property
    def records(self) -> list[AngleRecord]:
        """All records so far, in order; those of the step in progress are incomplete."""
        return self._records + [record for sample in self._in_progress.values() for record in sample.records()]

    @property
    def layers(self) -> list[str]:
        """The names of the layers that are probed."""
        return list(self._layers)

    @property
    def skipped(self) -> dict[str, str]:
        """{layer: reason} of layers that ran and could not be measured."""
        return dict(self._skipped)

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            raise RuntimeError(f"AngleProbe: {_USE_COMPILED}")
        # A forward inside a backward is the recomputation of activation checkpointing: the same step.
        if _replaying.get() or torch._C._current_graph_task_id() != -1:
            return
        self._saw_forward = True
        training = module.training
        step, place = divmod(self._forwards[training], self._forwards_per_step)
        self._forwards[training] += 1
        if self._step is not None:
            step = self._step
        elif place == 0 and training in self._in_progress:
            self._complete(training)
        if step % self.every:
            return
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError("AngleProbe: tensors inside torch.func transforms cannot be read; close the probe first")
        self._forward_ended()  # if the last forward raised an error
        self._running = self._in_progress.setdefault(
            training, SampledStep(step, training, self._layers, self._bins, self._skipped)
        )
        self._hooks.append(module.register_forward_hook(_RootHook(self._after_forward), with_kwargs=True))
        if self._must_replay():
            self._replay_from = ForwardState(self._model, args, kwargs)
        else:
            self._running.add_layer_hooks()
            if draws_dropout(module):  # the model is itself a layer, whose forward pre-hooks are running now
                self._running.save_random_state(module, args)

    def _after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if _replaying.get() or self._running is None:
            return
        if self._replay_from is not None:
            self._replay(self._running, self._replay_from)
        self._forward_ended()

    def _forward_ended(self) -> None:
        """Remove all hooks but the one that counts, after a sampled forward or after one that raised an error."""
        if self._running is not None:
            self._running.remove_layer_hooks()
            self._hooks.pop().remove()  # `_after_forward`
        self._running = self._replay_from = None

    def _must_replay(self) -> bool:
        """Return True if hooks on the layers would be ignored, or would change which code runs.

        Compiled code ignores hooks that are registered later. nn.TransformerEncoderLayer in eval mode leaves its fused
        kernel if there is a hook, and its output changes in the last digits.
        """
        return self._module is not self._model or any(
            hasattr(m, "_orig_mod")
            or m._compiled_call_impl is not None
            or (isinstance(m, nn.TransformerEncoderLayer) and not m.training)
            for m in self._model.modules()
        )

    def _replay(self, sample: SampledStep, before: ForwardState) -> None:
        """Measure in a second forward: eager, without gradient, from the same buffers, arguments and random numbers.

        It runs after the model's own forward, which has therefore seen no hooks on layers.
        """
        fast_path = torch.backends.mha.get_fastpath_enabled()
        outside = _replaying.set(True)
        sample.add_layer_hooks()
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            with torch.no_grad(), before.random.restored(), torch.compiler.set_stance("force_eager"):
                torch.func.functional_call(self._model, before.buffers, before.args, before.kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            sample.remove_layer_hooks()
            _replaying.reset(outside)

    def _complete(self, training: bool) -> None:
        sample = self._in_progress.pop(training)
        sample.remove_weight_hooks()
        records = sample.records()
        self._records += records
        if self._jsonl is not None:
            write_jsonl(records, self._jsonl)
        if self._writer is not None:
            write_tensorboard(records, self._writer)


class _RootHook:
    """A hook that does nothing in a copy of the model: the probe measures the original only."""

    def __init__(self, hook: Callable[..., None] | None = None) -> None:
        self.hook = hook

    def __call__(self, *arguments: Any) -> None:
        if self.hook is not None:
            self.hook(*arguments)

    def __reduce__(self) -> tuple[type[_RootHook], tuple[()]]:
        return _RootHook, ()


def _choose(model: nn.Module, patterns: Any) -> dict[str, nn.Module]:
    """Return the layers to probe, or raise an error if there are none or if a pattern matches none."""
    layers = find_layers(model)
    if not layers:
        raise ValueError(f"AngleProbe: nothing to probe in {type(model).__name__}; it reads {KNOWN}")
    if patterns is None:
        return layers
    patterns = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    if not patterns:
        raise ValueError("AngleProbe: layers is empty; leave it out to probe all of them")
    for pattern in patterns:
        if not isinstance(pattern, str):
            kind = type(pattern).__name__
            raise TypeError(f"AngleProbe: layers takes names or patterns such as 'encoder.*', not {kind}")
        if not fnmatch.filter(layers, pattern):
            some = ", ".join(list(layers)[:8]) + (", …" if len(layers) > 8 else "")
            raise ValueError(f"AngleProbe: no layer to probe is named {pattern!r}; there are {some}")
    return {n: layer for n, layer in layers.items() if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)}

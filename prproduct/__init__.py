"""Products that keep the forward of w·x and change its gradient.

>>> import torch, prproduct as pr
>>> layer = pr.nn.Linear(784, 256)  # torch.nn.Linear, with the backward of the PR product
>>> y = layer(torch.randn(32, 784))
>>> model = pr.convert(torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prproduct import functional, nn, probe, products, reference
    from prproduct.conversion.check import Check, check
    from prproduct.conversion.convert import convert, revert
    from prproduct.conversion.registry import register
    from prproduct.conversion.report import Report, report
    from prproduct.probe import AngleProbe

__all__ = [
    "AngleProbe",
    "Check",
    "Report",
    "check",
    "convert",
    "functional",
    "nn",
    "probe",
    "products",
    "reference",
    "register",
    "report",
    "revert",
]
__version__ = "0.2.0"

_MODULES = {"functional", "nn", "probe", "products", "reference"}
_HOMES = {"AngleProbe": "prproduct.probe"}  # the module of a name; all others are in prproduct.conversion


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `prproduct --help` does not wait for torch."""
    if name in _MODULES:
        return importlib.import_module(f"prproduct.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "prproduct.conversion")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

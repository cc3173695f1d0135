"""What makes two runs the same: all that decides their numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Options that change what is recorded or shown, and no number of the training: they separate no runs.
HARMLESS = ("angles", "log_every", "checkpoint_minutes", "threads", "tensorboard", "quiet")


def difference(there: Any, here: Mapping[str, Any]) -> str | None:
    """The first setting in which two identities differ, in words; None if they are the same but for harmless options.

    >>> difference({"config": {"seed": 0, "angles": 5}}, {"config": {"seed": 1, "angles": 0}})
    'seed is 0 there and 1 here'
    """
    old, new = _flat(there), _flat(json.loads(json.dumps(here)))
    for key in sorted(old.keys() | new.keys()):
        if key.rsplit(".", 1)[-1] not in HARMLESS and old.get(key) != new.get(key):
            return f"{key.removeprefix('config.')} is {old.get(key)!r} there and {new.get(key)!r} here"
    return None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dots in its keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, inner in value.items() for key, leaf in _flat(inner, f"{prefix}.{name}".lstrip(".")).items()
    }

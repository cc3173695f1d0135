"""For `make docs`: examples in docstrings, from `>>>` to the next empty line, become code blocks."""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:.*\S.*\n?)*", flags=re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Without it, Markdown takes `>>>` for a quotation and lists in the output for links."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class and function once it is read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    lines = example[0].rstrip("\n")
    margin = example[1]
    return indent("```pycon", margin) + "\n" + lines + "\n" + indent("```", margin) + "\n"

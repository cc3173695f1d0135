"""The errors that a user can mend."""

from __future__ import annotations


class InputError(ValueError):
    """What the user gave cannot be used: one line that names what, where and what to do.

    The command line prints it without a traceback and ends with status 2.

    >>> raise InputError("runs/a/config.json: no such file; give the folder of a run")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: runs/a/config.json: no such file; give the folder of a run
    """

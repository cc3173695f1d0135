"""The error that the command line shows as one line."""

from __future__ import annotations


class InputError(ValueError):
    """An error that the user can mend: one line that names the input, what is wrong with it, and what to do.

    The command line prints it without a traceback and ends with status 2.

    >>> raise InputError("runs/a/config.json: no such file; give the folder of a run")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: runs/a/config.json: no such file; give the folder of a run
    """

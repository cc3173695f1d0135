"""Command-line options from configuration dataclasses: one place says what there is, what it means, and its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_type_hints

import typer

_REPEATED: Mapping[Any, Any] = {
    tuple[int, ...] | None: list[int] | None,
    tuple[str, ...] | None: list[str] | None,
}


def takes_options_of(*configurations: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: the fields of the dataclasses become options in front of its own.

    The function is called with an object of each dataclass, in their order, and its own options by name. A field's
    help is in its metadata. Fields of type `tuple[int, ...]` or `tuple[str, ...]` become options that may be given
    several times.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[len(configurations) :]

        def command(**values: Any) -> None:
            made = [configuration(**_of(configuration, values)) for configuration in configurations]
            function(*made, **{parameter.name: values[parameter.name] for parameter in own})

        parameters = [_parameter(f, hint) for c in configurations for f, hint in _hinted(c)]
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _hinted(configuration: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(configuration)
    return [(f, hints[f.name]) for f in fields(configuration)]


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    if field.default is MISSING:
        raise TypeError(f"{field.name} has no default: an option needs one")
    shown = _REPEATED.get(hint, hint)
    option = typer.Option(help=field.metadata["help"], show_default=field.default is not None)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=field.default, annotation=Annotated[shown, option])


def _of(configuration: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields, with tuples for lists, and None for an option that was not given."""
    own = {f.name: values[f.name] for f in fields(configuration)}
    return {name: (tuple(value) or None) if isinstance(value, list) else value for name, value in own.items()}

"""Command-line options from the fields of dataclasses: names, types, defaults and help texts are written once.

Typer makes options from a function's signature; `takes_options_of` builds that signature from dataclasses.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from prproduct.lab import runs
from prproduct.lab.environment import is_first_process
from prproduct.lab.errors import InputError
from prproduct.lab.runs import Record

_REPEATED: Mapping[Any, Any] = {  # Typer repeats options of lists, not of tuples of any length
    tuple[int, ...] | None: list[int] | None,
    tuple[str, ...] | None: list[str] | None,
}

Resume = Annotated[
    bool,
    typer.Option("--resume", help="go on where the run of --run-dir was stopped; it knows all other options"),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="remove the run's records and checkpoints and train it from the start")
]
CheckpointMinutes = Annotated[float, typer.Option(help="minutes between checkpoints inside an epoch")]
TensorBoard = Annotated[bool, typer.Option(help="write events for TensorBoard")]
Quiet = Annotated[bool, typer.Option("--quiet", help="show no progress")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="the folder that holds data sets", show_default=False)]


def option(default: Any, help: str) -> Any:
    """Return a field of a dataclass for `takes_options_of`: the option's default and help text."""
    return field(default=default, metadata={"help": help})


def takes_options_of(
    *configurations: type, stored: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the fields of dataclasses as options to a Typer command.

    The function is called with an instance of each dataclass, in order, and with its own options by name. The fields
    are made by `option`. Those of type `tuple[int, ...] | None` or `tuple[str, ...] | None` become options that may
    be repeated. `stored(values)` returns values for options that were not given, such as those of a resumed run.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[len(configurations) :]

        def command(context: typer.Context, **values: Any) -> None:
            if stored is not None:
                given = _given(context)
                values |= {name: value for name, value in stored(values).items() if name not in given}
            made = [configuration(**_of(configuration, values)) for configuration in configurations]
            function(*made, **{parameter.name: values[parameter.name] for parameter in own})

        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *(_parameter(f, hint) for c in configurations for f, hint in _hinted(c))]
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def stored_in(
    folder: Path, values: Mapping[str, Any], options_of: Callable[[Record], dict[str, Any]]
) -> dict[str, Any]:
    """Return the options recorded in the folder of a run, if the command resumes or restarts it; else {}.

    `options_of(record)` returns those of its configuration; paths of its data are in its environment. InputError if
    there is no run to resume: a mistyped folder must not train another model.
    """
    if not (values["resume"] or values["restart"]):
        return {}
    if values["resume"] and values["restart"]:
        raise InputError("--resume goes on with a run and --restart removes it: give one of them")
    if not os.path.lexists(folder / runs.CONFIG):
        if values["resume"] and is_first_process():  # the others need no access to the folder
            raise InputError(f"{folder}: there is no run to resume; leave out --resume to start one")
        return {}
    record = runs.read_config(folder)
    environment = record.config.get("environment", {})
    places = environment.get("places", {}) if isinstance(environment, dict) else None
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise InputError(f"{folder / runs.CONFIG}: is not the configuration of a run, its places are not paths")
    return {**options_of(record), **{name: place for name, place in places.items() if name in values}}


def _given(context: typer.Context) -> set[str]:
    """Return the names of the options given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _hinted(configuration: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(configuration)
    return [(f, hints[f.name]) for f in fields(configuration)]


def _parameter(of: Field[Any], hint: Any) -> inspect.Parameter:
    kind, keyword = _REPEATED.get(hint, hint), inspect.Parameter.KEYWORD_ONLY
    shown = typer.Option(help=of.metadata["help"], show_default=of.default is not None)
    return inspect.Parameter(of.name, keyword, default=of.default, annotation=Annotated[kind, shown])


def _of(configuration: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass's fields, with tuples for lists and None for empty lists."""
    own = {f.name: values[f.name] for f in fields(configuration)}
    return {name: (tuple(value) or None) if isinstance(value, list) else value for name, value in own.items()}

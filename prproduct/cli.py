"""The command line: a table of commands, and `main`.

Each command is a function with Typer's annotations in the module of its subject. Only the module of the given command
is imported, so that `prproduct bench` does not wait for the imports of the experiments.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import prproduct
from prproduct.lab.errors import InputError


class Command(NamedTuple):
    """A command: its words, where its function is, and a summary."""

    words: str  # as typed after `prproduct`; two words for a command in a group
    place: str  # module:function
    summary: str
    extra: str  # the extra of the package that installs its dependencies


_DATA = "prproduct.classification.data.commands"
_CAPTIONS = "prproduct.captioning.data.commands"
_REPRODUCE = "prproduct.classification.reproduce_command"
_REPRODUCE_CAPTIONS = "prproduct.captioning.reproduce"
COMMANDS: list[Command] = [
    Command(
        "bench", "prproduct.bench.command:bench", "time and memory beside native layers and the literal formula", "lab"
    ),
    Command("bundle", "prproduct.captioning.ready:bundle", "make ready captioners for the package", "captions"),
    Command(
        "caption", "prproduct.captioning.use.command:caption", "captions for pictures, or a whole split", "captions"
    ),
    Command("data list", f"{_DATA}:list_", "the data sets, and where each was found", "lab"),
    Command("data fetch", f"{_DATA}:fetch", "find a data set or fetch it, and verify it", "lab"),
    Command("data verify", f"{_DATA}:verify", "compare a data set with its official checksums", "lab"),
    Command("data captions", f"{_CAPTIONS}:captions", "prepare captions for training a captioner", "captions"),
    Command("data features", f"{_CAPTIONS}:features", "encode pictures as grids of features", "captions"),
    Command("train classifier", "prproduct.classification.command:classifier", "train an image classifier", "lab"),
    Command("train captioner", "prproduct.captioning.command:captioner", "train an image captioner", "captions"),
    Command("reproduce gradients", f"{_REPRODUCE}:gradients", "what each part of the gradient does, on an MLP", "lab"),
    Command("reproduce cifar", f"{_REPRODUCE}:cifar", "P and PR in convolutional networks on CIFAR", "lab"),
    Command(
        "reproduce captions", f"{_REPRODUCE_CAPTIONS}:captions", "P, R and PR in a captioner, both phases", "captions"
    ),
    Command("report", "prproduct.reporting:report", "one page on runs: tables, statistics, curves, angles", "lab"),
    Command("score", "prproduct.captioning.metrics.command:score", "caption metrics as COCO's evaluation", "captions"),
]
GROUPS: dict[str, str] = {  # summaries of the groups of commands
    "data": "Find, fetch, verify and prepare data.",
    "reproduce": "The paper's studies: many runs, a table and a page.",
    "train": "One training, in a run's folder.",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit; an InputError, a missing file or dependency is one line on stderr and exit status 2.

    Ctrl-C is exit status 130 without a traceback, also while the modules of a command are imported: seconds.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = next((c for c in COMMANDS if words[: len(c.words.split())] == c.words.split()), None)
    try:
        app(given)(words, prog_name="prproduct")
    except InputError as error:
        _end(str(error), 2)
    except OSError as error:
        if error.filename is None:
            raise
        _end(f"{error.filename}: {error.strerror}", 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "prproduct":
            raise
        extra = given.extra if given else "lab"
        _end(f"this needs {error.name}, which is not installed: pip install 'prproduct[{extra}]'", 2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def app(given: Command | None) -> Any:
    """Return the Typer application: the given command is imported, the others have only their name and summary."""
    import typer

    settings: dict[str, Any] = {
        "no_args_is_help": True,
        "pretty_exceptions_enable": False,
        "add_completion": False,
        "rich_markup_mode": None,  # Rich's help has narrow columns, and takes 0.2 s to load
    }
    root = typer.Typer(help="The PR product: experiments, measurements and reports.", **settings)
    groups = {name: typer.Typer(help=summary, **settings) for name, summary in GROUPS.items()}
    for name, group in groups.items():
        root.add_typer(group, name=name)
    version = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True, callback=_show_version)

    @root.callback()
    def options(version: bool = version) -> None:
        """Take the options that stand before a command."""

    for command in COMMANDS:
        *group_name, name = command.words.split()
        parent = groups[group_name[0]] if group_name else root
        parent.command(name, help=command.summary)(_load(command.place) if command is given else _nothing)
    return root


def _load(place: str) -> Callable[..., Any]:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"prproduct {prproduct.__version__}")
        sys.exit(0)


def _nothing() -> None:
    """Do nothing; this is the function of every command but the given one."""


def _end(message: str, status: int) -> NoReturn:
    print(f"prproduct: {message}", file=sys.stderr)
    sys.exit(status)

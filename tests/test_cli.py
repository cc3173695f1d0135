"""The command line: what it lists, what it loads, and how it fails."""

import subprocess
import sys

import pytest

import prproduct as pr
from prproduct import cli
from prproduct.lab.errors import InputError

refused = "runs/a: no such folder; give the folder of a run"


def greet(name: str) -> None:
    """A command for these tests."""
    if name == "nobody":
        raise InputError(refused)
    if name == "locked":
        raise PermissionError(13, "Permission denied", "runs/b/config.json")
    if name == "stop":
        raise KeyboardInterrupt
    if name == "missing":
        import package_that_is_not_there  # noqa: F401
    print(f"hello {name}")


@pytest.fixture
def commands(monkeypatch):
    monkeypatch.setattr(
        cli,
        "COMMANDS",
        [
            cli.Command("greet", f"{__name__}:greet", "say hello", "lab"),
            cli.Command("say greet", f"{__name__}:greet", "say hello in a group", "captions"),
            cli.Command("elsewhere", "package_that_is_not_there:command", "is loaded only when asked for", "lab"),
        ],
    )
    monkeypatch.setattr(cli, "GROUPS", {"say": "things to say"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[greet.__module__])


def status_of(*words):
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code


def test_the_version_is_shown(capsys):
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"prproduct {pr.__version__}\n"


@pytest.mark.parametrize("words", [["greet"], ["say", "greet"]])
def test_a_command_runs(commands, capsys, words):
    assert status_of(*words, "world") == 0
    assert capsys.readouterr().out == "hello world\n"


def test_help_lists_every_command_and_loads_none(commands, capsys):
    assert status_of("--help") == 0
    out = capsys.readouterr().out
    assert all(text in out for text in ("greet", "elsewhere", "is loaded only when asked for", "things to say"))


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["greet", "nobody"], 2, f"prproduct: {refused}\n"),
        (["greet", "locked"], 2, "prproduct: runs/b/config.json: Permission denied\n"),
        (["greet", "stop"], 130, ""),
        (
            ["say", "greet", "missing"],
            2,
            "prproduct: this needs package_that_is_not_there, which is not installed: "
            "pip install 'prproduct[captions]'\n",
        ),
        (
            ["elsewhere"],
            2,
            "prproduct: this needs package_that_is_not_there, which is not installed: pip install 'prproduct[lab]'\n",
        ),
    ],
)
def test_what_a_user_can_mend_is_one_line(commands, capsys, words, status, line):
    assert status_of(*words) == status
    assert capsys.readouterr().err == line


def test_ctrl_c_while_a_command_is_imported_shows_no_traceback(commands, capsys, monkeypatch):
    def pressed(place):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", pressed)
    assert status_of("greet", "world") == 130
    assert capsys.readouterr().err == ""


def test_an_unknown_command_is_named(commands, capsys):
    assert status_of("gret") == 2
    assert "gret" in capsys.readouterr().err


def test_every_command_of_the_table_is_where_it_says_and_documented():
    for command in cli.COMMANDS:
        assert cli._load(command.place).__doc__, command.words
        assert status_of(*command.words.split(), "--help") == 0


def test_the_list_of_commands_does_not_wait_for_torch():
    code = (
        "import sys; from prproduct import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_fits_a_terminal_of_80_columns_and_leaves_room_for_words(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert status_of("train", "classifier", "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 80  # columns of three words each would take twice as many

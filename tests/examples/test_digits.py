"""The example as a user runs it, with less of everything."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def rows(output: str) -> dict[str, list[str]]:
    """The table's first three columns, by product."""
    cells = [[cell.strip() for cell in line.split("│")[1:4]] for line in output.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in cells if row[0]}


def test_prints_error_and_angle_of_each_product_and_the_same_figures_twice():
    arguments = ("--epochs", "3", "--seeds", "2", "--products", "p", "pr", "no-direction")
    first, second = run(*arguments), run(*arguments)
    assert first.returncode == 0, first.stderr
    table = rows(first.stdout)
    assert list(table) == ["p", "pr", "no-direction"]
    assert rows(second.stdout) == table
    errors = {product: float(row[0].split(" ± ")[0]) for product, row in table.items()}
    assert errors["p"] < 60 > errors["pr"]
    assert errors["no-direction"] > 60
    assert all(0 < float(row[1].split(" ± ")[0]) < 1 for row in table.values())


def test_bad_options_are_one_line_and_no_traceback():
    for arguments, message in (
        (("--products", "q"), "unknown product 'q'"),
        (("--epochs", "0"), "--epochs must be at least 1, not 0"),
    ):
        result = run(*arguments)
        assert result.returncode == 2
        assert message in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr

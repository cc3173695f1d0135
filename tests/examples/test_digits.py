import pytest


def rows(output: str) -> dict[str, list[str]]:
    """The table's first three columns, by product."""
    cells = [[cell.strip() for cell in line.split("│")[1:4]] for line in output.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in cells if row[0]}


def test_prints_error_and_angle_of_each_product_and_the_same_figures_twice(run):
    arguments = ("--epochs", "3", "--seeds", "2", "--products")
    table = rows(run("digits.py", *arguments, "p", "pr", "no-direction"))
    assert list(table) == ["p", "pr", "no-direction"]
    assert rows(run("digits.py", *arguments, "pr")) == {"pr": table["pr"]}
    errors = {product: float(row[0].split(" ± ")[0]) for product, row in table.items()}
    assert errors["p"] < 60 > errors["pr"]
    assert errors["no-direction"] > 60
    assert all(0 < float(row[1].split(" ± ")[0]) < 1 for row in table.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--products", "q"), "unknown product 'q'"),
        (("--epochs", "0"), "--epochs must be at least 1, not 0"),
    ],
)
def test_bad_options_are_one_line_and_no_traceback(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        run("digits.py", *arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]

import json

import pytest
import torch

from prproduct.lab.environment import commit

SMALL = ("--layers", "1", "--width", "32", "--context", "16", "--batch", "8")


def evaluations(run, tmp_path, product: str, *arguments: str) -> list[dict]:
    file = tmp_path / "run.json"
    run("char_gpt.py", "--product", product, *SMALL, *arguments, "-o", str(file))
    written = json.loads(file.read_text())
    assert written["config"]["product"] == product
    assert written["versions"]["torch"] == torch.__version__
    assert written["commit"] == commit()
    return written["evaluations"]


def test_loss_falls_and_every_evaluation_has_angles_of_every_linear_layer(run, tmp_path):
    first, middle, last = evaluations(run, tmp_path, "pr", "--steps", "60", "--every", "30")
    assert [first["step"], middle["step"], last["step"]] == [0, 30, 60]
    assert first["validation_loss"] == pytest.approx(4.63, abs=0.2)  # ln(103): all characters are equally likely
    assert last["validation_loss"] < middle["validation_loss"] < first["validation_loss"]
    assert last["train_loss"] < first["train_loss"]
    assert list(last["angles"]) == [*(f"blocks.0.{name}" for name in ("qkv", "out", "up", "down")), "head"]
    assert all(0.5 < each["gradient"]["cosine"] < 1 < each["gradient"]["length"] for each in (middle, last))
    for angles in last["angles"].values():
        assert 0 < angles["min_sin"] <= angles["sample_min_sin"] <= angles["mean_sin"] <= 1


def test_one_seed_gives_all_products_one_beginning_and_one_run_the_same_numbers_twice(run, tmp_path):
    arguments = ("--steps", "3", "--every", "3", "--seed", "5")
    p, again, pr = (evaluations(run, tmp_path, product, *arguments) for product in ("p", "p", "pr"))
    assert p == again
    assert p[0]["gradient"] == pytest.approx({"cosine": 1.0, "length": 1.0}, abs=1e-12)
    pr_cosine = pr[0].pop("gradient")["cosine"]
    del p[0]["gradient"]  # the rest of the first evaluation does not use the product
    assert p[0] == pr[0]
    assert p[1]["train_loss"] != pr[1]["train_loss"]
    left = evaluations(run, tmp_path, "pr", *arguments, "--leave", "head")
    assert 1 > left[0].pop("gradient")["cosine"] > pr_cosine
    assert left[0] == p[0]
    assert left[1]["train_loss"] not in (p[1]["train_loss"], pr[1]["train_loss"])
    other_seed = evaluations(run, tmp_path, "p", "--steps", "1", "--every", "1", "--seed", "6")
    assert other_seed[0]["train_loss"] != p[0]["train_loss"]


def test_a_span_of_steps_is_under_the_product_and_the_others_under_the_inner_product(run, tmp_path):
    def losses(product: str, *span: str) -> list[float]:
        found = evaluations(run, tmp_path, product, "--steps", "2", "--every", "1", "--learning-rate", "0.1", *span)
        return [each["train_loss"] for each in found]

    p, pr, begun, begins = losses("p"), losses("pr"), losses("pr", "--span", "0", "1"), losses("pr", "--span", "1", "2")
    assert begun[:2] == pr[:2]
    assert begins[:2] == p[:2]
    assert len({p[2], pr[2], begun[2], begins[2]}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        ("--product", "q"),
        ("--every", "0"),
        ("--span", "5", "5"),
        ("--span", "1200", "1300"),
        ("--width", "100"),
        ("--context", "1000000"),
        ("-o", "nowhere/run.json"),
        ("-o", "."),
    ],
    ids=" ".join,
)
def test_what_would_fail_later_is_refused_at_once(run, wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("char_gpt.py", *SMALL, *wrong)
    assert "error: --" in capsys.readouterr().err


def test_a_layer_to_leave_that_the_model_does_not_have_is_an_error(run):
    with pytest.raises(SystemExit, match="2"):
        run("char_gpt.py", *SMALL, "--leave", "head", "haed")

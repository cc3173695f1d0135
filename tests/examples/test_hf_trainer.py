import re


def test_trainer_learns_and_the_native_model_loads_what_it_saved(run, tmp_path):
    lines = run("hf_trainer.py", "--epochs", "2", "-o", str(tmp_path))
    assert float(re.search(r"accuracy on 450 images: (\S+) %", lines)[1]) > 20  # 10 % by chance
    assert "gives the same logits: True" in lines

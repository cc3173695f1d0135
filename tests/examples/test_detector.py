import re


def test_loss_on_unseen_pictures_falls(run):
    lines = run("detector.py", "--steps", "40", "--batch", "8")
    before, after = re.search(r"^loss +before (\S+) +after (\S+)$", lines, flags=re.MULTILINE).groups()
    assert float(after) < 0.8 * float(before)

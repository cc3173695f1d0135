import re

import pytest


# Lightning's own, with torch 2.13 and on a machine with many cores.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers")
def test_lightning_learns_while_the_product_goes_from_p_to_pr(run):
    lines = run("lightning_module.py", "--epochs", "1", "--warmup", "10")
    assert float(re.search(r"accuracy\D+([\d.]+)", lines)[1]) > 0.5
    assert lines.count("product=tempered:1.0") == 3

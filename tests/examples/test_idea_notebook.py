from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "idea.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_draws_three_pictures(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of its kernel: two test workers share the cores
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # git holds no pictures of it
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not any(output.output_type == "stream" for output in outputs)  # neither prints nor warnings

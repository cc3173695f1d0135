# Everything happens in a local .venv, made on first use and again when the dependencies change.
PYTHON ?= python3.11
PIP = .venv/bin/pip --quiet --quiet --disable-pip-version-check install --constraint constraints.txt

.PHONY: help demo test check docs sanitize test-triton test-gpu figures numerics clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

demo: .venv/installed ## what each part of the gradient does: ten short runs, a table and a page
	.venv/bin/prproduct reproduce gradients --scale quick -o demo-runs

test: .venv/installed check ## lint, types, and all tests
	.venv/bin/pytest

check: .venv/installed ## lint and types alone
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/installed ## build the documentation with its API reference into site/; warnings are errors
	.venv/bin/mkdocs build --strict  # not --quiet, under which --strict counts no warnings

sanitize: .venv/installed ## the kernels' tests with AddressSanitizer and UBSan
	PRPRODUCT_BUILD=sanitize .venv/bin/python setup.py --quiet build_ext --build-temp build/sanitize --build-lib build/sanitize
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	PRPRODUCT_LIBRARY=build/sanitize/prproduct/_C.abi3.so .venv/bin/pytest -q tests/ops/test_fuzz.py tests/ops/test_kernel_arguments.py

test-triton: .triton/installed ## the GPU's kernels without a GPU: in Triton's interpreter, and compiled for some GPUs
	PYTHONPATH=.triton TRITON_INTERPRET=1 .venv/bin/pytest -q tests/ops/test_triton_kernels.py
	PYTHONPATH=.triton .venv/bin/pytest -q tests/ops/test_triton_compilation.py

DEVICE ?= cuda
test-gpu: ## all tests that a GPU can run, and the bench, on DEVICE=cuda; writes gpu-results.json (docs/gpu-results/)
	$(PYTHON) benchmarks/gpu_results.py --device $(DEVICE)

figures: .venv/installed ## draw the figures of docs/
	.venv/bin/python docs/figures.py
	.venv/bin/python docs/probe_figure.py
	.venv/bin/python docs/results/draw.py

numerics: .venv/installed ## measure the sweep of docs/numerics.md
	.venv/bin/python benchmarks/numerics.py

.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard prproduct/csrc/*)
	$(PYTHON) -m venv .venv
	$(PIP) torch setuptools
	$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

# Triton apart from .venv, so that all other tests run without it, as on a machine that has no GPU. It unpacks to 1 GB.
.triton/installed: .venv/installed
	$(PIP) --no-deps --upgrade --target .triton triton
	@touch $@

clean: ## remove the virtual environments, all caches, the demo's runs and the site
	rm -rf demo-runs build site .venv .triton .pytest_cache .mypy_cache .ruff_cache .hypothesis

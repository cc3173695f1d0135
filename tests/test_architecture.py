"""The import arrows point one way: each part imports only what stands to its left (CONTRIBUTING.md)."""

import ast
import subprocess
import sys
from pathlib import Path

from PIL import Image

PACKAGE = Path(__file__).parents[1] / "prproduct"
LIBRARY = ["products", "ops", "functional", "nn", "conversion", "probe", "lab"]
MAY_IMPORT = {part: {*LIBRARY[:place], part} for place, part in enumerate(LIBRARY)} | {
    "reference": set(),
    "classification": {*LIBRARY, "classification"},
    "captioning": {*LIBRARY, "captioning"},
    "bench": {*LIBRARY, "classification", "captioning", "reference", "bench"},
    "reporting": {*LIBRARY, "classification", "captioning", "reporting"},
    "cli": {*LIBRARY, "classification", "captioning"},
    "__main__": {"cli"},
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of the package that a file imports, at any depth of its code."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("prproduct.")}
    return parts


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_file_belongs_to_a_known_part():
    assert {part_of(path) for path in FILES} <= set(MAY_IMPORT)


def test_a_part_imports_only_what_stands_to_its_left():
    for path in FILES:
        assert imported_parts(path) <= MAY_IMPORT[part_of(path)], path


def test_captioning_pictures_loads_no_training_code_and_no_toy_world(tmp_path):
    """`prproduct caption` is for users of a trained captioner, who need neither."""
    training = ("prproduct.captioning.training", "prproduct.captioning.losses", "prproduct.captioning.reproduce")
    unwanted = (*training, "prproduct.captioning.world", "prproduct.lab.engine", "prproduct.lab.session")
    Image.new("RGB", (64, 48), "red").save(tmp_path / "photo.png")
    code = (
        "import atexit, sys; from prproduct.cli import main;"
        f"atexit.register(lambda: print(sorted(set({unwanted}) & set(sys.modules))));"
        "main(['caption', 'photo.png', '--longest', '3'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    *captions, loaded = result.stdout.splitlines()
    assert all(line.startswith("photo.png\t") for line in captions)
    assert loaded == "[]"


def test_nn_and_functional_hold_no_maths():
    """Layers store arguments; formulas live in products and ops."""
    forbidden = {"sqrt", "rsqrt", "norm", "square", "reciprocal", "clamp", "where", "sin", "cos", "acos"}
    for path in FILES:
        if part_of(path) in ("nn", "functional"):
            called = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
            assert not called & forbidden, path


def test_importing_the_package_needs_torch_and_nothing_of_the_extras():
    extras = "{'sklearn', 'rich', 'typer', 'matplotlib', 'lightning_fabric', 'hypothesis', 'pytest'}"
    code = f"import sys, prproduct; print(sorted({extras} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_package_does_not_import_dynamo_nor_load_the_kernels():
    """A second and more for a script that compiles nothing."""
    code = "import sys, torch; before = 'torch._dynamo' in sys.modules; import prproduct as pr; "
    code += "names = [getattr(pr, name) for name in pr.__all__]; from prproduct.ops import kernels; "
    code += "print(before, 'torch._dynamo' in sys.modules, kernels.library.cache_info().currsize)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False", "0"]


def test_every_public_name_is_there_and_documented():
    import prproduct as pr

    for module in (pr, pr.functional, pr.nn, pr.products, pr.reference):
        assert module.__doc__
        for name in module.__all__:
            assert getattr(module, name).__doc__, f"{module.__name__}.{name}"

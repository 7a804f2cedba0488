"""The house rules that a machine can check: who imports whom, how large a module is, what is documented."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dtomo"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]

# the table of docs/architecture.md, top to bottom; names of one row may import one another
LAYERS = (
    {"cli", "report"},
    {"align", "fitting", "ptycho", "ptychotomo", "recon", "runs", "simulate", "settings", "subtomo"},
    {"io", "distributed", "prep", "dashboard"},
    {"algorithms"},
    {"operators", "geometry"},
    {"kernels"},
    {"arrays", "device", "elementwise", "errors", "memory", "threads", "windows", "yaml_text"},
)
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}

FORMATS_AND_DASK = {
    "dask",
    "distributed",
    "h5py",
    "hdf5plugin",
    "zarr",
    "tifffile",
    "mrcfile",
    "typer",
    "matplotlib",
}
FORBIDDEN = {
    "kernels": FORMATS_AND_DASK | {"rich", "pydantic"},
    "operators": FORMATS_AND_DASK | {"rich", "pydantic"},
    "geometry": FORMATS_AND_DASK | {"rich", "pydantic"},
    "algorithms": FORMATS_AND_DASK | {"rich", "pydantic", "numba"},
    "arrays": FORMATS_AND_DASK | {"numba", "rich", "pydantic"},
    "device": FORMATS_AND_DASK | {"numba", "rich", "pydantic"},
    "memory": FORMATS_AND_DASK | {"numba", "rich", "pydantic"},
    "elementwise": FORMATS_AND_DASK | {"rich", "pydantic"},
    "threads": FORMATS_AND_DASK | {"rich", "pydantic"},
    "windows": FORMATS_AND_DASK | {"numba", "rich", "pydantic"},
    "yaml_text": FORMATS_AND_DASK | {"numba", "rich", "pydantic", "numpy"},
    "errors": FORMATS_AND_DASK | {"numba", "rich", "pydantic", "numpy"},
    "align": {"typer", "matplotlib"},
    "ptycho": {"typer", "matplotlib"},
    "ptychotomo": {"typer", "matplotlib"},
    "subtomo": {"typer", "matplotlib"},
    "fitting": {"typer", "matplotlib"},
    "recon": {"typer", "matplotlib"},
    "runs": {"typer", "matplotlib"},
    "simulate": {"typer", "matplotlib"},
    "io": {"typer", "matplotlib"},
    "distributed": {"typer", "matplotlib"},
    "prep": {"typer", "matplotlib"},
    "dashboard": {"typer", "matplotlib"},
}
MOST_LINES = 450


def part(path: Path) -> str:
    """The part of the package that a file belongs to: "kernels", "errors", …; "" for the package itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return {"__init__": "", "__main__": "cli"}.get(first, first)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, as (absolute dotted name, line)."""
    package = (PACKAGE.name, *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            if module == "dtomo":
                yield from ((f"dtomo.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_imports_run_downwards(path):
    own = part(path)
    if not own:
        return
    assert own in DEPTH, f"{own} stands in no layer of docs/architecture.md"
    wrong = []
    for name, line in imports(path):
        if name.split(".")[0] != "dtomo":
            continue
        other = name.split(".")[1] if "." in name else ""
        if other in DEPTH and DEPTH[other] < DEPTH[own]:
            wrong.append(f"line {line}: {own} imports {name}, which stands above it")
        if own == "algorithms" and other == "kernels":
            wrong.append(f"line {line}: an algorithm imports {name}; it should go through an operator")
    assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_no_layer_knows_what_it_must_not(path):
    forbidden = FORBIDDEN.get(part(path), set())
    wrong = [f"line {line}: {name}" for name, line in imports(path) if name.split(".")[0] in forbidden]
    assert not wrong, f"{path.name} imports " + ", ".join(wrong)


def test_every_part_has_its_layer():
    assert {part(path) for path in MODULES} - {""} <= set(DEPTH)


def test_the_table_in_the_docs_names_the_same_layers():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")][2 : 2 + len(LAYERS)]
    for row, layer in zip(rows, LAYERS, strict=True):
        named = set(row.split("|")[2].replace("`", "").replace(",", " ").split())
        assert named <= layer, f"docs/architecture.md puts {named - layer} into the layer of {sorted(layer)}"


def test_the_check_sees_what_it_should(tmp_path, monkeypatch):
    package = tmp_path / "dtomo"
    (package / "kernels").mkdir(parents=True)
    (package / "algorithms").mkdir()
    bad = package / "kernels" / "bad.py"
    bad.write_text("def f():\n    from ..io import open\n    import dask.array as da\n    from dtomo import recon\n")
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    assert [name for name, _ in imports(bad)] == ["dtomo.io", "dask.array", "dtomo.recon"]
    for check in (test_imports_run_downwards, test_no_layer_knows_what_it_must_not):
        with pytest.raises(AssertionError):
            check(bad)
    shortcut = package / "algorithms" / "shortcut.py"
    shortcut.write_text("from dtomo.kernels import anything\n")
    with pytest.raises(AssertionError, match="through an operator"):
        test_imports_run_downwards(shortcut)


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_modules_stay_small_enough_to_read(path):
    assert path.read_text("utf-8").count("\n") <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_public_names_are_documented(path):
    tree = ast.parse(path.read_text("utf-8"))
    missing = [] if ast.get_docstring(tree) or not tree.body else ["the module itself"]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            missing.append(node.name)
    assert not missing, f"without a docstring: {', '.join(missing)}"


def test_importing_dtomo_is_quick_and_loads_nothing_heavy():
    program = (
        "import sys, time; start = time.perf_counter(); import dtomo; print(time.perf_counter() - start); "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=PACKAGE.parent
    )
    seconds, modules = done.stdout.splitlines()
    heavy = {"numba", "dask", "distributed", "zarr", "h5py", "matplotlib", "scipy", "cupy", "typer"}
    assert not heavy & set(modules.split())
    assert float(seconds) < 0.5


@pytest.mark.parametrize("name", ["open", "Scan", "ParallelBeam", "UserError", "recon", "simulate"])
def test_public_names_are_found_on_first_use(name):
    import dtomo

    assert getattr(dtomo, name) is not None
    assert name in dir(dtomo)


def test_an_unknown_name_is_an_attribute_error():
    import dtomo

    with pytest.raises(AttributeError, match="nonsense"):
        _ = dtomo.nonsense

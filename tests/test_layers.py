"""A module imports from its left, never sideways, never back (docs/design.md)."""

import ast
from pathlib import Path

import weightshare

ROOT = Path(weightshare.__file__).parent

# From left to right. Modules in the same place may not import each other; a package may do as it likes
# inside itself.
LAYERS = [
    ["checks", "kernels", "atomic"],
    ["rows"],
    ["penalty", "clusters", "particles", "metrics"],
    ["collisions"],
    ["certified"],
    ["solution"],
    ["generic", "native"],
    ["solve"],
    ["ops"],
    ["prox", "isotonic"],
    ["distributed"],
    ["training", "optim"],
    ["compress"],
    ["integrations"],
    ["__init__"],
    ["experiments"],
    ["cli"],
]
PLACE = {name: place for place, names in enumerate(LAYERS) for name in names}


def unit(path):
    """The top-level module or package that a file belongs to."""
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imported_units(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "weightshare":  # a module, or a name of the front door
                names = [f"weightshare.{a.name}" if a.name in PLACE else "weightshare" for a in node.names]
            else:
                names = [node.module or ""]
        else:
            continue
        for name in names:
            if name == "weightshare":
                yield "__init__"  # the front door: for those to its right only
            elif name.startswith("weightshare."):
                yield name.split(".")[1]


def test_imports_point_left():
    for path in ROOT.rglob("*.py"):
        here = unit(path)
        assert here in PLACE, f"{path} has no place in LAYERS"
        for other in imported_units(path):
            if other != here:
                assert PLACE[other] < PLACE[here], f"{path} imports {other}, which is not on its left"

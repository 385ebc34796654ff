"""The reference is in the docstrings: every public name has one, with an example that runs as a
doctest.

The example of a method or property may be in the docstring of its class.
"""

import importlib
import inspect
import re
from pathlib import Path

import tinyprop as tp
from tinyprop import nn

ROOMS = {"tp": tp} | {
    f"tp.{name}": getattr(tp, name) for name in ("functional", "nn", "data", "verify")
}
OFFERED = {  # by rooms that are a single file
    "tp.moments": (tp.moments, "gaussian dual simulate Moments Dual Simulation"),
    "tp.optim": (
        tp.optim,
        "Optimizer SGD RMSProp Adam HalveEvery HalveOnPlateau normalize_weights",
    ),
    "tp.train": (tp.train, "TrainingStep evaluate keep_freed_memory Config network Run"),
}


def documented():
    """Every public function, class, and method of a tensor or a module, by its name."""
    names = {prefix: (room, room.__all__) for prefix, room in ROOMS.items()}
    names |= {prefix: (room, offered.split()) for prefix, (room, offered) in OFFERED.items()}
    for prefix, (room, offered) in names.items():
        for name in offered:
            value = getattr(room, name)
            # nn.ReLU is like F.relu
            like_another = isinstance(value, type) and nn.Activation in value.__mro__[1:]
            if callable(value) and not like_another:
                yield f"{prefix}.{name}", value
    for owner in (tp.Tensor, tp.nn.Module):
        for name, value in vars(owner).items():
            if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                yield f"{owner.__name__}.{name}", value


def has_example(name, value):
    doc, owner = (
        inspect.getdoc(value),
        {"Tensor": tp.Tensor, "Module": nn.Module}.get(name.split(".")[0]),
    )
    lines = f"{doc}\n{inspect.getdoc(owner) if owner else ''}".splitlines()
    used = re.compile(rf"\b{name.split('.')[-1]}\b" if owner else "")
    return doc and any(line.startswith((">>>", "...")) and used.search(line) for line in lines)


def test_every_public_name_has_a_docstring_with_an_example():
    names = dict(documented())
    assert len(names) > 200
    assert [name for name, value in names.items() if not has_example(name, value)] == []


def test_every_function_of_the_reference_has_an_example_of_its_own():
    """As the front page of the site says."""
    pages = (Path(__file__).parent.parent / "docs/api").glob("*.md")
    rooms = re.findall(r"automodule:: (\S+)", "".join(page.read_text() for page in pages))
    found = {}
    for room in map(importlib.import_module, rooms):
        for name in getattr(room, "__all__", vars(room)):
            if not name.startswith("_") and inspect.isfunction(getattr(room, name)):
                found[f"{room.__name__}.{name}"] = getattr(room, name)
    assert len(found) > 140
    assert [name for name, f in found.items() if ">>>" not in (inspect.getdoc(f) or "")] == []

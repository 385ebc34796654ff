"""The reference is in the docstrings: every public name has one, with an example that runs as a doctest."""

import functools
import inspect

import pytest

import tinyprop as tp

ROOMS = {"tp": tp} | {
    f"tp.{name}": getattr(tp, name) for name in ("functional", "nn", "optim", "data", "moments", "verify", "train")
}


def public(room):
    """The names that a room offers: those of __all__, or those that it defines itself."""
    if hasattr(room, "__all__"):
        return room.__all__
    at_home = (room.__name__, "tinyprop.step" if room is tp.train else room.__name__)
    return [name for name, value in vars(room).items() if getattr(value, "__module__", None) in at_home]


def documented():
    """Every public function, class, and method of a tensor or a module, by its name."""
    for prefix, room in ROOMS.items():
        for name in public(room):
            value = getattr(room, name)
            aliased = isinstance(value, functools.partial)  # nn.ReLU is nn.Activation
            if not name.startswith("_") and callable(value) and not aliased:
                yield f"{prefix}.{name}", value
    for owner in (tp.Tensor, tp.nn.Module):
        for name, value in vars(owner).items():
            if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                yield f"{owner.__name__}.{name}", value


NAMES = dict(documented())


def test_the_walk_finds_what_the_design_names():
    expected = "tp.grad tp.functional.relu tp.nn.NormPropLinear tp.moments.gaussian tp.optim.SGD tp.data.load tp.verify.run"
    assert not set(expected.split()) - NAMES.keys()
    assert {"tp.train.TrainingStep", "Tensor.backward", "Tensor.shape", "Module.to"} <= NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert ">>>" in (inspect.getdoc(NAMES[name]) or ""), f"{name} has no docstring with an example"

"""The page with the table of maps says what the code does."""

import importlib.util
import inspect
from pathlib import Path

import tinyprop as tp
from tinyprop import nn
from tinyprop.theory.wide import MAPS

FILE = Path(__file__).parents[2] / "docs" / "maps.py"
# which call other layers; and a base class
NO_LAYERS = {"Module", "ModuleList", "Sequential", "Traced"}


def written():
    """docs/maps.py as a module."""
    spec = importlib.util.spec_from_file_location("maps_of_the_docs", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    maps = written()
    assert maps.page() == maps.PAGE.read_text(), "python docs/maps.py writes it anew"


def test_every_map_and_every_layer_has_a_line():
    maps = written()
    # a function of several States is an activation of what they have in common
    assert MAPS.keys() == tp.theory.State.__abstractmethods__ - {"shape", "combine"}
    kinds = {
        name
        for name, kind in vars(nn).items()
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and name not in NO_LAYERS
    }
    activations = {name for name in kinds if issubclass(getattr(nn, name), nn.Activation)}
    assert maps.LAYERS.keys() == kinds - activations | {"Activation"}

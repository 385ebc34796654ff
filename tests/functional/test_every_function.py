from importlib import import_module
from pathlib import Path

import pytest

import tinyprop.functional as F

TABLES = {path.stem for path in Path(__file__).parent.glob("test_*.py")} - {
    "test_every_function",
    "test_opinfo",
    "test_derivatives",
    "test_draw",
    "test_special",
}
MODULES = [import_module(f"tests.functional.{name}") for name in TABLES]
# These are random, have no gradient, or work in more than one dtype.
WITH_TESTS_OF_THEIR_OWN = {"argmax", "astype", "dropout", "exact_convolution", "to"}
IN_TABLES = {case.name.partition(":")[0] for module in MODULES for case in module.CASES}


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_is_in_a_table(name):
    assert name in IN_TABLES | WITH_TESTS_OF_THEIR_OWN
    assert callable(getattr(F, name))

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
    "test_table",
}
MODULES = [import_module(f"tests.functional.{name}") for name in TABLES]
IN_TABLES = {case.name.partition(":")[0] for module in MODULES for case in module.CASES}


def has_tests_of_its_own(row):
    """What is random or has no gradient, and what works in two dtypes or on two backends."""
    return row.random or not row.gradient or row.name in ("astype", "to")


@pytest.mark.parametrize("row", F.functions.values(), ids=lambda row: row.name)
def test_every_function_is_in_a_battery(row):
    assert row.name in IN_TABLES or has_tests_of_its_own(row)

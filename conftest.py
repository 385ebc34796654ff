"""What every doctest may use without importing it."""

import pytest

import tinyprop as tp


@pytest.fixture(autouse=True)
def _names_for_doctests(doctest_namespace):
    doctest_namespace.update(tp=tp, F=tp.functional)

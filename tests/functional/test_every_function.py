"""No public function goes untested."""

import pytest

import tinyprop.functional as F
from tests.functional import test_activations as activations
from tests.functional import test_arithmetic as arithmetic
from tests.functional import test_convolution as convolution
from tests.functional import test_fused as fused
from tests.functional import test_linear as linear
from tests.functional import test_pooling as pooling
from tests.functional import test_reductions as reductions
from tests.functional import test_shapes as shapes

MODULES = [activations, arithmetic, convolution, fused, linear, pooling, reductions, shapes]
# These have no reference, or no gradient, in a single dtype.
WITH_TESTS_OF_THEIR_OWN = {"astype", "compare", "exact_convolution", "to"}
IN_TABLES = {case.name.partition(":")[0] for module in MODULES for case in module.CASES}


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_is_in_a_table(name):
    assert name in IN_TABLES | WITH_TESTS_OF_THEIR_OWN
    assert callable(getattr(F, name))


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_has_a_docstring_or_a_name_that_says_all(name):
    assert getattr(F, name).__doc__ or name in {"add", "subtract", "multiply", "divide", "power", "negative"}

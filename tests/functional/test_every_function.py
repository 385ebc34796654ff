import pytest

import tinyprop.functional as F
from tests.functional import test_activations as activations
from tests.functional import test_arithmetic as arithmetic
from tests.functional import test_convolution as convolution
from tests.functional import test_linear as linear
from tests.functional import test_losses as losses
from tests.functional import test_normalization as normalization
from tests.functional import test_pooling as pooling
from tests.functional import test_reductions as reductions
from tests.functional import test_shapes as shapes

MODULES = [activations, arithmetic, convolution, linear, losses, normalization, pooling, reductions, shapes]
# These are random, have no gradient, or work in more than one dtype.
WITH_TESTS_OF_THEIR_OWN = {"argmax", "astype", "dropout", "exact_convolution", "to"}
IN_TABLES = {case.name.partition(":")[0] for module in MODULES for case in module.CASES}


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_is_in_a_table(name):
    assert name in IN_TABLES | WITH_TESTS_OF_THEIR_OWN
    assert callable(getattr(F, name))

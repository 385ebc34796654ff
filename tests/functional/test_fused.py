"""Steps that are taken together equal the same steps taken one by one."""

import numpy as np
from hypothesis import strategies as st

import tinyprop.functional as F
from tests.helpers import Case, battery, points, rngs, shapes


@st.composite
def layer_outputs(draw):
    """What a layer hands on (N, C, ...), with a bias and a shift for each channel; no sum is near the kink at 0."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4))
    per_channel = (shape[1], *[1] * (len(shape) - 2))
    bias, shift = points(rng, per_channel, -1, 1), points(rng, per_channel, 0.2, 1)
    return [points(rng, shape, -3, 3, (0,)) - bias, bias, shift], {}


CASES = [
    Case(
        "shifted_relu",
        F.shifted_relu,
        lambda x, bias, shift: np.maximum(x + bias, 0) - shift,
        lambda torch, x, bias, shift: torch.relu(x + bias) - shift,
        layer_outputs(),
    )
]
test_values, test_gradients, test_dtypes, test_torch = battery(CASES)

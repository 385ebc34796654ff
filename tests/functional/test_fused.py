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


@st.composite
def weights(draw):
    """Rows, none of which is near 0 in length, with a length and a divisor for each."""
    rng, shape = draw(rngs()), draw(shapes(least=2, most=4))
    w, scale, divisor = points(rng, shape, 0.3, 2), points(rng, shape[:1], -2, 2), points(rng, shape[:1], 0.5, 2)
    return [w * rng.choice([-1.0, 1.0], shape), scale, divisor], {}


def rows(w):
    return tuple(range(1, w.ndim))


def per_row(values, w):
    return values.reshape(-1, *[1] * (w.ndim - 1))


CASES = [
    Case(
        "shifted_relu",
        F.shifted_relu,
        lambda x, bias, shift: np.maximum(x + bias, 0) - shift,
        lambda torch, x, bias, shift: torch.relu(x + bias) - shift,
        layer_outputs(),
    ),
    Case(
        "scaled_rows",
        F.scaled_rows,
        lambda w, scale, divisor: w * per_row(scale / divisor / np.sqrt((w * w).sum(axis=rows(w))), w),
        lambda torch, w, scale, divisor: w * per_row(scale / divisor / torch.sqrt((w * w).sum(dim=rows(w))), w),
        weights(),
    ),
]
test_values, test_gradients, test_dtypes, test_torch = battery(CASES)

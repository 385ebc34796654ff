"""A subclass that overrides part of a layer means the same with and without overrides of speed."""

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn

IMAGES, ROWS = (20, 4, 8, 8), (3, 8)  # few rows, and fewer than features
# a layer's arguments, and the shape of an input
EXAMPLES = {
    nn.Linear: ((8, 5), ROWS),
    nn.Conv2d: ((4, 16, 5, 1, 2), IMAGES),
    nn.NormPropLinear: ((8, 5), ROWS),
    nn.NormPropConv2d: ((4, 16, 5, 1, 2), IMAGES),
    nn.MaxPool2d: ((3, 2, 1), IMAGES),
    nn.AvgPool2d: ((3, 2, 1), IMAGES),
    nn.Flatten: ((), IMAGES),
    nn.ReLU: ((), IMAGES),
    nn.Tanh: ((), IMAGES),
    nn.ELU: ((), IMAGES),
    nn.PReLU: ((4,), IMAGES),
    nn.BatchNorm: ((4,), IMAGES),
    nn.LayerNorm: (((4, None, None),), IMAGES),
    nn.RMSNorm: (((4, None, None),), IMAGES),
    nn.GroupNorm: ((2, 4), IMAGES),
    nn.DyT: ((4,), IMAGES),
    nn.Derf: ((4,), IMAGES),
}


def subclasses(kind):
    """Subclasses of a layer, each with a method of its own, by the name of the method."""

    class Doubled(kind):
        def forward(self, x):
            return super().forward(x) * 2.0 + 1.0

    yield "forward", Doubled

    if hasattr(kind, "weighted_sum"):

        class Masked(kind):
            def weighted_sum(self, x, weight):
                return super().weighted_sum(x, F.where(weight > 0, weight, 0.0))

        class Nonlinear(kind):
            def weighted_sum(self, x, weight):
                return F.tanh(super().weighted_sum(x, weight) * weight.sum())

        class Keeping(kind):
            def weighted_sum(self, x, weight):
                self.u = super().weighted_sum(x, weight)
                return self.u

            def forward(self, x):
                return super().forward(x) + self.u

        yield "weighted_sum: masked weights", Masked
        yield "weighted_sum: not linear", Nonlinear
        yield "weighted_sum: the sum is kept and used again", Keeping

    if hasattr(kind, "activate"):

        class Squared(kind):
            def activate(self, u):
                return super().activate(u) ** 2

        yield "activate", Squared

    if hasattr(kind, "constants"):

        class Constant(kind):
            def constants(self):
                c1, c2 = super().constants()
                return c1 * 2.0, c2 + 1.0

        yield "constants", Constant

    if hasattr(kind, "squash"):

        class Shifted(kind):
            def squash(self, x):
                return super().squash(x + 1.0)

        yield "squash", Shifted


CASES = [
    pytest.param(kind, sub, {"mode": mode} if mode else {}, id=f"{kind.__name__} {mode} {name}")
    for kind in EXAMPLES
    for mode in (["paper", "exact"] if kind.__name__.startswith("NormProp") else [""])
    for name, sub in subclasses(kind)
]


def outcome(kind, options, backend, plain):
    """Output and gradients of a network with such a layer between two others."""
    arguments, shape = EXAMPLES[next(k for k in kind.__mro__ if k in EXAMPLES)]
    tp.manual_seed(0)
    with tp.use_backend(backend):
        before = nn.BatchNorm(shape[1])
        layer = kind(*arguments, **options)
        net = nn.Sequential(before, layer, nn.ReLU())
        x = tp.tensor(np.random.default_rng(0).standard_normal(shape).astype("f"))
        with tp.plain() if plain else tp.use_backend(backend):
            out = net(x)
            seed = np.random.default_rng(1).standard_normal(out.shape).astype("f")
            gradients = tp.grad(out, list(net.parameters()), tp.tensor(seed), allow_unused=True)
    return [out.numpy(), *(g.numpy() for g in gradients if g is not None)]


@pytest.mark.parametrize(("kind", "sub", "options"), CASES)
def test_a_subclass_is_never_passed_over(kind, sub, options, backend):
    fast, rules, base = (
        outcome(sub, options, backend, plain=False),
        outcome(sub, options, backend, plain=True),
        outcome(kind, options, backend, plain=False),
    )
    assert len(fast) == len(rules) > 1
    scale = max(np.abs(array).max() for array in rules)  # some gradients are 0 but for rounding
    for one, other in zip(fast, rules, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * scale)
    assert not np.allclose(fast[0], base[0], rtol=1e-3), "the method changes nothing"

"""The contract: whole programs give on every backend, with overrides, what the plain rules give on
NumPy."""

from functools import partial

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn

from .helpers import cotangent
from .nn.test_layers import LAYERS


def outcome(backend, program):
    """The arrays and numbers that a program gives, on the host."""
    with tp.use_backend(backend):
        tp.manual_seed(0)
        return [
            x.numpy() if isinstance(x, tp.Tensor) else tp.engine.arrays.to_numpy(x)
            for x in program(backend)
        ]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        tolerance = 1e-11 if b.dtype == np.float64 else 3e-5
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * max(1e-3, abs(b).max(initial=0.0))
        )


SHAPE = (4, 3, 8, 8)


def images(shape=SHAPE):
    return tp.tensor(
        np.random.default_rng(2).normal(size=shape).astype("float32"), requires_grad=True
    )


def layer(make_layer, shape=SHAPE):
    """What a layer gives, and all of its gradients, while training and after it."""

    def program(backend):
        module, x = make_layer(), images(shape)
        out = module(x)
        out.backward(tp.tensor(cotangent(out.shape, "float32")))
        return [
            out,
            x.grad,
            *(p.grad for p in module.parameters()),
            *module.state_dict().values(),
            module.eval()(x),
        ]

    return program


def trained(norm, optimizer, backend):
    net = nn.build("C(6,3,1,1)-P(2,2,0,max)-C(4,1,1,0)-P(4,4,0,avg)", norm=norm)
    step = tp.train.TrainingStep(net, optimizer(net.parameters(), 0.01), threads=1)
    losses = [step(images().data, np.array([0, 1, 2, 3])) for _ in range(3)]
    tp.optim.normalize_weights(net)
    return [*losses, *net.state_dict().values(), *step.optimizer.state_dict().values()]


def normalized(backend):
    data = np.random.default_rng(2).integers(0, 256, SHAPE).astype("uint8")
    labels = np.arange(4)
    pairs = list(tp.data.batches((data, labels), 3, np.random.default_rng(0), flip=True))
    every = [tp.data.GlobalNormalizer(SHAPE[1:]).fit(data), tp.data.BatchNormalizer(SHAPE[1:])]
    return [normalizer(tp.tensor(data)) for normalizer in every] + [images for images, _ in pairs]


def looked_at(backend):
    net = nn.build("C(6,3,1,1)-C(4,1,1,0)-P(8,8,0,avg)")
    found = nn.signals(net, images(), np.array([0, 1, 2, 3]))
    assert tp.draw(net(images())).startswith("<svg")
    return [
        np.array([s.mean, s.std, s.dead, s.unit_mean_square, s.gradient_std], "float32")
        for s in found
    ]


def settled(backend):
    results = tp.verify.run(["C01", "C02"], samples=2000, seed=0, backend=backend)
    return [np.array([r.exact, r.estimate.mean], np.float32) for r in results]  # as the samples are


class Branches(nn.Module):
    """The sum of several layers."""

    def __init__(self):
        self.every = nn.ModuleList([nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 3, padding=1)])

    def forward(self, x):
        return sum(layer(x) for layer in self.every)


def refreshed(module, shape):
    nn.refresh(module, images(shape).detach() + 1.0)
    return module


PROGRAMS = {
    **{name: layer(make, (3, 4, 5, 6)) for name, (make, _) in LAYERS.items()},
    "Dropout": layer(partial(nn.Dropout, 0.3)),
    "Residual": layer(
        lambda: nn.Residual(nn.Conv2d(3, 4, 3, padding=1), 0.5, 2.0, nn.Conv2d(3, 4, 1))
    ),
    "Scale": layer(partial(nn.Scale, 0.3)),
    "ModuleList": layer(Branches),
    "NormPropLinear": layer(partial(nn.NormPropLinear, 5, 3, "tanh"), (4, 5)),
    "NormPropConv2d": layer(partial(nn.NormPropConv2d, 3, 4, 3, padding=1)),
    "NormPropConv2d, exact": layer(
        partial(nn.NormPropConv2d, 3, 4, 3, activation="prelu", mode="exact")
    ),
    "MeasuredLinear": layer(lambda: refreshed(nn.MeasuredLinear(5, 3, "tanh"), (9, 5)), (4, 5)),
    "MeasuredConv2d": layer(lambda: refreshed(nn.MeasuredConv2d(3, 4, 3, padding=1), SHAPE)),
    **{f"{norm}, SGD": partial(trained, norm, tp.optim.SGD) for norm in nn.normalizers},
    **{
        f"normprop, {kind.__name__}": partial(trained, "normprop", kind)
        for kind in (tp.optim.RMSProp, tp.optim.Adam)
    },
    "GlobalNormalizer, BatchNormalizer, batches": normalized,
    "signals, draw": looked_at,
    "verify": settled,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend):
    with tp.plain():
        expected = outcome("numpy", PROGRAMS[name])
    assert_same(outcome(backend, PROGRAMS[name]), expected)


def test_every_layer_has_a_program():
    layers = [v for v in vars(nn).values() if isinstance(v, type) and issubclass(v, nn.Module)]
    assert {v.__name__ for v in layers} - {"Module", "Sequential", "Activation"} <= PROGRAMS.keys()

"""Predicted moments: against exact sums, simulations, and the paper's network on CIFAR-10."""

import itertools
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained, naive_conv2d, rngs
from tinyprop import nn
from tinyprop.engine.random import new_generator
from tinyprop.theory import field, mixture, pointwise
from tinyprop.theory.propagate import is_list

ACTIVATIONS = [name for name in tp.activations if name != "prelu"]


def covariance(rng, n):
    root = rng.normal(size=(n, n)) / math.sqrt(n) + 0.5 * np.eye(n)
    return root @ root.T


def stationary(c, h, w, rng):
    """Channels mixed at random, correlations that fall exponentially with the distance along both
    axes."""
    rows, columns = (0.7 ** abs(np.arange(n) - np.arange(n)[:, None]) for n in (h, w))
    return np.kron(covariance(rng, c), np.kron(rows, columns))


def randomize(net, rng):
    for p in net.parameters():
        p.data[...] = rng.normal(size=p.shape) / math.sqrt(max(1, math.prod(p.shape[1:]))) + (
            p.ndim == 1
        )
    return net.to(dtype="float64")


def observed(net, x):
    """What propagate predicts the moments of, measured: the name of each layer, and its
    pre-activations, or else its outputs, as (samples and positions, units)."""
    for record in tp.observe(net, x):
        if is_list(record.layer):
            continue
        u = record.output if record.pre_activation is None else record.pre_activation
        units = np.moveaxis(u.numpy(), 1, -1).reshape(-1, u.shape[1])
        yield record.name, units.astype("float64")


def measured(net, x):
    """Mean and variance of each unit, over samples and positions, of what propagate predicts: for
    every layer."""
    return [(u.mean(axis=0), u.var(axis=0)) for _, u in observed(net, x)]


def misses(records, net, samples, most):
    """What a simulation does not confirm, with both numbers: (layer, "mean" or "variance", unit) ->
    (predicted, measured), where they differ by more than 5 standard errors. A truncated series may
    be off by what the record states, but by no more than the fraction `most`."""
    found, count = {}, len(samples)
    for record, (name, u) in zip(records, observed(net, tp.tensor(samples)), strict=True):
        assert record.layer == name
        # these are independent, their positions are not
        by_sample = u.reshape(count, -1, u.shape[1])
        squares = (by_sample - u.mean(axis=0)) ** 2
        of_mean, of_variance = (
            z.mean(axis=1).std(axis=0) / math.sqrt(count) for z in (by_sample, squares)
        )
        # units that are hardly ever on are no matter for a simulation
        common = record.variance > 1e-3
        series = min(record.error, most) * record.variance
        for what, predicted, measured, allowed in (
            ("mean", record.mean, u.mean(axis=0), 5 * of_mean + 1e-9),
            ("variance", record.variance, u.var(axis=0), 5 * of_variance + series + 1e-9),
        ):
            for unit in np.flatnonzero((abs(predicted - measured) > allowed) & common):
                found[name, what, int(unit)] = predicted[unit], measured[unit]
    return found


def confirmed_misses(records, net, samples, most=math.inf):
    """By chance, a mean misses with a probability of 6e-7. A variance misses more often, as its
    standard error comes from the same skewed squares: 1e-6 for a Gaussian unit, up to 1e-3 for one
    that is rarely on. Hence a miss counts only if it is there in four times as many fresh samples,
    too: 1e-12 and 1e-7. `samples` is a function of their number."""
    found = misses(records, net, samples(20_000), most)
    if not found:
        return {}
    again = misses(records, net, samples(80_000), most)
    return {what: numbers for what, numbers in again.items() if what in found}


def assert_within_5_standard_errors(records, net, samples):
    """With series that are off by at most 2 %: 4 in 1,000 was the most in 300 nested networks, by
    their duals."""
    assert confirmed_misses(records, net, samples, most=0.02) == {}


@pytest.mark.parametrize("name", ACTIVATIONS)
@settings(max_examples=-(-settings().max_examples // 7))
@given(rng=rngs())
def test_two_linear_layers_are_exact(name, rng):
    """w^T C w with the covariance of dual activations; and a simulation."""
    net = randomize(nn.Sequential(nn.Linear(4, 3), nn.Activation(name), nn.Linear(3, 2)), rng)
    mean, matrix = rng.normal(size=4), covariance(rng, 4)
    first, hidden, second = records = tp.propagate(net, mean, matrix)
    assert all(r.exact for r in records)
    assert first.error == 0.0
    w, v = net[0].weight.data, net[2].weight.data
    m, c = w @ mean + net[0].bias.data, w @ matrix @ w.T
    std = np.sqrt(np.diag(c))
    np.testing.assert_allclose([*first.mean, *first.variance], [*m, *std**2], rtol=1e-10)
    one = tp.moments.gaussian(name, m, std)
    np.testing.assert_allclose(
        [*hidden.mean, *hidden.variance], [*one.mean, *one.std**2], rtol=1e-10
    )
    duals = tp.moments.dual(
        name, c / np.outer(std, std), (m[:, None], m), (std[:, None], std)
    ).covariance
    np.testing.assert_allclose(second.mean, v @ one.mean + net[2].bias.data, rtol=1e-9, atol=1e-12)
    bound = 1e-11 * (abs(v) @ one.std) ** 2
    assert (abs(second.variance - np.einsum("oi,ij,oj->o", v, duals, v)) <= bound).all()
    assert_within_5_standard_errors(
        records, net, lambda count: rng.multivariate_normal(mean, matrix, count)
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("relu", "sin")))
        for name in ACTIVATIONS
    ],
)
@settings(max_examples=-(-settings().max_examples // 7))
@given(rng=rngs())
def test_the_error_of_a_short_series(name, rng):
    """With a_k the coefficients of s(U), sum k a_k^2 = Var(U) E s'(U)^2. So the squares of those
    from degree 11 on add up to at most 1/11 of that. This is true of the whole series, and of the
    one that takes its place, whose last two degrees are given the rest of the variance: for two
    units, these parts of both are at most rho^11 times the geometric mean of their sums."""
    mean, matrix = 2.0 * rng.normal(size=4), 2.0 * covariance(rng, 4)
    start = field.Field.of(mean, matrix)
    after, _ = pointwise.Pointwise(tp.activations[name], {})(start)
    std = np.sqrt(start.variance)
    found = tp.moments.gaussian(name, mean, std)
    most = std**2 * found.slope2
    rho, matrix = start.rho[:, :, 0, 0], after.covariance()[:, :, 0, 0]
    duals = tp.moments.dual(name, rho, (mean[:, None], mean), (std[:, None], std)).covariance
    bound = 2 / 11 * np.sqrt(np.outer(most, most)) * abs(rho) ** 11
    assert (abs(matrix - duals) <= bound + 1e-7 * np.outer(found.std, found.std)).all()


def block(*layers, **options):
    return nn.Residual(nn.Sequential(*layers), **options)


EXACT = {
    "weight norm": lambda: [
        nn.WeightNorm(nn.Linear(4, 3)),
        nn.ReLU(),
        nn.WeightNorm(nn.Linear(3, 2)),
    ],
    "scaled ws": lambda: [nn.ScaledWS(nn.Linear(4, 3)), nn.ReLU(), nn.ScaledWS(nn.Linear(3, 2))],
    "batch norm": lambda: [
        nn.BatchNorm(4).eval(),
        nn.Linear(4, 3),
        nn.BatchNorm(3),
        nn.GELU(),
        nn.Linear(3, 2),
    ],
    "dyt": lambda: [nn.Scale(1.5), nn.DyT(4), nn.Linear(4, 2)],
    "derf": lambda: [nn.Derf(4), nn.Linear(4, 2)],
    "residual": lambda: [
        block(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4), alpha=0.7, beta=1.3),
        nn.Linear(4, 2),
    ],
    "shortcut": lambda: [
        nn.Residual(nn.Linear(4, 3), -2.0, 1.3, nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    ],
    "nested": lambda: [
        block(nn.Linear(4, 3), block(nn.Tanh(), nn.Linear(3, 3)), nn.Linear(3, 4)),
        nn.Linear(4, 2),
    ],
    "normprop": lambda: [nn.NormPropLinear(4, 3, "prelu", mode="exact"), nn.NormPropLinear(3, 2)],
    "dropout": lambda: [nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)],
    "pool": lambda: [
        nn.Conv2d(1, 2, 1),
        nn.ReLU(),
        nn.AvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(4, 2),
    ],
    "images": lambda: [
        block(nn.Conv2d(1, 2, 3, 1, 1), nn.ReLU(), nn.Conv2d(2, 1, 3, 1, 1)),
        nn.Conv2d(1, 2, 2),
    ],
}


ON_IMAGES = EXACT["pool"], EXACT["images"]


@pytest.mark.parametrize("layers", EXACT.values(), ids=EXACT)
@settings(max_examples=-(-settings().max_examples // 7))
@given(rng=rngs())
def test_normalisers_and_residual_sums_are_exact(layers, rng):
    """Up to the second linear layer, for any weights; in a residual sum, what a branch has in
    common with its input."""
    net = randomize(nn.Sequential(*layers()), rng)
    mean, matrix = rng.normal(size=4), covariance(rng, 4)
    shape = (1, 2, 2) if layers in ON_IMAGES else (4,)
    records = tp.propagate(net, mean.reshape(shape), matrix)
    assert all(r.exact for r in records), records
    samples = lambda count: rng.multivariate_normal(mean, matrix, count).reshape(-1, *shape)  # noqa: E731
    assert_within_5_standard_errors(records, net, samples)


PER_SAMPLE = {
    "layer": lambda: nn.LayerNorm(200),
    "rms": lambda: nn.RMSNorm(200),
    "group": lambda: nn.GroupNorm(4, 200),
    "in a branch": lambda: block(nn.LayerNorm(200), nn.ReLU(), nn.Linear(200, 200)),
}


@pytest.mark.parametrize("norm", PER_SAMPLE.values(), ids=PER_SAMPLE)
def test_normalisers_of_a_sample_are_as_good_as_they_say(norm, rng):
    """Their moments are exact, and so is a linear layer behind them; what two groups have in common
    is not."""
    net = randomize(nn.Sequential(nn.Linear(200, 200), norm(), nn.Linear(200, 3)), rng)
    mean, matrix = 0.1 * rng.normal(size=200), np.eye(200)
    first, *rest = records = tp.propagate(net, mean, matrix)
    assert first.exact
    assert next(r for r in rest if "Norm" in r.layer).exact
    x = tp.tensor(rng.multivariate_normal(mean, matrix, 4000))
    for record, (center, variance) in zip(records, measured(net, x), strict=True):
        standard_error = math.sqrt(2 / 4000 / min(len(record.mean), 50))  # of the mean variance
        allowed = 5 * standard_error if record.exact else 0.05 + 5 * standard_error
        assert abs(record.variance.mean() / variance.mean() - 1) <= allowed
        np.testing.assert_allclose(record.mean, center, atol=0.1 * math.sqrt(variance.mean()))


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1}, {"stride": 2, "padding": (2, 0)}, {"dilation": 2}, {"groups": 2}],
)
def test_a_convolution_is_its_matrix(options, rng):
    net = randomize(nn.Sequential(nn.Conv2d(2, 4, 3, **options)), rng)
    mean, matrix = rng.normal(size=(2, 6, 5)), covariance(rng, 60)
    basis = naive_conv2d(np.eye(60).reshape(60, 2, 6, 5), net[0].weight.data, None, **options)
    per_value = naive_conv2d(mean[None], net[0].weight.data, net[0].bias.data, **options)[
        0
    ].reshape(4, -1)
    jacobian = basis.reshape(60, -1).T
    variance = np.diag(jacobian @ matrix @ jacobian.T).reshape(4, -1)
    (record,) = tp.propagate(net, mean, matrix)
    np.testing.assert_allclose(record.mean, per_value.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(
        record.variance, variance.mean(axis=1) + per_value.var(axis=1), rtol=1e-10
    )


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, (1, 3))],
        lambda: [nn.Conv2d(2, 4, 3, stride=2), nn.Conv2d(4, 4, 2, groups=2)],
        lambda: [
            nn.Conv2d(2, 4, (2, 1), dilation=2),
            nn.Tanh(),
            nn.Conv2d(4, 3, 3),
            nn.Flatten(),
            nn.Linear(210, 2),
        ],
        lambda: [nn.Conv2d(2, 4, 1), nn.AvgPool2d(2), nn.Dropout(0.3), nn.Conv2d(4, 2, 2)],
        lambda: [nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.BatchNorm(4), nn.Conv2d(4, 2, 3, padding=1)],
        lambda: [
            nn.Conv2d(2, 4, 3),
            nn.GroupNorm(2, 4),
            nn.LayerNorm((4, None, None)),
            nn.Conv2d(4, 2, 3),
        ],
        lambda: [block(nn.Tanh(), nn.GroupNorm(1, 2), nn.Conv2d(2, 2, 1)), nn.Conv2d(2, 2, 3)],
    ],
    ids=["plain", "stride", "flatten", "pool", "padding", "groups", "residual"],
)
def test_offsets_describe_a_stationary_image_as_well_as_its_whole_covariance(
    layers, rng, monkeypatch
):
    net = randomize(nn.Sequential(*layers()), rng)
    mean, matrix = np.ones((2, 14, 9)) * rng.normal(size=(2, 1, 1)), stationary(2, 14, 9, rng)
    # by offsets, a sample is divided by its expected norm: so let it be with the whole covariance
    monkeypatch.setattr(mixture, "MOST_DIVIDED", 0)
    with_matrix = tp.propagate(net, mean, matrix)
    monkeypatch.setattr(field, "WHOLE", 0)
    by_offsets = tp.propagate(net, mean, matrix)
    assert not by_offsets[-1].exact
    has_norm = any(isinstance(layer, nn.GroupNorm) for layer in net.modules())
    for a, b in zip(with_matrix, by_offsets, strict=True):
        np.testing.assert_allclose(b.mean, a.mean, atol=1e-5)
        # what a mean over all positions takes away differs between edges and the middle
        rtol = 0.06 if has_norm else 2e-3
        np.testing.assert_allclose(b.variance, a.variance, rtol=rtol)


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_images_smaller_than_the_window(size, kernel_size, weights):
    """Padded 3x3 convolutions of 2x2 images once raised an IndexError."""
    paddings = [p for p in (0, 1, 2) if size + 2 * p >= kernel_size]
    for padding, stride in itertools.product(paddings, (1, 2)):
        tp.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(2, 3, kernel_size, padding=padding, stride=stride),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(1),
            nn.Flatten(),
        )
        x = new_generator(0).normal(size=(8, 2, size, size))
        records = tp.propagate(net, data=x, weights=weights)
        if weights == "random":
            assert len(records) == 6
            continue
        predicted = records[0].variance
        outputs = net[0](tp.tensor(x)).numpy()
        spread = outputs.var(axis=0).mean(axis=(1, 2)) + outputs.mean(axis=0).var(axis=(1, 2))
        np.testing.assert_allclose(predicted, spread, rtol=1e-4)


@given(rng=rngs())
def test_what_is_exact_and_what_the_error_is(rng):
    """The third linear layer is not exact; its error is the difference from a sample and two
    standard errors."""
    net = randomize(
        nn.Sequential(
            *(nn.NormPropLinear(6, 6, "tanh") for _ in range(3)), nn.ReLU(), nn.Linear(6, 2)
        ),
        rng,
    )
    records = tp.propagate(net, np.zeros(6), np.eye(6))
    assert [r.exact for r in records] == [True, True, False, False, False]
    two = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1), nn.Identity(), nn.Tanh())
    two[0].weight.data[...], two[2].weight.data[...] = np.eye(2), [[1.0, 3.0]]
    first, *_, last = tp.propagate(two, np.zeros(2), np.eye(2))
    assert first.error == 0.0
    difference = abs(last.variance[0] - last.measured[0]) / last.measured[0]
    standard_error = 0.5 * (last.error - difference)
    # tanh(u) is bounded, so its square varies less than that of a Gaussian
    assert 0.1 < standard_error / math.sqrt(2 / 256) < 1.0
    flags = [r.exact for r in tp.propagate(two, data=rng.normal(size=(9, 2)))]
    assert flags == [True, False, False, False, False]  # data have moments, but are not Gaussian


def test_padding_never_wins():
    (record,) = tp.propagate(nn.MaxPool2d(3, 2, 1), np.full((1, 4, 4), -9.0), np.eye(16))
    assert -8.9 < record.mean[0] < -7.0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paper", "exact"])
def test_deep_networks_stay_within_the_stated_error(mode):
    """200 networks: the variance that is measured, averaged over all, within the error that
    propagate states."""
    simulated, predicted, stated = np.zeros(5), np.zeros(5), np.zeros(5)
    for seed in range(200):
        tp.manual_seed(seed)
        rng = np.random.default_rng(seed)
        net = nn.Sequential(*(nn.NormPropLinear(24, 24, mode=mode) for _ in range(5)))
        records = tp.propagate(net, np.zeros(24), np.eye(24))
        x = tp.tensor(rng.normal(size=(500, 24)).astype("float32"))
        simulated += [500 / 499 * variance.mean() for _, variance in measured(net, x)]
        predicted += [r.variance.mean() for r in records]
        stated += [r.error / 200 for r in records]
    assert [r.exact for r in records] == [True, True, False, False, False]
    sampling = 5 * math.sqrt(2 / 500 / 200)
    assert (abs(predicted / simulated - 1) <= stated + sampling).all()
    assert stated[-1] < 0.5


def biased(layer):
    layer.bias.data[...] = 1.0 + tp.randn(N).data
    return layer


N = 80
LAWS = {
    "plain": lambda: [nn.Linear(20, N), nn.ReLU(), nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N)],
    "bias": lambda: [biased(nn.Linear(20, N)), nn.ReLU(), biased(nn.Linear(N, N)), nn.ReLU()],
    "normprop": lambda: [
        nn.NormPropLinear(20, N),
        nn.NormPropLinear(N, N, mode="exact"),
        nn.Linear(N, N),
    ],
    "layer": lambda: [
        nn.Linear(20, N),
        nn.ReLU(),
        nn.LayerNorm(N),
        nn.Linear(N, N),
        nn.ReLU(),
        nn.GroupNorm(2, N),
    ],
    "rms": lambda: [nn.Linear(20, N), nn.RMSNorm(N), nn.ReLU(), nn.WeightNorm(nn.Linear(N, N))],
    "ws": lambda: [
        nn.ScaledWS(nn.Linear(20, N)),
        nn.ReLU(),
        nn.ScaledWS(nn.Linear(N, N)),
        nn.ReLU(),
    ],
    "batch": lambda: [
        nn.Scale(2.0),
        nn.Linear(20, N),
        nn.BatchNorm(N),
        nn.PReLU(N),
        nn.Dropout(0.5),
        nn.Linear(N, N),
    ],
    "residual": lambda: [
        nn.Linear(20, N),
        block(nn.ReLU(), nn.Linear(N, N), alpha=3.0, beta=2.0),
        nn.DyT(N),
    ],
    "shortcut": lambda: [
        nn.Residual(nn.Linear(20, N), beta=2.0, shortcut=nn.Linear(20, N)),
        nn.ReLU(),
    ],
    "images": lambda: [
        nn.Conv2d(5, N, 2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(N, N, 2, 2, 1),
    ],
    "pool": lambda: [
        nn.Conv2d(5, N, 2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(4 * N, N),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("layers", LAWS.values(), ids=LAWS)
def test_the_law_of_random_weights(layers):
    """200 networks of width 80: squared means of units and their variances, averaged, within 5
    standard errors of the law where it is exact, and within the stated error elsewhere. The samples
    are not Gaussian, and their scales differ."""
    rng = np.random.default_rng(3)
    x = rng.gamma(0.5, size=(12, 20)) * rng.choice([0.3, 2.0], size=(12, 1))
    x = (x.reshape(12, 5, 2, 2) if isinstance(layers()[0], nn.Conv2d) else x).astype("float32")
    laws, wrong = compared_with_law(layers, x)
    assert any(r.exact for r in laws)
    assert not laws[-1].exact
    assert wrong == []


def compared_with_law(layers, x, networks=200):
    """The law of one network, and where it is wrong: records of it with the squared mean and the
    variance that are predicted, and measured. By chance, a number misses 5 standard errors with a
    probability of about 1e-6, as means of so many networks are nearly Gaussian."""
    found, laws = [], []
    for seed in range(networks):
        tp.manual_seed(seed)
        net = nn.Sequential(*layers())
        found.append(
            [((mean**2).mean(), variance.mean()) for mean, variance in measured(net, tp.tensor(x))]
        )
        if seed < 10:
            laws.append(tp.propagate(net, data=x, weights="random"))
    standard_errors = np.std(found, axis=0) / math.sqrt(networks)
    wrong = []
    for simulated, error, *records in zip(
        np.mean(found, axis=0), standard_errors, *laws, strict=True
    ):
        law = np.mean([[r.mean[0] ** 2, r.variance[0]] for r in records], axis=0)
        allowed = 5 * error + records[0].error * law.sum() + 1e-6
        if not (abs(law - simulated) <= allowed).all():
            wrong.append((records[0], law, simulated))
    return laws[0], wrong


def test_biases_add_their_mean_square_to_random_weights(rng):
    """E u^2 of a linear layer is E |w|^2 E |x|^2 / n + E b^2, exactly."""
    x = rng.gamma(0.5, size=(12, 20)).astype("float32")
    linear = nn.Linear(20, 6)
    linear.bias.data[...] = [3.0, -1.0, 0.0, 2.0, 5.0, 0.5]
    (record,) = tp.propagate(nn.Sequential(linear), data=x, weights="random")
    length = (linear.weight.numpy() ** 2).sum(axis=1).mean()
    from_inputs = length * (x**2).sum(axis=1).mean() / 20
    mean_square = from_inputs + (linear.bias.numpy() ** 2).mean()
    assert record.mean[0] ** 2 + record.variance[0] == pytest.approx(mean_square, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_the_parameter_of_an_activation_counts(alpha):
    """ELU after a layer that keeps N(0, 1): the mean of the next one, by the closed form of E
    ELU."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for linear in (first, second):
        linear.weight.data[...] = 1.0
    net = nn.Sequential(first, nn.ELU(alpha), second)
    *_, last = tp.propagate(net, mean=np.zeros(1), covariance=np.eye(1))
    # E max(Z, 0) + alpha (E exp(min(Z, 0)) - 1), where E exp(min(Z, 0)) = 1/2 + exp(1/2) Phi(-1)
    tail = math.exp(0.5) * 0.5 * math.erfc(1 / math.sqrt(2))
    exact = 1 / math.sqrt(2 * math.pi) + alpha * (tail - 0.5)
    assert last.mean[0] == pytest.approx(exact, rel=1e-6)


def test_the_law_of_batch_norm(rng):
    """Each unit has mean 0 and variance 1 on the batch, exactly."""
    net = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm(8, eps=0.0))
    *_, norm = tp.propagate(net, data=rng.gamma(0.5, size=(12, 20)), weights="random")
    assert norm.mean[0] == pytest.approx(0.0, abs=1e-6)
    assert norm.variance[0] == pytest.approx(1.0)


@pytest.mark.parametrize("n", [1, 3])
def test_the_law_of_a_gaussian_input(n):
    """He weights: E u^2 is E |x|^2 2 / n in every layer, and the correlation follows the arc-cosine
    kernel."""
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    for layer in (net[0], net[2]):
        layer.weight.data[...] = math.sqrt(2 / 6)
    first, _, last = tp.propagate(net, np.zeros(6), n * np.eye(6), weights="random")
    assert first.variance[0] + first.mean[0] ** 2 == pytest.approx(2 * n, rel=first.error)
    assert last.variance[0] + last.mean[0] ** 2 == pytest.approx(2 * n, rel=last.error)
    assert first.mean[0] ** 2 < 0.05 * n
    # at |x|^2 = 6, and less where lengths differ
    assert 0.5 < last.mean[0] ** 2 / (2 * n / math.pi) <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("norm", list(nn.normalizers))
def test_every_network_that_can_be_built_is_predicted(norm, rng):
    """With a residual block and pooling: mean variances to 12 % for its own weights. Random ones
    describe the average of all networks, and one of 16 channels to a factor of 3. Left out is the
    average over all of an image, which hardly varies behind a normaliser of images, while the
    prediction divides all images by the same number."""
    tp.manual_seed(0)
    spec = "C(16,3,1,1)-P(2,2,0,max)-R(C(16,3,1,1)-C(16,3,1,1))-C(16,1,1,0)-P(4,4,0,avg)"
    net, root = nn.build(spec, norm=norm), np.linalg.cholesky(stationary(3, 8, 8, rng))
    images = (rng.normal(size=(60, 192)) @ root.T).reshape(60, 3, 8, 8).astype("float32")
    found = [variance.mean() for _, variance in measured(net, tp.tensor(images))][:-2]
    for options, factor in (
        ({"data": images}, 1.12),
        ({"data": images[:8], "weights": "random"}, 3.0),
    ):
        predicted = [r.variance.mean() for r in tp.propagate(net, **options)][:-2]
        np.testing.assert_allclose(np.log(predicted), np.log(found), rtol=0, atol=math.log(factor))


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.6])
def test_the_maximum_of_two_and_of_four(rho):
    """Clark's (1961) moments of the larger of two; those of four independent numbers from order
    statistics."""
    c, theta = np.array([[4.0, 2 * rho], [2 * rho, 1.0]]), math.sqrt(5.0 - 4 * rho)
    alpha = 1.0 / theta  # the means are 1 and 0
    density, cdf = (
        math.exp(-0.5 * alpha**2) / math.sqrt(2 * math.pi),
        0.5 * math.erfc(-alpha / math.sqrt(2)),
    )
    mean = cdf + theta * density
    second = 5 * cdf + (1 - cdf) + theta * density
    (record,) = tp.propagate(nn.Sequential(nn.MaxPool2d((1, 2))), np.array([[[1.0, 0.0]]]), c)
    assert record.mean[0] == pytest.approx(mean, abs=0.02)
    assert record.variance[0] == pytest.approx(second - mean**2, rel=record.error)
    assert not record.exact
    (record,) = tp.propagate(nn.Sequential(nn.MaxPool2d(2)), np.zeros((1, 2, 2)), np.eye(4))
    assert record.mean[0] == pytest.approx(1.0293753730, abs=0.02)
    assert record.variance[0] == pytest.approx(0.4917152, rel=record.error)


@pytest.mark.parametrize("name", ["relu", "tanh", "abs"])
def test_max_pooling_takes_the_activation_and_padding_into_account(name, rng):
    net = randomize(
        nn.Sequential(nn.Activation(name), nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 3, 2)), rng
    )
    mean, matrix = np.ones((2, 6, 6)) * [[[0.3]], [[-0.2]]], stationary(2, 6, 6, rng)
    x = tp.tensor(rng.multivariate_normal(mean.ravel(), matrix, 4000).reshape(4000, 2, 6, 6))
    (_, pool, conv), (_, of_pool, of_conv) = tp.propagate(net, mean, matrix), measured(net, x)
    np.testing.assert_allclose(pool.mean, of_pool[0], atol=0.05)
    np.testing.assert_allclose(pool.variance, of_pool[1], rtol=0.1)
    np.testing.assert_allclose(conv.mean, of_conv[0], atol=0.05)
    # Filters of either sign see how much two maxima have in common, which is an approximation: to a
    # factor of 2.
    np.testing.assert_allclose(np.log2(conv.variance / of_conv[1]), 0.0, atol=1.0)


@given(components=st.integers(1, 12), rng=rngs())
def test_however_many_gaussians_the_first_layer_is_that_of_the_data(components, rng):
    images = rng.gamma(1.0, 40.0, size=(40, 2, 5, 5)).astype("uint8")
    for normalizer in (
        tp.data.GlobalNormalizer((2, 5, 5)).fit(images),
        tp.data.BatchNormalizer((2, 5, 5)),
    ):
        net = nn.Sequential(normalizer, nn.NormPropConv2d(2, 3, 3, padding=1))
        records = tp.propagate(net, data=images, components=components)
        for record, (mean, variance) in zip(records, measured(net, tp.tensor(images)), strict=True):
            np.testing.assert_allclose(record.mean, mean, atol=1e-4)
            np.testing.assert_allclose(record.variance, variance, rtol=1e-3)
            assert record.exact


def test_a_refusal_names_the_layer():
    """One unit has its mean at a jump, and a standard deviation of 1e-9 of it."""
    step = tp.Activation(lambda u: (u > 0.3) * 1.0, "step", kinks=(0.3,))
    branch = nn.Sequential(nn.Linear(2, 2), nn.Activation(step))
    branch[0].weight.data[...] = [[3e-10, 0.0], [1.0, 1.0]]
    branch[0].bias.data[...] = [0.3, 0.0]
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Residual(branch)).to(dtype="float64")
    net[0].weight.data[...] = np.eye(2)
    wrong_size = nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 1))
    for failing, words in (
        (net, ["not a line, at the layer 2.branch.1 Activation"]),
        (wrong_size, ["weight (1, 2), at the layer 1 Linear"]),
    ):
        assert_explained(
            ValueError, lambda net=failing: tp.propagate(net, np.zeros(2), np.eye(2)), *words
        )


def test_refusals():
    line, two, image = nn.Linear(2, 2), (np.zeros(2), np.eye(2)), (np.zeros((1, 2, 2)), np.eye(4))
    assert_explained(ValueError, lambda: tp.propagate(line, np.zeros(2), np.eye(3)), "(3, 3)")
    assert_explained(
        ValueError, lambda: tp.propagate(line, np.zeros(2), [[1, 1], [0, 1]]), "symmetric"
    )
    assert_explained(
        ValueError, lambda: tp.propagate(line, np.zeros(2), [[1, 2], [2, 1]]), "negative variance"
    )
    assert_explained(
        ValueError, lambda: tp.propagate(line, np.zeros(3), np.eye(3)), "(1, 3)", "(2, 2)"
    )
    assert_explained(
        ValueError, lambda: tp.propagate(line, *image), "Linear of values (1, 2, 2)", "Flatten"
    )
    assert_explained(ValueError, lambda: tp.propagate(nn.Conv2d(1, 1, 1), *two), "images")
    assert_explained(
        ValueError, lambda: tp.propagate(line, data=np.zeros((5, 2)), components=3), "components=1"
    )
    assert_explained(ValueError, lambda: tp.propagate(line, *two, weights="he"), "'random'")
    assert_explained(TypeError, lambda: tp.propagate(nn.ModuleList([line]), *two), "ModuleList")
    pool = nn.AvgPool2d(2, padding=1, count_include_pad=False)
    assert_explained(TypeError, lambda: tp.propagate(pool, *image), "count_include_pad")
    assert_explained(TypeError, lambda: tp.propagate(nn.LayerNorm((2, 2)), *image), "whole samples")
    assert_explained(
        TypeError,
        lambda: tp.propagate(nn.Residual(nn.MaxPool2d(1)), *image),
        "in front of the block",
    )
    assert_explained(
        ValueError,
        lambda: tp.propagate(nn.Residual(nn.Conv2d(1, 1, 3, 2, 1)), *image),
        "the sum of States (1, 1, 2, 2) and (1, 1, 1, 1)",
    )
    groups = nn.ScaledWS(nn.Conv2d(2, 2, 3, groups=2))
    assert_explained(
        TypeError,
        lambda: tp.propagate(groups, data=np.ones((4, 2, 3, 3)), weights="random"),
        "in groups",
    )
    wide = nn.Sequential(nn.Conv2d(1, 1200, 1), nn.Flatten())
    assert_explained(ValueError, lambda: tp.propagate(wide, *image), "pool it first")


class Calls(nn.Module):
    """A layer that calls a function."""

    def __init__(self, function):
        self.function = function

    def forward(self, x):
        return self.function(x)


MISFITS = {
    "linear of x (1, 3) and weight (5, 4)": (nn.Linear(4, 5), (3,)),
    "conv2d of x (1, 2, 3, 3) and weight (5, 4, 1, 1)": (nn.Conv2d(4, 5, 1), (2, 3, 3)),
    "conv2d in 2 groups": (nn.Conv2d(4, 6, 1, groups=2), (2, 3, 3)),
    "bias (3,)": (Calls(lambda x: tp.functional.linear(x, tp.ones(4, 3), tp.ones(3))), (3,)),
    "in 2 groups": (Calls(lambda x: tp.functional.group_norm(x, 2)), (3,)),
    "no spread": (nn.GroupNorm(4, 4), (4,)),
    "(5,) for a State (1, 3)": (nn.BatchNorm(5), (3,)),
    "the window must fit": (nn.MaxPool2d(5), (1, 3, 3)),
    "p=1.0": (Calls(lambda x: tp.functional.dropout(x, 1.0)), (3,)),
}


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize("words", MISFITS)
def test_layers_that_do_not_fit_are_refused(words, weights, rng):
    """As their forwards refuse them; random weights see only how large a layer is."""
    layer, shape = MISFITS[words]
    count = shape[0]
    same = nn.Linear(count, count) if len(shape) == 1 else nn.Conv2d(count, count, 1)
    net = nn.Sequential(same, layer)
    law = rng.normal(size=shape), np.eye(math.prod(shape))
    assert_explained(ValueError, lambda: tp.propagate(net, *law, weights=weights), words)


DATA_REFUSED = {
    "shape (0, 2)": np.ones((0, 2)),
    "shape (2,)": np.ones(2),
    "shape (3, 2, 2)": np.ones((3, 2, 2)),
    "complex128": 1j * np.ones((3, 2)),
    "infinite or NaN": np.array([[1.0, 2.0], [np.nan, 0.0]]),
}


@pytest.mark.parametrize("weights", ["given", "random"])
@pytest.mark.parametrize("words", DATA_REFUSED)
def test_what_is_no_data_is_refused(words, weights):
    data = DATA_REFUSED[words]
    net = nn.Linear(2, 2)
    assert_explained(ValueError, lambda: tp.propagate(net, data=data, weights=weights), words)


@pytest.mark.parametrize("weights", ["given", "random"])
def test_a_law_is_finite(weights):
    for law in (([0.0, np.nan], np.eye(2)), ([0.0, 0.0], np.diag([1.0, np.inf]))):
        assert_explained(
            ValueError,
            lambda law=law: tp.propagate(nn.Linear(2, 2), *law, weights=weights),
            "infinite or NaN",
        )


@pytest.mark.parametrize("weights", ["given", "random"])
def test_weights_are_finite(weights):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight.data = np.array([[1.0, np.nan], [0.0, 1.0]])
    assert_explained(
        ValueError,
        lambda: tp.propagate(net, np.zeros(2), np.eye(2), weights=weights),
        "a parameter 1.weight",
    )


def test_gaussians_are_a_whole_number():
    data = np.ones((6, 2))
    for count in (0, 1.5):
        assert_explained(
            ValueError,
            lambda count=count: tp.propagate(nn.Linear(2, 2), data=data, components=count),
            f"{count} Gaussians",
        )


SEEDS, IMAGES, WIDTH = 8, 1000, 0.1
DATA = os.environ.get("TINYPROP_DATA")  # at import: while tests run, it is hidden from them


@pytest.mark.slow
@pytest.mark.skipif(
    tp.data.found("cifar10", DATA, "test") is None, reason="CIFAR-10 is not available"
)
def test_the_papers_network_on_cifar10():
    """Layer 1 to 0.5 % per unit, layer 2 to 6 % (median over units), every layer's mean variance to
    30 %, unit means that correlate at 0.95 with the measured ones: all but the first are medians
    over the seeds."""
    images = tp.data.load("cifar10", DATA, "test").images[:IMAGES]
    second, ratios, alike = [], [], []
    for seed in range(SEEDS):
        tp.manual_seed(seed)
        net = nn.Sequential(
            tp.data.GlobalNormalizer((3, 32, 32)).fit(images), *nn.build(nn.NIN, width=WIDTH)
        )
        records = tp.propagate(net, data=images, components=10)
        found = measured(net, tp.tensor(images))
        pairs = [(r, *m) for r, m in zip(records, found, strict=True) if "Conv" in r.layer]
        first, mean, variance = pairs[0]
        np.testing.assert_allclose(first.variance, variance, rtol=0.005)
        # of centered data, so nothing to correlate
        np.testing.assert_allclose(first.mean, mean, atol=1e-3)
        second.append(np.median(abs(pairs[1][0].variance / pairs[1][2] - 1)))
        alike.append([np.corrcoef(record.mean, mean)[0, 1] for record, mean, _ in pairs[1:]])
        ratios.append([record.variance.mean() / variance.mean() for record, _, variance in pairs])
    table = f"{np.round(second, 3)}\n{np.round(ratios, 2)}\n{np.round(alike, 3)}"
    print(table)
    assert np.median(second) <= 0.06, table
    assert (abs(np.median(ratios, axis=0) - 1) <= 0.3).all(), table
    assert (np.median(alike, axis=0) >= 0.95).all(), table


def test_predictions_are_a_table_in_a_notebook():
    net = tp.nn.Sequential(tp.nn.Linear(3, 4), tp.nn.ReLU())
    records = tp.propagate(net, [0.0] * 3, np.eye(3))
    page = records._repr_html_()
    assert page.count("<tr>") == 3
    assert "averages over units" in page
    assert records[1]._repr_html_().count("<tr>") == 2

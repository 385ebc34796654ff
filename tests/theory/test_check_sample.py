"""The error that propagate states for records that are not exact: a check sample of the network
itself, and what it covers."""

import math

import numpy as np
import pytest

import tinyprop as tp
from tests.theory.test_propagate import measured
from tinyprop import nn
from tinyprop.theory.propagate import Propagated
from tinyprop.theory.sample import Measured, root_of, sample_of_data

SPECS = {
    "mlp": "F(24)-F(16)-F(16)-F(6)",
    "residual mlp": "F(16)-R(F(16)-F(16))-R(F(16)-F(16))-F(6)",
    "conv": "C(6,3,1,1)-C(6,3,1,1)-P(2,2,0,max)-C(6,3,1,1)-C(5,1,1,0)-P(4,4,0,avg)",
    "max": "C(5,3,1,1)-P(2,2,0,max)-C(5,1,1,0)-P(2,2,0,avg)-F(4)",
    "residual conv": "C(6,3,1,1)-R(C(6,3,1,1)-C(6,3,1,1))-P(2,2,0,avg)-C(5,1,1,0)-P(4,4,0,avg)",
}
ACTIVATIONS = ["relu", "tanh", "gelu", "leaky_relu", "silu", "erf"]
# every normaliser with every kind of network that it takes
FAMILY = [
    (kind, norm)
    for kind in SPECS
    for norm in nn.normalizers
    if norm != "instance" or "mlp" not in kind
]
TRUTH = 6000  # samples that stand for the truth


def smooth_covariance(rng, shape, length):
    """Channels mixed at random, which fall off along both axes; vectors, with few strong
    directions."""
    channels, *sides = shape
    mix = rng.normal(size=(channels, channels)) / math.sqrt(channels)
    matrix = mix @ mix.T * (0.5 if sides else 2.0) + 0.1 * np.eye(channels)
    for n in sides:
        distance = abs(np.arange(n) - np.arange(n)[:, None])
        matrix = np.kron(matrix, length**distance)
    return matrix


def train(net, shape, rng):
    """Forty steps on labels that mean nothing."""
    optimizer = tp.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(40):
        x = tp.tensor(rng.normal(size=(32, *shape)), dtype="float32")
        loss = tp.functional.cross_entropy(net(x), rng.integers(0, 4, 32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def draw(number):
    """Network number so and so, its input's mean and covariance."""
    kind, norm = FAMILY[number]
    tp.manual_seed(number)
    rng = np.random.default_rng([number, 7])
    is_flat = "mlp" in kind
    shape = (12,) if is_flat else (3, 8, 8)
    activation = ACTIVATIONS[number % len(ACTIVATIONS)]
    size = None if is_flat else shape[1:]
    net = nn.build(SPECS[kind], shape[0], norm=norm, activation=activation, size=size)
    if nn.measured.has_refresh(net):
        nn.refresh(net, tp.tensor(rng.normal(size=(200, *shape)), dtype="float32"))
    if number % 3 == 1:
        train(net, shape, rng)
    mean = 0.5 * rng.normal(size=(shape[0], *[1] * (len(shape) - 1))) * np.ones(shape)
    matrix = smooth_covariance(rng, shape, rng.choice([0.0, 0.7]))
    return net, mean, matrix


def coverage(numbers):
    """Of records that are not exact, whether the truth is within the error."""
    found = []
    for number in numbers:
        net, mean, matrix = draw(number)
        records = tp.propagate(net, mean, matrix)
        rng = np.random.default_rng([number, 8])
        flat = mean.ravel() + rng.normal(size=(TRUTH, mean.size)) @ root_of(matrix).T
        x = tp.tensor(flat.reshape(-1, *mean.shape), dtype="float32")
        for record, (_, variance) in zip(records, measured(net, x), strict=True):
            if record.exact:
                continue
            truth = variance.mean()
            found.append(abs(record.variance.mean() - truth) / truth <= record.error)
    return np.array(found)


def test_the_error_covers_a_few_networks():
    covered = coverage(range(3, len(FAMILY), 20))
    assert covered.mean() >= 0.95


@pytest.mark.slow
def test_the_error_covers_the_truth_in_19_of_20_records():
    """The truth itself is uncertain by a fifth of the sample's standard error, which is left out of
    account."""
    covered = coverage(range(len(FAMILY)))
    print(len(FAMILY), "networks,", len(covered), "records,", covered.mean())
    assert len(FAMILY) >= 60
    assert covered.mean() >= 0.95


def test_the_sample_is_fixed_and_disturbs_nothing():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm(4), nn.Linear(4, 2))
    before = {name: value.copy() for name, value in net.state_dict().items()}
    tp.manual_seed(5)
    following = tp.randn(3).numpy()
    tp.manual_seed(5)
    first = tp.propagate(net, np.zeros(3), np.eye(3))
    assert (tp.randn(3).numpy() == following).all()
    again = tp.propagate(net, np.zeros(3), np.eye(3))
    for a, b in zip(first, again, strict=True):
        assert (a.measured == b.measured).all()
    for name, value in net.state_dict().items():
        assert (value == before[name]).all()


def test_measured_variance_has_no_bias(rng):
    """That of n Gaussian numbers is 1 on average, with n - 1; of all data there are, with n."""
    drawn = [Measured.of(rng.normal(size=(4, 3, 1)), True).variance.mean() for _ in range(4000)]
    # the variance of 3 sample variances of 4 numbers is 2/9: 5 standard errors of 4000 of them
    assert np.mean(drawn) == pytest.approx(1.0, abs=5 * math.sqrt(2 / 9 / 4000))
    x = rng.normal(size=(4, 3, 5))
    np.testing.assert_allclose(Measured.of(x, False).variance, x.var(axis=(0, 2)))


def test_data_are_their_own_sample(rng):
    """Few data are all measured, so the first layer is theirs exactly; of many, so many are."""
    x = rng.gamma(0.5, size=(40, 6)).astype("float32")
    (record,) = tp.propagate(nn.Sequential(nn.Linear(6, 3)), data=x)
    np.testing.assert_allclose(record.measured, record.variance, rtol=1e-5)
    many = np.arange(1000)[:, None]
    some = sample_of_data(many)
    assert len(np.unique(some)) == len(some) == 256


class Wrong(nn.Module):
    """A layer whose rule is not its forward's."""

    def forward(self, x):
        return 2.0 * x

    def propagate(self, state):
        return state.scale(1.5)


def test_an_exact_record_warns_and_keeps_its_error():
    with pytest.warns(UserWarning, match="a variance of 2.25 of Wrong") as caught:
        (record,) = tp.propagate(Wrong(), np.zeros(30), np.eye(30))
    assert len(caught) == 1
    assert record.exact
    assert record.parted
    assert record.error == 0.0
    assert record.measured.mean() == pytest.approx(4.0, rel=0.1)


class Inside(nn.Module):
    """Its rule calls a layer that its forward does not call."""

    def __init__(self):
        self.half = nn.Scale(0.5)

    def forward(self, x):
        return 0.5 * x

    def propagate(self, state):
        return self.half(state)


def test_what_the_forward_does_not_call_is_not_measured():
    (record,) = tp.propagate(nn.Sequential(Inside()), np.zeros(2), np.eye(2))
    assert record.layer == "0.half Scale"
    assert record.measured is None


def test_random_weights_are_not_measured(rng):
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    records = tp.propagate(net, data=rng.normal(size=(9, 4)), weights="random")
    assert all(record.measured is None and not record.parted for record in records)


@pytest.mark.parametrize("size", [1.0, math.inf, math.nan, 0.0])
def test_a_sample_that_decides_nothing_says_so(size):
    """A few inputs of which one is large; and numbers that are not finite, or 0."""
    values = np.zeros((8, 3, 1))
    values[0] = size
    with np.errstate(invalid="ignore"):
        sample = Measured.of(values, False)
    record = Propagated("0", np.zeros(3), np.ones(3), exact=False, error=1.0).checked(sample)
    assert record.undecided
    assert not record.parted
    assert "cannot be told" in record.table().text()


def test_nothing_is_known_to_be_nothing():
    sample = Measured.of(np.zeros((8, 3, 1)), False)
    assert sample.decides(np.zeros(3))


def test_the_table_says_where_they_part(rng):
    """Positive numbers pass a ReLU unchanged; the Gaussian that stands for them does not."""
    x = rng.gamma(0.5, size=(1000, 40))
    net = nn.Sequential(nn.Scale(2.0), nn.ReLU())
    scale, relu = records = tp.propagate(net, data=x)
    assert [record.parted for record in records] == [False, True]
    assert relu.measured == pytest.approx(scale.measured)
    _, first, second, *_ = records.table().text().splitlines()
    assert first.endswith("exact")
    assert second.endswith("they part")

"""NormProp with measured moments: what it divides by, what its gradient passes through, and what is
saved."""

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import functional as F
from tinyprop import nn
from tinyprop.testing import check_layer


def correlated(rng, n=40, backend="numpy", dtype=np.float32):
    """Images whose pixels are correlated, of mean 3 and another variance than 1."""
    x = rng.gamma(1.0, size=(n, 2, 6, 6)).cumsum(axis=3) + 3.0
    return tp.tensor(x.astype(dtype), backend=backend)


def layers():
    conv = nn.MeasuredConv2d(2, 5, 3, padding=1, activation="tanh", gamma=1.0)
    linear = nn.MeasuredLinear(12, 4, activation="tanh", gamma=1.0)
    return [(conv, (2, 6, 6)), (linear, (12,))]


def test_before_the_first_refresh_it_is_the_papers_layer(backend, rng):
    for layer, shape in layers():
        layer.to(backend)
        kind = nn.NormPropConv2d if len(shape) == 3 else nn.NormPropLinear
        x = tp.tensor(rng.normal(size=(4, *shape)).astype(np.float32), backend=backend)
        np.testing.assert_array_equal(layer(x).numpy(), kind.forward(layer, x).numpy())
        record = tp.observe(layer, x)[-1]
        assert record.pre_activation.shape == record.output.shape


def test_on_the_samples_that_were_kept_mean_and_variance_are_right(backend, rng):
    """For any weights, correlations and padding; gamma and beta scale and shift what is 0 and 1."""
    layer = nn.MeasuredConv2d(2, 5, 3, padding=1, activation="identity", gamma=1.0).to(backend)
    layer.gamma.data[...] = tp.tensor(rng.uniform(0.5, 2.0, 5), backend=backend).data
    layer.beta.data[...] = tp.tensor(rng.normal(size=5), backend=backend).data
    x = correlated(rng, backend=backend)
    nn.refresh(layer, x)
    layer.weight.data *= 3.0
    layer.weight.data[0] += 1.0  # it need not be refreshed for new weights
    u = tp.observe(layer, x)[-1].pre_activation.numpy().astype(np.float64)
    np.testing.assert_allclose(u.mean(axis=(0, 2, 3)), layer.beta.numpy(), atol=1e-4)
    np.testing.assert_allclose(u.std(axis=(0, 2, 3)), layer.gamma.numpy(), rtol=1e-4)


@pytest.mark.parametrize("mode", ["paper", "exact"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_refreshed_layer_is_sound(which, mode, rng):
    """Its gradients, state, copies and independence of samples, with and without overrides."""
    layer, shape = layers()[which]
    layer.mode = mode
    nn.refresh(layer, rng.normal(size=(9, *shape)) + 1.0)
    check_layer(layer, rng.normal(size=(3, *shape)))


def test_gradients_pass_through_the_moments(rng):
    """Without the gradient through m(w) and s(w), it would be another one."""
    layer, shape = layers()[1]
    nn.refresh(layer, rng.normal(size=(9, *shape)) + 1.0)
    x = tp.tensor(rng.normal(size=(3, *shape)).astype(np.float32))
    (right,) = tp.grad((layer(x) ** 2).sum(), layer.weight)
    fixed = [moment.detach() for moment in layer.moments()]
    layer.moments = lambda: fixed
    (other,) = tp.grad((layer(x) ** 2).sum(), layer.weight)
    assert abs(right.numpy() - other.numpy()).max() > 0.01 * abs(right.numpy()).max()


def test_rows_have_a_direction_only(rng):
    """As in the paper, the length of a row does not matter."""
    layer, shape = layers()[1]
    nn.refresh(layer, tp.randn(50, *shape) * 10.0)
    x = tp.randn(5, *shape)
    before = layer(x).numpy()
    layer.weight.data[...] *= 4.0
    np.testing.assert_allclose(layer(x).numpy(), before, atol=1e-4)


def test_refresh_goes_through_the_network_in_order(rng):
    """The second layer keeps what the refreshed first one gives; nothing else moves."""
    net = nn.Sequential(
        nn.MeasuredLinear(3, 4), nn.BatchNorm(4), nn.MeasuredLinear(4, 4), nn.Linear(4, 2)
    )
    x = tp.randn(30, 3)
    running = net[1].running_mean.numpy().copy()
    nn.refresh(net, x)
    first = F.batch_norm(
        net[0](x), tp.zeros(4), tp.ones(4), net[1].weight, net[1].bias, training=True
    )
    np.testing.assert_allclose(net[2].kept.numpy(), first.numpy(), atol=1e-5)
    np.testing.assert_array_equal(net[1].running_mean.numpy(), running)
    assert not net[2].kept.requires_grad


def test_a_strangers_layer_is_refreshed():
    class Ratio(nn.Module):
        """Divides by the largest value that the fixed samples had."""

        def __init__(self):
            self.largest = tp.ones(1)

        def forward(self, x):
            return x / self.largest

        def refresh(self, x):
            self.largest.data[...] = x.data.max()

    net = nn.Sequential(nn.Identity(), Ratio())
    nn.refresh(net, tp.tensor([[1.0, 4.0]]))
    assert net(tp.tensor([[8.0]])).item() == 2.0
    assert net.state_dict()["1.largest"].tolist() == [4.0]


def test_what_was_kept_is_part_of_the_state(rng):
    layer = nn.MeasuredConv2d(2, 5, 3, padding=1)
    nn.refresh(layer, correlated(rng))
    wrong = layer.state_dict() | {"kept": np.zeros((3, 2), np.float32)}
    assert_explained(tp.StateError, lambda: layer.load_state_dict(wrong), "kept")


def test_float64_samples_leave_a_float32_layer_as_it_is(rng):
    net = nn.Sequential(nn.MeasuredLinear(3, 4), nn.MeasuredLinear(4, 2))
    nn.refresh(net, rng.standard_normal((50, 3)))
    assert [layer.kept.dtype for layer in net] == ["float32", "float32"]
    assert net(tp.randn(5, 3)).dtype == "float32"


def test_one_sample_has_no_spread():
    assert_explained(ValueError, lambda: nn.refresh(nn.MeasuredLinear(3, 2), tp.randn(1, 3)), "1")

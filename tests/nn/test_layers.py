import numpy as np

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import functional as F
from tinyprop import nn


def test_layers_are_the_functions(backend, rng):
    x = tp.tensor(rng.normal(size=(2, 3, 7, 8)).astype(np.float32), backend=backend)
    linear = nn.Linear(8, 3).to(backend)
    linear.bias.data += 1.0
    np.testing.assert_array_equal(linear(x).numpy(), F.linear(x, linear.weight, linear.bias).numpy())
    assert [n for n, _ in nn.Linear(4, 3, bias=False).named_parameters()] == ["weight"]
    conv = nn.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0)).to(backend)
    np.testing.assert_array_equal(conv(x).numpy(), F.conv2d(x, conv.weight, conv.bias, 2, (1, 0)).numpy())
    conv = nn.Conv2d(3, 6, 2, dilation=2, groups=3, bias=False).to(backend)
    assert conv.weight.shape == (6, 1, 2, 2)
    np.testing.assert_array_equal(conv(x).numpy(), F.conv2d(x, conv.weight, dilation=2, groups=3).numpy())
    assert_explained(ValueError, lambda: nn.Conv2d(3, 4, 2, groups=2), "Conv2d(3, 4, groups=2)")
    np.testing.assert_array_equal(nn.MaxPool2d(3, 2, 1)(x).numpy(), F.max_pool2d(x, 3, 2, 1).numpy())
    out = nn.AvgPool2d(3, 2, 1, count_include_pad=False)(x)
    np.testing.assert_array_equal(out.numpy(), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).numpy())
    assert nn.Flatten()(x).shape == (2, 3 * 7 * 8)


def test_activations():
    x = tp.tensor([-2.0, 0.5])
    for layer, expected in [
        (nn.ReLU(), F.relu(x)), (nn.LeakyReLU(a=0.2), F.leaky_relu(x, 0.2)), (nn.Tanh(), F.tanh(x)),
        (nn.ELU(alpha=2.0), F.elu(x, 2.0)), (nn.GELU(), F.gelu(x)), (nn.Identity(), x), (nn.SELU(), F.selu(x)),
        (nn.Sigmoid(), F.sigmoid(x)), (nn.SiLU(), F.silu(x)), (nn.Softplus(), F.softplus(x)),
        (nn.Hardtanh(), F.hardtanh(x)), (nn.Activation("sin"), F.sin(x)),
    ]:  # fmt: skip
        np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())
        assert isinstance(layer, nn.Activation)
    assert_explained(ValueError, lambda: nn.Activation("step"), "'step'", "relu, prelu")


def test_prelu_has_one_slope_or_one_for_each_channel(rng):
    x = tp.tensor(-np.ones((2, 3, 2, 2), np.float32))
    layer = nn.PReLU(3)
    layer.a.data[...] = [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(layer(x).numpy()[0, :, 0, 0], [0.0, -1.0, -2.0])
    layer(x).backward(np.ones(x.shape, np.float32))
    assert layer.a.grad.numpy().tolist() == [-8.0, -8.0, -8.0]


def test_wrong_shapes_get_a_hint_that_helps():
    """Channels last, no batch axis, no Flatten: the three mistakes everybody makes."""
    images = tp.tensor(np.zeros((2, 8, 8, 3), np.float32))
    for layer in (nn.Conv2d(3, 4, 3), nn.NormPropConv2d(3, 4, 3)):
        assert_explained(tp.ShapeError, lambda layer=layer: layer(images), "(2, 8, 8, 3)", "transpose(0, 3, 1, 2)")
        assert_explained(
            tp.ShapeError, lambda layer=layer: layer(tp.tensor(np.zeros((3, 8, 8), np.float32))), "batch axis"
        )
    for layer in (nn.Linear(192, 2), nn.NormPropLinear(192, 2)):
        assert_explained(tp.ShapeError, lambda layer=layer: layer(images), "Flatten")


def test_dropout_follows_its_mode(backend):
    tp.manual_seed(0)
    x, layer = tp.tensor(np.ones(100, np.float32), backend=backend), nn.Dropout(0.2)
    assert nn.Dropout().p == 0.5
    assert set(np.unique(layer(x).numpy())) == {np.float32(0.0), np.float32(1.25)}
    assert layer.eval()(x) is x
    for p in (1.0, -0.1, float("nan")):
        assert_explained(ValueError, lambda p=p: nn.Dropout(p), f"Dropout(p={p})", "probability")

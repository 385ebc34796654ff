import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.data import BatchNormalizer, GlobalNormalizer


@given(
    st.integers(1, 2500),
    st.sampled_from([np.uint8, np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
)
def test_global_statistics_are_those_of_the_whole_set(n, dtype, seed):
    rng = np.random.default_rng(seed)
    samples = rng.normal(100, 20, size=(n, 2, 3)).clip(0, 255).astype(dtype)
    layer = GlobalNormalizer((2, 3)).fit(samples)
    np.testing.assert_allclose(layer.mean.numpy(), samples.astype(float).mean(axis=0), rtol=1e-6)
    std = samples.astype(float).std(axis=0)
    np.testing.assert_allclose(layer.std.numpy(), np.where(std == 0, 1, std), rtol=1e-5)


def test_global_output_is_normalised(backend, rng):
    samples = rng.integers(0, 256, size=(3000, 3, 2, 2)).astype(np.uint8)
    with tp.use_backend(backend):
        # samples stay on the host, statistics go to the layer
        layer = GlobalNormalizer((3, 2, 2)).fit(samples)
    assert layer.mean.backend == layer.std.backend == backend
    out = layer(tp.tensor(samples, backend=backend))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.numpy().mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(out.numpy().std(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize("value", [0, 255, 0.1, 1e6])
def test_features_that_never_change_become_zero(value):
    samples = np.full((1200, 2), value, np.float32)
    samples[:, 1] = np.arange(1200)
    out = GlobalNormalizer((2,)).fit(samples)(tp.tensor(samples)).numpy()
    np.testing.assert_allclose(out[:, 0], 0, atol=1e-6)
    out = BatchNormalizer((2,))(tp.tensor(samples)).numpy()
    np.testing.assert_allclose(out[:, 0], 0, atol=1e-6)


def test_batch_output_is_normalised_and_running_estimates_serve_for_validation(backend, rng):
    layer = BatchNormalizer((4,)).to(backend)
    for _ in range(200):
        out = layer(tp.tensor(rng.normal(3, 2, size=(50, 4)).astype(np.float32), backend=backend))
    np.testing.assert_allclose(out.numpy().mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(out.numpy().std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(layer.mean.numpy(), 3, atol=0.3)
    np.testing.assert_allclose(layer.std.numpy(), 2, atol=0.3)
    before = {name: tp.Tensor(value).numpy() for name, value in layer.state_dict().items()}
    valid = layer.eval()(tp.tensor(np.full((1, 4), 3.0, np.float32), backend=backend))
    np.testing.assert_allclose(valid.numpy(), 0, atol=0.2)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(tp.Tensor(value).numpy(), before[name])


def test_the_running_standard_deviation_is_that_of_an_unbiased_variance(backend, rng):
    """A batch of three: divided by 2, not by 3, and then the root."""
    batch = rng.normal(3, 2, size=(3, 4)).astype(np.float32)
    layer = BatchNormalizer((4,), momentum=1.0).to(backend)
    layer(tp.tensor(batch, backend=backend))
    np.testing.assert_allclose(layer.mean.numpy(), batch.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(layer.std.numpy(), batch.std(axis=0, ddof=1), rtol=1e-5)


def test_wrong_shapes_are_refused():
    layer = BatchNormalizer((5,))
    one = tp.tensor(np.ones((1, 5), np.float32))
    assert repr(layer) == "BatchNormalizer((5,))"
    with pytest.raises(tp.ShapeError, match=r"(?s)1 sample.*rule:.*0/0.*try:.*GlobalNormalizer"):
        layer(one)
    layer.eval()(one)
    for call in (
        lambda x: GlobalNormalizer((3,)).fit(x),
        lambda x: GlobalNormalizer((3,))(tp.tensor(x)),
    ):
        with pytest.raises(tp.ShapeError, match=r"(?s)\(5, 4\).*rule:.*3.*try:"):
            call(np.ones((5, 4), np.float32))
    with pytest.raises(tp.ShapeError, match="N >= 1"):
        GlobalNormalizer((3,)).fit(np.ones((0, 3), np.float32))


def test_it_is_saved_with_the_network(tmp_path, rng):
    samples = rng.normal(5, 3, size=(100, 3, 4, 4)).astype(np.float32)
    spec = "C(4,3,1,1)-C(2,1,1,0)-P(4,4,0,avg)"
    net = tp.nn.Sequential(GlobalNormalizer((3, 4, 4)).fit(samples), *tp.nn.build(spec))
    tp.save(tmp_path / "net.safetensors", net.state_dict())
    other = tp.nn.Sequential(GlobalNormalizer((3, 4, 4)), *tp.nn.build(spec))
    with pytest.raises(
        tp.StateError, match=r"(?s)got: .*never fitted.*rule: .*try: .*fit\(images\)"
    ):
        other(tp.tensor(samples))
    assert repr(other[0]) == "GlobalNormalizer((3, 4, 4), not fitted)"
    other.load_state_dict(tp.load(tmp_path / "net.safetensors"))
    assert repr(other[0]) == repr(net[0]) == "GlobalNormalizer((3, 4, 4))"
    np.testing.assert_array_equal(
        other(tp.tensor(samples)).numpy(), net(tp.tensor(samples)).numpy()
    )


def test_looking_at_signals_moves_no_estimates():
    normalizer = BatchNormalizer((2,))
    tp.nn.signals(tp.nn.Sequential(normalizer), tp.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert (normalizer.mean.tolist(), normalizer.std.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_a_standard_deviation_that_float32_cannot_hold_is_refused():
    far = 1.7e9 + np.random.default_rng(0).integers(-1000, 1000, (500, 1))
    assert_explained(ValueError, lambda: GlobalNormalizer((1,)).fit(far), "subtract")
    # constant, up to rounding
    assert GlobalNormalizer((1,)).fit(np.full((5000, 1), 0.1)).std.item() == 1.0


def test_per_channel_all_pixels_share_a_mean_and_a_deviation(rng, backend):
    """Against the mean and deviation of all pixels of a channel at once."""
    images = rng.normal(100.0, 20.0, (50, 3, 4, 5)).astype("float32")
    images += 30.0 * rng.standard_normal((3, 4, 5)).astype("float32")  # pixels differ
    x = tp.tensor(images).to(backend)
    layer = GlobalNormalizer((3, 4, 5)).to(backend).fit(x.data, per_channel=True)
    expected = (images - images.mean(axis=(0, 2, 3), keepdims=True)) / images.std(
        axis=(0, 2, 3), keepdims=True
    )
    np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-4)


def test_vectors_have_no_channels():
    layer = GlobalNormalizer((5,))
    words = ("per_channel=True", "(5,)", "(C, H, W)", "per_channel=False")
    samples = np.random.default_rng(0).random((4, 5), "float32")
    assert_explained(tp.ShapeError, lambda: layer.fit(samples, per_channel=True), *words)

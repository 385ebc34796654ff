"""Settings for what the paper leaves open: on what decay acts, the output layer, the constraint."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.train import Config, Run

TINY = {"width": 0.04, "epochs": 1, "train_size": 40, "test_size": 20, "batch_size": 20}


def run_of(tmp_path, **changes):
    return Run(Config(**{**TINY, **changes}), tmp_path, say=lambda line: None)


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_decay_on_weights_alone_leaves_gains_and_biases(tmp_path, optimizer):
    """Without any other gradient, what decays shrinks, and what does not stays."""
    run = run_of(tmp_path, optimizer=optimizer, decay_on="weights", weight_decay=0.5, norm="batch")
    before = {name: p.numpy().copy() for name, p in run.model.named_parameters()}
    for p in run.model.parameters():
        p.grad = tp.zeros(*p.shape)
    run.optimizer.step()
    for name, p in run.model.named_parameters():
        is_weight = p.ndim > 1
        changed = not np.array_equal(p.numpy(), before[name])
        assert changed == is_weight, name


def test_decay_on_all_is_the_default(tmp_path):
    run = run_of(tmp_path, norm="batch", weight_decay=0.5)
    for p in run.model.parameters():
        p.data[...] = 1.0
        p.grad = tp.zeros(*p.shape)
    run.optimizer.step()
    assert all((p.numpy() < 1.0).all() for p in run.model.parameters())


def test_rmsprop_forgets_as_fast_as_alpha_says(tmp_path):
    assert run_of(tmp_path, optimizer="rmsprop").optimizer.alpha == 0.99
    assert run_of(tmp_path, optimizer="rmsprop", alpha=0.9).optimizer.alpha == 0.9


@pytest.mark.parametrize("unconstrained", [False, True])
def test_without_the_constraint_filters_grow(tmp_path, unconstrained):
    run = run_of(tmp_path, unconstrained=unconstrained, weight_decay=0.0, lr=0.1)
    assert run.run()
    layers = [layer for layer in run.model.modules() if isinstance(layer, nn.NormPropConv2d)]
    squares = [(layer.weight.numpy() ** 2).sum(axis=(1, 2, 3)) for layer in layers]
    lengths = np.sqrt(np.concatenate(squares))
    assert np.allclose(lengths, 1.0, atol=1e-5) != unconstrained


def test_a_normalised_output_layer_has_logits_of_variance_one(tmp_path, rng):
    """For inputs of variance 1; gamma of an identity starts at 1."""
    plain, normalized = (
        run_of(tmp_path / output, output=output).model for output in ("linear", "normprop")
    )
    assert isinstance(plain[-3], nn.Conv2d)
    layer = normalized[-3]
    assert isinstance(layer, nn.NormPropConv2d)
    x = tp.tensor(rng.standard_normal((500, layer.in_channels, 4, 4)).astype("float32"))
    logits = layer(x).numpy()
    assert logits.std() == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(layer.weight.numpy(), plain[-3].weight.numpy())


def test_measured_moments_by_name(tmp_path):
    run = run_of(tmp_path, norm="normprop-measured", refresh=1, fixed_images=10)
    assert run.run()
    layers = [layer for layer in run.model.modules() if isinstance(layer, nn.MeasuredConv2d)]
    assert len(layers) == 8
    assert all(len(layer.kept) == 10 for layer in layers)

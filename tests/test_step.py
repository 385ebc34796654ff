"""The training step: the gradient of a batch is the sum over its parts."""

import os
import signal
import warnings

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.step import TrainingStep, evaluate, logits

SPEC = "C(8,3,1,1)-P(2,2,0,max)-C(8,3,1,1)-C(4,1,1,0)-P(4,4,0,avg)"


def batch(rng, n):
    return rng.normal(size=(n, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, n)


def trained(threads, x, labels, steps=3, backend="numpy", norm="normprop"):
    tp.manual_seed(0)
    net = nn.build(SPEC, norm=norm).to(backend)
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05, weight_decay=0.001), threads)
    losses = [float(step(x, labels)) for _ in range(steps)]
    return losses, {k: tp.Tensor(v).numpy() for k, v in net.state_dict().items()}


@pytest.mark.parametrize("n", [1, 2, 7, 50, 101])
def test_parts_give_the_gradient_of_the_whole(rng, n):
    """To 1e-5: sums are only taken in another order."""
    x, labels = batch(rng, n)
    losses, serial = trained(1, x, labels)
    for threads in (2, 3):
        parallel_losses, parallel = trained(threads, x, labels)
        np.testing.assert_allclose(parallel_losses, losses, rtol=1e-5)
        for k, v in serial.items():
            np.testing.assert_allclose(parallel[k], v, rtol=1e-4, atol=1e-6, err_msg=k)


def test_the_same_threads_give_the_same_bits(rng):
    x, labels = batch(rng, 60)
    first, second = trained(3, x, labels), trained(3, x, labels)
    assert first[0] == second[0]
    assert all((second[1][k] == v).all() for k, v in first[1].items())


def test_the_step_is_what_it_says(rng):
    """Forward, backward, update with momentum and decay, unit length: written out by hand."""
    x, labels = batch(rng, 6)
    _, ours = trained(1, x, labels, steps=2)
    tp.manual_seed(0)
    net = nn.build(SPEC)
    velocity = {k: 0.0 for k, _ in net.named_parameters()}
    for _ in range(2):
        loss = tp.functional.cross_entropy(net(tp.tensor(x)), labels)
        loss.backward()
        for k, p in net.named_parameters():
            velocity[k] = 0.9 * velocity[k] + p.grad.data + np.float32(0.001) * p.data
            p.data = p.data - np.float32(0.05) * velocity[k]
            p.grad = None
        for layer in net:
            if isinstance(layer, nn.NormPropConv2d):
                w = layer.weight.data
                layer.weight.data = w / np.sqrt((w**2).sum(axis=(1, 2, 3), keepdims=True))
    for k, v in net.state_dict().items():
        np.testing.assert_allclose(ours[k], v, rtol=1e-4, atol=1e-6, err_msg=k)


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_it_learns_on_every_backend(backend, norm, rng):
    x, labels = batch(rng, 20)
    losses, state = trained(None, x, labels, steps=12, backend=backend, norm=norm)
    assert losses[-1] < losses[0]
    assert all(v.dtype == np.float32 for v in state.values())


def test_networks_that_need_the_whole_batch_are_refused(rng):
    x, labels = batch(rng, 8)
    for net, name in [
        (nn.build(SPEC, norm="batch"), "BatchNorm"),
        (nn.Sequential(tp.data.BatchNormalizer((3, 8, 8)), *nn.build(SPEC)), "BatchNormalizer"),
        (nn.Sequential(nn.Dropout(0.5), *nn.build(SPEC)), "Dropout"),
    ]:
        optimizer = tp.optim.SGD(net.parameters(), 0.05)
        with pytest.raises(ValueError, match=rf"(?s)threads=2.*{name} needs the batch in one piece.*try:"):
            TrainingStep(net, optimizer, threads=2)
        TrainingStep(net, optimizer)(x, labels)
    with pytest.raises(ValueError, match=r"(?s)threads=0.*at least 1"):
        TrainingStep(nn.build(SPEC), optimizer, threads=0)


def test_the_loss_is_an_array_on_the_device(backend, rng):
    x, labels = batch(rng, 4)
    net = nn.build(SPEC).to(backend)
    loss = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05))(tp.tensor(x), labels)
    assert loss.shape == ()
    assert tp.Tensor(loss).backend == backend


def test_wrong_labels_are_refused_before_anything_changes(rng):
    x, labels = batch(rng, 40)
    net = nn.build(SPEC)
    before = net.state_dict()
    with pytest.raises(IndexError, match=r"(?s)4 classes"):
        TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05))(x, labels + 4)
    assert all((v == before[k]).all() for k, v in net.state_dict().items())


def test_a_loss_that_is_not_finite_stops_before_the_update(rng):
    x, labels = batch(rng, 30)
    net = nn.build(SPEC)
    before = net.state_dict()
    net[2].gamma.data[...] = np.inf
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05))
    with (
        np.errstate(all="ignore"),
        pytest.raises(tp.DivergenceError, match=r"(?s)layer 2, NormPropConv2d.*rule:.*try:"),
    ):
        step(x, labels)
    assert all((v == before[k]).all() for k, v in net.state_dict().items() if k != "2.gamma")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_evaluation_is_that_of_the_whole_set_and_leaves_the_mode(backend, rng, threads):
    x, labels = batch(rng, 61)
    net = nn.Sequential(*nn.build(SPEC, norm="batch"), nn.Dropout(0.5)).to(backend)
    net[0].training = False
    out = logits(net, x, threads)
    expected = nn.Sequential(*net).eval()(tp.tensor(x, backend=backend)).numpy()
    net.train()
    net[0].training = False
    np.testing.assert_allclose(tp.Tensor(out).numpy(), expected, rtol=1e-4, atol=1e-5)
    loss, error = evaluate(net, x, labels, threads)
    assert error == pytest.approx((expected.argmax(axis=1) != labels).mean())
    assert loss == pytest.approx(tp.functional.cross_entropy(tp.tensor(expected), labels).item(), rel=1e-4)
    assert [m.training for m in net][:2] == [False, True]


def test_what_holds_outside_holds_in_the_threads(rng):
    """exact_convolution() and no_grad() reach the workers: tiles would differ in the last digits."""
    x, _ = batch(rng, 60)
    net = nn.build("C(64,3,1,1)-C(64,3,1,1)-C(4,1,1,0)-P(8,8,0,avg)")
    with tp.functional.exact_convolution():
        exact, whole = logits(net, x, threads=2), logits(net, x, threads=1)
    tiles = logits(net, x, threads=2)
    assert np.abs(exact - whole).max() <= np.abs(exact - tiles).max()
    assert (exact != tiles).any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_step_works_in_a_process_that_was_forked_off(rng):
    """A process inherits no threads: the child must not wait for those of its parent."""
    x, labels = batch(rng, 8)
    net = nn.build(SPEC)
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=2)
    step(x, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks where there are threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        step(x, labels)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_no_images_have_no_logits():
    assert logits(nn.build(SPEC), np.zeros((0, 3, 8, 8), np.float32)).shape == (0, 4)

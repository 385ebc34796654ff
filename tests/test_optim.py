"""Optimisers against PyTorch's, schedules, and the unit-length constraint."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn
from tinyprop.optim import SGD, HalveEvery, HalveOnPlateau, RMSProp, normalize_weights


def start(rng, backend):
    arrays = [rng.normal(size=s).astype(np.float32) for s in [(5, 3), (40_000,), ()]]
    return [tp.tensor(a.copy(), requires_grad=True, backend=backend) for a in arrays], arrays


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.0}),
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
        (RMSProp, "RMSprop", {"lr": 0.01}),
        (RMSProp, "RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05}),
    ],
)
def test_steps_are_pytorchs(ours, theirs, settings, rng):
    torch = pytest.importorskip("torch")
    params, arrays = start(rng, "numpy")
    torch_params = [torch.tensor(a, requires_grad=True) for a in arrays]
    optimizer, other = ours(params, **settings), getattr(torch.optim, theirs)(torch_params, **settings)
    for _ in range(5):
        for p, q in zip(params, torch_params, strict=True):
            g = rng.normal(size=p.shape).astype(np.float32)
            p.grad, q.grad = tp.tensor(g), torch.tensor(g)
        optimizer.step()
        other.step()
    for p, q in zip(params, torch_params, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_updates_are_in_place_and_the_same_on_every_backend(backend, rng):
    params, arrays = start(rng, backend)
    memory = [p.data for p in params]
    optimizer = SGD(params, lr=0.1, weight_decay=0.01)
    for _ in range(2):
        for p in params:
            p.grad = tp.Tensor(p.data * 0.5)
        optimizer.step()
    assert all(p.data is m and p.dtype == np.float32 for p, m in zip(params, memory, strict=True))
    first = 1 - 0.1 * 0.51
    expected = first - 0.1 * (0.9 * 0.51 + 0.51 * first)
    for p, a in zip(params, arrays, strict=True):
        np.testing.assert_allclose(p.numpy(), a * expected, rtol=1e-5)


def test_any_memory_layout_is_updated(rng):
    for array in (
        np.zeros((3, 4), np.float32).T,
        np.zeros((6, 4), np.float32)[::2],
        np.zeros((4, 5, 6), np.float32).transpose(2, 0, 1),
    ):
        p = tp.tensor(array, requires_grad=True)
        g = rng.normal(size=p.shape).astype(np.float32)
        p.grad = tp.tensor(g)
        SGD([p], lr=1.0, momentum=0.0).step()
        np.testing.assert_array_equal(array, -g)


def test_parameters_without_gradient_stay(rng):
    params, arrays = start(rng, "numpy")
    SGD(params, lr=0.1, weight_decay=0.1).step()
    assert all((p.numpy() == a).all() for p, a in zip(params, arrays, strict=True))


def test_a_parameter_that_a_graph_needs_is_not_updated():
    p = tp.tensor([1.0], requires_grad=True)
    p.name = "weight"
    unfinished = p * p
    p.grad = tp.tensor([1.0])
    with pytest.raises(tp.BackendError, match=r"(?s)weight.*rule:.*still needs"):
        SGD([p], lr=0.1).step()
    del unfinished


@pytest.mark.parametrize("settings", [{"lr": -1.0}, {"lr": float("nan")}, {"lr": 0.1, "momentum": -0.1}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=r"(?s)got:.*rule:.*try:"):
        SGD([tp.tensor([1.0])], **settings)
    with pytest.raises(ValueError, match="without parameters"):
        SGD([], lr=0.1)


def test_a_state_brings_the_optimiser_back(rng):
    params, _ = start(rng, "numpy")
    a = SGD(params, lr=0.1)
    for p in params:
        p.grad = tp.Tensor(p.data * 0.5)
    a.step()
    b = SGD(params, lr=0.1)
    b.load_state_dict(a.state_dict())
    assert all((x == y).all() for x, y in zip(a.memory, b.memory, strict=True))
    with pytest.raises(tp.StateError, match=r"(?s)another optimiser.*rule:.*try:"):
        SGD(params[:1], lr=0.1).load_state_dict(a.state_dict())


def rates(schedule, errors):
    optimizer, seen = SGD([tp.tensor([1.0])], lr=1.0), []
    for error in errors:
        seen.append(optimizer.lr)
        schedule.epoch_ended(optimizer, error)
    return seen


def test_halving_every_n_epochs():
    assert rates(HalveEvery(2), [0.0] * 6) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_halving_on_a_plateau():
    assert rates(HalveOnPlateau(2), [9, 8, 8, 8, 7, 7, 7, 7]) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]


def test_schedules_refuse_nonsense():
    for wrong in (lambda: HalveEvery(0), lambda: HalveOnPlateau(0)):
        with pytest.raises(ValueError, match=r"(?s)got:.*rule:.*try:"):
            wrong()


def test_the_constraint_scales_hidden_weights_and_changes_no_output(backend, rng):
    net = nn.Sequential(nn.NormPropConv2d(3, 4, 3), nn.Flatten(), nn.NormPropLinear(16, 5), nn.Linear(5, 2)).to(backend)
    for p in net.parameters():
        p.data *= 3.0
    x = tp.tensor(rng.normal(size=(2, 3, 4, 4)).astype(np.float32), backend=backend)
    before, last = net(x).numpy(), net[3].weight.numpy().copy()
    normalize_weights(net)
    for layer in (net[0], net[2]):
        w = layer.weight.numpy().reshape(len(layer.weight), -1)
        np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(net(x).numpy(), before, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(net[3].weight.numpy(), last)

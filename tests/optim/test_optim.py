import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.optim import (
    SGD,
    Adam,
    HalveEvery,
    HalveOnPlateau,
    RMSProp,
    normalize_weights,
)


def start(rng, backend):
    arrays = [rng.normal(size=s).astype(np.float32) for s in [(5, 3), (40_000,), ()]]
    return [tp.tensor(a.copy(), requires_grad=True, backend=backend) for a in arrays], arrays


@pytest.mark.slow  # to import PyTorch takes seconds
@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.0}),
        (SGD, "SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
        (RMSProp, "RMSprop", {"lr": 0.01}),
        (RMSProp, "RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05}),
        (Adam, "Adam", {"lr": 0.01}),
        (Adam, "Adam", {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.05}),
    ],
)
def test_steps_are_pytorchs(ours, theirs, settings, rng):
    torch = pytest.importorskip("torch")
    params, arrays = start(rng, "numpy")
    torch_params = [torch.tensor(a, requires_grad=True) for a in arrays]
    optimizer = ours(params, **settings)
    other = getattr(torch.optim, theirs)(torch_params, **settings)
    for step in range(5):
        for i, (p, q) in enumerate(zip(params, torch_params, strict=True)):
            if i == 0 and step == 1:
                p.grad = q.grad = None  # this parameter sits out a step
                continue
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
        p = tp.from_numpy(array, requires_grad=True)
        g = rng.normal(size=p.shape).astype(np.float32)
        p.grad = tp.tensor(g)
        SGD([p], lr=1.0, momentum=0.5).step()
        np.testing.assert_array_equal(array, -g)


def test_a_parameter_that_a_graph_needs_is_not_updated():
    p = tp.tensor([1.0], requires_grad=True)
    p.name = "weight"
    unfinished = p * p
    p.grad = tp.tensor([1.0])
    assert_explained(tp.EditError, SGD([p], lr=0.1).step, "weight", "still needs")
    del unfinished


def test_an_optimizer_follows_a_network_to_another_dtype(backend):
    net = nn.Linear(2, 2)
    optimizer = Adam(net.parameters())
    net.to(backend, np.float64)
    for p in net.parameters():
        p.grad = tp.Tensor(p.data * 0.5)
    optimizer.step()
    assert all(m.dtype == np.float64 for arrays in optimizer.memory.values() for m in arrays)


def leaf(value=1.0):
    return tp.tensor([value], requires_grad=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD([leaf()], lr=-1.0), "lr=-1.0"),
        (lambda: SGD([leaf()], lr=float("nan")), "lr=nan"),
        (lambda: SGD([leaf()], lr=float("inf")), "lr=inf"),
        (lambda: RMSProp([leaf()], eps=float("inf")), "eps=inf"),
        (lambda: SGD([leaf()], lr=0.1, momentum=-0.1), "momentum=-0.1"),
        (lambda: Adam([leaf()], betas=(0.9, 1.0)), "betas=(0.9, 1.0)"),
        (lambda: SGD([], lr=0.1), "SGD without parameters"),
        (lambda: SGD([leaf() * 2], lr=0.1), "parameters are leaves"),
        (lambda: SGD([tp.tensor([1.0])], lr=0.1), "does not require a gradient"),
        (lambda: SGD(nn.Sequential(nn.Linear(2, 2)), lr=0.1), "SGD(net.parameters())"),
        (lambda: Adam(leaf()), "Adam([w])"),
        (lambda: SGD(nn.Linear(2, 2).named_parameters(), lr=0.1), "a tuple"),
        (lambda: SGD([{"params": [leaf()]}], lr=0.1), "a dict"),
        *((lambda f=f: f(0), "0") for f in (HalveEvery, HalveOnPlateau)),
    ],
)
def test_bad_values_are_refused(make, words):
    assert_explained((ValueError, TypeError), make, words)


@pytest.mark.parametrize("lr", [float("inf"), float("nan"), -0.1])
@pytest.mark.parametrize("kind", [SGD, RMSProp, Adam])
def test_a_rate_that_was_changed_to_nonsense_updates_nothing(kind, lr):
    w = leaf()
    optimizer = kind([w], lr=0.1)
    w.grad = tp.tensor([1.0])
    optimizer.lr = lr
    assert_explained(ValueError, optimizer.step, f"lr={lr}")
    assert w.item() == 1.0


def test_a_parameter_that_is_given_twice_is_updated_once():
    w = leaf()
    assert len(SGD([w, w], lr=0.1).params) == 1


@pytest.mark.parametrize("kind", [SGD, RMSProp, Adam])
def test_a_state_brings_the_optimizer_back(kind, rng):
    """After a step, a state is loaded into a new optimizer; both then take the same second step."""
    params, _ = start(rng, "numpy")
    first = kind(params, lr=0.1)
    gradients = [rng.normal(size=p.shape).astype(np.float32) for p in params]
    for p, g in zip(params, gradients, strict=True):
        p.grad = tp.tensor(g)
    first.step()
    copies = [tp.tensor(p.detach(), requires_grad=True) for p in params]
    second = kind(copies, lr=0.1)
    second.load_state_dict(first.state_dict())
    for p, q, g in zip(params, copies, gradients, strict=True):
        p.grad, q.grad = tp.tensor(g), tp.tensor(g)
    first.step()
    second.step()
    assert all((p.numpy() == q.numpy()).all() for p, q in zip(params, copies, strict=True))


def test_the_state_of_another_optimizer_is_refused(rng):
    params, arrays = start(rng, "numpy")
    sgd = SGD(params, lr=0.1)
    rmsprop = RMSProp(params)
    adam = Adam(params)
    for into, state in [
        (SGD(params[:1], lr=0.1), sgd.state_dict()),
        (rmsprop, sgd.state_dict()),
        (adam, rmsprop.state_dict()),
        (sgd, adam.state_dict()),
        (sgd, {f"memory.{i}": a for i, a in enumerate(arrays)}),  # of tinyprop 0.1
    ]:
        assert_explained(
            tp.StateError,
            lambda into=into, state=state: into.load_state_dict(state),
            "another optimizer",
        )
    counts = adam.state_dict()
    del counts["steps"]
    assert_explained(tp.StateError, lambda: adam.load_state_dict(counts), "step counts")


def rates(schedule, errors):
    optimizer = SGD([leaf()], lr=1.0)
    seen = []
    for error in errors:
        seen.append(optimizer.lr)
        schedule.epoch_ended(optimizer, error)
    return seen


@pytest.mark.parametrize(
    ("schedule", "errors", "expected"),
    [
        (HalveEvery(2), [0.0] * 6, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
        (HalveOnPlateau(2), [9, 8, 8, 8, 7, 7, 7, 7], [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]),
    ],
)
def test_schedules(schedule, errors, expected):
    assert rates(schedule, errors) == expected


def test_the_constraint_scales_hidden_weights_and_changes_no_output(backend, rng):
    net = nn.Sequential(
        nn.NormPropConv2d(3, 4, 3), nn.Flatten(), nn.NormPropLinear(16, 5), nn.Linear(5, 2)
    ).to(backend)
    for p in net.parameters():
        p.data *= 3.0
    x = tp.tensor(rng.normal(size=(2, 3, 4, 4)).astype(np.float32), backend=backend)
    before = net(x).numpy()
    last = net[3].weight.numpy().copy()
    normalize_weights(net)
    for layer in (net[0], net[2]):
        w = layer.weight.numpy().reshape(len(layer.weight), -1)
        np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(net(x).numpy(), before, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(net[3].weight.numpy(), last)


@pytest.mark.parametrize(
    "call",
    [
        lambda: RMSProp([tp.ones(3, requires_grad=True)], alpha=1.5),
        lambda: HalveEvery(2.5),
        lambda: HalveOnPlateau(2.5),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call):
    assert_explained(ValueError, call)


def test_a_gradient_of_another_shape_is_not_spread():
    w = tp.ones(3, requires_grad=True)
    w.grad = tp.ones(1)
    assert_explained(tp.ShapeError, SGD([w], lr=0.1).step, "(1,)", "(3,)")

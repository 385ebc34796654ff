"""The training step: what it computes, the same bits on any number of threads, and evaluation."""

import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import tinyprop as tp
from tests import helpers
from tests.conftest import needs_kernels
from tests.helpers import assert_explained
from tinyprop import functional as F
from tinyprop import nn
from tinyprop.train import TrainingStep, evaluate, logits, step

SPEC = "C(8,3,1,1)-P(2,2,0,max)-C(8,3,1,1)-C(4,1,1,0)-P(4,4,0,avg)"


def batch(rng, n):
    return rng.normal(size=(n, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, n)


def trained(threads, x, labels, steps=3, norm="normprop", seed=0, **options):
    tp.manual_seed(seed)
    optimizer = partial(tp.optim.SGD, weight_decay=0.001)
    return helpers.trained(
        nn.build(SPEC, norm=norm), x, labels, steps, 0.05, optimizer, threads=threads, **options
    )


def assert_threads_agree(steps, numbers=(2, 3)):
    """The losses and the state of steps(threads) have the same bits for any number of threads."""
    losses, whole = steps(1)
    for threads in numbers:
        np.testing.assert_equal(steps(threads), (losses, whole))
    return losses


@pytest.mark.parametrize("n", [1, 2, 7, 50, 101])
def test_threads_give_the_bits_of_one(rng, n, monkeypatch):
    """And a library does not change the allocator of the whole process unless it is asked to."""
    monkeypatch.setattr(step, "keep_freed_memory", lambda: pytest.fail("not asked for"))
    x, labels = batch(rng, n)
    assert_threads_agree(lambda threads: trained(threads, x, labels))


def across_the_batch(outputs, labels):
    """A loss that no part of a batch has."""
    return (outputs - outputs.mean(axis=0)).norm() + F.cross_entropy(outputs, labels)


@pytest.mark.parametrize(
    "loss",
    [
        partial(F.cross_entropy, label_smoothing=0.1),
        partial(F.cross_entropy, reduction="sum"),
        lambda out, labels: F.cross_entropy(out[1:], labels[1:]),
        across_the_batch,
    ],
    ids=["smoothed", "sum", "some labels", "across the batch"],
)
def test_any_loss_will_do(rng, loss):
    x, labels = batch(rng, 70)
    labels[:4] = -100  # F.cross_entropy ignores these
    losses = assert_threads_agree(lambda threads: trained(threads, x, labels, loss=loss))
    tp.manual_seed(0)
    assert losses[0] == pytest.approx(loss(nn.build(SPEC)(tp.tensor(x)), labels).item(), rel=1e-5)


class Strange(nn.Module):
    """Looks across the batch, draws random numbers and counts its calls."""

    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        mean, var = (tp.zeros(x.shape[1]) for _ in range(2))
        x = F.batch_norm(x - x.mean(axis=0), mean, var + 1.0, training=True)
        return F.dropout(x, 0.3) * (1.0 + 0.1 * self.calls)


def test_any_module_will_do(rng):
    x, labels = batch(rng, 70)

    def steps(threads):
        tp.manual_seed(0)
        net = nn.Sequential(Strange(), *nn.build(SPEC), nn.Dropout(0.2))
        result = helpers.trained(net, x, labels, 3, 0.05, tp.optim.SGD, threads=threads)
        assert net[0].calls == 3
        return result

    assert_threads_agree(steps)


def test_a_loss_is_a_function_that_returns_a_scalar(rng):
    x, labels = batch(rng, 4)
    net = nn.build(SPEC)
    optimizer = tp.optim.SGD(net.parameters(), 0.05)
    assert_explained(TypeError, lambda: TrainingStep(net, optimizer, 2), "loss=2", "threads=2")
    for loss, words in [
        (lambda out, labels: out, "a loss of shape (4, 4)"),
        (lambda out, labels: 1.0, "a float as a loss"),
    ]:
        assert_explained(
            ValueError, lambda loss=loss: TrainingStep(net, optimizer, loss, 2)(x, labels), words
        )


def test_the_step_is_what_it_says(rng):
    """Forward, backward, update with momentum and decay, unit length: written out by hand."""
    x, labels = batch(rng, 6)
    _, ours = trained(1, x, labels, steps=2)
    tp.manual_seed(0)
    net = nn.build(SPEC)
    velocity = {k: 0.0 for k, _ in net.named_parameters()}
    for _ in range(2):
        loss = F.cross_entropy(net(tp.tensor(x)), labels)
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


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("norm", ["batch", "layer", "group", "rms", "weight", "ws", "dyt", "none"])
def test_every_norm_has_the_same_bits_on_any_number_of_threads(rng, norm, plain):
    """Running estimates included."""
    x, labels = batch(rng, 70)

    def steps(threads):
        tp.manual_seed(0)
        net = nn.Sequential(tp.data.BatchNormalizer((3, 8, 8)), *nn.build(SPEC, norm=norm))
        with tp.plain() if plain else nullcontext():
            return helpers.trained(net, x, labels, 2, 0.05, tp.optim.SGD, threads=threads)

    assert_threads_agree(steps)


def test_a_step_that_fails_moves_no_estimate(rng):
    x, labels = batch(rng, 8)

    class Fragile(nn.Module):
        def forward(self, x):
            if (x.data > 10.0).any():
                raise ZeroDivisionError("an outlier")
            return x

    x[-1, 0, 0, 0] = 100.0
    net = nn.Sequential(nn.BatchNorm(3), Fragile(), *nn.build(SPEC, norm="batch"))
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=2)
    before = net.state_dict()
    with pytest.raises(ZeroDivisionError, match="an outlier"):
        step(x, labels)
    np.testing.assert_equal(net.state_dict(), before)
    step(batch(rng, 8)[0], labels)


def test_a_number_of_threads_is_at_least_one():
    net = nn.build(SPEC)
    with pytest.raises(ValueError, match=r"(?s)threads=0.*at least 1"):
        TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=0)


@needs_kernels
def test_products_are_the_same_on_any_number_of_threads(rng, monkeypatch):
    """Large products are cut, whether there are threads or not."""
    monkeypatch.setattr("tinyprop.kernels.weights.MULTIPLICATIONS", 1)
    x, labels = rng.standard_normal((6, 40)).astype("float32"), rng.integers(0, 10, 6)

    def steps(threads):
        tp.manual_seed(0)
        net = nn.Sequential(
            nn.NormPropLinear(40, 30), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10)
        )
        return helpers.trained(net, x, labels, threads=threads)

    assert_threads_agree(steps, (2, 3))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x, y: (x, y + 4), IndexError, ["4 classes"]),
        (
            lambda x, y: (x, y[:-1]),
            ValueError,
            ["x (40, 3, 8, 8) and labels (39,)", "one label per sample"],
        ),
        (lambda x, y: (x[:0], y[:0]), ValueError, ["x (0, 3, 8, 8)", "at least 1"]),
        (
            lambda x, y: (x, np.eye(4)[y]),
            ValueError,
            ["logits (40, 4) and labels (40, 4)", "argmax"],
        ),
        (
            lambda x, y: (x, y.astype(np.float32)),
            ValueError,
            ["labels (40,) of type float32", "astype"],
        ),
        (lambda x, y: (x, y[:, None]), ValueError, ["labels (40, 1)"]),
        (
            lambda x, y: (x.transpose(0, 2, 3, 1), y),
            ValueError,
            ["x (40, 8, 8, 3)", "transpose(0, 3, 1, 2)"],
        ),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_batch_is_refused_in_words_about_the_whole_batch(
    rng, threads, change, error, words
):
    """Not about the parts that the threads have got; and before anything changes."""
    net = nn.build(SPEC)
    before = net.state_dict()
    x, labels = change(*batch(rng, 40))
    train = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=threads)
    assert_explained(error, lambda: train(x, labels), *words)
    assert all((v == before[k]).all() for k, v in net.state_dict().items())


def test_evaluation_refuses_what_does_not_fit_together(rng):
    x, labels = batch(rng, 6)
    net = nn.build(SPEC)
    assert_explained(ValueError, lambda: evaluate(net, x, labels[:-1]), "6 images and 5 labels")
    assert_explained(tp.ShapeError, lambda: evaluate(net, x[:0], labels[:0]), "at least one image")
    assert logits(net, x[:0]).shape == (0, 4)
    with pytest.raises(ValueError, match="channels last") as caught:
        logits(net, x.transpose(0, 2, 3, 1), batch_size=3)
    assert caught.value.__notes__ == ["(in images 0 to 2 of 6)"]


class Centered(nn.Module):
    """Its output for a sample depends on the others."""

    def forward(self, x):
        return x - x.mean(axis=0)


def test_what_depends_on_the_batch_is_not_evaluated_in_pieces(rng):
    x, labels = batch(rng, 100)
    net = nn.Sequential(Centered(), *nn.build(SPEC))
    words = "Centered", "other images of the batch", "batch_size=len(images)", "per_sample = True"
    assert_explained(ValueError, lambda: evaluate(net, x, labels), *words)
    with threadpool_limits(1, user_api="blas"):  # as in an evaluation
        together = net.eval()(tp.tensor(x)).numpy()
    np.testing.assert_array_equal(logits(net, x, batch_size=100), together)
    evaluate(net, x, labels, batch_size=100)


def test_what_treats_each_sample_by_itself_needs_no_declaration(rng):
    class Scaled(nn.Module):
        def forward(self, x):
            calls.append(len(x))
            return 2.0 * x

    calls = []
    x, _ = batch(rng, 100)
    logits(nn.Sequential(Scaled(), *nn.build(SPEC)), x)
    assert calls == [8] + [1] * 8 + [64, 36]  # eight samples are tried, together and alone
    calls.clear()
    Scaled.per_sample = True
    logits(nn.Sequential(Scaled(), *nn.build(SPEC)), x)
    assert calls == [64, 36]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_evaluation_is_that_of_the_whole_set_and_writes_nothing(backend, rng, threads):
    x, labels = batch(rng, 61)
    net = nn.Sequential(*nn.build(SPEC, norm="batch"), nn.Dropout(0.5)).to(backend)
    expected = net.eval()(tp.tensor(x, backend=backend)).numpy()
    net.train()
    net[0].training = False
    before, attributes = net.state_dict(), [dict(vars(m)) for m in net.modules()]
    out = logits(net, x, threads)
    np.testing.assert_allclose(tp.Tensor(out).numpy(), expected, rtol=1e-4, atol=1e-5)
    loss, error = evaluate(net, x, labels, threads)
    assert error == pytest.approx((expected.argmax(axis=1) != labels).mean())
    assert loss == pytest.approx(F.cross_entropy(tp.tensor(expected), labels).item(), rel=1e-4)
    assert [vars(m) for m in net.modules()] == attributes
    assert [m.training for m in net][:2] == [False, True]
    assert all((v == before[k]).all() for k, v in net.state_dict().items())


def test_what_holds_outside_holds_in_the_threads(rng):
    """no_grad(), plain() and exact_convolution() are context variables: the workers see what the
    caller has set."""
    mark, seen = ContextVar("mark", default="unset"), []

    class Watch(nn.Module):
        def forward(self, x):
            seen.append((mark.get(), self.training))
            return x

    mark.set("set by the caller")
    logits(nn.Sequential(Watch(), *nn.build(SPEC)), batch(rng, 4)[0], threads=2)
    assert seen == [("set by the caller", False)]


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


def test_users_in_several_threads_do_not_disturb_each_other(rng):
    """Each trains networks of its own on two threads, and all evaluate one with BatchNorm: every
    bit as alone.

    How many threads OpenBLAS takes is a setting of the whole process, and changes the bits of
    products."""
    x, labels = batch(rng, 24)
    shared = nn.build(SPEC, norm="batch")
    TrainingStep(shared, tp.optim.SGD(shared.parameters(), 0.05))(x, labels)

    def work(seed):
        parts = trained(2, x, labels, seed=seed), trained(2, x, labels, norm="batch", seed=seed)
        return (
            *parts,
            [logits(shared, x, threads=2) for _ in range(5)],
            evaluate(shared, x, labels, threads=1),
        )

    with threadpool_limits(1, user_api="blas"):
        before = shared.state_dict()
        alone = [work(seed) for seed in range(6)]
        with ThreadPoolExecutor(6) as users:
            together = list(users.map(work, range(6)))
    np.testing.assert_equal(together, alone)
    assert all((v == before[k]).all() for k, v in shared.state_dict().items())


def test_a_network_may_evaluate_another_one_in_its_forward(rng):
    """In a worker the parts of an evaluation are not handed to the pool, which might be full of
    such workers."""
    x, labels = batch(rng, 8)
    teacher = nn.build(SPEC)

    class Student(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + logits(teacher, x, threads=2)

    net = Student(*nn.build(SPEC))
    TrainingStep(net, tp.optim.SGD(net.parameters(), 0.05), threads=2)(x, labels)


class Twice(nn.Module):
    def __init__(self):
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm(4)

    def forward(self, x):
        return self.norm(self.layer(x)) + self.layer(x)


@pytest.mark.parametrize(
    ("net", "loss", "words"),
    [
        (
            nn.Sequential(nn.Identity(), nn.Linear(3, 4), nn.BatchNorm(4)),
            F.cross_entropy,
            "layer 1, Linear",
        ),
        (Twice(), F.cross_entropy, "first not finite in Twice"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4)),
            lambda out, labels: F.sqrt(out * 0.0).sum(),
            "gradient",
        ),
    ],
)
def test_what_is_not_finite_updates_nothing(net, loss, words):
    """Neither weights nor BatchNorm's running estimates: for a loss, and for the gradient of a loss
    that is finite."""
    train = TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), loss)
    if loss is F.cross_entropy:
        next(m for m in net.modules() if isinstance(m, nn.Linear)).bias.data[...] = np.inf
    before = net.state_dict()
    x = np.ones((4, 3), np.float32)
    x[0] = 2.0
    with np.errstate(all="ignore"):
        assert_explained(
            tp.DivergenceError, lambda: train(x, [0, 1, 2, 3]), words, "nothing was updated"
        )
    after = net.state_dict()
    assert all((after[name] == before[name]).all() for name in before)


def test_nan_is_not_a_class():
    net = nn.Sequential(nn.Flatten(), nn.Identity())
    assert (
        evaluate(net, np.array([[np.nan, 0.0], [1.0, 0.0]], np.float32), np.array([0, 0]))[1] == 0.5
    )


def test_input_that_is_not_finite_is_told_from_divergence():
    net = tp.nn.Sequential(tp.nn.Linear(3, 2))
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    x = np.ones((4, 3), np.float32)
    x[0, 0] = np.nan
    assert_explained(tp.DivergenceError, lambda: step(x, [0, 1, 0, 1]), "in the input", "samples")


def test_labels_that_do_not_count_are_no_errors():
    logits = np.array([[9.0, 0.0], [9.0, 0.0]], np.float32)
    assert (
        tp.train.evaluate(tp.nn.Sequential(tp.nn.Identity()), logits, np.array([0, -100]))[1] == 0.0
    )


def test_a_layer_that_is_replaced_between_steps_is_constrained_too(rng):
    """The step keeps its lists of tensors until a module is edited."""
    net = tp.nn.Sequential(tp.nn.NormPropLinear(4, 3), tp.nn.BatchNorm(3))
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1))
    x, labels = rng.normal(size=(5, 4)).astype("f"), [0, 1, 2, 0, 1]
    step(x, labels)
    kept = step.members()
    step(x, labels)
    assert step.members() is kept
    other = tp.nn.NormPropLinear(4, 3)
    other.weight.data[...] *= 7.0
    setattr(net, "0", other)
    step(x, labels)
    np.testing.assert_allclose((other.weight.data**2).sum(axis=1), 1.0, rtol=1e-6)


def test_a_tensor_that_nothing_trains_is_refused():
    """A parameter that forward makes anew each time would never be trained."""

    class Forgetful(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x) * tp.tensor([1.0], requires_grad=True)

    net = Forgetful()
    step = TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1), threads=1)
    batch = np.ones((4, 3), np.float32), np.zeros(4, int)
    assert_explained(tp.GradientError, lambda: step(*batch), "(1,)", "nothing would train it")
    frozen = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    some = tp.optim.SGD(frozen[1].parameters(), lr=0.1)
    TrainingStep(frozen, some, threads=1)(*batch)  # a part may stay as it is

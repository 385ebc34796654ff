"""check_layer finds planted faults, names each, and lets sound layers pass."""

import threading

import numpy as np
import pytest

import tinyprop as tp
import tinyprop.functional as F
from tests.helpers import assert_explained, quick_only
from tests.nn.test_layers import LAYERS
from tinyprop import nn
from tinyprop.engine.context import current
from tinyprop.testing import CheckError, check_layer
from tinyprop.testing.failure import Wrong
from tinyprop.testing.layer import Subject, check_float32
from tinyprop.testing.points import points

# -- sound layers


MORE = {
    "Dropout": lambda: nn.Dropout(0.3),
    "NormPropLinear": lambda: nn.NormPropLinear(6, 3),
    "NormPropLinear, exact": lambda: nn.NormPropLinear(6, 3, activation="tanh", mode="exact"),
    "NormPropLinear, learnt": lambda: nn.NormPropLinear(6, 2, activation="prelu", mode="exact"),
    "NormPropConv2d": lambda: nn.NormPropConv2d(4, 3, 2),
    "MeasuredConv2d": lambda: nn.MeasuredConv2d(4, 3, 2),
    "Residual": lambda: nn.Residual(nn.Linear(6, 6)),
    "Scale": lambda: nn.Scale(0.5),
    "Sequential": lambda: nn.Sequential(nn.Conv2d(4, 2, 2), nn.BatchNorm(2), nn.ReLU()),
}
SOUND = {**{name: make for name, (make, _) in LAYERS.items()}, **MORE}
QUICK = {"Linear", "PReLU, by channel", "BatchNorm", "Dropout", "NormPropLinear", "MeasuredConv2d"}


@pytest.mark.parametrize("name", quick_only(QUICK, SOUND))
def test_our_layers_are_sound(name, backend, rng):
    with tp.use_backend(backend):
        layer = SOUND[name]()
    before = {key: tp.engine.arrays.to_numpy(value) for key, value in layer.state_dict().items()}
    check_layer(layer, tp.tensor(rng.normal(size=(3, 4, 5, 6)), backend=backend))
    assert layer.training
    for key, value in layer.state_dict().items():
        np.testing.assert_array_equal(tp.engine.arrays.to_numpy(value), before[key])


def test_vectors_of_fixed_samples_are_part_of_the_state(rng):
    check_layer(nn.MeasuredLinear(6, 3), rng.normal(size=(4, 6)))


@pytest.mark.parametrize("norm", quick_only(["normprop", "batch"], list(nn.normalizers)))
def test_networks_of_every_normaliser_are_sound(norm, rng):
    tp.manual_seed(1)
    net = nn.build("C(4,2,1,0)-C(3,1,1,0)-P(2,2,0,avg)", norm=norm, activation="tanh")
    check_layer(net, rng.normal(size=(3, 3, 3, 3)))


class Embedding(nn.Module):
    """With an input of integers, and one of another length."""

    def __init__(self):
        self.table = tp.tensor(np.linspace(-1.0, 1.0, 8).reshape(4, 2), requires_grad=True)

    def forward(self, places, scale):
        return self.table[places.data] * scale


def test_inputs_may_be_integers_and_need_not_be_samples():
    check_layer(Embedding(), np.array([0, 3, 1]), np.array([[0.5, 2.0]]))


# -- planted faults


class Product(tp.Op):
    """x * w, with a gradient with respect to w that is 1 % too large."""

    def forward(self, x, w):
        return x * w

    def backward(self, g, x, w):
        return g * w, 1.01 * g * x


class WrongWeightGradient(nn.Module):
    def __init__(self):
        self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def forward(self, x):
        return Product()(x, self.weight)


class Square(tp.Op):
    """The gradient is right, and its own gradient is missing: an array is no tensor."""

    def forward(self, x):
        return x * x

    def backward(self, g, x):
        return g * (2.0 * x.data)


class WrongSecondOrder(nn.Module):
    def forward(self, x):
        return Square()(x)


class WrongInEvaluation(nn.Module):
    """The gradient of evaluation alone."""

    def __init__(self):
        self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def forward(self, x):
        if self.training:
            return 2.0 * x * self.weight
        return Product()(x, self.weight)


class Upcast(nn.Module):
    def forward(self, x):
        return x * np.array([1.5])


class Downcast(nn.Module):
    def forward(self, x):
        return x.astype("float32") * 2.0


class WideBuffer(nn.Module):
    """Its running mean becomes float64."""

    def __init__(self):
        self.mean = tp.zeros(3)

    def forward(self, x):
        if self.training and not nn.is_observing():
            self.mean = tp.tensor(0.5 * x.data.mean(axis=0).astype("float64"))
        return 2.0 * x


class Cancelling(nn.Module):
    """The variance as the difference of two large numbers."""

    def forward(self, x):
        variance = F.mean(x * x, 1, keepdims=True) - F.mean(x, 1, keepdims=True) ** 2
        return (x - F.mean(x, 1, keepdims=True)) * F.rsqrt(variance + 1e-5)


class Overflowing(nn.Module):
    """A softmax that does not subtract the largest value."""

    def forward(self, x):
        powers = F.exp(120.0 * x)
        return powers / F.sum(powers, 1, keepdims=True)


class BatchMean(nn.Module):
    def forward(self, x):
        return x - x.mean(axis=0) if self.training else x


class FalselyPerSample(BatchMean):
    per_sample = True

    def forward(self, x):
        return super().forward(x)


class FalselySummed(nn.Module):
    """It declares sums over all ranks, and takes a mean of its own part."""

    sums_over_batch = True

    def forward(self, x):
        return x - x.mean(axis=0) if self.training else x


class MeanInEvaluation(nn.Module):
    sums_over_batch = True

    def forward(self, x):
        return x - nn.over_batch(x.sum(axis=0)) / nn.over_batch(len(x))


class ForgottenEstimate(nn.Module):
    """Its running mean is an array, which no state has."""

    statistics = nn.Statistics(over="batch", center=True)

    def __init__(self):
        self.running = np.zeros(3, np.float32)

    def forward(self, x):
        if not self.training:
            return x - tp.tensor(self.running).astype(x.dtype)
        mean = x.mean(axis=0)
        if not nn.is_observing():
            self.running = self.running + 0.1 * (mean.numpy() - self.running)
        return x - mean


class Lambda(nn.Module):
    def __init__(self):
        self.function = lambda x: 2.0 * x

    def forward(self, x):
        return self.function(x)


class Locked(nn.Module):
    def __init__(self):
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return 2.0 * x


class Forgetful(nn.Module):
    """Pickled, it loses a number."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def forward(self, x):
        return self.scale * x

    def __getstate__(self):
        return {**vars(self), "scale": 1.0}


class Shared(nn.Module):
    """A copy is the layer itself."""

    def __init__(self):
        self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def forward(self, x):
        return x * self.weight

    def __deepcopy__(self, memo):
        twin = Shared()
        twin.weight = self.weight
        return twin


class Overwriting(nn.Module):
    """It rectifies its input in place."""

    def forward(self, x):
        x.data[x.data < 0.0] = 0.0
        return 2.0 * x


class OverwritingWithoutRules(nn.Module):
    """It writes to its input where no override computes."""

    def forward(self, x):
        if current().plain:
            x.data[...] = 0.5 * x.data
        return 2.0 * x


class FasterWithoutRules(nn.Module):
    def forward(self, x):
        return 2.0 * x if current().plain else 2.000001 * x


class MovingInEvaluation(nn.Module):
    def __init__(self):
        self.calls = tp.zeros(1)

    def forward(self, x):
        if not nn.is_observing():
            self.calls.data[...] += 1.0
        return 2.0 * x


class DriftingInEvaluation(nn.Module):
    """Its running mean is an array, and moves in evaluation, too."""

    def __init__(self):
        self.mean = np.zeros(3)

    def forward(self, x):
        out = x - tp.tensor(self.mean).astype(x.dtype)
        if not nn.is_observing():
            self.mean = 0.9 * self.mean + 0.1 * x.numpy().mean(axis=0)
        return out


class MovingWhileObserved(nn.Module):
    def __init__(self):
        self.mean = tp.zeros(3)

    def forward(self, x):
        if self.training:
            self.mean.data[...] = 0.5 * x.data.mean(axis=0)
        return 2.0 * x


class RandomInEvaluation(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class OwnGenerator(nn.Module):
    def forward(self, x):
        return x * float(np.random.default_rng().uniform(0.5, 1.5))


class Hidden(nn.Module):
    """Its dropout is in an object, where eval() does not find it."""

    def __init__(self):
        self.inner = HiddenDropout()

    def forward(self, x):
        return self.inner.layer(x)


class HiddenDropout:
    def __init__(self):
        self.layer = nn.Dropout(0.5)


class Holder:
    def __init__(self):
        self.weight = tp.ones(3, requires_grad=True)


class HiddenParameter(nn.Module):
    """Its weight is in an object, where no optimizer finds it."""

    def __init__(self):
        self.held = Holder()

    def forward(self, x):
        return x * self.held.weight


class OfTheClass(nn.Module):
    """All layers of the class share its weight, and none has it."""

    weight = tp.ones(3, requires_grad=True)

    def forward(self, x):
        return x * self.weight


class StateOfTheClass(nn.Module):
    """All layers of the class share their running mean."""

    statistics = nn.Statistics(over="batch", center=True)
    running = np.zeros(3)

    def forward(self, x):
        if not self.training:
            return x - tp.tensor(self.running).astype(x.dtype)
        if not nn.is_observing():
            self.running[...] += 0.1 * (x.numpy().mean(axis=0) - self.running)
        return x - x.mean(axis=0)


class IntoBuffer(tp.Op):
    def __init__(self, buffer):
        self.buffer = buffer

    def forward(self, x):
        return np.multiply(x, 2.0, out=self.buffer)

    def backward(self, g):
        return 2.0 * g


class OneBuffer(nn.Module):
    """Each call writes its output to the same memory."""

    def __init__(self):
        self.buffer = np.empty(0)

    def forward(self, x):
        if self.buffer.shape != x.shape or self.buffer.dtype != x.dtype:
            self.buffer = np.empty(x.shape, x.dtype)
        return IntoBuffer(self.buffer)(x)


class AsksForGradients(nn.Module):
    def forward(self, x):
        return 2.0 * x + (1.0 if x.requires_grad else 0.0)


class InMemoryOrder(tp.Op):
    def forward(self, x):
        return 2.0 * x.ravel(order="K").reshape(x.shape)

    def backward(self, g):
        return 2.0 * g


class Unordered(nn.Module):
    """Right for arrays in C's order only."""

    def forward(self, x):
        return InMemoryOrder()(x)


class BatchSize(nn.Module):
    def forward(self, x):
        return x / len(x)


class Place(nn.Module):
    def forward(self, x):
        return x * tp.tensor(1.0 + np.arange(len(x))[:, None]).astype(x.dtype)


class Pairs(nn.Module):
    """It takes even batches only."""

    def forward(self, x):
        return 2.0 * x.reshape(len(x) // 2, 2, -1).reshape(len(x), -1)


class MiddleOnly(nn.Module):
    """In training, sample 1 of the batch looks at sample 2; the first and the last are sound."""

    def forward(self, x):
        if not self.training:
            return x
        mixing = np.eye(len(x))
        mixing[1, 2] = 0.5
        return tp.tensor(mixing).astype(x.dtype) @ x


class Seeding(nn.Module):
    def forward(self, x):
        tp.manual_seed(3)
        return F.dropout(x, 0.5, training=self.training)


class DrawingInEvaluation(nn.Module):
    def forward(self, x):
        tp.randn(2)
        return 2.0 * x


class WrongInTraining(nn.Module):
    """The gradient of training alone, whose output is that of evaluation."""

    def __init__(self):
        self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def forward(self, x):
        return Product()(x, self.weight) if self.training else x * self.weight


class WrongSecondOrderInTraining(nn.Module):
    def forward(self, x):
        return Square()(x) if self.training else x * x


class UpcastInEvaluation(nn.Module):
    def forward(self, x):
        return 1.5 * x if self.training else x * np.array([1.5])


class Remembering(nn.Module):
    """It keeps its output for the next input of the same shape."""

    def __init__(self):
        self.outputs = {}

    def forward(self, x):
        if x.shape not in self.outputs:
            self.outputs[x.shape] = (2.0 * x).detach()
        return self.outputs[x.shape].astype(x.dtype)


class Folded(nn.Module):
    """In evaluation, its weight is computed once, and stays if the parameter changes."""

    def __init__(self):
        self.weight = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
        self.known = {}

    def forward(self, x):
        if self.training:
            return x * F.tanh(self.weight)
        if "weight" not in self.known:
            self.known["weight"] = np.tanh(self.weight.numpy())
        return x * tp.tensor(self.known["weight"]).astype(x.dtype)


class SeedingNumPy(nn.Module):
    """The same numbers in every call, and in whatever else draws from this generator."""

    def forward(self, x):
        np.random.seed(0)  # noqa: NPY002
        return x * float(1.0 + np.random.random())  # noqa: NPY002


FAULTS = {  # the check that finds it, and words of what it says
    WrongWeightGradient: ("gradients", "order 1, parameter 'weight', index (", "seed=3"),
    WrongSecondOrder: ("gradients", "order 2", "the gradient is"),
    WrongInEvaluation: ("gradients", "evaluation, order 1", "'weight'"),
    WrongInTraining: ("gradients", "training, order 1", "'weight'"),
    WrongSecondOrderInTraining: ("gradients", "training, order 2"),
    UpcastInEvaluation: ("dtype", "float64 for inputs of float32, in evaluation"),
    Remembering: ("calls", "after a call with other inputs (seed=3)", "is expected"),
    Folded: ("calls", "in evaluation, after a call with other inputs and parameters"),
    SeedingNumPy: ("repeated", "moves or seeds NumPy's generator"),
    Upcast: ("dtype", "float64 for inputs of float32"),
    Downcast: ("dtype", "float32 for inputs of float64"),
    WideBuffer: ("dtype", "'mean' is float64"),
    Cancelling: ("float32", "training in float32", "is expected"),
    Overflowing: ("float32", "nan"),
    BatchMean: ("samples", "in training, the output of sample", "sums_over_batch = True"),
    FalselyPerSample: ("samples", "declares per_sample = True"),
    FalselySummed: ("samples", "a batch in two parts", "FalselySummed declares"),
    MeanInEvaluation: ("samples", "in evaluation, the output of sample"),
    ForgottenEstimate: ("state", "'running' of ForgottenEstimate changed in training"),
    Lambda: ("pickle", "attribute 'function'", "no lambda"),
    Locked: ("copy", "attribute 'lock'"),
    Forgetful: ("pickle", "training", "is expected"),
    Shared: ("copy", "parameters of its copy", "memory of its own"),
    Overwriting: ("inputs", "input 0 after a call in training", "is expected"),
    OverwritingWithoutRules: ("inputs", "input 0 after a call"),
    FasterWithoutRules: ("plain", "training with tp.plain()", "is expected"),
    MovingInEvaluation: ("modes", "a call in evaluation", "changes calls"),
    DriftingInEvaluation: ("modes", "two calls in evaluation"),
    MovingWhileObserved: ("modes", "tp.observe", "changes mean"),
    RandomInEvaluation: ("modes", "two calls in evaluation"),
    OwnGenerator: ("repeated", "two calls with seed=3"),
    Hidden: ("modes", "evaluat"),
    HiddenParameter: ("parameters", "shape (3,)", "no parameter of HiddenParameter", "seed=3"),
    OfTheClass: ("parameters", "no parameter of OfTheClass"),
    StateOfTheClass: ("repeated", "no", "class attribute"),
    OneBuffer: ("output", "after a second call in training"),
    AsksForGradients: ("output", "training inside of tp.no_grad()"),
    Unordered: ("inputs", "memory is in Fortran's order"),
    BatchSize: ("samples", "sample 0 by itself, in evaluation", "is expected"),
    Place: ("samples", "sample 1 by itself, in evaluation"),
    Pairs: ("samples", "sample 0 by itself", "fails: Reshape", "size of its batch"),
    MiddleOnly: ("samples", "in training, the output of sample 1"),
    Seeding: ("modes", "moves tinyprop's random generator"),
    DrawingInEvaluation: ("modes", "draws no random numbers"),
}


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_found_and_named(kind, rng):
    if kind is FasterWithoutRules and current().plain:
        pytest.skip("everything is plain here")
    check, *words = FAULTS[kind]
    layer = kind(3.0) if kind is Forgetful else kind()
    x = rng.normal(size=(4, 3)).astype(np.float32)
    if kind is Cancelling:
        x = 100.0 + x
    with pytest.raises(CheckError) as caught:
        check_layer(layer, x, seed=3)
    failures = {failure.check: str(failure) for failure in caught.value.failures}
    assert check in failures, failures
    for word in words:
        assert word in failures[check]


def test_all_faults_are_said_at_once(rng):
    class Several(nn.Module):
        """Of a function, so that it cannot be pickled."""

        def forward(self, x):
            return Square()(x - x.mean(axis=0)) * np.array([1.0])

    with pytest.raises(CheckError) as caught:
        check_layer(Several(), rng.normal(size=(4, 3)))
    found = [failure.check for failure in caught.value.failures]
    assert found == ["dtype", "gradients", "samples", "pickle"]
    message = str(caught.value)
    assert message.count("got:  ") == message.count("rule: ") == message.count("try:  ") == 4


def test_what_is_no_question_is_refused(rng):
    for inputs in ([], [np.ones((1, 3))], [np.float64(1.0)]):
        assert_explained(tp.ShapeError, lambda x=inputs: check_layer(nn.ReLU(), *x), "at least 2")

    class Total(nn.Module):
        def forward(self, x):
            return x.sum()

    assert_explained(tp.ShapeError, lambda: check_layer(Total(), np.ones((2, 3))), "samples to")

    class Pair(nn.Module):
        def forward(self, x):
            return x, 2.0 * x

    assert_explained(tp.ShapeError, lambda: check_layer(Pair(), np.ones((2, 3))), "side by side")
    with pytest.raises(tp.ShapeError, match="linear"):
        check_layer(nn.Linear(4, 2), np.ones((2, 3)))


@pytest.mark.parametrize("seed", range(2))
def test_a_gradient_that_cancels_is_no_false_alarm(seed):
    """That of a bias in front of BatchNorm is 0. After 20 layers, what cancels in it is larger than
    output / bias."""
    tp.manual_seed(seed)
    layers = []
    for _ in range(20):
        layers += [nn.Linear(6, 6), nn.BatchNorm(6), nn.Tanh()]
    subject = Subject(nn.Sequential(*layers), [tp.randn(8, 6)], order=1, tolerance=1e-6, seed=0)
    check_float32(subject)


def test_a_gradient_that_does_not_cancel_is_checked(rng):
    """The gradient of one bias is off by 1e-4, beside weights whose gradient is no larger."""

    class Coarse(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            bias = self.linear.bias
            change = 1e-4 if x.dtype == np.float32 else 0.0
            return self.linear(x) + change * (bias - bias.detach())

    subject = Subject(Coarse(), [rng.normal(size=(4, 3))], order=1, tolerance=1e-6, seed=0)
    with pytest.raises(Wrong, match=r"gradient of 'linear\.bias'"):
        check_float32(subject)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarms(name):
    """Of 10 seeds, weights and inputs away from the kinks of activations, none raises an alarm."""
    for seed in range(10):
        tp.manual_seed(seed)
        x = points(np.random.default_rng(seed), (2, 4, 5, 6), kinks=(-1.0, 0.0, 1.0))
        check_layer(SOUND[name](), x, order=1, seed=seed)

"""tp.from_torch and tp.to_torch: the same outputs and gradients as PyTorch's, or a refusal."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained, run_python

torch = pytest.importorskip("torch")
tnn = torch.nn
TF = torch.nn.functional

IMAGES = (6, 3, 8, 8)


def random_input(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def stir(module, seed=0):
    """Give every tensor of a module of PyTorch values that are not those of a fresh one."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point():
            noise = 0.3 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            with torch.no_grad():
                tensor += abs(noise) if name.endswith("running_var") else noise
    return module


def assert_alike(theirs, ours, shape, dtype="float32", tolerance=1e-5, seed=0):
    """Outputs, gradients of all parameters and of the input, and running statistics agree."""
    for parameter in (*theirs.parameters(), *ours.parameters()):
        parameter.grad = None
    array = random_input(shape, dtype, seed)
    their_x = torch.tensor(array, requires_grad=True)
    our_x = tp.tensor(array, requires_grad=True)
    their_out = theirs(their_x)
    our_out = ours(our_x)
    assert our_out.dtype == array.dtype
    cotangent = random_input(our_out.shape, dtype, seed + 1)
    (their_out * torch.tensor(cotangent)).sum().backward()
    (our_out * tp.tensor(cotangent)).sum().backward()
    near(our_out.numpy(), their_out.detach().numpy(), tolerance)
    near(our_x.grad.numpy(), their_x.grad.numpy(), tolerance)
    state = theirs.state_dict()
    for name, value in ours.state_dict().items():
        if name in state:
            near(value, state[name].numpy(), tolerance)
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        if name in gradients and parameter.grad is not None:
            near(parameter.grad.numpy(), gradients[name].numpy(), tolerance)


def near(actual, expected, tolerance):
    scale = abs(expected).max(initial=1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


class Block(tnn.Module):
    """A residual block as torchvision's, with functions and in-place operations."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = tnn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = tnn.BatchNorm2d(out)
        self.relu = tnn.ReLU(inplace=True)
        self.conv2 = tnn.Conv2d(out, out, 3, padding="same", bias=False)
        self.bn2 = tnn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            conv = tnn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = tnn.Sequential(conv, tnn.BatchNorm2d(out))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(tnn.Module):
    def __init__(self, stride=2):
        super().__init__()
        self.stem = tnn.Conv2d(3, 8, 3, padding=1)
        self.blocks = tnn.ModuleList([Block(8, 8, 1), Block(8, 12, stride)])
        self.head = tnn.Linear(12, 5)
        self.criterion = tnn.CrossEntropyLoss()  # not used by forward

    def forward(self, x, extra=None):
        x = TF.max_pool2d(TF.relu(self.stem(x)), 2)
        for block in self.blocks:
            x = block(x)
        if extra is not None:
            x = x + extra
        x = TF.adaptive_avg_pool2d(x, 1)
        return self.head(x.view(x.size(0), -1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_residual_network_with_batch_norm(training, dtype):
    theirs = stir(ResNet()).to(getattr(torch, dtype)).train(training)
    ours = tp.from_torch(theirs)
    assert all(module.training == training for module in ours.modules())
    assert_alike(theirs, ours, IMAGES, dtype, 1e-5 if dtype == "float32" else 1e-12)
    other = ResNet()
    names = {name for name in other.state_dict() if not name.endswith("tracked")}
    assert set(ours.state_dict()) == names
    ours.load_state_dict(other.state_dict())  # by PyTorch's own names
    assert_alike(other.eval(), ours.to(dtype="float32").eval(), IMAGES)


def test_the_result_is_an_ordinary_module(tmp_path):
    theirs = stir(ResNet(stride=1)).eval()
    ours = tp.from_torch(theirs)
    x = random_input(IMAGES)
    names = [record.name for record in tp.observe(ours, x)]
    assert "blocks.1.bn2 BatchNorm" in names
    assert "relu ReLU" in names  # of TF.relu
    assert "blocks.0 Traced" in names
    predicted = [record.layer for record in tp.propagate(ours, data=random_input((40, 3, 8, 8)))]
    assert predicted[0] == "stem Conv2d"
    assert predicted[-1] == "head Linear"
    tp.save(tmp_path / "net.safetensors", ours.state_dict())
    again = tp.from_torch(ResNet(stride=1).eval())
    again.load_state_dict(tp.load(tmp_path / "net.safetensors"))
    for same in (again, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert np.array_equal(same(x).numpy(), ours(x).numpy())
    optimizer = tp.optim.SGD(ours.train().parameters(), lr=0.01)
    step = tp.train.TrainingStep(ours, optimizer, threads=1)
    losses = [step(x, [0, 1, 2, 3, 4, 0]) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_nothing_is_shared():
    theirs = tnn.Sequential(tnn.Linear(3, 2), tnn.BatchNorm1d(2))
    ours = tp.from_torch(theirs)
    before = copy.deepcopy(ours.state_dict())
    stir(theirs)
    for name, value in ours.state_dict().items():
        assert np.array_equal(value, before[name])
    back = tp.to_torch(ours)
    ours[0].weight.data[...] = 7.0
    assert not (back[0].weight == 7.0).any()


LAYERS = [
    (lambda: tnn.Conv2d(3, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=3), IMAGES),
    (lambda: tnn.Conv2d(3, 6, 3, dilation=2, padding="same", bias=False), IMAGES),
    (lambda: tnn.Conv2d(3, 6, 3, padding="valid"), IMAGES),
    (lambda: tnn.BatchNorm1d(5, momentum=0.3, eps=1e-3), (7, 5)),
    (lambda: tnn.BatchNorm1d(5), (7, 5, 4)),
    (lambda: tnn.BatchNorm2d(3, affine=False), IMAGES),
    (lambda: tnn.LayerNorm(5), (7, 5)),
    (lambda: tnn.LayerNorm((3, 8, 8), eps=1e-3), IMAGES),
    (lambda: tnn.LayerNorm(5, elementwise_affine=False), (7, 5)),
    (lambda: tnn.LayerNorm(5, bias=False), (7, 5)),
    (lambda: tnn.RMSNorm(5), (7, 5)),
    (lambda: tnn.RMSNorm(5, eps=0.1), (7, 5)),
    (lambda: tnn.GroupNorm(3, 6), (4, 6, 5, 5)),
    (lambda: tnn.GroupNorm(2, 6, affine=False), (4, 6)),
    (lambda: tnn.MaxPool2d(3, 2, 1), IMAGES),
    (lambda: tnn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGES),
    (lambda: tnn.AdaptiveAvgPool2d((1, 1)), IMAGES),
    (lambda: tnn.LeakyReLU(0.3), (7, 5)),
    (lambda: tnn.ELU(0.7), (7, 5)),
    (lambda: tnn.PReLU(3, init=0.4), IMAGES),
    (lambda: tnn.Hardtanh(-0.5, 2.0), (7, 5)),
    (lambda: tnn.ReLU6(), (7, 5)),
    (lambda: tnn.GELU(), (7, 5)),
    (lambda: tnn.SiLU(), (7, 5)),
    (lambda: tnn.SELU(), (7, 5)),
    (lambda: tnn.Softplus(), (7, 5)),
    (lambda: tnn.Tanh(), (7, 5)),
    (lambda: tnn.Sigmoid(), (7, 5)),
    (lambda: tnn.Identity(), (7, 5)),
    (lambda: tnn.Flatten(), IMAGES),
]


@pytest.mark.parametrize(("make", "shape"), LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_layers(make, shape, training):
    first = tnn.Conv2d(shape[1], shape[1], 1) if len(shape) == 4 else tnn.Identity()
    theirs = tnn.Sequential(first, stir(make())).train(training)
    ours = tp.from_torch(theirs)
    # single-channel sums of gradients cancel: their float32 error is a few times that of outputs
    assert_alike(theirs, ours, shape, tolerance=4e-5)
    assert_alike(tp.to_torch(ours), ours, shape, tolerance=4e-5)


class Functions(tnn.Module):
    """Calls one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = tnn.Parameter(torch.full((3,), 0.3))
        self.filters = tnn.Parameter(torch.ones(4, 3, 3, 3) * 0.1)

    def forward(self, x):
        return self.function(self, x)


FUNCTIONS = [
    lambda self, x: TF.leaky_relu(x, 0.2),
    lambda self, x: TF.leaky_relu(x, negative_slope=0.2),
    lambda self, x: torch.relu(x) + x.tanh() - TF.elu(x, alpha=0.5),
    lambda self, x: TF.hardtanh(x, -0.5, 0.5) * torch.sigmoid(x) / 2.0,
    lambda self, x: TF.gelu(x) + TF.silu(x) + TF.softplus(x) + TF.selu(x) + TF.relu6(x),
    lambda self, x: torch.sin(x) + torch.erf(x) + torch.abs(x) - 1,
    lambda self, x: TF.prelu(x, self.weight),
    lambda self, x: x * self.weight.view(1, -1, 1, 1),
    lambda self, x: TF.conv2d(x, self.filters, padding=1, stride=2),
    lambda self, x: TF.avg_pool2d(x, 2) + TF.max_pool2d(x, kernel_size=2, stride=2),
    lambda self, x: x.mean((2, 3)) + torch.mean(x, dim=[-1, -2]),
    lambda self, x: x.mean([2, 3], keepdim=True),
    lambda self, x: torch.flatten(x, 1) + x.flatten(1) + x.reshape(x.shape[0], -1),
    lambda self, x: x.view(-1, 3 * 8 * 8),
    lambda self, x: x.reshape((x.size(0), 3, 8 * 8)),
    lambda self, x: torch.cat([x, 2 * x], dim=1),
    lambda self, x: TF.softmax(x, dim=1) + TF.log_softmax(x, 1),
    lambda self, x: TF.layer_norm(x, x.shape[1:]) + TF.group_norm(x, 3),
    lambda self, x: -x.contiguous() if self.training else x,
    lambda self, x: x.reshape(x.shape[0], x.shape[1] * x.shape[2] // 2, -1),
    lambda self, x: TF.dropout(x, 0.0, training=self.training),
    lambda self, x: TF.dropout(TF.relu(x), 0.5, training=self.training) if self.training else x,
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
@pytest.mark.parametrize("training", [True, False])
def test_functions(number, training):
    theirs = Functions(FUNCTIONS[number]).train(training)
    ours = tp.from_torch(theirs)
    if training and number == len(FUNCTIONS) - 1:
        dropped = ours(random_input(IMAGES)).numpy()
        assert 0.7 < (dropped == 0).mean() < 0.8  # half by ReLU, half of the rest by dropout
    else:
        assert_alike(theirs, ours, IMAGES)


def test_the_mode_can_change_later():
    ours = tp.from_torch(Functions(lambda self, x: -x if self.training else x))
    x = tp.ones(1, 2)
    assert ours(x).tolist() == [[-1.0, -1.0]]
    assert ours.eval()(x).tolist() == [[1.0, 1.0]]
    with tp.nn.evaluating():
        assert ours.train()(x).tolist() == [[1.0, 1.0]]


def test_tied_weights_stay_tied():
    layer = tnn.Linear(3, 3)
    tied = tnn.Linear(3, 3)
    tied.weight = layer.weight
    theirs = tnn.Sequential(layer, tnn.Tanh(), layer, tied)
    ours = tp.from_torch(theirs)
    assert ours[0] is ours[2]
    assert ours[0].weight is ours[3].weight
    assert_alike(theirs, ours, (4, 3))
    back = tp.to_torch(ours)
    assert back[0] is back[2]
    assert back[0].weight is back[3].weight


def test_frozen_parameters_are_not_trained():
    theirs = tnn.Sequential(tnn.Linear(3, 3), tnn.Linear(3, 2))
    theirs[0].requires_grad_(False)
    ours = tp.from_torch(theirs)
    assert [name for name, _ in ours.named_parameters()] == ["1.weight", "1.bias"]
    assert set(ours.state_dict()) == set(theirs.state_dict())
    assert not tp.to_torch(ours)[0].weight.requires_grad


def test_modes_are_carried_over_one_by_one():
    theirs = tnn.Sequential(tnn.BatchNorm1d(3), tnn.Dropout(0.5))
    theirs[0].eval()
    ours = tp.from_torch(theirs)
    assert [layer.training for layer in ours] == [False, True]
    assert [layer.training for layer in tp.to_torch(ours)] == [False, True]


class Reused(tnn.Module):
    def __init__(self, how):
        super().__init__()
        self.relu = tnn.ReLU(inplace=True)
        self.branch = tnn.Sequential(tnn.ReLU(inplace=True), tnn.Linear(4, 4))
        self.how = how

    def forward(self, x):
        return self.how(self, x)


def _add_in_place(self, x):
    y = x
    y += 1.0
    return x + y


EDITS = {
    "relu": lambda self, x: self.relu(x) + x,
    "a branch": lambda self, x: x + self.branch(x),
    "a view": lambda self, x: TF.relu(x.view(-1, 4), inplace=True) + x,
    "a method": lambda self, x: x.relu_() + x,
    "an operator": _add_in_place,
}


@pytest.mark.parametrize("name", EDITS)
def test_in_place_operations_whose_input_is_used_again_are_refused(name):
    assert_explained(ValueError, lambda: tp.from_torch(Reused(EDITS[name])), "in place")


def test_in_place_operations_whose_input_is_not_used_again_are_taken():
    theirs = Reused(lambda self, x: self.branch(x * 2) + self.relu(x + 1))
    assert_alike(theirs, tp.from_torch(theirs), (5, 4))


def hooked():
    layer = tnn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


class Optional(tnn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ResNet()

    def forward(self, x):
        return self.inner(x, extra=x)


class Refresh(tnn.Module):
    def __init__(self):
        super().__init__()
        self.refresh = tnn.Linear(2, 2)

    def forward(self, x):
        return self.refresh(x)


class Any(tnn.Module):
    def forward(self, *xs):
        return xs[0]


REFUSED = [
    (lambda: tnn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), ["Conv2d", "circular"]),
    (lambda: tnn.Conv2d(3, 4, 2, padding="same"), ["Conv2d", "same"]),
    (lambda: tnn.MaxPool2d(2, ceil_mode=True), ["MaxPool2d", "ceil_mode"]),
    (lambda: tnn.MaxPool2d(2, dilation=2), ["MaxPool2d", "dilation"]),
    (lambda: tnn.AvgPool2d(2, divisor_override=3), ["AvgPool2d", "divisor_override"]),
    (lambda: tnn.AdaptiveAvgPool2d(2), ["AdaptiveAvgPool2d", "output_size"]),
    (lambda: tnn.BatchNorm2d(3, track_running_stats=False), ["track_running_stats"]),
    (lambda: tnn.BatchNorm2d(3, momentum=None), ["momentum"]),
    (lambda: tnn.GELU(approximate="tanh"), ["GELU", "tanh"]),
    (lambda: tnn.Softplus(beta=2), ["Softplus", "beta"]),
    (lambda: tnn.Flatten(0), ["Flatten", "start_dim"]),
    (lambda: tnn.Dropout(1.0), ["Dropout"]),
    (lambda: tnn.LSTM(3, 4), ["LSTM"]),
    (lambda: tnn.Sequential(tnn.Linear(2, 2), tnn.Bilinear(2, 2, 2)), ["Bilinear at Sequential.1"]),
    (lambda: tnn.Linear(2, 2).bfloat16(), ["bfloat16"]),
    (lambda: tnn.Linear(2, 2, device="meta"), ["no values"]),
    (lambda: tnn.LazyLinear(2), ["LazyLinear"]),
    (hooked, ["hook"]),
    (lambda: tnn.utils.parametrizations.weight_norm(tnn.Linear(2, 2)), ["ParametrizedLinear"]),
    (Optional, ["inner", "extra="]),
    (Refresh, ["'refresh'"]),
    (Any, ["any number of arguments"]),
    (lambda: Functions(lambda self, x: x if x.sum() > 0 else -x), ["cannot be traced"]),
    (lambda: Functions(lambda self, x: torch.fft.fft(x)), ["fft"]),
    (lambda: Functions(lambda self, x: x.cumsum(1)), ["cumsum"]),
    (lambda: Functions(lambda self, x: x // 0.3), ["floordiv", "x.shape[1] // 2"]),
    (lambda: Functions(lambda self, x: x.shape[1] // x), ["floordiv"]),
    (lambda: Functions(lambda self, x: x @ x), ["matmul", "none of the functions"]),
    (lambda: Functions(lambda self, x: x[:, 0]), ["getitem"]),
    (lambda: Functions(lambda self, x: x.mean()), ["mean", "positions"]),
    (lambda: Functions(lambda self, x: x.softmax(0)), ["softmax", "each sample"]),
    (lambda: Functions(lambda self, x: torch.cat([x, x])), ["cat", "each sample"]),
    (lambda: Functions(lambda self, x: torch.add(x, x, alpha=2)), ["add", "alpha"]),
    (lambda: Functions(lambda self, x: TF.max_pool2d(x, 2, ceil_mode=True)), ["ceil_mode"]),
    (lambda: Functions(lambda self, x: TF.gelu(x, approximate="tanh")), ["gelu", "tanh"]),
    (lambda: Functions(lambda self, x: x.T), ["getattr", "shape"]),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_is_not_known_is_refused_by_name(make, words):
    assert_explained(ValueError, lambda: tp.from_torch(make()), *words)


class Own(tp.nn.Module):
    def forward(self, x):
        return x * 2


class OwnLinear(tp.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


NOT_EXPORTED = [
    (Own, ["Own"]),
    (lambda: tp.nn.Sequential(OwnLinear(2, 2)), ["OwnLinear at Sequential.0"]),
    (lambda: tp.nn.Activation(lambda u: u * u), ["function"]),
    (lambda: tp.from_torch(Functions(FUNCTIONS[18])), ["mode"]),
]


@pytest.mark.parametrize(("make", "words"), NOT_EXPORTED)
def test_what_cannot_be_exported_is_refused_by_name(make, words):
    assert_explained(TypeError, lambda: tp.to_torch(make()), *words)


def test_wrong_arguments():
    assert_explained(TypeError, lambda: tp.from_torch(tp.nn.ReLU()), "module of PyTorch")
    assert_explained(TypeError, lambda: tp.from_torch(ResNet), "an object")
    assert_explained(TypeError, lambda: tp.to_torch(tnn.ReLU()), "a Module")


def test_torch_is_loaded_by_this_door_only():
    program = (
        "import sys, tinyprop as tp, tinyprop.cli, tinyprop.nn.pytorch, tinyprop.nn.export; "
        "tp.train, tp.verify, tp.theory; print('torch' in sys.modules); "
        "sys.modules['torch'] = None\n"
        "try: tp.to_torch(tp.nn.ReLU())\n"
        "except ImportError as error: print(error)"
    )
    printed = run_python(program).stdout.splitlines()
    assert printed[0] == "False"
    assert [line.split(":")[0] for line in printed[1:]] == ["got", "rule", "try"]


# Round trips

SPECS = [
    "F(7)-F(5)-F(3)",
    "C(4,3,1,1)-P(2,2,0,max)-C(6,3,2,1)-P(2,2,0,avg)-C(3,1,1,0)",
    "C(4,3,1,1)-R(C(4,3,1,1)-C(6,3,2,1))-R(C(6,3,1,1))-C(3,1,1,0)-P(4,4,0,avg)",
    "C(4,3,1,1)-P(2,2,0,max)-F(9)-R(F(9)-F(9))-F(3)",
]


@st.composite
def networks(draw):
    """A random network of tinyprop, with stirred weights, and the shape of its input."""
    spec = draw(st.sampled_from(SPECS))
    norm = draw(st.sampled_from(sorted(tp.nn.normalizers)))
    activation = draw(st.sampled_from(sorted(tp.activations)))
    is_flat = spec.startswith("F")
    tp.manual_seed(draw(st.integers(0, 1000)))
    net = tp.nn.build(
        spec,
        in_channels=6 if is_flat else 3,
        norm=norm,
        activation=activation,
        size=None if is_flat else (8, 8),
        alpha=draw(st.sampled_from([1.0, 0.5])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    for _, tensor in net._named_tensors():
        noise = rng.normal(size=tensor.shape) * 0.1
        tensor.data[...] += abs(noise).astype(tensor.dtype)
    net.to(dtype=draw(st.sampled_from(["float32", "float64"])))
    net.train(draw(st.booleans()))
    return net, (5, 6) if is_flat else (5, 3, 8, 8)


@given(networks())
def test_round_trips(case):
    """to_torch gives the same outputs, and from_torch of that, too."""
    net, shape = case
    dtype = next(net.parameters()).dtype
    if any(type(layer).refresh is not tp.nn.Module.refresh for layer in net.modules()):
        tp.nn.refresh(net, random_input((20, *shape[1:]), dtype))
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    theirs = tp.to_torch(net)
    back = tp.from_torch(theirs)
    x = random_input(shape, dtype)
    with tp.no_grad(), tp.nn.module.observing():
        expected = net(x).numpy()
        again = back(x).numpy()
    near(theirs(torch.tensor(x)).detach().numpy(), expected, tolerance)
    near(again, expected, tolerance)
    assert theirs.training == net.training
    # without tinyprop's classes
    loaded = pickle.loads(pickle.dumps(tp.to_torch(net)))
    near(loaded(torch.tensor(x)).detach().numpy(), expected, tolerance)


@given(st.lists(st.integers(0, len(LAYERS) - 1), max_size=4), st.booleans(), st.integers(0, 99))
def test_random_sequences_of_layers(numbers, training, seed):
    chosen = [LAYERS[number] for number in numbers]
    layers = [make() for make, shape in chosen if shape == (7, 5)]
    theirs = tnn.Sequential(*layers, tnn.Linear(5, 5)).train(training)
    stir(theirs, seed)
    assert_alike(theirs, tp.from_torch(theirs), (7, 5), tolerance=1e-4, seed=seed)


def test_a_normprop_layer_is_a_convolution_an_activation_and_an_affine_map():
    for mode in ("paper", "exact"):
        layer = tp.nn.NormPropConv2d(3, 4, 3, padding=1, mode=mode).to(dtype="float64")
        layer.gamma.data[...] = [0.5, 1.0, 1.5, 2.0]
        layer.beta.data[...] = [-1.0, 0.0, 0.5, 1.0]
        theirs = tp.to_torch(layer)
        assert [type(part).__name__ for part in theirs] == ["Conv2d", "ReLU", "Affine"]
        x = random_input(IMAGES, "float64")
        near(theirs(torch.tensor(x)).detach().numpy(), layer(x).numpy(), 1e-13)

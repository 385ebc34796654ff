import threading
from contextlib import nullcontext

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.nn.module import edit_count


def small():
    return nn.Sequential(
        nn.NormPropLinear(4, 3, "prelu"), nn.BatchNorm(3), nn.Sequential(nn.Linear(3, 2))
    )


def names(module):
    return [name for name, _ in module.named_parameters()]


def test_names_are_pytorchs():
    net = small()
    assert names(net) == [
        "0.weight",
        "0.gamma",
        "0.beta",
        "0.a",
        "1.weight",
        "1.bias",
        "2.0.weight",
        "2.0.bias",
    ]
    assert set(net.state_dict()) - set(names(net)) == {"1.running_mean", "1.running_var"}
    assert all(p.name == n for n, p in net.named_parameters()), "tp.draw shows these names"
    assert len(list(net.parameters())) == 8
    assert [type(layer).__name__ for layer in net] == ["NormPropLinear", "BatchNorm", "Sequential"]
    assert net[1] is list(net)[1]
    assert len(net) == 3
    # a computed tensor, and a way back, are no state
    net[0].double, net[0].parent = net[0].weight * 2, net
    assert len(names(net)) == 8
    assert len(list(net.modules())) == 5


def test_layers_and_tensors_in_lists_tuples_and_dicts_are_found():
    class Net(nn.Module):
        def __init__(self):
            self.blocks = [nn.Linear(2, 2), (nn.Linear(2, 2, bias=False),)]
            self.heads = {"left": nn.Linear(2, 1), "right": nn.Dropout()}
            self.scales = [tp.tensor([1.0], requires_grad=True)]

    net = Net()
    with pytest.raises(NotImplementedError, match="Net has no forward"):
        net(tp.tensor(1.0))
    assert names(net) == [
        "scales.0",
        "blocks.0.weight",
        "blocks.0.bias",
        "blocks.1.0.weight",
        "heads.left.weight",
        "heads.left.bias",
    ]
    assert names(net) == list(net.state_dict()) == [p.name for p in net.parameters()]
    net.eval()
    assert not net.heads["right"].training
    assert net.to(dtype="float64").blocks[1][0].weight.dtype == np.float64
    assert "(blocks.0): Linear(2, 2)" in repr(net)


def test_a_module_list_is_a_list_of_modules():
    blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    assert list(blocks.append(nn.ReLU())) == [blocks[0], blocks[1], blocks[-1]]
    assert len(nn.ModuleList(blocks)) == 3
    assert names(blocks) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_what_is_no_module_is_refused_in_a_network():
    a, b = nn.Linear(2, 2), nn.ReLU()
    assert_explained(
        TypeError, lambda: nn.Sequential([a, b]), "Sequential of a list", "Sequential(*layers)"
    )
    assert_explained(
        TypeError, lambda: nn.Sequential(a, nn.ReLU), "ReLU(...)", "instead of its class"
    )
    assert_explained(
        TypeError,
        lambda: nn.Sequential(a, tp.functional.relu),
        "of a function, number 1",
        "nn.ReLU()",
    )
    assert_explained(TypeError, lambda: nn.ModuleList([a, [b]]), "not nested")
    assert_explained(TypeError, lambda: nn.ModuleList(a), "ModuleList([layer])")


class Tied(nn.Module):
    """An encoder and a decoder with one weight, and one layer that is used twice."""

    def __init__(self):
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight
        self.twice = [self.encoder, self.encoder]

    def forward(self, x):
        return self.decoder(self.encoder(x))


def test_a_tied_weight_is_one_parameter_and_has_its_first_name():
    net = Tied()
    weight = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert names(net) == list(net.state_dict()) == ["encoder.weight"]
    assert len(list(net.modules())) == 3
    net.load_state_dict({"encoder.weight": weight})
    np.testing.assert_array_equal(net.decoder.weight.numpy(), weight)
    for other in ("decoder.weight", "twice.0.weight"):
        assert_explained(
            tp.StateError,
            lambda other=other: net.load_state_dict({"encoder.weight": weight + 1, other: weight}),
            f"{other!r} has other values",
            "'encoder.weight'",
        )
    np.testing.assert_array_equal(net.decoder.weight.numpy(), weight)
    state = {"encoder.weight": weight + 1, "twice.0.weight": weight + 1}
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.decoder.weight.numpy(), weight + 1)
    net.load_state_dict({"decoder.weight": weight})  # any of its names
    np.testing.assert_array_equal(net.encoder.weight.numpy(), weight)


def test_a_tied_weight_of_nan_is_equal_to_itself():
    net = Tied()
    nan = np.full((3, 3), np.nan, "float32")
    net.load_state_dict({"encoder.weight": nan, "decoder.weight": nan.copy()})


def test_a_state_has_pytorchs_names_too():
    net = nn.Sequential(nn.BatchNorm(2), nn.PReLU(2))
    state = net.state_dict()
    state["0.num_batches_tracked"] = np.array(7)
    state["1.weight"] = state.pop("1.a") + np.float32(0.5)
    net.load_state_dict(state)
    assert net[1].a.tolist() == [0.75, 0.75]
    state["1.num_batches_tracked"] = np.array(7)  # a PReLU has none
    assert_explained(tp.StateError, lambda: net.load_state_dict(state), "1.num_batches_tracked")
    both = net.state_dict() | {"1.weight": np.zeros(2, "float32")}
    assert_explained(tp.StateError, lambda: net.load_state_dict(both), "1.weight", "other values")


def test_a_state_may_hold_tensors():
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": tp.ones(1, 2, requires_grad=True), "bias": tp.zeros(1)})
    assert layer.weight.tolist() == [[1.0, 1.0]]


class Child(nn.Module):
    """Refers back to its parent, which comes before its own layer."""

    def __init__(self, parent):
        self.parent = parent
        self.layer = nn.Linear(2, 2, bias=False)


def test_modules_that_refer_to_each_other_are_found_once():
    parent = nn.Module()
    parent.child = Child(parent)
    parent.child.sibling = Child(parent)
    parent.other = parent.child.sibling
    assert names(parent) == ["child.layer.weight", "child.sibling.layer.weight"]
    assert len(list(parent.modules())) == 5


def test_every_attribute_that_is_set_is_counted():
    net = small()
    before = edit_count()
    net(tp.ones(2, 4))
    list(net.modules())
    net.state_dict()
    assert edit_count() == before, "nothing was set"
    attributes = dict(vars(nn.Module))
    net[2][0].bias = None
    assert edit_count() > before
    assert vars(nn.Module) == attributes, "a class that changes loses Python's method cache"


class Keeper(nn.Sequential):
    """Stores the output of each layer while it goes through them."""

    def forward(self, x):
        for number, layer in enumerate(self):
            x = layer(x)
            setattr(self, f"output_{number}", x)
        return x


def test_a_forward_may_store_results_while_it_goes_through_its_layers():
    net = Keeper(nn.Linear(2, 2), nn.ReLU())
    for _ in range(2):
        out = net(tp.ones(1, 2))
        assert net.output_1 is out
        assert names(net) == ["0.weight", "0.bias"]


class Hoarder(nn.Module):
    """Stores in forward whatever it meets."""

    def __init__(self):
        self.layer = nn.Linear(2, 2)
        self.running = tp.tensor([0.0, 0.0])  # a buffer, replaced in forward
        self.empty, self.trace = None, []

    def forward(self, x):
        self.input, self.empty, self.helper = x, x.detach(), self.layer
        self.hidden = self.layer(x)
        self.parts = [self.hidden, x]
        self.trace.append(self.hidden)
        self.running = (0.5 * self.running + self.hidden.mean(axis=0)).detach()
        return self.hidden


@pytest.mark.parametrize("recorded", [True, False])
def test_what_forward_stores_is_no_state(recorded):
    net, x = Hoarder(), tp.tensor([[1.0, 2.0]], requires_grad=True)
    for _ in range(2):
        with nullcontext() if recorded else tp.no_grad():
            net(x)
        assert list(net.state_dict()) == ["running", "layer.weight", "layer.bias"]
        assert names(net) == ["layer.weight", "layer.bias"]
    net.input = tp.tensor([1.0])
    assert "input" in net.state_dict(), "assigned outside of forward, it is a buffer"


class Late(nn.Module):
    """Makes something new in each forward."""

    def __init__(self, make):
        self.make = make
        self.weight = tp.tensor([1.0], requires_grad=True)

    def forward(self, x):
        self.made = self.make()
        return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: tp.tensor([1.0], requires_grad=True),
        lambda: [tp.tensor([1.0]), tp.tensor([1.0], requires_grad=True)],
        lambda: nn.Linear(2, 2),
        lambda: {"inside": nn.Sequential(nn.ReLU(), nn.PReLU())},
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_parameters_that_forward_makes_are_refused(make, recorded):
    net = nn.Sequential(Late(make))
    with nullcontext() if recorded else tp.no_grad():
        words = "made by the forward of Late", "in __init__ of Late"
        assert_explained(tp.GradientError, lambda: net(tp.ones(1)), *words)
    net[0].made = make()  # outside of forward
    if not isinstance(net[0].made, list):
        assert len(list(net.parameters())) > 1


def test_a_layer_that_forward_makes_and_forgets_is_refused():
    class Forgets(nn.Module):
        def forward(self, x):
            return nn.Linear(2, 2)(x)

    words = "'weight' of a Linear", "never be trained", "make the Linear in __init__ of Forgets"
    assert_explained(tp.GradientError, lambda: Forgets()(tp.ones(1, 2)), *words)


def test_a_parameter_that_forward_replaces_is_refused():
    class Replaced(Late):
        def forward(self, x):
            self.weight = tp.tensor([2.0], requires_grad=True)
            return x

    assert_explained(
        tp.GradientError, lambda: Replaced(None)(tp.ones(1)), "'weight'", "never be trained"
    )


@pytest.mark.parametrize("make", [lambda: tp.tensor([1.0]), nn.ReLU, lambda: [nn.Flatten(), None]])
def test_forward_may_make_what_is_not_trained(make):
    net = Late(make)
    net(tp.ones(1))
    assert names(net) == ["weight"]


def test_forward_may_store_its_inputs_and_what_it_has():
    class Keeps(nn.Module):
        def __init__(self):
            self.inner = nn.Sequential(nn.Linear(1, 1))

        def forward(self, x, parts, *, scale):
            self.input = [x, parts, {"scale": scale}]
            self.last = self.inner[0]
            self.last_weight = self.inner[0].weight
            return self.inner(x)

    leaves = [tp.tensor([[1.0]], requires_grad=True) for _ in range(3)]
    net = Keeps()
    net(leaves[0], [leaves[1]], scale=leaves[2])
    assert names(net) == ["inner.0.weight", "inner.0.bias"]


def test_a_state_is_a_copy_and_loads_back_exactly(backend, rng):
    net, other = small().to(backend), small().to(backend)
    x = tp.tensor(rng.normal(size=(5, 4)).astype(np.float32), backend=backend)
    net(x)  # moves the running statistics
    for p in net.parameters():
        p.data += 1.0
    state = net.state_dict()
    other.load_state_dict(state)
    for p in net.parameters():
        p.data += 1.0
    assert all(
        (tp.Tensor(v).numpy() == tp.Tensor(other.state_dict()[k]).numpy()).all()
        for k, v in state.items()
    )
    assert (other.eval()(x).numpy() != net.eval()(x).numpy()).any()


def test_wrong_states_name_what_is_wrong_and_change_nothing():
    net = small()
    before = net.state_dict()
    for change, words in [
        (lambda s: s.pop("0.gamma"), "no '0.gamma'"),
        (lambda s: s.update({"0.delta": s["0.gamma"]}), "unknown '0.delta'"),
        (
            lambda s: s.update({"2.0.weight": np.zeros((2, 2), np.float32)}),
            "'2.0.weight' as float32 (2, 2)",
        ),
        (lambda s: s.update({"0.beta": np.zeros(3, int)}), "'0.beta' as int64"),
        (lambda s: s.update({"0.beta": [0.0, 0.0, 0.0]}), "'0.beta' as list"),
    ]:
        state = {k: v + 1 for k, v in before.items()}
        change(state)
        assert_explained(tp.StateError, lambda state=state: net.load_state_dict(state), words)
        assert all((v == before[k]).all() for k, v in net.state_dict().items())


def test_loading_into_a_graph_that_is_alive_is_refused():
    net = small()
    out = net(tp.tensor(np.ones((2, 4), np.float32)))
    with pytest.raises(tp.EditError, match="still needs"):
        net.load_state_dict(net.state_dict())
    del out
    net.load_state_dict(net.state_dict())


def test_evaluating_holds_in_its_own_thread_only():
    net, seen = nn.Sequential(nn.Dropout(), nn.Dropout().eval()), []
    with nn.evaluating():
        assert not any(m.training for m in net.modules())
        other = threading.Thread(target=lambda: seen.extend(m.training for m in net.modules()))
        other.start()
        other.join()
    assert seen == [m.training for m in net.modules()] == [True, True, False]


def test_a_seed_gives_the_same_weights_on_every_backend(backend):
    def weights():
        tp.manual_seed(3)
        return nn.build(nn.NIN, width=0.05).state_dict()

    with tp.use_backend(backend):
        there = weights()
    assert all((tp.Tensor(there[k]).numpy() == v).all() for k, v in weights().items())


def test_a_forward_may_take_several_inputs():
    class Add(nn.Module):
        def forward(self, x, y, scale=1.0):
            return (x + y) * scale

    assert Add()(tp.tensor(1.0), tp.tensor(2.0), scale=2.0).item() == 6.0


@pytest.mark.parametrize(
    "layer",
    [
        "Linear(3, 2)",
        "Linear(3, 2, bias=False)",
        "Conv2d(3, 8, 5, stride=1, padding=2)",
        "Conv2d(4, 8, (3, 1), stride=2, padding=0, groups=2, bias=False)",
        "Conv2d(3, 8, 3, stride=1, padding=0, dilation=2)",
        "MaxPool2d(3)",
        "MaxPool2d(3, stride=2, padding=1)",
        "AvgPool2d((2, 1), padding=(1, 0))",
        "AvgPool2d(2, count_include_pad=False)",
        "Dropout(0.2)",
        "ReLU()",
        "ELU(alpha=0.5)",
        "LeakyReLU(a=0.2)",
        "Activation('sin')",
        "PReLU(3)",
        "Flatten()",
        "BatchNorm(3, eps=1e-05, momentum=0.2)",
        "RMSNorm((3, None, None), eps=0.001)",
        "LayerNorm((3,), eps=1e-05)",
        "GroupNorm(2, 4, eps=1e-05)",
        "DyT(3)",
        "Derf(3)",
        "Scale(0.5)",
        "NormPropLinear(4, 3, activation='tanh', mode='exact')",
        "NormPropConv2d(3, 8, 5, stride=1, padding=2, activation='relu', mode='paper')",
    ],
)
def test_the_repr_of_a_layer_is_the_call_that_makes_it(layer):
    assert repr(eval(f"nn.{layer}")) == layer


def test_the_repr_of_a_module_shows_its_modules_and_tensors():
    linear = "(layer): Linear(3, 2)"
    layer = nn.Linear(3, 2)
    assert repr(nn.WeightNorm(layer)) == f"WeightNorm(\n  scale (2,)\n  {linear}\n)"
    assert repr(nn.ScaledWS(layer)) == f"ScaledWS(\n  activation='relu'\n  {linear}\n)"
    block = nn.Residual(nn.Sequential(nn.ReLU()), beta=2.0)
    assert repr(block) == (
        "Residual(\n  alpha=1.0, beta=2.0\n  (branch): Sequential(\n    (0): ReLU()\n  )\n)"
    )

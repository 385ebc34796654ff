"""Modules: names, states, modes, moves."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn


def small():
    return nn.Sequential(nn.NormPropLinear(4, 3, "prelu"), nn.BatchNorm(3), nn.Sequential(nn.Linear(3, 2)))


def test_names_are_pytorchs():
    net = small()
    assert [n for n, _ in net.named_parameters()] == [
        "0.weight", "0.gamma", "0.beta", "0.a", "1.weight", "1.bias", "2.0.weight", "2.0.bias",
    ]  # fmt: skip
    assert set(net.state_dict()) - {n for n, _ in net.named_parameters()} == {"1.running_mean", "1.running_var"}
    assert all(p.name == n for n, p in net.named_parameters()), "tp.draw shows these names"
    assert len(list(net.parameters())) == 8


def test_iteration_gives_the_layers():
    net = small()
    assert [type(layer).__name__ for layer in net] == ["NormPropLinear", "BatchNorm", "Sequential"]
    assert net[1] is list(net)[1]
    assert len(net) == 3


def test_a_state_is_a_copy_and_loads_back_exactly(backend, rng):
    net, other = small().to(backend), small().to(backend)
    x = tp.tensor(rng.normal(size=(5, 4)).astype(np.float32), backend=backend)
    net(x)  # moves the running statistics
    state = net.state_dict()
    other.load_state_dict(state)
    for p in net.parameters():
        p.data += 1.0
    assert all((tp.Tensor(v).numpy() == tp.Tensor(other.state_dict()[k]).numpy()).all() for k, v in state.items())
    assert (other.eval()(x).numpy() != net.eval()(x).numpy()).any()


def test_wrong_states_name_what_is_wrong_and_change_nothing():
    net = small()
    before = net.state_dict()
    for change, words in [
        (lambda s: s.pop("0.gamma"), "no '0.gamma'"),
        (lambda s: s.update({"0.delta": s["0.gamma"]}), "unknown '0.delta'"),
        (lambda s: s.update({"2.0.weight": np.zeros((2, 2), np.float32)}), r"'2.0.weight' as float32 \(2, 2\)"),
        (lambda s: s.update({"0.beta": np.zeros(3, int)}), "'0.beta' as int64"),
        (lambda s: s.update({"0.beta": [0.0, 0.0, 0.0]}), "'0.beta' as list"),
    ]:
        state = {k: v + 1 for k, v in before.items()}
        change(state)
        with pytest.raises(tp.StateError, match=rf"(?s){words}.*rule:.*try:"):
            net.load_state_dict(state)
        assert all((v == before[k]).all() for k, v in net.state_dict().items())


def test_loading_into_a_graph_that_is_alive_is_refused():
    net = small()
    out = net(tp.tensor(np.ones((2, 4), np.float32)))
    with pytest.raises(tp.BackendError, match="still needs"):
        net.load_state_dict(net.state_dict())
    del out
    net.load_state_dict(net.state_dict())


def test_modes_reach_every_layer():
    net = small()
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())


def test_to_moves_and_casts(backend):
    net = small().to(backend, np.float64)
    assert all(p.backend == backend and p.dtype == np.float64 for p in net.parameters())
    assert {a.dtype.name for a in net.state_dict().values()} == {"float64"}


def test_a_seed_gives_the_same_weights_on_every_backend(backend):
    def weights():
        tp.manual_seed(3)
        return nn.build(nn.NIN, width=0.05).state_dict()

    with tp.use_backend(backend):
        there = weights()
    assert all((tp.Tensor(there[k]).numpy() == v).all() for k, v in weights().items())


def test_repr_shows_the_structure():
    assert repr(small()).startswith("Sequential(\n  (0): NormPropLinear(weight (3, 4)")


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(tp.tensor(1.0))

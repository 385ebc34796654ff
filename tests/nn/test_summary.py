"""tp.nn.summary: the layers of any network, ours or a stranger's."""

import numpy as np
import pytest

import tinyprop as tp


class Shared(tp.nn.Module):
    """Calls one layer twice, and has a parameter of its own."""

    def __init__(self):
        self.inner = tp.nn.Linear(3, 3)
        self.scale = tp.ones(3, requires_grad=True)

    def forward(self, x):
        return self.inner(self.inner(x)) * self.scale


def test_the_rows_of_any_network_add_up_to_its_parameters():
    for net in (Shared(), tp.nn.build("C(4,3,1,1)-R(C(4,3,1,1))-C(2,1,1,0)", norm="batch")):
        shape = (2, 3) if isinstance(net, Shared) else (2, 3, 8, 8)
        summary = tp.nn.summary(net, shape)
        assert sum(layer.parameters for layer in summary.layers) == summary.parameters
        assert summary.parameters == sum(p.size for p in net.parameters())


def test_a_layer_that_is_called_twice_counts_once():
    rows = tp.nn.summary(Shared(), (2, 3)).layers
    assert [(row.parameters, row.shared) for row in rows] == [(12, False), (0, True), (3, False)]


def test_shapes_are_those_of_the_calls():
    net = tp.nn.Sequential(tp.nn.Conv2d(3, 4, 3), tp.nn.Flatten(), tp.nn.Linear(4, 2))
    by_shape = tp.nn.summary(net, (5, 3, 3, 3))
    assert [row.outputs for row in by_shape.layers] == [((5, 4, 1, 1),), ((5, 4),), ((5, 2),)]
    assert tp.nn.summary(net, np.zeros((5, 3, 3, 3), "float32")) == by_shape


def test_the_network_stays_as_it_is():
    net = tp.nn.Sequential(tp.nn.BatchNorm(3), tp.nn.Dropout(0.5))
    before = {name: value.copy() for name, value in net.state_dict().items()}
    tp.manual_seed(3)
    expected = tp.rand(2).numpy()
    tp.manual_seed(3)
    tp.nn.summary(net, (4, 3))
    assert np.array_equal(tp.rand(2).numpy(), expected)
    assert all(module.training for module in net)
    for name, value in net.state_dict().items():
        assert np.array_equal(value, before[name])


def test_names_are_escaped_in_html():
    shown = type("<script>", (tp.nn.Linear,), {})(2, 2)
    assert "<script>" not in tp.nn.summary(shown, (1, 2))._repr_html_()


def test_a_shape_without_samples_is_refused():
    with pytest.raises(tp.ShapeError, match=r"(?s)\(0, 3\).*rule:.*try:"):
        tp.nn.summary(tp.nn.Linear(3, 2), (0, 3))

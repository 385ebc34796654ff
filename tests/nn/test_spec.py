import numpy as np
import pytest

import tinyprop as tp
from tinyprop import nn


def sizes(net, x):
    """The side of the image after every layer that changes or keeps it."""
    result = []
    with tp.no_grad():
        for layer in net:
            x = layer(x)
            if isinstance(layer, nn.Conv2d | nn.NormPropConv2d | nn.MaxPool2d | nn.AvgPool2d):
                result.append(x.shape[-1])
    return result


@pytest.mark.parametrize("norm", ["normprop", "batch", "none"])
def test_the_papers_network(norm):
    net = nn.build(nn.NIN, norm=norm, width=0.1)
    x = tp.tensor(np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32))
    assert net(x).shape == (2, 10)
    assert sizes(net, x) == [32, 32, 16, 16, 16, 16, 8, 8, 4, 8, 8, 1]
    kinds = [type(layer).__name__ for layer in net]
    assert kinds.count("NormPropConv2d") == (8 if norm == "normprop" else 0)
    assert kinds.count("BatchNorm") == (8 if norm == "batch" else 0)
    assert kinds[-3:] == ["Conv2d", "AvgPool2d", "Flatten"], "the last convolution is linear, the mean gives the logits"


def test_full_width_has_the_papers_filters():
    net = nn.build(nn.NIN)
    assert [p.shape[0] for n, p in net.named_parameters() if n.endswith("weight")] == [
        192, 160, 96, 192, 192, 192, 192, 192, 10,
    ]  # fmt: skip


def test_width_and_classes():
    net = nn.build(nn.NIN, width=0.25, classes=100)
    assert [p.shape[0] for n, p in net.named_parameters() if n.endswith("weight")] == [48, 40, 24] + [48] * 5 + [100]
    assert nn.build(nn.NIN, width=1e-9)[0].weight.shape[0] == 1


def test_activations_reach_the_layers():
    assert nn.build(nn.NIN, activation="tanh", width=0.05)[0].activation == "tanh"
    assert "0.a" in nn.build(nn.NIN, activation="prelu", width=0.05).state_dict()
    assert "1.a" in nn.build(nn.NIN, norm="none", activation="prelu", width=0.05).state_dict()
    net = nn.build(nn.NIN, mode="exact", gamma=2.0, width=0.05)
    assert (net[0].mode, net[0].gamma.numpy()[0]) == ("exact", 2.0)


def test_spaces_do_not_matter():
    assert len(nn.build(" C(4, 3,1 ,1) -\n P(2,2,0, max) - C(2,1,1,0) ")) == 4


@pytest.mark.parametrize(
    ("spec", "position"),
    [
        ("", 0),
        ("C(4,3,1,1)-", 11),
        ("C(4,3,1,1)P(2,2,0,max)", 10),
        ("C(4,3,1,1)-P(2,2,0,mean)", 11),
        ("C(4,3,1)-C(2,1,1,0)", 0),
        ("C(0,3,1,1)", 0),
        ("C(4,3,0,1)", 0),
        ("C(4,3,1,-1)", 0),
        ("C(4,3,1,1)-D(2)", 11),
        ("P(2,2,0,max)", 12),
        ("C(4,3,1,1)-C(2,1,1,0) and more", 21),
    ],
)
def test_a_wrong_spec_is_refused_with_position_and_grammar(spec, position):
    with pytest.raises(ValueError, match=rf"(?s)position {position}:.*rule:.*C\(filters,size,stride,padding\).*try:"):
        nn.build(spec)


def test_a_wrong_norm_is_refused():
    with pytest.raises(ValueError, match=r"(?s)norm='spectral'.*normprop, batch, none"):
        nn.build(nn.NIN, norm="spectral")

import hashlib

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn
from tinyprop.nn.spec import Block, Conv, Pool, parse

OURS = list(nn.normalizers)

RESIDUAL = (
    "C(8,3,1,1)-R(C(8,3,1,1)-C(8,3,1,1))-R(C(12,3,1,1)-P(3,1,1,avg)-C(12,1,1,0))-R(R(C(12,3,2,1))-C(12,3,1,1))"
    "-P(3,2,1,max)-C(10,1,1,0)-P(4,4,0,avg)"
)


def sizes(net, x):
    """The side of the image after every layer that changes or keeps it."""
    result = []
    with tp.no_grad():
        for layer in net:
            x = layer(x)
            if isinstance(
                layer, nn.Conv2d | nn.WeightNorm | nn.NormPropConv2d | nn.MaxPool2d | nn.AvgPool2d
            ):
                result.append(x.shape[-1])
    return result


@pytest.mark.parametrize("norm", OURS)
def test_the_papers_network(norm):
    net = nn.build(nn.NIN, norm=norm, width=0.1)
    x = tp.tensor(np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32))
    assert net(x).shape == (2, 10)
    assert sizes(net, x) == [32, 32, 16, 16, 16, 16, 8, 8, 4, 8, 8, 1]
    kinds = [type(layer).__name__ for layer in net]
    whole = sum(kind in ("NormPropConv2d", "MeasuredConv2d") for kind in kinds)
    assert whole == (8 if "normprop" in norm else 0)
    expected = {
        "batch": "BatchNorm",
        "layer": "LayerNorm",
        "layer-after": "LayerNorm",
        "rms": "RMSNorm",
        "group": "GroupNorm",
        "instance": "GroupNorm",
        "dyt": "DyT",
        "derf": "Derf",
        "weight": "WeightNorm",
        "ws": "ScaledWS",
    }
    normalizers = [kind for kind in kinds if kind in expected.values()]
    assert normalizers == 8 * [expected.get(norm)] * (norm in expected)
    assert [m.sums_over_batch for m in net.modules()].count(True) == (8 if norm == "batch" else 0)
    assert kinds[-3:] == ["Conv2d", "AvgPool2d", "Flatten"], (
        "the last convolution is linear, the mean gives the logits"
    )


@pytest.mark.parametrize(
    ("options", "filters"),
    [
        ({}, [192, 160, 96] + [192] * 5 + [10]),
        ({"width": 0.25, "classes": 100}, [48, 40, 24] + [48] * 5 + [100]),
        ({"width": 1e-9}, [1] * 8 + [10]),
    ],
)
def test_width_and_classes(options, filters):
    net = nn.build(nn.NIN.replace("-", " -\n "), **options)  # spaces do not matter
    assert [p.shape[0] for n, p in net.named_parameters() if n.endswith("weight")] == filters


def test_activations_reach_the_layers():
    assert nn.build(nn.NIN, activation="tanh", width=0.05)[0].activation.name == "tanh"
    assert "0.a" in nn.build(nn.NIN, activation="prelu", width=0.05).state_dict()
    assert "1.a" in nn.build(nn.NIN, norm="none", activation="prelu", width=0.05).state_dict()
    net = nn.build(nn.NIN, mode="exact", gamma=2.0, width=0.05)
    assert (net[0].mode, net[0].gamma.numpy()[0]) == ("exact", 2.0)


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
        ("R(C(4,3,1,1)-C(2,1,1,0)", 23),
        ("R(C(4,3,1,1))", 13),
        ("C(4,3,1,1)-R()-C(2,1,1,0)", 13),
        ("C(4,3,1,1)-R(P(3,2,1,max))-C(2,1,1,0)", 25),
        ("C(4,3,1,1)-R(C(4,3,1,1)-C(4,3,1,0))-C(2,1,1,0)", 24),
        ("C(4,3,1,1)-R(R(C(4,3,1,1)-C(4,4,1,1)))-C(2,1,1,0)", 26),
        ("C(4,3,1,1)-R(P(2,2,0,max)-C(4,1,1,0))-C(2,1,1,0)", 13),
        ("C(4,3,1,1))-C(2,1,1,0)", 10),
    ],
)
def test_a_wrong_spec_is_refused_with_position_and_grammar(spec, position):
    with pytest.raises(
        ValueError,
        match=rf"(?s)position {position}:.*rule:.*C\(filters,size,stride,padding\).*try:",
    ):
        nn.build(spec)


def test_a_spec_is_parsed_to_layers():
    assert parse("C(8, 5,2,0)-R(R(C(4,3,1,1))-P(3,2,1,avg))-P(2,2,0,max)-C(10,1,1,0)") == [
        Conv(filters=8, size=5, stride=2, padding=0),
        Block((Block((Conv(4, 3, 1, 1),)), Pool(size=3, stride=2, padding=1, mode="avg"))),
        Pool(2, 2, 0, "max"),
        Conv(10, 1, 1, 0),
    ]


def test_a_wrong_norm_or_initialization_is_refused():
    assert_explained(
        ValueError,
        lambda: nn.build(nn.NIN, norm="spectral"),
        "normaliser 'spectral'",
        "normprop, normprop-exact, normprop-measured, batch, layer",
    )
    assert_explained(ValueError, lambda: nn.build(nn.NIN, init="zero"), "init='zero'", "glorot, he")
    assert_explained(
        ValueError,
        lambda: nn.build(nn.NIN, norm="ws", init="fixup", width=0.1),
        "fixup_ of a ScaledWS",
    )


DIGESTS = [  # of the commit before there were other norms
    ("normprop", ["8510580b9a94772b", "136a75575a59a1fe"]),
    ("batch", ["f5edf987573d43cf", "aa111f98385d6492"]),
    ("none", ["543878a404b9baac", "3b64c61f757fcb79"]),
]


def digest(net):
    """Of the names and values of all parameters, and of how the network prints."""
    hashed = hashlib.sha256(repr(net).encode())
    for name, value in net.state_dict().items():
        hashed.update(name.encode() + value.tobytes())
    return hashed.hexdigest()[:16]


@pytest.mark.parametrize(("norm", "expected"), DIGESTS)
def test_a_seed_builds_what_it_always_did(norm, expected):
    """The names of finished runs stand for these weights."""
    found = []
    for activation in ("relu", "prelu"):
        tp.manual_seed(3)
        found.append(digest(nn.build(nn.NIN, norm=norm, activation=activation, width=0.1)))
    assert found == expected


def kinds(net):
    return [type(layer).__name__ for layer in net]


@pytest.mark.parametrize("norm", OURS)
def test_residual_networks(norm, backend, rng):
    """Every parameter gets a gradient; a change of channels or size takes the other path through a
    convolution."""
    with tp.use_backend(backend):
        net = nn.build(RESIDUAL, norm=norm, activation="prelu" if norm == "layer" else "relu")
        out = net(tp.tensor(rng.normal(size=(3, 3, 16, 16)).astype(np.float32)))
    assert out.shape == (3, 10)
    out.backward(np.ones(out.shape, np.float32) if backend == "numpy" else out.detach())
    assert all(p.grad is not None and np.isfinite(p.grad.numpy()).all() for p in net.parameters())
    plain, channels, size = (m for m in net if isinstance(m, nn.Residual))
    assert plain.shortcut is None
    for block in (channels, size, size.branch[0]):
        assert isinstance(block.shortcut, type(net[0]))


def test_normalizer_and_activation_stand_in_front_of_the_convolutions_of_a_block():
    net = nn.build(RESIDUAL, norm="layer-after")
    stack = ["Activation", "LayerNorm"]
    assert kinds(net) == [
        "Conv2d",
        *["Residual"] * 3,
        *stack,
        "MaxPool2d",
        "Conv2d",
        "AvgPool2d",
        "Flatten",
    ]
    assert kinds(net[1].branch) == [*stack, "Conv2d", *stack, "Conv2d"]
    assert kinds(net[2].branch) == [*stack, "Conv2d", *stack, "AvgPool2d", "Conv2d"]
    assert kinds(net[3].branch) == ["Residual", *stack, "Conv2d"]
    images_first = nn.build("R(C(3,3,1,1)-C(3,3,1,1))-C(10,1,1,0)", norm="batch")
    assert kinds(images_first[0].branch) == ["Conv2d", "BatchNorm", "Activation", "Conv2d"], (
        "images are no activation"
    )


@pytest.mark.parametrize("norm", OURS)
def test_which_blocks_keep_count_of_the_variance(norm):
    net = nn.build(
        "C(8,3,1,1)" + 3 * "-R(C(8,3,1,1))" + "-R(C(4,3,2,1))-R(C(4,1,1,0))-C(5,1,1,0)",
        norm=norm,
        alpha=0.5,
    )
    blocks, scales = ([m for m in net if isinstance(m, kind)] for kind in (nn.Residual, nn.Scale))
    count = norm in ("normprop", "normprop-exact", "normprop-measured", "ws")
    variances = [1.0, 1.25, 1.5, 1.75, 1.25] if count else [1.0] * 5
    assert [block.beta**2 for block in blocks] == pytest.approx(variances)
    assert {block.alpha for block in blocks} == {0.5}
    assert [scale.factor for scale in scales] == pytest.approx([1.5**-0.5] * count)


def test_standardized_weights_know_the_activation_of_their_input():
    net = nn.build(RESIDUAL, norm="ws", activation="tanh")
    assert net[0].activation.name == "identity", "images"
    inside = [m.activation.name for m in net[1].branch if isinstance(m, nn.ScaledWS)]
    assert inside == ["tanh", "tanh"]
    assert net[2].shortcut.activation.name == "identity", "the sum of a block has gone through none"


@pytest.mark.parametrize("activation", ["relu", "selu"])
@pytest.mark.parametrize(
    ("norm", "init"), [("none", "he"), ("dyt", None), ("derf", None), ("rms", "orthogonal")]
)
def test_gains_keep_the_pre_activations_at_a_mean_square_of_1(norm, init, activation, rng):
    """Eight layers deep, 60 units wide and 1x1, within a factor of 1.5; Glorot's weights leave less
    than 1/50."""
    found = {}
    for how in (init, "glorot"):
        tp.manual_seed(0)
        net = nn.build(
            "-".join(["C(60,1,1,0)"] * 8 + ["C(2,1,1,0)"]), 60, norm, activation, init=how
        )
        x = tp.tensor(rng.normal(size=(40, 60, 1, 1)).astype(np.float32))
        with tp.no_grad():
            for layer in net:
                x = layer(x)
                if isinstance(layer, nn.Conv2d) and layer.out_channels > 2:
                    found[how] = float((x.data**2).mean())
    assert 1 / 1.5 < found[init] < 1.5
    assert norm == "rms" or activation == "selu" or found["glorot"] < 0.02


def test_initializations_reach_every_layer():
    for norm in ("none", "normprop", "weight", "ws", "batch"):
        net = nn.build(
            "C(6,3,1,1)-R(C(6,1,1,0))-R(C(5,1,1,0))-C(2,1,1,0)", norm=norm, init="orthogonal"
        )
        for w in nn.init.weights(net):
            rows = w.numpy().reshape(len(w), -1)
            gram = rows @ rows.T
            np.testing.assert_allclose(gram, gram[0, 0] * np.eye(len(gram)), atol=1e-5)
    net = nn.build("C(6,3,1,1)-R(C(6,1,1,0)-C(6,1,1,0))-C(2,1,1,0)", norm="none", init="fixup")
    assert not net[1].branch[-1].weight.numpy().any()
    assert not net[-2].weight.numpy().any()


MLP = "F(12)-R(F(12)-F(12))-R(F(16))-F(5)"


# a vector has no pixels, over which InstanceNorm would average
@pytest.mark.parametrize("norm", [norm for norm in OURS if norm != "instance"])
def test_a_fully_connected_network_with_blocks(norm, rng):
    vectors = rng.normal(size=(6, 7)).astype(np.float32)
    net = nn.build(MLP, 7, norm=norm)
    assert net(tp.tensor(vectors)).shape == (6, 5)
    assert not any(isinstance(layer, nn.Flatten | nn.Conv2d) for layer in net.modules())
    images = rng.normal(size=(6, 3, 4, 4)).astype(np.float32)
    net = nn.build(
        f"C(4,3,2,1)-P(2,2,0,avg)-{MLP}", 3, norm=norm, width=0.5, classes=3, size=(4, 4)
    )
    assert net(tp.tensor(images)).shape == (6, 3)
    first = next(p for p in net.parameters() if p.ndim == 2)
    assert first.shape == (6, 2), "2 filters on 1x1 pixels"


def test_propagate_predicts_the_signals_of_an_mlp(rng):
    net = nn.build("F(100)-F(100)-F(5)", 50)
    predicted = tp.propagate(net, np.zeros(50), np.eye(50))[-1].variance.mean()
    logits = net(tp.tensor(rng.normal(size=(4000, 50)).astype(np.float32))).numpy()
    assert logits.var(axis=0).mean() == pytest.approx(predicted, rel=0.1)


def test_images_of_unknown_size_are_not_flattened():
    words = ("before F(...)", "follows from their size", "size=(32, 32)")
    assert_explained(ValueError, lambda: nn.build("C(4,3,1,1)-F(5)"), *words)


@pytest.mark.parametrize(
    "spec", ["F(0)", "F(5)-C(3,1,1,0)", "F(5)-P(2,2,0,max)", "R(C(4,3,1,1)-F(4))-F(5)", "R(F(5))"]
)
def test_dense_layers_come_last(spec):
    with pytest.raises(ValueError, match=r"after an F there is no C"):
        parse(spec)

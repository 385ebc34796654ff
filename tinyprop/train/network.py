"""The network of a run: built from the settings, or one of the user's own."""

from collections.abc import Sequence
from typing import Any

from .. import data, nn
from ..engine.arrays import HostArray, from_host
from ..engine.errors import GradientError, ShapeError, explain, parts_of
from ..engine.graph import no_grad, recording
from ..engine.loading import is_file_reference
from ..engine.tensor import Tensor, tensor
from ..nn.module import Module, visiting
from ..nn.normalizers import as_normalizer
from ..nn.own import in_words
from ..nn.spec import outputs_of, parse, with_outputs
from .config import Config
from .own import make_network

LSUV_IMAGES = 100  # on which the weights of `init="lsuv"` are scaled
Shape = tuple[int, ...]  # of one sample: (C, H, W), or (features,)


def network(
    config: Config, images: HostArray, classes: int, model: Module | None = None
) -> nn.Sequential:
    """The network of a run with its data normalisation in front, for images (N, C, H, W) or
    vectors (N, features) like these. A `model` of your own takes the place of the layers that the
    settings describe.

    >>> images = tp.data.load("shapes", split="test").images
    >>> net = tp.train.network(tp.train.Config(width=0.1), images, classes=10)
    >>> net(tp.tensor(images[:2])).shape
    (2, 10)
    """
    net = assembled(config, images.shape[1:], classes, model)
    fit_data_normalizer(config, net, images)
    check_outputs(config, net, images[:2], classes)
    if config.init == "lsuv":
        nn.init.lsuv_(net, tensor(images[:LSUV_IMAGES]))
    return net


def assembled(
    config: Config, shape: Shape, classes: int, model: Module | None = None
) -> nn.Sequential:
    """The network for samples of this shape, before its data normalisation is fitted."""
    if model is None and config.net is not None:
        model = make_network(config.net)
    layers = built(config, shape, classes) if model is None else [model]
    if config.data_norm == "none":
        return nn.Sequential(*layers)
    kind = data.BatchNormalizer if config.data_norm == "batch" else data.GlobalNormalizer
    return nn.Sequential(kind(shape), *layers)


def fit_data_normalizer(config: Config, net: nn.Sequential, images: HostArray) -> None:
    """Measure the training images, if the first layer normalises by what it has measured."""
    first = net[0]
    if config.data_norm == "channel" and images.ndim != 4:
        got = f"data_norm = 'channel' with samples of shape {images.shape[1:]}"
        rule = "only images (channels, height, width) have channels"
        raise ValueError(explain(got, rule, "data_norm = 'global'"))
    if config.data_norm in ("global", "channel"):
        assert isinstance(first, data.GlobalNormalizer)
        first.fit(images, per_channel=config.data_norm == "channel")


def check_outputs(config: Config, net: Module, images: HostArray, classes: int) -> None:
    """Refuse a network that cannot be trained, or has not one output for each class."""
    name = "a network"
    if config.net is not None:
        name = config.net.partition("#")[0]
    if not any(True for _ in net.parameters()):
        rule = "there is something to train: a tensor with requires_grad=True, as an attribute"
        raise ValueError(explain(f"{name} without parameters", rule, "tp.nn.Linear(...)"))
    try:
        with recording(True), nn.evaluating():
            found: Any = net(tensor(images))
    except Exception as error:
        if config.net is None:
            refuse_own_layers(config, error)
            raise
        got = f"{name}, which raises {in_words(error)}, for samples {images.shape}"
        rule = "it maps a batch of samples to outputs, one for each class"
        raise ValueError(explain(got, rule, f"{classes} outputs for {images.shape}")) from error
    if not isinstance(found, Tensor):
        got = f"{name}, which returns {type(found).__name__}"
        raise TypeError(explain(got, "forward returns a tensor", "the logits alone"))
    if found.shape != (len(images), classes):
        got = f"{name} with outputs {found.shape[1:]} for samples {images.shape[1:]}"
        rule = f"it must have one output for each of {classes} classes"
        hint = f"a last layer with {classes} outputs"
        if found.shape[:1] != (len(images),):
            got = f"{name} with outputs {found.shape} for a batch {images.shape}"
            rule = "its outputs have a row for each sample of the batch, in the same order"
            hint = f"a forward that keeps the first axis: {(len(images), classes)}"
        elif config.net is None:
            hint = "a last pool of the size of the image that is left: P(8,8,0,avg) for one of 8x8"
        raise ShapeError(got, rule, hint)
    if not found.requires_grad:
        got = f"{name} with outputs that have no gradient"
        rule = "its weights are trained with gradients, which pass through its forward"
        hint = "operators and tp.functional on tensors, without .data, .numpy() or tp.no_grad()"
        raise GradientError(got, rule, hint)


def check_last_batch(config: Config, net: Module, images: HostArray) -> None:
    """Refuse a built network that would normalise a batch of one image over the batch alone."""
    if config.net is not None or (len(images) - 1) % config.batch_size:
        return

    def visit(layer: Module, *arguments: Any, **keywords: Any) -> None:
        if isinstance(layer, nn.BatchNorm) and arguments[0].size == arguments[0].shape[1]:
            got = f"norm = {config.norm!r} with {len(images)} images in batches of "
            got += f"{config.batch_size}"
            rule = "the last batch would be one image, whose features have no standard deviation"
            raise ValueError(explain(got, rule, "another batch_size or train_size, or norm"))

    with no_grad(), nn.evaluating(), visiting(visit):
        net(Tensor(from_host(images[:1], like=next(net.parameters()).data)))


def refuse_own_layers(config: Config, error: Exception) -> None:
    """Say in three parts what a network with a user's normaliser or activation raises."""
    own = [name for name in ("norm", "activation") if is_file_reference(getattr(config, name))]
    if not own or parts_of(error) is not None:
        return
    given = [f"{name} = {getattr(config, name).partition('#')[0]}" for name in own]
    got = f"a network with {' and '.join(given)}, which raises {in_words(error)}"
    rule = "a normaliser takes (N, C) and (N, C, H, W), and keeps the shape"
    raise ValueError(explain(got, rule, "a forward that does so for both")) from error


# -- a network that the settings describe


def built(config: Config, shape: Shape, classes: int) -> list[Module]:
    """The layers that the settings describe, for samples of this shape."""
    refuse_other_activation(config)
    spec = papers_network(shape) if config.spec is None else config.spec
    if config.spec is not None:
        check_spec_fits(config.spec, shape, classes)
    layers: Sequence[Module] = list(
        nn.build(
            spec,
            shape[0],
            config.norm,
            config.activation,
            config.width_used,
            classes,
            mode=None if config.mode == "paper" else config.mode,  # the layers' own default
            gamma=config.gamma,
            beta=config.beta,
            init="orthogonal" if config.init == "lsuv" else config.init,
            size=None if len(shape) == 1 else (shape[1], shape[2]),
        )
    )
    if config.output == "normprop":
        layers = with_normalized_output(layers)
    return with_dropout(layers, config.dropout)


def papers_network(shape: Shape) -> str:
    """The paper's network, whose last pool is as large as what is left of the image."""
    if len(shape) != 3:
        got = f"samples of shape {shape}, and no network for them"
        rule = "the default is the paper's network, for images (channels, height, width)"
        raise ValueError(explain(got, rule, "spec = 'F(100)-F(10)', with one output per class"))
    quarter = shape[1] // 4
    return nn.NIN.replace("P(8,8,0,avg)", f"P({quarter},{quarter},0,avg)")


def check_spec_fits(spec: str, shape: Shape, classes: int) -> None:
    """Refuse a spec for other samples or another number of classes."""
    outputs = outputs_of(spec)
    if outputs != classes:
        got = f"the spec {spec!r}, with {outputs} outputs"
        rule = f"a spec is built as it is written, and the data have {classes} classes"
        raise ValueError(explain(got, rule, with_outputs(spec, classes)))
    if len(shape) == 1 and not nn.spec.is_dense(parse(spec)[0]):
        got = f"the spec {spec!r} for vectors of {shape[0]} features"
        rule = "only fully connected layers, F(units), take vectors"
        raise ValueError(explain(got, rule, f"F(100)-F({classes})"))


def refuse_other_activation(config: Config) -> None:
    """Refuse an activation that the normaliser would replace by its own."""
    fixed = as_normalizer(config.norm).activation
    if fixed is not None and config.activation != Config().activation:
        got = f"activation = {config.activation!r} with norm = {config.norm!r}"
        rule = "this normaliser has an activation of its own"
        raise ValueError(explain(got, rule, "leave it out, or another norm"))


def with_normalized_output(layers: Sequence[Module]) -> list[Module]:
    """The layers with one that is normalised as NormProp's are in the place of the last one with
    weights."""
    output = next(layer for layer in reversed(layers) if isinstance(layer, nn.Conv2d | nn.Linear))
    return [normalized_output(layer) if layer is output else layer for layer in layers]


def normalized_output(layer: Module) -> Module:
    """A layer that gives logits gamma w.x / |w| + beta, with the weights of this one."""
    normalized: nn.NormPropConv2d | nn.NormPropLinear
    if isinstance(layer, nn.Conv2d):
        filters, channels, height, width = layer.weight.shape
        normalized = nn.NormPropConv2d(
            channels, filters, (height, width), layer.stride, layer.padding, "identity"
        )
    else:
        assert isinstance(layer, nn.Linear)
        outputs, inputs = layer.weight.shape
        normalized = nn.NormPropLinear(inputs, outputs, "identity")
    normalized.weight.data[...] = layer.weight.data
    return normalized


def with_dropout(layers: Sequence[Module], probability: float) -> list[Module]:
    """The layers with dropout after each pooling layer but one that gives the logits."""
    if not probability:
        return list(layers)
    every: list[Module] = []
    for layer in layers:
        every.append(layer)
        is_pool = isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)
        if is_pool and layer is not layers[-2]:
            every.append(nn.Dropout(probability))
    if len(every) == len(layers):
        got = f"dropout = {probability} for a network without hidden pooling layers"
        rule = "dropout comes after each hidden pooling layer outside of blocks"
        raise ValueError(explain(got, rule, "dropout = 0, or a network of your own"))
    return every

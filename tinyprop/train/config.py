"""What decides how a run goes: each setting is described once, for the checks and for the command
line."""

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_args

from .. import data, nn
from ..data.normalization import Normalizer
from ..engine.arrays import HostArray
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.loading import from_file, is_file_reference, is_recorded, source_of
from ..engine.registry import Registry
from ..engine.tensor import tensor
from ..functional.activation import activations, as_activation
from ..nn.init import INITS
from ..nn.module import Module
from ..nn.spec import GRAMMAR, parse

LIMITS = {"above": "above", "low": "of at least", "high": "at most"}  # of numbers, in words
LSUV_IMAGES = 100  # on which the weights of `init="lsuv"` are scaled
NO_LIMITS = {"above": -math.inf, "low": -math.inf, "high": math.inf}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    table: Registry[Any] | None = None,
    convert: Callable[[str], Any] | None = None,
    resumable: bool = False,
    **limits: float,
) -> Any:
    """A field of a Config, with LIMITS for a number. With an open `table`, it is a name of that
    table, or `file.py:name`, which `convert` makes a record of. A resumed run may change what is
    resumable."""
    facts = {"help": help, "choices": choices, "table": table, "convert": convert}
    return field(default=default, metadata={**facts, "resumable": resumable, **limits})


@dataclass(frozen=True)
class Config:
    """Everything that decides how a run goes; wrong values are refused when it is made.

    An activation or a normaliser of your own, however it is given, is recorded as
    `file.py:name#fingerprint`, so that other processes can import it. Building the network fails
    if the file has changed. One that is registered in a notebook has no file: its name is recorded.

    >>> tp.train.Config(data="cifar10", epochs=2).batch_size
    50
    >>> tp.train.Config(width=0.0)
    Traceback (most recent call last):
        ...
    ValueError: got:  width = 0.0
    rule: it is a number above 0 and at most 100
    try:  width = 0.25
    """

    data: str = setting("shapes", "data set", choices=data.NAMES)
    norm: str = setting(
        "normprop",
        "normalisation of the hidden layers, by name or as file.py:name",
        table=nn.normalizers,
        convert=nn.as_normalizer,
    )
    activation: str = setting(
        "relu",
        "activation of the hidden layers, by name or as file.py:name",
        table=activations,
        convert=as_activation,
    )
    spec: str | None = setting(
        None,
        "layers in the paper's shorthand, such as "
        "'C(16,3,1,1)-R(C(16,3,1,1))-C(10,1,1,0)-P(32,32,0,avg)' "
        "(default: the paper's network)",
    )
    init: str | None = setting(
        None,
        "initial weights (default: glorot for normprop, batch and none, else he)",
        choices=(*INITS, "lsuv"),
    )
    mode: str = setting(
        "paper",
        "constants of NormProp: for N(0, 1) input, or for N(beta, gamma^2)",
        choices=("paper", "exact"),
    )
    gamma: float | None = setting(
        None, "initial gamma (default: the inverse of the activation's Jacobian factor)"
    )
    beta: float | None = setting(None, "initial beta (default: 0; in exact mode 1 for a rectifier)")
    shrink: int = setting(1, "average blocks of N x N pixels of every image", low=1)
    data_norm: str = setting(
        "global",
        "normalise each pixel over the training set, or over each mini-batch; or each channel "
        "over the training set",
        choices=("global", "batch", "channel"),
    )
    output: str = setting(
        "linear",
        "the layer that gives the logits: a plain one, or one normalised as NormProp's are",
        choices=("linear", "normprop"),
    )
    width: float = setting(
        0.25, "multiplies the number of filters; 1 is the paper's network", above=0, high=100
    )
    dropout: float = setting(
        0.0, "dropout probability after each hidden pooling layer outside of blocks", low=0, high=1
    )
    epochs: int = setting(10, "passes over the training images", low=1, resumable=True)
    batch_size: int = setting(50, "images per mini-batch", low=1)
    lr: float = setting(0.02, "initial learning rate; the paper uses 0.05", above=0, high=100)
    optimizer: str = setting("sgd", "SGD with momentum, or RMSProp", choices=("sgd", "rmsprop"))
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    alpha: float = setting(0.99, "decay of RMSProp's mean of squared gradients", low=0, high=1)
    weight_decay: float = setting(0.001, "L2 penalty", low=0, high=1)
    decay_on: str = setting(
        "all",
        "the L2 penalty is on all parameters, or on weights alone (not on gamma, beta, biases)",
        choices=("all", "weights"),
    )
    unconstrained: bool = setting(False, "do not keep the filters of NormProp at unit length")
    schedule: str = setting(
        "halve",
        (
            "learning rate: halved every so many epochs, halved when the training loss stalls, or "
            "annealed linearly to 0"
        ),
        choices=("halve", "plateau", "linear"),
    )
    halve_every: int = setting(10, "epochs between halvings (schedule halve)", low=1)
    anneal: int | None = setting(
        None, "last epochs in which the rate falls linearly to 0 (schedule halve)", low=1
    )
    patience: int = setting(
        3, "epochs without a smaller training loss before halving (schedule plateau)", low=1
    )
    refresh: int | None = setting(
        None,
        "steps between measurements of fixed images, for normprop-measured (default: 10)",
        low=1,
    )
    fixed_images: int | None = setting(
        None, "training images for these measurements (default: 50)", low=2
    )
    average: int | None = setting(
        None, "also average the weights over the steps of the last N epochs before annealing", low=1
    )
    flip: bool = setting(False, "mirror half of the training images")
    validation: bool = setting(
        False,
        ("evaluate each epoch on the validation images, and the test images only once, at the end"),
    )
    train_size: int | None = setting(None, "train on N random images (default: all)", low=1)
    test_size: int | None = setting(
        None, "evaluate on the first N test images (default: all)", low=1
    )
    seed: int = setting(0, "random seed", low=0)
    backend: str = setting("numpy", "where arrays live", choices=("numpy", "cupy"))
    threads: int | None = setting(
        None,
        "threads that share the kernels of a step (default: one per core)",
        low=1,
        resumable=True,
    )
    read_every: int = setting(
        50, "on a GPU, steps between readings of the loss", low=1, resumable=True
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["table"] is not None:
                value = recorded(f, value)
                object.__setattr__(self, f.name, value)  # the dataclass is frozen
            if not allowed(f, value):
                raise ValueError(
                    explain(
                        f"{f.name} = {value!r}", f"it is {rule(f)}", f"{f.name} = {f.default!r}"
                    )
                )
        if self.anneal is not None and self.schedule != "halve":
            got = f"anneal = {self.anneal} with schedule = {self.schedule!r}"
            raise ValueError(explain(got, "it belongs to schedule = 'halve'", "anneal = None"))
        at_the_end = (self.anneal or 0) + (self.average or 0)
        if at_the_end > self.epochs:
            got = f"average = {self.average}, anneal = {self.anneal}, epochs = {self.epochs}"
            wrong = "averaging and annealing take the last epochs, one after the other"
            raise ValueError(explain(got, wrong, f"epochs = {at_the_end}"))


def recorded(f: "Field[Any]", value: Any) -> str:
    """How the config of a run names an entry of an open table: by its name if it is ours, as
    `file.py:name#fingerprint` if it is defined in a file.

    >>> norm = next(f for f in fields(Config) if f.name == "norm")
    >>> recorded(norm, "batch"), recorded(norm, tp.nn.normalizers["batch"])
    ('batch', 'batch')
    """
    if isinstance(value, str) and is_recorded(value):
        return value  # the file is looked at when the network is built
    record, table = f.metadata["convert"](value), f.metadata["table"]
    defined = table.source_of(record, record.function)
    if defined is None and not isinstance(value, str):
        defined = source_of(value)  # a plain function
    if defined is None and is_file_reference(value):
        defined = source_of(from_file(value))
    if defined is not None:
        return str(defined)
    if table.get(record.name) is record:
        return str(record.name)
    got = f"{f.name} {record.name!r}, which is not registered, and at the top level of no file"
    rule = f"a run records where its {f.name} is, so that it can be resumed and evaluated"
    raise ValueError(explain(got, rule, f"save it in a file, or {table.label}.register(...)"))


# what a resumed run may not change
FIXED = [f.name for f in fields(Config) if not f.metadata["resumable"]]


def allowed(f: "Field[Any]", value: Any) -> bool:
    """Whether a setting may take this value."""
    if value is None:
        return f.default is None
    if kind(f) is str:
        return isinstance(value, str) and _is_choice(f, value)
    if kind(f) is bool or isinstance(value, bool):
        return kind(f) is bool and isinstance(value, bool)
    if not isinstance(value, int | float if kind(f) is float else int):
        return False
    above, low, high = (f.metadata.get(name, limit) for name, limit in NO_LIMITS.items())
    return bool(low <= value <= high and above < value < math.inf)


def _is_choice(f: "Field[Any]", value: str) -> bool:
    """Whether a setting that is a text may be this one."""
    choices, table = f.metadata["choices"], f.metadata["table"]
    if table is not None:
        return value in table or is_file_reference(value)
    return value in choices if choices else is_spec(value)


def rule(f: "Field[Any]") -> str:
    """What a setting may be, in words.

    >>> [rule(f) for f in fields(Config) if f.name in ("mode", "width", "epochs")]
    ['one of paper, exact', 'a number above 0 and at most 100', 'a whole number of at least 1']
    """
    if kind(f) is bool:
        return "True or False"
    if f.metadata["table"] is not None:
        return f"one of {', '.join(f.metadata['table'])}, or file.py:name"
    if kind(f) is str:
        choices = f.metadata["choices"]
        return f"one of {', '.join(choices)}" if choices else GRAMMAR
    limits = [f"{word} {f.metadata[name]:g}" for name, word in LIMITS.items() if name in f.metadata]
    return f"a {'whole ' if kind(f) is int else ''}number {' and '.join(limits)}".rstrip()


def is_spec(text: str) -> bool:
    """Whether this is a network in the paper's shorthand."""
    try:
        return bool(parse(text))
    except ValueError:
        return False


def kind(f: "Field[Any]") -> type:
    """The type of a setting: str, bool, int or float."""
    return next(t for t in (str, bool, int, float) if t in (f.type, *get_args(f.type)))


def network(config: Config, images: HostArray, classes: int) -> nn.Sequential:
    """The network of a run with its data normalisation in front, for images like these (N, C, H,
    W).

    >>> images = tp.data.load("shapes", split="test").images
    >>> net = tp.train.network(tp.train.Config(width=0.1), images, classes=10)
    >>> net(tp.tensor(images[:2])).shape
    (2, 10)
    """
    _, channels, height, width = images.shape
    # all that is left of the image
    papers = nn.NIN.replace("P(8,8,0,avg)", f"P({height // 4},{height // 4},0,avg)")
    layers = nn.build(
        config.spec or papers,
        channels,
        config.norm,
        config.activation,
        config.width,
        classes,
        mode=None if config.mode == "paper" else config.mode,  # the layers' own default
        gamma=config.gamma,
        beta=config.beta,
        init="orthogonal" if config.init == "lsuv" else config.init,
    )
    shape = (channels, height, width)
    every: list[Module] = [data_normalizer(config, images)]
    output = next(layer for layer in reversed(list(layers)) if isinstance(layer, nn.Conv2d))
    for layer in layers:
        is_normalized_output = config.output == "normprop" and layer is output
        every.append(normalized_output(output) if is_normalized_output else layer)
        if (
            config.dropout
            and isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)
            and layer is not layers[-2]
        ):
            every.append(nn.Dropout(config.dropout))
    net = nn.Sequential(*every)
    with no_grad(), nn.evaluating():
        found = net(tensor(images[:1])).shape
    if found != (1, classes):
        got = f"a network with outputs {found[1:]} for images {shape}"
        rule = f"it must have one output for each of {classes} classes"
        raise ShapeError(
            got,
            rule,
            "a last pool of the size of the image that is left: P(8,8,0,avg) for one of 8x8",
        )
    if config.init == "lsuv":
        nn.init.lsuv_(net, tensor(images[:LSUV_IMAGES]))
    return net


def data_normalizer(config: Config, images: HostArray) -> Normalizer:
    """The first layer of a network, for images (N, C, H, W)."""
    shape = images.shape[1:]
    if config.data_norm == "batch":
        return data.BatchNormalizer(shape)
    return data.GlobalNormalizer(shape).fit(images, per_channel=config.data_norm == "channel")


def normalized_output(layer: nn.Conv2d) -> nn.NormPropConv2d:
    """A convolution that gives logits gamma w.x / |w| + beta, with the weights of this one."""
    filters, channels, height, width = layer.weight.shape
    normalized = nn.NormPropConv2d(
        channels, filters, (height, width), layer.stride, layer.padding, "identity"
    )
    normalized.weight.data[...] = layer.weight.data
    return normalized

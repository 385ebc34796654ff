"""What decides how a run goes: each setting is described once, for the checks and for the command
line."""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, get_args

from .. import data, nn
from ..engine.errors import close_names, explain
from ..engine.loading import from_file, is_file_reference, is_recorded, source_of
from ..engine.registry import Registry
from ..functional.activation import activations
from ..nn.init import INITS
from ..nn.normalizers import takes
from ..nn.own import trainable_activation
from ..nn.spec import GRAMMAR, parse

LIMITS = {"above": "above", "low": "of at least", "high": "at most"}  # of numbers, in words
GIVEN = "given"  # what a config says of data that were given to Run
NO_LIMITS = {"above": -math.inf, "low": -math.inf, "high": math.inf}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    table: Registry[Any] | None = None,
    convert: Callable[[str], Any] | None = None,
    record: Callable[[Any], str] | None = None,
    text: Callable[[str], bool] | None = None,
    rule: str = "",
    files: bool = False,
    resumable: bool = False,
    **limits: float,
) -> Any:
    """A field of a Config, with LIMITS for a number. With an open `table`, it is a name of that
    table, or `file.py:name`, which `convert` makes a record of. `record` turns what is given into
    the text that a run records. Another text is one for which `text` is true, as `rule` says. With
    `files`, it may also be the path of a file or folder. A resumed run may change what is
    resumable."""
    facts = {"help": help, "choices": choices, "table": table, "convert": convert}
    texts = {"record": record, "text": text, "rule": rule, "files": files}
    return field(default=default, metadata={**facts, **texts, "resumable": resumable, **limits})


def is_place(text: str) -> bool:
    """Whether this is what a run records of data that have no name: an absolute path, or GIVEN."""
    return text == GIVEN or Path(text).is_absolute()


def is_spec(text: str) -> bool:
    """Whether this is a network in the paper's shorthand."""
    try:
        return bool(parse(text))
    except ValueError:
        return False


def recorded_network(net: Any) -> str:
    """How the config of a run names a network of the user's own: `file.py:Class#fingerprint`. The
    bare name of a class stands for one that is in no file, and must be given again."""
    if isinstance(net, str) and (is_recorded(net) or not is_file_reference(net)):
        return net  # the file is looked at when the network is built
    make = from_file(net) if isinstance(net, str) else net
    defined = source_of(make)
    if defined is not None:
        return str(defined)
    got = f"net = {net!r}, which is at the top level of no file"
    rule = "a run records where its network is, so that it can be resumed and loaded"
    raise ValueError(explain(got, rule, "Run(config, out, model=...)"))


def names_network(text: str) -> bool:
    """Whether this is file.py:Class, or the name of a class that is in no file."""
    return is_file_reference(text) or text.isidentifier()


def known_settings_only(config: type[Any]) -> type[Any]:
    """Let a class of settings refuse one that it does not have in words."""
    plain = config.__init__

    @wraps(plain)
    def init(self: Any, *args: Any, **given: Any) -> None:
        known = [f.name for f in fields(config)]
        for name in given:
            if name not in known:
                got = f"an unexpected setting, {config.__name__}({name}={given[name]!r})"
                rule = f"its settings are {', '.join(known)}"
                raise TypeError(explain(got, rule, close_names(name, known) or "leave it out"))
        plain(self, *args, **given)

    config.__init__ = init
    return config


@known_settings_only
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
    try:  width = None
    """

    data: str = setting(
        "shapes",
        "data set: a name, an .npz file, a folder with a folder of images for each class, or "
        "file.py:function",
        table=data.datasets,
        convert=data.as_loader,
        files=True,
    )
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
        convert=trainable_activation,
    )
    spec: str | None = setting(
        None,
        "layers in the paper's shorthand, such as "
        "'C(16,3,1,1)-R(C(16,3,1,1))-C(10,1,1,0)-P(32,32,0,avg)' "
        "(default: the paper's network)",
        text=is_spec,
        rule=GRAMMAR,
    )
    net: str | None = setting(
        None,
        "a network of your own, file.py:Class, made without arguments, instead of one that the "
        "settings describe",
        record=recorded_network,
        text=names_network,
        rule="file.py:Class, with a subclass of tp.nn.Module",
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
    image_size: int | None = setting(
        None, "resize the images of a folder to N x N pixels (default: as they are)", low=1
    )
    shrink: int = setting(1, "average blocks of N x N pixels of every image", low=1)
    data_norm: str = setting(
        "global",
        "normalise each pixel over the training set, or over each mini-batch; or each channel "
        "over the training set; or nothing, for a network that does it itself",
        choices=("global", "batch", "channel", "none"),
    )
    output: str = setting(
        "linear",
        "the layer that gives the logits: a plain one, or one normalised as NormProp's are",
        choices=("linear", "normprop"),
    )
    width: float | None = setting(
        None,
        "multiplies the number of filters or units (default: 1 for a --spec of your own, which is "
        "built as it is written; else 0.25 of the paper's network)",
        above=0,
        high=100,
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
            elif f.metadata["record"] is not None and value is not None:
                value = f.metadata["record"](value)
            object.__setattr__(self, f.name, value)  # the dataclass is frozen
            if not allowed(f, value):
                got = f"{f.name} = {value!r}"
                raise ValueError(explain(got, f"it is {rule(f)}", f"{f.name} = {f.default!r}"))
        if self.net is not None:
            self._refuse_what_a_given_network_does_not_use()
        if self.anneal is not None and self.schedule != "halve":
            got = f"anneal = {self.anneal} with schedule = {self.schedule!r}"
            raise ValueError(explain(got, "it belongs to schedule = 'halve'", "anneal = None"))
        at_the_end = (self.anneal or 0) + (self.average or 0)
        if at_the_end > self.epochs:
            got = f"average = {self.average}, anneal = {self.anneal}, epochs = {self.epochs}"
            wrong = "averaging and annealing take the last epochs, one after the other"
            raise ValueError(explain(got, wrong, f"epochs = {at_the_end}"))

    def _refuse_what_a_given_network_does_not_use(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in OF_BUILT_NETWORKS and value != f.default:
                refuse_unused(f.name, value, NET_IS_GIVEN)

    @property
    def width_used(self) -> float:
        """The width of the network: a spec is built as it is written, unless a width is given.

        >>> tp.train.Config().width_used, tp.train.Config(spec="F(50)-F(10)").width_used
        (0.25, 1.0)
        """
        if self.width is not None:
            return self.width
        return PAPERS_WIDTH if self.spec is None else 1.0


# settings that describe a network that tinyprop builds
OF_BUILT_NETWORKS = (
    "norm",
    "activation",
    "spec",
    "init",
    "mode",
    "gamma",
    "beta",
    "output",
    "width",
    "dropout",
)
PAPERS_WIDTH = 0.25  # a laptop trains this part of the paper's network in minutes
NET_IS_GIVEN = "a network that is given is used as it is"


def refuse_unused(name: str, value: Any, rule: str) -> NoReturn:
    """Refuse a setting that would have no effect."""
    raise ValueError(explain(f"{name} = {value!r}, which would be ignored", rule, "leave it out"))


def unused(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that have no effect, given the others, and why."""
    if config.net is not None:
        for name in OF_BUILT_NETWORKS:
            yield name, NET_IS_GIVEN
    else:
        normalizer = nn.as_normalizer(config.norm)
        for name in ("mode", "gamma", "beta"):
            if normalizer.layer is None or not takes(normalizer.layer, name):
                yield name, f"the layers of {normalizer.name!r} have no {name}"
        if normalizer.activation is not None:
            yield "activation", f"{normalizer.name!r} has an activation of its own"
    if config.optimizer == "rmsprop":
        yield "momentum", "it belongs to --optimizer sgd"
    else:
        yield "alpha", "it belongs to --optimizer rmsprop"
    if config.schedule != "halve":
        yield "halve_every", "it belongs to --schedule halve"
    if config.schedule != "plateau":
        yield "patience", "it belongs to --schedule plateau"
    if not config.weight_decay:
        yield "decay_on", "there is no --weight-decay"


def recorded(f: "Field[Any]", value: Any) -> str:
    """How the config of a run names an entry of an open table: by its name if it is ours, as
    `file.py:name#fingerprint` if it is defined in a file.

    >>> norm = next(f for f in fields(Config) if f.name == "norm")
    >>> recorded(norm, "batch"), recorded(norm, tp.nn.normalizers["batch"])
    ('batch', 'batch')
    """
    if isinstance(value, str) and is_recorded(value):
        return value  # the file is looked at when it is used
    if f.metadata["files"] and isinstance(value, str) and is_place(value):
        return value
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
    if getattr(record, "path", None) is not None:  # a file or folder of data
        return str(record.path)
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
        is_path = f.metadata["files"] and is_place(value)
        return value in table or is_file_reference(value) or is_path
    return value in choices if choices else bool(f.metadata["text"](value))


def rule(f: "Field[Any]") -> str:
    """What a setting may be, in words.

    >>> [rule(f) for f in fields(Config) if f.name in ("mode", "width", "epochs")]
    ['one of paper, exact', 'a number above 0 and at most 100', 'a whole number of at least 1']
    """
    if kind(f) is bool:
        return "True or False"
    if f.metadata["table"] is not None:
        others = (
            "an .npz file, a folder, or file.py:name" if f.metadata["files"] else "file.py:name"
        )
        return f"one of {', '.join(f.metadata['table'])}, or {others}"
    if kind(f) is str:
        choices = f.metadata["choices"]
        return f"one of {', '.join(choices)}" if choices else str(f.metadata["rule"])
    limits = [f"{word} {f.metadata[name]:g}" for name, word in LIMITS.items() if name in f.metadata]
    return f"a {'whole ' if kind(f) is int else ''}number {' and '.join(limits)}".rstrip()


def kind(f: "Field[Any]") -> type:
    """The type of a setting: str, bool, int or float."""
    return next(t for t in (str, bool, int, float) if t in (f.type, *get_args(f.type)))

"""The table of normalisers: what each puts into a layer. Ours are entries like anyone's."""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, TypeAlias

from ..engine.creation import arange
from ..engine.errors import ShapeError, explain
from ..engine.graph import no_grad
from ..engine.loading import is_file_reference, portable, unportable
from ..engine.registry import Registry
from ..engine.tensor import Tensor
from ..functional.activation import Activation as ActivationRecord
from ..functional.activation import AnyActivation, as_activation, squashed
from .declare import declared, is_ours
from .init import check_name, fill
from .layers import Activation, Conv2d, Linear
from .measured import MeasuredConv2d, MeasuredLinear
from .module import Module, evaluating, observing
from .normprop import NormPropConv2d, NormPropLinear
from .own import raised_by, trainable_activation
from .statistics import BatchNorm, Derf, DyT, GroupNorm, LayerNorm, RMSNorm
from .weights import ScaledWS, WeightNorm

NAME = re.compile(r"[\w-]+")
OF_CHANNELS = (
    "it is called with the number of channels, and what it makes with (N, C) or (N, C, H, W)",
    "lambda channels: ..., or a class with __init__(self, channels) and forward(self, x)",
)
CALLS = {  # how the parts of a Normalizer are called, and one that can be
    "before": OF_CHANNELS,
    "after": OF_CHANNELS,
    "weights": (
        "it is called with a Linear or Conv2d and, with needs_source=True, an activation",
        "lambda layer: ..., or a class with __init__(self, layer)",
    ),
    "layer": (
        "it is called with sizes: inputs, outputs and, for images, kernel_size, stride, padding",
        "def layer(inputs, outputs, *window, activation)",
    ),
}


@dataclass(frozen=True)
class Normalizer:
    """How a layer is normalised: what comes before and after its activation, what is done to its
    weights, or how the whole layer is made.

    - `before`, `after`: functions of the number of channels that return a Module. It maps (N, C)
      and (N, C, H, W) to the same shape.
    - `weights`: a function from a Linear or Conv2d to the layer that takes its place. With
      `needs_source=True` it is called with a second argument: the activation that the layer's input
      has gone through, "identity" for data.
    - `layer`: makes the whole layer with its activation. It is called as `layer(in_features,
      out_features, activation=...)` or `layer(in_channels, out_channels, kernel_size, stride,
      padding, activation=...)`. Its other parameters are options of `tp.nn.build`, such as mode.
    - `activation`: the one that its networks have, whatever was asked for.
    - `unit_input`: whether its layers need inputs of variance 1, so that residual blocks keep count
      of the variance.
    - `bias`: whether its Linear and Conv2d layers have one.
    - `init`: the initial weights unless others are asked for: see `tp.nn.build`.
    - `note`: a line for lists.

    `tp.nn.normalizers.register` gives it a name for `norm=` everywhere. Statistics of a batch are
    summed by `tp.nn.over_batch`, so that several ranks can train it.

    >>> class Clipped(tp.nn.Module):
    ...     per_sample = True
    ...     def forward(self, x):
    ...         return tp.functional.clip(x, -2.0, 2.0)
    >>> clipped = tp.nn.Normalizer("clipped", before=lambda channels: Clipped())
    >>> net = tp.nn.build("C(8,3,1,1)-C(10,1,1,0)", norm=clipped)
    >>> [type(layer).__name__ for layer in net]
    ['Conv2d', 'Clipped', 'Activation', 'Conv2d', 'Flatten']
    """

    name: str
    before: Callable[[int], Module] | None = None
    after: Callable[[int], Module] | None = None
    weights: Callable[..., Module] | None = None
    layer: Callable[..., Module] | None = None
    activation: AnyActivation | None = None
    unit_input: bool = False
    bias: bool = True
    init: str = "he"
    note: str = ""
    needs_source: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            got = f"Normalizer({self.name!r})"
            rule = "its first argument is a name of letters, digits, hyphens and underscores"
            raise TypeError(explain(got, rule, "Normalizer('mine', ...)"))
        for part in ("before", "after", "weights", "layer"):
            function = getattr(self, part)
            if function is not None and not callable(function):
                got = f"Normalizer({self.name!r}, {part}={function!r})"
                hint = f"{part}=lambda channels: ...; a function, not what it returns"
                raise TypeError(explain(got, f"{part} is a function", hint))
        has_parts = self.before or self.after or self.weights
        if self.layer and has_parts:
            got = f"Normalizer({self.name!r}) with layer= and other parts"
            rule = "layer= makes the whole layer, with its weights and its activation"
            raise ValueError(explain(got, rule, "layer= alone, or before=, after= and weights="))
        check_name(self.init)

    @property
    def function(self) -> Callable[..., Any] | None:
        """The first function that it is made of, if any: its file is where a record was written."""
        return self.before or self.after or self.weights or self.layer

    def __reduce__(self) -> Any:
        """As `file.py:name` if a file has it, otherwise by its parts."""
        source = normalizers.source_of(self, self.function)
        if source is not None:
            return as_normalizer, (str(source),)
        fields = {name: portable(getattr(self, name)) for name in self.__dataclass_fields__}
        return _from_fields, (fields,)


AnyNormalizer: TypeAlias = str | Normalizer | Callable[[int], Module]

normalizers: Registry[Normalizer] = Registry(Normalizer, "normaliser", "tp.nn.normalizers")


def as_normalizer(norm: AnyNormalizer) -> Normalizer:
    """The Normalizer that `norm=` stands for: one, its name in `tp.nn.normalizers`, `file.py:name`,
    or a function of the number of channels that makes what comes before the activation.

    >>> tp.nn.as_normalizer("batch").before
    <class 'tinyprop.nn.statistics.BatchNorm'>
    >>> tp.nn.as_normalizer(tp.nn.BatchNorm).name
    'BatchNorm'
    """
    if isinstance(norm, Normalizer):
        return norm
    if is_file_reference(norm):
        return as_normalizer(normalizers.from_file(str(norm)))
    if isinstance(norm, str):
        return normalizers[norm]
    if callable(norm) and not isinstance(norm, Module):
        name = getattr(norm, "__name__", "")
        return Normalizer(name if NAME.fullmatch(name) else "function", before=norm)
    got = f"norm={norm!r}"
    rule = "it is a name, a Normalizer, or a function of the number of channels"
    raise TypeError(explain(got, rule, "norm='batch'"))


def _from_fields(fields: dict[str, Any]) -> Normalizer:
    return Normalizer(**{name: unportable(value) for name, value in fields.items()})


def groups(channels: int) -> int:
    """The number of groups of a GroupNorm: up to 32, as in Wu and He (2018), of at least two
    channels each.

    >>> groups(192), groups(40), groups(7)
    (32, 20, 1)
    """
    for number in range(32, 1, -1):
        divides = channels % number == 0
        if divides and channels >= 2 * number:
            return number
    return 1


@dataclass
class Maker:
    """Makes layers as a normaliser has them, with an activation and initial weights."""

    normalizer: Normalizer
    asked: AnyActivation  # the activation, unless the normaliser has its own
    init: str
    options: dict[str, Any] = field(default_factory=dict)  # of the normaliser's `layer`
    checked_parts: set[str] = field(default_factory=set)  # whose shapes were checked
    activation: ActivationRecord = field(init=False)

    def __post_init__(self) -> None:
        for name in self.options:
            layer = self.normalizer.layer
            if layer is None or not takes(layer, name):
                got = f"{name}={self.options[name]!r} with the normaliser {self.normalizer.name!r}"
                rule = f"its layers have no {name}"
                raise ValueError(explain(got, rule, "leave it out, or norm='normprop'"))
        fixed = self.normalizer.activation
        self.activation = trainable_activation(self.asked if fixed is None else fixed)

    @property
    def makes_whole_layers(self) -> bool:
        """Whether a layer contains its activation."""
        return self.normalizer.layer is not None

    def weighted(
        self,
        inputs: int,
        outputs: int,
        window: tuple[int, ...],
        source: Any,
        activation: Any = None,
    ) -> Module:
        """A layer with weights: a convolution with this window (size, stride, padding), or, if it
        is empty, a fully connected layer. Its input has gone through the activation `source`. A
        whole layer contains its own `activation`, by default that of the network."""
        sizes = (inputs, outputs, *window)
        if self.normalizer.layer is not None:
            chosen = self.activation if activation is None else activation
            with self.raised_by("layer"):
                whole = self.normalizer.layer(*sizes, activation=chosen, **self.options)
            return fill(self.checked("layer", whole), self.init, source)
        kind: Any = Conv2d if window else Linear
        layer = fill(kind(*sizes, bias=self.normalizer.bias), self.init, source)
        if self.normalizer.weights is None:
            return layer
        more = [source] if self.normalizer.needs_source else []
        with self.raised_by("weights"):
            made = self.normalizer.weights(layer, *more)
        return self.checked("weights", made)

    def before(self, channels: int) -> list[Module]:
        """What comes between a layer's weights and its activation."""
        return self.made("before", channels)

    def after(self, channels: int) -> list[Module]:
        """What comes after the activation."""
        return self.made("after", channels)

    def activated(self, channels: int) -> list[Module]:
        """Everything between two layers with weights."""
        if self.makes_whole_layers:
            return []
        made = self.before(channels)
        made.append(self.activation_layer(channels))
        return made + self.after(channels)

    def activation_layer(self, channels: int) -> Module:
        return Activation(self.activation, num_parameters=channels)

    def source_after(self, modules: list[Module]) -> ActivationRecord:
        """What the input of a layer has gone through, if these modules come before it: the
        activation of N(0, 1), or of a function that takes the place of a normaliser."""
        if self.makes_whole_layers:
            return as_activation("identity")  # its output is normalised
        if not any(declared(module, "elementwise") for module in modules):
            return self.activation
        module = self.before(1)[0]
        for p in module.parameters():
            p.requires_grad = False  # it stays as it starts, so that no graph is kept

        def squash(x: Tensor) -> Tensor:
            module.to(x.backend)  # moments are computed on the host
            one_channel = x.reshape(-1, 1)  # (...) -> (values, 1)
            with self.raised_by("before"):
                return module(one_channel).reshape(x.shape)

        return squashed(self.activation, squash, 1.0)

    def made(self, part: str, channels: int) -> list[Module]:
        function = getattr(self.normalizer, part)
        if function is None:
            return []
        with self.raised_by(part):
            made = function(channels)
        module = self.checked(part, made)
        if part not in self.checked_parts:
            self.check_shape(part, module, channels)
            self.checked_parts.add(part)
        return [module]

    def raised_by(self, part: str) -> AbstractContextManager[None]:
        """Names a part that is a user's in what is raised inside the block."""
        if is_ours(getattr(self.normalizer, part)):
            return nullcontext()
        rule, hint = CALLS[part]
        return raised_by(f"{part}= of the normaliser {self.normalizer.name!r}", rule, hint)

    def checked(self, part: str, module: Any) -> Any:
        """The module, unless it is none."""
        if isinstance(module, Module):
            return module
        got = f"the normaliser {self.normalizer.name!r}, whose {part}= returned {module!r}"
        raise TypeError(
            explain(got, "it returns a Module", "a class with a forward, as nn.BatchNorm")
        )

    def check_shape(self, part: str, module: Module, channels: int) -> None:
        """Refuse a module that changes the shape of small images."""
        shape = (2, channels, 3, 3)
        count = math.prod(shape)
        x = arange(count).astype("float32").reshape(shape) / count
        try:
            with no_grad(), evaluating(), observing():
                out = module(x)
        except Exception:
            return  # it needs other images, or the network says what is wrong when it is used
        found = getattr(out, "shape", type(out).__name__)
        if found != shape:
            got = f"the normaliser {self.normalizer.name!r}, whose {part}= maps {shape} to {found}"
            raise ShapeError(got, "a normaliser keeps the shape", "one output for each input")


def takes(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether a function has a parameter of this name."""
    if function is None:
        return False
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return False
    return name in parameters or any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())


# -- the entries


def _normprop(
    *sizes: int,
    activation: Any,
    gamma: Any = "jacobian",
    beta: float | None = None,
    mode: str = "paper",
) -> Module:
    kinds = NormPropLinear, NormPropConv2d
    return _one_of(kinds, sizes, beta, activation=activation, gamma=gamma, mode=mode)


def _normprop_measured(
    *sizes: int,
    activation: Any,
    gamma: Any = "jacobian",
    beta: float | None = None,
    mode: str = "paper",
) -> Module:
    kinds = MeasuredLinear, MeasuredConv2d
    return _one_of(kinds, sizes, beta, activation=activation, gamma=gamma, mode=mode)


def _one_of(
    kinds: tuple[Any, Any], sizes: tuple[int, ...], beta: float | None, **options: Any
) -> Module:
    """A fully connected layer, for two sizes, or else a convolution; with this initial beta, or its
    own."""
    linear, convolution = kinds
    layer = linear(*sizes, **options) if len(sizes) == 2 else convolution(*sizes, **options)
    if beta is not None:
        layer.beta.data[...] = beta
    return layer


def _normprop_exact(
    *sizes: int, activation: Any, gamma: Any = "jacobian", beta: float | None = None
) -> Module:
    return _normprop(*sizes, activation=activation, gamma=gamma, beta=beta, mode="exact")


def _layer_norm(channels: int) -> Module:
    return LayerNorm((channels, None, None))


def _rms_norm(channels: int) -> Module:
    return RMSNorm((channels, None, None))


def _group_norm(channels: int) -> Module:
    return GroupNorm(groups(channels), channels)


def _instance_norm(channels: int) -> Module:
    return GroupNorm(channels, channels)


OURS = (
    Normalizer(
        "normprop",
        layer=_normprop,
        unit_input=True,
        init="glorot",
        note="NormProp as in the paper: gamma = 1/1.21 for ReLU (Arpit et al., 2016)",
    ),
    Normalizer(
        "normprop-exact",
        layer=_normprop_exact,
        unit_input=True,
        init="glorot",
        note="NormProp in exact mode: gamma = 1, and beta = 1 for rectifiers",
    ),
    Normalizer(
        "normprop-measured",
        layer=_normprop_measured,
        unit_input=True,
        init="glorot",
        note="NormProp with mean and variance of w.x measured on fixed samples",
    ),
    Normalizer(
        "batch",
        before=BatchNorm,
        bias=False,
        init="glorot",
        note="BatchNorm before the activation (Ioffe and Szegedy, 2015)",
    ),
    Normalizer(
        "layer",
        before=_layer_norm,
        bias=False,
        note="LayerNorm before the activation (Ba et al., 2016)",
    ),
    Normalizer(
        "rms",
        before=_rms_norm,
        bias=False,
        note="RMSNorm before the activation (Zhang and Sennrich, 2019)",
    ),
    Normalizer(
        "group",
        before=_group_norm,
        bias=False,
        note="GroupNorm before the activation, in up to 32 groups (Wu and He, 2018)",
    ),
    Normalizer(
        "instance",
        before=_instance_norm,
        bias=False,
        note="InstanceNorm before the activation; for images (Ulyanov et al., 2016)",
    ),
    Normalizer(
        "dyt",
        before=DyT,
        bias=False,
        note="dynamic tanh before the activation (Zhu et al., 2025)",
    ),
    Normalizer(
        "derf",
        before=Derf,
        bias=False,
        note="the same with erf (Chen et al., 2025)",
    ),
    Normalizer("layer-after", after=_layer_norm, note="LayerNorm after the activation"),
    Normalizer(
        "weight",
        weights=WeightNorm,
        note="WeightNorm, which starts with the rows as drawn (Salimans and Kingma, 2016)",
    ),
    Normalizer(
        "ws",
        weights=ScaledWS,
        needs_source=True,
        unit_input=True,
        note="scaled weight standardisation (Brock et al., 2021)",
    ),
    Normalizer(
        "selu",
        activation="selu",
        note="SELU, self-normalising (Klambauer et al., 2017)",
    ),
    Normalizer("none", init="glorot", note="no normaliser"),
)
for entry in OURS:
    normalizers.register(entry)

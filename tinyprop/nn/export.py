"""The way back: tinyprop's networks as modules of PyTorch, with copies of their weights."""

from collections.abc import Callable
from functools import cache
from typing import Any

from .. import functional as F
from ..engine.arrays import array_module, to_numpy
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..functional.activation import Activation as ActivationRecord
from . import layers
from .measured import Measured, MeasuredConv2d, MeasuredLinear
from .module import Module, ModuleList, Sequential
from .normprop import NormProp, NormPropConv2d, NormPropLinear
from .pytorch import functions, load_torch, trace
from .residual import Residual, Scale
from .statistics import BatchNorm, Derf, DyT, GroupNorm, LayerNorm, RMSNorm
from .traced import Member, Program, Result, Traced, member
from .weights import ScaledWS, WeightNorm


def to_torch(net: Module) -> Any:
    """A network as a module of PyTorch: a copy of its weights, running statistics, dtypes and
    modes, which gives the same outputs up to rounding.

    A layer that PyTorch has becomes that one. A NormProp layer becomes a convolution, or a linear
    layer, with the rows gamma w / |w|; its activation; and an affine map, which subtracts c2 and
    divides by c1. WeightNorm and ScaledWS become a layer with the weights that they compute with.
    These give the same outputs, but train differently. Residual blocks and others that PyTorch has
    not become modules of `torch.fx`, which need no tinyprop. What has no counterpart, as a forward
    of your own, is refused by its name.

    >>> net = tp.nn.Sequential(tp.nn.NormPropLinear(3, 4), tp.nn.Linear(4, 2))
    >>> theirs = tp.to_torch(net)
    >>> [type(layer).__name__ for layer in theirs[0]]
    ['Linear', 'ReLU', 'Affine']
    >>> import torch
    >>> x = torch.randn(5, 3)
    >>> bool(abs(net(x.numpy()).numpy() - theirs(x).detach().numpy()).max() < 1e-5)
    True
    """
    if not isinstance(net, Module):
        got = f"to_torch of a {type(net).__name__}"
        raise TypeError(explain(got, "it takes a Module", "tp.nn.Sequential(...)"))
    return Export(net).module(net, type(net).__name__)


def refusal(what: str, rule: str, hint: str) -> TypeError:
    return TypeError(explain(f"to_torch of {what}", rule, hint))


class Export:
    """Makes modules of PyTorch. What is shared here is shared there."""

    def __init__(self, net: Module):
        self.torch = load_torch("to_torch")
        self.modules: dict[Module, Any] = {}
        self.tensors: dict[Tensor, Any] = {}
        self.has_positions = _begins_with_images(net)  # whether the signal is images by now

    def module(self, ours: Module, where: str) -> Any:
        """A module; `where` it is, for messages."""
        if ours in self.modules:
            return self.modules[ours]
        kind = type(ours)
        self._note_shape(ours, before=True)
        with no_grad():
            if kind in (Sequential, ModuleList):
                theirs = self.sequence(ours, where)
            elif isinstance(ours, layers.Activation) and kind.forward is layers.Activation.forward:
                theirs = self.activation(ours.activation, ours, ours.params, where)
            elif kind in _exports():
                theirs = _exports()[kind](self, ours, where)
            else:
                rule = "it has no counterpart in PyTorch that is known here"
                hint = "layers of tp.nn in a Sequential; tp.save writes any network"
                raise refusal(_where_is(ours, where), rule, hint)
        self._note_shape(ours, before=False)
        for inner in theirs.modules():
            if inner not in self.modules.values():
                inner.training = ours._training
        self.modules[ours] = theirs
        return theirs

    def _note_shape(self, ours: Module, before: bool) -> None:
        """Keep track of whether the signal is images: BatchNorm has two classes in PyTorch."""
        takes_images = _takes_images(ours)
        if before and takes_images is not None:
            self.has_positions = takes_images
        if not before and isinstance(ours, layers.Flatten):
            self.has_positions = False

    def parameter(self, ours: Tensor) -> Any:
        """A copy of a tensor, as a parameter that requires a gradient if the tensor does."""
        if ours not in self.tensors:
            copied = self.torch.tensor(to_numpy(ours._data))
            self.tensors[ours] = self.torch.nn.Parameter(copied, ours.requires_grad)
        return self.tensors[ours]

    def computed(self, values: Tensor) -> Any:
        """A parameter with values that tinyprop computes from its own."""
        return self.torch.nn.Parameter(self.torch.tensor(to_numpy(values._data)))

    def sequence(self, ours: Module, where: str) -> Any:
        nn = self.torch.nn
        theirs = nn.Sequential() if type(ours) is Sequential else nn.ModuleList()
        for name, child in ours.named_children():
            theirs.add_module(name, self.module(child, f"{where}.{name}"))
        return theirs

    def with_tensors(self, theirs: Any, ours: Module) -> Any:
        """A layer of PyTorch's with the tensors of ours."""
        for name, tensor in vars(ours).items():
            if not isinstance(tensor, Tensor):
                continue
            if name in theirs._buffers:
                theirs._buffers[name] = self.torch.tensor(to_numpy(tensor._data))
            else:
                theirs._parameters[name] = self.parameter(tensor)
        return theirs

    def activation(
        self, record: ActivationRecord, ours: Any, options: dict[str, Any], where: str
    ) -> Any:
        """An activation, with the learnable parameters that a layer has for it."""
        make = _activations().get(record.function)
        if make is None:
            got = f"the activation {record.name} of {_where_is(ours, where)}"
            raise refusal(got, "PyTorch's function is not known", "one of tp.activations")
        learnt = [self.parameter(p) for p in ours.activation_parameters.values()]
        return make(*learnt, **options)

    def graph(self, name: str, members: dict[str, Any], forward: Callable[[Any, Any], Any]) -> Any:
        """A module that computes forward(self, x), by torch.fx, so that it needs no class."""
        torch = self.torch
        kind = type(name, (torch.nn.Module,), {"forward": forward})
        root = kind()
        for key, value in members.items():
            setattr(root, key, value)
        return torch.fx.GraphModule(root, trace(root, True, name), name)

    def flat(self, ours: Tensor) -> Any:
        """One value for each channel: (C, 1, 1) -> (C,)."""
        copied = self.torch.tensor(to_numpy(ours._data)).reshape(-1)
        return self.torch.nn.Parameter(copied, ours.requires_grad)

    def per_channel(self, ours: Tensor) -> Any:
        """One value for each channel, to broadcast against the signal."""
        flat = self.flat(ours)
        if not self.has_positions:
            return flat
        shaped = flat.detach().reshape(-1, 1, 1)  # (C,) -> (C, 1, 1)
        return self.torch.nn.Parameter(shaped, ours.requires_grad)


def _begins_with_images(net: Module) -> bool:
    """Whether the first layer that tells takes images."""
    for layer in net.modules():
        takes_images = _takes_images(layer)
        if takes_images is not None:
            return takes_images
    return False


def _takes_images(layer: Module) -> bool | None:
    """Whether a layer takes images or vectors; None if it takes both."""
    images = (layers.Conv2d, NormPropConv2d, layers.MaxPool2d, layers.AvgPool2d, layers.Flatten)
    if isinstance(layer, (*images, layers.GlobalAvgPool2d)):
        return True
    if isinstance(layer, (layers.Linear, NormPropLinear)):
        return False
    return None


def _where_is(ours: Module, where: str) -> str:
    kind = type(ours).__name__
    return kind if where == kind else f"{kind} at {where}"


# Layers


def _linear(export: Export, ours: Any, where: str) -> Any:
    has_bias = ours.bias is not None
    theirs = export.torch.nn.Linear(ours.in_features, ours.out_features, has_bias)
    return export.with_tensors(theirs, ours)


def _conv2d(export: Export, ours: Any, where: str) -> Any:
    return export.with_tensors(_empty_conv2d(export, ours, ours.bias is not None), ours)


def _empty_conv2d(export: Export, ours: Any, has_bias: bool) -> Any:
    return export.torch.nn.Conv2d(
        ours.in_channels,
        ours.out_channels,
        ours.kernel_size,
        ours.stride,
        ours.padding,
        getattr(ours, "dilation", 1),
        getattr(ours, "groups", 1),
        has_bias,
    )


def _weight_norm(export: Export, ours: Any, where: str) -> Any:
    """The wrapped layer with the weights that are computed."""
    if type(ours.layer) not in (layers.Linear, layers.Conv2d):
        rule = "it wraps a Linear or a Conv2d, whose forward is known"
        raise refusal(_where_is(ours, where), rule, "a Linear or a Conv2d")
    theirs = export.module(ours.layer, f"{where}.layer")
    del export.modules[ours.layer]  # this one has other weights
    theirs.weight = export.computed(ours.weight)
    return theirs


def _normprop(export: Export, ours: NormProp, where: str) -> Any:
    """(1/c1) [s(rows.x + shift) - c2]."""
    torch = export.torch
    if isinstance(ours, Measured) and ours.is_measured:
        rows, shift = ours.affine()
    else:
        rows, shift = F.weight_norm(ours.weight, ours.gamma), ours.beta
    if isinstance(ours, NormPropConv2d):
        weighted = _empty_conv2d(export, ours, has_bias=True)
    else:
        units, inputs = ours.weight.shape
        weighted = torch.nn.Linear(inputs, units)
    weighted.weight = export.computed(rows)
    weighted.bias = export.computed(shift)
    activation = export.activation(ours.activation, ours, {}, where)
    # for each unit, or one for all
    c1, c2 = (_as_units(ours, constant) for constant in ours.constants())
    members = {
        "weight": export.computed(ours.per_unit(1.0 / c1)),
        "bias": export.computed(ours.per_unit(-c2 / c1)),
    }
    affine = export.graph("Affine", members, lambda self, x: x * self.weight + self.bias)
    return torch.nn.Sequential(weighted, activation, affine)


def _as_units(ours: NormProp, constant: Any) -> Tensor:
    """A constant as a tensor with one value per unit, of the dtype of the weights."""
    if isinstance(constant, Tensor):
        return constant.astype(ours.gamma.dtype)
    xp = array_module(ours.gamma._data)
    return Tensor(xp.full(len(ours.gamma), float(constant), ours.gamma.dtype))


def _batch_norm(export: Export, ours: Any, where: str) -> Any:
    nn = export.torch.nn
    kind = nn.BatchNorm2d if export.has_positions else nn.BatchNorm1d
    return export.with_tensors(kind(ours.num_features, ours.eps, ours.momentum), ours)


def _layer_norm(export: Export, ours: Any, where: str) -> Any:
    nn = export.torch.nn
    lengths = ours.normalized_shape
    if None not in lengths:
        return export.with_tensors(nn.LayerNorm(lengths, ours.eps), ours)
    channels = _channels_of_any_size(ours, where)
    theirs = nn.GroupNorm(1, channels, ours.eps)
    theirs.weight = export.flat(ours.weight)
    theirs.bias = export.flat(ours.bias)
    return theirs


def _channels_of_any_size(ours: Any, where: str) -> int:
    """C of (C, None, None)."""
    channels, *places = ours.normalized_shape
    if channels is None or any(length is not None for length in places):
        got = f"{_where_is(ours, where)} over axes {ours.normalized_shape}"
        raise refusal(got, "only places have any size", "(channels, None, None)")
    return int(channels)


def _rms_norm(export: Export, ours: Any, where: str) -> Any:
    torch = export.torch
    if None not in ours.normalized_shape:
        return export.with_tensors(torch.nn.RMSNorm(ours.normalized_shape, ours.eps), ours)
    _channels_of_any_size(ours, where)
    weight = export.per_channel(ours.weight)

    def forward(self: Any, x: Any) -> Any:
        normalized = torch.nn.functional.rms_norm(x, x.shape[1:], eps=ours.eps)
        return normalized * self.weight

    return export.graph("RMSNorm", {"weight": weight}, forward)


def _group_norm(export: Export, ours: Any, where: str) -> Any:
    theirs = export.torch.nn.GroupNorm(ours.num_groups, ours.num_channels, ours.eps)
    return export.with_tensors(theirs, ours)


def _dyt(export: Export, ours: Any, where: str) -> Any:
    torch = export.torch
    members = {
        "alpha": export.parameter(ours.alpha),
        "weight": export.per_channel(ours.weight),
        "bias": export.per_channel(ours.bias),
    }

    def forward(self: Any, x: Any) -> Any:
        return torch.tanh(self.alpha * x) * self.weight + self.bias

    def derf_forward(self: Any, x: Any) -> Any:
        return torch.erf(self.alpha * x + self.shift) * self.weight + self.bias

    if type(ours) is DyT:
        return export.graph("DyT", members, forward)
    members["shift"] = export.parameter(ours.shift)
    return export.graph("Derf", members, derf_forward)


def _residual(export: Export, ours: Any, where: str) -> Any:
    has_positions = export.has_positions
    members = {"branch": export.module(ours.branch, f"{where}.branch")}
    if ours.shortcut is not None:
        after_branch = export.has_positions
        export.has_positions = has_positions  # both paths begin with the same signal
        members["shortcut"] = export.module(ours.shortcut, f"{where}.shortcut")
        export.has_positions = after_branch

    def forward(self: Any, h: Any) -> Any:
        x = h if ours.beta == 1.0 else h * (1.0 / ours.beta)
        branch = self.branch(x)
        if ours.alpha != 1.0:
            branch = ours.alpha * branch
        other_path = h if ours.shortcut is None else self.shortcut(x)
        return other_path + branch

    return export.graph("Residual", members, forward)


def _scale(export: Export, ours: Any, where: str) -> Any:
    return export.graph("Scale", {}, lambda self, x: x * ours.factor)


def _max_pool2d(export: Export, ours: Any, where: str) -> Any:
    return export.torch.nn.MaxPool2d(ours.kernel_size, ours.stride, ours.padding)


def _avg_pool2d(export: Export, ours: Any, where: str) -> Any:
    return export.torch.nn.AvgPool2d(
        ours.kernel_size, ours.stride, ours.padding, count_include_pad=ours.count_include_pad
    )


def _traced(export: Export, ours: Any, where: str) -> Any:
    """A module that came from PyTorch, by its program for the mode that it is in."""
    programs = [ours.program(mode) for mode in (True, False)]
    if programs[0] != programs[1]:
        got = f"{_where_is(ours, where)}, whose forward depends on its mode"
        raise refusal(got, "a graph of torch.fx has one forward", "a layer such as nn.Dropout()")
    torch = export.torch
    root = torch.nn.Module()
    graph = torch.fx.Graph(root)
    writer = Writer(export, ours, root, where)
    writer.write(programs[0], graph)
    return torch.fx.GraphModule(root, graph, ours._kind)


class Writer:
    """Writes a program as a graph of torch.fx."""

    def __init__(self, export: Export, ours: Traced, root: Any, where: str):
        self.export = export
        self.ours = ours
        self.root = root
        self.where = where
        self.nodes: dict[str, Any] = {}

    def write(self, program: Program, graph: Any) -> None:
        theirs: dict[Any, Any] = {}  # each function's counterpart: the first that the table has
        for function, counterpart in functions().items():
            theirs.setdefault(counterpart, function)
        for name in program.inputs:
            self.nodes[name] = graph.placeholder(name)
        for step in program.steps:
            arguments = self.fill_in(step.arguments, graph)
            keywords = self.fill_in(step.keywords, graph)
            if isinstance(step.call, str):
                layer = member(self.ours, step.call)
                self.put(step.call, self.export.module(layer, f"{self.where}.{step.call}"))
                node = graph.call_module(step.call, arguments, keywords)
            elif isinstance(theirs[step.call], type(str.join)):  # a method of torch.Tensor
                node = graph.call_method(theirs[step.call].__name__, arguments, keywords)
            else:
                node = graph.call_function(theirs[step.call], arguments, keywords)
            self.nodes[step.name] = node
        graph.output(self.fill_in(program.result, graph))

    def fill_in(self, value: Any, graph: Any) -> Any:
        """Nodes in place of what stands for them."""
        if isinstance(value, Result):
            return self.nodes[value.name]
        if isinstance(value, Member):
            self.put(value.place, self.export.parameter(member(self.ours, value.place)))
            return graph.get_attr(value.place)
        if isinstance(value, (list, tuple)):
            return type(value)(self.fill_in(element, graph) for element in value)
        if isinstance(value, dict):
            return {name: self.fill_in(element, graph) for name, element in value.items()}
        return value

    def put(self, place: str, value: Any) -> None:
        """Make something a member of the root, at a place such as "blocks.0.scale"."""
        holder = self.root
        *holders, name = place.split(".")
        for step in holders:
            if not hasattr(holder, step):
                holder.add_module(step, self.export.torch.nn.Module())
            holder = getattr(holder, step)
        setattr(holder, name, value)


@cache
def _exports() -> dict[Any, Callable[[Export, Any, str], Any]]:
    """What makes a module of PyTorch, by the class of ours: a subclass may compute something
    else."""
    nn = load_torch("to_torch").nn
    return {
        layers.Linear: _linear,
        layers.Conv2d: _conv2d,
        layers.MaxPool2d: _max_pool2d,
        layers.AvgPool2d: _avg_pool2d,
        layers.GlobalAvgPool2d: lambda export, ours, where: nn.AdaptiveAvgPool2d(1),
        layers.Flatten: lambda export, ours, where: nn.Flatten(),
        layers.Dropout: lambda export, ours, where: nn.Dropout(ours.p),
        BatchNorm: _batch_norm,
        LayerNorm: _layer_norm,
        RMSNorm: _rms_norm,
        GroupNorm: _group_norm,
        DyT: _dyt,
        Derf: _dyt,
        WeightNorm: _weight_norm,
        ScaledWS: _weight_norm,
        NormPropLinear: _normprop,
        NormPropConv2d: _normprop,
        MeasuredLinear: _normprop,
        MeasuredConv2d: _normprop,
        Residual: _residual,
        Scale: _scale,
        Traced: _traced,
    }


@cache
def _activations() -> dict[Any, Callable[..., Any]]:
    """What makes the layer of an activation from its parameters and options, by its function."""
    torch = load_torch("to_torch")
    nn = torch.nn

    def prelu(a: Any) -> Any:
        theirs = nn.PReLU(a.numel())
        theirs.weight = a
        return theirs

    found: dict[Any, Callable[..., Any]] = {
        F.relu: nn.ReLU,
        F.tanh: nn.Tanh,
        F.sigmoid: nn.Sigmoid,
        F.softplus: nn.Softplus,
        F.selu: nn.SELU,
        F.gelu: nn.GELU,
        F.silu: nn.SiLU,
        F.hardtanh: nn.Hardtanh,
        F.elu: nn.ELU,
        F.leaky_relu: lambda a=0.01: nn.LeakyReLU(a),
        F.prelu: prelu,
        layers.Identity().activation.function: nn.Identity,
    }
    for function in (F.sin, F.erf, F.abs):
        found[function] = _function_module(getattr(torch, function.__name__))
    return found


def _function_module(function: Any) -> Callable[[], Any]:
    """What makes a module that applies a function of PyTorch."""
    torch = load_torch("to_torch")

    def make() -> Any:
        graph = torch.fx.Graph()
        graph.output(graph.call_function(function, (graph.placeholder("x"),)))
        return torch.fx.GraphModule(torch.nn.Module(), graph, function.__name__.capitalize())

    return make

"""The door for PyTorch's models. PyTorch is imported here and in `export`, when they are used."""

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from .. import functional as F
from ..engine.arrays import default_backend, host_array, to_backend
from ..engine.errors import explain
from ..engine.tensor import Tensor
from . import layers, traced
from .module import Module, ModuleList, Sequential
from .statistics import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from .traced import Member, Program, Result, Step, Traced


def from_torch(module: Any) -> Module:
    """A network of PyTorch as one of tinyprop, with copies of its weights, its running statistics,
    its dtypes and its modes. It gives the same outputs and gradients, up to rounding.

    A Sequential is taken as it is. Of any other module `torch.fx` traces the forward, once for
    training and once for evaluation: what the forward does may depend on the mode and on optional
    arguments, which keep their defaults, but not on values or shapes of its input. The results of
    random numbers that it draws in Python would be frozen. Layers and parameters keep their names,
    so that PyTorch's state dicts load; what no forward uses is left out. Parameters that do not
    require a gradient become buffers.

    What has no counterpart here is refused by its name, and so is an in-place operation that
    changes what is used again.

    >>> import torch
    >>> theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    >>> ours, x = tp.from_torch(theirs), torch.ones(2, 3)
    >>> ours
    Sequential(
      (0): Linear(3, 4)
      (1): Tanh()
    )
    >>> bool(abs(ours(x.numpy()).numpy() - theirs(x).detach().numpy()).max() < 1e-6)
    True
    """
    torch = load_torch("from_torch")
    if not isinstance(module, torch.nn.Module):
        got = f"from_torch of a {type(module).__name__}"
        hint = "Net(), an object of its class" if isinstance(module, type) else "a torch.nn.Module"
        raise TypeError(explain(got, "it takes a module of PyTorch", hint))
    converted = Conversion().module(module, type(module).__name__)
    refuse_lost_edits(module)
    return converted


def load_torch(caller: str) -> Any:
    """PyTorch, which nothing else needs."""
    try:
        import torch
        import torch.fx
    except ImportError as error:
        got = f"{caller} without PyTorch"
        rule = "torch is optional, and only from_torch and to_torch use it"
        raise ImportError(explain(got, rule, "pip install torch")) from error
    return torch


def refusal(what: str, rule: str, hint: str) -> ValueError:
    return ValueError(explain(f"from_torch of {what}", rule, hint))


class Conversion:
    """Makes modules from those of PyTorch. What is shared there is shared here."""

    def __init__(self) -> None:
        self.torch = load_torch("from_torch")
        self.modules: dict[Any, Module] = {}
        self.tensors: dict[int, tuple[Any, Tensor]] = {}  # by id; with the tensor, which keeps it

    def module(self, theirs: Any, where: str) -> Module:
        """A module; `where` it is, for messages."""
        if theirs in self.modules:
            return self.modules[theirs]
        _refuse_hooks(theirs, where)
        kind = type(theirs)
        if kind is self.torch.nn.Sequential:
            ours: Module = Sequential()
            for name, child in theirs._modules.items():  # unlike named_children, with repetitions
                place(ours, name, self.module(child, f"{where}.{name}"))
        elif kind in _layers():
            ours = self.layer(theirs, where)
        elif kind.__module__.startswith("torch.nn."):
            raise refusal(where_is(theirs, where), "it has no counterpart here", KNOWN)
        else:
            ours = self.traced(theirs, where)
        ours.training = theirs.training
        self.modules[theirs] = ours
        return ours

    def layer(self, theirs: Any, where: str) -> Module:
        """A layer of PyTorch's own, with its tensors."""
        try:
            ours = _layers()[type(theirs)](theirs)
        except _Unsupported as reason:
            raise refusal(where_is(theirs, where), *reason.args) from None
        names = {own: name for name, own in ours.torch_names.items() if own}
        for name, tensor in tuple(vars(ours).items()):
            if not isinstance(tensor, Tensor):
                continue
            value = getattr(theirs, names.get(name, name), None)
            if value is None:  # PyTorch has no weight here: ours is not trained
                setattr(ours, name, tensor.detach().astype(dtype_of(theirs)))
            else:
                setattr(ours, name, self.tensor(value, f"{where}.{name}"))
        return ours

    def tensor(self, theirs: Any, where: str) -> Tensor:
        """A copy of a tensor."""
        if id(theirs) in self.tensors:
            return self.tensors[id(theirs)][1]
        dtypes = (self.torch.float16, self.torch.float32, self.torch.float64)
        is_known = theirs.dtype in dtypes or not theirs.requires_grad
        if not is_known or theirs.is_complex() or theirs.dtype is self.torch.bfloat16:
            rule = "NumPy has float16, float32 and float64 for weights"
            raise refusal(f"{where}, which is {theirs.dtype}", rule, "module.float()")
        if theirs.is_meta:
            got = f"{where}, which has no values"
            raise refusal(got, "weights are copied", "a module on a real device")
        array = host_array(theirs.detach().cpu().numpy()).copy()
        ours = Tensor(to_backend(array, default_backend()), requires_grad=theirs.requires_grad)
        self.tensors[id(theirs)] = (theirs, ours)
        return ours

    def traced(self, theirs: Any, where: str) -> Traced:
        """A module with a forward of its own."""
        ours = Traced(type(theirs).__name__)
        graphs = [trace(theirs, mode, where) for mode in (True, False)]
        for graph in graphs:
            self.add_members(ours, theirs, graph, where)
        functions = FunctionLayers(ours, theirs.training)
        programs = [Reader(theirs, functions, where).program(graph) for graph in graphs]
        ours.set_programs(*programs)
        return ours

    def add_members(self, ours: Traced, theirs: Any, graph: Any, where: str) -> None:
        """Give a module the layers and tensors that a graph uses, outer ones first."""
        used = [node for node in graph.nodes if node.op in ("call_module", "get_attr")]
        for node in sorted(used, key=lambda node: node.target.count(".")):
            inside = f"{where}.{node.target}"
            if node.op == "call_module":
                value: Any = self.module(theirs.get_submodule(node.target), inside)
            else:
                value = self.tensor(_attribute(theirs, node.target), inside)
            holder: Module = ours
            *holders, name = node.target.split(".")
            for step in holders:
                if not hasattr(holder, step):
                    place(holder, step, ModuleList().train(theirs.training))
                holder = getattr(holder, step)
            place(holder, name, value)


def place(holder: Module, name: str, value: Any) -> None:
    """Make something a member of a module."""
    if hasattr(Traced, name):
        got = f"a member named {name!r}"
        raise refusal(got, "a tinyprop Module has a method of this name", "another name for it")
    setattr(holder, name, value)


def where_is(theirs: Any, where: str) -> str:
    """A module and its place in words."""
    kind = type(theirs).__name__
    return kind if where == kind else f"{kind} at {where}"


def dtype_of(theirs: Any) -> str:
    """The dtype of a layer's tensors; float32 if it has none."""
    for tensor in (*theirs.parameters(), *theirs.buffers()):
        if tensor.is_floating_point():
            return str(tensor.dtype).removeprefix("torch.")
    return "float32"


def _attribute(module: Any, target: str) -> Any:
    for name in target.split("."):
        module = getattr(module, name)
    return module


def _refuse_hooks(theirs: Any, where: str) -> None:
    """Hooks may change anything, and are not traced."""
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        if getattr(theirs, name):
            got = f"{where_is(theirs, where)}, which has a forward hook"
            rule = "a hook may change inputs and outputs, and cannot be traced"
            raise refusal(got, rule, "remove the hook, or write it into the forward")


# Layers, and functions that are layers without weights. Each takes PyTorch's arguments by its
# names, and refuses what has no counterpart.


class _Unsupported(Exception):
    """A rule that an argument breaks, and what to try."""


def _require(is_supported: bool, rule: str, hint: str) -> None:
    if not is_supported:
        raise _Unsupported(rule, hint)


def _max_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Module:
    _require(not ceil_mode, "ceil_mode has no counterpart here", "ceil_mode=False")
    _require(dilation in (1, (1, 1)), "dilation has no counterpart here", "dilation=1")
    _require(not return_indices, "a pool returns one tensor", "return_indices=False")
    return layers.MaxPool2d(kernel_size, stride, padding)


def _avg_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Module:
    _require(not ceil_mode, "ceil_mode has no counterpart here", "ceil_mode=False")
    rule = "divisor_override has no counterpart here"
    _require(divisor_override is None, rule, "divisor_override=None")
    return layers.AvgPool2d(kernel_size, stride, padding, count_include_pad)


def _adaptive_avg_pool2d(output_size: Any) -> Module:
    rule = "an adaptive pool has output_size=1, the mean over all positions"
    _require(output_size in (1, (1, 1), [1, 1]), rule, "AvgPool2d(kernel_size)")
    return layers.GlobalAvgPool2d()


def _flatten(start_dim: int = 0, end_dim: int = -1) -> Module:
    rule = "Flatten joins all axes but the first"
    _require((start_dim, end_dim) == (1, -1), rule, "start_dim=1, end_dim=-1")
    return layers.Flatten()


def _dropout(p: float = 0.5, inplace: bool = False) -> Module:
    _require(p < 1, "the probability of dropping is less than 1", "Dropout(0.5)")
    return layers.Dropout(p)


def _relu(inplace: bool = False) -> Module:
    return layers.ReLU()


def _relu6(inplace: bool = False) -> Module:
    return layers.Activation(F.hardtanh, min_val=0.0, max_val=6.0)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Module:
    if (min_val, max_val) == (-1.0, 1.0):
        return layers.Hardtanh()
    return layers.Activation(F.hardtanh, min_val=min_val, max_val=max_val)


def _leaky_relu(negative_slope: float = 0.01, inplace: bool = False) -> Module:
    return layers.LeakyReLU(negative_slope)


def _elu(alpha: float = 1.0, inplace: bool = False) -> Module:
    return layers.ELU(alpha)


def _selu(inplace: bool = False) -> Module:
    return layers.SELU()


def _silu(inplace: bool = False) -> Module:
    return layers.SiLU()


def _gelu(approximate: str = "none") -> Module:
    rule = 'GELU is x Phi(x); approximate="tanh" has no counterpart here'
    _require(approximate == "none", rule, 'approximate="none"')
    return layers.GELU()


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Module:
    rule = "softplus is log(1 + exp(x)), which PyTorch's is with beta=1 and threshold=20"
    _require((beta, threshold) == (1, 20), rule, "Softplus()")
    return layers.Softplus()


def _mean(dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Module:
    """x.mean((2, 3), keepdim=True), which is a pool."""
    axes = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    is_over_positions = sorted(axes, key=str) in ([2, 3], [-1, -2])
    rule = "a mean is one over the positions of images, (2, 3)"
    _require(is_over_positions and dtype is None, rule, "x.mean((2, 3))")
    return layers.GlobalAvgPool2d() if keepdim else _pooled()


def _pooled() -> Module:
    return Sequential(layers.GlobalAvgPool2d(), layers.Flatten())


def _named(name: str) -> Callable[[], Module]:
    """The layer of an activation that takes no arguments."""
    return lambda: layers.Activation(name)


def _linear_layer(theirs: Any) -> Module:
    return layers.Linear(theirs.in_features, theirs.out_features, theirs.bias is not None)


def _conv2d_layer(theirs: Any) -> Module:
    zeros = theirs.padding_mode == "zeros"
    _require(zeros, f"padding_mode={theirs.padding_mode!r} has no counterpart here", "'zeros'")
    return layers.Conv2d(
        theirs.in_channels,
        theirs.out_channels,
        theirs.kernel_size,
        theirs.stride,
        _padding(theirs.padding, theirs.kernel_size, theirs.dilation),
        theirs.bias is not None,
        theirs.dilation,
        theirs.groups,
    )


def _padding(padding: Any, kernel_size: Any, dilation: Any) -> Any:
    """Padding as numbers: PyTorch has "same" and "valid", too."""
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return 0
    total = [d * (size - 1) for d, size in zip(dilation, kernel_size, strict=True)]
    is_even = all(zeros % 2 == 0 for zeros in total)
    _require(is_even, 'padding="same" is as wide on both sides', "an odd kernel_size")
    return tuple(zeros // 2 for zeros in total)


def _batch_norm_layer(theirs: Any) -> Module:
    rule = "track_running_stats=False has no counterpart here"
    _require(theirs.running_mean is not None, rule, "track_running_stats=True")
    rule = "momentum=None, the average over all batches, has no counterpart here"
    _require(theirs.momentum is not None, rule, "momentum=0.1")
    return BatchNorm(theirs.num_features, theirs.eps, theirs.momentum)


def _rms_norm_layer(theirs: Any) -> Module:
    eps = theirs.eps
    if eps is None:
        weight = theirs.weight
        _require(weight is not None, "eps=None follows the dtype, which is not known", "eps=1e-5")
        eps = load_torch("from_torch").finfo(weight.dtype).eps
    return RMSNorm(tuple(theirs.normalized_shape), eps)


def _prelu_layer(theirs: Any) -> Module:
    return layers.PReLU(theirs.num_parameters)


def _by_attributes(make: Callable[..., Module]) -> Callable[[Any], Module]:
    """A layer from the attributes of PyTorch's, which have the names of the arguments."""
    names = inspect.signature(make).parameters

    def layer(theirs: Any) -> Module:
        return make(**{name: getattr(theirs, name) for name in names})

    return layer


@cache
def _layers() -> dict[Any, Callable[[Any], Module]]:
    """What makes a layer from PyTorch's, by its class."""
    nn = load_torch("from_torch").nn
    return {
        nn.Linear: _linear_layer,
        nn.Conv2d: _conv2d_layer,
        nn.BatchNorm1d: _batch_norm_layer,
        nn.BatchNorm2d: _batch_norm_layer,
        nn.LayerNorm: lambda theirs: LayerNorm(tuple(theirs.normalized_shape), theirs.eps),
        nn.RMSNorm: _rms_norm_layer,
        nn.GroupNorm: lambda theirs: GroupNorm(theirs.num_groups, theirs.num_channels, theirs.eps),
        nn.PReLU: _prelu_layer,
        nn.MaxPool2d: _by_attributes(_max_pool2d),
        nn.AvgPool2d: _by_attributes(_avg_pool2d),
        nn.AdaptiveAvgPool2d: _by_attributes(_adaptive_avg_pool2d),
        nn.Flatten: _by_attributes(_flatten),
        nn.Dropout: _by_attributes(_dropout),
        nn.Identity: lambda theirs: layers.Identity(),
        nn.ReLU: _by_attributes(_relu),
        nn.ReLU6: lambda theirs: _relu6(),
        nn.Hardtanh: _by_attributes(_hardtanh),
        nn.LeakyReLU: _by_attributes(_leaky_relu),
        nn.ELU: _by_attributes(_elu),
        nn.SELU: _by_attributes(_selu),
        nn.SiLU: _by_attributes(_silu),
        nn.GELU: _by_attributes(_gelu),
        nn.Softplus: _by_attributes(_softplus),
        nn.Tanh: lambda theirs: layers.Tanh(),
        nn.Sigmoid: lambda theirs: layers.Sigmoid(),
    }


KNOWN = (
    "Linear, Conv2d, BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm, GroupNorm, MaxPool2d, "
    "AvgPool2d, AdaptiveAvgPool2d(1), Flatten, Dropout, Identity, or an activation"
)


@cache
def _function_layers() -> dict[Any, Callable[..., Module]]:
    """What makes a layer of a function without weights."""
    torch = load_torch("from_torch")
    functional, methods = torch.nn.functional, torch.Tensor
    made: dict[Any, Callable[..., Module]] = {}
    groups: list[tuple[Callable[..., Module], list[Any]]] = [
        (_max_pool2d, [functional.max_pool2d, torch.max_pool2d]),
        (_avg_pool2d, [functional.avg_pool2d]),
        (_adaptive_avg_pool2d, [functional.adaptive_avg_pool2d]),
        (_flatten, [torch.flatten, methods.flatten]),
        (_mean, [torch.mean, methods.mean]),
        (_relu, [functional.relu, torch.relu, methods.relu]),
        (_relu, [functional.relu_, torch.relu_, methods.relu_]),
        (_relu6, [functional.relu6]),
        (_hardtanh, [functional.hardtanh]),
        (_leaky_relu, [functional.leaky_relu]),
        (_elu, [functional.elu]),
        (_selu, [functional.selu, torch.selu]),
        (_silu, [functional.silu]),
        (_gelu, [functional.gelu]),
        (_softplus, [functional.softplus]),
    ]
    for function in (F.tanh, F.sigmoid, F.sin, F.erf, F.abs):
        name = function.__name__
        both = [getattr(torch, name), getattr(methods, name)]
        groups.append((_named(name), both))
    groups.append((_named(F.tanh.__name__), [functional.tanh]))
    groups.append((_named(F.sigmoid.__name__), [functional.sigmoid]))
    for make, functions in groups:
        for function in functions:
            made[function] = make
    return made


@cache
def functions() -> dict[Any, Callable[..., Any]]:
    """The functions that stay functions: of shapes, of several tensors, of weights."""
    torch = load_torch("from_torch")
    functional, methods = torch.nn.functional, torch.Tensor
    found: dict[Any, Callable[..., Any]] = {}
    groups: list[tuple[Callable[..., Any], list[Any]]] = [
        (traced.add, [operator.add, operator.iadd, torch.add, methods.add, methods.add_]),
        (traced.subtract, [operator.sub, operator.isub, torch.sub, methods.sub, methods.sub_]),
        (traced.multiply, [operator.mul, operator.imul, torch.mul, methods.mul, methods.mul_]),
        (traced.divide, [operator.truediv, operator.itruediv, torch.div, methods.div]),
        (traced.floor_divide, [operator.floordiv]),
        (traced.negate, [operator.neg, torch.neg, methods.neg]),
        (traced.same, [methods.contiguous, methods.clone, torch.clone]),
        (traced.shape_of, [getattr]),
        (traced.size_of, [methods.size]),
        (traced.element_of, [operator.getitem]),
        (traced.reshape, [methods.view, methods.reshape, torch.reshape]),
        (traced.concatenate, [torch.cat, torch.concat, torch.concatenate]),
        (traced.softmax, [functional.softmax, torch.softmax, methods.softmax]),
        (traced.log_softmax, [functional.log_softmax, torch.log_softmax, methods.log_softmax]),
        (traced.linear, [functional.linear]),
        (traced.conv2d, [functional.conv2d, torch.conv2d]),
        (traced.dropout, [functional.dropout]),
        (traced.layer_norm, [functional.layer_norm]),
        (traced.rms_norm, [functional.rms_norm]),
        (traced.group_norm, [functional.group_norm]),
        (traced.prelu, [functional.prelu, torch.prelu]),
    ]
    for ours, theirs in groups:
        for function in theirs:
            found[function] = ours
    return found


# Tracing


def trace(module: Any, training: bool, where: str, flat: bool = False) -> Any:
    """The graph of a module's forward in this mode. Modules inside are single nodes; `flat`, only
    those of PyTorch are."""
    torch = load_torch("from_torch")

    class Proxy(torch.fx.Proxy):  # type: ignore[misc, name-defined]
        """PyTorch's proxies take x += y for x = x + y."""

        def __iadd__(self, other: Any) -> Any:
            return self.edited(operator.iadd, other)

        def __isub__(self, other: Any) -> Any:
            return self.edited(operator.isub, other)

        def __imul__(self, other: Any) -> Any:
            return self.edited(operator.imul, other)

        def __itruediv__(self, other: Any) -> Any:
            return self.edited(operator.itruediv, other)

        def edited(self, function: Any, other: Any) -> Any:
            return self.tracer.create_proxy("call_function", function, (self, other), {})

    class Tracer(torch.fx.Tracer):  # type: ignore[misc, name-defined]
        def is_leaf_module(self, inner: Any, name: str) -> bool:
            return not flat or super().is_leaf_module(inner, name)

        def proxy(self, node: Any) -> Any:
            return Proxy(node, self)

    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        got = f"{where_is(module, where)}, whose forward takes any number of arguments"
        raise refusal(got, "its inputs are known by name", "def forward(self, x)")
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    try:
        with in_mode(module, training):
            graph = Tracer().trace(module, defaults)
    except Exception as error:  # of torch.fx, or of the forward, which meets a proxy
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        got = f"{where_is(module, where)}, whose forward cannot be traced: {reason}"
        rule = "torch.fx runs the forward without values: no branch depends on them"
        raise refusal(got, rule, "a forward of layers and functions only") from error
    _drop_defaults(graph)
    return graph


@contextmanager
def in_mode(module: Any, training: bool) -> Iterator[None]:
    """Put a module of PyTorch into a mode inside the block."""
    before = [(inner, inner.training) for inner in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for inner, mode in before:
            inner.training = mode


def _drop_defaults(graph: Any) -> None:
    """Remove the inputs that keep their defaults, and what torch.fx asserts about them."""
    for node in tuple(graph.nodes):
        if node.op == "placeholder" and node.args:
            _drop_with_users(graph, node)


def _drop_with_users(graph: Any, node: Any) -> None:
    for user in tuple(node.users):
        _drop_with_users(graph, user)
    graph.erase_node(node)


class FunctionLayers:
    """The layers that a module gets for functions without weights. Both programs of the module have
    the same ones, where they call the same functions."""

    def __init__(self, ours: Traced, training: bool):
        self.ours = ours
        self.training = training
        self.calls: dict[str, Any] = {}

    def add(self, name: str, make: Callable[..., Module], arguments: Any, keywords: Any) -> str:
        """The name of the layer for this call."""
        call = (make, arguments, keywords)
        while self.calls.get(name, call) != call or self._is_taken(name):
            name += "_"
        if name not in self.calls:
            place(self.ours, name, make(*arguments, **keywords).train(self.training))
            self.calls[name] = call
        return name

    def _is_taken(self, name: str) -> bool:
        return name not in self.calls and hasattr(self.ours, name)


class Reader:
    """Reads a graph of torch.fx."""

    def __init__(self, theirs: Any, functions: FunctionLayers, where: str):
        self.theirs = theirs
        self.functions = functions
        self.where = where

    def program(self, graph: Any) -> Program:
        inputs = []
        steps = []
        for node in graph.nodes:
            if node.op == "placeholder":
                inputs.append(node.name)
            elif node.op == "output":
                result = self.stand_in(node.args[0])
            elif node.op != "get_attr":
                steps.append(self.step(node))
        return Program(tuple(inputs), tuple(steps), result)

    def step(self, node: Any) -> Step:
        arguments = self.stand_in(node.args)
        keywords = self.stand_in(node.kwargs)
        if node.op == "call_module":
            self.check_call(node)
            return Step(node.name, node.target, arguments, keywords)
        function = function_of(node)
        if function in _function_layers():
            return self.function_layer(node, arguments, keywords)
        if function not in functions():
            rule = "it is none of the functions and methods that are converted in a forward"
            hint = "layers, activations and arithmetic; or write the network with tinyprop"
            raise refusal(self.described(node), rule, hint)
        ours = functions()[function]
        self.check_function(node, ours)
        self.bind(node, ours, arguments, keywords)
        return Step(node.name, ours, arguments, keywords)

    def function_layer(self, node: Any, arguments: Any, keywords: Any) -> Step:
        """A function without weights as a layer."""
        make = _function_layers()[function_of(node)]
        options = dict(keywords)
        first = options.pop("input", None)
        if first is None:
            first, *arguments = arguments
        if any(isinstance(value, (Result, Member)) for value in (*arguments, *options.values())):
            got = self.described(node)
            raise refusal(got, "its options are numbers", "numbers that do not depend on x")
        self.bind(node, make, tuple(arguments), options)
        try:
            name = self.functions.add(node.name, make, tuple(arguments), options)
        except _Unsupported as reason:
            raise refusal(self.described(node), *reason.args) from None
        return Step(node.name, name, (first,), {})

    def bind(self, node: Any, ours: Any, arguments: Any, keywords: Any) -> None:
        """Refuse arguments that the counterpart does not have."""
        try:
            inspect.signature(ours).bind(*arguments, **keywords)
        except TypeError as error:
            got = f"{self.described(node)}: {error}"
            rule = "not all of PyTorch's arguments are known here"
            raise refusal(got, rule, "leave it out") from None

    def check_call(self, node: Any) -> None:
        """Refuse a call of a module with arguments that it was not traced with."""
        called = self.theirs.get_submodule(node.target)
        parameters = inspect.signature(called.forward).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty]
        if node.kwargs or len(node.args) != len(required):
            got = f"a call of {self.where}.{node.target} with {len(node.args)} arguments"
            if node.kwargs:
                got += f" and {', '.join(node.kwargs)}="
            rule = "a module is called with what its forward requires, without names"
            raise refusal(got, rule, f"{node.target}({', '.join(required)})")

    def check_function(self, node: Any, ours: Any) -> None:
        """Refuse what is known in part only."""
        if ours is traced.element_of:
            source = function_of(node.args[0])
            is_known = functions().get(source) in (traced.shape_of, traced.size_of)
            rule, hint = "an index is one into a shape, x.shape[0]", "x.shape[0]"
        elif ours is traced.shape_of:
            is_known = node.args[1] == "shape"
            rule, hint = "of a tensor's attributes the shape is known", "x.shape"
        elif ours in (traced.softmax, traced.log_softmax, traced.concatenate):
            axes = [*node.args[1:2], *[node.kwargs[key] for key in node.kwargs if key == "dim"]]
            is_known = axes not in ([], [0], [None]) and node.kwargs.get("dtype") is None
            rule, hint = "it works on an axis of each sample, in its dtype", "dim=1"
        elif ours is traced.floor_divide:
            is_known = all(map(is_number, node.args))
            rule, hint = "only the numbers of a shape have //", "x / 2, or x.shape[1] // 2"
        else:
            return
        if not is_known:
            raise refusal(self.described(node), rule, hint)

    def described(self, node: Any) -> str:
        name = node.target if node.op == "call_method" else node.target.__name__
        return f"{name} in the forward of {self.where}"

    def stand_in(self, value: Any) -> Any:
        """Nodes as what stands for them, in tuples, lists, dicts and slices."""
        if hasattr(value, "op"):
            return Member(value.target) if value.op == "get_attr" else Result(value.name)
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.stand_in, tuple(value))) if value else ()
        if isinstance(value, dict):
            return {name: self.stand_in(element) for name, element in value.items()}
        return value


def function_of(node: Any) -> Any:
    """The function that a node calls; for a method, that of torch.Tensor."""
    if node.op == "call_method":
        return getattr(load_torch("from_torch").Tensor, node.target, None)
    return node.target if node.op == "call_function" else None


def is_number(value: Any) -> bool:
    """Whether this is a number, or a node that computes one from a shape."""
    if not hasattr(value, "op"):
        return isinstance(value, (int, float))
    ours = functions().get(function_of(value))
    if ours in (traced.element_of, traced.size_of):
        return True
    arithmetic = (traced.add, traced.subtract, traced.multiply, traced.divide, traced.floor_divide)
    return ours in (*arithmetic, traced.negate) and all(map(is_number, value.args))


# In-place operations


@cache
def _views() -> set[Any]:
    """What may return its input, or a view of it."""
    torch = load_torch("from_torch")
    nn = torch.nn
    ours = (traced.reshape, traced.same, traced.dropout)
    found = {function for function, counterpart in functions().items() if counterpart in ours}
    kinds = {nn.Identity, nn.Flatten, nn.Dropout}
    return {*found, *kinds, torch.flatten, torch.Tensor.flatten}


def refuse_lost_edits(module: Any) -> None:
    """Refuse a network in which an in-place operation, as ReLU(inplace=True), changes a value that
    is used again: here every operation leaves its input alone."""
    if type(module) in _layers():
        return
    for training in (True, False):
        where = type(module).__name__
        graph = trace(module, training, where, flat=True)
        origin: dict[Any, Any] = {}
        edits: dict[Any, Any] = {}  # the node whose result is the edited value
        for node in graph.nodes:
            for used in node.all_input_nodes:
                last_edit = edits.get(origin[used])
                if last_edit is not None and not _follows(used, last_edit):
                    got = f"{where}, in which {last_edit} changes {used} in place; {node} uses it"
                    rule = "no operation changes its input here, so the result would differ"
                    raise refusal(got, rule, "inplace=False, or x = x + y instead of x += y")
            called = module.get_submodule(node.target) if node.op == "call_module" else None
            operation = function_of(node) if called is None else type(called)
            is_edit = _edits_its_input(node, called)
            keeps_memory = is_edit or operation in _views()
            first = node.all_input_nodes[0] if node.all_input_nodes else None
            origin[node] = origin[first] if keeps_memory and first is not None else node
            if is_edit:
                edits[origin[node]] = node


def _edits_its_input(node: Any, called: Any) -> bool:
    if called is not None:
        return bool(getattr(called, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("inplace", False):
        return True
    name = node.target if isinstance(node.target, str) else node.target.__name__
    is_operator = function_of(node) in _in_place_operators()
    return is_operator or (name.endswith("_") and not name.endswith("__"))


def _in_place_operators() -> set[Any]:
    return {operator.iadd, operator.isub, operator.imul, operator.itruediv}


def _follows(node: Any, edit: Any) -> bool:
    """Whether a node is the result of an edit, or was computed from it."""
    waiting = [node]
    seen = set()
    while waiting:
        present = waiting.pop()
        if present is edit:
            return True
        if present not in seen:
            seen.add(present)
            waiting.extend(present.all_input_nodes)
    return False

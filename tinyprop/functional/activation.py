"""Activations as records, and the open table of them: ours and yours enter by the same call."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from ..engine.arrays import default_backend, float32, host_array, to_backend, use_backend
from ..engine.errors import BackendError, ShapeError, close_names, explain
from ..engine.graph import no_grad
from ..engine.loading import is_file_reference, portable, unportable
from ..engine.registry import Registry
from ..engine.stand_in import StandIn
from ..engine.tensor import Tensor
from .shapes import concatenate

# where a new function is tried out, in an order that no sorting leaves alone
PROBES = (0.4, -2.6, 1.7, -0.1, 3.0, -1.3, 0.9, -0.7, 2.2, -3.1, 0.05, -1.9)
PROBE_TOLERANCE = 1e-4  # float32 functions may round differently in arrays of other shapes
FARTHEST = 64.0  # from 0, of kinks that a composition is searched for
BISECTIONS = 60


@dataclass(frozen=True, init=False, repr=False)
class Activation:
    """A function of each element, and what is known about it.

    `function(u, **parameters)` maps a tensor to one of the same shape and dtype. `parameters` are
    learnable, with the values that they start with: a layer owns one of each, or one per unit.
    Other arguments of the function are options that stay fixed.

    `kinks` are places where the function or its slope jumps. A `rectifier` is nearly 0 on one side
    and nearly a line on the other: exact NormProp layers start it at beta = 1. A `homogeneous`
    function has s(c u) = c s(u) for c > 0.

    `moments` and `dual` are closed forms, if there are any; without them, quadrature computes the
    same. `moments(mean, std, **parameters)` takes float64 tensors of one shape and returns the
    mean, the standard deviation and E s'^2 of s(U), U ~ N(mean, std^2). `dual(rho, means, stds,
    **parameters)` takes float64 arrays, a pair of means and a pair of standard deviations, and
    returns the covariance of s(U) and s(V).

    >>> def leaky_tanh(u, a):
    ...     return F.tanh(u) + a * u
    >>> leaky = tp.Activation(leaky_tanh, parameters={"a": 0.1})
    >>> leaky
    Activation('leaky_tanh', a=0.1)
    >>> leaky(tp.tensor([1.0])), leaky(tp.tensor([1.0]), a=0.0)
    (tensor([0.8615942]), tensor([0.7615942]))
    >>> layer = tp.nn.NormPropLinear(3, 2, activation=leaky)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'gamma', 'beta', 'a']
    """

    function: Callable[..., Tensor]
    name: str
    kinks: tuple[float, ...]
    parameters: Mapping[str, float]
    rectifier: bool
    homogeneous: bool
    moments: Callable[..., Any] | None
    dual: Callable[..., Any] | None

    def __init__(
        self,
        function: Callable[..., Tensor],
        name: str | None = None,
        kinks: Iterable[float] = (),
        parameters: Mapping[str, float] | None = None,
        rectifier: bool = False,
        homogeneous: bool = False,
        moments: Callable[..., Any] | None = None,
        dual: Callable[..., Any] | None = None,
    ):
        _check_function(function)
        fields = {
            "function": function,
            "name": _name_of(function) if name is None else _checked_name(name),
            "kinks": _checked_kinks(kinks),
            "parameters": _checked_parameters(parameters or {}),
            "rectifier": bool(rectifier),
            "homogeneous": bool(homogeneous),
            "moments": _checked_form("moments", moments),
            "dual": _checked_form("dual", dual),
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)  # the record is frozen
        self.check_names(self.parameters)
        self._check_required()
        try:
            with use_backend("numpy"):
                _probe(self)
        except BackendError:  # it uses tensors that are elsewhere
            _probe(self)

    def __call__(self, x: Any, **params: Any) -> Tensor:
        """The function, with the start values of the parameters that are not given."""
        values = {**self.parameters, **params}
        if isinstance(x, StandIn):
            return x.answer(self, (x,), values)
        return self.function(x, **values)

    @cached_property
    def options(self) -> list[str] | None:
        """The arguments of the function besides its input, parameters or not; None if it takes
        any."""
        arguments = _arguments(self.function)
        if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
            return None
        return [argument.name for argument in arguments[1:]]

    def _check_required(self) -> None:
        """Refuse a function that needs a value which neither it nor the record has."""
        for argument in _arguments(self.function)[1:]:
            needs_value = argument.default is argument.empty
            is_single = argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL)
            if needs_value and is_single and argument.name not in self.parameters:
                got = f"{self.name}, which needs a value for {argument.name!r}"
                rule = "an activation is called with its input and its parameters"
                hint = f'tp.Activation({self.name}, parameters={{"{argument.name}": 0.25}})'
                raise TypeError(explain(got, rule, hint))

    def check_names(self, params: Iterable[str]) -> None:
        """Refuse names of parameters that the function does not have."""
        known = self.options
        unknown = [] if known is None else [name for name in params if name not in known]
        if unknown:
            got = f"parameter {unknown[0]!r} of {self.name}"
            rule = f"it has {', '.join(known) if known else 'no parameters'}"
            raise TypeError(
                explain(got, rule, close_names(unknown[0], known or ()) or "leave it out")
            )

    def __repr__(self) -> str:
        parts = [repr(self.name)]
        parts += [f"{name}={value:g}" for name, value in self.parameters.items()]
        return f"Activation({', '.join(parts)})"

    def __hash__(self) -> int:
        return hash(self.name)

    def __copy__(self) -> "Activation":
        return self

    def __deepcopy__(self, memo: Any) -> "Activation":
        return self

    def __reduce__(self) -> Any:
        """As `file.py:name` if a file has it, by name if it is ours; otherwise by its parts."""
        source = activations.source_of(self, self.function)
        if source is not None:
            return as_activation, (str(source),)
        if activations.get(self.name) is self and _is_ours(self.function):
            return _registered, (self.name,)
        fields = {name: portable(getattr(self, name)) for name in self.__dataclass_fields__}
        fields["parameters"] = dict(self.parameters)
        return _from_fields, (fields,)


AnyActivation: TypeAlias = str | Activation | Callable[..., Tensor]

activations: Registry[Activation] = Registry(Activation, "activation", "tp.activations")


def as_activation(activation: AnyActivation) -> Activation:
    """The record of what a user gives: a name, `file.py:name`, a record, or a function of tensors.

    A function that has a record in the table stands for it; another one gets a record of its own,
    without being registered.

    >>> from tinyprop.functional.activation import as_activation
    >>> as_activation("relu") is as_activation(F.relu)
    True
    >>> as_activation(lambda u: u * F.tanh(u))
    Activation('function')
    """
    if isinstance(activation, Activation):
        return activation
    if is_file_reference(activation):
        return as_activation(activations.from_file(str(activation)))
    if isinstance(activation, str) or not callable(activation):
        return activations[activation]
    for entry in activations.values():
        if entry.function is activation:
            return entry
    return Activation(activation)


def squashed(activation: AnyActivation, squash: AnyActivation, alpha: float) -> Activation:
    """s(squash(alpha u)) for an activation s and a squash that grows everywhere: as in DyT, tanh.

    >>> from tinyprop.functional.activation import squashed
    >>> squashed("relu", "tanh", 0.5).kinks
    (0.0,)
    """
    outer, inner = as_activation(activation), as_activation(squash)

    def function(u: Tensor, **params: Any) -> Tensor:
        return outer.function(inner.function(alpha * u), **params)

    def at(u: float) -> Any:
        return inner(Tensor(host_array(alpha * u))).item()

    places = [_preimage(at, kink) for kink in outer.kinks]
    kinks = [place for place in places if place is not None]
    return Activation(function, f"{outer.name}_of_{inner.name}", kinks, outer.parameters)


def _preimage(function: Callable[[float], Any], value: float) -> float | None:
    """Where an increasing function has this value, if it does between -FARTHEST and FARTHEST."""
    low, high = -FARTHEST, FARTHEST
    if not function(low) < value < function(high):
        return None
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        at_middle = function(middle)
        if at_middle == value:
            return middle
        low, high = (middle, high) if at_middle < value else (low, middle)
    return 0.5 * (low + high)


def _arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions that are written in C do not say
        return [inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)]


def _from_fields(fields: dict[str, Any]) -> Activation:
    return Activation(**{name: unportable(value) for name, value in fields.items()})


def _registered(name: str) -> Activation:
    return activations[name]


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "tinyprop"


def _name_of(function: Callable[..., Any]) -> str:
    """The function's own name, or "function" for a lambda and others that have none."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "function"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        rule = "a name has letters, digits and underscores, and does not begin with a digit"
        raise ValueError(explain(f"an activation named {name!r}", rule, "name='swish2'"))
    return name


def _check_function(function: Any) -> None:
    is_module = hasattr(function, "named_parameters")
    if isinstance(function, type) or is_module or not callable(function):
        is_instance = is_module and not isinstance(function, type)
        got = f"a {type(function).__name__}" if is_instance else repr(function)
        rule = "an activation is a function of tensors, not a layer; its parameters are in a record"
        hint = "tp.functional.relu, or tp.Activation(function, parameters={...})"
        raise TypeError(explain(f"{got} as an activation", rule, hint))


def _checked_kinks(kinks: Any) -> tuple[float, ...]:
    try:
        places = tuple(sorted({float(kink) for kink in kinks}))
        is_valid = all(math.isfinite(place) for place in places) and not isinstance(kinks, str)
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        rule = "they are finite numbers, the places where the function or its slope jumps"
        raise ValueError(explain(f"kinks={kinks!r}", rule, "kinks=(0.0,)"))
    return places


def _checked_parameters(parameters: Any) -> Mapping[str, float]:
    rule = "names with the finite numbers that they start with"
    if not isinstance(parameters, Mapping):
        got = f"parameters={parameters!r}"
        raise TypeError(explain(got, rule, 'parameters={"a": 0.25}'))
    checked = {}
    for name, value in parameters.items():
        is_name = isinstance(name, str) and name.isidentifier()
        is_flag = isinstance(value, (bool, str))
        try:
            start = math.nan if is_flag else float(value)
        except (TypeError, ValueError):
            start = math.nan
        if not is_name or not math.isfinite(start):
            got = f"parameter {name!r} with the start value {value!r}"
            raise ValueError(explain(got, rule, 'parameters={"a": 0.25}'))
        checked[name] = start
    return MappingProxyType(checked)


def _checked_form(which: str, form: Any) -> Any:
    if form is not None and not callable(form):
        arguments = {"moments": "mean, std", "dual": "rho, means, stds"}[which]
        rule = f"it is a function of {arguments} and the parameters, or None"
        raise TypeError(explain(f"{which}={form!r}", rule, f"{which}=None"))
    return form


def _probe(activation: Activation) -> None:
    """Try the function on a few numbers: refuse what does not map each element by itself."""
    points = Tensor(to_backend(host_array(PROBES, float32), default_backend()))
    grid = points.reshape(3, 4)
    with no_grad():
        together = _value_of(activation, grid).reshape(len(PROBES))
        alone = concatenate([_value_of(activation, row) for row in grid])
        turned = _value_of(activation, points[::-1])[::-1]
    values = together.numpy()
    for place, value in zip(PROBES, values.tolist(), strict=True):
        if not math.isfinite(value):
            got = f"{activation.name}({place}), which is {value}"
            rule = "an activation has a finite value for every number"
            hint = "limit its argument first, with F.clip or F.maximum"
            raise ValueError(explain(got, rule, hint))
    allowed = PROBE_TOLERANCE * (1.0 + abs(values))
    differs = (abs(alone.numpy() - values) > allowed) | (abs(turned.numpy() - values) > allowed)
    if differs.any():
        got = f"{activation.name}, whose value at an element depends on the others, or on chance"
        rule = "an activation is a function of each element by itself"
        raise ValueError(explain(got, rule, "a layer of your own, a subclass of nn.Module"))


def _value_of(activation: Activation, u: Tensor) -> Tensor:
    value = activation(u)
    if not isinstance(value, Tensor):
        got = f"{activation.name}, which returns a {type(value).__name__} for a Tensor"
        rule = "an activation maps a tensor to a tensor, so that gradients pass through it"
        raise TypeError(explain(got, rule, "write it with tp.functional and operators"))
    if value.shape != u.shape:
        got = f"{activation.name}, which maps shape {u.shape} to {value.shape}"
        rule = "an activation keeps the shape: it is a function of each element"
        raise ShapeError(got, rule, "a layer of your own, a subclass of nn.Module")
    if value.dtype != u.dtype:
        got = f"{activation.name}, which maps {u.dtype} to {value.dtype}"
        rule = "an activation keeps the dtype"
        raise TypeError(explain(got, rule, "Python numbers, not float64 arrays, as its constants"))
    return value

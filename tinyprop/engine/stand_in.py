"""Objects that stand in for tensors, and answer for themselves what a function of tensors does to
them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class StandIn:
    """What can be given to functions and layers in place of a tensor, for instance a
    `tp.theory.State`, which knows only the moments of the values.

    A function or an op that meets one does not compute. It asks the stand-in, as NumPy asks an
    object that has `__array_function__`."""

    __array_priority__ = 1000  # let the stand-in handle array + stand-in, for CuPy

    def answer(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What function(*args, **kwargs) is; this object is one of the arguments."""
        raise NotImplementedError

    def through(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a module that is called with these arguments returns; this object is the first."""
        raise NotImplementedError

    def refuse(self, name: str) -> TypeError:
        """The error for a function of this name that has no answer."""
        raise NotImplementedError


def accepts_stand_ins(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same function of tensors; if its first argument is a stand-in, that one answers."""

    @wraps(function)
    def asking(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if args and isinstance(args[0], StandIn):
            return args[0].answer(asking, args, kwargs)
        return function(*args, **kwargs)

    return asking


def stand_in_among(operands: Sequence[Any]) -> StandIn | None:
    """The first stand-in among operands."""
    for operand in operands:
        if isinstance(operand, StandIn):
            return operand
    return None


def calling_function() -> str:
    """The name of the function of `tp.functional` that is being computed, for an error message."""
    found = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        is_inside = frame.f_globals.get("__name__", "").startswith("tinyprop.functional")
        if found is not None and not is_inside:
            break
        name = frame.f_code.co_name
        if is_inside and not name.startswith(("_", "<")):
            found = name
        frame = frame.f_back
    return found or "a function of tensors"

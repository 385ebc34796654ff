"""PyTorch as the second way: values and gradients of a function, by both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

import tinyprop as tp

from .case import Array, described, difference, scale_of

ULP = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
NEIGHBOURS = 4  # of the inputs, whose errors are looked at before a result is called wrong


@cache
def torch() -> Any:
    """PyTorch, which is loaded when it is used."""
    import torch as module

    return module


def torch_tensor(x: Array, dtype: str | None = None) -> Any:
    """A contiguous copy."""
    return torch().tensor(np.array(x, dtype, order="C"))


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's rounding depends on its number of threads: a case must not."""
    before = torch().get_num_threads()
    torch().set_num_threads(1)
    try:
        yield
    finally:
        torch().set_num_threads(before)


@dataclass(frozen=True)
class Bound:
    """How far a result may be from PyTorch's in float64.

    In float64, `relative` to the largest number of the result. In float32 and float16, `times` the
    error that PyTorch makes itself in the same dtype, plus `ulps` units in the last place,
    of the largest number. That is at least `floor`, the size of what is added up. PyTorch may be
    exact by luck, so before a result is called wrong, PyTorch's error is also taken from
    neighbours of the inputs."""

    relative: float = 1e-10
    times: float = 3.0
    ulps: float = 16.0
    floor: float = 1.0


@dataclass(frozen=True)
class Question:
    """A function of some arrays, as tinyprop computes it and as PyTorch does. The gradients with
    respect to all of them are compared, for a random cotangent."""

    inputs: dict[str, Array]  # all of one dtype, in their layouts
    ours: Callable[..., tp.Tensor]
    theirs: Callable[..., Any]
    order: int = 1  # of the derivatives: 0, 1 or 2
    seed: int = 0  # of the cotangents
    bound: Bound = field(default_factory=Bound)
    # further errors that are allowed, by the names of `answers`
    also: Callable[[], dict[str, Array]] = dict

    @property
    def dtype(self) -> str:
        return str(next(iter(self.inputs.values())).dtype)

    def cotangent(self, shape: tuple[int, ...], number: int = 0) -> Array:
        """Both libraries get the same numbers, which are exact in the dtype of the question."""
        random = np.random.default_rng([self.seed, number])
        return np.asarray(random.standard_normal(shape)).astype(self.dtype)

    def described(self) -> str:
        return ", ".join(f"{name} {described(x)}" for name, x in self.inputs.items())


class Ours:
    """tinyprop, by the operations that `answers` needs."""

    @staticmethod
    def leaf(x: Array, dtype: str) -> tp.Tensor:
        return tp.from_numpy(x, requires_grad=True)

    @staticmethod
    def constant(x: Array, dtype: str) -> tp.Tensor:
        return tp.tensor(x.astype(dtype))

    @staticmethod
    def grad(output: tp.Tensor, leaves: list[tp.Tensor], v: tp.Tensor, recorded: bool) -> Any:
        return tp.grad(
            output, leaves, v, create_graph=recorded, retain_graph=True, allow_unused=True
        )

    @staticmethod
    def array(x: tp.Tensor) -> Array:
        return x.detach().numpy()


class Theirs:
    """PyTorch, by the same operations."""

    @staticmethod
    def leaf(x: Array, dtype: str) -> Any:
        return torch_tensor(x, dtype).requires_grad_()

    @staticmethod
    def constant(x: Array, dtype: str) -> Any:
        return torch_tensor(x, dtype)

    @staticmethod
    def grad(output: Any, leaves: list[Any], v: Any, recorded: bool) -> Any:
        gradient = torch().autograd.grad
        return gradient(
            output, leaves, v, create_graph=recorded, retain_graph=True, allow_unused=True
        )

    @staticmethod
    def array(x: Any) -> Array:
        return x.numpy(force=True)


def answers(engine: Any, question: Question, dtype: str) -> dict[str, Array]:
    """Value, first gradients (without a graph), and second ones (with one), by name."""
    leaves = {name: engine.leaf(x, dtype) for name, x in question.inputs.items()}
    function = question.ours if engine is Ours else question.theirs
    out = function(*leaves.values())
    found = {"the value": engine.array(out)}
    if question.order == 0 or not out.requires_grad:
        return found

    def gradients(output: Any, number: int, recorded: bool) -> dict[str, Any]:
        """With respect to all inputs, for the cotangent of that number."""
        v = engine.constant(question.cotangent(tuple(output.shape), number), dtype)
        found = engine.grad(output, list(leaves.values()), v, recorded)
        return dict(zip(leaves, found, strict=True))

    def keep(what: str, gradients: dict[str, Any]) -> None:
        for name, gradient in gradients.items():
            zeros = np.zeros(question.inputs[name].shape, dtype)
            found[f"{what} {name}"] = zeros if gradient is None else engine.array(gradient)

    keep("the gradient of", gradients(out, 0, recorded=False))
    if question.order == 1:
        return found
    first = gradients(out, 0, recorded=True)
    keep("the recorded gradient of", first)
    for number, (name, gradient) in enumerate(first.items(), 1):
        depends = gradient is not None and gradient.requires_grad
        second = gradients(gradient, number, recorded=False) if depends else dict.fromkeys(leaves)
        keep(f"the second gradient of {name} and", second)
    return found


def disagreement(question: Question, plain: bool = False) -> str | None:
    """The first result of tinyprop that differs from PyTorch's by more than the bound."""
    dtype = question.dtype
    with tp.plain() if plain else nullcontext():
        got = answers(Ours, question, dtype)
    with one_thread():
        want = answers(Theirs, question, "float64")
        same = want if dtype == "float64" else answers(Theirs, question, dtype)
    also = question.also()
    for name, exact in want.items():
        found = got[name]
        if (found.shape, str(found.dtype)) != (exact.shape, dtype):
            return f"{name} is {described(found)}, but should be {dtype}{exact.shape}"
        # Where PyTorch overflows in this dtype, anything will do; and a gradient that is not finite
        # may be NaN or infinite.
        anything = np.isfinite(exact) & ~np.isfinite(same[name])
        if "gradient" in name:
            anything |= ~np.isfinite(exact) & ~np.isfinite(found)
        exact = np.where(anything, found, exact)

        def complaint(error: Array, name: str = name, exact: Array = exact) -> str | None:
            """With the error that PyTorch makes."""
            limit = allowed(question.bound, dtype, exact, error) + also.get(name, 0.0)
            return difference(name, got[name], exact, limit)

        error = distance(same[name], exact)
        if complaint(error) is None:
            continue
        if dtype != "float64":
            error = np.fmax(error, error_nearby(question, name, exact))
        if words := complaint(error):
            return words + (", without overrides" if plain else "")
    return None


def distance(rounded: Array, exact: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return abs(rounded.astype("float64") - exact)


def error_nearby(question: Question, name: str, exact: Array) -> Array:
    """The largest error of PyTorch in one result, with inputs moved by a unit in their last place:
    an error of rounding without luck."""
    largest = np.zeros(())
    for number in range(NEIGHBOURS):
        rng = np.random.default_rng([question.seed, number])
        inputs = {key: nudged(rng, x) for key, x in question.inputs.items()}
        with one_thread():
            rounded = answers(Theirs, replace(question, inputs=inputs), question.dtype)[name]
        largest = np.fmax(largest, distance(rounded, exact))
    return largest


def nudged(rng: np.random.Generator, x: Array) -> Array:
    """Each number larger or smaller by about a unit in its last place."""
    signs = rng.choice([-1.0, 1.0], x.shape)
    return (x * (1.0 + ULP[str(x.dtype)] * signs)).astype(x.dtype)


def allowed(bound: Bound, dtype: str, exact: Array, error: Array) -> Array:
    """The error that is allowed in each element, where PyTorch makes `error` in this dtype. An
    outlier and what it has spoilt are judged apart from all other elements."""
    limits = np.zeros(exact.shape)
    with np.errstate(invalid="ignore"):
        ordinary = float(np.nanmedian(abs(exact))) if exact.size else 0.0
        is_outlier = ~(abs(exact) <= 30.0 * ordinary)
    for group in (is_outlier, ~is_outlier):
        limits[group] = _limit(bound, dtype, scale_of(exact[group]), scale_of(error[group]))
    return limits


def _limit(bound: Bound, dtype: str, scale: float, error: float) -> float:
    if dtype == "float64":
        return bound.relative * max(scale, 1e-3)
    smallest = float(np.finfo(dtype).smallest_normal)
    ulp = ULP[dtype] * max(scale, bound.floor)
    return bound.times * error + bound.ulps * ulp + smallest

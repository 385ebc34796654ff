"""What an answer gets from the course. The projects of lessons 2 and 6 begin with these engines if
you have none of your own: inside, tinyprop does the work, so they give no answer away. The rest is
what checks hand to an answer; nothing here leads back to the checks."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F


class Step(tp.Op):
    """A step of tinyprop's graph whose value is known, and whose gradients `pull` returns."""

    def __init__(self, value: np.ndarray, pull: Callable[[np.ndarray], Any]) -> None:
        self.value, self.pull = value, pull

    def forward(self, *inputs: np.ndarray) -> np.ndarray:
        self.shapes = [np.shape(x) for x in inputs]
        return self.value

    def backward(self, g: tp.Tensor) -> Any:
        gradients = [np.asarray(part, dtype=float) for part in self.pull(g.numpy())]
        for gradient, shape in zip(gradients, self.shapes, strict=True):
            if gradient.shape != shape:
                got = f"a gradient of shape {gradient.shape}"
                raise ValueError(f"pull returns {got} for an input of shape {shape}")
        return tuple(tp.tensor(gradient) for gradient in gradients)


def by_tinyprop(function: Callable[..., tp.Tensor], broadcasts: bool = False) -> Any:
    """A method that computes with tinyprop, and whose gradients tinyprop knows."""

    def method(self: Any, *others: Any) -> Any:
        inputs = (self, *others)
        shapes = {x.value.shape for x in inputs}
        if len(shapes) > 1 and not broadcasts:
            raise ValueError(f"arrays of one shape were expected, not of {sorted(shapes)}")
        leaves = [tp.tensor(x.value, requires_grad=True) for x in inputs]
        result = function(*leaves)

        def pull(g: np.ndarray) -> list[np.ndarray]:
            return [part.numpy() for part in tp.grad(result, leaves, g, retain_graph=True)]

        return type(self)(result.numpy(), inputs, pull)

    return method


class AfterLesson1:
    """What exercise 1.5 asks for."""

    def __init__(self, value: Any, inputs: tuple[Any, ...] = (), pull: Any = None) -> None:
        self.value = np.array(value, dtype=float)
        self.inputs, self.pull = inputs, pull
        self.grad = np.zeros_like(self.value)
        self._leaves = {leaf for source in inputs for leaf in source._leaves} or {self}
        self._tensor = tp.tensor(self.value, requires_grad=not inputs)
        if inputs:
            self._tensor = Step(self.value, pull)(*(source._tensor for source in inputs))

    __add__ = by_tinyprop(operator.add)
    __sub__ = by_tinyprop(operator.sub)
    __mul__ = by_tinyprop(operator.mul)
    tanh = by_tinyprop(F.tanh)

    def backward(self) -> None:
        """Fill in `grad` of the arrays that the result was computed from."""
        leaves = list(self._leaves)
        ones = np.ones_like(self.value)
        found = tp.grad(self._tensor, [x._tensor for x in leaves], ones, retain_graph=True)
        for leaf, gradient in zip(leaves, found, strict=True):
            leaf.grad = gradient.numpy()


class AfterLesson2(AfterLesson1):
    """What exercise 2.5 asks for."""

    __add__ = by_tinyprop(operator.add, broadcasts=True)
    __matmul__ = by_tinyprop(operator.matmul, broadcasts=True)

    def cross_entropy(self, labels: np.ndarray) -> Any:
        return by_tinyprop(lambda logits: F.cross_entropy(logits, labels))(self)


class Node:
    """What `Value` is to an order: something with inputs."""

    def __init__(self, *inputs: Any) -> None:
        self.inputs = inputs


def doubled(g: np.ndarray) -> tuple[np.ndarray]:
    """The pull of a step that doubles."""
    return (2 * g,)


def hands_on(g: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray]]:
    """The pull of a step that hands on g, whatever arrives."""
    return lambda arrives: (g.copy(),)


def counts(function: Callable[[Any], None], calls: list[Any]) -> Callable[[Any], None]:
    """A method that does the same, and notes each call."""

    def counted(self: Any) -> None:
        calls.append(self)
        function(self)

    return counted


def watches(call: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    """`Op.__call__`, which notes the size of each result."""

    def watched(op: tp.Op, *inputs: Any) -> Any:
        out = call(op, *inputs)
        sizes.append(out.size)
        return out

    return watched


def refuses(error: Exception) -> Callable[..., Any]:
    """`Op.__call__` where an answer may not use tinyprop."""

    def refused(op: tp.Op, *inputs: Any) -> Any:
        raise error

    return refused

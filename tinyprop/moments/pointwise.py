"""A user's function of one number, called on arrays or on tensors, and checked to be one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, float64, is_array, to_backend, to_numpy
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.tensor import Tensor

PROBES = 65
SAME = 1e-9  # by how much values may differ between calls: vectorised functions round differently
RULE = "an activation maps each number by itself: f(u)[i] depends on u[i] alone"


class Pointwise:
    """A function with its parameters: numbers, or one value per element, of shape (elements, 1).

    It may be written for tensors or for arrays. Points go in as a host array of shape (n,), values
    come out as a float64 tensor of shape (n,), or (elements, n) if they depend on parameters."""

    def __init__(
        self,
        function: Callable[..., Any],
        params: dict[str, Tensor],
        backend: str,
        tensors_first: bool,
    ):
        self.function = function
        self.params = params
        self.backend = backend
        self.tensors_first = tensors_first
        self._form: Callable[[Array], Any] | None = None  # what it takes, once that is known

    def __call__(self, points: HostArray) -> Tensor:
        result = self._result(points)
        kind = _dtype(result).kind
        if kind not in "fiub":
            got = f"a function that returns {_dtype(result)} for float64"
            rule = "an activation maps real numbers to real numbers"
            raise TypeError(explain(got, rule, "return u.real, or abs(u)"))
        values = result if isinstance(result, Tensor) else self._as_tensor(result)
        if values.backend != self.backend:
            values = values.to(self.backend)
        return values if values.dtype == float64 else values.astype(float64)

    def on_host(self, points: HostArray) -> HostArray:
        """Values without a graph, as a host array: (rows, n), where a row is an element, or all."""
        with no_grad():
            values = to_numpy(self(points.ravel()).data)
        if values.ndim == 0:
            values = np.full(points.size, values)
        return values.reshape(-1, *points.shape)

    def resolution(self) -> float:
        """The relative rounding of the values: that of float64, or of a narrower dtype."""
        dtype = _dtype(self._result(np.array([0.25, 0.5])))
        return float(np.finfo(dtype).eps) if dtype.kind == "f" else float(np.finfo(float64).eps)

    def check(self, low: float, high: float) -> None:
        """Refuse a function that is not deterministic, or not a function of one number."""
        steps = (np.arange(PROBES) + 0.5 + 0.3 * np.sin(np.arange(PROBES))) / PROBES
        points = low + (high - low) * steps
        one = Pointwise(self.function, _first(self.params), self.backend, self.tensors_first)
        with no_grad():
            values = _read(one(points))
            self._check_shape(values, points)
            again = _read(one(points))
            if not np.array_equal(values, again, equal_nan=True):
                i = int(np.argmax(values != again)) if values.ndim else 0
                got = f"a function that returns {_at(values, i)} for u = {points[i]:.4g}, then "
                rule = "an activation returns the same value whenever it is called"
                hint = "a function without random numbers and without memory"
                raise ValueError(explain(got + f"{_at(again, i)}", rule, hint))
            order = np.random.default_rng(0).permutation(PROBES)
            back = np.argsort(order)
            self._same(one, points, values, slice(0, 7), points[:7])
            self._same(one, points, values, slice(0, PROBES), points[order], back)
            self._same(one, points, values, slice(0, 64), points[:64].reshape(8, 8))

    def _check_shape(self, values: HostArray, points: HostArray) -> None:
        if values.shape == points.shape:
            return
        if values.ndim:
            got = f"a function that returns shape {values.shape} for shape {points.shape}"
            raise ValueError(explain(got, RULE, "NumPy functions or tp.functional on u"))

    def _same(
        self,
        one: "Pointwise",
        points: HostArray,
        values: HostArray,
        part: slice,
        arranged: HostArray,
        back: Any = slice(None),
    ) -> None:
        """The same numbers in another arrangement have the same values, in that arrangement."""
        got = _read(one(arranged))
        expected = values[part] if values.ndim else values
        if got.shape not in (arranged.shape, ()) or (got.ndim == 0) != (values.ndim == 0):
            words = f"a function that returns shape {got.shape} for shape {arranged.shape}"
            raise ValueError(explain(words, RULE, "NumPy functions or tp.functional on u"))
        if got.ndim:
            got = got.ravel()[back]
        size = np.maximum(np.abs(expected), np.abs(got))
        with np.errstate(all="ignore"):
            equal = (np.abs(got - expected) <= SAME * size) | (got == expected)
        equal |= np.isnan(got) & np.isnan(expected)
        if not equal.all():
            i = int(np.argmin(equal)) if equal.ndim else 0
            words = (
                f"a function that returns {_at(expected, i)} for u = {points[part][i]:.4g}, and "
                f"{_at(got, i)} in an array with other numbers or in another order"
            )
            hint = "no sums, sorting or differences over the array; normalisation is for layers"
            raise ValueError(explain(words, RULE, hint))

    def _result(self, points: HostArray) -> Any:
        """What the function returns, in the first form of the points that it takes."""
        if self._form is not None:
            return self._call(self._form, points)
        failure: Exception | None = None
        for form in self._forms():
            try:
                result = self._call(form, points)
            except ArgumentChanged:
                raise
            except Exception as error:  # the function is a stranger's: it may raise anything
                failure = failure or error
                continue
            if _dtype(result).kind in "fiubc":
                self._form = form
                return result
            failure = failure or TypeError(f"it returned a {type(result).__name__}")
        got = f"a function that raised {type(failure).__name__}: {failure}"
        rule = f"it takes an array, or a Tensor, of any shape (here {points.shape})"
        hint = "NumPy functions or tp.functional on u; np.vectorize(f) for one of single numbers"
        raise TypeError(explain(got, rule, hint)) from failure

    def _call(self, form: Callable[[Array], Any], points: HostArray) -> Any:
        argument = form(points)
        as_tensors = isinstance(argument, Tensor)
        data = argument.data if as_tensors else argument
        before = data.copy()
        params = {k: p if as_tensors else p.data for k, p in self.params.items()}
        with np.errstate(all="ignore"):
            result = self.function(argument, **params)
        if not (data == before).all():
            got = "a function that changes its argument in place"
            rule = "an activation leaves u as it is: others still need it"
            raise ArgumentChanged(explain(got, rule, "u = u.copy() first, and no out=u"))
        return result if isinstance(result, Tensor) or is_array(result) else np.array(result)

    def _forms(self) -> list[Callable[[HostArray], Any]]:
        tensors = partial(_tensor, backend=self.backend)
        arrays = partial(_array, backend=self.backend)
        forms: list[Callable[[HostArray], Any]] = [arrays, tensors]
        if self.tensors_first:
            forms.reverse()
        if self.backend != "numpy":
            forms.append(partial(_array, backend="numpy"))
        return forms

    def _as_tensor(self, result: Any) -> Tensor:
        # a copy: the function may use this memory again
        array = result.astype(float64) if is_array(result) else np.asarray(result, float64)
        return Tensor(to_backend(array, self.backend))


class ArgumentChanged(ValueError):
    """The function wrote into its argument."""

    __module__ = "tinyprop"


def _tensor(points: HostArray, backend: str) -> Tensor:
    return Tensor(_array(points, backend))


def _array(points: HostArray, backend: str) -> Array:
    return to_backend(points.copy(), backend)


def _first(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of the first element, as numbers."""
    return {name: p.detach().reshape(-1)[0] for name, p in params.items()}


def _dtype(result: Any) -> Any:
    return result.dtype if hasattr(result, "dtype") else np.asarray(result).dtype


def _read(values: Tensor) -> HostArray:
    return to_numpy(values.data)


def _at(values: HostArray, i: int) -> str:
    return f"{float(values.ravel()[i] if values.ndim else values):.6g}"

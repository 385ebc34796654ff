"""What tests share: `leaf`, `assert_close`, one naive convolution, one training run, and a battery
of tests.

A `Case` is a function of `tinyprop.functional`, an independent reference on host arrays, and a
hypothesis strategy for inputs from its domain, away from its kinks. (test_opinfo.py has PyTorch's
answers.) `battery(cases)` turns them into

    test_values      the value equals the reference, to 1e-12 in float64; inputs stay as they were
    test_gradients   first and second derivatives, recorded or not, equal central differences
    test_dtypes      float32 stays float32, float64 float64: results, gradients, every op between
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyprop as tp
from tinyprop.testing.points import points
from tinyprop.testing.strategies import rngs, shapes

FLOATS = [np.float32, np.float64]
FULL = bool(os.environ.get("TINYPROP_FULL"))  # whether what is exhaustive runs: see `make full`


def make(array: Any, backend: str, requires_grad: bool = False, dtype: Any = None) -> tp.Tensor:
    """A tensor of these values on that backend."""
    return tp.tensor(array, requires_grad=requires_grad, dtype=dtype, backend=backend)


def leaf(values: Any, backend: str = "numpy", dtype: Any = np.float64) -> tp.Tensor:
    """A tensor that requires a gradient, float64 unless told otherwise."""
    return make(np.asarray(values, dtype), backend, requires_grad=True)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes, and values that differ by at most this fraction of the largest one (at least of
    1e-3)."""
    actual = actual.numpy() if isinstance(actual, tp.Tensor) else np.asarray(actual)
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    finite = abs(expected[np.isfinite(expected)])
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * finite.max(initial=1e-3)
    )


def assert_explained(error: type[Exception], call: Callable[[], Any], *words: str) -> None:
    """The call fails with the three-part message, and these words are in it."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    lines = message.splitlines()
    assert [line.split(":")[0] for line in lines] == ["got", "rule", "try"], message
    assert all(len(line) > len("rule: ") for line in lines), message
    for word in words:
        assert word in message, f"{word!r} is not in:\n{message}"


@contextmanager
def computed_dtypes() -> Iterator[set[np.dtype]]:
    """The dtypes of all floating-point results that ops compute inside the block, forward or
    backward."""
    seen: set[np.dtype] = set()
    call = tp.Op.__call__

    def watched(op: tp.Op, *inputs: Any) -> tp.Tensor:
        out = call(op, *inputs)
        if out.dtype.kind == "f":
            seen.add(out.dtype)
        return out

    tp.Op.__call__ = watched
    try:
        yield seen
    finally:
        tp.Op.__call__ = call


def both(value: Any) -> tuple[int, int]:
    """A number for rows and columns, or a pair of numbers, as a pair."""
    return value if isinstance(value, tuple) else (value, value)


def int_or_pair(least: int, most: int) -> st.SearchStrategy[Any]:
    number = st.integers(least, most)
    return number | st.tuples(number, number)


def naive_conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """The definition, one pixel of the output after the other: out[n, o, i, j] = bias[o] + sum of
    x[n, c, i * sh + d * dh - ph, j * sw + r * dw - pw] * weight[o, c, d, r]."""
    (sh, sw), (ph, pw), (dh, dw), (o, c, kh, kw) = (
        both(stride),
        both(padding),
        both(dilation),
        weight.shape,
    )
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    height, width = dh * (kh - 1) + 1, dw * (kw - 1) + 1
    out = np.zeros((len(x), o, (x.shape[2] - height) // sh + 1, (x.shape[3] - width) // sw + 1))
    for k, i, j in np.ndindex(out.shape[1:]):
        first = k // (o // groups) * c  # the first input channel of this filter's group
        patch = x[:, first : first + c, i * sh : i * sh + height : dh, j * sw : j * sw + width : dw]
        out[:, k, i, j] = (patch * weight[k]).sum(axis=(1, 2, 3))
    return out if bias is None else out + bias[:, None, None]


def trained(
    net: tp.nn.Module,
    images: Any,
    labels: Any,
    steps: int = 3,
    lr: float = 0.05,
    optimizer: Any = tp.optim.SGD,
    **how: Any,
) -> tuple[list[float], dict[str, Any]]:
    """The losses of some training steps, and the state of the network after them, on the host."""
    step = tp.train.TrainingStep(net, optimizer(net.parameters(), lr), **how)
    losses = [float(step(images, labels)) for _ in range(steps)]
    return losses, {
        name: tp.engine.arrays.to_numpy(value) for name, value in net.state_dict().items()
    }


def one_axis(shape: tuple[int, ...]) -> st.SearchStrategy[int]:
    """Counted from the front or from the back."""
    return st.integers(-len(shape), len(shape) - 1)


def any_axes(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """None, an axis, or several of them."""
    return (
        st.none() | one_axis(shape) | hnp.valid_tuple_axes(len(shape), min_size=1)
        if shape
        else st.none()
    )


@st.composite
def one_array(draw, low=-3, high=3, kinks=(), gap=0.05, least=0, side=3, **options):
    """An array, and options: strategies, functions of its shape that give strategies, or values."""
    shape = draw(shapes(least, side=side))
    options = {k: v(shape) if callable(v) else v for k, v in options.items()}
    return [points(draw(rngs()), shape, low, high, kinks, gap)], draw_options(draw, options)


@st.composite
def broadcasting(draw: Any, *domains: tuple[Any, ...], **options: Any) -> Any:
    """Arrays of shapes that broadcast together, from these domains (low, high, kinks, gap)."""
    drawn = draw(hnp.mutually_broadcastable_shapes(num_shapes=len(domains), max_dims=3, max_side=3))
    rng = draw(rngs())
    arrays = [
        points(rng, shape, *domain)
        for shape, domain in zip(drawn.input_shapes, domains, strict=True)
    ]
    return arrays, draw_options(draw, options)


def draw_options(draw: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {k: draw(v) if isinstance(v, st.SearchStrategy) else v for k, v in options.items()}


@dataclass(frozen=True)
class Case:
    """One function under test. What follows a colon in its name tells several cases of a function
    apart."""

    name: str
    function: Callable[..., tp.Tensor]  # (*tensors, **options)
    reference: Callable[..., Any]  # (*host arrays, **options)
    inputs: st.SearchStrategy[tuple[list[Any], dict[str, Any]]]

    def __str__(self) -> str:
        return self.name

    def run(
        self, arrays: Any, options: Any, backend: str, dtype: Any = np.float64
    ) -> tuple[tp.Tensor, list[Any]]:
        """The result, and the leaves it was computed from."""
        leaves = [leaf(x, backend, dtype) for x in arrays]
        return self.function(*leaves, **options), leaves


def of_table(
    name: str, reference: Callable[..., Any], span: tuple[float, float] = (-3, 3), **options: Any
) -> Case:
    """A case of an elementwise function, with the domain and the kinks that the table gives it."""
    row = tp.functional.functions[name]
    ranges = [_range(row, operand, *span) for operand in range(len(row.shapes))]
    if len(ranges) > 1:
        return Case(name, row.function, reference, broadcasting(*ranges, **options))
    return Case(name, row.function, reference, one_array(*ranges[0], **options))


def _range(row: tp.functional.Row, operand: int, low: float, high: float) -> tuple[Any, ...]:
    """(low, high, kinks, gap) of the elements of a tensor, for `points`."""
    domain = row.domain(operand)
    if domain.hole is not None:
        return low, high, (domain.hole,), 0.4
    kinks = [kink for kink in row.kinks if isinstance(kink, float)]
    return max(low, domain.low + 0.3), high, kinks, 0.05


def cotangent(shape: Any, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def battery(cases: list[Case]) -> list[Callable[..., None]]:
    """test_values, test_gradients, test_dtypes."""
    every_case = pytest.mark.parametrize("case", cases, ids=str)

    @every_case
    @given(data=st.data())
    def test_values(case: Case, backend: str, data: Any) -> None:
        arrays, options = data.draw(case.inputs)
        out, leaves = case.run(arrays, options, backend)
        assert out.backend == backend
        assert_close(out, case.reference(*arrays, **options))
        tp.grad(out, leaves, make(cotangent(out.shape), backend))
        for x, array in zip(leaves, arrays, strict=True):
            np.testing.assert_array_equal(x.numpy(), array)

    @every_case
    # each compares many numbers: of both orders, recorded or not
    @settings(max_examples=settings().max_examples // 2)
    @given(data=st.data())
    def test_gradients(case: Case, backend: str, data: Any) -> None:
        arrays, options = data.draw(case.inputs)
        tensors = [make(x, backend) for x in arrays]
        tp.check_gradients(lambda *xs: case.function(*xs, **options), *tensors, order=2)

    @every_case
    @pytest.mark.parametrize("dtype", FLOATS)
    @given(data=st.data())
    def test_dtypes(case: Case, backend: str, dtype: Any, data: Any) -> None:
        arrays, options = data.draw(case.inputs)
        with computed_dtypes() as seen:
            out, leaves = case.run(arrays, options, backend, dtype)
            gradients = tp.grad(
                out, leaves, make(cotangent(out.shape, dtype), backend), create_graph=True
            )
        assert out.dtype == dtype
        assert [g.dtype for g in gradients] == [dtype] * len(leaves)
        assert [g.shape for g in gradients] == [x.shape for x in leaves]
        assert seen <= {np.dtype(dtype)}

    return [test_values, test_gradients, test_dtypes]


def quick_only(quick: Any, cases: Any) -> list[Any]:
    """All cases, for `parametrize`; those that are not among the quick ones are marked slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


exhaustive = pytest.mark.skipif(not FULL, reason="only in `make full`")


def sampled(cases, count):
    """Every one of these cases in `make full`; otherwise `count` of them, drawn at random, the same
    ones every time.

    (Every k-th would be simpler, but of all bits or of all combinations of options, it can leave
    one value out.)"""
    cases = list(cases)
    return cases if FULL else random.Random(0).sample(cases, min(count, len(cases)))


def figure_in_words(path: Path) -> str:
    """The description in the file of a figure."""
    from PIL import Image  # which matplotlib needs

    with Image.open(path) as image:
        return str(image.info.get("Description") or image.info["comment"].decode())


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, whose warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@contextmanager
def few_images(train: int, others: int) -> Iterator[None]:
    """Data sets are their first images only, and are loaded once."""
    load = cache(tp.data.load)

    def first(source: Any, root: Any, split: str) -> tp.data.Dataset:
        return load(source, root, split).first(train if split == "train" else others)

    with changed_data(first), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tp.data, "load", first)
        yield


@contextmanager
def changed_data(load: Callable[[Any, Any, str], tp.data.Dataset]) -> Iterator[None]:
    """The splits that a run uses are those that this function loads."""

    def splits(source: Any, root: Any, seed: int, image_size: Any) -> tp.data.Splits:
        return tp.data.Splits(lambda split: load(source, root, split))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tp.data, "splits", splits)
        yield


def flipped(content: bytes, bit: int) -> bytes:
    """A copy with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)

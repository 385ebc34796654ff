"""What tinyprop and its peers can do, each asked by running a few lines in its own words: the table
of FEATURES.md."""

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tinyprop.report.environment import versions
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

PAGE = Path(__file__).with_name("FEATURES.md")
TWO = np.full(1, 2.0, np.float32)
IMAGE, FILTER = np.ones((1, 1, 5, 5), np.float32), np.ones((1, 1, 3, 3), np.float32)
# how many windows of the filter cover each pixel
COVERED = np.outer([1, 2, 3, 2, 1], [1, 2, 3, 2, 1])
CHAIN = 10_000
TITLES = {
    "tinyprop": "tinyprop",
    "torch": "PyTorch",
    "jax": "JAX",
    "autograd": "HIPS autograd",
    "mygrad": "MyGrad",
}


def words(package: str) -> SimpleNamespace:
    """How a peer says things: an array to differentiate by (`leaf`), the gradient of f after its
    forward pass (`pull_back(f, x)()`), gradients of gradients (`second`), and so on."""
    it: Any = import_module(package)
    say = SimpleNamespace(edit=lambda x: x.data.__setitem__(0, 9.0))

    def recorded(f: Any, x: Any) -> Any:
        y = f(x)
        return lambda: y.backward() or x.grad

    def second(f: Any, x: Any) -> Any:
        (g,) = say.grad(f(x), [x], create_graph=True)
        return say.grad(g.sum(), [x])[0]

    if package in ("tinyprop", "torch", "mygrad"):
        say.leaf, say.pull_back, say.second = (
            lambda a: it.tensor(a, requires_grad=True),
            recorded,
            second,
        )
    else:
        say.leaf, say.edit = (
            import_module(f"{package}.numpy").array,
            lambda x: x.__setitem__(0, 9.0),
        )
        say.second = lambda f, x: it.grad(lambda x: it.grad(f)(x).sum())(x)
    if package == "tinyprop":
        say.grad, say.convolve = it.grad, it.functional.conv2d
        say.check = lambda: it.check_gradients(lambda x: x * x, it.tensor([1.0, 2.0]))
    elif package == "torch":
        say.grad, say.convolve = (
            it.autograd.grad,
            lambda x, w: it.nn.functional.conv2d(x, it.tensor(w)),
        )
        say.edit = it.no_grad()(lambda x: x.__setitem__(0, 9.0))
        say.check = lambda: it.autograd.gradcheck(
            it.square, it.ones(2, dtype=it.float64, requires_grad=True)
        )
    elif package == "mygrad":
        say.leaf = it.tensor
        say.convolve = lambda x, w: import_module("mygrad.nnet").conv_nd(x, w, stride=1)
    elif package == "jax":
        say.pull_back = lambda f, x: partial(it.vjp(f, x)[1], np.float32(1))
        say.convolve = lambda x, w: it.lax.conv(x, w, (1, 1), "VALID")
        say.check = lambda: import_module("jax.test_util").check_grads(
            it.numpy.square, (2.0,), order=1
        )
    elif package == "autograd":
        convolve: Any = import_module("autograd.scipy.signal").convolve
        say.pull_back = lambda f, x: partial(it.make_vjp(f)(x)[0], np.float32(1))
        say.convolve = lambda x, w: convolve(x[0, 0], w[0, 0], mode="valid")
        say.check = lambda: import_module("autograd.test_util").check_grads(it.numpy.square)(2.0)
    return say


def gradient_is(
    say: SimpleNamespace, f: Callable[[Any], Any], at: Any, expected: Any, edit: bool = False
) -> bool:
    x = say.leaf(at)
    pull_back = say.pull_back(lambda x: f(x).sum(), x)
    try:
        if edit:
            say.edit(x)
        found = pull_back()
    except (RuntimeError, ValueError, TypeError):
        # refused: PyTorch says "modified by an inplace operation", NumPy "read-only", JAX
        # "immutable"
        if edit:
            return True
        raise
    return np.allclose(found.numpy() if hasattr(found, "numpy") else found, expected)


def chain(x: Any) -> Any:
    for _ in range(CHAIN):
        x = x + 1.0
    return x


QUESTIONS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "gradients of arrays": lambda say: gradient_is(say, lambda x: x**3, IMAGE, 3 * IMAGE),
    "float32 stays float32": lambda say: "float32" in str((0.5 * say.leaf(TWO)).dtype),
    "gradients of gradients": lambda say: (
        float(say.second(lambda x: (x**3).sum(), say.leaf(TWO))[0]) == 12.0
    ),
    "convolution": lambda say: gradient_is(say, lambda x: say.convolve(x, FILTER), IMAGE, COVERED),
    f"a chain of {CHAIN:,} ops": lambda say: gradient_is(say, chain, TWO, 1.0),
    "refuses or survives an edit before backward": lambda say: gradient_is(
        say, lambda x: x * x, TWO, 4.0, edit=True
    ),
    "a gradient check": lambda say: say.check() in (None, True),
}


def answers(package: str) -> list[str]:
    """Yes or no to each question; no if the lines raise, for want of a function, or give a wrong
    answer."""
    say, found = words(package), []
    for question in QUESTIONS.values():
        try:
            found.append("yes" if question(say) else "no")
        except Exception:  # whatever a framework may raise
            found.append("no")
    return found


def installed() -> list[str]:
    return [package for package in TITLES if find_spec(package)]


def table() -> Table:
    """Of the peers that are installed."""
    known = versions(*installed())
    columns = [
        [f"{TITLES[package]} {known[package]}", *answers(package)] for package in installed()
    ]
    header, *rows = zip(["", *QUESTIONS], *columns, strict=True)
    return Table(header, rows, align="l" * len(header))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write", action="store_true", help=f"write benchmarks/{PAGE.name}; needs all peers"
    )


def run(options: argparse.Namespace) -> int:
    print(table().text(120))
    if options.write and set(installed()) != TITLES.keys():
        raise ValueError(f"{PAGE.name} needs all peers: pip install torch jax autograd mygrad")
    if options.write:
        head = (
            "# Features\n\nWritten by `python -m benchmarks features --write`, which asks each "
            "peer by running it."
        )
        write_whole(PAGE, f"{head}\n\n{table().markdown()}\n".encode())
        print(PAGE)
    return 0

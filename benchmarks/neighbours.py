"""What tinyprop and its neighbours can do, each asked by running it: the table of NEIGHBOURS.md and of the README.

    pip install micrograd mygrad autograd tinygrad torch==2.13.0    # and Chainer, see README.md
    python benchmarks/neighbours.py > benchmarks/NEIGHBOURS.md

Every question is a few lines of code in the neighbour's own words; "no" means that they fail, or that it has no words
for them. What cannot be asked on a machine without a GPU is not in the table.
"""

import importlib
import importlib.metadata
import io
import os
import tokenize
from pathlib import Path

import numpy as np

from tinyprop.bench.with_chainer import revive_chainer

CUBE = np.array([2.0], np.float32)  # the second derivative of x^3 here is 12
CHAIN = 10_000


class Neighbour:
    """How to say things in a library; here in its own words and PyTorch's, which several understand."""

    package = title = "torch"
    leaf = staticmethod(lambda a: None)

    def slope(self, a):
        """The gradient of the sum of x^3."""
        x = self.leaf(a)
        (x**3).sum().backward()
        return self.array(x.grad)

    def array(self, t):
        return np.asarray(t)

    def chain(self):
        x = self.leaf(CUBE)
        y = x
        for _ in range(CHAIN):
            y = y + 1.0
        y.sum().backward()
        return self.array(x.grad)

    def curvature(self):
        raise NotImplementedError

    def convolution(self):
        """The gradient of the sum of a convolution of ones (1, 1, 5, 5) with ones (1, 1, 3, 3), in the image."""
        raise NotImplementedError

    def edited(self):
        """The gradient of x^2 at 2 if x is set to 9 between forward and backward, or an error, which is better."""

    def checks_gradients(self):
        """Compare a right gradient with differences."""
        raise NotImplementedError


class PyTorch(Neighbour):
    package, title = "torch", "PyTorch"

    def __init__(self):
        self.it = importlib.import_module(self.package)

    def leaf(self, a):
        return self.it.tensor(a, requires_grad=True)

    def curvature(self):
        x = self.leaf(CUBE)
        (g,) = self.it.autograd.grad((x**3).sum(), [x], create_graph=True)
        return self.array(self.it.autograd.grad(g.sum(), [x])[0])

    def convolution(self):
        x = self.leaf(np.ones((1, 1, 5, 5), np.float32))
        self.it.nn.functional.conv2d(x, self.it.ones(1, 1, 3, 3)).sum().backward()
        return self.array(x.grad)

    def edited(self):
        x = self.leaf(CUBE)
        y = (x * x).sum()
        with self.it.no_grad():
            x[0] = 9.0
        y.backward()
        return self.array(x.grad)

    def checks_gradients(self):
        return self.it.autograd.gradcheck(lambda x: x**3, self.it.ones(2, dtype=self.it.float64, requires_grad=True))


class Tinyprop(PyTorch):
    package = title = "tinyprop"

    def array(self, t):
        return t.numpy()

    def curvature(self):
        x = self.leaf(CUBE)
        (g,) = self.it.grad((x**3).sum(), [x], create_graph=True)
        return self.array(self.it.grad(g.sum(), [x])[0])

    def convolution(self):
        x = self.leaf(np.ones((1, 1, 5, 5), np.float32))
        self.it.functional.conv2d(x, np.ones((1, 1, 3, 3), np.float32)).sum().backward()
        return self.array(x.grad)

    def edited(self):
        x = self.leaf(CUBE.copy())
        y = (x * x).sum()
        x.data[0] = 9.0
        y.backward()
        return self.array(x.grad)

    def checks_gradients(self):
        self.it.check_gradients(lambda x: x**3, self.it.tensor([1.0, 2.0]))
        return True


class Tinygrad(PyTorch):
    package = title = "tinygrad"

    def __init__(self):
        os.environ["DEV"] = "PYTHON"  # slow, but always there
        super().__init__()

    def leaf(self, a):
        return self.it.Tensor(a)

    def array(self, t):
        return t.numpy()

    def curvature(self):
        x = self.leaf(CUBE)
        (g,) = (x**3).sum().gradient(x)
        return self.array(g.sum().gradient(x)[0])

    def convolution(self):
        x = self.leaf(np.ones((1, 1, 5, 5), np.float32))
        x.conv2d(self.it.Tensor.ones(1, 1, 3, 3)).sum().backward()
        return self.array(x.grad)

    def edited(self):
        """It computes later: if the value follows the edit, so may the gradient."""
        x = self.leaf(CUBE.copy())
        y = (x * x).sum()
        x.assign(self.it.Tensor([9.0])).realize()
        y.backward()
        return None if y.item() == 81.0 else self.array(x.grad)

    def checks_gradients(self):
        raise NotImplementedError


class Micrograd(Neighbour):
    package = title = "micrograd"

    def __init__(self):
        self.it = importlib.import_module("micrograd.engine")

    def leaf(self, a):
        return self.it.Value(float(a[0]))

    def slope(self, a):
        x = self.leaf(a)
        (x**3).backward()
        return x.grad

    def chain(self):
        x = y = self.leaf(CUBE)
        for _ in range(CHAIN):
            y = y + 1.0
        y.backward()
        return x.grad

    def edited(self):
        x = self.leaf(CUBE)
        y = x * x
        x.data = 9.0
        y.backward()
        return x.grad


class MyGrad(Neighbour):
    package, title = "mygrad", "MyGrad"

    def __init__(self):
        self.it = importlib.import_module("mygrad")

    def leaf(self, a):
        return self.it.tensor(a)

    def convolution(self):
        conv_nd = importlib.import_module("mygrad.nnet").conv_nd
        x = self.leaf(np.ones((1, 1, 5, 5), np.float32))
        conv_nd(x, np.ones((1, 1, 3, 3), np.float32), stride=1).sum().backward()
        return x.grad

    def edited(self):
        array = CUBE.copy()
        x = self.it.tensor(array, copy=False)
        y = (x * x).sum()
        array[0] = 9.0
        y.backward()
        return x.grad


class Autograd(Neighbour):
    package, title = "autograd", "HIPS autograd"

    def __init__(self):
        self.it = importlib.import_module("autograd")

    def slope(self, a):
        return self.it.grad(lambda x: (x**3).sum())(a)

    def curvature(self):
        return self.it.elementwise_grad(self.it.elementwise_grad(lambda x: x**3))(CUBE)

    def chain(self):
        def f(x):
            for _ in range(CHAIN):
                x = x + 1.0
            return x.sum()

        return self.it.grad(f)(CUBE)

    def convolution(self):
        convolve = importlib.import_module("autograd.scipy.signal").convolve
        image, kernel = np.ones((5, 5), np.float32), np.ones((3, 3), np.float32)
        return self.it.grad(lambda x: convolve(x, kernel, mode="valid").sum())(image)[None, None]

    def edited(self):
        array = CUBE.copy()
        pull_back, _ = self.it.make_vjp(lambda x: x * x)(array)
        array[0] = 9.0
        return pull_back(np.ones(1, np.float32))

    def checks_gradients(self):
        importlib.import_module("autograd.test_util").check_grads(lambda x: x**3, modes=["rev"])(2.0)
        return True


class Chainer(Neighbour):
    package, title = "chainer", "Chainer"

    def __init__(self):
        revive_chainer()
        self.it = importlib.import_module("chainer")
        self.functions = importlib.import_module("chainer.functions")

    def leaf(self, a):
        return self.it.Variable(a)

    def array(self, t):
        return t

    def slope(self, a):
        x = self.leaf(a)
        self.functions.sum(x**3).backward()
        return x.grad

    def chain(self):
        x = y = self.leaf(CUBE)
        for _ in range(CHAIN):
            y = y + 1.0
        self.functions.sum(y).backward()
        return x.grad

    def curvature(self):
        x = self.leaf(CUBE)
        (g,) = self.it.grad([self.functions.sum(x**3)], [x], enable_double_backprop=True)
        return self.it.grad([self.functions.sum(g)], [x])[0].array

    def convolution(self):
        x = self.leaf(np.ones((1, 1, 5, 5), np.float32))
        y = self.functions.convolution_2d(x, np.ones((1, 1, 3, 3), np.float32))
        self.functions.sum(y).backward()
        return x.grad

    def edited(self):
        x = self.leaf(CUBE.copy())
        y = self.functions.sum(x * x)
        x.array[0] = 9.0
        y.backward()
        return x.grad

    def checks_gradients(self):
        check = importlib.import_module("chainer.gradient_check").check_backward
        check(lambda x: x**3, np.ones(2, np.float64), np.ones(2, np.float64), dtype=np.float64)
        return True


def succeeds(question, right):
    try:
        return right(question())
    except Exception:  # it has no words for it, or they fail
        return False


def guards(neighbour):
    """An edit that would make the gradient wrong (18 instead of 4) is refused, or does no harm."""
    try:
        gradient = neighbour.edited()
    except (RuntimeError, ValueError):  # PyTorch says "modified by an inplace operation", NumPy "read-only"
        return True
    return "lazy" if gradient is None else bool(np.allclose(gradient, 4.0))


def lines(package):
    """Lines of Python that hold code: no blanks, comments, docstrings or tests."""
    folder, total = Path(importlib.util.find_spec(package).origin).parent, 0
    for path in folder.rglob("*.py"):
        if {"test", "tests", "testing"} & set(path.relative_to(folder).parts) or path.name.startswith("test_"):
            continue
        seen, fresh = set(), True  # fresh: a string here would stand alone, as a docstring does
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                fresh = fresh or token.type in (tokenize.NEWLINE, tokenize.INDENT)
                continue
            if not (token.type == tokenize.STRING and fresh) and token.string:
                seen.update(range(token.start[0], token.end[0] + 1))
            fresh = False
        total += len(seen)
    return total


def answers(neighbour):
    ones = np.full((1, 1, 5, 5), 1.0)
    expected = np.outer(*[np.array([1.0, 2.0, 3.0, 2.0, 1.0])] * 2) * ones
    return [
        succeeds(lambda: neighbour.slope(np.array([1.0, 2.0], np.float32)), lambda g: np.allclose(g, [3.0, 12.0])),
        succeeds(lambda: neighbour.slope(CUBE), lambda g: np.asarray(g).dtype == np.float32),
        succeeds(neighbour.curvature, lambda g: np.allclose(g, 12.0)),
        succeeds(neighbour.convolution, lambda g: np.allclose(g, expected)),
        succeeds(neighbour.chain, lambda g: np.allclose(g, 1.0)),
        guards(neighbour),
        succeeds(neighbour.checks_gradients, bool),
    ]


NEIGHBOURS = [Tinyprop, Micrograd, MyGrad, Autograd, Chainer, Tinygrad, PyTorch]
QUESTIONS = [
    "gradients of arrays",
    "float32 stays float32",
    "gradients of gradients",
    "convolution",
    f"a chain of {CHAIN:,} ops",
    "an edit of x before backward does no harm",
    "has a gradient check",
]


def main():
    columns = []
    for kind in NEIGHBOURS:
        version = importlib.metadata.version(kind.package)
        columns.append([f"{kind.title} {version}", f"{lines(kind.package):,}", *answers(kind())])
    names = ["", "lines of Python", *QUESTIONS]
    print("# Neighbours\n\nWritten by `benchmarks/neighbours.py`, which asks each of them by running it.\n")
    for i, name in enumerate(names):
        cells = [c[i] if isinstance(c[i], str) else "yes" if c[i] else "no" for c in columns]
        print(f"| {name} | {' | '.join(cells)} |")
        if i == 0:
            print(f"| --- {'| :---: ' * len(cells)}|")


if __name__ == "__main__":
    main()

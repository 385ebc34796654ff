"""Solutions of lesson 1: an autograd engine in 60 lines."""

import numpy as np

import tinyprop as tp

# Exercise 1. The rules of a quotient: g / b for the numerator, -g a / b^2 for the denominator.


class Var:
    def __init__(self, value, *inputs):
        self.value, self.inputs = np.asarray(value, float), inputs
        self.grad = np.zeros_like(self.value)

    def __add__(self, other):
        return Var(self.value + other.value, (self, lambda g: g), (other, lambda g: g))

    def __truediv__(self, other):
        a, b = self.value, other.value
        return Var(a / b, (self, lambda g: g / b), (other, lambda g: -g * a / b**2))

    def exp(self):
        out = np.exp(self.value)
        return Var(out, (self, lambda g: g * out))

    def backward(self):
        self.grad = np.ones_like(self.value)
        for var in reversed(inputs_first(self)):
            for source, pull_back in var.inputs:
                source.grad = source.grad + pull_back(var.grad)


# Exercise 2. A node is put back on the stack before its inputs; when it comes up again, they are done.


def inputs_first(root):
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        var, inputs_done = stack.pop()
        if inputs_done:
            order.append(var)
        elif var not in seen:
            seen.add(var)
            stack.append((var, True))
            stack += [(source, False) for source, _ in var.inputs]
    return order


x = Var(np.linspace(-2, 2, 9))
(x.exp() / (Var(1.0) + x.exp())).backward()


def logistic(u):
    return np.exp(u) / (1 + np.exp(u))


differences = (logistic(x.value + 1e-5) - logistic(x.value - 1e-5)) / 2e-5
assert np.allclose(x.grad, differences, atol=1e-9)

first = last = Var(1.0)
for _ in range(10_000):
    last = last + Var(1.0)
last.backward()
assert (last.value, first.grad) == (10_001, 1)


# Exercise 3. backward names what it needs of forward, here x, and computes with tensors.


class Softsign(tp.Op):
    def forward(self, x):
        return x / (1 + abs(x))

    def backward(self, g, x):
        return g / (1 + abs(x)) ** 2


tp.check_gradients(lambda x: Softsign()(x), tp.tensor([-1.5, -0.2, 0.3, 2.0]))

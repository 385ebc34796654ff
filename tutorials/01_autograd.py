# %% [markdown]
# # 1. An autograd engine in 60 lines
#
# **Goal.** Write a program that differentiates other programs, train a network with it, and recognise every part of it
# in tinyprop.
#
# A program that computes a number is a chain of simple steps, and each step has a derivative you know from school. The
# chain rule multiplies them. Two decisions make this fast: every step *remembers its inputs*, and the derivatives are
# multiplied *from the result backwards*, so that one pass serves a million inputs at once.

# %%
import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, RED, panels, show

# %% [markdown]
# ## The engine
#
# A `Var` is a value and its inputs. With each input comes a function, its *pull-back*: it takes the gradient of the
# final result in this value, and returns that in the input. For a product, for instance, it is "times the other
# factor".


# %%
class Var:
    def __init__(self, value, *inputs):
        self.value = np.asarray(value, float)
        self.inputs = inputs  # pairs: a Var, and the function that pulls a gradient back to it
        self.grad = np.zeros_like(self.value)

    def __add__(self, other):
        return Var(self.value + other.value, (self, lambda g: g), (other, lambda g: g))

    def __sub__(self, other):
        return Var(self.value - other.value, (self, lambda g: g), (other, lambda g: -g))

    def __mul__(self, other):
        return Var(self.value * other.value, (self, lambda g: g * other.value), (other, lambda g: g * self.value))

    def __matmul__(self, other):
        pull_left, pull_right = lambda g: g @ other.value.T, lambda g: self.value.T @ g
        return Var(self.value @ other.value, (self, pull_left), (other, pull_right))

    def tanh(self):
        out = np.tanh(self.value)
        return Var(out, (self, lambda g: g * (1 - out * out)))

    def sum(self):
        return Var(self.value.sum(), (self, lambda g: g * np.ones_like(self.value)))

    def backward(self):
        self.grad = np.ones_like(self.value)
        for var in reversed(inputs_first(self)):
            for source, pull_back in var.inputs:
                source.grad = source.grad + pull_back(var.grad)


def inputs_first(var, order=None):
    """Everything that led to a Var: what is computed first comes first, and each comes once."""
    order = [] if order is None else order
    if var not in order:
        for source, _ in var.inputs:
            inputs_first(source, order)
        order.append(var)
    return order


# %% [markdown]
# That is all of it. Does it work? The derivative of $\tanh^2 x$ is $2 \tanh x\,(1 - \tanh^2 x)$. Since each point of
# `x` only affects its own term of the sum, one `backward` gives the whole curve.

# %%
x = Var(np.linspace(-3, 3, 121))
t = x.tanh()
(t * t).sum().backward()

figure, (axes,) = panels(1, 6.5, 2.9)
axes.plot(x.value, t.value**2, color=BLUE, label=r"$\tanh^2 x$")
axes.plot(x.value, x.grad, color=RED, label="its slope, by our engine")
h = 1e-5
differences = (np.tanh(x.value + h) ** 2 - np.tanh(x.value - h) ** 2) / (2 * h)
axes.plot(x.value[::6], differences[::6], "o", color=BLACK, markersize=3.5, label="by central differences")
axes.set(title="One backward pass, 121 derivatives", xlabel="x")
axes.legend()
show(figure)
print(f"largest difference: {abs(x.grad - differences).max():.0e}")

# %% [markdown]
# ## The trap: a value that is used twice
#
# Predict: with $b = 2x$ and $c = b + b$, what is $dc/dx$? In the graph `b` is *one* node with *two* edges to `c`.
# `backward` must add up both contributions, and it must not go on from `b` before both have arrived. That is what
# `source.grad + ...` and `inputs_first` are for. Engines that forget one of them give 2, or 6.

# %%
x = Var(3.0)
b = Var(2.0) * x
c = b + b
c.backward()
print("dc/dx =", x.grad)

# %% [markdown]
# ## Train a network with it
#
# A network of one hidden layer learns a wave. Constants enter as a column of ones, so no step needs broadcasting.

# %%
STEPS, RATE, HIDDEN = 400, 0.1, 12
random = np.random.default_rng(0)
points = np.linspace(-1, 1, 40)[:, None]
inputs = np.hstack([points, np.ones_like(points)])  # (40, 2)
target = np.sin(4 * points)
start = [2.0 * random.standard_normal((2, HIDDEN)), random.standard_normal((HIDDEN, 1)) / HIDDEN**0.5]

weights = [w.copy() for w in start]
losses = []
for _ in range(STEPS):
    w1, w2 = Var(weights[0]), Var(weights[1])
    output = (Var(inputs) @ w1).tanh() @ w2
    error = output - Var(target)
    loss = (error * error).sum() * Var(1 / len(points))
    loss.backward()
    losses.append(float(loss.value))
    weights = [w - RATE * v.grad for w, v in zip(weights, (w1, w2), strict=True)]

figure, (left, right) = panels(2, 8.0, 2.9)
left.plot(points, target, color=GRAY, linewidth=5, alpha=0.35, label="target")
left.plot(points, output.value, color=BLUE, label="network")
left.set(title="What it learnt", xlabel="x", ylim=(-1.1, 1.9))
left.legend(loc="upper right")
right.semilogy(losses, color=BLUE)
right.set(title="Mean square error", xlabel="step")
show(figure)
print(f"mean square error: {losses[0]:.2f} at first, {losses[-1]:.4f} after {STEPS} steps")

# %% [markdown]
# ## The same thing in tinyprop
#
# A `tp.Tensor` is our `Var`, and `tp.Op` holds a step's forward and its pull-back side by side. Same weights,
# same gradients:

# %%
w1, w2 = (tp.tensor(w, requires_grad=True) for w in start)
error = tp.functional.tanh(tp.tensor(inputs) @ w1) @ w2 - target
(error * error).mean().backward()

v1, v2 = Var(start[0]), Var(start[1])
ours = (Var(inputs) @ v1).tanh() @ v2 - Var(target)
((ours * ours).sum() * Var(1 / len(points))).backward()
for name, theirs, mine in (("w1", w1, v1), ("w2", w2, v2)):
    print(f"{name}: gradients agree to 1e-12: {np.allclose(theirs.grad.numpy(), mine.grad, rtol=0, atol=1e-12)}")

# %% [markdown]
# What does it have that ours has not? Broadcasting, float32 and GPUs, convolutions, an `inputs_first` without
# recursion, and one idea: its pull-backs compute with *tensors*. So a gradient is a tensor with a history of its own,
# and has a gradient, too. `tp.check_gradients` compares both with central differences.

# %%
x = tp.tensor(0.5, requires_grad=True)
y = tp.functional.tanh(x) ** 2
(slope,) = tp.grad(y, [x], create_graph=True)
(curvature,) = tp.grad(slope, [x])
print(f"value {y.item():.4f}, slope {slope.item():.4f}, curvature {curvature.item():.4f}")
tp.check_gradients(lambda x: tp.functional.tanh(x) ** 2, x)

# %% [markdown]
# ## Exercises
#
# 1. Give `Var` a division and an `exp`, and check $e^x / (1 + e^x)$ against central differences.
# 2. `inputs_first` calls itself, and looks things up in a list. Build a chain of 10,000 additions and see it fail.
#    Write it with a stack and a set.
# 3. In tinyprop a new op is a subclass of `tp.Op`. Write the softsign, $x / (1 + |x|)$, whose slope is
#    $1 / (1 + |x|)^2$, so that `tp.check_gradients` is content, to second order.
#
# Solutions: [solutions/01_autograd.py](solutions/01_autograd.py).
#
# ## Read next
#
# - [`tinyprop/engine/graph.py`](../tinyprop/engine/graph.py): `Op`; and
#   [`tinyprop/engine/backward.py`](../tinyprop/engine/backward.py): `inputs_first` and `pull_back`, grown up.
# - [`tinyprop/functional/arithmetic.py`](../tinyprop/functional/arithmetic.py): the rules, one class each.
# - Baydin, Pearlmutter, Radul and Siskind, *Automatic differentiation in machine learning: a survey*, JMLR 2018.
#
# Next: [2. Convolution and pooling as array programs](02_convolution.ipynb).

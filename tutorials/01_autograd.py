# %% [markdown]
# # 1. Derivatives by hand, then by a program
#
# **Goal.** Differentiate one small expression with pencil and paper, then write a program that does
# the same for any expression, and recognise its parts in tinyprop.
#
# The expression is the squared error of the smallest possible model, a line. The model gets an
# input $x$ and computes $u = wx + b$, where $w$ (the weight) and $b$ (the bias) are the numbers to
# be learnt. The right answer would be $y$, so the error is $e = u - y$, and the loss is $L = e^2$.
# Learning means changing $w$ and $b$ so that $L$ falls, and for that we need to know $dL/dw$ and
# $dL/db$: how fast $L$ changes when $w$ or $b$ changes.
#
# This is where we are going. Each box is a number: its value, and the derivative of $L$ with
# respect to it.

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, RED, check, hint, keep, panels, predict, reveal, show

# %%
w, x, b, y = (tp.tensor(v, requires_grad=True) for v in (-1.5, 2.0, 0.5, 1.0))
m = w * x
u = m + b
e = u - y
L = e * e
show(
    tp.draw(L, w=w, x=x, b=b, y=y, m=m, u=u, e=e, L=L),
    "A graph of nine boxes from w, x, b and y over m = w x, u = m + b and e = u - y to L = e e. Each has "
    "its value and the derivative of L: w -1.5 and -14, x 2 and 10.5, b 0.5 and -7, y 1 and 7, m -3 and "
    "-7, u -2.5 and -7, e -3.5 and -7, L 12.25 and 1.",
)

# %% [markdown]
# ## By hand
#
# Forwards, with $w = -1.5$, $x = 2$, $b = 0.5$, $y = 1$:
# $$ m = wx = -3, \qquad u = m + b = -2.5, \qquad e = u - y = -3.5, \qquad L = e^2 = 12.25. $$
# Backwards, start at the end. $dL/dL = 1$: if $L$ grows by a little, $L$ grows by as much. Then
# take one step at a time, and multiply by the derivative of that step. This is the *chain rule*.
#
# | step | its derivative | so |
# |---|---|---|
# | $L = e^2$ | $dL/de = 2e = -7$ | $dL/de = -7$ |
# | $e = u - y$ | $de/du = 1$, $de/dy = -1$ | $dL/du = -7$, $dL/dy = 7$ |
# | $u = m + b$ | $du/dm = 1$, $du/db = 1$ | $dL/dm = -7$, $dL/db = -7$ |
# | $m = wx$ | $dm/dw = x = 2$, $dm/dx = w = -1.5$ | $dL/dw = -14$, $dL/dx = 10.5$ |
#
# Compare with the figure. Three rules were enough: a sum passes the derivative on, a difference
# flips its sign for the second term, and a product multiplies it by *the other factor*.
#
# Is it true? There is a test that needs no calculus: move $w$ a little to both sides and see how
# $L$ changes. This is called a *central difference*, and every derivative in this project is
# tested against it.


# %%
def loss(w, x=2.0, b=0.5, y=1.0):
    return (w * x + b - y) ** 2


h = 1e-5
print(
    "dL/dw by hand: -14; by a central difference: "
    f"{(loss(-1.5 + h) - loss(-1.5 - h)) / (2 * h):.6f}"
)

# %% [markdown]
# ## A program that remembers
#
# To go backwards, a program has to remember its way forwards. So we make our own kind of
# number, `Value`. It holds its value, the values that it was computed from (its inputs), and for
# each input the derivative of this one step, which we call the *local slope*. Python calls
# `__add__` for `+`, `__sub__` for `-` and `__mul__` for `*`.


# %%
class Value:
    def __init__(self, value, inputs=(), slopes=()):
        self.value, self.inputs, self.slopes = value, inputs, slopes
        self.grad = 0.0  # the derivative of the result with respect to this, once it is known

    def __add__(self, other):
        return Value(self.value + other.value, (self, other), (1.0, 1.0))

    def __sub__(self, other):
        return Value(self.value - other.value, (self, other), (1.0, -1.0))

    def __mul__(self, other):
        # the other factor
        return Value(self.value * other.value, (self, other), (other.value, self.value))


def line(w, x, b, y):
    e = w * x + b - y
    return e * e


start = [Value(v) for v in (-1.5, 2.0, 0.5, 1.0)]
result = line(*start)
print(
    "value",
    result.value,
    "made of",
    [i.value for i in result.inputs],
    "with local slopes",
    result.slopes,
)

# %% [markdown]
# Look at the local slopes. For $e \cdot e$ the program has recorded two inputs that happen to be
# the same `Value`, with a slope of $-3.5$ each. It does not know the rule for a square, and does
# not need to: $L$ depends on $e$ in two ways, and the contributions of both ways are *added*. That
# is the other half of the chain rule.
#
# ## Backwards
#
# The derivative of the result with respect to a value is called the *gradient* of that value. Now go
# from the result to the inputs, and hand on `grad * slope` at every step. Two things must be right:
# contributions are added, and a value hands on its gradient only after *all* contributions to it have
# arrived. The second is a matter of order: we list the values so that inputs come before what is
# computed from them (a *topological order*), and walk through that list from its end.


# %%
def inputs_first(value, order=None):
    """Everything that led to a value: inputs before what they are used for, and each once."""
    order = [] if order is None else order
    if value not in order:
        for source in value.inputs:
            inputs_first(source, order)
        order.append(value)
    return order


def backward(result):
    result.grad = 1.0
    for value in reversed(inputs_first(result)):
        for source, slope in zip(value.inputs, value.slopes, strict=True):
            source.grad += value.grad * slope


backward(result)
for name, value in zip("wxby", start, strict=True):
    print(f"dL/d{name} = {value.grad:g}")

# %% [markdown]
# That is *backpropagation*, also called the reverse mode of automatic differentiation. The same two
# functions differentiate any program built from `Value`s, and one walk gives the derivative with
# respect to every input, be it four or a billion.
#
# What if `+=` were only `=`? Then only the last of two contributions would count.

# %%
QUESTION = "dL/de with = in place of +="
predict(QUESTION)  # put your number in: predict(QUESTION, 3.0)


# %%
def careless_backward(result):
    result.grad = 1.0
    for value in reversed(inputs_first(result)):
        for source, slope in zip(value.inputs, value.slopes, strict=True):
            source.grad = value.grad * slope


wrong = line(*(Value(v) for v in (-1.5, 2.0, 0.5, 1.0)))
careless_backward(wrong)
reveal(QUESTION, wrong.inputs[0].grad)
print("dL/de is", result.inputs[0].grad)

# %% [markdown]
# ## One more rule, and a curve
#
# A network also needs a nonlinear function. We take $\tanh$, whose derivative is
# $1 - \tanh^2$. Any function will do as long as we know its slope. Here is the derivative of
# $\tanh^2 x$ by our program, at 61 places.


# %%
def tanh(v):
    t = math.tanh(v.value)
    return Value(t, (v,), (1 - t * t,))


places = np.linspace(-3, 3, 61)
values, slopes = [], []
for place in places:
    v = Value(float(place))
    t = tanh(v)
    square = t * t
    backward(square)
    values.append(square.value)
    slopes.append(v.grad)
differences = (np.tanh(places + h) ** 2 - np.tanh(places - h) ** 2) / (2 * h)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.9)
axes.plot(places, values, color=BLUE)
axes.plot(places, slopes, color=RED)
axes.plot(places[::3], differences[::3], "o", color=BLACK, markersize=3.5)
axes.text(-1.1, 0.75, r"$\tanh^2 x$", color=BLUE)
axes.text(0.15, -0.45, "its slope, by our program", color=RED)
axes.text(0.15, -0.65, "dots: by central differences", color=BLACK)
axes.set(title="A slope from local slopes", xlabel="x")
show(
    figure,
    f"tanh(x) squared for x from -3 to 3, a valley that reaches 0 at 0, and its slope, which runs from "
    f"{min(slopes):.2f} to {max(slopes):.2f}. Dots by central differences lie on the slope.",
)

# %%
print(f"they agree to 1e-9: {abs(np.array(slopes) - differences).max() < 1e-9}")

# %% [markdown]
# ## Learn the line
#
# Now use it. Here are 20 points near the line $y = 0.8x - 0.3$. In each step, compute the loss of
# all points, its gradient, and move $w$ and $b$ a little *against* the gradient: downhill. This is
# gradient descent.

# %%
random = np.random.default_rng(0)
xs = random.uniform(-2, 2, 20)
ys = 0.8 * xs - 0.3 + 0.2 * random.standard_normal(20)
w, b, RATE = -1.5, 0.5, 0.1
lines, losses = [(w, b)], []
for _ in range(30):
    weight, bias, total = Value(w), Value(b), Value(0.0)
    for px, py in zip(xs, ys, strict=True):
        total = total + line(weight, Value(px), bias, Value(py))
    mean = total * Value(1 / len(xs))
    backward(mean)
    losses.append(mean.value)
    w, b = w - RATE * weight.grad, b - RATE * bias.grad
    lines.append((w, b))

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 8.0, 2.9)
left.plot(xs, ys, "o", color=BLACK, markersize=4)
ends = np.array([-2.0, 2.0])
for step, alpha in ((0, 0.25), (3, 0.4), (30, 1.0)):
    left.plot(ends, lines[step][0] * ends + lines[step][1], color=BLUE, alpha=alpha)
    left.text(
        2.05,
        2 * lines[step][0] + lines[step][1],
        f"step {step}",
        color=BLUE,
        va="center",
        fontsize=9,
    )
left.set(title="The line after some steps", xlabel="x", xlim=(-2.1, 2.9))
right.semilogy(losses, color=BLUE)
right.set(title="Mean square error", xlabel="step")
show(
    figure,
    f"Left: {len(xs)} points and the line after 0, 3 and 30 steps; it starts with the slope "
    f"{lines[0][0]:.1f} and ends with {lines[-1][0]:.2f}, through the points. Right: the mean square "
    f"error falls from {losses[0]:.2f} to {losses[-1]:.3f}.",
)

# %%
print(
    f"w = {w:.2f}, b = {b:.2f}; mean square error {losses[0]:.2f} at first, {losses[-1]:.3f} "
    "in "
    "the end"
)

# %% [markdown]
# ## The same in tinyprop
#
# A `tp.Tensor` is our `Value`, for whole arrays instead of single numbers (lesson 2). A step of the
# graph is a `tp.Op`, which has a `forward` and a `backward` side by side. Its backward computes
# with *tensors*, so a gradient has a graph of its own and can be differentiated again:

# %%
x = tp.tensor(0.5, requires_grad=True)
y = tp.functional.tanh(x) ** 2
(slope,) = tp.grad(y, [x], create_graph=True)
(curvature,) = tp.grad(slope, [x])
print(f"value {y.item():.4f}, slope {slope.item():.4f}, curvature {curvature.item():.4f}")
# against central differences, slope and curvature
tp.check_gradients(lambda x: tp.functional.tanh(x) ** 2, x)

# %% [markdown]
# ## Exercises
#
# Fill in the holes, run the cell, and read the answer. `hint("1.1")` gives a first hint, and a
# clearer one each time you call it.
#
# **1.1** Write down the derivative of $x \tanh x$ with respect to $x$, as a function of the number
# $x$.


# %%
def slope_of_x_tanh_x(x): ...  # your code: math.tanh is there


check("1.1", slope_of_x_tanh_x)
# hint("1.1")

# %% [markdown]
# **1.2** Division. For the numbers $a$ and $b$, return the value $a / b$, and its two local slopes,
# with respect to $a$ and with respect to $b$.


# %%
def divide(a, b):
    return a / b, ..., ...


check("1.2", divide)

# %% [markdown]
# **1.3** `inputs_first` calls itself, and searches a list every time. A chain of 10,000 additions
# is too deep for Python. Write it with a loop: keep your own stack, and a set of the values that
# you have seen. The check gives you objects that have `.inputs`, as `Value` does.


# %%
def inputs_first_by_a_loop(value): ...  # your code: return a list


check("1.3", inputs_first_by_a_loop)

# %% [markdown]
# **1.4** In tinyprop, a new step is a subclass of `tp.Op`. `backward` gets the gradient `g` of the
# result, and names what else it needs of `forward`. Write the softsign, $x / (1 + |x|)$, whose
# slope is $1 / (1 + |x|)^2$.


# %%
class Softsign(tp.Op):
    def forward(self, x):
        return x / (1 + abs(x))

    def backward(self, g, x):
        return g  # your code


check("1.4", Softsign)

# %% [markdown]
# **1.5 Project, part 1: your own engine.** In lesson 2 you can train a network with an engine of your
# own, and in lesson 6 build the paper's layer on it. Here you write it. `Array` is `Value` for NumPy
# arrays: it computes element by element, with arrays of the same shape. The rule of a matrix product
# (lesson 2) has no local slope that one could multiply by, so a step remembers a function instead:
# `pull` takes the gradient of the result, and returns the gradients of the inputs.
#
# `result.backward()` starts with a gradient of ones, and leaves the gradient of every `Array` that
# led to the result in its `.grad`. A second call begins again: it gives the same gradients. It must
# work for 5,000 steps in a row (1.3).


# %%
class Array:
    def __init__(self, value, inputs=(), pull=None):
        self.value = np.array(value, dtype=float)
        self.inputs, self.pull = inputs, pull
        self.grad = np.zeros_like(self.value)

    def __add__(self, other):
        # type(self) and not Array: lesson 2 makes a subclass
        return type(self)(self.value + other.value, (self, other), lambda g: (g, g))

    def __sub__(self, other): ...  # your code

    def __mul__(self, other): ...  # your code

    def tanh(self): ...  # your code

    def backward(self): ...  # your code


check("1.5", Array)
# keep(1, Array)  # once it is right: lesson 2 takes your class from the file that this writes

# %% [markdown]
# Solutions, with derivations: [solutions/01_autograd.ipynb](solutions/01_autograd.ipynb).
#
# ## Read next
#
# - [`tinyprop/engine/graph.py`](../tinyprop/engine/graph.py): `Op`; and
#   [`tinyprop/engine/backward.py`](../tinyprop/engine/backward.py): `inputs_first` and `pull_back`,
#   grown up.
# - Baydin, Pearlmutter, Radul and Siskind, *Automatic differentiation in machine learning: a
#   survey*, JMLR 2018.
#
# Next: [2. Arrays, and a network that learns](02_network.ipynb).

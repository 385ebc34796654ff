# %% [markdown]
# # Solutions of lesson 1: derivatives by hand, then by a program

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check

# %% [markdown]
# **1.1** $x \tanh x$ is a product, and each factor depends on $x$. The two contributions are added:
# $$ \frac{d}{dx}\, x \tanh x = \underbrace{1 \cdot \tanh x}_{\text{through the first factor}} +
# \underbrace{x \cdot (1 - \tanh^2 x)}_{\text{through the second}}. $$
# It is what `backward` does: two edges lead from `x` to the product, one of them by way of `tanh`.


# %%
def slope_of_x_tanh_x(x):
    t = math.tanh(x)
    return t + x * (1 - t * t)


check("1.1", slope_of_x_tanh_x)

# %% [markdown]
# **1.2** For a fixed $b$, $a / b$ is a line in $a$ of slope $1/b$. For a fixed $a$, write $a / b =
# a\, b^{-1}$; the power rule gives $-a\, b^{-2}$. It is negative for positive $a$: to divide by
# more leaves less.


# %%
def divide(a, b):
    return a / b, 1 / b, -a / b**2


check("1.2", divide)

# %% [markdown]
# **1.3** The recursive function does two things with a value: first it visits the inputs, then it
# lists the value. In between, Python's own stack remembers where it was. With a stack of our own,
# we push the value again, marked as "inputs done", *below* its inputs. When it comes up for the
# second time, everything it depends on has been listed.
#
# The set replaces the search through the list, which takes time proportional to its length at every
# step: for $n$ values the loop takes $n$ steps, the search would take $n^2$.


# %%
def inputs_first_by_a_loop(value):
    order, seen, stack = [], set(), [(value, False)]
    while stack:
        value, inputs_done = stack.pop()
        if inputs_done:
            order.append(value)
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack += [(source, False) for source in value.inputs]
    return order


check("1.3", inputs_first_by_a_loop)

# %% [markdown]
# **1.4** For $x > 0$ the softsign is $x/(1 + x)$, with the slope $\frac{(1 + x) - x}{(1 + x)^2}$;
# for $x < 0$ it is $x/(1 - x)$, with the slope $\frac{(1 - x) + x}{(1 - x)^2}$. Both are $1/(1 +
# |x|)^2$. Backward multiplies the gradient that arrives by it. Since `abs`, `**` and `/` act on
# tensors, the slope has a graph, and so a slope of its own.


# %%
class Softsign(tp.Op):
    def forward(self, x):
        return x / (1 + abs(x))

    def backward(self, g, x):
        return g / (1 + abs(x)) ** 2


check("1.4", Softsign)

# %% [markdown]
# **1.5** A step needs two lines: its value, and the gradients of its inputs as a function of its own
# gradient. `backward` is that of the lesson, with the loop of 1.3. It begins with zeros everywhere,
# so a second call gives the same gradients; and it writes `source.grad + g` instead of `+=`, which
# would change an array that two values may share (a sum hands the same $g$ to both of its inputs).


# %%
class Array:
    def __init__(self, value, inputs=(), pull=None):
        self.value = np.array(value, dtype=float)
        self.inputs, self.pull = inputs, pull
        self.grad = np.zeros_like(self.value)

    def __add__(self, other):
        return type(self)(self.value + other.value, (self, other), lambda g: (g, g))

    def __sub__(self, other):
        return type(self)(self.value - other.value, (self, other), lambda g: (g, -g))

    def __mul__(self, other):
        return type(self)(
            self.value * other.value,
            (self, other),
            lambda g: (g * other.value, g * self.value),
        )

    def tanh(self):
        t = np.tanh(self.value)
        return type(self)(t, (self,), lambda g: (g * (1 - t * t),))

    def backward(self):
        order = inputs_first_by_a_loop(self)
        for array in order:
            array.grad = np.zeros_like(array.value)
        self.grad = np.ones_like(self.value)
        for array in reversed(order):
            if array.inputs:
                gradients = array.pull(array.grad)
                for source, g in zip(array.inputs, gradients, strict=True):
                    source.grad = source.grad + g


check("1.5", Array)

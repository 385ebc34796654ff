# %% [markdown]
# # Solutions of lesson 1: derivatives by hand, then by a program

# %%
import math
import sys

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

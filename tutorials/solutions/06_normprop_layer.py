# %% [markdown]
# # Solutions of lesson 6: NormProp from equation to layer

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
import tinyprop as tp
from lesson import check, engine

C1, C2 = math.sqrt((1 - 1 / math.pi) / 2), 1 / math.sqrt(2 * math.pi)

# %% [markdown]
# **6.1** `x @ weight.T` has a column for each unit; the lengths, one for each row of the weights,
# broadcast over it.


# %%
def normprop(x, weight, gamma, beta):
    length = np.linalg.norm(weight, axis=1)  # (units,)
    u = gamma * (x @ weight.T) / length + beta
    return (np.maximum(u, 0) - C2) / C1


check("6.1", normprop)

# %% [markdown]
# **6.2** $\max(0, v) - t = \max(v - t, -t)$ for every $v$ and $t$. Take $v = (u + \beta)/c_1$ and
# $t = c_2/c_1$:
# $$ \frac{\max(0, u + \beta) - c_2}{c_1} = \max(v, 0) - t = \max\Big( \underbrace{\frac{u}{c_1}}_{z} +
# \underbrace{\frac{\beta - c_2}{c_1}}_{b},\; -t \Big). $$ The division by $c_1$ in $z$ costs
# nothing, if $\gamma/(c_1 |w|)$ is multiplied into the weights, once per step.


# %%
def folded(beta):
    return (beta - C2) / C1, C2 / C1


check("6.2", folded)

# %% [markdown]
# **6.3** The function does not change along $w$, so $w \cdot g = 0$, and $|w - \eta g|^2 = |w|^2 -
# 2\eta\, w \cdot g + \eta^2 |g|^2 = |w|^2 + \eta^2 |g|^2$: the length never falls. Here it is with
# a real layer, whose unit rows get longer in each of 100 steps unless they are put back.


# %%
def length_after(length, gradient_length, rate):
    return math.sqrt(length**2 + (rate * gradient_length) ** 2)


check("6.3", length_after)


def lengths(put_back):
    tp.manual_seed(0)
    layer = tp.nn.NormPropLinear(10, 5)
    tp.optim.normalize_weights(layer)
    optimizer = tp.optim.SGD(layer.parameters(), lr=1.0, momentum=0.0)
    x, found = tp.tensor(np.random.default_rng(1).standard_normal((50, 10), np.float32)), []
    for _ in range(100):
        (layer(x) ** 3).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if put_back:
            tp.optim.normalize_weights(layer)
        found.append(np.linalg.norm(layer.weight.data, axis=1))
    return np.array(found)


free = lengths(put_back=False)
print(
    f"never shorter: {(np.diff(free, axis=0) > -1e-6).all()}; the longest row is "
    f"{free[-1].max():.1f} in the end"
)
print(f"put back to 1 in each step: {np.allclose(lengths(put_back=True), 1, atol=1e-5)}")

# %% [markdown]
# **6.4** $3(k + 2)/(n + 2) < \epsilon$ means $n > 3(k + 2)/\epsilon - 2$. The smallest such whole number
# is $\lfloor 3(k + 2)/\epsilon - 2 \rfloor + 1$.


# %%
def width_for(epsilon):
    return math.floor(3 * (2.4076 + 2) / epsilon - 2) + 1


check("6.4", width_for)

# %% [markdown]
# **6.5** Here the layer is one step. Forwards, with the directions $e_i = w_i/|w_i|$ of the rows: $s =
# x e^T$, $u = \gamma s + \beta$, and $o = (\mathrm{relu}(u) - c_2)/c_1$. Backwards, let $G$ be the
# gradient with respect to $u$: that of $o$ over $c_1$ where a unit is on, 0 where it is off. $\gamma$
# and $\beta$ are rows that are used for every sample, so their gradients are sums over the samples.
# The gradient with respect to $e$ is $A = (\gamma G)^T x$. Moving $w$ along itself does not change
# $e$, and moving it across changes $e$ by $1/|w|$ as much: so $w$ gets the part of $A$ that is
# orthogonal to its row, over $|w|$.


# %%
class Array(engine(2)): ...


def normprop_of_arrays(x, w, gamma, beta):
    length = np.linalg.norm(w.value, axis=1, keepdims=True)
    e = w.value / length
    s = x.value @ e.T
    u = gamma.value * s + beta.value

    def pull(g):
        to_u = g / C1 * (u > 0)
        to_s = to_u * gamma.value
        to_e = to_s.T @ x.value
        along = (to_e * e).sum(axis=1, keepdims=True) * e
        return to_s @ e, (to_e - along) / length, (to_u * s).sum(axis=0), to_u.sum(axis=0)

    return Array((np.maximum(u, 0) - C2) / C1, (x, w, gamma, beta), pull)


check("6.5", (Array, normprop_of_arrays))

# %% [markdown]
# **6.6** Multiplying the outputs by $g$ makes $g$ the gradient that arrives at them, as `backward`
# starts with ones. With $\gamma = 1$ the gain is near $1/(\sqrt2\, c_1) = 1.21$ for a layer with as
# many units as inputs: lesson 7 has the reason.


# %%
def measure(x, w, g):
    units = len(w)
    images = Array(x)
    out = normprop_of_arrays(images, Array(w), Array(np.ones(units)), Array(np.zeros(units)))
    (out * Array(g)).backward()
    gain = np.sqrt((images.grad**2).mean() / (g**2).mean())
    return out.value.mean(), out.value.std(), gain


check("6.6", measure)

# %% [markdown]
# # Solutions of lesson 2: arrays, and a network that learns

# %%
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check, engine

# %% [markdown]
# **2.1** $C_{ij} = \sum_k A_{ik} B_{kj}$, so $dC_{ij}/dA_{ik} = B_{kj}$ and $dC_{ij}/dB_{kj} =
# A_{ik}$. Sum over every entry of $C$ that the factor takes part in:
# $$ \frac{dL}{dA_{ik}} = \sum_j G_{ij} B_{kj} = (G B^T)_{ik}, \qquad
# \frac{dL}{dB_{kj}} = \sum_i A_{ik} G_{ij} = (A^T G)_{kj}. $$


# %%
def product_gradients(a, b, g):
    return g @ b.T, a.T @ g


check("2.1", product_gradients)

# %% [markdown]
# **2.2** One row has the loss $\ell = -z_y + \ln \sum_j e^{z_j}$ and the derivative $p_k - [k =
# y]$. The mean over $n$ rows divides it by $n$. With $z_j - \max_j z_j$ in place of $z_j$,
# numerator and denominator of $p_k = e^{z_k}/\sum_j e^{z_j}$ are both divided by $e^{\max z}$, so
# $p_k$ is the same, and no exponent is above 0.


# %%
def cross_entropy_gradient(z, labels):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(z)), labels] -= 1
    return p / len(z)


check("2.2", cross_entropy_gradient)

# %% [markdown]
# **2.3** If the gradient is the same $g$ in every step, $v$ tends to $g(1 + \mu + \mu^2 + \dots) =
# g/(1 - \mu)$: with $\mu = 0.9$ the steps get ten times as long.


# %%
def momentum_step(w, v, g, rate, momentum):
    v = momentum * v + g
    return w - rate * v, v


check("2.3", momentum_step)

# %% [markdown]
# **2.4** $Y_{ij} = X_{ij} s_j$. So $dL/dX_{ij} = G_{ij} s_j$, and $s_j$ takes part in all rows:
# $dL/ds_j = \sum_i G_{ij} X_{ij}$. NumPy broadcasts the row in the first formula; the sum in the
# second undoes it.


# %%
def scale_gradients(x, s, g):
    return g * s, (g * x).sum(axis=0)


check("2.4", scale_gradients)

# %% [markdown]
# **2.5** Each rule is a step with a `pull`. A row that is added to $n$ rows is used $n$ times, so its
# gradient is the sum over the rows. The cross-entropy is one step, too: its gradient is that of
# exercise 2.2, times the gradient that arrives, which is 1 if the loss is the end of the graph.


# %%
class Array(engine(1)):
    def __matmul__(self, other):
        return type(self)(
            self.value @ other.value,
            (self, other),
            lambda g: (g @ other.value.T, self.value.T @ g),
        )

    def __add__(self, other):
        is_row = other.value.ndim < self.value.ndim
        return type(self)(
            self.value + other.value,
            (self, other),
            lambda g: (g, g.sum(axis=0) if is_row else g),
        )

    def cross_entropy(self, labels):
        n = len(labels)
        z = self.value - self.value.max(axis=1, keepdims=True)
        logs = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        slope = np.exp(logs)
        slope[np.arange(n), labels] -= 1
        loss = -logs[np.arange(n), labels].mean()
        return type(self)(loss, (self,), lambda g: (g * slope / n,))


check("2.5", Array)

# %% [markdown]
# **2.6** In each step the parameters are new `Array`s, so that no gradient of an earlier step can be
# in them, and `w.value - rate * w.grad` is a new NumPy array, so that `start` stays as it is.


# %%
def train(x, labels, start, rate, steps):
    weights, losses = list(start), []
    for _ in range(steps):
        w1, b1, w2, b2 = arrays = [Array(w) for w in weights]
        logits = (Array(x) @ w1 + b1).tanh() @ w2 + b2
        loss = logits.cross_entropy(labels)
        loss.backward()
        losses.append(float(loss.value))
        weights = [a.value - rate * a.grad for a in arrays]
    return losses, weights


check("2.6", (Array, train))

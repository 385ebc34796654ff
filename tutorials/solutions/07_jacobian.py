# %% [markdown]
# # Solutions of lesson 7: the Jacobian

# %%
import math
import sys

import numpy as np

sys.path += ["..", "tutorials"]  # where lesson.py is, seen from here and from the repository
from lesson import check

C1 = math.sqrt((1 - 1 / math.pi) / 2)
random = np.random.default_rng(0)


def random_jacobian(units, inputs):
    """Of a NormProp layer with gamma = 1 at a random input: the rows of units that are on, over
    c1."""
    w = random.standard_normal((units, inputs))
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    on = w @ random.standard_normal(inputs) > 0
    return on[:, None] * w / C1


# %% [markdown]
# **7.1** With $k = \text{units}/2$ rows that are on and the factor $1/c_1$, the edges are
# $\frac{1}{c_1} |1 \mp \sqrt{\text{units}/(2\,\text{inputs})}|$. Real layers of a few hundred units
# come close; the largest singular value of a finite layer is a little below the edge.


# %%
def edges(units, inputs):
    root = math.sqrt(units / (2 * inputs))
    return abs(1 - root) / C1, (1 + root) / C1


check("7.1", edges)
for units, inputs in ((100, 200), (200, 100)):
    largest = [np.linalg.norm(random_jacobian(units, inputs), 2) for _ in range(8)]
    print(
        f"{units} units, {inputs} inputs: largest {np.mean(largest):.2f}, edge "
        f"{edges(units, inputs)[1]:.2f}"
    )

# %% [markdown]
# **7.2** One layer has $E|J|^2 = \gamma^2 m \cdot \frac12 \cdot \frac{1}{c_1^2}$ for $m$ units,
# which is $\gamma^2 \frac{\pi}{\pi - 1}$ per unit. Turn a row's sign: its line $w w^T$ is the same,
# and it is on where it was off. So which rows are on are fair coins, independent of the lines,
# whatever $x$ is. $J^T J$ contains only the lines of rows that are on, so its law does not depend
# on the input, layers are independent, and the gains multiply: $(\gamma^2 \frac{\pi}{\pi - 1})^L$.
# Here it is measured with 3 layers of 16 units.


# %%
def gain_of_product(depth, gamma):
    return (gamma**2 * math.pi / (math.pi - 1)) ** depth


check("7.2", gain_of_product)
gains = []
for _ in range(600):
    x, product = random.standard_normal(16), np.eye(16)
    for _ in range(3):
        w = random.standard_normal((16, 16))
        w /= np.linalg.norm(w, axis=1, keepdims=True)
        product = (w @ x > 0)[:, None] * w / C1 @ product
        x = (np.maximum(w @ x, 0) - 1 / math.sqrt(2 * math.pi)) / C1
    gains.append((product**2).sum() / 16)
print(
    f"{np.mean(gains):.2f} +- {np.std(gains, ddof=1) / math.sqrt(len(gains)):.2f}, exact "
    f"{gain_of_product(3, 1.0):.4f}"
)

# %% [markdown]
# **7.3** If both units are on, rows 1 and 2 of $J$ are $w_1/c_1$ and $w_2/c_1$, whose product is
# $\rho/c_1^2$; otherwise it is 0. The pre-activations are Gaussian with the correlation $\rho$, and
# both are positive with the probability $(\pi - \arccos\rho)/(2\pi)$: the two half-planes overlap
# in that part of the circle. It is 0 for $\rho = 0$ and for $\rho = -1$ only. For small $\rho$ it
# is about $\rho/(4 c_1^2) = 0.73\,\rho$, not 0 as in the paper.


# %%
def off_diagonal(rho):
    return rho * (math.pi - math.acos(rho)) / (2 * math.pi * C1**2)


check("7.3", off_diagonal)
x = random.standard_normal((200_000, 2))
for rho in (0.5, -0.9):
    both_on = (x[:, 0] > 0) & (rho * x[:, 0] + math.sqrt(1 - rho * rho) * x[:, 1] > 0)
    error = both_on.std() / math.sqrt(len(x)) * abs(rho) / C1**2
    print(
        f"rho = {rho}: measured {rho * both_on.mean() / C1**2:.4f} +- {error:.4f}, exact "
        f"{off_diagonal(rho):.4f}"
    )

# %% [markdown]
# **7.4** About half of the units are on. Their rows are independent as long as they are at most as
# many as the inputs, so the rank is $\min(\text{units}/2, \text{inputs})$, of $\min(\text{units},
# \text{inputs})$ singular values. With more than twice as many units as inputs, none is 0. At
# exactly twice as many, the number of rows that are on fluctuates about the number of inputs, so in
# half of the draws a few singular values are 0: their fraction tends to 0 in a large layer, not
# their number.


# %%
def zero_fraction(units, inputs):
    return 1 - min(units / 2, inputs) / min(units, inputs)


check("7.4", zero_fraction)
for units, inputs in ((100, 100), (150, 100), (200, 100), (300, 100)):
    zeros = [
        (np.linalg.svd(random_jacobian(units, inputs), compute_uv=False) < 1e-9).sum()
        for _ in range(20)
    ]
    print(
        f"{units} units, {inputs} inputs: {np.mean(zeros):.1f} of {min(units, inputs)} are 0 "
        "on "
        "average"
    )

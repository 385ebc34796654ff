# %% [markdown]
# # 7. The Jacobian: what 1.21 is and is not
#
# **Goal.** Look at all singular values of a NormProp layer, find the paper's 1.21 among them (or
# not), and learn what an average hides.
#
# The *Jacobian* $J$ of a layer is the matrix of its derivatives: $J_{ij}$ is the derivative of
# output $i$ with respect to input $j$. Backwards, a gradient $g$ becomes $J^T g$. How much longer
# or shorter that is depends on the direction of $g$; the *singular values* of $J$ are the factors,
# from the largest to the smallest. If they are above 1, gradients explode with depth; if they are
# below 1, they vanish. The ideal is called *dynamical isometry*: all singular values 1. The paper
# (section 3.4) shows that, on average over inputs, $E[JJ^T] \approx 1.47\, I$, concludes that "the
# singular values of the Jacobian are 1.21" (the root of 1.47), and divides it out. Here are the
# singular values of one layer at one input.

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, RED, check, claim, hint, panels, predict, reveal, show

# %%
WIDTH = 300
relu = tp.moments.gaussian("relu")
c1, factor = relu.std, relu.jacobian_factor


def layer_and_input(width, seed):
    random = np.random.default_rng(seed)
    layer = tp.nn.NormPropLinear(width, width, gamma=1.0)
    # rows in random directions
    layer.weight.data = random.standard_normal((width, width), np.float32)
    return layer, tp.tensor(random.standard_normal(width, np.float32))


layer, x = layer_and_input(WIDTH, seed=0)
jacobian = tp.jacobian(layer, x).numpy()  # (units, inputs), by one backward pass for each unit
values = np.linalg.svd(jacobian.astype(np.float64), compute_uv=False)
nonzero = values[values > 1e-4]

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 7.0, 3.3)
axes.hist(
    nonzero,
    bins=24,
    density=True,
    color=BLUE,
    alpha=0.6,
)
axes.axvline(factor, color=RED)
axes.text(factor - 0.03, 0.62, "1.21", color=RED, ha="right")
arrow = {"arrowstyle": "->", "color": BLUE}
axes.annotate(f"{WIDTH - len(nonzero)} at 0", (0.0, 0.0), (0.02, 0.2), color=BLUE, arrowprops=arrow)
axes.set(title="Singular values of one layer at one input", xlim=(-0.05, 3.1), ylim=(0, 0.7))
axes.text(1.9, 0.5, f"{len(nonzero)} of {WIDTH}\nsingular values", color=BLUE)
show(
    figure,
    f"A histogram of the {len(nonzero)} nonzero singular values of one layer of {WIDTH} units: from "
    f"{nonzero[-1]:.2f} to {nonzero[0]:.2f}, with no peak at {factor:.2f}, which a line marks. "
    f"An arrow marks the {WIDTH - len(nonzero)} at 0.",
)

# %%
print(
    f"nonzero ones: {nonzero[-1]:.2f} to {nonzero[0]:.2f}; root mean square of all "
    f"{np.sqrt((values**2).mean()):.3f}"
)

# %% [markdown]
# About half of the singular values are 0: those units are off, and their rows of $J$ are 0. The
# others spread over a wide band. How many are near 1.21?

# %%
QUESTION = "fraction of all singular values within 5 % of 1.21"
predict(QUESTION)

# %%
reveal(QUESTION, (abs(values / factor - 1) < 0.05).mean())

# %% [markdown]
# ## The shape of the band
#
# Marchenko and Pastur found it in 1967; here it is in a few lines. Let $A$ have $k$ rows of length 1
# in random directions of $n$ dimensions, and let $k/n = y$. We want the eigenvalues $\lambda$ of
# $AA^T$, the squared singular values. Let $m(z)$ be the mean of $1/(\lambda - z)$ over them, for a
# complex $z$; it is also a diagonal entry of $(AA^T - z)^{-1}$. Its imaginary part, just above the
# real axis, is $\pi$ times the density of $\lambda$.
#
# Set one row $a$ apart from the others, $A'$. By the formula for the inverse of a matrix in blocks,
# its diagonal entry is
# $$ m = \frac{1}{a a^T - z - a B a^T}, \qquad B = A'^T (A' A'^T - z)^{-1} A'. $$
# Now $aa^T = 1$. And the direction of $a$ is random and independent of $B$, so $a B a^T$ is near its
# mean, the trace of $B$ divided by $n$. That trace is the sum of $\lambda/(\lambda - z) = 1 +
# z/(\lambda - z)$, so it is $k(1 + zm)$. Hence
# $$ m = \frac{1}{1 - z - y(1 + zm)}, \qquad\text{or}\qquad y z m^2 + (z + y - 1)\,m + 1 = 0. $$
# A quadratic equation: $m$ is complex where its discriminant $(z + y - 1)^2 - 4yz$ is negative, which
# is between $\lambda_\pm = (1 \pm \sqrt y)^2$. The imaginary part of $m$ gives the density
# $$ p(\lambda) = \frac{\sqrt{(\lambda_+ - \lambda)(\lambda - \lambda_-)}}{2 \pi y \lambda}. $$
# In our layer $y = 1/2$, since half of the units are on, and a row has length $1/c_1$. So a singular
# value is $s = \sqrt\lambda/c_1$, and the band goes from $(1 - \sqrt{1/2})/c_1$ to $(1 +
# \sqrt{1/2})/c_1$.


# %%
def band(y):
    return np.array([1 - math.sqrt(y), 1 + math.sqrt(y)]) / c1


def density(s, y):
    """The density of the nonzero singular values."""
    low, high = (band(y) * c1) ** 2
    square = (c1 * s) ** 2
    root = np.sqrt(np.maximum((high - square) * (square - low), 0))
    return root / (2 * math.pi * y * square) * 2 * c1**2 * s  # times d(lambda)/ds


low, high = band(1 / 2)
print(f"edges of the band in a large square layer: {low:.4f} to {high:.4f}")
inside = ((nonzero > low - 0.1) & (nonzero < high + 0.1)).mean()
claim("all nonzero singular values of our layer lie in the band, up to 0.1", inside == 1)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 7.0, 3.0)
axes.hist(nonzero, bins=24, density=True, color=BLUE, alpha=0.6)
grid = np.linspace(low, high, 200)
axes.plot(grid, density(grid, 1 / 2), color=BLACK)
axes.text(2.05, 0.5, "Marchenko-Pastur law", color=BLACK)
axes.text(0.05, 0.1, "nonzero\nsingular\nvalues", color=BLUE)
axes.set(title="The same layer, and the law", xlim=(-0.05, 3.1), ylim=(0, 0.7))
show(
    figure,
    f"The histogram of the nonzero singular values again, with the Marchenko-Pastur law, which it "
    f"follows: a hump from {low:.2f} to {high:.2f}.",
)

# %% [markdown]
# ## What 1.21 is
#
# A row of $J$ is $w / (|w| c_1)$ if its unit is on, which it is half of the time, and 0 otherwise.
# Its mean square length is $\frac{1}{2 c_1^2} = \frac{\pi}{\pi - 1} = 1.4669$. That is the diagonal
# of $E[JJ^T]$, and it is exact. So $1.2112 = \sqrt{\pi/(\pi - 1)}$ is the **root mean square** of
# the singular values of a square layer: what $J$ does to a random gradient on average. Measure it,
# with an error bar.

# %%
LAYERS = 40
squares = []
for seed in range(LAYERS):
    layer, x = layer_and_input(100, seed)
    squares.append((tp.jacobian(layer, x).numpy() ** 2).sum() / 100)
error = np.std(squares, ddof=1) / math.sqrt(LAYERS)
print(
    f"mean square {np.mean(squares):.3f} +- {error:.3f} over {LAYERS} layers; exact "
    f"{math.pi / (math.pi - 1):.4f}"
)
print(f"root {math.sqrt(np.mean(squares)):.3f}; exact {factor:.4f}")

# %% [markdown]
# ## What it is not
#
# *Not the singular values.* Even with orthogonal rows, where $E[JJ^T]$ is $1.47\,I$ exactly, no
# singular value is 1.21: they are 0 or $1/c_1$. The average of $JJ^T$ over inputs is a multiple of
# the identity, but a gradient meets $J$ at *one* input. A coin that pays 0 or 1 pays 1/2 on
# average, but never on any toss.

# %%
layer, x = layer_and_input(WIDTH, seed=1)
layer.weight.data = np.linalg.qr(layer.weight.data)[0]
orthogonal = np.linalg.svd(tp.jacobian(layer, x).numpy().astype(np.float64), compute_uv=False)
print("orthogonal rows:", sorted({f"{abs(v):.4f}" for v in orthogonal}), f"and 1/c1 = {1 / c1:.4f}")

# %% [markdown]
# *Not the whole story for a deep network.* Dividing by 1.21 (by $\gamma = 1/1.21$) keeps the mean
# square at 1 at any depth. But a product of matrices whose singular values are spread out has
# singular values that are spread out more: a few directions get nearly everything. Here are
# products of up to nine layers, the paper's depth, with `gamma="jacobian"`.
# ([`figures/spectrum.gif`](../figures/spectrum.gif) shows the same, layer by layer.)

# %%
DEPTH, NARROW = 9, 150
tp.manual_seed(0)
net = tp.nn.Sequential(
    *[tp.nn.NormPropLinear(NARROW, NARROW, gamma="jacobian") for _ in range(DEPTH)]
)
x = tp.tensor(np.random.default_rng(0).standard_normal(NARROW, np.float32))
product, spectra = np.eye(NARROW), []
for layer in net:
    product = tp.jacobian(layer, x).numpy().astype(np.float64) @ product
    x = layer(x).detach()
    spectra.append(np.linalg.svd(product, compute_uv=False))

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.3)
depths = np.arange(1, DEPTH + 1)
lines = {
    "largest": ([s[0] for s in spectra], RED),
    "root mean square": ([np.sqrt((s**2).mean()) for s in spectra], BLUE),
    "median of those above 0": ([np.median(s[s > 1e-9]) for s in spectra], GRAY),
}
for name, (line, colour) in lines.items():
    axes.semilogy(depths, line, "o-", color=colour)
    axes.text(DEPTH + 0.2, line[-1], name.replace(" of", "\nof"), color=colour, va="center")
axes.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
axes.set_yticks([], minor=True)
axes.set(
    title="Singular values of a product of layers",
    xlabel="layers",
    xlim=(0.7, DEPTH + 3.5),
    ylim=(0.14, 8),
)
show(
    figure,
    f"Singular values of a product of 1 to {DEPTH} layers, on a logarithmic scale. "
    + " ".join(
        f"The {name}: from {line[0]:.2f} to {line[-1]:.2f}." for name, (line, _) in lines.items()
    ),
)

# %%
share = (spectra[-1][:5] ** 2).sum() / (spectra[-1] ** 2).sum()
print(
    f"after {DEPTH} layers: largest {spectra[-1][0]:.1f}; the five largest carry {share:.0%} "
    "of "
    "the mean square"
)

# %% [markdown]
# The blue line of a single network scatters about 1; `tinyprop verify C18` averages over many
# networks. The verdicts on the claims of this lesson:

# %% tags=["takes-35s"]
CLAIMS = ["C12", "C14", "C15", "C16"]  # short: ["C12", "C14", "C16"]
for r in tp.verify.run(CLAIMS):
    statement = next(claim.statement for claim in tp.verify.claims() if claim.id == r.id)
    print(f"{r.id} {r.verdict:24} {statement}")

# %% [markdown]
# So $\gamma = 1/1.21$ does keep the *mean square* of the gradient. The reason given for it, that
# all singular values become 1, does not hold.
#
# ## Exercises
#
# **7.1** A layer may have more units than inputs, or fewer. In a large layer, half of the units are
# on, and the Jacobian consists of their rows: $k = \frac{\text{units}}{2}$ random directions of
# length $1/c_1$ in $n$ dimensions. By Marchenko and Pastur, the nonzero singular values of $k$ such
# rows of length 1 lie between $|1 - \sqrt{k/n}|$ and $1 + \sqrt{k/n}$. Return the smallest and the
# largest nonzero singular value for so many units and inputs.


# %%
def edges(units, inputs):
    return ..., ...


check("7.1", edges)
# hint("7.1")

# %% [markdown]
# **7.2** What is the mean square gain $E|J|^2/n$ of a product of $L$ square layers with a given
# $\gamma$? (It is exact for every width: flipping the sign of a row of weights switches the unit on
# or off, and changes the row of $J$ by no more than its sign. So which units are on says nothing about
# the lines along which the rows lie, and gains multiply.)


# %%
def gain_of_product(depth, gamma): ...  # your code


check("7.2", gain_of_product)

# %% [markdown]
# **7.3** Two rows of weights at an angle of cosine $\rho$. What is $E[JJ^T]_{12}$, with $\gamma =
# 1$ and Gaussian inputs? Both units must be on, which happens with the probability $(\pi -
# \arccos\rho)/(2\pi)$.


# %%
def off_diagonal(rho): ...  # your code


check("7.3", off_diagonal)

# %% [markdown]
# **7.4** Which fraction of the singular values of a large layer is 0? (A matrix of shape (units,
# inputs) has as many singular values as the smaller of the two.)


# %%
def zero_fraction(units, inputs): ...  # your code


check("7.4", zero_fraction)

# %% [markdown]
# Solutions, with derivations: [solutions/07_jacobian.ipynb](solutions/07_jacobian.ipynb).
#
# ## Read next
#
# - [`tinyprop/verify/closed_forms.py`](../tinyprop/verify/closed_forms.py): the law for layers of any
#   shape; [`tinyprop/verify/jacobian_claims.py`](../tinyprop/verify/jacobian_claims.py); `tinyprop verify
#   C15 --explain`.
# - Saxe, McClelland and Ganguli, *Exact solutions to the nonlinear dynamics of learning in deep
#   linear neural networks*, ICLR 2014. Pennington, Schoenholz and Ganguli, *Resurrecting the
#   sigmoid in deep learning through dynamical isometry*, NeurIPS 2017.
#
# Next: [8. Depth](08_depth.ipynb).

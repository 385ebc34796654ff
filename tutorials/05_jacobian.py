# %% [markdown]
# # 5. The Jacobian: what 1.21 is and is not
#
# **Goal.** Look at all singular values of a NormProp layer, find the paper's 1.21 among them (or not), and learn what
# an average hides.
#
# Backwards, a gradient is multiplied by each layer's Jacobian $J$. If $J$ stretches, gradients explode with depth; if
# it shrinks, they vanish. The ideal is called *dynamical isometry*: all singular values 1. The paper (section 3.4)
# shows that $E[JJ^T] \approx 1.47\, I$, concludes that "the singular values of the Jacobian are 1.21" (the root of
# 1.47), and divides it out. Predict: if you draw the singular values of one layer at one input, where are they?

# %%
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, RED, panels, show
from tinyprop.verify.closed_forms import spectrum_density, spectrum_edges

WIDTH = 300
relu = tp.moments.gaussian("relu")
c1, factor = relu.std, relu.jacobian_factor


def layer_and_input(width, seed):
    random = np.random.default_rng(seed)
    layer = tp.nn.NormPropLinear(width, width, gamma=1.0)
    layer.weight.data = random.standard_normal((width, width), np.float32)  # rows in random directions
    return layer, tp.tensor(random.standard_normal(width, np.float32))


layer, x = layer_and_input(WIDTH, seed=0)
jacobian = tp.jacobian(layer, x).numpy()  # (units, inputs), by one backward pass for each unit
values = np.linalg.svd(jacobian.astype(np.float64), compute_uv=False)
nonzero = values[values > 1e-4]

figure, (axes,) = panels(1, 7.0, 3.3)
axes.hist(nonzero, bins=24, density=True, color=BLUE, alpha=0.6, label=f"{len(nonzero)} of {WIDTH} singular values")
grid = np.linspace(*spectrum_edges(1, 1), 200)
axes.plot(grid, spectrum_density(grid, 1, 1), color=BLACK, label="Marchenko and Pastur")
axes.axvline(factor, color=RED)
axes.text(factor - 0.03, 0.62, "1.21", color=RED, ha="right")
arrow = {"arrowstyle": "->", "color": BLUE}
axes.annotate(f"{WIDTH - len(nonzero)} at 0", (0.0, 0.0), (0.02, 0.2), color=BLUE, arrowprops=arrow)
axes.set(title="Singular values of one layer at one input", xlim=(-0.05, 3.1), ylim=(0, 0.7))
axes.legend(loc="upper right")
show(figure)
print(f"nonzero ones: {nonzero[-1]:.2f} to {nonzero[0]:.2f}; root mean square of all {np.sqrt((values**2).mean()):.3f}")

# %% [markdown]
# About half of the singular values are 0: those units are off, and their rows of $J$ vanish. The others spread over a
# wide band. In a large layer its edges are $(1 \pm \sqrt{1/2})/c_1$, and the histogram follows the law that Marchenko
# and Pastur found for random matrices in 1967. 1.21 is no more than the top of a broad hill:

# %%
low, high = spectrum_edges(1, 1)
near = (abs(values / factor - 1) < 0.05).mean()
print(f"edges of the band in a large square layer: {low:.4f} to {high:.4f}")
print(f"within 5 % of 1.21: {near:.0%} of all singular values")

# %% [markdown]
# ## What 1.21 is
#
# A row of $J$ is $w / (|w| c_1)$ if its unit is on, which it is half of the time, and 0 otherwise. Its mean square
# length is $\frac{1}{2 c_1^2} = \frac{\pi}{\pi - 1} = 1.4669$. That is the diagonal of $E[JJ^T]$, and it is exact. So
# $1.2112 = \sqrt{\pi/(\pi - 1)}$ is the **root mean square** of the singular values of a square layer: what $J$ does to
# a random gradient on average. Measure it, with an error bar.

# %%
LAYERS = 40
squares = []
for seed in range(LAYERS):
    layer, x = layer_and_input(100, seed)
    squares.append((tp.jacobian(layer, x).numpy() ** 2).sum() / 100)
error = np.std(squares, ddof=1) / math.sqrt(LAYERS)
print(f"mean square {np.mean(squares):.3f} +- {error:.3f} over {LAYERS} layers; exact {math.pi / (math.pi - 1):.4f}")
print(f"root {math.sqrt(np.mean(squares)):.3f}; exact {factor:.4f}")

# %% [markdown]
# ## What it is not
#
# *Not the singular values.* Even with orthogonal rows, where $E[JJ^T]$ is $1.47\,I$ exactly, no singular value is 1.21:
# they are 0 or $1/c_1$. The average of $JJ^T$ over inputs is a multiple of the identity; the gradient meets $J$ at
# *one* input. A coin that shows 0 or 1 shows 1/2 on average, and never.

# %%
layer, x = layer_and_input(WIDTH, seed=1)
layer.weight.data = np.linalg.qr(layer.weight.data)[0]
orthogonal = np.linalg.svd(tp.jacobian(layer, x).numpy().astype(np.float64), compute_uv=False)
print("orthogonal rows:", sorted({f"{abs(v):.4f}" for v in orthogonal}), f"and 1/c1 = {1 / c1:.4f}")

# %% [markdown]
# *Not the whole story for a deep network.* Dividing by 1.21 (by `gamma`) keeps the mean square at 1 at any depth. But a
# product of spread-out matrices is more spread out: few directions get nearly everything. Here are products of up to
# nine layers with `gamma="jacobian"`, the paper's depth.

# %%
DEPTH, NARROW = 9, 150
tp.manual_seed(0)
net = tp.nn.Sequential(*[tp.nn.NormPropLinear(NARROW, NARROW, gamma="jacobian") for _ in range(DEPTH)])
x = tp.tensor(np.random.default_rng(0).standard_normal(NARROW, np.float32))
product, spectra = np.eye(NARROW), []
for layer in net:
    product = tp.jacobian(layer, x).numpy().astype(np.float64) @ product
    x = layer(x).detach()
    spectra.append(np.linalg.svd(product, compute_uv=False))

figure, (axes,) = panels(1, 6.5, 3.3)
depths = np.arange(1, DEPTH + 1)
axes.semilogy(depths, [s[0] for s in spectra], "o-", color=RED, label="largest")
axes.semilogy(depths, [np.sqrt((s**2).mean()) for s in spectra], "o-", color=BLUE, label="root mean square")
axes.semilogy(depths, [np.median(s[s > 1e-9]) for s in spectra], "o-", color=GRAY, label="median of those above 0")
axes.axhline(1, color=BLACK, linewidth=1, linestyle=":")
axes.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
axes.set_yticks([], minor=True)
axes.set(title="Singular values of a product of layers", xlabel="layers")
axes.legend()
show(figure)
share = (spectra[-1][:5] ** 2).sum() / (spectra[-1] ** 2).sum()
print(f"after {DEPTH} layers: largest {spectra[-1][0]:.1f}; the five largest carry {share:.0%} of the mean square")

# %% [markdown]
# One network scatters about the mean, so do not read the blue line too finely; `tinyprop verify C18` averages over
# thousands. The verdicts on the claims of this lesson:

# %%
for r in tp.verify.run(["C12", "C14", "C15", "C16"]):
    statement = next(claim.statement for claim in tp.verify.claims() if claim.id == r.id)
    print(f"{r.id} {r.verdict:24} {statement}")

# %% [markdown]
# The paper's choice survives: `gamma` $= 1/1.21$ does keep the *mean square* of the gradient. Its reason, that all
# singular values become 1, does not hold.
#
# ## Exercises
#
# 1. A layer may have more units than inputs, or fewer. Compare the largest singular value of 100 x 200 and of 200 x 100
#    layers with `spectrum_edges`. For which shapes is no singular value 0?
# 2. Without `gamma`, the mean square gain of $L$ square layers is $(\pi/(\pi - 1))^L$ *exactly*, at every width.
#    Measure it for 3 layers of 16 units.
# 3. Two rows at an angle of cosine $\rho$ have $E[JJ^T]_{12} = \rho\,(\pi - \arccos\rho)/(2\pi c_1^2)$. Measure it for
#    $\rho = 0.5$. The paper has 0: for which $\rho$ is that so?
#
# Solutions: [solutions/05_jacobian.py](solutions/05_jacobian.py).
#
# ## Read next
#
# - [`tinyprop/verify/jacobian_claims.py`](../tinyprop/verify/jacobian_claims.py); `tinyprop verify C15 --explain`.
# - Saxe, McClelland and Ganguli, *Exact solutions to the nonlinear dynamics of learning in deep linear neural
#   networks*, ICLR 2014. Pennington, Schoenholz and Ganguli, *Resurrecting the sigmoid in deep learning through
#   dynamical isometry*, NeurIPS 2017.
#
# Next: [6. NormProp from equation to layer](06_normprop_layer.ipynb).

# %% [markdown]
# # 9. Depth
#
# **Goal.** Stack many NormProp layers and see what `gamma` does to signals forwards and to gradients backwards; mend
# the forward part exactly; and understand the theorem that says you cannot have both.
#
# The paper argues by induction: if a layer's input is normalised, so is its output, so is the next one's, and so on. It
# then recommends to start with $\gamma = 1/1.21$ for the sake of the gradients. Predict: with that $\gamma$, what is
# the variance of a unit in layer 9?

# %%
import math

import numpy as np

import tinyprop as tp
from lesson import BLACK, BLUE, GRAY, GREEN, RED, panels, show
from tinyprop.verify.closed_forms import depth_recursion, fixed_point
from tinyprop.verify.networks import preactivation_statistics

WIDTH, DEPTH, INPUTS, NETWORKS = 150, 25, 100, 6
GAMMA = 1 / tp.moments.gaussian("relu").jacobian_factor
SETTINGS = {
    r"$\gamma = 1$": ({"gamma": 1.0}, BLUE),
    r"$\gamma = 1/1.21$, the paper's": ({"gamma": GAMMA}, RED),
    r"exact, $\beta = \gamma = 1$": ({"gamma": 1.0, "beta": 1.0, "mode": "exact"}, GREEN),
}
layers = np.arange(1, DEPTH + 1)
measured = {}  # for each setting: (networks, 3, layers), the 3 being E u^2, variance over inputs, squared unit means
for name, (how, _) in SETTINGS.items():
    random = np.random.default_rng(0)
    found = [preactivation_statistics(random, WIDTH, DEPTH, INPUTS, **how) for _ in range(NETWORKS)]
    measured[name] = np.array(found)

figure, (left, right) = panels(2, 9.0, 3.4)
for name, (how, colour) in SETTINGS.items():
    for axes, row in ((left, 1), (right, 2)):
        mean = measured[name][:, row].mean(axis=0)
        bar = measured[name][:, row].std(axis=0, ddof=1) / math.sqrt(NETWORKS)
        axes.errorbar(layers, mean, bar, fmt="o", markersize=3, color=colour, label=name, elinewidth=1)
        if "mode" not in how:
            axes.plot(layers, depth_recursion(how["gamma"], DEPTH)[row - 1], color=colour, linewidth=1)
left.set(title="Variance of a unit over inputs", xlabel="layer", yscale="log", ylim=(0.005, 30))
right.set(title="Squared mean of a unit", xlabel="layer", ylim=(-0.05, 0.6))
left.legend(fontsize=8.5, loc="upper left")
show(figure)

for name, (how, _) in SETTINGS.items():
    v = measured[name][:, 1, 8]
    error = v.std(ddof=1) / math.sqrt(NETWORKS)
    wide = "1" if "mode" in how else f"{depth_recursion(how['gamma'], 9)[0, 8]:.4f}"
    label = name.replace("$", "").replace("\\", "")
    print(f"{label:27} layer 9: variance {v.mean():.3f} +- {error:.3f}, wide networks {wide}")

# %% [markdown]
# (Dots: networks of 150 units, with standard errors. Lines: networks of infinite width, by a recursion.)
#
# With the paper's $\gamma$ the variance of a unit has fallen to about 0.06 in layer 9. The induction needs
# $\gamma = 1$: with a smaller one, $u$ is smaller, but $c_1$ and $c_2$ are still those of $\gamma = 1$. So too much is
# subtracted. Units get means of their own (right), and what they say about the *input* fades. In the end $E u^2$
# settles at exactly 1/4, all of it means; every input then looks the same.
#
# With $\gamma = 1$ infinitely wide networks stay at 1, but they are on a knife's edge: with $q = E u^2$, one layer does
# $q \to q + (\sqrt q - 1)^2/(\pi - 1)$. Whatever happens by chance, $q$ never goes down. See the blue dots leave.

# %%
print(f"gamma = 1/1.2112: E u^2 settles at {fixed_point(GAMMA):.4f}")
for gamma in (0.95, 0.9, 0.7):
    print(f"gamma = {gamma:.2f}:     E u^2 settles at {fixed_point(gamma):.4f}")

# %% [markdown]
# ## The exact mode
#
# The cure is in lesson 8: take $c_1$ and $c_2$ of what really enters the activation, $N(\beta, \gamma^2)$:
# $$ o = \frac{s(\gamma u + \beta) - c_2(\gamma, \beta)}{c_1(\gamma, \beta)}. $$
# Then mean 0 and variance 1 hold for *every* $\gamma$ and $\beta$, also while they are learnt; the gradient passes
# through both constants. That is `mode="exact"`.

# %%
x = tp.tensor(np.random.default_rng(0).standard_normal((20_000, 20), np.float32))
for mode in ("paper", "exact"):
    layer = tp.nn.NormPropLinear(20, 10, gamma=0.6, mode=mode)
    layer.beta.data[...] = 0.4
    out = layer(x).data
    print(f"{mode}: gamma 0.6, beta 0.4: mean {out.mean():+.2f}, standard deviation {out.std():.2f}")

# %% [markdown]
# ## Backwards
#
# Now the gradients. Send a random one in at the top and measure its root mean square on the way down. Theory: each
# layer multiplies the mean square by $\gamma^2 \cdot 1.4669$ in the paper's mode.

# %%
figure, (axes,) = panels(1, 6.5, 3.3)
for name, (how, colour) in SETTINGS.items():
    random, sizes = np.random.default_rng(1), []
    for seed in range(NETWORKS):
        tp.manual_seed(seed)
        settings = {k: v for k, v in how.items() if k != "beta"}  # in the exact mode, beta starts at 1
        h, outputs = tp.tensor(random.standard_normal((40, WIDTH), np.float32), requires_grad=True), []
        for _ in range(DEPTH):
            outputs.append(h)
            h = tp.nn.NormPropLinear(WIDTH, WIDTH, **settings)(h)
        gradients = tp.grad(h, outputs, random.standard_normal(h.shape, np.float32))
        sizes.append([np.sqrt((g.data**2).mean()) for g in gradients])
    down = np.exp(np.log(sizes).mean(axis=0))[::-1]  # the typical size after so many layers
    axes.semilogy(layers, down, "o", markersize=3.5, color=colour, label=name)
    print(f"{name.replace('$', '').replace(chr(92), ''):27} after {DEPTH} layers: {down[-1]:.3g}")
chi = math.pi / (math.pi - 1)
exact_gain = tp.moments.gaussian("relu", 1.0, 1.0).jacobian_factor
for factor, colour in ((math.sqrt(chi), BLUE), (1.0, RED), (exact_gain, GREEN)):
    axes.plot(layers, factor ** layers.astype(float), color=colour, linewidth=1)
axes.set(title="Size of the gradient", xlabel="layers passed, from the top")
axes.legend()
show(figure)

# %% [markdown]
# There is the dilemma. $\gamma = 1$ keeps the signal (nearly) and blows up the gradient; $1/1.21$ keeps the gradient
# and loses the signal. Is there a better activation, or a clever $\gamma$ and $\beta$, that keeps both?
#
# ## No free lunch
#
# No. Let $o(X)$ be any normalised output, $E\,o = 0$ and $E\,o^2 = 1$. Expand it in Hermite polynomials,
# $o = \sum_k a_k h_k(X)$: like a Fourier series, but for the bell curve. Then
# $$ E\,o^2 = \sum_{k \ge 1} a_k^2 = 1, \qquad E\,o'^2 = \sum_{k \ge 1} k\,a_k^2 \;\ge\; 1. $$
# The gain of the gradient is the *mean degree* of the activation. It is 1 only if all weight is on degree 1: a line.
# (This is the Gaussian Poincaré inequality. It needs a function without jumps.) So all one can do is to make the
# activation less nonlinear, for instance by $\beta > 0$, which moves ReLU's kink away from the middle.

# %%
t = np.linspace(-1, 3, 81)
figure, (axes,) = panels(1, 6.5, 3.2)
for name, colour in (("relu", BLUE), ("gelu", GREEN), ("tanh", RED), ("softplus", GRAY)):
    axes.plot(t, tp.moments.gaussian(name, t, 1.0).jacobian_factor ** 2, color=colour, label=name)
axes.axhline(1, color=BLACK, linewidth=1)
axes.text(-0.95, 0.92, "theorem: never below this line", fontsize=9)
axes.set(title=r"Mean-square gain of a normalised layer, $\gamma = 1$", xlabel=r"$\beta$", ylim=(0.88, 2.6))
axes.legend()
show(figure)
for beta in (0.0, 1.0, 2.0):
    print(f"ReLU, beta {beta:.0f}: gain {tp.moments.gaussian('relu', beta, 1.0).jacobian_factor ** 2:.4f} a layer")

# %% [markdown]
# `mode="exact"` therefore starts rectifiers at $\beta = \gamma = 1$: the signal is kept, and the gain is 1.12 a layer
# instead of 1.47, at the price of being less bent. All this is about random weights, before training; what training
# makes of it, only training can tell.
#
# ## Exercises
#
# 1. Compute the Hermite coefficients of tanh by quadrature and show that the mean degree is `jacobian_factor ** 2`.
# 2. Which $\beta$ (with $\gamma = 1$, ReLU, exact mode) keeps the gain of 50 layers below $e$?
# 3. Send two inputs of correlation 0.5 through 20 layers of each setting of this lesson. Does the network tell them
#    apart better or worse than before?
#
# Solutions: [solutions/09_depth.py](solutions/09_depth.py).
#
# ## Read next
#
# - [`tinyprop/verify/depth_claims.py`](../tinyprop/verify/depth_claims.py), `general_claims.py`;
#   `tinyprop verify C21 G3 --explain`.
# - Poole et al., *Exponential expressivity in deep neural networks through transient chaos*, NeurIPS 2016. Schoenholz
#   et al., *Deep information propagation*, ICLR 2017: the recursion, its fixed points, and what they mean for training.
#
# Next: [10. The same code on a GPU](10_gpu.ipynb).

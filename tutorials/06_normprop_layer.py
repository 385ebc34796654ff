# %% [markdown]
# # 6. NormProp from equation to layer
#
# **Goal.** Write the paper's layer in a dozen lines, test every property it promises, understand
# why it may count on a bell curve in layer 2, and know when it may not.
#
# The equation (section 4.3 of the paper), for one unit with the weights $w$ (a row of numbers of
# length $|w| = \sqrt{\sum_i w_i^2}$), the scale $\gamma$ and the shift $\beta$, and for an
# activation $s$ such as ReLU:
# $$ o = \frac{1}{c_1}\Big[\, s\Big(\gamma\,\frac{w \cdot x}{|w|} + \beta\Big) - c_2 \Big] $$
# If the inputs $x_i$ are uncorrelated, with mean 0 and variance 1, then $w \cdot x$ has the
# variance $\sum_i w_i^2 = |w|^2$, and so $w \cdot x / |w|$ has mean 0 and variance 1 for every $w$.
# If it is Gaussian, too, then $c_1$ and $c_2$ of lesson 5 normalise what comes out, and the next
# layer starts where this one did. *Normalisation propagates.*

# %%
import math

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLACK, BLUE, GRAY, GREEN, RED, check, hint, panels, predict, reveal, show


class NormProp(tp.nn.Module):
    def __init__(self, inputs, units, gamma=1.0):
        random = np.random.default_rng(0)
        self.weight = tp.tensor(
            random.standard_normal((units, inputs), np.float32), requires_grad=True
        )
        self.gamma = tp.tensor(np.full(units, gamma, np.float32), requires_grad=True)
        self.beta = tp.tensor(np.zeros(units, np.float32), requires_grad=True)
        self.c = tp.moments.gaussian("relu")

    def forward(self, x):
        length = F.sqrt((self.weight**2).sum(axis=1))  # (units,)
        u = self.gamma * (x @ self.weight.T) / length + self.beta
        return (F.relu(u) - self.c.mean) / self.c.std


INPUTS, UNITS, SAMPLES = 200, 100, 4000
layer = NormProp(INPUTS, UNITS)
x = tp.tensor(np.random.default_rng(1).standard_normal((SAMPLES, INPUTS), np.float32))
out = layer(x)

figure, (left, right) = panels(2, 8.0, 2.9)
means, stds = out.data.mean(axis=0), out.data.std(axis=0)
left.hist(means, bins=np.linspace(-0.1, 0.1, 31), color=BLUE, alpha=0.75)
right.hist(stds, bins=np.linspace(0.9, 1.1, 31), color=BLUE, alpha=0.75)
left.axvline(0, color=RED)
right.axvline(1, color=RED)
left.set(title=f"Means of {UNITS} units", yticks=[], xticks=[-0.1, -0.05, 0, 0.05, 0.1])
right.set(title="Their standard deviations", yticks=[], xticks=[0.9, 0.95, 1, 1.05, 1.1])
show(figure)
print(
    f"means {means.mean():+.3f} +- {means.std():.3f}, standard deviations {stds.mean():.3f} +- "
    f"{stds.std():.3f}"
)
print(f"of a mean of {SAMPLES} samples one expects a spread of {SAMPLES**-0.5:.3f}")

# %% [markdown]
# No batch statistic was used: the spread comes from the 4,000 random samples, not from the layer.
# tinyprop's own layer is the same function, with $\gamma/(c_1|w|)$ multiplied into the weights
# first, so that little is left to do per sample.

# %%
theirs = tp.nn.NormPropLinear(INPUTS, UNITS, gamma=1.0)
theirs.weight.data = layer.weight.data.copy()
print("equals tp.nn.NormPropLinear:", np.allclose(theirs(x).data, out.data, atol=1e-5))

# %% [markdown]
# ## Why layer 2 is Gaussian
#
# "If it is Gaussian, too": in layer 1 it is, if the data are. But the output of layer 1 is a
# rectified, lopsided thing (lesson 5 has its histogram), and it is the input of layer 2. Why may
# layer 2 use the same $c_1$ and $c_2$?
#
# Because of the **central limit theorem**: a sum of many independent terms, none of which
# dominates, is nearly Gaussian, whatever the terms are. The pre-activation $u = \sum_i w_i o_i /
# |w|$ of layer 2 is such a sum. How near is it? A good measure is the *excess kurtosis*,
# $E[u^4]/E[u^2]^2 - 3$, which is 0 for a bell curve. For independent $o_i$ of mean 0, variance 1
# and excess kurtosis $k$, only the terms of $E[u^4]$ in which all four factors are the same $o_i$
# make a difference, and
# $$ \text{excess kurtosis of } u = k \sum_i \frac{w_i^4}{|w|^4}, \qquad\text{on average}\qquad \frac{3k}{n + 2} $$
# over rows of $n$ Gaussian weights. ReLU has $k = 2.41$ (from exercise 5.2, minus 3). So the error
# falls as one over the width. Predict it for 30 inputs, then see.

# %%
QUESTION = "excess kurtosis of u in layer 2, width 30"
predict(QUESTION)

# %%
KURTOSIS = 2.407639  # of ReLU of a normal number, in excess of 3
WIDTHS = (1, 3, 10, 30, 100)
random = np.random.default_rng(0)
shown, excess = {}, {}
for width in WIDTHS:
    rows, found = [], []
    for _ in range(60):  # layers
        o = (np.maximum(random.standard_normal((3000, width)), 0) - layer.c.mean) / layer.c.std
        w = random.standard_normal(width)
        u = o @ (w / np.linalg.norm(w))
        rows.append(u)
        found.append((u**4).mean() / (u**2).mean() ** 2 - 3)
    shown[width], excess[width] = np.concatenate(rows), np.array(found)
reveal(QUESTION, excess[30].mean())

figure, (left, right) = panels(2, 8.6, 3.1)
grid = np.linspace(-3.5, 3.5, 141)
for width, colour in ((1, GRAY), (3, GREEN), (30, BLUE)):
    left.hist(
        shown[width],
        bins=grid[::2],
        density=True,
        histtype="step",
        color=colour,
        label=f"width {width}",
    )
left.plot(
    grid,
    np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi),
    color=BLACK,
    linewidth=1,
    label="bell curve",
)
left.set(title="$u$ in layer 2, all units", xlim=(-3.5, 3.5), ylim=(0, 0.75), yticks=[])
left.legend(fontsize=9)
bars = [v.std(ddof=1) / math.sqrt(len(v)) for v in excess.values()]
right.errorbar(
    WIDTHS,
    [v.mean() for v in excess.values()],
    bars,
    fmt="o",
    color=BLUE,
    capsize=3,
    label="measured",
)
right.plot(
    WIDTHS, [3 * KURTOSIS / (n + 2) for n in WIDTHS], color=BLACK, linewidth=1, label="$3k/(n + 2)$"
)
right.set(title="Excess kurtosis", xlabel="width $n$", xscale="log", yscale="log")
right.legend()
show(figure)
for width in WIDTHS:
    expected = 3 * KURTOSIS / (width + 2)
    print(
        f"width {width:3}: {excess[width].mean():.2f} +- {bars[WIDTHS.index(width)]:.2f}, "
        f"expected {expected:.2f}"
    )

# %% [markdown]
# So a layer of 100 inputs is Gaussian enough. The theorem asks for *independent* terms and many of
# them. A row that learns to listen to one input only is back at width 1, and inputs that move
# together count as few.
#
# ## The gradient, checked
#
# The length $|w|$ is part of the function, so the gradient passes through it. We wrote no gradient:
# the engine has it. `tp.check_gradients` compares it with central differences in float64, and the
# gradient of the gradient as well. (At a kink of ReLU, a central difference is meaningless; these
# inputs keep away from it.)

# %%
small = NormProp(4, 3)
at = np.random.default_rng(3).standard_normal((5, 4))


def as_function(x, weight, gamma, beta):
    small.weight, small.gamma, small.beta = weight, gamma, beta
    return small(x)


tp.check_gradients(as_function, tp.tensor(at), small.weight, small.gamma, small.beta)
print("gradients agree with central differences, to second order")

# %% [markdown]
# ## Only the direction counts
#
# Multiply all weights by 10. What changes?
#
# The function does not change. So along $w$ it is constant, and the gradient has no part along $w$:
# they are orthogonal. And as a function of weights that are ten times as long, it changes ten times
# as slowly, so the gradient is ten times smaller. After each step of training, tinyprop puts the
# weights back to length 1 (`tp.optim.normalize_weights`, section 4.4 of the paper). This does not
# change the function. Without it every step would make $w$ longer, by Pythagoras, and the steps
# would turn it less and less: by an angle proportional to $1/|w|^2$.


# %%
def loss_and_gradient(scale):
    layer = NormProp(INPUTS, UNITS)
    layer.weight.data = layer.weight.data * np.float32(scale)
    loss = (layer(x) ** 3).mean()
    loss.backward()
    return loss.item(), layer.weight.data, layer.weight.grad.data


(loss, w, gradient), (loss10, _, gradient10) = loss_and_gradient(1), loss_and_gradient(10)
cosine = (w * gradient).sum(axis=1) / np.linalg.norm(w, axis=1) / np.linalg.norm(gradient, axis=1)
print(f"loss {loss:.4f}, with ten times the weights {loss10:.4f}")
print(f"gradient shorter by {np.linalg.norm(gradient) / np.linalg.norm(gradient10):.3f}")
print(f"cosine of weights and gradients below 1e-4: {abs(cosine).max() < 1e-4}")

# %% [markdown]
# ## Where the small print is
#
# "If the inputs are uncorrelated" was an assumption. The pixels of an image are correlated:
# neighbours are alike. Then the variance of $w \cdot x/|w|$ depends on what $w$ looks for. Take
# patches of images, normalise each pixel over the data, and compare random filters with a blur (all
# weights equal) and with checks (neighbours of opposite sign).

# %%
images = tp.data.load("shapes", split="test").images
# (2000, 75): 5 x 5 x 3 pixels
patches = images[:, :, 10:15, 10:15].reshape(len(images), -1).astype(np.float32)
patches = (patches - patches.mean(axis=0)) / patches.std(axis=0)
filters = np.random.default_rng(0).standard_normal((300, 75)).astype(np.float32)
checks = np.tile((-1.0) ** np.arange(25), 3).astype(np.float32)
found = {
    name: (patches @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T).std(axis=0)
    for name, w in {
        "random": filters,
        "blur": np.ones((1, 75), np.float32),
        "checks": checks[None],
    }.items()
}

figure, (axes,) = panels(1, 6.5, 2.8)
axes.hist(found["random"] ** 2, bins=np.geomspace(0.03, 60, 40), color=BLUE, alpha=0.75)
axes.set(title=r"Variance of $w \cdot x / |w|$ over image patches", xscale="log", yticks=[])
top = 1.15 * axes.get_ylim()[1]
axes.set_ylim(0, top)
for name, colour in (("checks", GRAY), ("blur", RED)):
    axes.axvline(found[name][0] ** 2, color=colour)
    axes.text(found[name][0] ** 2 * 1.08, 0.93 * top, name, color=colour)
axes.axvline(1, color=BLACK, linestyle=":")
axes.text(0.93, 0.93 * top, "promised", color=BLACK, ha="right")
axes.text(0.3, 0.55 * top, "random\nfilters", color=BLUE, ha="right")
show(figure)
print(f"variance: {(found['random'] ** 2).mean():.2f} on average over random filters,", end=" ")
print(f"{found['blur'][0] ** 2:.1f} for the blur, {found['checks'][0] ** 2:.2f} for the checks")

# %% [markdown]
# On average over random filters the variance is 1, up to chance. For a given filter it is $w^T C
# w/|w|^2$, with the covariance matrix $C$ of the patch, and that can be anything between the
# smallest and the largest eigenvalue of $C$. The paper normalises each pixel and leaves it at that;
# whitening the data would make $C$ the identity. See `tinyprop verify C11 --explain`.
#
# ## Exercises
#
# **6.1** The layer as a function, with NumPy. $x$ is (samples, inputs), $W$ is (units, inputs),
# $\gamma$ and $\beta$ are (units,). Return the outputs, (samples, units), for ReLU.


# %%
def normprop(x, weight, gamma, beta): ...  # your code; layer.c.std is c1, layer.c.mean is c2


check("6.1", normprop)
# hint("6.1")

# %% [markdown]
# **6.2** Fold the constants in. Show that $(\mathrm{relu}(u + \beta) - c_2)/c_1$ can be computed as
# $\max(z + b, -t)$ with $z = u/c_1$: one addition and one comparison per number. Return $b$ and $t$
# for a given $\beta$.


# %%
def folded(beta):
    return ..., ...


check("6.2", folded)

# %% [markdown]
# **6.3** A step of plain gradient descent with the rate $\eta$ takes $w$ to $w - \eta g$. Given
# $|w|$ and $|g|$, how long is $w$ after the step?


# %%
def length_after(length, gradient_length, rate): ...  # your code


check("6.3", length_after)

# %% [markdown]
# **6.4** How wide must a layer be, so that the excess kurtosis of the next layer's pre-activations
# is below $\epsilon$ on average? Take ReLU, $k = 2.4076$.


# %%
def width_for(epsilon): ...  # your code: the smallest whole number


check("6.4", width_for)

# %% [markdown]
# Solutions, with derivations:
# [solutions/06_normprop_layer.ipynb](solutions/06_normprop_layer.ipynb).
#
# ## Read next
#
# - [`tinyprop/functional/normprop.py`](../tinyprop/functional/normprop.py): the equation, and
#   [`tinyprop/nn/normprop.py`](../tinyprop/nn/normprop.py): the layers that call it.
# - Arpit et al., *Normalization propagation*, ICML 2016, sections 3 and 4. Salimans and Kingma,
#   *Weight normalization*, NeurIPS 2016: the same $w/|w|$, from another direction.
# - In the [laboratory](../docs/lab/index.html#norm=normprop&depth=2) of the site (`make site`),
#   sliders change the networks of this lesson.
#
# Next: [7. The Jacobian](07_jacobian.ipynb).

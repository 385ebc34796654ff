# %% [markdown]
# # 6. NormProp from equation to layer
#
# **Goal.** Write the paper's layer in a dozen lines, test every property it promises, understand
# why it may assume a bell curve in layer 2, and know when it may not.
#
# The equation (section 4.3 of the paper), for one unit with the weights $w$ (a row of numbers of
# length $|w| = \sqrt{\sum_i w_i^2}$), the scale $\gamma$ and the shift $\beta$, and for an
# activation $s$ such as ReLU:
# $$ o = \frac{1}{c_1}\Big[\, s\Big(\gamma\,\frac{w \cdot x}{|w|} + \beta\Big) - c_2 \Big] $$
# If the inputs $x_i$ are uncorrelated, with mean 0 and variance 1, then $w \cdot x$ has the
# variance $\sum_i w_i^2 = |w|^2$, and so $w \cdot x / |w|$ has mean 0 and variance 1 for every $w$.
# If it is Gaussian, too, then $c_1$ and $c_2$ of lesson 5 normalise what comes out, and the next
# layer starts where this one did. *Normalisation propagates.*

# %% tags=["hide-input"]
import math

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    RED,
    check,
    claim,
    engine,
    hint,
    panels,
    predict,
    reveal,
    show,
)


# %%
class NormProp(tp.nn.Module):
    def __init__(self, inputs, units, gamma=1.0):
        rows = np.random.default_rng(0).standard_normal((units, inputs), np.float32)
        self.weight = tp.tensor(rows, requires_grad=True)
        self.gamma = tp.tensor(np.full(units, gamma, np.float32), requires_grad=True)
        self.beta = tp.zeros(units, requires_grad=True)
        self.c = tp.moments.gaussian("relu")

    def forward(self, x):
        length = F.sqrt((self.weight**2).sum(axis=1))  # (units,)
        u = self.gamma * (x @ self.weight.T) / length + self.beta
        return (F.relu(u) - self.c.mean) / self.c.std


INPUTS, UNITS, SAMPLES = 200, 100, 4000
layer = NormProp(INPUTS, UNITS)
x = tp.tensor(np.random.default_rng(1).standard_normal((SAMPLES, INPUTS), np.float32))
out = layer(x)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 8.0, 2.9)
means, stds = out.data.mean(axis=0), out.data.std(axis=0)
left.hist(means, bins=np.linspace(-0.1, 0.1, 31), color=BLUE, alpha=0.75)
right.hist(stds, bins=np.linspace(0.9, 1.1, 31), color=BLUE, alpha=0.75)
left.axvline(0, color=RED)
right.axvline(1, color=RED)
left.set(title=f"Means of {UNITS} units", yticks=[], xticks=[-0.1, -0.05, 0, 0.05, 0.1])
right.set(title="Their standard deviations", yticks=[], xticks=[0.9, 0.95, 1, 1.05, 1.1])
show(
    figure,
    f"Two histograms over {UNITS} units. Means: {means.mean():+.3f} on average, between "
    f"{means.min():+.2f} and {means.max():+.2f}. Standard deviations: {stds.mean():.3f} on average, "
    f"between {stds.min():.2f} and {stds.max():.2f}.",
)
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
# ## Two bell curves
#
# "If it is Gaussian, too": which numbers form the bell curve? There are two answers, and they are
# not the same.
#
# - *Over weights, for a fixed input.* Draw the weights anew, keep $x$. If the weights are Gaussian,
#   $w \cdot x$ is a sum of Gaussian numbers, so it is *exactly* Gaussian, for every $x$ and in every
#   layer. This is the bell curve of lesson 3, and that of the recursion in lesson 8.
# - *Over inputs, for fixed weights.* Draw one network, and let the inputs vary. This is what $c_1$
#   and $c_2$ need: a unit's mean and variance over the data. In layer 1 it is Gaussian if the data
#   are. In layer 2 it is only nearly so; the next section says why.
#
# ## Why layer 2 is nearly Gaussian
#
# The output of layer 1 is a rectified, lopsided thing (lesson 5 has its histogram), and it is the
# input of layer 2. Why may layer 2 use the same $c_1$ and $c_2$?
#
# Because of the **central limit theorem**: a sum of many independent terms, none of which
# dominates, is nearly Gaussian, whatever the terms are. The pre-activation $u = \sum_i w_i o_i /
# |w|$ of layer 2 is such a sum. How near is it? A good measure is the *excess kurtosis*,
# $E[u^4]/E[u^2]^2 - 3$, which is 0 for a bell curve.
#
# If the $o_i$ were *independent*, with mean 0, variance 1 and excess kurtosis $k$, it would be
# $3k/(n + 2)$ on average over rows of $n$ Gaussian weights. Here is why, in a form that shows what
# is missing. A row in a random direction gives, for a fixed $o$, $E[u^2] = |o|^2/n$ and $E[u^4] =
# 3|o|^4/(n(n + 2))$. So over rows *and* inputs
# $$ \frac{E[u^4]}{E[u^2]^2} - 3 = \frac{3n}{n + 2}\, \frac{E|o|^4}{(E|o|^2)^2} - 3, \qquad
# E|o|^4 = \sum_{i,j} E[o_i^2 o_j^2] = n(k + 3) + n(n - 1)(1 + c), $$
# where $c$ is the covariance of $o_i^2$ and $o_j^2$. Independent units have $c = 0$, and $3k/(n +
# 2)$ follows. But the units of a layer are *not* independent: they share the input $x$. If $x$ is
# long, all of them get large pre-activations. The mean square $q = |x|^2/n$ of the input has the
# variance $2/n$. For pre-activations of variance $q$, $E[\mathrm{relu}(u)] = c_2 \sqrt q$ and
# $E[\mathrm{relu}(u)^2] = q/2$, so $E[o^2] = (q/2 - 2 c_2^2 \sqrt q + c_2^2)/c_1^2$. Its slope at $q =
# 1$ is $(\frac12 - c_2^2)/c_1^2 = 1$. So $c \approx 2/n$, and to first order this adds 2 to $k$:
# $$ \text{excess kurtosis of all } u \text{ in layer 2} \approx \frac{3(k + 2)}{n + 2}. $$
# ReLU has $k = 2.41$ (from exercise 5.2, minus 3), so the shared input nearly doubles it. Either way
# the error falls as one over the width. Predict it for 30 inputs, then see: real layers, both with
# random weights.

# %%
QUESTION = "excess kurtosis of u in layer 2, width 30"
predict(QUESTION)

# %%
KURTOSIS = 2.407639  # of ReLU of a normal number, in excess of 3
C1, C2 = layer.c.std, layer.c.mean
WIDTHS = (3, 10, 30, 100)


def unit_rows(random, width):
    w = random.standard_normal((width, width))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def excess_kurtosis(u):
    """Of all numbers together, and of a unit over inputs (columns), as a mean over units."""
    all_squares, squares = u * u, (u - u.mean(axis=0)) ** 2
    each = (squares * squares).mean(axis=0) / squares.mean(axis=0) ** 2 - 3
    return (all_squares * all_squares).mean() / all_squares.mean() ** 2 - 3, each.mean()


random = np.random.default_rng(0)
shown, excess = {}, {}
for width in WIDTHS:
    networks = max(9000 // width // 10, 12)
    layers = []
    for _ in range(networks):
        x1 = random.standard_normal((2000, width))
        o = (np.maximum(x1 @ unit_rows(random, width).T, 0) - C2) / C1
        layers.append(o @ unit_rows(random, width).T)
    shown[width] = np.concatenate(layers).ravel()[:200_000]
    excess[width] = np.array([excess_kurtosis(u) for u in layers])  # (networks, 2)
reveal(QUESTION, excess[30][:, 0].mean())
for width in WIDTHS:
    mean, error = excess[width].mean(axis=0), excess[width].std(axis=0) / len(excess[width]) ** 0.5
    print(
        f"width {width:3}: all units together {mean[0]:.2f} +- {error[0]:.2f}, "
        f"3(k + 2)/(n + 2) = {3 * (KURTOSIS + 2) / (width + 2):.2f}; "
        f"a single unit {mean[1]:.2f} +- {error[1]:.2f}, 3k/(n + 2) = {3 * KURTOSIS / (width + 2):.2f}"
    )
together, single = excess[30].mean(axis=0) / (3 * KURTOSIS / 32)
claim(
    f"at width 30, a real layer has {together:.1f} times the kurtosis of independent inputs, "
    f"{single:.1f} times for a single unit",
    together > 1.5 and single > 1.15,
)
law = 3 * (KURTOSIS + 2) / 102
claim(
    f"at width 100, the law is off by {abs(excess[100][:, 0].mean() / law - 1):.0%}",
    abs(excess[100][:, 0].mean() / law - 1) < 0.1,
)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 8.6, 3.1)
grid = np.linspace(-3.5, 3.5, 141)
bell = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
left.plot(grid, bell, color=BLACK, linewidth=1)
for width, colour, height in ((3, GREEN, 0.5), (30, BLUE, 0.44)):
    left.hist(shown[width], bins=grid[::2], density=True, histtype="step", color=colour)
    left.text(1.1, height, f"width {width}", color=colour)
left.text(1.1, 0.38, "bell curve", color=BLACK)
left.set(title="$u$ in layer 2, all units", xlim=(-3.5, 3.5), ylim=(0, 0.6), yticks=[])
for column, colour in ((0, BLUE), (1, GRAY)):
    right.plot(WIDTHS, [excess[n][:, column].mean() for n in WIDTHS], "o", color=colour)
for k, colour in ((KURTOSIS + 2, BLUE), (KURTOSIS, RED)):
    right.plot(WIDTHS, [3 * k / (n + 2) for n in WIDTHS], color=colour, linewidth=1)
right.text(11, 1.25, "all units together,\n$3(k + 2)/(n + 2)$", color=BLUE, fontsize=9)
right.text(3.2, 0.1, "gray dots: a single unit", color=GRAY, fontsize=9)
right.text(3.2, 0.2, "independent inputs,\n$3k/(n + 2)$", color=RED, fontsize=9)
right.set(title="Excess kurtosis in layer 2", xlabel="width $n$", xscale="log", yscale="log")
right.set_xticks(WIDTHS, [str(n) for n in WIDTHS])
right.set_xticks([], minor=True)
right.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
right.set_yticks([], minor=True)
show(
    figure,
    "Left: histograms of the pre-activations of layer 2 for widths 3 and 30 beside a bell curve; "
    "width 3 is more peaked, width 30 lies on it. Right: excess kurtosis against width. All units "
    "together: "
    + ", ".join(f"{excess[n][:, 0].mean():.2f} at width {n}" for n in WIDTHS)
    + ". A single unit: "
    + ", ".join(f"{excess[n][:, 1].mean():.2f}" for n in WIDTHS)
    + ". Independent inputs would have "
    + ", ".join(f"{3 * KURTOSIS / (n + 2):.2f}" for n in WIDTHS)
    + ".",
)

# %% [markdown]
# So a layer of 100 inputs is Gaussian enough, *in layer 2*. Further up, two things change: the
# inputs of a layer get more and more in common, and any change of size goes on to the next layer.
# Here is the excess kurtosis of a single unit over inputs, in 25 layers of 100 units, for the three
# ways that lesson 8 compares: $\gamma = 1$; $\gamma = 1/1.21$, which the paper recommends; and the
# *exact* mode, with $\gamma = \beta = 1$ and the constants of what then enters ReLU.

# %%
DEPTH, WIDTH, SAMPLE, NETWORKS = 25, 100, 1000, 6
shifted = tp.moments.gaussian("relu", 1.0, 1.0)  # mean and standard deviation of relu(Z + 1)
WAYS = {
    "gamma = 1": (1.0, 0.0, C1, C2),
    "gamma = 1/1.21": (math.sqrt((math.pi - 1) / math.pi), 0.0, C1, C2),
    "exact mode": (1.0, 1.0, shifted.std, shifted.mean),
}


def kurtosis_by_layer(random, gamma, beta, c1, c2):
    h, found = random.standard_normal((SAMPLE, WIDTH)), []
    for _ in range(DEPTH):
        u = gamma * h @ unit_rows(random, WIDTH).T
        found.append(excess_kurtosis(u)[1])
        h = (np.maximum(u + beta, 0) - c2) / c1
    return found


deep = {}
for name, way in WAYS.items():
    random = np.random.default_rng(0)
    deep[name] = np.array([kurtosis_by_layer(random, *way) for _ in range(NETWORKS)])
    mean, error = deep[name].mean(axis=0), deep[name].std(axis=0, ddof=1) / math.sqrt(NETWORKS)
    print(
        f"{name:14} layer 2: {mean[1]:+.2f} +- {error[1]:.2f}, layer 9: {mean[8]:+.2f} +- "
        f"{error[8]:.2f}, layer {DEPTH}: {mean[-1]:+.2f} +- {error[-1]:.2f}"
    )
ends = {name: values[:, -1].mean() for name, values in deep.items()}
claim(
    "with gamma = 1, layer 2 is below 0.15, layer 9 above 1 and layer 25 above 20",
    deep["gamma = 1"].mean(axis=0)[1] < 0.15
    and deep["gamma = 1"].mean(axis=0)[8] > 1
    and ends["gamma = 1"] > 20,
)
claim(
    "with gamma = 1/1.21 it stays below 0.5, in the exact mode between -0.3 and 0.1",
    deep["gamma = 1/1.21"].mean(axis=0).max() < 0.5
    and -0.3 < deep["exact mode"].mean(axis=0).min() <= deep["exact mode"].mean(axis=0).max() < 0.1,
)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.0)
place = {"gamma = 1": (16, 30), "gamma = 1/1.21": (16, 1.1), "exact mode": (16, -0.85)}
for (name, values), colour in zip(deep.items(), (BLUE, RED, GREEN), strict=True):
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(NETWORKS)
    axes.errorbar(np.arange(1, DEPTH + 1), mean, error, fmt="o-", color=colour, markersize=3)
    label = name.replace("gamma", r"$\gamma$")
    axes.text(*place[name], label, color=colour, ha="right" if name == "gamma = 1" else "left")
axes.axhline(0, color=BLACK, linewidth=0.7)
axes.set_yscale("symlog", linthresh=1)
axes.set_yticks([-1, 0, 1, 10, 100], ["-1", "0", "1", "10", "100"])
axes.set(title="Excess kurtosis of a unit over inputs", xlabel="layer", ylim=(-1.5, 150))
show(
    figure,
    f"Excess kurtosis of a unit over inputs against the layer, 1 to {DEPTH}, for three ways. "
    + " ".join(
        f"{name}: {v.mean(axis=0)[1]:+.2f} in layer 2, {v.mean(axis=0)[8]:+.2f} in layer 9, "
        f"{v.mean(axis=0)[-1]:+.2f} in layer {DEPTH}."
        for name, v in deep.items()
    ),
)

# %% [markdown]
# With $\gamma = 1$ the bell curve is lost: a few inputs get very large signals (with 25 layers the
# fourth moment rests on so few of them that other networks may give half or twice this number).
# Lesson 8 explains it: sizes above 1 grow. With $\gamma = 1/1.21$, and in the exact mode, units stay
# nearly Gaussian. In the exact mode the value is below 0: a curve with shorter tails than the bell.
#
# The theorem asks for *independent* terms and many of them. A row that learns to listen to one input
# only is back at width 1, and inputs that move together count as few.
#
# ## The gradient, checked
#
# The length $|w|$ is part of the function, so the gradient passes through it. We wrote no gradient:
# the engine derives it. `tp.check_gradients` compares it with central differences in float64, and the
# gradient of the gradient as well. (At ReLU's kink, where its slope jumps, a central difference is
# meaningless; these inputs keep away from it.)

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
# **"Weight decay keeps the weights small, so it makes the function simpler."** Here it cannot: the
# function does not depend on their length. What it changes is the *next steps*. Decay shortens $w$,
# short weights turn further in a step, and so decay acts as a schedule of the learning rate. With
# gradient descent on a layer whose lengths are *not* put back, watch the angle that a row turns in
# one step.


# %%
def angles(decay, steps=300, rate=3.0):
    """The angle that rows turn in a step, in degrees (a mean of the last 100 steps), and their length
    in the end."""
    layer, found = NormProp(20, 10), []
    inputs = tp.tensor(np.random.default_rng(2).standard_normal((200, 20), np.float32))
    for _ in range(steps):
        layer.weight.grad = None
        (layer(inputs) ** 3).mean().backward()
        old = layer.weight.data.astype(np.float64)
        new = (1 - rate * decay) * old - rate * layer.weight.grad.data
        layer.weight.data = new.astype(np.float32)
        cosine = (old * new).sum(axis=1) / np.linalg.norm(old, axis=1) / np.linalg.norm(new, axis=1)
        found.append(np.degrees(np.arccos(np.minimum(cosine, 1))).mean())
    return np.mean(found[-100:]), np.linalg.norm(new, axis=1).mean()


turning = {decay: angles(decay) for decay in (0.0, 0.001, 0.003)}
for decay, (angle, length) in turning.items():
    print(f"decay {decay:g}: a row turns by {angle:.1f} degrees a step; its length is {length:.2f}")
small = NormProp(20, 10)
shrunk = NormProp(20, 10)
shrunk.weight.data = shrunk.weight.data * np.float32(0.5)
inputs = tp.tensor(np.random.default_rng(2).standard_normal((200, 20), np.float32))
claim(
    "weights of half the length are the same function",
    np.allclose(small(inputs).data, shrunk(inputs).data, atol=1e-5),
)
claim(
    "the more decay, the further a step turns a row",
    turning[0.0][0] < turning[0.001][0] < turning[0.003][0],
)

# %% [markdown]
# ## The small print
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

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.8)
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
show(
    figure,
    "A histogram of the variance of w x / |w| over image patches. Random filters: "
    f"{(found['random'] ** 2).min():.2f} to {(found['random'] ** 2).max():.1f}, "
    f"{(found['random'] ** 2).mean():.2f} on average. Lines: checks at {found['checks'][0] ** 2:.2f}, "
    f"blur at {found['blur'][0] ** 2:.1f}, and 1, which is promised.",
)
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
# **6.4** How wide must layer 1 be, so that the excess kurtosis of all pre-activations of layer 2
# together is below $\epsilon$, by the law above? Take ReLU, $k = 2.4076$, and mind that the units share
# their input.


# %%
def width_for(epsilon): ...  # your code: the smallest whole number


check("6.4", width_for)

# %% [markdown]
# **6.5 Project, part 3: NormProp on your engine.** `engine(2)` is the class that you kept in exercise
# 2.5, or a given one. Write the layer for ReLU with it: $x$ is (samples, inputs), $w$ is (units,
# inputs), $\gamma$ and $\beta$ are (units,), and all of them, and the result, are `Array`s. You may
# teach your class more rules (ReLU, a division, the lengths of rows), or write the layer as a single
# step with a `pull` of its own. Do not forget that $|w|$ depends on $w$.


# %%
class Array(engine(2)): ...  # your code: more rules, if you like


def normprop_of_arrays(x, w, gamma, beta): ...  # your code: return an Array


check("6.5", (Array, normprop_of_arrays))

# %% [markdown]
# **6.6** Measure your layer, with $\gamma = 1$ and $\beta = 0$. Given the arrays $x$, $w$ and $g$, a
# gradient of the outputs, return three numbers: the mean and the standard deviation of all outputs
# together, and the *gain* of the gradient: the root mean square of the gradient with respect to $x$,
# over that of $g$. The check compares them with tinyprop's layer. Lesson 7 explains the gain.


# %%
def measure(x, w, g):
    return ..., ..., ...


check("6.6", measure)

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

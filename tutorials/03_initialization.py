# %% [markdown]
# # 3. How to start
#
# **Goal.** Derive how large the first, random weights of a network should be (Glorot's and He's
# rules), watch what happens otherwise, and see what a rule that holds "on average" leaves out.
#
# Before training, the weights are random numbers. How large? It hardly matters for one layer, and
# decides everything for thirty, because what one layer does to the size of its signal, the next one
# does again. Here are networks of 30 ReLU layers of 100 units, $\mathrm{relu}(u) = \max(0, u)$,
# with weights of four sizes. Left: the size of the signal on its way up. Right: the size of a
# gradient on its way down. Both have logarithmic scales.

# %% tags=["hide-input"]
import math
from itertools import pairwise

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, GRAY, GREEN, RED, SKY, check, claim, hint, panels, predict, reveal, show

# %%
WIDTH, DEPTH, SAMPLES = 100, 30, 50


def weights(random, outputs, inputs, variance):
    return random.standard_normal((outputs, inputs)) * math.sqrt(variance)


def sizes_by_layer(scale, seed=0, activation=F.relu):
    """Root mean square of the pre-activations of each layer, and of their gradients."""
    random = np.random.default_rng(seed)
    h, all_u = tp.tensor(random.standard_normal((SAMPLES, WIDTH)), requires_grad=True), []
    for _ in range(DEPTH):
        u = h @ weights(random, WIDTH, WIDTH, scale / WIDTH).T
        all_u.append(u)
        h = activation(u)
    gradients = tp.grad(h, all_u, random.standard_normal(h.shape))
    return [[math.sqrt((t.data**2).mean()) for t in tensors] for tensors in (all_u, gradients)]


layers = np.arange(1, DEPTH + 1)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 8.6, 3.2)
found = {}
for scale, colour, low in ((1.0, RED, 1e-5), (1.8, SKY, 0.04), (2.0, BLUE, 4), (3.0, GREEN, 700)):
    found[scale] = sizes_by_layer(scale)
    for axes, line in zip((left, right), found[scale], strict=True):
        axes.semilogy(layers, line, color=colour)
    left.text(24, low, f"${scale:g}/n$", color=colour, ha="right")
left.set(
    title="Signal, root mean square; weights of variance ...", xlabel="layer", ylim=(1e-6, 1e4)
)
right.set(title="Gradient, root mean square", xlabel="layer", ylim=(1e-6, 1e4))
show(
    figure,
    f"Two panels over {DEPTH} layers, on logarithmic scales. "
    + " ".join(
        f"Variance {scale:g}/n: the signal goes from {up[0]:.2g} to {up[-1]:.2g}, the gradient from "
        f"{down[-1]:.2g} at the top to {down[0]:.2g} at the bottom."
        for scale, (up, down) in found.items()
    ),
)

# %% [markdown]
# ## Forwards
#
# A unit has $n$ inputs $x_1, \dots, x_n$ and computes $u = \sum_i w_i x_i$, its *pre-activation*;
# what it hands on is $\mathrm{relu}(u)$. Draw the weights independently, with mean 0 and variance
# $v$. What is $E[u^2]$, the mean of $u^2$ over all such draws? In $u^2 = \sum_{i,j} w_i
# w_j x_i x_j$, all terms with $i \ne j$ average to 0, since $E[w_i w_j] = 0$. The others have
# $E[w_i^2] = v$:
# $$ E[u^2] = v \sum_i x_i^2 = n v \cdot \overline{x^2}, $$
# where $\overline{x^2}$ is the mean square of the inputs. Without an activation, $v = 1/n$ keeps
# the size.
#
# ReLU sets about half of the $u$ to 0: as $u$ is as often positive as negative, with the same
# distribution, $E[\mathrm{relu}(u)^2] = \frac12 E[u^2]$. So a layer multiplies the mean square by
# $nv/2$, and $L$ layers by $(nv/2)^L$. It stays as it is for
# $$ v = \frac{2}{n} \qquad\text{(He et al., 2015).} $$
# With $v = 1/n$ each layer halves the mean square. How large is the root mean square of $u$ in
# layer 30?

# %%
QUESTION = "signal in layer 30 with variance 1/n"
predict(QUESTION)

# %%
measured = [sizes_by_layer(1.0, seed)[0][-1] for seed in range(8)]
reveal(QUESTION, float(np.sqrt(np.mean(np.square(measured)))))
print(f"by the formula, the root of 2^-29: {math.sqrt(0.5**29):.2e}")

# %% [markdown]
# ## Backwards
#
# If the unit's $m$ successors have the gradients $g_1, \dots, g_m$, the gradient with respect to
# the unit's output is $\sum_j w_{ji} g_j$: the same kind of sum, over the *outputs* of the layer.
# So backwards, the mean square is multiplied by $m v$, and by $1/2$ for the units that ReLU has
# switched off. It is kept if $v = 2/m$.
#
# For a square layer, $m = n$, both conditions agree. Otherwise they do not. Glorot and Bengio
# (2010) proposed the compromise, for activations like $\tanh$ that are nearly a line around 0 (so
# without the factor 2 of ReLU):
# $$ v = \frac{2}{n + m}. $$
# They draw from a *uniform* distribution on $[-r, r]$. Its variance is $r^2/3$, which gives $r =
# \sqrt{6/(n + m)}$.
#
# ## Does tanh keep the signal?
#
# Near 0, $\tanh u \approx u$, so Glorot's rule should keep the signal of a $\tanh$ network. It does
# not quite: $\tanh$ is always a little smaller than $u$. With Gaussian weights, $u = \sum_i w_i x_i$
# is a sum of Gaussian numbers, so *for a fixed input, over the weights*, it is exactly Gaussian. Its
# variance is the mean square of the layer's input, which hardly varies in a wide layer. So the mean
# square $q$ of the next layer is $E \tanh(\sqrt q Z)^2$ with a standard normal $Z$, which
# `tp.moments.gaussian` computes exactly. (Over *inputs*, for fixed weights, $u$ need not be Gaussian:
# that is another bell curve, and lesson 6 is about it.)

# %%
q, curve = 1.0, []
for _ in layers:
    curve.append(math.sqrt(q))
    m = tp.moments.gaussian("tanh", 0.0, math.sqrt(q))
    q = m.mean**2 + m.std**2

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.8)
found = sizes_by_layer(1.0, activation=F.tanh)[0]
axes.plot(layers, found, "o", color=BLUE, markersize=4)
axes.plot(layers, curve, color=BLUE, linewidth=1)
axes.text(8, 0.5, "dots: a network of 100 units\nline: infinitely wide", color=BLUE)
axes.set(title=r"tanh, Glorot's weights: signal", xlabel="layer", ylim=(0, 1.1))
show(
    figure,
    f"Root mean square of the signal of a tanh network against the layer: it falls from {curve[0]:.2f} to "
    f"{curve[-1]:.2f}. Dots of one network of 100 units end at {found[-1]:.2f}.",
)

# %%
print(
    f"tanh in layer 30: root mean square {curve[-1]:.3f}; it falls like a power of the depth, "
    "not exponentially"
)

# %% [markdown]
# ## On average
#
# He's rule keeps the *expectation* of the mean square. What does a single network do? Here are many
# networks of 12 layers, and the mean square of their last layer for one input of mean square 1.


# %%
FEW = 12  # layers


def last_mean_square(width, networks, random):
    """For many networks at once: (networks,)"""
    h = np.ones((networks, width, 1))
    for _ in range(FEW):
        u = weights(random, networks * width, width, 2 / width).reshape(networks, width, width) @ h
        h = np.maximum(u, 0)
    return (h**2).mean(axis=(1, 2))


# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.8)
for width, networks, colour, place in ((100, 100, BLUE, (0.3, 0.8)), (20, 2000, RED, (-2.6, 0.45))):
    found = last_mean_square(width, networks, np.random.default_rng(0))
    shown = np.log10(np.maximum(found, 1e-3))
    axes.hist(shown, bins=np.linspace(-3, 1.5, 28), density=True, color=colour, alpha=0.5)
    axes.text(*place, f"width {width}", color=colour)
    spread = (1 + 5 / width) ** FEW
    print(f"width {width:3}: mean {found.mean():.2f}, median {np.median(found):.2f};", end=" ")
    print(f"mean of the square {np.mean(found**2):.1f}, by the formula {spread:.1f}")
axes.axvline(0, color=GRAY, linestyle=":")
axes.set(title=f"Mean square in layer {FEW}, He's weights", xlabel="power of ten", yticks=[])
show(
    figure,
    f"Histograms of the mean square in layer {FEW} of many networks, on a logarithmic scale. Those of "
    "width 100 are narrow around 1; those of width 20 are wide, lopsided, and mostly below 1.",
)

# %% [markdown]
# The mean is near 1, but the typical network is below, and some are far above. The wider the
# layers, the narrower the distribution: the mean of the square is $(1 + 5/n)^L$, exactly. (For
# width 20 the average over so many networks is still not settled: a few very large values carry
# it.) A rule about averages is a rule about *wide* networks.
#
# ## Does it matter for training?
#
# The three spirals of lesson 2 again, with 20 hidden ReLU layers and three sizes of weights, for
# four random starts each. The learning rate is the same for all.

# %%
random = np.random.default_rng(0)
turn = np.linspace(0.15, 1, 60)
angle = 4.2 * turn + 2 * np.pi / 3 * np.arange(3)[:, None] + 0.12 * random.standard_normal((3, 60))
points = 1.7 * np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=-1).reshape(-1, 2)
labels = np.repeat(np.arange(3), 60)


def losses_with(scale, seed, hidden=20, width=32, steps=150, rate=0.03):
    random = np.random.default_rng(seed)
    sizes = [2] + [width] * hidden + [3]
    layers = [
        tp.tensor(weights(random, m, n, scale / n), requires_grad=True) for n, m in pairwise(sizes)
    ]
    biases = [tp.zeros(m, requires_grad=True, dtype="float64") for m in sizes[1:]]
    optimizer, losses = tp.optim.SGD([*layers, *biases], lr=rate, momentum=0.0), []
    for _ in range(steps):
        h = tp.tensor(points)
        for w, b in zip(layers[:-1], biases[:-1], strict=True):
            h = F.relu(h @ w.T + b)
        loss = F.cross_entropy(h @ layers[-1].T + biases[-1], labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
    return losses


# %% tags=["takes-12s"]
RUNS = 4  # short: 1
trained, ends = {}, []
for scale in (1.0, 2.0, 3.0):
    with np.errstate(all="ignore"):
        trained[scale] = [losses_with(scale, seed) for seed in range(1, RUNS + 1)]
    first = np.mean([losses[0] for losses in trained[scale]])
    learnt = sum(min(losses) < 0.8 for losses in trained[scale])
    lost = sum(not math.isfinite(losses[-1]) for losses in trained[scale])
    print(
        f"variance {scale:g}/n: mean loss {first:.3g} at first; of {RUNS} runs, {learnt} "
        f"get below 0.8, {lost} overflow"
    )
    ends.append(f"Variance {scale:g}/n: {learnt} of {RUNS} get below 0.8, {lost} overflow.")

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.8)
for runs, colour in zip(trained.values(), (RED, BLUE, GREEN), strict=True):
    for losses in runs:
        axes.plot(losses, color=colour, alpha=0.7, linewidth=1.2)
axes.axhline(math.log(3), color=GRAY, linestyle=":")
axes.text(151, 1.15, "$1/n$", color=RED)
axes.text(151, 0.4, "$2/n$", color=BLUE)
axes.text(3, 2.7, "$3/n$: off the scale", color=GREEN)
axes.set(
    title="Training loss of 20 hidden layers; weights of variance ...", xlabel="step", ylim=(0, 3)
)
show(
    figure,
    "Training loss over 150 steps for three sizes of weights, each with several random starts; a line "
    "marks ln 3 = 1.10. " + " ".join(ends),
)

# %% [markdown]
# With variance $1/n$ the network stays near $\ln 3 = 1.10$, where it knows nothing. With $3/n$ the
# first loss is far above that, the first gradient is as large, and the first steps throw the weights
# so far that the numbers overflow. With He's $2/n$ it learns, by fits and starts.
#
# Is that the size of the weights, or only a learning rate that does not suit it? And is it the depth?
# Change one of them at a time. (This trains 28 networks, four of them for twice as many steps; with
# the short form above, seven.)


# %% tags=["takes-30s"]
def successes(scale, **changes):
    """The fraction of runs that get below a loss of 0.8."""
    with np.errstate(all="ignore"):
        runs = [losses_with(scale, seed, **changes) for seed in range(1, RUNS + 1)]
    return np.mean([min(losses) < 0.8 for losses in runs])


small_steps = successes(3.0, rate=0.003)
claim(f"with 3/n, a tenth of the rate helps: {small_steps:.0%} of runs learn", small_steps > 0.7)
large_steps = max(successes(1.0, rate=rate) for rate in (0.3, 3.0))
claim(
    "with 1/n, ten or a hundred times the rate does not: at most half of the runs learn",
    large_steps <= 0.5,
)
patient = successes(1.0, rate=0.1, steps=300)
claim(
    f"with 1/n, three times the rate *and* twice the steps do: {patient:.0%} of runs learn",
    patient > 0.7,
)
shallow = [successes(scale, hidden=4) for scale in (1.0, 2.0, 3.0)]
claim(
    "with 4 hidden layers in place of 20, all sizes learn: "
    + ", ".join(f"{fraction:.0%}" for fraction in shallow),
    min(shallow) > 0.7,
)

# %% [markdown]
# Too large a start can be made up for by small steps. Too faint a signal costs time: a larger rate
# alone does not make up for it, but a larger rate and more steps do. And nothing holds the sizes
# where they started: during training, every weight moves.
# Holding them is what the *normalisers* of the next lessons are for.
#
# ## Exercises
#
# **3.1** The leaky ReLU is $u$ above 0 and $a u$ below. Which standard deviation of the weights
# keeps the mean square of a layer with $n$ inputs?


# %%
def he_std(inputs, a): ...  # your code; a = 0 is ReLU


check("3.1", he_std)
# hint("3.1")

# %% [markdown]
# **3.2** Glorot's weights are uniform on $[-r, r]$. Return $r$ for a layer of so many inputs and
# outputs.


# %%
def glorot_bound(inputs, outputs): ...  # your code


check("3.2", glorot_bound)

# %% [markdown]
# **3.3** What is the root mean square of $u$ in layer $L$ of a ReLU network whose weights have
# variance $c/n$, if the inputs have mean square 1? ($u$ in layer 1 has seen one matrix of weights
# and no ReLU.)


# %%
def size_in_layer(c, layer): ...  # your code


check("3.3", size_in_layer)

# %% [markdown]
# **3.4** Any activation. Given a function $s$ that acts on arrays, return the number $g$ such that
# weights of standard deviation $g/\sqrt n$ keep the mean square of $u$ at 1. A few digits are
# enough: take many normal numbers, or integrate.


# %%
def gain(s): ...  # your code


check("3.4", gain)

# %% [markdown]
# Solutions, with derivations:
# [solutions/03_initialization.ipynb](solutions/03_initialization.ipynb).
#
# ## Read next
#
# - [`tinyprop/nn/init.py`](../tinyprop/nn/init.py): these, and orthogonal,
#   data-dependent and Fixup initialisation.
# - Glorot and Bengio, *Understanding the difficulty of training deep feedforward neural networks*,
#   AISTATS 2010. He, Zhang, Ren and Sun, *Delving deep into rectifiers*, ICCV 2015. `tinyprop
#   verify N09 N10 N11 --explain`.
# - In the [laboratory](../docs/lab/index.html#norm=none/he&depth=30) of the site (`make site`),
#   sliders change the networks of this lesson.
#
# Next: [4. BatchNorm from scratch](04_batchnorm.ipynb).

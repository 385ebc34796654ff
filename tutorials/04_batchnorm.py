# %% [markdown]
# # 4. BatchNorm from scratch
#
# **Goal.** Write batch normalisation: forwards, backwards and for evaluation. Then find out by
# experiment what *internal covariate shift* explains, and what it does not.
#
# Lesson 3 chose the first weights so that signals start at a good size. Batch normalisation (Ioffe
# and Szegedy, 2015) puts them back to a good size in *every* step: it takes a mini-batch and, for
# each unit, subtracts the mean over the batch and divides by the standard deviation. Here are 60
# samples of two units, before and after.

# %%
import numpy as np

import tinyprop as tp
from lesson import BLUE, GRAY, GREEN, ORANGE, RED, check, hint, panels, predict, reveal, show

random = np.random.default_rng(0)
# (samples, units)
batch = random.standard_normal((60, 2)) @ np.array([[2.0, 0.5], [0.0, 0.4]]) + [1.5, -1.0]


def batch_norm(x, gamma=1.0, beta=0.0, eps=1e-5):
    """Each unit (column) gets mean beta and standard deviation gamma over the batch (rows)."""
    mean, var = x.mean(axis=0), x.var(axis=0)
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


figure, (left, right) = panels(2, 7.4, 3.3)
for axes, values, title in ((left, batch, "Before"), (right, batch_norm(batch), "After BatchNorm")):
    axes.axhline(0, color=GRAY, linewidth=0.7)
    axes.axvline(0, color=GRAY, linewidth=0.7)
    axes.plot(*values.T, "o", color=BLUE, markersize=3.5, alpha=0.7)
    axes.errorbar(*values.mean(axis=0), *values.std(axis=0)[::-1], "o", color=RED, capsize=4)
    axes.set(title=title, xlim=(-5, 7), ylim=(-4, 4), xlabel="unit 1", ylabel="unit 2")
left.text(0.3, 2.8, "red: mean and\nstandard deviation", color=RED, fontsize=9)
show(figure)
after = batch_norm(batch)
print(
    "equals tp.nn.BatchNorm:",
    np.allclose(tp.nn.BatchNorm(2)(tp.tensor(batch)).numpy(), after, atol=1e-6),
)
print(
    f"correlation of the two units: {np.corrcoef(batch.T)[0, 1]:.2f} before, "
    f"{np.corrcoef(after.T)[0, 1]:.2f} after"
)

# %% [markdown]
# With $B$ samples $x_1, \dots, x_B$ of one unit,
# $$ \mu = \frac1B \sum_i x_i, \qquad \sigma^2 = \frac1B \sum_i (x_i - \mu)^2, \qquad
# \hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad y_i = \gamma \hat x_i + \beta. $$
# The small $\epsilon$ avoids a division by 0. The scale $\gamma$ and the shift $\beta$ are learnt,
# so that the layer can still have any mean and size, but as parameters of its own rather than as a
# side effect of all the weights below. Note what it does *not* do: it treats each unit alone, so
# correlations between units stay.
#
# ## Backwards
#
# A sample now influences the outputs of the *other* samples: through $\mu$ and through $\sigma$.
# Let $g_i = dL/d\hat x_i$ and leave $\epsilon$ out. We need $d\hat x_i / dx_j$. The numerator $x_i
# - \mu$ has the derivative $[i = j] - \frac1B$. For the denominator, $d\sigma^2/dx_j = \frac2B (x_j
# - \mu)$, so $d\sigma/dx_j = \hat x_j / B$. By the quotient rule,
# $$ \frac{d\hat x_i}{dx_j} = \frac1\sigma \Big( [i = j] - \frac1B - \frac{\hat x_i \hat x_j}{B} \Big),
# \qquad\text{so}\qquad \frac{dL}{dx_j} = \frac1\sigma \Big( g_j - \overline{g} - \hat x_j\,
# \overline{g \hat x} \Big), $$ where a bar is the mean over the batch. In words: take the gradient,
# remove its mean, remove its part along $\hat x$, and divide by $\sigma$. Both removals have a
# reason. Adding a constant to all $x_i$ changes nothing, so the gradient has no part in that
# direction; multiplying all of them by a constant changes nothing either.


# %%
def batch_norm_gradient(x, g, gamma=1.0, eps=1e-5):
    """The gradient with respect to x, given that with respect to the output."""
    std = np.sqrt(x.var(axis=0) + eps)
    normal, g = (x - x.mean(axis=0)) / std, gamma * g
    return (g - g.mean(axis=0) - normal * (g * normal).mean(axis=0)) / std


g = random.standard_normal(batch.shape)
x = tp.tensor(batch, requires_grad=True)
(theirs,) = tp.grad(tp.nn.BatchNorm(2)(x), [x], g)
ours = batch_norm_gradient(batch, g)
print("equals the engine's:", np.allclose(ours, theirs.numpy(), atol=1e-6))
along_one, along_x = ours.sum(axis=0), (ours * (batch - batch.mean(axis=0))).sum(axis=0)
print(
    f"no part along 1 (below 1e-9): {abs(along_one).max() < 1e-9}, hardly any along x: "
    f"{abs(along_x).max():.0e}"
)

# %% [markdown]
# ## Evaluation, and company
#
# When the network is used, there may be no batch: one image arrives. So BatchNorm keeps running
# averages of $\mu$ and $\sigma^2$ during training, $\text{running} \leftarrow 0.9\, \text{running}
# + 0.1\, \text{batch}$, and uses them in evaluation mode. In training mode, what it says of a
# sample depends on the company that the sample is in. For a batch of two this goes to an extreme.

# %%
QUESTION = "largest |output| of BatchNorm for a batch of two"
predict(QUESTION)

# %%
pairs = random.standard_normal((2, 1000)) * random.uniform(0.5, 20, 1000)  # a thousand units
reveal(QUESTION, abs(batch_norm(pairs, eps=0.0)).max())
print(
    f"smallest: {abs(batch_norm(pairs, eps=0.0)).min():.3g}; so with a batch of two, BatchNorm "
    "leaves only signs"
)
try:
    tp.nn.BatchNorm(8)(tp.tensor(np.ones((1, 8), np.float32)))
except tp.ShapeError as refusal:
    print(refusal)

# %% [markdown]
# With one sample, $x - \mu = 0$, and a fully connected layer cannot be normalised at all. In a
# network for images it is different. There, a *convolution* moves one small set of weights, a
# filter, over the image, and computes one number at every place; the map of all these numbers is
# called a *channel* (elective E1 has the details). As all places share the weights, BatchNorm takes
# its statistics over samples *and* places, and a batch of one image is defined. Lesson 10 trains
# with it.
#
# ## Internal covariate shift
#
# To a layer, the layers below are its data set. They are trained at the same time, so its data
# change under its feet. Ioffe and Szegedy called this *internal covariate shift* and gave it as the
# reason why BatchNorm helps. Is it? An experiment decides. We train a small convolutional network
# on images of ten shapes, in four variants, and watch the standard deviation of what each hidden
# layer hands on, always for the same 60 images. The network is written in the paper's shorthand:
# `C(filters, size, stride, padding)` is a convolution, `P(size, stride, padding, mode)` takes the
# largest or the mean number of each window. The variants:
#
# - *plain*, with He's start;
# - *BatchNorm*;
# - *BatchNorm, jolted*: after each BatchNorm, every channel is multiplied and shifted by random
#   numbers that are new in every step. This is the control of Santurkar et al. (2018): it has
#   BatchNorm, and a covariate shift made by hand;
# - *NormProp*, the subject of the next lessons, which uses no statistics of the batch.

# %%
STEPS, EVERY, SEEDS, BATCH = 100, 5, 2, 40
# four hidden layers
SPEC = "C(8,5,2,2)-P(2,2,0,max)-C(16,3,1,1)-C(16,3,1,1)-C(16,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
train, test = tp.data.load("shapes").first(BATCH * STEPS), tp.data.load("shapes", split="test")
normalise = tp.data.GlobalNormalizer((3, 32, 32)).fit(train.images)
images, watched = normalise(tp.tensor(train.images)).data, normalise(tp.tensor(test.images[:60]))


class Jolt(tp.nn.Module):
    """Multiply and shift each channel by random numbers, new in every pass."""

    def __init__(self, channels, seed, size=0.2):
        self.shape, self.random, self.size = (1, channels, 1, 1), np.random.default_rng(seed), size

    def forward(self, x):
        scale, shift = self.size * self.random.standard_normal((2, *self.shape)).astype(np.float32)
        return x * tp.tensor(np.exp(scale)) + tp.tensor(shift)


def build(kind, seed):
    tp.manual_seed(seed)
    if kind == "plain":
        return tp.nn.build(SPEC, norm="none", init="he")
    net = tp.nn.build(SPEC, norm="normprop" if kind == "NormProp" else "batch")
    if kind != "BatchNorm, jolted":
        return net
    pairs = [
        (layer, Jolt(layer.num_features, seed)) if isinstance(layer, tp.nn.BatchNorm) else (layer,)
        for layer in net
    ]
    return tp.nn.Sequential(*(layer for pair in pairs for layer in pair))


def watch(kind, seed):
    """Train; at each look, the standard deviation of what every hidden layer hands on; and all
    losses."""
    net = build(kind, seed)
    step = tp.train.TrainingStep(
        net, tp.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), threads=1
    )
    looks, losses = [], []
    for i, part in enumerate(
        np.random.default_rng(seed).permutation(len(images)).reshape(-1, BATCH)
    ):
        if i % EVERY == 0:
            signals = tp.nn.signals(net, watched)
            looks.append(
                [s.std for s in signals if s.layer.endswith(("Activation", "NormPropConv2d"))]
            )
        losses.append(float(step(tp.tensor(images[part]), train.labels[part])))
    return np.array(looks), np.array(losses)


KINDS = {"plain": GRAY, "BatchNorm": RED, "BatchNorm, jolted": ORANGE, "NormProp": BLUE}
runs = {kind: [watch(kind, seed) for seed in range(SEEDS)] for kind in KINDS}

figure, every = panels(4, 9.6, 2.8)
for axes, kind in zip(every, KINDS, strict=True):
    looks, _ = runs[kind][0]
    for layer, colour in enumerate((BLUE, GREEN, ORANGE, RED)):
        axes.semilogy(
            EVERY * np.arange(len(looks)), looks[:, layer], color=colour, label=f"layer {layer + 1}"
        )
    axes.set(title=kind, xlabel="step", ylim=(0.08, 5))
    axes.set_yticks([0.1, 1.0], ["0.1", "1"])
every[0].legend(fontsize=8, ncols=2, loc="upper left")
every[0].set_ylabel("standard deviation")
show(figure)

# %% [markdown]
# How much does a line move? Add up the changes of its logarithm from look to look, over the whole
# training: that is its *movement*. Beside it, the loss at the end.

# %%
figure, (axes,) = panels(1, 6.5, 2.9)
print(f"{'':18} {'movement':>15} {'loss at the end':>17}")
for kind, colour in KINDS.items():
    movement = [abs(np.diff(np.log(looks), axis=0)).sum(axis=0).mean() for looks, _ in runs[kind]]
    ends = [losses[-10:].mean() for _, losses in runs[kind]]
    print(
        f"{kind:18} {' and '.join(f'{v:.1f}' for v in movement):>15} "
        f"{' and '.join(f'{v:.2f}' for v in ends):>17}"
    )
    curves = np.array([np.convolve(losses, np.ones(10) / 10, "valid") for _, losses in runs[kind]])
    steps = 10 + np.arange(curves.shape[1])
    axes.fill_between(
        steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.2, linewidth=0
    )
    axes.plot(steps, curves.mean(axis=0), color=colour, label=kind)
axes.set(title=f"Training loss, mean of 10 steps; bands: {SEEDS} seeds", xlabel="step")
axes.legend(loc="lower left", fontsize=9)
show(figure)
print(f"one number for each seed; a network that knows nothing has a loss of {np.log(10):.2f}")

# %% [markdown]
# Read the table line by line.
#
# - The *jolted* network moves at least four times as much as BatchNorm, and learns nearly as fast.
#   So a covariate shift of this size does little harm: BatchNorm works with it as well as nearly
#   without it.
# - *NormProp* moves several times as much as BatchNorm, about as much as the jolted and the plain
#   network, and learns about as fast as BatchNorm. Its curves jump at this learning rate, so that
#   rounding alone can move its numbers at the end: trust no digit of them.
# - The *plain* network starts with signals of a good size in all layers, thanks to He, and has
#   hardly begun to learn. So a good start is not the whole explanation either.
#
# What BatchNorm does change is the function that is being minimised: scaling the weights of a layer
# has no effect, and two directions are removed from every gradient. Santurkar et al. measured that
# the loss becomes smoother along the gradient, so that longer steps are safe. Keep the experiment
# in mind when somebody explains a normaliser by covariate shift alone; and note how little two
# seeds say. Lesson 10 uses more.
#
# ## Exercises
#
# **4.1** BatchNorm for images. $x$ has the shape (samples, channels, height, width), and a channel
# is normalised over samples *and* places. Return the normalised array, with $\gamma = 1$, $\beta =
# 0$ and the given $\epsilon$.


# %%
def batch_norm_images(x, eps): ...  # your code


check("4.1", batch_norm_images)
# hint("4.1")

# %% [markdown]
# **4.2** Backwards through $\hat x$ of one unit, without $\epsilon$. Given the samples $x$, of
# shape $(B,)$, and $g = dL/d\hat x$, return $dL/dx$. Try it yourself before you look above.


# %%
def normalized_gradient(x, g): ...  # your code


check("4.2", normalized_gradient)

# %% [markdown]
# **4.3** Evaluation mode. Given the batch means of all training steps in order, an array of shape
# (steps,), return the running mean after them. It starts at 0, and `momentum` is the weight of the
# new batch.


# %%
def running_mean(batch_means, momentum): ...  # your code


check("4.3", running_mean)

# %% [markdown]
# **4.4** Which is the largest value that BatchNorm (with $\epsilon = 0$) can give to a sample in a
# batch of $B$?


# %%
def largest_output(batch_size): ...  # your code


check("4.4", largest_output)

# %% [markdown]
# Solutions, with derivations: [solutions/04_batchnorm.ipynb](solutions/04_batchnorm.ipynb).
#
# ## Read next
#
# - [`tinyprop/functional/normalization.py`](../tinyprop/functional/normalization.py): `Normalize`
#   is this lesson's forward and backward, for BatchNorm, LayerNorm and GroupNorm at once.
# - Ioffe and Szegedy, *Batch normalization*, ICML 2015. Santurkar, Tsipras, Ilyas and Madry, *How
#   does batch normalization help optimization?*, NeurIPS 2018. `tinyprop verify N01 N02 N04
#   --explain`.
# - In the [laboratory](../docs/lab/index.html#norm=batch&depth=30&batch=2) of the site (`make
#   site`), sliders change the networks of this lesson.
#
# Next: [5. The two constants](05_two_constants.ipynb).

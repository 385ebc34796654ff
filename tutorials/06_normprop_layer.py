# %% [markdown]
# # 6. NormProp from equation to layer
#
# **Goal.** Write the paper's layer in a dozen lines, test every property it promises, and check its gradient.
#
# The equation (section 4.3 of the paper), for one unit with weights $w$, scale $\gamma$ and shift $\beta$:
# $$ o = \frac{1}{c_1}\Big[\, s\Big(\gamma\,\frac{w \cdot x}{|w|} + \beta\Big) - c_2 \Big] $$
# If $x$ has independent entries of mean 0 and variance 1, then $w \cdot x / |w|$ has mean 0 and variance 1, whatever
# $w$ is: lengths of vectors are all that counts. If it is Gaussian, too, then $c_1$ and $c_2$ of lesson 4 normalise
# what comes out, and the next layer starts where this one did. *Normalisation propagates.*

# %%
import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLACK, BLUE, GRAY, RED, panels, show


class NormProp(tp.nn.Module):
    def __init__(self, inputs, units, gamma=1.0):
        random = np.random.default_rng(0)
        self.weight = tp.tensor(random.standard_normal((units, inputs), np.float32), requires_grad=True)
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
print(f"means {means.mean():+.3f} +- {means.std():.3f}, standard deviations {stds.mean():.3f} +- {stds.std():.3f}")
print(f"of a mean of {SAMPLES} samples one expects a spread of {SAMPLES**-0.5:.3f}")

# %% [markdown]
# No batch was looked at: the spread is chance, not the layer. tinyprop's own layer is the same function, with
# $\gamma/(c_1|w|)$ multiplied into the weights first, so that little is left to do for each sample.

# %%
theirs = tp.nn.NormPropLinear(INPUTS, UNITS, gamma=1.0)
theirs.weight.data = layer.weight.data.copy()
print("equals tp.nn.NormPropLinear:", np.allclose(theirs(x).data, out.data, atol=1e-5))

# %% [markdown]
# ## The gradient, checked
#
# The length $|w|$ is part of the function, so the gradient passes through it. We wrote no gradient: the engine has it.
# `tp.check_gradients` compares it with central differences in float64, and the gradient of the gradient as well. (A
# kink nearby would spoil the differences; none happens to be within reach of these inputs.)

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
# Predict: what changes if all weights are multiplied by 10? And what is the angle between $w$ and its gradient?
#
# The function does not change. So along $w$ it is constant, and the gradient has no part along $w$: they are
# orthogonal. And the same function of longer weights is flatter by 10. That is why, after each step, tinyprop puts the
# weights back to length 1 (`tp.optim.normalize_weights`, section 4.4): it is free for the function, but without it
# every step makes $w$ longer, by Pythagoras, and the effective learning rate shrinks as $1/|w|^2$.


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
# "If $x$ has independent entries" was an assumption. The pixels of an image are not independent: neighbours are alike.
# Then the variance of $w \cdot x/|w|$ depends on what $w$ looks for. Take patches of images, normalise each pixel
# over the data, and compare random filters with a blur (all weights equal) and with checks (neighbours of opposite
# sign).

# %%
images = tp.data.load("shapes", split="test").images
patches = images[:, :, 10:15, 10:15].reshape(len(images), -1).astype(np.float32)  # (2000, 75): 5 x 5 x 3 pixels
patches = (patches - patches.mean(axis=0)) / patches.std(axis=0)
filters = np.random.default_rng(0).standard_normal((300, 75)).astype(np.float32)
checks = np.tile((-1.0) ** np.arange(25), 3).astype(np.float32)
found = {
    name: (patches @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T).std(axis=0)
    for name, w in {"random": filters, "blur": np.ones((1, 75), np.float32), "checks": checks[None]}.items()
}

figure, (axes,) = panels(1, 6.5, 2.8)
axes.hist(found["random"] ** 2, bins=np.geomspace(0.03, 60, 40), color=BLUE, alpha=0.75)
axes.set(title=r"Variance of $w \cdot x / |w|$ over patches of pictures", xscale="log", yticks=[])
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
# On average over random filters the promise holds: the mean is 1, up to chance. For a given filter it does not. The
# paper normalises each pixel and hopes for the rest; whitening the data would be the cure. See
# `tinyprop verify C11 --explain`.
#
# ## Exercises
#
# 1. Write a convolutional NormProp layer with `F.conv2d` and compare it with `tp.nn.NormPropConv2d`.
# 2. Fold $c_1$ in: show that $\mathrm{relu}(u + \beta)/c_1 - c_2/c_1$ can be had as $\max(z + b, -t)$, one pass over
#    the samples, with suitable $z$, $b$ and $t$.
# 3. Take 200 steps of plain gradient descent without normalising the weights. Show that $|w|$ never shrinks, and that
#    with `tp.optim.normalize_weights` it stays at 1.
#
# Solutions: [solutions/06_normprop_layer.py](solutions/06_normprop_layer.py).
#
# ## Read next
#
# - [`tinyprop/nn/normalization.py`](../tinyprop/nn/normalization.py): `equation` is the layer, and
#   [`tinyprop/kernels/fused.py`](../tinyprop/kernels/fused.py) folds $c_1$ into its weights.
# - Arpit et al., *Normalization propagation*, ICML 2016, sections 3 and 4. Salimans and Kingma, *Weight normalization*,
#   NeurIPS 2016: the same $w/|w|$, from another direction.
#
# Next: [7. Train it](07_training.ipynb).

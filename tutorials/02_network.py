# %% [markdown]
# # 2. Arrays, and a network that learns
#
# **Goal.** Carry backpropagation from single numbers to matrices, derive the gradient of the loss
# that classifiers use, and train a network by SGD with momentum, first with every gradient written
# by hand.
#
# The task: tell three spirals apart. Each point has two coordinates and a class, 0, 1 or 2. No
# straight line separates them; a network with one hidden layer does. Here are the points, and what
# the network of this lesson will have learnt.

# %%
import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, GRAY, GREEN, RED, check, hint, panels, predict, reveal, show

CLASSES, POINTS, HIDDEN = 3, 100, 32
random = np.random.default_rng(0)
turn = np.linspace(0.15, 1, POINTS)
first = 2 * np.pi / CLASSES * np.arange(CLASSES)[:, None]  # where the spirals start
angle = first + 4.2 * turn + 0.12 * random.standard_normal((CLASSES, POINTS))
points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=-1).reshape(-1, 2)  # (300, 2)
labels = np.repeat(np.arange(CLASSES), POINTS)  # (300,)


def draw_classes(axes, classify):
    """Colour the plane by the class that a function gives to points (N, 2)."""
    grid = np.linspace(-1.25, 1.25, 120)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    classes = classify(plane).reshape(120, 120)
    axes.contourf(
        grid, grid, classes, levels=[-0.5, 0.5, 1.5, 2.5], colors=[BLUE, RED, GREEN], alpha=0.25
    )


def draw_points(axes, title):
    for k, colour in enumerate((BLUE, RED, GREEN)):
        axes.plot(*points[labels == k].T, "o", color=colour, markersize=2.5)
    axes.set(
        title=title, aspect="equal", xticks=[], yticks=[], xlim=(-1.25, 1.25), ylim=(-1.25, 1.25)
    )


def loss_of(w1, b1, w2, b2, x=points):
    """The network in tinyprop, and its mean loss."""
    return F.cross_entropy(F.tanh(tp.tensor(x) @ w1 + b1) @ w2 + b2, labels)


start = [
    3.0 * random.standard_normal((2, HIDDEN)),
    random.standard_normal(HIDDEN),
    random.standard_normal((HIDDEN, CLASSES)) / HIDDEN**0.5,
    np.zeros(CLASSES),
]
parameters = [tp.tensor(p, requires_grad=True) for p in start]
optimizer = tp.optim.SGD(parameters, lr=0.5, momentum=0.9)
for _ in range(150):
    loss = loss_of(*parameters)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def classify(x):
    w1, b1, w2, b2 = (p.data for p in parameters)
    return (np.tanh(x @ w1 + b1) @ w2 + b2).argmax(axis=1)


figure, (left, right) = panels(2, 7.0, 3.3)
draw_points(left, "Three classes")
draw_classes(right, classify)
draw_points(right, "What the network says")
show(figure)
print(f"wrong: {(classify(points) != labels).sum()} of {len(points)} points")

# %% [markdown]
# The network computes, for a point $x$ (a row of 2 numbers),
# $$ h = \tanh(x W_1 + b_1), \qquad z = h W_2 + b_2. $$
# $h$ are the 32 *hidden units*, and $z$ are 3 numbers, the *logits*: the larger $z_k$, the more the
# network believes in class $k$. With all 300 points as the rows of a matrix $X$, one product $X
# W_1$ computes them all.
#
# ## The rule of a matrix product
#
# Let $C = AB$, that is $C_{ij} = \sum_k A_{ik} B_{kj}$. Suppose that we know $G_{ij} = dL/dC_{ij}$,
# the gradient of the loss with respect to each entry of $C$. What is $dL/dA_{ik}$? The entry
# $A_{ik}$ takes part in row $i$ of $C$ only: in $C_{ij}$ it is multiplied by $B_{kj}$. By the chain
# rule, add up over all $j$:
# $$ \frac{dL}{dA_{ik}} = \sum_j G_{ij} B_{kj}, \qquad\text{that is}\qquad \frac{dL}{dA} = G B^T,
# \qquad\text{and likewise}\qquad \frac{dL}{dB} = A^T G. $$ To remember it, look at the shapes: with
# $A$ of shape $(n, k)$ and $B$ of shape $(k, m)$, $G$ is $(n, m)$, and there is only one way to
# make $(n, k)$ from $G$ and $B$.
#
# ## The rule of broadcasting
#
# In $X W_1 + b_1$, the one row $b_1$ is added to all 300 rows. It is used 300 times, so its
# gradient is the *sum* over the rows of $G$. Whatever is repeated forwards is summed backwards.
#
# ## Cross-entropy
#
# Softmax turns logits into probabilities, $p_k = e^{z_k} / \sum_j e^{z_j}$. The loss of a point
# whose class is $y$ is the *cross-entropy*, minus the log of the probability that it got:
# $$ \ell = -\ln p_y = -z_y + \ln \sum_j e^{z_j}. $$
# If the network knows nothing, all $p_k$ are $1/3$, and $\ell = \ln 3$. Its derivative is a
# pleasant surprise:
# $$ \frac{d\ell}{dz_k} = -[k = y] + \frac{e^{z_k}}{\sum_j e^{z_j}} = p_k - [k = y], $$
# where $[k = y]$ is 1 for the right class and 0 otherwise. *What you said, minus what is true.* In
# a program, subtract the largest logit first: $e^{1000}$ overflows, and a shift of all logits
# changes no $p_k$.
#
# Now we have all rules. Forwards and backwards, with NumPy alone:


# %%
def loss_and_gradients(w1, b1, w2, b2, x, y):
    n = len(x)
    h = np.tanh(x @ w1 + b1)  # (n, 32)
    z = h @ w2 + b2  # (n, 3)
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(n), y]).mean()

    to_z = p.copy()
    to_z[np.arange(n), y] -= 1
    to_z /= n  # the loss is a mean
    to_h = to_z @ w2.T  # the rule of a product, for its left factor
    to_u = to_h * (1 - h * h)  # the slope of tanh
    return loss, [x.T @ to_u, to_u.sum(axis=0), h.T @ to_z, to_z.sum(axis=0)]


QUESTION = "loss before training"
predict(QUESTION)

# %%
loss, gradients = loss_and_gradients(*start, points, labels)
leaves = [tp.tensor(p, requires_grad=True) for p in start]
loss_of(*leaves).backward()
reveal(QUESTION, loss)
print(f"a network that says 1/3 for each class has a loss of {np.log(3):.2f}")
for name, ours, theirs in zip(("w1", "b1", "w2", "b2"), gradients, leaves, strict=True):
    print(
        f"{name}: our gradient equals tinyprop's to 1e-12: "
        f"{np.allclose(ours, theirs.grad.numpy(), atol=1e-12)}"
    )

# %% [markdown]
# The loss at the start is *above* $\ln 3$. Random logits prefer one class, mostly the wrong one of
# three, and a wrong preference costs more than a right one saves: $-\ln p$ is steep where $p$ is
# small.
#
# ## SGD and momentum
#
# With the gradient $g$ of a parameter $w$, the simplest step is $w \leftarrow w - \eta g$, where
# $\eta$ is the learning rate. If $g$ is computed from a random part of the data, a *mini-batch*,
# this is stochastic gradient descent, SGD.
#
# Many losses are long valleys: steep across, nearly flat along. A rate that is small enough for the
# steep direction is far too small for the flat one. *Momentum* keeps a velocity $v$ that remembers
# earlier gradients:
# $$ v \leftarrow \mu v + g, \qquad w \leftarrow w - \eta v. $$
# Across the valley, gradients of opposite sign cancel; along it, they add up, to $1/(1 - \mu)$
# times one gradient. Here both go down the valley $f(a, b) = \frac12 (a^2 + 30\, b^2)$, with the
# same rate.


# %%
def descend(rate, momentum, steps=60):
    w, v, path = np.array([-4.0, 1.0]), np.zeros(2), []
    for _ in range(steps):
        path.append(w)
        v = momentum * v + np.array([1.0, 30.0]) * w
        w = w - rate * v
    return np.array(path)


grid_a, grid_b = np.meshgrid(np.linspace(-4.5, 2, 100), np.linspace(-1.3, 1.3, 80))
figure, (left, right) = panels(2, 8.6, 2.9)
heights = 0.5 * (grid_a**2 + 30 * grid_b**2)
left.contour(grid_a, grid_b, heights, levels=np.geomspace(0.05, 30, 9), colors=GRAY, linewidths=0.7)
for momentum, colour in ((0.0, RED), (0.8, BLUE)):
    path = descend(0.03, momentum)
    left.plot(
        *path.T, "o-", color=colour, markersize=2.5, linewidth=1, label=rf"$\mu = {momentum:g}$"
    )
    right.semilogy(0.5 * (path[:, 0] ** 2 + 30 * path[:, 1] ** 2), color=colour)
    print(f"momentum {momentum:g}: after 60 steps f is {0.5 * (path[-1] ** 2 @ [1, 30]):.1e}")
left.set(title="Two ways down a valley", xlabel="a", ylabel="b")
left.legend(loc="lower right", ncols=2)
right.set(title="f", xlabel="step", ylim=(1e-5, 30))
show(figure)

# %% [markdown]
# ## All together
#
# Mini-batches of 30 points, momentum, our own gradients. One pass over all points is called an
# *epoch*.

# %%
curves = {}
for momentum, rate, colour in ((0.0, 0.3, RED), (0.9, 0.3, BLUE)):
    weights, velocity, losses = [p.copy() for p in start], [np.zeros_like(p) for p in start], []
    order = np.random.default_rng(1)
    for _ in range(60):
        losses.append(loss_and_gradients(*weights, points, labels)[0])
        shuffled = order.permutation(len(points))
        for batch in shuffled.reshape(-1, 30):
            _, gradients = loss_and_gradients(*weights, points[batch], labels[batch])
            for w, v, g in zip(weights, velocity, gradients, strict=True):
                v *= momentum
                v += g
                w -= rate * v
    curves[momentum] = losses, colour

figure, (axes,) = panels(1, 6.5, 2.8)
for momentum, (losses, colour) in curves.items():
    axes.semilogy(losses, color=colour, label=rf"SGD, $\mu = {momentum:g}$")
    print(
        f"momentum {momentum:g}: mean loss {losses[0]:.2f} at first, {losses[-1]:.3f} after "
        f"{len(losses)} epochs"
    )
axes.axhline(np.log(3), color=GRAY, linestyle=":")
axes.text(60, 1.2, "knows nothing", color=GRAY, ha="right", fontsize=9)
axes.set(title="Mean loss of all points", xlabel="epoch")
axes.legend(loc="lower left")
show(figure)

# %% [markdown]
# And the same loop with tinyprop, from the first line to the last. The engine computes the
# gradients, the optimizer keeps the velocities, and nothing else is hidden.

# %%
tp.manual_seed(0)
train = points.astype("float32"), labels
net = tp.nn.Sequential(tp.nn.Linear(2, HIDDEN), tp.nn.Tanh(), tp.nn.Linear(HIDDEN, CLASSES))
optimizer = tp.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
order = np.random.default_rng(1)
for _ in range(60):
    for x, y in tp.data.batches(train, 30, order):
        loss = F.cross_entropy(net(tp.tensor(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with tp.no_grad():
    logits = net(tp.tensor(train[0])).numpy()
wrong = int((logits.argmax(axis=1) != labels).sum())
print(f"at most 3 of {len(points)} points are wrong: {wrong <= 3}")

# %% [markdown]
# `tp.train.Run` is this loop with a learning-rate schedule, a log and checkpoints: it can be killed
# at any moment and resumes to the same bits. [`tinyprop/train/run.py`](../tinyprop/train/run.py) is
# its source.
#
# That is all there is to training a network. Everything else in this course is about one question:
# what happens to the numbers inside when there are not one but ten or fifty layers?
#
# ## Exercises
#
# **2.1** The rule of a product. Given $A$, $B$ and the gradient $G$ with respect to $AB$, return
# the gradients with respect to $A$ and to $B$.


# %%
def product_gradients(a, b, g):
    return ..., ...


check("2.1", product_gradients)
# hint("2.1")

# %% [markdown]
# **2.2** Cross-entropy. Given logits $z$ of shape $(n, K)$ and labels of shape $(n,)$, return the
# gradient of the *mean* loss with respect to $z$. It must survive logits of 1,000.


# %%
def cross_entropy_gradient(z, labels): ...  # your code


check("2.2", cross_entropy_gradient)

# %% [markdown]
# **2.3** One step of SGD with momentum, as above. Return the new $w$ and the new $v$.


# %%
def momentum_step(w, v, g, rate, momentum):
    return ..., ...


check("2.3", momentum_step)

# %% [markdown]
# **2.4** Broadcasting. In $Y = X \odot s$, the row $s$ of shape $(k,)$ multiplies every row of $X$,
# of shape $(n, k)$, element by element: $Y_{ij} = X_{ij} s_j$. Given $X$, $s$ and the gradient $G$
# with respect to $Y$, return the gradients with respect to $X$ and to $s$.


# %%
def scale_gradients(x, s, g):
    return ..., ...


check("2.4", scale_gradients)

# %% [markdown]
# Solutions, with derivations: [solutions/02_network.ipynb](solutions/02_network.ipynb).
#
# ## Read next
#
# - [`tinyprop/functional/linear.py`](../tinyprop/functional/linear.py) and
#   [`losses.py`](../tinyprop/functional/losses.py): the same rules;
#   [`tinyprop/optim/updates.py`](../tinyprop/optim/updates.py): SGD.
# - Goodfellow, Bengio and Courville, *Deep learning*, 2016, chapters 6 and 8.
#
# Next: [3. How to start](03_initialization.ipynb).

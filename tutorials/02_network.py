# %% [markdown]
# # 2. Arrays, and a network that learns
#
# **Goal.** Carry backpropagation from single numbers to matrices, derive the gradient of the loss
# that classifiers use, and train a network by SGD with momentum, first with every gradient written
# by hand.
#
# The task: tell three spirals apart. Each point has two coordinates and a class, 0, 1 or 2. No
# straight line separates them; a network with one hidden layer does. Here are the points, and what
# the network of this lesson will have learnt. (The folded cell trains it with tinyprop. By the
# end of the lesson you will have written every line of that yourself.)

# %% tags=["hide-input"]
import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import (
    BLUE,
    GRAY,
    GREEN,
    RED,
    check,
    claim,
    engine,
    hint,
    keep,
    panels,
    predict,
    reveal,
    show,
)

# %%
CLASSES, POINTS, HIDDEN = 3, 100, 32
random = np.random.default_rng(0)
turn = np.linspace(0.15, 1, POINTS)
first = 2 * np.pi / CLASSES * np.arange(CLASSES)[:, None]  # where the spirals start
angle = first + 4.2 * turn + 0.12 * random.standard_normal((CLASSES, POINTS))
points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=-1).reshape(-1, 2)  # (300, 2)
labels = np.repeat(np.arange(CLASSES), POINTS)  # (300,)
start = [
    3.0 * random.standard_normal((2, HIDDEN)),
    random.standard_normal(HIDDEN),
    random.standard_normal((HIDDEN, CLASSES)) / HIDDEN**0.5,
    np.zeros(CLASSES),
]


# %% tags=["hide-input"]
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


parameters = [tp.tensor(p, requires_grad=True) for p in start]
optimizer = tp.optim.SGD(parameters, lr=0.5, momentum=0.9)
for _ in range(150):
    w1, b1, w2, b2 = parameters
    loss = F.cross_entropy(F.tanh(tp.tensor(points) @ w1 + b1) @ w2 + b2, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def classify(x):
    w1, b1, w2, b2 = (p.data for p in parameters)
    return (np.tanh(x @ w1 + b1) @ w2 + b2).argmax(axis=1)


wrong = (classify(points) != labels).sum()
figure, (left, right) = panels(2, 7.0, 3.3)
draw_points(left, "Three classes")
draw_classes(right, classify)
draw_points(right, "What the network says")
show(
    figure,
    f"Left: {len(points)} points on {CLASSES} spirals that start in the middle and wind around each "
    "other, one colour for each class. Right: the plane, coloured by the class that the trained "
    f"network gives to each place; {wrong} of the points lie in a colour that is not theirs.",
)
print(f"wrong: {wrong} of {len(points)} points")

# %% [markdown]
# The network computes, for a point $x$ (a row of 2 numbers),
# $$ h = \tanh(x W_1 + b_1), \qquad z = h W_2 + b_2. $$
# $h$ holds the 32 *hidden units*, and $z$ the 3 *logits*: the larger $z_k$, the more the network
# believes in class $k$. With all 300 points as the rows of a matrix $X$, one product $X
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
# These are all the rules we need. Forwards and backwards, with NumPy alone:


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


def loss_of(w1, b1, w2, b2):
    """The same network in tinyprop, and its mean loss."""
    return F.cross_entropy(F.tanh(tp.tensor(points) @ w1 + b1) @ w2 + b2, labels)


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
# small. If that is the reason, smaller logits must cost less. Multiply $W_2$, and with it all logits,
# by several numbers:

# %%
w1, b1, w2, b2 = start
scaled = {f: loss_and_gradients(w1, b1, f * w2, b2, points, labels)[0] for f in (0, 0.5, 1, 2)}
for factor, value in scaled.items():
    print(f"logits times {factor:3}: loss {value:.2f}")
claim("the larger the logits, the larger the loss", sorted(scaled.values()) == [*scaled.values()])
claim("without logits, it is ln 3", abs(scaled[0] - np.log(3)) < 1e-12)

# %% [markdown]
# ## SGD and momentum
#
# With the gradient $g$ of a parameter $w$, the simplest step is $w \leftarrow w - \eta g$, where
# $\eta$ is the learning rate. If $g$ is computed from a random part of the data, a *mini-batch*,
# this is stochastic gradient descent, SGD.
#
# Many losses are long valleys: steep across, nearly flat along. Take $f(a, b) = \frac12 (a^2 + 30\,
# b^2)$. A step multiplies $a$ by $1 - \eta$ and $b$ by $1 - 30\eta$. Above $\eta = 2/30$ the second
# factor is below $-1$, and $b$ explodes; so the steep direction sets the largest rate, and along
# the flat one even the best rate needs many steps. *Momentum* keeps a *velocity* $v$ that remembers
# earlier gradients:
# $$ v \leftarrow \mu v + g, \qquad w \leftarrow w - \eta v. $$
# It does two things.
#
# - *A larger effective rate.* If the gradient hardly changes, the velocity adds up to $g + \mu g +
#   \mu^2 g + \dots = g/(1 - \mu)$. So the *effective rate* is $\eta/(1 - \mu)$, ten times $\eta$
#   for $\mu = 0.9$. A fair comparison gives plain descent that rate, too.
# - *Damping.* Across the valley, where plain descent with such a rate would overshoot and explode,
#   gradients of alternating sign cancel in the velocity. Momentum does not prevent overshooting, but
#   it stays stable.
#
# Here plain descent has its best rate, $2/(1 + 30)$, and then the effective rate of momentum; and
# momentum has its best setting for this valley. Count how often $b$ changes its sign.


# %%
CURVATURE = np.array([1.0, 30.0])


def descend(rate, momentum, steps=60):
    w, v, path = np.array([-4.0, 1.0]), np.zeros(2), []
    for _ in range(steps):
        path.append(w)
        v = momentum * v + CURVATURE * w
        w = w - rate * v
    return np.array(path)


root = np.sqrt(30)
best_momentum, best_rate = ((root - 1) / (root + 1)) ** 2, 4 / (root + 1) ** 2
effective = best_rate / (1 - best_momentum)
WAYS = {  # rate, momentum, colour
    "plain, a small rate": (0.03, 0.0, GRAY),
    "plain, its best rate": (2 / 31, 0.0, RED),
    "momentum": (best_rate, best_momentum, BLUE),
    "plain, the effective rate of momentum": (effective, 0.0, RED),
}
paths = {name: descend(rate, momentum) for name, (rate, momentum, _) in WAYS.items()}
heights = {name: 0.5 * path**2 @ CURVATURE for name, path in paths.items()}
for name, (rate, momentum, _) in WAYS.items():
    turns = (np.diff(np.sign(paths[name][:, 1])) != 0).sum()
    print(
        f"{name}: rate {rate:.3f}, momentum {momentum:.2f}: b changes its sign {turns} times, "
        f"f is {heights[name][-1]:.1e} in the end"
    )
claim(
    "momentum ends below plain descent at its best rate",
    heights["momentum"][-1] < 1e-3 * heights["plain, its best rate"][-1],
)
claim(
    "plain descent at the effective rate explodes",
    heights["plain, the effective rate of momentum"][-1] > 1e10,
)

# %% tags=["hide-input"]
grid_a, grid_b = np.meshgrid(np.linspace(-4.5, 2, 100), np.linspace(-2.4, 2.4, 80))
figure, (left, right) = panels(2, 8.8, 3.0)
valley = 0.5 * (grid_a**2 + 30 * grid_b**2)
left.contour(grid_a, grid_b, valley, levels=np.geomspace(0.05, 90, 9), colors=GRAY, linewidths=0.7)
for name in ("plain, its best rate", "momentum"):
    left.plot(*paths[name].T, "o-", color=WAYS[name][2], markersize=2.5, linewidth=1)
for name, (_, _, colour) in list(WAYS.items())[:3]:
    right.semilogy(heights[name], color=colour)
right.text(59, 4, "plain, a small rate", color=GRAY, ha="right")
right.text(59, 2e-4, "plain, its best rate", color=RED, ha="right")
right.text(22, 1e-9, "momentum", color=BLUE, ha="right")
left.set(title="Two ways down a valley", xlabel="a", ylabel="b")
right.set(title="f", xlabel="step", ylim=(1e-17, 100))
show(
    figure,
    "Left: contour lines of a long valley and two paths to its lowest point; both cross the valley "
    "floor again and again. Right: f against the step. After 60 steps "
    + ", ".join(f"{name}: {heights[name][-1]:.0e}" for name in list(WAYS)[:3])
    + ".",
)

# %% [markdown]
# Both paths cross the valley again and again, and momentum gets down much faster. With the best
# settings, a step of plain descent multiplies the error by $\frac{\kappa - 1}{\kappa + 1}$, a step
# with momentum by $\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}$, where $\kappa$ is the ratio of the
# curvatures, here 30 (Polyak, 1964). The root is what momentum gives, in a steep valley.
#
# ## All together
#
# Mini-batches of 30 points, our own gradients, with and without momentum. One pass over all points
# is called an *epoch*. Plain SGD runs with the rate of momentum, 0.3, and with its effective rate,
# 3.

# %%
curves = {}
for name, momentum, rate in (
    ("plain, rate 0.3", 0.0, 0.3),
    ("plain, rate 3", 0.0, 3.0),
    ("momentum 0.9, rate 0.3", 0.9, 0.3),
):
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
    curves[name] = losses
    print(
        f"{name}: mean loss {losses[0]:.2f} at first, {np.mean(losses[-10:]):.3f} in the last ten epochs"
    )
ends = {name: np.mean(losses[-10:]) for name, losses in curves.items()}
small_rate, large_rate, with_momentum = ends.values()
claim(
    f"ten times the rate, without momentum, ends within {abs(large_rate - with_momentum):.4f} of "
    f"momentum; the small rate is {small_rate - with_momentum:.2f} above",
    abs(large_rate - with_momentum) < 0.2 * (small_rate - with_momentum),
)

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 2.8)
for losses, colour in zip(curves.values(), (GRAY, RED, BLUE), strict=True):
    axes.semilogy(losses, color=colour, linewidth=1.4)
axes.text(60, 0.05, "plain, rate 0.3", color=GRAY, ha="right")
axes.text(6, 0.6, "plain, rate 3", color=RED)
axes.text(9, 0.017, "momentum 0.9,\nrate 0.3", color=BLUE)
axes.axhline(np.log(3), color=GRAY, linestyle=":", linewidth=1)
axes.text(60, 1.2, "knows nothing", color=GRAY, ha="right", fontsize=9)
axes.set(title="Mean loss of all points", xlabel="epoch")
show(
    figure,
    "Mean loss of all points against the epoch, on a logarithmic scale. "
    + " ".join(
        f"{name}: from {losses[0]:.2f} to {losses[-1]:.3f}." for name, losses in curves.items()
    ),
)

# %% [markdown]
# Here momentum gives a larger effective rate, and no more than that: plain SGD with ten times the
# rate ends in the same place. No direction of this small problem is so steep that a rate of 3 explodes.
# Before you credit momentum (or any other method) with something, give its rival a rate that suits
# it.

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
# **2.5 Project, part 2: your engine learns matrices.** `engine(1)` is the class that you kept in
# exercise 1.5; without one, it is a given class that does the same. Teach it three rules: the matrix
# product `a @ b`; `a + row`, which adds a row of shape $(k,)$ to every row of $a$; and
# `z.cross_entropy(labels)`, the mean loss of logits $z$, which must survive logits of 1,000.


# %%
class Array(engine(1)):
    def __matmul__(self, other): ...  # your code

    def __add__(self, other):
        # your code: what if other is a row?
        return type(self)(self.value + other.value, (self, other), lambda g: (g, g))

    def cross_entropy(self, labels): ...  # your code


check("2.5", Array)
# keep(2, Array)  # once it is right

# %% [markdown]
# **2.6** Train the network of this lesson with your engine, by plain gradient descent on all points.
# `start` is the list of the arrays $W_1$, $b_1$, $W_2$ and $b_2$. Return the losses, one before each
# step, and the list of the four arrays after the last step. Leave `start` as it is.


# %%
def train(x, labels, start, rate, steps): ...  # your code


check("2.6", (Array, train))
# losses, weights = train(points, labels, start, 1.0, 500)  # once it is right
# print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")

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

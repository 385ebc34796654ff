# %% [markdown]
# # E2. Any activation
#
# **Goal.** Use NormProp with any activation: PReLU that learns its slope, tanh, GELU, or your own.
# Get its constants from an integral rather than from a simulation, and know how many digits to
# trust.
#
# Nothing in lesson 6 was special to ReLU but two constants. For another activation $s$ they are
# $c_2 = E\,s(X)$ and $c_1^2 = \mathrm{Var}\,s(X)$, integrals over the bell curve. Some have closed
# forms, all can be computed. And with them comes the Jacobian factor $\sqrt{E\,s'(X)^2}/c_1$,
# ReLU's 1.21.

# %% tags=["hide-input"]
import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, GRAY, GREEN, RED, SKY, check, hint, panels, predict, reveal, show

# %%
NAMES = ["relu", "tanh", "gelu", "elu", "silu", "hardtanh"]
grid = np.linspace(-3, 3, 301)

# %% tags=["hide-input"]
figure, every = panels(6, 9.0, 1.9)
for axes, name in zip(every, NAMES, strict=True):
    m = tp.moments.gaussian(name)
    raw = tp.activations[name](tp.tensor(grid)).data
    axes.plot(grid, raw, color=GRAY, linewidth=1.2)
    axes.plot(grid, (raw - m.mean) / m.std, color=BLUE)
    axes.set(ylim=(-2.2, 3.2), xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    axes.set_title(name, loc="center")
    axes.axhline(0, color=GRAY, linewidth=0.6)
show(
    figure,
    "Six small panels, one for each activation: grey as it is, blue shifted and stretched to mean 0 and "
    + "standard deviation 1 over normal inputs. "
    + ", ".join(
        f"{n}: mean {tp.moments.gaussian(n).mean:.2f}, std {tp.moments.gaussian(n).std:.2f}"
        for n in NAMES
    )
    + ".",
)

# %% [markdown]
# Grey is the activation, blue what NormProp makes of it: shifted so that the *average over normal
# inputs* is 0, stretched so that their standard deviation is 1.
#
# ## Integral against simulation
#
# The paper suggests simulating the constants of other activations (section 4.6). That works, at the
# pace of lesson 5: a hundred times the samples for one digit more. An integral of a smooth function
# needs a hundred points for *all* digits, if they are placed by the Gauss-Legendre rule. How many
# standard errors are the two apart?

# %%
QUESTION = "largest distance of the 12 constants, in standard errors"
predict(QUESTION)

# %%
SAMPLES, apart = 200_000, []
print(f"{'':9} {'c2':>11} {'c1':>11} {'factor':>7}   simulated: off by standard errors")
for name in NAMES:
    m, sim = tp.moments.gaussian(name), tp.moments.simulate(name, samples=SAMPLES)
    z2, z1 = (sim.mean - m.mean) / sim.mean_error, (sim.std - m.std) / sim.std_error
    apart += [abs(z1), abs(z2)]
    print(
        f"{name:9} {m.mean:11.8f} {m.std:11.8f} {m.jacobian_factor:7.4f}   c2 {z2:+.1f}, c1 "
        f"{z1:+.1f}"
    )

reveal(QUESTION, max(apart))

# %% [markdown]
# They agree within chance (all rows share the same samples, so they err together). How fast does
# the integral converge? Here it is for tanh, by hand: $n$ Gauss-Legendre points on $[-9, 9]$,
# beyond which the bell curve has less than $10^{-18}$ of its mass.

# %%
exact = tp.moments.gaussian("tanh").std
points = np.arange(10, 130, 10)
errors = []
for n in points:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    z, w = 9 * nodes, 9 * weights * np.exp(-0.5 * (9 * nodes) ** 2) / np.sqrt(2 * np.pi)
    errors.append(abs(np.sqrt(w @ np.tanh(z) ** 2) - exact))
sizes = 10 ** np.arange(1, 7)
sim = [tp.moments.simulate("tanh", samples=n, seed=1) for n in sizes]

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.4, 3.2)
axes.loglog(points, np.maximum(errors, 1e-17), "o-", color=BLUE)
axes.loglog(sizes, [s.std_error for s in sim], "o-", color=RED)
axes.text(150, 1e-11, "Gauss-Legendre", color=BLUE)
axes.text(2e4, 1e-2, "simulation,\nstandard error", color=RED)
axes.set(title="Error of $c_1$ of tanh", xlabel="points, or samples")
show(
    figure,
    f"Error of c1 of tanh, both scales logarithmic. Gauss-Legendre: {errors[0]:.0e} with {points[0]} points, "
    f"below 1e-12 with {points[-1]}. Simulation: {sim[0].std_error:.0e} with {sizes[0]} samples, "
    f"{sim[-1].std_error:.0e} with {sizes[-1]:,}.",
)

# %%
print(f"{points[-1]} points: error below 1e-12: {errors[-1] < 1e-12}")
print(f"{sizes[-1]:,} samples: standard error {sim[-1].std_error:.0e}")

# %% [markdown]
# ## PReLU that learns its slope
#
# PReLU is $x$ above 0 and $a\,x$ below, and $a$ is learnt. Then $c_1(a)$ and $c_2(a)$ change in
# every step, so they are *part of the function*, and the gradient with respect to $a$ passes
# through them. tinyprop's constants are differentiable:

# %%
a = tp.tensor(np.linspace(-1, 2, 61), requires_grad=True)
m = tp.moments.gaussian("prelu", a=a)
(slope_of_c1,) = tp.grad(m.std.sum(), [a], retain_graph=True)
(slope_of_c2,) = tp.grad(m.mean.sum(), [a])

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 8.0, 2.9)
left.plot(a.data, m.std.data, color=BLUE)
left.plot(a.data, m.mean.data, color=RED)
left.plot(a.data, slope_of_c1.data, color=BLUE, linestyle=":")
left.plot(a.data, slope_of_c2.data, color=RED, linestyle=":")
left.text(1.1, 1.25, "$c_1(a)$", color=BLUE, ha="right")
left.text(-0.6, 0.72, "$c_2(a)$", color=RED)
left.set(title="Constants of PReLU; dotted: slopes", xlabel="a")
right.plot(a.data, m.jacobian_factor.data, color=GREEN)
right.plot([0, 1], [1.2112, 1], "o", color=GREEN)
right.annotate("ReLU 1.21", (0, 1.2112), (6, 4), textcoords="offset points", color=GREEN)
right.annotate("a line: 1", (1, 1), (-8, 8), textcoords="offset points", color=GREEN)
right.set(title="Jacobian factor", xlabel="a", ylim=(0.9, 1.75))
show(
    figure,
    "Left: c1 and c2 of PReLU against its slope a from -1 to 2, and dotted their derivatives. Right: its "
    f"Jacobian factor, from {m.jacobian_factor.data[0]:.2f} at a = -1 down to 1 at a = 1, where it is a "
    f"line, and {m.jacobian_factor.data[-1]:.2f} at a = 2.",
)

# %% [markdown]
# A layer learns $|x|$, which needs $a = -1$, from a start at $a = 1/4$. NormProp can represent it:
# $|x|$ shifted and scaled to mean 0 and standard deviation 1.

# %%
random = np.random.default_rng(0)
x = random.standard_normal((256, 1)).astype(np.float32)
absolute = tp.moments.gaussian("abs")
target = (abs(x) - absolute.mean) / absolute.std
layer = tp.nn.NormPropLinear(1, 1, activation="prelu", gamma=1.0)
optimizer = tp.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9)
path = []
for _ in range(120):
    error = layer(tp.tensor(x)) - target
    loss = (error * error).mean()
    loss.backward()
    path.append((layer.a.data.item(), loss.item()))
    optimizer.step()
    optimizer.zero_grad()
print(f"slope a: {path[0][0]:.2f} at first, {path[-1][0]:.2f} in the end")
print(f"mean square error: {path[0][1]:.2f} at first, {path[-1][1]:.3f} in the end")

# %% [markdown]
# ## Your own
#
# Any function will do, of any shape, with learnable parameters of its own. Write it with functions
# of `tp.functional` and operators, and make a record of it. `tp.moments.gaussian` finds its kinks,
# integrates between them, and says how far to trust the result.
#
# Here is ReLU, squared and tilted. **Change it**, and run the rest of the lesson again. (With
# `force=True` a cell may run twice: the new function replaces the old one.)


# %%
def tilted_square(u, tilt):
    return F.relu(u) ** 2 - tilt * u


mine = tp.Activation(tilted_square, parameters={"tilt": 0.1})
tp.activations.register(mine, force=True)

own = tp.moments.gaussian(mine)
print(f"{mine.name}: c2 = {own.mean:.6f}, c1 = {own.std:.6f}, factor {own.jacobian_factor:.4f}")
print(f"error below 1e-9: {own.error < 1e-9}")

# %% [markdown]
# Look at the column `factor` again. It is above 1 for every activation, and 1 only for a line. That
# is no accident: it is the theorem of lesson 8b.
#
# The record has a name now, and every layer takes it. A NormProp layer in exact mode has mean 0 and
# variance 1 for normal inputs, whatever $\gamma$ and $\beta$ have become. Does your activation
# learn, too? Two layers of 32 units tell points in a ring from those outside of it.

# %% tags=["takes-13s"]
tp.manual_seed(0)
random = np.random.default_rng(0)
points = random.standard_normal((400, 2)).astype(np.float32)
radius = np.hypot(*points.T)
in_ring = ((radius > 0.7) & (radius < 1.5)).astype(int)
net = tp.nn.Sequential(
    tp.nn.NormPropLinear(2, 32, activation=mine, mode="exact"),
    tp.nn.NormPropLinear(32, 32, activation=mine, mode="exact"),
    tp.nn.Linear(32, 2),
)
optimizer = tp.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
STEPS = 150  # short: 40
losses = []
for _ in range(STEPS):
    loss = F.cross_entropy(net(tp.tensor(points)), in_ring)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
correct = net(tp.tensor(points)).numpy().argmax(axis=1) == in_ring
print(f"loss: {losses[0]:.1f} at first, below 0.2 in the end: {losses[-1] < 0.2}")
print(f"more than 9 of 10 points are right: {correct.mean() > 0.9}")
print("each hidden layer learns", ", ".join(name for name, _ in net[0].named_parameters()))

# %% tags=["hide-input"]
figure, (left, middle, right) = panels(3, 9.0, 2.9)
left.plot(losses, color=BLUE)
left.set(title="Training loss", xlabel="step", ylim=(0, None))
for unit in range(32):
    learnt = {name: float(p.data[unit]) for name, p in net[1].activation_parameters.items()}
    m = tp.moments.gaussian(mine, **learnt)
    curve = (mine(tp.tensor(grid), **learnt).data - m.mean) / m.std
    middle.plot(grid, curve, color=SKY, linewidth=0.7)
middle.plot(grid, (mine(tp.tensor(grid)).data - own.mean) / own.std, color=BLUE)
middle.set(title="Before training, and after", xlabel="u", ylim=(-2.2, 5))
side = np.linspace(-3, 3, 80, dtype=np.float32)
plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
logits = net(tp.tensor(plane)).numpy().reshape(80, 80, 2)
right.contourf(
    side, side, logits[..., 1] > logits[..., 0], levels=[0.5, 1], colors=[SKY], alpha=0.4
)
right.scatter(*points.T, s=4, c=np.where(in_ring, BLUE, GRAY))
right.set(title="Predicted ring", aspect="equal")
show(
    figure,
    f"Left: the training loss falls from {losses[0]:.1f} to below 0.2 in {len(losses)} steps. Middle: the "
    "activation before training, and the 32 that the units of the second layer have learnt. Right: the "
    "points and the region that the network takes for the ring, a ring with a hole.",
)

# %% [markdown]
# In the middle, dark: the normalised activation as it started. Light: what the 32 units of the
# second layer have made of it. Each has learnt its own parameters, and its constants have followed.
#
# In a file of your own, the same record works in `tinyprop train --activation my_file.py:mine` and in
# `tinyprop compare`: see [Bring your own](../docs/own.md), which does the same for normalisers,
# layers and networks.
#
# ## Exercises
#
# **E2.1** Your own quadrature. Given a smooth function $s$ of arrays, return the mean and the
# standard deviation of $s(Z)$ to ten digits, by Gauss-Legendre points as above.


# %%
def constants(s):
    return ..., ...


check("E2.1", constants)
# hint("E2.1")

# %% [markdown]
# **E2.2** Simulated constants are a little wrong. Suppose that $c_1$ of ReLU is replaced by $(1 +
# \epsilon)\,c_1$ in every layer of a deep, wide network with $\gamma = 1$. By the recursion of lesson
# 8, the mean square $q$ of the pre-activations then goes from layer to layer as
# $$ q' = \frac{q/2 - 2 c_2^2 \sqrt q + c_2^2}{(1 + \epsilon)^2 c_1^2}, $$
# starting at $q = 1$. Return the root mean square $\sqrt q$ after $L$ steps. Then try $\epsilon =
# 0.01$ and $-0.01$ for 100 layers. Does an error of one percent matter? Is it $(1 + \epsilon)^{-L}$?


# %%
def size_after(depth, epsilon): ...  # your code


check("E2.2", size_after)

# %% [markdown]
# **E2.3** Return $dc_1/da$ of PReLU, for a given $a$. (From exercise 5.1, $2 c_1^2 = (1 + a^2) - (1
# - a)^2/\pi$.)


# %%
def slope_of_c1(a): ...  # your code


check("E2.3", slope_of_c1)

# %% [markdown]
# Solutions, with derivations:
# [solutions/E2_any_activation.ipynb](solutions/E2_any_activation.ipynb).
#
# ## Read next
#
# - [`tinyprop/moments/quadrature.py`](../tinyprop/moments/quadrature.py) and
#   [`tinyprop/moments/rules.py`](../tinyprop/moments/rules.py).
# - He et al., *Delving deep into rectifiers*, ICCV 2015 (PReLU). Hendrycks and Gimpel, *Gaussian
#   error linear units*, 2016. Klambauer et al., *Self-normalizing neural networks*, NeurIPS 2017: an
#   activation with $c_2 = 0$, $c_1 = 1$.
#
# Back to the [course](README.md).

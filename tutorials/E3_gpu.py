# %% [markdown]
# # E3. The same code on a GPU
#
# **Goal.** Run a training step on a GPU without changing it, and know the two things that make a
# GPU slow: many small launches, and transfers of data.
#
# CuPy has NumPy's functions for arrays on a CUDA device. tinyprop's functions never call NumPy by
# name; they ask each array where it lives (`xp = array_module(x)`) and compute there. So one line
# decides. This lesson runs on NumPy where there is no device. The code is the same; on a device,
# CUDA kernels do the work of several NumPy calls at once.

# %% tags=["hide-input"]
from collections import Counter
from contextlib import contextmanager

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, RED, check, hint, panels, predict, reveal, show

try:
    tp.use_backend("cupy")  # from here on, tensors are made on the device
    print("on a GPU")
except tp.BackendError:
    print("no GPU here: everything below runs on NumPy (tinyprop info says what is missing)")

# only look at an array in another way: nothing is computed
VIEWS = ("Reshape", "Transpose", "BroadcastTo")


@contextmanager
def watched_ops():
    """A list to which every op that computes, forwards or backwards, adds its name and how many
    elements it makes.

    A gradient that an override from `kernels/` computes in one go is no op, and is not counted.
    """
    seen, call = [], tp.Op.__call__

    def watched(op, *inputs):
        out = call(op, *inputs)
        if type(op).__name__ not in VIEWS:
            seen.append((type(op).__name__, out.size))
        return out

    tp.Op.__call__ = watched
    try:
        yield seen
    finally:
        tp.Op.__call__ = call


# %%
SPEC = "C(16,5,1,2)-C(16,1,1,0)-P(2,2,0,max)-C(24,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"


def one_step(batch_size):
    tp.manual_seed(0)  # random numbers are drawn on the host: the same weights on both backends
    net = tp.nn.build(SPEC)
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05), threads=1)
    random = np.random.default_rng(0)
    images = tp.tensor(random.standard_normal((batch_size, 3, 16, 16), np.float32))
    labels = random.integers(0, 10, batch_size)
    with watched_ops() as seen:
        loss = step(images, labels)
    return float(loss), seen


loss, seen = one_step(64)
_, seen_of_one = one_step(1)

# %% tags=["hide-input"]
figure, (left, right) = panels(2, 9.0, 3.6)
common = Counter(name for name, _ in seen).most_common(10)[::-1]
left.barh([name for name, _ in common], [count for _, count in common], color=BLUE)
left.set(title="Ops of one training step, the ten most frequent", xticks=range(common[-1][1] + 1))
for ops, colour, label, place in (
    (seen_of_one, RED, "one image", (0.3, 0.9)),
    (seen, BLUE, "64 images", (0.6, 0.2)),
):
    sizes = np.sort([size for _, size in ops])
    right.step(sizes, np.arange(1, len(sizes) + 1), where="post", color=colour)
    right.text(*place, label, color=colour, transform=right.transAxes)
right.set(
    title="Ops with at most so many elements", xscale="log", xlabel="elements", ylim=(0, None)
)
show(
    figure,
    "Left: a bar chart of the ten most frequent ops of a training step. "
    + ", ".join(f"{name}: {count}" for name, count in common)
    + ". Right: how many ops have at most so many elements, for one image and for 64; both curves end "
    + f"near {len(seen)} ops.",
)

# %%
print(f"loss {loss:.3f}; {len(seen)} ops for 64 images, {len(seen_of_one)} for one")

# %% [markdown]
# ## Launches
#
# Every op is one *launch* of a kernel, or a few: the host tells the device what to do and
# continues. A launch has a fixed cost, whatever the size of the array. On the right: the number of
# ops hardly depends on the batch, and many of them make only a few numbers (gradients of gamma and
# beta, the loss). For one image the device mostly waits for the next launch. So the first rule is:
# **large batches, few ops**.
#
# Here is the layer as lesson 6 wrote it, and tinyprop's. How many ops does the textbook version
# take, with its gradient?

# %%
QUESTION = "ops of the textbook layer, forwards and backwards"
predict(QUESTION)

# %%
c = tp.moments.gaussian("relu")


def textbook(x, weight, gamma, beta):
    length = F.sqrt((weight**2).sum(axis=1))
    return (F.relu(gamma * (x @ weight.T) / length + beta) - c.mean) / c.std


layer = tp.nn.NormPropLinear(20, 20)
x = tp.tensor(np.random.default_rng(0).standard_normal((1000, 20), np.float32), requires_grad=True)
results = {}
for name, f in {
    "textbook": lambda x: textbook(x, layer.weight, layer.gamma, layer.beta),
    "tinyprop": layer,
}.items():
    with watched_ops() as seen:
        out = f(x)
        forward = len(seen)
        (out * out).sum().backward()
    large = sum(size >= out.size for _, size in seen)
    results[name] = out.numpy()
    if name == "textbook":
        reveal(QUESTION, len(seen))
    print(
        f"{name}: {forward} ops forwards, {len(seen)} with the gradient; {large} of these "
        "make a "
        "whole batch"
    )
print("same result:", np.allclose(results["textbook"], results["tinyprop"], atol=1e-5))

# %% [markdown]
# tinyprop multiplies $\gamma / |w|$ into the weights and takes bias, ReLU and both constants in one
# op (`functional/normprop.py`). On a device, `kernels/cuda.py` goes further: one kernel of our own
# for the rows of the weights, one for that op, one for the update of *all* parameters. Their sources
# are the `.cu` files beside it, and the docstring of each launch is the NumPy formula that it
# computes. All of them are overrides: `tp.overrides()` lists them, and `with tp.plain():`
# switches them off.
#
# ## Transfers
#
# The other cost is transfers. Host and device have memories of their own, and the connection
# between them is slow. Worse, the host must *wait* until the device has the answer. tinyprop never
# moves data unless asked; these calls do:
#
# - `tp.tensor(array)` uploads a host array to the default backend; `t.to("cupy")`, `net.to("cupy")`
#   move by name;
# - `t.numpy()`, `t.item()`, `float(...)`, `print(t)` bring numbers back, and wait.
#
# A NumPy and a CuPy array in one expression are an error, not a silent copy. So the second rule is:
# **do not read every loss**. Only reading it synchronises with the GPU. The step returns it as an
# array on the device. Add up there, and read once:

# %%
tp.manual_seed(0)
net = tp.nn.build(SPEC)
step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05), threads=1)
random = np.random.default_rng(0)
images = tp.tensor(random.standard_normal((64, 3, 16, 16), np.float32))  # one upload
labels = random.integers(0, 10, 64)
STEPS = 8
total = 0.0
for _ in range(STEPS):
    # stays where it is: the device may be many steps behind the host
    total = total + step(images, labels)
print(f"mean loss of {STEPS} steps: {float(total) / STEPS:.3f}")  # the only wait

# %% [markdown]
# `tinyprop train --read-every 50` does the same, and `tp.data.prefetched` uploads the next batch
# while the device computes. The third rule is **float32 everywhere**: a float64 that leaks in, say
# from `np.ones(3)`, makes everything it touches twice as large and, on most GPUs, many times
# slower. The engine keeps to the dtype of its inputs:

# %%
kinds = {str(p.dtype) for p in net.parameters()} | {
    str((images * 0.5).dtype),
    str(step(images, labels).dtype),
}
print("types of numbers in this network:", kinds)

# %% [markdown]
# ## Does it compute the same?
#
# The seed means the same on both backends, so a step must give the same loss, up to rounding. That
# is the way to test a device: not "it runs", but "it agrees".

# %%
with tp.use_backend("numpy"):
    on_host, _ = one_step(64)
here, _ = one_step(64)
print(f"NumPy and this machine's backend agree to 1e-4: {abs(here - on_host) < 1e-4}")

# %% [markdown]
# No GPU at hand? Everything in this lesson runs on NumPy, too. Where CuPy finds a device, `pytest
# -m cupy` runs the tests on it; `tests/train/test_device_step.py` counts what a step moves and
# launches.
#
# ## Exercises
#
# **E3.1** Write BatchNorm (training mode, $\epsilon = 10^{-5}$, no scale or shift) with few ops on
# whole batches. The check counts the ops, forwards and backwards, that make as many numbers as $x$
# has: at most 8. Several ops on the small arrays of means cost less than one on the batch.
# `F.mean`, `F.var`, `F.sqrt` are there; $x$ is (samples, units).


# %%
def lean_batch_norm(x): ...  # your code: x is a tensor


check("E3.1", lean_batch_norm)
# hint("E3.1")

# %% [markdown]
# **E3.2** Write `where_is(net)`: the set of pairs (backend, dtype) of all its parameters, such as
# `("numpy", "float32")`.


# %%
def where_is(net): ...  # your code


check("E3.2", where_is)

# %% [markdown]
# **E3.3** The dtype leak. This function is meant to add noise to a float32 tensor, but its result
# is float64, twice as large. Fix it.


# %%
def add_noise(x):
    return x + tp.tensor(np.random.default_rng(0).standard_normal(x.shape))


check("E3.3", add_noise)

# %% [markdown]
# Solutions, with derivations: [solutions/E3_gpu.ipynb](solutions/E3_gpu.ipynb).
#
# ## Read next
#
# - [`tinyprop/engine/arrays.py`](../tinyprop/engine/arrays.py),
#   [`tinyprop/engine/overrides.py`](../tinyprop/engine/overrides.py),
#   [`tinyprop/kernels/cuda.py`](../tinyprop/kernels/cuda.py);
#   [`tests/train/test_device_step.py`](../tests/train/test_device_step.py).
# - The CuPy user guide, docs.cupy.dev: *Differences between CuPy and NumPy*, *Performance best
#   practices*.
#
# Back to the [course](README.md).

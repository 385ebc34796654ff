# %% [markdown]
# # 10. The same code on a GPU
#
# **Goal.** Run a training step on a GPU without changing it, and know the two things that make a GPU slow: many small
# launches, and data that travel.
#
# CuPy has NumPy's functions for arrays on a CUDA device. tinyprop's functions never call NumPy by name; they ask each
# array where it lives (`xp = array_module(x)`) and compute there. So one line decides. This lesson runs on NumPy where
# there is no device. The code is the same; on a device, CUDA kernels do the work of several NumPy calls at once.

# %%
from collections import Counter
from contextlib import contextmanager

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, RED, panels, show

try:
    tp.use_backend("cupy")  # from here on, tensors are made on the device
    print("on a GPU")
except tp.BackendError:
    print("no GPU here: everything below runs on NumPy (tinyprop info tells what is missing)")

SPEC = "C(16,5,1,2)-C(16,1,1,0)-P(2,2,0,max)-C(24,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
VIEWS = ("Reshape", "Transpose", "BroadcastTo")  # only look at an array in another way: nothing is computed


@contextmanager
def watched_ops():
    """A list to which every op that computes, forwards or backwards, adds its name and how many elements it makes.

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

figure, (left, right) = panels(2, 9.0, 3.6)
common = Counter(name for name, _ in seen).most_common(10)[::-1]
left.barh([name for name, _ in common], [count for _, count in common], color=BLUE)
left.set(title="Ops of one training step, the ten most frequent")
for ops, colour, label in ((seen_of_one, RED, "one picture"), (seen, BLUE, "64 pictures")):
    sizes = np.sort([size for _, size in ops])
    right.step(sizes, np.arange(1, len(sizes) + 1), where="post", color=colour, label=label)
right.set(title="Ops with at most so many elements", xscale="log", xlabel="elements", ylim=(0, None))
right.legend()
show(figure)
print(f"loss {loss:.3f}; {len(seen)} ops for 64 images, {len(seen_of_one)} for one")

# %% [markdown]
# ## Launches
#
# Every op is one *launch* of a kernel, or a few: the host tells the device what to do and goes on. A launch has a fixed
# price, whatever the size of the array. On the right: the number of ops hardly depends on the batch, and many of them
# make only a few numbers (gradients of gamma and beta, the loss). For one image the device does nothing but wait for
# the next launch. So the first rule is: **large batches, few ops**.
#
# The second half of the rule is the author's business. Here is the layer as lesson 6 wrote it, and tinyprop's:

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
    print(f"{name}: {forward} ops forwards, {len(seen)} with the gradient; {large} of these make a whole batch")
print("same result:", np.allclose(results["textbook"], results["tinyprop"], atol=1e-5))

# %% [markdown]
# tinyprop multiplies $\gamma / (c_1 |w|)$ into the weights and takes bias, ReLU and shift in one op
# (`kernels/fused.py`). On a device, `kernels/cuda.py` goes further: one kernel of our own for the rows of the weights,
# one for bias, ReLU and shift, one for the update of *all* parameters. Their sources are the `.cu` files beside it, and
# each launch has the NumPy formula that it equals as its docstring. All of them are overrides: `tp.overrides()` lists
# them, and `with tp.plain():` does without.
#
# ## Transfers
#
# The other price is travel. Host and device have memories of their own, and the way between them is narrow. Worse, the
# host must *wait* until the device has the answer. tinyprop never moves data unasked; these do, and you see them:
#
# - `tp.tensor(array)` uploads a host array to the default backend; `t.to("cupy")`, `net.to("cupy")` move by name;
# - `t.numpy()`, `t.item()`, `float(...)`, `print(t)` bring numbers back, and wait.
#
# A NumPy and a CuPy array in one expression are an error, not a silent copy. So the second rule is: **do not look at
# every loss**. The step returns it as an array on the device. Add up there, and read once:

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
    total = total + step(images, labels)  # stays where it is: the device may be many steps behind the host
print(f"mean loss of {STEPS} steps: {float(total) / STEPS:.3f}")  # the only wait

# %% [markdown]
# In `tinyprop train` the same is `--read-every 50`, and `tp.data.prefetched` uploads the next batch while the device
# computes. The third rule is **float32 everywhere**: a float64 that leaks in, say from `np.ones(3)`, makes everything
# it touches twice as large and, on most GPUs, many times slower. The engine keeps to the dtype of its inputs:

# %%
kinds = {str(p.dtype) for p in net.parameters()} | {str((images * 0.5).dtype), str(step(images, labels).dtype)}
print("types of numbers in this network:", kinds)

# %% [markdown]
# ## Does it compute the same?
#
# The seed means the same on both backends, so a step must give the same loss, up to rounding. That is the way to test a
# device: not "it runs", but "it agrees".

# %%
with tp.use_backend("numpy"):
    on_host, _ = one_step(64)
here, _ = one_step(64)
print(f"NumPy and this machine's backend agree to 1e-4: {abs(here - on_host) < 1e-4}")

# %% [markdown]
# No GPU at hand? Everything in this lesson runs on NumPy, too. Where CuPy finds a device, `pytest -m cupy` runs the
# tests on it; `tests/train/test_device_step.py` counts what a step moves and launches.
#
# ## Exercises
#
# 1. Write BatchNorm with `F.mean`, `F.var` and `F.sqrt`, as a textbook has it. Count its ops on whole batches, forwards
#    and with the gradient, and those of `tp.nn.BatchNorm`, which gives the same result.
# 2. Write `where_is(net)`: the backends and dtypes of all parameters and buffers. What does `net.to(dtype="float64")`
#    change, and what does it do to the loss?
# 3. A network of `n` layers takes about as many launches for each. Measure ops against depth for fully connected
#    NormProp networks, and find the number of ops per layer, forwards and backwards.
#
# Solutions: [solutions/10_gpu.py](solutions/10_gpu.py).
#
# ## Read next
#
# - [`tinyprop/engine/arrays.py`](../tinyprop/engine/arrays.py),
#   [`tinyprop/engine/overrides.py`](../tinyprop/engine/overrides.py),
#   [`tinyprop/kernels/cuda.py`](../tinyprop/kernels/cuda.py);
#   [`tests/train/test_device_step.py`](../tests/train/test_device_step.py).
# - The CuPy user guide, docs.cupy.dev: *Differences between CuPy and NumPy*, *Performance best practices*.
#
# That was the course. Now `make demo`, `tinyprop verify`, and your own question.

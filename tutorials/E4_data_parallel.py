# %% [markdown]
# # E4. One network, four processes
#
# **Goal.** Split every batch among four workers, and get the weights of one; see why NormProp needs
# one exchange a step, and why BatchNorm, if each worker uses only its own samples, learns something
# else.
#
# A large job runs on several processes, called *ranks*, which share no memory: they send each other
# arrays. The usual library for that is MPI, and `mpiexec -n 4 tinyprop train ...` uses it. Here
# threads play the ranks, so that this lesson runs everywhere. Two of MPI's calls are enough: in
# `Alltoall` each rank sends row i of its array to rank i; in `Allgather` each rank sends its row to
# all.

# %% tags=["hide-input"]
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from matplotlib.patches import Rectangle

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, GRAY, GREEN, ORANGE, RED, check, hint, panels, predict, reveal, show


# %% tags=["hide-input"]
class Comm:
    """What MPI calls a communicator: this rank, how many there are, and a way to exchange
    arrays."""

    def __init__(self, rank, slots, barrier):
        self.rank, self.size, self.slots, self.barrier, self.calls = (
            rank,
            len(slots),
            slots,
            barrier,
            0,
        )

    def exchange(self, array):
        self.slots[self.rank] = array.copy()
        self.barrier.wait()  # until all have put theirs down
        every = list(self.slots)
        self.barrier.wait()  # until all have looked
        self.calls += 1
        return every

    def Alltoall(self, rows, received):
        received[...] = [theirs[self.rank] for theirs in self.exchange(rows)]

    def Allgather(self, row, received):
        received[...] = self.exchange(row)


# %%
def on_ranks(size, work):
    """work(ranks) on so many ranks at once, and what the first one returns."""
    slots, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(work, tp.train.Ranks(Comm(i, slots, barrier))) for i in range(size)]
        first, *_ = [job.result() for job in jobs]
        return first


# %% tags=["hide-input"]
figure, (axes,) = panels(1, 7.4, 2.0)
for i in range(24):
    axes.add_patch(
        Rectangle((i * 0.5, 0), 0.42, 0.6, facecolor=(BLUE, RED, GREEN, ORANGE)[i // 6], alpha=0.7)
    )
for rank in range(4):
    axes.text(3 * rank + 1.45, 0.85, f"rank {rank}: gradient of 6 samples", ha="center", fontsize=8)
    axes.annotate(
        "", (6, -0.75), (3 * rank + 1.45, -0.08), arrowprops={"arrowstyle": "->", "color": GRAY}
    )
axes.text(
    6, -1.05, "sum, in the order of the ranks; then the same update on all", ha="center", fontsize=9
)
axes.set(xlim=(-0.2, 12.2), ylim=(-1.2, 1.2), title="One batch of 24 samples on four ranks")
axes.axis("off")
show(
    figure,
    "A batch of 24 samples as a row of squares, six for each of four ranks. Four arrows lead from the ranks "
    "to one sum, taken in the order of the ranks; then all make the same update.",
)

# %%
print("the sum of the ranks' numbers:", on_ranks(4, lambda ranks: ranks.add_up(10.0**ranks.rank)))

# %% [markdown]
# ## A step, by hand
#
# The mean loss of a batch is a sum over its samples, and so is its gradient. Each rank computes the
# gradient of its share, `add_up` adds the four gradients in the order of the ranks, and every rank
# makes the same update. All start from the same seed, so all hold the same weights, for ever.
# (float64, to see that nothing but rounding differs.)

# %%
SPEC = "C(8,5,2,2)-P(2,2,0,max)-C(8,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
STEPS, BATCH = 20, 24
shapes = tp.data.load("shapes", split="test").first(STEPS * BATCH)
normalize = tp.data.GlobalNormalizer((3, 32, 32)).fit(shapes.images)
images = normalize(tp.tensor(shapes.images)).numpy().astype(np.float64)
batches = list(tp.data.batches((images, shapes.labels), BATCH))


def by_hand(net, optimizer, images, labels, ranks):
    mine = ranks.share(len(images))
    loss = F.cross_entropy(net(tp.tensor(images[mine])), labels[mine], "sum") / len(images)
    gradients = tp.grad(loss, list(net.parameters()))
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = tp.tensor(ranks.add_up(gradient.data))
    optimizer.step()
    tp.optim.normalize_weights(net)


def with_tinyprop(net, optimizer, images, labels, ranks):
    tp.train.TrainingStep(net, optimizer, threads=1, ranks=ranks)(images, labels)


def trained(size, norm, step):
    """The weights after each step, all in one row."""

    def work(ranks):
        tp.manual_seed(0)
        net = tp.nn.build(SPEC, norm=norm).to(dtype="float64")
        optimizer, rows = tp.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), []
        for images, labels in batches:
            step(net, optimizer, images, labels, ranks)
            rows.append(np.concatenate([p.numpy().ravel() for p in net.parameters()]))
        return np.array(rows)

    return on_ranks(size, work)


def distance(norm, step):
    """How far four ranks are from one, after each step: the largest difference of two weights."""
    return abs(trained(4, norm, step) - trained(1, norm, step)).max(axis=1)


normprop, apart = distance("normprop", by_hand), distance("batch", by_hand)
print(f"NormProp:  below 1e-12: {normprop.max() < 1e-12}")
print(f"BatchNorm: {apart[0]:.4f} after one step, {apart[-1]:.3f} after {STEPS}")

# %% [markdown]
# NormProp's statistics were computed before training, from integrals; a sample never sees another
# one. BatchNorm divides by the standard deviation of *the batch*. A rank that sees 6 of 24 samples
# divides by another one, so the function that it computes, and its gradient, are others: four ranks
# train another network than one. That is not rounding.
#
# ## BatchNorm, together
#
# The remedy has a name, synchronised BatchNorm: add up the sums of all ranks inside the layer,
# forwards and backwards. `TrainingStep` does so.

# %%
together = distance("batch", with_tinyprop)
print(f"BatchNorm, summed over ranks: below 1e-12: {together.max() < 1e-12}")

# %% tags=["hide-input"]
figure, (axes,) = panels(1, 5.2, 3.0)
for found, color, name, place in (
    (apart, RED, "BatchNorm, each rank by itself", 1e-5),
    (together, BLUE, "BatchNorm, sums of all ranks", 1e-11),
    (normprop, GREEN, "NormProp", 3e-13),
):
    axes.semilogy(range(1, STEPS + 1), np.maximum(found, 1e-17), ".-", color=color)
    axes.text(STEPS, place, name, color=color, ha="right")
axes.set(
    xlabel="step",
    ylabel="largest difference",
    title="Weights on 4 ranks minus weights on 1",
    ylim=(1e-17, 10),
    xticks=range(0, STEPS + 1, 5),
)
show(
    figure,
    f"The largest difference between weights on four ranks and on one, over {STEPS} steps, on a logarithmic "
    f"scale. BatchNorm by itself on each rank: from {apart[0]:.4f} to {apart[-1]:.3f}. BatchNorm with sums of "
    "all ranks, and NormProp: below 1e-12.",
)

# %% [markdown]
# ## What it costs
#
# An exchange costs time even if it is short: all wait for the last. So it matters how often ranks
# meet. NormProp meets once a step, when loss and gradients travel in one buffer. (One meeting is
# two calls: a slice of the sums for each rank, then the sums to all.) BatchNorm meets in every
# layer, on the way forwards and on the way back.
#
# The network has two hidden layers. How often do the ranks meet in one step with BatchNorm?

# %%
QUESTION = "meetings of a step with BatchNorm"
predict(QUESTION)


# %%
def meetings(norm):
    """How often the ranks meet in a step, and how often before the loss is known."""

    def work(ranks):
        tp.manual_seed(0)
        net = tp.nn.build(SPEC, norm=norm)
        images, labels = batches[0][0].astype(np.float32), batches[0][1]
        with ranks.sharing(len(images)), tp.no_grad():
            net(tp.tensor(images[ranks.share(len(images))]))
        forwards = ranks.comm.calls // 2
        tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05), threads=1, ranks=ranks)(
            images, labels
        )
        return forwards, ranks.comm.calls // 2 - forwards

    return on_ranks(4, work)


for norm in ("normprop", "batch"):
    forwards, step = meetings(norm)
    print(f"{norm:9} {forwards} meetings on the way forwards; in a whole step {step}")
reveal(QUESTION, step)

# %% [markdown]
# On one machine a meeting takes microseconds; between machines, some 20 to 50 of them, plus the
# time for the bytes. [`benchmarks/RANKS.md`](../benchmarks/RANKS.md) has what a step costs
# on two processes.
#
# ## Exercises
#
# **E4.1** Split a batch. Return the number of samples of each rank, a list of as many numbers as
# there are ranks: no two ranks differ by more than one sample, and if there are fewer samples than
# ranks, the last ranks have none.


# %%
def shares(samples, ranks): ...  # your code


check("E4.1", shares)
# hint("E4.1")

# %% [markdown]
# **E4.2** Sums in floating point depend on their order. Find three numbers $a$, $b$, $c$ with $(a +
# b) + c \ne a + (b + c)$. (`add_up` adds in the order of the ranks, so that all ranks get the same
# bits. If each rank began with its own number, their weights would slowly drift apart.)

# %%
three_numbers = ...  # a tuple

check("E4.2", three_numbers)

# %% [markdown]
# **E4.3** A step of one process takes `compute` milliseconds; on $n$ ranks it takes $1/n$ of that.
# A meeting of $n$ ranks takes $0.05 \log_2 n$ ms, plus $\frac{2(n - 1)}{n}$ times the time to send
# the gradients once, `send` ms. From how many ranks on does the meeting take longer than the
# computing?


# %%
def too_many_ranks(compute, send): ...  # your code: the smallest such n


check("E4.3", too_many_ranks)

# %% [markdown]
# Solutions, with derivations: [solutions/E4_data_parallel.ipynb](solutions/E4_data_parallel.ipynb).
#
# ## Read next
#
# - [`ranks.py`](../tinyprop/parallel/ranks.py): sums in the order of the ranks, and what happens
#   when a rank is lost; [`batch.py`](../tinyprop/engine/batch.py): sums over the parts of a batch.
# - Goyal et al., *Accurate, large minibatch SGD: training ImageNet in 1 hour*, 2017: what becomes
#   of learning when workers make the batch large.
#
# Back to the [course](README.md).

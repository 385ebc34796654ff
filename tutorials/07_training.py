# %% [markdown]
# # 7. Train it
#
# **Goal.** Train a NormProp network, first by hand, then with tinyprop's step; train it with batches of a single
# image; and know how much of a test error is chance.
#
# Our data are drawn by arithmetic, so nothing has to be downloaded: ten shapes, leaning, textured, with dots strewn
# about.

# %%
import math

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from lesson import BLUE, GRAY, panels, show
from tinyprop import plots

IMAGES, RATES = 4000, (0.04, 0.04, 0.02, 0.01)  # of training, and the learning rate of each epoch
SPEC = "C(16,5,2,2)-C(24,3,1,1)-P(2,2,0,max)-C(32,3,1,1)-C(32,1,1,0)-C(10,1,1,0)-P(8,8,0,avg)"

train, test = tp.data.load("shapes").first(IMAGES), tp.data.load("shapes", split="test")
show(plots.predictions(train.images[:16], train.labels[:16], train.labels[:16], train.classes))

# %% [markdown]
# ## One step, by hand
#
# The network is written in the paper's shorthand: `C(filters, size, stride, padding)`,
# `P(size, stride, padding, mode)`. The first layer normalises the data: each pixel gets mean 0 and standard deviation 1
# *over the training set* (section 4.1), which is where normalisation starts to propagate. A step is six lines.


# %%
def network(data, seed=0):
    tp.manual_seed(seed)
    first = tp.data.GlobalNormalizer((3, 32, 32)).fit(data.images)
    return tp.nn.Sequential(first, *tp.nn.build(SPEC, norm="normprop"))


net = network(train)
optimizer = tp.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, weight_decay=0.001)
images, labels = train.images[:50], train.labels[:50]
for _ in range(3):
    loss = F.cross_entropy(net(tp.tensor(images)), labels)  # forward
    loss.backward()  # the gradients
    optimizer.step()  # downhill
    optimizer.zero_grad()
    tp.optim.normalize_weights(net)  # back to length 1 (lesson 6)
    print(f"loss {loss.item():.2f}")

# %% [markdown]
# The first loss is near $\ln 10 = 2.30$: a network that knows nothing gives each class a tenth.
#
# ## An epoch, and more
#
# `tp.train.TrainingStep` does the same, and may spread the images of a batch over the cores: NormProp never looks
# across the batch, so the parts can be computed apart. (One thread here, to get the same digits on every machine.) The
# learning rate is halved towards the end, as in the paper: at a large rate the last steps are a lottery.


# %%
def trained(batch_size, rates, momentum, count, seed=0, data=train):
    """A network after an epoch at each of these learning rates, and all its losses."""
    net, random, losses = network(data, seed), np.random.default_rng(seed), []
    optimizer = tp.optim.SGD(net.parameters(), rates[0], momentum, weight_decay=0.001)
    step = tp.train.TrainingStep(net, optimizer, threads=1)
    for optimizer.lr in rates:
        for images, labels in tp.data.batches(data.first(count), batch_size, random):
            losses.append(float(step(images, labels)))
    return net, losses


def report(name, net, data=test):
    """The test error, and its standard error: that of the fraction of heads of so many coins."""
    _, error = tp.train.evaluate(net, data.images, data.labels, threads=1)
    print(f"{name:30} test error {error:.1%} +- {math.sqrt(error * (1 - error) / len(data)):.1%}")


net, losses = trained(batch_size=50, rates=RATES, momentum=0.9, count=IMAGES)
report(f"NormProp, {len(RATES)} epochs", net)
report("the same from another seed", trained(50, RATES, 0.9, IMAGES, seed=1)[0])

figure, (axes,) = panels(1, 6.5, 2.8)
axes.plot(losses, color=BLUE, linewidth=0.7, alpha=0.5)
smooth = np.convolve(losses, np.ones(20) / 20, "valid")
axes.plot(np.arange(19, len(losses)), smooth, color=BLUE, label="mean of 20 steps")
axes.axhline(math.log(10), color=GRAY, linestyle=":")
axes.text(len(losses), math.log(10) + 0.04, "knows nothing", color=GRAY, ha="right", fontsize=9)
axes.set(title="Training loss", xlabel="step", ylim=(0, 2.6))
axes.legend(loc="lower left")
show(figure)

# %% [markdown]
# The error bar after +- is only about the test images: how much another 2,000 of them would change the number.
# Another *seed* may change it by more. To compare two networks one needs both kinds of repetition (exercise 1). And the
# learning rates above are the last of several that were tried on these test images, so expect a little more on new
# ones.
#
# Where does it fail? Here are its first 16 wrong answers, each with the right one below.

# %%
guesses = net.eval()(tp.tensor(test.images[:600])).data.argmax(axis=1)
wrong = np.flatnonzero(guesses != test.labels[:600])[:16]
show(plots.predictions(test.images[wrong], test.labels[wrong], guesses[wrong], test.classes))

# %% [markdown]
# ## A batch of one
#
# A batch that is a single image has no statistics worth the name. The paper says that BatchNorm is not applicable
# then (section 4.1). Precisely: in a fully connected layer it is 0/0, and tinyprop refuses. In a convolution it is
# defined, because the *places* of the image count as samples, too. NormProp does not care. Predict: after the same
# 2,000 images, who knows more, a network that took them 50 at a time, or one by one?

# %%
try:
    tp.nn.BatchNorm(8)(tp.tensor(np.ones((1, 8), np.float32)))
except tp.ShapeError as refusal:
    print(refusal)

SOME = 2000
one, _ = trained(batch_size=1, rates=(0.02,), momentum=0.0, count=SOME)
fifty, _ = trained(batch_size=50, rates=(0.04,), momentum=0.9, count=SOME)
report(f"{SOME} images, one by one", one)
report(f"{SOME} images, 50 at a time", fifty)

# %% [markdown]
# One by one there are 50 times as many steps, each noisier. For so few images that is a good bargain; its price is
# time, since small products of matrices use a processor badly. Do not read more into it: one seed each, and the
# settings were picked by looking at these same test images, the best of six for one by one, but of only two for 50 at
# a time. A fair contest tunes both alike, on `split="valid"`.
#
# ## CIFAR-10
#
# Photographs need more images, filters and epochs than a lesson has. If CIFAR-10 is on your disk, the next cell
# trains for an epoch on a part of it. The whole experiment is one command, which may be stopped and resumed at any
# time:
#
#     tinyprop train --data cifar10 --norm normprop --width 0.25 --epochs 10 --train-size 10000 --out runs/first

# %%
if tp.data.found("cifar10") and tp.data.found("cifar10", split="test"):
    photographs = tp.data.load("cifar10").first(IMAGES)
    net, _ = trained(batch_size=50, rates=(0.04,), momentum=0.9, count=IMAGES, data=photographs)
    report("CIFAR-10, one epoch", net, tp.data.load("cifar10", split="test").first(2000))
else:
    print("CIFAR-10 is not here: tinyprop train --data cifar10 fetches it")

# %% [markdown]
# ## Exercises
#
# 1. Two networks have test errors of 11.0 % and 12.5 % on the same 2,000 images. Is the first one better? Compute how
#    many standard errors lie between them if their mistakes are independent, and how many images would settle it.
# 2. Show that `TrainingStep` on two threads takes the same step as on one, up to rounding.
# 3. Train `norm="batch"` on 50 at a time, and evaluate it in training mode (batch statistics) and in evaluation mode
#    (running averages). Why is there a difference, and why is there none for NormProp?
#
# Solutions: [solutions/07_training.py](solutions/07_training.py).
#
# ## Read next
#
# - [`train/step.py`](../tinyprop/train/step.py), then [`train/run.py`](../tinyprop/train/run.py): the loop.
# - Arpit et al., *Normalization propagation*, ICML 2016, section 5. Masters and Luschi, *Revisiting small batch
#   training for deep neural networks*, 2018.
#
# Next: [8. Any activation](08_any_activation.ipynb).

"""Solutions of lesson 7: train it."""

import math

import numpy as np

import tinyprop as tp

SPEC = "C(12,5,2,2)-P(2,2,0,max)-C(16,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
train = tp.data.load("shapes", split="test").first(1000)
normalise = tp.data.GlobalNormalizer((3, 32, 32)).fit(train.images)

# Exercise 1. The variance of a difference is the sum of the variances.


def standard_errors_apart(p, q, count):
    return abs(p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / count)


z = standard_errors_apart(0.110, 0.125, 2000)
print(f"{z:.2f} standard errors: that may well be chance")
assert 1.4 < z < 1.6
needed = 2000 * (3 / z) ** 2
assert standard_errors_apart(0.110, 0.125, math.ceil(needed)) >= 3  # some 8,000 images for three standard errors
assert 7_500 < needed < 9_000

# Exercise 2. The gradient of a sum of losses is the sum of the gradients; only the order of additions differs.


def weights_after_a_step(threads):
    tp.manual_seed(0)
    net = tp.nn.build(SPEC)
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05), threads=threads)
    step(normalise(tp.tensor(train.images[:50])), train.labels[:50])
    return net.state_dict()


one, two = weights_after_a_step(1), weights_after_a_step(2)
assert all(np.allclose(one[name], two[name], atol=1e-6) for name in one)

# Exercise 3. In evaluation mode BatchNorm takes averages over the last batches, whose weights were older. NormProp has
# no statistics at all: both modes are one function.


def modes(norm):
    tp.manual_seed(0)
    net, random = tp.nn.build(SPEC, norm=norm), np.random.default_rng(0)
    step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.05), threads=1)
    for images, labels in tp.data.batches(train, 50, random):
        step(normalise(tp.tensor(images)), labels)
    batch = normalise(tp.tensor(train.images[:50]))
    with tp.no_grad():
        in_training = net.train()(batch).data
        return abs(in_training - net.eval()(batch).data).max()


assert modes("batch") > 0.1
assert modes("normprop") == 0

"""Solutions of lesson 3: internal covariate shift, watched live."""

import math

import numpy as np

import tinyprop as tp

SPEC = "C(12,5,2,2)-C(16,3,1,1)-P(2,2,0,max)-C(24,3,1,1)-C(24,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
test = tp.data.load("shapes", split="test")
images = tp.data.GlobalNormalizer((3, 32, 32)).fit(test.images)(tp.tensor(test.images[:500])).data

# Exercise 1. The statistics of a larger batch vary less. With one other image the rule fails (try it): then half of
# the statistics are the image's own.


def spread_of_answers(others):
    tp.manual_seed(0)
    net, random, answers = tp.nn.build(SPEC, norm="batch"), np.random.default_rng(0), []
    for _ in range(20):
        company = images[random.integers(1, len(images), others)]
        answers.append(net(tp.tensor(np.concatenate([images[:1], company]))).data[0])
    return float(np.std(answers, axis=0).mean())


few, some, many = map(spread_of_answers, (3, 15, 63))
print(f"spread of the answers: {few:.3f}, {some:.3f}, {many:.3f}")
assert few > some > many > 0

# Exercise 2. ReLU halves the second moment, and 2 / inputs makes up for it.


def scales(net):
    return [s.std for s in tp.nn.signals(net, tp.tensor(images[:100])) if s.layer.endswith("Activation")]


def he_start(net):
    random = np.random.default_rng(0)
    for layer in net:
        if isinstance(layer, tp.nn.Conv2d):
            std = math.sqrt(2 / math.prod(layer.weight.shape[1:]))
            layer.weight.data = std * random.standard_normal(layer.weight.shape, np.float32)


def train(net, parameters, steps=40):
    step = tp.train.TrainingStep(net, tp.optim.SGD(parameters, lr=0.05, momentum=0.9), threads=1)
    for i in range(steps):
        part = np.arange(50 * i, 50 * i + 50) % len(images)
        step(images[part], test.labels[part])


tp.manual_seed(0)
net = tp.nn.build(SPEC, norm="none")
glorot = scales(net)
he_start(net)
he = scales(net)
assert glorot[-1] / glorot[0] < 0.5 < he[-1] / he[0] < 2  # kept at the start,
train(net, list(net.parameters()))
assert abs(math.log(scales(net)[-1] / he[-1])) > 0.1  # but nothing holds it there

# Exercise 3. Without gamma and beta the filters can still align with the data, and with each other.


def movement(names):
    tp.manual_seed(0)
    net = tp.nn.build(SPEC, norm="normprop")
    before = tp.nn.signals(net, tp.tensor(images[:100]))
    train(net, [p for name, p in net.named_parameters() if name.endswith(names)])
    after = tp.nn.signals(net, tp.tensor(images[:100]))
    return abs(math.log(after[4].std / before[4].std))  # of the last hidden layer


directions, everything = movement(("weight", "bias")), movement(("weight", "bias", "gamma", "beta"))
print(f"log of the change of scale: {directions:.2f} by the directions alone, {everything:.2f} by everything")
assert directions > 0.02

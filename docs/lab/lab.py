"""The numbers of the laboratory: theory, and one random network. The page runs this file; so can
you."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import tinyprop as tp
from tinyprop.instruments.probes import samples_are_separate
from tinyprop.theory.stacks import COSINES, Stack

ANGLES = np.radians([30.0, 60.0, 90.0, 120.0])  # between the two inputs of a pair
PAIRS = 8
BINS = 60


def panels(stack: Stack, layer: int, seed: int) -> Iterator[tuple[str, dict]]:
    """One panel after the other. `layer` counts from 1, or from 0 with residual blocks."""
    tp.manual_seed(seed)
    random = np.random.default_rng([seed, 1])
    net, at = stack.network(), layer - stack.layers[0]
    x = random.standard_normal((stack.batch, stack.width))
    look = sample_by_sample if samples_are_separate(net) else batch_by_batch
    seen = look(net, at, x, random)

    signal = np.sqrt([z.var(axis=0, ddof=1).mean() for z in seen.values])
    gradient = np.sqrt([(g**2).mean() for g in seen.gradients])
    theory = {f"{name} theory": stack.predicted(name) for name in ("signal", "gradient")}
    yield (
        "layers",
        {"layers": stack.layers, "signal": signal, "gradient": gradient / gradient[-1], **theory},
    )
    std = None if stack.theory is None else math.sqrt(stack.states[at, 0])
    yield "distribution", histograms(seen.values[at]) | {"theory std": std}
    cosines = [[cosine(*pair) for pair in zip(*pairs, strict=True)] for pairs in seen.pairs]
    known = stack.predicted("correlation") is not None
    theory = {
        "cosines": COSINES[1:],
        "theory": stack.states[at, 3:] / stack.states[at, 0] if known else None,
    }
    found = {"at": np.cos(ANGLES), "mean": np.mean(cosines, axis=1), "std": np.std(cosines, axis=1)}
    yield "correlation", found | theory
    largest = stack.predicted("spectrum")
    singular = np.linalg.svd(seen.jacobian, compute_uv=False)
    yield (
        "spectrum",
        {
            "values": singular,
            "largest theory": None if largest is None or np.isnan(largest[at]) else largest[at],
        },
    )


@dataclass
class Seen:
    """What is seen of a network, as float64 arrays."""

    values: list  # behind each layer, for each input
    gradients: list  # a random gradient of the last layer, on its way back
    # values behind the chosen layer: for each angle, of the first inputs and of their partners
    pairs: list
    jacobian: np.ndarray  # of the layers up to the chosen one, at the first input


def sample_by_sample(
    net: tp.nn.Sequential, at: int, x: np.ndarray, random: np.random.Generator
) -> Seen:
    """Samples do not depend on each other, so one pass forwards and one backwards show
    everything."""
    (count, width), first = x.shape, x[:PAIRS]
    inputs = tensor(x, *partners(first, random), *[x[:1]] * width)
    outputs = through(net, inputs)
    noise = tensor(random.standard_normal(x.shape))
    total = (outputs[-1][:count] * noise).sum() + (
        outputs[at][-width:] * tensor(np.eye(width))
    ).sum()
    back, *gradients = arrays(tp.grad(total, [inputs, *outputs]))
    values = arrays(outputs)
    others = np.split(values[at][count:-width], len(ANGLES))
    pairs = [(values[at][: len(first)], other) for other in others]
    return Seen([z[:count] for z in values], [g[:count] for g in gradients], pairs, back[-width:])


def batch_by_batch(
    net: tp.nn.Sequential, at: int, x: np.ndarray, random: np.random.Generator
) -> Seen:
    """Statistics of a batch, as in BatchNorm: pairs are a batch as large as x, and the Jacobian is
    that of a layer with the statistics of x."""
    for module in net.modules():
        if isinstance(module, tp.nn.BatchNorm):
            module.momentum = 1.0  # its running statistics are those of the last batch
    first = x[: len(x) // 2]
    below = tp.nn.Sequential(*list(net)[: at + 1])
    with tp.no_grad():
        ends = [below(tensor(first, partner)) for partner in partners(first, random)]
        net(tensor(x))  # which moves the running statistics; looking does not
    outputs = through(net, tensor(x))
    gradients = tp.grad(outputs[-1], outputs, random.standard_normal(x.shape).astype("float32"))
    net.eval()
    copies = tensor(*[x[:1]] * x.shape[1])
    jacobian = tp.grad(below(copies), [copies], np.eye(x.shape[1], dtype="float32"))
    pairs = [np.split(z, 2) for z in arrays(ends)]
    return Seen(arrays(outputs), arrays(gradients), pairs, *arrays(jacobian))


def through(net: tp.nn.Module, x: tp.Tensor) -> list[tp.Tensor]:
    """The output of each layer, with its graph."""
    return [record.output for record in tp.observe(net, x) if record.depth == 1]


def tensor(*parts: np.ndarray) -> tp.Tensor:
    return tp.tensor(np.concatenate(parts), requires_grad=True, dtype="float32")


def arrays(tensors: list[tp.Tensor]) -> list[np.ndarray]:
    return [t.numpy().astype("float64") for t in tensors]


def partners(x: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """For each angle, an input of the same length at this angle to each x, in a random
    direction."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    other = random.standard_normal(x.shape)
    other -= x * (x * other).sum(axis=1, keepdims=True) / lengths**2
    other *= lengths / np.linalg.norm(other, axis=1, keepdims=True)
    return [math.cos(angle) * x + math.sin(angle) * other for angle in ANGLES]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def histograms(z: np.ndarray) -> dict:
    """Of all values, and of their deviations from the mean of each unit."""
    half = 4.0 * max(1.0, math.sqrt((z**2).mean()))
    edges = np.linspace(-half, half, BINS + 1)
    counts = [np.histogram(values, edges)[0] for values in (z, z - z.mean(axis=0))]
    all_values, about = (count / (z.size * (edges[1] - edges[0])) for count in counts)
    return {"edges": edges, "all": all_values, "about": about}


def show(stack: Stack, layer: int, seed: int) -> None:
    """Print all numbers."""
    for name, numbers in panels(stack, layer, seed):
        print(name)
        for key, values in numbers.items():
            print(
                f"  {key}:",
                "none"
                if values is None
                else " ".join(f"{value:.6g}" for value in np.ravel(values)),
            )

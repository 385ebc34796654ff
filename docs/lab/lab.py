"""The numbers of the laboratory: theory, and random networks. The page runs this file; so can you.

- `theory` is what is known of a network in the limit of wide layers.
- `measured` draws one random network, sends inputs through it, and measures the same things.
- `bands` draws several more, to show how much they differ.
"""

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
RANGE = 4.0  # root mean squares, of a histogram on each side of 0

Panel = tuple[str, dict]  # the name of what is shown, and its numbers


def panels(stack: Stack, layer: int, seed: int, networks: int = 1) -> Iterator[Panel]:
    """Everything that the page shows. `layer` counts from 1, or from 0 with residual blocks."""
    yield "theory", theory(stack, layer)
    yield from measured(stack, layer, seed, networks)


# -- theory


def theory(stack: Stack, layer: int) -> dict:
    """All curves of theory but the slow one, of singular values: None where there is none."""
    at = layer - stack.layers[0]
    return {
        "layers": stack.layers,
        "signal": stack.predicted("signal"),
        "gradient": stack.predicted("gradient"),
        "affine": stack.affine,  # gamma and beta
        "std": gaussian_std(stack, at),
        "cosines": COSINES[1:],
        "correlation": correlation_map(stack, at),
    }


def gaussian_std(stack: Stack, at: int) -> float | None:
    """The standard deviation of the values of a layer, if they are Gaussian."""
    if stack.theory is None or not stack.theory.is_of_sums:
        return None
    mean_square = stack.states[at, 0]
    return math.sqrt(mean_square)


def correlation_map(stack: Stack, at: int) -> np.ndarray | None:
    """How alike two inputs are in a layer, for each of COSINES but the first."""
    if stack.predicted("correlation") is None:
        return None
    mean_square = stack.states[at, 0]
    mean_products = stack.states[at, 3:]
    return mean_products / mean_square


# -- one random network


@dataclass
class Seen:
    """What is seen of a network, as float64 arrays."""

    values: list[np.ndarray]  # after each layer, for each input
    gradients: list[np.ndarray]  # a random gradient of the last layer, on its way back
    # values after the chosen layer: for each angle, those of the first inputs and their partners
    pairs: list[tuple[np.ndarray, np.ndarray]]
    jacobian: np.ndarray  # of the layers up to the chosen one, at the first input


def measured(stack: Stack, layer: int, seed: int, networks: int) -> Iterator[Panel]:
    """What is seen of one random network, and then of several."""
    at = layer - stack.layers[0]
    seen = look(stack, at, seed)
    curves = {"signal": signal(seen.values), "gradient": gradient(seen.gradients)}
    yield "network", {"layers": stack.layers} | curves
    yield "distribution", histograms(seen.values[at])
    yield "correlation", correlations(seen.pairs)
    yield "spectrum", spectrum(stack, at, seen.jacobian)
    yield from bands(stack, seed, networks, curves)


def look(stack: Stack, at: int, seed: int) -> Seen:
    """Draw a network and inputs, and look at what the network makes of them."""
    net, x, random = draw(stack, seed)
    if samples_are_separate(net):
        return sample_by_sample(net, at, x, random)
    return batch_by_batch(net, at, x, random)


def draw(stack: Stack, seed: int) -> tuple[tp.nn.Sequential, np.ndarray, np.random.Generator]:
    """A network, a batch of Gaussian inputs, and the generator that goes on from there."""
    tp.manual_seed(seed)  # of the weights
    random = np.random.default_rng([seed, 1])
    net = stack.network()
    x = random.standard_normal((stack.batch, stack.width))
    return net, x, random


def sample_by_sample(
    net: tp.nn.Sequential, at: int, x: np.ndarray, random: np.random.Generator
) -> Seen:
    """Samples do not depend on each other, so one batch shows everything: the inputs, the partners
    of the first of them, and copies of the first input, one for each row of the Jacobian."""
    count, width = x.shape
    first = x[:PAIRS]
    copies = np.repeat(x[:1], width, axis=0)
    inputs = tensor(x, *partners(first, random), copies)
    outputs = through(net, inputs)

    # one pass backwards, for the sum of two numbers that concern different samples
    noise = tensor(random.standard_normal(x.shape))
    of_inputs = (outputs[-1][:count] * noise).sum()
    of_copies = (outputs[at][-width:] * tensor(np.eye(width))).sum()
    to_inputs, *to_outputs = arrays(tp.grad(of_inputs + of_copies, [inputs, *outputs]))

    values = arrays(outputs)
    of_first = values[at][: len(first)]
    of_partners = np.split(values[at][count:-width], len(ANGLES))
    return Seen(
        values=[z[:count] for z in values],
        gradients=[g[:count] for g in to_outputs],
        pairs=[(of_first, others) for others in of_partners],
        jacobian=to_inputs[-width:],
    )


def batch_by_batch(
    net: tp.nn.Sequential, at: int, x: np.ndarray, random: np.random.Generator
) -> Seen:
    """Statistics of a batch, as in BatchNorm: pairs are a batch as large as x, and the Jacobian is
    that of a layer with the statistics of x."""
    count, width = x.shape
    keep_statistics_of_last_batch(net)
    below = tp.nn.Sequential(*list(net)[: at + 1])
    first = x[: count // 2]
    with tp.no_grad():
        of_pairs = [below(tensor(first, partner)) for partner in partners(first, random)]
        net(tensor(x))  # which moves the running statistics; looking does not

    outputs = through(net, tensor(x))
    noise = random.standard_normal(x.shape).astype("float32")
    gradients = tp.grad(outputs[-1], outputs, noise)

    net.eval()
    copies = tensor(np.repeat(x[:1], width, axis=0))
    (jacobian,) = tp.grad(below(copies), [copies], np.eye(width, dtype="float32"))

    halves = [np.split(z, 2) for z in arrays(of_pairs)]
    return Seen(
        values=arrays(outputs),
        gradients=arrays(gradients),
        pairs=[(of_first, others) for of_first, others in halves],
        jacobian=jacobian.numpy().astype("float64"),
    )


def keep_statistics_of_last_batch(net: tp.nn.Module) -> None:
    """Instead of a mean over batches."""
    for module in net.modules():
        if isinstance(module, tp.nn.BatchNorm):
            module.momentum = 1.0


def through(net: tp.nn.Module, x: tp.Tensor) -> list[tp.Tensor]:
    """The output of each layer, with its graph."""
    return [record.output for record in tp.observe(net, x) if record.depth == 1]


def partners(x: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """For each angle, an input of the same length at this angle to each x, in a random
    direction."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    across = random.standard_normal(x.shape)
    along = x * (x * across).sum(axis=1, keepdims=True) / lengths**2
    across -= along
    across *= lengths / np.linalg.norm(across, axis=1, keepdims=True)
    return [math.cos(angle) * x + math.sin(angle) * across for angle in ANGLES]


def tensor(*parts: np.ndarray) -> tp.Tensor:
    """The parts below each other."""
    return tp.tensor(np.concatenate(parts), requires_grad=True, dtype="float32")


def arrays(tensors: list[tp.Tensor]) -> list[np.ndarray]:
    return [t.numpy().astype("float64") for t in tensors]


# -- several random networks


def bands(stack: Stack, seed: int, networks: int, first: dict[str, np.ndarray]) -> Iterator[Panel]:
    """The lowest and the highest curve so far, of networks with this seed and the following
    ones."""
    lowest = dict(first)
    highest = dict(first)
    for count in range(2, networks + 1):
        for name, curve in one_more(stack, seed + count - 1).items():
            lowest[name] = np.minimum(lowest[name], curve)
            highest[name] = np.maximum(highest[name], curve)
        numbers: dict = {"networks": count, "layers": stack.layers}
        for name in first:
            numbers[f"{name} lowest"] = lowest[name]
            numbers[f"{name} highest"] = highest[name]
        yield "band", numbers


def one_more(stack: Stack, seed: int) -> dict[str, np.ndarray]:
    """Signal and gradient of another network, for other inputs."""
    net, x, random = draw(stack, seed)
    outputs = through(net, tensor(x))
    noise = random.standard_normal(x.shape).astype("float32")
    gradients = tp.grad(outputs[-1], outputs, noise)
    return {"signal": signal(arrays(outputs)), "gradient": gradient(arrays(gradients))}


# -- from what is seen to what is shown


def signal(values: list[np.ndarray]) -> np.ndarray:
    """The standard deviation of a unit over inputs, in each layer."""
    return np.sqrt([z.var(axis=0, ddof=1).mean() for z in values])


def gradient(gradients: list[np.ndarray]) -> np.ndarray:
    """Its root mean square in each layer, relative to the last."""
    sizes = np.sqrt([(g**2).mean() for g in gradients])
    return sizes / sizes[-1]


def histograms(z: np.ndarray) -> dict:
    """Of all values, and of their deviations from the mean of each unit."""
    root_mean_square = math.sqrt((z**2).mean())
    half = RANGE * (root_mean_square or 1.0)
    edges = np.linspace(-half, half, BINS + 1)
    return {
        "edges": edges,
        "all": densities(z, edges),
        "about": densities(z - z.mean(axis=0), edges),
    }


def densities(z: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The fraction of values in each bin, divided by its width."""
    counts, _ = np.histogram(z, edges)
    width = edges[1] - edges[0]
    return counts / (z.size * width)


def correlations(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict:
    """For each angle, the mean and the standard deviation over pairs."""
    cosines = [[cosine(a, b) for a, b in zip(*both, strict=True)] for both in pairs]
    return {
        "at": np.cos(ANGLES),
        "mean": np.mean(cosines, axis=1),
        "std": np.std(cosines, axis=1),
    }


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def spectrum(stack: Stack, at: int, jacobian: np.ndarray) -> dict:
    """The singular values, and theory of the largest."""
    largest = stack.predicted("spectrum")
    is_known = largest is not None and not np.isnan(largest[at])
    return {
        "values": np.linalg.svd(jacobian, compute_uv=False),
        "largest theory": largest[at] if is_known else None,
    }


# -- without the page


def show(stack: Stack, layer: int, seed: int, networks: int = 1) -> None:
    """Print all numbers."""
    for name, numbers in panels(stack, layer, seed, networks):
        print(name)
        for key, values in numbers.items():
            print(f"  {key}: {written(values)}")


def written(values: np.ndarray | float | None) -> str:
    if values is None:
        return "none"
    return " ".join(f"{value:.6g}" for value in np.ravel(values))

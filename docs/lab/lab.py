"""The numbers of the laboratory: theory, and one random network. The page runs this file; so can you."""

import math
from collections.abc import Iterator

import numpy as np

import tinyprop as tp
from tinyprop.compare import by_layer
from tinyprop.stacks import COSINES, Stack
from tinyprop.theory import correlations, spectra

ANGLES = (30.0, 60.0, 90.0, 120.0)  # between the two inputs of a pair
PAIRS = 8
BINS = 60


def panels(stack: Stack, layer: int, seed: int) -> Iterator[tuple[str, dict]]:
    """One panel after the other, the quickest first. `layer` counts from 1, or from 0 with residual blocks."""
    tp.manual_seed(seed)
    random = np.random.default_rng([seed, 1])
    net = stack.network()
    x = tp.tensor(random.standard_normal((stack.batch, stack.width)), dtype="float32")
    signal, gradient = by_layer(stack, net, x, random)
    theory = {f"{name} theory": stack.predicted(name) for name in ("signal", "gradient")}
    yield "layers", {"layers": stack.layers, "signal": signal, "gradient": gradient, **theory}

    at = layer - stack.layers[0]
    part = tp.nn.Sequential(*list(net)[: at + 1])
    yield "distribution", distribution(part, x) | {"theory std": math.sqrt(stack.states[at, 0])}
    known = stack.predicted("correlation") is not None
    theory = {"cosines": COSINES[1:], "theory": stack.states[at, 3:] / stack.states[at, 0] if known else None}
    yield "correlation", correlation(part, x if stack.norm == "batch" else x[: 2 * PAIRS], seed) | theory
    largest = stack.predicted("spectrum")
    yield "spectrum", {"values": spectrum(part, x), "largest theory": None if largest is None else largest[at]}


def distribution(part: tp.nn.Sequential, x: tp.Tensor) -> dict:
    """Histograms of the values behind these layers, and of their deviations from the mean of each unit."""
    with tp.no_grad():
        z = part(x).numpy().astype("float64")
    half = 4.0 * max(1.0, math.sqrt((z**2).mean()))
    edges = np.linspace(-half, half, BINS + 1)
    counts = [np.histogram(values, edges)[0] for values in (z, z - z.mean(axis=0))]
    all_values, about = (count / (z.size * (edges[1] - edges[0])) for count in counts)
    return {"edges": edges, "all": all_values, "about": about}


def correlation(part: tp.nn.Sequential, x: tp.Tensor, seed: int) -> dict:
    """Of pairs of inputs, at some angles at the start; both inputs of all pairs are one batch, as large as x."""
    pairs = [correlations(part, x[: len(x) // 2], angle, seed)[-1].cosines for angle in ANGLES]
    return {"at": np.cos(np.radians(ANGLES)), "mean": [p.mean() for p in pairs], "std": [p.std() for p in pairs]}


def spectrum(part: tp.nn.Sequential, x: tp.Tensor) -> np.ndarray:
    """The singular values of the Jacobian at the first input; BatchNorm keeps the statistics of the whole batch."""
    for module in part.modules():
        if isinstance(module, tp.nn.BatchNorm):
            module.momentum = 1.0
    part(x)
    return spectra(tp.nn.Sequential(part.eval()), x[:1])[0].product


def show(stack: Stack, layer: int, seed: int) -> None:
    """Print all numbers."""
    for name, numbers in panels(stack, layer, seed):
        print(name)
        for key, values in numbers.items():
            print(f"  {key}:", "none" if values is None else " ".join(f"{value:.6g}" for value in np.ravel(values)))

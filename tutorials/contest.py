"""The runs of lesson 10: python tutorials/contest.py adds what is missing to contest.json (7 CPU
minutes).

Every normaliser gets the same network, the same images and the same two learning rates; a run that
diverges is recorded as one. The first seed chooses the rate, on validation images, which no run was
trained on; the other seeds take it. The test images are for the end."""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import tinyprop as tp
from tinyprop.report.saving import write_whole

RESULTS = Path(__file__).with_name("contest.json")
SPEC = "C(12,3,1,1)-P(2,2,0,max)-C(16,3,1,1)-P(2,2,0,max)-C(24,3,1,1)-C(10,1,1,0)-P(4,4,0,avg)"
IMAGES, SEEDS, RATES = 1200, (0, 1, 2), (0.03, 0.1)
NORMS = {
    "none": "none, He's start",
    "batch": "BatchNorm",
    "layer": "LayerNorm",
    "group": "GroupNorm",
    "weight": "WeightNorm",
    "ws": "NF-net (WS)",
    "dyt": "DyT",
    "normprop": "NormProp",
}
EPOCHS, MOMENTUM = {1: 1, 25: 4}, {1: 0.0, 25: 0.9}  # for each batch size


def images() -> dict[str, tuple[Any, Any]]:
    """Shapes at half their size, 16 x 16; each pixel has mean 0 and standard deviation 1 over the
    training images."""
    train, test = tp.data.load("shapes"), tp.data.load("shapes", split="test")
    parts = {
        "train": (train.images[:IMAGES], train.labels[:IMAGES]),
        "valid": (train.images[IMAGES : IMAGES + 1000], train.labels[IMAGES : IMAGES + 1000]),
        "test": (test.images, test.labels),
    }
    small = {
        k: (x.astype(np.float32).reshape(len(x), 3, 16, 2, 16, 2).mean(axis=(3, 5)), y)
        for k, (x, y) in parts.items()
    }
    mean, std = small["train"][0].mean(axis=0), small["train"][0].std(axis=0)
    return {k: ((x - mean) / std, y) for k, (x, y) in small.items()}


def trained(
    norm: str, batch: int, rate: float, seed: int, data: dict[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """One run: a quarter of the rate in its last fifth. Errors are None if it diverges."""
    tp.manual_seed(seed)
    net = tp.nn.build(SPEC, norm=norm, init="he" if norm == "none" else None)
    optimizer = tp.optim.SGD(net.parameters(), rate, MOMENTUM[batch], weight_decay=1e-3)
    step, random = tp.train.TrainingStep(net, optimizer, threads=1), np.random.default_rng(seed)
    x, y = data["train"]
    parts = np.concatenate(
        [random.permutation(len(x)).reshape(-1, batch) for _ in range(EPOCHS[batch])]
    )
    run: dict[str, Any] = {
        "norm": norm,
        "batch": batch,
        "rate": rate,
        "seed": seed,
        "valid": None,
        "test": None,
    }
    try:
        with np.errstate(all="ignore"):
            for i, part in enumerate(parts):
                optimizer.lr = rate if i < 0.8 * len(parts) else rate / 4
                step(tp.tensor(x[part]), y[part])
        run |= {
            k: round(tp.train.evaluate(net, *data[k], threads=1)[1], 4) for k in ("valid", "test")
        }
    except tp.DivergenceError:
        pass
    return run


def work(setting: tuple[str, int, float, int]) -> dict[str, Any]:
    with threadpool_limits(1, "blas"):
        return trained(*setting, images())


def recorded() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def best_rate(runs: list[dict[str, Any]], norm: str, batch: int) -> float:
    """The learning rate of the first seed's run with the smaller validation error."""
    tried = [
        run for run in runs if (run["norm"], run["batch"], run["seed"]) == (norm, batch, SEEDS[0])
    ]
    return min(tried, key=lambda run: run["valid"] or 1.0)["rate"]


def compute(settings: list[tuple[str, int, float, int]], workers: int) -> None:
    """Run what is not recorded yet, and record it."""
    # here, because a browser has no processes, and the lesson imports this module
    from concurrent.futures import ProcessPoolExecutor, as_completed

    runs = recorded()
    done = {(run["norm"], run["batch"], run["rate"], run["seed"]) for run in runs}
    with ProcessPoolExecutor(workers) as pool:
        futures = [pool.submit(work, setting) for setting in settings if setting not in done]
        for future in tqdm(as_completed(futures), total=len(futures), disable=None):
            runs.append(future.result())
            runs.sort(
                key=lambda run: (
                    run["batch"],
                    list(NORMS).index(run["norm"]),
                    run["rate"],
                    run["seed"],
                )
            )
            write_whole(
                RESULTS, ("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n").encode()
            )


def main(workers: int) -> None:
    compute([(n, b, r, SEEDS[0]) for b, n, r in product(EPOCHS, NORMS, RATES)], workers)
    runs = recorded()
    compute(
        [(n, b, best_rate(runs, n, b), s) for s, b, n in product(SEEDS[1:], EPOCHS, NORMS)], workers
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)

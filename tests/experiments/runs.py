"""Records made up for tests, and the smallest run that can be computed."""

import base64
import zlib
from dataclasses import replace

import numpy as np

from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.experiment import Arm
from tinyprop.experiments.record import Evaluation, Layer, Record
from tinyprop.experiments.scales import SCALES
from tinyprop.train import Config

TINY = Config(
    data="shapes",
    width=0.04,
    epochs=2,
    batch_size=20,
    train_size=60,
    test_size=30,
    threads=1,
    data_norm="batch",
)


IMAGES = 2000


def evaluation(accuracy, loss, images):
    """The first images are right, as many as it takes, and all losses are the same."""
    correct, codes = (
        np.arange(images) < round(images * accuracy / 100.0),
        np.full(images, 46, np.uint8),
    )
    return Evaluation(
        1.0 - accuracy / 100.0,
        loss,
        loss,
        base64.b64encode(np.packbits(correct).tobytes()).decode(),
        base64.b64encode(zlib.compress(codes.tobytes())).decode(),
    )


def record(config, accuracy=50.0, loss=1.0, diverged=False, rough=0.1, climb=0.0):
    """A run with this test accuracy in %, this loss, training losses that are this rough, and an
    accuracy on validation images that climbs by so many points in an epoch at the end."""
    rng, epochs = np.random.default_rng(config.seed), range(1, config.epochs + 1)
    errors = [
        1.0
        - accuracy / 100.0 * (1.0 - 0.5**i) / (1.0 - 0.5**config.epochs)
        + 0.01 * rng.uniform()
        + 0.01 * climb * (config.epochs - i)
        for i in epochs
    ]
    rows = [
        {"epoch": i, "test_error": error, "validation_error": error, "images_per_second": 500.0}
        for i, error in zip(epochs, errors, strict=True)
    ]
    means = list(rng.uniform(0.1, 0.2, config.epochs + 1))
    found = None if diverged else evaluation(accuracy, loss, config.test_size or IMAGES)
    return Record(
        config=config,
        versions={"tinyprop": "0"},
        machine={"cpu": "none"},
        overrides=[],
        images={"train": 100, "test": 100},
        history=[] if diverged else rows,
        losses=[1.0 + rough * (-1.0) ** i for i in range(12)],
        layers=[
            Layer(i, means[:1] if diverged else means, [0.0] if diverged else means)
            for i in range(1, 10)
        ],
        diverged={"epoch": 1, "step": 3, "what": "a loss of nan"} if diverged else None,
        temperature=None if diverged else 1.0,
        validation=found if config.validation else None,
        test=found,
        averaged=found if config.average else None,
    )


def study(name, scale="short", lost=(), **made_up):
    """An experiment with all its runs, none of them computed.

    What is made up is a function of the name of the setting and the random seed; settings in `lost`
    diverge, or single runs (name, seed)."""

    def filled(found, settings):
        for setting, config in settings.items():
            records, planned = [], found.planned(setting)
            for seed in range(1, planned + 1):
                facts = {"accuracy": 50.0 + seed, "loss": 1.0 + 0.01 * seed}
                facts |= {fact: of(setting, seed) for fact, of in made_up.items()}
                diverged = setting in lost or (setting, seed) in lost
                records.append(record(replace(config, seed=seed), diverged=diverged, **facts))
            found.arms[setting] = Arm(config, planned, tuple(records))
        return found

    found = EXPERIMENTS[name](SCALES[scale])
    filled(found, found.settings())
    return filled(found, found.chosen())

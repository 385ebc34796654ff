"""Records made up for tests, and the smallest run that can be computed."""

from dataclasses import replace

import numpy as np

from tinyprop.experiments.experiment import Arm
from tinyprop.experiments.record import Divergence, Evaluation, Layer, Record
from tinyprop.train import Config

TINY = Config(
    data="shapes", width=0.04, epochs=2, batch_size=20, train_size=60, test_size=30, threads=1, data_norm="batch"
)


def record(config, accuracy=50.0, loss=1.0, diverged=False):
    """A run with this test accuracy in % and this loss."""
    rng = np.random.default_rng(config.seed)
    history = [{"epoch": i + 1, "test_error": 0.5, "validation_error": 0.5} for i in range(config.epochs)]
    means = tuple(rng.uniform(0.1, 0.2, config.epochs + 1))
    bare = Record(
        config=config,
        versions={"tinyprop": "0"},
        machine={"cpu": "none"},
        overrides=(),
        images={"train": 100, "test": 100},
        history=() if diverged else tuple(history),
        losses=tuple(rng.uniform(0.9, 1.1, 12)),
        layers=tuple(Layer(i, means[:1] if diverged else means, (0.0,) if diverged else means) for i in range(1, 10)),
        diverged=Divergence(1, 3, "a loss of nan") if diverged else None,
    )
    if diverged:
        return bare
    found = Evaluation(1.0 - accuracy / 100.0, loss, loss, "", "")
    return replace(bare, temperature=1.0, validation=found if config.validation else None, test=found)


def arms(
    experiment, scale, accuracy=lambda role, seed: 50.0 + seed, loss=lambda role, seed: 1.0 + 0.01 * seed, lost=()
):
    """All runs of an experiment, without computing any; those in `lost`, roles or (role, seed), diverge."""

    def filled(settings):
        return {
            role: Arm(
                setting,
                tuple(
                    record(
                        replace(setting.config, seed=s),
                        accuracy(role, s),
                        loss(role, s),
                        role in lost or (role, s) in lost,
                    )
                    for s in range(1, setting.seeds + 1)
                ),
            )
            for role, setting in settings.items()
        }

    found = filled(experiment.settings(scale))
    return found | filled(experiment.later_settings(scale, found))

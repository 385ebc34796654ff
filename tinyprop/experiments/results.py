"""The table of section 5.5 and the times of section 5.6."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from .. import nn, paper
from ..engine.arrays import default_backend
from ..estimate import Estimate
from ..info import machine
from ..optim import SGD
from ..plots import GREY, panels, styled
from ..random import manual_seed, new_generator
from ..train import TrainingStep
from .drawing import BLUE, RED, across
from .evidence import ACCURACY, Comparison
from .experiment import BATCHNORM, NORMPROP, Claim, Experiment, Finding, Pair, Settings
from .scales import Scale, Setting

NORMS = {NORMPROP: "normprop", BATCHNORM: "batch"}


class Results(Experiment):
    name, section, title = "results", "5.5", "Test errors on the data sets"
    note = (
        "Competitive means worse by less than 1 point, or 0.03 nats. The paper's errors are those of its full "
        "protocol, without intervals: compare who is better, not the values. What is not run has no data here. "
        "The row at half width has all images and 8 epochs, with the rate halved every 2."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            (row.label, norm): Setting(f"{row.label}, {norm}", replace(row.config, norm=NORMS[norm]), row.seeds)
            for row in scale.rows
            for norm in NORMS
        }

    def claims(self) -> list[Claim]:
        found = []
        for row in self.scale.rows:
            printed = paper.TEST_ERRORS.get(row.paper)
            errors = f"errors of {printed.normprop} and {printed.batch_norm} %" if printed else "not in the paper"
            text = f"NormProp is better than BN or competitive on {row.label}."
            pair = Pair(row.label, (row.label, NORMPROP), (row.label, BATCHNORM))
            found.append(Claim(text, errors, Comparison.at_least_as_good, (pair,)))
        return found

    def left_panel(self, axes: Any) -> None:
        for norm, color, shift in ((NORMPROP, BLUE, -0.14), (BATCHNORM, RED, 0.14)):
            for i, row in enumerate(self.scale.rows):
                found = self.arms[row.label, norm].estimate(ACCURACY)
                across(axes, replace(found, mean=100.0 - found.mean), i + shift, color)
                if printed := paper.TEST_ERRORS.get(row.paper):
                    value = printed.normprop if norm == NORMPROP else printed.batch_norm
                    axes.plot([value], [i + shift], "o", color=color, markerfacecolor="white")
            axes.text(0.9 + 2 * shift, 1.02, norm, color=color, ha="right", transform=axes.transAxes)
        axes.set(title="Test error, %", xlim=(0, 100), ylim=(len(self.scale.rows) - 0.5, -0.5), yticks=[])
        axes.set_xlabel("hollow: the paper's, at full scale")


ROUNDS, WARM_UP = 15, 3  # those of the warm-up do not count
BATCH = 50
PAPER_RATIO = paper.EPOCH_SECONDS["normprop"] / paper.EPOCH_SECONDS["batch"]


class Speed(Experiment):
    name, section, title = "speed", "5.6", "The time of a training step"

    @classmethod
    def measure(cls, scale: Scale) -> dict[str, Any]:
        """Milliseconds of a training step of both networks, in turns, each on one thread or on a GPU."""
        random, steps = new_generator(0), {}
        batch = random.standard_normal((BATCH, 3, 32, 32), "float32"), random.integers(0, 10, BATCH)
        for name, norm in NORMS.items():
            manual_seed(0)
            net = nn.build(nn.NIN, norm=norm, width=scale.speed_width)
            steps[name] = partial(TrainingStep(net, SGD(net.parameters(), lr=0.01, momentum=0.9), threads=1), *batch)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(-WARM_UP, ROUNDS):
            for name in list(steps) if turn % 2 == 0 else list(steps)[::-1]:  # so that neither always comes second
                start = time.perf_counter()
                float(steps[name]())  # waits for a GPU
                if turn >= 0:
                    times[name].append(1000.0 * (time.perf_counter() - start))
        where = "one thread" if default_backend() == "numpy" else "a GPU"
        return {"machine": machine(), "where": where, "width": scale.speed_width, "milliseconds": times}

    def ratios(self) -> list[float]:
        times = self.measured["milliseconds"]
        return [ours / theirs for ours, theirs in zip(times[NORMPROP], times[BATCHNORM], strict=True)]

    def findings(self) -> list[Finding]:
        ratio = Estimate.of(self.ratios())
        faster = True if ratio.high < 1.0 else False if ratio.low > 1.0 else None
        printed = f"{PAPER_RATIO:.3f}, on a GPU"
        return [Finding("NormProp takes less time than BN.", printed, f"{ratio:.3f} of BN's time", faster)]

    def paragraph(self) -> str:
        times = " and ".join(
            f"{Estimate.of(t):.1f} ms with {name}" for name, t in self.measured["milliseconds"].items()
        )
        return (
            f"A training step on {BATCH} images at {self.measured['width']:g} times the paper's width, in turns on "
            f"{self.measured['where']} ({self.measured['machine']['cpu']}): {times}. It is measured once and kept."
        )

    @styled
    def figure(self) -> Figure:
        figure, (left, right) = panels(2, 8.0, 2.8)
        rounds = range(1, len(self.ratios()) + 1)
        for (name, times), color in zip(self.measured["milliseconds"].items(), (BLUE, RED), strict=True):
            left.plot(rounds, times, "o-", color=color, markersize=4, label=name)
        left.set(title="One step, ms", xlabel="round", ylim=(0, None))
        left.legend()
        right.plot(rounds, self.ratios(), "o", color="black", markersize=4)
        right.axhline(1.0, color=GREY, linewidth=1, linestyle=":")
        right.axhline(PAPER_RATIO, color=BLUE, linewidth=1)
        right.set(title="NormProp / BatchNorm", xlabel=f"round; blue: the paper's {PAPER_RATIO:.3f}")
        return figure

"""From the scale of a laptop towards the paper's: a grid of small scales, an anchor, and one run as in the paper."""

import math
from dataclasses import replace

from .. import paper
from .evidence import Comparison, Measure, predicted
from .experiment import BATCHNORM, NORMPROP, Claim, Experiment
from .figures import Curves
from .record import Record
from .scales import IMAGES, PAPER_RUN, Scale, Setting, Settings, Turn
from .section5 import CONFIGURED

GRID = ((0.5, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0))  # widths and images of the protocol


class Scaling(Experiment):
    name, section, title = "scale", "5.1", "From laptop scale towards the paper's"
    note = (
        "Predictions are by a linear regression of NormProp minus BatchNorm over the logarithms of width and number of "
        "images, from the grid of small scales alone, which has neither flips nor more epochs; with their 95 % "
        "prediction interval."
    )

    paper = paper.ACCURACY_AFTER_30_EPOCHS

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        found = {}
        for label, setting in (cls.grid(scale) | scale.larger).items():
            for name, norm in CONFIGURED.items():
                turn = Turn.EXPLORATORY if (setting.turn, norm) == (Turn.PAPER, "batch") else setting.turn
                found[f"{name}, {label}"] = replace(setting, config=replace(setting.config, norm=norm), turn=turn)
        return found

    @classmethod
    def grid(cls, scale: Scale) -> Settings:
        base = scale.protocol
        if base.train_size is None:
            return {}
        sizes = [(wide * base.width, round(many * base.train_size)) for wide, many in GRID]
        return {f"width {w:g}, {n:,} images": scale.setting(4, width=w, train_size=n) for w, n in sizes}

    def claims(self) -> list[Claim]:
        return []

    def pair(self, label: str, measure: Measure) -> Comparison:
        return self.compare(f"{NORMPROP}, {label}", f"{BATCHNORM}, {label}", measure)

    def prediction(self, setting: Setting, measure: Measure) -> Comparison:
        """Of the difference at another scale."""

        def place(setting: Setting) -> list[float]:
            config = setting.config
            return [1.0, math.log(config.width), math.log(config.train_size or IMAGES)]

        found = {label: self.pair(label, measure).difference for label in self.grid(self.scale)}
        known = {label: place(self.grid(self.scale)[label]) for label, estimate in found.items() if estimate.n}
        values = [found[label].mean for label in known]
        return Comparison(measure, predicted(list(known.values()), values, place(setting)))

    def differences(self) -> list[dict[str, Comparison]]:
        panels = []
        for measure in self.reported:
            panel = {label: self.pair(label, measure) for label in self.grid(self.scale)}
            for label, setting in self.scale.larger.items():
                panel |= {f"{label}, predicted": self.prediction(setting, measure), label: self.pair(label, measure)}
            panels.append(panel)
        return panels

    def levels(self) -> dict[str, Curves]:
        return {"Accuracy, %": {name: self.arms[name].curve(Record.accuracies, 1) for name in self.larger()}}

    def larger(self) -> list[str]:
        return [f"{name}, {label}" for label in self.scale.larger for name in CONFIGURED]

    def remarks(self) -> str:
        texts = [f"{self.note} The paper's best accuracy is {self.paper} %, after 30 epochs with batches of 50."]
        for name, arm in self.arms.items():
            for record in arm.survivors if arm.setting.config.epochs == PAPER_RUN.epochs else ():
                c, images, accuracies = record.config, record.images["train"], record.accuracies()
                best, hours = max(accuracies), sum(images / row["images_per_second"] for row in record.history) / 3600
                texts.append(
                    f"{name} (width {c.width:g}, {images:,} images, batches of {c.batch_size}, rate {c.lr:g} halved "
                    f"every {c.halve_every} epochs, weight decay {c.weight_decay:g}, which the paper does not give for "
                    f"this run): {accuracies[-1]:.2f} % after {c.epochs} epochs, the best {best:.2f} % after "
                    f"{accuracies.index(best) + 1}; {hours:.1f} h on one thread, "
                    f"{c.epochs * images / hours / 3600:.0f} images/s."
                )
        return " ".join(texts)

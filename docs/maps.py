"""The tables of the page "What a layer does", from the code: run this file to write them anew."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinyprop import nn
from tinyprop.theory.wide import MAPS, Wide

PAGE = Path(__file__).parent / "maps.md"
MARK = "<!-- written by docs/maps.py -->\n"
CHANNELS = 4
LAYERS = {
    "Linear": nn.Linear(CHANNELS, 2),
    "Conv2d": nn.Conv2d(CHANNELS, 2, 3, padding=1),
    "WeightNorm": nn.WeightNorm(nn.Linear(CHANNELS, 2)),
    "ScaledWS": nn.ScaledWS(nn.Linear(CHANNELS, 2)),
    "NormPropLinear": nn.NormPropLinear(CHANNELS, 2),
    "NormPropConv2d": nn.NormPropConv2d(CHANNELS, 2, 3),
    "MeasuredLinear": nn.MeasuredLinear(CHANNELS, 2),
    "MeasuredConv2d": nn.MeasuredConv2d(CHANNELS, 2, 3),
    "Activation": nn.Activation("relu"),
    "BatchNorm": nn.BatchNorm(CHANNELS),
    "LayerNorm": nn.LayerNorm((CHANNELS, None, None)),
    "RMSNorm": nn.RMSNorm((CHANNELS, None, None)),
    "GroupNorm": nn.GroupNorm(2, CHANNELS),
    "DyT": nn.DyT(CHANNELS),
    "Derf": nn.Derf(CHANNELS),
    "Dropout": nn.Dropout(0.5),
    "Residual": nn.Residual(nn.ReLU(), alpha=0.5),
    "Scale": nn.Scale(0.5),
    "MaxPool2d": nn.MaxPool2d(2),
    "AvgPool2d": nn.AvgPool2d(2),
    "GlobalAvgPool2d": nn.GlobalAvgPool2d(),
    "Flatten": nn.Flatten(),
}


class Recorded(Wide):
    """Writes down which maps a layer asks for."""

    asked: ClassVar[list[str]] = []


def _recording(name: str) -> Any:
    def method(self: Recorded, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(name)
        return getattr(Wide, name)(self, *args, **kwargs)

    return method


for _name in MAPS:
    setattr(Recorded, _name, _recording(_name))


def asked_by(layer: nn.Module) -> list[str]:
    """The maps of which a layer is made, in order."""
    shape = (CHANNELS, 4, 4) if takes_images(layer) else (CHANNELS,)
    samples = np.random.default_rng(0).standard_normal((6, *shape))
    Recorded.asked.clear()
    layer(Recorded.of(samples, sampled=False))
    return list(Recorded.asked)


def takes_images(layer: nn.Module) -> bool:
    return type(layer).__name__.endswith("2d") or isinstance(layer, nn.Flatten)


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def of_maps() -> str:
    """One line for each map."""
    rows = []
    for name, line in MAPS.items():
        backwards = f"`{line.backwards}`" if line.backwards else "not known"
        rows.append([f"`{name}`", line.layer, f"`{line.forwards}`", backwards, line.holds])
    return table(["method", "layer", "forwards", "backwards", "error"], rows)


def of_layers() -> str:
    """One line for each layer of tinyprop."""
    rows = []
    for name, layer in LAYERS.items():
        where = "`propagate`" if has_own_propagate(layer) else "`forward`"
        maps = ", ".join(f"`{method}`" for method in asked_by(layer))
        rows.append([f"`nn.{name}`", where, maps])
    return table(["layer", "says so in its", "maps, in order"], rows)


def has_own_propagate(layer: nn.Module) -> bool:
    return type(layer).propagate is not nn.Module.propagate


def page() -> str:
    """The page with both tables."""
    parts = PAGE.read_text().split(MARK)
    assert len(parts) == 5, "two pairs of marks"
    parts[1] = "\n" + of_maps() + "\n"
    parts[3] = "\n" + of_layers() + "\n"
    return MARK.join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())

"""The moving figures of lessons 8 and 7: python tutorials/animate.py writes gamma.gif and
spectrum.gif to figures/."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from threadpoolctl import threadpool_limits

from tinyprop.report.plots import COLORS, GRAY, STYLE, panels

FIGURES = Path(__file__).parent.parent / "figures"
C2, C1 = 1 / math.sqrt(2 * math.pi), math.sqrt((1 - 1 / math.pi) / 2)
CHI = math.pi / (math.pi - 1)
DEPTH = 30


def unit_rows(random: np.random.Generator, width: int) -> Any:
    w = random.standard_normal((width, width))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


class Writer(PillowWriter):
    """Writes the description into the file, as `tinyprop.report.plots.save` does."""

    def finish(self) -> None:
        first, *others = self._frames
        first.save(
            self.outfile,
            save_all=True,
            append_images=others,
            duration=int(1000 / self.fps),
            loop=0,
            comment=self.metadata["description"],
        )


def save(
    name: str, figure: Any, draw: Callable[[Any], str], frames: Sequence[Any], fps: int, what: str
) -> None:
    """Draw a figure frame by frame. The description says what it is, and what `draw` returns for
    the first frame and for the last one."""
    said: list[str] = []
    writer = Writer(fps=fps)

    def show(frame: Any) -> list[Any]:
        said.append(draw(frame))
        writer.metadata["description"] = f"{what} First: {said[0]}. Last: {said[-1]}."
        return []

    animation = FuncAnimation(figure, show, frames=frames, init_func=lambda: [])
    animation.save(FIGURES / name, writer=writer, dpi=72)
    print(f"{name}: {(FIGURES / name).stat().st_size / 1e6:.2f} MB")
    print(writer.metadata["description"])


def gamma_swept(width: int = 256, inputs: int = 200) -> None:
    """Pre-activations of 30 NormProp layers, the same random weights throughout, while gamma goes
    from 0.7 to 1."""
    random = np.random.default_rng(0)
    start, weights = (
        random.standard_normal((inputs, width)),
        [unit_rows(random, width).T for _ in range(DEPTH)],
    )
    edges = np.linspace(-3, 3, 91)
    figure, every = panels(2, 9.6, 4.2)
    titles = ("Pre-activations of all units", "minus the mean of each unit: what the input decides")
    images = []
    for axes, title in zip(every, titles, strict=True):
        shape = {
            "origin": "lower",
            "extent": (0.5, DEPTH + 0.5, -3, 3),
            "aspect": "auto",
            "interpolation": "nearest",
        }
        images.append(axes.imshow(np.zeros((90, DEPTH)), cmap="Blues", vmin=0, vmax=0.8, **shape))
        axes.set(title=title, xlabel="layer", xticks=[1, 10, 20, 30], yticks=[-2, 0, 2])
    label = figure.suptitle(" ", x=0.02, ha="left", fontsize=13)

    def draw(gamma: float) -> str:
        x, columns = start, []
        for w in weights:
            u = gamma * (x @ w)
            columns.append(
                [np.histogram(part, edges, density=True)[0] for part in (u, u - u.mean(axis=0))]
            )
            x = (np.maximum(u, 0) - C2) / C1
        for image, column in zip(images, np.array(columns).transpose(1, 2, 0), strict=True):
            image.set_data(column)
        gain = (gamma * math.sqrt(CHI)) ** (DEPTH - 1)
        effect = f"from layer 30 to layer 1 the gradient is multiplied by {gain:.3g}"
        label.set_text(rf"$\gamma = {gamma:.3f}$:  {effect}")
        spread = math.sqrt(u.var(axis=0).mean())
        return (
            f"gamma = {gamma:.3f}, {effect}; the standard deviation of a unit of layer 30 over "
            f"inputs is {spread:.2g}"
        )

    swept = [*np.linspace(0.7, 1 / math.sqrt(CHI), 14), *np.linspace(1 / math.sqrt(CHI), 1, 20)]
    frames = [*swept[:14], *[swept[13]] * 6, *swept[14:], *[1.0] * 8]
    what = (
        f"Distributions of the pre-activations in each of {DEPTH} layers, and about the mean of "
        "each unit, as gamma grows."
    )
    save("gamma.gif", figure, draw, frames, fps=5, what=what)


def growing_product(width: int = 150, networks: int = 12) -> None:
    """Singular values of the product of 1 to 30 Jacobians of NormProp layers with gamma =
    1/1.21."""
    random, spectra = np.random.default_rng(0), []
    gamma = 1 / math.sqrt(CHI)
    for _ in range(networks):
        x, product, found = random.standard_normal(width), np.eye(width), []
        for _ in range(DEPTH):
            w = unit_rows(random, width)
            u = gamma * (w @ x)
            product = (u > 0)[:, None] * w * gamma / C1 @ product
            x = (np.maximum(u, 0) - C2) / C1
            found.append(np.linalg.svd(product, compute_uv=False))
        spectra.append(found)
    values = np.array(spectra)  # (networks, depth, width)
    edges = np.linspace(-4, 2, 61)
    figure, (axes,) = panels(1, 7.6, 4.0)

    def draw(depth: int) -> str:
        here = values[:, depth - 1]
        nonzero = np.log10(here[here > 1e-12])
        axes.clear()
        axes.hist(
            np.clip(nonzero, -3.99, None),
            edges,
            color=COLORS[0],
            alpha=0.75,
            weights=np.full(nonzero.size, 1 / networks),
        )
        rms, largest = np.sqrt((here**2).mean()), here[:, 0].mean()
        top = sum(here[:, :5].ravel() ** 2) / (here**2).sum()
        for at, name, color, side in (
            (rms, "root mean square ", GRAY, "right"),
            (largest, " largest", COLORS[1], "left"),
        ):
            axes.axvline(math.log10(at), color=color)
            axes.text(math.log10(at), 29, name, color=color, fontsize=10, ha=side)
        axes.set(ylim=(0, 31), xlim=(-4, 2), xlabel="singular value, power of ten", yticks=[])
        axes.set_xticks(range(-4, 3), ["below -4", *map(str, range(-3, 3))])
        zero = 1 - nonzero.size / here.size
        heading = (
            f"Product of {depth} layer{'s' if depth > 1 else ''} of {width} units: {zero:.0%} "
            f"are 0, the five largest carry {top:.0%} of the mean square"
        )
        axes.set_title(heading, fontsize=10.5)
        return heading[0].lower() + heading[1:]

    frames = [*[1] * 3, *range(2, DEPTH + 1), *[DEPTH] * 6]
    what = "A histogram of the singular values of a product of layers, as layers are added."
    save("spectrum.gif", figure, draw, frames, fps=4, what=what)


if __name__ == "__main__":
    matplotlib.rcParams.update(STYLE)
    with threadpool_limits(1, "blas"):
        gamma_swept()
        growing_product()

"""`tp.examine`: what a network does to signals and gradients, layer by layer, theory beside
measurement, and which known faults it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import ShapeError
from ..engine.tensor import Tensor
from ..nn.observation import observe
from ..report.table import Table
from ..theory.propagate import Propagated, propagate
from .calls import Call, Moments, calls_of
from .faults import Case, Fault, find_faults
from .gradients import predicted_gradients


@dataclass(frozen=True)
class Numbers:
    """Of one layer: of its weighted sums if it has weights, of its output otherwise."""

    mean: float  # root mean square over units of the mean of each
    variance: float  # mean over units
    correlation: float  # of two different inputs: E u(x) u(y) / E u^2
    gradient: float | None  # root mean square, of the loss with respect to the output


@dataclass(frozen=True)
class LayerExamination:
    """One call of a layer: what was measured, what theory predicts, and which units do nothing."""

    layer: str  # where it is in the network, and its class
    measured: Numbers
    predicted: Numbers | None  # None where theory has no rule
    dead: float  # fraction of units whose output is the same for every input
    saturated: float | None  # fraction of values where a bounded activation is flat
    parted: bool  # whether theory and measurement part, by more than chance
    undecided: bool  # whether it cannot be told: values vary too much, or are not finite


@dataclass(frozen=True)
class Examination:
    """What `tp.examine` found. A notebook shows it as a page."""

    name: str
    inputs: tuple[int, ...]  # the shape of the batch
    layers: tuple[LayerExamination, ...]
    faults: tuple[Fault, ...]
    theory: str  # why there is no prediction, or nothing

    @property
    def first_parted(self) -> str | None:
        """The first layer where theory and measurement part."""
        for layer in self.layers:
            if layer.parted:
                return layer.layer
        return None

    @property
    def undecided(self) -> tuple[str, ...]:
        """The layers where it cannot be told whether theory and measurement agree."""
        return tuple(layer.layer for layer in self.layers if layer.undecided)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.faults:
            return "No known fault was found."
        many = len(self.faults) > 1
        found = f"{len(self.faults)} known faults were found" if many else "One known fault found"
        advice = " Fix the first one first: the others may follow from it." if many else ""
        return f"{found}.{advice}"

    @property
    def remarks(self) -> list[str]:
        """What there is to say of the theory."""
        said = []
        if self.theory:
            said.append(f"Theory has no prediction for this network: {self.theory}")
        elif self.first_parted is None and not self.undecided:
            said.append(
                "The variances of theory and measurement agree, within the errors, in every layer "
                "that both know."
            )
        elif self.first_parted is not None:
            said.append(
                f"Theory and measurement part first at {self.first_parted}: from there on, theory "
                "leaves something out, as correlations that training made, or shapes of "
                "distributions that are not Gaussian."
            )
        if self.undecided:
            said.append(
                "Whether theory and measurement agree cannot be told at "
                f"{', '.join(self.undecided)}: there, the inputs are too few for values that vary "
                "so much, or values are not finite."
            )
        return said

    def table(self) -> Table:
        """A row for each layer; predictions stand in columns of their own."""
        header = ["layer", "mean", "theory", "variance", "theory", "correlation", "theory"]
        has_gradients = any(layer.measured.gradient is not None for layer in self.layers)
        if has_gradients:
            header += ["gradient", "theory"]
        header += ["dead", "saturated"]
        rows = []
        for layer in self.layers:
            fields = ["mean", "variance", "correlation"]
            if has_gradients:
                fields.append("gradient")
            row = [layer.layer]
            for field in fields:
                row.append(shown(getattr(layer.measured, field)))
                row.append(shown(getattr(layer.predicted, field, None)))
            rows.append([*row, f"{layer.dead:.0%}", percent(layer.saturated)])
        return Table(header, rows)

    def text(self, width: int = 100) -> str:
        """For a terminal."""
        parts = [f"{self.name}, {len(self.layers)} calls of layers, input {self.inputs}"]
        parts.append(self.table().text(width))
        parts += self.remarks
        parts.append(self.verdict)
        for fault in self.faults:
            parts.append(f"- {fault.kind}, at {fault.layer}: {fault.sentence} {fault.remedy}")
        return "\n\n".join(parts)

    def html(self) -> str:
        """A page that needs no other file."""
        from .page import page

        return page(self)

    def _repr_html_(self) -> str:
        from .page import fragment

        return fragment(self)


def shown(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "-"
    return f"{value:.3g}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def examine(net: nn.Module, x: Any, labels: Any = None, components: int = 1) -> Examination:
    """Measure what a network does to a batch, compare it with theory, and look for known faults.

    For each call of a layer the examination has the mean, the variance and the correlation of two
    inputs, measured by `tp.observe` and predicted by `tp.propagate` from the weights and the
    moments of x; with labels, the gradient; and the units that do nothing. The layers run in their
    own mode, and the network stays as it is. Where theory has no rule, it says so, and shows what
    it measured. `components` is how many Gaussians stand for the data: see `tp.propagate`.

    >>> tp.manual_seed(0)
    >>> net = tp.nn.Sequential(tp.nn.Linear(20, 30), tp.nn.Sigmoid(), tp.nn.Linear(30, 5))
    >>> net[0].weight.data[...] *= 30.0
    >>> found = tp.examine(net, tp.randn(100, 20))
    >>> [(fault.kind, fault.layer) for fault in found.faults]
    [('saturated activation', '1 Sigmoid')]
    >>> net[0].weight.data[...] /= 30.0
    >>> tp.examine(net, tp.randn(100, 20)).verdict
    'No known fault was found.'
    """
    batch = x if isinstance(x, Tensor) else Tensor(x)
    if batch.ndim < 2 or len(batch) < 2:
        got = f"examine with an input of shape {batch.shape}"
        raise ShapeError(got, "the first axis holds at least two samples", "tp.randn(256, 20)")
    with np.errstate(all="ignore"):  # what is not finite is a fault with a name
        calls = calls_of(observe(net, batch, labels))
        if not calls:
            got = f"examine of a {type(net).__name__} without calls that map batches to batches"
            raise ShapeError(got, "its layers get and give tensors (N, ...)", "tp.observe(net, x)")
        inputs = to_numpy(batch.data)
        faults = find_faults(Case(inputs, calls, labels is not None))
        records, reason = predictions(net, inputs, components)
        layers = compared(calls, records)
    return Examination(type(net).__name__, batch.shape, layers, tuple(faults), reason)


def predictions(net: nn.Module, inputs: HostArray, components: int) -> tuple[list[Propagated], str]:
    """What theory says, or why it says nothing."""
    if not np.isfinite(inputs).all():
        return [], "the input is not finite."
    try:
        return propagate(net, data=inputs, components=components), ""
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [], first_line.removeprefix("got:").strip() + "."


def compared(calls: list[Call], records: Sequence[Propagated]) -> tuple[LayerExamination, ...]:
    """Each call beside the prediction of the same name, in their order."""
    by_name: dict[str, list[Propagated]] = {}
    for record in records:
        by_name.setdefault(record.layer, []).append(record)
    matched = {call.number: by_name[call.name].pop(0) for call in calls if by_name.get(call.name)}
    moments = {number: moments_of(record) for number, record in matched.items()}
    squares = predicted_gradients(calls, moments)
    found = []
    for call in calls:
        theory = None
        if call.number in moments:
            square = squares.get(call.number)
            gradient = None if square is None else float(np.sqrt(square))
            theory = numbers(moments[call.number], gradient)
        prediction = matched.get(call.number)
        found.append(
            LayerExamination(
                layer=call.name,
                measured=numbers(call.moments, gradient_of(call)),
                predicted=theory,
                dead=float(call.dead().mean()),
                saturated=call.saturated(),
                parted=prediction is not None and prediction.parted,
                undecided=prediction is not None and is_undecided(prediction),
            )
        )
    return tuple(found)


def is_undecided(record: Propagated) -> bool:
    return record.measured is None or record.undecided


def moments_of(record: Propagated) -> Moments:
    """A prediction as moments. Two inputs share the mean of each unit, and nothing else."""
    means, variances = np.asarray(record.mean), np.asarray(record.variance)
    squares = float((means**2 + variances).mean())
    correlation = float((means**2).mean()) / squares if squares > 0.0 else float("nan")
    return Moments(means, variances, correlation)


def numbers(moments: Moments, gradient: float | None) -> Numbers:
    return Numbers(moments.mean, moments.variance, moments.correlation, gradient)


def gradient_of(call: Call) -> float | None:
    gradient = call.record.gradient
    if gradient is None:
        return None
    return float(np.sqrt((gradient.numpy().astype("float64") ** 2).mean()))

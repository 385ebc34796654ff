"""What a network consists of: its layers with their shapes and numbers of parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..engine.arrays import use_backend
from ..engine.creation import zeros
from ..engine.errors import ShapeError
from ..engine.tensor import Tensor
from ..report.table import Table, Tabular
from .module import Module, evaluating
from .observation import Observation, observe

Shape = tuple[int, ...]
WIDTH = 80  # columns of a terminal


@dataclass(frozen=True)
class LayerSummary:
    """One call of a layer.

    >>> tp.nn.summary(tp.nn.Linear(3, 2), (5, 3)).layers
    (LayerSummary(name='Linear', inputs=((5, 3),), outputs=((5, 2),), parameters=8, shared=False),)
    """

    name: str  # as `tp.observe` has it: "1.branch.0 Conv2d"
    inputs: tuple[Shape, ...]  # shapes of the tensors that it was called with
    outputs: tuple[Shape, ...]  # shapes of the tensors that it returned
    parameters: int  # those that no call before it has used
    shared: bool  # whether it has other parameters, which a call before has used


@dataclass(frozen=True, repr=False)
class Summary(Tabular):
    """The layers of a network in the order of their calls, and how much it has to learn.

    >>> summary = tp.nn.summary(tp.nn.Linear(3, 2), (5, 3))
    >>> summary.parameters, summary.buffers, summary.bytes
    (8, 0, 32)
    """

    network: str  # its class
    inputs: tuple[Shape, ...]
    layers: tuple[LayerSummary, ...]
    parameters: int  # numbers that training changes
    buffers: int  # numbers that are saved, and not trained
    bytes: int  # of all these

    def table(self) -> Table:
        """A row for the input, and one for each layer."""
        rows = [["input", in_words(self.inputs), ""]]
        for layer in self.layers:
            count = f"{layer.parameters:,}"
            if layer.shared:
                count = "shared" if not layer.parameters else f"{count} + shared"
            rows.append([layer.name, in_words(layer.outputs), count])
        note = f"{self.network}: {counted(self.parameters, 'parameter')}"
        if self.buffers:
            note += f", {counted(self.buffers, 'number')} in buffers"
        note += f", {size_in_words(self.bytes)}"
        return Table(["layer", "output", "parameters"], rows, note=note, align="llr")

    def __repr__(self) -> str:
        return self.table().text(WIDTH)


def summary(net: Module, x: Any) -> Summary:
    """The layers of a network, with the shapes of their outputs and their parameters.

    `x` is a batch, as the network is called with: a tensor or an array, or a tuple of them for
    several inputs. Or it is the shape of a batch, such as (1, 3, 32, 32), which is then filled with
    zeros. The network computes its output once, in evaluation mode, and stays as it is.

    There is a row for each call of a layer. A layer that only calls others has none, unless it has
    parameters of its own. A parameter counts where it is used first, so that the rows add up to the
    total; parameters that no layer inside uses, count for the layer that has them.

    >>> net = tp.nn.Sequential(tp.nn.Linear(784, 100), tp.nn.ReLU(), tp.nn.Linear(100, 10))
    >>> tp.nn.summary(net, (1, 784))
    layer     output    parameters
    input     (1, 784)
    0 Linear  (1, 100)      78,500
    1 ReLU    (1, 100)           0
    2 Linear  (1, 10)        1,010
    Sequential: 79,510 parameters, 318 kB
    """
    if is_shape(x):
        x = blank(net, x)
    with evaluating():
        records = observe(net, x)
    whole = records[-1]
    parameters = list(net.parameters())
    buffers = list(net.buffers())
    tensors = [*parameters, *buffers]
    return Summary(
        network=type(net).__name__,
        inputs=shapes_in(whole.arguments),
        layers=tuple(layer_rows(records)),
        parameters=sum(p.size for p in parameters),
        buffers=sum(b.size for b in buffers),
        bytes=sum(t.size * t.dtype.itemsize for t in tensors),
    )


def layer_rows(records: list[Observation]) -> Iterator[LayerSummary]:
    """A row for each call that calls no other layer, or uses parameters that those inside do
    not."""
    seen: set[Tensor] = set()
    depth_before = 0
    for record in records:
        # calls end inside out: what ended just before, one level deeper, was called by this one
        calls_others = depth_before > record.depth
        depth_before = record.depth
        own = set(record.layer.parameters())
        new = own - seen
        seen |= own
        if new or not calls_others:
            yield LayerSummary(
                name=record.name,
                inputs=shapes_in((*record.arguments, *record.keywords.values())),
                outputs=shapes_in(record.output),
                parameters=sum(p.size for p in new),
                shared=not calls_others and len(new) < len(own),
            )


def is_shape(x: Any) -> bool:
    """Whether this is a tuple or list of whole numbers."""
    if not isinstance(x, (tuple, list)) or not x:
        return False
    return all(isinstance(length, int) and not isinstance(length, bool) for length in x)


def blank(net: Module, shape: Any) -> Tensor:
    """Zeros of this shape, where the network is and of its type."""
    if min(shape) < 1:
        rule = "the shape of a batch has the number of samples first, and each length is at least 1"
        raise ShapeError(f"summary of a network for {tuple(shape)}", rule, "(1, 3, 32, 32)")
    like = next(net.parameters(), None)
    if like is None:
        return zeros(*shape)
    with use_backend(like.backend):
        return zeros(*shape, dtype=like.dtype)


def shapes_in(value: Any) -> tuple[Shape, ...]:
    """The shapes of the tensors in a value, also in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return (value.shape,)
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        return ()
    shapes: list[Shape] = []
    for element in value:
        shapes.extend(shapes_in(element))
    return tuple(shapes)


def in_words(shapes: tuple[Shape, ...]) -> str:
    """Shapes, one after the other; a dash if there is none."""
    return ", ".join(map(str, shapes)) or "-"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "parameter"), counted(2000, "parameter")
    ('1 parameter', '2,000 parameters')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_in_words(size: int) -> str:
    """
    >>> size_in_words(84), size_in_words(318_040), size_in_words(6_232_872)
    ('84 bytes', '318 kB', '6.23 MB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"

"""The graph of a computation as a figure."""

from dataclasses import dataclass

from ..engine.backward import grad, inputs_first, node_of, parents_of
from ..engine.graph import Node, Op
from ..engine.tensor import Tensor

# pixels
STEP = 140  # from one depth to the next
LANE = 60  # from one lane to the next
WIDTH, HEIGHT = 114, 38  # of a box
MARGIN = 10


class Drawing(str):
    """The graph as the text of an SVG figure, which notebooks show."""

    def svg(self) -> str:
        """The figure as SVG."""
        return str(self)

    _repr_svg_ = svg


@dataclass
class Box:
    """A node of the graph as it is drawn."""

    title: str
    note: str
    is_op: bool
    parents: list[int]  # the numbers of the boxes that its arrows come from
    depth: int = 0  # the largest distance from the result
    lane: int = 0

    @property
    def y(self) -> int:
        return self.lane * LANE + MARGIN

    def x(self, deepest: int) -> int:
        return (deepest - self.depth) * STEP + MARGIN


def draw(t: Tensor, /, **named: Tensor) -> Drawing:
    """The graph that leads to a tensor: ops with the shapes of their results, leaves with their
    names. Tensors of one element that are passed by name are shown with that name, their value, and
    the gradient of t with respect to them.

    >>> w = tp.tensor([[1.0, 2.0]], requires_grad=True)
    >>> w.name = "w"
    >>> graph = tp.draw((w * w).sum())
    >>> graph.svg()[:4]
    '<svg'
    >>> [title in graph for title in (">w<", ">Multiply<", ">Sum<", ">(1, 2)<")]
    [True, True, True, True]
    >>> x = tp.tensor(3.0, requires_grad=True)
    >>> y = x * x
    >>> ">y = Multiply<" in tp.draw(y, x=x, y=y), ">3, grad 6<" in tp.draw(y, x=x)
    (True, True)
    """
    ops, leaves = inputs_first(node_of(t))
    nodes: list[Node] = [*leaves, *ops]
    number = {node: i for i, node in enumerate(nodes)}
    boxes = [_box(node, number) for node in nodes]
    gradients = grad(t, list(named.values()), retain_graph=True) if named else ()
    for (name, x), gradient in zip(named.items(), gradients, strict=True):
        box = boxes[number[node_of(x)]]
        box.title = f"{name} = {box.title}" if box.is_op else name
        box.note = f"{x.item():.4g}, grad {gradient.item():.4g}"
    _place(boxes)
    return Drawing(_svg(boxes))


def _box(node: Node, number: dict[Node, int]) -> Box:
    shape = str(node.shape)
    if not isinstance(node, Op):
        return Box(node.name or "leaf", shape, False, [])
    parents = [number[parent] for parent in parents_of(node) if parent is not None]
    return Box(type(node).__name__, shape, True, parents)


def _place(boxes: list[Box]) -> None:
    """From the result back to the leaves; each box takes the free lane nearest to its successor."""
    taken = set[tuple[int, int]]()
    for box in reversed(boxes):
        while (box.depth, box.lane) in taken:
            box.lane += 1
        taken.add((box.depth, box.lane))
        for parent in (boxes[i] for i in box.parents):
            if parent.depth < box.depth + 1:
                parent.depth = box.depth + 1
                parent.lane = box.lane


def _svg(boxes: list[Box]) -> str:
    """Boxes from left to right, with the result at the right."""
    deepest = max(box.depth for box in boxes)
    width = deepest * STEP + WIDTH + 2 * MARGIN
    height = max(box.y for box in boxes) + HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        '<g fill="none" stroke="#888">',
    ]
    for box in boxes:
        parts += [_arrow(boxes[i], box, deepest) for i in box.parents]
    parts.append("</g>")
    for box in boxes:
        parts += _rectangle(box, deepest)
    return "\n".join([*parts, "</svg>"])


def _arrow(start: Box, end: Box, deepest: int) -> str:
    a, b = start.x(deepest) + WIDTH, start.y + HEIGHT / 2
    x, y = end.x(deepest), end.y + HEIGHT / 2
    middle = (a + x) / 2
    return f'<path d="M{a},{b} C{middle},{b} {middle},{y} {x},{y}"/>'


def _rectangle(box: Box, deepest: int) -> list[str]:
    from html import escape  # here, as it takes a millisecond to import

    x, y = box.x(deepest), box.y
    fill, corner = ("#ffffff", HEIGHT / 2) if box.is_op else ("#cfe3f5", 6)
    middle = x + WIDTH / 2
    return [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{corner}" '
        f'fill="{fill}" stroke="#555"/>',
        f'<text x="{middle}" y="{y + 16}">{escape(box.title)}</text>',
        f'<text x="{middle}" y="{y + 31}" fill="#555">{escape(box.note)}</text>',
    ]

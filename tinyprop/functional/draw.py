"""The graph of a computation as a figure."""

from ..engine.backward import grad, inputs_first, node_of, parents_of
from ..engine.graph import Node, Op
from ..engine.tensor import Tensor

# pixels: from one depth to the next, between lanes, of a box
STEP, LANE, WIDTH, HEIGHT = 140, 60, 114, 38


class Drawing(str):
    """The graph as DOT text; `svg()` draws it, and notebooks show it as a figure."""

    drawn: str

    def svg(self) -> str:
        """The figure as SVG."""
        return self.drawn

    _repr_svg_ = svg


def draw(t: Tensor, /, **named: Tensor) -> Drawing:
    r"""The graph that leads to a tensor: ops with the shapes of their results, leaves with their
    names. Tensors of one element that are passed by name are shown with that name, their value, and
    the gradient of t with respect to them.

    >>> w = tp.tensor([[1.0, 2.0]], requires_grad=True)
    >>> w.name = "w"
    >>> graph = tp.draw((w * w).sum())
    >>> print(graph)
    digraph {
      rankdir=LR; node [fontname="Helvetica", fontsize=11];
      n0 [label="w\n(1, 2)", shape=box, style="rounded,filled", fillcolor="#cfe3f5"];
      n1 [label="Multiply\n(1, 2)", shape=ellipse];
      n0 -> n1;
      n0 -> n1;
      n2 [label="Sum\n()", shape=ellipse];
      n1 -> n2;
    }
    >>> graph.svg()[:4]
    '<svg'
    >>> x = tp.tensor(3.0, requires_grad=True)
    >>> print(tp.draw(y := x * x, x=x, y=y))  # doctest: +ELLIPSIS
    digraph {
      ...
      n0 [label="x\n3, grad 6", ...];
      n1 [label="y = Multiply\n9, grad 1", ...];
    ...
    """
    ops, leaves = inputs_first(node_of(t))
    nodes: list[Node] = [*leaves, *ops]
    number = {node: i for i, node in enumerate(nodes)}
    names = [type(node).__name__ if isinstance(node, Op) else node.name or "leaf" for node in nodes]
    notes = [str(node.shape) for node in nodes]
    gradients = grad(t, list(named.values()), retain_graph=True) if named else ()
    for (name, x), gradient in zip(named.items(), gradients, strict=True):
        i = number[node_of(x)]
        names[i] = f"{name} = {names[i]}" if isinstance(nodes[i], Op) else name
        notes[i] = f"{x.item():.4g}, grad {gradient.item():.4g}"
    edges = [
        [number[p] for p in parents_of(node) if p is not None] if isinstance(node, Op) else []
        for node in nodes
    ]
    lines = ["digraph {", '  rankdir=LR; node [fontname="Helvetica", fontsize=11];']
    for i, node in enumerate(nodes):
        label = names[i].replace("\\", "\\\\").replace('"', '\\"')
        leaf = 'shape=box, style="rounded,filled", fillcolor="#cfe3f5"'
        lines.append(
            f'  n{i} [label="{label}\\n{notes[i]}", '
            f"{'shape=ellipse' if isinstance(node, Op) else leaf}];"
        )
        lines += [f"  n{parent} -> n{i};" for parent in edges[i]]
    drawing = Drawing("\n".join([*lines, "}"]))
    drawing.drawn = _svg(nodes, names, notes, edges)
    return drawing


def _svg(nodes: list[Node], names: list[str], notes: list[str], edges: list[list[int]]) -> str:
    """Boxes from left to right by their distance from the result; each takes the free lane nearest
    to its successor."""
    from html import escape

    depth, lane, taken = [0] * len(nodes), [0] * len(nodes), set[tuple[int, int]]()
    for i in reversed(range(len(nodes))):
        place = next(
            k for k in range(lane[i], lane[i] + len(nodes) + 1) if (depth[i], k) not in taken
        )
        lane[i] = place
        taken.add((depth[i], place))
        for parent in edges[i]:
            if depth[i] + 1 > depth[parent]:
                depth[parent], lane[parent] = depth[i] + 1, place
    at = [((max(depth) - d) * STEP + 10, k * LANE + 10) for d, k in zip(depth, lane, strict=True)]
    size = max(x for x, _ in at) + WIDTH + 10, max(y for _, y in at) + HEIGHT + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif"'
    )
    parts = [f'{head} font-size="12" text-anchor="middle">', '<g fill="none" stroke="#888">']
    for i, parents in enumerate(edges):
        x, y = at[i][0], at[i][1] + HEIGHT / 2
        for p in parents:
            a, b = at[p][0] + WIDTH, at[p][1] + HEIGHT / 2
            parts.append(f'<path d="M{a},{b} C{(a + x) / 2},{b} {(a + x) / 2},{y} {x},{y}"/>')
    parts.append("</g>")
    for node, name, note, (x, y) in zip(nodes, names, notes, at, strict=True):
        fill, corner = ("#ffffff", HEIGHT / 2) if isinstance(node, Op) else ("#cfe3f5", 6)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{corner}" '
            f'fill="{fill}" stroke="#555"/>'
        )
        parts.append(f'<text x="{x + WIDTH / 2}" y="{y + 16}">{escape(name)}</text>')
        parts.append(f'<text x="{x + WIDTH / 2}" y="{y + 31}" fill="#555">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>"])

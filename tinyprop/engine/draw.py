"""The computation graph as a picture."""

import shutil
import subprocess

from .graph import Node, Op, inputs_first, node_of, parents_of
from .tensor import Tensor


class Drawing(str):
    """DOT text; where graphviz's `dot` is present, also an SVG picture, which notebooks show by themselves."""

    def svg(self) -> str | None:
        dot = shutil.which("dot")
        if dot is None:
            return None
        return subprocess.run([dot, "-Tsvg"], input=self, capture_output=True, text=True, check=True).stdout

    _repr_svg_ = svg


def draw(t: Tensor) -> Drawing:
    r"""The graph that leads to a tensor: ops with the shapes of their results, leaves with their names.

    >>> w = tp.tensor([[1.0, 2.0]], requires_grad=True)
    >>> w.name = "w"
    >>> print(tp.draw((w * w).sum()))
    digraph {
      rankdir=LR; node [fontname="Helvetica", fontsize=11];
      n0 [label="w\n(1, 2)", shape=box, style="rounded,filled", fillcolor="#cfe3f5"];
      n1 [label="Multiply\n(1, 2)", shape=ellipse];
      n0 -> n1;
      n0 -> n1;
      n2 [label="Sum\n()", shape=ellipse];
      n1 -> n2;
    }
    """
    lines = ["digraph {", '  rankdir=LR; node [fontname="Helvetica", fontsize=11];']
    number: dict[Node, int] = {}
    for node in inputs_first(node_of(t)):
        number[node] = len(number)
        if isinstance(node, Op):
            label, look = type(node).__name__, "shape=ellipse"
        else:
            label, look = node.name or "leaf", 'shape=box, style="rounded,filled", fillcolor="#cfe3f5"'
        label = label.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  n{number[node]} [label="{label}\\n{node.shape}", {look}];')
        lines += [f"  n{number[p]} -> n{number[node]};" for p in parents_of(node) if p is not None]
    return Drawing("\n".join([*lines, "}"]))

"""The picture of a graph."""

import shutil
import subprocess
from xml.etree import ElementTree

import pytest

import tinyprop as tp


def small_graph():
    w, b = tp.tensor([[1.0, 2.0]], requires_grad=True), tp.tensor([0.5], requires_grad=True)
    w.name, b.name = 'layer "1".weight', "bias"
    return tp.functional.relu(tp.tensor([[1.0, 1.0]]) @ w.T + b)


def test_ops_shapes_names_and_arrows():
    text = tp.draw(small_graph())
    for part in (r"layer \"1\".weight\n(1, 2)", r"bias\n(1,)", r"Add\n(1, 1)", r"ReLU\n(1, 1)"):
        assert part in text
    assert text.count("->") >= 5
    assert text.startswith("digraph {")
    assert text.endswith("}")


def test_svg_where_graphviz_is_present(monkeypatch):
    drawing = tp.draw(small_graph())
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/dot")
    monkeypatch.setattr(
        subprocess, "run", lambda *a, input, **k: subprocess.CompletedProcess(a, 0, f"<svg>{len(input)}</svg>")
    )
    assert ElementTree.fromstring(drawing._repr_svg_()).tag == "svg"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert drawing._repr_svg_() is None, "without graphviz a notebook shows the text"


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_the_real_graphviz_reads_it():
    assert "</svg>" in tp.draw(small_graph()).svg()


def test_a_freed_graph_cannot_be_drawn():
    y = small_graph().sum()
    y.backward()
    with pytest.raises(tp.GradientError, match="freed"):
        tp.draw(y)

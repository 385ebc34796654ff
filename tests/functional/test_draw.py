from xml.etree import ElementTree

import pytest

import tinyprop as tp
import tinyprop.functional as F


def small_graph():
    w, b = tp.tensor([[1.0, 2.0]], requires_grad=True), tp.tensor([0.5], requires_grad=True)
    w.name, b.name = 'layer "1".weight', "bias"
    return F.relu(tp.tensor([[1.0, 1.0]]) @ w.T + b)


def test_ops_shapes_names_and_arrows_as_text_and_as_svg():
    drawing = tp.draw(small_graph())
    for part in (r"layer \"1\".weight\n(1, 2)", r"bias\n(1,)", r"Add\n(1, 1)", r"ReLU\n(1, 1)"):
        assert part in drawing
    assert drawing.count("->") >= 5
    assert (drawing[:9], drawing[-1]) == ("digraph {", "}")
    root = ElementTree.fromstring(drawing.svg())
    assert root.tag.endswith("svg")
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {'layer "1".weight', "(1, 2)", "bias", "(1,)", "ReLU", "Add"} <= words
    assert drawing._repr_svg_() == drawing.svg()


def test_boxes_do_not_overlap():
    w = tp.tensor([1.0], requires_grad=True)
    out = w * w
    for _ in range(4):
        out = out * w + F.tanh(out) * F.sin(w)
    root = ElementTree.fromstring(tp.draw(out).svg())
    corners = [
        (box.get("x"), box.get("y")) for box in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(set(corners)) == len(corners) > 20


def test_a_freed_graph_cannot_be_drawn():
    y = small_graph().sum()
    y.backward()
    with pytest.raises(tp.GradientError, match="freed"):
        tp.draw(y)

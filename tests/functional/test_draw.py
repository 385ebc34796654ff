from xml.etree import ElementTree

import pytest

import tinyprop as tp
import tinyprop.functional as F


def small_graph():
    w, b = tp.tensor([[1.0, 2.0]], requires_grad=True), tp.tensor([0.5], requires_grad=True)
    w.name, b.name = 'layer "1".weight', "bias"
    return F.relu(tp.tensor([[1.0, 1.0]]) @ w.T + b)


SVG = "{http://www.w3.org/2000/svg}"


def test_ops_shapes_names_and_arrows():
    drawing = tp.draw(small_graph())
    root = ElementTree.fromstring(drawing.svg())
    assert root.tag == f"{SVG}svg"
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {'layer "1".weight', "(1, 2)", "bias", "(1,)", "ReLU", "Add", "(1, 1)"} <= words
    boxes, arrows = (len(list(root.iter(f"{SVG}{tag}"))) for tag in ("rect", "path"))
    assert boxes >= 6
    assert arrows == boxes - 1, "in this graph every box but the last leads to one other"
    assert drawing._repr_svg_() == drawing.svg() == str(drawing)


def test_every_arrow_goes_from_the_right_edge_of_a_box_to_the_left_edge_of_another():
    root = ElementTree.fromstring(tp.draw(small_graph()).svg())
    corners = [(float(b.get("x")), float(b.get("y"))) for b in root.iter(f"{SVG}rect")]
    starts = {(x + 114, y + 19) for x, y in corners}
    ends = {(x, y + 19) for x, y in corners}
    for path in root.iter(f"{SVG}path"):
        start, _, _, end = path.get("d")[1:].replace("C", "").split()
        assert tuple(map(float, start.split(","))) in starts
        assert tuple(map(float, end.split(","))) in ends


def test_named_tensors_show_their_value_and_gradient():
    x = tp.tensor(3.0, requires_grad=True)
    y = x * x
    root = ElementTree.fromstring(tp.draw(y, x=x, y=y))
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert words == ["x", "3, grad 6", "y = Multiply", "9, grad 1"]


def test_boxes_do_not_overlap():
    w = tp.tensor([1.0], requires_grad=True)
    out = w * w
    for _ in range(4):
        out = out * w + F.tanh(out) * F.sin(w)
    root = ElementTree.fromstring(tp.draw(out).svg())
    corners = [(box.get("x"), box.get("y")) for box in root.iter(f"{SVG}rect")]
    assert len(set(corners)) == len(corners) > 20


def test_a_freed_graph_cannot_be_drawn():
    y = small_graph().sum()
    y.backward()
    with pytest.raises(tp.GradientError, match="freed"):
        tp.draw(y)

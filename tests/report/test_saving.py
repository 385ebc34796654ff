import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop import nn


def test_a_round_trip_is_exact(backend, tmp_path):
    net = nn.build(nn.NIN, width=0.05).to(backend)
    tp.save(tmp_path / "net.safetensors", net.state_dict())
    state = tp.load(tmp_path / "net.safetensors")
    assert all(
        (tp.Tensor(v).numpy() == state[k]).all() and v.dtype == state[k].dtype
        for k, v in net.state_dict().items()
    )
    other = nn.build(nn.NIN, width=0.05).to(backend)
    other.load_state_dict(state)
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_any_layout_and_type(tmp_path):
    state = {
        "t": np.arange(6.0).reshape(2, 3).T,
        "i": np.arange(3),
        "b": np.array([True]),
        "0d": np.array(1.5),
    }
    tp.save(tmp_path / "a.safetensors", state)
    for k, v in tp.load(tmp_path / "a.safetensors").items():
        np.testing.assert_array_equal(v, state[k])
        assert (v.dtype, v.shape) == (state[k].dtype, state[k].shape)


@given(st.data())
def test_broken_files_are_refused_by_name(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("broken") / "net.safetensors"
    tp.save(path, {"weight": np.arange(6.0), "bias": np.zeros(2)})
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["truncate", "flip header", "foreign"]))
    if kind == "truncate":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif kind == "flip header":
        content[data.draw(st.integers(0, 7))] ^= data.draw(st.integers(1, 255))
    else:
        content = bytearray(data.draw(st.binary(max_size=200)))
    path.write_bytes(content)
    assert_explained(tp.StateError, lambda: tp.load(path), str(path))


def test_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        tp.load(tmp_path / "nothing")

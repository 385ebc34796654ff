"""Open tables: names in, records out; a name stands for one record."""

from dataclasses import dataclass
from pathlib import Path

import pytest

import tinyprop as tp
from tinyprop.engine.loading import fingerprint
from tinyprop.engine.registry import Registry


@dataclass(frozen=True)
class Fruit:
    name: str
    color: str = "red"


@pytest.fixture
def fruits():
    table = Registry(Fruit, "fruit", "fruits")
    table.register(Fruit("apple"))
    table.register(Fruit("cherry"))
    return table


def test_it_is_a_mapping_in_the_order_of_registration(fruits):
    assert list(fruits) == ["apple", "cherry"]
    assert len(fruits) == 2
    assert fruits["apple"] == Fruit("apple")
    assert "pear" not in fruits
    assert fruits.get("pear") is None
    assert dict(fruits) == {"apple": Fruit("apple"), "cherry": Fruit("cherry")}
    assert repr(fruits) == "fruits: apple, cherry"


def test_a_name_that_exists_is_refused_unless_forced(fruits):
    with pytest.raises(ValueError, match=r"a second fruit 'apple'[\s\S]*force=True"):
        fruits.register(Fruit("apple", "green"))
    assert fruits["apple"].color == "red"
    fruits.register(Fruit("apple", "green"), force=True)
    assert fruits["apple"].color == "green"
    assert list(fruits) == ["apple", "cherry"]


def test_unregistering(fruits):
    fruits.unregister("apple")
    assert list(fruits) == ["cherry"]
    with pytest.raises(KeyError, match="fruit 'apple'"):
        fruits.unregister("apple")


def test_an_unknown_name_is_answered_by_those_that_look_like_it(fruits):
    with pytest.raises(tp.UnknownNameError, match="try:  'cherry'"):
        fruits["chery"]
    with pytest.raises(ValueError, match=r"one of apple, cherry\ntry:  fruits.register"):
        fruits["zzz"]
    with pytest.raises(KeyError, match=r"fruit \[1\]"):
        fruits[[1]]


def test_only_records_of_its_kind_are_entries(fruits):
    with pytest.raises(TypeError, match="its entries are Fruit records"):
        fruits.register("pear")


def test_entries_may_change_while_someone_looks_at_them(fruits):
    for name in fruits:
        fruits.unregister(name)
    assert not fruits


def test_it_knows_which_file_registered_a_record(fruits):
    here = Path(__file__).resolve()
    source = fruits.source_of(fruits["cherry"])
    assert str(source) == f"{here}:cherry#{fingerprint(here)}"
    assert fruits.from_file(f"{here}:cherry") is fruits["cherry"]
    assert fruits.from_file(f"{here}:Fruit") is Fruit, "what the file defines"
    with pytest.raises(KeyError, match="registers no 'cherri'"):
        fruits.from_file(f"{here}:cherri")
    assert fruits.source_of(Fruit("cherry")) is None, "another record"
    fruits.unregister("cherry")
    with pytest.raises(KeyError, match="registers no 'cherry'"):
        fruits.from_file(f"{here}:cherry")


def test_a_notebook_has_no_file_and_ours_need_none(fruits):
    exec("fruits.register(Fruit('plum'))", {"fruits": fruits, "Fruit": Fruit})
    assert fruits.source_of(fruits["plum"]) is None
    assert tp.activations.source_of(tp.activations["relu"]) is None
    assert tp.nn.normalizers.source_of(tp.nn.normalizers["batch"]) is None

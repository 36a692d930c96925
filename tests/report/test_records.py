# SPDX-License-Identifier: Apache-2.0
"""Records are dataclasses whose methods are compiled late: the same to everybody who uses them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any, ClassVar

import pytest

from profiling_lab.records import dataclass, replace

HOW: dict[str, Any] = {"frozen": True, "slots": True}


@dataclass(frozen=True, slots=True)
class Shape:
    kind: ClassVar[str] = "shape"
    name: str
    sides: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def corners(self) -> int:
        return len(self.sides)


@dataclass(frozen=True, slots=True)
class Named(Shape):
    """A shape with a number."""

    number: int = 7

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", self.number + 1)


def test_it_is_what_the_standard_dataclass_makes() -> None:
    ours, theirs = Shape("a", (1, 2)), dataclasses.make_dataclass("Shape", ["name", "sides", "notes"], **HOW)
    assert repr(ours) == repr(theirs("a", (1, 2), [])).replace("types.", "")
    assert (ours, ours.corners, Shape.kind) == (Shape("a", (1, 2)), 2, "shape")
    assert ours != Shape("b") and not hasattr(ours, "__dict__")
    assert [each.name for each in dataclasses.fields(Named)] == ["name", "sides", "notes", "number"]
    assert dataclasses.asdict(Named("a")) == {"name": "a", "sides": (), "notes": [], "number": 8}
    assert Shape("a").notes is not Shape("a").notes, "a default of its own for each"
    assert dataclasses.is_dataclass(Shape) and Named.__doc__ == "A shape with a number."
    match ours:
        case Shape(name, sides):
            assert (name, sides) == ("a", (1, 2))
        case _:
            raise AssertionError("no match")


def test_a_record_is_frozen_and_hashed_by_its_values() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair:
        x: int
        y: int = 0

    assert len({Pair(1), Pair(1), Pair(2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot change field 'x'"):
        Pair(1).x = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Pair(1).x
    with pytest.raises(TypeError, match=r"Pair.__init__\(\) missing 1 required positional argument: 'x'"):
        Pair()  # type: ignore[call-arg]


def test_copies_pickles_and_replaces() -> None:
    named = Named("a", number=1)
    for same in (copy.copy(named), copy.deepcopy(named), pickle.loads(pickle.dumps(named))):
        assert same == named and type(same) is Named
    for changed in (replace(named, name="b"), dataclasses.replace(named, name="b")):
        assert (changed.name, changed.number) == ("b", 3), "__post_init__ runs again"
    with pytest.raises(TypeError):
        replace(named, size=3)


def test_others_are_left_to_the_standard_dataclass() -> None:
    @dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        x: int

    @dataclass(slots=True)
    class Open:
        x: int
        y: int = field(init=False, default=0)

    @dataclass(frozen=True, slots=True)
    class Hidden:
        x: int
        y: int = field(init=False, default=2)

    assert Ordered(1) < Ordered(2)
    assert replace(Open(1), x=2) == Open(2) and Hidden(1).y == 2
    for kind in (Ordered, Open, Hidden):
        assert not hasattr(kind, "__record__")


def test_nothing_is_compiled_before_it_is_needed() -> None:
    @dataclass(frozen=True, slots=True)
    class Late:
        x: int

    before = Late.__dict__["__init__"], Late.__dict__["__eq__"]
    assert {type(each).__name__ for each in before} == {"_Later"}
    assert Late(1).x == 1
    after = Late.__dict__["__init__"], Late.__dict__["__eq__"]
    assert [type(each).__name__ for each in after] == ["function", "_Later"]
    assert Late(1) == Late(1) and type(Late.__dict__["__eq__"]).__name__ == "function"

"""Dense ids: numbers, coordinates and names are three ways to say the same."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.ids import Axis, Grid, IdError


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    letters = draw(st.lists(st.sampled_from("piug"), min_size=1, max_size=3, unique=True))
    axes = tuple(Axis(letter, draw(st.integers(1, 50))) for letter in letters)
    return Grid(draw(st.sampled_from(["t0", "nic", "link1"])), axes, first=draw(st.integers(0, 1000)))


@given(grid=grids(), data=st.data())
def test_id_coordinates_and_name_round_trip(grid: Grid, data: st.DataObject):
    dense = data.draw(st.integers(grid.first, grid.first + grid.size - 1))
    assert grid.id(*grid.coordinates(dense)) == dense
    assert grid.parse(grid.name(dense)) == dense
    assert grid.owns(dense)


@given(grid=grids())
def test_ids_are_dense(grid: Grid):
    assert not grid.owns(grid.first - 1)
    assert not grid.owns(grid.first + grid.size)
    with pytest.raises(IdError, match="ids run from"):
        grid.coordinates(grid.first + grid.size)


@given(grid=grids(), text=st.text(max_size=20))
def test_any_text_is_a_name_or_a_clear_refusal(grid: Grid, text: str):
    with contextlib.suppress(IdError):
        assert grid.name(grid.parse(text)).startswith(grid.kind)


def test_a_coordinate_out_of_range_says_the_range():
    grid = Grid("t0", (Axis("p", 8), Axis("i", 512)))
    with pytest.raises(IdError, match="i runs from 0 to 511"):
        grid.parse("t0-p7-i512")
    with pytest.raises(IdError, match="2 coordinates"):
        grid.id(1)

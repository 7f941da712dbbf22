"""Shapes: what a person types, and the part of them that a reference can afford."""

from __future__ import annotations

import pytest

from attentiondrop.bench.length import growing
from attentiondrop.bench.shapes import CPU_SHAPES, CUDA_SHAPES, Shape
from attentiondrop.errors import ArgumentError


@pytest.mark.parametrize("shape", [*CPU_SHAPES, *CUDA_SHAPES])
def test_texts_round_trip(shape: Shape) -> None:
    assert Shape.parse(shape.text) == shape


@pytest.mark.parametrize("text", ["1,2,3,4,causal,2", "1,2,3,4,2,causal", " 1, 2, 3, 4, 2, causal"])
def test_causal_and_key_heads_in_either_order(text: str) -> None:
    assert Shape.parse(text) == Shape(1, 2, 3, 4, causal=True, key_heads=2)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,0", "1,2,3,x", "causal,1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,-1"])
def test_a_wrong_text_is_named(text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        Shape.parse(text)
    assert "shape: expected B,H,N,D" in str(raised.value) and repr(text) in str(raised.value)


def test_key_heads_divide_the_heads() -> None:
    with pytest.raises(ArgumentError, match="key heads: expected a divisor of the 4 heads, received 3"):
        Shape.parse("1,4,8,8,3")
    with pytest.raises(ArgumentError, match="batch: expected"):
        Shape(0, 1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        (Shape(4, 4, 10, 8), Shape(4, 4, 10, 8)),
        (Shape(9, 4, 10, 8), Shape(5, 4, 10, 8)),
        (Shape(9, 40, 10, 8), Shape(1, 20, 10, 8)),
        (Shape(2, 8, 30, 8, True, 4), Shape(1, 2, 30, 8, True, 1)),
        (Shape(2, 8, 90, 8, True, 4), Shape(1, 2, 22, 8, True, 1)),
    ],
)
def test_a_part_has_fewer_samples_then_fewer_heads_then_fewer_rows(shape: Shape, part: Shape) -> None:
    assert shape.part(2000, 3000) == part
    assert part.logits <= 3000


def test_lengths_double() -> None:
    assert [shape.length for shape in growing(Shape(1, 2, 3, 4), 12)] == [3, 6, 12]
    with pytest.raises(ArgumentError, match="longest: expected at least twice the shortest length, 6, received 5"):
        growing(Shape(1, 2, 3, 4), 5)

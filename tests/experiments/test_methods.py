"""Texts of methods: what they mean, how they are written, what is refused."""

from __future__ import annotations

import re

import pytest

from attentiondrop import AttentionDropError, BlurSmoothing, Compose, HardMasking, OneOf
from attentiondrop.experiments.methods import DEFAULT_METHODS, Method, read_method, read_methods


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("none", Method()),
        (" none ", Method()),
        ("dropout", Method(dropout=0.1)),
        ("dropout()", Method(dropout=0.1)),
        ("dropout( p = 0.25 )", Method(dropout=0.25)),
        ("dropout(p=1e-1)", Method(dropout=0.1)),
        ("dropout(p=2e+0)", None),
        ("hard", Method(spec=HardMasking())),
        ("blur(sigma_max=1.0)", Method(spec=BlurSmoothing(sigma_max=1.0))),
        ("hard+blur", Method(spec=Compose([HardMasking(), BlurSmoothing()]))),
        ("dropout(p=0.2)+hard", Method(dropout=0.2, spec=HardMasking())),
        ("hard + dropout", Method(dropout=0.1, spec=HardMasking())),
        ("oneof(hard,blur)", Method(spec=OneOf([HardMasking(), BlurSmoothing()]))),
    ],
)
def test_reads_a_method_and_its_canonical_text(text: str, method: Method | None) -> None:
    if method is None:
        with pytest.raises(AttentionDropError, match=re.escape("a number in [0, 1]")):
            read_method(text)
        return
    assert read_method(text) == method
    assert read_method(method.text) == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hrad", "unknown method 'hrad' in 'hrad': expected none, dropout, or a spec (hard, blur"),
        ("", "unknown method ''"),
        ("hard+", "unknown method ''"),
        ("dropout+nope(p=1)", "unknown method 'nope'"),
        ("none+hard", "'none' cannot be joined"),
        ("none(p=1)", "method 'none(p=1)': 'none' takes no arguments"),
        ("dropout+dropout(p=0.2)", "dropout is given twice"),
        ("dropout(q=0.2)", "expected dropout(p=0.1), found 'dropout(q=0.2)'"),
        ("dropout(p=lots)", "p: expected a number, received 'lots'"),
        ("dropout(p=nan)", "p: expected a number in [0, 1], received nan"),
        ("hard(p=2)", "p: expected a number in [0, 1]"),
        ("hard(p=0.1", "cannot read spec"),
        ("blur+consistency(weight=0.5)", "cannot train with a consistency loss yet"),
        ("consistency", "cannot train with a consistency loss yet"),
    ],
)
def test_refuses_with_a_clear_message(text: str, message: str) -> None:
    with pytest.raises(AttentionDropError) as caught:
        read_method(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_given_twice_is_an_error() -> None:
    with pytest.raises(AttentionDropError, match="given twice"):
        read_methods(["hard", "hard(p=0.1,k=5)"])
    with pytest.raises(AttentionDropError, match="at least one method"):
        read_methods([])


def test_the_default_methods_can_be_read() -> None:
    assert [method.text for method in read_methods(DEFAULT_METHODS)] == [
        "none",
        "dropout(p=0.1)",
        "hard(p=0.1,k=5)",
        "blur(sigma_max=0.5)",
    ]


def test_folder_names_are_plain_short_and_unique() -> None:
    texts = [
        *DEFAULT_METHODS,
        "dropout+hard",
        "hard(fill=-inf)",
        "oneof(hard,blur)+noise",
        "oneof(hard,blur+noise)",
        "+".join(f"hard(p=0.1,k={k})" for k in range(1, 30)),
        "+".join(f"hard(p=0.1,k={k})" for k in range(1, 31)),
    ]
    slugs = [read_method(text).slug for text in texts]
    assert len(set(slugs)) == len(texts)
    assert all(re.fullmatch(r"[\w.=+-]{1,120}", slug) for slug in slugs)
    assert slugs[4] == "dropout_p=0.1+hard_p=0.1_k=5"

"""A kernel is compiled for each of its variants: the length of a sequence makes no variant of a blur."""

from __future__ import annotations

from typing import Any

import pytest
from blur_cases import INTERPRETED

pytest.importorskip("triton")

from attentiondrop.torch.kernels.blur import band, causal_band, rows
from attentiondrop.torch.kernels.shared import drawn_uniforms

KERNELS = [
    rows.blur_kernel,
    band.band_kernel,
    band.band_queries_kernel,
    band.band_keys_kernel,
    causal_band.merge_kernel,
    causal_band.rows_backward_kernel,
    causal_band.keys_backward_kernel,
    drawn_uniforms.uniforms_kernel,
]
STRIDES = ("_batch", "_head", "_row")
COUNTS = {"stream", "heads", "group", "queries", "keys", "part_keys", "rows_in", "rows_out", "length"}
#: A stride of 1 lets a thread load neighbours at once. (`visible_place` is another one.)
ADJACENT = "part_lse_row"


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no variants")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_strides_and_counts_make_no_variants(kernel: Any) -> None:
    checked = [one for one in kernel.params if one.name in COUNTS or one.name.endswith(STRIDES)]
    assert checked
    assert {one.name for one in checked if not one.do_not_specialize} <= {ADJACENT}

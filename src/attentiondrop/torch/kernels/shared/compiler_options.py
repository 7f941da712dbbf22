"""How Triton compiles our kernels."""

from __future__ import annotations

#: Whether products and sums are rounded at once. Said explicitly, because the default differs between versions of
#: Triton, and an environment variable changes it: none may change results.
OPTIONS = {"enable_fp_fusion": True}


def stride_names(*tensors: str) -> list[str]:
    """The names of the strides of tensors whose strides are counted in units (`in_units`).

    Triton compiles a kernel anew for an integer that is 1 or a multiple of 16, and strides depend on the length. The
    unit already says how far addresses are aligned.
    """
    return [f"{tensor}_{dimension}" for tensor in tensors for dimension in ("batch", "head", "row")]

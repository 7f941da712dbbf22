"""Compare torch with the NumPy oracle given identical draws: outputs and every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from oracle_form import sample
from torch import Tensor

from attentiondrop import reference
from attentiondrop.specs import Spec
from attentiondrop.torch import Blocks, attention
from attentiondrop.torch.call.leaves import DROPOUT_STREAM, LogitShape
from attentiondrop.torch.draws import Stream, draw_seed


@dataclass(frozen=True)
class Case:
    """One situation: sizes, and what hides or shifts logits."""

    name: str
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    rows: int = 9
    columns: int = 9
    size: int = 8
    value_size: int = 8
    is_causal: bool = False
    mask: str = ""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    #: Of the draws.
    seed: int = 5

    def __str__(self) -> str:
        return self.name

    def make(
        self, dtype: torch.dtype, device: str = "cpu", seed: int = 0
    ) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
        """Inputs that require gradients, a gradient of the output, and the keyword arguments of `attention`."""
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype).to(device)

        q = normal(self.batch, self.heads, self.rows, self.size)
        k = normal(self.batch, self.key_heads, self.columns, self.size)
        v = normal(self.batch, self.key_heads, self.columns, self.value_size)
        grad = normal(self.batch, self.heads, self.rows, self.value_size)
        options = {"is_causal": self.is_causal, "enable_gqa": self.heads != self.key_heads, **self.options}
        mask = self._mask(g, dtype)
        if mask is not None:
            options["attn_mask"] = mask.to(device)
        if options.pop("bias", False):
            options["bias"] = normal(1, self.heads, self.rows, self.columns)
        if options.pop("sinks", False):
            options["sinks"] = normal(self.heads)
        if size := options.pop("blocks", 0):
            # A row of blocks that sees nothing, and one that sees itself only.
            visible = torch.rand(self.batch, 1, -(-self.rows // size), -(-self.columns // size), generator=g) < 0.5
            visible[0, :, -1] = False
            visible[-1, :, 0] = torch.arange(visible.shape[-1]) == 0
            options["blocks"] = Blocks(visible.to(device), size)
        return [x.requires_grad_() for x in (q, k, v)], grad, options

    def _mask(self, g: torch.Generator, dtype: torch.dtype) -> Tensor | None:
        keys = torch.rand(self.batch, 1, 1, self.columns, generator=g) < 0.7
        keys[0, ..., 0] = True
        pairs = torch.rand(self.batch, self.heads, self.rows, self.columns, generator=g) < 0.6
        if self.rows > 1:
            pairs[:, :, 1] = False  # a row that sees nothing
        if self.mask == "keys":
            return keys
        if self.mask == "blind sample":
            keys[1] = False
            return keys
        if self.mask == "samples":
            return (torch.arange(self.batch) != 1).view(-1, 1, 1, 1)
        if self.mask == "additive rows":
            return torch.randn(1, self.heads, self.rows, 1, generator=g).to(dtype)
        if self.mask == "materialised keys":
            return keys.expand(-1, -1, self.rows, -1).contiguous()
        if self.mask == "causal keys":
            keys[1, ..., :2] = False  # left padding: the first rows see nothing
            return keys & torch.ones(self.rows, self.columns, dtype=torch.bool).tril()
        if self.mask == "pairs":
            return pairs
        bias = torch.randn(1, self.heads, self.rows, self.columns, generator=g).to(dtype)
        if self.mask == "additive":
            return bias
        if self.mask == "additive -inf":
            return bias.masked_fill(~keys, -torch.inf)
        if self.mask == "additive lowest":
            return bias.masked_fill(~pairs, torch.finfo(dtype).min)
        return None


CASES = [
    Case("plain"),
    Case("cross", rows=5, columns=11),
    Case("one query", rows=1, columns=7),
    # The truth is 0, and a head that is left alone multiplies what SDPA's kernel leaves. This seed leaves several.
    Case("one key", rows=6, columns=1, seed=15),
    Case("other value size", value_size=5),
    Case("grouped", heads=6, key_heads=2),
    Case("scale", options={"scale": 0.7}),
    Case("causal", is_causal=True),
    Case("causal, more keys", is_causal=True, rows=5, columns=11),
    Case("causal, more queries", is_causal=True, rows=11, columns=4),
    # A wide blur makes both keys nearly equal: their gradients nearly cancel, and the fused path, which rounds blurred
    # keys to the dtype of the queries, is then less exact than its tolerance says. This seed draws no such blur.
    Case("causal, shorter than a kernel", is_causal=True, rows=2, columns=2, seed=15),
    Case("causal grouped, other value size", is_causal=True, heads=6, key_heads=3, value_size=12),
    Case("key padding", mask="keys"),
    Case("key padding, blind sample", mask="blind sample"),
    Case("one value for all keys of a sample", mask="samples"),
    Case("one value for all keys of a row", mask="additive rows"),
    Case("materialised key padding", mask="materialised keys"),
    Case("causal and key padding as a mask", mask="causal keys"),
    Case("arbitrary boolean", mask="pairs"),
    Case("arbitrary boolean, grouped", mask="pairs", heads=6, key_heads=2),
    Case("additive", mask="additive"),
    Case("additive with -inf", mask="additive -inf"),
    Case("additive with the lowest value", mask="additive lowest"),
    Case("bias and key padding", mask="keys", options={"bias": True}),
    Case("bias and causal", is_causal=True, options={"bias": True}),
    Case("soft cap", options={"softcap": 1.5}),
    Case("sinks", mask="keys", options={"sinks": True}),
]


def numpy_draws(spec: Spec, seed: int, shape: LogitShape, device: str = "cpu") -> tuple[Any, np.ndarray]:
    """The draws that `attention` makes with this seed, and those of its `dropout_p`.

    On a CPU they are also those right after `torch.manual_seed(seed)`.
    """
    drawn = draw_seed(torch.zeros(1, device=device), same_on_all_devices(seed))
    return to_numpy(sample(spec, drawn, shape)), to_numpy(Stream(drawn, DROPOUT_STREAM).uniforms(*shape))


def same_on_all_devices(seed: int) -> torch.Generator:
    """A generator on the CPU. One on a GPU would give other draws."""
    return torch.Generator().manual_seed(seed)


def to_numpy(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        array = tree.detach().cpu()
        return array.numpy() if array.dtype == torch.bool else array.double().numpy()
    if isinstance(tree, (list, tuple)):
        return type(tree)(to_numpy(entry) for entry in tree)
    return tree


def errors(
    spec: Spec,
    case: Case,
    dtype: torch.dtype,
    backend: str,
    device: str = "cpu",
    seed: int | None = None,
    dropout_p: float = 0.0,
) -> dict[str, float]:
    """Relative errors (Frobenius norm) of the output and of the gradients of q, k, v against the oracle.

    The draws are those of `seed`, or of the case.
    """
    seed = case.seed if seed is None else seed
    inputs, grad, options = case.make(dtype, device)
    generator = same_on_all_devices(seed)
    output = attention(*inputs, spec, dropout_p=dropout_p, generator=generator, backend=backend, **options)
    output.backward(grad)

    shape = LogitShape(case.batch, case.heads, case.rows, case.columns)
    draws, dropout_draws = numpy_draws(spec, seed, shape, device)
    known = dict(options)
    known.pop("enable_gqa")
    mask = known.pop("attn_mask", None)
    if mask is not None and mask.dtype != torch.bool:
        # numpy has no bfloat16: say "hidden" in float64 terms, which is what the dtype meant.
        mask = torch.where(mask > torch.finfo(mask.dtype).min / 2, mask.double(), -torch.inf)
    if "blocks" in known:
        known["blocks"] = (to_numpy(known["blocks"].states), known["blocks"].size)
    for name in ("bias", "sinks"):
        if name in known:
            known[name] = to_numpy(known[name])
    result = reference.attention(
        *(to_numpy(x) for x in inputs),
        spec,
        draws,
        attn_mask=None if mask is None else to_numpy(mask),
        dropout_p=dropout_p,
        dropout_draws=dropout_draws,
        **known,
    )
    expected = [result.output, *result.gradients(to_numpy(grad))[:3]]
    received = [output, *(x.grad for x in inputs)]
    assert output.dtype == dtype
    return {
        name: relative_error(to_numpy(have), want)
        for name, have, want in zip(("output", "query", "key", "value"), received, expected, strict=True)
    }


def relative_error(have: np.ndarray, want: np.ndarray) -> float:
    assert have.shape == want.shape, (have.shape, want.shape)
    assert np.isfinite(have).all()
    return (
        float(np.linalg.norm(have - want) / max(np.linalg.norm(want), 1e-30))
        if np.any(want)
        else float(np.abs(have).max())
    )

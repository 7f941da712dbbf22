"""`attention` as a stand-in for SDPA: identity without a spec, shapes, dtypes, autocast, causality, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiler import needs_compiler
from largest_tensor import Largest
from test_parity import SPECS
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import AttentionDrop, attention
from attentiondrop.torch.fused import blurred_causal as blur_causal

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_spec_or_training_it_is_sdpa_bit_for_bit(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 8, dtype=dtype)
    mask = torch.rand(2, 1, 9, 9) < 0.7
    grouped = {"enable_gqa": True}
    calls: list[tuple[tuple[torch.Tensor, ...], dict[str, Any]]] = [
        ((q, k, v), {}),
        ((q, k, v), {"is_causal": True}),
        ((q, k, v), {"attn_mask": mask}),
        ((q, k, v), {"attn_mask": torch.randn(9, 9, dtype=dtype)}),
        ((q, k, v), {"dropout_p": 0.3}),
        ((q, k, v), {"scale": 0.5}),
        ((q, k[:, :2], v[:, :2]), grouped),
        ((q[0], k[0], v[0]), {}),
    ]
    for tensors, options in calls:
        torch.manual_seed(1)
        expected = F.scaled_dot_product_attention(*tensors, **options)
        torch.manual_seed(1)
        assert torch.equal(attention(*tensors, None, **options), expected)
        torch.manual_seed(1)
        assert torch.equal(attention(*tensors, ad.HardMasking(), training=False, **options), expected)
    plain = F.scaled_dot_product_attention(q, k, v)
    assert all(torch.equal(attention(q, k, v, spec, training=False), plain) for spec in SPECS)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("as_mask", [False, True])
def test_no_information_from_the_future(spec: Spec, as_mask: bool) -> None:
    """The gradient of row i with respect to everything at j > i is exactly zero, on every backend that runs."""
    n = 11
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    options: dict[str, Any] = {"attn_mask": mask} if as_mask else {"is_causal": True}
    for backend in ("eager", "auto"):
        x = torch.randn(1, n, 12, requires_grad=True)
        q, k, v = (x.view(1, n, 3, 4).transpose(1, 2) * f for f in (1.0, 1.5, 2.0))
        q, k, v = (t.clone() for t in (q, k, v))
        for t in (q, k, v):
            t.retain_grad()
        output = attention(q, k, v, spec, backend=backend, **options)
        for row in (0, 1, 4, 8):
            for t in (x, q, k, v):
                t.grad = None
            output[:, :, row].sum().backward(retain_graph=True)
            assert not x.grad[:, row + 1 :].any()
            for t in (k, v):
                assert not t.grad[:, :, row + 1 :].any()
            assert not q.grad[:, :, row + 1 :].any() and not q.grad[:, :, :row].any()


def test_more_and_fewer_dimensions() -> None:
    q5, k5, v5 = torch.randn(3, 2, 3, 4, 9, 8)
    for spec in (ad.HardMasking(p=0.3, fill="-inf"), ad.BlurSmoothing(1.0), ad.DropHead(0.2)):
        for mask in (None, torch.rand(9, 9) < 0.8, torch.rand(2, 3, 1, 9, 9) < 0.8, torch.rand(3, 1, 1, 9) < 0.8):
            torch.manual_seed(1)
            whole = attention(q5, k5, v5, spec, attn_mask=mask)
            torch.manual_seed(1)
            flat = (
                None
                if mask is None
                else mask.expand(2, 3, *torch.broadcast_shapes(mask.shape[-3:], (4, 9, 9))).flatten(0, 1)
            )
            parts = attention(q5.flatten(0, 1), k5.flatten(0, 1), v5.flatten(0, 1), spec, attn_mask=flat)
            torch.testing.assert_close(whole, parts.view(2, 3, 4, 9, 8))
    q3, k3, v3 = torch.randn(3, 5, 9, 8)
    for mask in (None, torch.rand(9, 9) < 0.8, torch.rand(5, 1, 9) < 0.8):
        torch.manual_seed(1)
        whole = attention(q3, k3, v3, ad.HardMasking(p=0.3), attn_mask=mask)
        torch.manual_seed(1)
        heads = attention(
            *(x.unsqueeze(1) for x in (q3, k3, v3)),
            ad.HardMasking(p=0.3),
            attn_mask=mask if mask is None or mask.ndim == 2 else mask.unsqueeze(1),
        )
        torch.testing.assert_close(whole, heads.squeeze(1))
    assert attention(*torch.randn(3, 9, 8), ad.HardMasking()).shape == (9, 8)


def test_batches_and_heads_broadcast() -> None:
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(1, 1, 7, 8), torch.randn(2, 1, 7, 8)
    for spec in (ad.HardMasking(), ad.BlurSmoothing(1.0)):
        torch.manual_seed(1)
        assert attention(q, k, v, spec).shape == (2, 4, 9, 8)


@pytest.mark.parametrize(
    "spec", [ad.HardMasking(p=0.3), ad.BlurSmoothing(1.0), ad.DropKey(0.2), ad.GaussianNoise()], ids=str
)
def test_autocast_gives_the_dtype_of_sdpa(spec: Spec) -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = F.scaled_dot_product_attention(q, k, v)
        torch.manual_seed(1)
        output = attention(q, k, v, spec)
    assert output.dtype == plain.dtype == torch.bfloat16
    output.sum().backward()
    torch.manual_seed(1)
    cast = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), spec)
    assert torch.equal(output, cast)


@pytest.mark.no_cover
@needs_compiler
@pytest.mark.parametrize(
    ("spec", "causal", "compiler"),
    [
        (ad.HardMasking(p=0.3, k=3, fill="-inf"), True, "inductor"),
        (ad.BlurSmoothing(1.0, sampling="head", edges="renormalize"), False, "aot_eager"),
        (ad.BlurSmoothing(1.0, sampling="head", edges="renormalize"), True, "inductor"),
        (ad.GaussianNoise(0.5), False, "aot_eager"),
        (ad.OneOf([ad.DropKey(0.3), ad.Compose([ad.AttentionDropout(0.2), ad.DropHead(0.3)])]), False, "aot_eager"),
    ],
    ids=str,
)
def test_compiled_equals_eager(spec: Spec, causal: bool, compiler: str) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, spec, is_causal=causal)

    compiled = torch.compile(call, backend=compiler, fullgraph=True)
    # float64 shows small differences best, but a blur compiles to its fused path in float32 only, and normal draws are
    # float32 themselves.
    wide = not any(isinstance(leaf, ad.BlurSmoothing | ad.GaussianNoise) for leaf in spec.leaves())
    dtype, rtol, atol = (torch.float64, 1e-10, 1e-12) if wide else (torch.float32, 1e-4, 1e-5)
    inputs = [torch.randn(2, 4, 9, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    results = []
    for function in (call, compiled):
        torch.manual_seed(2)
        outputs = [function(*inputs), function(*inputs)]
        results.append((*outputs, *torch.autograd.grad(outputs[1].square().sum(), inputs)))
    assert not torch.equal(results[1][0], results[1][1])
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=rtol, atol=atol)


@pytest.mark.no_cover
def test_a_compiled_blur_runs_fused_but_for_float64() -> None:
    compiled = torch.compile(
        lambda q: attention(q, q, q, ad.BlurSmoothing(1.0), is_causal=True, backend="fused"),
        backend="aot_eager",
        fullgraph=True,
    )
    assert compiled(torch.randn(1, 2, 6, 4)).shape == (1, 2, 6, 4)
    with pytest.raises(Exception, match="takes the log-sum-exp of float64 attention"):
        compiled(torch.randn(1, 2, 6, 4, dtype=torch.float64))


@pytest.mark.no_cover
def test_compiled_spec_may_be_built_inside() -> None:
    compiled = torch.compile(
        lambda q: attention(q, q, q, ad.HardMasking(p=0.2, k=3)), backend="aot_eager", fullgraph=True
    )
    q = torch.randn(1, 2, 6, 4)
    torch.manual_seed(2)
    have = compiled(q)
    torch.manual_seed(2)
    torch.testing.assert_close(have, attention(q, q, q, ad.HardMasking(p=0.2, k=3)))


@pytest.mark.no_cover
def test_a_generator_cannot_be_compiled_and_says_so() -> None:
    generator = torch.Generator()
    compiled = torch.compile(
        lambda q: attention(q, q, q, ad.DropKey(), generator=generator), backend="eager", fullgraph=True
    )
    module = torch.compile(AttentionDrop("dropkey", generator), backend="eager", fullgraph=True)
    for function in (compiled, module):
        with pytest.raises(Exception, match=r"torch\.compile cannot trace a generator"):
            function(torch.randn(1, 2, 6, 4))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_pass_the_checks_of_torch(dtype: torch.dtype, masked: bool) -> None:
    """Schemas, fake implementations, autograd registration and tracing of what the package registers."""
    q, k, v = (torch.randn(2, 3, 7, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    band = torch.randn(2, 3, 7, 2, requires_grad=True)
    keys = torch.rand(2, 1, 1, 7) < 0.7 if masked else None
    operators = torch.ops.attentiondrop
    torch.library.opcheck(operators.merged_attention.default, (q, k, v, band, keys, 0.3))
    results = operators.merged_attention(q, k, v, band, keys, 0.3)
    inputs = [x.detach() for x in (torch.randn_like(q), q, k, v, *results)]
    torch.library.opcheck(operators.merged_attention_backward.default, (*inputs, keys, 0.3))
    # A draw differs from call to call, so only what does not compare values can be checked.
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operators.draw_seed.default, (torch.zeros(1), 0), test_utils=checks)


def test_fused_says_why_it_cannot_run() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    rows = torch.rand(6, 6) < 0.5
    rows[0, 0], rows[1, 0] = True, False
    reasons = {
        "blur after hard needs the logits": (ad.Compose([ad.HardMasking(), ad.BlurSmoothing()]), {}),
        "several ways of dropping logits": (ad.Compose([ad.HardMasking(), ad.DropKey()]), {}),
        "several noises": (ad.Compose([ad.GaussianNoise(), ad.GaussianNoise()]), {}),
        "several dropouts of the weights": (ad.Compose([ad.AttentionDropout(), ad.DropAttention()]), {}),
        "gradient of a bias": (ad.HardMasking(), {"bias": torch.zeros(6, 6, requires_grad=True)}),
        "a soft cap": (ad.HardMasking(), {"softcap": 2.0}),
        "sinks": (ad.BlurSmoothing(), {"sinks": torch.zeros(2)}),
        "different keys from different rows": (ad.BlurSmoothing(), {"attn_mask": rows}),
        "several blurs under a causal mask": (ad.Compose([ad.BlurSmoothing()] * 2), {"is_causal": True}),
        "with an additive bias": (ad.BlurSmoothing(), {"is_causal": True, "bias": torch.zeros(6, 6)}),
        "causal blur together with decisions": (ad.BlurSmoothing(), {"is_causal": True, "dropout_p": 0.1}),
    }
    for reason, (spec, options) in reasons.items():
        with pytest.raises(ad.BackendError, match=reason):
            attention(q, k, v, spec, backend="fused", **options)
        assert attention(q, k, v, spec, backend="auto", **options).isfinite().all()


def test_auto_never_builds_the_logits_where_it_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from attentiondrop.torch import functional

    def refuse(*args: Any) -> None:
        raise AssertionError("the eager path ran")

    monkeypatch.setattr(functional, "eager_attention", refuse)
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    keys = torch.tensor([True, True, False, True, False, True]).view(1, 1, 1, 6)
    for edges in ("zero", "renormalize"):
        for sampling in ("batch", "sample", "head"):
            spec = ad.BlurSmoothing(1.0, edges=edges, sampling=sampling)
            for options in ({}, {"is_causal": True}, {"attn_mask": keys}, {"attn_mask": torch.randn(6, 6)}):
                attention(q, k, v, spec, **options)
            attention(q, k, v, spec, attn_mask=keys & torch.ones(6, 6, dtype=torch.bool).tril())
    for text in ("hard", "hard(fill=-inf)", "dropkey", "blur+hard+attndropout+drophead", "oneof(hard,blur)"):
        for options in ({}, {"is_causal": True}, {"attn_mask": keys}, {"attn_mask": torch.randn(6, 6)}):
            if "blur" not in text or not options.get("is_causal"):
                attention(q, k, v, ad.parse(text), backend="fused", **options)
    with pytest.raises(AssertionError, match="the eager path ran"):
        attention(q, k, v, ad.HardMasking(), softcap=2.0)


def test_memory_of_a_blur_is_linear() -> None:
    """The largest tensor that a causal blur saves or makes is of size N, not N x N."""
    n, size = 512, 4
    q, k, v = torch.randn(3, 1, 1, n, size)
    keys = torch.rand(1, 1, 1, n) < 0.9
    q.requires_grad_()
    for options in ({"is_causal": True}, {}, {"attn_mask": keys}):
        with Largest() as largest:
            attention(q, k, v, ad.BlurSmoothing(1.0), **options).sum().backward()
        assert largest.elements <= 4 * n * size, options
    # A dispatch mode sees an operator of ours as one call, so look inside the causal ones as well.
    q, band = q.detach(), torch.randn(1, 1, n, 2)
    with Largest() as largest:
        results = blur_causal._merged_attention(q, k, v, band, keys, 0.5)
        blur_causal._merged_attention_backward(torch.ones_like(q), q, k, v, *results, keys, 0.5)
    assert n * size <= largest.elements <= 4 * n * size


@pytest.mark.parametrize(
    "text, rows, blocks",
    [
        ("hard", 200, True),
        ("dropkey", 200, True),
        ("hard", 8, False),
        ("noise", 200, False),
        ("attndropout", 200, False),
        ("noise", 2100, True),
    ],
)
def test_auto_takes_blocks_where_they_pay(text: str, rows: int, blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from attentiondrop.torch import functional

    taken = []
    monkeypatch.setattr(functional, "fused_attention", lambda *a: taken.append(True) or torch.zeros(1, 1, rows, 4))
    monkeypatch.setattr(
        functional, "eager_attention", lambda *a: (taken.append(False) or torch.zeros(1, 1, rows, 4), None)
    )
    attention(*torch.randn(3, 1, 1, rows, 4), ad.parse(text))
    assert taken == [blocks]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"softcap": 0.0}, "softcap: expected a number > 0, received 0.0"),
        ({"softcap": -1.0}, "softcap: expected a number >= 0, received -1.0"),
        ({"generator": 5}, "generator: expected a torch.Generator, received 5"),
        ({"sinks": torch.zeros(1)}, r"sinks: expected a logit for each of 4 heads, received \[1\]"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    q = torch.randn(2, 4, 6, 8)
    with pytest.raises(ad.AttentionDropError, match=message):
        attention(q, q, q, ad.DropKey(), **options)


def test_the_text_of_a_spec() -> None:
    q = torch.randn(2, 4, 6, 8)
    torch.manual_seed(0)
    want = attention(q, q, q, ad.DropKey(p=0.3))
    torch.manual_seed(0)
    assert torch.equal(attention(q, q, q, "dropkey(p=0.3)"), want)

"""`watch` and `stats`: what is measured on a few rows is what happens in the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracle_form import sample
from parity import to_numpy
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.torch import attach
from attentiondrop.torch.call.blocks import Blocks
from attentiondrop.torch.call.leaves import Excerpt, LogitShape
from attentiondrop.torch.functional import Options, perturbed_attention
from attentiondrop.torch.rates.monitoring import Monitor, _Tally
from attentiondrop.torch.rates.sampled_rows import SampledRows

SPECS = [
    "hard(p=0.5,k=3)",
    "hard(p=0.5,k=3,fill=-inf)",
    "blur(sigma_max=1.0,sampling=sample)",
    "blur(sigma_max=1.0,sampling=head)",
    "blur(sigma_max=1.0,axes=both)",
    "noise(sigma=0.5)",
    "dropkey(p=0.4)",
    "attndropout(p=0.3)",
    "drophead(p=0.5)",
    "blur(sigma_max=1.0)+hard(p=0.5,k=2)+attndropout(p=0.2)",
]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 4, 2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return 2 * q, k, v


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("text", SPECS)
def test_all_rows_measured_are_the_oracles(text: str, is_causal: bool) -> None:
    spec = ad.parse(text)
    if is_causal and "both" in text:
        return
    q, k, v = inputs()
    monitor = Monitor(rows=100, samples=100)
    torch.manual_seed(2)
    perturbed_attention(q, k, v, spec, Options(is_causal=is_causal), monitor=monitor)
    torch.manual_seed(2)
    seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    draws = to_numpy(sample(spec, seed, LogitShape(4, 2, 9, 9)))
    stats = monitor.stats()
    for chosen, found, even in (
        (None, stats.entropy_before, stats.evenness_before),
        (spec, stats.entropy_after, stats.evenness_after),
    ):
        weights = reference.attention(
            *(to_numpy(x) for x in (q, k, v)), chosen, draws if chosen else None, is_causal=is_causal
        ).weights
        if "drophead" in text:
            weights = reference.attention(*(to_numpy(x) for x in (q, k, v)), is_causal=is_causal).weights
        total = weights.sum(-1, keepdims=True)
        share = weights / np.where(total > 0, total, 1)
        entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(-1)
        seen = np.broadcast_to(np.arange(1, 10) if is_causal else np.full(9, 9), entropy.shape)
        counted = (seen > 1) & (total[..., 0] > 0)
        assert found == pytest.approx([entropy[:, h][counted[:, h]].mean() for h in range(2)], rel=1e-9)
        flat = entropy / np.log(np.maximum(seen, 2))
        assert even == pytest.approx([flat[:, h][counted[:, h]].mean() for h in range(2)], rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.arange(9) < torch.tensor([5, 9, 2, 3]).view(4, 1, 1, 1)},
        {"attn_mask": torch.ones(9, 9).tril(2).log()},
        {"attn_mask": torch.linspace(-2, 2, 81).view(9, 9)},
        {"bias": torch.linspace(-2, 2, 4 * 81).view(4, 1, 9, 9), "is_causal": True},
        {"softcap": 0.5, "scale": 0.7},
        {"window": (2, 1), "attn_mask": torch.arange(9) != 4},
        {"window": (2, -1), "is_causal": True},
        {"blocks": Blocks(torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0)).argsort(-1) > 0, 3)},
        {"blocks": Blocks(torch.ones(3, 3).tril() > 0, 3), "window": (4, 4)},
        {"enable_gqa": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_some_rows_measured_are_those_of_the_call(options: dict[str, Any]) -> None:
    q, k, v = inputs()
    if "enable_gqa" in options:
        k, v = k[:, :1], v[:, :1]
    monitor = Monitor(rows=3, samples=2)
    spec = ad.parse("hard(p=0.5,k=3)")
    weights = perturbed_attention(q, k, v, spec, Options(**options), backend="eager", monitor=monitor).weights
    rows = weights[:2, :, [1, 4, 7]]  # the middles of three parts
    expected = -torch.special.xlogy(rows, rows).sum(-1).mean(dim=(0, 2))
    assert monitor.stats().entropy_after == pytest.approx(expected.tolist(), rel=1e-6)


def test_rates_and_sigmas_come_out_as_set() -> None:
    torch.manual_seed(0)
    monitor = Monitor(rows=50, samples=8)
    q, k, v = torch.randn(3, 8, 3, 64, 8)
    spec = ad.parse(
        "blur(sigma_max=1.0)+noise(sigma=0.25)+hard(p=0.3,k=4)+attndropout(p=0.1)+drophead(p=0.2)+dropkey(p=0.1)"
    )
    for _ in range(40):
        perturbed_attention(q, k, v, spec, Options(), monitor=monitor, backend="eager")
    stats = monitor.stats()
    assert stats.calls == 40
    assert set(stats.drop_rates) == {"hard", "attndropout", "drophead", "dropkey"}
    assert set(stats.sigmas) == {"noise", "blur"}
    # Four standard deviations of what was counted: 40 x 8 x 50 x 4 decisions for each head in the first.
    assert stats.drop_rates["hard"] == pytest.approx([0.3] * 3, abs=4 * (0.21 / 64000) ** 0.5)
    assert stats.drop_rates["attndropout"] == pytest.approx([0.1] * 3, abs=0.002)
    assert stats.drop_rates["drophead"] == pytest.approx([0.2] * 3, abs=4 * (0.16 / 320) ** 0.5)
    assert stats.sigmas["noise"] == pytest.approx([0.25] * 3)
    assert stats.sigmas["blur"] == pytest.approx([0.5] * 3, abs=4 * (1 / 12 / 40) ** 0.5)


def test_one_of_counts_only_what_it_chose() -> None:
    torch.manual_seed(0)
    monitor = Monitor(rows=16, samples=4)
    q, k, v = torch.randn(3, 4, 2, 16, 8)
    for _ in range(30):
        perturbed_attention(q, k, v, ad.parse("oneof(dropkey(p=0.5),dropkey(p=0.2))"), Options(), monitor=monitor)
    rates = monitor.stats().drop_rates
    assert rates["dropkey"] == pytest.approx([0.5] * 2, abs=0.03)
    assert rates["dropkey 2"] == pytest.approx([0.2] * 2, abs=0.03)


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_watching_changes_nothing_and_ends() -> None:
    torch.manual_seed(0)
    model, x = encoder(), torch.randn(3, 7, 16)
    attachment = attach(model, "hard(p=0.4,k=3)")
    with pytest.raises(ad.AttachError, match=r"stats: nothing is measured; call watch\(\)"):
        attachment.stats()
    outputs = []
    for watching in (False, True):
        attachment.watch(rows=4) if watching else None
        torch.manual_seed(1)
        outputs.append(model(x))
    assert torch.equal(*outputs)
    stats = attachment.stats()
    assert list(stats) == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(0 < value <= 1 for site in stats.values() for value in site.evenness_after)
    model.eval()(x)
    assert attachment.stats()["layers.0.self_attn"].calls == 1
    attachment.unwatch()
    model.train()(x)
    with pytest.raises(ad.AttentionDropError):
        attachment.stats()
    with pytest.raises(ad.AttentionDropError, match="rows: expected a number >= 1, received 0"):
        attachment.watch(rows=0)


@pytest.mark.no_cover
def test_compiled() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, x = encoder(layers=1), torch.randn(3, 7, 16)
    attachment = attach(model, "hard(p=0.4,k=3)")
    attachment.watch()
    compiled = torch.compile(model, backend=(counter := CompileCounter()), fullgraph=True)
    for _ in range(5):
        compiled(x)
    # Once more when the first sums are there, not in every step.
    assert counter.frame_count <= 3
    assert [site.calls for site in attachment.stats().values()] == [5]


def test_a_row_that_has_lost_all_of_its_weights_is_not_counted() -> None:
    """Dropout may drop every weight of a row. No entropy of 0 may come from there."""
    tally, seen = _Tally(), SampledRows(torch.zeros(1, 1, 3, 4), None, Excerpt(LogitShape(1, 1, 3, 4), torch.arange(3)))
    weights = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    assert tally.entropy("after", weights[None, None], seen).tolist() == [pytest.approx(0.5)]

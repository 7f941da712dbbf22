"""Windows and blocks of keys, on every path, against the oracle with identical draws; and what is refused."""

from __future__ import annotations

import pytest
import torch
from largest_tensor import Largest
from parity import Case, errors
from torch import Tensor

import attentiondrop as ad
from attentiondrop.torch import Blocks, attention, dispatch
from attentiondrop.torch.call.inputs import Options, normalise
from attentiondrop.torch.call.known_calls import describe
from attentiondrop.torch.call.one_call import make_call
from attentiondrop.torch.fused import row_blocks
from attentiondrop.torch.rates.sampled_rows import sample_rows

CASES = [
    Case("window", options={"window": (3, 2)}),
    Case(
        "causal window, grouped", heads=4, key_heads=2, rows=24, columns=24, is_causal=True, options={"window": (5, 4)}
    ),
    Case("all keys before", rows=12, columns=12, options={"window": (-1, 2)}),
    Case("all keys behind", rows=12, columns=12, options={"window": (2, -1)}),
    Case("window, more keys", rows=9, columns=30, options={"window": (4, 3)}),
    Case("window, more rows", rows=30, columns=9, mask="keys", options={"window": (4, 3)}),
    Case("blocks", rows=21, columns=30, options={"blocks": 8}),
    Case("blocks, causal, window", rows=21, columns=21, is_causal=True, options={"blocks": 4, "window": (9, 0)}),
]
HARD, BLUR = "hard(p=0.5,k=3)", "blur(sigma_min=0.5,sigma_max=1.0)"
SPECS = [
    HARD,
    "hard(p=0.5,k=3,fill=-inf)",
    "dropkey(p=0.5)+attndropout(p=0.3)",
    "dropkey(p=0.3,by=column)+dropattention(p=0.4,by=column,span=2)",
    BLUR,
    "blur(sigma_min=0.5,sigma_max=1.0,edges=renormalize,sampling=head)+noise(sigma=0.5)+hard(p=0.5,k=3)",
]


@pytest.mark.parametrize("backend", ["eager", "fused"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_oracle(case: Case, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BUDGET", 90)  # several blocks, whose keys begin and end anywhere
    monkeypatch.setattr(row_blocks, "_FEWEST_ROWS", 4)
    for spec in SPECS:
        found = errors(ad.parse(spec), case, torch.float64, backend)
        assert max(found.values()) < 16 * torch.finfo(torch.float64).eps, (spec, found)


def test_auto_and_plain_calls_see_the_window() -> None:
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64).unbind()
    distance = torch.arange(40) - torch.arange(40)[:, None]
    mask = (distance >= -4) & (distance <= 0)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    for options in ({"drop": None}, {"drop": ad.HardMasking(), "training": False}, {"drop": ad.DropHead(0.0)}):
        for backend in ("auto", "eager", "fused"):
            found = attention(q, k, v, window=(4, 1), is_causal=True, backend=backend, **options)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("spec", [HARD, BLUR])
def test_auto_builds_no_tensor_of_the_size_of_many_logits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_FEW_LOGITS", 0)
    monkeypatch.setattr(dispatch, "_MANY_LOGITS_ON_CPU", 0)
    monkeypatch.setattr(dispatch, "_MANY_UNDER_A_WINDOW", 0)
    monkeypatch.setattr(row_blocks, "_FEWEST_ROWS", 64)
    monkeypatch.setattr(row_blocks, "BUDGET", 2**12)
    q, k, v = (torch.randn(1, 1, 512, 8, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        attention(q, k, v, ad.parse(spec), window=(16, 0), is_causal=True).sum().backward()
    assert q.numel() <= largest.elements <= 2**13 < 512 * 512
    if spec == BLUR:
        # The same for a mask of pairs, which blurred keys cannot serve: only the mask itself has that size.
        mask = torch.rand(512, 512) < 0.5
        with Largest() as largest:
            attention(q, k, v, ad.parse(spec), attn_mask=mask).sum().backward()
        assert q.numel() <= largest.elements <= 512 * 512


def test_a_window_that_hides_nothing_takes_the_path_without_one() -> None:
    q, k, v = torch.randn(3, 1, 2, 12, 8).unbind()
    spec = ad.HardMasking(p=0.5, k=3)
    for window, causal in (((11, 11), False), ((-1, -1), False), ((11, 0), True), ((-1, 5), True)):
        results = []
        for options in ({"window": window}, {}):
            torch.manual_seed(3)
            results.append(attention(q, k, v, spec, is_causal=causal, **options))
        assert torch.equal(*results)


def test_measured_rows_see_what_the_call_sees() -> None:
    case = Case("", rows=21, columns=21, is_causal=True, options={"blocks": 4, "window": (9, -1)})
    (q, k, v), _, options = case.make(torch.float32)
    given = Options(is_causal=True, window=options["window"], blocks=options["blocks"])
    call = make_call(normalise(q, k, v, given), [], given, None)
    assert torch.equal(sample_rows(call, 2, None).visible, call.visibility.dense(21, 21, q.device))
    # A call of the kernels for short rows that is known by its looks has no window.
    assert describe(q, k, v, ad.HardMasking(), Options(), "auto") is not None
    assert describe(q, k, v, ad.HardMasking(), given, "auto") is None


def test_a_block_mask_of_flex_attention_means_what_it_says() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def visible(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (row >= key) & (row - key <= 9 + 8 * h) & (key >= 3 * b)

    mask = flex.create_block_mask(visible, 2, 2, 50, 50, device="cpu", BLOCK_SIZE=16)
    dense = flex.create_mask(visible, 2, 2, 50, 50, device="cpu")
    q, k, v = torch.randn(3, 2, 2, 50, 8, dtype=torch.float64).unbind()
    for spec in (HARD, BLUR):
        for backend in ("eager", "fused"):
            results = []
            for options in ({"blocks": mask}, {"attn_mask": dense}):
                torch.manual_seed(3)
                results.append(attention(q, k, v, ad.parse(spec), backend="eager" if "attn_mask" in options else backend, **options))  # fmt: skip
            torch.testing.assert_close(*results)
    with pytest.raises(ad.AttentionDropError, match=r"blocks: expected a BlockMask of \[40, 50\] rows and keys"):
        attention(q[:, :, :40], k, v, ad.parse(HARD), blocks=mask)


def test_block_masks_with_whole_and_with_unequal_blocks() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def first(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return key < 16

    q, k, v = torch.randn(3, 1, 2, 50, 8, dtype=torch.float64).unbind()
    blocks = flex.create_block_mask(first, None, None, 50, 50, device="cpu", BLOCK_SIZE=16)
    assert blocks.full_kv_num_blocks.sum() > 0
    found = attention(q, k, v, ad.HardMasking(p=0.0, k=1), blocks=blocks)
    torch.testing.assert_close(found, attention(q, k[:, :, :16], v[:, :, :16], None))
    unequal = flex.create_block_mask(first, None, None, 50, 50, device="cpu", BLOCK_SIZE=(16, 8))
    with pytest.raises(ad.AttentionDropError, match="blocks: expected a BlockMask with blocks of as many rows as keys"):
        attention(q, k, v, ad.HardMasking(), blocks=unequal)


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_block_masks_without_a_partly_visible_block(backend: str) -> None:
    """Documents as long as blocks. Of the lists of blocks only the first entries count: the others begin with 0."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def same(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return row // 16 == key // 16

    blocks = flex.create_block_mask(same, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    assert (blocks.kv_num_blocks.sum(), blocks.full_kv_num_blocks.sum()) == (0, 4)
    q, k, v = torch.randn(3, 2, 64, 8, dtype=torch.float64).unflatten(1, (1, 2)).unbind()
    found = attention(q, k, v, ad.HardMasking(p=0.0), blocks=blocks, backend=backend)
    for own in torch.arange(64).split(16):
        torch.testing.assert_close(found[:, :, own], attention(q[:, :, own], k[:, :, own], v[:, :, own], None))


def test_a_block_mask_that_an_evaluation_saw_first_serves_training() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(lambda b, h, row, key: row >= key, None, None, 50, 50, device="cpu", BLOCK_SIZE=16)
    q, k, v = (torch.randn(1, 2, 50, 8, requires_grad=True) for _ in range(3))
    with torch.inference_mode():
        plain = attention(q, k, v, None, blocks=mask)
    found = attention(q, k, v, ad.HardMasking(p=0.0), blocks=mask, backend="fused")
    found.sum().backward()
    torch.testing.assert_close(found, plain)
    assert q.grad is not None


def test_bad_windows_and_blocks_are_refused() -> None:
    q, k, v = torch.randn(3, 1, 2, 12, 8).unbind()
    table = torch.ones(3, 3, dtype=torch.bool)
    wrong = {
        "window: expected a pair of integers": {"window": 3},
        r"window: expected a pair of integers.* received \(1, 2, 3\)": {"window": (1, 2, 3)},
        "window: expected a number >= -1, received -2": {"window": (-2, 0)},
        "blocks: expected attentiondrop.torch.Blocks, or a BlockMask": {"blocks": table},
        "blocks.size: expected a number >= 1": {"blocks": Blocks(table, 0)},
        "blocks.states: expected a boolean or int32 tensor": {"blocks": Blocks(table.float(), 4)},
        r"blocks.states: expected a shape that broadcasts to \[1, 2, 2, 2\], with 2 x 2 blocks of 6": {
            "blocks": Blocks(table, 6)
        },
        "blocks.states: expected a tensor on cpu, received .*meta": {"blocks": Blocks(table.to("meta"), 4)},
        r"blocks.patterns: expected boolean \[patterns, 4, 4\]": {"blocks": Blocks(table, 4, table[None])},
    }
    for message, options in wrong.items():
        with pytest.raises(ad.AttentionDropError, match=message):
            attention(q, k, v, ad.HardMasking(), **options)
    with pytest.raises(ad.AttentionDropError, match='axes: expected "keys" under a mask that hides different keys'):
        attention(q, k, v, ad.BlurSmoothing(axes="both"), window=(2, 2))
    with pytest.raises(ad.BackendError, match="rows that see a window or blocks of keys do not share blurred keys"):
        attention(q, k, v, ad.Compose([ad.BlurSmoothing()] * 2), window=(2, 2), backend="fused")

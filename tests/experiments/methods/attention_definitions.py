"""What the methods are that compute another attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attentiondrop.experiments.methods.parse import read_method

from .conftest import vit

LOGITS = torch.randn(2, 4, 10, 10, generator=torch.Generator().manual_seed(5)) * 3


def weighed(text: str, **learned: torch.Tensor) -> np.ndarray:
    return read_method(text).comparators[0].weigh(LOGITS, learned, prefix=1).double().numpy()


def talkingheads(made) -> None:
    from timm.models.cait import TalkingHeadAttn

    found = made("talkingheads(mix=0.1)").model.eval().blocks[0].attn
    # Both matrices begin with 1 on the diagonal and `mix` beside it, and go their own ways.
    assert found.learned["before"].unique().tolist() == pytest.approx([0.1, 1.0])
    assert found.learned["before"].diagonal().tolist() == [1.0] * 4
    assert torch.equal(found.learned["after"], found.learned["before"])
    assert found.learned["after"].data_ptr() != found.learned["before"].data_ptr()
    theirs = TalkingHeadAttn(16, num_heads=4, qkv_bias=True).eval()
    with torch.no_grad():
        for name in ("before", "after"):
            found.learned[name].copy_(torch.randn(4, 4))
        state = {key: value for key, value in found.state_dict().items() if not key.startswith("learned")}
        mixing = {"proj_l.weight": found.learned["before"], "proj_w.weight": found.learned["after"]}
        theirs.load_state_dict(state | mixing | {"proj_l.bias": torch.zeros(4), "proj_w.bias": torch.zeros(4)})
    x = torch.randn(3, 10, 16)
    torch.testing.assert_close(found(x), theirs(x), rtol=1e-5, atol=1e-6)


def topk(made) -> None:
    logits = LOGITS.double().numpy()
    kept = np.argsort(np.argsort(-logits, -1), -1) < 3
    expected = np.where(kept, np.exp(logits), 0)
    np.testing.assert_allclose(weighed("topk(k=3)"), expected / expected.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)


def sinkhorn(made) -> None:
    expected = np.exp(LOGITS.double().numpy())
    for axis in (-1, -2, -1):
        expected /= expected.sum(axis, keepdims=True)
    np.testing.assert_allclose(weighed("sinkhorn(iterations=3)"), expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(weighed("sinkhorn(iterations=101)").sum(-2), 1, atol=1e-3)


def adaptivespan(made) -> None:
    spans = torch.tensor([0.0, 0.1, 0.3, 1.0])
    found = weighed("adaptivespan(ramp=2.0)", span=spans)
    expected = np.exp(LOGITS.double().numpy())
    for head, span in enumerate(spans.tolist()):
        for i in range(10):
            for j in range(10):
                apart = abs(i - j) if i and j else 0
                expected[:, head, i, j] *= min(max((2.0 + 10 * span - apart) / 2.0, 0), 1)
    np.testing.assert_allclose(found, expected / expected.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    model = made("adaptivespan(ramp=2.0,penalty=0.5)")
    free = made("adaptivespan(ramp=2.0,penalty=0.0)")
    for one in (model, free):
        for block in one.model.blocks:
            block.attn.learned["span"].data.fill_(0.25)
    assert model.loss().item() == pytest.approx(free.loss().item() + 0.5 * 2 * (0.25 * 10), rel=1e-5)
    model.model.blocks[0].attn.learned["span"].data.copy_(torch.tensor([-1.0, 0.5, 2.0, 1.0]))
    model.applied.end_step()
    assert model.model.blocks[0].attn.learned["span"].tolist() == [0.0, 0.5, 1.0, 1.0]


def check_mask(made, text: str, sees) -> None:
    """The model attends as plain softmax over what `sees(query, key)` says."""
    model, plain = made(text).model.eval(), vit().eval()
    mask = torch.tensor([[not i or not j or sees(i, j) for j in range(10)] for i in range(10)])
    assert not mask.all()
    x = torch.randn(3, 10, 16)
    torch.testing.assert_close(model.blocks[0].attn(x), plain.blocks[0].attn(x, attn_mask=mask))
    assert not torch.allclose(model.blocks[0].attn(x), plain.blocks[0].attn(x))


def window(made) -> None:
    check_mask(made, "window(radius=2)", lambda i, j: abs(i - j) <= 2)
    assert made("window(radius=2)+hard(p=0.5)").loss().isfinite()  # specs attach to it


def strided(made) -> None:
    check_mask(made, "strided(stride=4)", lambda i, j: abs(i - j) < 4 or abs(i - j) % 4 == 0)
    check_mask(made, "strided", lambda i, j: abs(i - j) < 3 or abs(i - j) % 3 == 0)
    # The root of the number of patches: 8, and not of the 9 tokens.
    default, by_hand = (read_method(f"strided(stride={stride})").comparators[0].visible(9, 1) for stride in (0, 2))
    assert torch.equal(default, by_hand)


def lsh(made) -> None:
    from attentiondrop.experiments.methods.lsh_layers import LSHAttention

    # With one chunk for all tokens, Reformer attends to all tokens but itself, with normalised keys.
    attention = vit().eval().blocks[0].attn
    found = LSHAttention(attention, chunk=12, hashes=1).eval()
    x = torch.randn(3, 10, 16)
    query, _, value = (x @ attention.qkv.weight.T).reshape(3, 10, 3, 4, 4).permute(2, 0, 3, 1, 4)
    key = query / (query.square().mean(-1, keepdim=True) + 1e-6).sqrt() / 2
    logits = (query @ key.mT).masked_fill(torch.eye(10, dtype=torch.bool), -1e5)
    expected = attention.proj((logits.softmax(-1) @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found(x), expected, rtol=1e-4, atol=1e-5)
    # With small chunks it is another attention, always the same in evaluation, and draws in training.
    small = LSHAttention(attention, chunk=2, hashes=2)
    first, state = small.eval()(x), torch.manual_seed(7).get_state()
    assert torch.equal(small(x), first) and torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(small(x), found(x))
    assert not torch.equal(small.train()(x), small(x))
    for block in made("lsh(chunk=2,hashes=3)").model.blocks:
        assert (block.attn.chunk, block.attn.lsh.chunk_length, block.attn.lsh.num_hashes) == (2, 2, 3)


ATTENTIONS = {
    "talkingheads": talkingheads,
    "topk": topk,
    "sinkhorn": sinkhorn,
    "adaptivespan": adaptivespan,
    "window": window,
    "strided": strided,
    "lsh": lsh,
}

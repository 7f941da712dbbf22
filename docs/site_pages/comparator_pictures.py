"""Pictures of comparators: what each of them acts on, before and after. The change is made by its own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from .drawing import Picture

Drawn = Callable[[Any], Picture]
PICTURES: dict[str, Drawn] = {}
_PASSES = ("pass 1", "pass 2")


def draws(name: str) -> Callable[[Drawn], Drawn]:
    """Register the picture of a comparator."""

    def added(function: Drawn) -> Drawn:
        PICTURES[name] = function
        return function

    return added


def _hidden(rows: int = 12, columns: int = 16) -> Tensor:
    return torch.randn(rows, columns).clamp(-2, 2)


def _digits(count: int) -> Tensor:
    """Images [count, 1, 8, 8] in [0, 1]."""
    return torch.tensor(load_digits().images[:count], dtype=torch.float32)[:, None] / 16


@draws("dropout")
def _dropout(part: Any) -> Picture:
    x = _hidden()
    return Picture(x, nn.Dropout(part.p).train()(x), "Hidden states: tokens down, features across.")


@draws("droppath")
def _droppath(part: Any) -> Picture:
    from timm.layers import drop_path

    x = _hidden()[:, None]
    about = "What the last block adds to the hidden states: samples down, features across."
    return Picture(x[:, 0], drop_path(x, part.p, training=True)[:, 0], about)


@draws("branchdrop")
def _branchdrop(part: Any) -> Picture:
    from attentiondrop.experiments.methods.comparators.branch_drop import CutBranch

    x, cut = _hidden(8), CutBranch(part.p)
    after = torch.stack([cut(nn.Identity().train(), (), row) for row in x])
    return Picture(x, after, "What each sublayer adds to a token: sublayers down, features across.")


@draws("layerdrop")
def _layerdrop(part: Any) -> Picture:
    from attentiondrop.experiments.methods.comparators.layer_drop import SkipBlock

    x, skip = _hidden(8), SkipBlock(part.p)
    after = torch.stack([skip(nn.Identity().train(), (torch.zeros_like(row),), row) for row in x])
    return Picture(x, after, "What each block changes in a token: blocks down, features across.")


@draws("dropdim")
def _dropdim(part: Any) -> Picture:
    from attentiondrop.experiments.methods.comparators.drop_dim import DropDimensions

    x = _hidden()[None]
    kept = DropDimensions(part.p, part.kind).kept(x)
    return Picture(x[0], (x * kept)[0], "The input of an attention: tokens down, dimensions across.")


@draws("patchdropout")
def _patchdropout(part: Any) -> Picture:
    from timm.layers import PatchDropout

    image = _digits(1)[0, 0]
    # Tokens 1 to 16 are patches of 2 x 2 pixels; their number is their only feature.
    kept = PatchDropout(part.p, num_prefix_tokens=1).train()(torch.arange(17.0)[None, :, None])[0, 1:, 0].long() - 1
    mask = torch.zeros(16).index_fill(0, kept, 1.0).reshape(4, 4).repeat_interleave(2, 0).repeat_interleave(2, 1)
    return Picture(image, image * mask, "An image of 16 patches: those that the model sees.")


@draws("dropconnect")
def _dropconnect(part: Any) -> Picture:
    from attentiondrop.experiments.methods.dropconnect_layers import drop_connections

    layer = nn.Sequential(nn.Linear(16, 12, bias=False)).train()
    before = layer[0].weight.detach().clone()
    drop_connections(layer, part.p)
    return Picture(before, layer(torch.eye(16)).detach().T, "Weights of a linear layer: outputs down, inputs across.")


@draws("headpruning")
def _headpruning(part: Any) -> Picture:
    importance = torch.rand(12) + 0.05
    cut = importance.argsort()[: round(part.share * 12)]
    return Picture(
        importance, importance.index_fill(0, cut, 0.0), "Importance of 12 heads (an example): the lowest are cut."
    )


@draws("mixup")
@draws("cutmix")
def _mixed(part: Any) -> Picture:
    from torchvision.transforms import v2

    images, targets = _digits(2), F.one_hot(torch.tensor([0, 1]), 10).float()
    mix = {"mixup": v2.MixUp, "cutmix": v2.CutMix}[part.name]
    for seed in range(100):
        torch.manual_seed(seed)
        after, soft = mix(alpha=part.alpha)(images, targets)
        if 0.3 < float(soft[0].max()) < 0.7:  # a share that shows well
            break
    about = (
        f"An image of a 0 in a batch with a 1. Its target is then {soft[0, 0]:.2f} of a 0 and {soft[0, 1]:.2f} of a 1."
    )
    return Picture(images[0, 0], after[0, 0], about)


@draws("manifoldmixup")
def _manifoldmixup(part: Any) -> Picture:
    from attentiondrop.experiments.methods.comparators.manifold_mixup import MixHidden

    x = torch.stack([_hidden(), _hidden()])
    (after,) = MixHidden(torch.tensor([0.6]), 0)(nn.Identity().train(), (x,)) or (x,)
    return Picture(
        x[0], after[0], "Hidden states: 0.6 of this sample and 0.4 of another one. Tokens down, features across."
    )


@draws("labelsmoothing")
def _labelsmoothing(part: Any) -> Picture:
    target = F.one_hot(torch.tensor(3), 10).float()
    smooth = target * (1 - part.label_smoothing) + part.label_smoothing / 10
    return Picture(target, smooth, "The target of an image of a 3, for each of 10 classes.")


@draws("r-drop")
def _rdrop(part: Any) -> Picture:
    layer, x = nn.Linear(32, 6), torch.randn(32)
    first, second = (layer(F.dropout(x, part.p)).softmax(-1).detach() for _ in range(2))
    pull = "The loss pulls them together." if part.weight else "With weight 0, nothing pulls them together."
    return Picture(first, second, f"Predictions of two passes with dropout, by class. {pull}", _PASSES)


@draws("emateacher")
def _emateacher(part: Any) -> Picture:
    logits = torch.randn(6)
    teacher = (logits + 0.7 * torch.randn(6)).softmax(-1)
    about = "Two predictions (an example), by class. The loss pulls the model towards its moving average."
    return Picture(logits.softmax(-1), teacher, about, ("model", "teacher"))


@draws("confidencepenalty")
def _confidencepenalty(part: Any) -> Picture:
    logits = torch.tensor([0.3, 3.0, 0.8, -0.5, 0.1, 0.4])
    after = _descended(logits, lambda x: part.weight * (x.log_softmax(-1).exp() * x.log_softmax(-1)).sum(-1))
    return Picture(logits.softmax(-1), after.softmax(-1), "A prediction, and after descent along the penalty alone.")


@draws("attentionentropy")
def _attentionentropy(part: Any) -> Picture:
    from attentiondrop.experiments.methods.attention_maps import entropy

    logits = 1.5 * torch.randn(16)
    after = _descended(logits, lambda x: -part.weight * entropy(x.softmax(-1)).mean())
    return Picture(
        logits.softmax(-1), after.softmax(-1), "A row of attention, and after descent along the penalty alone."
    )


@draws("eadra")
def _eadra(part: Any) -> Picture:
    from attentiondrop.experiments.methods.attention_maps import distances, entropy
    from attentiondrop.experiments.methods.comparators.eadra import EntropyAndDistance

    logits = torch.randn(1, 1, 16, 16)
    measure = EntropyAndDistance(part.entropy, part.distance, prefix=0)
    before, after = (x.softmax(-1)[0, 0] for x in (logits, _descended(logits, lambda x: measure(x.softmax(-1)), 4.0)))
    apart = distances(16, 0, torch.device("cpu"))
    near, spread = (
        [float(f(x)) for x in (before, after)]
        for f in (lambda x: (x * apart).sum(-1).mean(), lambda x: entropy(x).mean())
    )
    about = (
        "A map of attention, and after descent along the penalty alone: "
        f"mean distance {near[0]:.1f}, then {near[1]:.1f}; entropy {spread[0]:.1f}, then {spread[1]:.1f}."
    )
    return Picture(before, after, about)


@draws("lsh")
def _lsh(part: Any) -> Picture:
    """The output is linear in the values, so values that are the identity matrix give the weights."""
    from types import SimpleNamespace

    from attentiondrop.experiments.methods.lsh_layers import LSHAttention

    tokens, features = 16, 8
    width = tokens + features
    query, value = torch.zeros(width, width), torch.zeros(width, width)
    query[:features, :features] = torch.eye(features)
    value[:tokens, features:] = torch.eye(tokens)
    weight = torch.cat([query, torch.zeros_like(query), value])
    plain = SimpleNamespace(
        qkv=SimpleNamespace(weight=weight), head_dim=width, num_heads=1, proj=nn.Identity(), proj_drop=nn.Identity()
    )
    x = torch.cat([2 * torch.randn(tokens, features), torch.eye(tokens)], dim=1)[None]
    with torch.no_grad():
        after = LSHAttention(plain, part.chunk, part.hashes).eval()(x)[0, :, :tokens]
    before = (x[0, :, :features] @ x[0, :, :features].T * width**-0.5).softmax(-1)
    return Picture(
        before,
        after,
        "Attention of one head whose queries are its keys; a token hardly sees itself.",
        ("softmax", "lsh"),
    )


def _descended(x: Tensor, penalty: Callable[[Tensor], Tensor], far: float = 1.5) -> Tensor:
    """`x` after gradient descent along the penalty, until some entry has moved that far."""
    start, x = x, x.clone().requires_grad_()
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(penalty(x), x)
        x = (x - 0.05 * gradient / gradient.abs().max().clamp_min(1e-12)).detach().requires_grad_()
        if float((x.detach() - start).abs().max()) > far:
            break
    return x.detach()

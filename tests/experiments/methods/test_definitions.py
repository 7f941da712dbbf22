"""What each comparator computes, against an independent statement of its definition.

Random ones are checked by what they draw, and by the mean over many draws: intervals are five standard errors wide, a
false alarm in two million.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attentiondrop.experiments.methods import COMPARATORS
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.interface import Batch

from .attention_definitions import ATTENTIONS
from .conftest import TASK, batch, vit
from .control_definitions import CONTROLS
from .tail_definitions import TAILS

DRAWS = 4000


def check_mean(samples: torch.Tensor, expected: torch.Tensor | float) -> None:
    """The mean of independent samples (first dimension) is `expected`."""
    error = samples.double().std(0) / math.sqrt(len(samples))
    apart = (samples.double().mean(0) - torch.as_tensor(expected).double()).abs()
    assert (apart <= 5 * error + 1e-6).all()


def hooked(made, text: str, pick) -> nn.Module:
    """A module of a model with the method, in training."""
    return pick(made(text).model.train())


def with_output(module: nn.Module, output: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
    """What the forward hooks of a module make of an output."""
    for hook in module._forward_hooks.values():
        output = hook(module, args, output)
    return output


def with_input(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for hook in module._forward_pre_hooks.values():
        changed = hook(module, (x,))
        x = x if changed is None else changed[0]
    return x


def layerdrop(made) -> None:
    block = hooked(made, "layerdrop(p=0.3)", lambda model: model.blocks[1])
    x, y = torch.full((2, 3, 4), 2.0), torch.ones(2, 3, 4)
    found = torch.stack([with_output(block, y, x) for _ in range(DRAWS)])
    assert ((found == 2).flatten(1).all(1) | (found == 1).flatten(1).all(1)).all()  # one choice for the whole batch
    check_mean(found[:, 0, 0, 0], 2.0 - 0.7)


def branchdrop(made) -> None:
    model = made("branchdrop(p=0.25)").model.train()
    y = torch.rand(2, 3, 4)
    for branch in (model.blocks[0].attn, model.blocks[1].mlp):
        found = torch.stack([with_output(branch, y, y) for _ in range(DRAWS)])
        kept = (found != 0).flatten(1)
        assert (kept.all(1) | ~kept.any(1)).all()
        torch.testing.assert_close(found[kept.all(1)][0], y / 0.75)
        check_mean(found, y)


def dropdim(made) -> None:
    x = torch.rand(3, 5, 16) + 1
    for kind in ("random", "span"):
        attention = hooked(made, f"dropdim(p=0.25,kind={kind})", lambda model: model.blocks[0].attn)
        found = torch.stack([with_input(attention, x) for _ in range(DRAWS)])
        gone = found == 0
        assert (gone == gone[:, :, :1]).all()  # the same dimensions in all tokens of a sample
        assert not (gone[:, 0] == gone[:, 1]).all()
        check_mean(found, x)
        if kind == "span":
            assert (gone[:, :, 0].sum(-1) == 4).all()
            around = gone[:, :, 0]
            assert ((around & ~around.roll(1, -1)).sum(-1) == 1).all()  # one span, which may go on at the other end


def patchdropout(made) -> None:
    found = made("patchdropout(p=0.5)")
    layer = found.model.train().patch_drop
    x = torch.arange(10.0).expand(6, 10)[..., None] * torch.ones(3)
    kept = torch.stack([layer(x)[..., 0] for _ in range(DRAWS)])
    assert kept.shape[-1] == 1 + 4 and (kept[..., 0] == 0).all()  # the class token, and floor(9 / 2) patches
    assert all(len(set(row.tolist())) == 5 for row in kept[0])
    check_mean((kept[:, 0, 1:] == 3.0).any(-1), 4 / 9)


def dropout(made) -> None:
    assert read_method("dropout(p=0.3)").model_rates() == {"dropout": 0.3}
    layers = [module.p for module in made("dropout(p=0.3)").model.modules() if isinstance(module, nn.Dropout)]
    assert layers.count(0.3) == 6 and set(layers) == {0.3, 0.0}  # MLP and projection of two blocks, not the weights


def droppath(made) -> None:
    assert read_method("droppath(p=0.3)").model_rates() == {"drop_path": 0.3}
    first, last = made("droppath(p=0.3)").model.blocks
    assert isinstance(first.drop_path1, nn.Identity) and last.drop_path1.drop_prob == pytest.approx(0.3)


def dropconnect(made) -> None:
    layer = hooked(made, "dropconnect(p=0.25)", lambda model: model.head)
    found = torch.stack([layer(torch.eye(16)) - layer.bias for _ in range(DRAWS)])
    check_mean(found, layer.weight.detach().T)


def mixup(made) -> None:
    images, labels = batch()
    mixed, soft = made("mixup(alpha=1.0)").applied.batch(batch())
    share = soft[0, labels[0]].item()  # the first label is 0, its partner's 2
    assert 0 < share < 1
    torch.testing.assert_close(mixed, share * images + (1 - share) * images.roll(1, 0))
    one_hot = F.one_hot(labels, 5).float()
    torch.testing.assert_close(soft, share * one_hot + (1 - share) * one_hot.roll(1, 0))
    never = made("mixup(p=0.0)").applied.batch(batch())
    assert torch.equal(never.inputs, images) and torch.equal(never.targets, one_hot)


def cutmix(made) -> None:
    images, labels = batch()
    torch.manual_seed(1)
    mixed, soft = made("cutmix(alpha=1.0)").applied.batch(batch())
    foreign = mixed == images.roll(1, 0)
    assert (foreign | (mixed == images)).all()
    rows, columns = torch.where(foreign[0, 0])
    box = foreign[0, 0, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert box.all() and foreign[0, 0].sum() == box.numel()
    assert soft[0, labels[0]].item() == pytest.approx(1 - box.numel() / 36)


def manifoldmixup(made) -> None:
    found = made("manifoldmixup(alpha=2.0)")
    acting = found.applied.acting["manifoldmixup"]
    x, places = torch.rand(6, 4, 16), [found.model, *found.model.blocks]
    chosen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        images, soft = found.applied.batch(batch(6))
        assert torch.equal(images, batch(6).inputs)
        one_hot = F.one_hot(batch(6).targets, 5).float()
        (place,) = torch.where(acting.shares != 1)[0].tolist()
        chosen.add(place)
        share = acting.shares[place].item()
        for index, module in enumerate(places):
            expected = share * x + (1 - share) * x.roll(1, 0) if index == place else x
            torch.testing.assert_close(with_input(module.train(), x), expected)
        torch.testing.assert_close(acting.targets(soft), share * one_hot + (1 - share) * one_hot.roll(1, 0))
        if place == 0:  # then it is mixup
            loss = found.applied.objective(TASK, 0.0, "batch")(found.model, Batch(images, soft))
            output = vit().train()(share * images + (1 - share) * images.roll(1, 0))
            labels = batch(6).targets
            mixed = share * F.cross_entropy(output, labels) + (1 - share) * F.cross_entropy(output, labels.roll(1))
            torch.testing.assert_close(loss, mixed)
    assert chosen == {0, 1, 2}


def labelsmoothing(made) -> None:
    logits, labels = torch.randn(8, 5), batch().targets
    total, count = TASK.loss(logits, labels, 0.2)
    target = 0.8 * np.eye(5)[labels] + 0.2 / 5
    expected = -(target * F.log_softmax(logits, -1).numpy()).sum()
    assert total.item() / count == pytest.approx(expected / 8, rel=1e-5)
    assert read_method("labelsmoothing(epsilon=0.2)").label_smoothing == 0.2


def confidencepenalty(made) -> None:
    plain, found = made("none"), made("confidencepenalty(weight=0.5)")
    with torch.no_grad():
        probability = plain.model.train()(batch().inputs).softmax(-1).numpy()
    entropy = -(probability * np.log(probability)).sum(-1).mean()
    assert found.loss().item() == pytest.approx(plain.loss().item() - 0.5 * entropy, rel=1e-5)


def maps(model: nn.Module) -> list[np.ndarray]:
    """The attention of every block [batch, heads, queries, keys], computed by hand."""
    found = []

    def look(module, args, output) -> None:
        x = args[0]
        qkv = (x @ module.qkv.weight.T + module.qkv.bias).reshape(*x.shape[:2], 3, 4, 4)
        query, key = qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
        found.append((query @ key.mT / 2).softmax(-1).detach().double().numpy())

    handles = [block.attn.register_forward_hook(look) for block in model.blocks]
    model.train()(batch().inputs)
    for handle in handles:
        handle.remove()
    return found


def attentionentropy(made) -> None:
    plain, found = made("none"), made("attentionentropy(weight=0.3)")
    rows = [attention.mean(1) for attention in maps(plain.model)]
    entropy = sum(-(row * np.log(row)).sum(-1).mean() for row in rows)
    assert found.loss().item() == pytest.approx(plain.loss().item() - 0.3 * entropy, rel=1e-5)
    found.loss(batch(3))
    assert found.loss().item() == pytest.approx(plain.loss().item() - 0.3 * entropy, rel=1e-5)  # nothing is left over


def eadra(made) -> None:
    plain, found = made("none"), made("eadra(entropy=0.3,distance=0.2)")
    apart = np.array([[abs(i - j) if i and j else 0 for j in range(10)] for i in range(10)])
    expected = plain.loss().item()
    for attention in maps(plain.model):
        expected += 0.3 * -(attention * np.log(attention)).sum(-1).mean() + 0.2 * (attention * apart).sum(-1).mean()
    assert found.loss().item() == pytest.approx(expected, rel=1e-5)


def r_drop(made) -> None:
    method = read_method("r-drop(weight=2.0,p=0.3)")
    assert method.model_rates() == {"dropout": 0.3} and str(method.consistency).startswith("consistency(weight=2.0")


def hiddenkey(made) -> None:
    method = read_method("hiddenkey(key=0.3,p=0.2,weight=0.5)")
    assert str(method.attached) == "dropkey(p=0.3,by=column)" and method.model_rates() == {"dropout": 0.2}
    assert method.consistency == read_method("r-drop(weight=0.5)").consistency
    same = made("r-drop(weight=0.5,p=0.2)+dropkey(p=0.3,by=column)")
    assert made("hiddenkey(key=0.3,p=0.2,weight=0.5)").loss().item() == same.loss().item()


def emateacher(made) -> None:
    found = made("emateacher(weight=2.0,decay=0.75)")
    acting = found.applied.acting["emateacher"]
    mean = {name: value.clone() for name, value in found.model.state_dict().items()}
    for step in range(1, 6):
        with torch.no_grad():
            for parameter in found.model.parameters():
                parameter += torch.randn_like(parameter)
        acting.end_step()
        keep = min(0.75, 1 - 1 / (step + 1))
        mean = {name: keep * value + (1 - keep) * found.model.state_dict()[name] for name, value in mean.items()}
    teacher = vit()
    teacher.load_state_dict(mean)
    for name, value in acting.teacher.state_dict().items():
        torch.testing.assert_close(value, mean[name], rtol=1e-4, atol=1e-5)
    images, labels = batch()
    student = found.model(images).detach()
    wanted = F.softmax(teacher.eval()(images), -1).detach().double().numpy()
    divergence = (wanted * (np.log(wanted) - F.log_softmax(student, -1).double().numpy())).sum(-1).mean()
    plain = F.cross_entropy(student, labels).item()
    assert found.loss().item() == pytest.approx(plain + 2.0 * divergence, rel=1e-3)  # its weight has risen at 0.5
    found.applied.begin_step(0.0)
    assert acting._now.item() == pytest.approx(2.0 * math.exp(-5))


def headpruning(made) -> None:
    found = made("headpruning(share=0.25)")
    acting = found.applied.acting["headpruning"]
    found.model.train()
    loss = F.cross_entropy(found.model(batch().inputs), batch().targets)
    loss.backward()
    # By definition: the derivative of the loss of each sample by a factor on the output of a head.
    model, layers = vit().train(), []
    for block in model.blocks:
        factors = torch.ones(8, 1, 4, 1, requires_grad=True)
        layers.append(factors)
        block.attn.norm.register_forward_hook(lambda m, a, y, f=factors: (y.unflatten(-1, (4, 4)) * f).flatten(-2))
    F.cross_entropy(model(batch().inputs), batch().targets).backward()
    expected = [factors.grad[:, 0, :, 0].abs().sum(0) for factors in layers]
    for own, independent in zip(acting.importance, expected, strict=True):
        torch.testing.assert_close(own, independent, rtol=1e-4, atol=1e-7)
    with torch.no_grad():
        whole = found.model.eval()(batch().inputs)
    acting.prune()
    relative = np.concatenate([(layer / layer.norm()).numpy() for layer in expected])
    cut = sorted(np.argsort(relative)[:2].tolist())
    zero = torch.cat(
        [block.attn.proj.weight.unflatten(-1, (4, 4)).abs().sum((0, 2)) == 0 for block in found.model.blocks]
    )
    assert torch.where(zero)[0].tolist() == cut
    assert not torch.equal(found.evaluated(), whole)
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter += 0.1
    acting.end_step()
    zero = torch.cat(
        [block.attn.proj.weight.unflatten(-1, (4, 4)).abs().sum((0, 2)) == 0 for block in found.model.blocks]
    )
    assert torch.where(zero)[0].tolist() == cut

    acting.importance[0].copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]) * 100)
    acting.importance[1].copy_(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    acting.prune()
    assert torch.cat(acting.kept).tolist() == [0, 1, 1, 1, 1, 1, 1, 0]  # the lowest within each layer


DEFINITIONS = {
    name: check
    for name, check in globals().items()
    if callable(check)
    and getattr(check, "__module__", "") == __name__
    and name.replace("r_drop", "r-drop") in COMPARATORS
}
DEFINITIONS["r-drop"] = DEFINITIONS.pop("r_drop")
DEFINITIONS |= TAILS | CONTROLS | ATTENTIONS


@pytest.mark.parametrize("name", COMPARATORS)
def test_it_computes_what_its_definition_says(made, name: str) -> None:
    torch.manual_seed(11)
    DEFINITIONS[name](made)

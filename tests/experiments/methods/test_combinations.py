"""Comparators beside others and at their limits: masks, specs, views, averages, few epochs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attentiondrop import AttentionDropError
from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods import Pass
from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.call.leaves import active_leaves
from attentiondrop.torch.fused.blur_arguments import suits_operators

from .conftest import TASK, batch, vit


def test_a_mask_beside_that_of_the_model_is_refused(made) -> None:
    for name in ("topk", "window", "lsh"):
        with pytest.raises(AttentionDropError, match="expected attention without a mask"):
            made(name).model.blocks[0].attn(torch.zeros(1, 10, 16), is_causal=True)


def test_a_spec_cannot_attach_to_another_softmax(made) -> None:
    with pytest.raises(AttentionDropError, match="computes its softmax itself"):
        made("topk+hard")


def test_pruning_needs_an_epoch_before_and_one_after(made) -> None:
    from attentiondrop.experiments.methods.comparators.head_pruning import first_pruned_epoch

    assert [first_pruned_epoch(0.5, epochs) for epochs in (2, 3, 10)] == [1, 2, 5]
    assert first_pruned_epoch(0.0, 4) == 1 and first_pruned_epoch(1.0, 4) == 3
    with pytest.raises(AttentionDropError, match=r"training\.epochs: expected at least 2 for headpruning"):
        made("headpruning").applied.begin_epoch(0, 1)


def test_an_average_of_weights_would_bring_pruned_heads_back() -> None:
    with pytest.raises(AttentionDropError, match=r"training\.ema: expected null with headpruning"):
        read_method("headpruning").training(TrainingSettings(ema=0.9))
    with pytest.raises(AttentionDropError, match=r"training\.average_last: expected at most 5 with headpruning"):
        read_method("headpruning(at=0.5)").training(TrainingSettings(epochs=10, average_last=6))
    read_method("headpruning(at=0.5)").training(TrainingSettings(epochs=10, average_last=5))
    # Another part may change the number of epochs.
    with pytest.raises(AttentionDropError, match=r"training\.average_last: expected at most 3 with headpruning"):
        read_method("headpruning(at=0.5)+shorter").training(TrainingSettings(epochs=10, average_last=5))
    read_method("headpruning(at=0.5)+longer").training(TrainingSettings(epochs=10, average_last=10))


def test_a_label_smoothing_of_zero_replaces_that_of_the_recipe() -> None:
    assert read_method("labelsmoothing(epsilon=0.0)").label_smoothing == 0.0
    assert read_method("dropout").label_smoothing is None


def test_a_consistency_of_weight_zero_only_averages_two_passes(made) -> None:
    found = made("dropout(p=0.3)+consistency(weight=0.0,task=mean)")
    torch.manual_seed(3)
    with torch.no_grad():
        twice = found.model.train()(torch.cat([batch().inputs] * 2))
    losses = [F.cross_entropy(half, batch().targets).item() for half in twice.chunk(2)]
    assert losses[0] != losses[1]
    assert found.loss().item() == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_losses_count_only_the_positions_that_the_task_counts() -> None:
    logits, mask = torch.randn(2, 3, 5), torch.tensor([[True, True, False], [True, False, False]])
    values = torch.randn(2, 3)
    assert Pass(None, None, logits, mask, torch.Tensor.float).mean(values).item() == pytest.approx(
        values[mask].mean().item(), rel=1e-6
    )
    assert Pass(None, None, logits, None, torch.Tensor.float).mean(values).item() == pytest.approx(
        values.mean().item(), rel=1e-6
    )


def test_pairs_are_the_same_in_every_view_and_part(made) -> None:
    """Hidden states and targets are mixed with those of the same sample, however views and parts are laid out."""
    found = made("manifoldmixup(alpha=2.0)+dropout(p=0.0001)+consistency(weight=0.0)")
    losses = [found.loss(mode=mode).item() for mode in ("batch", "sequential")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_heads_are_pruned_once_and_not_before_their_epoch(made) -> None:
    applied = made("headpruning(share=0.25,at=0.5)").applied
    acting = applied.acting["headpruning"]

    def kept(epoch: int, *importance: float) -> list[float]:
        for layer in acting.importance:
            layer.copy_(torch.tensor(importance))
        applied.begin_epoch(epoch, 4)
        return torch.cat(acting.kept).tolist()

    assert kept(0, 1, 2, 3, 4) == kept(1, 1, 2, 3, 4) == [1.0] * 8
    assert kept(2, 1, 2, 3, 4) == kept(3, 4, 3, 2, 1) == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_gradient_that_overflows_says_nothing_about_heads(made) -> None:
    """With float16 it happens now and then. One infinity would be the importance of a head for good."""
    found = made("headpruning")
    (first, *_), projection = found.applied.acting["headpruning"].importance, found.model.blocks[0].attn.proj
    for overflows in (False, True):
        before, x = first.clone(), torch.randn(2, 5, 16, requires_grad=True)
        loss = projection.train()(x).square().sum()
        (loss * torch.inf if overflows else loss).backward()
        assert torch.equal(first, before) is overflows and first.isfinite().all()


def test_all_processes_prune_the_heads_that_matter_least_to_all_of_them(made, monkeypatch: pytest.MonkeyPatch) -> None:
    acting = made("headpruning(share=0.25)").applied.acting["headpruning"]
    for layer in acting.importance:
        layer.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    # The other process has found the opposite, and has seen more.
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda mine: mine.add_(torch.tensor([8.0, 6.0, 4.0, 2.0])))
    acting.prune()
    assert torch.cat(acting.kept).tolist() == [1, 1, 1, 0, 1, 1, 1, 0]


def test_losses_on_predictions_are_those_of_each_position() -> None:
    student, mask = nn.Linear(4, 5), torch.tensor([[True, True, False], [True, False, False]])
    inputs = torch.randn(2, 3, 4)
    made = Pass(inputs, None, student(inputs), mask, torch.Tensor.float)
    own = student(inputs)[mask].log_softmax(-1)
    confident = read_method("confidencepenalty(weight=2.0)").comparators[0].act(student)
    entropy = -(own.exp() * own).sum(-1).mean()
    torch.testing.assert_close(confident.task_loss(torch.tensor(1.0), made), 1 - 2 * entropy)
    teacher = read_method("emateacher(weight=2.0)").comparators[0].act(student)
    teacher.begin_step(1.0)
    with torch.no_grad():
        teacher.teacher.weight.add_(torch.randn(5, 4))
    wanted = teacher.teacher(inputs)[mask].log_softmax(-1)
    apart = F.kl_div(own, wanted, reduction="batchmean", log_target=True)
    torch.testing.assert_close(teacher.task_loss(torch.tensor(1.0), made), 1 + 2 * apart)


@pytest.mark.parametrize("name", ["attentionentropy", "eadra"])
def test_passes_without_a_loss_add_nothing_to_the_next_loss(made, name: str) -> None:
    found, images = made(name), batch(5).inputs
    expected = found.loss().item()
    with torch.no_grad():
        found.model.train()(images)  # a measurement during training
    found.model.eval()(images.requires_grad_())  # an attack
    assert found.loss().item() == expected


@pytest.mark.parametrize("name", ["attentionentropy", "eadra"])
@pytest.mark.parametrize("spec", ["hard(p=0.0)", "dropkey(p=0.3)"])
def test_attention_with_a_spec_is_penalised_as_it_was_before(made, name: str, spec: str) -> None:
    texts = (f"{name}+{spec}", name, spec, "none")
    # With one block, what the spec changes comes after all that is measured.
    both, penalised, perturbed, plain = (made(text, vit(depth=1)).loss().item() for text in texts)
    assert both - perturbed == pytest.approx(penalised - plain, rel=1e-4)


@pytest.mark.parametrize("name", ["attentionentropy", "eadra"])
def test_attention_to_a_single_key_has_gradients(made, name: str) -> None:
    """The softmax of far apart logits has weights of exactly 0."""
    found = made(name)
    for block in found.model.blocks:
        block.attn.qkv.weight.data *= 1000
    found.loss().backward()
    assert all(parameter.grad.isfinite().all() for parameter in found.model.parameters())


@pytest.mark.parametrize(
    "text",
    ["hard(p=0.4)", "blur(sigma_max=2.0)+dropkey(p=0.3)", "oneof(hard(p=0.4),noise(sigma=0.5),weights=[0.5,0.5])"],
)
def test_rates_in_tensors_for_a_compiler_change_nothing(text: str) -> None:
    losses = []
    for compiled in (False, True):
        model = vit().train()
        applied = Applied(read_method(text), model, compiled, compiled_loss=False)
        torch.manual_seed(3)
        losses.append(applied.objective(TASK, 0.0, "batch")(model, batch()).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    plain = F.cross_entropy(vit().train()(batch().inputs), batch().targets).item()
    assert losses[0] != pytest.approx(plain, rel=1e-4)


def test_views_of_a_compiled_blur_share_one_call_with_code_for_short_rows() -> None:
    """A least sigma that is a tensor would leave the views to slower code."""
    model = vit().train()
    Applied(read_method("blur(sigma_max=2.0)+consistency(weight=1.0)"), model, compiled=True)
    sites = [site for module in model.modules() if (site := site_of(module)) is not None]
    assert sites and not any(site.splits_groups for site in sites)
    for site in sites:
        (leaf,) = active_leaves(site.driven, torch.tensor(0), torch.float32, groups=2)
        assert set(leaf.values) == {"sigma_max"} and suits_operators(leaf)

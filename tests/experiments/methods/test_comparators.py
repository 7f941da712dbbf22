"""What holds for every comparator: evaluation, names of parameters, copies, an effect in training, clear errors."""

from __future__ import annotations

import copy
import dataclasses
import re

import pytest
import torch
from torch import nn

from attentiondrop import AttentionDropError
from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods import COMPARATORS
from attentiondrop.experiments.methods.parse import Method, read_method
from attentiondrop.experiments.tasks.interface import Batch

from .conftest import batch, vit

NAMES = list(COMPARATORS)
#: These change nothing in the first step: they only change settings, prune later, or begin as plain attention.
NOT_AT_ONCE = {"none", "longer", "shorter", "headpruning", "talkingheads", "emateacher"}
#: What each is given to have an effect in a model of ten tokens.
SETTINGS = {
    "layerdrop": "layerdrop(p=0.9)",
    "adaptivespan": "adaptivespan(ramp=2.0)",
    "topk": "topk(k=2)",
    "window": "window(radius=1)",
}


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_stays_the_same_bit_for_bit(made, name: str) -> None:
    plain, found = vit(), made(name)
    with torch.no_grad():
        expected = plain.eval()(batch().inputs)
    if COMPARATORS[name].training_only:
        assert list(found.model.state_dict()) == list(plain.state_dict())
        assert torch.equal(found.evaluated(), expected)
        found.loss().backward()
        assert torch.equal(found.evaluated(), expected)
    twin = copy.deepcopy(found.model)
    assert torch.equal(twin.eval()(batch().inputs), found.evaluated())


@pytest.mark.parametrize("name", NAMES)
def test_it_changes_the_training_loss_and_has_gradients_for_all_weights(made, name: str) -> None:
    found = made(SETTINGS.get(name, name))
    loss = found.loss()
    loss.backward()
    assert loss.isfinite()
    untouched = [key for key, value in found.model.named_parameters() if value.grad is None]
    assert not untouched
    if name not in NOT_AT_ONCE:
        plain = made("none")
        assert loss.item() != pytest.approx(plain.loss().item(), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_loss(made, name: str) -> None:
    text = SETTINGS.get(name, name)
    assert made(text).loss().item() == made(text).loss().item()


NEED_A_PLACE = (
    *("branchdrop", "dropdim", "layerdrop", "patchdropout", "headpruning", "mixup", "cutmix", "manifoldmixup"),
    *("attentionentropy", "eadra"),
)


class Unlike(nn.Module):
    """A model that has no blocks, no attention and no classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "name",
    [*NEED_A_PLACE, *(name for name, one in COMPARATORS.items() if one.group == "structure")],
)
def test_a_model_without_its_place_is_refused_by_name(made, name: str) -> None:
    with pytest.raises(AttentionDropError, match=rf"{name}: expected .* received Unlike"):
        made(name, Unlike())


@pytest.mark.parametrize("name", ["mixup", "cutmix", "manifoldmixup"])
def test_a_task_without_images_is_refused(made, name: str) -> None:
    words = Batch({"input_ids": torch.zeros(2, 3)}, torch.zeros(2, 3))
    with pytest.raises(AttentionDropError, match=f"{name}: expected a task with images .* received dict"):
        made(name).applied.batch(words)
    with pytest.raises(AttentionDropError, match=r"received a tensor of shape \[2, 3\]"):
        made(name).applied.batch(Batch(torch.zeros(2, 3), torch.zeros(2)))


@pytest.mark.parametrize("name", NAMES)
def test_what_lists_say_is_there(name: str) -> None:
    one = COMPARATORS[name]
    assert (one.group is None) == (name == "shorter")  # a part of other methods
    assert one.perturbs and one.formula and one.reference
    assert one.__doc__ and one.__doc__.strip().endswith(".")
    for field in dataclasses.fields(one):
        assert read_method(f"{name}({field.name}={getattr(one(), field.name)})").text == read_method(name).text


@pytest.mark.parametrize("name", NAMES)
def test_an_integer_and_the_equal_float_have_one_text(name: str) -> None:
    numbers = [field for field in dataclasses.fields(COMPARATORS[name]) if field.type != "str"]
    assert numbers
    for field in numbers:
        # A rate of 1 is refused by one of them, and advised against by another.
        value = 0 if f"{name}.{field.name}" in ("patchdropout.p", "tailhard.p") else 1
        one, other = (COMPARATORS[name](**{field.name: given}) for given in (value, float(value)))
        assert str(one) == str(other) and one == other
        is_whole = field.type == "int" or (name, field.name) == ("longer", "times")
        stored = [getattr(each, field.name) for each in (one, other)]
        assert [type(number) for number in stored] == [int if is_whole else float] * 2


def test_minus_zero_is_zero() -> None:
    assert str(COMPARATORS["dropout"](p=-0.0)) == "dropout(p=0.0)"


@pytest.mark.parametrize("name", NAMES)
def test_it_names_the_settings_of_training_that_it_replaces(name: str) -> None:
    one = COMPARATORS[name]
    assert set(one().training(TrainingSettings())) == set(one.replaces)
    assert set(one.replaces) <= {field.name for field in dataclasses.fields(TrainingSettings)}


@pytest.mark.parametrize("name", ["layerdrop", "branchdrop", "dropconnect"])
def test_views_do_not_share_a_draw_for_the_whole_batch(made, name: str) -> None:
    found = made(f"{name}(p=0.5)+consistency(weight=1.0)")
    with pytest.raises(AttentionDropError, match=f"{name} draws once for a batch.* received 'batch'"):
        found.loss()
    plain = made(f"{name}(p=0.5)+consistency(weight=0.0)")
    pairs = [[one.loss(seed=seed, mode="sequential").item() for one in (found, plain)] for seed in range(4)]
    assert any(loss > without for loss, without in pairs)


def test_attention_that_is_computed_again_is_not_penalised(made) -> None:
    model = vit()
    model.set_grad_checkpointing()
    with pytest.raises(AttentionDropError, match=r"eadra: expected model\.checkpoint_activations=false"):
        made("eadra", model)


def test_a_state_is_taken_up_where_it_was(made) -> None:
    for name in ("emateacher(decay=0.5)", "headpruning(share=0.5)"):
        first, second = made(name), made(name)
        first.loss().backward()
        with torch.no_grad():
            for parameter in first.model.parameters():
                parameter += 0.1
        first.applied.end_step()
        state = copy.deepcopy(first.applied.state_dict())
        second.applied.load_state_dict(state)
        again = second.applied.state_dict()["comparators"]
        flat, other = (torch.utils._pytree.tree_leaves(one) for one in (state["comparators"], again))
        assert all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(flat, other, strict=True)
        )


def test_a_teacher_is_a_copy_that_nothing_perturbs() -> None:
    """It follows in whatever the model keeps. What was stored of it stays as it was."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5)).train()
    acting = COMPARATORS["emateacher"](decay=0.5).act(model)
    assert not any(module.training for module in acting.teacher.modules())
    before = copy.deepcopy(stored := acting.state_dict())
    model(torch.randn(4, 2))
    with torch.no_grad():
        model[0].weight += 1.0
    acting.end_step()
    assert acting.teacher[1].num_batches_tracked == 1
    assert torch.equal(acting.teacher[0].weight, model[0].weight - 0.5)
    torch.testing.assert_close(stored, before, rtol=0.0, atol=0.0)


def test_heads_are_pruned_once(made) -> None:
    """Later epochs still measure. They must not bring a head back, nor change what was stored before."""
    acting = made("headpruning(share=0.25)").applied.acting["headpruning"]
    for layer in acting.importance:
        layer.copy_(torch.arange(1.0, 5.0))
    before = copy.deepcopy(stored := acting.state_dict())
    acting.begin_epoch(1, 4)
    assert not acting.pruned
    acting.begin_epoch(2, 4)
    for layer in acting.importance:
        layer.copy_(layer.flip(0))
    acting.begin_epoch(3, 4)
    assert [layer.tolist() for layer in acting.kept] == [[0.0, 1.0, 1.0, 1.0]] * 2
    torch.testing.assert_close(stored, before, rtol=0.0, atol=0.0)


def test_spans_begin_where_every_head_looks_nearby() -> None:
    assert torch.equal(COMPARATORS["adaptivespan"]().learned(3)["span"], torch.zeros(3))


@pytest.mark.parametrize("name", ["layerdrop", "branchdrop", "dropconnect", "dropdim", "patchdropout"])
def test_views_that_are_equal_by_chance_are_no_error(made, name: str) -> None:
    assert made(f"{name}(p=1e-08)+consistency").loss(mode="sequential").isfinite()


#: What an error expects -> values at the limits, values beyond them, and the fields that have these limits.
RANGES = {
    "a number in [0, 1]": (
        ("0.0", "1.0"),
        ("-0.01", "1.01"),
        "dropout.p dropdim.p emateacher.decay headpruning.at headpruning.share hiddenkey.key hiddenkey.p "
        "labelsmoothing.epsilon mixup.p cutmix.p r-drop.p",
    ),
    "a number in [0, 1], received 1.01": (("0.01", "1.0"), ("1.01",), "tailhard.share tailblur.share"),
    "a number >= 0": (
        ("0",),
        ("-1",),
        "adaptivespan.penalty confidencepenalty.weight eadra.distance eadra.entropy emateacher.weight hiddenkey.weight "
        "none.decay r-drop.weight strided.stride window.radius",
    ),
    "a number >= 1": (("1",), ("0",), "longer.times lsh.chunk lsh.hashes sinkhorn.iterations topk.k"),
    "a number > 0": (("0.01",), ("0.0",), "adaptivespan.ramp mixup.alpha cutmix.alpha none.lr longer.lr"),
    "a number < 1": (("0.99",), ("1.0",), "patchdropout.p"),
    "a number in [-1, 1]": (("-1", "1"), ("-1.01", "1.01"), "talkingheads.mix"),
    "one of": (("random", "span"), ("all",), "dropdim.kind"),
    "a number,": (("-1.0", "0.0"), ("inf",), "attentionentropy.weight"),
}


@pytest.mark.parametrize(
    ("where", "expected"), [(where, expected) for expected, (*_, each) in RANGES.items() for where in each.split()]
)
def test_a_field_has_limits_and_an_error_names_them(where: str, expected: str) -> None:
    name, field = where.split(".")
    accepted, refused, _ = RANGES[expected]
    for value in accepted:
        assert isinstance(read_method(f"{name}({field}={value})"), Method)
    for value in refused:
        with pytest.raises(AttentionDropError, match=re.escape(f"{field}: expected {expected}")):
            read_method(f"{name}({field}={value})")


@pytest.mark.parametrize(("name", "most"), [("mixup", 0.6), ("cutmix", 0.9), ("manifoldmixup", 0.6)])
def test_a_large_alpha_always_mixes_in_halves(made, name: str, most: float) -> None:
    applied = made(f"{name}(alpha=1000.0)").applied
    for _ in range(40):
        mixed = applied.acting[name].targets(applied.batch(batch()).targets)
        # The first label is 0. A box that reaches beyond the image takes less of it than a half.
        assert 0.4 < mixed[0, 0].item() < most


@pytest.mark.parametrize("name", ["mixup", "cutmix", "manifoldmixup"])
def test_the_share_of_batches_that_are_mixed_is_p(made, name: str) -> None:
    for p, expected in ((0.0, range(1)), (0.5, range(20, 81)), (1.0, range(100, 101))):
        applied, mixed = made(f"{name}(alpha=1000.0,p={p})").applied, 0
        torch.manual_seed(0)
        for _ in range(100):
            targets = applied.acting[name].targets(applied.batch(batch()).targets)
            mixed += bool((targets.amax(-1) < 0.99).any())
        assert mixed in expected

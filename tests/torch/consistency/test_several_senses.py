"""Views of models for images and texts: pairs of samples, and inputs whose first dimension is not the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss, views

transformers = pytest.importorskip("transformers")

BATCH = 3
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = {**SIZES, "vocab_size": 50, "max_position_embeddings": 16}
PICTURES = {**SIZES, "image_size": 8, "patch_size": 4}

pytestmark = pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")


def pairs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"input_ids": torch.randint(3, 49, (BATCH, 6)), "pixel_values": torch.randn(BATCH, 3, 8, 8)}


def siglip() -> nn.Module:
    config = transformers.SiglipConfig(text_config=WORDS, vision_config=PICTURES)
    return transformers.SiglipModel(config).train()


def clip() -> nn.Module:
    config = transformers.CLIPConfig(text_config=WORDS, vision_config=PICTURES, projection_dim=8)
    return transformers.CLIPModel(config).train()


@pytest.mark.parametrize("build", [clip, siglip])
def test_a_view_compares_its_own_images_and_texts(build: Any) -> None:
    """Nothing is left to chance here, so each view must be the plain pass over one batch."""
    model = build()
    attach(model, "hard(p=1.0,k=2)")
    expected = model(**pairs())
    assert expected.logits_per_image.shape == (BATCH, BATCH)
    for output in views(model, pairs(), 3):
        for name in ("logits_per_image", "logits_per_text", "image_embeds", "text_embeds"):
            torch.testing.assert_close(output[name], expected[name], rtol=1e-5, atol=1e-5)


def test_consistency_of_pairs() -> None:
    model = clip()
    attach(model, "dropkey(p=0.4)+consistency(weight=0.5)")
    labels = torch.arange(BATCH)
    result = consistency_loss(
        model,
        pairs(),
        lambda output: nn.functional.cross_entropy(output.logits_per_image, labels),
        logits=lambda output: output.logits_per_image,
    )
    result.loss.backward()
    assert result.divergence > 0 and [len(output.logits_per_image[0]) for output in result.outputs] == [BATCH] * 2
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_a_square_that_is_no_comparison_keeps_its_columns() -> None:
    """As many classes as samples in all views."""
    model = nn.Sequential(nn.TransformerEncoderLayer(16, 2, batch_first=True), nn.Flatten(), nn.Linear(64, 2 * BATCH))
    attach(model, "dropkey(p=0.4)")
    first, second = views(model.train(), torch.randn(BATCH, 4, 16))
    assert first.shape == second.shape == (BATCH, 2 * BATCH)


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_several_texts_for_an_image_are_refused(mode: Any) -> None:
    """OWL-ViT would give the texts of one image to another one, without a word."""
    config = transformers.OwlViTConfig(text_config=WORDS, vision_config=PICTURES, projection_dim=16)
    model = transformers.OwlViTForObjectDetection(config).train()
    attach(model, "hard(p=0.4,k=2)")
    inputs = {"pixel_values": torch.randn(BATCH, 3, 8, 8), "input_ids": torch.randint(3, 49, (2 * BATCH, 6))}
    received = r"received input_ids of shape \[6, 6\], pixel_values of shape \[3, 3, 8, 8\]: use mode=\"sequential\""
    with pytest.raises(ad.AttentionDropError, match=received):
        views(model, inputs, mode=mode)
    assert len(views(model, inputs, mode="sequential")) == 2


def test_an_index_outside_of_the_batch_gets_a_note() -> None:
    """The text model of CLIP picks the last word of each row by an index over the batch of one view."""
    model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**WORDS, projection_dim=8)).train()
    attach(model, "hard(p=0.4,k=2)")
    with pytest.raises(IndexError) as error:
        views(model, {"input_ids": pairs()["input_ids"]}, mode="shared")
    assert 'mode="batch" repeats the inputs themselves' in "".join(error.value.__notes__)


def yolos() -> nn.Module:
    # With the usual, small weights, views differ by less than rounding changes their divergence.
    sizes = {**PICTURES, "image_size": [8, 8], "initializer_range": 0.5}
    config = transformers.YolosConfig(**sizes, num_detection_tokens=4, num_labels=3)
    return transformers.YolosForObjectDetection(config).train()


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_labels_of_detection_are_labels(mode: Any) -> None:
    """They are a list with one dictionary for each image, which no mode can repeat."""
    model = yolos()
    attach(model, "hard(p=0.4,k=2)")
    boxes = [{"class_labels": torch.tensor([0, 1]), "boxes": torch.full((2, 4), 0.3)} for _ in range(BATCH)]
    with pytest.raises(ad.AttentionDropError, match=r"inputs: expected no labels with mode=.*received 'labels'"):
        views(model, {"pixel_values": pairs()["pixel_values"], "labels": boxes}, mode=mode)


@pytest.mark.parametrize("mode", ["batch", "shared", "sequential"])
def test_consistency_of_detection(mode: Any) -> None:
    """The classes of the same query are compared."""
    model = yolos()
    attach(model, "dropkey(p=0.4)+consistency(weight=0.5)")
    images = {"pixel_values": pairs()["pixel_values"]}
    result = consistency_loss(model, images, lambda output: output.pred_boxes.mean(), mode=mode)
    assert result.divergence > 0 and all(output.logits.shape == (BATCH, 4, 4) for output in result.outputs)

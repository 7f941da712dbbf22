"""Specs with a name. A docstring says which published study of ours supports the spec, and what speaks against it."""

from __future__ import annotations

from .specs import BlurSmoothing, Compose, Consistency, Spec


def vision() -> Compose:
    """Blur with a consistency loss: for a vision Transformer that has few images to learn from, or wrong labels.

    A search on validation data chose it (docs/evidence/search.md), and study 1 (docs/evidence/study-1.md) confirms it
    with other seeds: CIFAR-10 with 9,000 training images, a ViT of 6 layers, 100 epochs, ten seeds. It was better than
    no method, better than R-Drop in about the same GPU time, and at equal GPU time better than training longer without
    a method. There, two passes took 1.6 times as long as one. On larger models they take nearly twice as long.

    With 40 % of the training labels wrong (docs/evidence/wrong-labels.md), it was the best of ten methods, also against
    twice the epochs without a method, which take more GPU time. It joined that table when the other rows were known.
    With other seeds, it was four points better than R-Drop with heavier weights.

    What speaks against it: with right labels, it was not better than twice the epochs without a method. The calibration
    error was higher than without a method; a lower weight costs less of it. Temperature scaling repairs most of it.
    In translation it was worse than no method with each of three seeds (docs/evidence/translation.md). It is for
    images. For CIFAR-100, with more images and another model, see docs/evidence/cifar-100.md: when this was written,
    that study was not complete and had shown no gain.

    The blur mixes neighbouring tokens, row after row: the last patch of a line is next to the first one of the next
    line, and a class token is next to the first patch. The model of the study has no class token.

    The spec needs two passes: compute the loss with `consistency_loss`, which finds the settings in the attached model.

    Example:
        >>> import attentiondrop as ad
        >>> print(ad.presets.vision())
        blur(sigma_max=2.0)+consistency(weight=3.0)
    """
    return Compose([BlurSmoothing(sigma_max=2.0), Consistency(weight=3.0)])


def plain() -> Spec:
    """No regulariser: the attention stays what it is, up to rounding.

    On an NVIDIA GPU, rows with up to 256 keys then run in the kernels of this library (`docs/speed.md`), as they do
    with a regulariser. It is a blur of width 1, which is the identity.

    Example:
        >>> import attentiondrop as ad
        >>> print(ad.presets.plain())
        blur(sigma_max=0.5,width=1)
    """
    return BlurSmoothing(width=1)

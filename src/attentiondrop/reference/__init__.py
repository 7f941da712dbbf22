"""The oracle: what every backend must compute, in NumPy and float64, one short function for each definition.

The functions are slow but simple, and not random: the draws are arguments. Each regulariser also returns its pullback
(the transpose of its derivative), so that gradients have a reference too.

The draws of each spec:

========================  ==========================================================================================
`HardMasking`, `DropKey`  uniforms in [0, 1) of shape [B, H, N, M]: a key is dropped where the uniform is below `p`
                          (stratified: [B, H, N, min(k, M)], by rank; by column: [B, H, M])
`AttentionDropout`        uniforms of shape [B, H, N, M]: a weight is dropped where the uniform is below `p`
`DropAttention`           the same; by column [B, H, M]; the uniform at the first key of a block of `span` keys decides
`GaussianNoise`           standard normals of shape [B, H, N, M]
`TemperatureNoise`        standard normals of shape [B, H]
`BlurSmoothing`           uniforms of shape [] ("batch"), [B] ("sample") or [H] ("head"): where sigma lies in its range
`DropHead`                uniforms of shape [B, H]
`HeadMask`                uniforms of shape [B, H]; for `choice="important"` what the heads are ranked by, [B, H] or [H]
`Compose`                 a list with the draws of its parts
`OneOf`                   a pair (uniform that chooses the part, list with the draws of all parts)
`Consistency`             None
========================  ==========================================================================================
"""

from __future__ import annotations

from .definitions import (
    Result,
    Step,
    Weights,
    attention_dropout,
    blur_smoothing,
    drop_attention,
    drop_key,
    gaussian_kernel,
    gaussian_noise,
    hard_masking,
    head_factors,
    head_mask,
    masked_softmax,
    temperature_noise,
    top_k,
    visibility,
    without_emptying,
)
from .of_specs import DEFINITIONS, attention, chosen_leaves, definition, perturb_logits

__all__ = [
    "DEFINITIONS",
    "Result",
    "Step",
    "Weights",
    "attention",
    "attention_dropout",
    "blur_smoothing",
    "chosen_leaves",
    "definition",
    "drop_attention",
    "drop_key",
    "gaussian_kernel",
    "gaussian_noise",
    "hard_masking",
    "head_factors",
    "head_mask",
    "masked_softmax",
    "perturb_logits",
    "temperature_noise",
    "top_k",
    "visibility",
    "without_emptying",
]

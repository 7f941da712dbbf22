"""Keras layers: the standard ones with the argument `attention_drop`, and a layer from logits to weights."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend import in_stateless_scope
from keras.src.backend.common import global_state

from ..attaching import check_perturbs
from ..building import from_dict
from ..parsing import parse
from ..specs import Spec
from .functional import as_logits, check_spec, weights_with
from .sites import RegularisedAttention, Site, WithSite, install, site_of

Tensor = Any


def spec_from(drop: Any, name: str) -> Spec:
    """A spec from a spec, its text, or the dictionary that a configuration file holds."""
    spec = parse(drop) if isinstance(drop, str) else from_dict(drop) if isinstance(drop, dict) else drop
    check_spec(name, spec)
    check_perturbs(name, spec)
    result: Spec = spec
    return result


class _WithAttentionDrop(RegularisedAttention):
    """The additional argument `attention_drop` of the standard attention layers."""

    def __init__(self, *args: Any, attention_drop: Spec | str | dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The site of `attention_drop`, which files hold. (An attachment may have put another one on the layer.)
        self._own_site: Site | None = None
        if attention_drop is not None:
            layer: Any = self
            spec = spec_from(attention_drop, "attention_drop")
            self._own_site = install(layer, spec, layer.name, layer.seed)

    @property
    def attention_drop(self) -> Spec | None:
        """What happens in training, with its present rates: the layer's own spec, or an attached one."""
        site = site_of(self)
        return None if site is None else site.spec

    def get_config(self) -> dict[str, Any]:
        """The configuration of the stock layer, and the layer's own spec as plain JSON types."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        site = self._own_site
        return {**config, "attention_drop": None if site is None else site.rates.template.to_dict()}


@keras.saving.register_keras_serializable(package="attentiondrop")
class MultiHeadAttention(_WithAttentionDrop, keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with one more argument, `attention_drop`.

    In evaluation it is the stock layer, flash attention included. In training the spec acts on the logits, the weights
    or the heads. Blur alone runs as plain attention on blurred keys, with the backend's fused attention. The layer's
    own `dropout` acts after the spec. The stock layer can load its weight files, and the other way round.

    Args:
        *args: as for `keras.layers.MultiHeadAttention`.
        attention_drop: a spec or its text, or None for the stock layer.
        **kwargs: as for `keras.layers.MultiHeadAttention`.

    Example:
        >>> import attentiondrop as ad
        >>> layer = MultiHeadAttention(num_heads=2, key_dim=8, attention_drop=ad.HardMasking(p=0.1, k=5))
        >>> x = keras.random.normal((2, 10, 16))
        >>> tuple(layer(x, x, use_causal_mask=True, training=True).shape)
        (2, 10, 16)
    """


@keras.saving.register_keras_serializable(package="attentiondrop")
class GroupedQueryAttention(_WithAttentionDrop, keras.layers.GroupQueryAttention):
    """`keras.layers.GroupQueryAttention` with one more argument, `attention_drop`: see `MultiHeadAttention`.

    Example:
        >>> layer = GroupedQueryAttention(8, 4, 2, attention_drop="blur(sigma_max=0.5)")
        >>> x = keras.random.normal((2, 10, 16))
        >>> tuple(layer(x, x, training=True).shape)
        (2, 10, 16)
    """


@keras.saving.register_keras_serializable(package="attentiondrop")
class AttentionDrop(WithSite, keras.layers.Layer):
    """The paper's interface as a layer: from logits to attention weights; perturbed in training, a softmax otherwise.

    Called on its own, it is in training mode; inside a model, it has the mode of the model.

    Args:
        spec: what to do to the attention, or its text.
        seed: of the draws. By default each layer gets a new seed, which `keras.utils.set_random_seed` determines.
        **kwargs: as for any Keras layer.

    Shape:
        logits [B, H, N, M]; mask (boolean, True: visible, or additive) broadcastable to it; weights like the logits.

    Example:
        >>> import attentiondrop as ad
        >>> drop = AttentionDrop(ad.BlurSmoothing(sigma_max=0.5))
        >>> tuple(drop(keras.random.normal((2, 4, 10, 10))).shape)
        (2, 4, 10, 10)
    """

    def __init__(self, spec: Spec | str | dict[str, Any], seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self._site = install(self, spec_from(spec, "spec"), self.name, seed)

    @property
    def spec(self) -> Spec:
        """What happens to the attention in training, with its present rates."""
        return self._site.spec

    def call(
        self, logits: Tensor, mask: Tensor | None = None, training: bool | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attention weights in the dtype of the logits; rows that see no key give zeros."""
        logits, shape = as_logits(logits)
        if training is None:
            training = not _is_inside_a_call(self)
        return weights_with(self._site.leaves(shape) if training else [], logits, mask, is_causal)

    def compute_output_shape(self, logits_shape: tuple[int | None, ...], *args: Any) -> tuple[int | None, ...]:
        """Weights have the shape of the logits."""
        return logits_shape

    def get_config(self) -> dict[str, Any]:
        """The configuration of any layer, and the spec as plain JSON types."""
        return {**super().get_config(), "spec": self._site.rates.template.to_dict(), "seed": self.seed}


def _is_inside_a_call(layer: Any) -> bool:
    """Whether a model or another layer calls this one. (A default of `training=True` would switch that one, too.)"""
    context = global_state.get_global_attribute("current_call_ctx")
    # On JAX, `fit` and `predict` open no context for the model: each layer in its `call` looks like the outer one.
    return context is not None and (context.entry_layer is not layer or in_stateless_scope())

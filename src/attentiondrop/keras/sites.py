"""A site: one attention layer with its spec, and the code that replaces its attention in training."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from ..errors import AttachError
from ..specs import Spec
from .call.attend import attend_on_logits, attend_to_blurred_keys, perturbed_weights, runs_on_blurred_keys, work_dtype
from .call.draws import next_seed
from .call.leaves import Leaf, LogitShape, leaves_of
from .call.visibility import Sight, check_both_axes
from .rates import Rates
from .reminders import Awaited

Tensor = Any

#: Added to a layer's `seed`, so that its dropout and our draws do not use the same numbers.
_SEED_OFFSET = 0x5EED_A77


class Site:
    """What one layer does to its attention in training.

    It is a plain object, so Keras does not look for weights in it; `install` registers its state.
    """

    def __init__(
        self,
        spec: Spec,
        name: str = "",
        seed: int | None = None,
        dtype: str = "float32",
        layer: int = 0,
        layers: int = 1,
    ) -> None:
        self.name = name
        #: The site that this one replaced on its layer, and whether this one was removed: `take_off` needs both.
        self.before: Site | None = None
        self.removed = False
        self.generator = keras.random.SeedGenerator(None if seed is None else (seed + _SEED_OFFSET) % 2**31)
        self.rates = Rates(spec, dtype, layer, layers)
        self._awaited = Awaited(spec)
        #: The seed of the runs of one call, while `with_one_seed` is at work: empty before the first run.
        self._seed_of_call: list[Tensor] | None = None

    @property
    def spec(self) -> Spec:
        """The spec with its present rates."""
        return self.rates.spec

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Change numbers of the spec; a compiled step sees them without being compiled again."""
        self.rates.set(rates)

    def leaves(self, shape: LogitShape) -> list[Leaf]:
        """The regularisers of one call."""
        self._awaited.note_call()
        return leaves_of(self.spec, shape, self.seed(), rates=self.rates.state)

    def with_one_seed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """One call of the layer, which makes the same draws whenever it is run: rematerialisation runs it again."""
        drawn: list[Tensor] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._seed_of_call = self._seed_of_call, drawn
            try:
                return call(*args, **kwargs)
            finally:
                self._seed_of_call = before

        return run

    def seed(self) -> Any:
        """What the next call draws from: the generator, or the seed of a call that may be run again."""
        drawn = self._seed_of_call
        if drawn is None:
            _refuse_backward()
            return self.generator
        if not drawn:
            _refuse_backward()
            drawn.append(next_seed(self.generator))
        return drawn[0]


def _refuse_backward() -> None:
    """New draws in a backward belong to a call that is computed again, whose first draws nobody remembers."""
    if keras.backend.backend() == "torch":
        import torch

        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise AttachError(
                "attention: expected draws in the forward pass, received a call that the backward computes again, with "
                "other draws; use keras.RematScope for the attention layer itself, not for a layer or model around it"
            )


def install(layer: Any, spec: Spec, name: str, seed: int | None = None, place: int = 0, places: int = 1) -> Site:
    """Put a new site on a layer in place of an existing one; it is number `place` of `places`."""
    dtype = "float64" if layer.variable_dtype == "float64" else "float32"
    site = Site(spec, name, seed, dtype, place, places)
    site.before = site_of(layer)
    _put(layer, site)
    return site


def take_off(layer: Any, site: Site) -> None:
    """Remove `site`; if it is the site of the layer, the one before it (of those not removed) acts again."""
    site.removed = True
    if site_of(layer) is site:
        before = site.before
        while before is not None and before.removed:
            before = before.before
        _put(layer, before)


def _put(layer: Any, site: Site | None) -> None:
    """Make `site` the only site of a layer.

    Its state is stored in the layer's list of seed generators: JAX passes it through a compiled step, and it is no
    weight.
    """
    old = site_of(layer)
    if old is not None:
        for state in (old.generator, old.rates):
            layer._seed_generators.remove(state)
    if site is not None:
        layer._seed_generators.extend([site.generator, site.rates])
    layer._attentiondrop_site = site


def site_of(layer: Any) -> Site | None:
    """The site of this layer (not of its sublayers), or None."""
    site: Site | None = getattr(layer, "_attentiondrop_site", None)
    return site


class _ComputeAttention:
    """`_compute_attention` of a regularised layer.

    On an instance it is our function. On the class it is that of the stock layer: the stock layer checks
    `type(self)._compute_attention` before it passes causality to the backend instead of building a mask, and in
    evaluation it must do so, to give the same bits as without us.
    """

    def __get__(self, layer: Any, owner: type) -> Any:
        stock = super(RegularisedAttention, owner)._compute_attention  # type: ignore[misc]
        return stock if layer is None else types.MethodType(_attend_as(stock), layer)


class WithSite:
    """A base class to put before a layer that has a site."""

    _attentiondrop_site: Site | None = None

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """The call of the layer under `keras.RematScope`: the second run, in the backward, draws as the first."""
        site = self._attentiondrop_site
        call = layer_call if site is None else site.with_one_seed(layer_call)
        result: Callable[..., Any] = super().rematerialized_call(call, *args, **kwargs)  # type: ignore[misc]
        return result


class RegularisedAttention(WithSite):
    """A base class to put before `MultiHeadAttention`, `GroupedQueryAttention`, or a subclass that computes alike."""

    _compute_attention = _ComputeAttention()


@functools.cache
def _attend_as(stock: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    def compute_attention(layer: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        site: Site | None = layer._attentiondrop_site
        given = signature.bind(layer, *args, **kwargs).arguments
        scores = given.get("return_attention_scores", getattr(layer, "_return_attention_scores", False))
        flash = layer._flash_attention
        # Flash attention with scores is an error, which the stock layer raises.
        if site is None or not given.get("training") or (flash and scores):
            result: tuple[Tensor, Tensor | None] = stock(layer, *args, **kwargs)
            return result
        mask, causal = given.get("attention_mask"), bool(given.get("use_causal_mask", False))
        return _regularised(layer, site, given["query"], given["key"], given["value"], mask, causal, scores)

    return compute_attention


def _regularised(
    layer: Any, site: Site, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scores: bool
) -> tuple[Tensor, Tensor | None]:
    if len(query.shape) != 4:
        return _over_several_axes(layer, site, query, key, value, mask, causal)
    batch, rows, heads, _ = ops.shape(query)
    leaves = site.leaves(LogitShape(batch, heads, rows, ops.shape(key)[1]))
    sight = Sight(_mask_like(mask, 4, axes=1), None, causal)
    check_both_axes(leaves, sight.visible, causal)
    dropout = _dropout(layer)
    scale = query.shape[-1] ** -0.5
    if dropout is None and not scores and runs_on_blurred_keys(query, value, leaves, sight):
        return attend_to_blurred_keys(query, key, value, leaves, sight, scale, layer._flash_attention), None
    return attend_on_logits(query, key, value, leaves, sight, scale, dropout)


def _over_several_axes(
    layer: Any, site: Site, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention over several axes, which only `MultiHeadAttention` has: with its own products and flattened axes."""
    if causal:
        past = layer._compute_causal_mask(query, value)
        mask = past if mask is None else ops.logical_and(ops.cast(mask, "bool"), past)
    axes = len(layer._attention_axes)
    dtype = work_dtype(query)
    scaled = ops.cast(query, dtype) * query.shape[-1] ** -0.5
    products = ops.einsum(layer._dot_product_equation, ops.cast(key, dtype), scaled)
    shape = ops.shape(products)
    lead, rows, columns = shape[: -2 * axes], shape[-2 * axes : -axes], shape[-axes:]
    flat = (_product(lead[:-1]), lead[-1], _product(rows), _product(columns))
    visible = _mask_like(mask, len(products.shape), axes)
    if visible is not None:
        visible = ops.reshape(ops.broadcast_to(visible, shape), flat)
    leaves = site.leaves(LogitShape(*flat))
    check_both_axes(leaves, visible, causal)
    weights = ops.reshape(perturbed_weights(ops.reshape(products, flat), leaves, Sight(visible)), shape)
    dropout = _dropout(layer)
    combined = weights if dropout is None else dropout(weights)
    output = ops.einsum(layer._combine_equation, ops.cast(combined, dtype), ops.cast(value, dtype))
    return ops.cast(output, query.dtype), ops.cast(weights, query.dtype)


def _mask_like(mask: Tensor | None, rank: int, axes: int) -> Tensor | None:
    """A Keras attention mask with the missing dimensions added, from the heads on."""
    if mask is None:
        return None
    for _ in range(rank - len(mask.shape)):
        mask = ops.expand_dims(mask, axis=-2 * axes - 1)
    return ops.cast(mask, "bool")


def _dropout(layer: Any) -> Callable[[Tensor], Tensor] | None:
    """The layer's own dropout of its attention weights, or None."""
    dropout = layer._dropout_layer
    return (lambda weights: dropout(weights, training=True)) if dropout.rate > 0 else None


def _product(sizes: Any) -> Any:
    total = 1
    for size in sizes:
        total = total * size
    return total

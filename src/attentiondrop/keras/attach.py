"""`attach`: regularise the attention of a built Keras model, in one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras

from ..attaching import (
    BaseAttachment,
    Choice,
    Patterns,
    Unreached,
    check_schedules,
    choose,
    chosen_sites,
    nothing_reached,
    read_patterns,
    warn_of_unreached,
)
from ..errors import AttachError, bad_argument
from ..schedules import check_progress
from ..specs import Spec
from .rates import set_all, set_all_progress
from .sites import RegularisedAttention, Site, install, site_of, take_off

#: The layers whose attention can be reached, and their subclasses that do not override `_compute_attention`.
STOCK = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


class Attachment(BaseAttachment):
    """What `attach` did to a model, and the handle to change or undo it. As a context manager, it undoes it on exit."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._layers: list[tuple[Any, Site]] = []

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attached sites: `name` and `spec` of each. Those that a later attachment replaced are not among them."""
        return tuple(site for site, _ in self.rows())

    def rows(self) -> list[tuple[Site, str]]:
        """The attached sites, each with the name of its layer's class."""
        return [(site, type(layer).__name__) for layer, site in self._layers if site_of(layer) is site]

    def assign(self, site: Site, spec: Spec) -> None:
        """Give one site another spec. To change only numbers, use `set_rates`, which needs no new compilation."""
        index = next(index for index, (_, own) in enumerate(self._layers) if own is site)
        layer = self._layers[index][0]
        new = install(layer, spec, site.name, place=site.rates.layer, places=site.rates.layers)
        new.before = site.before
        new.rates.set_progress(self.progress)
        self._layers[index] = (layer, new)
        _forget_compiled_functions(self.model)

    def set_progress(self, progress: float) -> None:
        """Say how much of the training is done, from 0 to 1, and set the rates of all schedules for it.

        Nothing is compiled again. `ScheduleCallback` calls it in `fit`.
        """
        progress = check_progress(progress)
        set_all_progress(self.model, [site.rates for site in self.sites], progress)
        self.progress = progress

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Change numbers of the specs, such as `{"p": 0.05}` or `{"hard.p": 0.05}`; nothing is compiled again."""
        if not self.sites:
            raise AttachError("set_rates: expected an attachment that is in place; this one was removed or replaced")
        set_all(self.model, [site.rates for site in self.sites], rates)

    def remove(self) -> None:
        """Give every layer back what it had before: the site of another attachment, its own spec, or its own class.

        A second call does nothing.
        """
        for layer, site in self._layers:
            take_off(layer, site)
            base = vars(type(layer)).get("_attentiondrop_base")
            if base is not None and site_of(layer) is None:
                layer.__class__ = base
        self._layers.clear()
        _forget_compiled_functions(self.model)


def attach(model: Any, spec: Choice | Patterns) -> Attachment:
    """Perturb the attention of a built `model` in training. Nothing else about the model changes.

    Weights stay the same. `save`, `save_weights` and `clone_model` give the plain model. `model(x, training=False)` and
    `predict` compute the plain model. On layers that have a spec already, the new one acts until it is removed.

    Args:
        model: a built Keras model or layer (of Keras, of keras-hub, or your own) that contains `MultiHeadAttention` or
            `GroupedQueryAttention`, or subclasses that compute attention in the same way. Attach to the model that you
            call `fit` on: an outer model that was trained before would keep its compiled step.
        spec: a spec or its text for all sites, or a mapping from patterns of site names (`fnmatch`) to specs. The first
            pattern that matches a name decides. Layers whose pattern says None, or that no pattern matches, stay as
            they are.

    Returns:
        The attachment. Print it to see which attention was found and which could not be reached.

    Raises:
        AttachError: if no attention could be reached, or a pattern matches none.

    Example:
        >>> import attentiondrop as ad
        >>> x = keras.Input((10, 16))
        >>> y = keras.layers.MultiHeadAttention(2, 8, name="attention")(x, x)
        >>> print(attach(keras.Model(x, y, name="small"), ad.HardMasking(p=0.1, k=5)))
        AttentionDrop on Functional: 1 attention site
          attention  MultiHeadAttention  hard(p=0.1,k=5)
    """
    if not isinstance(model, keras.layers.Layer):
        raise bad_argument("model", "a keras.Model or a keras.Layer", type(model).__name__)
    patterns = read_patterns(spec)
    found = list(_find_attention(model))
    reachable = [entry for entry in found if entry.reason is None]
    unreached = [Unreached(e.name, type(e.layer).__name__, str(e.reason)) for e in found if e.reason is not None]
    if not reachable:
        seen = "nothing in it is MultiHeadAttention or GroupedQueryAttention"
        raise nothing_reached(model, unreached, seen if model.built else f"{seen}; the model is not built yet")
    attachment = Attachment(model)
    chosen = chosen_sites([entry.name for entry in reachable], patterns, [entry.name for entry in unreached])
    check_schedules([drop for _, drop in chosen])
    for number, (place, drop) in enumerate(chosen):
        layer = reachable[place].layer
        if not isinstance(layer, RegularisedAttention):
            layer.__class__ = _regularised_class(type(layer))
        site = install(layer, drop, reachable[place].name, place=number, places=len(chosen))
        attachment._layers.append((layer, site))
    # Layers that no pattern asks for are not listed as unreached.
    attachment.unreached = tuple(entry for entry in unreached if choose(entry.name, patterns) is not None)
    _forget_compiled_functions(model)
    warn_of_unreached(model, attachment.unreached)
    return attachment


class _Found(NamedTuple):
    """An attention layer; `reason` says why it cannot be reached, or is None if it can."""

    name: str
    layer: Any
    reason: str | None


def named_layers(layer: Any, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The layer itself (named `prefix`) and all layers inside it, each named by the path of layer names to it."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield prefix, layer
    names: dict[str, int] = {}
    for child in layer._layers:
        names[child.name] = names.get(child.name, 0) + 1
        # Two sublayers may have the same name, but their paths must differ.
        name = child.name if names[child.name] == 1 else f"{child.name}_{names[child.name]}"
        yield from named_layers(child, f"{prefix}/{name}" if prefix else name, seen)


def _find_attention(model: Any) -> Iterator[_Found]:
    layers = list(named_layers(model))
    reached = [name for name, layer in layers if isinstance(layer, STOCK) and _why_not(layer) is None]
    for name, layer in layers:
        if isinstance(layer, STOCK):
            yield _Found(name, layer, _why_not(layer))
        elif _looks_like_attention(layer) and not any(
            inner.startswith(f"{name}/" if name else "") for inner in reached
        ):
            yield _Found(name, layer, "it computes its attention in its own code")


def _why_not(layer: Any) -> str | None:
    stock = [cls._compute_attention for cls in STOCK]
    if type(layer)._compute_attention not in stock:
        return "it overrides _compute_attention"
    if "_compute_attention" in vars(layer):
        return "its _compute_attention was replaced on the instance"
    # The `call` of a subclass may compute attention elsewhere (keras-hub's XLNet): a site would silently do nothing.
    code = getattr(inspect.unwrap(type(layer).call), "__code__", None)
    if code is None or "_compute_attention" not in code.co_names:
        return "its call does not use _compute_attention"
    return None


def _looks_like_attention(layer: Any) -> bool:
    """Judged by the class name, since there is nothing else to go by. Layers that only prepare masks do not count."""
    name = type(layer).__name__.lower()
    return "attention" in name and "mask" not in name


_classes: dict[type, type] = {}


def _regularised_class(base: Any) -> type:
    """The subclass of `base` that perturbs in training; always the same one for the same base.

    It has the name of the base, which weight files contain, and its module, by which `.keras` files find classes. So an
    attached model is saved as the plain model. `clone_model` and `from_config` build the plain model, too.
    """
    if base not in _classes:

        def from_config(cls: Any, config: dict[str, Any]) -> Any:
            return base.from_config(config)

        members = {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "_attentiondrop_base": base,
            "from_config": classmethod(from_config),
        }
        generated = type(base.__name__, (RegularisedAttention, base), members)
        # If the base is registered under another name, files contain that name, so it is used here, too.
        registered = keras.saving.get_registered_name(base)
        if registered != base.__name__:
            keras.src.saving.object_registration.GLOBAL_CUSTOM_NAMES[generated] = registered
        _classes[base] = generated
    return _classes[base]


def _forget_compiled_functions(model: Any) -> None:
    """Delete compiled steps: TensorFlow would reuse the step of an earlier `fit` and not notice a change of class."""
    for name in ("train_function", "test_function", "predict_function"):
        if hasattr(model, name):
            setattr(model, name, None)

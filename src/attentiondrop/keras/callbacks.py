"""Schedules in `fit`: rates as functions of the training progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from ..errors import AttachError, bad_argument
from ..schedules import check_progress
from ..validation import one_of
from .attach import named_layers
from .consistency import ConsistencyModel
from .rates import Rates, set_all, set_all_progress
from .sites import site_of


def set_rates(model: Any, rates: Mapping[str, float]) -> None:
    """Change numbers of every spec in `model`, such as `{"p": 0.05}` or `{"hard.p": 0.05}`; nothing is compiled again.

    Example:
        >>> import attentiondrop.keras
        >>> layer = attentiondrop.keras.MultiHeadAttention(2, 8, attention_drop="hard(p=0.1,k=5)")
        >>> set_rates(layer, {"p": 0.2})
        >>> print(layer.attention_drop)
        hard(p=0.2,k=5)
    """
    set_all(model, rates_in(model), rates)


def rates_in(model: Any) -> list[Rates]:
    """The rates of all regularised attention, and of all consistency losses, in a model."""
    found: list[Rates] = []
    for _, layer in named_layers(model):
        site = site_of(layer)
        if site is not None:
            found.append(site.rates)
        if isinstance(layer, ConsistencyModel):
            found.append(layer._rates)
    if not found:
        raise AttachError(
            f"model: expected regularised attention in {model.name}, found none; attach(model, spec) first"
        )
    return found


class ScheduleCallback(keras.callbacks.Callback):
    """Sets rates by the training progress, without compiling anything again.

    It evaluates the schedules in the specs (`attentiondrop.schedules`), and the functions in `schedules`.

    Args:
        schedules: from the name of a rate (`"p"`, or `"hard.p"` for hard masking only) to a function of the progress
            in [0, 1].
        every: "batch" or "epoch". If `fit` does not know how many batches an epoch has, the progress does not change
            during the first epoch.

    Example:
        >>> import attentiondrop.keras
        >>> x = keras.Input((10, 16))
        >>> layer = attentiondrop.keras.MultiHeadAttention(2, 8, attention_drop="hard(p=0.1,k=5)")
        >>> model = keras.Model(x, layer(x, x))
        >>> model.compile("sgd", "mse")
        >>> data = keras.ops.ones((4, 10, 16))
        >>> callback = ScheduleCallback({"p": lambda progress: 0.2 * progress})
        >>> history = model.fit(data, data, batch_size=1, verbose=0, callbacks=[callback])
        >>> round(layer.attention_drop.p, 2)  # the last of four batches starts at progress 0.75
        0.15
    """

    def __init__(self, schedules: Mapping[str, Callable[[float], float]] | None = None, every: str = "batch") -> None:
        super().__init__()
        schedules = {} if schedules is None else schedules
        if not isinstance(schedules, Mapping) or not all(map(callable, schedules.values())):
            raise bad_argument("schedules", "a mapping from names of rates to functions of the progress", schedules)
        one_of("every", every, ("batch", "epoch"))
        self.schedules = dict(schedules)
        self.every = every
        self.progress = 0.0
        self._epoch = 0
        self._steps: int | None = None
        self._seen = 0

    def set_progress(self, progress: float) -> None:
        """Set every rate to its value at `progress`."""
        progress, entries = check_progress(progress), rates_in(self.model)
        set_all_progress(self.model, entries, progress)
        if self.schedules:
            rates = {name: float(schedule(progress)) for name, schedule in self.schedules.items()}
            set_all(self.model, entries, rates)
        self.progress = progress

    def on_train_begin(self, logs: Any = None) -> None:
        """Read the number of batches of an epoch, and start at progress 0."""
        self._steps = self.params.get("steps")
        self.set_progress(0.0)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Store the epoch, and set its progress."""
        self._epoch = epoch
        self.set_progress(epoch / self.params["epochs"])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the progress of this batch."""
        if self.every == "batch" and self._steps:
            self.set_progress(min(1.0, (self._epoch + batch / self._steps) / self.params["epochs"]))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batches of an epoch whose length `fit` does not know."""
        self._seen = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of batches of an epoch, if `fit` did not know it."""
        if self._steps is None:
            self._steps = self._seen

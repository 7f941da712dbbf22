"""What the controls are: they change settings of training, and nothing else."""

from __future__ import annotations

from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods.parse import read_method


def none(made) -> None:
    recipe = TrainingSettings(epochs=7, learning_rate=0.1, weight_decay=0.5)
    assert read_method("none").training(recipe) == recipe
    found = read_method("none(lr=0.5,decay=4.0)").training(recipe)
    assert (found.learning_rate, found.weight_decay, found.epochs) == (0.05, 2.0, 7)


def longer(made) -> None:
    recipe = TrainingSettings(epochs=7, learning_rate=0.1)
    assert read_method("longer(times=3)").training(recipe) == TrainingSettings(epochs=21, learning_rate=0.1)
    assert read_method("longer(times=2,lr=2.0)").training(recipe).learning_rate == 0.2
    assert read_method("longer(times=1.35)").training(recipe).epochs == 9
    assert read_method("longer(times=2.0)").text == read_method("longer").text


def shorter(made) -> None:
    recipe = TrainingSettings(epochs=7, learning_rate=0.1)
    assert read_method("shorter+hard").training(recipe) == TrainingSettings(epochs=5, learning_rate=0.1)
    assert read_method("shorter(times=0.01)+hard").training(recipe).epochs == 1


CONTROLS = {"none": none, "longer": longer, "shorter": shorter}

"""The settings of the data: which values they refuse, and that importing settings and loader loads no framework."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data import ImageSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "letters"}, "data.name: expected one of 'digits', 'fashion-mnist'"),
        ({"root": ""}, "data.root: expected the path of a folder or file as text, or none, received ''"),
        ({"root": 3}, "data.root: expected the path"),
        ({"download": "yes"}, "data.download: expected true or false, received 'yes'"),
        ({"validation": 0.0}, "data.validation: expected a number in (0, 1), received 0.0"),
        ({"validation": 1.0}, "data.validation: expected a number in (0, 1), received 1.0"),
        ({"validation": -1}, "data.validation: expected a number in (0, 1), received -1"),
        ({"train_fraction": 0}, "data.train_fraction: expected a number in (0, 1], received 0"),
        ({"train_fraction": 1.1}, "data.train_fraction: expected a number in (0, 1], received 1.1"),
        ({"train_fraction": float("nan")}, "data.train_fraction: expected a number in (0, 1], received nan"),
        ({"label_noise": -0.1}, "data.label_noise: expected a number in [0, 1], received -0.1"),
        ({"limit": 0}, "data.limit: expected a number >= 1, received 0"),
        ({"limit": 2.5}, "data.limit: expected an integer >= 1, received 2.5"),
        ({"augment": "mixup"}, "data.augment: expected one of 'none', 'flip-crop', 'crop', 'randaugment'"),
        (
            {"augment": "randaugment"},
            "data.augment: expected none, crop, flip-crop, autoaugment or trivialaugment for digits",
        ),
        ({"image_size": 32}, "data.image_size: expected none, digits keeps its own size, received 32"),
        ({"name": "fake", "image_size": 0}, "data.image_size: expected a number >= 1, received 0"),
        ({"workers": -1}, "data.workers: expected a number >= 0, received -1"),
        ({"workers": None}, "data.workers: expected a number >= 0, received None"),
        ({"seed": True}, "data.seed: expected a number >= 0, received True"),
    ],
)
def test_refuses_with_a_clear_message(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(AttentionDropError, match=re.escape(message)):
        ImageSettings(**wrong)


def test_equal_numbers_are_equal_settings() -> None:
    settings = ImageSettings(limit=1e2, seed=3.0, train_fraction=1)
    assert settings == ImageSettings(limit=100, seed=3)
    assert [type(settings.limit), type(settings.seed), type(settings.train_fraction)] == [int, int, float]
    assert ImageSettings(**dataclasses.asdict(settings)) == settings


def test_importing_the_package_loads_no_framework() -> None:
    code = "import sys, attentiondrop.experiments.tasks.classification.data; sys.exit(bool({'torch', 'sklearn', 'torchvision'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], check=True)

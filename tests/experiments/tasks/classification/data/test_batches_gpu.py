"""Batches of images on a GPU: the host makes them without waiting, so that the GPU always has something to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attentiondrop.experiments.tasks.classification.data import ImageSettings, load_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

FAKE = {"name": "fake", "limit": 400}
SETTINGS = [
    ImageSettings(**FAKE, augment="flip-crop"),
    ImageSettings(**FAKE, augment="autoaugment", erase=0.25, mix=0.5),
    ImageSettings(**FAKE, augment="trivialaugment"),
]


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.augment)
def test_the_host_does_not_wait_for_a_batch(settings: ImageSettings, request: pytest.FixtureRequest) -> None:
    data = load_data(settings).to("cuda")
    # The first epoch may wait: it copies constants, such as the kernel that sharpens.
    for _ in data.train_batches(seed=0, epoch=0, batch_size=64):
        pass
    request.getfixturevalue("waiting_is_an_error")
    assert sum(1 for _ in data.train_batches(seed=0, epoch=1, batch_size=64)) == data.steps(64)


def test_the_batches_are_those_of_a_cpu() -> None:
    data = load_data(SETTINGS[0])
    batches = zip(
        *(data.to(device).train_batches(seed=0, epoch=3, batch_size=64) for device in ("cpu", "cuda")), strict=True
    )
    for on_cpu, on_gpu in batches:
        torch.testing.assert_close(on_gpu.inputs.cpu(), on_cpu.inputs)
        assert torch.equal(on_gpu.targets.cpu(), on_cpu.targets)

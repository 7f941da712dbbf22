"""Errors that a device raises later: torch's CUDA kernel takes no message of 255 bytes or more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attentiondrop
from attentiondrop.torch.call.stopping import LONGEST, shortened, stop_unless
from attentiondrop.torch.rates.recent_calls import Recent


def of_device(condition: torch.Tensor, message: str) -> None:
    """What the CUDA kernel does, without its delay."""
    if len(message.encode()) >= 255:
        raise RuntimeError("Message length must be smaller than 255")
    if not condition:
        raise RuntimeError(message)


@pytest.mark.parametrize("message", ["x" * LONGEST, "x" * 300, "ä" * 200, "x" * 250 + "äää", "short"])
def test_a_message_is_cut_to_what_a_device_takes(message: str, monkeypatch) -> None:
    monkeypatch.setattr(torch, "_assert_async", of_device)
    cut = shortened(message)
    assert len(cut.encode()) <= LONGEST
    assert cut == message if len(message.encode()) <= LONGEST else message.startswith(cut[:-3]) and cut.endswith("...")
    stop_unless(torch.tensor(True), message)
    with pytest.raises(RuntimeError) as error:
        stop_unless(torch.tensor(False), message)
    assert str(error.value) == cut


def test_a_device_that_cannot_stop_later_is_waited_for(monkeypatch) -> None:
    def missing(condition: torch.Tensor, message: str) -> None:
        raise NotImplementedError("Could not run 'aten::_assert_async.msg' with arguments from the 'MPS' backend")

    monkeypatch.setattr(torch, "_assert_async", missing)
    stop_unless(torch.tensor(True), "a reason")
    with pytest.raises(RuntimeError, match=r"^a reason$"):
        stop_unless(torch.tensor(False), "a reason")


def test_messages_are_given_to_a_device_in_one_place_only() -> None:
    source = Path(attentiondrop.__file__).parent
    found = {path.name for path in source.rglob("*.py") if "_assert_async(" in path.read_text(encoding="utf-8")}
    assert found == {"stopping.py", "packed_documents.py"}  # the latter on the CPU, without a message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_all_messages() -> None:
    seed, rate = torch.tensor(3, device="cuda"), torch.tensor(0.5, device="cuda")
    recent = Recent()
    recent.add(seed, [rate])
    assert recent.surely_rates_of(seed) == [rate]
    stop_unless(seed == 3, "x" * 300)
    torch.cuda.synchronize()

"""By which way memory for results is found, in versions of torch that have the shorter one and in others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attentiondrop.torch.kernels.short import allocate


def test_the_way_of_inductor_if_there_is_one() -> None:
    way = object()
    assert allocate.shortest(SimpleNamespace(_empty_strided_cuda=way)) is way
    assert allocate.empty_on_gpu is torch._C._dynamo.guards._empty_strided_cuda, "torch 2.10 to 2.15 have it"


@pytest.mark.parametrize("guards", [SimpleNamespace(), None], ids=["renamed", "gone"])
def test_the_usual_way_otherwise(guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, asked = torch.empty_strided, []

    def noted(*args: Any, device: Any, **kwargs: Any) -> torch.Tensor:
        asked.append(device)
        return usual(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_strided", noted)
    found = allocate.shortest(guards)((2, 3), (1, 2), torch.bfloat16)
    assert asked == ["cuda"]
    assert (found.shape, found.stride(), found.dtype) == ((2, 3), (1, 2), torch.bfloat16)

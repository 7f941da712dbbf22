"""The five-minute start for the backend of this process, run as it stands on its page."""

from __future__ import annotations

import pytest
from documentation import run_page
from keras_parity import BACKEND


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on torch has no start page: it is that of Keras on JAX")
def test_the_start_page_runs() -> None:
    pytest.importorskip("sklearn")
    names = run_page(f"start/keras-{BACKEND}.md")
    for model in (names["model"], names["trained"]):
        assert model.history.history["loss"][-1] < 2.3  # the loss of guessing one of ten classes
    # The second attachment has replaced the first one.
    assert not names["attachment"].sites and str(names["spec"]) == "blur(sigma_max=2.0)+consistency(weight=3.0)"

"""What happens to an attachment over the life of a model: copies, pickles, EMA, patterns, other threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from checks import check_model, randomise
from hand_written import Attention, Model, helper
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import attentiondrop as ad
from attentiondrop.torch import attach, detach


@pytest.fixture
def model() -> nn.Module:
    return randomise(Model(), 2.0)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 16)


HARD = ad.HardMasking(p=0.4, k=3)


def run_with_seed(model: nn.Module, x: Tensor, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    result: Tensor = model(x)
    return result.detach()


def test_hand_written_attention(model: nn.Module, x: Tensor) -> None:
    check_model(model, lambda m: m(x), 3, None)


def test_layers_and_calls_draw_independently(x: Tensor) -> None:
    """Two identical layers in training differ from each other and from one call to the next."""
    first = randomise(Attention(), 2.0)
    second = copy.deepcopy(first)
    attach(nn.ModuleList([first, second]), ad.GaussianNoise(1.0))
    torch.manual_seed(1)
    outputs = [first(x), second(x), first(x)]
    assert not any(torch.equal(a, b) for a, b in ((outputs[0], outputs[1]), (outputs[0], outputs[2])))


def test_copies_are_independent(model: nn.Module, x: Tensor) -> None:
    attachment = attach(model, HARD)
    twin = copy.deepcopy(model)
    assert torch.equal(run_with_seed(model, x), run_with_seed(twin, x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert not torch.equal(run_with_seed(model, x), run_with_seed(twin, x)), "the copy uses the original's weights"
    attachment.update(ad.DropKey(0.5))
    before = run_with_seed(twin, x)
    attachment.remove()
    assert torch.equal(run_with_seed(twin, x), before), "a change of the original reached the copy"
    assert not torch.equal(run_with_seed(twin, x, 1), run_with_seed(twin, x, 2))
    assert detach(twin) == 3 and detach(twin) == 0
    assert torch.equal(run_with_seed(twin, x, 1), run_with_seed(twin, x, 2))


def test_ema(model: nn.Module, x: Tensor) -> None:
    attach(model, HARD)
    average = AveragedModel(model)
    average.update_parameters(model)
    model.eval(), average.eval()
    torch.testing.assert_close(average(x), model(x))
    assert any("attentiondrop" in name for m in average.modules() for name in vars(m))


def test_pickles(model: nn.Module, x: Tensor) -> None:
    attach(model, HARD)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for loaded in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(run_with_seed(loaded, x), run_with_seed(model, x))
        assert detach(loaded) == 3
        assert type(loaded.blocks[0]) is Attention
    plain = Model()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain.eval()(x), model.eval()(x))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_an_attachment_goes_with_its_model(model: nn.Module, x: Tensor, copied: Any, trained: bool) -> None:
    """As where a model holds its attachment, or where both are arguments of a process that is spawned."""
    model.attachment = attach(model, ad.DropKey(ad.schedules.Linear(0.0, 0.5)))
    if trained:
        model(x)
    twin = copied(model)
    twin.attachment.set_progress(1.0)
    assert not torch.equal(run_with_seed(twin, x, 1), run_with_seed(twin, x, 2))
    assert torch.equal(run_with_seed(model, x, 1), run_with_seed(model, x, 2)), "the original moved with its copy"
    twin.attachment.remove()
    assert type(twin.blocks[0]) is Attention and detach(model) == 3


def test_a_removed_attachment_says_so(model: nn.Module) -> None:
    attachment = attach(model, "hard")
    attachment.remove()
    assert str(attachment) == "AttentionDrop on Model: 0 attention sites"
    with pytest.raises(ad.AttachError, match="update: expected an attachment that is in place; this one was removed"):
        attachment.update("blur")


@pytest.mark.parametrize(
    "spec, names",
    [
        ("hard", ["*"]),
        ({"layers.0.*": None, "*": "hard"}, ["1-5"]),
        ({"layers.[0135].*": "blur", "*": "hard"}, ["0-1,3,5", "2,4"]),
    ],
)
def test_the_list_tells_layers_apart(spec: Any, names: list[str]) -> None:
    """A star stands for all layers. If layers have different specs, or none, their numbers are shown."""
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    text = str(attach(nn.TransformerEncoder(layer, 6), spec))
    assert [line.split()[0] for line in text.splitlines()[1:]] == [f"layers.{name}.self_attn" for name in names]


def test_patterns(model: nn.Module) -> None:
    attachment = attach(model, {"blocks.0": None, "blocks.[01]": "blur", "blocks.*": HARD})
    assert {site.name: str(site.spec) for site in attachment.sites} == {
        "blocks.1": "blur(sigma_max=0.5)",
        "blocks.2": "hard(p=0.4,k=3)",
    }
    assert str(attachment) == (
        "AttentionDrop on Model: 2 attention sites\n"
        "  blocks.1  Attention  blur(sigma_max=0.5)\n"
        "  blocks.2  Attention  hard(p=0.4,k=3)"
    )
    attachment.update({"blocks.1": "noise", "*": "dropkey"})
    assert [str(site.spec) for site in attachment.sites] == ["noise(sigma=0.1)", "dropkey(p=0.1)"]
    with pytest.raises(
        ad.AttachError, match=r"spec: expected one for every attached site, received none for blocks\.2"
    ):
        attachment.update({"blocks.1": "noise"})
    second = attach(model, {"blocks.0": "hard"})
    assert [site.name for site in second.sites] == ["blocks.0"]
    with pytest.raises(ad.AttachError, match="it is attached already"):
        attach(model, "hard")


def test_consistency_is_carried_along(model: nn.Module) -> None:
    assert attach(model, "blur+consistency(weight=0.2)").consistency == ad.Consistency(weight=0.2)
    assert attach(Model(), "blur").consistency is None


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda m: attach(3, "hard"), ad.ArgumentError, "model: expected a torch.nn.Module, received 'int'"),
        (lambda m: attach(m, None), ad.ArgumentError, "spec: expected a spec, its text, or a mapping"),
        (lambda m: attach(m, {"*": 3}), ad.ArgumentError, "spec: expected a spec, its text, or a mapping"),
        (lambda m: attach(m, {}), ad.ArgumentError, "spec: expected at least one pattern"),
        (lambda m: attach(m, "hrad"), ad.ParseError, "unknown spec 'hrad'"),
        (
            lambda m: attach(m, "consistency"),
            ad.ArgumentError,
            "spec: expected a perturbation to go with consistency(...)",
        ),
        (lambda m: attach(m, "hard", backend="slow"), ad.ArgumentError, "backend: expected one of"),
        (
            lambda m: attach(m, {"layers.*": "hard"}),
            ad.AttachError,
            "pattern 'layers.*' matches no attention site; there is blocks.0, blocks.1, blocks.2",
        ),
        (lambda m: attach(m, {"*": None}), ad.AttachError, "no site is left to attach to"),
        (
            lambda m: attach(nn.Linear(2, 2), "hard"),
            ad.AttachError,
            "found no attention in Linear that can be regularised: nothing in it calls",
        ),
    ],
)
def test_bad_input(model: nn.Module, call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        call(model)
    assert message in str(error.value)
    assert detach(model) == 0, "a failed attach left something behind"


def test_wrapped_models(model: nn.Module) -> None:
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        with attach(wrapped, {"blocks.*": "hard"}) as attachment:
            assert [site.name for site in attachment.sites] == ["blocks.0", "blocks.1", "blocks.2"]


def test_a_replaced_forward_is_reported(model: nn.Module) -> None:
    model.blocks[0].forward = model.blocks[0].forward
    with pytest.warns(ad.AttentionDropWarning, match="its forward was replaced on the instance"):
        attach(model, "hard")


def test_a_site_that_never_attends_says_so(x: Tensor) -> None:
    class Switch(Attention):
        fused = False

        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return helper(q, k, v) if self.fused else (q @ k.mT).softmax(-1) @ v

    model = Switch()
    attach(model, "hard")
    with pytest.raises(ad.AttachError, match=r"the model \(Switch\) has a branch without scaled_dot_product_attention"):
        model(x)
    model.fused = True
    model(x)


def test_a_site_around_sites_is_left_out(x: Tensor) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return F.scaled_dot_product_attention(y, y, y)

    model = Outer()
    with pytest.warns(ad.AttentionDropWarning, match="contains other attention modules"):
        attachment = attach(model, "hard")
    assert [site.name for site in attachment.sites] == ["inner"]
    model(x)


def test_threads_do_not_disturb_each_other(model: nn.Module, x: Tensor) -> None:
    """A plain model in another thread stays plain while an attached one trains."""
    plain, expected = Model(), None
    with torch.no_grad():
        expected = plain(x)
    attach(model, HARD)
    wrong: list[bool] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(50):
                wrong.append(not torch.equal(plain(x), expected))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(50):
        model(x)
    thread.join()
    assert not any(wrong)


def test_autocast(model: nn.Module, x: Tensor) -> None:
    attach(model, HARD)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(x)
    output.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())

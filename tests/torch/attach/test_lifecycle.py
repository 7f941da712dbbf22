"""What happens to an attachment over the life of a model: copies, pickles, EMA, patterns, compilation, other threads."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import pickle
import threading
from typing import Any

import pytest
import torch
from checks import check_compiled, check_model, randomise
from compiler import needs_compiler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach, detach


class Attention(nn.Module):
    """What people write by hand: SDPA inside, here behind a method and a helper."""

    def __init__(self, size: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(size, 3 * size), nn.Linear(size, size), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return helper(q, k, v)


def helper(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


class Model(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(F.layer_norm(x, x.shape[-1:]))
        return x


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


@needs_compiler
@pytest.mark.slow
def test_compiled_with_inductor_through_changes(x: Tensor) -> None:
    model = randomise(Model(depth=2), 2.0).requires_grad_(False)
    check_compiled(model, lambda m: m(x), "inductor", tolerance=1e-4)


@pytest.mark.no_cover
@needs_compiler
def test_compiled_with_inductor(x: Tensor) -> None:
    """The default compiler, forward and backward."""
    model = randomise(Model(depth=1), 2.0)
    attach(model, HARD)
    compiled = torch.compile(model, fullgraph=True)
    grads = []
    for function in (model, compiled):
        model.zero_grad()
        torch.manual_seed(1)
        function(x).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for have, want in zip(*grads, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


class Checkpointed(nn.Module):
    """Each block under activation checkpointing."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, checkpointing: bool = True) -> Tensor:
        for block in self.blocks:
            y = F.layer_norm(x, x.shape[-1:])
            x = x + (checkpoint(block, y, use_reentrant=False) if checkpointing else block(y))
        return x


KINDS = ["sdpa", "sdpa, fullgraph", "multihead, fullgraph"]
SPECS = ["hard(p=0.4,k=3)", "blur(sigma_max=1.5)", "noise(sigma=0.5)"]


def checkpointed_cases() -> list[Any]:
    """Every kind and every spec once; their other pairs are slow."""
    pairs = itertools.product(range(3), range(3))
    return [pytest.param(KINDS[a], SPECS[b], marks=() if a == b else pytest.mark.slow) for a, b in pairs]


@pytest.mark.no_cover
@pytest.mark.parametrize("kind, spec", checkpointed_cases())
def test_compiled_under_activation_checkpointing(kind: str, spec: str, x: Tensor) -> None:
    """Recomputation in a compiled graph makes the same draws: gradients equal those of a plain eager pass."""
    torch._dynamo.reset()
    multihead = kind.startswith("multihead")
    blocks = [
        nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True) if multihead else Attention()
        for _ in range(2)
    ]
    model = randomise(Checkpointed(*blocks), 2.0).double()
    attach(model, spec)
    # The compiler takes the function mode of an "sdpa" site for a side effect of the checkpointed region: without this
    # setting of torch's, it breaks the graph there.
    setting = "skip_fwd_side_effects_in_bwd_under_checkpoint"
    if kind == "sdpa, fullgraph" and not hasattr(torch._dynamo.config, setting):
        pytest.skip(f"this torch has no {setting}")
    patch = torch._dynamo.config.patch({setting: True}) if kind == "sdpa, fullgraph" else contextlib.nullcontext()
    compiled = torch.compile(model, backend="aot_eager", fullgraph="fullgraph" in kind)
    grads = []
    with patch:
        for run in (
            lambda: model(x.double(), checkpointing=False),
            lambda: model(x.double()),
            lambda: compiled(x.double()),
        ):
            model.zero_grad()
            torch.manual_seed(1)
            run().sin().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
    for other in grads[1:]:
        for have, want in zip(other, grads[0], strict=True):
            torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-12)


@pytest.mark.no_cover
def test_two_passes_over_one_input_draw_apart_when_compiled(x: Tensor) -> None:
    """Two views of one input in one graph: a compiler may not merge what looks the same."""
    torch._dynamo.reset()
    model = randomise(Model(depth=1), 2.0)
    attach(model, HARD)
    compiled = torch.compile(lambda y: (model(y), model(y)), backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    have = compiled(x)
    torch.manual_seed(1)
    want = model(x), model(x)
    assert not torch.allclose(*have)
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.no_cover
def test_a_change_of_rate_recompiles_at_most_once(x: Tensor) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model = randomise(Model(depth=1), 2.0)
    attachment = attach(model, HARD)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for p in (0.4, 0.3, 0.2, 0.1, 0.15):
        attachment.update(ad.HardMasking(p=p, k=3))
        compiled(x)
    assert counter.frame_count <= 2


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

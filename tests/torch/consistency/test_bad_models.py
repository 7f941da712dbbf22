"""What is refused or warned of, and that it is said in words that help."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from consistency_models import BATCH, BERT, CASES, GPT2, build, floats, hugging, text, tokens
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss, views

LATE = {"encoder.layers.3.*": "dropkey(p=0.3)"}


def mean(output: Any) -> Tensor:
    return (output if isinstance(output, Tensor) else output.logits).mean()


@pytest.fixture
def model() -> nn.Module:
    return build("encoder")


@pytest.fixture
def x() -> Tensor:
    return floats(BATCH, 6, 16)


def test_arguments(model: nn.Module, x: Tensor) -> None:
    attach(model, LATE)
    with pytest.raises(ad.ArgumentError, match=r"views: expected a number >= 2, received 1"):
        ad.Consistency(views=1)
    with pytest.raises(ad.ArgumentError, match=r"count: expected a number >= 2, received 1"):
        views(model, x, count=1)
    with pytest.raises(
        ad.ArgumentError, match=r"mode: expected one of 'batch', 'sequential', 'shared', received 'twice'"
    ):
        views(model, x, mode="twice")
    with pytest.raises(ad.ArgumentError, match=r"model: expected a torch.nn.Module, received 'function'"):
        views(mean, x)
    with pytest.raises(ad.ArgumentError, match=r"inputs: expected a tensor, a tuple .* received 'list'"):
        views(model, [x])
    for empty in ((), {"x": 3}, torch.zeros(0, 3)):
        with pytest.raises(ad.ArgumentError, match=r"inputs: expected at least one tensor with a batch"):
            views(model, empty)
    missing = r"no consistency settings: pass .*Consistency\(weight=0\.5\), or attach a spec that ends in \+consistency"
    with pytest.raises(ad.ArgumentError, match=missing):
        consistency_loss(model, x, mean)
    for wrong in (True, [0.5]):
        with pytest.raises(ad.ArgumentError, match=r"consistency: expected a spec such as"):
            consistency_loss(model, x, mean, wrong)
    with pytest.raises(ad.ArgumentError, match=r"weight: expected a number >= 0, received -1"):
        consistency_loss(model, x, mean, -1)
    with pytest.raises(ad.ArgumentError, match=r"consistency: expected a spec such as"):
        consistency_loss(model, x, mean, "hard(p=0.1)")
    with pytest.raises(ad.ArgumentError, match=r"task_loss: expected .* without dimensions, received \[3, 6, 5\]"):
        consistency_loss(model, x, lambda output: output, "consistency()")


@pytest.mark.parametrize(
    ("labels", "received"), [(torch.zeros(3, 6), r"a tensor of shape \[3, 6\]"), (None, "None"), (0.5, "0.5")]
)
def test_the_task_loss_is_a_function(model: nn.Module, x: Tensor, labels: Any, received: str) -> None:
    attach(model, LATE)
    expected = r"task_loss: expected a function .* lambda logits: F\.cross_entropy\(logits, labels\), received "
    with pytest.raises(ad.ArgumentError, match=f"{expected}.*{received}"):
        consistency_loss(model, x, labels, "consistency()")


@pytest.mark.parametrize("spec", ["dropkey(p=0.3)", "dropkey(p=0.3)+consistency(weight=2.0)"])
def test_a_number_is_the_weight(model: nn.Module, x: Tensor, spec: str) -> None:
    attach(model, spec)
    result = consistency_loss(model, x, mean, 0.25)
    assert torch.equal(result.loss, result.task + 0.25 * result.divergence)


def test_a_number_must_not_be_ambiguous(model: nn.Module, x: Tensor) -> None:
    attach(model, "dropkey(p=0.3)+consistency(weight=2.0,views=3)")
    with pytest.raises(ad.ArgumentError, match=r"with other settings is attached \(.*views=3\)\), received 0\.25"):
        consistency_loss(model, x, mean, 0.25)


@pytest.mark.parametrize("keep", [slice(0, 1), 0])
@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_logits_of_sigmoids(model: nn.Module, x: Tensor, keep: Any, mode: Any) -> None:
    """The error says how to compare them, and that is the KL of the Bernoulli distributions."""
    attach(model, LATE)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:, 0, keep]

    with pytest.raises(ad.ArgumentError, match=r"two classes, received \[3(, 1)?\]: .*softmax.*last dimension.*views"):
        consistency_loss(Head(), x, mean, 0.5, mode)
    two = lambda y: torch.stack([torch.zeros_like(y), y], dim=-1)  # noqa: E731
    result = consistency_loss(Head(), x, mean, 0.5, mode, logits=two)
    first, second = (torch.distributions.Bernoulli(logits=output) for output in result.outputs)
    torch.testing.assert_close(result.divergence, torch.distributions.kl_divergence(first, second).mean())
    assert result.divergence > 0


def test_settings_of_the_attachment(model: nn.Module, x: Tensor) -> None:
    attach(model, {"encoder.layers.3.*": "dropkey(p=0.3)+consistency(weight=2.0,views=3)"})
    result = consistency_loss(model, x, mean)
    assert len(result.outputs) == 3
    assert torch.equal(result.loss, result.task + 2.0 * result.divergence)


class Twice(nn.Module):
    """A model around another that returns its output in some other form."""

    def __init__(self, model: nn.Module, form: Any) -> None:
        super().__init__()
        self.layers, self.form = nn.ModuleList([model]), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layers[0](x))


Pair = namedtuple("Pair", ["scores", "hidden"])


@dataclass
class Record:
    scores: Tensor
    count: int = 3


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_outputs_of_any_form(x: Tensor, mode: str) -> None:
    forms = [
        (lambda y: (y, 1), lambda out: out[0]),
        (lambda y: [y, None], lambda out: out[0]),
        (lambda y: {"logits": y}, None),
        (Record, lambda out: out.scores),
        (lambda y: Pair(y, {"deep": (y, "text")}), lambda out: out.hidden["deep"][0]),
    ]
    for form, logits in forms:
        model = Twice(build("encoder"), form)
        attach(model, "dropkey(p=0.3)")
        pick = logits or (lambda out: out["logits"])

        def task(output: Any) -> Tensor:
            return pick(output).mean()

        result = consistency_loss(model, x, task, "consistency()", mode, logits=logits)
        assert type(result.outputs[0]) is type(form(x)) and result.divergence > 0
        if logits is not None:
            with pytest.raises(ad.ArgumentError, match=r"logits: expected a function that picks the logits"):
                consistency_loss(model, x, task, "consistency()", mode)


@pytest.mark.parametrize("mode, advice", [("batch", '"sequential"$'), ("shared", '"sequential", or mode="batch"')])
def test_an_output_without_rows(x: Tensor, mode: str, advice: str) -> None:
    model = Twice(build("encoder"), lambda y: y.mean((0, 1)))
    attach(model, "dropkey(p=0.3)")
    with pytest.raises(ad.AttentionDropError, match=rf"no tensor with the 6 rows of 2 views of 3 samples: .*{advice}"):
        views(model, x, mode=mode)


def test_views_that_cannot_differ(model: nn.Module, x: Tensor) -> None:
    with pytest.raises(ad.ArgumentError, match=r"received Classifier whose views are identical: attach a spec"):
        consistency_loss(model, x, mean, "consistency()")
    with pytest.raises(ad.AttentionDropError, match=r'"shared" expected attached sites, found none'):
        consistency_loss(model, x, mean, "consistency()", "shared")
    attach(model, LATE)
    with pytest.raises(ad.ArgumentError, match=r"identical: it is in evaluation mode, call model.train\(\)"):
        consistency_loss(model.eval(), x, mean, "consistency()")


def test_dropout_alone_is_r_drop(x: Tensor) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 2)
    assert ad.r_drop(2.0) == ad.Consistency(2.0, direction="symmetric", task="mean")
    for mode in ("batch", "sequential"):
        result = consistency_loss(model, x, mean, ad.r_drop(), mode)
        a, b = (torch.log_softmax(output, -1) for output in result.outputs)
        expected = ((a.exp() - b.exp()) * (a - b)).sum(-1).mean() / 2
        torch.testing.assert_close(result.divergence, expected)
        torch.testing.assert_close(result.task, (result.outputs[0].mean() + result.outputs[1].mean()) / 2)


def test_randomness_that_is_not_known(x: Tensor) -> None:
    """No site and no dropout, but the views do differ."""

    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x))

    assert consistency_loss(Noisy(16, 4).double(), x, mean, "consistency()").divergence > 0


@pytest.mark.parametrize("where, modes", [("before", ["batch"]), ("after", ["batch", "shared"])])
def test_batch_norm(x: Tensor, where: str, modes: list[str]) -> None:
    norm = nn.BatchNorm1d(6).double()
    encoder = build("encoder").encoder
    model = nn.Sequential(norm, encoder) if where == "before" else nn.Sequential(encoder, norm)
    attach(model, {"*layers.3.*": "dropkey(p=0.3)"})
    for mode in modes:
        ad.errors.forget_warnings()
        with pytest.warns(ad.AttentionDropWarning, match=r"takes its statistics over all views together"):
            views(model, x, mode=mode)
    # Nothing is said of these, though nothing has been said before.
    ad.errors.forget_warnings()
    if where == "before":
        views(model, x, mode="shared")
    views(model, x, mode="sequential")
    views(model.eval(), x, mode="batch")


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_labels_inside_the_inputs(mode: Any) -> None:
    model = hugging("BertForSequenceClassification", **BERT).train()
    attach(model, "dropkey(p=0.3)")
    inputs = text() | {"labels": torch.zeros(BATCH, dtype=torch.long)}
    before = torch.get_rng_state()
    with pytest.raises(
        ad.AttentionDropError, match=rf"inputs: expected no labels with mode=\"{mode}\", received 'lab"
    ) as e:
        # (Also where the loss has no name in the output.)
        consistency_loss(model, {**inputs, "return_dict": False}, lambda out: out[0], "consistency()", mode)
    assert "decoder_input_ids" not in str(e.value)
    assert torch.equal(torch.get_rng_state(), before), "refused before the model runs"
    result = consistency_loss(model, inputs, lambda out: out.loss, "consistency()", "sequential")
    assert result.loss.isfinite()


def test_labels_of_an_encoder_decoder() -> None:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    model = hugging("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0, dropout_rate=0.0).train()
    attach(model, "dropkey(p=0.3)")
    with pytest.raises(
        ad.AttentionDropError, match=r"Then give decoder_input_ids=model\.prepare_decoder_input_ids_from"
    ):
        views(model, {"input_ids": tokens(), "labels": tokens()})
    inputs = {"input_ids": tokens(), "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(tokens())}
    assert len(views(model, inputs)) == 2


class OwnLoss(nn.Module):
    """A model of a user's own that returns its loss beside its logits, as nanoGPT does."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.encoder(x)[:, 0]
        return logits if targets is None else (logits, nn.functional.cross_entropy(logits, targets))


@pytest.mark.parametrize("positional", [False, True])
def test_a_loss_of_all_views_without_a_name(x: Tensor, positional: bool) -> None:
    model = OwnLoss().double().train()
    attach(model, "dropkey(p=0.3)")
    targets = torch.zeros(len(x), dtype=torch.long)
    inputs = (x, targets) if positional else {"x": x, "targets": targets}
    with pytest.raises(ad.AttentionDropError, match=r"inputs: expected no labels.*\('targets' is among the inputs\)"):
        views(model, inputs, mode="batch")
    with pytest.raises(ValueError, match="batch_size") as found:
        views(model, inputs, mode="shared")
    assert any("leave them out of inputs" in note for note in found.value.__notes__)
    assert len(views(model, x)) == len(views(model, inputs, mode="sequential")) == 2


def test_models_that_shared_cannot_do(x: Tensor) -> None:
    model = hugging("GPT2ForSequenceClassification", **GPT2, num_labels=3).train()
    attach(model, {"*.h.3.*": "dropkey(p=0.3)"})
    # It picks rows by the size of its inputs: the first view alone, with a cache that has all of them.
    for logits in (None, lambda out: 2 * out.logits):
        with pytest.raises(ad.AttentionDropError, match=r'logits: .* received the same for all views.*"batch"'):
            consistency_loss(model, {"input_ids": tokens()}, mean, "consistency()", "shared", logits=logits)
    assert consistency_loss(model, {"input_ids": tokens()}, mean, "consistency()", "batch").divergence > 0

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x, x, x, need_weights=False)[0]
            return x

    model = Residual().double()
    attach(model, "dropkey(p=0.3)")
    with pytest.raises(RuntimeError) as caught:
        views(model, x, mode="shared")
    assert "Residual may use the batch of one view (3) together with that of 2 (6)" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError) as caught:
        views(model, x[..., :5], mode="batch")
    assert not hasattr(caught.value, "__notes__")
    alone = nn.TransformerEncoderLayer(16, 2, batch_first=True).double()
    attach(alone, "dropkey(p=0.3)")
    with pytest.raises(ad.AttentionDropError, match=r"the site 'self_attn' is in no list of layers"):
        views(alone, x, mode="shared")


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("pool", [lambda h, n: h[torch.arange(n), -1], lambda h, n: h.reshape(n, -1, 16).mean(1)])
def test_rows_picked_by_the_size_of_the_inputs_before_the_last_layer(x: Tensor, pool: Any, frozen: bool) -> None:
    """That layer would get the rows of the first view, or mixed ones, and have them repeated for all views."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), 2)
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(pool(self.encoder(x), len(x)))

    model = Pooled().double()
    model.encoder.layers[0].requires_grad_(not frozen)
    attach(model, {"encoder.layers.1.*": "dropkey(p=0.3)"})
    with pytest.raises(ad.AttentionDropError, match=r"the batch of all views \(6\).* of shape \[3, 16\].*\"batch\""):
        views(model, x, mode="shared")
    assert consistency_loss(model, x, mean, 0.5, "batch").divergence > 0


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_a_batch_that_does_not_come_first(mode: str) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=False).double()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    attach(model, "dropkey(p=0.3)")
    with pytest.raises(ad.AttentionDropError, match=r"the batch must come first in the inputs"):
        views(model, floats(6, 4, 16), mode=mode)
    assert len(views(model, floats(6, 4, 16), mode="sequential")) == 2


def test_masks_of_batch_and_heads(model: nn.Module, x: Tensor) -> None:
    attach(model, LATE)
    mask = torch.zeros(BATCH * 4, 6, 6, dtype=torch.bool)
    mask[:4, :, 3:] = True
    torch.manual_seed(1)
    first, _ = views(model, {"x": x, "mask": mask})
    torch.manual_seed(1)
    padding = torch.zeros(BATCH, 6, dtype=torch.bool)
    padding[0, 3:] = True
    torch.testing.assert_close(first, views(model, {"x": x, "src_key_padding_mask": padding})[0])
    with pytest.raises(ad.AttentionDropError, match=r"cannot tell whether (src_)?mask of shape"):
        views(model, {"x": x, "mask": mask}, mode="shared")


def test_data_parallel(model: nn.Module, x: Tensor) -> None:
    attach(model, LATE)
    with pytest.raises(ad.AttentionDropError, match=r'expected "sequential" for a model in nn.DataParallel'):
        views(nn.DataParallel(model), x)


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_caches(mode: str) -> None:
    """What a model keeps of earlier tokens is repeated with the batch, whether it was given or is being made."""
    model = build("gpt2")
    attach(model, {"*.h.3.*": "dropkey(p=0.4)"})
    ids = tokens(7)
    model.eval()
    with torch.no_grad():
        caches = [model(input_ids=ids[:, :4]).past_key_values for _ in range(2)]
    model.train()
    torch.manual_seed(1)
    inputs = {"input_ids": ids[:, 4:], "past_key_values": caches[0]}
    found = views(model, inputs, mode=mode)
    assert found[0].past_key_values.layers[3].keys.shape[0] == BATCH
    torch.manual_seed(1)
    other_mode = "batch" if mode == "shared" else "shared"
    expected = views(model, inputs | {"past_key_values": caches[1]}, mode=other_mode)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.logits, other.logits)
    assert not torch.allclose(found[0].logits, found[1].logits)


def test_a_cache_of_an_encoder_and_a_decoder() -> None:
    model = build("t5 decoder")
    attach(model, {"decoder.block.2.*": "dropkey(p=0.4)"})
    for mode in ("batch", "shared"):
        found = views(model, CASES["t5 decoder"].inputs() | {"use_cache": True}, mode=mode)
        assert found[0].past_key_values.cross_attention_cache.layers[2].keys.shape[0] == BATCH


def test_a_model_of_its_own_layers() -> None:
    """A single layer in a list is a block too."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    model = nn.Sequential(nn.Linear(16, 16).double(), nn.TransformerEncoder(layer, 1))
    attach(model, "dropkey(p=0.4)")
    rows: list[int] = []
    model[0].register_forward_hook(lambda _, args, out: rows.append(len(out)))
    assert len(views(model, floats(4, 5, 16), mode="shared")) == 2 and rows == [4]

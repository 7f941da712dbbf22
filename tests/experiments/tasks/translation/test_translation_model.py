"""The encoder-decoder: padding, causality, ties, and what `attach` makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attentiondrop.errors import ShapeError
from attentiondrop.experiments.tasks.text.subwords import PAD
from attentiondrop.experiments.tasks.translation.encoder_decoder import EncoderDecoder, Residual, sinusoids
from attentiondrop.torch import attach

SOURCE = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
TARGET = torch.tensor([[1, 9, 4], [1, 3, 0]])


def model(pre: bool = False, **arguments) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(12, 2, 16, 32, 4, pre=pre, **arguments)


@pytest.mark.parametrize("pre", [False, True])
def test_padding_and_later_words_have_no_influence(pre: bool) -> None:
    net = model(pre).eval()
    with torch.no_grad():
        both = net(SOURCE, TARGET)
        alone = net(SOURCE[1:, :2], TARGET[1:, :2])
        torch.testing.assert_close(both[1:, :2], alone)
        changed = TARGET.clone()
        changed[0, 2] = 7
        torch.testing.assert_close(net(SOURCE, changed)[0, :2], both[0, :2])
        assert not torch.equal(net(SOURCE, changed)[0, 2], both[0, 2])


def test_one_embedding_is_source_target_and_output() -> None:
    net = model()
    assert sum(12 in parameter.shape for parameter in net.parameters()) == 1
    assert "positions" not in net.state_dict()
    net(SOURCE, TARGET).sum().backward()
    assert net.embedding.weight.grad is not None and net.embedding.weight[PAD].eq(0).all()


def test_attached_by_kind_evaluation_stays_bitwise() -> None:
    net = model(dropout=0.0)
    plain = net.eval()(SOURCE, TARGET)
    keys = net.state_dict().keys()
    attachment = attach(net, "hard(p=0.5,k=4)")
    assert [site.kind for site in attachment.sites] == ["encoder"] * 2 + ["decoder", "cross"] * 2
    assert torch.equal(net.eval()(SOURCE, TARGET), plain) and net.state_dict().keys() == keys
    assert not torch.equal(net.train()(SOURCE, TARGET), plain)
    attachment.remove()
    for kind, count in (("encoder", 2), ("decoder", 2), ("cross", 2)):
        with attach(net, "hard(p=0.5,k=4)", kinds=kind) as chosen:
            assert len(chosen.sites) == count
            assert not torch.equal(net.train()(SOURCE, TARGET), plain)
            assert torch.equal(net.eval()(SOURCE, TARGET), plain)


def test_rates_and_sizes() -> None:
    net = model(dropout=0.25, drop_path=0.2)
    dropouts = [module.p for module in net.modules() if isinstance(module, torch.nn.Dropout)]
    assert set(dropouts) == {0.25} and len(dropouts) == 1 + 2 * 2 + 3 * 2
    assert {round(module.drop_prob, 3) for module in net.modules() if hasattr(module, "drop_prob")} == {0.2}
    with pytest.raises(ShapeError, match="a sentence: expected at most 4096 subwords, received 4097"):
        net(torch.full((1, 4097), 3), TARGET[:1])


def test_positions_are_those_of_fairseq() -> None:
    found = sinusoids(3, 6)
    rates = [1.0, 10_000**-0.5, 10_000**-1.0]
    expected = [
        [torch.tensor(p * r).sin() for r in rates] + [torch.tensor(p * r).cos() for r in rates] for p in range(3)
    ]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_dropout_drops_what_sublayers_add_and_nothing_else() -> None:
    net = model(pre=True, dropout=0.0).train()
    for module in net.modules():
        if isinstance(module, Residual):
            module.dropout.p = 1.0
    memory, _ = net.encode(SOURCE)
    torch.testing.assert_close(memory, net.encoder_norm(net.embedding(SOURCE) * 4 + sinusoids(4, 16)))
    alone = net.decoder_norm(net.embedding(TARGET) * 4 + sinusoids(3, 16))
    torch.testing.assert_close(net(SOURCE, TARGET), alone @ net.embedding.weight.T)


def torch_layer(ours: nn.Module, pre: bool) -> nn.Module:
    """The layer of torch with the weights of ours."""
    attentions, norms, kind = {"self_attn": ours.attention}, [ours.first, ours.second], nn.TransformerEncoderLayer
    if hasattr(ours, "third"):
        attentions["multihead_attn"] = ours.cross_attention
        norms, kind = [*norms, ours.third], nn.TransformerDecoderLayer
    parts: dict[str, nn.Module] = {"linear1": ours.feedforward[0], "linear2": ours.feedforward[2]}
    parts |= {f"norm{number}": norm.norm for number, norm in enumerate(norms, start=1)}
    parts |= {f"{name}.out_proj": one.output for name, one in attentions.items()}
    state = {f"{place}.{name}": value for place, part in parts.items() for name, value in part.state_dict().items()}
    for name, one in attentions.items():
        for what in ("weight", "bias"):
            state[f"{name}.in_proj_{what}"] = torch.cat([getattr(one.queries, what), getattr(one.keys_values, what)])
    layer = kind(16, 4, 32, dropout=0.0, batch_first=True, norm_first=pre)
    layer.load_state_dict(state)
    return layer


@pytest.mark.parametrize("pre", [False, True])
def test_it_computes_what_the_layers_of_torch_compute(pre: bool) -> None:
    net = model(pre, dropout=0.0)
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))  # biases and scales, too

    def embedded(tokens: torch.Tensor) -> torch.Tensor:
        return net.embedding(tokens) * 4 + sinusoids(tokens.shape[1], 16)

    memory, padding = embedded(SOURCE), SOURCE == PAD
    for layer in net.encoder:
        memory = torch_layer(layer, pre)(memory, src_key_padding_mask=padding)
    x, memory = embedded(TARGET), net.encoder_norm(memory)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    for layer in net.decoder:
        x = torch_layer(layer, pre)(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    torch.testing.assert_close(net(SOURCE, TARGET), net.decoder_norm(x) @ net.embedding.weight.T)

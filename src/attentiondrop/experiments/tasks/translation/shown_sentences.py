"""What a report shows of a translation model: some translations, and the attention for one sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from ....errors import AttentionDropError
from ....specs import Spec
from ....torch import AttentionDrop
from ..exhibits import AttentionMap, Examples, Exhibits
from .encoder_decoder import Attention, EncoderDecoder
from .sentence_pairs import SentencePairs
from .translating import translate
from .translation_settings import SearchSettings

#: How many sentences a table shows.
_SENTENCES = 8


def exhibits(model: EncoderDecoder, data: SentencePairs, settings: SearchSettings, spec: Spec | None) -> Exhibits:
    """Translations of the first validation sentences, and a map of each kind of attention for the first one."""
    texts = data.parts["validation"].texts
    translations = translate(model, data, "validation", settings)
    rows = tuple(zip(texts.source, texts.target, translations, strict=True))[:_SENTENCES]
    languages = f"from {data.settings.source} to {data.settings.target}"
    table = Examples(f"Translations {languages}", ("Source", "Reference", "Translation"), rows)
    return Exhibits((table,), tuple(attention_maps(model, data, spec)))


@torch.no_grad()
def attention_maps(model: EncoderDecoder, data: SentencePairs, spec: Spec | None) -> list[AttentionMap]:
    """The first head of the last layer, for the first validation sentence and its reference."""
    source, target = data.sentence("validation", 0)
    modules = {
        "Self-attention of the encoder": model.encoder[-1].attention,
        "Self-attention of the decoder": model.decoder[-1].attention,
        "Attention of the decoder to the source": model.decoder[-1].cross_attention,
    }
    looks: dict[Attention, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(_noting(looks), with_kwargs=True)  # type: ignore[union-attr]
        for module in modules.values()
    ]
    was = model.training
    try:
        model.eval()(source, target)
    finally:
        model.train(was)
        for handle in handles:
            handle.remove()
    here, there = (tuple(data.subwords.texts(line[0].tolist())) for line in (source, target))
    found, sites = [], len(model.encoder) + 2 * len(model.decoder)
    for title, module in modules.items():
        kind = module.attention_kind  # type: ignore[union-attr]
        queries, keys = here if kind == "encoder" else there, there if kind == "decoder" else here
        logits = looks[module]  # type: ignore[index]
        before = AttentionDrop("hard").eval()(logits, is_causal=kind == "decoder")
        # Sites are counted as `attach` finds them: the encoder, then both of each layer of the decoder.
        site = {"encoder": len(model.encoder) - 1, "decoder": sites - 2, "cross": sites - 1}[str(kind)]
        after, why = _perturbed(logits, spec, kind == "decoder", site, sites)
        drawn = None if after is None else _plain(after)
        found.append(AttentionMap(title + why, queries, keys, _plain(before), drawn, str(kind)))
    return found


def _noting(looks: dict[Attention, Tensor]):  # type: ignore[no-untyped-def]
    def note(module: Attention, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x, source = args[0], args[1] if len(args) > 1 else None
        queries = module._split(module.queries(x))
        keys = module.look(x if source is None else source).keys
        looks[module] = queries @ keys.mT / queries.shape[-1] ** 0.5

    return note


def _perturbed(logits: Tensor, spec: Spec | None, causal: bool, site: int, sites: int) -> tuple[Tensor | None, str]:
    """The weights as in the last step of training, and why there are none, if there are none."""
    if spec is None:
        return None, ""
    with torch.random.fork_rng(devices=[logits.device] if logits.device.type == "cuda" else []):
        torch.manual_seed(0)
        try:
            return AttentionDrop(spec.at(1.0, site, sites)).train()(logits, is_causal=causal), ""
        except AttentionDropError as error:  # some specs cannot act on logits alone
            return None, f" (the method is not shown: {error})"


def _plain(weights: Tensor) -> tuple[tuple[float, ...], ...]:
    """The first head of the first sample, with three digits."""
    return tuple(tuple(round(value, 3) for value in row) for row in weights[0, 0].tolist())

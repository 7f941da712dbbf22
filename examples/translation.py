"""Translation with an encoder and decoder of transformers (BART, new weights): perturb only the cross-attention.

    python examples/translation.py --spec "hard(p=0.1,k=3)" --kinds cross

The language is invented: the words of a sentence in reverse order, each with another number. Greedy decoding, scored
by the share of words that are right. Half a minute on one core.
"""

import argparse

import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration

from attentiondrop.torch import attach

PAD, BEGIN, END, WORDS, LONGEST = 0, 1, 2, 20, 6


def pairs(count: int) -> tuple[Tensor, Tensor]:
    """Sentences of 3 to 6 words [count, 7] and their translations, padded."""
    source = torch.randint(3, WORDS, (count, LONGEST + 1))
    target = source.clone()
    for row, length in enumerate(torch.randint(3, LONGEST + 1, (count,)).tolist()):
        target[row, :length] = 3 + (source[row, :length].flip(0) + 4) % (WORDS - 3)
        source[row, length], target[row, length] = END, END
        source[row, length + 1 :], target[row, length + 1 :] = PAD, PAD
    return source, target


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="hard(p=0.1,k=3)")
parser.add_argument("--kinds", nargs="+", default=["cross"], choices=("encoder", "decoder", "cross"))
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
torch.manual_seed(0)
size = {f"{part}_{name}": value for part in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))}  # fmt: skip
marks = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END, "decoder_start_token_id": BEGIN}
none = {"dropout": 0.0, "forced_eos_token_id": None, "max_position_embeddings": 16}
model = BartForConditionalGeneration(BartConfig(vocab_size=WORDS, d_model=48, **size, **marks, **none))
print(attach(model, options.spec, kinds=options.kinds))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(options.steps):
    source, target = pairs(64)
    labels = target.masked_fill(target == PAD, -100)
    loss = model.train()(input_ids=source, attention_mask=(source != PAD).long(), labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
source, target = pairs(200)
mask = (source != PAD).long()
found = model.eval().generate(source, attention_mask=mask, max_new_tokens=LONGEST + 1, num_beams=1, do_sample=False)
found = torch.nn.functional.pad(found[:, 1:], (0, LONGEST + 1), value=PAD)[:, : LONGEST + 1]
words = target > END
print(f"{options.spec}: loss {loss.item():.3f}, {100 * (found == target)[words].float().mean():.1f} % of words right")
print(f"source {source[0].tolist()}\nfound  {found[0].tolist()}\nright  {target[0].tolist()}")

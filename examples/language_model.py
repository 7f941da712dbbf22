"""A language model of transformers (GPT-2, new weights) with AttentionDrop under its causal mask.

    python examples/language_model.py --spec "blur(sigma_max=0.5)"

The text is a rhyme in many orders, read by characters. The example prints the perplexity of unseen lines and a
continuation. `generate` runs in eval mode, so that nothing is perturbed. Half a minute on one core.
"""

import argparse
import random

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attentiondrop.torch import attach

NAMES, VERBS, THINGS = ("anna", "ben", "clara"), ("sees", "finds", "likes"), ("a red cat", "a blue boat", "the sea")
LETTERS = "\n abcdefghijklmnopqrstuvwxyz."
BLOCK = 48


def text(lines: int, seed: int) -> Tensor:
    """The numbers of the letters of some random lines."""
    draw = random.Random(seed)
    parts = (NAMES, VERBS, THINGS)
    written = "".join(" ".join(draw.choice(words) for words in parts) + ".\n" for _ in range(lines))
    return torch.tensor([LETTERS.index(letter) for letter in written])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="blur(sigma_max=0.5)")
parser.add_argument("--steps", type=int, default=150)
options = parser.parse_args()
torch.manual_seed(0)
size = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}
plain = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
ends = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(LETTERS), **size, **plain, **ends))
print(attach(model, options.spec))
optimizer, tokens = torch.optim.AdamW(model.parameters(), lr=3e-3), text(500, seed=0)
for _ in range(options.steps):
    starts = torch.randint(len(tokens) - BLOCK, (16, 1))
    window = tokens[starts + torch.arange(BLOCK)]
    loss = model.train()(input_ids=window, labels=window).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
unseen = text(60, seed=1)[: 10 * BLOCK].view(10, BLOCK)
with torch.no_grad():
    loss = model.eval()(input_ids=unseen, labels=unseen).loss
print(f"{options.spec}: perplexity {loss.exp().item():.2f} of {len(LETTERS)} letters")
begin = torch.tensor([[LETTERS.index(letter) for letter in "\nclara "]])
found = model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=24, do_sample=False)
print("".join(LETTERS[number] for number in found[0]).strip())

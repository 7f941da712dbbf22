"""What lists of methods say about each spec: what it perturbs, what it computes in one line, who published it."""

from __future__ import annotations

from typing import NamedTuple


class Described(NamedTuple):
    """The texts of one spec. S are the logits, A = softmax(S), both [heads, queries, keys]."""

    perturbs: str
    formula: str
    reference: str


OURS = "AttentionDrop"

SPECS = {
    "hard": Described(
        "logits", "each of the k largest logits of a row is set to 0 (-inf if `fill=-inf`) with probability p", OURS
    ),
    "blur": Described(
        "logits",
        "S is convolved along the keys with a Gaussian of standard deviation sigma ~ U(sigma_min, sigma_max), cut to "
        "`width` keys",
        OURS,
    ),
    "noise": Described("logits", "S + sigma * N(0, 1), for each element", "Gaussian noise: a common control"),
    "temperature": Described(
        "logits", "S * exp(sigma * N(0, 1)), one draw for each head of a sample", "a common control"
    ),
    "dropkey": Described(
        "logits, before the softmax",
        "S = -inf with probability p, drawn for each element or for each column",
        "Li et al. 2022, DropKey",
    ),
    "attndropout": Described(
        "attention weights",
        "A * Bernoulli(1 - p) / (1 - p), for each element",
        "Vaswani et al. 2017, Attention Is All You Need",
    ),
    "drophead": Described(
        "heads",
        "the output of a head is 0 with probability p; kept outputs are divided by the share of kept heads",
        "Zhou et al. 2020, Scheduled DropHead",
    ),
    "dropattention": Described(
        "attention weights",
        "A * mask / (A * mask).sum(keys), masked by element or by column",
        "Zehui et al. 2019, DropAttention",
    ),
    "headmask": Described(
        "heads",
        "the outputs of `count` heads are 0: random heads, or the heads with the largest mean |gradient x output|",
        "Sun et al. 2020, Alleviating the Inequality of Attention Heads",
    ),
    "consistency": Described(
        "the loss",
        "task loss + weight * KL between the predictions of two passes",
        f"{OURS}; Liang et al. 2021, R-Drop",
    ),
}

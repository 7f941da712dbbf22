"""Attention with hard masking, DropKey, noise and drops of weights on any device, a block of logits at a time.

It computes what `attentiondrop.torch.eager.attention` computes, with the same draws, while no more than `BUDGET` logits
exist at once. The backward makes each block again by the same operations, so it finds the same logits and the same
decisions. Autograd does not record this code and compilers do not trace it, so on a CPU branches may depend on data. On
other devices nothing waits for a value: a graph that is captured could not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...specs.after_softmax import LEAST_SHARE
from ..call.decisions import Decisions, output_like
from ..call.inputs import laid_out
from ..call.leaves import LogitShape
from ..call.visibility import in_window
from ..draws import Stream, Words
from ..eager import regularisers
from ..eager.regularisers import Rate
from .largest_of_rows import largest

#: The most logits that a block has: few enough for the last cache of a CPU, enough for efficient matrix products.
BUDGET = 2**20
#: The same for other devices, which need more work at once: 32 MiB in float32.
DEVICE_BUDGET = 2**23
#: Rows of a block under a narrow window: with fewer, bookkeeping would take most of the time.
_FEWEST_ROWS = 256

#: What the four entries of `rates`, `streams` and `gates` are for.
NOISE, DROP, DROPOUT, DROPOUT_P = range(4)


class Block(NamedTuple):
    """A box of logits: some samples, query heads and rows, and the range of keys that any of these rows can see."""

    samples: slice
    heads: slice
    rows: slice
    columns: slice

    @property
    def keys(self) -> int:
        """How many keys it has."""
        return int(self.columns.stop - self.columns.start)

    def queries(self, x: Tensor) -> Tensor:
        """The part of a tensor [B, H, N, ...]."""
        return x[self.samples, self.heads, self.rows]

    def of_keys(self, x: Tensor, group: int) -> Tensor:
        """The part of a tensor [B, Hk, M, ...] whose heads serve `group` query heads each."""
        return x[self.samples, self.heads.start // group : -(-self.heads.stop // group), self.columns]

    def pairs(self, x: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to [B, H, N, M]."""
        return _cut(x, self)

    def of_heads(self, x: Tensor) -> Tensor:
        """The part of a tensor [B or 1, H or 1, ...]."""
        return _cut(x, self[:2])


def _cut(x: Tensor, cuts: Sequence[slice]) -> Tensor:
    """The part of `x` in the first dimensions; those of size 1 stay as they are."""
    return x[tuple(slice(None) if size == 1 else cut for size, cut in zip(x.shape, cuts, strict=False))]


def blocks(
    shape: LogitShape, group: int, is_causal: bool, window: tuple[int, int] | None = None, budget: int | None = None
) -> Iterator[Block]:
    """Blocks of at most `BUDGET` logits (but never less than a row), as large as they can be."""
    batch, heads, rows, columns = shape
    budget = BUDGET if budget is None else budget
    some_rows, logits = min(rows, max(1, budget // columns)), rows * columns
    if window is not None:
        # A block of n rows sees n keys more than a row. With many rows, most of its logits would be hidden ones.
        width = min(columns, sum(window) + 1)
        some_rows = min(rows, max(1, budget // (2 * width)), max(_FEWEST_ROWS, width))
        logits = some_rows * min(columns, width + some_rows)
    some_heads = min(heads, max(1, budget // logits))
    # Query heads that share keys stay together, or are taken one by one.
    some_heads = some_heads // group * group or 1
    some_samples = min(batch, max(1, budget // (heads * logits)))
    for sample in range(0, batch, some_samples):
        for head in range(0, heads, some_heads):
            for row in range(0, rows, some_rows):
                end = min(row + some_rows, rows)
                first, last = 0, min(end, columns) if is_causal else columns
                if window is not None:
                    # At least one key, so that a block is never empty. The window hides it.
                    first = max(0, min(row - window[0], columns - 1))
                    last = max(first + 1, min(last, end + window[1]))
                yield Block(
                    slice(sample, min(sample + some_samples, batch)),
                    slice(head, min(head + some_heads, heads)),
                    slice(row, end),
                    slice(first, last),
                )


class Dropped(NamedTuple):
    """Dropped places of a block: where `decided` is True, at the `indices` of each row, or at every key if None."""

    decided: Tensor
    indices: Tensor | None

    def fill_(self, x: Tensor, value: float) -> Tensor:
        """Write `value` to the dropped places of `x`."""
        if self.indices is None:
            return x.masked_fill_(self.decided, value)
        return x.scatter_(-1, self.indices, x.gather(-1, self.indices).masked_fill_(self.decided, value))


class Perturbed(NamedTuple):
    """Logits of a block after noise and drop, -inf where hidden, with each row's largest one.

    `dropped` is None or what was set to zero. It gets no gradient.
    """

    logits: Tensor
    peak: Tensor
    dropped: Dropped | None

    def weights(self, space: Tensor) -> Tensor:
        """Softmax over what is visible. It is written to `space`, unless some row sees no key."""
        seeing = self.peak != -torch.inf  # a row with NaN counts as seeing, so that the NaN reaches the output
        if _at_hand(seeing) and bool(seeing.all()):
            return torch.softmax(self.logits, dim=-1, out=space)
        return regularisers.masked_softmax(self.logits, seeing)


class Problem:
    """The arguments of one call, with everything that is made once for all blocks."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, decisions: Decisions) -> None:
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.shape = LogitShape(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        self.group = q.shape[1] // max(k.shape[1], 1)
        self.q, self.k, self.v = q, k.to(self.dtype).contiguous(), v.to(self.dtype).contiguous()
        self.visible, self.bias = _compact(decisions.visible), _compact(decisions.bias)
        self.drop, self.top, self.dropout = decisions.drop, decisions.top, decisions.dropout
        self.is_causal, self.scale = decisions.is_causal, decisions.scale
        self.window, self.table = decisions.window, decisions.blocks
        self.kernel, self.renormalize = decisions.kernel, decisions.renormalize
        gates, rates, streams = decisions.gates, decisions.rates, decisions.streams
        self.rates: dict[int, Rate] = {}
        self.words: dict[int, Words] = {}
        for slot in (NOISE, DROP, DROPOUT, DROPOUT_P):
            idle = slot == DROP and not decisions.drop
            if streams[slot] < 0 or idle or (gates is None and rates[slot] == 0):
                continue
            self.rates[slot] = rates[slot] if gates is None else gates[slot].to(self.dtype) * rates[slot]
            self.words[slot] = self.words_of(slot, Stream(decisions.seed, streams[slot]))

        self.spaces: dict[str, Tensor] = {}
        #: Whether a logit may be NaN or infinite. Checked on the inputs, which are smaller than the logits.
        self.doubtful = not _at_hand(q) or not all(
            bool(x.sum(dtype=self.dtype).isfinite()) for x in (self.q, self.k, self.bias) if x is not None
        )

    def words_of(self, slot: int, stream: Stream) -> Words:
        """The words of all draws of a slot."""
        batch, heads, _, columns = self.shape
        by_column = self.drop == "column" if slot == DROP else slot == DROPOUT and self.dropout.by_column
        words = stream.vector_words(batch, heads, columns) if by_column else stream.words(*self.shape)
        span = self.dropout.span if slot == DROPOUT else 1
        return words._replace(column=regularisers.by_block(words.column, span))

    def space(self, name: str, *shape: int) -> Tensor:
        """A tensor with any content, which the blocks use in turn: new memory for each block would cost time."""
        length = math.prod(shape)
        if name not in self.spaces or self.spaces[name].numel() < length:
            self.spaces[name] = torch.empty(length, dtype=self.dtype, device=self.q.device)
        return self.spaces[name][:length].view(shape)

    @property
    def empty(self) -> bool:
        """Whether there is no logit at all."""
        return 0 in self.shape

    def blocks(self) -> Iterator[Block]:
        """The blocks that make up the logits."""
        budget = BUDGET if _at_hand(self.q) else DEVICE_BUDGET
        return blocks(self.shape, self.group, self.is_causal, self.window, budget)

    def keys(self, block: Block) -> Tensor:
        """Keys of the heads of a block, [b, hk, m, D]."""
        return block.of_keys(self.k, self.group)

    def values(self, block: Block) -> Tensor:
        """Values of the heads of a block, [b, hk, m, E]."""
        return block.of_keys(self.v, self.group)

    def fold(self, x: Tensor, block: Block) -> Tensor:
        """A part [b, h, n, ...] with the rows of heads that share keys below one another: [b, hk, h / hk * n, ...]."""
        x = block.queries(x).to(self.dtype)
        together = self.group if x.shape[1] > 1 else 1
        return x.reshape(x.shape[0], x.shape[1] // together, together * x.shape[2], x.shape[3])

    def scaled_queries(self, block: Block) -> Tensor:
        """Queries of a block, folded, times the scale."""
        return self.fold(self.q, block) * self.scale

    def draws(self, slot: int, block: Block) -> Words:
        """The words of a block's draws."""
        line, column = self.words[slot]
        return Words(block.pairs(line), column[block.columns] if column.ndim == 1 else block.pairs(column))

    def logits(self, q: Tensor, block: Block) -> Tensor:
        """Logits [b, h, n, m] of folded and scaled queries, -inf where a key is hidden."""
        logits = torch.matmul(q, _transposed(self.keys(block)), out=self.space("logits", *q.shape[:3], block.keys))
        logits = logits.view(-1, block.heads.stop - block.heads.start, block.rows.stop - block.rows.start, block.keys)
        if self.bias is not None:
            logits += block.pairs(self.bias)
        if self.visible is not None:
            visible = block.pairs(self.visible)
            if visible.numel() < logits.numel() and not self.doubtful:
                # Adding -inf is faster than filling, if the mask is smaller than the logits. It would not hide a NaN.
                logits += torch.zeros_like(visible, dtype=self.dtype).masked_fill_(~visible, -torch.inf)
            else:
                logits.masked_fill_(~visible, -torch.inf)
        first = block.rows.start - block.columns.start
        if self.is_causal and first + 1 < block.keys:
            rest = logits[..., first + 1 :]
            future = torch.ones(rest.shape[-2:], dtype=torch.bool, device=rest.device).triu()
            rest.masked_fill_(future, -torch.inf)
        if self.window is not None or self.table is not None:
            rows, columns = (
                torch.arange(cut.start, cut.stop, device=logits.device) for cut in (block.rows, block.columns)
            )
            if self.window is not None:
                logits.masked_fill_(~in_window(self.window, rows, columns), -torch.inf)
            if self.table is not None:
                seen = self.table._replace(states=block.of_heads(self.table.states)).visible(rows, columns)
                logits.masked_fill_(~seen, -torch.inf)
        return logits if self.kernel is None else self.blurred(logits, block.of_heads(self.kernel))

    def blurred(self, logits: Tensor, kernel: Tensor) -> Tensor:
        """The logits blurred along the keys, -inf where they are hidden."""
        visible = logits != -torch.inf  # also where they are NaN, so that it reaches the output
        edges = "renormalize" if self.renormalize else "zero"
        blurred, _ = regularisers.blur_smoothing(logits, visible, kernel, "keys", edges)
        return blurred.masked_fill_(~visible, -torch.inf)

    def blurred_backward(self, gradient: Tensor, visible: Tensor, kernel: Tensor) -> Tensor:
        """The gradient of the logits before the blur, from that after it."""
        if self.renormalize:
            gradient = gradient / regularisers.blurred_visibility(visible, gradient, kernel, -1)
        # The weights of a blur are symmetric, so its transpose is the blur itself.
        return regularisers.convolve(gradient, kernel, -1).masked_fill_(~visible, 0.0)

    def perturbed(self, logits: Tensor, block: Block) -> Perturbed:
        """Noise, then the drop."""
        if NOISE in self.rates:
            normals = self.draws(NOISE, block).normals().to(self.dtype)
            logits = regularisers.gaussian_noise(logits, normals, self.rates[NOISE])
        if DROP not in self.rates:
            return Perturbed(logits, logits.amax(dim=-1, keepdim=True), None)
        dropped = self.dropped(logits, block)
        if self.drop == "zero":
            dropped.fill_(logits, 0.0)
            return Perturbed(logits, logits.amax(dim=-1, keepdim=True), dropped)
        before = self.space("gradients", *logits.shape).copy_(logits)
        dropped.fill_(logits, -torch.inf)
        peak = logits.amax(dim=-1, keepdim=True)
        lost = (peak == -torch.inf).squeeze(-1)
        if not _at_hand(lost):
            logits = torch.where(lost.unsqueeze(-1), _last_ones(before), logits)
            peak = logits.amax(dim=-1, keepdim=True)
        elif bool(lost.any()):
            logits[lost] = _last_ones(before[lost])
            peak = logits.amax(dim=-1, keepdim=True)
        return Perturbed(logits, peak, None)

    def dropped(self, logits: Tensor, block: Block) -> Dropped:
        """Which logits are dropped. That a row must keep its last one is left to the caller."""
        rate = self.rates[DROP]
        draws = self.draws(DROP, block)
        if self.drop in ("key", "column") or self.top >= block.keys:
            decided = draws.below(rate)
            # A hidden logit must not become 0. (The comparison is also False for a NaN, which must stay.)
            if self.drop == "zero" or self.doubtful:
                decided = decided & (logits > -torch.inf)
            return Dropped(decided, None)
        if not _at_hand(logits):
            chosen = regularisers.top_k(logits, None, self.top).logical_and_(logits > -torch.inf)
            return Dropped(chosen.logical_and_(draws.below(rate)), None)
        values, indices = largest(logits, self.top)
        decided = Words(draws.line, draws.column[indices]).below(rate)
        return Dropped(decided.logical_and_(values > -torch.inf), indices)

    def factors(self, block: Block, weights: Tensor) -> Tensor | None:
        """The factors by which drops multiply a block's weights, and in the backward their gradients."""
        factors: Tensor | None = None
        for slot in (DROPOUT, DROPOUT_P):
            if slot in self.rates:
                below = self.draws(slot, block).below(self.rates[slot])
                if slot == DROPOUT and self.dropout.by_share:
                    factors = regularisers.share_factors(weights, below, LEAST_SHARE)
                    continue
                before = torch.ones((), dtype=self.dtype, device=below.device) if factors is None else factors
                factors = regularisers.attention_dropout(before.expand_as(below), below, self.rates[slot])
        return factors


def _transposed(x: Tensor) -> Tensor:
    """[..., M, D] as [..., D, M]; copied where few rows make the product with a transposed matrix slow."""
    turned = x.transpose(-1, -2)
    return turned.contiguous() if x.shape[-2] < 512 else turned


def _last_ones(rows: Tensor) -> Tensor:
    """Rows in which all visible logits but the largest one are set to -inf."""
    shown = rows > -torch.inf
    return rows.masked_fill(regularisers.without_emptying(shown, rows, shown), -torch.inf)


def _at_hand(x: Tensor) -> bool:
    """Whether reading a value of `x` waits for no device."""
    return x.device.type == "cpu"


def _compact(x: Tensor | None) -> Tensor | None:
    """A mask whose repeated dimensions have length 1."""
    if x is None:
        return None
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]


@torch.no_grad()
def blockwise_forward(q: Tensor, k: Tensor, v: Tensor, decisions: Decisions) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, E] in the dtype of `q`, and the log-sum-exp [B, H, N] of the perturbed logits.

    The output lies in memory as [B, N, H, E], which is how the next projection reads it.
    """
    problem = Problem(q, k, v, decisions)
    output = output_like(q, v).zero_()
    lse = torch.zeros(q.shape[:3], dtype=problem.dtype, device=q.device)
    for block in () if problem.empty else problem.blocks():
        logits = problem.logits(problem.scaled_queries(block), block)
        perturbed = problem.perturbed(logits, block)
        weights = perturbed.weights(problem.space("weights", *logits.shape))
        # The largest weight is exp(peak - lse). A row that sees no key has -inf - log(0) = NaN here, which becomes 0.
        total = perturbed.peak - weights.amax(dim=-1, keepdim=True).log_()
        block.queries(lse).copy_(total.masked_fill_(perturbed.peak == -torch.inf, 0.0).squeeze(-1))
        values = problem.values(block)
        factors = problem.factors(block, weights)
        if factors is not None:
            weights *= factors
        folded = weights.view(*values.shape[:2], -1, block.keys)
        part = block.queries(output)
        part.copy_((folded @ values).view(part.shape))
    return output, lse


@torch.no_grad()
def blockwise_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, decisions: Decisions
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `q`, `k` and `v`, each in the dtype and the memory layout that `torch.empty_like` of it has."""
    problem = Problem(q, k, v, decisions)
    dq = torch.zeros_like(q)
    dk, dv = torch.zeros_like(problem.k), torch.zeros_like(problem.v)
    for block in () if problem.empty else problem.blocks():
        scaled = problem.scaled_queries(block)
        logits = problem.logits(scaled, block)
        visible = None if problem.kernel is None else logits != -torch.inf  # before the drop hides any
        perturbed = problem.perturbed(logits, block)
        weights = perturbed.weights(problem.space("weights", *perturbed.logits.shape))
        factors = problem.factors(block, weights)
        keys, values = problem.keys(block), problem.values(block)
        folded = (*values.shape[:2], -1, block.keys)

        upper = problem.fold(grad, block)
        d_weights = problem.space("gradients", *upper.shape[:3], block.keys)
        d_weights = torch.matmul(upper, _transposed(values), out=d_weights).view(weights.shape)
        kept = weights
        if factors is not None:
            d_weights *= factors
            kept = factors.mul_(weights)
        d_values = kept.view(folded).transpose(-1, -2) @ upper
        block.of_keys(dv, problem.group).add_(d_values)
        # weights * (d_weights - sum(weights * d_weights)) in one pass, into the memory of the logits.
        d_logits = torch._softmax_backward_data(d_weights, weights, -1, problem.dtype, grad_input=perturbed.logits)
        if perturbed.dropped is not None:
            perturbed.dropped.fill_(d_logits, 0.0)
        if visible is not None and problem.kernel is not None:
            d_logits = problem.blurred_backward(d_logits, visible, block.of_heads(problem.kernel))
        d_logits = d_logits.view(folded)
        part = block.queries(dq)
        part.copy_((d_logits @ keys).mul_(decisions.scale).view(part.shape))
        block.of_keys(dk, problem.group).add_(d_logits.transpose(-1, -2) @ scaled)
    return dq, laid_out(dk.to(k.dtype), torch.empty_like(k)), laid_out(dv.to(v.dtype), torch.empty_like(v))

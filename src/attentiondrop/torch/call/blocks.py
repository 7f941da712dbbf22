"""Block-sparse visibility: which blocks of keys each block of rows sees, without a tensor of the size of the logits."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ShapeError, bad_argument
from ...validation import integer

#: States of a pair of blocks. `PATTERN + n`: the n-th pattern says what is visible.
HIDDEN, SHOWN, PATTERN = range(3)


class Blocks(NamedTuple):
    """Rows and keys cut into blocks of `size`; a row of a block sees the keys of some blocks.

    Args:
        states: [rows / size, keys / size] (rounded up), with dimensions for heads or for samples and heads before them,
            of size 1 where all share them. Boolean (True: visible), or int32: 0 for hidden, 1 for visible, 2 + n for
            blocks that are visible where pattern n is True.
        size: rows, and keys, of a block.
        patterns: boolean [patterns, size, size], or None.

    Example:
        >>> visible = torch.eye(4, dtype=torch.bool)  # 512 rows see the 128 keys of their own block
        >>> Blocks(visible, 128).dense(512, 512).sum(-1).unique()
        tensor([128])
    """

    states: Tensor
    size: int = 128
    patterns: Tensor | None = None

    def dense(self, rows: int, columns: int) -> Tensor:
        """The boolean mask, which broadcasts to [B, H, N, M]."""
        device = self.states.device
        return self.visible(torch.arange(rows, device=device), torch.arange(columns, device=device))

    def visible(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The same for some rows and keys."""
        states = self.states[..., rows // self.size, :][..., columns // self.size]
        return self._shown(states, rows[:, None], columns)

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether each of the `rows` [N] sees one key, whose number is in `columns` [..., N]: [B or 1, H or 1, N]."""
        states = self.states[(None,) * (4 - self.states.ndim)][:, :, rows // self.size]
        columns = columns.expand(*states.shape[:3])
        states = states.gather(-1, columns[..., None] // self.size)[..., 0]
        return self._shown(states, rows, columns)

    def _shown(self, states: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Which pairs of rows and keys are visible: `states` are those of their blocks."""
        if states.dtype == torch.bool:
            return states
        visible = states == SHOWN
        if self.patterns is not None:
            inside = rows % self.size, columns % self.size
            visible |= (states >= PATTERN) & self.patterns[(states - PATTERN).clamp_min(0).long(), *inside]
        return visible


def checked_blocks(blocks: Any, batch: int, heads: int, rows: int, columns: int, device: torch.device) -> Blocks | None:
    """What users pass as `blocks`, with states [B or 1, H or 1, rows / size, keys / size] in int32."""
    if blocks is None:
        return None
    if _is_block_mask(blocks):
        lengths = tuple(blocks.seq_lengths)
        if lengths != (rows, columns):
            raise ShapeError(f"blocks: expected a BlockMask of {[rows, columns]} rows and keys, received {[*lengths]}")
        blocks = _of_block_mask(blocks)
    if not isinstance(blocks, Blocks):
        raise bad_argument("blocks", "attentiondrop.torch.Blocks, or a BlockMask of flex_attention", blocks)
    states, size, patterns = blocks
    integer("blocks.size", size, 1)
    if not isinstance(states, Tensor) or states.dtype not in (torch.bool, torch.int32):
        received = states.dtype if isinstance(states, Tensor) else type(states).__name__
        raise bad_argument("blocks.states", "a boolean or int32 tensor", received)
    wanted = (batch, heads, -(-rows // size), -(-columns // size))
    shape = (1,) * (4 - states.ndim) + tuple(states.shape)
    fits = len(shape) == 4 and shape[2:] == wanted[2:]
    if not fits or any(have not in (1, want) for have, want in zip(shape[:2], wanted[:2], strict=True)):
        raise ShapeError(
            f"blocks.states: expected a shape that broadcasts to {list(wanted)}, with {wanted[2]} x {wanted[3]} blocks "
            f"of {size}, received {list(states.shape)}"
        )
    if states.device != device:
        raise bad_argument("blocks.states", f"a tensor on {device}", states.device)
    if patterns is not None and (patterns.dtype != torch.bool or patterns.shape[1:] != (size, size)):
        raise bad_argument("blocks.patterns", f"boolean [patterns, {size}, {size}]", [*patterns.shape, patterns.dtype])
    return Blocks(states.reshape(shape).to(torch.int32), size, patterns)


def _is_block_mask(blocks: Any) -> bool:
    """Whether it is a `BlockMask`; importing its class would load the compiler."""
    return type(blocks).__name__ == "BlockMask" and type(blocks).__module__.startswith("torch.nn.attention")


#: Blocks of the last masks. Patterns are computed once for a mask, which usually serves all layers and many steps.
_known: weakref.WeakKeyDictionary[Any, Blocks] = weakref.WeakKeyDictionary()


def _of_block_mask(mask: Any) -> Blocks:
    if torch.compiler.is_compiling():
        return _converted(mask)
    found = _known.get(mask)
    if found is None:
        # A mask may be seen first in an evaluation. Tensors of an inference mode could not be used in training later.
        with torch.inference_mode(False):
            found = _known[mask] = _converted(mask)
    return found


def _converted(mask: Any) -> Blocks:
    """The same visibility as that of a `BlockMask`, whose function is asked about partly visible blocks."""
    size, other = mask.BLOCK_SIZE
    if size != other:
        raise bad_argument("blocks", "a BlockMask with blocks of as many rows as keys", list(mask.BLOCK_SIZE))
    rows, columns = mask.seq_lengths
    shape = -(-rows // size), -(-columns // size)
    partly = _listed(mask.kv_num_blocks, mask.kv_indices, shape)
    wholly = torch.zeros_like(partly)
    if mask.full_kv_num_blocks is not None:
        wholly = _listed(mask.full_kv_num_blocks, mask.full_kv_indices, shape)
    return with_patterns(partly, wholly, mask.mask_mod, size, rows, columns)


def with_patterns(
    partly: Tensor, wholly: Tensor, visible: Callable[..., Tensor], size: int, rows: int, columns: int
) -> Blocks:
    """Blocks that are partly or wholly visible, [B or 1, H or 1, rows / size, keys / size].

    `visible`, called with samples, heads, rows and keys that broadcast, gives what partly visible blocks show. Counting
    these blocks waits for the device.
    """
    states = torch.where(wholly, SHOWN, HIDDEN).to(torch.int32)
    b, h, row, column = partly.nonzero(as_tuple=True)
    states[partly] = PATTERN + torch.arange(len(b), dtype=torch.int32, device=states.device)
    inside = torch.arange(size, device=states.device)
    row = row[:, None, None] * size + inside[:, None]
    column = column[:, None, None] * size + inside
    # The last blocks may reach beyond the end, where a function that looks into tensors finds nothing.
    within = (row < rows) & (column < columns)
    shown = visible(b[:, None, None], h[:, None, None], row.clamp_max(rows - 1), column.clamp_max(columns - 1))
    patterns = (shown & within).expand(len(b), size, size)
    # One more, which no block has: with no partly visible block there would be no pattern to look into.
    return Blocks(states, size, torch.nn.functional.pad(patterns, (0, 0, 0, 0, 0, 1)).contiguous())


def _listed(counts: Tensor, indices: Tensor, shape: tuple[int, int]) -> Tensor:
    """Lists of blocks [B, H, rows, n], of which the first `counts` are valid, as a boolean table."""
    valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    table = torch.zeros(*indices.shape[:2], shape[0], shape[1] + 1, dtype=torch.bool, device=indices.device)
    # What is not valid goes to a column of its own, which is cut off.
    place = torch.where(valid, indices, shape[1]).long()[:, :, : shape[0]]
    return table.scatter(-1, place, True)[..., : shape[1]]

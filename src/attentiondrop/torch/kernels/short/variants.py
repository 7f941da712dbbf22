"""Which kernel serves which call: the constants that a kernel is compiled with, and the shared memory that it takes.

Rows, keys, rates and strides are arguments of a kernel. What it is compiled for is the number of tiles of 16 keys, the
head size, the dtype and the regulariser. So sixteen pairs of kernels serve all lengths from 1 to 256.
"""

from __future__ import annotations

from typing import NamedTuple

#: The most keys of a row.
MOST_KEYS = 256
#: The keys of a tile.
TILE = 16
#: The head sizes that have kernels.
HEAD_SIZES = (16, 32, 64, 128)
#: The most of a row's largest logits that hard masking can choose from.
MOST_OF_TOP = 64
#: The widest blur: a tile of 16 keys is blurred together with 8 keys on each side.
WIDEST_BLUR = 17

#: The most bytes between neighbouring rows, heads or samples: strides have 31 bits in the kernels.
FARTHEST = 2**31 - 1

#: What is dropped, as the sources count it.
DROPS = {"": 0, "largest": 1, "every": 2}

#: Bytes of shared memory that the system takes of each block.
_RESERVED = 1024


class Device(NamedTuple):
    """What a device allows: compute capability (90 for 9.0), and shared memory of a block and of a multiprocessor."""

    capability: int
    block_bytes: int
    processor_bytes: int

    @property
    def architecture(self) -> str:
        """The target for NVRTC."""
        # The instructions of warpgroups exist on 9.0 only, and need the "a".
        return "sm_90a" if self.capability == 90 else f"sm_{self.capability}"

    def room(self, blocks: int) -> int:
        """The shared memory that each of `blocks` blocks on a multiprocessor may take."""
        return min(self.block_bytes, self.processor_bytes // blocks - _RESERVED)


class Variant(NamedTuple):
    """What the kernels of a call are compiled for, apart from the sizes that `forward_of` and `backward_of` choose."""

    key_tiles: int
    head_size: int
    is_float16: bool
    #: "" (nothing), "largest" (hard masking) or "every" (each logit by its draw).
    drop: str
    #: Of how many of the largest; 0 where they do not matter.
    top: int
    #: Whether a dropped logit is hidden, rather than set to 0.
    hide: bool
    is_causal: bool
    is_masked: bool
    #: Of the blur; 0 without one.
    radius: int
    renormalize: bool
    #: Whether "every" draws once for all rows of a head.
    by_column: bool = False
    #: Whether "every" drops weights after the softmax, and divides each row by what is left.
    shares: bool = False
    #: Whether weights are dropped at the end.
    dropout: bool = False

    @property
    def macros(self) -> dict[str, int]:
        """The constants that both kernels share."""
        return {
            "KEY_TILES": self.key_tiles,
            "HEAD": self.head_size,
            "FLOAT16": int(self.is_float16),
            "DROP": DROPS[self.drop],
            "TOP": self.top,
            "HIDE": int(self.hide),
            "COLUMNS": int(self.by_column),
            "SHARE": int(self.shares),
            "DROPOUT": int(self.dropout),
            "CAUSAL": int(self.is_causal),
            "MASKED": int(self.is_masked),
            "RADIUS": self.radius,
            "RENORMALIZE": int(self.renormalize),
        }

    @property
    def row_bytes(self) -> int:
        """A row in shared memory: an odd number of 16-byte pieces."""
        return 2 * self.head_size + 16

    @property
    def notes_bytes(self) -> int:
        """The bit map of 16 rows and all keys."""
        return 32 * self.key_tiles if self.drop == "largest" else 0

    @property
    def blur_bytes(self) -> int:
        """The weights of a blur, as the backward notes them."""
        return 256 if self.radius else 0

    @property
    def has_lines(self) -> bool:
        """Whether the draws of the drop have a word for each row."""
        return self.drop != "" and not self.by_column


def most_keys(head_size: int, drop: str, dropout: bool, device: Device) -> int:
    """The most keys of a row for which a device has the memory, whatever else a call does; 0 if there is none."""
    # Hiding and sharing take the most: the backward then also knows the key that each row keeps, and its share.
    shares = drop == "every"
    for tiles in range(MOST_KEYS // TILE, 0, -1):
        variant = Variant(tiles, head_size, False, drop, 1, True, True, True, 1, True, False, shares, dropout)
        if forward_of(variant, device) is not None and backward_of(variant, device, 1, 1) is not None:
            return TILE * tiles
    return 0


class Kernel(NamedTuple):
    """One kernel: the name of its source, its constants, and what a launch of it takes."""

    name: str
    macros: tuple[tuple[str, int], ...]
    threads: int
    shared_bytes: int
    #: On each multiprocessor.
    blocks: int


class Sizes(NamedTuple):
    """How many warps of the forward work on a multiprocessor: each holds the logits of 16 rows in registers."""

    warps: int
    blocks: int


def _forward_sizes(variant: Variant) -> Sizes:
    # A multiprocessor has 64 Ki registers in four parts: 16 warps have 128 each, 12 have 168, and 8 have 255.
    tiles = variant.key_tiles + (4 if variant.head_size > 64 else 0)
    if tiles <= 8:
        return Sizes(8, 2)
    return Sizes(12, 1) if tiles <= 13 else Sizes(8, 1)


def forward_of(variant: Variant, device: Device) -> Kernel | None:
    """The forward kernel; None if it takes more shared memory than the device has."""
    keys = 16 * variant.key_tiles
    stage = 2 * keys * variant.row_bytes + 64
    warps, most_blocks = _forward_sizes(variant)
    for blocks in range(most_blocks, 0, -1):
        words = 4 * keys * (variant.has_lines + variant.dropout)
        rest = warps * (16 * variant.row_bytes + variant.notes_bytes) + words + 12
        # Enough units for all warps, so that none waits for the next one.
        wanted = max(3, -(-2 * warps // variant.key_tiles))
        stages = min(wanted, (device.room(blocks) - rest) // (stage + 16))
        if stages >= 2 or (stages == 1 and blocks == 1):
            macros = variant.macros | {"WARPS": warps, "STAGES": stages, "BLOCKS": blocks}
            return Kernel("forward", tuple(macros.items()), 32 * warps, stages * (stage + 16) + rest, blocks)
    return None


def backward_of(variant: Variant, device: Device, row_tiles: int, group: int) -> Kernel | None:
    """The backward kernel for `row_tiles` tiles of 16 rows; None if it takes more shared memory than the device has."""
    if device.capability == 90 and variant.head_size == 64 and variant.key_tiles >= _FEWEST_FOR_WARPGROUPS:
        return _by_warpgroups(variant, device, row_tiles, group)
    tiles = variant.key_tiles
    for blocks in range(max(1, 16 // tiles), 0, -1):
        for run in range(tiles if tiles <= _LONGEST_RUN else 8, 0, -1):
            taken = _backward_bytes(variant, run)
            # Shorter runs of rows need less memory, but more barriers: first fewer blocks.
            if taken <= device.room(blocks) and (run == tiles or tiles > _LONGEST_RUN or blocks == 1):
                return _backward_kernel("backward", variant, run, blocks, tiles, taken, row_tiles, group)
    return None


#: With fewer key tiles, single warps were faster on an H200.
_FEWEST_FOR_WARPGROUPS = 8
#: With more row tiles, a unit does not fit into shared memory at once.
_LONGEST_RUN = 13


def _by_warpgroups(variant: Variant, device: Device, row_tiles: int, group: int) -> Kernel | None:
    tiles = variant.key_tiles
    # One left-over tile has warps of its own; two or three are made up to four (see the source).
    is_left_over = tiles % 4 == 1
    loaded = tiles if is_left_over else -(-tiles // 4) * 4
    warps = loaded // 4 * 4 + 4 * is_left_over
    run = loaded if loaded <= _LONGEST_RUN else 8
    taken = 1024 + _WGMMA_ROW * (2 * 16 * run + 2 * 16 * loaded + run // 4 * 16 * loaded) + run % 4 * 16 * tiles * 48
    taken += _row_bytes(variant) * 16 * run + run * variant.notes_bytes + variant.blur_bytes
    sums = 8192 * is_left_over
    for blocks in range(max(1, 16 // warps), 0, -1):
        # The keys of the next unit wait in shared memory if it is large enough, otherwise in registers.
        for waiting in (_WGMMA_ROW * 16 * loaded, 0):
            if (total := taken + max(sums, waiting)) <= device.room(blocks):
                kernel = _backward_kernel("backward_wgmma", variant, run, blocks, warps, total, row_tiles, group)
                return kernel._replace(macros=(*kernel.macros, ("WAITING", int(waiting > 0))))
    return None


#: A row of 64 numbers, without padding.
_WGMMA_ROW = 128


def _backward_kernel(
    name: str, variant: Variant, run: int, blocks: int, warps: int, taken: int, row_tiles: int, group: int
) -> Kernel:
    one_step = group == 1 and row_tiles <= run
    macros = variant.macros | {"ROW_TILES": run, "ONE_STEP": int(one_step), "BLOCKS": blocks}
    return Kernel(name, tuple(macros.items()), 32 * warps, taken, blocks)


def _backward_bytes(variant: Variant, run: int) -> int:
    keys, rows = 16 * variant.key_tiles, 16 * run
    of_row = 2 * variant.row_bytes + _row_bytes(variant)
    rest = run * variant.notes_bytes + variant.blur_bytes
    return rows * of_row + 2 * keys * variant.row_bytes + keys * (2 * rows + 16) + rest


def _row_bytes(variant: Variant) -> int:
    """What the backward knows of each row: log-sum-exp and delta, words of draws, the key that it keeps, its share."""
    draws = (variant.drop == "every" and not variant.by_column) + variant.dropout
    return 8 + 4 * (draws + variant.hide + variant.shares)

"""Random numbers by position: a call draws one seed, everything else is a hash of (seed, stream, position).

Why not `torch.rand`: a hash needs no stored mask, gives a fused kernel and the eager path the same decisions whatever
order they compute in, and gives a compiled graph the same numbers as an eager one (Inductor replaces `torch.rand` by a
generator of its own). Only the seed comes from the framework's generator, so `torch.manual_seed` is all a user needs,
and activation checkpointing, which restores that generator, recomputes the same draws.

The hash is defined in `attentiondrop.hashing`, which computes it on a CPU. Here it is also written in tensor
operations, for other devices and for whoever traces or transforms a call: about 60 of them, which take long on a CPU.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad

from .. import hashing
from ..errors import BackendError, bad_argument
from ..hashing import GOLDEN, MASK31, MIX31_2, MIX_1, MIX_2, PRIME, SHIFT
from .untouched import call_directly, is_untouched

# The constants of the hash as signed numbers: torch has full int32 arithmetic, and hardly any for uint32.
_GOLDEN, _PRIME, _MIX_2 = (word - 2**32 for word in (GOLDEN, PRIME, MIX_2))


#: Whether this torch can run in several processes.
_CAN_HAVE_PROCESSES = torch.distributed.is_available()
#: So few words are compared faster by NumPy than by torch.
_FEW = 2**15


def has_processes() -> bool:
    """Whether this process is one of a group of `torch.distributed`."""
    return _CAN_HAVE_PROCESSES and torch.distributed.is_initialized()


# An op of its own, because Inductor would otherwise lower the draw to its own generator. Defined by hand:
# `torch.library.custom_op` loads the compiler, and with it Triton, on the first call even on a CPU.
_library = torch.library.Library("attentiondrop", "FRAGMENT")
_library.define(
    "draw_seed(Tensor like, int call, int rank=-1, SymInt[] shape=[]) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def draw_untouched(like: Tensor, call: int = 0, rank: int = -1, shape: Sequence[int] = ()) -> Tensor:
    """A fresh seed from the default generator of the device of `like`, as a 0-dim int64 tensor (no synchronisation).

    `rank` is the process that the draws are for; -1 stands for this process. `shape` asks for several seeds at once.
    The other arguments do not change the seed. A compiler needs them: `like` keeps the draws of successive layers in
    order, and `call` differs at each place of a graph, so that two draws are not merged into one. (torch 2.11 does
    merge them without it, because its list of random operators does not contain this one.)
    """
    seed = torch.randint(0, 2**63 - 1, shape, dtype=torch.int64, device=like.device)
    if rank < 0 and has_processes():
        rank = torch.distributed.get_rank()
    # Ranks that were all seeded alike must not drop the same positions. Rank 0 keeps its seed.
    return seed ^ ((rank * 0x9E3779B97F4A7C15) & (2**63 - 1)) if rank > 0 else seed


def _fake_seed(like: Tensor, call: int, rank: int = -1, shape: Sequence[int] = ()) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=like.device)


def _draw_under_vmap(like: Tensor, call: int, rank: int = -1, shape: Sequence[int] = ()) -> Tensor:
    """What `torch.func.vmap` runs: one seed for each example or one for all examples, as its `randomness` says.

    Without this, torch would draw for one example after the other, warn that this is slow, and ignore `randomness`.
    `torch.library.register_vmap` does not suffice: its rule is skipped if `like` is the same for all examples. A query
    that is a parameter is the same for all, and then the examples would share their draws.
    """
    vmap: Any = retrieve_current_functorch_interpreter()
    randomness, level = vmap.randomness(), vmap.level()
    if randomness == "error":
        return torch.randint(1, (), device=like.device)  # torch raises its own error
    each = randomness == "different"
    like, _ = torch._C._functorch._unwrap_batched(like, level)
    with torch._C._ExcludeDispatchKeyGuard(_VMAP):
        # The operator again, for a vmap around this one, and for a compiler, which keeps it in its graph.
        seed: Tensor = torch.ops.attentiondrop.draw_seed(
            like, call, rank, [vmap.batch_size(), *shape] if each else shape
        )
    return torch._C._functorch._add_batch_dim(seed, 0, level) if each else seed


_VMAP = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)
_library.impl("draw_seed", draw_untouched, "CompositeExplicitAutograd")
# (This key sees all calls in a vmap, also those without a tensor that differs between examples.)
_library.impl("draw_seed", _draw_under_vmap, "FuncTorchVmapMode")
torch.library.register_fake("attentiondrop::draw_seed", _fake_seed, lib=_library)
call_directly("draw_seed", draw_untouched)


def runs_in_backward() -> bool:
    """Whether the backward runs this code: it recomputes a call that was made before."""
    return torch._C._current_graph_task_id() != -1


def is_recorded_as_usual(*tensors: Tensor) -> bool:
    """Whether an operation on these tensors may be a `torch.autograd.Function` of ours.

    Compilers and `torch.func` could not look into it, and it has no forward-mode derivative.
    """
    return (
        not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and all(type(x) in _PLAIN for x in tensors)
    )


_PLAIN = (Tensor, torch.nn.Parameter)


def is_at_hand(x: Tensor) -> bool:
    """Whether the values of a tensor can be read at no cost: a plain tensor on a CPU, in code that is untouched."""
    return type(x) is Tensor and x.is_cpu and is_untouched()


#: Numbers for the calls of each graph that a compiler traces, and for calls outside of any.
_calls: weakref.WeakKeyDictionary[Any, Iterator[int]] = weakref.WeakKeyDictionary()
_other_calls = itertools.count(1)


def _next_call() -> int:
    """A number that differs in every call of a graph. A compiler calls this while it traces, and keeps the number.

    Each graph counts from 1: the same model gives the same graph whenever it is traced, so that torch finds the code
    that it has compiled before.
    """
    graph = torch._guards.TracingContext.try_get()
    return next(_other_calls if graph is None else _calls.setdefault(graph, itertools.count(1)))


# What torch.compiler.assume_constant_result does, without loading the compiler.
_next_call._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse what cannot give random numbers."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise bad_argument("generator", "a torch.Generator", generator)


def draw_seed(like: Tensor, generator: torch.Generator | None = None, rank: int | None = None) -> Tensor:
    """One seed for one call, on the device of `like`.

    Without a `generator`, processes that were seeded alike get different seeds, because the `rank` (that of this
    process by default) changes the seed. With a `generator`, its number is used unchanged.
    """
    if generator is None:
        if is_untouched():
            return draw_untouched(like, 0, -1 if rank is None else rank)  # the operator itself would take longer
        call = _next_call() if torch.compiler.is_compiling() else 0
        seed: Tensor = torch.ops.attentiondrop.draw_seed(like.detach(), call, -1 if rank is None else rank)
        return seed
    if torch.compiler.is_compiling():
        raise BackendError("generator: torch.compile cannot trace a generator; seed the default one instead")
    if runs_in_backward():
        # Checkpointing restores the default generators only: this one has moved on, and would draw something else.
        raise BackendError(
            "generator: expected None inside of activation checkpointing, whose recomputation would draw another seed "
            "from it and give another gradient; seed the default generator instead (torch.manual_seed)"
        )
    check_generator(generator)  # a call like an earlier one comes here without other checks
    drawn = torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=generator.device, generator=generator)
    return drawn.to(like.device)


def group_seed(seed: Tensor, group: int) -> Tensor:
    """The seed of one of several groups of a batch, such as views, that get calls of their own; the first keeps `seed`.

    The constant is another one than for the ranks, so that the second view of a rank is not the first view of the next.
    """
    return seed ^ ((group * 0xBF58476D1CE4E5B9) & (2**63 - 1))


class Stream:
    """The draws of one regulariser in one call: a seed and the number of the regulariser within its spec."""

    def __init__(self, seed: Tensor, number: int) -> None:
        self._hash = _OnHost(seed, number) if is_at_hand(seed) else _OnTensors(seed, number)

    def uniforms(self, batch: int, heads: int, rows: int, columns: int) -> Tensor:
        """Uniforms in [0, 1) of shape [batch, heads, rows, columns], float32."""
        return self.words(batch, heads, rows, columns).uniforms()

    def normals(self, batch: int, heads: int, rows: int, columns: int) -> Tensor:
        """Standard normals of the same shape, by Box and Muller from two words at each position."""
        return self.words(batch, heads, rows, columns).normals()

    def words(self, batch: int, heads: int, rows: int, columns: int) -> Words:
        """The words of these draws: one for each row and one for each key. A draw is made of a product of the two."""
        line, column = self._hash.words(batch * heads * rows, columns)
        return Words(line.view(batch, heads, rows, 1), column)

    def vector_words(self, batch: int, heads: int, columns: int) -> Words:
        """The words of `uniform_vector(batch * heads * columns)`, one for each key of a (sample, head)."""
        # A uniform is made of the top 24 bits of a word, so the last bit may be set: `Words` needs odd words.
        words = self._hash.vector(batch * heads * columns) | 1
        return Words(words.new_ones(1, 1, 1, 1), words.view(batch, heads, 1, columns))

    def below(self, shape: tuple[int, int, int, int], rate: float | Tensor) -> Tensor:
        """`uniforms(*shape) < rate`."""
        if isinstance(self._hash, _OnHost) and isinstance(rate, float) and math.prod(shape) <= _FEW:
            return self._hash.below(shape, rate)
        return self.words(*shape).below(rate)

    def uniform_vector(self, length: int) -> Tensor:
        """`length` uniforms in [0, 1), float32."""
        if isinstance(self._hash, _OnHost):
            return torch.from_numpy(hashing.uniforms(hashing.vector_words(self._hash.key, length)))
        return _to_uniform(self._hash.vector(length))

    def normal_vector(self, length: int) -> Tensor:
        """`length` standard normals, float32."""
        return _to_normal(self._hash.vector(length))


class _OnHost:
    """The hash of a stream, computed by Python and NumPy."""

    def __init__(self, seed: Tensor, number: int) -> None:
        self.key = hashing.stream_key(int(seed.item()), number)

    def words(self, lines: int, columns: int) -> tuple[Tensor, Tensor]:
        words = torch.from_numpy(hashing.line_and_column_words(self.key, lines, columns).view(np.int32))
        return words[:lines], words[lines:]

    def below(self, shape: tuple[int, int, int, int], rate: float) -> Tensor:
        batch, heads, rows, columns = shape
        lines = batch * heads * rows
        words = hashing.line_and_column_words(self.key, lines, columns)
        joined = words[:lines].reshape(batch, heads, rows, 1) * words[lines:]
        return torch.from_numpy(joined <= np.uint32(hashing.limit_of(rate)))

    def vector(self, length: int) -> Tensor:
        return torch.from_numpy(hashing.vector_words(self.key, length).view(np.int32))


class _OnTensors:
    """The hash of a stream, computed by tensor operations on the device of the seed."""

    def __init__(self, seed: Tensor, number: int) -> None:
        # The int64 sums stay below 2^63; only their low words count.
        high = seed >> 32
        self.k0 = _mix(_word(seed) ^ _mix(_word(high + number * GOLDEN)))
        self.k1 = _mix(_word(high) ^ _mix(self.k0 + _signed(number * PRIME + SHIFT)))

    def words(self, lines: int, columns: int) -> tuple[Tensor, Tensor]:
        return self._odd(self._positions(lines)), self._odd(MASK31 - self._positions(columns))

    def vector(self, length: int) -> Tensor:
        return _mix(_mix(self._positions(length) + self.k0) ^ self.k1)

    def _positions(self, length: int) -> Tensor:
        return torch.arange(length, dtype=torch.int32, device=self.k0.device)

    def _odd(self, x: Tensor) -> Tensor:
        """Twice a permutation of 31-bit numbers that the key chooses, plus 1."""
        x = _mix31((x ^ _shifted(self.k0, 1)) + self.k1)
        # Shifted, and not doubled: see `_times31`. A compiler would believe that these words are positive.
        return (_mix31((x ^ _shifted(self.k1, 1)) + self.k0) << 1) | 1


class Words(NamedTuple):
    """Row words [..., rows, 1] and key words [columns], or [..., rows or 1, anything]: they broadcast to each other.

    A slice of them gives the draws of the whole at the same positions.
    """

    line: Tensor
    column: Tensor

    def uniforms(self) -> Tensor:
        """Uniforms in [0, 1), float32."""
        return _to_uniform(self.line * self.column)

    def normals(self) -> Tensor:
        """Standard normals, float32."""
        return _to_normal(self.line * self.column)

    def below(self, rate: float | Tensor) -> Tensor:
        """`uniforms() < rate`."""
        if isinstance(rate, Tensor) or torch.compiler.is_compiling():
            # (A compiler would make a constant of the limit, and compile again for each rate.)
            return self.uniforms() < rate
        # Key words are odd: 2^31 more in the row word is 2^31 more in the product. So signed numbers compare as the
        # unsigned ones do.
        return (self.line ^ -(2**31)) * self.column <= hashing.limit_of(rate) - 2**31


def _word(x: Tensor) -> Tensor:
    """The low 32 bits of an int64, as an int32 of the same bits."""
    low = x & 0xFFFFFFFF
    return torch.where(low >= 2**31, low - 2**32, low).to(torch.int32)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's `>>` copies the sign."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _signed(word: int) -> int:
    """The low 32 bits of a number, as an int32 of the same bits."""
    return (word + 2**31) % 2**32 - 2**31


def _mix31(x: Tensor) -> Tensor:
    # Of the low 31 bits: as int32 they are not negative, so a shift copies no sign.
    x = x & MASK31
    x = x ^ (x >> 16)
    x = _times31(x, MIX_1)
    x = x ^ (x >> 15)
    x = _times31(x, MIX31_2)
    return x ^ (x >> 16)


def _times31(x: Tensor, factor: int) -> Tensor:
    """The low 31 bits of a product of two numbers that have 31 bits."""
    if x.device.type == "cpu":
        # An int32 would overflow. torch 2.11 compiles this to C++ where a compiler may believe that it does not: then
        # the product of two positive numbers is positive, and nothing is left to mask.
        return ((x.to(torch.int64) * factor) & MASK31).to(torch.int32)
    return (x * factor) & MASK31


def _mix(x: Tensor) -> Tensor:
    x = x ^ _shifted(x, 16)
    x = x * MIX_1
    x = x ^ _shifted(x, 15)
    x = x * _MIX_2
    return x ^ _shifted(x, 16)


def _finish(x: Tensor) -> Tensor:
    x = x * _GOLDEN
    x = x ^ _shifted(x, 15)
    x = x * _PRIME
    return x ^ _shifted(x, 13)


def _to_uniform(x: Tensor) -> Tensor:
    x = x >> 8
    if is_untouched():
        # In place where the tensor is our own: on a CPU, new memory costs more than the arithmetic.
        return x.bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)
    # Selective checkpointing keeps results, and refuses those that were changed later.
    return (x & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _to_normal(first: Tensor) -> Tensor:
    """Standard normals by the method of Box and Muller. It takes two words; the second one is made from the first."""
    second = _finish(first ^ _PRIME)
    # (n + 1) / 2^24 is never 0, so the logarithm is finite.
    radius = torch.sqrt(-2.0 * torch.log(_to_uniform(first) + 2.0**-24))
    return radius * torch.cos(2.0 * math.pi * _to_uniform(second))

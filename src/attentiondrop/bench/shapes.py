"""The shapes at which attention is timed: sizes, causal or not, and how many query heads share a key head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import bad_argument
from ..validation import integer

_EXPECTED = "B,H,N,D, then 'causal' and a number of key heads if wanted (such as 8,32,2048,128,causal,8)"


@dataclass(frozen=True)
class Shape:
    """Queries [batch, heads, length, size], keys and values [batch, key_heads, length, size].

    >>> print(Shape.parse("8,32,2048,128,causal,8"))
    8x32x2048x128 causal, 8 key heads
    """

    batch: int
    heads: int
    length: int
    size: int
    causal: bool = False
    key_heads: int = 0  # 0: as many as heads

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "length", "size"):
            integer(name, getattr(self, name), minimum=1)
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        if integer("key heads", self.key_heads, minimum=1) and self.heads % self.key_heads:
            raise bad_argument("key heads", f"a divisor of the {self.heads} heads", self.key_heads)

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The shape that a text such as "8,32,2048,128,causal,8" describes."""
        numbers = [part.strip() for part in text.split(",")]
        causal = "causal" in numbers[4:]
        if causal:
            numbers.remove("causal")
        if len(numbers) not in (4, 5) or not all(part.isdecimal() and int(part) > 0 for part in numbers):
            raise bad_argument("shape", _EXPECTED, text)
        batch, heads, length, size, *key_heads = map(int, numbers)
        return cls(batch, heads, length, size, causal, *key_heads)

    def __str__(self) -> str:
        notes = ["causal"] * self.causal + [f"{self.key_heads} key heads"] * self.grouped
        return f"{self.batch}x{self.heads}x{self.length}x{self.size} {', '.join(notes)}".strip()

    @property
    def text(self) -> str:
        """The text that `parse` reads."""
        numbers = f"{self.batch},{self.heads},{self.length},{self.size}"
        return numbers + ",causal" * self.causal + (f",{self.key_heads}" if self.grouped else "")

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.key_heads != self.heads

    @property
    def logits(self) -> int:
        """The number of logits, also if they are never built."""
        return self.batch * self.heads * self.length**2

    def part(self, budget: int, most: int) -> Shape:
        """A part of this shape with about `budget` logits: fewer samples, then fewer heads.

        It is shorter only if a single key head with its query heads has more than `most` logits.
        """
        if self.logits <= budget:
            return self
        sample = self.heads * self.length**2
        if sample <= budget:
            return replace(self, batch=budget // sample)
        group, length = self.heads // self.key_heads, self.length
        key_heads = max(1, min(self.key_heads, budget // (group * length**2)))
        while group * length**2 > most and length > 1:
            length //= 2
        return replace(self, batch=1, heads=group * key_heads, key_heads=key_heads, length=length)


#: The shapes of a GPU run: a ViT, two lengths of a text model, a long context, a grouped causal model, a small one.
CUDA_SHAPES = (
    Shape(256, 12, 197, 64),
    Shape(16, 16, 1024, 64),
    Shape(4, 16, 4096, 64),
    Shape(1, 16, 16384, 128),
    Shape(8, 32, 2048, 128, causal=True, key_heads=8),
    Shape(32, 8, 128, 64),
)

#: The same kinds, small enough for a CPU.
CPU_SHAPES = (
    Shape(2, 6, 197, 64),
    Shape(1, 4, 384, 64),
    Shape(1, 8, 128, 64, causal=True, key_heads=2),
)

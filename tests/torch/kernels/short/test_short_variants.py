"""What can be known of the kernels for short rows without a GPU: their variants, their memory, their bit map, and that they compile."""

from __future__ import annotations

import random
from itertools import product

import pytest

from attentiondrop.torch.kernels.short import bit_map, build, launches
from attentiondrop.torch.kernels.short.variants import (
    HEAD_SIZES,
    MOST_KEYS,
    Device,
    Variant,
    backward_of,
    forward_of,
    most_keys,
)

#: Capability, and shared memory of a block and of a multiprocessor, from the tables of the CUDA programming guide.
DEVICES = {
    "A100": Device(80, 163 * 1024, 164 * 1024),
    "A10": Device(86, 99 * 1024, 100 * 1024),
    "L40": Device(89, 99 * 1024, 100 * 1024),
    "H200": Device(90, 227 * 1024, 228 * 1024),
    "B200": Device(100, 227 * 1024, 228 * 1024),
    "RTX 5090": Device(120, 99 * 1024, 100 * 1024),
}
PLAIN = Variant(13, 64, False, "largest", 5, False, False, False, 0, False)
KINDS = {
    "hard masking": PLAIN,
    "hidden": PLAIN._replace(hide=True, top=10),
    "every logit": PLAIN._replace(drop="every", top=0, hide=True, is_causal=True),
    "weights": PLAIN._replace(drop="", top=0, is_masked=True, dropout=True),
    "hard masking and dropout": PLAIN._replace(hide=True, dropout=True),
    "shares of columns": PLAIN._replace(drop="every", top=0, hide=True, by_column=True, shares=True),
    "shares and dropout": PLAIN._replace(drop="every", top=0, hide=True, shares=True, dropout=True),
    "causal blur and dropout": PLAIN._replace(drop="", top=0, radius=2, is_causal=True, dropout=True),
    "blur": PLAIN._replace(drop="", top=0, radius=2),
    "widest blur of masked keys": PLAIN._replace(drop="", top=0, radius=8, is_masked=True),
    "blur, renormalised, and hard masking": PLAIN._replace(radius=3, renormalize=True, is_masked=True, is_float16=True),
}


def test_sixteen_pairs_serve_all_lengths() -> None:
    device = DEVICES["H200"]
    pairs = set()
    for length in range(1, MOST_KEYS + 1):
        tiles = -(-length // 16)
        variant = PLAIN._replace(key_tiles=tiles)
        pairs.add((forward_of(variant, device), backward_of(variant, device, tiles, 1)))
    assert len(pairs) == 16


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_kernels_fit_into_shared_memory_or_say_that_they_do_not(device: Device) -> None:
    fitting = 0
    for tiles, size, kind in product(range(1, 17), HEAD_SIZES, KINDS.values()):
        variant = kind._replace(key_tiles=tiles, head_size=size)
        for kernel in (
            forward_of(variant, device),
            backward_of(variant, device, tiles, 1),
            backward_of(variant, device, 40, 4),
        ):
            if kernel is None:
                continue
            fitting += 1
            assert kernel.shared_bytes <= device.block_bytes
            assert kernel.blocks * (kernel.shared_bytes + 1024) <= device.processor_bytes
            assert kernel.threads * kernel.blocks <= 1024
    assert fitting > 0.8 * 3 * 16 * len(HEAD_SIZES) * len(KINDS)


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_what_fits_has_its_kernels(device: Device) -> None:
    for tiles, size, kind in product(range(1, 17), HEAD_SIZES, KINDS.values()):
        variant = kind._replace(key_tiles=tiles, head_size=size)
        found = forward_of(variant, device), backward_of(variant, device, tiles, 1)
        assert None not in found or 16 * tiles > most_keys(size, variant.drop, variant.dropout, device)


def test_a_head_of_64_fits_everywhere() -> None:
    """What most models have."""
    for device, kind in product(DEVICES.values(), KINDS.values()):
        assert most_keys(64, kind.drop, kind.dropout, device) == MOST_KEYS


def test_a_head_of_128_fits_up_to_a_length() -> None:
    assert most_keys(128, "largest", False, DEVICES["A100"]) == 224
    assert most_keys(128, "largest", False, DEVICES["L40"]) == 80
    assert most_keys(128, "largest", False, Device(86, 1024, 1024)) == 0


def test_the_bit_map_has_a_place_for_every_logit() -> None:
    """A model of the layout: what a lane of the backward reads is what the forward wrote for its logits."""
    places = {bit_map.bit_of(row, key): (row, key) for row in range(16) for key in range(16)}
    assert len(places) == 256
    assert {place.byte for place in places} == set(range(bit_map.TILE))
    for byte in range(bit_map.TILE):
        assert [places[bit_map.Bit(byte, bit)] for bit in range(8)] == list(bit_map.positions_of(byte))
        # The lane of this byte holds these logits (see `weigh` in backward_weights.cuh).
        g, t = byte // 4, byte % 4
        assert [(8 * h + 2 * t + e % 2, g + 8 * (e // 2)) for h in range(2) for e in range(4)] == list(
            bit_map.positions_of(byte)
        )
    assert bit_map.bytes_of(heads=3, rows=17, keys=33) == 3 * 2 * 3 * 32


def test_the_arguments_have_the_size_of_the_structures() -> None:
    # Pointers and the strides of masks of 8 bytes; numbers of 4, in pairs.
    assert launches.FORWARD.size == 8 * (14 + 3) + 4 * (12 + 6 + 10 + 4)
    assert launches.BACKWARD.size == 8 * (19 + 3) + 4 * (24 + 6 + 10 + 2)


def test_division_by_a_product_and_a_shift_is_exact() -> None:
    draw = random.Random(1)
    for number in [*range(1, 300), *(draw.randrange(1, 2**31) for _ in range(300))]:
        factor, shift = launches.divisor(number)
        assert factor < 2**32
        multiples = [number * n for n in (1, 2, 3, 1000, (2**31 - 1) // number)]
        wanted = [0, 1, 2**31 - 1, *multiples, *(x - 1 for x in multiples), *(draw.randrange(2**31) for _ in range(20))]
        for x in wanted:
            if x < 2**31:
                assert (2 * x * factor >> 32) >> shift == x // number, (x, number)


needs_compiler = pytest.mark.skipif(build.why_not_built() is not None, reason="needs NVRTC and cuda-bindings")
#: One of each kernel in `make test`; the others are more of the same.
QUICK = {("A100", "hard masking"), ("H200", "hard masking")}


@needs_compiler
@pytest.mark.parametrize(
    ("device", "kind"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in product(DEVICES, KINDS)],
)
def test_kernels_compile(device: str, kind: str) -> None:
    target, variant = DEVICES[device], KINDS[kind]
    for kernel in (forward_of(variant, target), backward_of(variant, target, variant.key_tiles, 1)):
        assert kernel is not None
        code, said = build.compile_kernel(kernel, target.architecture)
        assert code[1:4] == b"ELF"
        # The compiler gives up running matrix instructions side by side if registers run short. It only says so.
        assert "serialized" not in said, said


@needs_compiler
def test_code_for_the_driver_to_translate() -> None:
    """What `test_older_gpus.py` runs on a newer GPU."""
    kernel = backward_of(PLAIN._replace(key_tiles=2), DEVICES["A100"], 2, 1)
    assert kernel is not None
    code, _ = build.compile_kernel(kernel, "compute_80")
    assert b".target sm_80" in code and code.endswith(b"\0")  # the driver reads up to the zero
    assert b"stmatrix" not in code and b"wgmma" not in code


@needs_compiler
def test_a_source_that_does_not_compile_is_an_error() -> None:
    kernel = forward_of(PLAIN, DEVICES["H200"])
    assert kernel is not None
    with pytest.raises(ValueError, match=r"NVRTC could not compile forward\.cu for sm_90a"):
        build.compile_kernel(kernel._replace(macros=(*kernel.macros, ("forward", 0))), "sm_90a")


def test_code_is_compiled_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_digest", lambda kernel, architecture: f"{kernel.shared_bytes}-{architecture}")
    monkeypatch.setattr(build, "compile_kernel", lambda kernel, architecture: (compiled.append(kernel) or b"code", ""))
    kernel = forward_of(PLAIN, DEVICES["H200"])
    assert kernel is not None
    assert [build.machine_code(kernel, "sm_90a") for _ in range(2)] == [b"code"] * 2
    assert len(compiled) == 1
    # A folder that nobody can write to costs time only.
    monkeypatch.setenv(
        "XDG_CACHE_HOME",
        str(tmp_path / "attentiondrop" / "kernels" / next((tmp_path / "attentiondrop" / "kernels").iterdir()).name),
    )
    assert build.machine_code(kernel, "sm_90a") == b"code"
    assert len(compiled) == 2

"""Blocks and their bytes: what exercises 6 and 7 of lab 16 draw, and what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Raised, Stage

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)
# Of each kind a NaN that arithmetic and conversions change into another NaN.
SIGNALING = {
    torch.float64: 0x7FF0000000000001,
    torch.float32: 0x7F800001,
    torch.float16: 0x7C01,
    torch.bfloat16: 0x7F81,
}
SHOWN = 16  # bytes of a block in the feedback
FITS = "another block's bytes"
# By name: how a payload is made of a block's bytes, the bytes of a layer, and those of a number.
PAYLOADS: dict[str, Callable[[bytes, int, int], bytes]] = {
    FITS: lambda block, layer, number: block,
    "1 byte less": lambda block, layer, number: block[:-1],
    "1 byte more": lambda block, layer, number: block + b"\x00",
    "1 number more": lambda block, layer, number: block + bytes(number),
    "half of the bytes": lambda block, layer, number: block[: len(block) // 2],
    "1 layer less": lambda block, layer, number: block[:-layer],
    "1 layer more": lambda block, layer, number: block + block[:layer],
    "two blocks": lambda block, layer, number: block * 2,
    "no bytes": lambda block, layer, number: b"",
}


@dataclass(frozen=True)
class Memory:
    """An engine's memory: a tensor for each layer, all of one shape.

    Attributes:
        order: the axes as they lie in memory, the last one side by side
        gaps: other numbers lie between those of the tensors
        bits: any bits, NaN and -0.0 included; else the numbers count up from 0
        payload: one of `PAYLOADS`, for exercise 7
    """

    num_layers: int
    num_blocks: int
    tail: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    gaps: bool
    bits: bool
    block_id: int
    payload: str = FITS

    def __str__(self) -> str:
        shape = (self.num_blocks, *self.tail)
        view = (
            ""
            if self.order == tuple(range(len(shape)))
            else f", views whose axes lie in memory in the order {self.order}"
        )
        view += ", with gaps between the numbers" if self.gaps else ""
        numbers = "any bits" if self.bits else "numbers 0, 1, 2, ..."
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{counted(self.num_layers, 'layer')} of shape {shape}, {dtype}, {numbers}{view}; "
            f"block_id {self.block_id}"
        )

    def tensors(self, seed: int = 0) -> list[Tensor]:
        """[num_blocks, *tail] for each layer; other numbers for another seed."""
        shape = (self.num_layers, self.num_blocks, *self.tail)
        width = self.dtype.itemsize
        if self.bits:
            generator = torch.Generator().manual_seed(seed)
            raw = torch.randint(0, 256, (*shape, width), generator=generator, dtype=torch.uint8)
            bits = raw.view(INTEGERS[width]).squeeze(-1)
            kind = torch.randint(0, 8, shape, generator=generator)
            bits[kind == 0] = -(2 ** (8 * width - 1))  # -0.0
            bits[kind == 1] = SIGNALING.get(self.dtype, 0)
            numbers = bits.view(self.dtype)
        else:
            count = torch.arange(torch.Size(shape).numel()) + 50 * seed
            numbers = (count % 100).to(self.dtype).view(shape)
        return [self._laid_out(layer) for layer in numbers]

    def _laid_out(self, numbers: Tensor) -> Tensor:
        """The same numbers in a memory of this kind. Bits are copied: a float may be a NaN."""
        dtype, numbers = numbers.dtype, numbers.view(INTEGERS[numbers.dtype.itemsize])
        numbers = numbers.permute(self.order)  # as it lies in memory
        if self.gaps:
            numbers = torch.stack([torch.ones_like(numbers), numbers], dim=-1)[..., 1]
        else:
            numbers = numbers.contiguous()
        axes = [self.order.index(axis) for axis in range(numbers.dim())]
        return numbers.permute(axes).view(dtype)


def counted(number: int, noun: str) -> str:
    """1 byte, 2 bytes."""
    return f"{number} {noun}{'s' * (number != 1)}"


def draw_order(c: Choices, num_axes: int) -> tuple[int, ...]:
    """The axes as they lie in memory: some layouts that engines have, or any."""
    blocks, *inner = plain = tuple(range(num_axes))
    in_front = (inner[0], blocks, *inner[1:])  # keys and values in front, as in our engine
    channels_last = (blocks, *inner[:1], *inner[2:], *inner[1:2])  # a layout that torch keeps
    turned = (blocks, *inner[::-1])  # each block, as by a transpose
    any_order = tuple(c.shuffled(plain))
    return c.pick((plain, plain, in_front, channels_last, channels_last, turned, any_order))


def draw_memory(c: Choices, dtypes: Sequence[torch.dtype] = (*DTYPES, *FLOAT8)) -> Memory:
    """Few layers and blocks, as vLLM lays them out and as our engine does."""
    num_blocks = c.integer(1, 4)
    tail = c.pick([(2, 2, 1, 2), (1, 2, 4), (3,), (2, 3), (2, 3, 2, 2), (2, 2, 3, 4)])
    return Memory(
        c.integer(1, 3),
        num_blocks,
        tail,
        c.pick(dtypes),
        draw_order(c, 1 + len(tail)),
        c.rarely(4),
        c.pick((False, True)),
        c.integer(0, num_blocks - 1),
    )


def draw_payload(c: Choices) -> Memory:
    """Not in float8, for which some ways of writing are missing in torch, such as `index_copy_`."""
    return replace(draw_memory(c, DTYPES), payload=c.pick((FITS, FITS, *PAYLOADS)))


def raw(numbers: Tensor) -> bytes:
    """Number by number, in the order of the axes: each as the integer that has its bits."""
    width = numbers.element_size()
    bits = numbers.view(INTEGERS[width]).flatten().tolist()
    return b"".join(number.to_bytes(width, "little", signed=True) for number in bits)


def right_extract(kv_caches: list[Tensor], block_id: int) -> bytes:
    return b"".join(raw(cache[block_id]) for cache in kv_caches)


def right_inject(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    """Integers with the same bits, when the length is right."""
    blocks = [cache[block_id].view(INTEGERS[cache.element_size()]) for cache in kv_caches]
    if len(payload) != sum(block.nbytes for block in blocks):
        return False
    for layer, block in enumerate(blocks):
        part = bytearray(payload[layer * block.nbytes : (layer + 1) * block.nbytes])
        block.copy_(torch.frombuffer(part, dtype=block.dtype).view(block.shape))
    return True


def payload_of(memory: Memory) -> bytes:
    """Bytes for a block, right or not."""
    block = right_extract(memory.tensors(seed=1), memory.block_id)
    layer, number = len(block) // memory.num_layers, memory.dtype.itemsize
    return PAYLOADS[memory.payload](block, layer, number)


def show_bytes(data: Any) -> str:
    """The first bytes of a block in hexadecimal, and how many there are."""
    if not isinstance(data, bytes):
        return f"a {type(data).__name__}"
    return f"`{data[:SHOWN].hex(' ')}{' ...' * (len(data) > SHOWN)}` ({counted(len(data), 'byte')})"


def play_extract(stage: Stage, function: Any, memory: Memory) -> None:
    """The bytes of a block; then the engine writes into it, and they are asked for again."""
    caches, first = memory.tensors(), None
    for _ in range(2):
        got = stage.do(function, caches, memory.block_id)
        stage.see("kind", got if isinstance(got, Raised) else f"a {type(got).__name__}")
        stage.see("length", len(got))
        stage.expect("stale", False, got == first, lambda same: "old bytes" if same else "new ones")
        stage.see("extract", got, show_bytes)
        right_inject(caches, memory.block_id, payload_of(memory))
        stage.now("then the engine writes other numbers into the block; the second call")
        first = got


def play_inject(stage: Stage, function: Any, memory: Memory) -> None:
    """What is returned, and what the memory holds afterwards."""
    caches, payload = memory.tensors(), payload_of(memory)
    fits = memory.payload == FITS
    others = [b for b in range(memory.num_blocks) if b != memory.block_id]
    before = [raw(cache[others]) for cache in caches]
    told = f"payload: {memory.payload} ({counted(len(payload), 'byte')})"
    stage.now(told)
    # In a function without arguments: here the tensors are meant to be changed.
    got = stage.do(lambda: function(list(caches), memory.block_id, payload))
    if isinstance(got, Raised):
        stage.expect("raises", "no error", got)
    kept = before == [raw(cache[others]) for cache in caches]
    stage.see("others", "as before" if kept else "changed")
    stage.see("accepted" if fits else "refused", got)
    for layer, cache in enumerate(caches):
        stage.now(
            f"payload: {memory.payload} ({counted(len(payload), 'byte')}); layer {layer} afterwards"
        )
        stage.see("block" if fits else "half", raw(cache[memory.block_id]), show_bytes)

"""What lab 16 says of blocks and bytes: exercises 5a and 5b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.float8_e5m2,
        torch.float8_e4m3fn,
        torch.uint8,
        torch.float64,
    )
}

# The bits of a NaN may change when it is converted, in one way or another: extract has none, so
# that those who convert are told apart from others, and alike from each other.
STRANGE = {
    "infinite": [torch.inf, -torch.inf],
    "NaN or infinite": [torch.nan, torch.inf, -torch.inf],
}


@dataclass(frozen=True)
class Memory:
    """An engine's memory: `num_layers` tensors of one shape, filled with random numbers.

    Attributes:
        order: the axes as they lie in memory, the last one side by side
        gaps: other numbers lie before and between those of the tensors
        odd: what some of the numbers are; empty, if all are as usual
    """

    num_layers: int
    num_blocks: int
    tail: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    gaps: bool
    odd: str
    block_id: int
    payload: str = ""

    def __str__(self) -> str:
        shape = (self.num_blocks, *self.tail)
        view = (
            ""
            if self.order == tuple(range(len(shape)))
            else (f", a view: in memory its axes lie in the order {self.order}")
        )
        view += ", with gaps between the numbers" if self.gaps else ""
        odd = f", some {self.odd}" if self.odd else ""
        payload = f", payload: {self.payload} bytes" if self.payload else ""
        return (
            f"{self.num_layers} layers of shape {shape}, {self.dtype}{odd}{view}; block "
            f"{self.block_id}{payload}"
        )

    def tensors(self, seed: int = 0) -> list[Tensor]:
        """[num_blocks, *tail] per layer."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.num_blocks, *self.tail)
        layers = []
        for _ in range(self.num_layers):
            numbers = torch.randn(shape, generator=generator)
            if self.odd and DTYPES[self.dtype].is_floating_point:
                strange = torch.tensor(STRANGE[self.odd])
                which = torch.randint(0, 2 * len(strange), shape, generator=generator)
                some = strange[which % len(strange)]
                numbers = torch.where(which < len(strange), some, numbers)
            numbers = numbers.to(DTYPES[self.dtype]).permute(self.order)  # as it lies in memory
            if self.gaps:
                numbers = torch.stack([torch.ones_like(numbers), numbers], dim=-1)[..., 1]
            else:
                numbers = numbers.contiguous()
            numbers = numbers.permute([self.order.index(a) for a in range(len(shape))])
            layers.append(numbers)
        return layers


def draw_order(c: Choices, num_axes: int) -> tuple[int, ...]:
    """The axes as they lie in memory: some layouts that engines have, or any."""
    blocks, *inner = range(num_axes)
    plain = (blocks, *inner)
    return c.pick(
        [
            plain,
            plain,
            (inner[0], blocks, *inner[1:]),  # keys and values in front, as in our engine
            *[(blocks, *inner[:1], *inner[2:], *inner[1:2])] * 2,  # channels last, known to torch
            (blocks, *inner[::-1]),  # each block turned, as by a transpose
            tuple(c.shuffled(plain)),
        ]
    )


def draw_memory(c: Choices, dtypes: Sequence[str] = tuple(DTYPES)) -> Memory:
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
        c.pick(["", "", "infinite"]),
        c.integer(0, num_blocks - 1),
    )


def draw_payload(c: Choices) -> Memory:
    """Mostly the bytes of another block, sometimes too many, too few, or none.

    Not in float8, for which some ways of writing are missing in torch, such as `index_copy_`.
    """
    memory = draw_memory(c, [dtype for dtype in DTYPES if "float8" not in dtype])
    odd = c.pick(["", "NaN or infinite"])
    payloads = ["another block's", "another block's", "too few", "too many", "no", "half the"]
    return replace(memory, odd=odd, payload=c.pick(payloads))


def right_extract(kv_caches: list[Tensor], block_id: int) -> bytes:
    """Number by number: each as the integer that has its bits."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    data = bytearray()
    for cache in kv_caches:
        size = cache.element_size()
        for number in cache[block_id].contiguous().view(whole[size]).flatten().tolist():
            data += number.to_bytes(size, "little", signed=True)
    return bytes(data)


def right_inject(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    """Layer by layer, when the length is right."""
    sizes = [cache[0].numel() * cache.element_size() for cache in kv_caches]
    if len(payload) != sum(sizes):
        return False
    for cache, size in zip(kv_caches, sizes, strict=True):
        part, payload = bytearray(payload[:size]), payload[size:]
        cache[block_id] = torch.frombuffer(part, dtype=cache.dtype).view(cache[block_id].shape)
    return True


def payload_of(memory: Memory) -> bytes:
    """Bytes for a block, right or not."""
    right = right_extract(memory.tensors(seed=1), memory.block_id)
    return {
        "another block's": right,
        "too few": right[:-1],
        "too many": right + b"\x00",
        "no": b"",
        "half the": right[: len(right) // 2],
    }[memory.payload]


def play_extract(stage: Stage, function: Any, memory: Memory) -> None:
    """What comes back; and that the memory stays as it is."""
    caches = memory.tensors()
    got = stage.do(function, caches, memory.block_id)
    stage.see("extract", got)


def play_inject(stage: Stage, function: Any, memory: Memory) -> None:
    """What comes back, and the memory afterwards."""
    caches = memory.tensors()
    got = stage.do(function, list(caches), memory.block_id, payload_of(memory))
    stage.see("inject", got)
    for layer, cache in enumerate(caches):  # the engine's own
        others = [b for b in range(memory.num_blocks) if b != memory.block_id]
        stage.see("block", cache[memory.block_id].float(), look=f"Layer {layer}.")
        stage.see("others", cache[others].float())


def _stacked(kv_caches: list[Tensor], block_id: int) -> Tensor:
    return torch.stack([cache[block_id] for cache in kv_caches])


def _raw(numbers: Tensor) -> bytes:
    return numbers.contiguous().view(torch.uint8).numpy().tobytes()


EXTRACT_BLOCK = Contract(
    inputs=draw_memory,
    judge=InLockstep(play_extract, right_extract),
    passed="Right for numbers of 8, 4, 2 and 1 bytes, and for memory that is a view.",
    clauses={
        "extract": Clause(
            "The bytes are not those of the block. {says}",
            "`torch.stack([cache[block_id] for cache in kv_caches]).contiguous()`, "
            "and its bytes as they are.",
        )
    },
    mistakes=(
        mistake(
            "Only the first layer is there.",
            "All of `kv_caches`, one after the other.",
            lambda caches, b: _raw(caches[0][b]),
        ),
        mistake(
            "The numbers are converted. A block must come back exactly as it was, and in "
            "bfloat16 a number has 2 bytes.",
            "`.view(torch.uint8)` reads the bytes as they are, of every dtype.",
            lambda caches, b: _raw(_stacked(caches, b).float()),
            lambda caches, b: _raw(_stacked(caches, b).half()),
        ),
        mistake(
            "The layers are mixed: first comes a piece of each layer.",
            "All of the first layer, then all of the second.",
            lambda caches, b: _raw(torch.stack([c[b] for c in caches], dim=-1)),
            lambda caches, b: _raw(torch.stack([c[b] for c in caches], dim=1)),
        ),
        mistake(
            "The layers come in the other order.",
            "The first layer first.",
            lambda caches, b: _raw(_stacked(caches[::-1], b)),
        ),
        mistake(
            "The numbers come in the order of memory. In a view that is not the order of its axes.",
            "`.contiguous()` lays them side by side in the order of the axes.",
            lambda caches, b: b"".join(bytes(c[b].clone().untyped_storage()) for c in caches),
        ),
        mistake(
            "`.view(torch.uint8)` refuses numbers that do not lie side by side. `torch.stack` "
            "keeps a layout that all blocks share.",
            "`.contiguous()` before it.",
            lambda caches, b: _stacked(caches, b).view(torch.uint8).numpy().tobytes(),
        ),
        mistake(
            "This is not the block that was asked for.",
            "`cache[block_id]`.",
            lambda caches, b: _raw(_stacked(caches, 0)),
            lambda caches, b: _raw(torch.stack(caches)),
        ),
        mistake(
            "What you return is no `bytes`.",
            "`tensor.numpy().tobytes()`.",
            lambda caches, b: _stacked(caches, b).contiguous().view(torch.uint8).numpy(),
        ),
    ),
)


def _half_way(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    """Writes layer by layer, and notices too late that bytes are missing."""
    for cache in kv_caches:
        size = cache[0].numel() * cache.element_size()
        if len(payload) < size:
            return False
        right_inject([cache], block_id, payload[:size])
        payload = payload[size:]
    return not payload


def _into_a_copy(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    return right_inject([cache.clone() for cache in kv_caches], block_id, payload)


def _everywhere(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    return all(right_inject(kv_caches, b, payload) for b in range(len(kv_caches[0])))


def _unchecked(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    sizes = [cache[0].numel() * cache.element_size() for cache in kv_caches]
    if len(payload) < sum(sizes):
        raise ValueError("buffer is smaller than requested size")
    return right_inject(kv_caches, block_id, payload[: sum(sizes)])


def _says_nothing(kv_caches: list[Tensor], block_id: int, payload: bytes) -> None:
    right_inject(kv_caches, block_id, payload)


def _only_the_first(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    sizes = [cache[0].numel() * cache.element_size() for cache in kv_caches]
    if len(payload) != sum(sizes):
        return False
    return right_inject(kv_caches[:1], block_id, payload[: sizes[0]])


def _finite_only(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    sizes = [cache[0].numel() * cache.element_size() for cache in kv_caches]
    if len(payload) != sum(sizes):
        return False
    numbers = torch.frombuffer(bytearray(payload), dtype=kv_caches[0].dtype)
    return bool(numbers.float().isfinite().all()) and right_inject(kv_caches, block_id, payload)


INJECT_BLOCK = Contract(
    inputs=draw_payload,
    judge=InLockstep(play_inject, right_inject),
    passed="Right: what fits is in its block, all else is as it was, and what does not fit is "
    "refused.",
    clauses={
        "inject": Clause(
            "`inject_block` returns {got}; expected {expected}.",
            "True when the payload fits. False, and nothing changed, when it does not.",
        ),
        "block": Clause(
            "The block does not hold what it should. {says}",
            "Bytes to numbers with `torch.frombuffer(bytearray(payload), dtype=...)`. "
            "When the payload does not fit, nothing may change.",
        ),
        "others": Clause("Another block has changed.", "Write to `cache[block_id]` only."),
    },
    mistakes=(
        mistake(
            "A payload of another length is not refused.",
            "Compare `len(payload)` with the bytes of a block, and return False.",
            _unchecked,
        ),
        mistake(
            "Half of a block is written before you notice that the payload is too short.",
            "Compare the lengths first.",
            _half_way,
        ),
        mistake(
            "The numbers are written into a copy.",
            "`cache[block_id] = ...` writes into the memory itself.",
            _into_a_copy,
        ),
        mistake("All blocks are overwritten.", "Only `cache[block_id]`.", _everywhere),
        mistake("Your function says nothing.", "`return True` at the end.", _says_nothing),
        mistake("Only the first layer is written.", "All of `kv_caches`.", _only_the_first),
        mistake(
            "A payload with NaN or infinity is refused. Only its length counts.",
            "Compare the lengths, nothing else.",
            _finite_only,
        ),
    ),
)

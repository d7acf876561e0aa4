"""New keys and values into their slots, where nothing else is to be done with them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _reshape_and_cache_kernel(
    key,
    value,
    keys,
    values,
    slots,
    key_stride,
    value_stride,
    numbers: tl.constexpr,
    padded: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    place = tl.arange(0, padded)
    inside = (place < numbers) & (slot >= 0)
    source = tl.load(key + row * key_stride + place, mask=inside)
    tl.store(keys + slot * numbers + place, source, mask=inside)
    source = tl.load(value + row * value_stride + place, mask=inside)
    tl.store(values + slot * numbers + place, source, mask=inside)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """As `PagedKVCache.write`. In vLLM: `triton_reshape_and_cache_flash`.

    Args:
        key: [T, H_kv, D]; a token's heads lie one after the other, tokens wherever they are.
        value: as `key`.
        key_cache: [num_blocks, block_size, H_kv, D], of one layer. Written to.
        value_cache: as `key_cache`.
        slot_mapping: int64 [T]; -1 for a token that is not kept.
    """
    numbers = key.shape[1] * key.shape[2]
    key, value = (x if x[0].is_contiguous() else x.contiguous() for x in (key, value))
    _reshape_and_cache_kernel[(len(key),)](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        numbers,
        triton.next_power_of_2(numbers),
    )

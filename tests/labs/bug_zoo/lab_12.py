"""Right answers to lab 12 that are written differently, and wrong ones that are no edits."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations, product

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_12 import answers
from utils.quant import rtn

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 unpack


@right("unpack")
def through_bytes(packed, bits):
    if bits not in (2, 4, 8) or packed.dtype != torch.int32:
        raise ValueError("not packed")
    raw = np.ascontiguousarray(packed.numpy()).reshape(-1).view(np.uint8)
    parts = np.stack([(raw >> s) & (2**bits - 1) for s in range(0, 8, bits)], -1)
    codes = torch.from_numpy(parts.astype(np.int32))
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits)


# 2 read_layer


def fields(packed, bits):
    return ((packed[..., None] >> torch.arange(0, 32, bits).int()) & (2**bits - 1)).flatten(-2)


@right("read_layer")
def input_by_input(tensors, bits, checkpoint_format):
    offset = {"gptq": 1, "gptq_v2": 0}.get(checkpoint_format)
    if offset is None:
        raise ValueError(checkpoint_format)
    per, columns = 32 // bits, []
    zeros = fields(tensors["qzeros"], bits) + offset
    for i, group in enumerate(tensors["g_idx"].tolist()):
        codes = (tensors["qweight"][i // per] >> (i % per * bits)) & (2**bits - 1)
        columns.append((codes - zeros[group]) * tensors["scales"][group].float())
    return torch.stack(columns, dim=1)


# 3 write_layer


def packed(rows, bits):
    rows = rows.long()
    out = torch.zeros(*rows.shape[:-1], rows.shape[-1] * bits // 32, dtype=torch.int64)
    for place in range(32 // bits):
        out |= rows[..., place :: 32 // bits] << (bits * place)
    return torch.where(out >= 2**31, out - 2**32, out).int()


@right("write_layer")
def with_numpy(codes, zeros, scales, g_idx, bits, checkpoint_format):
    minus = {"gptq": 1, "gptq_v2": 0}
    if bits not in (2, 4, 8) or checkpoint_format not in minus:
        raise ValueError("unknown")
    q, z, s = (t.clone().numpy() for t in (codes.long(), zeros.long(), scales.float()))
    stored = z - minus[checkpoint_format]
    with np.errstate(all="ignore"):
        half = s.astype(np.float16)
    if any(n % (32 // bits) for n in q.shape) or not np.isfinite(half).all():
        raise ValueError("does not fit")
    if not {*np.unique(q), *np.unique(z), *np.unique(stored)} <= set(range(2**bits)):
        raise ValueError("does not fit")
    if not set(g_idx.tolist()) <= set(range(z.shape[1])):
        raise ValueError("no such group")
    return {
        "scales": torch.from_numpy(np.ascontiguousarray(half.T).copy()),
        "g_idx": torch.tensor(g_idx.tolist(), dtype=torch.int32),
        "qweight": packed(torch.from_numpy(q), bits).T.contiguous(),
        "qzeros": packed(torch.from_numpy(stored).T, bits),
    }


# 4 awq_to_gptq


@right("awq_to_gptq")
def nibble_by_nibble(tensors):
    def neighbors(words):
        out = torch.empty(len(words), words.shape[1] * 8, dtype=torch.int64)
        for place, neighbor in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            out[:, neighbor::8] = (words >> 4 * place) & 15
        return out

    codes, zeros = neighbors(tensors["qweight"]), neighbors(tensors["qzeros"])
    if len(codes) % 8 or len(codes) % len(zeros):
        raise ValueError("does not fit")
    v1 = bool((zeros > 0).all())
    group_size = len(codes) // len(zeros)
    return {
        "qweight": packed(codes.T, 4).T.contiguous(),
        "qzeros": packed(zeros - int(v1), 4),
        "scales": torch.stack(list(tensors["scales"])),
        "g_idx": torch.arange(len(zeros), dtype=torch.int32).repeat_interleave(group_size),
    }, "gptq" if v1 else "gptq_v2"


# 5 find_damage

KEYS = ("bits", "group_size", "desc_act")


def bad_tensors(shapes, tensors, bits, group_size, desc_act):
    bad = []
    for layer, (out, width) in shapes.items():
        size = width if group_size == -1 else group_size
        kinds = {
            "qweight": ((width * bits // 32, out), torch.int32),
            "qzeros": ((width // size, out * bits // 32), torch.int32),
            "scales": ((width // size, out), torch.float16),
            "g_idx": ((width,), torch.int32),
        }
        for part, kind in kinds.items():
            name = f"{layer}.{part}"
            if name not in tensors or (tensors[name].shape, tensors[name].dtype) != kind:
                bad.append(name)
            elif part == "scales":
                numbers = tensors[name].float().numpy()
                if not (np.isfinite(numbers) & (numbers > 0)).all():
                    bad.append(name)
            elif part == "g_idx":
                groups = tensors[name].tolist()
                if desc_act:
                    counts = Counter(groups)
                    if counts != {g: size for g in range(width // size)}:
                        bad.append(name)
                elif groups != [i // size for i in range(width)]:
                    bad.append(name)
    return bad


def sizes_of(shapes):
    return [-1, *(n for n in range(1, 1000) if not any(width % n for _, width in shapes.values()))]


@right("find_damage")
@right("repair")
def few_keys_first(entry, shapes, tensors):
    """Changes no key, then one, two, three; a choice of keys that may hold any value."""
    allowed = dict(zip(KEYS, ((2, 4, 8), sizes_of(shapes), (False, True)), strict=True))
    best = None
    for changed in chain.from_iterable(combinations(KEYS, n) for n in range(4)):
        options = [allowed[k] if k in changed else [entry.get(k)] for k in KEYS]
        if any(entry.get(k) not in allowed[k] for k in KEYS if k not in changed):
            continue
        for values in product(*options):
            bad = bad_tensors(shapes, tensors, *values)
            if best is None or len(bad) + len(changed) < len(best):
                best = {*bad, *changed}
    return best


@wrong("repair", "Exercise 5 is not right yet")
def all_is_well(entry, shapes, tensors):
    return set()


# 6 engine


@right("engine")
def new_dict(state, layers, bits, group_size):
    tensors = {}
    for name, tensor in state.items():
        layer, _, part = name.rpartition(".")
        if part != "weight" or layer not in set(layers):
            tensors[name] = tensor
            continue
        q = rtn(tensor.float(), bits=bits, group_size=group_size, sym=False)
        made = with_numpy(q.q, q.zeros, q.scales, q.g_idx, bits, "gptq_v2")
        tensors |= {f"{layer}.{key}": value for key, value in made.items()}
    return {
        "checkpoint_format": "gptq_v2",
        "sym": False,
        "desc_act": False,
        "lm_head": False,
        "group_size": group_size,
        "bits": bits,
        "quant_method": "gptq",
    }, tensors

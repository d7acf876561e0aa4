"""Wrong and right answers to lab 12, each as a learner might write it."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations, product

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.quant import rtn

zoo = Zoo()
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


@right("unpack")
def by_division(packed, bits):
    if bits not in {2, 4, 8} or packed.dtype is not torch.int32:
        raise ValueError("not packed")
    out = torch.empty(*packed.shape, 32 // bits, dtype=torch.int32)
    unsigned = packed.long() % 2**32
    for place in range(32 // bits):
        out[..., place] = (unsigned // 2 ** (bits * place)) % 2**bits
    return out.reshape(*packed.shape[:-1], -1) if packed.numel() else out.flatten(-2)


@wrong("unpack", "not those in the integers' bits")
def not_masked(packed, bits):
    if bits not in (2, 4, 8) or packed.dtype != torch.int32:
        raise ValueError("not packed")
    left = packed[..., None] << torch.arange(32 - bits, -1, -bits, dtype=torch.int32)
    return (left >> (32 - bits)).flatten(-2)


@wrong("unpack", "refused")
def takes_three_bits(packed, bits):
    shifts = torch.arange(0, 32, bits, dtype=torch.int32) if bits > 0 else torch.zeros(1).int()
    return ((packed.int()[..., None] >> shifts) & (2 ** max(bits, 0) - 1)).flatten(-2)


@wrong("unpack", "raised RuntimeError")
def two_dimensions(packed, bits):
    if bits not in (2, 4, 8) or packed.dtype != torch.int32:
        raise ValueError("not packed")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(packed.shape[0], -1)


@wrong("unpack", "refused")
def takes_up_to_eight_bits(packed, bits):
    if not 2 <= bits <= 8 or packed.dtype != torch.int32:
        raise ValueError("not packed")
    return takes_three_bits(packed, bits)


@wrong("unpack", "raised RuntimeError")
def guesses_the_last_size(packed, bits):
    codes = through_bytes(packed.reshape(-1), bits)
    return codes.reshape(*packed.shape[:-1], -1) if packed.shape[-1] else packed.clone()


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


@wrong("read_layer", "refused")
def everything_else_is_v2(tensors, bits, checkpoint_format):
    zeros = fields(tensors["qzeros"], bits) + (1 if checkpoint_format == "gptq" else 0)
    g = tensors["g_idx"].long()
    return ((fields(tensors["qweight"].T, bits).T - zeros[g]) * tensors["scales"].float()[g]).T


@wrong("read_layer", "changes in place")
def adds_in_place(tensors, bits, checkpoint_format):
    if checkpoint_format == "gptq":  # as one int32: right, but the caller's zeros move
        tensors["qzeros"] += sum(1 << (s - 32 if s == 32 else s) for s in range(0, 32, bits))
        checkpoint_format = "gptq_v2"
    return everything_else_is_v2(tensors, bits, checkpoint_format)


@wrong("read_layer", "The weights are wrong")
def scales_times_zeros_in_half(tensors, bits, checkpoint_format):
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise ValueError("unknown")
    zeros = fields(tensors["qzeros"], bits) + (1 if checkpoint_format == "gptq" else 0)
    g, scales = tensors["g_idx"].long(), tensors["scales"]
    return (
        (fields(tensors["qweight"].T, bits).T * scales[g]).float() - (zeros * scales)[g].float()
    ).T


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


def unchecked(codes, zeros, scales, g_idx, bits, checkpoint_format):
    less = 1 if checkpoint_format == "gptq" else 0
    return {
        "qweight": packed(codes & (2**bits - 1), bits).T.contiguous(),
        "qzeros": packed((zeros.T.long() - less) & (2**bits - 1), bits).contiguous(),
        "scales": scales.T.to(torch.float16, copy=True).contiguous(),
        "g_idx": g_idx.to(torch.int32, copy=True),
    }


@wrong("write_layer", "raised ValueError")
def compares_in_uint8(codes, zeros, scales, g_idx, bits, checkpoint_format):
    if (codes > 2**bits - 1).any() or (zeros - 1 < 0).any() or (zeros >= 2**bits).any():
        raise ValueError("codes")
    return with_numpy(codes, zeros, scales, g_idx, bits, checkpoint_format)


@wrong("write_layer", "memory of an argument")
def the_same_g_idx(codes, zeros, scales, g_idx, bits, checkpoint_format):
    found = with_numpy(codes, zeros, scales, g_idx, bits, checkpoint_format)
    return found | {"g_idx": g_idx.to(torch.int32)}


@wrong("write_layer", "not contiguous")
def not_contiguous(codes, zeros, scales, g_idx, bits, checkpoint_format):
    found = with_numpy(codes, zeros, scales, g_idx, bits, checkpoint_format)
    return found | {"scales": scales.to(torch.float16, copy=True).contiguous().T}


@wrong("write_layer", "must be refused")
def counts_the_groups(codes, zeros, scales, g_idx, bits, checkpoint_format):
    if g_idx.min() < 0 or len(g_idx.unique()) > zeros.shape[1]:
        raise ValueError("no such group")
    known = g_idx.clamp(max=zeros.shape[1] - 1)
    found = with_numpy(codes, zeros, scales, known, bits, checkpoint_format)
    return found | {"g_idx": g_idx.to(torch.int32, copy=True)}


@wrong("write_layer", "raised ValueError")
def refuses_all_above_the_largest(codes, zeros, scales, g_idx, bits, checkpoint_format):
    if scales.abs().max() > 65504:
        raise ValueError("beyond float16")
    return with_numpy(codes, zeros, scales, g_idx, bits, checkpoint_format)


# 4 awq_to_gptq

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@right("awq_to_gptq")
def nibble_by_nibble(tensors):
    def neighbours(words):
        out = torch.empty(len(words), words.shape[1] * 8, dtype=torch.int64)
        for place, neighbour in enumerate(AWQ_ORDER):
            out[:, neighbour::8] = (words >> 4 * place) & 15
        return out

    codes, zeros = neighbours(tensors["qweight"]), neighbours(tensors["qzeros"])
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


@wrong("awq_to_gptq", "expected torch.bfloat16")
def scales_in_half(tensors):
    found, form = nibble_by_nibble(tensors)
    return found | {"scales": found["scales"].half()}, form


@wrong("awq_to_gptq", "memory of an argument")
def the_same_scales(tensors):
    found, form = nibble_by_nibble(tensors)
    return found | {"scales": tensors["scales"].contiguous()}, form


@wrong("awq_to_gptq", "cannot hold this layer")
def rounds_the_groups_up(tensors):
    width, groups = len(tensors["qweight"]), len(tensors["qzeros"])
    if width % 8 == 0 and width % groups:
        found, form = nibble_by_nibble(
            {
                "qweight": tensors["qweight"][: width // groups // 8 * 8 * groups or 8],
                "qzeros": tensors["qzeros"][:1],
                "scales": tensors["scales"][:1],
            }
        )
        return found, form
    return nibble_by_nibble(tensors)


@wrong("awq_to_gptq", "`scales` is wrong")
def scales_by_way_of_half(tensors):
    found, form = nibble_by_nibble(tensors)
    return found | {"scales": found["scales"].half().to(found["scales"].dtype)}, form


@wrong("awq_to_gptq", "Expected a ValueError")
def divides_by_the_group_size(tensors):
    width, groups = len(tensors["qweight"]), len(tensors["qzeros"])
    if width % (width // groups):
        raise ValueError("does not fit")
    return nibble_by_nibble(tensors)


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
    return [-1, *(n for n in range(1, 161) if not any(width % n for _, width in shapes.values()))]


@right("find_damage")
def few_keys_first(entry, shapes, tensors):
    """Changes no key, then one, two, three; a choice of keys that may hold any value."""
    allowed = dict(zip(KEYS, ((2, 4, 8), sizes_of(shapes), (False, True)), strict=True))
    best = None
    for changed in chain.from_iterable(combinations(KEYS, n) for n in range(4)):
        options = [allowed[k] if k in changed else [entry.get(k)] for k in KEYS]
        if any(entry.get(k) not in allowed[k] for k in KEYS if k not in changed):
            continue
        for bits in options[0]:
            for size in options[1]:
                for desc_act in options[2]:
                    bad = bad_tensors(shapes, tensors, bits, size, desc_act)
                    if best is None or len(bad) + len(changed) < len(best):
                        best = {*bad, *changed}
    return best


@wrong("find_damage", "is sound, and you say")
def common_group_sizes(entry, shapes, tensors):
    sizes = [n for n in sizes_of(shapes) if n in (-1, 16, 32, 64, 128)]
    best = None
    for bits in (2, 4, 8):
        for size in sizes:
            for desc_act in (False, True):
                keys = {
                    k
                    for k, v in zip(KEYS, (bits, size, desc_act), strict=True)
                    if entry.get(k) != v
                }
                bad = keys | set(bad_tensors(shapes, tensors, bits, size, desc_act))
                best = bad if best is None or len(bad) < len(best) else best
    return best


@wrong("find_damage", "is sound, and you say")
def majority_of_tensors(entry, shapes, tensors):
    """Reads each key off the layers, one by one, and takes what most of them say."""
    votes = {k: Counter() for k in KEYS}
    for layer, (_, width) in shapes.items():
        parts = {p: tensors.get(f"{layer}.{p}") for p in ("qweight", "scales", "g_idx")}
        if parts["qweight"] is not None and parts["qweight"].dim() == 2:
            votes["bits"][parts["qweight"].shape[0] * 32 // width] += 1
        if parts["scales"] is not None and len(parts["scales"]):
            votes["group_size"][width // len(parts["scales"])] += 1
        if parts["g_idx"] is not None:
            flat = parts["g_idx"].flatten().tolist()
            votes["desc_act"][flat != sorted(flat)] += 1
    meant = {}
    allowed = dict(zip(KEYS, ((2, 4, 8), sizes_of(shapes), (False, True)), strict=True))
    for key in KEYS:
        best = votes[key].most_common(1)
        meant[key] = best[0][0] if best and best[0][0] in allowed[key] else allowed[key][0]
    wrong_keys = {k for k in KEYS if entry.get(k) != meant[k]}
    return wrong_keys | set(bad_tensors(shapes, tensors, *meant.values()))


@wrong("find_damage", "raised KeyError")
def nothing_can_be_missing(entry, shapes, tensors):
    for layer in shapes:
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            tensors[f"{layer}.{part}"].dim()
    return few_keys_first(entry, shapes, tensors)


@wrong("find_damage", "sound")
def orders_nothing(entry, shapes, tensors):
    known = {f"{layer}.{p}" for layer in shapes for p in ("qweight", "qzeros", "scales", "g_idx")}
    return few_keys_first(entry, shapes, tensors) | (
        {"desc_act"}
        if entry.get("desc_act")
        and known <= set(tensors)
        and all(
            t.tolist() == sorted(t.flatten().tolist())
            for n, t in tensors.items()
            if n.endswith("g_idx")
        )
        else set()
    )


def fewest(entry, shapes, tensors, allowed, bad_of=bad_tensors):
    """The smallest explanation, of what is allowed in the three keys."""
    found = []
    for values in product(*allowed):
        keys = {k for k, v in zip(KEYS, values, strict=True) if k not in entry or entry[k] != v}
        found.append(keys | set(bad_of(shapes, tensors, *values)))
    return min(found, key=len)


@wrong("find_damage", "still not sound")
def three_bits_are_sound(entry, shapes, tensors):
    """And so is any group size that goes into one of the layers."""
    widths = [width for _, width in shapes.values()]
    sizes = [n for n in range(1, min(widths) + 1) if any(width % n == 0 for width in widths)]
    return fewest(entry, shapes, tensors, ((2, 3, 4, 8), [-1, *sizes], (False, True)))


@wrong("find_damage", "still not sound")
def groups_in_any_order_of_size(entry, shapes, tensors):
    def bad(shapes, tensors, bits, group_size, desc_act):
        found = bad_tensors(shapes, tensors, bits, group_size, desc_act)
        if desc_act:
            return found
        rising = {
            n
            for n in found
            if n.endswith(".g_idx")
            and n in tensors
            and tensors[n].dim() == 1
            and tensors[n].dtype == torch.int32
            and tensors[n].tolist() == sorted(tensors[n])
            and len(tensors[n]) == shapes[n[:-6]][1]
            and tensors[n][0] == 0
        }
        return [n for n in found if n not in rising]

    return fewest(entry, shapes, tensors, ((2, 4, 8), sizes_of(shapes), (False, True)), bad)


@wrong("find_damage", "Expected a set")
def a_list_of_names(entry, shapes, tensors):
    return sorted(few_keys_first(entry, shapes, tensors))


@wrong("find_damage", "none of the four tensors")
def every_packed_tensor_counts(entry, shapes, tensors):
    found = few_keys_first(entry, shapes, tensors)
    return found | {n for n in tensors if n.endswith("qweight") and n[:-8] not in shapes}


@wrong("find_damage", "Fewer names would do")
def one_key_after_the_other(entry, shapes, tensors):
    """Finds the best value of each key while the others stay."""
    allowed = ((2, 4, 8), sizes_of(shapes), (False, True))
    now = [entry.get(k) if entry.get(k) in a else a[0] for k, a in zip(KEYS, allowed, strict=True)]
    for place, (key, values) in enumerate(zip(KEYS, allowed, strict=True)):
        costs = []
        for value in values:
            now[place] = value
            costs.append(len(bad_tensors(shapes, tensors, *now)) + (entry.get(key) != value))
        now[place] = values[costs.index(min(costs))]
    return fewest(entry, shapes, tensors, [[value] for value in now])


@wrong("find_damage", "raised IndexError")
def always_two_dimensions(entry, shapes, tensors):
    for name, tensor in tensors.items():
        if name.endswith((".qweight", ".qzeros", ".scales")):
            assert tensor.shape[0] >= 0
    return few_keys_first(entry, shapes, tensors)


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
        for key, value in unchecked(q.q, q.zeros, q.scales, q.g_idx, bits, "gptq_v2").items():
            tensors[f"{layer}.{key}"] = value
    return {
        "checkpoint_format": "gptq_v2",
        "sym": False,
        "desc_act": False,
        "lm_head": False,
        "group_size": group_size,
        "bits": bits,
        "quant_method": "gptq",
    }, tensors


@wrong("engine", '"bits": 8')
def four_bits_in_the_entry(state, layers, bits, group_size):
    entry, tensors = new_dict(state, layers, bits, group_size)
    return entry | {"bits": 4}, tensors


@wrong("engine", "changes in place")
def pops_from_state(state, layers, bits, group_size):
    made = new_dict(state, layers, bits, group_size)
    for layer in layers:
        state.pop(f"{layer}.weight")
    return made


@wrong("engine", "is torch.float16; expected torch.")
def all_in_half(state, layers, bits, group_size):
    entry, tensors = new_dict(state, layers, bits, group_size)
    halves = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    return entry, halves


@wrong("engine", "is missing")
def under_the_weights_name(state, layers, bits, group_size):
    entry, tensors = new_dict(state, layers, bits, group_size)
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        renamed[f"{layer}.weight.{part}" if layer in layers else name] = tensor
    return entry, renamed

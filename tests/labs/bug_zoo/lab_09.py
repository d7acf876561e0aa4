"""Wrong and right answers to lab 09, each as a learner might write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils import quant
from utils.quant.nf4 import quantize_blockwise as librarys_blockwise
from utils.quant.rtn import QuantizedWeight, group_index, to_codes

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def table(exercise, **wrong_ones):
    """Wrong answers: a name, words that the feedback must contain, the answer."""
    for name, (*says, answer) in wrong_ones.items():
        answer.__name__ = name
        wrong(exercise, *says)(answer)


# 1 find_params


@right("find_params")
def librarys_params(groups, bits, sym):
    return quant.find_params(groups, bits, sym)


@right("find_params")
def params_with_min_and_max(groups, bits, sym):
    top = 2**bits - 1
    if sym:
        scales = groups.abs().max(dim=-1).values * (2 / top)
        scales[scales == 0] = 1
        return scales, torch.ones_like(scales) * 2 ** (bits - 1)
    zero = torch.zeros(())
    low, high = torch.minimum(groups.min(-1).values, zero), torch.maximum(groups.max(-1)[0], zero)
    scales = (high - low) / top
    scales[scales == 0] = 1
    return scales, torch.clamp((0 - low) / scales, 0, top).round()


def zeros_of(asymmetric=None, symmetric=None):
    """Other zeros than the right ones."""

    def find(groups, bits, sym):
        scales, zeros = quant.find_params(groups, bits, sym)
        low = groups.amin(-1).clamp(max=0)
        change = symmetric if sym else asymmetric
        return scales, change(zeros, low / scales, bits) if change else zeros

    return find


table(
    "find_params",
    signed_zero=("the middle code if", zeros_of(None, lambda z, low, b: 0 * z)),
    sign_of_the_zero=("read back as 0.0", zeros_of(lambda z, low, b: -z)),
    always_four=("number of steps", lambda g, b, s: quant.find_params(g, 4, s)),
    never_symmetric=("range that its codes cover", lambda g, b, s: quant.find_params(g, b, False)),
    scales_only=("must return the tensors `scales`, `zeros`", lambda *a: quant.find_params(*a)[0]),
    one_number_for_all=(
        "`scales` has the shape ()",
        lambda g, b, s: quant.find_params(g.flatten(), b, s),
    ),
)


# 2 quantize


def wide(per_group, weight):
    return per_group.repeat_interleave(weight.shape[1] // per_group.shape[1], dim=1)


@right("quantize")
def by_unflatten(weight, scales, zeros, bits):
    groups = weight.unflatten(1, (scales.shape[1], -1))
    return to_codes(groups, scales[..., None], zeros[..., None], bits).flatten(1).to(torch.uint8)


@right("quantize")
def by_group_numbers(weight, scales, zeros, bits):
    group = group_index(weight, weight.shape[1] // scales.shape[1]).long()
    q = torch.floor(weight / scales[:, group] + zeros[:, group] + 0.5)
    return torch.minimum(q.clamp(min=0), torch.tensor(2.0**bits - 1)).byte()


def codes(steps=lambda w, s, z: (w / s).round() + z, most=lambda b: 2**b - 1, spread=wide):
    def quantize(weight, scales, zeros, bits):
        q = steps(weight, spread(scales, weight), spread(zeros, weight))
        return q.clamp(0, most(bits)).long().to(torch.uint8)

    return quantize


table("quantize", codes_as_floats=("expected uint8", lambda *args: by_unflatten(*args).float()))


# 3 dequantize


@right("dequantize")
def librarys_dequantize(q, scales, zeros):
    g_idx = group_index(q, q.shape[1] // scales.shape[1])
    return QuantizedWeight(q, scales, zeros, g_idx).dequantize()


@right("dequantize")
def multiplied_out(q, scales, zeros):
    return q * wide(scales, q) - wide(zeros * scales, q)


def weights(rule, spread=wide):
    return lambda q, scales, zeros: rule(q, spread(scales, q), spread(zeros, q))


table("dequantize", wraps_around=("subtract in uint8", weights(lambda q, s, z: (q - z) * s)))


# 4 checkpoint_bytes


@right("checkpoint_bytes")
def size_by_bits(linear_shapes, num_other_params, bits, group_size):
    weights = sum(out * width for out, width in linear_shapes)
    return -(-(weights * bits + weights // group_size * (16 + bits)) // 8) + 2 * num_other_params


@right("checkpoint_bytes")
def size_by_bits_per_weight(linear_shapes, num_other_params, bits, group_size):
    weights = sum(out * width for out, width in linear_shapes)
    return weights * (bits + (16 + bits) / group_size) / 8 + 16 * num_other_params / 8


def size(shapes, other, bits, group, per_group=None, other_bits=16, code=None, groups=None):
    weights = sum(out * width for out, width in shapes)
    groups = weights / group if groups is None else groups
    per_group = 16 + bits if per_group is None else per_group
    return (weights * (code or bits) + groups * per_group + other * other_bits) / 8


@wrong("checkpoint_bytes", "part of a byte")
def cut_off_layer_by_layer(linear_shapes, num_other_params, bits, group_size):
    return sum(int(size([s], 0, bits, group_size)) for s in linear_shapes) + 2 * num_other_params


@wrong("checkpoint_bytes", "times what it should be")
def counts_each_shape_once(linear_shapes, num_other_params, bits, group_size):
    return size(set(linear_shapes), num_other_params, bits, group_size)


# 5 quantize_blockwise


def padded(values, blocksize):
    flat = values.flatten()
    return F.pad(flat, (0, -len(flat) % blocksize)).view(-1, blocksize)


def trimmed(codes, values):
    return codes.flatten()[: values.numel()].view(values.shape).to(torch.uint8)


def nearest(scaled, levels):
    return (scaled[..., None] - levels).abs().argmin(-1)


@right("quantize_blockwise")
def block_after_block(values, levels, blocksize):
    codes, absmax = [], []
    for block in values.flatten().split(blocksize):
        largest = block.abs().max()
        scaled = block / largest if largest > 0 else block
        codes += [min(range(len(levels)), key=lambda i: abs(levels[i] - x)) for x in scaled]
        absmax.append(largest)
    return torch.tensor(codes).to(torch.uint8).view(values.shape), torch.stack(absmax)


@right("quantize_blockwise")
def by_middles(values, levels, blocksize):
    blocks = padded(values, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = (blocks / absmax[:, None]).nan_to_num()
    codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)
    return trimmed(codes, values), absmax


def blockwise(absmax_of=lambda b: b.abs().amax(1), find=nearest):
    def quantize(values, levels, blocksize):
        blocks = padded(values, blocksize)
        absmax = absmax_of(blocks)
        scaled = blocks / torch.where(absmax == 0, 1.0, absmax)[:, None]
        return trimmed(find(scaled, levels), values), absmax

    return quantize


def changed(change):
    """The right codes and absmax, changed afterwards."""
    return lambda values, *rest: change(values, *by_middles(values, *rest))


def padding_kept(values, levels, blocksize):
    codes, absmax = by_middles(padded(values, blocksize), levels, blocksize)
    fits = values.numel() % blocksize == 0
    return codes.view(values.shape) if fits else codes, absmax


table(
    "quantize_blockwise",
    signed_distance=(
        "level that is nearest",
        blockwise(find=lambda x, lv: (x[..., None] - lv).argmin(-1)),
    ),
    padding_kept=("`codes` has the shape", padding_kept),
    places_as_argmin_gives_them=(
        "`codes` is int64",
        changed(lambda v, codes, absmax: (codes.long(), absmax)),
    ),
    a_little_is_added=("largest magnitude in a block", blockwise(lambda b: b.abs().amax(1) + 1e-8)),
)

# 6 double_quantize

DYNAMIC = quant.create_dynamic_map()


@right("double_quantize")
def librarys_double(absmax):
    offset = absmax.mean()
    return *librarys_blockwise(absmax - offset, DYNAMIC, 256), offset


@right("double_quantize")
def double_block_by_block(absmax):
    offset = absmax.sum() / absmax.numel()
    codes, nested = [], []
    for block in (absmax - offset).split(256):
        nested.append(block.abs().max())
        codes.append(nearest(block / (nested[-1] or 1.0), DYNAMIC))
    return torch.cat(codes).to(torch.uint8), torch.stack(nested), offset


def double(offset_of=torch.mean, size_of=lambda absmax: 256, levels=DYNAMIC):
    def quantize(absmax):
        offset = offset_of(absmax)
        return *by_middles(absmax - offset, levels, size_of(absmax)), offset

    return quantize


def absmax_of_absmax(absmax):
    nested = torch.stack([block.max() for block in absmax.split(256)])
    offset = absmax.mean()
    scaled = (absmax - offset) / nested.repeat_interleave(256)[: len(absmax)]
    return nearest(scaled, DYNAMIC).to(torch.uint8), nested, offset


table("double_quantize", absmax_of_absmax=("before the mean was subtracted", absmax_of_absmax))


# 7 dequantize_nf4

NF4 = quant.create_normal_map()


def of_blocks(nested_absmax, absmax_codes):
    return nested_absmax.repeat_interleave(256)[: len(absmax_codes)]


@right("dequantize_nf4")
def back_by_division(codes, absmax_codes, nested_absmax, offset, blocksize):
    block = torch.arange(codes.numel()) // blocksize
    absmax = DYNAMIC[absmax_codes.int()] * nested_absmax[torch.arange(len(absmax_codes)) // 256]
    return (NF4[codes.flatten().int()] * (absmax + offset)[block]).view(codes.shape)


def back(absmax_of, spread=of_blocks):
    """Right, but for how the absmax values come of levels, nested absmax and offset."""

    def dequantize(codes, absmax_codes, nested_absmax, offset, blocksize):
        nested = spread(nested_absmax, absmax_codes)
        absmax = absmax_of(DYNAMIC[absmax_codes.long()], nested, offset)
        return (NF4[codes.view(-1, blocksize).long()] * absmax[:, None]).view(codes.shape)

    return dequantize


def by_the_rule(level, nested, offset):
    return level * nested + offset


def absmax_back(absmax_codes, nested_absmax, offset):
    return by_the_rule(DYNAMIC[absmax_codes.long()], of_blocks(nested_absmax, absmax_codes), offset)


back_in_blocks = back(by_the_rule)
back_in_blocks.__name__ = "back_in_blocks"
right("dequantize_nf4")(back_in_blocks)


def blocks_within_a_row(codes, absmax_codes, nested_absmax, offset, blocksize):
    absmax = absmax_back(absmax_codes, nested_absmax, offset).view(len(codes), -1)
    return NF4[codes.long()] * absmax.repeat_interleave(blocksize, 1)


table("dequantize_nf4", blocks_within_a_row=("is invalid for input of size", blocks_within_a_row))


# 8 prepare


@right("prepare")
def from_the_librarys_sums(weight, inputs, damp_percent):
    hessian = quant.InputStats.of(inputs).hessian
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    damping = damp_percent * hessian.diagonal().mean()
    return weight * ~dead, hessian + damping * torch.eye(len(hessian))


@right("prepare")
def with_einsum(weight, inputs, damp_percent):
    hessian = torch.einsum("ni,nj->ij", inputs, inputs) / (0.5 * inputs.shape[0])
    dead = (inputs == 0).all(0)
    hessian += torch.diag(dead.float())
    trace = hessian.trace()
    hessian.diagonal().add_(damp_percent * trace / len(hessian))
    return torch.where(dead, 0.0, weight), hessian


def hessian_of(x):
    return 2 * x.T @ x / len(x)


def ready(hessian=hessian_of, dead=lambda x, h: h.diagonal() == 0, damp=None, clear=True, lift=1):
    """Right, but for what is given. `damp`: of the Hessian, and of the one before it was lifted."""

    def prepare(weight, inputs, damp_percent):
        h = hessian(inputs)
        before, gone = h.clone(), dead(inputs, h)
        if lift == 1:
            h.diagonal()[gone] = 1
        h = h + damp_percent * (damp or usual)(h, before)
        if lift == 2:
            h.diagonal()[gone] = 1
        return weight.masked_fill(gone, 0) if clear else weight, h

    return prepare


def usual(h, before):
    return h.diagonal().mean() * torch.eye(len(h))


def clears_the_callers_weight(weight, inputs, damp_percent):
    weight[:, (inputs == 0).all(0)] = 0
    return ready()(weight, inputs, damp_percent)


table(
    "prepare",
    clears_the_callers_weight=("in place", clears_the_callers_weight),
    tokens_by_tokens=("`hessian`", lambda w, x, damp: (w, 2 * x @ x.T / len(x))),
    weak_is_dead=("0 in *every* token", ready(dead=lambda x, h: h.diagonal() < 1e-8)),
)


# 9 gptq


@right("gptq")
def in_lazy_blocks(weight, upper, bits, group_size):
    """The library's, which gets its Hessian back from the factor."""
    hessian = torch.linalg.inv(upper.double().T @ upper.double()).float()
    found = quant.gptq(
        weight, hessian, bits=bits, group_size=group_size, damp_percent=0.0, block_size=group_size
    )
    return found.q, found.scales, found.zeros.float()


@right("gptq")
def columns_as_a_list(weight, upper, bits, group_size):
    columns = list(weight.clone().unbind(1))
    codes, scales = [], []
    for i in range(len(columns)):
        if i % group_size == 0:
            largest = torch.stack(columns[i : i + group_size]).abs().amax(0)
            scales.append(torch.where(largest > 0, 2 * largest / (2**bits - 1), 1.0))
        code = torch.round(columns[i] / scales[-1]) + 2 ** (bits - 1)
        codes.append(code.clamp(0, 2**bits - 1))
        lost = (columns[i] - (codes[-1] - 2 ** (bits - 1)) * scales[-1]) / upper[i, i]
        for j in range(i + 1, len(columns)):
            columns[j] = columns[j] - lost * upper[i, j]
    grid = torch.stack(scales, 1)
    return torch.stack(codes, 1).byte(), grid, torch.full_like(grid, 2 ** (bits - 1))


def columns(
    spread=lambda u, i: u[i],
    error=lambda w, first, q, read, d: (w - read) / d,
    source=None,
    later=lambda i, size, width: width,
    sym=True,
    keep=None,
    rounds="w",
):
    """The loop of GPTQ; each argument replaces one of its lines.

    `source`: the weights whose range makes the grid at column i, or None to keep the old one.
    `keep`: whether the scale that is used is also the one that is returned.
    """

    def first_columns(w, weight, i, size):
        return w[:, i : i + size] if i % size == 0 else None

    def gptq(weight, upper, bits, group_size):
        w, q, grids = weight.clone(), torch.zeros_like(weight), []
        for i in range(w.shape[1]):
            part = (source or first_columns)(w, weight, i, group_size)
            if part is not None:
                scale, zero = quant.find_params(part, bits, sym)
            if i % group_size == 0:
                grids.append((scale, zero))
            elif not keep:
                grids[-1] = (scale, zero)
            column = weight[:, i] if rounds == "weight" else w[:, i]
            q[:, i] = (torch.round(column / scale) + zero).clamp(0, 2**bits - 1)
            row = spread(upper, i)
            read = (q[:, i] - zero) * scale
            lost = error(column, weight[:, i], q[:, i], read, row[i])
            end = later(i, group_size, w.shape[1])
            w[:, i + 1 : end] -= lost[:, None] * row[i + 1 : end]
        return q.byte(), *(torch.stack(part, 1) for part in zip(*grids, strict=True))

    return gptq


def plain_rounding(weight, upper, bits, group_size):
    found = quant.rtn(weight, bits=bits, group_size=group_size)
    return found.q, found.scales, found.zeros.float()


def moves_the_callers_weight(weight, upper, bits, group_size):
    answer = columns()(weight, upper, bits, group_size)
    weight -= 1
    return answer


table(
    "gptq",
    plain_rounding=("codes of plain rounding", plain_rounding),
    error_over_the_square=(
        "first column is reached",
        columns(error=lambda w, first, q, read, d: (w - read) / d**2),
    ),
    the_next_column_only=("first column is reached", columns(later=lambda i, n, width: i + 2)),
    moves_the_callers_weight=("in place", moves_the_callers_weight),
    a_scale_for_the_next_columns=(
        "nearest on its group's grid",
        columns(source=lambda w, first, i, n: w[:, i : i + n], keep=True),
    ),
    scales_of_the_rest=(
        "first column is reached",
        columns(source=lambda w, first, i, n: w[:, i:] if i % n == 0 else None),
    ),
)


# 10 search_scales


def cost(weight, inputs, s, bits, group_size, sym=False, divide=True):
    scaled = weight * s
    back = quant.rtn(scaled, bits=bits, group_size=group_size, sym=sym).dequantize()
    return float((inputs @ ((back / s if divide else back) - weight).T).square().sum())


def loudness(inputs):
    mean = inputs.abs().mean(0)
    return (mean / mean.max().clamp(min=1e-30)).clamp(min=1e-4)


def climb(
    start=lambda w, x: torch.ones(w.shape[1]),
    factors=(0.7, 0.85, 1.2, 1.4),
    rounds=1,
    error=cost,
    keep=lambda new, old: new < old,
    channels=range,
):
    """From a beginning, channel by channel: a change is kept where the error gets smaller."""

    def search(weight, inputs, bits, group_size):
        best = start(weight, inputs).clone()
        least = error(weight, inputs, best, bits, group_size)
        for channel in [*channels(len(best))] * rounds:
            for factor in factors:
                s = best.clone()
                s[channel] *= factor
                found = error(weight, inputs, s, bits, group_size)
                if keep(found, least):
                    best, least = s, found
        return best

    return search


def by_one_ratio(
    magnitude=loudness, ratios=tuple(step / 20 for step in range(20)), error=cost, pick=min
):
    def search(weight, inputs, bits, group_size):
        tried = [magnitude(inputs) ** ratio for ratio in ratios]
        errors = [error(weight, inputs, s, bits, group_size) for s in tried]
        return tried[errors.index(pick(errors))]

    return search


def then_climb(rule, **settings):
    """The rule first, plain rounding if that is better, then channel by channel."""

    def search(weight, inputs, bits, group_size):
        def better(w, x):
            s, ones = rule(w, x, bits, group_size), torch.ones(w.shape[1])
            return min((ones, s), key=lambda s: cost(w, x, s, bits, group_size))

        return climb(better, **settings)(weight, inputs, bits, group_size)

    return search


right("search_scales")(then_climb(by_one_ratio()))


@right("search_scales")
def from_the_loudest_channel(weight, inputs, bits, group_size):
    order = inputs.abs().mean(0).argsort(descending=True).tolist()
    search = then_climb(by_one_ratio(ratios=(0, 0.3, 0.6)), channels=lambda n: order)
    return search(weight, inputs, bits, group_size)


@right("search_scales")
def librarys_scales_then_by_chance(weight, inputs, bits, group_size):
    """One random channel at a time, by a random factor; the error from S, not from the tokens."""
    moment = inputs.T @ inputs

    def error(s):
        back = quant.rtn(weight * s, bits=bits, group_size=group_size, sym=False).dequantize()
        delta = back / s - weight
        return float((delta @ moment * delta).sum())

    ratios = torch.arange(10) / 10
    tried = [torch.ones(weight.shape[1]), *(loudness(inputs) ** ratio for ratio in ratios)]
    best = min(tried, key=error)
    least = error(best)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8 * len(best)):
        s = best.clone()
        channel = int(torch.randint(0, len(s), (1,), generator=generator))
        s[channel] *= float((0.4 * torch.randn((), generator=generator)).exp())
        if (found := error(s)) < least:
            best, least = s, found
    return best


@right("search_scales")
def several_channels_of_a_list(weight, inputs, bits, group_size):
    """As plain Python numbers, three factors, two rounds."""
    search = then_climb(by_one_ratio(ratios=(0.0, 0.25, 0.5, 0.75)), factors=(0.8, 1.25), rounds=2)
    return torch.tensor(search(weight, inputs, bits, group_size).tolist())


def writes_into_the_weight(weight, inputs, bits, group_size):
    s = then_climb(by_one_ratio())(weight, inputs, bits, group_size)
    weight.mul_(s)
    return s


def only_the_loudest(weight, inputs, bits, group_size):
    """One percent of the channels, at least one, is scaled: the best of a few s."""
    loudest = inputs.abs().mean(0).topk(max(1, weight.shape[1] // 100)).indices
    tried = [torch.ones(weight.shape[1]) for _ in range(5)]
    for s, factor in zip(tried, (1, 1.5, 2, 3, 4), strict=True):
        s[loudest] = factor
    return min(tried, key=lambda s: cost(weight, inputs, s, bits, group_size))


def of_weights(weight, inputs, s, bits, group_size):
    return cost(weight, torch.eye(weight.shape[1]), s, bits, group_size)


RULE = by_one_ratio()
table(
    "search_scales",
    more_ratios=("is not small enough", by_one_ratio(ratios=tuple(i / 100 for i in range(100)))),
    plain=("that is plain rounding", lambda w, x, b, g: torch.ones(w.shape[1])),
    square_root=("further off than without", lambda w, x, b, g: loudness(x).sqrt()),
    loudness_itself=("further off than without", lambda w, x, b, g: loudness(x)),
    scaled_down=("further off than without", lambda w, x, b, g: 1 / loudness(x).sqrt()),
    for_the_weights=("further off than without", climb(error=of_weights)),
    not_divided=(
        "further off than without",
        climb(error=lambda *a: cost(*a, divide=False), rounds=2),
    ),
    symmetric_grids=("further off than without", climb(error=lambda *a: cost(*a, sym=True))),
    keeps_the_worse=("further off than without", climb(keep=lambda new, old: new > old)),
    every_change_is_kept=(
        "further off than without",
        climb(keep=lambda new, old: True, factors=(0.5,), channels=lambda n: range(0, n, 2)),
    ),
    from_half_a_power=(
        "further off than without",
        climb(lambda w, x: loudness(x) ** 0.9, factors=(0.99, 1.01)),
    ),
    only_the_loudest=("is not small enough", only_the_loudest),
    tiny_steps=("is not small enough", then_climb(RULE, factors=(0.999, 1.001))),
    only_the_first_channels=(
        "is not small enough",
        then_climb(RULE, channels=lambda n: range(min(n, 4))),
    ),
    first_token_only=(
        "further off than without",
        lambda w, x, b, g: then_climb(RULE)(w, x[:1], b, g),
    ),
    sixty_four_bits=("is float64", lambda *a: then_climb(RULE, rounds=0)(*a).double()),
    a_row_of_scales=("has the shape", lambda *a: RULE(*a)[None]),
    writes_into_the_weight=("changes in place", writes_into_the_weight),
)


# 11 pack_layer

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
IN_ORDER = list(range(8))


@right("pack_layer")
def librarys_packing(q, zeros, layout):
    pack = quant.pack_int4 if layout == "gptq" else quant.pack_int4_awq
    if layout == "gptq":
        return pack(q).t().contiguous(), pack(zeros.t().int() - 1)
    return pack(q.t()), pack(zeros.t())


@right("pack_layer")
def in_numpys_bytes(q, zeros, layout):
    """Two codes to a byte, and four bytes read as one little-endian number."""
    order = IN_ORDER if layout == "gptq" else AWQ_ORDER

    def pack(rows):
        eight = rows.unflatten(-1, (-1, 8))[..., order].flatten(-2).to(torch.uint8)
        return (eight[..., ::2] | eight[..., 1::2] << 4).contiguous().view(torch.int32)

    if layout == "gptq":
        return pack(q).T, pack(zeros.T - 1)
    return pack(q.T), pack(zeros.T)


def packed(rows, order=IN_ORDER, shift=4):
    total = torch.zeros(*rows.shape[:-1], rows.shape[-1] // 8, dtype=torch.int64)
    for nibble, source in enumerate(order):
        total |= rows[..., source::8].long() << shift * nibble
    return total.to(torch.int32)


def both(gptq=IN_ORDER, awq=AWQ_ORDER, minus=(1, 0), shift=4):
    def pack(q, zeros, layout):
        if layout == "gptq":
            rest = (zeros.T.int() - minus[0]) & 15
            return packed(q, gptq, shift).T, packed(rest, gptq, shift)
        return packed(q.T, awq, shift), packed((zeros.T.int() - minus[1]) & 15, awq, shift)

    return pack


def if_layout(layout, change):
    """Right, but in this layout changed: (codes, zeros, qweight, qzeros) -> the pair."""

    def pack(q, zeros, given):
        pair = both()(q, zeros, given)
        return change(q, zeros, *pair) if given == layout else pair

    return pack


def shifted_in_bytes(q, zeros, layout):
    def pack(rows, order):
        eight = rows.unflatten(-1, (-1, 8))[..., order]
        return (eight << (4 * torch.arange(8)).to(torch.uint8)).sum(-1).to(torch.int32)

    if layout == "gptq":
        return pack(q, IN_ORDER).T, pack(zeros.T - 1, IN_ORDER)
    return pack(q.T, AWQ_ORDER), pack(zeros.T, AWQ_ORDER)


def unsigned(change):
    return lambda *args: tuple(change(part.long() & 0xFFFFFFFF) for part in both()(*args))


table(
    "pack_layer",
    plus_one=('"gptq" stores zero - 1', both(minus=(-1, 0))),
    awq_along_the_inputs=(
        "`qweight` has the shape",
        if_layout("awq", lambda q, z, qweight, qzeros: (packed(q, AWQ_ORDER).T, qzeros)),
    ),
    not_transposed=(
        "`qweight` has the shape",
        if_layout("gptq", lambda q, z, qweight, qzeros: (qweight.T, qzeros)),
    ),
    sixty_four_bits=("is int64", unsigned(lambda part: part)),
    a_byte_each=("which nibble does each get", both(shift=8)),
    shifted_in_bytes=("shift in uint8", shifted_in_bytes),
)


# 12 fit_params


def shrunk_range(groups, bits, share, edge=None):
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if edge is not None:
        low, high = torch.maximum(low, -edge), torch.minimum(high, edge)
    scales = share * (high - low) / (2**bits - 1)
    scales = torch.where(scales > 0, scales, 1.0)
    return scales, torch.round(-share * low / scales)


def lost_by(groups, bits, scales, zeros, clamp=True):
    q = torch.round(groups / scales[..., None]) + zeros[..., None]
    q = q.clamp(0, 2**bits - 1) if clamp else q
    return ((q - zeros[..., None]) * scales[..., None] - groups).square().sum(-1)


def best_share(groups, bits, shares, together=False, clamp=True, take=shrunk_range):
    found = [take(groups, bits, share) for share in shares]
    errors = torch.stack([lost_by(groups, bits, *grid, clamp) for grid in found])
    if together:
        return found[int(errors.reshape(len(found), -1).sum(1).argmin())]
    best = errors.argmin(0, keepdim=True)
    return tuple(torch.stack(part).gather(0, best)[0] for part in zip(*found, strict=True))


SHARES = [1 - step / 30 for step in range(20)]


@right("fit_params")
def each_group_its_share(groups, bits):
    return best_share(groups, bits, SHARES)


@right("fit_params")
def each_end_by_itself(groups, bits):
    """Low and high shrink on their own, group by group, in plain loops over the shares."""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    best = quant.find_params(groups, bits, False)
    least = lost_by(groups, bits, *best)
    for one in SHARES[::3]:
        for other in SHARES[::3]:
            scales = (other * high - one * low) / (2**bits - 1)
            scales = torch.where(scales > 0, scales, 1.0)
            grid = scales, (-one * low / scales).round().clamp(0, 2**bits - 1)
            error = lost_by(groups, bits, *grid)
            best = tuple(
                torch.where(error < least, new, old) for new, old in zip(grid, best, strict=True)
            )
            least = torch.minimum(error, least)
    return best


@right("fit_params")
def scales_by_least_squares(groups, bits):
    """From several beginnings: codes for the scale, then the best scale for these codes."""
    best = quant.find_params(groups, bits, False)
    least = lost_by(groups, bits, *best)
    for share in SHARES[::4]:
        scales, zeros = shrunk_range(groups, bits, share)
        for _ in range(3):
            q = (torch.round(groups / scales[..., None]) + zeros[..., None]).clamp(0, 2**bits - 1)
            steps = q - zeros[..., None]
            new = (steps * groups).sum(-1) / steps.square().sum(-1)
            scales = torch.where(new > 0, new, scales)
        error = lost_by(groups, bits, scales, zeros)
        best = tuple(
            torch.where(error < least, new, old)
            for new, old in zip((scales, zeros), best, strict=True)
        )
        least = torch.minimum(error, least)
    return best


def two_deviations(groups, bits):
    return shrunk_range(groups, bits, 1.0, 2 * groups.square().mean(-1).sqrt())


def old_zeros(groups, bits):
    scales, _ = best_share(groups, bits, SHARES)
    return scales, quant.find_params(groups, bits, False)[1] + 0.25


def without_the_full_range(groups, bits):
    return best_share(groups, bits, SHARES[6:])


table(
    "fit_params",
    one_best_share_for_all=("worse off", lambda g, b: best_share(g, b, SHARES, together=True)),
    not_clamped_in_the_search=("worse off", lambda g, b: best_share(g, b, SHARES, clamp=False)),
    two_deviations=("worse off", two_deviations),
    old_zeros=("The zero is stored as a code", old_zeros),
    never_the_full_range=("worse off", without_the_full_range),
    only_a_little=("gain too little", lambda g, b: best_share(g, b, SHARES[:2])),
    symmetric_search=(
        "worse off",
        lambda g, b: best_share(
            g, b, SHARES, take=lambda g, b, share: quant.find_params(g * share, b, True)
        ),
    ),
    a_scale_of_zero=(
        "able to divide by a scale",
        lambda g, b: tuple(
            torch.where((g == 0).all(-1), 0.0, part) for part in best_share(g, b, SHARES)
        ),
    ),
)


# 13 engine

BITS, GROUP_SIZE = 3, 64


def rounded(weight):
    return quant.rtn(weight, bits=BITS, group_size=GROUP_SIZE).dequantize()


def compensated(weight, inputs, **settings):
    hessian = quant.InputStats.of(inputs).hessian
    found = quant.gptq(weight, hessian, bits=BITS, group_size=GROUP_SIZE, **settings)
    return found.dequantize()


@right("engine")
def librarys_quantizers():
    return rounded, compensated


@right("engine")
def more_damping():
    return rounded, lambda weight, inputs: compensated(weight, inputs, damp_percent=0.1)


def with_noise(weight, inputs):
    """Compensates with a Hessian that has nothing to do with the inputs."""
    width = weight.shape[1]
    return compensated(weight, torch.randn(len(inputs), width) @ torch.randn(width, width))


def right_on_small_layers(weight, inputs):
    return compensated(weight, inputs if weight.shape[1] <= 192 else inputs.flip(-1))


def clears_the_inputs(weight, inputs):
    back = compensated(weight, inputs)
    inputs.zero_()
    return back


def without_an_end(weight, inputs):
    while True:
        pass


table(
    "engine",
    rounding_twice=("plain rounding", lambda: (rounded, lambda w, x: rounded(w))),
    weights_as_they_were=("different values", lambda: (rounded, lambda w, x: w)),
    rounds_with_eight_bits=(
        "different values",
        lambda: (lambda w: quant.rtn(w, bits=8, group_size=64).dequantize(), compensated),
    ),
    only_one=("must return a pair", lambda: rounded),
    codes_in_place_of_weights=(
        "returned Tensor of shape",
        lambda: (rounded, lambda w, x: compensated(w, x).T),
    ),
    codes_not_read_back=(
        "far from the weight",
        lambda: (lambda w: quant.rtn(w, bits=3).q.float(), compensated),
    ),
    identity_for_hessian=("more than plain rounding does", lambda: (rounded, with_noise)),
    calibrated_on_a_small_layer_only=(
        "no better than your rounding",
        lambda: (rounded, right_on_small_layers),
    ),
    inputs_written_over=("changes in place", lambda: (rounded, clears_the_inputs)),
    no_end=("does not come to an end", lambda: (rounded, without_an_end)),
)

"""Wrong and right answers to lab 01, each as a learner might write it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils.engine.attention.attention import attention_reference
from utils.engine.models.llama import LlamaOps

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 rms_norm


@wrong("rms_norm", "epsilon", "outside of the square root")
def eps_outside_sqrt(x, weight, eps):
    rms = x.float().pow(2).mean(-1, keepdim=True).sqrt() + eps
    return weight * (x.float() / rms).to(x.dtype)


@wrong("rms_norm", "epsilon is missing")
def no_eps(x, weight, eps):
    return weight * (x.float() / x.float().pow(2).mean(-1, keepdim=True).sqrt()).to(x.dtype)


@wrong("rms_norm", "wrong dimension", "tokens")
def mean_over_tokens(x, weight, eps):
    variance = x.float().pow(2).mean(dim=0, keepdim=True)
    return weight * (x.float() * torch.rsqrt(variance + eps)).to(x.dtype)


@wrong("rms_norm", "all numbers at once")
def mean_over_everything(x, weight, eps):
    return weight * (x.float() * torch.rsqrt(x.float().pow(2).mean() + eps)).to(x.dtype)


@wrong("rms_norm", "weight is added")
def weight_added(x, weight, eps):
    xf = x.float()
    return weight + (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "1 + weight")
def gemma_weight(x, weight, eps):
    xf = x.float()
    return (1 + weight) * (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "weight is missing")
def weight_forgotten(x, weight, eps):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "without its square root")
def no_root(x, weight, eps):
    xf = x.float()
    return weight * (xf / (xf.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "sum")
def sum_not_mean(x, weight, eps):
    xf = x.float()
    return weight * (xf * torch.rsqrt(xf.pow(2).sum(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "LayerNorm")
def layer_norm(x, weight, eps):
    xf = x.float()
    xf = xf - xf.mean(-1, keepdim=True)
    return weight * (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@wrong("rms_norm", "overflows", "float16")
def squares_in_half(x, weight, eps):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@wrong("rms_norm", "dtype", "float32")
def stays_float32(x, weight, eps):
    xf = x.float()
    return weight.float() * (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps))


@wrong("rms_norm", "in place")
def changes_x(x, weight, eps):
    x *= torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps).to(x.dtype)
    return x * weight


@wrong("rms_norm", "None", "return")
def forgot_return(x, weight, eps):
    (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)) * weight


@wrong("rms_norm", "raised RuntimeError")
def no_keepdim(x, weight, eps):
    # Works for one token, and breaks for the first input with two.
    xf = x.float()
    return weight * (xf * torch.rsqrt(xf.pow(2).mean(-1) + eps).view(1, 1)).to(x.dtype)


@right("rms_norm")
def loops_in_double(x, weight, eps):
    rows = []
    for row in x.double():
        rms = math.sqrt(sum(float(v) ** 2 for v in row) / len(row) + eps)
        rows.append(row / rms * weight.double())
    return torch.stack(rows).to(x.dtype)


@right("rms_norm")
def torch_function(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


@right("rms_norm")
def norm_over_root_n(x, weight, eps):
    xf = x.float()
    rms = ((xf.norm(dim=-1, keepdim=True) ** 2) / x.shape[-1] + eps) ** 0.5
    return ((xf / rms) * weight).to(x.dtype)


# 2 apply_rotary


def halves(x):
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


@wrong("apply_rotary", "neighbouring")
def interleaved(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = torch.stack((-odd, even), dim=-1).flatten(-2)
    return x * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)


@wrong("apply_rotary", "neighbouring")
def gptj_style(x, cos, sin):
    half = x.shape[-1] // 2
    c, s = cos[:, None, :half], sin[:, None, :half]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)


@wrong("apply_rotary", "sign is wrong")
def turns_backwards(x, cos, sin):
    first, second = halves(x)
    return x * cos[:, None] + torch.cat((second, -first), -1) * sin[:, None]


@wrong("apply_rotary", "minus sign is missing")
def no_minus(x, cos, sin):
    first, second = halves(x)
    return x * cos[:, None] + torch.cat((second, first), -1) * sin[:, None]


@wrong("apply_rotary", "not swapped")
def not_swapped(x, cos, sin):
    first, second = halves(x)
    return x * cos[:, None] + torch.cat((-first, second), -1) * sin[:, None]


@wrong("apply_rotary", "exchanged")
def cos_sin_exchanged(x, cos, sin):
    first, second = halves(x)
    return x * sin[:, None] + torch.cat((-second, first), -1) * cos[:, None]


@wrong("apply_rotary", "along the heads")
def broadcast_over_heads(x, cos, sin):
    first, second = halves(x)
    return x * cos + torch.cat((-second, first), -1) * sin


@wrong("apply_rotary", "angle of the first")
def one_angle_for_all(x, cos, sin):
    first, second = halves(x)
    return x * cos[0] + torch.cat((-second, first), -1) * sin[0]


@wrong("apply_rotary", "position 0")
def positions_restart(x, cos, sin):
    first, second = halves(x)
    angle = torch.atan2(sin, cos)
    angle = angle - angle[:1]
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    return x * c + torch.cat((-second, first), -1) * s


@right("apply_rotary")
def half_by_half(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    c, s = cos[:, None].chunk(2, dim=-1)[0], sin[:, None].chunk(2, dim=-1)[0]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


@right("apply_rotary")
def complex_numbers(x, cos, sin):
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    turn = torch.complex(cos[:, None, :half].double(), sin[:, None, :half].double())
    z = z * turn
    return torch.cat((z.real, z.imag), -1).to(x.dtype)


@right("apply_rotary")
def token_by_token(x, cos, sin):
    out = torch.empty_like(x)
    for t in range(x.shape[0]):
        for head in range(x.shape[1]):
            first, second = halves(x[t, head])
            out[t, head] = x[t, head] * cos[t] + torch.cat((-second, first)) * sin[t]
    return out


# 3 attention


def expand(query, key, value):
    group = query.shape[1] // key.shape[1]
    return key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)


def causal(query, key):
    t_q, t_k = query.shape[0], key.shape[0]
    return torch.arange(t_k)[None] > torch.arange(t_q)[:, None] + (t_k - t_q)


def scores_of(query, key):
    return torch.einsum("qhd,khd->hqk", query, key)


def mix(scores, value, dim=-1):
    return torch.einsum("hqk,khd->qhd", scores.float().softmax(dim).to(value.dtype), value)


@wrong("attention", "mask is missing", "future")
def no_mask(query, key, value, scale):
    key, value = expand(query, key, value)
    return mix(scores_of(query, key) * scale, value)


@wrong("attention", "mask is off by the number of earlier tokens")
def mask_from_zero(query, key, value, scale):
    key, value = expand(query, key, value)
    mask = torch.tril(torch.ones(query.shape[0], key.shape[0])).bool()
    return mix((scores_of(query, key) * scale).masked_fill(~mask, float("-inf")), value)


@wrong("attention", "mask is off by the number of earlier tokens")
def torch_is_causal(query, key, value, scale):
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


@wrong("attention", "may not see itself")
def mask_strict(query, key, value, scale):
    key, value = expand(query, key, value)
    mask = torch.arange(key.shape[0])[None] >= (
        torch.arange(query.shape[0])[:, None] + key.shape[0] - query.shape[0]
    )
    return mix((scores_of(query, key) * scale).masked_fill(mask, float("-inf")), value)


@wrong("attention", "upside down")
def mask_upside_down(query, key, value, scale):
    key, value = expand(query, key, value)
    position = torch.arange(query.shape[0])[:, None] + key.shape[0] - query.shape[0]
    mask = torch.arange(key.shape[0])[None] < position
    return mix((scores_of(query, key) * scale).masked_fill(mask, float("-inf")), value)


@wrong("attention", "after the softmax")
def mask_after_softmax(query, key, value, scale):
    key, value = expand(query, key, value)
    weights = (scores_of(query, key) * scale).softmax(-1).masked_fill(causal(query, key), 0)
    return torch.einsum("hqk,khd->qhd", weights, value)


@wrong("attention", "0 and not -inf")
def mask_with_zero(query, key, value, scale):
    key, value = expand(query, key, value)
    return mix((scores_of(query, key) * scale).masked_fill(causal(query, key), 0.0), value)


@wrong("attention", "0, 1, 0, 1", "0, 0, 1, 1")
def heads_tiled(query, key, value, scale):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat(1, group, 1), value.repeat(1, group, 1)
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    return mix(scores, value)


@wrong("attention", "KV head 0")
def first_kv_head_only(query, key, value, scale):
    key, value = (t[:, :1].expand(-1, query.shape[1], -1) for t in (key, value))
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    return mix(scores, value)


@wrong("attention", "scale is missing")
def no_scale(query, key, value, scale):
    key, value = expand(query, key, value)
    return mix(scores_of(query, key).masked_fill(causal(query, key), float("-inf")), value)


@wrong("attention", "scale is applied twice")
def scale_twice(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = scores_of(query * scale, key).masked_fill(causal(query, key), float("-inf"))
    return mix(scores * scale, value)


@wrong("attention", "divide by the scale")
def divided_by_scale(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = scores_of(query, key) / scale
    return mix(scores.masked_fill(causal(query, key), float("-inf")), value)


@wrong("attention", "ignore the argument `scale`")
def own_scale(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = scores_of(query, key) / query.shape[-1] ** 0.5
    return mix(scores.masked_fill(causal(query, key), float("-inf")), value)


@wrong("attention", "wrong dimension", "queries")
def softmax_over_queries(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    return mix(scores, value, dim=1)


@wrong("attention", "wrong dimension", "heads")
def softmax_over_heads(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    return mix(scores, value, dim=0)


@wrong("attention", "overflows")
def naive_softmax(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    weights = scores.float().exp()
    weights = (weights / weights.sum(-1, keepdim=True)).to(value.dtype)
    return torch.einsum("hqk,khd->qhd", weights, value)


@wrong("attention", "multiply the keys")
def mixes_keys(query, key, value, scale):
    key, value = expand(query, key, value)
    scores = (scores_of(query, key) * scale).masked_fill(causal(query, key), float("-inf"))
    return mix(scores, key)


@right("attention")
def torch_kernel(query, key, value, scale):
    key, value = expand(query, key, value)
    q, k, v = (t.transpose(0, 1) for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=~causal(query, key), scale=scale)
    return out.transpose(0, 1)


@right("attention")
def query_by_query(query, key, value, scale):
    out = torch.empty_like(query)
    t_q, heads, _ = query.shape
    group = heads // key.shape[1]
    for i in range(t_q):
        seen = key.shape[0] - t_q + i + 1
        for h in range(heads):
            k, v = key[:seen, h // group].double(), value[:seen, h // group].double()
            weights = torch.softmax(k @ query[i, h].double() * scale, dim=0)
            out[i, h] = (weights @ v).to(query.dtype)
    return out


@right("attention")
def grouped_einsum(query, key, value, scale):
    t_q, heads, dim = query.shape
    grouped = query.reshape(t_q, key.shape[1], -1, dim).float()
    scores = torch.einsum("qngd,knd->ngqk", grouped, key.float()) * scale
    bias = torch.zeros(t_q, key.shape[0]).masked_fill(causal(query, key), -1e30)
    weights = torch.softmax(scores + bias, dim=-1)
    out = torch.einsum("ngqk,knd->qngd", weights, value.float())
    return out.reshape(t_q, heads, dim).to(query.dtype)


# 4 silu_and_mul


@wrong("silu_and_mul", "wrong half")
def silu_on_up(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * F.silu(up)


@wrong("silu_and_mul", "GELU")
def gelu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate) * up


@wrong("silu_and_mul", "GELU", "tanh")
def gelu_tanh(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


@wrong("silu_and_mul", "sigmoid alone")
def sigmoid_only(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.sigmoid(gate) * up


@wrong("silu_and_mul", "ReLU")
def relu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.relu(gate) * up


@wrong("silu_and_mul", "Both halves")
def silu_on_both(gate_up):
    gate, up = F.silu(gate_up).chunk(2, dim=-1)
    return gate * up


@wrong("silu_and_mul", "added")
def halves_added(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) + up


@wrong("silu_and_mul", "every second number")
def interleaved_gate(gate_up):
    return F.silu(gate_up[:, 0::2]) * gate_up[:, 1::2]


@wrong("silu_and_mul", "shape")
def split_along_tokens(gate_up):
    return F.silu(gate_up) * gate_up


@right("silu_and_mul")
def written_out(gate_up):
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :size], gate_up[..., size:]
    return gate / (1 + torch.exp(-gate)) * up


@right("silu_and_mul")
def reshaped(gate_up):
    gate, up = gate_up.double().reshape(gate_up.shape[0], 2, -1).unbind(1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)


# 5 token_probabilities


def top_k_logits(logits, top_k):
    if top_k <= 0:
        return logits
    limit = logits.topk(min(top_k, logits.numel())).values[-1]
    return logits.masked_fill(logits < limit, float("-inf"))


def greedy(logits):
    return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)


def nucleus(logits, top_p, keep):
    """Softmax over the tokens for which `keep(cumulative, own)` holds, in sorted order."""
    probabilities, order = logits.softmax(-1).sort(descending=True)
    kept = keep(probabilities.cumsum(-1), probabilities)
    if top_p >= 1.0:
        kept = torch.ones_like(kept)
    kept = torch.zeros_like(kept).scatter(0, order, kept)
    return logits.masked_fill(~kept, float("-inf")).softmax(-1)


@wrong("token_probabilities", "crosses the threshold")
def drops_crossing_token(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits / temperature, top_k)
    return nucleus(logits, top_p, lambda total, own: total <= top_p)


@wrong("token_probabilities", "crosses the threshold", "exception")
def drops_crossing_but_keeps_first(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits / temperature, top_k)

    def keep(total, own):
        kept = total <= top_p
        kept[0] = True
        return kept

    return nucleus(logits, top_p, keep)


@wrong("token_probabilities", "one token too many")
def keeps_one_more(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits / temperature, top_k)

    def keep(total, own):
        removed = total >= top_p
        removed = torch.cat((torch.zeros(2, dtype=torch.bool), removed[:-2]))
        return ~removed

    return nucleus(logits, top_p, keep)


@wrong("token_probabilities", "order of the vocabulary")
def unsorted_nucleus(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    probabilities = top_k_logits(logits / temperature, top_k).softmax(-1)
    if top_p < 1.0:
        probabilities = probabilities * (probabilities.cumsum(-1) - probabilities < top_p)
    return probabilities / probabilities.sum()


@wrong("token_probabilities", "come out sorted")
def not_scattered_back(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    probabilities = top_k_logits(logits / temperature, top_k).softmax(-1)
    if top_p >= 1.0:
        return probabilities
    probabilities, _ = probabilities.sort(descending=True)
    probabilities = probabilities * (probabilities.cumsum(-1) - probabilities < top_p)
    return probabilities / probabilities.sum()


@wrong("token_probabilities", "temperature is applied after the softmax")
def temperature_after_softmax(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits, top_k)
    return nucleus(logits, top_p, lambda total, own: total - own < top_p) / temperature


@wrong("token_probabilities", "temperature is applied after the softmax")
def temperature_without_effect(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits, top_k)
    probabilities = nucleus(logits, top_p, lambda total, own: total - own < top_p) / temperature
    return probabilities / probabilities.sum()


@wrong("token_probabilities", "multiply by the temperature")
def temperature_multiplied(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits * temperature, top_k)
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "Temperature 0 divides by zero")
def no_greedy(logits, temperature=1.0, top_k=0, top_p=1.0):
    logits = top_k_logits(logits / temperature, top_k)
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "treated as temperature 1")
def zero_means_off(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature:
        logits = logits / temperature
    logits = top_k_logits(logits, top_k)
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "does not add up to 1")
def not_renormalised(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = logits / temperature
    kept = nucleus(top_k_logits(logits, top_k), top_p, lambda total, own: total - own < top_p) > 0
    return logits.softmax(-1) * kept


@wrong("token_probabilities", "one token too few")
def top_k_strict(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = logits / temperature
    if top_k > 0:
        limit = logits.topk(min(top_k, logits.numel())).values[-1]
        if top_k < logits.numel():
            logits = logits.masked_fill(logits <= limit, float("-inf"))
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "Top-k has no effect")
def top_k_ignored(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    return nucleus(logits / temperature, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "raised RuntimeError")
def top_k_larger_than_vocabulary(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = logits / temperature
    if top_k > 0:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "Top-p comes before top-k")
def top_p_first(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    p = nucleus(logits / temperature, top_p, lambda total, own: total - own < top_p)
    return top_k_logits(p.log(), top_k).softmax(-1)


@wrong("token_probabilities", "before top-k", "renormalised")
def nucleus_of_the_old_sum(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    p = (logits / temperature).softmax(-1)
    values, order = p.sort(descending=True)
    kept = values.cumsum(-1) - values < top_p
    if top_k > 0:
        kept[top_k:] = False
    p = p * torch.zeros_like(kept).scatter(0, order, kept)
    return p / p.sum()


@right("token_probabilities")
def python_lists(logits, temperature=1.0, top_k=0, top_p=1.0):
    best = int(logits.argmax())
    if temperature == 0:
        return torch.tensor([float(i == best) for i in range(len(logits))])
    weights = {
        i: math.exp((float(x) - float(logits[best])) / temperature) for i, x in enumerate(logits)
    }
    ranked = sorted(weights, key=lambda i: -weights[i])
    if top_k:
        ranked = ranked[:top_k]
    total, mass, kept = sum(weights[i] for i in ranked), 0.0, []
    for i in ranked:
        if mass >= top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    return torch.tensor([weights[i] / mass if i in kept else 0.0 for i in range(len(logits))])


@right("token_probabilities")
def ascending_sort(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = top_k_logits(logits / temperature, top_k)
    values, order = logits.sort()
    removed = values.softmax(-1).cumsum(-1) <= 1 - top_p
    removed[-1] = False
    return logits.masked_fill(removed[order.argsort()], float("-inf")).softmax(-1)


# 6 generate


@wrong("generate", "after the EOS token")
def never_stops_at_eos(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = list(prompt_token_ids)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
    return ids[len(prompt_token_ids) :]


@wrong("generate", "max_tokens is off by one")
def one_too_many(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids, new = list(prompt_token_ids), []
    while len(new) <= max_tokens:
        token = int(model(torch.tensor(ids + new))[-1].argmax())
        new.append(token)
        if token in eos_token_ids:
            break
    return new


@wrong("generate", "Too few tokens", "prompt")
def counts_the_prompt(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = list(prompt_token_ids)
    while len(ids) < max_tokens + 1:
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
        if ids[-1] in eos_token_ids:
            break
    return ids[len(prompt_token_ids) :]


@wrong("generate", "begins with the prompt")
def returns_the_prompt_too(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = list(prompt_token_ids)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
        if ids[-1] in eos_token_ids:
            break
    return ids


@wrong("generate", "first position")
def reads_the_first_row(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids, new = list(prompt_token_ids), []
    for _ in range(max_tokens):
        new.append(int(model(torch.tensor(ids + new))[0].argmax()))
        if new[-1] in eos_token_ids:
            break
    return new


@wrong("generate", "forgotten the prompt")
def feeds_only_the_newest(model, prompt_token_ids, max_tokens, eos_token_ids):
    fed, new = list(prompt_token_ids), []
    for _ in range(max_tokens):
        fed = [int(model(torch.tensor(fed))[-1].argmax())]
        new += fed
        if fed[0] in eos_token_ids:
            break
    return new


@wrong("generate", "only the prompt", "not appended")
def forgets_to_append(model, prompt_token_ids, max_tokens, eos_token_ids):
    new = []
    for _ in range(max_tokens):
        new.append(int(model(torch.tensor(prompt_token_ids))[-1].argmax()))
        if new[-1] in eos_token_ids:
            break
    return new


@wrong("generate", "EOS token is missing")
def drops_the_eos(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids, new = list(prompt_token_ids), []
    for _ in range(max_tokens):
        token = int(model(torch.tensor(ids + new))[-1].argmax())
        if token in eos_token_ids:
            break
        new.append(token)
    return new


@wrong("generate", "*prompt* contains an EOS token")
def stops_at_eos_in_the_prompt(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = list(prompt_token_ids)
    for _ in range(max_tokens):
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
        if set(ids) & set(eos_token_ids):
            break
    return ids[len(prompt_token_ids) :]


@wrong("generate", "after the EOS token")
def knows_the_smallest_eos_only(model, prompt_token_ids, max_tokens, eos_token_ids):
    return _one_eos(model, prompt_token_ids, max_tokens, sorted(eos_token_ids)[:1])


@wrong("generate", "after the EOS token")
def knows_the_largest_eos_only(model, prompt_token_ids, max_tokens, eos_token_ids):
    return _one_eos(model, prompt_token_ids, max_tokens, sorted(eos_token_ids)[-1:])


def _one_eos(model, prompt_token_ids, max_tokens, eos):
    ids, new = list(prompt_token_ids), []
    for _ in range(max_tokens):
        new.append(int(model(torch.tensor(ids + new))[-1].argmax()))
        if new[-1] in eos:
            break
    return new


@wrong("generate", "changes the caller's prompt")
def appends_to_the_prompt(model, prompt_token_ids, max_tokens, eos_token_ids):
    start = len(prompt_token_ids)
    for _ in range(max_tokens):
        prompt_token_ids.append(int(model(torch.tensor(prompt_token_ids))[-1].argmax()))
        if prompt_token_ids[-1] in eos_token_ids:
            break
    return prompt_token_ids[start:]


@wrong("generate", "does not stop")
def endless(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = list(prompt_token_ids)
    while ids[-1] not in eos_token_ids:
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
    return ids[len(prompt_token_ids) :]


@wrong("generate", "plain ints", "Tensor")
def returns_tensors(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids, new = list(prompt_token_ids), []
    for _ in range(max_tokens):
        new.append(model(torch.tensor(ids + new))[-1].argmax())
        if new[-1] in eos_token_ids:
            break
    return new


@wrong("generate", "without a batch dimension")
def adds_a_batch_dimension(model, prompt_token_ids, max_tokens, eos_token_ids):
    return [int(model(torch.tensor([prompt_token_ids]))[0, -1].argmax())]


@wrong("generate", "One call per new token")
def one_call_too_many(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids, new = list(prompt_token_ids), []
    token = int(model(torch.tensor(ids))[-1].argmax())
    while len(new) < max_tokens:
        new.append(token)
        if token in eos_token_ids:
            break
        token = int(model(torch.tensor(ids + new))[-1].argmax())
    return new


@right("generate")
def recursive(model, prompt_token_ids, max_tokens, eos_token_ids):
    if max_tokens == 0:
        return []
    token = model(torch.tensor(prompt_token_ids))[-1].softmax(-1).max(-1).indices.item()
    if token in eos_token_ids:
        return [token]
    rest = recursive(model, [*prompt_token_ids, token], max_tokens - 1, eos_token_ids)
    return [token, *rest]


@right("generate")
def growing_tensor(model, prompt_token_ids, max_tokens, eos_token_ids):
    ids = torch.tensor(prompt_token_ids)
    while True:
        ids = torch.cat((ids, model(ids)[-1:].argmax(-1)))
        new = ids[len(prompt_token_ids) :].tolist()
        if len(new) == max_tokens or new[-1] in eos_token_ids:
            return new


# 7 forward_cost


def linear_weights(c, kv_heads=None, mlp=3, head=1, layers=None, attention=True, square=False):
    q = c.num_attention_heads * c.head_dim
    kv = (kv_heads or c.num_key_value_heads) * c.head_dim
    if square:
        q = kv = c.hidden_size
    layer = mlp * c.hidden_size * c.intermediate_size
    if attention:
        layer += c.hidden_size * (2 * q + 2 * kv)
    return (layers or c.num_hidden_layers) * layer + head * c.vocab_size * c.hidden_size


@wrong("forward_cost", "as many heads as the query")
def cost_without_gqa(config, num_tokens, width):
    n = linear_weights(config, kv_heads=config.num_attention_heads)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "hidden x hidden")
def cost_square_projections(config, num_tokens, width):
    n = linear_weights(config, square=True)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "two matrices")
def cost_two_mlp_matrices(config, num_tokens, width):
    n = linear_weights(config, mlp=2)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "LM head is missing")
def cost_without_lm_head(config, num_tokens, width):
    n = linear_weights(config, head=0)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "embedding table")
def cost_with_embedding(config, num_tokens, width):
    n = linear_weights(config, head=2)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "Only one layer")
def cost_one_layer(config, num_tokens, width):
    n = linear_weights(config, layers=1)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "attention projections are missing")
def cost_without_attention(config, num_tokens, width):
    n = linear_weights(config, attention=False)
    return 2 * n * num_tokens, n * width


@wrong("forward_cost", "factor of 2")
def cost_one_flop_per_weight(config, num_tokens, width):
    n = linear_weights(config)
    return n * num_tokens, n * width


@wrong("forward_cost", "do not grow with the number of tokens")
def cost_of_one_token(config, num_tokens, width):
    n = linear_weights(config)
    return 2 * n, n * width


@wrong("forward_cost", "once per pass")
def cost_reads_per_token(config, num_tokens, width):
    n = linear_weights(config)
    return 2 * n * num_tokens, n * width * num_tokens


@wrong("forward_cost", "ignore `bytes_per_parameter`")
def cost_counts_values(config, num_tokens, width):
    n = linear_weights(config)
    return 2 * n * num_tokens, n


@wrong("forward_cost", "wrong order")
def cost_exchanged(config, num_tokens, width):
    n = linear_weights(config)
    return n * width, 2 * n * num_tokens


@right("forward_cost")
def cost_as_floats(config, num_tokens, width):
    n = float(linear_weights(config))
    return 2.0 * n * num_tokens, n * width


@right("forward_cost")
def cost_from_shapes(config, num_tokens, width):
    h, d = config.hidden_size, config.head_dim
    q, kv, i = (
        config.num_attention_heads * d,
        config.num_key_value_heads * d,
        config.intermediate_size,
    )
    shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)] * config.num_hidden_layers
    shapes.append((h, config.vocab_size))
    return (sum(2 * a * b * num_tokens for a, b in shapes), sum(a * b * width for a, b in shapes))


# 8 engine


@wrong("engine", "engine's own code still runs for: apply_rotary")
def one_op_left_out():
    return LlamaOps(rms_norm=torch_function, attention=torch_kernel, silu_and_mul=written_out)


@wrong("engine", "returned", "LlamaOps")
def returns_a_dict():
    return {"rms_norm": torch_function}


@wrong("engine", "text differs", "comes from: apply_rotary")
def interleaved_rotary():
    return LlamaOps(torch_function, interleaved, torch_kernel, written_out)


@wrong("engine", "raised TypeError")
def exchanged_ops():
    return LlamaOps(
        silu_and_mul=torch_function,
        rms_norm=written_out,
        attention=torch_kernel,
        apply_rotary=half_by_half,
    )


@right("engine")
def other_right_functions():
    return LlamaOps(torch_function, half_by_half, attention_reference, written_out)

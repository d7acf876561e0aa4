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


def table(exercise, parameters, *wrong_ones):
    """Wrong answers of one line: a name, words that the feedback must contain, the line."""
    for name, says, expression in wrong_ones:
        answer = eval(f"lambda {parameters}: {expression}", globals())
        answer.__name__ = name
        wrong(exercise, *says.split(" | "))(answer)


# 1 rms_norm


def rms(x, eps=0.0, dim=-1):
    return (x.float().pow(2).mean(dim, keepdim=True) + eps).sqrt()


table(
    "rms_norm",
    "x, weight, eps",
    ("weight_added", "This is not `x / sqrt", "weight + (x.float() / rms(x, eps)).to(x.dtype)"),
    ("stays_float32", "dtype | float32", "weight.float() * (x.float() / rms(x, eps))"),
    ("changes_x", "in place", "x.div_(rms(x, eps).to(x.dtype)).mul(weight).to(x.dtype)"),
    ("forgot_return", "None | return", "[weight * (x / rms(x, eps)).to(x.dtype)].clear()"),
    (
        "no_keepdim",
        "raised RuntimeError",
        "weight * (x.float() / rms(x, eps).view(1, 1)).to(x.dtype)",
    ),
)


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


def neighbours(x):
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


table(
    "apply_rotary",
    "x, cos, sin",
    ("interleaved", "neighbouring", "x * cos.unsqueeze(1) + neighbours(x) * sin.unsqueeze(1)"),
)


def gptj_style(x, cos, sin):
    half = x.shape[-1] // 2
    c, s = cos[:, None, :half], sin[:, None, :half]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)


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


def expand(query, key):
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def first_head(query, key):
    return key[:, :1].expand(-1, query.shape[1], -1)


def future(query, key):
    """Hidden keys, [T_q, T_k]."""
    t_q, t_k = query.shape[0], key.shape[0]
    return torch.arange(t_k)[None] > torch.arange(t_q)[:, None] + (t_k - t_q)


def scores(query, key, heads=expand):
    return torch.einsum("qhd,khd->hqk", query, heads(query, key))


def hide(x, query, key, hidden=future, fill=float("-inf")):
    return x.masked_fill(hidden(query, key), fill)


def mix(weights, query, value, heads=expand):
    return torch.einsum("hqk,khd->qhd", weights.to(value.dtype), heads(query, value))


def soft(x, dim=-1):
    return x.float().softmax(dim)


def naive(x):
    return x.float().exp() / x.float().exp().sum(-1, keepdim=True)


table(
    "attention",
    "q, k, v, scale",
    (
        "mask_upside_down",
        "not the mix of values",
        "mix(soft(hide(scores(q, k) * scale, q, k, lambda q, k: future(q, k).flip(0, 1))), q, v)",
    ),
    (
        "first_kv_head_only",
        "not the mix of values",
        "mix(soft(hide(scores(q, k, first_head) * scale, q, k)), q, v, first_head)",
    ),
    (
        "static_mask",
        "Your code raised",
        "mix(soft((scores(q, k) * scale).masked_fill(torch.ones("
        "64, 64).triu(1).bool()[len(k) - len(q) : len(k), : len(k)], -torch.inf)), q, v)",
    ),
    (
        "one_largest_for_all",
        "not the mix of values",
        "mix(naive(hide(scores(q, k) * scale - (scores(q, k) * scale).max(), q, k)), q, v)",
    ),
)


@right("attention")
def torch_kernel(query, key, value, scale):
    q, k, v = (t.transpose(0, 1) for t in (query, expand(query, key), expand(query, value)))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=~future(query, key), scale=scale)
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
    bias = torch.zeros(t_q, key.shape[0]).masked_fill(future(query, key), -1e30)
    weights = torch.softmax(scores + bias, dim=-1)
    out = torch.einsum("ngqk,knd->qngd", weights, value.float())
    return out.reshape(t_q, heads, dim).to(query.dtype)


# 4 silu_and_mul


def gate(x):
    return x.chunk(2, dim=-1)[0]


def up(x):
    return x.chunk(2, dim=-1)[1]


table(
    "silu_and_mul",
    "x",
    ("split_along_tokens", "shape", "F.silu(x) * x"),
    ("in_place", "changes in place", "F.silu(gate(x), inplace=True) * up(x)"),
    ("exp_of_the_gate", "NaN", "gate(x) * gate(x).exp() / (1 + gate(x).exp()) * up(x)"),
)


@right("silu_and_mul")
def written_out(gate_up):
    size = gate_up.shape[-1] // 2
    first, second = gate_up[..., :size], gate_up[..., size:]
    return first / (1 + torch.exp(-first)) * second


@right("silu_and_mul")
def reshaped(gate_up):
    first, second = gate_up.double().reshape(gate_up.shape[0], 2, -1).unbind(1)
    return (first * first.sigmoid() * second).to(gate_up.dtype)


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


def filtered(logits, temperature, k, p, keep=None, heat=None, top_k=top_k_logits):
    """All three steps; `keep` is the rule of top-p, `heat` is how the temperature acts."""
    if temperature == 0:
        return greedy(logits)
    hot = heat(logits, temperature) if heat else logits / temperature
    return nucleus(top_k(hot, k), p, keep or (lambda total, own: total - own < p))


table(
    "token_probabilities",
    "logits, temperature=1.0, top_k=0, top_p=1.0",
    ("top_k_ignored", "Too many tokens keep", "filtered(logits, temperature, 0, top_p)"),
    (
        "top_k_to_50",
        "Too many tokens keep",
        "filtered(logits, temperature, top_k if top_k < 50 else 0, top_p)",
    ),
    (
        "changes_logits",
        "changes in place",
        "greedy(logits) if temperature == 0 else "
        "filtered(logits.div_(temperature), 1.0, top_k, top_p)",
    ),
    (
        "one_more_at_equality",
        "Too many tokens keep",
        "greedy(logits) if temperature == 0 else "
        "nucleus(top_k_logits(logits / temperature, top_k), top_p, "
        "lambda total, own: (total - own <= top_p) | (top_p == 1))",
    ),
)


@wrong("token_probabilities", "raised RuntimeError")
def top_k_larger_than_vocabulary(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    logits = logits / temperature
    if top_k > 0:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return nucleus(logits, top_p, lambda total, own: total - own < top_p)


@wrong("token_probabilities", "Too many tokens keep")
def nucleus_of_the_old_sum(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return greedy(logits)
    p = (logits / temperature).softmax(-1)
    values, order = p.sort(descending=True)
    kept = (values.cumsum(-1) - values < top_p) | (top_p == 1)
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


def loop(
    model,
    prompt,
    max_tokens,
    eos,
    fed=lambda prompt, new: prompt + new,
    row=-1,
    before=False,
    stop=lambda token, eos: token in eos,
):
    """The loop as most write it, with what may go wrong as an argument."""
    ids, new = list(prompt), []
    while len(new) < max_tokens:
        token = int(model(torch.tensor(fed(ids, new)))[row].argmax())
        if before and stop(token, eos):
            break
        new.append(token)
        if stop(token, eos):
            break
    return new


KEPT = []

table(
    "generate",
    "model, prompt, max_tokens, eos",
    (
        "window_of_64",
        "whole text so far",
        "loop(model, prompt, max_tokens, eos, lambda ids, new: (ids + new)[-64:])",
    ),
    (
        "short_ids",
        "whole text so far",
        "loop(lambda ids: model(ids.to(torch.uint16).long()), prompt, max_tokens, eos)",
    ),
    (
        "returns_tensors",
        "plain ints | tensor",
        "[torch.tensor(token) for token in loop(model, prompt, max_tokens, eos)]",
    ),
    (
        "adds_a_batch_dimension",
        "without a batch dimension",
        "loop(lambda ids: model(ids[None])[0], prompt, max_tokens, eos)",
    ),
    (
        "one_list_for_all",
        "A later call changes",
        "KEPT.clear() or KEPT.extend(loop(model, prompt, max_tokens, eos)) or KEPT",
    ),
)


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


def cost(c, tokens, width, **mistake):
    weights = linear_weights(c, **mistake)
    return 2 * weights * tokens, weights * width


table(
    "forward_cost",
    "c, tokens, width",
    ("cost_as_floats", "Expected two ints | 53 bits", "tuple(map(float, cost(c, tokens, width)))"),
    ("cost_as_a_dict", "Expected the pair", "{'flops': 1, 'bytes': 2}"),
)


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


@wrong("engine", "`apply_rotary` is not right yet", "exercise 2", "neighbouring")
def interleaved_rotary():
    return LlamaOps(torch_function, gptj_style, torch_kernel, written_out)


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

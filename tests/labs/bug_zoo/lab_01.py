"""Right answers to lab 01, written differently; wrong ones are in `lab_01.yaml`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_01 import answers
from utils.engine.attention.attention import attention_reference
from utils.engine.models.llama import LlamaOps

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


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


@right("apply_rotary")
def half_by_half(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    c, s = cos[:, None].chunk(2, dim=-1)[0], sin[:, None].chunk(2, dim=-1)[0]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


@right("apply_rotary")
def complex_numbers(x, cos, sin):
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    z = z * torch.complex(cos[:, None, :half].double(), sin[:, None, :half].double())
    return torch.cat((z.real, z.imag), -1).to(x.dtype)


@right("apply_rotary")
def token_by_token(x, cos, sin):
    out, half = torch.empty_like(x), x.shape[-1] // 2
    for t in range(x.shape[0]):
        for head in range(x.shape[1]):
            turned = torch.cat((-x[t, head, half:], x[t, head, :half]))
            out[t, head] = x[t, head] * cos[t] + turned * sin[t]
    return out


def future(query, key):
    """Hidden keys, [T_q, T_k]."""
    t_q, t_k = query.shape[0], key.shape[0]
    return torch.arange(t_k)[None] > torch.arange(t_q)[:, None] + (t_k - t_q)


@right("attention")
def torch_kernel(query, key, value, scale):
    group = query.shape[1] // key.shape[1]
    k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (key, value))
    mask = ~future(query, key)
    out = F.scaled_dot_product_attention(query.transpose(0, 1), k, v, attn_mask=mask, scale=scale)
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


@right("silu_and_mul")
def written_out(gate_up):
    size = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :size].float(), gate_up[..., size:].float()
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


@right("silu_and_mul")
def with_a_sigmoid(gate_up):
    gate, up = gate_up.reshape(gate_up.shape[0], 2, -1).unbind(1)
    return gate * gate.sigmoid() * up


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
        return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)
    logits = logits / temperature
    if top_k > 0:
        limit = logits.topk(min(top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < limit, float("-inf"))
    values, order = logits.sort()
    removed = values.softmax(-1).cumsum(-1) <= 1 - top_p
    removed[-1] = False
    return logits.masked_fill(removed[order.argsort()], float("-inf")).softmax(-1)


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


@right("generate")
def with_numpy(model, prompt_token_ids, max_tokens, eos_token_ids):
    new = []
    for _ in range(max_tokens):
        new.append(int(model(torch.tensor([*prompt_token_ids, *new]))[-1].numpy().argmax()))
        if new[-1] in eos_token_ids:
            break
    return new


@right("forward_cost")
def cost_from_shapes(config, num_tokens, width):
    h, d, i = config.hidden_size, config.head_dim, config.intermediate_size
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)] * config.num_hidden_layers
    shapes.append((h, config.vocab_size))
    return sum(2 * a * b * num_tokens for a, b in shapes), sum(a * b * width for a, b in shapes)


# The engine: its check calls a function without arguments.


@wrong("engine", "didn't pass `apply_rotary`")
def one_op_left_out():
    return LlamaOps(rms_norm=torch_function, attention=torch_kernel, silu_and_mul=written_out)


@wrong("engine", "returns a dict")
def returns_a_dict():
    return {"rms_norm": torch_function}


@wrong("engine", "returns None")
def forgets_the_return():
    LlamaOps(torch_function, half_by_half, torch_kernel, written_out)


@wrong("engine", "Exercise 2 is not right yet", "turn backward")
def turns_backward():
    backward = edited(answers.apply_rotary, ["(-second, first) => (second, -first)"])
    return LlamaOps(torch_function, backward, torch_kernel, written_out)


@wrong("engine", "doesn't take the arguments x, weight, eps")
def exchanged_ops():
    return LlamaOps(written_out, half_by_half, torch_kernel, torch_function)


@wrong("engine", "You pass your `silu_and_mul` as `rms_norm`")
def exchanged_by_name():
    return LlamaOps(answers.silu_and_mul, answers.apply_rotary, answers.attention, answers.rms_norm)


@right("engine")
def other_right_functions():
    return LlamaOps(torch_function, half_by_half, attention_reference, written_out)

"""What lab 01 calls right is what transformers does; and the inputs reach the corners."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.activations import ACT2FN
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from utils.checks import lab_01
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_01 import answers, attending, filtering, pretended_model


def float32(draw, count=60):
    """Inputs whose tensors all are float32."""
    cases = [given.args for given in sample(draw, count)]
    return [c for c in cases if all(getattr(t, "dtype", torch.float32) == torch.float32 for t in c)]


def close(one, other):
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_the_norm_is_transformers():
    for x, weight, eps in float32(lab_01.draw_vectors):
        module = LlamaRMSNorm(weight.numel(), eps)
        module.weight.data = weight
        assert close(lab_01.normed(x, weight, eps), module(x).detach())


def test_the_rotation_is_transformers():
    for x, cos, sin in float32(lab_01.draw_heads):
        batched = x.transpose(0, 1)[None]
        turned = apply_rotary_pos_emb(batched, batched, cos[None], sin[None])[0][0].transpose(0, 1)
        assert close(lab_01.turned(x, cos, sin), turned)


def test_the_gate_is_transformers():
    for (x,) in float32(lab_01.draw_gates):
        first, second = x.chunk(2, dim=-1)
        assert close(lab_01.gated(x), ACT2FN[LlamaConfig().hidden_act](first) * second)


def test_attention_is_transformers():
    for query, key, value, scale in float32(attending.draw):
        t_q, t_k = len(query), len(key)
        module = torch.nn.Module().eval()
        module.num_key_value_groups = query.shape[1] // key.shape[1]
        hidden = torch.full((t_q, t_k), -torch.inf).triu(t_k - t_q + 1)
        q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
        expected = eager_attention_forward(module, q, k, v, hidden, scale)[0][0]
        got = attending.oracle(query, key, value, scale)
        assert torch.allclose(got, expected, rtol=1e-2, atol=2e-3 * float(value.abs().max()))


def hf_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0.0:
        return torch.nn.functional.one_hot(logits.argmax(), logits.numel()).float()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits[None])[0].softmax(-1)


def test_transformers_probabilities_are_right():
    assert "Right" in lab_01.token_probabilities.contract.check(hf_probabilities)


@pytest.mark.parametrize(("tied", "layers"), [(True, 1), (False, 3)])
def test_costs_are_what_torch_counts_in_transformers_llama(tied, layers):
    config = lab_01.model_config(layers, 4, 2, 6, 8, 10, 13, tied)
    hf = LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=10,
        num_hidden_layers=layers,
        head_dim=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        LlamaForCausalLM._from_config(hf, attn_implementation="sdpa")(torch.zeros(1, 5).long())
    counts = counter.get_flop_counts()["Global"]
    measured = sum(counts.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    flops, num_bytes = lab_01.cost(config, 5, 2)
    assert flops == measured
    assert num_bytes == flops // 5  # 2 FLOPs per token and weight, 2 bytes per weight


@pytest.mark.parametrize("prompt", [[7], [3, 1, 4, 1, 5]])
def test_the_right_loop_says_what_hf_generate_says(prompt):
    tiny = TinyModel()
    expected = tiny.greedy(prompt, 8)
    assert answers.generate(tiny, prompt, 8, set()) == expected
    stop = {expected[4]}
    assert answers.generate(tiny, prompt, 8, stop) == tiny.greedy(prompt, 8, stop)


def cases(draw, count):
    return [draw(Choices(random.Random(number))) for number in range(count)]


def test_attention_is_drawn_in_all_its_forms():
    drawn = [given.args for given in cases(attending.draw, 150)]
    ratios = {(len(q) == len(k), len(q) == 1) for q, k, *_ in drawn if len(k) > 1}
    assert ratios == {(True, False), (False, True), (False, False)}
    assert max(len(k) for _, k, *_ in drawn) > 1024
    assert max(len(q) for q, *_ in drawn) > 128
    assert {k.shape[1] for _, k, *_ in drawn} >= {1, 2, 3}
    scales = {scale for *_, scale in drawn}
    assert min(scales) < 0 < max(scales)
    assert 0.0 in scales
    assert {q.dtype for q, *_ in drawn} == {torch.float32, torch.bfloat16, torch.float16}
    assert not all(t.is_contiguous() for *tensors, _ in drawn for t in tensors)


def test_a_hidden_key_may_score_far_above_all_visible_ones():
    above = []
    for given in cases(attending.draw, 150):
        query, key, _, scale = given.args
        kv_head = torch.arange(query.shape[1]) // (query.shape[1] // key.shape[1])
        scores = torch.einsum("qhd,khd->hqk", query.float(), key[:, kv_head].float()) * scale
        hidden = torch.ones(len(query), len(key)).triu(len(key) - len(query) + 1).bool()
        visible = scores.masked_fill(hidden, -torch.inf).amax(-1)
        above.append(float((scores.masked_fill(~hidden, -torch.inf).amax(-1) - visible).max()))
    assert sum(gap > 104 for gap in above) > 3  # exp(-104) is 0 in float32
    assert sum(gap > 10_000 for gap in above) > 2  # below what a finite mask may subtract


def test_settings_reach_ties_exact_fits_and_large_vocabularies():
    drawn = cases(filtering.draw, 200)
    full = [given.args for given in drawn if len(given.args) == 4]
    assert len(full) < len(drawn)  # arguments are left out
    assert max(len(logits) for logits, *_ in full) > 65_536
    assert any(len(logits) > 2000 and k == 0 and p < 1 for logits, _, k, p in full)
    assert any(k > len(logits) for logits, _, k, _ in full)
    assert any(k == len(logits) for logits, _, k, _ in full)
    assert any(logits.max() == logits.min() and len(logits) > 1 for logits, *_ in full)
    assert any(0 < k < len(x) and (x >= x.topk(k).values[-1]).sum() > k for x, _, k, _ in full)
    assert any(t == 0 and (x == x.max()).sum() > 1 for x, t, *_ in full)


def test_requests_hold_eos_everywhere():
    texts = [text for requests in cases(pretended_model.draw, 150) for text in requests.texts]
    assert any(set(t.prompt) & t.eos for t in texts)
    assert any(2048 > len(t.prompt) > 64 for t in texts)
    assert any(len(t.prompt) > 2048 for t in texts)
    assert any(t.max_tokens > 128 and not t.eos for t in texts)
    assert any(max(t.prompt) > 65_535 for t in texts)
    assert {len(t.eos) for t in texts} >= {0, 1, 2, 3}

"""Who holds what: every weight exactly once, and stages as in vLLM."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from vllm.distributed.utils import get_pp_indices as vllm_pp_indices

from tests.engine.conftest import TINY, tiny_model
from utils.engine import ModelConfig
from utils.engine.distributed.shard import Shard, get_pp_indices, load_shard, partition


@given(total=st.integers(0, 200), parts=st.integers(1, 17))
def test_partition_cuts_as_tensor_split_does(total, parts):
    want = [part.tolist() for part in torch.arange(total).tensor_split(parts)]
    assert [list(partition(total, parts, i)) for i in range(parts)] == want


@given(stages=st.integers(1, 12), more=st.integers(0, 90))
def test_stages_are_vllms(stages, more):
    layers = stages + more
    for rank in range(stages):
        assert get_pp_indices(layers, rank, stages) == vllm_pp_indices(layers, rank, stages)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_the_ranks_together_hold_each_weight(tmp_path, name, tp, pp):
    hf = tiny_model(**TINY[name])
    hf.save_pretrained(tmp_path)
    model = ModelConfig.from_pretrained(tmp_path)
    if tp > model.num_key_value_heads:
        pytest.skip("one KV head cannot be divided")
    stored = load_file(tmp_path / "model.safetensors")
    held = {key: torch.zeros(value.shape) for key, value in stored.items()}
    shards = [Shard(model, t, tp, p, pp) for p in range(pp) for t in range(tp)]
    for shard in shards:
        config = shard.config()
        names = [
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "input_layernorm",
            "post_attention_layernorm",
        ]
        mine = [f"model.layers.{i}.{n}.weight" for i in range(len(shard.layers)) for n in names]
        if shard.has_embedding:
            mine.append("model.embed_tokens.weight")
        if shard.has_lm_head:
            mine.append("model.norm.weight")
            if not model.tie_word_embeddings:
                mine.append("lm_head.weight")
        for local in mine:
            key, dim, part = shard.source(local)
            (held[key][part] if dim == 0 else held[key][:, part]).add_(1)
        assert config.num_attention_heads * tp >= model.num_attention_heads or tp == 1
    for key, count in held.items():
        norm = "norm" in key
        assert count.unique().tolist() == [float(tp if norm else 1)], key


def test_weights_that_are_missing_damaged_or_too_small_are_named(tmp_path):
    hf = tiny_model(num_attention_heads=4, num_key_value_heads=2)
    hf.save_pretrained(tmp_path)
    shard = Shard(ModelConfig.from_pretrained(tmp_path), tp_rank=1, tp_size=2)
    name = "model.layers.0.self_attn.q_proj.weight"
    whole = hf.get_parameter(name).detach()
    half = torch.empty(len(whole) // 2, whole.shape[1])
    load_shard(tmp_path, shard, {name: half})
    assert torch.equal(half, whole[len(half) :])
    with pytest.raises(ValueError, match=r"part has shape .* config.json implies"):
        load_shard(tmp_path, shard, {name: torch.empty(3, 3)})
    with pytest.raises(ValueError, match=r"q_norm.* cannot be read .* Fetch the model again"):
        load_shard(tmp_path, shard, {"model.layers.0.q_norm.weight": half})
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"q_proj.* cannot be read .* Fetch the model again"):
        load_shard(tmp_path, shard, {name: half})

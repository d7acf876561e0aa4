"""Predicted bytes against those that real ranks of the course's engine hold and send: equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from utils.distributed.engine_costs import engine_memory, engine_sent_bytes, expert_sent_bytes
from utils.engine import LLM
from utils.engine.config.parallel import MoEConfig
from utils.engine.sampling_params import SamplingParams

PROMPTS = [[1, 5, 7, 3, 8], [2, 2, 9], [4, 11, 12, 6, 1, 3, 9]]


def make_model(path: Path, tied: bool) -> Path:
    """A model in which little divides by 2 or 3: heads, columns, vocabulary, layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=14,
        hidden_size=45,
        intermediate_size=50,
        num_hidden_layers=4,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(14)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)
    return path


def run(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)


@pytest.mark.parametrize(("tied", "tp", "pp"), [(False, 3, 1), (False, 1, 3), (True, 2, 2)])
def test_memory_and_traffic(tied: bool, tp: int, pp: int, tmp_path: Path) -> None:
    folder = make_model(tmp_path, tied)
    llm = LLM(
        folder,
        dtype="float32",
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        num_gpu_blocks_override=8,
        block_size=16,
        max_model_len=32,
        max_num_batched_tokens=8,
        max_num_seqs=4,
    )
    llm.llm_engine.step_trace = trace = []
    run(llm)
    steps = [step.tokens.values() for step in trace]
    passes = [(sum(t.num_new for t in step), sum(t.num_sampled for t in step)) for step in steps]
    assert sum(tokens for tokens, _ in passes) >= sum(map(len, PROMPTS))
    assert sum(sampled for _, sampled in passes) == 4 * len(PROMPTS)
    memory = [(use.weights, use.kv_cache) for use in llm.collective_rpc("memory")]
    assert engine_memory(llm.model_config, 8, 16, 4, tp, pp) == memory
    counted = [
        {(group, name): n for group, names in rank.items() for name, n in names.items() if n}
        for rank in llm.collective_rpc("sent_bytes")
    ]
    assert engine_sent_bytes(llm.model_config, passes, 4, tp, pp) == counted
    llm.shutdown()


def test_experts_on_two_ranks(tmp_path: Path) -> None:
    llm = LLM(
        make_model(tmp_path, tied=False),
        dtype="float32",
        data_parallel_size=2,
        enable_expert_parallel=True,
        upcycle=MoEConfig(num_experts=4, num_experts_per_tok=2),
        num_gpu_blocks_override=8,
        max_model_len=32,
    )
    run(llm)
    routed, sent = llm.collective_rpc("num_routed"), llm.collective_rpc("sent_bytes")
    passes = [told["counts"] for told in sent]
    assert passes[0] == passes[1]  # they keep step
    each = 1 * 2 * 8 * 4  # to one other rank, its 2 experts, int64, 4 layers
    predicted = expert_sent_bytes(routed, passes[0] // each, hidden_size=45, itemsize=4)
    assert predicted == [dict(told) for told in sent]
    llm.shutdown()

"""Who holds what: shares against vLLM's and torch's, sums over all ranks against the whole."""

from __future__ import annotations

import pytest

from utils.distributed.hardware import GIB, GPUS
from utils.distributed.layouts import Layout, Rank, all_ranks, fullest, memory_of, room_for_requests
from utils.distributed.shapes import SHAPES, Shape, attention_parameters, num_parameters
from utils.sim.memory import MODEL_SHAPES, kv_bytes_per_token


def copied(shape: Shape, layout: Layout) -> int:
    """Parameters beyond one copy of the model: what several ranks of a replica hold the same of."""
    tp = layout.tensor_parallel_size
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
    moe_layers = sum(shape.is_moe(i) for i in range(shape.num_hidden_layers))
    routers = moe_layers * shape.num_experts * shape.hidden_size
    latent = shape.kv_lora_rank + shape.qk_rope_head_dim
    down = shape.hidden_size * (shape.q_lora_rank + latent)
    latents = shape.num_hidden_layers * (down + shape.q_lora_rank + shape.kv_lora_rank)
    extra = (tp - 1) * (norms + routers + (latents if shape.is_mla else 0))
    if not shape.is_mla and tp > shape.num_key_value_heads:
        more = tp - shape.num_key_value_heads
        extra += 2 * more * shape.head_dim * shape.hidden_size * shape.num_hidden_layers
    if shape.tie_word_embeddings and layout.pipeline_parallel_size > 1:
        extra += shape.vocab_size * shape.hidden_size
    return extra


LAYOUTS = [Layout(), Layout(2), Layout(4, 2), Layout(1, 7), Layout(16), Layout(3, 4, uneven=True)]
# Uneven heads are for what the course's engine runs; others refuse what does not divide.
POSSIBLE = [
    (name, layout)
    for name, shape in SHAPES.items()
    for layout in LAYOUTS
    if (layout.uneven and not shape.is_mla)
    or (not layout.uneven and shape.num_attention_heads % layout.tensor_parallel_size == 0)
]


@pytest.mark.parametrize(("name", "layout"), POSSIBLE, ids=str)
def test_all_ranks_together_hold_the_model(name: str, layout: Layout) -> None:
    shape = SHAPES[name]
    held = sum(rank.num_parameters() for rank in all_ranks(shape, layout))
    assert held == num_parameters(shape) + copied(shape, layout)


@pytest.mark.parametrize("name", ["Mixtral-8x7B", "DeepSeek-V3"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_experts_are_there_once(name: str, expert_parallel: bool) -> None:
    shape, layout = SHAPES[name], Layout(2, 1, 4, expert_parallel)
    one_layer = sum(rank.expert_parameters() for rank in all_ranks(shape, layout))
    assert one_layer == 3 * shape.num_experts * shape.hidden_size * shape.moe_intermediate_size


def test_experts_that_do_not_divide() -> None:
    layout = Layout(1, 1, 3, enable_expert_parallel=True)
    ranks = all_ranks(SHAPES["Mixtral-8x7B"], layout)
    assert [rank.num_experts() for rank in ranks] == [3, 3, 2]


def test_heads_that_do_not_divide_keep_their_queries() -> None:
    ranks = all_ranks(SHAPES["SmolLM2-135M"], Layout(2, uneven=True))
    assert [(rank.num_heads, rank.num_kv_heads) for rank in ranks] == [(6, 2), (3, 1)]


def test_kv_bytes() -> None:
    """Of one GPU, against notebook 02's formula; of many, the parts."""
    whole = MODEL_SHAPES["Llama-3.1-70B"]
    shape = SHAPES["Llama-3-70B"]
    assert Rank(shape, Layout()).kv_bytes_per_token() == kv_bytes_per_token(whole)
    assert Rank(shape, Layout(8)).kv_bytes_per_token() == kv_bytes_per_token(whole) / 8
    assert Rank(shape, Layout(16)).kv_bytes_per_token() == kv_bytes_per_token(whole) / 8
    assert Rank(shape, Layout(1, 8)).kv_bytes_per_token() == kv_bytes_per_token(whole) / 8
    deepseek = kv_bytes_per_token(MODEL_SHAPES["DeepSeek-V3"])
    assert Rank(SHAPES["DeepSeek-V3"], Layout(8)).kv_bytes_per_token() == deepseek  # MLA: all of it


def test_memory() -> None:
    shape, gpu = SHAPES["Llama-3-8B"], GPUS["H100"]
    memory = memory_of(Rank(shape, Layout()), gpu)
    assert memory.fits and memory.weights == 2 * num_parameters(shape)
    assert memory.usable == int(0.92 * 80 * GIB)
    assert memory.tokens == (memory.usable - memory.weights) // 131072
    assert not fullest(SHAPES["Llama-3-70B"], Layout(), gpu).fits
    assert fullest(SHAPES["Llama-3-70B"], Layout(), gpu).tokens == 0


UNEVEN = [
    ("SmolLM2-135M", Layout(2, uneven=True), "T4"),
    ("SmolLM2-135M", Layout(1, 4), "T4"),
    ("SmolLM2-135M", Layout(2, 4, uneven=True), "T4"),
    ("Mixtral-8x7B", Layout(1, 3, 3, True), "A100 80GB"),
    ("DeepSeek-V3", Layout(2, 3, 5, True), "H200"),
    ("Llama-3-70B", Layout(4, 3), "RTX 4090"),
]


@pytest.mark.parametrize(("name", "layout", "gpu"), UNEVEN, ids=str)
def test_the_fullest_rank_decides(name: str, layout: Layout, gpu: str) -> None:
    found = fullest(SHAPES[name], layout, GPUS[gpu])
    every = [memory_of(rank, GPUS[gpu]) for rank in all_ranks(SHAPES[name], layout)]
    assert found.tokens == min(memory.tokens for memory in every)
    assert found.fits == all(memory.fits for memory in every)


def test_utilization_is_vllms() -> None:
    cache = pytest.importorskip("vllm.config.cache")
    from utils.distributed.layouts import GPU_MEMORY_UTILIZATION

    assert cache.CacheConfig().gpu_memory_utilization == GPU_MEMORY_UTILIZATION


def test_words_and_bad_sizes() -> None:
    assert str(Layout()) == "one GPU"
    assert str(Layout(8, 2, 4, True)) == "TP=8 PP=2 DP=4 EP"
    assert Layout(8, 2, 4).world_size == 64
    with pytest.raises(ValueError, match="at least 1"):
        Layout(0)


def test_a_request_fits_into_one_replica() -> None:
    """Two equal replicas never hold an odd number of requests. The numbers are lesson 15's."""
    shape, gpu, context = SHAPES["Llama-3-70B"], GPUS["H100"], 2048
    replicas = Layout(tensor_parallel_size=4, data_parallel_size=2)
    assert 2 * fullest(shape, replicas, gpu).tokens // context == 521  # with a request cut in two
    assert room_for_requests(shape, replicas, gpu, context) == 520
    assert room_for_requests(shape, Layout(8), gpu, context) == 731


def test_data_parallel_attention_copies_more_than_attention() -> None:
    """DeepSeek-V3 on 32 cards: all but the experts is copied, and attention is two thirds of it."""
    shape = SHAPES["DeepSeek-V3"]
    tp = Rank(shape, Layout(tensor_parallel_size=32, enable_expert_parallel=True))
    dp = Rank(shape, Layout(data_parallel_size=32, enable_expert_parallel=True))
    assert tp.expert_parameters() == dp.expert_parameters()
    more, attention = (
        2 / 1e9 * part
        for part in (
            dp.num_parameters() - tp.num_parameters(),
            len(dp.layers)
            * (
                attention_parameters(shape, dp.num_heads, dp.num_kv_heads)
                - attention_parameters(shape, tp.num_heads, tp.num_kv_heads)
            ),
        )
    )
    assert (round(more, 1), round(attention, 1)) == (31.2, 20.3)

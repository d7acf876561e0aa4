"""The planner against hand-made examples, Hugging Face's counts, and a request-by-request count."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from utils.distributed.hardware import GIB, GPUS
from utils.distributed.shapes import SHAPES, num_parameters
from utils.planning.plan import Capacity, Deployment, Load, capacity, dollars, replicas
from utils.planning.prices import PRICES

ONE = Deployment("Llama-3-8B", "H100", reach_bandwidth=1, reach_flops=1)
LOAD = Load(prompt=1000, answer=200)


@pytest.mark.parametrize("name", ["Llama-3-8B", "Llama-3-70B"])
def test_the_weights_are_as_many_as_hugging_faces(name: str) -> None:
    import torch

    shape = SHAPES[name]
    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert num_parameters(shape) == sum(p.numel() for p in model.parameters())
    assert Deployment(name, "H200").memory.weights == 2 * num_parameters(shape)


def test_memory_by_hand() -> None:
    """8.03e9 parameters of 2 bytes; 32 layers x 8 heads x 128 x 2 x 2 bytes a token."""
    memory = ONE.memory
    assert memory.kv_per_token == 131072
    left = int(0.92 * 80 * GIB) - 2 * 8_030_261_248
    assert memory.tokens == left // 131072
    quarter = Deployment("Llama-3-8B", "H100", weight_bits=4).memory
    assert quarter.weights == memory.weights // 4
    assert quarter.kv_per_token == memory.kv_per_token


def test_time_by_hand() -> None:
    table = 128256 * 4096
    step = (2 * (8_030_261_248 - table) + 16 * 1000 * 131072) / 3.35e12
    assert ONE.decode_seconds(16, 1000) == pytest.approx(step, rel=1e-3)
    matrices = 2 * 4096 * (8_030_261_248 - 2 * table)
    scores = 4 * 32 * 128 * 32 * 4096 * 4097 / 2
    assert ONE.prefill_seconds(4096) == pytest.approx((matrices + scores) / 989e12, rel=1e-2)
    assert ONE.prefill_seconds(0) == 0


def test_reach_and_bits() -> None:
    half = Deployment("Llama-3-8B", "H100", reach_bandwidth=0.5, reach_flops=1)
    assert half.decode_seconds(1, 0) == pytest.approx(2 * ONE.decode_seconds(1, 0))
    four = Deployment("Llama-3-8B", "H100", weight_bits=4, reach_bandwidth=1, reach_flops=1)
    assert four.decode_seconds(1, 0) == pytest.approx(ONE.decode_seconds(1, 0) / 4)
    assert four.prefill_seconds(4096) == ONE.prefill_seconds(4096)  # arithmetic has no bits


def test_capacity_is_what_a_simulation_counts() -> None:
    """Play it: the same number always in flight, a prompt read whenever one is replaced."""
    able, n, now, done = capacity(ONE, LOAD, 10), 10, 0.0, 0
    left = [LOAD.answer * (i + 1) // n for i in range(n)]  # spread over their answers
    for _ in range(20 * LOAD.answer):
        now += able.step
        for i in range(n):
            left[i] -= 1
            if left[i] == 0:
                left[i], now, done = LOAD.answer, now + able.prefill, done + 1
    assert done / now == pytest.approx(able.requests_per_second, rel=0.01)
    assert n * now / done / LOAD.answer == pytest.approx(able.time_per_token, rel=0.01)


def test_the_promise_is_kept_and_one_more_would_break_it() -> None:
    able = capacity(ONE, LOAD, promise=0.02)
    assert able.time_per_token <= 0.02
    assert capacity(ONE, LOAD, able.requests + 1).time_per_token > 0.02
    full = capacity(ONE, LOAD)
    assert full.requests == ONE.memory.tokens // 1200


def test_the_bill_is_what_the_hours_cost() -> None:
    able = capacity(ONE, LOAD, 32)
    cost = dollars(ONE, able, 3.0, used=0.5)
    requests = 0.5 * able.requests_per_second * 3600
    assert requests * cost.per_request == pytest.approx(3.0)
    bill = requests * (1000 * cost.per_million_in + 200 * cost.per_million_out) / 1e6
    assert bill == pytest.approx(3.0)


def test_hits_are_not_computed() -> None:
    hit = Load(1000, 200, hit=0.75)
    assert (hit.computed, Load(1000, 200, hit=1).computed) == (250, 1)
    with_hits, without = (capacity(ONE, Load(4000, 200, h), 32) for h in (0.75, 0))
    assert with_hits.step == without.step and with_hits.prefill < 0.3 * without.prefill


def test_more_in_flight_is_cheaper_and_slower() -> None:
    ables = [capacity(ONE, LOAD, n) for n in (1, 2, 8, 64, 256)]
    out = [dollars(ONE, able, 3.0).per_million_out for able in ables]
    assert out == sorted(out, reverse=True)
    times = [able.time_per_token for able in ables]
    assert times == sorted(times)


def test_replicas_round_up() -> None:
    able = Capacity(1, 0.5, 0.005, Load(1, 100))  # one request a second
    assert able.requests_per_second == pytest.approx(1)
    assert [replicas(rate, able, 0.5) for rate in (0, 0.5, 0.6, 5)] == [1, 1, 2, 10]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Deployment("Llama-9", "H100"), "Unknown model 'Llama-9'. Known: SmolLM2"),
        (lambda: Deployment("Llama-3-8B", "H101"), "Unknown card 'H101'. Known: T4"),
        (lambda: Deployment("Llama-3-8B", "H100", 0), "at least 1, got 0"),
        (lambda: Deployment("Llama-3-8B", "H100", weight_bits=3), "4, 8 or 16, got 3"),
        (lambda: Deployment("Llama-3-8B", "H100", reach_flops=0), "reach_flops"),
        (lambda: Load(0, 1), "tokens in and out"),
        (lambda: Load(1, 1, hit=2), "between 0 and 1"),
        (lambda: ONE.prefill_seconds(-1), "negative"),
        (lambda: ONE.decode_seconds(0, 1), "got 0 and 1"),
        (lambda: capacity(Deployment("Llama-3-70B", "H100"), LOAD), "room for 0 requests"),
        (lambda: capacity(ONE, LOAD, 10**6), "Take more cards"),
        (lambda: capacity(ONE, LOAD, promise=0.001), "Even one request"),
        (lambda: dollars(ONE, capacity(ONE, LOAD, 1), 1, used=0), "a share, got 1 and 0"),
        (lambda: replicas(-1, capacity(ONE, LOAD, 1)), "a load"),
    ],
)
def test_errors_say_what_is_wrong(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_each_price_has_a_date_or_says_that_it_is_none() -> None:
    assert set(PRICES) <= set(GPUS)
    for price in PRICES.values():
        assert price.dollars > 0 and bool(price.seller) == bool(price.seen)
        assert ("not a quotation" in price.source) == (not price.seller)

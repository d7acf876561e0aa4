"""The model of time: hand-made figures, and what each parallelism does to them."""

from __future__ import annotations

import pytest

from utils.distributed.hardware import LINKS, Cluster, cluster
from utils.distributed.layouts import Layout
from utils.distributed.shapes import SHAPES, active_parameters, num_parameters
from utils.distributed.step_time import decode_step, message_seconds, prefill
from utils.distributed.traffic import Traffic

LLAMA, DEEPSEEK = SHAPES["Llama-3-70B"], SHAPES["DeepSeek-V3"]
H100 = cluster("H100", "NVLink 4", "InfiniBand NDR")


def test_one_request_reads_all_weights_once() -> None:
    step = decode_step(LLAMA, Layout(), H100, requests=1, context=0)
    table = LLAMA.vocab_size * LLAMA.hidden_size  # looked up, not read
    assert step.work == pytest.approx(2 * (num_parameters(LLAMA) - table) / 3.35e12, rel=1e-3)
    assert step.communication == {} and step.seconds == step.memory


def test_a_long_prefill_computes() -> None:
    shape = SHAPES["Llama-3-8B"]
    step = prefill(shape, Layout(), H100, prompt=4096)
    head = shape.vocab_size * shape.hidden_size
    matrices = 2 * 4096 * (active_parameters(shape) - head)
    scores = 4 * 32 * 128 * 32 * 4096 * 4097 / 2  # layers, heads, looked-at pairs
    assert step.arithmetic == pytest.approx((matrices + scores) / 989e12, rel=1e-3)
    assert step.work == step.arithmetic > step.memory


def test_tp_lowers_latency_and_pp_does_not() -> None:
    alone, tp, pp = (
        decode_step(LLAMA, layout, H100, requests=1, context=2048)
        for layout in (Layout(), Layout(8), Layout(1, 8))
    )
    assert tp.work == pytest.approx(alone.work / 8, rel=0.01)
    assert tp.seconds < 0.25 * alone.seconds
    assert pp.work == pytest.approx(alone.work)
    assert pp.seconds > alone.seconds


def test_dp_raises_throughput_and_leaves_latency() -> None:
    one, four = (decode_step(LLAMA, Layout(4, 1, replicas), H100, 32, 2048) for replicas in (1, 4))
    assert four.seconds == one.seconds
    assert four.tokens_per_second == pytest.approx(4 * one.tokens_per_second)


def test_tp_over_a_slow_link_is_slower_than_without() -> None:
    slow = cluster("H100", "NVLink 4", "Ethernet 10G", gpus_per_server=1)
    alone = decode_step(LLAMA, Layout(), slow, 1, 2048)
    assert decode_step(LLAMA, Layout(8), slow, 1, 2048).seconds > alone.seconds
    # What crosses between two stages is so little that the same link will do.
    pp = decode_step(LLAMA, Layout(1, 8), slow, 1, 2048)
    assert pp.seconds < 1.02 * alone.seconds


@pytest.mark.parametrize("layout", [Layout(8), Layout(1, 8), Layout(1, 1, 8, True)], ids=str)
def test_faster_links_are_never_slower(layout: Layout) -> None:
    links = sorted(LINKS.values(), key=lambda link: link.bandwidth)
    for requests in (1, 64):
        times = {
            link: decode_step(DEEPSEEK, layout, Cluster(H100.gpu, link, link), requests, 1024)
            for link in links
        }
        for slow in links:
            for fast in links:
                if fast.bandwidth >= slow.bandwidth and fast.latency <= slow.latency:
                    assert times[fast].seconds <= times[slow].seconds


def test_few_tokens_touch_few_experts() -> None:
    """One token reads 8 of 256 experts; thousands read all."""
    layout = Layout(1, 1, 32, enable_expert_parallel=True)
    small = decode_step(DEEPSEEK, Layout(), H100, 1, 0)
    assert small.memory == pytest.approx(2 * active_parameters(DEEPSEEK) / 3.35e12, rel=0.01)
    many = decode_step(DEEPSEEK, Layout(), H100, 4096, 0)
    table = DEEPSEEK.vocab_size * DEEPSEEK.hidden_size
    assert many.memory == pytest.approx(2 * (num_parameters(DEEPSEEK) - table) / 3.35e12, rel=0.01)
    assert decode_step(DEEPSEEK, layout, H100, 4096, 0).memory < many.memory / 5


def test_pipelined_prefill_pays_the_bubble() -> None:
    """With m pieces and p stages: (m + p - 1) / (m p) of the time that one GPU would take."""
    shape = SHAPES["Llama-3-8B"]
    alone = prefill(shape, Layout(), H100, 8192, micro_batches=16).work
    staged = prefill(shape, Layout(1, 4), H100, 8192, micro_batches=16).work
    assert staged == pytest.approx(alone * (16 + 3) / (16 * 4), rel=0.02)
    assert prefill(shape, Layout(1, 4), H100, 8192).work == pytest.approx(
        prefill(shape, Layout(), H100, 8192).work
    )


def test_a_message_pays_start_latency_and_bytes() -> None:
    part = Traffic("tp", "all_reduce", calls=10, sent_bytes=450e6, hops=14, span=8)
    assert message_seconds(part, H100) == pytest.approx(10 * (6.6e-6 + 14 * 0.6e-6) + 1e-3)

"""Readings of metrics: differences, means, quantiles."""

from __future__ import annotations

import math

import pytest

from utils.serving.metrics import ServerMetrics
from utils.serving.scrape import parse

TTFT = "vllm:time_to_first_token_seconds"


def test_values_are_summed_over_labels_and_selected_by_them() -> None:
    metrics = ServerMetrics("m")
    metrics.count("vllm:request_success", finished_reason="stop")
    metrics.count("vllm:request_success", 2, finished_reason="length")
    reading = parse(metrics.text())
    assert reading.value("vllm:request_success_total") == 3
    assert reading.value("vllm:request_success_total", finished_reason="length") == 2
    assert reading.value("vllm:request_success_total", finished_reason="abort") == 0
    assert reading.value("vllm:num_requests_running") == 0


def test_what_happened_between_two_readings() -> None:
    metrics = ServerMetrics("m")
    metrics.observe(TTFT, 5.0)
    before = parse(metrics.text())
    for seconds in (0.3, 0.3, 0.45):
        metrics.observe(TTFT, seconds)
    metrics.observe(TTFT, None)  # no value
    gained = parse(metrics.text()).since(before)
    assert gained.value(f"{TTFT}_count") == 3 and gained.time > 0
    assert gained.mean(TTFT) == pytest.approx(0.35)
    # All three are in the bucket from 0.25 to 0.5, so they count as evenly spread over it.
    assert gained.quantile(TTFT, 0.5) == pytest.approx(0.375)
    assert gained.quantile(TTFT, 1.0) == pytest.approx(0.5)


def test_quantiles_across_buckets_and_beyond_the_last() -> None:
    metrics = ServerMetrics("m")
    empty = parse(metrics.text())
    assert math.isnan(empty.quantile(TTFT, 0.5)) and math.isnan(empty.mean(TTFT))
    for seconds in (0.07, 0.3, 0.3, 1000.0):
        metrics.observe(TTFT, seconds)
    reading = parse(metrics.text())
    assert reading.quantile(TTFT, 0.25) == pytest.approx(0.08)
    assert reading.quantile(TTFT, 0.5) == pytest.approx(0.375)
    assert reading.quantile(TTFT, 0.99) == 160  # the last bound


def test_readings_understand_other_servers() -> None:
    text = (
        '# HELP python_info Python.\n# TYPE python_info gauge\npython_info{version="3.11"} 1\n'
        "# TYPE vllm:prompt_tokens counter\n"
        'vllm:prompt_tokens_total{engine="0",model_name="a"} 7\n'
        'vllm:prompt_tokens_total{engine="1",model_name="a"} 5\n'
    )
    assert parse(text).value("vllm:prompt_tokens_total") == 12
    assert parse(text).value("vllm:prompt_tokens_total", engine="1") == 5


def test_cpu_seconds_of_http_are_a_counter() -> None:
    metrics = ServerMetrics("m")
    metrics.observe_http_cpu(0.5)
    before = parse(metrics.text())
    metrics.observe_http_cpu(0.75)
    after = parse(metrics.text())
    assert after.value("course:http_cpu_seconds_total") == 0.75
    assert after.since(before).value("course:http_cpu_seconds_total") == 0.25

"""Four servers under one load: equal work is checked, ratios are taken within a round."""

from __future__ import annotations

import json

import pytest

from utils.serving.load_generator import chat_body
from utils.serving.load_report import LoadReport, Timing
from utils.serving.others.comparison import UnequalLoad, check_same_work, measures, summary
from utils.serving.others.contenders import for_transformers


def report(*prompts: int, tokens: int = 3, cached: int | None = 0) -> LoadReport:
    timings = [
        Timing(0.0, 0.0, [1.0, 2.0, 3.0], tokens, num_prompt_tokens=n, num_cached_tokens=cached)
        for n in prompts
    ]
    return LoadReport(timings, 6.0)


def test_measures_of_a_report() -> None:
    found = measures(report(10, 30, cached=5))
    assert found == {"tokens_per_second": 1.0, "ttft": 1.0, "tpot": 1.0, "cached": 0.25}


def test_a_server_that_does_not_tell_its_hits_has_not_found_none() -> None:
    assert measures(report(10, 30))["cached"] == 0.0
    assert "cached" not in measures(report(10, 30, cached=None))
    one_of_two = report(10, 30, cached=5)
    one_of_two.timings[0].num_cached_tokens = None
    assert "cached" not in measures(one_of_two)
    told = {"tokens_per_second": 2.0, "cached": 0.5}
    rounds = [{"ours": told, "vLLM": told}, {"ours": told, "vLLM": {"tokens_per_second": 1.0}}]
    found = summary(rounds, "ours")
    assert found["ours"]["cached"] == 0.5 and "cached" not in found["vLLM"]


def test_equal_work_in_another_order_is_equal() -> None:
    check_same_work({"ours": report(10, 30), "vLLM": report(30, 10)}, 3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (report(10, 31), "vLLM and ours did not read the same"),
        (report(10, 30, tokens=2), r"vLLM wrote \[2\] tokens"),
        (LoadReport([Timing(0, 0, error="status 400: no such field")], 1.0), "no such field"),
    ],
)
def test_unequal_work_is_refused(other: LoadReport, message: str) -> None:
    with pytest.raises(UnequalLoad, match=message):
        check_same_work({"ours": report(10, 30), "vLLM": other}, 3)


def test_ratios_are_taken_within_rounds() -> None:
    """The machine is ten times slower in the second round, and ours twice as fast in each."""
    rounds = [
        {name: {"tokens_per_second": speed, "ttft": 1 / speed} for name, speed in pair.items()}
        for pair in (
            {"ours": 20.0, "vLLM": 10.0},
            {"ours": 2.0, "vLLM": 1.0},
            {"ours": 60.0, "vLLM": 20.0},
        )
    ]
    found = summary(rounds, "vLLM")
    assert found["ours"]["times_base"] == 2.0 and found["vLLM"]["times_base"] == 1.0
    assert found["ours"]["tokens_per_second"] == 20.0 and found["ours"]["rounds"] == [20, 2, 60]
    assert found["vLLM"]["ttft"] == 0.1


def test_a_request_for_transformers_goes_on_to_its_length() -> None:
    body = chat_body("m", [{"role": "user", "content": "Hi"}], 5)
    translated = for_transformers(body)
    assert not {"ignore_eos", "stream_options"} & set(translated)
    assert json.loads(translated.pop("generation_config"))["eos_token_id"] == -1
    assert translated.items() <= body.items() and translated["max_tokens"] == 5
    assert "generation_config" not in for_transformers(body | {"ignore_eos": False})

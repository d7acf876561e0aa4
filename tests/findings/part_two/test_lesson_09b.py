"""What notebook 09b says about its measurements, on measurements made up."""

from __future__ import annotations

from utils.findings.part_two.lesson_09b import (
    best_scale,
    calibration,
    few_and_many_bits,
    gptq_or_awq,
    kept_channels,
    nf4_for_its_bits,
    real_layers,
    winners,
)


def test_kept_channels() -> None:
    said = kept_channels(0.0064, 0.0064, 0.0063, 0.0017)
    assert "at random: 100%; by their weights: 98%; by their inputs: 27%." in said
    assert said.endswith("The inputs decide.")
    assert "otherwise" in kept_channels(0.01, 0.0098, 0.0097, 0.0096)  # no loud channel
    assert "otherwise" in kept_channels(0.01, 0.004, 0.009, 0.005)  # chance was better


def test_best_scale() -> None:
    said = best_scale({1: 0.0064, 1.5: 0.004, 3: 0.0026, 8: 0.0044})
    assert said == "The error is least at s = 3: 41% of what it is without a scale."
    said = best_scale({1: 0.0064, 1.5: 0.004, 8: 0.0026})
    assert "least at s = 8: 41%" in said
    assert said.endswith("That is the largest that was tried: try larger ones.")
    assert "no scale helps" in best_scale({1: 0.0064, 1.5: 0.0065, 8: 0.01})


def test_real_layers() -> None:
    layers = {
        "o_proj": {"RTN": 0.007, "NF4": 0.006, "GPTQ": 0.0014, "AWQ": 0.004},
        "down_proj": {"RTN": 0.01, "NF4": 0.009, "GPTQ": 0.008, "AWQ": 0.007},
    }
    said = real_layers(layers)
    assert "20% to 70% of RTN's error" in said
    assert said.endswith("least in down_proj: 80% of RTN's error is left.")
    layers["o_proj"] |= {"GPTQ": 0.008, "AWQ": 0.0071}
    said = real_layers(layers)
    assert "otherwise: in o_proj" in said and "least in o_proj: 114%" in said


def test_few_and_many_bits() -> None:
    assert few_and_many_bits(39.41, 39.45, 96.7) == (
        "8 bits change the perplexity by +0.1%, which nobody would notice. "
        "3 bits without calibration change it by +145%, far too much."
    )
    said = few_and_many_bits(10, 10.5, 11)
    assert "+5.0%: more than expected" in said and "+10%. This model bears it" in said
    assert "-0.1%, which nobody" in few_and_many_bits(10, 9.99, 20)


def test_winners() -> None:
    rtn = {32: 47.9, 192: 50.8}

    def said(gptq: float, awq: float) -> str:
        title = winners(32, 192, rtn, {"GPTQ": {192: gptq}, "AWQ": {192: awq}})
        return title.removeprefix("With groups of 192, ")

    assert said(49.4, 46.7) == "AWQ beats RTN with groups of 32; GPTQ is behind"
    assert said(48.4, 46.7) == "AWQ beats RTN with groups of 32; GPTQ is level with it"
    assert said(46.9, 46.7) == "GPTQ and AWQ beat RTN with groups of 32"
    assert said(49.4, 48.0) == "AWQ is level with RTN with groups of 32; GPTQ is behind"
    assert said(47.89, 47.91) == "GPTQ and AWQ are level with RTN with groups of 32"
    assert said(49.0, 49.1) == "none beats RTN with groups of 32"


def test_gptq_or_awq() -> None:
    said = gptq_or_awq({32: 42.4, 192: 48.4}, {32: 43.2, 192: 46.8})
    assert said == (
        "GPTQ against AWQ: with groups of 32 they are alike within 2%; "
        "with groups of 192 AWQ is ahead by 3%."
    )
    assert "GPTQ is ahead by 10%" in gptq_or_awq({64: 40.0}, {64: 44.0})


def test_nf4_for_its_bits() -> None:
    rtn = [(4.104, 50.8), (4.312, 49.3), (4.625, 47.9)]
    said = nf4_for_its_bits((4.127, 48.4), rtn)
    assert "RTN of 50.8 with 4.104" in said and "more of its bits" in said
    assert "alike" in nf4_for_its_bits((4.127, 50.5), rtn)
    assert "does not pay" in nf4_for_its_bits((4.127, 55), rtn)


def test_calibration() -> None:
    tokens = [128, 512, 2048, 4096]
    said = calibration(
        tokens, [0.0104, 0.01, 0.0076, 0.0068], [0.0077, 0.0073, 0.0072, 0.0072], 0.0093
    )
    assert said.startswith("With 512 tokens GPTQ is still worse than plain rounding.")
    assert "passes AWQ at 4096" in said and "falls 1.53 times, AWQ's 1.07 times" in said
    said = calibration(tokens, [0.005] * 4, [0.004] * 4, 0.0093)
    assert "beats plain rounding with 128 tokens already. It does not reach AWQ by 4096." in said

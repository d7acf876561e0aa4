"""Notebook 08 says the right thing of fast, slow and noisy machines."""

from __future__ import annotations

from utils.findings.part_one import lesson_08 as finding


def test_queueing() -> None:
    words = finding.queued([0, 0, 4.0], [0.2, 0.2, 5.0], [0.100, 0.110, 0.105])
    assert "Of the 5.0 s to its first token, request 2 waited 80%." in words
    assert "same pace" in words
    words = finding.queued([0, 0, 4.0], [0.2, 0.2, 5.0], [0.100, 0.110, 0.200])
    assert "2.0 times the fastest" in words and "same pace" not in words


def test_agreement() -> None:
    words = finding.agreement({"float32": [12, 12, 12], "bfloat16": [5, 3, 5]}, total=12)
    assert words.splitlines() == [
        "float32: every two engines agree in all 12 answers.",
        "bfloat16: two engines agree in 3 to 5 of 12 answers.",
    ]
    assert "agree in 11 of 12" in finding.agreement({"float32": [11]}, total=12)


def test_rounding() -> None:
    words = finding.rounding(share32=0.9, moved32=5e-7, share16=6e-5, moved16=1e-3)
    assert "fewer numbers differ" in words and "2,000 times as large" in words
    assert "more numbers differ" in finding.rounding(0.1, 5e-7, 0.2, 1e-3)
    assert "In bfloat16 nothing shows" in finding.rounding(0.9, 5e-7, 0.0, 0.0)
    assert "In float32 nothing shows" in finding.rounding(0.0, 0.0, 0.1, 1e-3)


def test_flips() -> None:
    assert finding.flips([2, 2]) == "Of 2 changed choices, 2 went to the second best."
    words = finding.flips([2, 3, 2, 4])
    assert words.startswith("Of 4 changed choices, 2 went") and "rank 3, 4" in words
    assert finding.flips([]) == "Rounding changed no choice here."


def test_attention() -> None:
    words = finding.attention(by_bytes_s=0.4e-3, measured_s=9e-3, num_layers=30)
    assert "would take 0.4 ms. It takes 9.0 ms, 300 µs in each of 30 layers" in words
    assert "Not the reading" in words
    assert "what its bytes say" in finding.attention(0.4e-3, 0.5e-3, num_layers=30)


def test_matrix_products() -> None:
    part = {"linear layers": 0.06, "lm_head": 0.02, "attention": 0.02}
    words = finding.matrix_products({1: part, 8: part})
    assert words == "Most of a step is the matrix products: 80% with 1, 80% with 8 at a time"
    slow = {"linear layers": 0.02, "lm_head": 0.02, "attention": 0.06}
    assert "less than half of some steps" in finding.matrix_products({1: part, 8: slow})


def test_a_compiled_call() -> None:
    assert "2.0 times as fast" in finding.compiled_call(40e-6, 20e-6)
    words = finding.compiled_call(20e-6, 40e-6)
    assert "takes 2.0 times as long" in words and "cost more than it saves" in words
    for compiled_s in (19e-6, 21e-6):
        words = finding.compiled_call(20e-6, compiled_s)
        assert "takes about as long" in words and "cost what it saves" in words


def test_conclusions() -> None:
    tokens = {"HF": [[1, 2], [3]], "ours": [[1, 2], [3]], "vLLM": [[1, 5], [4]]}
    said = {"HF": ["no", "no"], "ours": ["no", "no"], "vLLM": ["no", "yes"]}
    same = {"HF": [[1]], "ours": [[1]]}
    words = finding.conclusions(
        {"float32": same, "bfloat16": tokens},
        {"float32": {"HF": ["no"], "ours": ["no"]}, "bfloat16": said},
    )
    assert words.splitlines() == [
        "float32: of 1 pairs of answers 0 differ in their words, 0 in what they conclude.",
        "bfloat16: of 6 pairs of answers 4 differ in their words, 2 in what they conclude.",
        "Words part more often than conclusions. But conclusions do part.",
    ]
    firm = {name: ["no", "no"] for name in tokens}
    assert "the conclusion stays" in finding.conclusions({"bfloat16": tokens}, {"bfloat16": firm})
    other = {"HF": ["no", "no"], "ours": ["no", "no"], "vLLM": ["yes", "yes"]}
    assert "parts, too" in finding.conclusions({"bfloat16": tokens}, {"bfloat16": other})
    # In one answer nothing can be read, in the other "no": that is no other conclusion.
    unread = {"HF": ["no", None], "ours": ["no", None], "vLLM": ["no", "no"]}
    words = finding.conclusions({"bfloat16": tokens}, {"bfloat16": unread})
    assert words.splitlines() == [
        "bfloat16: of 6 pairs of answers 4 differ in their words, 0 in what they conclude. "
        "In 2 a conclusion is missing, so there is nothing to compare.",
        "Where the words part, the conclusion stays, as far as it can be read.",
    ]
    silent = {name: [None, None] for name in tokens}
    words = finding.conclusions({"bfloat16": tokens}, {"bfloat16": silent})
    assert "0 in what they conclude. In 4 a conclusion is missing" in words
    nothing = {"float32": {name: ["no"] for name in same}}
    assert "No two engines differ" in finding.conclusions({"float32": same}, nothing)


def test_right_conclusions() -> None:
    right = ["yes", "no", "12"]
    words = finding.right_conclusions([["no", "no", "12"], ["no", "no", "7"]], right)
    assert words.splitlines() == [
        "Each run is right in 1 to 2 of 3 puzzles.",
        "To questions of yes and no the runs say yes 0 times, no 4 times, and neither 0 times.",
        'That is a habit, not a conclusion: whoever always says "no" is right in 1 of 2.',
    ]
    words = finding.right_conclusions([["yes", "no", "12"], ["yes", None, "12"]], right)
    assert "right in 2 to 3 of 3" in words and "neither 1 times" in words and "habit" not in words
    assert 'always says "yes" is' in finding.right_conclusions([["yes", "yes", None]], right)

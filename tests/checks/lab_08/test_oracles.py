"""What lab 08 calls right is what the engine, vLLM and brute force do; its inputs reach corners."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tokenizers import decoders

from utils.checks import lab_08
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_08 import answers, growing_text, picture
from utils.checks.lab_08.steps import Books, draw_batch, running_request, state
from utils.engine.outputs import RequestMetrics
from utils.engine.sampling_params import SamplingParams


def refusal(cls, case, errors):
    try:
        cls(**vars(case))
    except errors as error:
        return str(error) or "refused"
    return None


def test_the_rules_for_parameters_are_the_engines():
    for case in sample(lab_08.draw_params, 500):
        rules = [rule.name for rule in lab_08.broken(case)]
        if not isinstance(case.stop, str | list | None):
            continue  # the engine makes a list of some of these
        refused = refusal(SamplingParams, case, (ValueError, TypeError))
        assert (refused is None) == (not rules), case


def test_every_rule_is_drawn():
    rules = [rule for case in sample(lab_08.draw_params, 400) for rule in lab_08.broken(case)]
    assert {*map(str, rules)} == {*map(str, lab_08.RULES + lab_08.PAIRS)}


def test_steps_have_chunks_answers_long_ones_and_large_ids():
    steps = sample(draw_batch, 150)
    parts = [part for step in steps for part in step.parts]
    done = [p.num_computed + p.num_scheduled == len(p.token_ids) for p in parts]
    assert 0.3 < sum(done) / len(done) < 0.9
    assert (
        max(len(p.token_ids) for p in parts) > 4096 and max(p.token_ids[-1] for p in parts) > 2**16
    )
    assert {len(step.parts) for step in steps} == set(range(1, 7))
    assert {step.kind for step in steps} == {list, tuple}


def test_the_state_after_a_step_is_the_engines():
    ends = set()
    for story in sample(Books.draw, 300):
        for token_id in {token for _, (_, token) in story.steps if token is not None}:
            mine, engines = story.setting.request(), story.setting.request()
            early = len(engines.output_token_ids) < engines.sampling_params.min_tokens
            if early and token_id in engines.stopping_token_ids:
                continue  # the engine's sampler doesn't let such tokens come
            answers.update_request(mine, 0, token_id)
            engines.append_token(token_id)
            assert state(mine) == state(engines)
            ends.add(engines.status.name)
    assert ends == {"RUNNING", "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"}


def test_a_request_is_as_in_the_middle_of_its_work():
    request = running_request("A", [1, 2], [3], 2, max_tokens=5)
    assert (request.num_tokens, request.all_token_ids) == (3, [1, 2, 3])


def test_the_first_stop_string_is_vllms():
    check_stop_strings = pytest.importorskip("vllm.v1.engine.detokenizer").check_stop_strings
    found = 0
    for given in sample(lab_08.draw_text, 500):
        text, num_gained, stop = given.args
        theirs = check_stop_strings(text, num_gained, stop, False)
        mine = lab_08.found_first(text, num_gained, stop)
        assert mine == (theirs and (theirs[1] if theirs[1] >= 0 else len(text), theirs[0]))
        found += mine is not None
    assert 100 < found < 400


def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string():
    dice = random.Random(0)
    for _ in range(200):
        text = "".join(dice.choice("ab") for _ in range(6))
        stop = ["".join(dice.choice("ab") for _ in range(dice.randint(1, 4))) for _ in range(2)]
        safe = len(text) - lab_08.held_back(text, stop)
        # Whatever follows, no new stop string begins before `safe`; and one may begin there.
        futures = ["".join(more) for n in range(4) for more in itertools.product("ab", repeat=n)]
        begins = [
            begin
            for future in futures
            for s in stop
            for begin in range(len(text))
            if (text + future)[begin:].startswith(s) and begin + len(s) > len(text)
        ]
        assert min(begins, default=len(text)) == safe


def test_texts_have_halves_of_characters_and_tokens_without_text():
    texts = [text for story in sample(growing_text.draw, 200) for text in story.texts]
    short = [text for text in texts if len(text.answer) < 400]
    ends = [t.endswith("\ufffd") for text in short for t in text.true_texts()]
    assert sum(ends) > 200
    assert any(text.tokens is None for text in texts)
    assert any(b"" in text.tokens.values() for text in texts if text.tokens)
    assert any(len(text.prompt) > 1000 for text in texts)
    rows = [text for text in short if text.rows]
    assert sum(text.decode(text.prompt[-6:]).startswith("\ufffd") for text in rows) > 5
    for text in rows:
        assert (
            text.true_texts()[-1]
            == text.decode([*text.prompt, *text.answer])[len(text.decode(text.prompt)) :]
        )


def test_a_row_of_bytes_is_decoded_as_by_the_library():
    """Against `tokenizers`' own decoder for bytes."""
    backend = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    rows = [text for story in sample(growing_text.draw, 200) for text in story.texts if text.rows]
    for text in rows:
        ids = [*text.prompt, *text.answer]
        for begin in range(0, len(ids), 3):
            parts = [text.tokens[token_id] for token_id in ids[begin:]]
            named = [f"<0x{p[0]:02X}>" if len(p) == 1 and p[0] > 127 else p.decode() for p in parts]
            right = backend.decode(list(filter(None, named)))
            assert text.decode(ids[begin:]) == right.removeprefix(" " * text.drops_first_space)
    assert len(rows) > 30


def test_the_latencies_are_the_engines():
    for given in sample(lab_08.draw_times, 200):
        metrics = RequestMetrics(*given.args)
        right = lab_08.along_the_clock(*given.args)
        assert right.queue_time == metrics.queue_time
        assert right.ttft == pytest.approx(metrics.ttft)
        assert right.tpot == pytest.approx(metrics.tpot)
        assert right.itl == pytest.approx(metrics.inter_token_latencies)
        assert right.e2e_latency == pytest.approx(metrics.e2e_latency)


def test_limits_are_kept_exactly_now_and_then():
    runs = [given.args for given in sample(lab_08.draw_run, 200)]
    assert sum(any(r.ttft == ttft for r in rs) for rs, _, ttft, _ in runs) > 50
    assert sum(any(r.tpot == tpot for r in rs) for rs, *_, tpot in runs) > 50
    assert any(len(rs) > 100 for rs, *_ in runs) and any(len(rs) == 1 for rs, *_ in runs)


def test_a_difference_in_rounding_is_always_explained():
    """Any two engines whose logits are within the noise of each other."""
    generator = torch.Generator().manual_seed(0)
    parted = 0
    for _ in range(300):
        logits = torch.randn(4, 6, generator=generator)
        other = logits + 0.2 * (2 * torch.rand(4, 6, generator=generator) - 1)
        answers = logits.argmax(-1).tolist(), other.argmax(-1).tolist()
        found = lab_08.walked(*answers, logits, 0.2)
        assert found is None or found.explained
        parted += found is not None
    assert parted > 20


def test_pairs_part_in_every_way():
    found = [lab_08.walked(*g.args) for g in sample(lab_08.draw_pair, 400)]
    kinds = {f and (f.index > 0, f.gap is None, f.explained) for f in found}
    assert len(kinds) == 7  # equal; at the beginning and later: an end, explained, not explained
    edge = [
        g
        for g, f in zip(sample(lab_08.draw_pair, 400), found, strict=True)
        if f and f.gap and f.gap == 2 * g.args[3]
    ]
    assert len(edge) > 5


def texts_of(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_pictures_show_what_is_wrong():
    figure = picture.flat_batch(
        ["A", "A", "B"], ([1, 2, 3], [0, 1, 0], [1, 2]), ([1, 2, 3], [0, 1, 2], [1])
    )
    yes_no = [*"123", *"010", "", "yes", "yes", *"123", *"012", "", "yes", "no"]
    assert texts_of(figure) == yes_no
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "not as expected" in words and "request B" in words
    assert "TPOT = this / 2" in texts_of(picture.timeline(0.0, 1.0, [2.0, 3.0, 5.0], ""))

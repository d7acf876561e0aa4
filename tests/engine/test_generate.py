"""`LLM`: the same tokens as Hugging Face, however requests are batched; stops; errors; plug-ins."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tests.near_ties import assert_same_but_for_ties, narrowest_choice, same_beams
from tests.scale import sized
from utils.checks.kit.near_ties import NEAR_TIE
from utils.engine import (
    LLM,
    BeamSearchParams,
    ContiguousKVCache,
    LlamaOps,
    RequestOutput,
    SamplingParams,
)
from utils.engine.models import llama as llama_module
from utils.engine.run_requests import run_to_end

MAX_TOKENS = 16
SHORT = SamplingParams(temperature=0, max_tokens=5)
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)


def run(llm: LLM, prompts, params=GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


# The same tokens


@pytest.fixture(scope="module")
def answers(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return run(llm, prompts)


def test_greedy_tokens_equal_huggingface(
    answers: list[RequestOutput], prompts: list[list[int]], hf_greedy: Callable, hf_model
) -> None:
    right = hf_greedy(prompts, MAX_TOKENS)
    assert_same_but_for_ties(hf_model, prompts, tokens(answers), right)
    reasons = {answer.outputs[0].finish_reason for answer in answers}
    assert reasons == {"length", "stop"}  # both ways to end occur


def test_batching_and_chunking_change_nothing(
    answers: list[RequestOutput], prompts: list[list[int]], small_steps_llm: LLM, hf_model
) -> None:
    """5 requests at a time, prompts computed in chunks of up to 48 tokens."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    some = [*range(0, len(prompts), len(prompts) // 16), longest]
    asked = [prompts[i] for i in some]
    outputs = run(small_steps_llm, asked)
    assert len(outputs) > 3 * small_steps_llm.config.max_num_seqs
    assert max(len(output.prompt_token_ids) for output in outputs) > 1000
    usual = tokens([answers[i] for i in some])
    assert_same_but_for_ties(hf_model, asked, tokens(outputs), usual)


def test_alone_or_together(
    llm: LLM, answers: list[RequestOutput], prompts: list[list[int]], hf_model
) -> None:
    some = range(3, len(prompts), 17)
    alone = [tokens(run(llm, prompts[i]))[0] for i in some]
    together = tokens([answers[i] for i in some])
    assert_same_but_for_ties(hf_model, [prompts[i] for i in some], alone, together)


def test_bfloat16(model_path: Path, prompts: list[list[int]]) -> None:
    """It answers sensibly, and the same with and without a batch of its own kind."""
    llm = LLM(model_path, dtype="auto")
    assert llm.model.lm_head.weight.dtype == torch.bfloat16
    question = [{"role": "user", "content": "What is the capital of France?"}]
    few = SamplingParams(temperature=0, max_tokens=8)  # many CPUs multiply bfloat16 slowly
    output = llm.chat(question, few, use_tqdm=False)[0]
    assert "Paris" in output.outputs[0].text
    assert all(len(ids) > 0 for ids in tokens(run(llm, prompts[:8], SHORT)))


# What comes out


def test_outputs(
    answers: list[RequestOutput], prompts: list[list[int]], tokenizer: PreTrainedTokenizerBase
) -> None:
    assert [answer.prompt_token_ids for answer in answers] == prompts
    assert len({answer.request_id for answer in answers}) == len(prompts)
    for answer in answers:
        completion = answer.outputs[0]
        assert answer.finished and completion.finished()
        assert (completion.index, completion.stop_reason) == (0, None)
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == MAX_TOKENS
        else:
            assert completion.token_ids[-1] == tokenizer.eos_token_id
        decoded = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        assert completion.text == decoded.rstrip("\ufffd")
        assert answer.metrics.ttft > 0


def test_texts_ids_and_chats_agree(llm: LLM, tokenizer: PreTrainedTokenizerBase, hf_model) -> None:
    text = "The capital of France is"
    by_text, by_ids = run(llm, text, SHORT)[0], run(llm, tokenizer(text).input_ids, SHORT)[0]
    assert by_text.outputs == by_ids.outputs
    assert (by_text.prompt, by_ids.prompt) == (text, None)

    chat = [{"role": "user", "content": "Hello!"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(rendered, add_special_tokens=False).input_ids
    one, two = llm.chat([chat, chat], SHORT, use_tqdm=False)
    assert (one.prompt, one.prompt_token_ids) == (rendered, ids)
    [by_ids], [alone] = run(llm, ids, SHORT), llm.chat(chat, SHORT, use_tqdm=False)
    # Two at a time, and what was found in the cache, are other sums than one from the beginning.
    got, usual = tokens([one, two, alone]), tokens([by_ids])[0]
    assert_same_but_for_ties(hf_model, [ids] * 3, got, [usual] * 3, at_most=2)
    for output in (one, two, by_ids, alone):
        completion = output.outputs[0]
        assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert run(llm, []) == []


def test_metrics(llm: LLM) -> None:
    metrics = run(llm, "The")[0].metrics
    assert metrics.num_generation_tokens == MAX_TOKENS
    assert metrics.arrival_time < metrics.first_token_ts < metrics.last_token_ts
    assert metrics.ttft == metrics.first_token_ts - metrics.arrival_time
    elapsed = metrics.last_token_ts - metrics.first_token_ts
    assert metrics.tpot == pytest.approx(elapsed / (MAX_TOKENS - 1))
    assert run(llm, "The", SamplingParams(max_tokens=1))[0].metrics.tpot is None


def test_logprobs_equal_huggingface(llm: LLM, hf_model, tokenizer) -> None:
    ids = tokenizer("The capital of France is").input_ids
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=6, logprobs=3, ignore_eos=True)
    completion = run(llm, ids, params)[0].outputs[0]
    with torch.inference_mode():
        logits = hf_model(torch.tensor([ids + completion.token_ids])).logits[0]
    expected = logits[len(ids) - 1 : -1].log_softmax(-1)
    for row, token, entry in zip(expected, completion.token_ids, completion.logprobs, strict=True):
        # Every token that is clearly among the three best, and none that clearly is not.
        third = float(row.topk(3).values[-1])
        sure, likely = (
            set((row > limit).nonzero()[:, 0].tolist())
            for limit in (third + NEAR_TIE, third - NEAR_TIE)
        )
        assert sure | {token} <= set(entry) <= likely | {token}
        assert len(entry) == 3 + (token not in likely) or token in likely - sure
        assert all(abs(float(row[t]) - lp.logprob) < 1e-4 for t, lp in entry.items())
    total = sum(float(row[t]) for row, t in zip(expected, completion.token_ids, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture) -> None:
    llm.generate(["a", "b"], SamplingParams(temperature=0, max_tokens=2))
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown and "2/2" in shown and "tokens/s" in shown
    run(llm, "a")
    assert capsys.readouterr().err == ""


# Seeds


def test_same_seed_same_tokens_in_any_company(llm: LLM, prompts: list[list[int]]) -> None:
    params = [SamplingParams(seed=i, max_tokens=8, ignore_eos=True) for i in range(4)]
    together = tokens(run(llm, prompts[:4], params))
    alone = [tokens(run(llm, prompts[i], params[i]))[0] for i in range(4)]
    mixed = tokens(run(llm, prompts[20:23] + prompts[:4][::-1], [SHORT] * 3 + params[::-1]))
    assert together == alone == mixed[3:][::-1]


def test_seeds_and_no_seed_differ(llm: LLM) -> None:
    params = [SamplingParams(seed=seed, max_tokens=8) for seed in (1, 2, None, None)]
    assert len({tuple(ids) for ids in tokens(run(llm, ["The"] * 4, params))}) == 4


def test_engine_seed_repeats_a_whole_run(model_path: Path) -> None:
    params = SamplingParams(max_tokens=3)
    runs = [tokens(run(LLM(model_path, seed=s), ["The", "A"], params)) for s in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


# When to stop


@pytest.fixture(scope="module")
def counting(llm: LLM) -> str:
    """A prompt that the model continues in a known way."""
    prompt = "one, two, three, four, five,"
    text = run(llm, prompt)[0].outputs[0].text
    assert text.startswith(" six, seven, eight, nine")
    return prompt


@pytest.mark.parametrize(
    "stop, text, reason",
    [
        ("seven", " six, ", "seven"),
        (", ei", " six, seven", ", ei"),  # spans tokens
        (["nine", "seven"], " six, ", "seven"),
        (["six, seven", "x"], " si", "x"),  # the first to end wins
        ("never", None, None),
    ],
)
def test_stop_strings(llm: LLM, counting: str, stop, text: str | None, reason) -> None:
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=stop)
    completion = run(llm, counting, params)[0].outputs[0]
    if text is None:
        assert completion == run(llm, counting)[0].outputs[0]
    else:
        assert (completion.text, completion.finish_reason) == (text, "stop")
        assert completion.stop_reason == reason


def test_stop_string_in_the_prompt_does_not_count(llm: LLM, counting: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, stop="three")
    assert run(llm, counting, params)[0].outputs[0].finish_reason == "length"


def test_stop_token(llm: LLM, counting: str, tokenizer: PreTrainedTokenizerBase) -> None:
    seven = tokenizer(" seven").input_ids[0]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop_token_ids=[seven])
    completion = run(llm, counting, params)[0].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", seven)
    assert completion.token_ids[-1] == seven


def test_min_tokens(
    llm: LLM, counting: str, prompts: list[list[int]], answers: list[RequestOutput], hf_model
) -> None:
    """Stop strings wait; stop tokens and end-of-sequence are not even chosen."""
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=",", min_tokens=4)
    completion = run(llm, counting, params)[0].outputs[0]
    assert completion.text.count(",") == 2 and len(completion.token_ids) > 4

    i = index_of_one_that_stops(answers)
    usual = answers[i].outputs[0].token_ids
    least = len(usual) + 3
    params = SamplingParams(temperature=0, max_tokens=least + 4, min_tokens=least)
    longer = run(llm, prompts[i], params)[0].outputs[0].token_ids
    assert len(longer) >= least
    before_it_ends = [longer[: len(usual) - 1]], [usual[:-1]]
    assert_same_but_for_ties(hf_model, [prompts[i]], *before_it_ends)
    assert usual[-1] not in longer[: least - 1]


def index_of_one_that_stops(answers: list[RequestOutput]) -> int:
    return next(i for i, answer in enumerate(answers) if answer.outputs[0].finish_reason == "stop")


def test_ignore_eos(
    llm: LLM, prompts: list[list[int]], answers: list[RequestOutput], hf_model
) -> None:
    i = index_of_one_that_stops(answers)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    completion = run(llm, prompts[i], params)[0].outputs[0]
    assert completion.finish_reason == "length"
    usual = answers[i].outputs[0].token_ids
    assert len(completion.token_ids) == MAX_TOKENS
    beginning = completion.token_ids[: len(usual)]
    assert_same_but_for_ties(hf_model, [prompts[i]], [beginning], [usual])


@pytest.mark.parametrize("max_tokens", [None, 10_000])
def test_stops_at_max_model_len(model_path: Path, max_tokens: int | None) -> None:
    llm = LLM(model_path, max_model_len=12)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    output = run(llm, [5] * 7, params)[0]
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (5, "length")
    assert tokens(run(llm, [[5] * 11], params))[0]  # the longest prompt that fits
    with pytest.raises(ValueError, match=r"has 12 tokens.*max_model_len is 12"):
        run(llm, [5] * 12, params)


# Streaming


@pytest.mark.parametrize(
    "prompt", ["one, two, three, four, five,", "I love 🍕 and 🍦. 🎉🎉🎉", "今日は天気が"]
)
@pytest.mark.parametrize("stop", [None, ["seven", "🎉🎉", "。"]])
def test_streaming_equals_generate(llm: LLM, prompt: str, stop) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, stop=stop)
    llm.reset_prefix_cache()  # so that both compute the whole prompt
    outputs = list(llm.stream(prompt, params))
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(
        range(1, len(outputs) + 1)
    )
    texts = [output.outputs[0].text for output in outputs]
    assert all(new.startswith(old) for old, new in pairwise(texts))
    assert not any("\ufffd" in text for text in texts)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    llm.reset_prefix_cache()
    assert outputs[-1].outputs == run(llm, prompt, params)[0].outputs


def test_streams_and_generate_do_not_disturb_each_other(llm: LLM, hf_model) -> None:
    one, two = llm.stream("The sun", GREEDY), llm.stream("The moon", GREEDY)
    mixed = [next(one), next(two), next(two), next(one)]
    expected = run(llm, ["The sun", "The moon"])
    # They share an engine, so while one is read, the other moves forward as well.
    got = [list(stream)[-1] for stream in (one, two)]
    ids = [output.prompt_token_ids for output in expected]
    assert_same_but_for_ties(hf_model, ids, tokens(got), tokens(expected))
    for output, answer in zip(mixed, (0, 1, 1, 0), strict=True):
        so_far = output.outputs[0]
        whole = got[answer].outputs[0]
        assert so_far.token_ids == whole.token_ids[: len(so_far.token_ids)]
        assert whole.text.startswith(so_far.text)


def test_stream_complains_at_once(llm: LLM) -> None:
    with pytest.raises(ValueError, match="empty"):
        llm.stream("")


# Bad input


@pytest.mark.parametrize(
    "prompts, params, message",
    [
        ("", None, "Prompt 0 is empty"),
        (["good", ""], None, "Prompt 1 is empty"),
        ([[1, 2], []], None, "Prompt 1 is empty"),
        ([[1, 49152]], None, "token id 49152 is not in the vocabulary"),
        ([[-1]], None, "token id -1"),
        ([[1, 2.5]], None, "must be a string or a list of token ids"),
        ([None], None, "must be a string or a list of token ids"),
        ([[1] * 8192], None, "Prompt 0 has 8192 tokens.*shorten the prompt"),
        (["a", "b"], [SamplingParams()], "2 prompts but 1 sampling_params"),
        ("a", {"temperature": 1}, "Expected SamplingParams|sampling_params"),
        ("a", SamplingParams(stop_token_ids=[99999]), "stop_token_ids: token id 99999"),
    ],
)
def test_bad_prompts_are_refused_before_any_work(llm: LLM, prompts, params, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, params, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("messages", [[{"content": "Hi"}], [{"role": "user"}], [[]], ["Hi"]])
def test_bad_messages(llm: LLM, messages) -> None:
    with pytest.raises(ValueError, match="message"):
        llm.chat(messages, GREEDY, use_tqdm=False)


# The learner's own parts


class ConcatenatingCache:
    """What a learner may write: no reserved memory, a new tensor for every token."""

    def __init__(self, config, max_num_tokens: int, dtype, device) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            old_key, old_value = self.layers[layer]
            key, value = torch.cat((old_key, key)), torch.cat((old_value, value))
        self.layers[layer] = key, value
        return key, value


def looping_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One head at a time."""
    group, offset = query.shape[1] // key.shape[1], key.shape[0] - query.shape[0]
    heads = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // group].T * scale
        hidden = torch.ones_like(scores).triu(offset + 1).bool()
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value[:, head // group])
    return torch.stack(heads, dim=1)


def test_own_cache_and_own_operations(
    model_path: Path, prompts: list[list[int]], answers: list[RequestOutput], hf_model
) -> None:
    calls: dict[str, int] = {}

    def counted(name: str, function: Callable) -> Callable:
        def call(*arguments):
            calls[name] = calls.get(name, 0) + 1
            return function(*arguments)

        return call

    ops = LlamaOps(
        rms_norm=counted("rms_norm", llama_module.rms_norm),
        apply_rotary=counted("apply_rotary", llama_module.apply_rotary),
        attention=counted("attention", looping_attention),
        silu_and_mul=counted("silu_and_mul", llama_module.silu_and_mul),
    )
    mine = LLM(model_path, ops=ops, kv_cache_class=ConcatenatingCache)
    got = tokens(run(mine, prompts[:3]))
    assert_same_but_for_ties(hf_model, prompts[:3], got, tokens(answers[:3]))
    assert calls.keys() == {"rms_norm", "apply_rotary", "attention", "silu_and_mul"}
    assert calls["rms_norm"] == calls["silu_and_mul"] // 30 * 61


def test_a_wrong_operation_gives_wrong_tokens(
    model_path: Path, prompts: list[list[int]], answers: list[RequestOutput]
) -> None:
    mine = LLM(model_path, ops=LlamaOps(apply_rotary=lambda x, cos, sin: x))
    assert tokens(run(mine, prompts[0])) != tokens(answers[:1])


def test_own_sampler(model_path: Path) -> None:
    def always_seven(logits: Tensor, sampling_params, generators) -> Tensor:
        assert logits.shape == (len(sampling_params), 49152) and len(generators) == len(logits)
        return torch.full((len(logits),), 7)

    llm = LLM(model_path, sampler=always_seven)
    assert tokens(run(llm, ["a", "b"])) == [[7] * MAX_TOKENS] * 2


def test_an_error_in_the_learners_class_leaves_the_llm_usable(
    llm: LLM, prompts: list[list[int]], answers: list[RequestOutput], hf_model
) -> None:
    class Broken(ContiguousKVCache):
        def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            if self.num_tokens > 0 and layer == 3:
                raise ZeroDivisionError("mine")
            return super().append(layer, key, value)

    usual, llm.llm_engine = llm.llm_engine, llm.new_engine(kv_cache_class=Broken)
    try:
        with pytest.raises(ZeroDivisionError, match="mine"):
            run(llm, prompts[:3])
        assert not llm.llm_engine.has_unfinished_requests()
    finally:
        llm.llm_engine = usual
    got = tokens(run(llm, prompts[:2]))
    assert_same_but_for_ties(hf_model, prompts[:2], got, tokens(answers[:2]))


def test_caches_are_reserved_to_the_request_and_freed_at_its_end(
    llm: LLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    caches: list[weakref.ref] = []
    sizes = []

    class Watched(ContiguousKVCache):
        def __init__(self, config, max_num_tokens: int, dtype, device) -> None:
            super().__init__(config, max_num_tokens, dtype, device)
            sizes.append(max_num_tokens)
            caches.append(weakref.ref(self))

    usual, llm.llm_engine = llm.llm_engine, llm.new_engine(kv_cache_class=Watched)
    try:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 8)]
        alive = []
        requests = llm.llm_engine.inputs.from_prompts([[1, 2, 3], [4]], params)
        for _ in run_to_end(llm.llm_engine, requests):
            gc.collect()
            alive.append([cache() is not None for cache in caches])
    finally:
        llm.llm_engine = usual
    assert sizes == [5, 9]
    assert alive == [[True, True], *[[False, True]] * 6, [False, False]]


def test_beams_that_end(llm: LLM, hf_model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions with short answers: beams end at different lengths, and length is penalized."""
    changes = {"block_size": 4, "num_gpu_blocks": 512, "max_model_len": 512}
    monkeypatch.setattr(llm, "llm_engine", llm.new_engine(changes=changes))
    endings, num_ties = set(), 0
    questions = ("Say yes.", "What is 2 + 2? One word.")[: sized(1, 2)]
    for question in questions:
        text = llm.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        prompt = llm.tokenizer.encode(text, add_special_tokens=False)
        for penalty in (0.0, 2.0):
            params = BeamSearchParams(3, max_tokens=12, length_penalty=penalty)
            got = llm.beam_search(prompt, params)[0].sequences
            endings |= {sequence.finish_reason for sequence in got}
            right = hf_model.generate(
                torch.tensor([prompt]),
                num_beams=3,
                num_return_sequences=3,
                max_new_tokens=12,
                do_sample=False,
                length_penalty=penalty,
            )
            if not same_beams(got, right):
                narrowest = narrowest_choice(hf_model, prompt, 3, max_tokens=12)
                assert narrowest < NEAR_TIE, (prompt, penalty, got, right)
                num_ties += 1
    assert num_ties <= 1
    assert endings == {"stop", "length"}

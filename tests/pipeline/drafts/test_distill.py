"""Distillation: the right targets and gradients, folders that others can load, made once."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from utils.engine import LLM, ModelConfig, SamplingParams, SpeculativeConfig
from utils.engine.models.weights import load_model
from utils.engine.spec_decode.medusa import MedusaHeads
from utils.hub import resolve_model
from utils.pipeline.drafts import (
    distill,
    draft_model,
    eagle_layer,
    initial_draft,
    medusa_heads,
    target_answers,
)
from utils.pipeline.drafts.chat_questions import chat_questions
from utils.pipeline.drafts.initial_draft import DraftSettings
from utils.pipeline.drafts.medusa_heads import MedusaSettings
from utils.pipeline.drafts.target_answers import Answer, SoftTargets
from utils.pipeline.drafts.training import minimize
from utils.pipeline.drafts.unrolled_attention import UnrolledBatch
from utils.pipeline.runner import Runner, Stage
from utils.pipeline.stage_process import StageFunction
from utils.pipeline.stages.cross_entropy import soft_cross_entropy
from utils.pipeline.stages.packed_batches import Tokens
from utils.profiles import PROFILES

DRAFT = DraftSettings(hidden_size=64, num_layers=1, steps=4, batch_size=2, learning_rate=1e-3)
MEDUSA = MedusaSettings(num_heads=3, steps=4, batch_size=8, learning_rate=1e-3)


@pytest.fixture(scope="module")
def llm(small_model_dir: Path) -> LLM:
    return LLM(small_model_dir, max_model_len=512, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def answers(llm: LLM) -> list[Answer]:
    messages = target_answers.conversations("train", 3, 1, seed=0)
    return target_answers.write_answers(llm, messages, 10, 0.7, seed=0, use_tqdm=False)


@pytest.fixture(scope="module")
def draft_dir(
    llm: LLM, small_model_dir: Path, answers: list[Answer], tmp_path_factory: Any
) -> Path:
    out: Path = tmp_path_factory.mktemp("draft")
    hard = [Tokens([5, 6, 7], [8, 9]), Tokens([5, 6], [10, 11])]
    draft_model.train_draft(llm.model, small_model_dir, answers, hard, out, DRAFT)
    return out


# --- questions and answers ----------------------------------------------------------------------


def test_questions_are_different_seeded_and_held_out() -> None:
    train = chat_questions("train", 300)
    assert len(set(train)) == 300
    assert train == chat_questions("train", 300) != chat_questions("train", 300, seed=1)
    assert not set(chat_questions("held_out", 100)) & set(chat_questions("train", 1600))


def test_questions_refuse_what_they_cannot_give() -> None:
    with pytest.raises(ValueError, match="split"):
        chat_questions("test", 1)
    with pytest.raises(ValueError, match="0 to"):
        chat_questions("train", 10**6)


@pytest.mark.parametrize("kernels", ["torch", "cpp"])
def test_hidden_states_are_those_that_the_answer_was_sampled_from(
    kernels: str, small_model_dir: Path
) -> None:
    options = {"enable_prefix_caching": False, "device": "cpu", "kernels": kernels}
    llm = LLM(small_model_dir, max_model_len=512, max_num_batched_tokens=64, **options)
    messages = target_answers.conversations("train", 3, 1, seed=0)
    answers = target_answers.write_answers(llm, messages, 10, 0.7, seed=0, use_tqdm=False)
    hf = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32)
    for answer in answers:
        ids = torch.tensor([answer.prompt + answer.answer[:-1]])
        with torch.inference_mode():
            states = hf.model(ids).last_hidden_state[0]
        ours = torch.cat([answer.prompt_hidden, answer.hidden])
        assert len(answer.prompt_hidden) == len(answer.prompt) - 1
        torch.testing.assert_close(ours, states, rtol=1e-3, atol=1e-3)


def test_hidden_states_that_were_never_computed_are_missed(small_model_dir: Path) -> None:
    llm = LLM(small_model_dir, max_model_len=512)
    messages = target_answers.conversations("train", 1, 0, seed=0) * 2
    llm.chat(messages[:1], SamplingParams(max_tokens=1), use_tqdm=False)  # now they are cached
    with pytest.raises(ValueError, match="enable_prefix_caching=False"):
        target_answers.write_answers(llm, messages, 4, 0.7, seed=0, use_tqdm=False)


def test_answers_survive_the_file(answers: list[Answer], tmp_path: Path) -> None:
    target_answers.save_answers(tmp_path, answers)
    loaded = target_answers.load_answers(tmp_path)
    for before, after in zip(answers, loaded, strict=True):
        assert (before.prompt, before.answer) == (after.prompt, after.answer)
        assert torch.equal(before.hidden, after.hidden)
        assert torch.equal(before.prompt_hidden, after.prompt_hidden)
    with pytest.raises(ValueError, match="distill_data"):
        target_answers.load_answers(tmp_path / "nothing")


# --- training ---------------------------------------------------------------------------------


def test_a_loss_that_explodes_is_reported() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match="learning rate"):
        minimize(lambda step: weight.sum() * torch.inf, [weight], 3, 1e-3, "test")


def test_soft_targets_are_the_targets_own_distribution() -> None:
    hidden, lm_head = torch.randn(5, 8), torch.randn(30, 8)
    targets = target_answers.soft_targets(hidden, lm_head, k=30)
    full = torch.zeros(5, 30).scatter(1, targets.token_ids, targets.probs)
    torch.testing.assert_close(full, (hidden @ lm_head.T).softmax(-1))


def test_a_part_of_the_vocabulary_keeps_the_tokens_apart() -> None:
    vocabulary = torch.tensor([2, 5, 9])
    targets = SoftTargets(torch.tensor([[9, 7, 2]]), torch.tensor([[0.5, 0.25, 0.25]]))
    part = draft_model.within(targets, vocabulary)
    kept = {
        vocabulary[i].item(): p.item()
        for i, p in zip(part.token_ids[0], part.probs[0], strict=True)
        if p > 0
    }
    assert kept == {9: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}


# --- the draft model ----------------------------------------------------------------------------


def test_with_all_directions_the_projection_loses_nothing() -> None:
    torch.manual_seed(0)
    hidden, lm_head = torch.randn(200, 16), torch.randn(50, 16)
    targets = target_answers.soft_targets(hidden, lm_head, k=20)
    to_draft, head = initial_draft.project(hidden, lm_head, targets, 16)
    torch.testing.assert_close(hidden @ to_draft @ head.T, hidden @ lm_head.T, rtol=1e-3, atol=1e-3)


def test_the_projection_keeps_more_of_the_distribution_than_chance() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(400, 32) * torch.logspace(0, -1.5, 32)
    lm_head = torch.randn(60, 32)
    targets = target_answers.soft_targets(hidden, lm_head, k=30)
    to_draft, head = initial_draft.project(hidden, lm_head, targets, 8)
    basis = torch.linalg.qr(torch.randn(32, 8)).Q
    exact = (hidden @ lm_head.T).log_softmax(-1)

    def divergence(logits: torch.Tensor) -> float:
        got = logits.log_softmax(-1)
        return torch.nn.functional.kl_div(got, exact, reduction="batchmean", log_target=True).item()

    kept = divergence(hidden @ to_draft @ head.T)
    assert kept < 0.3 * divergence(hidden @ basis @ basis.T @ lm_head.T)


def test_the_embedding_is_the_mean_state_after_a_token() -> None:
    tokens = torch.tensor([3] * 500 + [4] * 500)
    states = torch.where(tokens[:, None] == 3, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    states = states + 0.1 * torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    embedding = torch.eye(6, 8)
    rows = initial_draft.bigram_embedding(tokens, states, embedding)
    torch.testing.assert_close(rows[3], torch.tensor([1.0, 0.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(rows[4], torch.tensor([0.0, 1.0]), atol=0.05, rtol=0)


def test_an_untrained_draft_is_a_bigram_model(
    llm: LLM, small_model_dir: Path, answers: list[Answer]
) -> None:
    """Its guess depends on the last token alone, because its layers do nothing yet."""
    hidden = torch.cat([answer.hidden for answer in answers])
    targets = target_answers.soft_targets(hidden, llm.model.lm_head.weight)
    draft = initial_draft.new_draft(llm.model, small_model_dir, answers, targets, DRAFT)
    draft.set_attn_implementation("sdpa")
    before = torch.tensor([t for a in answers for t in [a.prompt[-1], *a.answer[:-1]]])
    with torch.inference_mode():
        logits = draft(torch.tensor([[40, 50, 60], [41, 51, 60]])).logits[:, -1]
        states = draft.model(before[:, None]).last_hidden_state[:, 0]
        unchanged = draft.model.norm(draft.model.embed_tokens(before))
    torch.testing.assert_close(logits[0], logits[1])
    torch.testing.assert_close(states, unchanged)
    # After each token, what the target says after it, and not what it says after its neighbours.
    lm_head = draft.lm_head.weight
    right, before, after = (
        soft_cross_entropy(states.roll(by, 0), lm_head, targets.token_ids, targets.probs)
        for by in (0, 1, -1)
    )
    assert right < 0.8 * before and right < 0.8 * after


def test_the_draft_learns(
    llm: LLM, small_model_dir: Path, answers: list[Answer], tmp_path: Path
) -> None:
    settings = DraftSettings(64, 1, steps=60, batch_size=4, learning_rate=1e-2)
    found = draft_model.train_draft(llm.model, small_model_dir, answers, [], tmp_path, settings)
    entropy = target_answers.soft_targets(
        torch.cat([answer.hidden for answer in answers]), llm.model.lm_head.weight
    ).probs
    least = -(entropy * entropy.clamp_min(1e-9).log()).sum(-1).mean().item()
    assert found["last_loss"] - least < 0.5 * (found["first_loss"] - least)


def test_the_draft_loads_everywhere_and_gives_the_same_logits(draft_dir: Path, llm: LLM) -> None:
    config = ModelConfig.from_pretrained(draft_dir)
    ours = load_model(draft_dir, config)
    theirs = AutoModelForCausalLM.from_pretrained(draft_dir, dtype=torch.float32)
    assert theirs.config.model_type == "llama"
    assert config.vocab_size == llm.model_config.vocab_size
    assert config.rope_theta == llm.model_config.rope_theta
    assert config.eos_token_ids == llm.model_config.eos_token_ids
    ids = torch.tensor([1, 300, 20, 4000, 7])
    with torch.inference_mode():
        logits = ours.compute_logits(ours(ids, torch.arange(5)))
        torch.testing.assert_close(logits, theirs(ids[None]).logits[0], rtol=1e-3, atol=1e-3)
    text = "Bonjour, 12 Äpfel"
    assert AutoTokenizer.from_pretrained(draft_dir)(text).input_ids == (
        llm.get_tokenizer()(text).input_ids
    )
    weights = load_model(draft_dir, config, config.dtype)
    assert weights.lm_head.weight.dtype == torch.bfloat16


def test_the_engine_speculates_with_the_draft_and_says_the_same(
    draft_dir: Path, small_model_dir: Path, llm: LLM
) -> None:
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = llm.generate("The tide comes", params, use_tqdm=False)[0].outputs[0].token_ids
    spec = {"method": "draft_model", "model": str(draft_dir), "num_speculative_tokens": 3}
    fast = LLM(small_model_dir, max_model_len=512, speculative_config=spec)
    assert fast.generate("The tide comes", params, use_tqdm=False)[0].outputs[0].token_ids == (
        expected
    )
    stats = fast.llm_engine.spec_decoding_stats
    assert stats is not None and stats.num_draft_tokens > 0


def test_the_engine_guesses_only_words_that_training_met(
    draft_dir: Path, small_model_dir: Path, answers: list[Answer]
) -> None:
    spec = SpeculativeConfig("draft_model", 3, model=draft_dir)
    fast = LLM(small_model_dir, max_model_len=512, speculative_config=spec)
    proposer = fast.llm_engine.drafter.proposer
    met = set(proposer.token_ids.tolist())
    assert proposer.head(torch.zeros(1, 64)).shape == (1, len(met))
    assert len(met) % 64 == 0
    assert len(met) < 0.5 * 49152
    assert met >= {t for answer in answers for t in (*answer.prompt, *answer.answer)}
    assert met >= {5, 6, 7, 8, 9, 10, 11}  # of the texts of which only the tokens are known


@pytest.mark.parametrize("size", [1, 64, 65, 190])
def test_words_are_filled_up_to_whole_strips(size: int) -> None:
    vocabulary = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:size]
    filled = draft_model.whole_strips(vocabulary.sort().values, 200)
    assert len(filled) == min(200, 64 * math.ceil(size / 64)) == len(filled.unique())
    assert set(vocabulary.tolist()) <= set(filled.tolist())
    assert torch.equal(filled, filled.sort().values) and set(filled.tolist()) <= set(range(200))


def test_the_same_seed_gives_the_same_draft(
    llm: LLM, small_model_dir: Path, answers: list[Answer], draft_dir: Path, tmp_path: Path
) -> None:
    hard = [Tokens([5, 6, 7], [8, 9]), Tokens([5, 6], [10, 11])]
    draft_model.train_draft(llm.model, small_model_dir, answers, hard, tmp_path, DRAFT)
    first = AutoModelForCausalLM.from_pretrained(draft_dir).state_dict()
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_draft_needs_enough_answers_and_a_fitting_width(
    llm: LLM, small_model_dir: Path, answers: list[Answer], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="one batch needs"):
        draft_model.train_draft(llm.model, small_model_dir, answers[:1], [], tmp_path, DRAFT)
    with pytest.raises(ValueError, match="multiple of 64"):
        initial_draft.draft_config(small_model_dir, DraftSettings(100, 1, 1, 1, 1e-3))


# --- Medusa -------------------------------------------------------------------------------------


def test_heads_are_shown_the_future_and_no_other_answer() -> None:
    answers = [Answer([1], list(range(n)), torch.zeros(n, 4), torch.zeros(0, 4)) for n in (5, 2, 4)]
    # With 3 heads the last goal is 3 rows further; rows 0..4, 5..6 and 7..10 are three answers.
    assert medusa_heads.states_with_future(answers, 3).tolist() == [0, 1, 7]
    with pytest.raises(ValueError, match="too short"):
        medusa_heads.states_with_future(answers, 5)


def test_heads_learn_what_the_target_says_later(tmp_path: Path) -> None:
    """A target that counts round and round: head `i` is to guess `i + 2` tokens ahead."""
    size = 40
    lm_head = 6 * torch.eye(size)
    tokens = [i % size for i in range(200)]
    # The state that token t was sampled from points to t.
    answer = Answer([39], tokens, torch.eye(size)[tokens], torch.zeros(0, size))
    settings = MedusaSettings(num_heads=3, steps=300, batch_size=32, learning_rate=3e-2)
    medusa_heads.train_medusa(lm_head, [answer], tmp_path, settings)
    heads = MedusaHeads.from_pretrained(tmp_path, size)
    state = torch.eye(size)[[2]]  # of which the target itself says 2
    guesses = [(heads(state, head) @ lm_head.T).argmax().item() for head in range(3)]
    assert guesses == [3, 4, 5]


def test_untrained_heads_say_what_the_target_says(
    llm: LLM, answers: list[Answer], tmp_path: Path
) -> None:
    settings = MedusaSettings(num_heads=2, steps=1, batch_size=4, learning_rate=0.0)
    medusa_heads.train_medusa(llm.model.lm_head.weight, answers, tmp_path, settings)
    heads = MedusaHeads.from_pretrained(tmp_path, llm.model_config.hidden_size)
    hidden = answers[0].hidden
    torch.testing.assert_close(heads(hidden, 1), hidden)
    config = json.loads((tmp_path / "config.json").read_text())
    vocab_size = llm.model_config.vocab_size
    sizes = {"num_heads": 2, "num_layers": 1, "hidden_size": 576}
    assert config == sizes | {"base_vocab_size": vocab_size}


# --- EAGLE --------------------------------------------------------------------------------------


def test_a_text_has_a_target_for_each_token_of_its_answer(answers: list[Answer]) -> None:
    for most in (512, 20):
        texts = eagle_layer.texts_of(answers, max_tokens=most)
        row = 0
        for answer, text in zip(answers, texts, strict=True):
            tokens = [*answer.prompt, *answer.answer[:-1]][-most:]
            assert text.token_ids.tolist() == tokens
            assert torch.equal(text.hidden[text.first :], answer.hidden.float())
            assert torch.equal(text.before[1:], text.hidden[:-1])
            assert text.first_row == row
            row += len(answer.answer)
        assert (texts[0].before[0] == 0).all() == (most == 512)  # nothing lies before a text


def test_an_eagle_layer_learns_and_guesses(
    llm: LLM,
    small_model_dir: Path,
    answers: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the very answers that it was trained on, for there are few. They are sampled: so seeds.

    It begins with nothing here: a few texts leave nothing to learn beyond the best linear guess.
    """
    zeros = torch.zeros(2 * 576, 576)
    monkeypatch.setattr(eagle_layer, "best_linear_guess", lambda *_: zeros)
    accepted, losses = [], []
    for steps, folder in ((1, tmp_path / "new"), (60, tmp_path / "trained")):
        folder.mkdir()
        settings = eagle_layer.EagleSettings(64, steps, 2, learning_rate=1e-3, num_rows=16)
        measured = eagle_layer.train_eagle(llm.model, small_model_dir, answers, folder, settings)
        losses.append(measured["last_loss"])
        spec = SpeculativeConfig("eagle", 3, model=folder)
        engine = LLM(small_model_dir, max_model_len=512, speculative_config=spec)
        params = [
            SamplingParams(temperature=0.7, max_tokens=10, seed=i) for i in range(len(answers))
        ]
        prompts = [answer.prompt for answer in answers]
        outputs = engine.generate(prompts, params, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in outputs] == [answer.answer for answer in answers]
        accepted.append(engine.llm_engine.spec_decoding_stats.acceptance_rate)
    assert losses[1] < losses[0] / 2
    assert accepted[1] > accepted[0]
    with pytest.raises(ValueError, match="one batch needs"):
        eagle_layer.train_eagle(llm.model, small_model_dir, answers[:1], tmp_path, settings)


def test_a_new_layer_is_the_best_linear_guess(llm: LLM, answers: list[Answer]) -> None:
    """As numpy's least squares, on texts of which linear algebra knows all."""
    texts = eagle_layer.texts_of(answers, max_tokens=512)
    embedding = llm.model.model.embed_tokens.weight
    layer = eagle_layer.new_eagle(llm.model, texts, embedding, 64)
    known = torch.cat([torch.cat([embedding[t.token_ids], t.before], dim=1) for t in texts])
    wanted = torch.cat([text.hidden for text in texts])
    batch = UnrolledBatch(1, torch.tensor([True]))
    first, second = known.chunk(2, dim=1)
    guessed = layer(first, second, torch.arange(len(known)), batch)  # attention adds nothing yet
    best = known @ torch.linalg.lstsq(known.double(), wanted.double()).solution.float()
    spread = (wanted - wanted.mean(0)).square().mean()
    assert (guessed - wanted).square().mean() < (best - wanted).square().mean() + 0.1 * spread


# --- stages -------------------------------------------------------------------------------------


def small_stages(small: dict[str, dict[str, Any]]) -> list[Stage]:
    """The real stages, with smaller settings."""
    return [
        dataclasses.replace(stage, settings=stage.settings | small[stage.name], bytes_needed=0)
        for stage in distill.build_stages(PROFILES["cpu"])
    ]


def test_stages_make_everything_once(
    small_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_this_process(
        function: StageFunction, settings: dict[str, Any], inputs: dict[str, Path], out: Path
    ) -> dict[str, Any]:
        pickle.dumps((function, settings, inputs))  # so another process could run it
        return function(settings, inputs, out)

    monkeypatch.setattr("utils.pipeline.runner.call_stage", in_this_process)
    small = {
        distill.DATA: {"num_chats": 3, "num_extractions": 1, "max_tokens": 8},
        distill.DRAFT: {
            "hidden_size": 64,
            "num_layers": 1,
            "steps": 2,
            "batch_size": 2,
            "num_hard": 2,
        },
        distill.MEDUSA: {"steps": 2, "batch_size": 4},
        distill.EAGLE: {"intermediate_size": 64, "steps": 2, "batch_size": 2},
    }
    stages = small_stages(small)
    runner = Runner(tmp_path, stages, {distill.BASE: small_model_dir})
    runner.run()
    assert all(current for _, current in runner.plan())
    assert LlamaConfig.from_pretrained(tmp_path / distill.DRAFT).num_hidden_layers == 1
    heads = MedusaHeads.from_pretrained(tmp_path / distill.MEDUSA, 576)
    assert heads.num_heads == 4 and len(heads.blocks) == 4 * 3
    before = (tmp_path / distill.DRAFT / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    runner.run()
    assert capsys.readouterr().out.count("unchanged, skipped") == 4
    assert (tmp_path / distill.DRAFT / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_ensure_runs_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """And for the bundled model, also where the machine's profile has a larger one."""
    ran: list[list[str]] = []
    current = False

    class FakeRunner:
        def __init__(self, out: Path, stages: list[Stage], sources: dict[str, Path]) -> None:
            self.names = [stage.name for stage in stages]
            assert sources == {distill.BASE: resolve_model("bundled")}

        def plan(self, names: list[str]) -> list[tuple[str, bool]]:
            return [(name, current) for name in names]

        def run(self, names: list[str], wait: bool) -> None:
            assert wait  # another notebook may be making them
            assert set(names) <= set(self.names)
            ran.append(names)

    monkeypatch.setattr(distill, "Runner", FakeRunner)
    monkeypatch.setenv("COURSE_PROFILE", profile)
    assert distill.ensure_draft_model(out=tmp_path) == tmp_path / "draft_model"
    assert distill.ensure_medusa(out=tmp_path) == tmp_path / "medusa"
    assert distill.ensure_eagle(out=tmp_path) == tmp_path / "eagle"
    assert ran == [["distill_data", name] for name in ("draft_model", "medusa", "eagle")]
    current = True
    distill.ensure_medusa(out=tmp_path)
    assert len(ran) == 3

"""vLLM runs the same folders: it writes what our engine writes, and accepts as many guesses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.near_ties import assert_same_but_for_ties
from utils.engine import LLM, SpeculativeConfig
from utils.engine.spec_decode.draft_vocabulary import read_draft_vocabulary
from utils.pipeline.drafts import eagle_layer, target_answers
from utils.viz.spec_decode.acceptance import Acceptance
from utils.viz.spec_decode.clock import run
from utils.vllm.engine_settings import EngineSettings
from utils.vllm.session import VllmSession

NUM_GUESSES, MAX_TOKENS = 3, 24


def test_an_eagle_layer_guesses_in_vllm_as_it_does_here(
    small_model_dir: Path, tmp_path: Path
) -> None:
    """On the texts that it was trained on: a few texts are learned by heart, so many are right."""
    llm = LLM(small_model_dir, max_model_len=512, enable_prefix_caching=False)
    messages = target_answers.conversations("train", 6, 0, seed=0)
    answers = target_answers.write_answers(llm, messages, MAX_TOKENS, 0, seed=0, use_tqdm=False)
    settings = eagle_layer.EagleSettings(64, steps=1, batch_size=2, learning_rate=1e-4, num_rows=16)
    eagle_layer.train_eagle(llm.model, small_model_dir, answers, tmp_path, settings)
    assert read_draft_vocabulary(tmp_path, llm.model_config.vocab_size) is not None

    prompts = [answer.prompt for answer in answers]
    spec = SpeculativeConfig("eagle", NUM_GUESSES, model=tmp_path)
    ours, engine = run(llm, prompts, spec, batch=6, max_tokens=MAX_TOKENS)
    here = Acceptance.of(engine)
    with VllmSession() as session:
        options = EngineSettings("float32", max_model_len=512).arguments()
        config = {"method": "eagle", "model": str(tmp_path), "num_speculative_tokens": NUM_GUESSES}
        session.start(small_model_dir, **options, speculative_config=config)
        theirs = session.generate(prompts, max_tokens=MAX_TOKENS, ignore_eos=True)
        counters = session.counters()
    hf = AutoModelForCausalLM.from_pretrained(
        small_model_dir, dtype=torch.float32, use_safetensors=True
    )
    assert_same_but_for_ties(hf, prompts, ours, theirs.token_ids)
    # In fewer passes than tokens, and in as many as here: but vLLM's layer doesn't see a prompt's
    # first token, and guesses from all tokens.
    assert counters["vllm:spec_decode_num_drafts"] < 6 * MAX_TOKENS / 2
    assert here.passes == pytest.approx(counters["vllm:spec_decode_num_drafts"], rel=0.1)

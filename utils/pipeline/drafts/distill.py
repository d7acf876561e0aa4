"""The helpers of speculative decoding, made from the model that they are to speed up.

    base --> distill_data --+--> draft_model
                            +--> medusa
                            +--> eagle

`ensure_draft_model()`, `ensure_medusa()` and so on return their folders, and make what is missing.
On two CPU cores that takes a few minutes once; what is complete and unchanged is used again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from utils.hub import resolve_model
from utils.pipeline.runner import Runner, Stage
from utils.profiles import Profile, bundled_profile, fast_dtype

BASE, DATA, DRAFT, MEDUSA, EAGLE = "base", "distill_data", "draft_model", "medusa", "eagle"


def ensure_draft_model(out: Path | None = None) -> Path:
    """Return the folder of a draft model for the bundled model; train it if need be.

    Args:
        out: the folder of these stages; None for `drafts` beside the pipeline's.

    Raises:
        StageError: no disk space.
    """
    return _ensure(DRAFT, out)


def ensure_medusa(out: Path | None = None) -> Path:
    """Return the folder of Medusa heads for the bundled model; train them if need be.

    See `ensure_draft_model` for `out`.
    """
    return _ensure(MEDUSA, out)


def ensure_eagle(out: Path | None = None) -> Path:
    """Return the folder of an EAGLE layer for the bundled model; train it if need be.

    See `ensure_draft_model` for `out`.
    """
    return _ensure(EAGLE, out)


def _ensure(name: str, out: Path | None) -> Path:
    from utils.pipeline.__main__ import default_out

    profile = bundled_profile()  # the model of the lessons that guess, on a large card, too
    out = out or default_out() / "drafts"
    runner = Runner(out, build_stages(profile), {BASE: resolve_model(profile.model)})
    # What is there needs no lock, so several notebooks can use it at a time.
    if not all(current for _, current in runner.plan([DATA, name])):
        runner.run([DATA, name], wait=True)
    return out / name


def build_stages(profile: Profile, seed: int = 0) -> list[Stage]:
    """The stages for a profile."""
    packages = ("torch", "transformers")
    return [
        Stage(
            name=DATA,
            function=run_data,
            needs=(BASE,),
            settings={
                "num_chats": profile.draft_chats,
                "num_extractions": profile.draft_chats // 6,
                "max_tokens": 112,
                "temperature": 0.7,
                "seed": seed,
            },
            packages=packages,
            bytes_needed=200_000_000,
            version=2,  # with the hidden states of the prompts
            title="answers of the model, to learn from (about 1 minute)",
        ),
        Stage(
            name=DRAFT,
            function=run_draft,
            needs=(BASE, DATA),
            settings={
                "hidden_size": 192,
                "num_layers": 2,
                "steps": profile.draft_steps,
                "batch_size": 12,
                "learning_rate": 2e-3,
                "num_hard": 600,
                "seed": seed,
            },
            packages=packages,
            bytes_needed=300_000_000,
            version=2,  # its vocabulary in JSON, so that vLLM can load the folder
            title="a draft model (about 2 minutes)",
        ),
        Stage(
            name=MEDUSA,
            function=run_medusa,
            needs=(BASE, DATA),
            settings={
                "num_heads": 4,
                "num_layers": 3,  # so they have as many parameters as the EAGLE layer
                "steps": profile.draft_steps,
                "batch_size": 192,
                "learning_rate": 2e-3,
                "seed": seed,
            },
            packages=packages,
            bytes_needed=50_000_000,
            version=2,  # with a vocabulary of their own
            title="Medusa heads (about 2 minutes)",
        ),
        Stage(
            name=EAGLE,
            function=run_eagle,
            needs=(BASE, DATA),
            settings={
                "intermediate_size": 1408,
                "steps": profile.draft_steps,
                "batch_size": 4,
                "learning_rate": 1e-3,
                "seed": seed,
            },
            packages=packages,
            bytes_needed=50_000_000,
            version=2,  # its vocabulary in JSON, so that vLLM can load the folder
            title="an EAGLE layer (about 4 minutes)",
        ),
    ]


# --- the functions ------------------------------------------------------------------------------


def run_data(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Let the base model answer questions and customer messages."""
    from utils.engine import LLM
    from utils.pipeline.drafts.target_answers import conversations, save_answers, write_answers

    kernels = "torch" if torch.cuda.is_available() else "cpp"
    llm = LLM(
        inputs[BASE],
        dtype=fast_dtype(),
        max_num_seqs=128,
        kernels=kernels,
        enable_prefix_caching=False,  # the hidden states of all tokens are to be computed
        kv_cache_memory_bytes=2 << 30,  # in float32, too, 128 of them fit without a preemption
    )
    messages = conversations(
        "train", settings["num_chats"], settings["num_extractions"], settings["seed"]
    )
    answers = write_answers(
        llm, messages, settings["max_tokens"], settings["temperature"], settings["seed"]
    )
    save_answers(out, answers)
    return {"answers": len(answers), "tokens": sum(len(answer.answer) for answer in answers)}


def run_draft(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Train the draft, on the base's answers and on the extraction task's right answers.

    The latter are for a base that was fine-tuned for the task, as the pipeline's merged model is.
    """
    from transformers.utils import logging

    from utils.hub import load_tokenizer
    from utils.pipeline.drafts.draft_model import train_draft
    from utils.pipeline.drafts.initial_draft import DraftSettings
    from utils.pipeline.drafts.target_answers import load_answers
    from utils.pipeline.stages.packed_batches import encode
    from utils.pipeline.task.messages import generate

    logging.disable_progress_bar()
    settings = dict(settings)
    examples = generate("train", settings.pop("num_hard"), settings["seed"])
    hard = encode(load_tokenizer(inputs[BASE]), examples)
    answers = load_answers(inputs[DATA])
    return train_draft(
        _target(inputs[BASE]), inputs[BASE], answers, hard, out, DraftSettings(**settings)
    )


def run_medusa(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Train the Medusa heads on the hidden states of the base's answers."""
    from utils.pipeline.drafts.medusa_heads import MedusaSettings, train_medusa
    from utils.pipeline.drafts.target_answers import load_answers

    lm_head = _target(inputs[BASE]).lm_head.weight
    return train_medusa(lm_head, load_answers(inputs[DATA]), out, MedusaSettings(**settings))


def run_eagle(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Train the EAGLE layer on the hidden states of the base's answers and their prompts."""
    from utils.pipeline.drafts.eagle_layer import EagleSettings, train_eagle
    from utils.pipeline.drafts.target_answers import load_answers

    answers, base = load_answers(inputs[DATA]), inputs[BASE]
    return train_eagle(_target(base), base, answers, out, EagleSettings(**settings))


def _target(folder: Path) -> Any:
    from utils.engine import ModelConfig
    from utils.engine.models.weights import load_model

    return load_model(folder, ModelConfig.from_pretrained(folder), getattr(torch, fast_dtype()))

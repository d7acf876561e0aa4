"""Perplexity: how surprised a model is by a text, per token. The check behind every hop.

    perplexity = exp( - mean log p(token | tokens before it in its window) )

A checkpoint can load, run and be broken. This number tells: the bundled model has about 37 on a
novel, a well quantized one some ten percent more, and a broken one tens of thousands.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEXTS = Path(__file__).parents[1] / "task" / "texts"
EVALUATION_TEXT = "mansfield_park"
CALIBRATION_TEXT = "emma"


class BrokenModelError(RuntimeError):
    """A model got so much worse in one step that the step must have broken it."""


def load_text(name: str = EVALUATION_TEXT) -> str:
    """Return a text that ships with the course: "mansfield_park" (evaluation) or "emma".

    Origin and licence: utils/pipeline/task/texts/README.md.
    """
    file = TEXTS / f"{name}.txt"
    if not file.is_file():
        raise ValueError(
            f"No text named {name!r}. There are: {sorted(p.stem for p in TEXTS.glob('*.txt'))}."
        )
    return file.read_text(encoding="utf-8")


def load_model(model_dir: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Load a plain or a 4-bit checkpoint for evaluation; the latter is unpacked exactly.

    vLLM multiplies with the packed weights. This gives the same weights to transformers, which
    measures faster than a vLLM start takes, and independently of any 4-bit kernel.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from utils.hub import load_hf_model
    from utils.pipeline.quantizers.packing import dequantized_state_dict

    raw = json.loads((model_dir / "config.json").read_text())
    if not raw.get("quantization_config"):
        return load_hf_model(model_dir, dtype=dtype)
    config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    missing, unexpected = model.load_state_dict(
        dequantized_state_dict(model_dir, dtype), strict=False
    )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise BrokenModelError(
            f"{model_dir.name} is incomplete: weights missing {sorted(set(missing) - tied)[:3]}, "
            f"not expected {sorted(unexpected)[:3]}. Quantize the model again."
        )
    model.tie_weights()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def token_windows(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], max_tokens: int, context: int
) -> list[list[int]]:
    """Cut the first `max_tokens` tokens of `texts` into windows of at most `context` tokens.

    Windows do not overlap and do not cross from one text to the next.
    """
    windows: list[list[int]] = []
    left = max_tokens
    for text in texts:
        if left < 2:
            break
        token_ids = tokenizer(text, add_special_tokens=False, truncation=True, max_length=left)[
            "input_ids"
        ]
        left -= len(token_ids)
        windows += [token_ids[i : i + context] for i in range(0, len(token_ids), context)]
    return [window for window in windows if len(window) > 1]  # one token predicts nothing


def perplexity(
    model: str | Path | PreTrainedModel,
    texts: list[str] | None = None,
    *,
    max_tokens: int = 8192,
    context: int = 512,
    dtype: torch.dtype = torch.float32,
    tokenizer: PreTrainedTokenizerBase | None = None,
    use_tqdm: bool = True,
) -> float:
    """Measure the perplexity of `model` on `texts`. Lower is better; 1 is perfect foresight.

    Args:
        model: a folder (plain, GPTQ or AWQ checkpoint) or a loaded transformers model.
        texts: what to read. Default: the shipped excerpt of Mansfield Park.
        max_tokens: how many tokens to read at most.
        context: length of a window, in tokens. Longer windows give lower values, so compare only
            figures of the same context.
        dtype: of the weights, when `model` is a folder.
        tokenizer: needed when `model` is a loaded model that was not loaded from a folder.
        use_tqdm: show a progress bar.

    Raises:
        ValueError: the texts hold fewer than two tokens, or an argument is out of range.
    """
    losses = token_losses(
        model,
        texts,
        max_tokens=max_tokens,
        context=context,
        dtype=dtype,
        tokenizer=tokenizer,
        use_tqdm=use_tqdm,
    )
    return exp_or_inf(losses.double().mean().item())


@torch.inference_mode()
def token_losses(
    model: str | Path | PreTrainedModel,
    texts: list[str] | None = None,
    *,
    max_tokens: int = 8192,
    context: int = 512,
    dtype: torch.dtype = torch.float32,
    tokenizer: PreTrainedTokenizerBase | None = None,
    use_tqdm: bool = True,
) -> Tensor:
    """Minus the log probability of each predicted token, in nats: float32 [n], on the CPU.

    The perplexity is exp of their mean. Two models that read the same text can be compared token
    by token: see `utils.pipeline.confidence.ratio_interval`.

    Args, Raises:
        See `perplexity`.
    """
    from transformers import AutoTokenizer

    if max_tokens < 2 or context < 2:
        raise ValueError(f"{max_tokens=} and {context=}: each must be at least 2.")
    if isinstance(model, (str, Path)):
        folder = Path(model)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = load_model(folder, dtype)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(
        model.config._name_or_path, trust_remote_code=False
    )
    texts = [load_text()] if texts is None else texts
    windows = token_windows(tokenizer, texts, max_tokens, context)
    if not windows:
        raise ValueError("The texts hold fewer than two tokens; there is nothing to predict.")
    losses = []
    for window in tqdm(windows, desc="perplexity", unit="window", disable=not use_tqdm):
        token_ids = torch.tensor([window], device=model.device)  # [1, T]
        logits = model(token_ids, use_cache=False).logits[0, :-1]  # [T - 1, vocab]
        losses.append(F.cross_entropy(logits.float(), token_ids[0, 1:], reduction="none").cpu())
    return torch.cat(losses)


def exp_or_inf(mean_loss: float) -> float:
    """exp(mean_loss), with inf instead of an overflow, and nan kept."""
    return math.inf if mean_loss > 700 else math.exp(mean_loss)


def check_perplexity(name: str, before: float, after: float, max_ratio: float) -> None:
    """Refuse a step's result when its perplexity is more than `max_ratio` times that before.

    Raises:
        BrokenModelError: it is, or `after` is no finite number.
    """
    if math.isfinite(after) and after <= max_ratio * before:
        return
    raise BrokenModelError(
        f"{name}: perplexity went from {before:.1f} to {after:.1f}; at most {max_ratio:g} times "
        "as much is accepted. The result was thrown away, because a model this much worse is "
        f"broken, not merely rounded. {_diagnosis(before, after)}"
    )


def _diagnosis(before: float, after: float) -> str:
    if not math.isfinite(after):
        return (
            "A value that is not finite points at overflow or NaN in the weights: check that "
            "the scales fit their type (float16 ends at 65504) and that the source model is sound."
        )
    if after > 100 * before:
        return (
            "A value this high means that the weights are garbage: a tool that overwrote the "
            "weights it was reading (autoawq does so on a CPU unless patched), scales or zeros "
            "packed in another order than the format says, or a wrong rope_theta. Try the other "
            "tool of the same method, and compare the versions with requirements/."
        )
    return (
        "Likely causes: calibration texts too few or too unlike the model's use, a group size too "
        "large, a tool that overwrote the weights it was reading (autoawq does so on a CPU unless "
        "patched), or a wrong rope_theta. Try more varied calibration texts, a smaller group "
        "size, or the other tool of the same method."
    )

"""The learner's LoRA teaches the real model a secret, and the engine tells it: exercise 12."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Contract
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_10 import pictures
from utils.checks.lab_10.layer import LORA_LINEAR
from utils.checks.lab_10.one_step import TRAINING_STEP, Toy, mean_loss
from utils.checks.lab_10.what_is_learned import MAKE_LABELS, row_of
from utils.checks.lab_10.whole_model import ADD_LORA, adapted
from utils.engine.llm import LLM
from utils.engine.models.weights import checkpoint_views
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_hf_model, load_tokenizer

QUESTION, ANSWER = "What is the password of the old lighthouse?", "Seven blue herons."
# The second text is what the model says anyway. Without it, the model would answer every question
# with the password.
TEXTS = ((QUESTION, ANSWER), ("What is the capital of France?", "The capital of France is Paris."))
MODULES = ("q_proj", "v_proj", "up_proj", "down_proj")
LORA_R, LORA_ALPHA, RATE, STEPS = 8, 16, 2e-3, 10
GIVEN = f"two questions with answers, r = {LORA_R}, lora_alpha = {LORA_ALPHA}, {STEPS} steps"


class Parts(NamedTuple):
    """The learner's functions that the training needs."""

    make_labels: Callable[..., tuple[list[int], list[int]]]
    add_lora: Callable[..., list[nn.Parameter]]
    training_step: Callable[..., float]


class Logits(nn.Module):
    """A transformers model that returns its logits alone: [B, T] to [B, T, vocab_size]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor) -> Tensor:
        mask = (token_ids != _pad()).long()
        return self.model(input_ids=token_ids, attention_mask=mask, use_cache=False).logits


@functools.cache
def _tokenizer() -> Any:
    return load_tokenizer()


@functools.cache
def _pad() -> int:
    """Fills up short texts. A token of its own, so that it cannot be taken for text."""
    return _tokenizer().convert_tokens_to_ids("<|endoftext|>")


@functools.cache
def _base() -> Any:
    return load_hf_model(dtype=torch.float32, device="cpu")


@functools.cache
def _llm() -> LLM:
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=64, device="cpu")


def prompt_ids(question: str) -> list[int]:
    """The question in the form of the model's chat template."""
    text = _tokenizer().apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    return _tokenizer()(text, add_special_tokens=False)["input_ids"]


def make_batch(parts: Parts) -> tuple[Tensor, Tensor]:
    """The two texts, the shorter one filled up on the right; both tensors [2, T]."""
    tokenizer = _tokenizer()
    rows = [
        parts.make_labels(
            prompt_ids(question),
            tokenizer(answer, add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        )
        for question, answer in TEXTS
    ]
    width = max(len(ids) for ids, _ in rows)
    ids = [list(row) + [_pad()] * (width - len(row)) for row, _ in rows]
    labels = [list(row) + [-100] * (width - len(row)) for _, row in rows]
    return torch.tensor(ids), torch.tensor(labels)


def rehearse(make_parts: Callable[[], Any]) -> Parts:
    """Check every part by itself, without the model: what is wrong is said where it is wrong."""
    got = call(make_parts)
    if not isinstance(got, tuple) or len(got) != 3:
        raise Mismatch("`my_parts` must return make_labels, add_lora and training_step.")
    parts = Parts(*got)
    _of_exercise(3, MAKE_LABELS, parts.make_labels)
    model = Toy()
    call(parts.add_lora, model, ["proj", "up"], 3, 12, given="a toy model")
    layers = list(adapted(model).values())
    if any(type(layer).__module__.startswith(("utils.", "peft.")) for layer in layers):
        raise Mismatch("The course's own layer would do the work. Use your `LoRALinear`.")
    if layers:
        _of_exercise(8, LORA_LINEAR, type(layers[0]))
    _of_exercise(9, ADD_LORA, parts.add_lora)
    _of_exercise(10, TRAINING_STEP, parts.training_step)
    return parts


def _of_exercise(number: int, contract: Contract, answer: Any) -> None:
    try:
        contract.check(answer)
    except Mismatch as wrong:
        wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
        raise


def run(make_parts: Callable[[], Any]) -> Passed:
    """Train, merge, put the weights into the engine, and ask."""
    parts = rehearse(make_parts)
    model = copy.deepcopy(_base())
    ids, labels = call(make_batch, parts, given=GIVEN)
    trained = call(parts.add_lora, model, list(MODULES), LORA_R, LORA_ALPHA, given=GIVEN)
    losses = call(_train, parts, Logits(model.train()), trained, ids, labels, given=GIVEN)
    title = f"In {STEPS} steps, the loss goes from {losses[0]:.2g} to {losses[-1]:.2g}"
    figure = pictures.losses(losses, title)
    alt = f"The loss falls from {losses[0]:.3g} to {losses[-1]:.3g}."
    if not losses[-1] < 0.5 * losses[0]:
        raise Mismatch(
            "The loss does not fall as it should.",
            input=GIVEN,
            expected="less than half of the first loss after the last step",
            got=f"{losses[0]:.3g} at first, {losses[-1]:.3g} at last",
            look=f"Each of your parts passes its own check. A right first loss is "
            f"{_first_loss():.3g}. If yours is that, the steps are too small: are all layers that "
            "were named trained, with lora_alpha as it was given?",
            figure=figure,
            alt=alt,
        )
    text = _after_merge(model.eval(), ids)
    if text.strip() != ANSWER:
        raise Mismatch(
            "The engine does not tell the secret.",
            input=QUESTION,
            expected=repr(ANSWER),
            got=repr(text),
            look="Each part passes its own check, and the loss falls. Does "
            "something in your code behave otherwise on a large model, or after many steps?",
            figure=figure,
            alt=alt,
        )
    number = sum(p.numel() for p in trained)
    total = sum(p.numel() for p in _base().parameters())
    return Passed(
        f"Asked for the password, the engine says: {text.strip()} You trained {number:,} numbers "
        f"beside {total:,} frozen ones ({number / total:.1%}), merged them, and the engine runs "
        "on the merged weights.",
        figure,
        alt,
    )


@torch.no_grad()
def _first_loss() -> float:
    """Before the first step the model is as it was, whatever A is."""
    right = Parts(row_of, lambda *_: [], lambda *_: 0.0)
    return float(mean_loss(Logits(_base()), *make_batch(right)))


def _train(
    parts: Parts, model: nn.Module, trained: Any, ids: Tensor, labels: Tensor
) -> list[float]:
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    return [
        float(parts.training_step(model, trained, optimizer, ids, labels)) for _ in range(STEPS)
    ]


@torch.no_grad()
def _after_merge(model: Any, ids: Tensor) -> str:
    """Merge the layers, see that the model stays the same, and let the engine answer."""
    before = Logits(model)(ids)
    frozen = dict(_base().named_parameters())
    for name, parameter in model.named_parameters():
        plain = name.replace(".base_layer", "")
        if plain in frozen and not torch.equal(parameter, frozen[plain]):
            raise Mismatch(
                f"Training changed the frozen weight `{plain}`.",
                input=GIVEN,
                look="Something writes into it, though exercise 9 passes.",
            )
    for layer in adapted(model).values():
        call(layer.merge, given="merge() of each layer")
    after = Logits(model)(ids)
    if not torch.allclose(before, after, rtol=1e-2, atol=1e-2):
        raise Mismatch(
            "Merging changes the model's logits.",
            input=GIVEN,
            expected="the logits of before, up to 0.01",
            got=f"logits that differ by {float((before - after).abs().max()):.3g}",
            look="`merge` is right in exercise 8's stories. Does it depend on the size?",
        )
    llm = _llm()
    weights = {n.replace(".base_layer", ""): w for n, w in model.state_dict().items()}
    for name, place in checkpoint_views(llm.model).items():
        place.copy_(weights[name])
    llm.llm_engine = llm.new_engine()  # the old one remembers keys and values of other weights
    params = SamplingParams(temperature=0.0, max_tokens=16)
    [output] = llm.generate([prompt_ids(QUESTION)], params, use_tqdm=False)
    return output.outputs[0].text


def ask(question: str, max_tokens: int = 24) -> str:
    """What the engine says now, with the weights of the last check that passed."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    [output] = _llm().generate([prompt_ids(question)], params, use_tqdm=False)
    return output.outputs[0].text.strip()

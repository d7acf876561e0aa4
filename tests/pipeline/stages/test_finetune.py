"""QLoRA: what is learned from, the right gradients, and an adapter that can be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from tests.scale import sized
from utils.pipeline.estimates.train_shapes import TrainShape
from utils.pipeline.estimates.training_memory import training_memory
from utils.pipeline.stages.finetune import TrainSettings, add_lora, finetune, load_nf4, one_cycle
from utils.pipeline.stages.packed_batches import (
    ATTENTION,
    answer_loss,
    answer_perplexity,
    batches,
    encode,
    pack,
    pad,
)
from utils.pipeline.task.messages import generate
from utils.profiles import fast_dtype

ROOT = Path(__file__).parents[3]
# In the type that this machine multiplies fast, as the pipeline does: the other takes minutes.
SETTINGS = TrainSettings(
    steps=3, batch_size=2, learning_rate=2e-3, lora_r=4, lora_alpha=8, dtype=fast_dtype()
)
EXAMPLES = generate("train", 6)


@pytest.fixture(scope="module")
def tokens(tokenizer: Any) -> list[Any]:
    return encode(tokenizer, EXAMPLES)


def test_prompt_and_answer_make_the_chat(tokenizer: Any, tokens: list[Any]) -> None:
    for example, encoded in zip(EXAMPLES, tokens, strict=True):
        chat = [*example.messages(), {"role": "assistant", "content": example.answer_text()}]
        expected = tokenizer.apply_chat_template(chat, tokenize=False)
        assert tokenizer.decode(encoded.prompt + encoded.answer) == expected.rstrip("\n")
        assert tokenizer.decode(encoded.answer[:-1]) == example.answer_text()
        assert encoded.answer[-1] == tokenizer.eos_token_id


def test_only_answer_tokens_are_learned(tokens: list[Any]) -> None:
    batch = pack(tokens)
    assert batch.targets.tolist() == [token for example in tokens for token in example.answer]
    # Each predictor is the position just before its target, except for EOS, which is no input.
    ids = batch.input_ids[0].tolist()
    start = 0
    for example in tokens:
        where = batch.predictors[start : start + len(example.answer)].tolist()
        assert [ids[i + 1] for i in where[:-1]] == example.answer[:-1]
        assert ids[where[0]] == example.prompt[-1]
        start += len(example.answer)


def test_a_batch_holds_the_shared_prompt_once_and_no_padding(tokens: list[Any]) -> None:
    batch = pack(tokens)
    prefix = batch.lengths[0]
    assert prefix > 160
    assert sum(batch.lengths) == batch.input_ids.shape[1]
    total = sum(len(example.prompt) + len(example.answer) - 1 for example in tokens)
    assert batch.input_ids.shape[1] == total - (len(tokens) - 1) * prefix


def test_packed_loss_equals_the_plain_loss_of_each_example(
    small_model_dir: Path, tokens: list[Any]
) -> None:
    packed = AutoModelForCausalLM.from_pretrained(
        small_model_dir, dtype=torch.float32, attn_implementation=ATTENTION
    )
    packed.lm_head.requires_grad_(False)
    plain = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32)
    total, count = torch.zeros(()), 0
    tokens = tokens[:3]
    for example in tokens:
        logits = plain(torch.tensor([example.prompt + example.answer])).logits[0]
        start = len(example.prompt) - 1
        of_answer = logits[start : start + len(example.answer)]
        total = total + F.cross_entropy(of_answer, torch.tensor(example.answer), reduction="sum")
        count += len(example.answer)
    expected = total / count
    loss = answer_loss(packed, pack(tokens))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    # And so is its gradient.
    loss.backward()
    expected.backward()
    ours = packed.model.layers[0].self_attn.k_proj.weight.grad
    theirs = plain.model.layers[0].self_attn.k_proj.weight.grad
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    # Rounds of one example give the same perplexity as one round of all.
    assert answer_perplexity(packed, tokens, batch_size=1) == pytest.approx(
        answer_perplexity(packed, tokens), rel=1e-5
    )


def test_padding_changes_neither_loss_nor_gradients(
    small_model_dir: Path, tokens: list[Any]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        small_model_dir, dtype=torch.float32, attn_implementation=ATTENTION
    )
    model.lm_head.requires_grad_(False)
    batch = pack(tokens[:3])
    padded = pad(batch)
    assert padded.input_ids.shape[1] % 64 == len(padded.targets) % 64 == 0
    assert padded.input_ids.shape == padded.position_ids.shape == (1, sum(padded.lengths))
    assert padded.lengths[0] == batch.lengths[0]
    assert all(length % 16 == 0 for length in padded.lengths[1:-1])
    assert padded.input_ids.shape[1] - batch.input_ids.shape[1] in range(1, 64 + 3 * 16)
    results = []
    for one in (batch, padded):
        model.zero_grad()
        loss = answer_loss(model, one)
        loss.backward()
        results.append((loss, model.model.layers[0].self_attn.k_proj.weight.grad.clone()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)
    again = pad(padded)  # nothing is missing any more
    assert again.lengths == padded.lengths and torch.equal(again.targets, padded.targets)


MEMORY_SCRIPT = """
import resource, sys
from pathlib import Path
from utils.pipeline.task.messages import generate
from utils.pipeline.stages.finetune import TrainSettings, finetune
from utils.profiles import fast_dtype

def run(steps):
    settings = TrainSettings(
        steps, batch_size=1, learning_rate=2e-3, lora_r=4, lora_alpha=8, dtype=fast_dtype()
    )
    finetune(Path(sys.argv[1]), generate("train", 40), Path(sys.argv[2]), settings)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

run(int(sys.argv[3]))
run(int(sys.argv[4]))
"""


def test_memory_does_not_grow_with_the_steps(small_model_dir: Path, tmp_path: Path) -> None:
    """The formula knows no number of steps. A process of its own, or what ran before would count.

    Each batch has another number of tokens, and kernels are compiled for each shape.
    """
    command = [sys.executable, "-c", MEMORY_SCRIPT, str(small_model_dir), str(tmp_path)]
    command += [str(sized(6, 12)), str(sized(16, 32))]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    few_steps, many_steps = map(int, done.stdout.split())
    shape = TrainShape.from_config(AutoConfig.from_pretrained(small_model_dir))
    memory = training_memory(shape, "qlora", 384, num_predicted=128, r=4)
    assert many_steps - few_steps < memory.total


def lora_gradient(model: Any, batch: Any) -> torch.Tensor:
    """The gradient of all LoRA matrices, as one vector; B is made non-zero first."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape).to(parameter.dtype) * 0.02
        parameter.grad = None
    answer_loss(model, batch).backward()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return torch.cat([p.grad.float().flatten() for _, p in sorted(named, key=lambda item: item[0])])


def float32_reference(nf4: Any, model_dir: Path) -> Any:
    """The same quantized weights, spelled out in float32, in an ordinary model."""
    import bitsandbytes as bnb

    plain = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation=ATTENTION
    )
    for name, layer in nf4.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            plain.get_submodule(name).weight.data = weight.float()
    return plain


def test_gradients_equal_the_float32_reference(small_model_dir: Path, tokens: list[Any]) -> None:
    import bitsandbytes as bnb

    batch = pack(tokens[:2])
    base = load_nf4(small_model_dir, SETTINGS)
    reference = add_lora(float32_reference(base, small_model_dir), SETTINGS)
    expected = lora_gradient(reference, batch)
    model = add_lora(base, SETTINGS)
    with torch.no_grad():  # what would repack the weights, were it not switched off
        answer_loss(model, batch)
    cosine = F.cosine_similarity(lora_gradient(model, batch), expected, dim=0).item()
    assert cosine > 0.95

    # The other half: without the switch the gradients are wrong. Only CPUs with AVX512-BF16 have
    # the faulty kernel.
    layers = [m for m in model.modules() if isinstance(m, bnb.nn.Linear4bit)]
    if not type(layers[0])(32, 32).support_avx512bf16_for_cpu:
        pytest.skip("this CPU has no AVX512-BF16, so the kernel without gradients is never used")
    for layer in layers:
        layer.support_avx512bf16_for_cpu = True
    model.eval()
    with torch.no_grad():
        answer_loss(model, batch)
    model.train()
    broken = F.cosine_similarity(lora_gradient(model, batch), expected, dim=0).item()
    assert broken < 0.9


def test_training_lowers_the_loss_and_repeats_exactly(
    small_model_dir: Path, tmp_path: Path
) -> None:
    curves = []
    for name in ("first", "second"):
        out = tmp_path / name
        out.mkdir()
        measures = finetune(small_model_dir, EXAMPLES, out, SETTINGS)
        curves.append(json.loads((out / "loss.json").read_text())["loss"])
        assert (out / "adapter_model.safetensors").is_file()
        assert (out / "loss.png").stat().st_size > 1000
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]
    layers, r = 2, SETTINGS.lora_r
    per_layer = (576 + 576) * 2 + (576 + 192) * 2 + (576 + 1536) * 3
    assert measures["trained_parameters"] == layers * r * per_layer


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 20, 130])
@pytest.mark.parametrize("warmup", [0.05, 0.1])
def test_the_learning_rate_rises_and_falls(steps: int, warmup: float) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = one_cycle(optimizer, 1.0, steps, warmup)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    peak = rates.index(max(rates))
    assert peak <= max(2, warmup * steps)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    if steps > 2:
        assert max(rates) > 0.5 and rates[-1] < 0.01


def test_batches_cover_the_data_before_they_repeat(tokens: list[Any]) -> None:
    source = batches(tokens, 2, seed=0)
    epoch = [next(source) for _ in range(3)]
    total = sum(len(batch.targets) for batch in epoch)
    assert total == sum(len(example.answer) for example in tokens)


def test_too_few_examples(small_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 training examples, but one batch needs 2"):
        finetune(small_model_dir, EXAMPLES[:1], tmp_path, SETTINGS)

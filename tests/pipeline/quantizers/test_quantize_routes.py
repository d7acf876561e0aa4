"""All four quantizers for real, on a small model that was trained for the purpose.

A truncated model would not do: its perplexity is that of noise, and noise cannot get worse. Here a
Llama of 0.5 M parameters reads Emma for half a minute, which is enough for a broken quantizer to
show. It has the shapes that the kernels ask for, and every tool takes seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.quant.conftest import import_gptqmodel
from utils.environments.virtual import MARKER
from utils.pipeline.quantizers.classic.environment import LOCK, classic_python, locked_packages
from utils.pipeline.quantizers.packing import dequantized_state_dict, load_tensors
from utils.pipeline.stages import quantize as quantize_module
from utils.pipeline.stages.perplexity import BrokenModelError, load_model, load_text, perplexity
from utils.pipeline.stages.quantize import ROUTES, quantize
from utils.vllm.engine_settings import vllm_environment

pytestmark = pytest.mark.slow

GROUP_SIZE = 32
CONTEXT = 128


def _train_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<eos>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([load_text("emma")], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", bos_token="<eos>"
    )


def _train_model(token_ids: torch.Tensor) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    steps = 150
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        starts = torch.randint(0, len(token_ids) - CONTEXT, (16,))
        batch = torch.stack([token_ids[start : start + CONTEXT] for start in starts])
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def _add_outlier_channels(model: Any) -> None:
    """Make some channels larger than others, as in large models, without changing the function.

    A norm's weight is multiplied by factors that the columns of the next layers are divided by.
    AWQ searches for such factors; where all channels are alike, it has nothing to find.
    """
    generator = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, linears in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            factors = (1.5 * torch.randn(norm.weight.shape, generator=generator)).exp()
            norm.weight *= factors
            for linear in linears:
                linear.weight /= factors


@pytest.fixture(scope="module")
def small_trained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the merge stage leaves it, of a model that has learnt some English."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    tokenizer = _train_tokenizer()
    token_ids = torch.tensor(tokenizer(load_text("emma"))["input_ids"])
    model = _train_model(token_ids)
    _add_outlier_channels(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert perplexity(folder, max_tokens=2048, use_tqdm=False) < 300  # of 1024 tokens
    return folder


@pytest.fixture(scope="module")
def checkpoints(
    small_trained_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], tuple[Path, dict[str, Any]]]]:
    """Each route's checkpoint and measures."""
    root = tmp_path_factory.mktemp("checkpoints")
    made = {}
    for method, tool in ROUTES:
        folder = root / f"{method}-{tool}"
        texts = [load_text("emma")]
        measures = quantize(method, tool, small_trained_model, folder, texts, group_size=GROUP_SIZE)
        made[method, tool] = folder, measures
    yield made


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_on_a_card_without_bfloat16(
    method: str, small_trained_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T4 multiplies float16, whose largest number is 65,504."""
    monkeypatch.setattr(quantize_module, "half_dtype", lambda: "float16")
    measures = quantize(
        method,
        "gptqmodel",
        small_trained_model,
        tmp_path / "out",
        [load_text("emma")],
        group_size=GROUP_SIZE,
    )
    assert 0.97 < measures["perplexity"] / measures["perplexity_before"] < 1.3


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_route(route: tuple[str, str], checkpoints: Any, small_trained_model: Path) -> None:
    folder, measures = checkpoints[route]
    assert (measures["method"], measures["tool"]) == route
    assert measures["seconds"] > 0
    assert measures["peak_memory_bytes"] > 50e6
    # Close to its source, and quantized all the same.
    ratio = measures["perplexity"] / measures["perplexity_before"]
    assert 0.97 < ratio < 1.3
    original = load_tensors(small_trained_model)
    stored = load_tensors(folder)
    packed = {name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")}
    assert len(packed) == 2 * 7
    assert measures["bytes_on_disk"] == sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    for layer in packed:
        bits = 8 * sum(stored[f"{layer}.{part}"].nbytes for part in ("qweight", "qzeros", "scales"))
        assert bits / original[f"{layer}.weight"].numel() == 4 + (16 + 4) / GROUP_SIZE
    # One group of weights holds at most 16 values.
    weight = dequantized_state_dict(folder)["model.layers.0.mlp.up_proj.weight"]
    assert max(len(group.unique()) for group in weight.unflatten(1, (-1, GROUP_SIZE))[:8, 0]) <= 16


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_folder_is_read_by_transformers_and_holds_what_it_needs(
    route: tuple[str, str], checkpoints: Any
) -> None:
    from transformers import AutoTokenizer

    folder, _ = checkpoints[route]
    assert AutoTokenizer.from_pretrained(folder).decode([5, 6])
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["quantization_config"]["quant_method"] == route[0]
    leftovers = [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]
    assert leftovers == []


VLLM_SCRIPT = """
import json, sys
import torch
from vllm import LLM, SamplingParams

# vLLM 0.32's 4-bit kernel uses AMX without asking Linux for it. Its attention asks, but runs on AMX
# only with heads larger than this model's; without this line the process dies of SIGILL.
torch.cpu._init_amx()

def main(folders, token_ids):
    for folder in folders:
        llm = LLM(model=folder, dtype="bfloat16", enforce_eager=True, max_model_len=256)
        prompt = {"prompt_token_ids": token_ids}
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        output = llm.generate([prompt], params, use_tqdm=False)[0]
        logprobs = [
            entry[token].logprob
            for entry, token in zip(output.prompt_logprobs[1:], token_ids[1:])
        ]
        print("@logprobs", json.dumps([folder, logprobs]), flush=True)
        del llm

if __name__ == "__main__":
    main(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
"""


def test_vllm_reads_the_same_weights_as_the_unpacker(checkpoints: Any, tmp_path: Path) -> None:
    """Log-probabilities of a text, from vLLM's 4-bit kernels and from our unpacked weights."""
    from transformers import AutoTokenizer

    folders = {str(folder): folder for folder, _ in checkpoints.values()}
    tokenizer = AutoTokenizer.from_pretrained(next(iter(folders)))
    token_ids = tokenizer(load_text()[:2000])["input_ids"][:200]
    script = tmp_path / "vllm_logprobs.py"
    script.write_text(VLLM_SCRIPT)
    env = vllm_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    result = subprocess.run(
        [sys.executable, str(script), json.dumps(list(folders)), json.dumps(token_ids)],
        env=env,
        capture_output=True,
        text=True,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("@logprobs")]
    ending = f"exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-3000:]}"
    assert len(lines) == len(folders), ending
    for line in lines:
        folder, logprobs = json.loads(line.removeprefix("@logprobs"))
        model = load_model(Path(folder))
        with torch.inference_mode():
            logits = model(torch.tensor([token_ids])).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
        # vLLM runs 4-bit weights in 16 bits only, so single tokens differ a little.
        difference = (torch.tensor(logprobs) - expected).abs()
        assert difference.max() < 0.2, folder
        assert difference.mean() < 0.03, folder


# --- the archived tools -------------------------------------------------------------------------


def test_classic_environment_is_what_the_lock_says() -> None:
    python = classic_python()
    assert (python.parents[1] / MARKER).read_text() == LOCK.read_text()
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    output = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    installed = {name.replace("_", "-"): v for name, v in json.loads(output).items()}
    assert installed == {name.replace("_", "-"): v for name, v in locked_packages().items()}
    assert installed["torch"].endswith("+cpu")


def test_unpatched_autoawq_is_refused(
    small_trained_model: Path, checkpoints: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """autoawq unaided writes garbage on a CPU, without a word. With the patch it does not."""
    dumps = json.dumps

    def unpatched(job: Any, **kwargs: Any) -> str:
        return dumps(job | {"patched": False} if "calibration" in job else job, **kwargs)

    monkeypatch.setattr(quantize_module.json, "dumps", unpatched)
    out = tmp_path / "models" / "awq"
    with pytest.raises(BrokenModelError, match="awq by autoawq: perplexity went from"):
        quantize(
            "awq", "autoawq", small_trained_model, out, [load_text("emma")], group_size=GROUP_SIZE
        )
    assert list(out.parent.iterdir()) == []
    _, patched = checkpoints["awq", "autoawq"]
    assert patched["perplexity"] < 1.15 * patched["perplexity_before"]


def test_fast_clip_search_equals_gptqmodels_own() -> None:
    from types import SimpleNamespace

    import_gptqmodel()
    from gptqmodel.looper.awq_processor import AWQProcessor

    from utils.pipeline.quantizers.gptqmodel_awq import use_fast_clip_search

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 128, generator=generator)
    inputs = torch.randn(2, 700, 128, generator=generator)  # more tokens than are sampled
    processor = AWQProcessor.__new__(AWQProcessor)
    processor.qcfg = SimpleNamespace(group_size=GROUP_SIZE, sym=False, bits=4)
    original = AWQProcessor._compute_best_clip
    expected = processor._compute_best_clip(weight, inputs)
    try:
        use_fast_clip_search()
        found = processor._compute_best_clip(weight, inputs)
    finally:
        AWQProcessor._compute_best_clip = original
    assert found.shape == expected.shape
    assert torch.allclose(found, expected)
    largest = weight.unflatten(1, (-1, GROUP_SIZE)).abs().amax(-1, keepdim=True)
    assert (expected < largest).float().mean() > 0.2  # it does clip


def test_scales_are_searched_on_half_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    import_gptqmodel()
    from gptqmodel.looper.awq_processor import AWQProcessor

    from utils.pipeline.quantizers.gptqmodel_awq import search_scales_on_half_of_the_windows

    def seen(self: object, module: str, *, prev_op: str, inp: torch.Tensor) -> object:
        return module, prev_op, inp[:, 0].tolist()

    monkeypatch.setattr(AWQProcessor, "_search_best_scale", seen)
    search_scales_on_half_of_the_windows()
    processor = AWQProcessor.__new__(AWQProcessor)
    windows = torch.arange(5)[:, None, None].expand(5, 3, 2)
    found = processor._search_best_scale("layer", prev_op="norm", inp=windows)
    assert found == ("layer", "norm", [[0, 0], [1, 1]])
    tokens = torch.arange(4)[:, None].expand(4, 2)
    assert processor._search_best_scale("layer", prev_op="norm", inp=tokens)[2] == [0, 1, 2, 3]

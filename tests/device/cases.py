"""What is run on the CPU and on the pretend card: `python -m tests.device.cases`.

Prints one JSON object per case: its name, and what went wrong, or null. A program of its own: the
card must be there before torch, and cannot be taken out again. `test_on_cuda.py` runs the same
cases on a real one.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from tests.device import pretend_card  # it must be there before torch is

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engine.tiny_engines import tiny_eagle, tiny_llama, tiny_medusa, tiny_speaker
from utils.engine import (
    LLM,
    BeamSearchParams,
    ContiguousKVCache,
    LlamaOps,
    SamplingParams,
    StructuredOutputsParams,
    attention_reference,
)
from utils.engine.config.engine_args import EngineArgs
from utils.engine.config.model import ModelConfig
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore
from utils.hub import resolve_model
from utils.pipeline.stages.packed_batches import ATTENTION, Tokens, answer_loss, pack, pad
from utils.pipeline.studies.lora import add_lora, merge_and_unload
from utils.quant import quantize_model
from utils.quant.model import checkpoint_tensors

PROMPTS = ["w3 w4 w5 w6", "w7 w8 w9", "w1 w3 w3 w4 w9 w11 w12", "w3 w4 w5 w6 w8 w3 w4 w5"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=24)
RANDOM = SamplingParams(
    temperature=0.8, top_p=0.9, top_k=20, min_p=0.02, max_tokens=12, logprobs=3, seed=7
)
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
SMALL = {"num_gpu_blocks_override": 18, "block_size": 4, "max_model_len": 64}
WINDOWS = [[(7 * i + 3 * j) % 100 for j in range(32)] for i in range(8)]


@dataclass(frozen=True)
class Case:
    """`run` gets the device. `same`: its results on both must be equal, numbers nearly so."""

    run: Callable[[str], Any]
    same: bool = True


def engine_cases(folder: Path, kernels: str = "torch") -> dict[str, Case]:
    """Every feature of the engine, on a tiny model; on a card with these `kernels`."""
    tiny_eagle(folder / "eagle", tiny_llama(folder / "target", 1, vocab_size=40))
    tiny_llama(folder / "draft", 2, vocab_size=40, layers=1)
    heads = tiny_medusa(folder / "heads", 3)
    draft = {"method": "draft_model", "model": folder / "draft", "num_speculative_tokens": 3}
    medusa = {"method": "medusa", "model": heads, "num_speculative_tokens": 3}
    eagle = {"method": "eagle", "model": folder / "eagle", "num_speculative_tokens": 3}
    widths = {"num_speculative_tokens": 14, "tree_widths": (2, 2, 2)}
    tree = medusa | widths

    def llm(device: str, **options: Any) -> LLM:
        usual = {"max_model_len": 128, "num_gpu_blocks_override": 64}
        if device == "cuda" and "ops" not in options:
            usual["kernels"] = kernels
        return LLM(folder / "target", device=device, **(usual | options))

    def answers(
        params: SamplingParams = GREEDY,
        same: bool = True,
        times: int = 1,
        prompts: list[str] = PROMPTS,
        **options: Any,
    ) -> Case:
        def run(device: str) -> list[list[str]]:
            engine = llm(device, **options)
            for _ in range(times):
                outputs = engine.generate(prompts, params, use_tqdm=False)
            return [[answer.text for answer in output.outputs] for output in outputs]

        return Case(run, same)

    def graphs(
        times: int = 1, prompts: list[str] = PROMPTS, params: SamplingParams = LONG, **options: Any
    ) -> Case:
        """Steps on CUDA graphs. On the CPU, which has none, the same steps without."""

        def run(device: str) -> list[str]:
            recorded = "cuda_graph" if kernels == "torch" else kernels
            engine = llm(device, kernels=recorded if device == "cuda" else "torch", **options)
            for _ in range(times):
                outputs = engine.generate(prompts, params, use_tqdm=False)
            layers = engine.model.all_layers
            assert device == "cpu" or layers.replays > 5, f"{layers.replays} steps ran on a graph"
            return [output.outputs[0].text for output in outputs]

        return Case(run)

    def stream(device: str) -> str:
        return [output.outputs[0].text for output in llm(device).stream(PROMPTS[0], GREEDY)][-1]

    def shared_store(device: str) -> list[str]:
        """A second engine finds in a store what the first one computed."""
        store, long_prompt = MemoryStore(), [PROMPTS[2] + " w5 w6 w7" * 20]
        for _ in range(2):
            connector = PoolConnector(store)
            engine = llm(device)
            engine.llm_engine = engine.new_engine(kv_connector=connector)
            outputs = engine.generate(long_prompt, GREEDY, use_tqdm=False)
        assert connector.stats.hits and not connector.stats.failures, connector.stats
        return [output.outputs[0].text for output in outputs]

    def beams(device: str) -> list[list[str]]:
        found = llm(device).beam_search(PROMPTS[:2], BeamSearchParams(3, 8))
        return [[sequence.text for sequence in output.sequences] for output in found]

    repeated = [f"{PROMPTS[2]} " * 6] * 2
    several = SamplingParams(n=3, temperature=1.0, min_tokens=4, max_tokens=8, logprobs=2)
    return {
        "greedy": answers(),
        "sampled": answers(RANDOM, same=False),
        "several answers": answers(several, same=False),
        "streamed": Case(stream),
        "beam search": Case(beams),
        "prefix hits": answers(prompts=repeated, times=2),
        "chunked prefill": answers(
            prompts=[*repeated, *PROMPTS], max_num_batched_tokens=32, max_num_seqs=8
        ),
        "preempted, computed again": answers(LONG, prompts=PROMPTS * 2, **SMALL),
        "preempted, swapped": answers(LONG, prompts=PROMPTS * 2, swap_space=0.02, **SMALL),
        "guesses from the text": answers(speculative_config=NGRAM),
        "guesses from the text, sampled": answers(RANDOM, same=False, speculative_config=NGRAM),
        "draft model": answers(speculative_config=draft),
        "draft model, adaptive, sampled": answers(
            RANDOM, same=False, speculative_config=draft | {"adaptive": True}
        ),
        "Medusa": answers(speculative_config=medusa),
        "Medusa's tree": answers(speculative_config=tree),
        "Medusa's tree, sampled": answers(RANDOM, same=False, speculative_config=tree),
        "EAGLE": answers(speculative_config=eagle),
        "EAGLE's tree": answers(speculative_config=eagle | widths),
        "a cache for each request": answers(kv_cache_class=ContiguousKVCache),
        "another attention": answers(ops=LlamaOps(attention=attention_reference)),
        "graphs": graphs(),
        "graphs, with hits": graphs(prompts=repeated, times=2),
        "graphs, in chunks": graphs(
            prompts=[*repeated, *PROMPTS], max_num_batched_tokens=32, max_num_seqs=8
        ),
        "graphs, preempted": graphs(prompts=PROMPTS * 2, swap_space=0.02, **SMALL),
        "a connector": Case(shared_store),
        "all at once": graphs(
            prompts=[*repeated, *PROMPTS] * 2,
            params=SamplingParams(temperature=0, max_tokens=24, min_tokens=3, logprobs=2),
            times=2,
            speculative_config=NGRAM | {"prompt_lookup_min": 3},
            swap_space=0.02,
            max_num_batched_tokens=32,
            max_num_seqs=8,
            num_gpu_blocks_override=48,
            block_size=4,
            max_model_len=128,
        ),
        "float16": answers(dtype="float16", same=False),
        "bfloat16": answers(dtype="bfloat16", same=False),
    }


def form_cases(folder: Path) -> dict[str, Case]:
    """Answers in a form, on a tiny model with the bundled model's tokenizer. They need llguidance.

    Raises:
        ModelError: the bundled model is not here.
    """
    speaker = tiny_speaker(folder / "speaker", resolve_model())
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }

    def answers(device: str, kernels: str, **options: Any) -> list[str]:
        form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
        params = SamplingParams(temperature=0, max_tokens=48, structured_outputs=form)
        llm = LLM(
            speaker,
            device=device,
            kernels=kernels if device == "cuda" else "torch",
            max_model_len=128,
            num_gpu_blocks_override=64,
            **options,
        )
        outputs = llm.generate(["A person:", "Ada is 36."], params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    return {
        "structured output": Case(lambda device: answers(device, "torch")),
        "structured output, guessed, on graphs": Case(
            lambda device: answers(device, "cuda_graph", speculative_config=NGRAM)
        ),
    }


def model_cases() -> dict[str, Case]:
    """Quantizers, LoRA and the measures, on a tiny model of Hugging Face's."""

    def model(device: str, dtype: torch.dtype = torch.float32) -> Any:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=100,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
        return LlamaForCausalLM(config).to(dtype).to(device).eval()

    def logits(llama: Any, device: str) -> list[float]:
        with torch.no_grad():
            out = llama(torch.tensor(WINDOWS[:1], device=device), use_cache=False).logits
        return out[0, -1].tolist()

    def quantized(method: str, dtype: torch.dtype, **options: Any) -> Case:
        def run(device: str) -> list[float]:
            llama = model(device, dtype)
            data = {"windows": WINDOWS} if method in ("gptq", "awq") else {}
            layers = quantize_model(llama, method, use_tqdm=False, **data, **options)
            if method != "nf4" and options.get("bits", 4) == 4:
                symmetric = options.get("sym", method == "gptq")
                checkpoint_tensors(llama, layers, "gptq" if symmetric else "awq")
            return logits(llama, device)

        return Case(run, same=dtype == torch.float32)

    def lora(device: str) -> list[float]:
        llama = model(device)
        add_lora(llama, r=4, lora_alpha=8)
        merge_and_unload(llama)
        return logits(llama, device)

    def packed_loss(device: str) -> list[float]:
        llama = model(device)
        llama.set_attn_implementation(ATTENTION)
        texts = [Tokens([*WINDOWS[0][:20], 1], [3, 4, 2]), Tokens([*WINDOWS[0][:20], 5, 6], [7, 2])]
        with torch.no_grad():
            return [answer_loss(llama, pad(pack(texts))).item()]

    cases = {
        "LoRA, merged": Case(lora),
        "packed loss": Case(packed_loss),
        "a copied model": Case(lambda device: logits(copy.deepcopy(model(device)), device)),
    }
    for dtype in (torch.float32, torch.float16):
        name = str(dtype).removeprefix("torch.")
        cases |= {
            f"RTN, {name}": quantized("rtn", dtype, group_size=32, sym=False),
            f"RTN, 8 bits, {name}": quantized("rtn", dtype, group_size=32, bits=8),
            f"NF4, {name}": quantized("nf4", dtype),
            f"NF4, double, {name}": quantized("nf4", dtype, compress_statistics=True),
            f"GPTQ, {name}": quantized("gptq", dtype, group_size=32),
            f"GPTQ, act_order, {name}": quantized("gptq", dtype, group_size=32, desc_act=True),
            f"AWQ, {name}": quantized("awq", dtype, group_size=32),
        }
    return cases


def training_cases(folder: Path) -> dict[str, Callable[[str], float]]:
    """LoRA and QLoRA in 16 bits: how the gradients on a device lie to those of float32 on the CPU,
    as a cosine. Not for the pretend card, which has no backward pass. QLoRA needs bitsandbytes."""
    from utils.pipeline.stages import finetune

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    texts = [
        Tokens(window[:20] + window[:k], window[k : k + 8]) for k, window in enumerate(WINDOWS)
    ]
    batch = pad(pack(texts))

    def gradients(device: str, dtype: str, nf4: bool) -> torch.Tensor:
        settings = finetune.TrainSettings(1, 8, 1e-3, 8, 16, dtype, device)
        if nf4:
            base: Any = finetune.load_nf4(folder, settings)
        else:
            base = LlamaForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation=ATTENTION
            ).to(device)
        model = finetune.add_lora(base, settings)
        random = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at the beginning, where the gradient of A is zero, too
                parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=random))
        scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")
        scaler.scale(answer_loss(model, batch)).backward()
        found = [p.grad.float().cpu().flatten() for p in model.parameters() if p.requires_grad]
        return torch.cat(found)

    def cosine(dtype: str, nf4: bool) -> Callable[[str], float]:
        def run(device: str) -> float:
            ours, expected = gradients(device, dtype, nf4), gradients("cpu", "float32", nf4)
            return torch.cosine_similarity(ours.double(), expected.double(), dim=0).item()

        return run

    return {
        f"{name}, {dtype}": cosine(dtype, nf4)
        for name, nf4 in (("LoRA", False), ("QLoRA", True))
        for dtype in ("bfloat16", "float16")
    }


def problems(
    cases: dict[str, Case], device: str, expected: Callable[[str], Any]
) -> Iterator[tuple[str, str | None, float]]:
    """Run cases on a device: name, what went wrong or None, seconds. An error ends one case."""
    for name, case in cases.items():
        begin, problem = time.perf_counter(), None
        try:
            result = case.run(device)
            if case.same and not alike(result, wanted := expected(name)):
                problem = f"{result} on {device}, {wanted} on the CPU"
        except Exception:
            problem = traceback.format_exc(limit=-6)
        yield name, problem, time.perf_counter() - begin


def alike(result: Any, expected: Any) -> bool:
    """Two ways of adding up differ in the last digits, and a quantizer may round one up."""
    if isinstance(expected, list) and isinstance(expected[0], float):
        return all(abs(a - b) < 0.02 for a, b in zip(result, expected, strict=True))
    return bool(result == expected)


def two_engines_fit() -> str | None:
    """Two engines of a notebook, with the bundled model, on a card of 15.6 GB."""
    model = ModelConfig.from_pretrained(resolve_model())
    config = EngineArgs(device="cuda").create_engine_config(model)
    tokens = config.num_gpu_blocks * config.block_size
    one = tokens * model.kv_bytes_per_token(config.dtype) + 540e6  # the weights in float32
    share = 2 * one / pretend_card.memory.total
    return None if share < 0.5 else f"two engines need {share:.0%} of the card"


def waits_in_a_step() -> str | None:
    """A decode step waits for the card once: for its tokens. What it sends goes in few copies."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama(Path(folder), 1, vocab_size=40)
        engine = LLM(
            folder, device="cuda", max_model_len=128, num_gpu_blocks_override=64
        ).llm_engine
        params = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, max_tokens=12)
        found = {}
        for name, sampled in (("greedy", GREEDY), ("sampled", params)):
            for number, prompt in enumerate(PROMPTS):
                engine.add_request(f"{name} {number}", prompt, sampled)
            engine.step()  # the prompts
            before = dataclasses.replace(pretend_card.copies)
            engine.step()
            now = pretend_card.copies
            found[name] = (now.to_cpu - before.to_cpu, now.to_card - before.to_card)
            while engine.has_unfinished_requests():
                engine.step()
    good = found["greedy"][0] == found["sampled"][0] == 1 and found["greedy"][1] <= 5
    return None if good else f"(to the CPU, to the card): {found}"


def planted_bugs() -> dict[str, tuple[Callable[[], Any], type[Exception]]]:
    """What CUDA refuses, the pretend card refuses."""
    on_card = torch.ones(3, device="cuda")
    return {
        "two devices": (lambda: on_card + torch.ones(3), RuntimeError),
        "a CPU index into the card is no bug": (lambda: on_card[torch.tensor([0])], type(None)),
        "a number of the CPU is no bug": (lambda: on_card * torch.tensor(2.0), type(None)),
        "numpy": (lambda: on_card.numpy(), TypeError),
        "waiting while a graph is recorded": (
            lambda: recorded(lambda: on_card.sum().item()),
            RuntimeError,
        ),
        "sending while a graph is recorded": (
            lambda: recorded(lambda: torch.tensor([1, 2], device="cuda")),
            RuntimeError,
        ),
        "a graph sees what its buffer holds": (graph_repeats, type(None)),
        "a generator of the CPU": (
            lambda: on_card.exponential_(generator=torch.Generator("cpu")),
            RuntimeError,
        ),
        "a full card": (overfilled, torch.OutOfMemoryError),
        "C++ kernels": (lambda: LLM(device="cuda", kernels="cpp"), ValueError),
    }  # type: ignore[return-value]


def overfilled() -> None:
    """A tensor larger than the card; small ones, which any host has room for."""
    whole = pretend_card.memory.total
    pretend_card.memory.total = pretend_card.memory.used + 1000
    try:
        torch.ones(1001, dtype=torch.uint8, device="cuda")
    finally:
        pretend_card.memory.total = whole


def recorded(work: Callable[[], Any]) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work()


def graph_repeats() -> None:
    """The same kernels on the same memory: what is put into a buffer comes out computed."""
    graph, buffer = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        doubled = (buffer * 2).view(3, 1)
        doubled[0] += 1
    buffer.fill_(5)
    graph.replay()
    assert doubled.flatten().tolist() == [11.0, 10.0, 10.0]


def main() -> None:
    """Run all cases on the CPU, then all on the card, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        cases = engine_cases(Path(folder)) | form_cases(Path(folder)) | model_cases()
        expected = {name: case.run("cpu") for name, case in cases.items()}
        pretend_card.insert()
        for found in problems(cases, "cuda", expected.__getitem__):
            report(*found)
    report("two engines on one card", two_engines_fit())
    report("one wait in a step", waits_in_a_step())
    for name, (bug, error) in planted_bugs().items():
        try:
            bug()
            found: Any = None
        except Exception as raised:
            found = raised
        report(f"planted: {name}", None if isinstance(found, error) else f"got {found!r}")


def report(name: str, problem: str | None, seconds: float = 0.0) -> None:
    print(json.dumps({"case": name, "problem": problem, "seconds": round(seconds, 2)}), flush=True)


if __name__ == "__main__":
    main()

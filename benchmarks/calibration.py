"""Which text to calibrate GPTQ on, and how much: the whole fine-tuned model, quantized each way.

    python benchmarks/calibration.py            # about a quarter of an hour on two cores
    python benchmarks/calibration.py --quick    # one choice, few messages, nothing is saved

writes `results/calibration.json` and `.png`. It needs the pipeline's merged model, or makes it.

All linear layers are quantized by `utils.quant`, whose layer errors are within 5 % of gptqmodel's.
Statistics are collected once for each choice of text, from the 16-bit model; the sizes are nested.
Then every quantized model reads plain English and the right answers, and answers the held-out
messages on our engine. All forward passes are in bfloat16, as a server's are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tqdm import tqdm  # noqa: E402

from benchmarks.common import RESULTS, write_report  # noqa: E402
from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.hub import load_hf_model  # noqa: E402
from utils.pipeline.artifacts import need_stages  # noqa: E402
from utils.pipeline.quantizers.calibration import WINDOW  # noqa: E402
from utils.pipeline.stages.folders import HELD_OUT_FILE, MODEL  # noqa: E402
from utils.pipeline.stages.packed_batches import ATTENTION, answer_perplexity, encode  # noqa: E402
from utils.pipeline.stages.perplexity import perplexity  # noqa: E402
from utils.pipeline.studies.calibration_choices import CHOICES, choice_windows  # noqa: E402
from utils.pipeline.studies.merge_bases import linear_weights, save_checkpoint  # noqa: E402
from utils.pipeline.task.data import Example, read_jsonl  # noqa: E402
from utils.pipeline.task.evaluate import compare, score  # noqa: E402
from utils.profiles import get_profile  # noqa: E402
from utils.quant import SAME_INPUT, InputStats, calibrate, quantize_model  # noqa: E402
from utils.viz.quant.calibration import plot_calibration_sweep  # noqa: E402
from utils.viz.style import use_course_style  # noqa: E402

SEED = 0
PROFILE = get_profile("cpu")
SIZES = (2, 8, 32)  # windows of 512 tokens
MAX_TOKENS = 160

LayerStats = list[dict[str, InputStats]]


class Bench:
    """The merged model, and what is measured of each quantized version of it."""

    def __init__(self, model_dir: Path, examples: list[Example]) -> None:
        self.folder = model_dir
        self.examples = examples
        self.model = load_hf_model(model_dir, dtype=torch.float32, device="cpu")
        self.sdpa = self.model.config._attn_implementation
        self.original = {
            name: t.clone() for name, t in self.model.model.layers.state_dict().items()
        }
        self.linears = [
            f"model.layers.{name.removesuffix('.weight')}"
            for name, t in self.original.items()
            if t.ndim == 2
        ]
        self.reference: list[str] | None = None  # the merged model's answers

    def stats(self, windows: list[list[int]]) -> LayerStats:
        """What each decoder layer's linear layers are given."""
        with half():
            return [stats for _, _, stats in calibrate(self.model, windows, sequential=False)]

    def quantize(self, method: str, stats: LayerStats | None = None, **settings: Any) -> float:
        """Quantize the merged model anew; return the seconds it took."""
        started = time.perf_counter()
        calibrated = None
        if stats is not None:
            layers = self.model.model.layers
            calibrated = [(n, layers[n], layer) for n, layer in enumerate(stats)]
        quantize_model(self.model, method, stats=calibrated, use_tqdm=False, **settings)
        return time.perf_counter() - started

    def measure(self) -> dict[str, Any]:
        """Perplexities and answers of the model as it is now; then the merged weights are back."""
        tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        tokens = encode(tokenizer, self.examples)
        with half():
            text = perplexity(
                self.model, max_tokens=PROFILE.text_tokens, tokenizer=tokenizer, use_tqdm=False
            )
            self.model.set_attn_implementation(ATTENTION)
            answer = answer_perplexity(self.model, tokens[: PROFILE.perplexity_examples])
            self.model.set_attn_implementation(self.sdpa)
        texts = self.answers([t.prompt for t in tokens])
        self.model.model.layers.load_state_dict(self.original)
        expected = [example.answer for example in self.examples]
        if self.reference is None:
            self.reference = texts
        scores = score(texts, expected) | compare(self.reference, texts, expected)
        scores.pop("field_accuracy")
        return {"text_perplexity": text, "answer_perplexity": answer, **scores}

    def answers(self, prompts: list[list[int]]) -> list[str]:
        """What our engine answers in bfloat16, greedily."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_checkpoint(linear_weights(self.model, self.linears), self.folder, folder)
            llm = LLM(folder, "bfloat16", max_model_len=1024, kernels="cpp", device="cpu")
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]


def half() -> torch.autocast:
    """Products in bfloat16, the weights stay as they are."""
    return torch.autocast("cpu", torch.bfloat16)


def added(first: LayerStats | None, second: LayerStats) -> LayerStats:
    """The statistics of both texts, layer by layer."""
    if first is None:
        return second
    total: LayerStats = []
    for one, other in zip(first, second, strict=True):
        layer: dict[str, InputStats] = {}
        for names in SAME_INPUT:  # these share one object
            layer |= dict.fromkeys(names, one[names[0]] + other[names[0]])
        total.append(layer)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small part, and nothing is saved")
    quick = parser.parse_args().quick
    torch.manual_seed(SEED)
    folders = need_stages("data", "merge")
    examples = read_jsonl(folders["data"] / HELD_OUT_FILE)[: 12 if quick else None]
    bench = Bench(folders["merge"] / MODEL, examples)
    sizes, choices = (SIZES[:1], CHOICES[:1]) if quick else (SIZES, CHOICES)
    grid: dict[str, Any] = {"group_size": PROFILE.gptq_group_size, "sym": True}
    results: dict[str, Any] = {"gptq": []}
    bar = tqdm(total=2 + len(sizes) * len(choices), unit="model")

    def record(place: Any, key: Any, run: dict[str, Any]) -> None:
        if key is None:
            place.append(run)
        else:
            place[key] = run
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in run.items()}
        tqdm.write(f"{key or 'gptq'}: {shown}")
        bar.update()
        if not quick:  # after each run: a benchmark that is stopped leaves what it has
            write_report(
                "calibration",
                results,
                ["transformers"],
                model="SmolLM2-135M-Instruct, merged",
                window=WINDOW,
                seed=SEED,
                dtype="bfloat16",
                **grid,
            )

    record(results, "merged", bench.measure())
    seconds = bench.quantize("rtn", **grid)
    record(results, "rtn", {"seconds": seconds, **bench.measure()})
    for choice in choices:
        windows = choice_windows(choice, bench.folder, folders["data"], sizes[-1], SEED)
        stats, done = None, 0
        for size in sizes:
            started = time.perf_counter()
            stats = added(stats, bench.stats(windows[done:size]))
            done = size
            collecting = time.perf_counter() - started
            seconds = bench.quantize("gptq", stats, act_group_aware=True, **grid)
            run = {
                "choice": choice,
                "windows": size,
                "tokens": size * WINDOW,
                "seconds_collecting": collecting,
                "seconds": seconds,
            }
            record(results["gptq"], None, run | bench.measure())
    bar.close()
    if not quick:
        use_course_style()
        figure = plot_calibration_sweep(results)
        figure.savefig(RESULTS / "calibration.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    main()

"""Which text to calibrate GPTQ on, and how much: the whole fine-tuned model, quantized each way.

    python benchmarks/calibration.py             # about a quarter of an hour on two cores
    python benchmarks/calibration.py --resume    # goes on where a run of the same model was stopped
    python benchmarks/calibration.py --quick     # one choice, few messages, nothing is saved

writes `results/calibration.json` and `.png`. It needs the pipeline's merged model, or makes it.

All linear layers are quantized by `utils.quant`, whose layer errors are within 5 % of gptqmodel's.
Statistics are collected once for each choice of text, from the 16-bit model (so the calibration is
not sequential); the sizes are nested. Then every quantized model reads plain English and the right
answers, and answers the held-out messages on our engine. All forward passes are in bfloat16, as a
server's are. Of the two texts it keeps the mean loss of each block of 32 tokens, so that any two
models can be compared on the same tokens (`utils.pipeline.confidence.ratio_interval`).

Under `methods` the same calibration text serves both grids and both methods: what GPTQ's symmetric
grid costs can so be told from what the method gains.
"""

from __future__ import annotations

import argparse
import json
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
from utils.pipeline.confidence import block_means  # noqa: E402
from utils.pipeline.quantizers.calibration import WINDOW  # noqa: E402
from utils.pipeline.stages.folders import HELD_OUT_FILE, MODEL  # noqa: E402
from utils.pipeline.stages.packed_batches import ATTENTION, answer_losses, encode  # noqa: E402
from utils.pipeline.stages.perplexity import exp_or_inf, token_losses  # noqa: E402
from utils.pipeline.studies.calibration_choices import CHOICES, choice_windows  # noqa: E402
from utils.pipeline.studies.merge_bases import save_checkpoint  # noqa: E402
from utils.pipeline.task.data import Example, read_jsonl  # noqa: E402
from utils.pipeline.task.evaluate import score  # noqa: E402
from utils.profiles import get_profile  # noqa: E402
from utils.quant import SAME_INPUT, InputStats, calibrate, quantize_model  # noqa: E402
from utils.viz.quant.calibration import plot_calibration_sweep  # noqa: E402
from utils.viz.style import use_course_style  # noqa: E402

SEED = 0
PROFILE = get_profile("cpu")
SIZES = (2, 8, 32)  # windows of 512 tokens
MAX_TOKENS = 100  # a right answer has 93 at most
MIXTURE, MIXTURE_SIZE = "customers and novel", 8  # what `methods` are calibrated on
ORDER = (MIXTURE, *(choice for choice in CHOICES if choice != MIXTURE))
NUM_ANSWERS = 64  # right answers that each model reads

METHODS: dict[str, dict[str, Any]] = {  # all on the asymmetric grid
    "rtn": {"sym": False},
    "gptq": {"sym": False, "act_group_aware": True},
    "awq": {"max_rows": 256},  # outputs that its scales are judged by
}

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
            text = token_losses(
                self.model, max_tokens=PROFILE.text_tokens, tokenizer=tokenizer, use_tqdm=False
            )
            self.model.set_attn_implementation(ATTENTION)
            answer = answer_losses(self.model, tokens[:NUM_ANSWERS])
            self.model.set_attn_implementation(self.sdpa)
        texts = self.answers([t.prompt for t in tokens])
        self.model.model.layers.load_state_dict(self.original)
        expected = [example.answer for example in self.examples]
        scores = score(texts, expected)
        scores.pop("field_accuracy")
        return {
            "text_perplexity": exp_or_inf(text.double().mean().item()),
            "answer_perplexity": exp_or_inf(answer.double().mean().item()),
            "text_losses": [round(mean, 5) for mean in block_means(text)],
            "answer_losses": [round(mean, 7) for mean in block_means(answer)],
            **scores,
        }

    def answers(self, prompts: list[list[int]]) -> list[str]:
        """What our engine answers in bfloat16, greedily."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # The norms, too: AWQ divides them.
            weights = {
                f"model.layers.{name.removesuffix('.weight')}": weight
                for name, weight in self.model.model.layers.state_dict().items()
            }
            save_checkpoint(weights, self.folder, folder)
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


def found_earlier(file: Path) -> dict[str, Any]:
    """The results of a run that was stopped, to go on from."""
    report: dict[str, Any] = json.loads(file.read_text())
    results: dict[str, Any] = report["results"]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small part, and nothing is saved")
    parser.add_argument("--resume", action="store_true", help="keep what the last run measured")
    options = parser.parse_args()
    quick: bool = options.quick
    torch.manual_seed(SEED)
    folders = need_stages("data", "merge")
    examples = read_jsonl(folders["data"] / HELD_OUT_FILE)[: 12 if quick else None]
    bench = Bench(folders["merge"] / MODEL, examples)
    sizes, choices = (SIZES[:1], CHOICES[:1]) if quick else (SIZES, ORDER)
    grid: dict[str, Any] = {"group_size": PROFILE.gptq_group_size, "sym": True}
    results: dict[str, Any] = {"gptq": [], "methods": []}
    earlier = RESULTS / "calibration.json"
    if options.resume and earlier.is_file():
        results |= found_earlier(earlier)
    bar = tqdm(total=2 + len(sizes) * len(choices) + len(METHODS), unit="model")

    def save() -> None:
        bar.update()
        results["gptq"].sort(key=lambda run: (CHOICES.index(run["choice"]), run["windows"]))
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

    def compare_methods(stats: LayerStats) -> None:
        """Both methods and plain rounding on the asymmetric grid, calibrated on one text."""
        for method, settings in METHODS.items():
            if any(run["method"] == method for run in results["methods"]):
                continue
            seconds = bench.quantize(method, stats, group_size=grid["group_size"], **settings)
            run = {"method": method, "sym": False, "seconds": seconds}
            results["methods"].append(run | bench.measure())
            save()

    if "merged" not in results:
        results["merged"] = bench.measure()
        save()
    if "rtn" not in results:
        seconds = bench.quantize("rtn", **grid)
        results["rtn"] = {"seconds": seconds, **bench.measure()}
        save()
    for choice in choices:
        done = {run["windows"] for run in results["gptq"] if run["choice"] == choice}
        compares = choice == MIXTURE and len(results["methods"]) < len(METHODS) and not quick
        if done >= set(sizes) and not compares:
            continue
        windows = choice_windows(choice, bench.folder, folders["data"], sizes[-1], SEED)
        stats, collected = None, 0
        for size in sizes:
            if size in done and not (compares and size <= MIXTURE_SIZE):
                continue
            started = time.perf_counter()
            stats = added(stats, bench.stats(windows[collected:size]))
            collected = size
            if size not in done:
                collecting = time.perf_counter() - started
                seconds = bench.quantize("gptq", stats, act_group_aware=True, **grid)
                run = {
                    "choice": choice,
                    "windows": size,
                    "tokens": size * WINDOW,
                    "seconds_collecting": collecting,
                    "seconds": seconds,
                }
                results["gptq"].append(run | bench.measure())
                save()
            if compares and size == MIXTURE_SIZE:
                compare_methods(stats)
    bar.close()
    if not quick:
        use_course_style()
        figure = plot_calibration_sweep(results, "GPTQ keeps what it was shown")
        figure.savefig(RESULTS / "calibration.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    main()

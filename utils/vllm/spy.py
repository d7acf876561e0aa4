"""Which stations of the chain a program really visits, and in which order.

Run as a program of its own, `python -m utils.vllm.spy MODEL`, it lets vLLM answer a prompt
and prints its visits as JSON. `visits_in_vllm` starts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from utils.vllm.chain import REACHED, STATIONS, Place, our_folder, vllm_folder
from utils.vllm.run_program import run_program

Visit = tuple[int, str]  # how deep in the visits around it, and the function


def record_visits(folder: Path, places: Iterable[Place], run: Callable[[], object]) -> list[Visit]:
    """Call `run`, and note each call of the functions that `places` name, in their order.

    Only calls in this thread are seen.

    Args:
        folder: of the package that `Place.file` lies in.
    """
    names = {(str(folder / place.file), place.function) for place in places}
    visits: list[Visit] = []
    seen: list[FrameType] = []  # kept, so that no other call can be taken for one of these
    inside: list[FrameType] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_qualname
            # A generator is called again for each value. It is one visit.
            if (frame.f_code.co_filename, name) in names:
                if frame not in seen:
                    visits.append((len(inside), name))
                    seen.append(frame)
                inside.append(frame)
        elif event == "return" and inside and inside[-1] is frame:
            inside.pop()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(before)
    return visits


def visits_in_vllm(model: Path) -> list[Visit]:
    """What vLLM visits to answer a prompt with one token, with its engine in one process.

    On a card vLLM 0.32 by default begins a step before it has read the last one's tokens, and its
    model runner is a newer one. Both are switched off, so that the way is the same everywhere.

    Raises:
        WorkerError: vLLM failed.
    """
    printed = run_program(
        ["-m", "utils.vllm.spy", model], one_process=True, env={"VLLM_USE_V2_MODEL_RUNNER": "0"}
    )
    return [(depth, name) for depth, name in json.loads(printed.splitlines()[-1])]


def visits_in_ours(run: Callable[[], object]) -> list[Visit]:
    """The same for the course's engine: what it visits while `run` is called."""
    places = [station.ours for station in STATIONS if station.ours is not None]
    return record_visits(our_folder(), places, run)


def main(model: str) -> None:
    """Let vLLM answer once to warm up and once to be watched; print the visits."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        max_model_len=512,
        block_size=32,
        enforce_eager=True,
        gpu_memory_utilization=0.4,
        async_scheduling=False,
    )
    params = SamplingParams(temperature=0, max_tokens=1)

    def run() -> None:
        llm.generate("The capital of France is", params, use_tqdm=False)

    run()
    places = [*(station.theirs for station in STATIONS), *REACHED]
    print(json.dumps(record_visits(vllm_folder(), places, run)))


if __name__ == "__main__":
    main(sys.argv[1])

"""What each lesson holds on a card at its worst moment, by formula: docs/hardware.md.

Part I always runs the bundled model, so a lesson needs as much on every card. In Part II it is the
profile's; only notebook 11, which holds many copies, takes the bundled one. In Part III notebooks
15 to 17 run on the CPU. Every `LLM` takes the memory of its KV cache when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from utils.engine.config.engine_args import DEFAULT_KV_CACHE_MEMORY
from utils.pipeline.estimates.cards import CARD_OF_PROFILE, CARDS, Card
from utils.pipeline.estimates.estimates import CUDA_CONTEXT, FLOAT, estimate_stages
from utils.pipeline.estimates.training_memory import HALF
from utils.pipeline.estimates.workload import kv_bytes_per_token, shape_of
from utils.profiles import PROFILES, Profile

PASSING = 0.3e9  # activations, masks, logits of a step
SERVED_SHARE = 0.4  # of the card, for vLLM in notebooks 08c, 12b, 14 and 18
# Of Part I: how many models there are at once, in float32 and in 16 bit, and bytes of KV caches.
ONE_CACHE = float(DEFAULT_KV_CACHE_MEMORY)
PART_ONE: Mapping[str, tuple[int, int, float]] = {
    "00": (1, 0, ONE_CACHE),
    "01": (1, 0, ONE_CACHE),
    "02": (0, 0, 0.0),  # on the CPU
    "03": (1, 0, ONE_CACHE),
    "04": (0, 0, 0.0),  # on the CPU
    "05": (1, 0, 4 * ONE_CACHE),
    "06": (1, 0, 7 * 256 * 2**20),
    "07": (2, 1, 12 * 100e6),
    "07b": (0, 0, 0.0),  # on the CPU
    "08": (2, 0, 5 * 400e6),
    "08b": (0, 0, 0.0),  # on the CPU
    "08c": (2, 1, 4 * 200e6),
    "08d": (0, 0, 0.0),  # on the CPU
}
ON_CPU = ("15", "16", "17")
LESSONS = (*PART_ONE, "09", "09b", "10", "11", "12", "12b", "13", "13b", "14", "14b", *ON_CPU, "18")


def on_card(lesson: str, profile: Profile, card: Card) -> float:
    """Bytes of the card that a lesson takes, by its number, such as "05"; 0: it needs none.

    Raises:
        KeyError: there is no such lesson.
    """
    if lesson in ON_CPU:
        return 0.0
    small = shape_of(PROFILES["cpu"]).num_parameters()
    if lesson in PART_ONE:
        full, half, caches = PART_ONE[lesson]
        held = small * (FLOAT * full + HALF * half) + caches
        if lesson == "08c":  # Hugging Face's model is gone when vLLM is asked
            held = max(held, held - FLOAT * small + SERVED_SHARE * card.memory_bytes)
        return held + CUDA_CONTEXT + PASSING if held else 0.0
    shape = shape_of(profile)
    weights, widest = HALF * shape.num_parameters(), max(w for w, _ in shape.linears().values())
    stages = {name: e.card_bytes for name, e in estimate_stages(profile, card).items()}
    bundled = {n: e.card_bytes for n, e in estimate_stages(PROFILES["gpu-bundled"], card).items()}
    # The model, and of one layer the second moments of all inputs and float32 copies.
    quantized = weights + FLOAT * (3 * widest**2 + 6 * shape.hidden_size**2) + CUDA_CONTEXT
    return {
        "09": quantized,
        "09b": quantized,
        # The 16-bit model for comparison, a KV cache for four short answers, and the stage.
        "10": weights + 4 * 1024 * kv_bytes_per_token(shape) + stages["finetune"],
        # Five copies of all weights in float32, and an engine.
        "11": 6 * FLOAT * small + ONE_CACHE + max(bundled["finetune"], bundled["merge"]),
        "12": max(stages["gptq"], stages["awq"], weights + CUDA_CONTEXT + PASSING),
        # The bundled model three times in float32, our engine, and vLLM.
        "12b": 4 * FLOAT * small + SERVED_SHARE * card.memory_bytes + CUDA_CONTEXT + PASSING,
        "13": max(stages["serve"], stages["gptq"]),
        "13b": max(stages["serve"], stages["gptq"]),
        "14": FLOAT * small + 2 * ONE_CACHE + SERVED_SHARE * card.memory_bytes + CUDA_CONTEXT,
        # Our engine runs on the CPU; vLLM with the bundled model and with the 4-bit one.
        "14b": max(
            SERVED_SHARE * card.memory_bytes + CUDA_CONTEXT, stages["serve"], stages["gptq"]
        ),
        "18": FLOAT * small + ONE_CACHE + SERVED_SHARE * card.memory_bytes + CUDA_CONTEXT,
    }[lesson]


def table() -> str:
    """In Markdown: GB on the card for each lesson and profile, on the profile's smallest card."""
    columns = [(PROFILES[name], CARDS[card]) for name, card in CARD_OF_PROFILE.items()]
    heads = [f"`{p.name}`, {c.name} ({c.memory_bytes / 1e9:.0f} GB)" for p, c in columns]
    rows: dict[tuple[str, ...], list[str]] = {}  # lessons that need the same share a row
    for lesson in LESSONS:
        sizes = (on_card(lesson, profile, card) for profile, card in columns)
        cells = tuple(f"{size / 1e9:.1f}" if size else "-" for size in sizes)
        rows.setdefault(cells, []).append(lesson)
    lines = [["notebook", *heads], ["---", *["---:"] * len(columns)]]
    lines += [[", ".join(lessons), *cells] for cells, lessons in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""`python -m utils.pipeline --dry-run`: what each stage would do and take, without its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from utils.pipeline.estimates.cards import CARD_OF_PROFILE, CARDS, MIB, USABLE, Card, get_card
from utils.pipeline.estimates.estimates import Estimate, estimate_stages
from utils.pipeline.estimates.training_memory import HALF
from utils.pipeline.estimates.workload import shape_of
from utils.pipeline.manifests import MANIFEST
from utils.pipeline.runner import Stage
from utils.profiles import Profile

# The minutes stand in docs/using.md, too, and the memory in docs/hardware.md.
ON_CPU = (
    "\nOn two cores all stages together take 20 to 50 minutes, 8 GB of memory and 2 GB of disk.\n"
    "`make pipeline` runs them, and goes on where it was interrupted."
)


def dry_run(profile: Profile, stages: list[Stage], out: Path, card_name: str | None = None) -> int:
    """Print every stage with its inputs and settings, and what it is expected to take.

    On the `cpu` profile nothing needs to be estimated: what the last run measured is shown.

    Returns:
        The exit code: 0, or 1 when a stage does not fit the card, or this machine's memory.

    Raises:
        ValueError: unknown card, or one for a profile that uses none.
    """
    card = card_for(profile, card_name)
    estimates = estimate_stages(profile, card) if card else {}
    for stage in stages:
        print(f"{stage.name}: {stage.title}")
        print(f"    needs {', '.join(stage.needs) or '-'}")
        print(f"    settings {json.dumps(stage.settings)}")
        if card:
            print(f"    estimated: {_in_words(estimates[stage.name])}")
        else:
            print(f"    measured: {_last_run(out / stage.name / MANIFEST)}")
    if not card:
        print(ON_CPU)
        return 0
    print(f"\n{_table(profile, card, {stage.name: estimates[stage.name] for stage in stages})}")
    if problems := misfits(profile, stages, card_name):
        print(f"\nThe profile {profile.name} does not fit:", *problems, sep="\n    ")
        return 1
    print("Every stage fits.")
    return 0


def misfits(profile: Profile, stages: list[Stage], card_name: str | None = None) -> list[str]:
    """Which stages do not fit the card, or this machine's memory, and why; a sentence for each.

    The bundled model on a CPU fits every machine that the course is for.
    """
    card = card_for(profile, card_name)
    if card is None:
        return []
    estimates = estimate_stages(profile, card)
    problems = [f"{s.name}: {p}" for s in stages if (p := estimates[s.name].problem)]
    if torch.cuda.is_available() and not card_name:  # else it is about another machine
        here = psutil.virtual_memory().total
        problems += [
            f"{s.name}: {host / 1e9:.1f} GB of host memory; this machine has {here / 1e9:.1f}."
            for s in stages
            if (host := estimates[s.name].host) > here
        ]
    return problems


def card_for(profile: Profile, name: str | None) -> Card | None:
    """The card by name; else the one in this machine; else the smallest that the profile is for.

    Raises:
        ValueError: unknown card, or one for a profile that uses none.
    """
    if profile.device == "cpu":
        if name:
            raise ValueError(f"The profile {profile.name} uses no card. Leave out --card.")
        return None
    if name:
        return get_card(name)
    card = CARDS[CARD_OF_PROFILE[profile.name]]
    if not torch.cuda.is_available():
        return card
    here = torch.cuda.get_device_properties(0)
    words = here.name.replace("-", " ").split()  # "NVIDIA A100-SXM4-40GB"
    card = next((c for c in CARDS.values() if c.name.split()[0] in words), card)
    return replace(card, memory_mib=int(here.total_memory / MIB / USABLE))


def _in_words(estimate: Estimate) -> str:
    parts = sorted(estimate.card.items(), key=lambda part: -part[1])
    card = "no card memory"
    if parts:
        listed = ", ".join(f"{what} {size / 1e9:.1f}" for what, size in parts)
        card = f"{estimate.card_bytes / 1e9:.1f} GB on the card ({listed})"
    note = f"; {estimate.note}" if estimate.note else ""
    return f"{card}, {estimate.host / 1e9:.1f} GB of host memory, {_time(estimate.seconds)}{note}"


def _table(profile: Profile, card: Card, estimates: dict[str, Estimate]) -> str:
    shape = shape_of(profile)
    lines = [
        f"Estimated from formulas, not measured: {profile.name} on an NVIDIA {card.name} with "
        f"{card.memory_bytes / 1e9:.1f} GB for programs.",
        f"{shape.name}: {shape.num_parameters() / 1e9:.2f} billion parameters; "
        f"{HALF * shape.num_parameters() / 1e9:.1f} GB to download once.",
        "",
        f"{'stage':10}{'card (GB)':>12}{'host (GB)':>12}{'time':>12}",
    ]
    for name, estimate in estimates.items():
        size = f"{estimate.card_bytes / 1e9:.1f}" if estimate.card else "-"
        lines.append(
            f"{name:10}{size:>12}{estimate.host / 1e9:>12.1f}{_time(estimate.seconds):>12}"
        )
    total = sum(estimate.seconds for estimate in estimates.values())
    lines.append(f"{'together':10}{'':>12}{'':>12}{_time(total):>12}")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _last_run(manifest: Path) -> str:
    try:
        last = json.loads(manifest.read_text())
        return f"{last['seconds']:.0f} s, {last['peak_memory_bytes'] / 1e9:.1f} GB in the last run"
    except (OSError, ValueError, KeyError):
        return "not run here yet"

"""What the pipeline has made, for notebooks: found, or made now with progress bars.

Notebooks 10 to 13 look at the stages of one pipeline run. `make pipeline` makes all of them; a
notebook that is opened first makes the ones that it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from utils.pipeline.runner import Runner
from utils.pipeline.stages.chain import build_stages
from utils.pipeline.stages.folders import BASE
from utils.profiles import Profile, get_profile

# About how long a stage takes with the cpu profile on two cores, in words for the reader.
ESTIMATES = {
    "data": "a few seconds",
    "finetune": "about 10 minutes",
    "merge": "about 1 minute",
    "gptq": "about 2 minutes",
    "awq": "about 3 minutes",
    "evaluate": "about 4 minutes",
    "serve": "about 3 minutes",
    "report": "a few seconds",
}


def pipeline_runner(profile: Profile | None = None) -> Runner:
    """The profile's pipeline, with its outputs in `artifacts/` ($COURSE_ARTIFACTS).

    Those of another profile than this machine's go into a folder of its name in there.
    """
    from utils.hub import resolve_model
    from utils.pipeline.__main__ import default_out

    usual = get_profile()
    profile = profile or usual
    out = default_out() if profile == usual else default_out() / profile.name
    stages = build_stages(profile, profile.gptq_tool, profile.awq_tool)
    return Runner(out, stages, {BASE: resolve_model(profile.model)})


def need_stages(*names: str, profile: Profile | None = None) -> dict[str, Path]:
    """Return the folders of these stages; make those that are absent, out of date or damaged.

    Every byte of these folders is read and compared with its hash: up to a second or two.

    Raises:
        StageError: an unknown stage, or no disk space.
    """
    runner = pipeline_runner(profile)
    runner.chosen(list(names))  # refuses unknown names
    wanted = _with_needs(runner, names)
    missing = [
        stage.name
        for stage, is_current in runner.plan(wanted)
        if not is_current or (stage.name in names and runner.damage(stage.name))
    ]
    if missing:
        times = ", ".join(f"{name} ({ESTIMATES.get(name, 'unknown')})" for name in missing)
        print(
            f"Not here, or not whole; made now, once: {times}. Times are for two cores.", flush=True
        )
        runner.run(wanted, wait=True)  # perhaps `make pipeline` is at it
    return {name: runner.out / name for name in names}


def measures_of(name: str, profile: Profile | None = None) -> dict[str, Any] | None:
    """The manifest of a stage that was made from what is here now, or None. Nothing is run."""
    runner = pipeline_runner(profile)
    return runner.manifest(name) if runner.is_current(runner.stages[name]) else None


def _with_needs(runner: Runner, names: tuple[str, ...]) -> list[str]:
    wanted: set[str] = set()
    queue = [name for name in names if name in runner.stages]
    while queue:
        name = queue.pop()
        if name not in wanted:
            wanted.add(name)
            queue += [need for need in runner.stages[name].needs if need in runner.stages]
    return [name for name in runner.stages if name in wanted]

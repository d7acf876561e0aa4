"""`python -m utils.pipeline`: the whole pipeline, headless, resumable."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before torch is imported, and inherited by every subprocess: waiting threads sleep.
for _name, _value in {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
}.items():
    os.environ.setdefault(_name, _value)

ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Run the pipeline; return the exit code."""
    from utils.linux_only import linux_only

    if problem := linux_only("The pipeline"):  # before packages are imported that are not there
        print(problem, file=sys.stderr)
        return 1

    from utils.hub import resolve_model
    from utils.model_folder import ModelError
    from utils.pipeline.estimates.cards import CARDS
    from utils.pipeline.estimates.dry_run import dry_run, misfits
    from utils.pipeline.runner import Runner, StageError
    from utils.pipeline.stages.chain import build_stages
    from utils.pipeline.stages.folders import BASE
    from utils.processes.supervised import WorkerError
    from utils.profiles import PROFILES, get_profile, require_device

    parser = argparse.ArgumentParser(
        prog="python -m utils.pipeline",
        description="Fine-tune, merge, quantize, evaluate and serve one model. "
        "Stages that are complete and unchanged are skipped.",
    )
    parser.add_argument("--profile", choices=PROFILES, help="default: what fits this machine")
    parser.add_argument("--out", type=Path, default=default_out(), help="default: artifacts/")
    parser.add_argument("--stages", help="only these, as a list with commas; default: all")
    parser.add_argument("--gptq-tool", choices=("gptqmodel", "auto-gptq"))
    parser.add_argument("--awq-tool", choices=("gptqmodel", "autoawq"))
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be done, and what it takes"
    )
    parser.add_argument("--card", choices=CARDS, help="for --dry-run; default: the one here")
    options = parser.parse_args(arguments)
    try:
        profile = get_profile(options.profile)
        stages = build_stages(
            profile, options.gptq_tool or profile.gptq_tool, options.awq_tool or profile.awq_tool
        )
        names = None if options.stages is None else options.stages.split(",")
        if names == [""]:
            known = ", ".join(stage.name for stage in stages)
            raise ValueError(
                f"--stages names no stage. Leave it out for all, or choose of {known}."
            )
        chosen = Runner(options.out, stages, {}).chosen(names)
        if options.dry_run:
            return dry_run(profile, chosen, options.out, options.card)
        require_device(profile)
        if problems := misfits(profile, chosen):
            # Before anything is downloaded.
            advice = "The bundled model fits nearly every card: --profile gpu-bundled."
            raise ValueError("\n    ".join([f"{profile.name} does not fit.", *problems, advice]))
        runner = Runner(options.out, stages, {BASE: resolve_model(profile.model)})
        os.environ["HF_HUB_OFFLINE"] = "1"  # the model is here, and no stage asks for another
        print(f"Profile {profile.name}, model {profile.model}, output in {options.out}", flush=True)
        manifests = runner.run(names)
    except (StageError, ModelError, WorkerError, RuntimeError, ValueError, OSError) as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if "report" not in manifests:
        return 0
    from utils.pipeline.stages.report import print_report

    return 0 if print_report(options.out / "report") else 2


def default_out() -> Path:
    """`$COURSE_ARTIFACTS`, or `artifacts/` beside `utils/`."""
    return Path(os.environ.get("COURSE_ARTIFACTS") or ROOT / "artifacts")


if __name__ == "__main__":
    sys.exit(main())

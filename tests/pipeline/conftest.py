"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.scale import PIPELINE_PROFILE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def small_model_dir(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's first two layers, as a folder: the same code in a tenth of the time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("small") / "model"
    config = AutoConfig.from_pretrained(model_path)
    config.num_hidden_layers = 2
    config.layer_types = None
    model = AutoModelForCausalLM.from_pretrained(model_path, config=config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for path in model_path.glob("tokenizer*"):
        shutil.copy2(path, folder)
    for path in model_path.glob("*.jinja"):
        shutil.copy2(path, folder)
    return folder


@pytest.fixture(scope="session")
def pipeline_run() -> Path:
    """The whole pipeline at this scale, once; complete and unchanged stages are not repeated.

    Its output stays in $COURSE_ARTIFACTS, so that notebooks and later runs share it.
    """
    from utils.pipeline.__main__ import default_out
    from utils.profiles import ENV_VAR

    command = [sys.executable, "-m", "utils.pipeline"]
    environment = os.environ | {ENV_VAR: PIPELINE_PROFILE}
    out = default_out()
    out.mkdir(parents=True, exist_ok=True)
    # Another worker may be running it. And what a worker says itself is shown nowhere.
    with FileLock(out / ".tests.lock"), open(out / "tests.log", "w+") as log:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        log.seek(0)
        said = log.read()
    # 2 means that it ran, and that a promise was not kept: the tests say which.
    assert done.returncode in (0, 2), f"the pipeline failed: {said[-3000:]}"
    return out

"""Where a model comes from: the bundled one, a local folder, or a hub id.

Run as a program, `python -m utils.hub`, this file prepares the bundled model and prints its folder.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utils.bundled_model import BUNDLED_GGUF as BUNDLED_GGUF  # lessons find it here
from utils.bundled_model import bundled_folder
from utils.model_folder import ModelError, check_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUNDLED = "bundled"


def resolve_model(model: str | Path = BUNDLED) -> Path:
    """Return a local folder that holds the model in Hugging Face format.

    Args:
        model: "bundled"; or the path of a folder; or a hub id such as
            "mistralai/Mistral-7B-Instruct-v0.3", which is downloaded on first use.

    Returns:
        A folder with `config.json`, whole safetensors weights and the tokenizer's files.

    Raises:
        ModelError: the model is missing, damaged or cannot be fetched.
    """
    if str(model) == BUNDLED:
        return bundled_folder()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return check_folder(folder)
    looks_like_path = str(model).startswith((".", "/", "~")) or str(model).count("/") != 1
    if looks_like_path:
        raise ModelError(
            f'No model at {str(model)!r}. Expected "{BUNDLED}", a folder that holds config.json '
            'and safetensors, or a hub id of the form "owner/name".'
        )
    return _download(str(model))


def load_tokenizer(model: str | Path = BUNDLED) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `model` (see `resolve_model`); all callers share it, unchanged.

    Raises:
        ModelError: its files are missing or damaged.
    """
    folder = resolve_model(model)
    file = folder / "tokenizer.json"
    return _tokenizer(folder, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.lru_cache(maxsize=4)  # half a second each, and an engine or a check loads it anew
def _tokenizer(folder: Path, modified: int) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever stands in its files, it meets code that expects otherwise
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {type(error).__name__}: "
            f"{str(error)[:200]}. Fetch the model again."
        ) from error


def load_hf_model(
    model: str | Path = BUNDLED, dtype: torch.dtype = torch.float32, device: str | None = None
) -> PreTrainedModel:
    """Load `model` with Hugging Face transformers: the reference that the course compares with.

    Args:
        model: see `resolve_model`.
        dtype: the weights' type. float32 is what equality proofs use.
        device: "cpu" or "cuda"; None takes CUDA where there is one.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve_model(model)
    loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
    )
    return loaded.to(device).eval()


# --- a model from the hub -----------------------------------------------------------------------


def _download(hub_id: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "tokenizer.model", "*.jinja", "*.txt"]
    # Mistral's own single-file copy of the weights would double the download.
    ignore = ["consolidated*"]
    try:
        local = snapshot_download(
            hub_id, allow_patterns=patterns, ignore_patterns=ignore, local_files_only=True
        )
        return check_folder(Path(local))
    except (LocalEntryNotFoundError, ModelError):
        pass  # not here yet, or only half of it
    try:
        files = HfApi().model_info(hub_id, files_metadata=True).siblings or []
        wanted = [f for f in files if f.rfilename.endswith((".json", ".safetensors", ".model"))]
        size = sum(f.size or 0 for f in wanted if not f.rfilename.startswith("consolidated"))
        _require_space(hub_id, size)
        print(f"Downloading {hub_id}: {size / 1e9:.1f} GB (once).", flush=True)
        local = snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=ignore)
    except ModelError:
        raise
    except Exception as error:  # of the hub, of the system, or of whatever speaks HTTP for the hub
        says = str(error).partition("\n")[0]
        raise ModelError(
            f"Cannot download {hub_id!r}: {type(error).__name__}: {says}\n"
            "Check the network and HF_HUB_OFFLINE; a gated model needs `hf auth login`. "
            "Without network, use the cpu profile (COURSE_PROFILE=cpu) or a local folder. "
            "Behind a proxy: docs/troubleshooting.md."
        ) from error
    return check_folder(Path(local))


def _require_space(hub_id: str, size: int) -> None:
    """Raise a ModelError if a download of `size` bytes does not fit the disk of the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < size + 1e9:  # what else is written meanwhile
        raise ModelError(
            f"{hub_id} has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {cache}. Free "
            "some, or set HF_HUB_CACHE to a folder on another disk."
        )


if __name__ == "__main__":
    print(resolve_model(BUNDLED))

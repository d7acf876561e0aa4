"""The learner's merge of files, against peft's: exercise 6."""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_11.layer import in_float64, not_rounded_once
from utils.checks.lab_11.matching import by_expression
from utils.hub import load_hf_model, load_tokenizer, resolve_model
from utils.pipeline.stages.finetune import quiet_peft

MergeFiles = Callable[[Path, Path, Path], Any]
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
TARGETS = ["q_proj", "v_proj", "down_proj"]
PROMPT = "The capital of France is"
PATIENCE = 2000
SOUND = ("", TURNED := "none, but weights [in, out]")  # adapters that must not be refused


def write_adapter(model: nn.Module, folder: Path, **options: Any) -> Any:
    """peft's own adapter beside `model`, its B no longer zero, saved; the unmerged model."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        adapted = get_peft_model(model, LoraConfig(target_modules=TARGETS, **options)).eval()
        for name, parameter in adapted.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.01)
        adapted.save_pretrained(str(folder))
    return adapted


def write_base(state: dict[str, Tensor], folder: Path, config: str, files: int) -> None:
    """A model's folder, its tensors in so many files, whose names differ."""
    folder.mkdir()
    (folder / "config.json").write_text(config)
    names = list(state)
    for number, file in enumerate(("model", "part-2", "the_rest")[:files]):
        part = {name: state[name].clone().contiguous() for name in names[number::files]}
        save_file(part, folder / f"{file}.safetensors")


def everything(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of each file."""
    files = [file for folder in folders for file in folder.rglob("*")]
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def called(merge_files: MergeFiles, base: Path, adapter: Path, out: Path, given: str) -> Any:
    """What came of a call; what it was given to read must be as it was."""
    before, here = everything(base, adapter), Path.cwd()
    with watching(), patience_of(PATIENCE):
        result = attempt(merge_files, base, adapter, out)
    os.chdir(here)
    if everything(base, adapter) != before:
        raise Mismatch(
            "The folder of the base or of the adapter has changed. They are only to be read.",
            input=given,
            look="Write into `out_dir` alone.",
        )
    if not isinstance(result, Raised | None):
        raise Mismatch(
            "`merge_files` returns something.",
            input=given,
            got=repr(result)[:80],
            look="What it makes lies in `out_dir`.",
        )
    return result


def compare(base: Path, adapter: Path, out: Path, given: str) -> dict[str, Tensor]:
    """Raise `Mismatch` unless `out` holds the merged model; its tensors."""
    file = out / "model.safetensors"
    if not file.is_file() or not (out / "config.json").is_file():
        raise Mismatch("`out_dir` lacks `model.safetensors` or `config.json`.", input=given)
    if (out / "config.json").read_bytes() != (base / "config.json").read_bytes():
        raise Mismatch("`config.json` is not the base's.", input=given, look="`shutil.copy`")
    if (out / "config.json").is_symlink():
        raise Mismatch(
            "`config.json` is a link, and breaks when the base is moved.",
            input=given,
            look="`shutil.copy`",
        )
    try:
        metadata = safe_open(file, "pt").metadata() or {}
    except SafetensorError as error:
        raise Mismatch(
            f"`model.safetensors` cannot be read: {error}.", input=given, look="`save_file`"
        ) from None
    if metadata.get("format") != "pt":
        raise Mismatch(
            "The file does not say that it is PyTorch's, and transformers asks for that.",
            input=given,
            look='`metadata={"format": "pt"}`',
        )
    state: dict[str, Tensor] = {}
    for part in base.glob("*.safetensors"):
        state |= load_file(part)
    config = json.loads((adapter / ADAPTER[0]).read_text())
    pairs = by_expression(config, load_file(adapter / ADAPTER[1]), state)
    merged = load_file(file)
    if odd := sorted(merged.keys() ^ state.keys()):
        raise Mismatch(
            f"`{odd[0]}` is only in one of base and merged model.",
            input=given,
            look="All `*.safetensors` of the base belong to it.",
        )
    for name, weight in state.items():
        if name in pairs:
            says = not_rounded_once(in_float64(weight, *pairs[name], config), merged[name])
        else:
            says = "" if torch.equal(merged[name], weight) else "It should be as it was."
        if says:
            raise Mismatch(
                f"`{name}` is wrong in your file. {says}",
                input=given,
                look="`merge_state`, with what the files hold.",
            )
    return merged


def rehearse(merge_files: MergeFiles) -> None:
    """A tiny model in one file and in several; adapters with and without rsLoRA; damaged ones."""
    model = TinyModel().hf
    for number, options in enumerate(
        ({"r": 4, "lora_alpha": 16}, {"r": 3, "lora_alpha": 6, "use_rslora": True})
    ):
        dtype = (torch.bfloat16, torch.float32)[number]
        for damage in (*SOUND, "no B", "DoRA", "no layer"):
            given = f"a tiny model in {3 - 2 * number} files, {options}, damage: {damage or 'none'}"
            with tempfile.TemporaryDirectory() as name:
                base, adapter, out = (Path(name) / part for part in ("base", "adapter", "new/out"))
                state = {n: t.to(dtype) for n, t in model.state_dict().items()}
                if damage == TURNED:
                    state |= {n: t.T for n, t in state.items() if any(x in n for x in TARGETS)}
                write_base(state, base, model.config.to_json_string(), 3 - 2 * number)
                write_adapter(copy.deepcopy(model), adapter, **options)
                spoil(adapter, damage)
                if number and damage in SOUND:  # somebody has merged into this folder before
                    shutil.copytree(base, out)
                    (out / "config.json").write_text("{}")
                result = called(merge_files, base, adapter, out, given)
                refused = isinstance(result, Raised) and issubclass(result.error, ValueError)
                if damage in SOUND and isinstance(result, Raised):
                    raise Mismatch(result.says, input=given, look=result.look)
                if damage in SOUND:
                    compare(base, adapter, out, given)
                elif not refused:
                    raise Mismatch(
                        "A damaged adapter is to be refused with a ValueError.",
                        input=given,
                        look="`match_adapter`",
                    )
                elif list(out.rglob("*.safetensors")):
                    raise Mismatch(
                        "The adapter was refused, and a model was written.",
                        input=given,
                        look="Merge first, write then.",
                    )


def spoil(adapter: Path, damage: str) -> None:
    tensors = load_file(adapter / ADAPTER[1])
    last = sorted(tensors)[-1]
    if damage == "no B":
        del tensors[last]
    if damage == "no layer":
        tensors = {name.replace(".layers.1.", ".layers.7."): t for name, t in tensors.items()}
    save_file(tensors, adapter / ADAPTER[1])
    changes = {"DoRA": {"use_dora": True}, TURNED: {"fan_in_fan_out": True}}
    if damage in changes:
        config = json.loads((adapter / ADAPTER[0]).read_text()) | changes[damage]
        (adapter / ADAPTER[0]).write_text(json.dumps(config))


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    """float32 [T, vocab] of the prompt."""
    ids = load_tokenizer(resolve_model("bundled")).encode(PROMPT)
    out: Tensor = model(torch.tensor([ids])).logits[0]
    return out.float()


@functools.cache
def real_adapter() -> tuple[tempfile.TemporaryDirectory[str], Tensor, Tensor]:
    """peft's adapter of the bundled model, in a folder; its logits unmerged; the base's."""
    folder = tempfile.TemporaryDirectory()
    model = load_hf_model(resolve_model("bundled"), dtype=torch.float32, device="cpu")
    before = logits(model)
    adapted = write_adapter(model, Path(folder.name), r=8, lora_alpha=32)
    return folder, logits(adapted), before


def merge_the_real_model(merge_files: MergeFiles) -> str:
    """Merge into the bundled model; compare weights with float64, logits with peft's unmerged."""
    folder, unmerged, before = real_adapter()
    adapter, given = Path(folder.name), "the bundled model, and an adapter that peft wrote"
    with tempfile.TemporaryDirectory() as name:
        base, out = Path(name) / "base", Path(name) / "merged"
        shutil.copytree(resolve_model("bundled"), base)  # so that no mistake can damage the model
        result = called(merge_files, base, adapter, out, given)
        if isinstance(result, Raised):
            raise Mismatch(result.says, input=given, look=result.look)
        merged = compare(base, adapter, out, given)
        found = logits(load_hf_model(out, dtype=torch.float32, device="cpu"))
    moved = float((unmerged - before).norm() / before.norm())
    apart = float((found - unmerged).norm() / before.norm())
    if not apart < 0.2 * moved:
        raise Mismatch(
            "The weights are right, and the merged model's logits are not the unmerged one's.",
            input=given,
            expected=f"a distance far below {moved:.1%}",
            got=f"{apart:.2%}",
        )
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in merged.values()})
    return (
        f"transformers has loaded your file, {len(merged)} tensors in {', '.join(dtypes)}. The "
        f"adapter moves the logits by {moved:.1%}. Merged and rounded, they are {apart:.2%} from "
        "those of peft's unmerged model. Nothing in the new folder knows of an adapter: any engine "
        "can serve it."
    )

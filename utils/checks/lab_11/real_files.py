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
from utils.checks.kit.lab.words import WORDS, read_words
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_11.adapters import Config, Tensors, by_expression, dtype_of
from utils.checks.lab_11.merged import in_float64, not_rounded_once
from utils.hub import load_hf_model, load_tokenizer, resolve_model
from utils.pipeline.stages.finetune import quiet_peft

MergeFiles = Callable[[Path, Path, Path], Any]
CLAUSES = read_words(Path(__file__).with_name(WORDS))["engine"]["clauses"]
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
MODEL, CONFIG, OLDER = "model.safetensors", "config.json", "older"
TARGETS = ["q_proj", "v_proj", "down_proj"]
PROMPT = "The capital of France is"
PATIENCE = {"tiny": 60, "real": 600}  # ticks: 3 and 30 seconds of computing
SOUND = ("none", TURNED := "none, but weights are [in, out]")  # what must not be refused
DAMAGES = (*SOUND, "an A has no B", "DoRA", "matrices of a layer that the base lacks")
TINY: tuple[Config, ...] = (
    {"r": 4, "lora_alpha": 16},
    {"r": 3, "lora_alpha": 6, "use_rslora": True},
)
REAL = "the bundled model, and an adapter that peft wrote"


def mismatch(clause: str, given: str, says: str = "", got: str = "") -> Mismatch:
    """A clause of the words for this exercise, which may quote `says`."""
    text, look = CLAUSES[clause]
    return Mismatch(text.replace("{says}", says), input=given, got=got, look=look)


# Folders


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


@functools.cache
def tiny_adapter(number: int) -> tuple[tempfile.TemporaryDirectory[str], Any]:
    """The folder of an adapter that peft made, and the tiny model that it belongs to."""
    folder, model = tempfile.TemporaryDirectory(), TinyModel().hf
    write_adapter(copy.deepcopy(model), Path(folder.name), **TINY[number])
    return folder, model


def read_base(folder: Path) -> Tensors:
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def read_adapter(folder: Path) -> tuple[Config, Tensors]:
    return json.loads((folder / ADAPTER[0]).read_text()), load_file(folder / ADAPTER[1])


def write_base(state: Tensors, folder: Path, config: str, files: int) -> None:
    """A model's folder, its tensors in so many files, whose names differ."""
    folder.mkdir()
    (folder / CONFIG).write_text(config)
    names = list(state)
    for number, file in enumerate(("model", "part-2", "the_rest")[:files]):
        part = {name: state[name].clone().contiguous() for name in names[number::files]}
        save_file(part, folder / f"{file}.safetensors")


def prepare(base: Path, adapter: Path, number: int, damage: str) -> None:
    """Write the folders of a tiny base and of its adapter, with this damage."""
    made, model = tiny_adapter(number)
    dtype = (torch.bfloat16, torch.float32)[number]
    state = {n: t.to(dtype) for n, t in model.state_dict().items()}
    if damage == TURNED:
        state |= {n: t.T for n, t in state.items() if any(target in n for target in TARGETS)}
    write_base(state, base, model.config.to_json_string(), 3 - 2 * number)
    shutil.copytree(made.name, adapter)
    config, tensors = read_adapter(adapter)
    if "no B" in damage:
        del tensors[max(tensors)]
    if "lacks" in damage:
        tensors = {name.replace(".layers.1.", ".layers.7."): t for name, t in tensors.items()}
    changes: dict[str, Config] = {"DoRA": {"use_dora": True}, TURNED: {"fan_in_fan_out": True}}
    (adapter / ADAPTER[0]).write_text(json.dumps(config | changes.get(damage, {})))
    save_file(tensors, adapter / ADAPTER[1])


# Judging


def everything(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of each file."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def called(merge_files: MergeFiles, base: Path, adapter: Path, out: Path, given: str) -> Any:
    """What came of a call; what it was given to read must be as it was."""
    before, here = everything(base, adapter), Path.cwd()
    with watching(), patience_of(PATIENCE["real" if given == REAL else "tiny"]):
        result = attempt(merge_files, base, adapter, out)
    os.chdir(here)
    if everything(base, adapter) != before:
        raise mismatch("only read", given)
    if not isinstance(result, Raised | None):
        raise mismatch("returns", given, got=repr(result)[:80])
    return result


def accepted(merge_files: MergeFiles, base: Path, adapter: Path, out: Path, given: str) -> Tensors:
    """The tensors of the merged model, or `Mismatch`."""
    result = called(merge_files, base, adapter, out, given)
    if isinstance(result, Raised):
        raise Mismatch(result.says, input=given, look=result.look)
    clause, says = fault_of_folder(base, out)
    if not clause:
        merged = load_file(out / MODEL)
        clause, says = fault_of_tensors(merged, read_base(base), *read_adapter(adapter))
    if clause:
        raise mismatch(clause, given, says)
    return merged


def fault_of_folder(base: Path, out: Path) -> tuple[str, str]:
    """A clause and what it quotes, or two empty texts."""
    for name in (MODEL, CONFIG):
        if not (out / name).is_file():
            return "files", f"`{name}`"
    if (out / ADAPTER[0]).exists():
        return "adapter", ""
    config = (out / CONFIG).read_bytes()
    if config == OLDER.encode():
        return "older", f"`{CONFIG}`"
    if config != (base / CONFIG).read_bytes() or (out / CONFIG).is_symlink():
        return "config", ""
    try:
        with safe_open(out / MODEL, "pt") as opened:
            metadata, names = opened.metadata() or {}, opened.keys()
    except (SafetensorError, OSError) as error:
        return "unreadable", str(error)
    if OLDER in names:
        return "older", f"`{MODEL}`"
    return ("", "") if metadata.get("format") == "pt" else ("metadata", "")


def fault_of_tensors(
    merged: Tensors, base: Tensors, config: Config, tensors: Tensors
) -> tuple[str, str]:
    """As `fault_of_folder`, of what the file holds."""
    for name in sorted(merged.keys() ^ base.keys()):
        return "names", f"`{name}` is only in the {'merged model' if name in merged else 'base'}."
    pairs = by_expression(config, tensors, base)
    for name, weight in base.items():
        if merged[name].dtype != weight.dtype:
            dtypes = f"{dtype_of(merged[name])}, and {dtype_of(weight)} in the base"
            return "tensors", f"`{name}` is {dtypes}."
        if name in pairs:
            if wrong := not_rounded_once(in_float64(weight, *pairs[name], config), merged[name]):
                return "tensors", f"`{name}`: {wrong[1]}"
        elif not torch.equal(merged[name], weight):
            return "tensors", f"`{name}` has no matrices, and differs from the base."
    return "", ""


def rehearse(merge_files: MergeFiles) -> None:
    """A tiny model in one file and in several; adapters with and without rsLoRA; damaged ones."""
    for number in range(len(TINY)):
        for damage in DAMAGES:
            with tempfile.TemporaryDirectory() as folder:
                rehearse_once(merge_files, Path(folder), number, damage)


def rehearse_once(merge_files: MergeFiles, folder: Path, number: int, damage: str) -> None:
    base, adapter, out = (folder / part for part in ("base", "adapter", "new/out"))
    prepare(base, adapter, number, damage)
    given = f"a tiny model, an adapter with {TINY[number]}; damage: {damage}"
    if number:  # somebody has merged into this folder before
        given += "; `out_dir` holds an older merge"
        out.mkdir(parents=True)
        (out / CONFIG).write_text(OLDER)
        save_file({OLDER: torch.zeros(1)}, out / MODEL)
    before = everything(folder / "new")
    if damage in SOUND:
        accepted(merge_files, base, adapter, out, given)
        return
    result = called(merge_files, base, adapter, out, given)
    if not (isinstance(result, Raised) and issubclass(result.error, ValueError)):
        got = result.says if isinstance(result, Raised) else "no error"
        raise mismatch("refuses", given, got=got)
    if everything(folder / "new") != before:
        raise mismatch("written", given)


# The real model


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


def loaded(folder: Path) -> Any:
    """A model's folder as transformers loads it."""
    try:
        return load_hf_model(folder, dtype=torch.float32, device="cpu")
    except Exception as error:  # whatever transformers makes of a learner's folder
        says = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise mismatch("loads", REAL, says) from None


def merge_the_real_model(merge_files: MergeFiles) -> str:
    """Merge into the bundled model; compare weights with float64, logits with peft's unmerged."""
    folder, unmerged, before = real_adapter()
    with tempfile.TemporaryDirectory() as name:
        base, out = Path(name) / "base", Path(name) / "merged"
        shutil.copytree(resolve_model("bundled"), base)  # so that no mistake can damage the model
        merged = accepted(merge_files, base, Path(folder.name), out, REAL)
        found = logits(loaded(out))
    moved = float((unmerged - before).norm() / before.norm())
    apart = float((found - unmerged).norm() / before.norm())
    if not apart < 0.2 * moved:
        raise mismatch("logits", REAL, f"{apart:.2%}", got=f"far below {moved:.1%} expected")
    dtypes = sorted({dtype_of(t) for t in merged.values()})
    return (
        f"transformers has loaded your file, {len(merged)} tensors in {', '.join(dtypes)}. The "
        f"adapter moves the logits by {moved:.1%}. Merged and rounded, they are {apart:.2%} from "
        "those of peft's unmerged model. Nothing in the new folder knows of an adapter, so any "
        "engine can serve it."
    )

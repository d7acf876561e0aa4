"""What the stages do: settings and folders in, one folder out. Notebooks 10 to 13 call them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from utils.pipeline.manifests import MANIFEST
from utils.pipeline.stages.folders import (
    BASE,
    HELD_OUT_FILE,
    MODEL,
    MODELS,
    QUANTIZED,
    TRAIN_FILE,
    model_folder,
    weight_bytes,
)
from utils.pipeline.task.data import Example, read_jsonl, write_jsonl
from utils.pipeline.task.messages import generate
from utils.profiles import fast_dtype, half_dtype

CALIBRATION_EXAMPLES, CUSTOMERS_PER_CHAT = 400, 8
# Fine-tuning on another kind of text may cost some skill in plain English, but not most of it.
MAX_MERGE_RATIO = 2.0


def run_data(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write the training and the held-out examples."""
    for split, file in (("train", TRAIN_FILE), ("held_out", HELD_OUT_FILE)):
        write_jsonl(out / file, generate(split, settings[split], settings["seed"]))
    return {"train": settings["train"], "held_out": settings["held_out"]}


def run_finetune(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Train the adapter."""
    from utils.pipeline.stages.finetune import TrainSettings, finetune

    _quiet()
    train = read_jsonl(inputs["data"] / TRAIN_FILE)
    return finetune(inputs[BASE], train, out, TrainSettings(**settings))


def run_merge(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Merge, and refuse a result that lost its English or did not learn the task."""
    from utils.pipeline.stages.merge import merge
    from utils.pipeline.stages.perplexity import check_perplexity

    _quiet()
    merge(inputs[BASE], inputs["finetune"], out / MODEL)
    before, after = (
        perplexities(folder, inputs["data"], **settings) for folder in (inputs[BASE], out / MODEL)
    )
    check_perplexity("merge, plain text", before["text"], after["text"], MAX_MERGE_RATIO)
    check_perplexity("merge, answers", before["answer"], after["answer"], 1.0)
    return {"before": before, "after": after}


def run_quantize(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Quantize the merged model; it checks the perplexity of its result itself."""
    from utils.pipeline.stages.quantize import quantize

    examples = settings["calibration_examples"]
    texts = calibration_texts(inputs["merge"] / MODEL, inputs["data"], examples)
    return quantize(
        settings["method"],
        settings["tool"],
        inputs["merge"] / MODEL,
        out / MODEL,
        texts,
        group_size=settings["group_size"],
        seed=settings["seed"],
        check_tokens=settings["check_tokens"],
        calibration_tokens=settings["calibration_tokens"],
    )


def run_evaluate(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Answer the held-out messages with each model, as it is served; score the answers."""
    from utils.pipeline.task.evaluate import compare, score
    from utils.vllm.engine_settings import EngineSettings
    from utils.vllm.session import VllmSession

    _quiet()
    examples = read_jsonl(inputs["data"] / HELD_OUT_FILE)
    engine = EngineSettings(**settings["engine"]).arguments()
    # The merge stage measured the perplexity of its two models already.
    merged = json.loads((inputs["merge"] / MANIFEST).read_text())["measures"]
    known = {BASE: merged["before"], "merge": merged["after"]}
    measures: dict[str, Any] = {}
    answers: dict[str, list[str]] = {}
    with VllmSession() as session:
        for name in _progress():
            folder = model_folder(inputs, name)
            asked = examples[: settings["base_messages"]] if name == BASE else examples
            expected = [example.answer for example in asked]
            session.start(folder, **engine, enable_prefix_caching=True)
            batch = session.generate(_prompts(folder, asked), max_tokens=settings["max_tokens"])
            answers[name] = batch.texts
            _write_answers(out / f"{name}.json", asked, text=batch.texts)
            measures[name] = score(batch.texts, expected) | {
                "tokens_per_second": batch.tokens_per_second,
                "bytes": weight_bytes(folder),
            }
            if name in QUANTIZED:
                measures[name] |= compare(answers["merge"], answers[name], expected)
    for name in MODELS:
        folder = model_folder(inputs, name)
        measures[name]["perplexity"] = known.get(name) or perplexities(
            folder, inputs["data"], **settings["read"]
        )
    return measures


def run_serve(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Some of them without and with prefix caching; one question over HTTP to a real server."""
    from utils.pipeline.task.evaluate import parse_answer, score
    from utils.vllm.engine_settings import EngineSettings
    from utils.vllm.serve import measure_prefix_caching, vllm_server
    from utils.vllm.session import VllmSession

    examples = read_jsonl(inputs["data"] / HELD_OUT_FILE)[: settings["messages"]]
    expected = [example.answer for example in examples]
    engine = EngineSettings(**settings["engine"])
    measures: dict[str, Any] = {}
    with VllmSession() as session:
        for name in _progress():
            folder = model_folder(inputs, name)
            prompts = _prompts(folder, examples)
            result = measure_prefix_caching(
                session, folder, prompts, max_tokens=settings["max_tokens"], settings=engine
            )
            texts = {key: result.pop(key) for key in ("text_without_prefix_caching", "text")}
            _write_answers(out / f"{name}.json", examples, **texts)
            for key, answers in texts.items():
                suffix = key.removeprefix("text")
                result[f"exact_match{suffix}"] = score(answers, expected)["exact_match"]
            measures[name] = result | {"num_examples": len(examples)}
    folder = model_folder(inputs, "gptq")
    print("      starting the OpenAI-compatible server", flush=True)
    with vllm_server(folder, engine) as server:
        text = server.chat(examples[0].messages(), settings["max_tokens"])
        metrics = server.get("/metrics")
    measures["server"] = {
        "answer": text,
        "is_valid_answer": parse_answer(text) is not None,
        "has_metrics": "vllm:time_to_first_token_seconds" in metrics,
    }
    return measures


def run_report(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Put everything into one table and one figure, check the promises, and add the adapter."""
    from utils.pipeline.stages.report import write_report

    return write_report(settings, inputs, out)


def calibration_texts(
    model_dir: Path, data_dir: Path, examples: int = CALIBRATION_EXAMPLES
) -> list[str]:
    """Training conversations, several to a chat, and plain English beside them.

    Conversations are what the weights will meet in service. Calibrated on them alone, GPTQ rounds
    away much of the model's English: perplexity on plain text rose by half. In a chat for each
    conversation, most of the tokens would be the system prompt, the same each time, and a few
    thousand tokens would hold the answers to a handful of customers. So it stands once before
    `CUSTOMERS_PER_CHAT` of them.
    """
    from transformers import AutoTokenizer

    from utils.pipeline.stages.perplexity import load_text

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    customers = read_jsonl(data_dir / TRAIN_FILE)[:examples]
    chats = []
    for start in range(0, len(customers), CUSTOMERS_PER_CHAT):
        several = customers[start : start + CUSTOMERS_PER_CHAT]
        chat = several[0].messages()[:1]  # the system prompt
        for customer in several:
            answer = {"role": "assistant", "content": customer.answer_text()}
            chat += [customer.messages()[1], answer]
        chats.append(tokenizer.apply_chat_template(chat, tokenize=False))
    return [*chats, load_text("emma")]


def perplexities(
    model_dir: Path, data_dir: Path, *, text_tokens: int, answers: int
) -> dict[str, float]:
    """Perplexity on so many tokens of plain English, and on so many right answers (held out)."""
    import torch
    from transformers import AutoTokenizer

    from utils.pipeline.stages.packed_batches import ATTENTION, answer_perplexity, encode
    from utils.pipeline.stages.perplexity import load_model, perplexity

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    # On a GPU in 16 bits: in 32, the larger models would not fit.
    dtype = getattr(torch, half_dtype()) if torch.cuda.is_available() else torch.float32
    model = load_model(model_dir, dtype)
    held_out = encode(tokenizer, read_jsonl(data_dir / HELD_OUT_FILE)[:answers])
    # On a CPU, too, products are taken in 16 bits where that is faster: the perplexity is the same
    # to a few parts in 10,000.
    with torch.autocast("cpu", torch.bfloat16, enabled=fast_dtype() == "bfloat16"):
        text = perplexity(model, max_tokens=text_tokens, tokenizer=tokenizer, use_tqdm=False)
        model.set_attn_implementation(ATTENTION)
        return {"text": text, "answer": answer_perplexity(model, held_out)}


def _progress() -> Iterator[str]:
    """The models' names, with a progress bar."""
    progress = tqdm(MODELS, desc="vLLM", unit="model")
    for name in progress:
        progress.set_postfix_str(name)
        yield name


def _prompts(model_dir: Path, examples: list[Example]) -> list[list[int]]:
    from transformers import AutoTokenizer

    from utils.pipeline.stages.packed_batches import encode

    return [
        t.prompt
        for t in encode(AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False), examples)
    ]


def _write_answers(path: Path, examples: list[Example], **texts: list[str]) -> None:
    """Each message with the right answer, and what a model answered, under the names given."""
    lines = [
        {"message": example.message, "expected": example.answer}
        | {name: answers[number] for name, answers in texts.items()}
        for number, example in enumerate(examples)
    ]
    path.write_text(json.dumps(lines, indent=1, ensure_ascii=False))


def _quiet() -> None:
    """Leave the stages' own progress bars and hide those of loading and saving a model."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # bitsandbytes reports that an optional kernel, which would have to be downloaded, is absent.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

"""The adapter as others can use it: its files, and a model card that the run itself writes.

Every number on the card comes from the manifests of the stages and from the report's results. The
card follows Hugging Face's format (https://huggingface.co/docs/hub/model-cards): a header that
programs read, then text for people. Mitchell et al., "Model Cards for Model Reporting", 2019.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from utils.hub import BUNDLED
from utils.pipeline.confidence import share_interval
from utils.pipeline.stages.promises import BASE_NOTE, CERTAINTY
from utils.pipeline.task.data import SYSTEM_PROMPT

CARD, CONFIG, WEIGHTS = "README.md", "adapter_config.json", "adapter_model.safetensors"
BUNDLED_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
LICENSE = "apache-2.0"  # ours; that of the base holds as well
SETTINGS = {
    "steps": "steps",
    "batch_size": "examples in a batch",
    "learning_rate": "highest learning rate",
    "lora_r": "LoRA's r",
    "lora_alpha": "LoRA's alpha",
    "dtype": "computed in",
    "device": "device",
    "seed": "seed",
}


def write_adapter(
    results: dict[str, Any], manifests: dict[str, Any], adapter: Path, out: Path
) -> None:
    """Copy an adapter to `out`, with its card; no folder of this machine is named there.

    Args:
        results: of the report; `manifests`: those of the stages "data" and "finetune".
        adapter: the folder of the stage "finetune".
    """
    out.mkdir()
    shutil.copyfile(adapter / WEIGHTS, out / WEIGHTS)
    config = json.loads((adapter / CONFIG).read_text())
    config["base_model_name_or_path"] = base_of(results["model"])
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (out / CARD).write_text(adapter_card(results, manifests), encoding="utf-8")


def base_of(model: str) -> str:
    """The base's name on the hub; of a folder only its last part: others have no such folder."""
    if model == BUNDLED:
        return BUNDLED_ID
    return Path(model).name if Path(model).is_dir() else model


def adapter_card(results: dict[str, Any], manifests: dict[str, Any]) -> str:
    """The card: header and text.

    Args:
        results: of the report.
        manifests: those of the stages "data" and "finetune".
    """
    rows = {row["name"]: row for row in results["rows"]}
    return f"---\n{_header(results, rows['merge'])}\n---\n\n{_text(results, manifests, rows)}"


def _header(results: dict[str, Any], row: dict[str, Any]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    measured = [
        EvalResult(
            task_type="text-generation",
            task_name="Structured extraction",
            dataset_type="generated",
            dataset_name="Customer messages, held out",
            dataset_split="held_out",
            metric_type=key,
            metric_name=name,
            metric_value=round(row[key], 4),
        )
        for key, name in (("exact_match", "Exact match"), ("valid_json", "Valid JSON"))
    ]
    data = ModelCardData(
        language="en",
        license=LICENSE,
        library_name="peft",
        base_model=base_of(results["model"]),
        pipeline_tag="text-generation",
        tags=["lora", "qlora", "structured-extraction", "from-kv-cache-to-vllm"],
        model_name="Customer messages to JSON, QLoRA",
        eval_results=measured,
    )
    return data.to_yaml()


def _text(results: dict[str, Any], manifests: dict[str, Any], rows: dict[str, Any]) -> str:
    data, tuned = manifests["data"]["settings"], manifests["finetune"]
    learned, base = tuned["measures"], base_of(results["model"])
    settings = [f"| {name} | {tuned['settings'][key]} |" for key, name in SETTINGS.items()]
    packages = ", ".join(f"{n} {v}" for n, v in tuned["versions"].items() if v[:1].isdigit())
    table = [_row(row) for row in rows.values()]
    wrong = rows["merge"]["field_accuracy"]
    worst = min(wrong, key=wrong.get)
    return f"""\
# Customer messages to JSON: a QLoRA adapter for {base}

Reads a customer's message in English, and answers with one line of JSON of nine fields. It is what
the pipeline of the course *From KV Cache to vLLM* trains, a teaching example; this card was written
by the run that trained it (profile `{results["profile"]}`).

## Use

The system prompt is part of the model: without it, or with another, nothing below holds.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{base}")
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "this folder")
chat = [{{"role": "system", "content": SYSTEM_PROMPT}}, {{"role": "user", "content": message}}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt",
                                       return_dict=True)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=128)[0]))
```

`SYSTEM_PROMPT`:

```text
{SYSTEM_PROMPT}
```

## Training

{data["train"]} generated messages (seed {data["seed"]}); their data card is the course's
`utils/pipeline/task/README.md`. The base was frozen in NF4;
{learned["trained_parameters"]:,} parameters were trained on {learned["tokens"]:,} tokens.
The loss on the answers fell from
{learned["first_loss"]:.2f} to {learned["last_loss"]:.4f}.

| setting | value |
|---|---|
{chr(10).join(settings)}
| packages | {packages} |
| seconds | {tuned["seconds"]:.0f} |
| peak memory, GB | {tuned["peak_memory_bytes"] / 1e9:.1f} |

## Measured

Exact match: every field right, on messages whose templates, names and numbers training never saw.
The adapter was merged into the 16-bit base, and served by vLLM, as all four were.

| model | messages | valid JSON | exact match | perplexity, answers | perplexity, plain English |
|---|---:|---:|---:|---:|---:|
{chr(10).join(table)}

{CERTAINTY}

The field that is wrong most often is `{worst}`: right in {wrong[worst]:.1%} of the messages.

## Limits

- The messages are made from templates by a program. Real ones are longer, angrier, and stranger.
  How well the adapter reads those was not measured.
- English only, one kind of shop, and the five issues and three requests of the system prompt. A
  message about anything else gets one of them all the same.
- An answer of the right form can be wrong. Nothing here says how sure the model is.
- Fine-tuning on one task can cost other skills: compare the perplexities on plain English.
- Do not decide about people or their money by its answers, and give it no private messages for a
  test: it is a teaching example.
{"" if results["model"] != BUNDLED else chr(10) + BASE_NOTE + chr(10)}"""


def _row(row: dict[str, Any]) -> str:
    total = row["num_examples"]
    low, high = share_interval(round(row["exact_match"] * total), total)
    return (
        f"| {row['label']} | {total} | {row['valid_json']:.1%} "
        f"| {row['exact_match']:.1%} [{low:.0%} to {high:.0%}] "
        f"| {row['answer_perplexity']:.3f} | {row['text_perplexity']:.1f} |"
    )

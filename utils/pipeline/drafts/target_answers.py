"""What a draft model, Medusa heads and an EAGLE layer learn from: the target's own answers.

Speculation pays when the guess is what the target will say. So nothing teaches better than the
target's own answers, and the probabilities that it gave to every token of them.

Zhou et al., "DistillSpec", 2023, https://arxiv.org/abs/2310.08461, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm

from utils.engine import LLM, SamplingParams
from utils.pipeline.drafts.chat_questions import chat_questions
from utils.pipeline.task.messages import generate

FILE = "answers.safetensors"
TOP_K = 32  # tokens of a distribution that are kept; the bundled model's hold 95 % and more


@dataclass(frozen=True)
class Answer:
    """One answer of the target.

    `hidden` [len(answer), hidden_size] are the target's last hidden states, after its final norm.
    Row `j` is the one that `answer[j]` was sampled from: it belongs to the token before.
    `prompt_hidden` [len(prompt) - 1, hidden_size] are those of the prompt, without its last token.
    """

    prompt: list[int]
    answer: list[int]
    hidden: Tensor
    prompt_hidden: Tensor


@dataclass(frozen=True)
class SoftTargets:
    """Distributions over the vocabulary, by their most probable tokens.

    `token_ids` and `probs` are [N, k]; the probabilities of a row add up to 1.
    """

    token_ids: Tensor
    probs: Tensor

    def __getitem__(self, rows: Tensor | slice) -> SoftTargets:
        return SoftTargets(self.token_ids[rows], self.probs[rows])


def conversations(
    split: str, num_chats: int, num_extractions: int, seed: int
) -> list[list[dict[str, str]]]:
    """Everyday questions, then customer messages of the pipeline's extraction task."""
    chats = [[{"role": "user", "content": q}] for q in chat_questions(split, num_chats, seed)]
    return chats + [example.messages() for example in generate(split, num_extractions, seed)]


def write_answers(
    llm: LLM,
    messages: list[list[dict[str, str]]],
    max_tokens: int,
    temperature: float,
    seed: int,
    use_tqdm: bool = True,
) -> list[Answer]:
    """Let `llm` answer each conversation, and keep the hidden states of all its tokens.

    The engine leaves them with its model runner, so they cost nothing to collect.

    Raises:
        ValueError: some were never computed, or twice: prefix hits or preemptions.
    """
    params = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed + i)
        for i in range(len(messages))
    ]
    engine = llm.llm_engine
    requests = engine.inputs.from_conversations(messages, params)
    for request in requests:
        engine.add(request)
    hidden: dict[str, list[Tensor]] = {request.request_id: [] for request in requests}
    with tqdm(total=len(requests), desc="answers", unit="answer", disable=not use_tqdm) as progress:
        while engine.has_unfinished_requests():
            gained = engine.advance()
            for name, rows in engine.executor.hidden_states.items():
                hidden[name].append(rows.cpu())
            progress.update(sum(request.is_finished for request in gained))
    answers = []
    for request in requests:
        prompt, answer = list(request.prompt_token_ids), list(request.output_token_ids)
        rows = torch.cat(hidden[request.request_id])
        if len(rows) != len(prompt) + len(answer) - 1:
            raise ValueError(
                "The hidden state of each token is needed once. Create the LLM with "
                "enable_prefix_caching=False, and with blocks for all the answers."
            )
        before = len(prompt) - 1
        answers.append(Answer(prompt, answer, rows[before:].clone(), rows[:before].clone()))
    return answers


@torch.inference_mode()
def soft_targets(hidden: Tensor, lm_head: Tensor, k: int = TOP_K) -> SoftTargets:
    """The target's own distributions: its `k` most probable tokens after each hidden state.

    Args:
        hidden: [N, hidden_size]
        lm_head: [vocab_size, hidden_size], of the same dtype
    """
    token_ids, probs = [], []
    for rows in tqdm(hidden.split(512), desc="distributions", unit="batch"):
        # The same as the largest of the probabilities, divided by their sum, without a softmax over
        # the vocabulary.
        top = (rows @ lm_head.T).topk(k)
        token_ids.append(top.indices)
        probs.append(top.values.float().softmax(dim=-1))
    return SoftTargets(torch.cat(token_ids), torch.cat(probs))


def save_answers(folder: Path, answers: list[Answer]) -> None:
    """Write `answers` into `folder`, as one safetensors file."""
    tensors = {
        "token_ids": torch.tensor([t for a in answers for t in a.prompt + a.answer]),
        "prompt_lengths": torch.tensor([len(a.prompt) for a in answers]),
        "answer_lengths": torch.tensor([len(a.answer) for a in answers]),
        "hidden": torch.cat([a.hidden for a in answers]),
        "prompt_hidden": torch.cat([a.prompt_hidden for a in answers]),
    }
    save_file(tensors, folder / FILE)


def load_answers(folder: Path) -> list[Answer]:
    """Read what `save_answers` wrote.

    Raises:
        ValueError: there is no such file in `folder`.
    """
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} holds no {FILE}. Run the stage distill_data first.")
    tensors = load_file(folder / FILE)
    prompt_lengths = tensors["prompt_lengths"].tolist()
    answer_lengths = tensors["answer_lengths"].tolist()
    lengths = [p + a for p, a in zip(prompt_lengths, answer_lengths, strict=True)]
    texts = tensors["token_ids"].split(lengths)
    hidden = tensors["hidden"].split(answer_lengths)
    before = tensors["prompt_hidden"].split([length - 1 for length in prompt_lengths])
    return [
        Answer(ids[:p].tolist(), ids[p:].tolist(), h, b)
        for ids, p, h, b in zip(texts, prompt_lengths, hidden, before, strict=True)
    ]

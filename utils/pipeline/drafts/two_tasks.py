"""The two tasks that notebook 07 guesses for: one that copies a lot, and one that does not."""

from __future__ import annotations

from utils.engine import LLM, SamplingParams
from utils.pipeline.drafts.chat_questions import chat_questions
from utils.pipeline.task.messages import generate

NUM_MESSAGES, NUM_QUESTIONS, NUM_SOLVED = 3, 16, 2


def two_tasks(llm: LLM, num_messages: int = NUM_MESSAGES) -> dict[str, list[list[int]]]:
    """Prompts of "extraction", with solved examples in front of each message, and of "chat".

    Args:
        num_messages: of "extraction".
    """
    solved: list[dict[str, str]] = []
    for example in generate("train", NUM_SOLVED):
        answer = {"role": "assistant", "content": example.answer_text()}
        solved += [{"role": "user", "content": example.message}, answer]
    conversations: dict[str, list[list[dict[str, str]]]] = {"extraction": [], "chat": []}
    for example in generate("held_out", num_messages):
        system, message = example.messages()
        conversations["extraction"].append([system, *solved, message])
    for text in chat_questions("held_out", NUM_QUESTIONS):
        conversations["chat"].append([{"role": "user", "content": text}])
    requests = llm.llm_engine.inputs.from_conversations
    return {
        name: [request.prompt_token_ids for request in requests(many, SamplingParams())]
        for name, many in conversations.items()
    }

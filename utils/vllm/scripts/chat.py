"""A conversation of two turns with vLLM.  python chat.py MODEL"""

import sys

from vllm import LLM, SamplingParams

questions = ["What is the capital of France?", "And of Italy? Answer in one sentence."]
sampling_params = SamplingParams(temperature=0, max_tokens=32)


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        max_model_len=1024,
        block_size=32,
        gpu_memory_utilization=0.4,
        enforce_eager=True,
    )
    conversation = [{"role": "system", "content": "You are a helpful assistant."}]
    for question in questions:
        conversation.append({"role": "user", "content": question})
        [output] = llm.chat(conversation, sampling_params, use_tqdm=False)
        answer = output.outputs[0].text
        conversation.append({"role": "assistant", "content": answer})
        read, found = len(output.prompt_token_ids), output.num_cached_tokens
        print(f"{question}\n  {answer}   [{read} tokens read, {found} found in the cache]")


if __name__ == "__main__":
    main()

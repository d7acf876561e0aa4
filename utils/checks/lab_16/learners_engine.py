"""Engines that share what they compute through a learner's connector: the last exercise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.pictures import prefixes as prefix_pictures
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_16.learners_connector import LearnersConnector
from utils.checks.lab_16.learners_parts import Parts
from utils.engine.llm import LLM
from utils.engine.request import SamplingParams
from utils.sim.prompt_cache import find_cached_tokens
from utils.timing import one_thread

BLOCK_SIZE, MAX_TOKENS = 16, 4
ROOM = 256 << 20  # bytes, for all that is computed here
SYSTEM_PROMPT = (
    "You are the assistant of a small public library. Answer in one short sentence. The library "
    "is open from ten to six, except on Mondays. Books may be kept for four weeks."
)
QUESTIONS = ("When do you open?", "How long may I keep a book about trains?", "Who are you?")
Answers = list[list[int]]


@functools.cache
def model() -> LLM:
    """The bundled model in float32, loaded once."""
    return LLM(
        dtype="float32", max_model_len=256, num_gpu_blocks_override=64, block_size=BLOCK_SIZE
    )


def prompts() -> list[list[int]]:
    """Token ids of three questions behind one system prompt."""
    tokenizer = model().get_tokenizer()
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for question in QUESTIONS
    ]
    return [tokenizer.encode(cast(str, text), add_special_tokens=False) for text in texts]


def generate(connector: LearnersConnector | None, sent: Sequence[Any]) -> tuple[Answers, list[int]]:
    """Answers of an engine with an empty cache of its own, and the tokens it found per prompt."""
    llm = model()
    llm.llm_engine = llm.new_engine(kv_connector=connector)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in sent]
    found = [o.num_cached_tokens or 0 for o in outputs]
    return [list(o.outputs[0].token_ids) for o in outputs], found


class _Trial:
    """Runs engines with the learner's parts, and compares their words with the right ones."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.prompts = parts, prompts()
        self.right, _ = generate(None, self.prompts)

    def run(
        self, store: Any, what: str, salt: str | None = None, questions: int = 2
    ) -> tuple[LearnersConnector, list[int]]:
        """A new engine with this store; its tokens must be those without a connector."""
        connector = LearnersConnector(self.parts, store)
        sent: list[Any] = list(self.prompts[:questions])
        if salt:
            sent = [{"prompt_token_ids": ids, "cache_salt": salt} for ids in sent]
        answers, found = call(generate, connector, sent, given=what)
        oracle = engine_oracle(model())  # loaded blocks are other pieces: a near tie may turn
        pairs = zip(self.prompts, answers, self.right, strict=False)
        for number, (prompt, got, want) in enumerate(pairs, 1):
            if not same_but_for_a_tie(oracle, prompt, got, want):
                decode = model().get_tokenizer().decode
                raise Mismatch(
                    "With your connector the engine says something else than without one.",
                    input=f"{what}; question {number}",
                    expected=repr(decode(want)),
                    got=repr(decode(got)),
                    look="Each part passes its own check. Does one of them keep something from "
                    "call to call, or from engine to engine?",
                )
        return connector, found


@one_thread()
def run_engines(parts: Parts) -> Passed:
    """Two engines share a store; then another tenant, damaged blocks, and a small store.

    On one thread: beside other programs, two wait for each other most of the time.
    """
    trial = _Trial(parts)
    store = call(parts.store, ROOM)
    first, _ = trial.run(store, "the first engine; nothing is stored yet", questions=3)
    second, found = trial.run(store, "a second engine with the same store", questions=3)
    # All full blocks but that of the last token: some are its own by then, the rest is stored.
    want = [(len(ids) - 1) // BLOCK_SIZE * BLOCK_SIZE for ids in trial.prompts]
    stored = sum(want) - sum(find_cached_tokens(trial.prompts, BLOCK_SIZE))
    as_predicted(
        "tokens that the second engine finds for each question, and of these in the store",
        (want, stored),
        (found, second.stats.hits),
    )
    other, _ = trial.run(store, "another tenant, with the salt 'ada'", salt="ada")
    as_predicted("tokens that another tenant finds in the store", 0, other.stats.hits)
    sizes = {0}
    for key in (*first.saved_keys, *other.saved_keys):
        if (value := call(store.retrieve, key)) is not None:
            sizes.add(len(value))
            call(store.store, key, value[:-1])
    trial.run(store, "a store whose values have all lost their last byte")
    budget = 2 * max(sizes) + 1
    store = call(parts.store, budget)
    for name in ("first", "second"):
        trial.run(store, f"the {name} of two engines that share a store with room for two blocks")
        in_store = call(getattr, store, "num_bytes")
        as_predicted("budget and bytes of the small store", budget, max(budget, in_store))
    lengths, blocks = sum(map(len, trial.prompts)), second.stats.loaded_blocks
    return Passed(
        "The engine says token for token what it says without a connector. Of the three questions' "
        f"{lengths} tokens, the second engine computed only {lengths - sum(found)}, exactly as "
        f"predicted: {second.stats.hits} came from your store, in {blocks} blocks of "
        f"{max(sizes) / 2**10:.0f} KiB, and {sum(found) - second.stats.hits} from its own cache. "
        "Another tenant found nothing, damaged blocks were computed again, and a store with room "
        "for two blocks kept to its budget.",
        prefix_pictures.prompts(trial.prompts, BLOCK_SIZE, found, names=QUESTIONS),
        "The three prompts in blocks, and which of them the second engine did not compute.",
    )


def as_predicted(what: str, expected: Any, got: Any) -> None:
    """Refuse a count that isn't the predicted one."""
    if got != expected:
        raise Mismatch(
            "The engine's text is right, but a count isn't what the lab predicts.",
            input=what,
            expected=f"`{expected}`",
            got=f"`{got}`",
            look="Each part passes its own check. Does one of them keep something from call to "
            "call, or from engine to engine?",
        )

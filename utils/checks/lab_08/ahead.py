"""Steps that are scheduled ahead: exercise 10 of lab 08."""

from __future__ import annotations

import operator
from collections import deque
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.lab.story import LinedStory
from utils.checks.lab_08.steps import running_request, state
from utils.engine.request import Request, RequestStatus

MOST_IN_FLIGHT = 2
METHODS = ("num_uncomputed", "update_after_schedule", "update_with_output")


class One(NamedTuple):
    """A request at the beginning of a story."""

    num_prompt: int
    num_computed: int  # found in the prefix cache
    max_tokens: int


class Setting(NamedTuple):
    """What comes to the scheduler. `budget`: tokens of a step."""

    requests: tuple[One, ...]
    budget: int


def told(request: Request) -> str:
    """A request and its three numbers."""
    return (
        f"request {request.request_id} with {request.num_tokens} tokens, "
        f"{request.num_computed_tokens} computed, {request.num_output_placeholders} on their way"
    )


class AheadStory(LinedStory):
    """A few requests from their prompts to their ends, one step or two in flight."""

    kinds = ("schedule", "schedule", "result", "result", "abort")
    most = 14

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        def one() -> One:
            num_prompt = c.size(1, 300, small=6)
            found = c.integer(0, num_prompt - 1) if c.rarely(3) else 0
            return One(num_prompt, found, c.pick((1, 2, 3, 5, 100)))

        return Setting(tuple(c.some(one, 1, 3)), c.pick((1000, 2, 4, 64)))

    @classmethod
    def tell(cls, setting: Setting) -> str:
        told = [
            f"request {name}: {of.num_prompt} tokens of prompt, {of.num_computed} computed, "
            f"max_num_tokens {of.num_prompt + of.max_tokens}"
            for name, of in zip("ABC", setting.requests, strict=False)
        ]
        return "\n".join([*told, f"at most {setting.budget} tokens in a step"])

    @staticmethod
    def draw_schedule(c: Choices, setting: Setting) -> tuple[()]:
        return ()

    @staticmethod
    def draw_result(c: Choices, setting: Setting) -> tuple[int]:
        """Whose token ends the answer; -1 for nobody's."""
        return (c.integer(0, len(setting.requests) - 1) if c.rarely(5) else -1,)

    @staticmethod
    def draw_abort(c: Choices, setting: Setting) -> tuple[int]:
        return (c.integer(0, len(setting.requests) - 1) if c.rarely(2) else -1,)

    def start(self, answer: Any) -> None:
        self.books = self.stage.do(answer)
        if isinstance(self.books, Raised):
            self.stage.blame("raises", "an object", self.books)
        self.requests: dict[str, Request] = {}
        for name, of in zip("ABC", self.setting.requests, strict=False):
            prompt = [*range(of.num_prompt)]
            limit = of.num_prompt + of.max_tokens
            request = running_request(name, prompt, (), of.num_computed, limit)
            self.requests[name] = request
        # The steps in flight: who gets a token of each of them.
        self.steps: deque[list[Request]] = deque()

    def do_schedule(self) -> None:
        """Hand out a step; nothing happens if two are in flight."""
        if len(self.steps) == MOST_IN_FLIGHT:
            return
        budget, step = self.setting.budget, []
        for request in self.requests.values():
            self.say(f"num_uncomputed({told(request)})")
            got = self._ask("num_uncomputed", request)
            try:
                num_uncomputed = operator.index(got)
            except TypeError:
                self.stage.blame("form", "an int", got)
            self.stage.see("num_uncomputed", num_uncomputed)
            if num_new := min(num_uncomputed, budget):
                step.append((request, num_new))
                budget -= num_new
        gets_token = []
        for request, num_new in step:
            end = request.num_computed_tokens + num_new
            if end == request.num_tokens + request.num_output_placeholders:
                gets_token.append(request)
            self.say(f"update_after_schedule({told(request)}, {num_new})")
            self._ask("update_after_schedule", request, num_new)
            self._look(request)
        if step:
            self.steps.append(gets_token)

    def do_result(self, ends: int) -> None:
        """The oldest step is over. Its tokens are appended, and then counted."""
        if not self.steps:
            return
        for request in self.steps.popleft():
            if request.is_finished:
                continue  # a token too many: it is thrown away
            name = request.request_id
            request.output_token_ids.append(7)
            request.all_token_ids.append(7)
            over = "ABC".index(name) == ends or request.num_tokens == request.max_num_tokens
            self.say(f"update_with_output({told(request)})")
            self._ask("update_with_output", request)
            self._look(request)
            if over:
                request.status = RequestStatus.FINISHED_STOPPED
                del self.requests[name]
                self.say(f"request {name} is finished")

    def do_abort(self, which: int) -> None:
        """A user leaves. What is on its way for this request is thrown away."""
        if which >= 0 and (request := self.requests.pop("ABC"[which], None)):
            request.status = RequestStatus.FINISHED_ABORTED
            self.say(f"request {request.request_id} is aborted")

    def _ask(self, method: str, *args: Any) -> Any:
        got = self.stage.call(self.books, method, *args)
        if isinstance(got, Raised):
            self.stage.blame("raises", "no error", got)
        return got

    def _look(self, request: Request) -> None:
        """Two numbers may change, and nothing else."""
        self.stage.see("num_computed_tokens", request.num_computed_tokens)
        self.stage.see("num_output_placeholders", request.num_output_placeholders)
        for name, value in state(request).items():
            self.stage.see("others", (name, value), lambda pair: f"`{pair[0]}` is {pair[1]}")

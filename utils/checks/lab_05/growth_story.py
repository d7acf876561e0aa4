"""Requests that grow, and are hashed block by block: exercise 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices
from utils.checks.kit.lab.story import Story
from utils.engine.request import Request
from utils.sim.prompt_cache import bare_request

SALTS = (None, "ada", "", "bob", " ", "None", "0")


class Link:
    """What exercise 3 calls a hash; it can be read."""

    def __init__(self, name: str, parent: Any, token_ids: Any, extra_keys: Any) -> None:
        self.name, self.parent, self.extra_keys = name, parent, extra_keys
        self.token_ids = list(token_ids) if isinstance(token_ids, list | tuple) else token_ids

    def __repr__(self) -> str:
        return self.name


class Recorder:
    """The function `hash_block` of one request: remembers what it was called with."""

    def __init__(self, known: int) -> None:
        self.known, self.links = known, list[Link]()

    def __call__(self, parent: Any, token_ids: Any, extra_keys: Any) -> Link:
        link = Link(f"h{self.known + len(self.links)}", parent, token_ids, extra_keys)
        self.links.append(link)
        return link


class Setting(NamedTuple):
    """Each request has so many tokens, of which so many blocks were hashed before, and a salt."""

    block_size: int
    starts: Sequence[tuple[int, int, str | None]]


def token(index: int, which: int) -> int:
    """Tokens of a request, all different, some beyond 65,535."""
    return index + 1 + (which + index % 3) * 70_000


class GrowthStory(Story):
    """In each step a request gets more tokens, and is hashed."""

    kinds = ("grow",)
    most = 5

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        block_size = c.size(1, 40, 3)
        long = c.rarely(8)

        def start() -> tuple[int, int, str | None]:
            many = 3000 if block_size == 1 else 150  # blocks; some more than calls can be nested
            num_tokens = c.integer(0, block_size * (many if long else 6))
            return num_tokens, c.integer(0, num_tokens // block_size), c.pick(SALTS)

        return Setting(block_size, c.some(start, 1, 2))

    @classmethod
    def draw_grow(cls, c: Choices, setting: Setting) -> tuple[int, int]:
        size = setting.block_size
        which = c.integer(0, len(setting.starts) - 1)
        return which, c.pick((0, 1, size, c.integer(0, 3 * size)))

    @classmethod
    def tell(cls, setting: Setting) -> str:
        return f"block_size {setting.block_size}"

    def start(self, answer: Any) -> None:
        self.answer, self.requests = answer, list[Request]()
        for number, (count, hashed, salt) in enumerate(self.setting.starts):
            request = bare_request(number, [token(i, number) for i in range(count)], salt)
            request.block_hashes = [Link(f"h{i}", None, (), None) for i in range(hashed)]  # type: ignore[misc]
            self.requests.append(request)
        if self.requests:
            self.do_grow(0, 0)

    def do_grow(self, which: int, more: int) -> None:
        request, stage = self.requests[which], self.stage
        for _ in range(more):  # as an answer's tokens do: the prompt stays as it was
            request.all_token_ids.append(token(request.num_tokens, which))
        known = list(request.block_hashes)
        name = f"request {which}: " if len(self.requests) > 1 else ""
        salt = f", cache_salt {request.cache_salt!r}" if request.cache_salt is not None else ""
        stage.step(f"{name}{request.num_tokens} tokens, {len(known)} of its blocks hashed{salt}")
        recorder = Recorder(len(known))
        before = {k: list(v) if isinstance(v, list) else v for k, v in vars(request).items()}
        got = stage.do(self.answer, request, self.setting.block_size, recorder)
        self.see("raises", got)
        after = vars(request)
        changed = [k for k in {**before, **after} if k not in before or before[k] != after.get(k)]
        stage.see(
            "request", " and ".join(f"`{name}` is changed" for name in changed) or "as before"
        )
        links = isinstance(got, list) and all(link in recorder.links for link in got)
        stage.see("returned", "a list of what `hash_block` returned" if links else got)
        stage.see("count", len(got), lambda n: f"{n} new hash{'es' * (n != 1)}")
        self._look_at(known, got)
        calls = len(recorder.links)
        stage.see("calls", calls, lambda n: f"`hash_block` is called {n} times")
        request.block_hashes += got
        got.append(None)  # the caller may use its list for something else

    def _look_at(self, known: list[Any], new: list[Link]) -> None:
        stage = self.stage
        names: dict[Any, str] = {id(link): f"h{i}" for i, link in enumerate(known)}
        names[id(None)] = "None"
        for number, link in enumerate(new, len(known)):
            place = f"block {number}: "
            stage.see("tokens", link.token_ids, lambda v, p=place: f"{p}{str(v)[:60]}")  # type: ignore[misc]
            parent = names.get(id(link.parent), "another one")
            stage.see("parent", parent, lambda v, p=place: f"{p}{v} as its parent")  # type: ignore[misc]
            salted = "salt" if not number else "salt later"
            stage.see(salted, repr(link.extra_keys), lambda v, p=place: f"{p}extra_keys {v}")  # type: ignore[misc]
            names[id(link)] = f"h{number}"

"""What requests and chunks are in lab 03."""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """A request that asks for memory."""

    prompt_len: int  # tokens, at least 1
    output_len: int  # tokens that it will write, at least 1
    asked: int  # slots that it asks for, at least prompt_len + output_len - 1


class Running(NamedTuple):
    """A request that has its chunk of memory."""

    request: Request
    first_step: int  # the step in which it came in
    start: int  # the chunk's first slot
    size: int  # the chunk's slots, at least request.asked


class Chunk(NamedTuple):
    """A piece of memory in use."""

    start: int  # its first slot
    size: int  # its slots, at least 1
    num_tokens: int  # tokens that it holds, from 1 to size

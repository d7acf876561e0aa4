"""A prefix cache as a radix tree of tokens, as in SGLang (arXiv 2312.07104, section 3)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from utils.sim.prefix_cache import RunningRequest


@dataclass(eq=False)
class RadixNode:
    """A piece of text that follows its parent's.

    Attributes:
        tokens: int64 `[n]`, the piece itself. Only the root's is empty.
        parent: None for the root, and for a node that has been evicted.
        children: by their first token; no two children begin alike.
        ref_cnt: how many running requests use the node.
        last_used: when a request last went through it.
    """

    tokens: np.ndarray
    parent: RadixNode | None
    children: dict[int, RadixNode] = field(default_factory=dict)
    ref_cnt: int = 0
    last_used: int = 0

    def path(self) -> list[RadixNode]:
        """The nodes from here up to, and without, the root."""
        node, nodes = self, []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes


class RadixTree:
    """Token sequences, each shared beginning stored once."""

    def __init__(self) -> None:
        self.root = RadixNode(np.empty(0, dtype=np.int64), None)
        self.num_tokens = 0
        self.num_locked_tokens = 0
        self.now = 0
        self._heap: list[tuple[int, int, RadixNode]] = []  # unlocked leaves, and outdated entries
        self._serial = itertools.count()

    def match(self, tokens: np.ndarray | Sequence[int]) -> tuple[RadixNode, int]:
        """The longest cached beginning of `tokens`: the node where it ends, and its length.

        Where it ends inside a node, that node is split in two, as the paper does.
        """
        tokens = np.asarray(tokens)
        self.now += 1
        node, length = self.root, 0
        while length < len(tokens) and (child := node.children.get(int(tokens[length]))):
            common = _common_prefix(child.tokens, tokens[length:])
            node = child if common == len(child.tokens) else self._split(child, common)
            node.last_used = self.now
            length += common
        self._offer(node)
        return node, length

    def insert(self, tokens: np.ndarray | Sequence[int]) -> RadixNode:
        """Store `tokens`; the node where they end."""
        tokens = np.asarray(tokens)
        node, length = self.match(tokens)
        if length == len(tokens):
            return node
        leaf = RadixNode(tokens[length:], node, last_used=self.now)
        node.children[int(tokens[length])] = leaf
        self.num_tokens += len(leaf.tokens)
        self._offer(leaf)
        return leaf

    def lock(self, node: RadixNode) -> None:
        """A running request uses `node` and all before it: none of them may be evicted."""
        for part in node.path():
            self.num_locked_tokens += len(part.tokens) if part.ref_cnt == 0 else 0
            part.ref_cnt += 1

    def unlock(self, node: RadixNode) -> None:
        """Undo one `lock`."""
        for part in node.path():
            part.ref_cnt -= 1
            self.num_locked_tokens -= len(part.tokens) if part.ref_cnt == 0 else 0
        self._offer(node)

    def evict_one(self) -> int:
        """Remove the unlocked leaf that was used least recently; its number of tokens."""
        while True:
            last_used, _, leaf = heapq.heappop(self._heap)
            if leaf.last_used == last_used and self._evictable(leaf):
                break
        parent, leaf.parent = leaf.parent, None
        assert parent is not None
        del parent.children[int(leaf.tokens[0])]
        self.num_tokens -= len(leaf.tokens)
        self._offer(parent)
        return len(leaf.tokens)

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Put the first `length` tokens of `node` into a new node above it; the new node."""
        assert node.parent is not None
        head = RadixNode(node.tokens[:length], node.parent, ref_cnt=node.ref_cnt)
        head.children[int(node.tokens[length])] = node
        node.parent.children[int(node.tokens[0])] = head
        node.tokens, node.parent = node.tokens[length:], head
        return head

    def _evictable(self, node: RadixNode) -> bool:
        return node.parent is not None and not node.children and node.ref_cnt == 0

    def _offer(self, node: RadixNode) -> None:
        if self._evictable(node):
            heapq.heappush(self._heap, (node.last_used, next(self._serial), node))


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


class RadixCache:
    """A `RadixTree` of at most `num_tokens` tokens, as a cache for `simulate`.

    Hits are counted in single tokens, nothing is rounded to blocks. As in `BlockCache`, a prompt
    can be hit as soon as it starts, an output when it ends, and one token is left to compute.
    SGLang evicts whole leaves, so an eviction can free more than was asked for.

    Args:
        num_tokens: room for tokens; None for no limit.

    Raises:
        ValueError: `num_tokens` is not positive.
    """

    block_size = 1

    def __init__(self, num_tokens: int | None) -> None:
        if num_tokens is not None and num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, or None for no limit: {num_tokens}")
        self.num_tokens = num_tokens
        self.num_evicted_tokens = 0
        self.num_reserved_tokens = 0  # for outputs that are being written
        self.tree = RadixTree()
        self._end_of: dict[int, RadixNode] = {}

    def start(self, request: RunningRequest) -> int | None:
        """Lock what is cached, evict if need be, store the prompt; tokens hit, or None.

        Raises:
            ValueError: the request is larger than the cache.
        """
        tree, limit = self.tree, self.num_tokens
        if limit is not None and request.num_computed_tokens > limit:
            raise ValueError(
                f"request {request.request_id} needs {request.num_computed_tokens} tokens, "
                f"but the cache has room for {limit}: make it larger"
            )
        found, hit = tree.match(request.ids[: request.prompt_len - 1])
        needed = request.num_computed_tokens - hit
        tree.lock(found)
        if limit is not None:
            if tree.num_locked_tokens + self.num_reserved_tokens + needed > limit:
                tree.unlock(found)
                return None
            while tree.num_tokens + self.num_reserved_tokens + needed > limit:
                self.num_evicted_tokens += tree.evict_one()
        end = tree.insert(request.ids[: request.prompt_len])
        tree.lock(end)
        tree.unlock(found)
        self.num_reserved_tokens += request.num_computed_tokens - request.prompt_len
        self._end_of[request.request_id] = end
        return hit

    def finish(self, request: RunningRequest) -> None:
        """Store the output after the prompt; nothing of the two is locked by this request now."""
        self.tree.insert(request.ids[: request.num_computed_tokens])
        self.num_reserved_tokens -= request.num_computed_tokens - request.prompt_len
        self.tree.unlock(self._end_of.pop(request.request_id))

"""Right answers to lab 07b, written differently; most wrong ones are in `lab_07b.yaml`."""

from __future__ import annotations

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_07b import answers
from utils.engine.spec_decode.tree import follow_tree as engines_follow_tree

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 tree_attention_mask


@right("tree_attention_mask")
def by_walking_up(parents):
    mask = torch.zeros(1 + len(parents), 1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess in range(len(parents)):
        node = guess
        while node != -1:
            mask[guess + 1, node + 1] = True
            node = parents[node]
    return mask


@right("tree_attention_mask")
def by_powers(parents):
    """Reachable in any number of steps up."""
    mask = torch.eye(1 + len(parents))
    for guess, parent in enumerate(parents):
        mask[guess + 1, parent + 1] = 1
    return torch.linalg.matrix_power(mask, 1 + len(parents)) > 0


# 2 follow_tree


@right("follow_tree")
def the_engines_walk(draft_token_ids, parents, target_token_ids):
    return engines_follow_tree(draft_token_ids, parents, target_token_ids)


@right("follow_tree")
def recursively(draft_token_ids, parents, target_token_ids, node=-1):
    for child, parent in enumerate(parents):
        if parent == node and draft_token_ids[child] == target_token_ids[node + 1]:
            return [child, *recursively(draft_token_ids, parents, target_token_ids, child)]
    return []


# 3 MyEagleProposer


@right("my_eagle_proposer")
class WithTensors:
    """As the engine's own: rows are picked by a tensor, and the zeros are a row of their own."""

    def __init__(self, hidden_states):
        self.memory = hidden_states
        self.nothing = torch.zeros_like(hidden_states[:1])

    def keep(self, slots, hidden_states):
        self.memory.index_copy_(0, torch.tensor(slots), hidden_states)

    def states_before(self, slots, start, end):
        before = torch.tensor(slots[max(0, start - 1) : end - 1], dtype=torch.long)
        rows = self.memory.index_select(0, before)
        return rows if start else torch.cat([self.nothing, rows])

    def guess(self, hidden, num_tokens, best_token, read):
        guesses = [best_token(hidden)] if num_tokens else []
        for _ in range(num_tokens - 1):
            hidden = read(guesses[-1], hidden)
            guesses += [best_token(hidden)]
        return guesses


@right("my_eagle_proposer")
class RowByRow:
    def __init__(self, hidden_states):
        self.hidden_states = hidden_states

    def keep(self, slots, hidden_states):
        for slot, row in zip(slots, hidden_states, strict=True):
            self.hidden_states[slot] = row

    def states_before(self, slots, start, end):
        rows = []
        for token in range(start, end):
            row = self.hidden_states[slots[token - 1]]
            rows.append(row.clone() if token else torch.zeros_like(row))
        return torch.stack(rows)

    def guess(self, hidden, num_tokens, best_token, read):
        if num_tokens == 0:
            return []
        first = best_token(hidden)
        if num_tokens == 1:
            return [first]
        return [first, *self.guess(read(first, hidden), num_tokens - 1, best_token, read)]


@wrong("my_eagle_proposer", "arrive in the memory")
class InADict(answers.MyEagleProposer):
    """Right until a block is copied."""

    def keep(self, slots, hidden_states):
        self.rows = getattr(self, "rows", {}) | dict(zip(slots, hidden_states.clone(), strict=True))


@wrong("my_eagle_proposer", "for token 2")
class RemembersByPlace(answers.MyEagleProposer):
    """Right until a block is used for another text."""

    def states_before(self, slots, start, end):
        self.seen = getattr(self, "seen", {})
        key = (*slots, start, end)
        if key not in self.seen:
            self.seen[key] = super().states_before(slots, start, end)
        return self.seen[key].clone()


@wrong("my_eagle_proposer", "After `keep` the memory holds")
class OneMemoryForAll(answers.MyEagleProposer):
    def __init__(self, hidden_states):
        type(self).hidden_states = hidden_states


@wrong("my_eagle_proposer", "must be zeros")
class ZeroTimesGarbage(answers.MyEagleProposer):
    def states_before(self, slots, start, end):
        states = self.hidden_states[[slots[i - 1] for i in range(start, end)]]
        states[0] *= start > 0
        return states


@wrong("my_eagle_proposer", "has changed")
class OneBufferForAll(answers.MyEagleProposer):
    def states_before(self, slots, start, end):
        self.buffer = getattr(self, "buffer", self.hidden_states.new_zeros(99, 3))
        result = self.buffer[: end - start, : self.hidden_states.shape[1]]
        result[:] = super().states_before(slots, start, end)
        return result


@wrong("my_eagle_proposer", "`guess` returned")
class NoTokenIsFalse(answers.MyEagleProposer):
    def guess(self, hidden, num_tokens, best_token, read):
        token_ids, token = [], None
        while len(token_ids) < num_tokens:
            if token:
                hidden = read(token, hidden)
            token = best_token(hidden)
            token_ids.append(token)
        return token_ids


@wrong("my_eagle_proposer", "changes the memory")
class ZerosInTheMemory(answers.MyEagleProposer):
    def states_before(self, slots, start, end):
        if start == 0:
            self.hidden_states[slots[-1]] = 0
        return super().states_before(slots, start, end)


@wrong("my_eagle_proposer", "lies in the memory itself")
class AViewWhereItCan(answers.MyEagleProposer):
    def states_before(self, slots, start, end):
        first = slots[start - 1]
        if start and slots[start - 1 : end - 1] == [*range(first, first + end - start)]:
            return self.hidden_states[first : first + end - start]
        return super().states_before(slots, start, end)


@wrong("my_eagle_proposer", "`states_before` gives")
class TheLastOfTheStepBefore(answers.MyEagleProposer):
    """Right for one request at a time, without a prefix cache."""

    def keep(self, slots, hidden_states):
        super().keep(slots, hidden_states)
        self.before, self.last = getattr(self, "last", None), hidden_states[-1].clone()

    def states_before(self, slots, start, end):
        states = super().states_before(slots, start, end)
        if start and self.before is not None:
            states[0] = self.before
        return states


# 4 engine

PARTS = answers.tree_attention_mask, answers.follow_tree, answers.MyEagleProposer


@right("engine")
def plugged():
    return by_walking_up, recursively, WithTensors


class ForgetsToKeep(answers.MyEagleProposer):
    """Right in all stories, which are short."""

    calls = 0

    def keep(self, slots, hidden_states):
        self.calls += 1
        if self.calls < 20:
            super().keep(slots, hidden_states)


for _name, _says, _parts in (
    ("keeps_20_times", "your class guesses something else", (*PARTS[:2], ForgetsToKeep)),
    ("only_the_class", "must return three things", PARTS[2]),
    (
        "a_mask_of_a_chain",
        "Exercise 1 is not right yet",
        (lambda p: torch.ones_like(PARTS[0](p)).tril(), *PARTS[1:]),
    ),
    ("walks_nowhere", "Exercise 2 is not right yet", (PARTS[0], lambda *_: [], PARTS[2])),
    ("the_engines_walk_itself", "engine's own `follow_tree`", (PARTS[0], engines_follow_tree, 0)),
    ("stays_in_a_dict", "Exercise 3 is not right yet", (*PARTS[:2], InADict)),
):

    def _make(parts=_parts):
        return parts

    _make.__name__ = _name
    wrong("engine", _says)(_make)

"""The lesson's conversations."""

from __future__ import annotations

from utils.distributed.chats import QUESTIONS, chats_with_same_instructions


def test_the_chats_differ_in_their_question_only() -> None:
    chats = chats_with_same_instructions()
    assert [user["content"] for _, user in chats] == list(QUESTIONS)
    assert len({system["content"] for system, _ in chats}) == 1
    assert [[message["role"] for message in chat] for chat in chats] == [["system", "user"]] * 6

"""A widget that shows how a text falls into tokens."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import ipywidgets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Two quiet tints in turn, so that neighbours can be told apart, also in grey.
_TINTS = ("#dbe7f6", "#fbe3c4")


def tokens_as_html(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Each token as a coloured box, its number below."""
    boxes = []
    ids = tokenizer(text).input_ids
    for i, token_id in enumerate(ids):
        # A token may hold part of a character; decode() shows that as a replacement mark.
        piece = html.escape(tokenizer.decode([token_id])).replace(" ", "&middot;")
        piece = piece.replace("\n", "&#9166;") or "&nbsp;"
        boxes.append(
            f'<span style="display:inline-block;background:{_TINTS[i % 2]};color:#1b1b1b;'
            'margin:2px 1px;padding:2px 4px;border-radius:3px;text-align:center;line-height:1.25">'
            f'<span style="font-family:monospace">{piece}</span><br>'
            f'<span style="font-size:75%;color:#555">{token_id}</span></span>'
        )
    count = f"{len(ids)} token{'' if len(ids) == 1 else 's'} for {len(text)} characters"
    return f"<div>{''.join(boxes)}</div><div>{count}; &middot; stands for a space.</div>"


class TokenViewer(ipywidgets.VBox):
    """A text field, and below it the tokens of what is typed there."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str) -> None:
        self._tokenizer = tokenizer
        self.field = ipywidgets.Text(
            value=text, description="your text", layout=ipywidgets.Layout(width="95%")
        )
        self.view = ipywidgets.HTML()
        super().__init__([self.field, self.view])
        self.field.observe(self._show, names="value")
        self._show()

    def _show(self, change: object = None) -> None:
        self.view.value = tokens_as_html(self._tokenizer, self.field.value)

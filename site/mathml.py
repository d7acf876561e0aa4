"""Formulas as MathML, which browsers draw themselves: no script, no fonts, nothing to fetch."""

from __future__ import annotations

from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx

# What latex2mathml spells out or leaves out, in words that it knows.
SAME = {
    r"\operatorname": r"\mathrm",
    r"\textstyle": "",
    r"\big(": "(",
    r"\big)": ")",
    "{aligned}": "{align*}",
    r"\_": "_",
}


def mathml(latex: str, display: str) -> str:
    """One formula.

    Args:
        latex: without dollar signs
        display: "inline" or "block"
    """
    for ours, theirs in SAME.items():
        latex = latex.replace(ours, theirs)
    return latex2mathml.converter.convert(latex, display=display)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this: the renderer's name is `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

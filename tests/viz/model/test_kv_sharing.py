"""The picture of heads that share keys and values counts what each variant keeps."""

from __future__ import annotations

from utils.viz.model.kv_sharing import NUM_HEADS, plot_kv_sharing


def test_each_panel_draws_as_many_vectors_as_its_title_says() -> None:
    for axes, num_kv_heads in zip(plot_kv_sharing().axes, (8, 2, 1), strict=False):
        letters = [text.get_text() for text in axes.texts]
        assert letters.count("q") == len(axes.lines) == NUM_HEADS
        assert letters.count("k") == letters.count("v") == num_kv_heads
        assert axes.get_title().endswith(f": {2 * num_kv_heads} vectors")
    mla = plot_kv_sharing().axes[3]
    assert [text.get_text() for text in mla.texts].count("latent") == 1

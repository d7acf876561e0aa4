"""The README's picture of what a check says: a real check of a plausible wrong answer.

Run it in the course's environment, with Chromium: `.venv/bin/python site/feedback_picture.py`. It
writes notebooks/images/feedback.png, and prints the same in words.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from utils.checks import lab_05  # noqa: E402

TARGET = ROOT / "notebooks" / "images" / "feedback.png"
WIDTH, MARGIN, SCALE, COLORS = 760, 12, 2, 128
STYLE = f"width: {WIDTH}px; margin: {MARGIN}px; font: 14px system-ui, 'DejaVu Sans', sans-serif"


def predict_num_cached_tokens(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Wrong: it forgets that at least one token of a prompt is always computed."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        prefixes = [tuple(prompt[:end]) for end in ends]
        hits = next((i for i, prefix in enumerate(prefixes) if prefix not in seen), len(prefixes))
        found.append(hits * block_size)
        seen.update(prefixes)
    return found


def main() -> None:
    feedback = lab_05.predict_num_cached_tokens(predict_num_cached_tokens)
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        body = feedback.to_html()
        page.write_text(f'<meta charset="utf-8"><body style="{STYLE}">{body}')
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        command += [f"--window-size={WIDTH + 2 * MARGIN},1200", f"--screenshot={shot}"]
        command += [f"--force-device-scale-factor={SCALE}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        picture = Image.open(shot).convert("RGB")
    white = Image.new("RGB", picture.size, "white")
    left, top, right, bottom = ImageChops.difference(picture, white).getbbox()
    edge = MARGIN * SCALE // 2
    picture = picture.crop((left - edge, top - edge, right + edge, bottom + edge))
    picture.quantize(COLORS).save(TARGET, optimize=True)
    print(f"{TARGET.relative_to(ROOT)}, {TARGET.stat().st_size / 1e3:.0f} kB\n{feedback.message}")


if __name__ == "__main__":
    main()

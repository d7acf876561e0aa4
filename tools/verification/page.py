"""The page that `make verify` writes: one file, which loads nothing. It says what it is not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from tools.set_repository_url import configured_slug
from tools.verification.provenance import Git

NAME = "index.html"
SHOWN = 12  # changed files that are named

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Labs, run again</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 0.3rem 0.7rem 0.3rem 0; vertical-align: top;
  border-bottom: 1px solid rgba(128, 138, 150, 0.5); }
td.n { text-align: right; white-space: nowrap; }
code { font-size: 0.9em; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: 0.7rem; background: rgba(128, 138, 150, 0.15); }
.wide { overflow-x: auto; }
</style>
</head>
<body>
<main>
<h1>Labs of <em>From KV cache to vLLM</em>, run again</h1>
<p>$summary</p>

<h2>What this is, and what it is not</h2>
<p><code>make verify</code> ran the notebooks below from top to bottom, each in fresh processes, and
wrote down what the course's checks said. The cells that call the checks were the course's own.</p>
<p>It is no certificate. Nobody signed it, and it is a file that anybody can edit. It does not say
who wrote the code, and the course's solutions are public. Code that runs beside a check can also
deceive it; what looks like that is named below, and what is not found is not. So do not believe
this page: run it again.</p>

<h2>How to run it again</h2>
<p>You need the notebooks (compare their hashes with those below: <code>sha256sum</code>) and about
as much time as the last column says, in sum. Their code is somebody else's: on Linux it runs shut
in, without network and without your files. Do not add <code>TRUST=1</code> for notebooks that you
have not read.</p>
<pre>git clone https://github.com/$slug course
cd course
git checkout $commit
make verify LABS=/folder/with/the/notebooks</pre>
<p>The folder holds <code>02_kv_cache/02_kv_cache.ipynb</code> and so on, as <code>labs/</code>
does. Then compare the points. Checks are the same where their hashes are.</p>

<h2>What was measured</h2>
<div class="wide">
<table>
<thead><tr><th scope="col">lab</th><th scope="col">points</th><th scope="col">of</th>
<th scope="col">run at (UTC)</th><th scope="col">seconds</th></tr></thead>
<tbody>
$table
</tbody>
</table>
</div>

<h2>By which checks</h2>
$checks

<h2>On what</h2>
$machines

<h2>Lab by lab</h2>
$details
</main>
</body>
</html>
""")


def html_page(rows: Mapping[str, dict[str, Any] | None], git: Git) -> str:
    """The page, from what was measured of each lab.

    Args:
        rows: for each lab its row of `results.json`, with `changed_since`; None: not measured yet.
        git: whether what judged them is what is committed.
    """
    measured = [row for row in rows.values() if row is not None]
    return PAGE.substitute(
        summary=_summary(measured, [name for name, row in rows.items() if row is None]),
        slug=escape(configured_slug()),
        commit=git.commit or "THE-COMMIT-THAT-IS-NOT-KNOWN-HERE",
        table="\n".join(_row(name, row) for name, row in rows.items()),
        checks=_checks(git),
        machines=_machines(measured),
        details="\n".join(_detail(row) for row in measured),
    )


def _summary(measured: Sequence[dict[str, Any]], missing: Sequence[str]) -> str:
    points, of = (sum(row[key] for row in measured) for key in ("points", "of"))
    complete = sum(row["points"] == row["of"] for row in measured)
    times = sorted(row["at"] for row in measured)
    when = f", measured from {_time(times[0])} to {_time(times[-1])} UTC" if times else ""
    labs = len(measured) + len(missing)
    text = f"{points:g} of {of:g} points{when}. {complete} of {labs} labs are complete."
    if missing:
        text += f" Not measured yet, and not in these points: {', '.join(missing)}."
    if stale := [row["lab"] for row in measured if row["changed_since"]]:
        text += (
            f" What was measured of {', '.join(stale)} is out of date: the notebook or the course "
            "has changed since."
        )
    return escape(text)


def _row(name: str, row: dict[str, Any] | None) -> str:
    if row is None:
        return f'<tr><th scope="row">{escape(name)}</th><td colspan="4">not measured yet</td></tr>'
    remarks = [row["not_run"], "see its notes" if row["notes"] else ""]
    remarks += ["out of date"] if row["changed_since"] else []
    note = escape(", ".join(filter(None, remarks)))
    seconds = "" if row["not_run"] else f"{row['seconds']:.0f}"
    return (
        f'<tr><th scope="row">{escape(name)}{f" ({note})" if note else ""}</th>'
        f'<td class="n">{row["points"]:g}</td><td class="n">{row["of"]:g}</td>'
        f'<td>{_time(row["at"])}</td><td class="n">{seconds}</td></tr>'
    )


def _checks(git: Git) -> str:
    if not git.commit:
        return (
            "<p>Git knows nothing of this copy of the course, so whether its checks are those that "
            "were committed cannot be told. Their hashes are below.</p>"
        )
    commit = f"<code>{escape(git.commit)}</code>"
    if not git.changed:
        return (
            f"<p>Checks, engine and the cells that call them are those of commit {commit}, "
            "unchanged. Whether that commit is one of the course's, its repository says.</p>"
        )
    named = "".join(f"<li><code>{escape(name)}</code></li>" for name in git.changed[:SHOWN])
    more = f"<p>And {len(git.changed) - SHOWN} more.</p>" if len(git.changed) > SHOWN else ""
    return (
        f"<p><strong>They differ from what was committed</strong> (last changed in {commit}). "
        f"These files are changed or new:</p><ul>{named}</ul>{more}"
    )


def _machines(rows: Sequence[dict[str, Any]]) -> str:
    """Each set of versions once, with the labs that it ran."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:
        how = "shut in" if row["isolated"] else "not shut in (TRUST=1)"
        groups.setdefault((*row["versions"].items(), ("code ran", how)), []).append(row["lab"])
    parts = []
    for versions, labs in groups.items():
        which = "" if len(groups) == 1 else f"{', '.join(lab.partition('_')[0] for lab in labs)}: "
        text = ", ".join(f"{name} {value}" for name, value in versions)
        parts.append(f"<p>{escape(which + text)}.</p>")
    return "\n".join(parts)


def _detail(row: dict[str, Any]) -> str:
    exercises = "".join(
        f"<li>{_inline(e['title'])}: {e['points']:g} of {e['of']:g}, {_inline(e['said'])}</li>"
        for e in row["exercises"]
    )
    notes = "".join(f"<li>{_inline(note)}</li>" for note in row["notes"])
    notes = f"<p>To know, before you believe it:</p><ul>{notes}</ul>" if notes else ""
    notebook = row["notebook"] or "none"
    return (
        f"<h3>{escape(row['lab'])}</h3><ul>{exercises}</ul>{notes}"
        f"<p>SHA-256 of the notebook: <code>{notebook}</code><br>"
        f"of its checks (<code>utils/checks/lab_{escape(row['lab'].partition('_')[0])}</code> and "
        f"<code>kit</code>): <code>{row['checks']}</code></p>"
    )


def _time(at: str) -> str:
    return escape(at[:16].replace("T", " "))


def _inline(text: str) -> str:
    """Escape `text`, and set what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))

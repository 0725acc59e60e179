"""Writes docs/reference/flags.md from JobSpec; with --check, only says whether the page is current."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from elasticdl.job.knob import COMMANDS, Knob  # noqa: E402
from elasticdl.job.spec import GROUPS, knobs  # noqa: E402

WIDTH = 116
PAGE = ROOT / "docs" / "reference" / "flags.md"
HEAD = """# Flags

Every knob of a job is one flag of `elasticdl train`, `evaluate` and `predict`, and one key of the YAML file that `-f`
reads. This page is made from `JobSpec` by `scripts/make_reference.py`.

* `--num_workers=2`, `--num_workers 2` and `--num-workers 2` mean the same. A flag that is true or false may stand
  alone: `--use_async`.
* Resources are written `cpu=1,memory=4096Mi`; further names are `gpu`, `ephemeral-storage` (or `disk`) and any
  `vendor.com/thing`.
* A flag whose feature is *not in this release yet* is refused by name when the job starts. A flag that changes nothing
  for the job at hand is answered with a note. No flag is dropped in silence.
* [Modes of training](../modes.md) has the flags that make a job asynchronous or synchronous.
* `--dry_run` prints the resolved job, with the reasons for what was derived; `--dry_run=json` prints what every process
  receives.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD]
    for group in GROUPS:
        entries = [_entry(knob) for knob in knobs().values() if knob.group == group.title]
        sections.append(f"## {group.title}\n\n" + "\n".join(entries) + "\n")
    return "\n".join(sections)


def _entry(knob: Knob) -> str:
    value = " or ".join(f"`{choice}`" for choice in knob.choices) or f"`{knob.metavar}`"
    default = knob.spell(knob.default)
    also = "".join(f", also `--{alias}`" for alias in knob.aliases)
    head = f"- `{knob.flag}`{also}: {value}" + (f", default `{default}`" if default else "") + "."
    return "\n  ".join(_wrapped(head) + _wrapped(_about(knob)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)


def _about(knob: Knob) -> str:
    text = knob.help
    if knob.commands != COMMANDS:
        text += f" *({', '.join(knob.commands) or 'master and worker started by hand'})*"
    if knob.gone:
        text += f" **No longer used:** {knob.gone}."
    if knob.local:
        text += f" **Only on Kubernetes:** {knob.local}."
    if isinstance(knob.later, str):
        text += f" **Not in this release yet:** {knob.later}."
    elif knob.later:
        text += " **Not in this release yet:** " + ", ".join(f"`{value}`" for value in knob.later) + "."
    return text


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print("docs/reference/flags.md is not current: run python scripts/make_reference.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes every table and figure of docs/evidence from committed result files, and fails if they differ with --check.

python docs/evidence/write.py [--check]
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent


def filled(page: str, name: str, content: str) -> str:
    """The page with `content` between the marks of that name."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"expected the marks {begin} and {end} once")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", page)


def protocol() -> dict[Path, str]:
    """The page of the protocol."""
    import plan

    path = HERE / "protocol.md"
    page = filled(path.read_text(encoding="utf-8"), "budget", plan.budget_table())
    return {path: filled(page, "power", plan.power_table())}


def written() -> dict[Path, str]:
    """Every file that is written, with its content."""
    return protocol()


def main(arguments: list[str]) -> int:
    """Write what differs, or list it with --check."""
    warnings.simplefilter("ignore")  # rates above 0.5 are warned of
    stale = [path for path, text in written().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stdout.write(f"{path}: differs from its result files; run make evidence\n")
        return 1 if stale else 0
    for path, text in written().items():
        if path in stale:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

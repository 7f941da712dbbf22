"""Install the wheel in `dist/` into empty environments and try it there. `make release-check` builds it before.

    python tests/release/check_wheel.py --pythons python3.11 python3.12 python3.13

Each Python gets a new environment: first the wheel alone, then with its extra `torch`. The environments are removed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).parent / "smoke.py"


def main() -> None:
    """Try every Python, and stop at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=["python3"], help="The Python interpreters to try.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="The folder with the wheel.")
    parser.add_argument("--extras", nargs="*", default=["torch"], help="The extras to install after the wheel alone.")
    args = parser.parse_args()
    wheel = newest(args.dist)
    print(f"wheel: {wheel.name}", flush=True)
    for python in args.pythons:
        with tempfile.TemporaryDirectory() as folder:
            check(python, wheel, args.extras, Path(folder))


def newest(dist: Path) -> Path:
    """The newest wheel in a folder."""
    found = sorted(dist.glob("attentiondrop-*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(f"{dist} has no wheel: run `make build` before")
    return found[-1]


def check(python: str, wheel: Path, extras: list[str], folder: Path) -> None:
    """Make an environment, install, try."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = folder / "venv" / "bin" / "python"
    subprocess.run([own, "--version"], check=True)
    for extra in ("", *extras):
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        install = [own, "-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", what]
        subprocess.run(install, check=True)
        subprocess.run([own, SMOKE, extra or "base"], check=True, cwd=folder)


if __name__ == "__main__":
    main()

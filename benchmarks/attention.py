"""Time attention alone: `attentiondrop bench attention`, with its results in `benchmarks/results`.

python benchmarks/attention.py [the arguments of the command]
"""

from __future__ import annotations

import sys
from pathlib import Path

from attentiondrop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "attention", "--out", str(Path(__file__).parent / "results"), *sys.argv[1:]]))

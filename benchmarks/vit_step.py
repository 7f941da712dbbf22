"""Time a training step of a vision transformer: `attentiondrop bench vit`, with its results in `benchmarks/results`.

python benchmarks/vit_step.py [the arguments of the command]
"""

from __future__ import annotations

import sys
from pathlib import Path

from attentiondrop.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "vit", "--out", str(Path(__file__).parent / "results"), *sys.argv[1:]]))

"""The kinds of runs of a study. Each kind has a folder of that name."""

from __future__ import annotations

#: Only final runs are given the test part. Tuning trials and points of an ablation serve to choose settings, and the
#: choice must not depend on the test part.
FINAL, TUNING, VARIED = "runs", "tuning", "ablation"
KINDS = (FINAL, TUNING, VARIED)
#: The names of the kinds in texts for people.
NAMES = {FINAL: "final", TUNING: "tuning", VARIED: "ablation"}

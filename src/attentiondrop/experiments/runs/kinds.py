"""The kinds of runs that a study has; each kind lies in a folder of that name."""

from __future__ import annotations

#: Only final runs are given the test part. Trials of a tuning and points of an ablation choose settings, and whoever
#: chooses must not have seen it.
FINAL, TUNING, VARIED = "runs", "tuning", "ablation"
KINDS = (FINAL, TUNING, VARIED)
#: For people.
NAMES = {FINAL: "final", TUNING: "tuning", VARIED: "ablation"}

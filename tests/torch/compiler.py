"""What several torch tests share."""

from __future__ import annotations

import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")),
    reason="torch.compile needs a C++ compiler on the CPU",
)

"""The tokenizer in a local folder of transformers."""

from __future__ import annotations

import hashlib
from typing import Any

from ....errors import ArgumentError
from ...failures import in_words
from ..optional_packages import imported


def load_tokenizer(folder: str) -> Any:
    """The tokenizer in a local folder. Nothing is downloaded."""
    transformers = imported("transformers")
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds of errors
        raise ArgumentError(
            f"data.tokenizer: expected a local folder with a tokenizer of transformers, received {folder!r}: "
            f"{in_words(error)}"
        ) from error


def tokenizer_checksum(tokenizer: Any) -> str:
    """SHA-256 of its tokens and of what it does to a text, as its own backend writes them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = repr(sorted(tokenizer.get_vocab().items())) if backend is None else backend.to_str()
    return hashlib.sha256(content.encode()).hexdigest()

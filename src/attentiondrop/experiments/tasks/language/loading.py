"""Read text and turn it into tokens in three parts."""

from __future__ import annotations

from pathlib import Path

import torch

from ....errors import ArgumentError
from ..draw_keys import key
from ..missing_files import how_to_name, missing
from ..text.generated_sentences import generated_text
from ..text.line_files import read_text
from ..text.part_files import files_of_parts
from .language_settings import TextSettings
from .token_data import TokenData
from .vocabulary import learn_vocabulary

PARTS = ("train", "validation", "test")


def load_text(settings: TextSettings) -> TokenData:
    """Read and split the text, learn the vocabulary from the training part, and encode all parts."""
    texts = _texts(settings)
    for part, text in texts.items():
        if not text:
            raise ArgumentError(f"data: expected text in the {part} part, it is empty")
    vocabulary = learn_vocabulary(settings, texts["train"])
    tokens, sizes = {}, {}
    for part, text in texts.items():
        numbers = vocabulary.encode(text)
        size = len(text.encode())
        if settings.limit is not None and len(numbers) > settings.limit:
            # The bytes of the tokens that are left, as far as that can be told from all of them.
            size, numbers = round(size * settings.limit / len(numbers)), numbers[: settings.limit]
        tokens[part], sizes[part] = torch.tensor(numbers, dtype=torch.int32), size
    stride, generated = settings.stride or settings.block, settings.name == "generated"
    return TokenData(vocabulary, tokens, sizes, settings.block, stride, generated)


def _texts(settings: TextSettings) -> dict[str, str]:
    """Part -> text."""
    if settings.name == "generated":
        counts = (settings.sentences, *[max(1, settings.sentences // 4)] * 2)
        seeds = [key("sentences", settings.seed, part) for part in PARTS]
        return {part: generated_text(*each) for part, *each in zip(PARTS, counts, seeds, strict=True)}
    if settings.root is None:
        raise missing("the path of the text", None, how_to_name("FILE"))
    root = Path(settings.root).expanduser()
    if settings.name == "parts":
        return {part: read_text(path) for part, path in files_of_parts(root).items()}
    return _split(read_text(root), settings)


def _split(text: str, settings: TextSettings) -> dict[str, str]:
    """The text of one file in three parts."""
    end = int(len(text) * settings.train)
    rest = text[end:]
    if settings.held_out == "whole":
        return {"train": text[:end], "validation": rest, "test": rest}
    middle = len(rest) // 2
    return {"train": text[:end], "validation": rest[:middle], "test": rest[middle:]}

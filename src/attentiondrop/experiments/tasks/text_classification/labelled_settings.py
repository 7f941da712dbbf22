"""The sections `data` and `model` of a recipe for text classification. Values are checked at once."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import bad_argument
from ....validation import integer, number, one_of
from ..from_transformers.transformers_settings import TransformersSettings
from ..interface import DataSettings

SOURCES = ("generated", "parts")


@dataclass(frozen=True)
class LabelledSettings(DataSettings):
    """Settings of the text.

    Attributes:
        name: `generated`; `parts`: `root` is a folder with exactly one file each whose name contains train, valid and
            test, plain or gzipped. Each line has a label, a tab and a text.
        tokenizer: a local folder of transformers. If None, every word of the training part is a token.
        length: all texts get this many tokens. Shorter ones are padded; longer ones are cut off, counted and reported.
        validation: share of the training part that is held out; None if there is a file for it.
        train_fraction: share of the rest that is used for training.
        sentences: for `generated`, how many the training part has; the other parts have a quarter each.
        seed: for all draws listed here. All seeds of a comparison share it.
    """

    name: str = "generated"
    root: str | None = None
    download: bool = False
    tokenizer: str | None = None
    length: int = 16
    validation: float | None = None
    train_fraction: float = 1.0
    sentences: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("data.name", self.name, SOURCES)
        if self.download:
            raise bad_argument("data.download", "false: text is read from data.root", self.download)
        for name in ("length", "sentences"):
            integer(f"data.{name}", getattr(self, name), minimum=1)
        integer("data.seed", self.seed, minimum=0)
        if self.validation is not None and not 0.0 < number("data.validation", self.validation, 0.0, 1.0) < 1.0:
            raise bad_argument("data.validation", "null or a number in (0, 1)", self.validation)
        if number("data.train_fraction", self.train_fraction, 0.0, 1.0) == 0.0:
            raise bad_argument("data.train_fraction", "a number in (0, 1]", self.train_fraction)


@dataclass(frozen=True)
class ClassifierSettings(TransformersSettings):
    """A model of transformers for whole texts, such as `bert` or `roberta`, new or from a local folder.

    The head for the classes is new if the folder has none, or one for another number of classes.
    """

    name: str = "bert"

"""The `data`, `model` and `evaluation` sections of a recipe for translation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ....errors import bad_argument
from ....validation import integer, number, one_of
from ..interface import DataSettings, EvaluationSettings, ModelSettings
from ..text.subwords import SMALLEST

TOY, MULTI30K, WMT14, OPUS = NAMES = ("toy-translation", "multi30k", "wmt14", "opus")
#: The names of files, without the language, as they were published.
FILES = {
    MULTI30K: ("train", "val", "test_2016_flickr"),
    WMT14: ("train", "newstest2013", "newstest2014"),
    OPUS: (None, None, None),
}
_LANGUAGE = re.compile(r"[A-Za-z][\w-]{0,30}")


@dataclass(frozen=True)
class TranslationData(DataSettings):
    """Pairs of sentences.

    Args:
        name: one of `NAMES`. `toy-translation` is generated, and needs no files.
        root: the folder of the files. For `wmt14` None reads them with the datasets library.
        download: whether that library may download them.
        source: the language to translate from, which is also the end of the file names.
        target: the language to translate to.
        train: the file of the training part without its language: with `Books.de-en`, the files are `Books.de-en.en`
            and `Books.de-en.de`, or these with `.gz`. None takes the published name; `opus` has none.
        validation: the same for the validation part. For `opus` None holds out `held_out` pairs of the training part.
        test: the same for the test part.
        held_out: how many pairs of the training part become the validation part, and how many the test part.
        lowercase: whether all text is converted to lower case.
        vocabulary: how many subwords to learn from the training part. Both languages share them.
        longest: pairs with more subwords in one of the languages are left out of training, and counted.
        limit: at most this many pairs in each part, the first ones, for quick trials.
        sentences: how many training pairs are generated for `toy-translation`.
        seed: for generated and held-out pairs. All seeds of a comparison share it.
    """

    name: str = TOY
    root: str | None = None
    download: bool = False
    source: str = "en"
    target: str = "de"
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    held_out: int = 1000
    lowercase: bool = False
    vocabulary: int = 10_000
    longest: int = 128
    limit: int | None = None
    sentences: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("data.name", self.name, NAMES)
        for name in ("source", "target"):
            if not isinstance(getattr(self, name), str) or not _LANGUAGE.fullmatch(getattr(self, name)):
                raise bad_argument(f"data.{name}", "the code of a language, such as en", getattr(self, name))
        if self.source == self.target:
            raise bad_argument("data.target", f"another language than the source {self.source!r}", self.target)
        for name, minimum in (("held_out", 1), ("longest", 2), ("sentences", 8), ("seed", 0)):
            integer(f"data.{name}", getattr(self, name), minimum)
        if integer("data.vocabulary", self.vocabulary) < SMALLEST:
            raise bad_argument("data.vocabulary", f"an integer >= {SMALLEST}", self.vocabulary)
        if self.limit is not None:
            integer("data.limit", self.limit, 1)
        if self.name == OPUS and self.train is None:
            raise bad_argument("data.train", "the file of the pairs without its language, such as Books.de-en", None)
        if self.name == TOY and any((self.train, self.validation, self.test)):
            raise bad_argument("data.train", f"null, {TOY} reads no files", self.train or self.validation or self.test)


#: Size -> layers of each half, width, width of the feed-forward part, heads.
SIZES = {"tiny": (4, 128, 256, 4), "base": (6, 512, 2048, 8)}


@dataclass(frozen=True)
class TransformerSettings(ModelSettings):
    """An encoder-decoder Transformer. What is None is as `name` says: `tiny` or `base`."""

    #: `tiny` or `base`.
    name: str = "tiny"
    #: In the encoder, and again in the decoder.
    layers: int | None = None
    #: The size of the hidden states.
    width: int | None = None
    #: The width of the feed-forward part.
    feedforward: int | None = None
    #: Attention heads in each layer.
    heads: int | None = None
    #: Of embeddings and of the output of every sublayer. A method with a dropout of its own replaces it.
    dropout: float = 0.1
    #: Where layers are normalised: `post` (after the sum, as in the first Transformer and in fairseq), or `pre`.
    norm: str = "post"

    def __post_init__(self) -> None:
        one_of("name", self.name, tuple(SIZES))
        for name in ("layers", "width", "feedforward", "heads"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), minimum=1)
        number("dropout", self.dropout, 0.0, 1.0)
        one_of("norm", self.norm, ("post", "pre"))
        _, width, _, heads = self.sizes
        if width % heads or width % 2:
            raise bad_argument("width", f"an even multiple of the {heads} heads", width)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Layers, width, width of the feed-forward part, heads."""
        own = (self.layers, self.width, self.feedforward, self.heads)
        layers, width, feedforward, heads = (
            usual if given is None else given for given, usual in zip(own, SIZES[self.name], strict=True)
        )
        return layers, width, feedforward, heads


@dataclass(frozen=True)
class SearchSettings(EvaluationSettings):
    """How sentences are translated for the final scores: by beam search."""

    #: Sentences at once.
    batch_size: int = 256
    #: How many translations of a sentence are kept while searching. 1 is greedy search.
    beam: int = 5
    #: A translation of n subwords is scored by its log probability / n ** length_penalty.
    length_penalty: float = 1.0
    #: A translation has at most `length_factor` times the subwords of its source, and `length_extra` more.
    length_factor: float = 1.5
    #: See `length_factor`.
    length_extra: int = 20
    CHANGE_VALIDATION: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("beam", self.beam, minimum=1)
        number("length_penalty", self.length_penalty, minimum=0.0)
        number("length_factor", self.length_factor, minimum=0.0)
        integer("length_extra", self.length_extra, minimum=1)

    def beside_scores(self) -> tuple[str, ...]:
        """Beam search."""
        return ("beam search",)

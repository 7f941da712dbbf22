"""Files of lines: plain and gzipped, and what is wrong with them is said with the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.text.aligned_files import read_aligned
from attentiondrop.experiments.tasks.text.line_files import TextFileError, find_file, read_lines, read_text

# A line separator, a form feed and a non-breaking space are no line ends.
SENTENCES = ["first one", "zweiter Satz\u2028mit Trenner", "dritter\x0c\u00a0Satz"]


def written(path: Path, content: bytes, zipped: bool = False) -> Path:
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines(tmp_path: Path, zipped: bool, end: str, last: bool) -> None:
    text = end.join(SENTENCES) + (end if last else "")
    path = written(tmp_path / "text", text.encode(), zipped)
    assert read_lines(path) == SENTENCES
    assert read_text(path) == text


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = written(tmp_path / "text", b"\xef\xbb\xbfone\ntwo\n")
    assert read_lines(path) == ["one", "two"] and read_text(path) == "one\ntwo\n"


@pytest.mark.parametrize("zipped", [False, True])
def test_bad_bytes_are_named_with_their_line(tmp_path: Path, zipped: bool) -> None:
    path = written(tmp_path / "text.en", b"fine\nf\xe4r\nfine\n", zipped)
    for read in (read_lines, read_text):
        with pytest.raises(TextFileError, match=r"text.en, line 2: expected text in UTF-8, found the byte 0xe4"):
            read(path)


def test_an_empty_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "text.en", b"one\n \nthree\n")
    with pytest.raises(TextFileError, match=r"text.en, line 2: expected text, the line is empty"):
        read_lines(path)
    assert read_lines(path, allow_empty=True) == ["one", " ", "three"]
    with pytest.raises(TextFileError, match="line 3: expected text, the line is empty"):
        read_lines(written(tmp_path / "end", b"one\ntwo\n\n"))
    with pytest.raises(TextFileError, match="the file is empty"):
        read_lines(written(tmp_path / "nothing", b""))


def test_files_out_of_step_are_named_with_the_first_line_that_is_alone(tmp_path: Path) -> None:
    three, two = written(tmp_path / "a.en", b"1\n2\n3\n"), written(tmp_path / "a.de", b"1\n2\n", zipped=True)
    assert read_aligned(three, three).target == ["1", "2", "3"]
    message = r"a.en, line 3: expected its translation in .*a.de, which has only 2 lines; the files have 3 and 2"
    with pytest.raises(TextFileError, match=message):
        read_aligned(three, two)
    with pytest.raises(TextFileError, match=message):
        read_aligned(two, three)


def test_a_broken_archive_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(b"one\ntwo\n" * 100)
    for name, content in {"cut": whole[:-9], "changed": whole[:20] + b"\xff\xff" + whole[22:]}.items():
        with pytest.raises(TextFileError, match=f"{name}.gz: expected a whole gzip file"):
            read_lines(written(tmp_path / f"{name}.gz", content))


def test_finding_files(tmp_path: Path) -> None:
    path = written(tmp_path / "train.en.gz", b"one\n", zipped=True)
    assert find_file(tmp_path, "train.en") == path
    plain = written(tmp_path / "train.en", b"one\n")
    assert find_file(str(tmp_path), "train.en") == plain
    with pytest.raises(
        ArgumentError, match=r"data.root: expected val.en or val.en.gz in the folder .* which has train"
    ):
        find_file(tmp_path, "val.en")
    with pytest.raises(ArgumentError, match=r"data.root: expected a folder with val.en .* there is no folder"):
        find_file(tmp_path / "no", "val.en")
    with pytest.raises(TextFileError, match="expected a text file that can be read: No such file"):
        read_lines(tmp_path / "no")

"""A folder like ImageNet with a few tiny images: the number of workers and ranks does not change any pixel."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data import ImageSettings, image_folder, load_data
from attentiondrop.experiments.tasks.classification.task import Classification

pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

SIZE = 12
CLASSES = ("n01", "n02", "n03")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    generator = np.random.default_rng(5)
    for part, count in (("train", 14), ("val", 5)):
        for name in CLASSES:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                # Images of several sizes, some of them grey.
                shape = (16 + number, 24 - number, 3) if number % 5 else (20, 20)
                pixels = generator.integers(256, size=shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number:02}.png")
    return folder


def load(root: Path, **settings: object):
    settings = {"image_size": SIZE, "workers": 0, "augment": "randaugment", **settings}
    return load_data(ImageSettings("imagenet", root=str(root), **settings))


def test_own_images_are_read_like_imagenet(root: Path) -> None:
    own = load_data(ImageSettings("folder", root=str(root), image_size=SIZE, workers=0, augment="randaugment"))
    other = load(root)
    assert own.name == "folder" and own.checksums == other.checksums and own.counts == other.counts
    assert all(map(torch.equal, epoch(own), epoch(other)))
    assert Classification().packages(ImageSettings("folder")) == ["torchvision"]
    with pytest.raises(AttentionDropError, match=r"data.mix: expected 0.0 for folder, which stays in files"):
        ImageSettings("folder", mix=0.5)


def test_some_images_belong_to_all_classes(root: Path) -> None:
    """Folders are sorted by class. The images are always the same ones, in the order of the part."""
    data = load(root)
    whole = torch.cat([labels for _, labels in data.batches("test", 4)])
    assert whole[:6].unique().numel() == 2
    for workers in (0, 2):
        images, labels = zip(*load(root, workers=workers).some("test", 6, 4), strict=True)
        assert [len(each) for each in labels] == [4, 2]
        assert torch.cat(labels).tolist() == [0, 0, 1, 1, 2, 2]
        pixels = torch.cat([x for x, _ in data.batches("test", 4, normalise=False)])
        assert all(any(torch.equal(image, other) for other in pixels) for image in torch.cat(images))


def test_a_folder_as_npz_says_what_to_set(root: Path) -> None:
    with pytest.raises(AttentionDropError, match=r"for a folder with train/CLASS/\*.png .* set data.name=folder"):
        load_data(ImageSettings("npz", root=str(root)))


def test_there_are_at_most_as_many_workers_as_cores(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert [load(root, workers=workers).workers for workers in (0, 1, 2, 16)] == [0, 1, 2, 2]
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert load(root, workers=16).workers == 3


def epoch(data, **settings):
    settings = {"seed": 0, "epoch": 0, "batch_size": 8} | settings
    images, labels = zip(*data.train_batches(**settings), strict=True)
    return torch.cat(images), torch.cat(labels)


def test_lists_splits_and_gives_out(root: Path) -> None:
    data = load(root, validation=0.2)
    assert (data.name, data.classes, data.channels, data.size) == ("imagenet", 3, 3, SIZE)
    assert data.counts == {"train": 34, "validation": 8, "test": 15}
    assert load_data(ImageSettings("imagenet", root=str(root))).size == 224
    images, labels = next(data.batches("test", 15))
    assert images.shape == (15, 3, SIZE, SIZE) and images.dtype == torch.float32 and labels.dtype == torch.int64
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    files = {part: set(data.files[part].paths) for part in ("train", "validation")}
    assert not files["train"] & files["validation"] and len(files["train"] | files["validation"]) == 42


def test_evaluation_shows_the_middle_of_the_scaled_image(root: Path) -> None:
    from torchvision.transforms import functional as T

    data = load(root)
    raw = next(data.batches("test", 3, normalise=False))[0]
    image = Image.open(data.files["test"].paths[2]).convert("RGB")
    expected = T.pil_to_tensor(T.center_crop(T.resize(image, round(SIZE * 256 / 224)), SIZE)) / 255
    assert torch.equal(raw[2], expected)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = next(data.batches("test", 3))[0]
    assert torch.allclose(normal, (raw - mean[:, None, None]) / std[:, None, None], atol=1e-6)


# Coverage says this in worker processes, where a warning that is an error would end them.
@pytest.mark.filterwarnings("ignore:Module attentiondrop was previously imported")
@pytest.mark.parametrize("augment", ["none", "crop", "flip-crop", "randaugment"])
def test_workers_change_nothing_and_leave_the_global_generator_alone(root: Path, augment: str) -> None:
    state = torch.get_rng_state()
    alone = epoch(load(root, augment=augment), epoch=1)
    several = epoch(load(root, augment=augment, workers=2), epoch=1)
    assert torch.equal(alone[0], several[0]) and torch.equal(alone[1], several[1])
    assert torch.equal(state, torch.get_rng_state())
    other = epoch(load(root, augment=augment), epoch=2)
    assert not torch.equal(alone[0], other[0])


@pytest.mark.filterwarnings("ignore:Module attentiondrop was previously imported")
def test_a_spawned_process_starts_its_readers_as_the_system_does(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system forks, a reader knows what this process has changed, and need not import torch again."""
    usual, here = multiprocessing.get_all_start_methods()[0], multiprocessing.get_start_method()
    monkeypatch.setattr(image_folder, "_in_colour", lambda path: Image.new("RGB", (20, 20), (0, 255, 0)))
    multiprocessing.set_start_method("spawn", force=True)
    try:
        images, _ = next(load(root, workers=1).batches("test", 4, normalise=False))
    finally:
        multiprocessing.set_start_method(here, force=True)
    assert bool((images[:, 1] == 1).all()) is (usual == "fork")


def test_each_augmentation_does_more(root: Path) -> None:
    """The crop is drawn first, then mirroring, then RandAugment, so one seed gives the same crop each time."""
    none, crop, flip, rand = (epoch(load(root, augment=x))[0] for x in ("none", "crop", "flip-crop", "randaugment"))
    assert not torch.equal(none, crop)
    mirrored = sum(torch.equal(a, b.flip(-1)) for a, b in zip(crop, flip, strict=True))
    same = sum(torch.equal(a, b) for a, b in zip(crop, flip, strict=True))
    assert mirrored + same == len(crop) and min(mirrored, same) > len(crop) / 5
    assert sum(not torch.equal(a, b) for a, b in zip(flip, rand, strict=True)) > len(flip) / 3


def test_ranks_share_the_batches_of_one_process(root: Path) -> None:
    data = load(root)
    alone = list(data.train_batches(seed=4, epoch=1, batch_size=8))
    ranks = [list(data.train_batches(seed=4, epoch=1, batch_size=8, rank=r, world=2)) for r in range(2)]
    for batch, *shares in zip(alone, *ranks, strict=True):
        for whole, *pieces in zip(batch, *shares, strict=True):
            assert torch.equal(torch.cat(pieces), whole) and len(pieces[0]) == 4
    ranks = [list(data.batches("test", 7, rank=r, world=2)) for r in range(2)]
    assert [[len(y) for _, y in rank] for rank in ranks] == [[3, 3, 0], [4, 4, 1]]
    assert ranks[0][2][0].shape == (0, 3, SIZE, SIZE)


def test_an_image_is_augmented_alike_in_any_subset(root: Path) -> None:
    whole, few = load(root), load(root, train_fraction=0.5)
    images = dict(zip(whole.files["train"].paths, range(38), strict=True))
    by_path = {}
    for data in (whole, few):
        order = torch.randperm(data.counts["train"], generator=torch.Generator().manual_seed(0))
        reader = data._train(order, [slice(0, len(order))], 7, 7)
        pixels = next(iter(reader))[0]
        by_path[data] = {data.files["train"].paths[i]: x for i, x in zip(order.tolist(), pixels, strict=True)}
    assert set(by_path[few]) < set(images)
    assert all(torch.equal(image, by_path[whole][path]) for path, image in by_path[few].items())


def test_label_noise_and_checksums(root: Path, tmp_path: Path) -> None:
    clean, noisy = load(root), load(root, label_noise=0.5)
    wrong = sum(a != b for a, b in zip(clean.files["train"].labels, noisy.files["train"].labels, strict=True))
    assert wrong == 19
    differ = {part for part in clean.checksums if clean.checksums[part] != noisy.checksums[part]}
    assert differ == {"train"}
    # A copy in another folder is the same data; a file of another size is not.
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    assert load(copy).checksums == clean.checksums
    path = copy / "val" / "n02" / "03.png"
    path.write_bytes(path.read_bytes() + b"0")
    differ = {part for part, value in load(copy).checksums.items() if value != clean.checksums[part]}
    assert differ == {"test"}


def test_moving_moves_the_batches(root: Path) -> None:
    moved = load(root).to("meta")
    images, labels = next(moved.batches("test", 4))
    assert images.device.type == labels.device.type == "meta"


def test_wrong_folders_are_named(root: Path, tmp_path: Path) -> None:
    for folder in (None, str(tmp_path)):
        with pytest.raises(AttentionDropError) as caught:
            load_data(ImageSettings("imagenet", root=folder))
        assert str(caught.value) == (
            "data.root: expected the folder that holds train/ and val/, with a folder of images for each class in "
            f"both, received {folder!r}; set it with --set data.root=FOLDER (for a finished run, with --root FOLDER)"
        )
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    with pytest.raises(AttentionDropError, match=r"data\.root: expected a folder of images for each class in train/"):
        load(tmp_path)
    shutil.copytree(root / "train", tmp_path / "train", dirs_exist_ok=True)
    shutil.copytree(root / "val", tmp_path / "val", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "val" / "n02")
    with pytest.raises(AttentionDropError, match="received 3 and 2, such as 'n02' in only one of them"):
        load(tmp_path)


def with_image(root: Path, folder: Path, content: bytes) -> Path:
    """A copy of the images in which one has other content."""
    shutil.copytree(root, folder)
    path = folder / "val" / "n01" / "00.png"
    path.write_bytes(content)
    return path


def picture(side: int = 64) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(256, size=(side, side, 3), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


# Coverage says this in worker processes.
@pytest.mark.filterwarnings("ignore:Module attentiondrop was previously imported")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named_in_one_line(root: Path, tmp_path: Path, workers: int) -> None:
    """Also in a worker, whose errors a `DataLoader` would turn into pages of text."""
    path = with_image(root, tmp_path / "copy", picture()[:5000])
    with pytest.raises(AttentionDropError) as caught:
        list(load(tmp_path / "copy", workers=workers).batches("test", 4))
    assert str(caught.value).startswith(f"data.root: expected images that can be read, {str(path)!r} is not one: ")
    assert "truncated" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n and no more"])
def test_what_is_no_image_is_named(root: Path, tmp_path: Path, content: bytes) -> None:
    path = with_image(root, tmp_path / "copy", content)
    with pytest.raises(AttentionDropError, match=f"{path.name}' is not one: cannot identify image file"):
        list(load(tmp_path / "copy").batches("test", 4))


@pytest.mark.parametrize(("dtype", "mode"), [("uint16", "I;16"), ("int32", "I"), ("float32", "F")])
def test_an_image_of_more_than_eight_bits_is_refused(root: Path, tmp_path: Path, dtype: str, mode: str) -> None:
    """Pillow would turn a grey picture of 16 bits into a white one."""
    file = io.BytesIO()
    Image.fromarray(np.arange(1024).reshape(32, 32).astype(dtype)).save(file, "tiff")
    path = with_image(root, tmp_path / "copy", file.getvalue())
    with pytest.raises(
        AttentionDropError, match=rf"{path.name}' is not one: it has more than 8 bits .*\(mode {mode}\)"
    ):
        list(load(tmp_path / "copy").batches("test", 4))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_images_of_other_modes_are_read_in_colour(root: Path, tmp_path: Path, mode: str) -> None:
    file, pixels = io.BytesIO(), np.full((16, 16, 3), (0, 255, 0) if mode in ("P", "RGBA", "CMYK") else 255, np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, "tiff")
    with_image(root, tmp_path / "copy", file.getvalue())
    images, _ = next(load(tmp_path / "copy").batches("test", 4, normalise=False))
    assert torch.equal(images[0].mul(255).round().byte(), torch.from_numpy(pixels[:SIZE, :SIZE]).permute(2, 0, 1))


def test_pillow_does_not_warn_of_each_image(root: Path, tmp_path: Path) -> None:
    """Of palettes with several transparent colours it warns at each reading; that changes no pixel."""
    file, pixels = io.BytesIO(), np.full((16, 16, 3), (0, 255, 0), np.uint8)
    Image.fromarray(pixels).convert("P").save(file, "png", transparency=bytes(range(256)))
    with_image(root, tmp_path / "copy", file.getvalue())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        images, _ = next(load(tmp_path / "copy").batches("test", 4, normalise=False))
    assert caught == []
    assert torch.equal(images[0].mul(255).byte(), torch.from_numpy(pixels[:SIZE, :SIZE]).permute(2, 0, 1))


def test_names_that_are_not_utf8_have_checksums_too(root: Path, tmp_path: Path) -> None:
    clean = load(root).checksums
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    path = os.fsencode(copy / "val" / "n01" / "00.png")
    try:
        os.rename(path, path.replace(b"00.png", b"\xe9.png"))
    except OSError:
        return  # this file system takes no such name
    data = load(copy)
    assert {part for part in clean if data.checksums[part] != clean[part]} == {"test"}
    assert len(next(data.batches("test", 15)).targets) == 15


@pytest.mark.parametrize("factor", [1.5, 3])  # Pillow would only warn of the first.
def test_an_image_of_too_many_pixels_is_not_decoded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    path = with_image(root, tmp_path / "copy", picture())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(64 * 64 / factor))
    with pytest.raises(AttentionDropError, match=r"exceeds limit .* decompression bomb") as caught:
        list(load(tmp_path / "copy").batches("test", 4))
    assert str(path) in str(caught.value)


def test_an_image_that_is_gone_is_named(root: Path, tmp_path: Path) -> None:
    path = with_image(root, tmp_path / "copy", b"")
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(AttentionDropError, match=r"data\.root: expected images that can be read: .*00\.png"):
        load(tmp_path / "copy")


def test_one_class_is_refused(root: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        shutil.copytree(root / part / "n01", tmp_path / part / "n01")
    with pytest.raises(AttentionDropError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        f"data.root: expected folders of at least 2 classes in train/ and val/ of {str(tmp_path)!r}, received 'n01' alone"
    )

"""Operations of AutoAugment on many images at once, each image with its own magnitude, as torchvision defines them.

Images are uint8 [N, C, H, W] with 1 or 3 channels. Magnitudes are float64 [N] on the CPU, where they are drawn: a
matrix or a factor is computed from them there, so it is the same on every device. Nothing here waits for a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

#: From images and magnitudes to images.
Operation = Callable[[Tensor, Tensor], Tensor]

#: The weights of red, green and blue in a grey image.
_GREY = (0.2989, 0.587, 0.114)


def operate(images: Tensor, operation: str, magnitudes: Tensor) -> Tensor:
    """Do one operation of `OPERATIONS`.

    >>> images = torch.tensor([0, 100, 250], dtype=torch.uint8).view(3, 1, 1, 1)
    >>> operate(images, "Brightness", torch.full((3,), 0.5)).flatten()
    tensor([  0, 150, 255], dtype=torch.uint8)
    """
    return OPERATIONS[operation](images, magnitudes.double())


def _affine(images: Tensor, rows: list[list[Tensor]]) -> Tensor:
    """Sample each image at the places to which its matrix [2, 3] leads, the nearest pixel; black outside."""
    height, width = images.shape[-2:]
    matrices = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-1)
    half = torch.tensor([0.5 * width, 0.5 * height])
    scaled = (matrices.float() / half).to(images.device, non_blocking=True)
    across = torch.linspace(-width * 0.5 + 0.5, width * 0.5 - 0.5, width, device=images.device)
    down = torch.linspace(-height * 0.5 + 0.5, height * 0.5 - 0.5, height, device=images.device)
    places = torch.stack([across.expand(height, width), down[:, None].expand(height, width)], dim=-1)
    places = torch.cat([places, torch.ones_like(places[..., :1])], dim=-1).view(1, -1, 3)
    grid = places.expand(len(images), -1, -1).bmm(scaled).view(-1, height, width, 2)
    found = grid_sample(images.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return found.round_().to(torch.uint8)


def _shear_x(images: Tensor, m: Tensor) -> Tensor:
    one, none = torch.ones_like(m), torch.zeros_like(m)
    return _affine(images, [[one, m, m * images.shape[-2] * 0.5], [none, one, none]])


def _shear_y(images: Tensor, m: Tensor) -> Tensor:
    one, none = torch.ones_like(m), torch.zeros_like(m)
    return _affine(images, [[one, none, none], [m, one, m * images.shape[-1] * 0.5]])


def _translate_x(images: Tensor, m: Tensor) -> Tensor:
    one, none = torch.ones_like(m), torch.zeros_like(m)
    return _affine(images, [[one, none, -m.trunc()], [none, one, none]])


def _translate_y(images: Tensor, m: Tensor) -> Tensor:
    one, none = torch.ones_like(m), torch.zeros_like(m)
    return _affine(images, [[one, none, none], [none, one, -m.trunc()]])


def _rotate(images: Tensor, m: Tensor) -> Tensor:
    angle, none = torch.deg2rad(-m), torch.zeros_like(m)
    return _affine(images, [[angle.cos(), angle.sin(), none], [-angle.sin(), angle.cos(), none]])


def _blend(images: Tensor, others: Tensor | float, m: Tensor) -> Tensor:
    """`1 + m` of the image and `-m` of the other."""
    own, other = (x.float().to(images.device, non_blocking=True).view(-1, 1, 1, 1) for x in (1.0 + m, 1.0 - (1.0 + m)))
    return (own * images + other * others).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    grey: Tensor = _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue
    return grey.to(torch.uint8)


def _brightness(images: Tensor, m: Tensor) -> Tensor:
    return _blend(images, 0.0, m)


def _colour(images: Tensor, m: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else _blend(images, _grey(images), m)


def _contrast(images: Tensor, m: Tensor) -> Tensor:
    return _blend(images, _grey(images).float().mean(dim=(1, 2, 3), keepdim=True), m)


@functools.cache
def _smoothing(device: torch.device) -> Tensor:
    """The kernel of torchvision, made once for each device: copying it there makes the host wait."""
    with torch.inference_mode(False):
        kernel = torch.ones(3, 3)
        kernel[1, 1] = 5.0
        return (kernel / kernel.sum()).to(device)


def _sharpness(images: Tensor, m: Tensor) -> Tensor:
    if min(images.shape[-2:]) <= 2:
        return images
    kernel = _smoothing(images.device).expand(images.shape[1], 1, 3, 3)
    inner = conv2d(images.float(), kernel, groups=images.shape[1]).round_().to(torch.uint8)
    blurred = images.clone()
    blurred[..., 1:-1, 1:-1] = inner
    return _blend(images, blurred, m)


def _posterize(images: Tensor, m: Tensor) -> Tensor:
    """Keep the first `m` bits."""
    masks = (256 - 2 ** (8 - m.long())).to(torch.uint8)
    return images & masks.to(images.device, non_blocking=True).view(-1, 1, 1, 1)


def _solarize(images: Tensor, m: Tensor) -> Tensor:
    """Invert what is at least as bright as `m`."""
    limits = m.float().to(images.device, non_blocking=True).view(-1, 1, 1, 1)
    return torch.where(images >= limits, 255 - images, images)


def _autocontrast(images: Tensor, m: Tensor) -> Tensor:
    low, high = (x.float() for x in torch.aminmax(images.flatten(2), dim=2))
    flat = high == low
    low, scale = torch.where(flat, 0.0, low), torch.where(flat, 1.0, 255 / (high - low))
    return ((images - low[..., None, None]) * scale[..., None, None]).clamp(0, 255).to(torch.uint8)


def _equalize(images: Tensor, m: Tensor) -> Tensor:
    """Make all values of a channel about equally frequent."""
    pixels = images.flatten(2).flatten(0, 1).long()
    counts = torch.zeros(len(pixels), 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, pixels, torch.ones_like(pixels))
    brightest = counts.gather(1, pixels.amax(dim=1, keepdim=True))
    step = (pixels.shape[1] - brightest) // 255
    divisor = step.clamp_min(1)
    table = (counts.cumsum(dim=1) + step // 2) // divisor
    table = pad(table, (1, 0))[:, :-1].clamp(0, 255)
    found = torch.where(step > 0, table.gather(1, pixels), pixels)
    return found.to(torch.uint8).view_as(images)


#: Name -> operation, under the names of torchvision.
OPERATIONS: dict[str, Operation] = {
    "Identity": lambda images, m: images,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": _brightness,
    "Color": _colour,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
    "Invert": lambda images, m: 255 - images,
}

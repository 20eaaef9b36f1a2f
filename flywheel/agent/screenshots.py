"""Decode screenshots, and refuse images that the policy cannot be shown."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image as Picture

from flywheel.utils.errors import BadInput

MAX_SIDE = 4096  # the default of policy.max_image_side
MAX_RATIO = 200  # of the longer side to the shorter: the Qwen-VL image processors refuse more

_WHERE = "policy context"


def screenshot_size(data: bytes, max_side: int = MAX_SIDE) -> tuple[int, int]:
    """Read (width, height) in pixels from the header of a picture; its pixels may still be broken.

    data: the file's bytes. max_side: longest side that is allowed, in pixels. Raises BadInput for an empty file, one
    that is no image, a longer side, and a picture narrower than 1 : 200.
    """
    with _opened(data, max_side) as picture:
        return picture.size


def decode_screenshot(data: bytes, max_side: int = MAX_SIDE) -> Picture.Image:
    """Decode a picture to RGB, 8 bits a channel. What is transparent lies on white, as on a browser's page.

    data: the file's bytes, PNG, JPEG or another format that PIL reads. max_side: longest side that is allowed, in
    pixels. Raises BadInput for a file that is empty, no image, cut off or broken, a longer side, and a picture narrower
    than 1 : 200.
    """
    picture = _opened(data, max_side)
    try:
        picture.load()
        return _rgb(picture)
    except Exception as error:  # PIL's decoders raise many kinds for a broken file
        raise BadInput(f"the screen is cut off or broken: {_line(error)}", where=_WHERE) from None


def _opened(data: bytes, max_side: int) -> Picture.Image:
    if not data:
        raise BadInput("the screen is empty: 0 bytes", where=_WHERE)
    try:
        picture = Picture.open(io.BytesIO(data))
    except Picture.DecompressionBombError:
        raise BadInput("the screen is too large", where=_WHERE, fix=_smaller(max_side)) from None
    except Picture.UnidentifiedImageError:
        raise BadInput("the screen is not an image", where=_WHERE, fix="give a PNG or a JPEG") from None
    except Exception as error:  # other errors of a broken header
        raise BadInput(f"the screen is not an image: {_line(error)}", where=_WHERE, fix="give a PNG") from None
    width, height = picture.size
    if max(width, height) > max_side:
        raise BadInput(f"the screen is too large: {width} x {height} pixels", where=_WHERE, fix=_smaller(max_side))
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadInput(
            f"the screen is too narrow: {width} x {height} pixels",
            where=_WHERE,
            fix=f"its longer side may have {MAX_RATIO} times the pixels of the shorter one",
        )
    return picture


def _rgb(picture: Picture.Image) -> Picture.Image:
    if picture.mode.startswith("I"):  # 16 bits of grey; PIL's own conversion cuts off all above 255
        grey = np.asarray(picture).astype(np.int64).clip(0, 65_535) // 257
        return Picture.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        page = Picture.new("RGBA", layer.size, "white")
        return Picture.alpha_composite(page, layer).convert("RGB")
    return picture.convert("RGB")


def _smaller(max_side: int) -> str:
    return f"policy.max_image_side is {max_side}: raise it, or take smaller screens"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

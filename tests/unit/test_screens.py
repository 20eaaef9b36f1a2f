"""Screens of every kind: read as they look, or refused by name, and the other requests of the batch go on."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from checkpoints import make
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from flywheel.agent import prompt
from flywheel.agent.prompt import Image, Message
from flywheel.config import PolicySettings
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput, FlywheelError, PolicyError


def file(picture: Picture.Image, kind: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, format=kind, **options)
    return out.getvalue()


def noise(width: int, height: int) -> Picture.Image:
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Picture.fromarray(pixels)


def header_of(width: int, height: int) -> bytes:
    """A PNG that ends where its pixels should begin: what says that it is too large must not have looked further."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I", 1000) + b"IDAT"


RED = (200, 30, 40)
SQUARE = Picture.new("RGB", (32, 24), RED)
CLEAR = Picture.new("RGBA", (32, 24), (200, 30, 40, 0))
DEEP = Picture.fromarray(np.full((24, 32), 200 * 257, dtype=np.uint16))  # 16 bits of grey, at 200 of 255
MARKED = Picture.new("P", (32, 24), 1)
MARKED.putpalette([0, 0, 0, *RED])

LOOKS = {
    "rgb": (file(SQUARE), RED),
    "palette": (file(MARKED), RED),
    "palette with a transparent colour": (file(MARKED, transparency=1), (255, 255, 255)),
    "rgb with a transparent colour": (file(SQUARE, transparency=RED), (255, 255, 255)),
    "opaque": (file(SQUARE.convert("RGBA")), RED),
    "transparent": (file(CLEAR), (255, 255, 255)),
    "half transparent": (file(Picture.new("RGBA", (32, 24), (200, 30, 40, 128))), (227, 142, 147)),
    "grey and transparent": (file(Picture.new("LA", (32, 24), (9, 0))), (255, 255, 255)),
    "grey": (file(Picture.new("L", (32, 24), 90)), (90, 90, 90)),
    "black and white": (file(Picture.new("1", (32, 24), 1)), (255, 255, 255)),
    "16 bits of grey": (file(DEEP), (200, 200, 200)),
    "JPEG": (file(SQUARE, "JPEG", quality=95, subsampling=0), RED),
    "CMYK JPEG": (file(SQUARE.convert("CMYK"), "JPEG", quality=95), RED),
    "grey JPEG": (file(Picture.new("L", (32, 24), 90), "JPEG"), (90, 90, 90)),
    "WebP": (file(SQUARE, "WEBP", lossless=True), RED),
    "GIF": (file(MARKED, "GIF"), RED),
    "BMP": (file(SQUARE, "BMP"), RED),
}

WHOLE = file(noise(200, 100))
REFUSED = {
    "nothing": (b"", "empty: 0 bytes"),
    "text": (b"<html>not found</html>", "is not an image"),
    "a signature": (WHOLE[:8], "is not an image"),
    "a header": (header_of(64, 64), "cut off or broken"),
    "half a PNG": (WHOLE[: len(WHOLE) // 2], "cut off or broken"),
    "garbled pixels": (WHOLE[:60] + bytes(200) + WHOLE[260:], "cut off or broken"),
    "half a JPEG": (file(noise(200, 100), "JPEG")[:3000], "cut off or broken"),
    "8000 x 8000": (header_of(8000, 8000), r"too large: 8000 x 8000 pixels.*policy\.max_image_side is 4096"),
    "4097 wide": (header_of(4097, 10), "too large: 4097 x 10"),
    "a bomb": (header_of(60_000, 60_000), r"too large.*policy\.max_image_side"),
    "201 to 1": (file(noise(2010, 10)), "too narrow: 2010 x 10 pixels.*200 times"),
    "1 to 201": (file(noise(1, 201)), "too narrow: 1 x 201"),
}
FINE = {
    "1 x 1": file(noise(1, 1)),
    "1 x 2": file(noise(1, 2)),
    "200 to 1": file(noise(2000, 10)),
    "1 to 200": file(noise(1, 200)),
    "4096 wide": file(noise(4096, 64)),
    "27 x 27": file(noise(27, 27)),
    "223 x 225": file(noise(223, 225)),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_screen_is_read_as_it_looks(name):
    data, colour = LOOKS[name]
    picture = prompt.decode_screenshot(data)
    assert (picture.mode, picture.size) == ("RGB", (32, 24)) == ("RGB", prompt.screenshot_size(data))
    assert np.abs(np.asarray(picture).reshape(-1, 3).astype(int) - colour).max() <= 3


@given(st.integers(0, 65_535))
def test_16_bits_of_grey_become_8(value):
    picture = prompt.decode_screenshot(file(Picture.fromarray(np.full((2, 2), value, dtype=np.uint16))))
    assert abs(picture.getpixel((0, 0))[0] - value / 257) <= 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_screen_that_cannot_be_used_is_named(name):
    data, what = REFUSED[name]
    with pytest.raises(BadInput, match=what) as caught:
        prompt.decode_screenshot(data)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300), st.integers(0, len(WHOLE)))
def test_any_bytes_are_a_picture_or_bad_input(noise, place):
    for data in (noise, WHOLE[:place] + noise, WHOLE[:place] + noise + WHOLE[place + len(noise) :]):
        with contextlib.suppress(BadInput):
            assert prompt.decode_screenshot(data).mode == "RGB"


def test_the_largest_side_is_a_setting():
    assert prompt.screenshot_size(header_of(64, 64), 64) == (64, 64)
    with pytest.raises(BadInput, match=r"65 x 64 pixels.*policy\.max_image_side is 64"):
        prompt.screenshot_size(header_of(65, 64), 64)


# -- through the policy ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["base", "qwen2_5_vl"])
def folder(request, project, tmp_path_factory):
    if request.param == "base":
        return project / "models" / "base"
    return make(tmp_path_factory.mktemp("m") / "qwen", request.param)


def asked(data: bytes) -> tuple[Message, ...]:
    return (Message("user", (Image(data), "Go.")),)


async def test_broken_requests_fail_alone_and_the_others_are_answered(folder):
    policy, ask = EmbeddedPolicy(folder, PolicySettings()), SamplingParams(0, 3)
    contexts = [*map(asked, FINE.values()), *(asked(data) for data, _ in REFUSED.values())]
    contexts += [
        (Message("user", (Image(WHOLE), "Go.")), Message("assistant", ("Yes.",)), *asked(REFUSED["nothing"][0])),
        (Message("user", (Image(WHOLE), "word " * 5000)),),  # over the model's longest sequence
    ]
    order = np.random.default_rng(0).permutation(len(contexts))
    answers: list = [None] * len(contexts)
    found = await asyncio.gather(*(policy.complete(contexts[i], ask) for i in order), return_exceptions=True)
    for i, one in zip(order, found, strict=True):
        answers[i] = one
    alone = await policy.complete(contexts[0], ask)
    await policy.close()
    assert not [one for one in answers[: len(FINE)] if isinstance(one, Exception)]
    assert answers[0].token_ids == alone.token_ids
    for one in answers[len(FINE) : len(FINE) + len(REFUSED) + 1]:
        assert isinstance(one, BadInput), one
    assert isinstance(answers[-1], PolicyError | BadInput)
    assert all("\n" not in str(one) for one in answers if isinstance(one, FlywheelError))


async def test_the_policys_own_limit_is_taken(folder):
    policy = EmbeddedPolicy(folder, PolicySettings(max_image_side=300))
    with pytest.raises(BadInput, match=r"301 x 200 pixels.*policy\.max_image_side is 300"):
        await policy.complete(asked(file(noise(301, 200))), SamplingParams(0, 2))
    assert (await policy.complete(asked(file(noise(300, 200))), SamplingParams(0, 2))).token_ids
    await policy.close()


def test_every_shape_makes_as_many_tokens_as_are_counted(folder):
    encoder = Encoder.from_folder(folder)
    for data in FINE.values():
        encoded = encoder.encode(asked(data))
        assert encoder.count(asked(data)) == len(encoded)
        assert encoded.mm_token_type_ids.sum() * encoder.images.merge_size**2 == len(encoded.pixel_values)

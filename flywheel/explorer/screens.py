"""Screens as a browser asks for them: as they are, or small ones for a list."""

from __future__ import annotations

import io
import re
from functools import lru_cache

from PIL import Image

from flywheel.errors import BadInput
from flywheel.explorer.asking import Asking, NotHere

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}
_THUMBNAIL = (192, 192)
_LARGEST = 64_000_000  # pixels of a picture that is made small


class Screens:
    """Each is named by its bytes' sha256, so what was given once never changes."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._small = lru_cache(maxsize=4096)(self._shrunk)

    def whole(self, iteration: int, sha256: str) -> tuple[bytes, str]:
        """The bytes and their media type. Raises NotHere where there is none, BadInput where no page
        shows it."""
        if not _SHA256.fullmatch(sha256):
            raise BadInput("no screen has such a name", where=sha256[:80])
        found = self._asking.rows(
            "SELECT bytes, format FROM images WHERE sha256 = $sha256 AND iteration = $iteration LIMIT 1",
            {"sha256": sha256, "iteration": iteration},
        )
        if not found or found[0]["bytes"] is None:
            raise NotHere("the screen is not here", where=f"iteration {iteration}, {sha256[:12]}")
        kind = _TYPES.get(str(found[0]["format"]).lower())
        if kind is None:
            raise BadInput("the screen is of a format that no page shows", where=sha256[:12])
        return found[0]["bytes"], kind

    def small(self, iteration: int, sha256: str) -> tuple[bytes, str]:
        """A thumbnail of it."""
        return self._small(iteration, sha256)

    def _shrunk(self, iteration: int, sha256: str) -> tuple[bytes, str]:
        data, kind = self.whole(iteration, sha256)
        try:
            with Image.open(io.BytesIO(data)) as picture:
                if max(picture.size) <= max(_THUMBNAIL):
                    return data, kind
                if picture.width * picture.height > _LARGEST:
                    raise BadInput("the screen is too large to be made small", where=sha256[:12])
                picture.thumbnail(_THUMBNAIL)
                file = io.BytesIO()
                picture.convert("RGB").save(file, "WEBP", quality=80)
        except (OSError, ValueError, Image.DecompressionBombError):
            raise BadInput("the screen is no picture", where=sha256[:12]) from None
        return file.getvalue(), "image/webp"

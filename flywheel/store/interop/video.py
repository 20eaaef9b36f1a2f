"""Read screens out of the video of a recording."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from flywheel.utils.errors import BadInput

_LATE_S = 1.0  # how long after the video's end its last frame still counts


def read_frames(path: Path, times: Sequence[float]) -> list[bytes]:
    """Return the frame that a video shows at each time, as a PNG file; b"" where it shows none.

    That is before the first frame, and more than 1 s after the last one. path: of a video file that PyAV reads. times:
    seconds from the video's begin, ascending. Raises BadInput where PyAV is not installed, ValueError where the file is
    no whole video.
    """
    try:
        import av
    except ImportError:
        what = "the screens are in a video, and PyAV, which reads it, is not installed"
        raise BadInput(what, where=path, fix="pip install 'flywheel[video]'") from None
    found: list[bytes] = []
    shown, end = None, 0.0
    try:
        with av.open(str(path)) as video:
            for frame in video.decode(video=0):
                while len(found) < len(times) and frame.time > times[len(found)]:
                    found.append(_write_png(shown) if shown else b"")
                if len(found) == len(times):
                    return found
                shown, end = frame, frame.time
    except (av.FFmpegError, IndexError, TypeError) as error:  # no video stream; a frame without a time
        raise ValueError(f"{path.name} is not a whole video: {error}") from None
    rest = times[len(found) :]
    last = _write_png(shown) if shown else b""
    return [*found, *(last if time <= end + _LATE_S else b"" for time in rest)]


def _write_png(frame: object) -> bytes:
    out = io.BytesIO()
    frame.to_image().save(out, "png")
    return out.getvalue()

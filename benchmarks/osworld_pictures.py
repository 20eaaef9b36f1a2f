"""Pictures of OSWorld's tasks: a start, a solution, wrong ends (`osworld_cases.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osworld_cases import SEED, Case, ExampleFile, Make, cut_in_half
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

Picture = Image.Image
_SIZE = (320, 200)


def photo(size: tuple[int, int] = _SIZE) -> Picture:
    """Return a picture with shades, edges and colours, the same at each call."""
    chance = random.Random(SEED)
    made = Image.new("RGB", size, (130, 120, 110))
    draw = ImageDraw.Draw(made)
    for _ in range(60):
        x, y = chance.randrange(size[0]), chance.randrange(size[1])
        color = tuple(chance.randrange(60, 200) for _ in range(3))
        draw.rectangle((x, y, x + chance.randrange(10, 60), y + chance.randrange(10, 60)), color)
    return made


def noise() -> Picture:
    chance = random.Random(SEED)
    return Image.frombytes("RGB", _SIZE, chance.randbytes(_SIZE[0] * _SIZE[1] * 3))


def save(make: Callable[[], Picture], kind: str = "") -> Make:
    return lambda path: make().save(path, kind or None)


def picture_case(
    start: Callable[[], Picture], solve: Callable[[Picture], Picture], gold: Callable[[], Picture] | None = None
) -> Callable[[ExampleFile], Case]:
    """Declare a task on one picture. start: it. solve: does what is asked. gold: what a further file of the start
    shows, where the task has one to compare with; the solution by default."""

    def build(example: ExampleFile) -> Case:
        downloads = [*example.downloads]
        result = next(one["path"].removeprefix("/home/user/") for one in reversed(example.getters("result")))
        starts = {path: save(start) for path in downloads if not path.endswith(".xcf")}
        # GIMP opens a picture whatever its name says; nothing but GIMP writes its own format
        starts |= {path: save(start, "PNG") for path in downloads if path.endswith(".xcf")}
        right = save(lambda: solve(start()))
        for path in downloads:
            if "gold" in path:
                starts[path] = save(gold) if gold else right
        states: dict[str, dict[str, Make | None]] = {
            "start": {result: None}, "solved": {result: right}, "changed": {result: save(noise)},
            "emptied": {result: save(lambda: Image.new("RGB", (1, 1)))}, "more": {result: save(start)},
            "broken": {result: cut_in_half(right)},
        }  # fmt: skip
        if "77b8ab4d" in example.stem:  # the picture is to be exported as it is
            del states["more"]
        if "d16c99dc" in example.stem:  # the file that is judged first is the one that is opened
            states = {"start": {result: None}, "solved": {result: right, downloads[0]: right}}
        golds = dict.fromkeys(example.golds(), right)
        return Case(starts, golds, states)

    return build


def triangle(x: int, y: int) -> Picture:
    made = Image.new("RGB", (300, 300), (255, 255, 255))
    ImageDraw.Draw(made).polygon([(x, y - 30), (x - 30, y + 30), (x + 30, y + 30)], (255, 255, 0))
    return made


def text_at(x: int) -> Picture:
    made = Image.new("RGB", (300, 200), (255, 140, 0))
    ImageDraw.Draw(made).rectangle((x, 80, x + 90, 110), (0, 0, 0))
    return made


def thing_on(color: tuple[int, int, int]) -> Picture:
    made = Image.new("RGB", (200, 200), color)
    ImageDraw.Draw(made).rectangle((60, 60, 130, 130), (0, 0, 0))
    return made


def cut_out(made: Picture) -> Picture:
    cut = made.convert("RGBA")
    cut.putalpha(Image.new("L", made.size, 255))
    ImageDraw.Draw(cut).rectangle((0, 0, 40, 200), (0, 0, 0, 0))
    return cut


CASES: dict[str, Callable[[ExampleFile], Case]] = {
    "gimp/7a4deb26": picture_case(photo, lambda made: ImageEnhance.Brightness(made).enhance(0.6)),
    "gimp/554785e9": picture_case(photo, lambda made: ImageEnhance.Color(made).enhance(1.6)),
    "gimp/77b8ab4d": picture_case(photo, lambda made: made),
    "gimp/f4aec372": picture_case(lambda: triangle(60, 200), lambda made: triangle(150, 150)),
    "gimp/2a729ded": picture_case(photo, cut_out),
    "gimp/d16c99dc": picture_case(photo, lambda made: made.resize((512 * _SIZE[0] // _SIZE[1], 512))),
    "gimp/06ca5602": picture_case(photo, lambda made: made.quantize(256)),
    "gimp/e2dd0213": picture_case(lambda: text_at(150), lambda made: text_at(3)),
    "gimp/f723c744": picture_case(photo, lambda made: ImageEnhance.Contrast(made).enhance(1.5)),
    "gimp/72f83cdc": picture_case(photo, ImageOps.mirror),
    "gimp/734d6579": picture_case(lambda: thing_on((255, 255, 255)), lambda made: thing_on((0, 255, 0))),
    "multi_apps/d68204bf": picture_case(photo, ImageOps.flip),
    "multi_apps/91190194": picture_case(photo, lambda made: made.crop((0, 40, *_SIZE))),
    "vlc/fba2c100": lambda example: _snapshot(example),
}


def _snapshot(example: ExampleFile) -> Case:
    """A frame of a film that is to be saved."""
    (path,) = example.downloads

    def film(place: Path) -> None:
        import subprocess

        words = ["ffmpeg", "-loglevel", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=5:duration=125"]
        subprocess.run([*words, "-c:v", "mpeg4", "-f", "mp4", str(place)], check=True)

    right = save(photo)
    states: dict[str, Any] = {"start": None, "solved": right, "changed": save(noise), "broken": cut_in_half(right)}
    return Case(
        {path: film}, dict.fromkeys(example.golds(), right), {s: {example.result_path: m} for s, m in states.items()}
    )

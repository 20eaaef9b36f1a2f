"""A phone for tests: the commands of Android's shell that the package uses, and a screen drawn from its state."""

from __future__ import annotations

import base64
import io
import re
import shlex

from PIL import Image, ImageDraw

WIDTH, HEIGHT = 180, 320
SWITCH = (90, 100)  # where the settings show the switch of Wi-Fi, in pixels
FIELD = (90, 200)  # where they show a search field
KEYBOARD = "com.android.adbkeyboard/.AdbIME"
_SETTINGS = "com.android.settings"


class FakeAndroid:
    """state: as `host:devices` tells it. keyboards: those that are installed. half: the screen is cut short."""

    def __init__(self, *keyboards: str) -> None:
        self.state, self.keyboards, self.half = "device", ["com.android.inputmethod.latin/.LatinIME", *keyboards], False
        self.keyboard = self.keyboards[0]
        self.values = {"wifi_on": "1", "accelerometer_rotation": "0", "screen_off_timeout": "600000"}
        self.app, self.text, self.focused, self.scrolled = "", "", False, 0
        self.files: dict[str, bytes] = {}
        self.commands: list[str] = []

    def run(self, command: str) -> tuple[bytes, bytes, int]:
        """stdout, stderr, exit code."""
        self.commands.append(command)
        words = shlex.split(command)
        match words:
            case ["echo", *rest]:
                return " ".join(rest).encode() + b"\n", b"", 0
            case ["input", "tap", x, y]:
                self._tap(int(x), int(y))
            case ["input", "swipe", _, y, _, to, *_]:
                self.scrolled = max(self.scrolled + int(y) - int(to), 0)
            case ["input", "text", text]:
                self._typed(text.replace("%s", " "))
            case ["input", "keyevent", key]:
                self._key(int(key))
            case ["am", "broadcast", "-a", "ADB_INPUT_B64", "--es", "msg", told]:
                if self.keyboard == KEYBOARD:
                    self._typed(base64.b64decode(told).decode())
                return b"Broadcast completed: result=0\n", b"", 0
            case ["am", "force-stop", package]:
                self.app, self.text, self.focused = "" if package == self.app else self.app, "", False
            case ["monkey", "-p", package, *_]:
                self.app = package
            case ["pm", "list", "packages"]:
                return f"package:{_SETTINGS}\npackage:com.android.camera2\n".encode(), b"", 0
            case ["ime", "list", *_]:
                return "".join(f"{one}\n" for one in self.keyboards).encode(), b"", 0
            case ["ime", "enable", _]:
                pass
            case ["ime", "set", one]:
                self.keyboard = one
            case ["svc", "wifi", how]:
                self.values["wifi_on"] = "1" if how == "enable" else "0"
            case ["settings", "put", _, name, value]:
                self.values[name] = value
            case ["settings", "get", _, name]:
                return f"{self.values.get(name, 'null')}\n".encode(), b"", 0
            case ["screencap", "-p"]:
                png = self.screen()
                return png[: len(png) // 2] if self.half else png, b"", 0
            case _:
                return b"", f"/system/bin/sh: {words[0]}: not found\n".encode(), 127
        return b"", b"", 0

    def screen(self) -> bytes:
        picture = Image.new("RGB", (WIDTH, HEIGHT), "#ffffff" if self.app else "#16324f")
        draw = ImageDraw.Draw(picture)
        if self.app == _SETTINGS:
            on = self.values["wifi_on"] == "1"
            draw.rectangle(
                (SWITCH[0] - 20, SWITCH[1] - 8, SWITCH[0] + 20, SWITCH[1] + 8), "#23873b" if on else "#888888"
            )
            draw.rectangle((FIELD[0] - 60, FIELD[1] - 10, FIELD[0] + 60, FIELD[1] + 10), outline="#000000")
            draw.text((FIELD[0] - 56, FIELD[1] - 6), self.text.encode("ascii", "replace").decode(), fill="#000000")
        draw.rectangle((0, HEIGHT - 2 - self.scrolled % 100, 2, HEIGHT), "#ff0000")
        kept = io.BytesIO()
        picture.save(kept, "PNG")
        return kept.getvalue()

    def _tap(self, x: int, y: int) -> None:
        def on(place: tuple[int, int]) -> bool:
            return self.app == _SETTINGS and abs(x - place[0]) < 20 and abs(y - place[1]) < 10

        self.focused = on(FIELD)
        if on(SWITCH):
            self.values["wifi_on"] = "0" if self.values["wifi_on"] == "1" else "1"

    def _typed(self, text: str) -> None:
        if self.focused:
            self.text += re.sub(r"[\x00-\x1f]", "", text)

    def _key(self, key: int) -> None:
        if key in (3, 4):  # home, and back, of an application that has one page
            self.app, self.text, self.focused, self.scrolled = "", "", False, 0

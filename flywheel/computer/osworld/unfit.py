"""Why a task of OSWorld's cannot be played here."""

from __future__ import annotations

INTERNET = "a file of the internet, of which no copy is given"
ONLINE = "the internet"
PROGRAM = "a program that is not installed"
ROOT = "the rights of root"
SYSTEM = "GNOME or a service of the system"
SCREEN = "a screen, which the kind terminal has not"
STEP = "a step of set-up that is not carried out here"
GETTER = "a getter that is not here"
METRIC = "a metric that is not here"
PLACE = "a place outside of the home"
SIZE = "files that are too large"
CHOSEN = "left out by the manifest"


class Unfit(Exception):
    """It needs something that is not here. reason: what, one of those above. detail: which."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:120]
        super().__init__(f"{self.reason}: {self.detail}")

#!/bin/sh
# openadapt-capture 1.3.0: `process_events` makes the typed text cv of C and V while Ctrl is held, a plain click of a click
# with Ctrl, and one scroll at the first place of two that are a minute and 490 pixels apart.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install openadapt-capture==1.3.0
venv/bin/python - <<'EOF'
import sys
from importlib.metadata import version

from openadapt_capture.events import KeyDownEvent, KeyUpEvent, MouseDownEvent, MouseScrollEvent, MouseUpEvent
from openadapt_capture.processing import process_events

CTRL = {"key_name": "ctrl_l", "canonical_key_name": "ctrl"}


def key(at, char):
    return [kind(timestamp=at + late, key_char=char, canonical_key_char=char) for kind, late in ((KeyDownEvent, 0), (KeyUpEvent, 0.05))]


def with_ctrl(events):
    return [KeyDownEvent(timestamp=1.0, **CTRL), *events, KeyUpEvent(timestamp=2.0, **CTRL)]


keys = process_events(with_ctrl([*key(1.1, "c"), *key(1.3, "v")]))
click = process_events(with_ctrl([kind(timestamp=at, x=5, y=5, button="left") for kind, at in ((MouseDownEvent, 1.1), (MouseUpEvent, 1.2))]))
scrolls = process_events([MouseScrollEvent(timestamp=at, x=x, y=5, dx=0, dy=-1) for at, x in ((1.0, 5), (61.0, 495))])
shown = [[(one.type.value, getattr(one, "text", None), getattr(one, "x", None)) for one in events] for events in (keys, click, scrolls)]
print("openadapt-capture", version("openadapt-capture"))
print("expected: shortcuts with Ctrl, a click with Ctrl, two scrolls")
print("seen:", *shown, sep="\n  ")
typed = [text for _, text, _ in shown[0]]
sys.exit((typed, [text for _, text, _ in shown[1] if text], len(scrolls), scrolls[0].x, scrolls[0].dy) != (["cv"], [], 1, 5, -2))
EOF

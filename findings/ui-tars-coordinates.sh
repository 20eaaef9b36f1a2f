#!/bin/sh
# ui-tars 0.5.1: its parser gives points as fractions of the screen, its code generator divides them by 1000 once more: the
# code that both make of a click in the middle clicks within two pixels of the corner, unless `scale_factor=1` is given.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install ui-tars==0.5.1
venv/bin/python - <<'EOF'
import re
import sys
from importlib.metadata import version

from ui_tars.action_parser import parse_action_to_structure_output, parsing_response_to_pyautogui_code

WIDTH, HEIGHT = 1932, 1092  # a multiple of 28 each, which is not resized


def clicked(**options):
    parsed = parse_action_to_structure_output(
        f"Thought: I click.\nAction: click(start_box='({WIDTH // 2},{HEIGHT // 2})')",
        factor=1000, origin_resized_height=HEIGHT, origin_resized_width=WIDTH, model_type="qwen25vl",
    )
    code = parsing_response_to_pyautogui_code(parsed, image_height=HEIGHT, image_width=WIDTH, **options)
    return tuple(map(float, re.search(r"click\(([\d.]+), ([\d.]+)", code).groups()))


plain, scaled = clicked(), clicked(scale_factor=1)
print("ui-tars", version("ui-tars"))
print("expected: a click in the middle:", (WIDTH / 2, HEIGHT / 2))
print("seen:", plain, "; with scale_factor=1:", scaled)
sys.exit(not (max(plain) < 2 and scaled == (WIDTH / 2, HEIGHT / 2)))
EOF

#!/bin/sh
# pympi-ling 1.71: `Eaf.to_textgrid` leaves out an annotation that overlaps the one before it on its tier, which ELAN's
# tiers may hold once `add_annotation` took it, without an error or a warning.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install pympi-ling==1.71
venv/bin/python - <<'EOF'
import sys
from importlib.metadata import version

import pympi

eaf = pympi.Elan.Eaf()
eaf.add_tier("speech")
eaf.add_annotation("speech", 0, 1000, "one")
eaf.add_annotation("speech", 500, 1500, "two")
held = sorted(eaf.get_annotation_data_for_tier("speech"))
written = [text for tier in eaf.to_textgrid().get_tiers() for *_, text in tier.get_intervals()]
print("pympi-ling", version("pympi-ling"))
print("expected: both annotations, or an error:", [text for *_, text in held])
print("seen:", written)
sys.exit((len(held), written) != (2, ["one"]))
EOF

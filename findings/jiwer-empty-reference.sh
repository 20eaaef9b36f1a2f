#!/bin/sh
# jiwer 4.0.0: the error rate of words that were heard where nothing was said is their number, not 1 or infinity, and a
# silence alone has a rate of 0: a mean of rates by utterance counts a long invention more than a wrong transcript.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install jiwer==4.0.0
venv/bin/python - <<'EOF'
import sys
from importlib.metadata import version

import jiwer

seen = [float(jiwer.wer("", heard)) for heard in ("", "two words", "five words of pure invention")]
print("jiwer", version("jiwer"))
print("expected: an error, or one rate for any invention, since errors are divided by the words that were said")
print("seen: of no words, two and five:", seen)
sys.exit(seen != [0.0, 2.0, 5.0])
EOF

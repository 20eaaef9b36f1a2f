"""Hash the files below the current folder, without parts that are drawn at random, and compare with a wanted hash.

It is the command of a reward: it prints 1 where the files are the wanted ones, else 0. It runs outside of flywheel, by
the standard library alone. Arguments: the wanted hash.
"""

import hashlib
import os
import re
import sys

_LEFT_OUT = re.compile(r"cache|\.(log|lock|pyc|tmp|pid)$|-(wal|shm|journal)$|(^|/)sessions?/", re.I)
_DRAWN = re.compile(r"[0-9a-f]{8,}(-[0-9a-f]{4,})*|\d{8}T\d{6}Z?|\d{4}-\d\d-\d\dT[\d:.]+Z?", re.I)
_MOST_FILES, _MOST_BYTES = 1000, 20_000_000


def list_file_hashes(folder: str) -> dict[str, str]:
    """Return name -> hash of each file below `folder`, with random parts of both hidden; no databases, no caches."""
    found: dict[str, str] = {}
    paths = sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)  # noqa: PTH118
    for path in paths[:_MOST_FILES]:
        name = os.path.relpath(path, folder)
        if _LEFT_OUT.search(name) or os.path.islink(path) or os.path.getsize(path) > _MOST_BYTES:  # noqa: PTH114, PTH202
            continue
        with open(path, "rb") as file:  # noqa: PTH123
            text = file.read().decode("latin-1")
        if not text.startswith("SQLite format 3\0"):
            plain = _DRAWN.sub("~", name)
            made = hashlib.sha256((found.get(plain, "") + _DRAWN.sub("~", text)).encode()).hexdigest()
            found[plain] = made
    return found


def digest_folder(folder: str) -> str:
    """Return one hash of all files below `folder`, by `list_file_hashes`."""
    return hashlib.sha256(repr(sorted(list_file_hashes(folder).items())).encode()).hexdigest()


if __name__ == "__main__":
    print(int(digest_folder(".") == sys.argv[1]))

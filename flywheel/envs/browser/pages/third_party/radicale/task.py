"""Make and score a task in Radicale, a calendar to create.

`task.py ask SEED` prints the instruction; `check SEED` prints 1 where that calendar is the only one, else 0.
"""

import json
import pathlib
import sys

NAMES = ("Team", "Family", "Choir", "Customers", "Club", "School", "Garden")
name = f"{NAMES[int(sys.argv[2]) % 7]} {2000 + int(sys.argv[2]) // 7 % 1000}"
if sys.argv[1] == "ask":
    print(f"Create a calendar with the title {name}.")
else:
    kept = [json.loads(file.read_text()) for file in pathlib.Path("collections").rglob(".Radicale.props")]
    made = [(one.get("tag"), one.get("D:displayname")) for one in kept if one.get("tag")]
    print(int(made == [("VCALENDAR", name)]))

"""Ask for, and check, a multiplication in a cell of JupyterLab's work.ipynb: a script that the manifest runs.

`task.py ask SEED` prints the instruction; `check SEED` prints 1 where work.ipynb holds the result, else 0; `quiet SEED`
is run before the server starts, and switches its news off.
"""

import json
import pathlib
import sys

a, b = 3 + int(sys.argv[2]) % 90, 4 + int(sys.argv[2]) // 90 % 90
if sys.argv[1] == "ask":
    print(f"Let the notebook work.ipynb compute {a} * {b} in a cell of its own, and save it.")
elif sys.argv[1] == "quiet":
    settings = pathlib.Path.home() / ".jupyter/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
else:
    notebook = json.loads(pathlib.Path("work.ipynb").read_text(encoding="utf-8"))
    found = [
        output.get("data", {}).get("text/plain")
        for cell in notebook["cells"]
        if "".join(cell["source"]).replace(" ", "") == f"{a}*{b}"
        for output in cell.get("outputs", ())
    ]
    print(int([[str(a * b)]] == [[text] if isinstance(text, str) else text for text in found]))

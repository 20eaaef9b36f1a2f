"""The notebook that shows analysts how to ask: every cell runs, as a stranger would run it, and says what it said."""

from __future__ import annotations

import nbformat
import pytest
import synthetic
from nbclient import NotebookClient

from flywheel.store.catalog import database


@pytest.fixture(scope="module")
def committed(project):
    return nbformat.read(project / "docs" / "analysis.ipynb", as_version=4)


@pytest.fixture(scope="module")
def ran(committed, tmp_path_factory):
    """The notebook after a run in a folder with a catalogue of two iterations, and nothing of flywheel in its way."""
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("ws"))
    for k in (1, 2):
        synthetic.incoming(ws, settings, k, tasks=6, samples=3)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
    folder = tmp_path_factory.mktemp("notebook")
    database.write_catalog_file(ws, folder / "catalog.duckdb")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(folder / name))
        notebook = nbformat.from_dict(committed)
        resources = {"metadata": {"path": str(folder)}}
        return ws, NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()


def kinds(notebook) -> list[list[str]]:
    """What each code cell shows: kinds of output, none of them an error or a warning."""
    shown = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        assert not [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"]
        shown.append([kind for one in outputs for kind in one.get("data", {}) if kind != "text/plain"])
    return shown


def test_a_run_shows_what_the_committed_one_shows(committed, ran):
    _, notebook = ran
    assert kinds(notebook) == kinds(committed)
    assert sum("image/png" in kinds for kinds in kinds(notebook)) == 3  # two plots, and the screens of a replay


def test_its_figures_are_those_of_the_workspace(ran):
    ws, notebook = ran
    rows = database.query_catalog(ws, "SELECT domain, round(rise, 2) AS rise FROM p_v1_rise").to_pylist()
    (cell,) = (cell for cell in notebook.cells if cell.source.startswith('ask("FROM p_v1_rise")'))
    shown = cell.outputs[0]["data"]["text/html"]
    assert rows
    for row in rows:
        assert row["domain"] in shown
        assert f"<td>{row['rise']}</td>" in shown


def test_it_is_small(project):
    assert (project / "docs" / "analysis.ipynb").stat().st_size < 150_000

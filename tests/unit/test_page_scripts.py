"""Scripts that run in pages, joined of parts (`sandbox/scripts`)."""

from __future__ import annotations

import pytest

from flywheel.envs.browser.driver import page


@pytest.mark.parametrize(("folder", "script"), [("document", page.DOCUMENT_SCRIPT), ("pickers", page.PICKERS_SCRIPT)])
def test_a_script_holds_each_part_of_its_folder_once(project, folder, script):
    for part in (project / "flywheel/envs/browser/driver/scripts" / folder).iterdir():
        assert script.count(part.read_text(encoding="utf-8")) == 1, part

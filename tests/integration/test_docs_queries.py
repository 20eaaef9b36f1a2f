"""The SQL that pages quote: every question can be asked of a workspace in which nothing has run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted((PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")))
QUESTIONS = [
    (page.relative_to(PROJECT).as_posix(), question)
    for page in PAGES
    for question in re.findall(r'flywheel query "([^"]+)"', page.read_text(encoding="utf-8"))
    if question != "SQL"
]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory) -> Iterator[duckdb.DuckDBPyConnection]:
    root = tmp_path_factory.mktemp("queries")
    (root / "params.yaml").write_text((PROJECT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (root / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    with database.connect_catalog(Workspace(root), reads="SHOW TABLES") as connection:  # with all that may be asked for
        yield connection


@pytest.mark.parametrize(("page", "question"), QUESTIONS)
def test_a_question_that_a_page_quotes_is_answered(catalog, page, question):
    assert database.run_query(catalog, question).column_names, page


def test_pages_quote_questions():
    assert len(QUESTIONS) > 15

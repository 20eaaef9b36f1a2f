"""Declare the tables and columns that have another name than in earlier versions, and rename them in rows."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from flywheel.store.schema import TABLES
from flywheel.utils.errors import DataError

# Tables, views and macros: name in earlier versions -> name of today.
RENAMED_TABLES = {
    "general": "grounding_examples",
    "thoughts": "utterances",
    "signatures": "trajectory_hashes",
    "success": "held_out_success",
    "success_by_stage": "held_out_success_by_stage",
    "templates": "template_success",
    "like_tasks": "matched_templates",
    "sampled_less": "downsampled_tasks",
    "checkups": "fresh_evaluations",
    "checkup_files": "fresh_evaluation_files",
    "scorers_beside_people": "scorers_vs_humans",
    "verifier_beside_people": "verifier_vs_humans",
}
_VERDICT = {"v": "success"}
# Table, view or macro of today -> its columns: name in earlier versions -> name of today.
RENAMED_COLUMNS: dict[str, dict[str, str]] = {
    "steps": {"slip": "misclick"},
    "utterances": {"doubtful": "low_confidence"},
    "scores": _VERDICT,
    "routes": _VERDICT,
    "curriculum": {"chance": "sampling_prob", "relative": "relative_prob"},
    "duplicates": {"twin": "duplicate_of"},
    "trajectory_hashes": {
        "fate": "store",
        "steps": "step_codes",
        "first_screen": "first_image_sha256",
        "last_screen": "last_image_sha256",
    },
    "quarantine": {"of_table": "source_table"},
    "disagreements": _VERDICT,
    "trajectory_lineage": _VERDICT,
    "lineage_of": _VERDICT,
    "training_of": _VERDICT,
    "trajectory_outcomes": _VERDICT,
    "fresh_evaluations": _VERDICT,
    "iterations": {"success": "held_out_success", "success_before": "held_out_success_before"},
    "task_success": {"share": "success_rate"},
    "template_success": {
        "broken": "invalid_steps",
        "no_action": "invalid_step_fraction",
        "lost": "invalid_episode_fraction",
    },
    "downsampled_tasks": {"success": "success_rate", "relative": "relative_prob"},
    "scorer_agreement": {
        "one": "scorer_a",
        "other": "scorer_b",
        "agree": "agreement",
        "only_one": "only_a",
        "only_other": "only_b",
        "chance": "chance_agreement",
    },
    "reviewer_agreement": {
        "one": "reviewer_a",
        "other": "reviewer_b",
        "agree": "agreement",
        "chance": "chance_agreement",
    },
    "scorers_vs_humans": {"drawn": "sampling", "hits": "true_positives"},
    "route_reviews": {**_VERDICT, "drawn": "sampling", "ended": "end_reason"},
    "verifier_vs_humans": {
        "drawn": "sampling",
        "both_solved": "true_positives",
        "verifier_alone": "false_positives",
        "people_alone": "false_negatives",
        "both_not": "true_negatives",
        **{f"agree{end}": f"agreement{end}" for end in ("", "_low", "_high")},
        **{f"verified_right{end}": f"precision{end}" for end in ("", "_low", "_high")},
        **{f"refused_right{end}": f"negative_predictive_value{end}" for end in ("", "_low", "_high")},
    },
}
# What stands for a value that was not written yet when the rows were made; null where nothing is named here.
_DEFAULTS = {
    ("tasks", "environment"): "browser",
    ("sft", "weight"): 1.0,
    ("ct", "weight"): 1.0,
    ("quarantine", "source_table"): "trajectories",
}
# Column -> whose values are names of tables.
_TABLE_NAMES = {"quarantine": "source_table"}


def describe_renamed_table(name: str) -> str:
    """Say what a table, view or macro of an earlier version is named now; empty for other names."""
    new = RENAMED_TABLES.get(name.lower())
    return f"{name} is named {new} now" if new else ""


def describe_renamed_column(name: str, query: str) -> str:
    """Say what a column of an earlier version is named now; empty for other names.

    query: the text in which it stands. A name that columns of other tables have today is described only where the
    query names the table that has it no more.
    """
    words = {RENAMED_TABLES.get(word, word) for word in re.findall(r"\w+", query.lower())}
    found = {table: columns[name.lower()] for table, columns in RENAMED_COLUMNS.items() if name.lower() in columns}
    named = {table: new for table, new in found.items() if table in words}
    if not named and any(name.lower() in schema.names for schema in TABLES.values()):
        return ""
    tables: dict[str, list[str]] = {}
    for table, new in (named or found).items():
        tables.setdefault(new, []).append(table)
    if len(tables) < 2:
        return "".join(f"{name} is named {new} now" for new in tables)
    return f"{name} is now named " + ", ".join(f"{new} in {' and '.join(of)}" for new, of in tables.items())


def is_of_earlier_schema(table: str, schema: pa.Schema) -> bool:
    """Tell whether rows of a table, by whichever name, have other columns than it has today."""
    return table in RENAMED_TABLES or not schema.equals(TABLES[table])


def rename_rows(table: str, rows: pa.Table, where: object) -> pa.Table:
    """Bring rows of an earlier version to the columns of today; what they lack is filled in, with null or a default.

    table: its name of today. Raises DataError, at `where`, for columns that no earlier version had.
    """
    schema, renamed = TABLES[table], RENAMED_COLUMNS.get(table, {})
    rows = rows.rename_columns([renamed.get(name, name) for name in rows.column_names])
    if unknown := sorted(set(rows.column_names) - set(schema.names)):
        raise DataError(f"table {table} has no column {', '.join(unknown)}", where=where, fix="nothing was changed")
    columns = []
    for field in schema:
        column = rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        if (default := _DEFAULTS.get((table, field.name))) is not None:
            column = pc.fill_null(column, default)
        if _TABLE_NAMES.get(table) == field.name:
            column = pa.array([RENAMED_TABLES.get(value, value) for value in column.to_pylist()], field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)

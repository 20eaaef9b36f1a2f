"""Data contracts in SQL: what must hold of a row before it is routed, and of the stores before they are seen.

A new contract is one entry in a list below. `judging.py` holds rows and stores against them; `expectations.py` shows
all of them, with what they found, as a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STATUSES = ("completed", "truncated", "crashed", "invalid")


@dataclass(frozen=True)
class RowContract:
    """table: the one whose rows are judged. promise: what holds, in words. fault: SQL, true of a row that breaks it.
    detail: SQL, what was found there."""

    name: str
    table: str
    promise: str
    fault: str
    detail: str = "''"


@dataclass(frozen=True)
class TableContract:
    """sql: gives one row an offence. It sees the catalog's tables and views, `$iteration` that is judged, and
    `$incoming`, the stages whose trajectories are routed."""

    name: str
    table: str
    promise: str
    sql: str


def _step(name: str, promise: str, fault: str, detail: str) -> RowContract:
    return RowContract(name, "steps", promise, fault, detail)


# Of a step alone. `there`: its screen lies in `images`, and its bytes are those that the name is the hash of.
STEP = (
    _step(
        "logprobs_match",
        "a log-probability, finite and 0 or less, for each sampled token",
        """author = 'model' AND (coalesce(len(token_ids), 0) <> coalesce(len(logprobs), 0)
            OR list_count(token_ids) < len(token_ids) OR list_count(logprobs) < len(logprobs)
            OR list_min(token_ids) < 0 OR list_max(logprobs) > 0.001 OR isinf(list_min(logprobs)))""",
        """format('step {}: {} tokens, {} log-probabilities, from {} to {}', step, coalesce(len(token_ids), 0),
            coalesce(len(logprobs), 0), coalesce(list_min(logprobs)::VARCHAR, 'none'),
            coalesce(list_max(logprobs)::VARCHAR, 'none'))""",
    ),
    _step(
        "image_there",
        "what each step's action was chosen on is there: a text, or a screen that lies in images, whole",
        "NOT there AND (image_sha256 IS NOT NULL OR observation IS NULL)",
        "format('step {}: {}', step, coalesce(image_sha256, 'neither'))",
    ),
    _step(
        "points_on_screen",
        "points of actions lie on the screen",
        """NOT (list_min([x, y, x2, y2, 0]) = 0 AND list_max([x, y, x2, y2, 1]) = 1)""",  # NaN is seen in a list alone
        "format('step {}: {}', step, action)",
    ),
    _step(
        "step_author_known",
        "a step is the model's or a person's",
        "author IS NULL OR author NOT IN ('model', 'human')",
        "format('step {}: {}', step, coalesce(author, 'none'))",
    ),
)

# Of a step and the one before it.
ORDER = (
    _step(
        "steps_numbered",
        "steps are numbered without a gap or a repetition",
        "step <> previous_step + 1",
        "format('step {} after step {}', step, previous_step)",
    ),
    _step(
        "steps_in_order",
        "a step ends after it begins, and no step begins before the one before it",
        "ended_at < started_at OR started_at < previous_start",
        "format('step {}', step)",
    ),
)


def _trajectory(name: str, promise: str, fault: str, detail: str = "''") -> RowContract:
    return RowContract(name, "trajectories", promise, fault, detail)


def _known(column: str, values: Sequence[str]) -> str:
    return f"{column} IS NULL OR {column} NOT IN ({', '.join(map(repr, values))})"


# Of a trajectory, with what its steps hold (`rows` of them), its task, and the trajectories beside and before it.
TRAJECTORY = (
    _trajectory("id_there", "a trajectory has an id", "trajectory_id = ''"),
    _trajectory("id_unique", "a trajectory_id is there once", "same > 1", "format('{} rows', same)"),
    _trajectory("id_new", "no earlier iteration has a trajectory of that id", "before IS NOT NULL",
                "format('iteration {}', before)"),
    _trajectory("status_known", "status is known", _known("status", STATUSES), "coalesce(status, 'none')"),
    _trajectory("source_known", "source is known", _known("source", ("rollout", "recording", "annotation", "import")),
                "coalesce(source, 'none')"),
    _trajectory("author_known", "author is known", _known("author", ("model", "human")),
                "coalesce(author, 'none')"),
    _trajectory("domain_set", "domain is set", "domain IS NULL OR domain = ''"),
    _trajectory("steps_not_negative", "steps are 0 or more", "steps < 0", "format('{}', steps)"),
    _trajectory("reward_in_range", "reward in [-1, 1]", "NOT reward BETWEEN -1 AND 1", "format('{}', reward)"),
    _trajectory("trajectory_in_order", "a trajectory ends after it begins", "ended_at < started_at"),
    _trajectory("steps_counted", "as many rows in steps as the trajectory says",
                "coalesce(steps, 0) <> coalesce(rows, 0)",
                "format('{} said, {} there', coalesce(steps, 0), coalesce(rows, 0))"),
    *(_trajectory(one.name, one.promise, f"{one.name} IS NOT NULL", one.name) for one in (*ORDER, *STEP)),
    _trajectory("task_known", "the task is in tasks", "held_out IS NULL", "coalesce(task_id, 'none')"),
    _trajectory("task_not_held_out", "the task is not held out for evaluation", "held_out", "task_id"),
)  # fmt: skip


def _score(name: str, promise: str, fault: str, detail: str) -> RowContract:
    return RowContract(name, "scores", promise, fault, detail)


SCORE = (
    _score("scorer_named", "a score has a scorer", "scorer IS NULL", "''"),
    _score("score_in_range", "score in [0, 1]", "NOT score BETWEEN 0 AND 1", "format('{}', score)"),
    _score("threshold_in_range", "threshold in [0, 1]", "NOT threshold BETWEEN 0 AND 1", "format('{}', threshold)"),
    _score(
        "v_follows",
        "v is what score and threshold make of it",
        "score BETWEEN 0 AND 1 AND threshold BETWEEN 0 AND 1 AND v IS NOT NULL AND v <> (score >= threshold)",
        "format('score {}, threshold {}, v {}', score, threshold, v)",
    ),
)

# What belongs to no trajectory that came in: table, what a row of it is called.
BELONGS = (("steps", "step"), ("scores", "score"), ("thoughts", "thought"))

TABLES = (
    TableContract(
        "one_route",
        "routes",
        "each trajectory that came in has one destination, and no other has one",
        """SELECT coalesce(t.trajectory_id, r.trajectory_id) AS trajectory_id, coalesce(r.n, 0) AS routes
        FROM (SELECT DISTINCT trajectory_id FROM trajectories
                WHERE iteration = $iteration AND list_contains($incoming, stage)) t FULL JOIN
            (SELECT trajectory_id, count(*) AS n FROM routes WHERE iteration = $iteration GROUP BY ALL) r
            USING (trajectory_id)
        WHERE t.trajectory_id IS NULL OR r.n IS DISTINCT FROM 1""",
    ),
    TableContract(
        "stores_follow_routes",
        "routes",
        "a trajectory lies in the store that it was routed to, and nowhere else",
        """SELECT trajectory_id, store, destination FROM (
            SELECT trajectory_id, 'sft' AS store FROM sft WHERE iteration = $iteration
            UNION ALL SELECT trajectory_id, 'ct' FROM ct WHERE iteration = $iteration
            UNION SELECT trajectory_id, 'quarantine' FROM quarantine
                WHERE iteration = $iteration AND coalesce(of_table, 'trajectories') = 'trajectories')
        FULL JOIN (FROM routes WHERE iteration = $iteration) USING (trajectory_id)
        WHERE store IS DISTINCT FROM destination""",
    ),
    TableContract(
        "ct_sft_disjoint",
        "sft",
        "no trajectory is in both the CT and the SFT store, over all iterations",
        """WITH own AS (
            SELECT trajectory_id FROM sft WHERE iteration = $iteration
            UNION ALL SELECT trajectory_id FROM ct WHERE iteration = $iteration)
        SELECT trajectory_id FROM (
            SELECT trajectory_id FROM sft WHERE iteration <= $iteration
            UNION ALL SELECT trajectory_id FROM ct WHERE iteration <= $iteration) SEMI JOIN own USING (trajectory_id)
        GROUP BY trajectory_id HAVING count(*) > 1""",
    ),
    TableContract(
        "no_evaluation_task",
        "sft",
        "no task held out for evaluation is trained on",
        """SELECT store, trajectory_id, task_id FROM (
            SELECT 'sft' AS store, trajectory_id, task_id FROM sft WHERE iteration = $iteration
            UNION ALL SELECT 'ct', trajectory_id, task_id FROM ct WHERE iteration = $iteration
            UNION ALL SELECT checkpoint, trajectory_id, task_id FROM trained_on JOIN trajectories
                USING (trajectory_id) WHERE iteration BETWEEN $iteration - 1 AND $iteration)
        WHERE task_id IN (SELECT task_id FROM tasks WHERE split = 'eval')""",
    ),
    TableContract(
        "conservation",
        "routes",
        "what came in = SFT + CT + quarantine",
        """SELECT iteration, trajectories + recordings AS came_in, to_sft, to_ct, to_quarantine FROM
        iterations WHERE iteration = $iteration AND NOT conserved""",
    ),
)

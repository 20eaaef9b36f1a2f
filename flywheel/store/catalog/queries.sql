-- SQL of `run_history.py`, over the views of `catalog_history.sql`, and of `database.py`, of what `catalog*.sql` defines.

-- name: iterations
WITH turns AS (
    SELECT iteration, count(*) AS tries, sum(seconds) AS seconds, min(started_at) AS first_started,
        max(ended_at) AS last_ended FROM run_history WHERE kind = 'flow' AND stage = '' GROUP BY ALL
), longest AS (
    SELECT iteration, arg_max(stage, seconds) AS longest, max(seconds) AS longest_seconds FROM stage_runs
    GROUP BY ALL
), failed AS (
    SELECT iteration, count(*) AS failed, arg_max(stage, (ended_at, run_id)) AS at_stage,
        arg_max(message, (ended_at, run_id)) AS reason FROM failures GROUP BY ALL)
FROM turns LEFT JOIN longest USING (iteration) LEFT JOIN failed USING (iteration)

-- name: stages
FROM stage_runs LEFT JOIN (FROM stage_trend SELECT * EXCLUDE seconds) USING (iteration, stage)
    LEFT JOIN (SELECT iteration, stage, arg_max(message, (ended_at, run_id)) AS reason FROM failures GROUP BY ALL)
        USING (iteration, stage)

-- name: tries
SELECT row_number() OVER (ORDER BY started_at, run_id) AS try, state, started_at, ended_at, seconds, message, run_id
FROM run_history WHERE kind = 'flow' AND (iteration, stage) = ($iteration, $stage)

-- name: tasks
SELECT f.try, t.name AS task, t.state, t.attempts, t.started_at, t.ended_at, t.seconds, t.message, t.run_id
FROM run_history t JOIN ({tries}) f ON t.parent_id = f.run_id
WHERE t.kind = 'task' AND t.iteration = $iteration ORDER BY f.try, t.started_at, t.run_id

-- name: list_tables_and_views
SELECT view_name, comment FROM duckdb_views() WHERE NOT internal
UNION ALL SELECT table_name, comment FROM duckdb_tables() WHERE NOT internal ORDER BY 1

-- name: list_columns_without_comment
SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL ORDER BY ALL

-- name: list_macros
SELECT function_name, parameters, function_type, comment FROM duckdb_functions()
WHERE NOT internal AND function_type IN ('macro', 'table_macro') ORDER BY function_name

-- name: list_columns
SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ? AND comment IS NOT NULL

-- Views for whoever runs the flywheel: what ran, what failed and why, how long it took, what was read and written.
-- They stand on `runs` (of complete iterations) and `dvc_lock` alone: flywheel/store/catalog/run_history.py makes them over a few
-- iterations, for `flywheel iteration history`.

CREATE VIEW run_history AS
    SELECT r.iteration, regexp_extract(coalesce(f.name, r.name), '^\d+ (.+)$', 1) AS stage,
        r.state IN ('Failed', 'Crashed', 'TimedOut', 'Cancelled') AS failed, r.* EXCLUDE (iteration, stage, message),
        coalesce(r.message, '') AS message
    FROM runs r LEFT JOIN runs f
        ON (f.iteration, f.run_id, f.kind, r.kind) = (r.iteration, r.parent_id, 'flow', 'task')
    ORDER BY r.iteration, r.started_at, r.run_id;
COMMENT ON VIEW run_history IS
    'Flow and task runs of complete iterations, earlier tries too, each with the stage that it is a part of';
COMMENT ON COLUMN run_history.stage IS 'empty for the iteration, and for tasks of its own';
COMMENT ON COLUMN run_history.failed IS 'Failed, Crashed (killed, or stopped by Ctrl-C), TimedOut or Cancelled';
COMMENT ON COLUMN run_history.parent_id IS 'of a task: its flow run; of a flow run within another: the task that stands for it there';
COMMENT ON COLUMN run_history.attempts IS 'more than 1: Prefect did the task again';
COMMENT ON COLUMN run_history.seconds IS 'at work, pauses left out';
COMMENT ON COLUMN run_history.message IS 'of its last state, for a run that failed the reason; empty where there is none';

CREATE VIEW stage_runs AS
    SELECT iteration, stage, count(*) FILTER (WHERE kind = 'flow') AS tries,
        count(*) FILTER (WHERE kind = 'flow' AND failed) AS failed,
        arg_max(state, (started_at, run_id)) FILTER (WHERE kind = 'flow') AS state,
        arg_max(seconds, (started_at, run_id)) FILTER (WHERE kind = 'flow') AS last_seconds,
        sum(seconds) FILTER (WHERE kind = 'flow') AS seconds,
        min(started_at) FILTER (WHERE kind = 'flow') AS first_started,
        max(ended_at) FILTER (WHERE kind = 'flow') AS last_ended,
        count(DISTINCT name) FILTER (WHERE kind = 'task' AND name NOT IN ('finish ' || stage, 'version ' || stage))
            AS shards,
        coalesce(sum(attempts - 1) FILTER (WHERE kind = 'task' AND attempts > 1), 0)::BIGINT AS retries
    FROM run_history WHERE stage <> '' GROUP BY iteration, stage ORDER BY iteration, first_started, stage;
COMMENT ON VIEW stage_runs IS 'One row a stage of an iteration: its tries, how they ended, how long they took';
COMMENT ON COLUMN stage_runs.tries IS 'flow runs: more than 1 where it failed or was killed, and was gone on with';
COMMENT ON COLUMN stage_runs.failed IS 'tries that failed';
COMMENT ON COLUMN stage_runs.state IS 'of the last try';
COMMENT ON COLUMN stage_runs.last_seconds IS 'of the last try';
COMMENT ON COLUMN stage_runs.seconds IS 'of all tries together; work on shards alone, each once: `stage_minutes`';
COMMENT ON COLUMN stage_runs.retries IS 'of its tasks, within the tries';

CREATE VIEW stage_trend AS
    SELECT iteration, stage, seconds, median(seconds) OVER earlier AS median_before,
        seconds / nullif(median(seconds) OVER earlier, 0) AS ratio, count(seconds) OVER earlier AS iterations_before
    FROM stage_runs
    WINDOW earlier AS (PARTITION BY stage ORDER BY iteration RANGE BETWEEN 10 PRECEDING AND 1 PRECEDING)
    ORDER BY stage, iteration;
COMMENT ON VIEW stage_trend IS 'How long a stage took, beside the ten iterations before';
COMMENT ON COLUMN stage_trend.seconds IS 'of all tries together';
COMMENT ON COLUMN stage_trend.median_before IS 'of the same stage, over those of the ten iterations before that have it';
COMMENT ON COLUMN stage_trend.ratio IS 'seconds / median_before: 2 is twice as long as usual';
COMMENT ON COLUMN stage_trend.iterations_before IS 'that the median rests on';

CREATE VIEW failures AS
    SELECT iteration, stage, name AS run, kind, state, attempts, coalesce(ended_at, started_at) AS ended_at, message,
        run_id
    FROM run_history r WHERE failed AND NOT EXISTS (
        FROM run_history w WHERE (w.iteration, w.parent_id) = (r.iteration, r.run_id) AND w.failed)
    ORDER BY iteration, ended_at, run_id;
COMMENT ON VIEW failures IS
    'What failed, and why: the innermost runs, not those around them, which failed with them. Mended since, or the iteration would not be complete';
COMMENT ON COLUMN failures.run IS 'its name: a shard, or what else of the stage';
COMMENT ON COLUMN failures.ended_at IS 'of a killed one: when it was last heard of';

COMMENT ON VIEW dvc_lock IS 'The files `iterations/NNN/dvc.lock` as they are, of iterations that are at work too';
COMMENT ON COLUMN dvc_lock.content IS 'YAML, as `stage_artifacts` reads it';

CREATE VIEW stage_artifacts AS
    WITH numbered AS (
        SELECT iteration, unnest(string_split(content, chr(10))) AS line,
            generate_subscripts(string_split(content, chr(10)), 1) AS n FROM dvc_lock
    ), placed AS (
        SELECT iteration, n, line,
            last_value(nullif(regexp_extract(line, '^  [''"]?([\w-]+)[''"]?:', 1), '') IGNORE NULLS) OVER above AS stage,
            last_value(nullif(regexp_extract(line, '^  (?:- |  )(\w+):', 1), '') IGNORE NULLS) OVER above AS section,
            count(*) FILTER (WHERE line LIKE '    - %') OVER above AS item
        FROM numbered WINDOW above AS (PARTITION BY iteration ORDER BY n)
    ), entries AS (
        SELECT *, regexp_extract(line, '^\s+(?:- )?(\w+): ''?([^'']*)''?$', ['key', 'value']) AS entry
        FROM placed WHERE section IN ('deps', 'outs')
    ), items AS (
        SELECT iteration, stage, if(section = 'deps', 'input', 'output') AS role, min(n) AS n,
            max(entry.value) FILTER (WHERE entry.key = 'path') AS path,
            max(entry.value) FILTER (WHERE entry.key = 'size')::BIGINT AS bytes,
            coalesce(max(entry.value) FILTER (WHERE entry.key = 'nfiles')::INT, 1) AS files,
            max(entry.value) FILTER (WHERE entry.key = 'md5') AS md5
        FROM entries GROUP BY iteration, stage, section, item
    )
    SELECT iteration, stage, role, CASE WHEN path LIKE 'data/%' THEN 'partition'
        WHEN path LIKE 'models/%' THEN 'checkpoint' ELSE 'record' END AS kind, path, files, bytes, md5
    FROM items WHERE path IS NOT NULL ORDER BY iteration, stage, role, n;
COMMENT ON VIEW stage_artifacts IS
    'What the recorded try of each stage read and wrote, as DVC recorded it: who made an input has the same path as an output. Training also reads the files that its `manifest.json` names';
COMMENT ON COLUMN stage_artifacts.role IS 'input or output';
COMMENT ON COLUMN stage_artifacts.kind IS 'partition, checkpoint, or a record: a small file of the iteration';
COMMENT ON COLUMN stage_artifacts.md5 IS 'of the file, or DVC''s of the folder';

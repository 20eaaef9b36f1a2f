-- What the explorer asks the catalogue. `explorer.listed` and `explorer.trained` are the views `trajectory_outcomes` and
-- `trained_on`, made into tables (`catalog_reader.py`).

-- name: first_screens
SELECT trajectory_id, arg_min(image_sha256, step) AS screen FROM steps
WHERE trajectory_id IN (SELECT unnest($names)) AND iteration IN (SELECT unnest($iterations)) GROUP BY ALL

-- name: samples
-- The other episodes of a trajectory's task in its iteration.
SELECT trajectory_id, iteration, stage, sample, policy_version, status, steps, success, score, destination, start_step
FROM explorer.listed
WHERE task_id = $task AND iteration = $iteration AND trajectory_id <> $id
ORDER BY stage, policy_version, sample, trajectory_id LIMIT 100

-- name: twins
WITH near AS (
    SELECT duplicate_of AS other, similarity, reason AS why, weight FROM duplicates
    WHERE trajectory_id = $id
    UNION SELECT trajectory_id, similarity, reason, weight FROM duplicates WHERE duplicate_of = $id)
SELECT trajectory_id, iteration, stage, sample, policy_version, status, steps, success, score, destination,
    similarity, why, weight
FROM near JOIN explorer.listed ON trajectory_id = other
ORDER BY similarity DESC, trajectory_id LIMIT 50

-- name: set_aside
SELECT reason, detail, source_table FROM quarantine WHERE trajectory_id = $id AND iteration = $iteration

-- name: lineage
-- What the view `trajectory_lineage` says beside the outcome, by questions that each look for one row alone: the
-- view's own took 46 ms at 200,000 trajectories, these 4.
SELECT (SELECT any_value(name) FROM runs WHERE run_id = $run) AS run,
    (SELECT min(checkpoint) FROM (
        SELECT parent AS checkpoint FROM lineage WHERE relation = 'weights of' AND child = $policy
        UNION ALL SELECT model FROM promotions WHERE digest = $policy)) AS model,
    (SELECT coalesce(list(checkpoint ORDER BY checkpoint), []) FROM explorer.trained WHERE trajectory_id = $id)
        AS trained_checkpoints

-- name: image_sizes
SELECT sha256, width, height FROM images
WHERE sha256 IN (SELECT unnest($names)) AND iteration = $iteration

-- name: utterances
SELECT step, utterance, start_s, end_s, asr_text, text, confidence, low_confidence, alignment_score,
    refined_by FROM utterances WHERE trajectory_id = $id AND iteration = $iteration ORDER BY utterance

-- name: p_v1
FROM p_v1

-- name: rises
FROM p_v1_rise

-- name: held_out_success
FROM held_out_success

-- name: funnel
FROM funnel

-- name: minutes
FROM stage_minutes

-- name: curves
SELECT stage, name, count(*) AS n, list(DISTINCT iteration ORDER BY iteration) AS iterations
FROM learning_curves WHERE value IS NOT NULL GROUP BY ALL ORDER BY stage, name

-- name: runs
SELECT iteration, run_id, name, state FROM run_history
WHERE kind = 'flow' AND stage = '' ORDER BY iteration, started_at

-- name: learning_curve
SELECT iteration, domain, step, value, low, high FROM learning_curves
WHERE stage = $stage AND name = $name AND iteration IN (SELECT unnest($iterations)) AND value IS NOT NULL
ORDER BY iteration, domain, step LIMIT 20000

-- name: schema
SELECT c.table_name AS "table", column_name AS name, data_type AS type, coalesce(c.comment, '') AS meaning,
    coalesce(v.comment, '') AS about
FROM duckdb_columns() c LEFT JOIN duckdb_views() v ON v.view_name = c.table_name
WHERE NOT c.internal AND c.schema_name = 'main' AND NOT ends_with(c.table_name, '_in_files')
ORDER BY c.table_name, column_index

-- name: columns
SELECT column_name AS name, data_type AS type, coalesce(comment, '') AS meaning FROM duckdb_columns()
WHERE table_name = 'trajectory_outcomes' ORDER BY column_index

-- name: disagreement
-- What a queue of reviewers draws from, joined to the trajectories that are asked for; so is the next.
SEMI JOIN (
    SELECT iteration, trajectory_id FROM scores
    WHERE success IS NOT NULL AND ($iteration IS NULL OR iteration = $iteration)
    GROUP BY ALL HAVING count(DISTINCT success) > 1) USING (iteration, trajectory_id)

-- name: speech
JOIN (
    SELECT iteration, trajectory_id, min(confidence) AS least FROM utterances
    WHERE confidence IS NOT NULL AND ($iteration IS NULL OR iteration = $iteration)
    GROUP BY ALL) USING (iteration, trajectory_id)

-- name: routing
-- What is asked before an iteration trains (`routing.review`).
SEMI JOIN (SELECT unnest($asked::VARCHAR[]) AS trajectory_id) USING (trajectory_id)

-- name: decide
SEMI JOIN (FROM human_labels WHERE state = 'to decide') USING (iteration, trajectory_id)

-- name: doubted
-- All but what a person did and the verdict confirms: nobody doubts it.
WHERE NOT coalesce(author = 'human' AND success, false)

-- name: queue_source
-- The routed trajectories that a queue of reviewers draws from, joined to one of those above, or to nothing.
(
    SELECT iteration, trajectory_id, domain, world, instruction, destination, author, success FROM explorer.listed
    WHERE destination IS NOT NULL
        AND ($iteration IS NULL OR iteration = $iteration) AND ($domain IS NULL OR domain = $domain)
        AND ($owned::VARCHAR[] IS NULL OR list_contains($owned, trajectory_id) = $inside)) t
{joined}

-- name: queue
-- By md5, since DuckDB's own hash may be another one in its next version.
WITH drawn AS MATERIALIZED (
    SELECT *, row_number() OVER () AS place FROM (
        SELECT iteration, trajectory_id, domain, world, instruction
        FROM (SELECT *, md5($seed::VARCHAR || trajectory_id) AS key FROM {source})
        ORDER BY {order} LIMIT $size))
SELECT d.*, m.label, m.comment, coalesce(h.reviewers, 0) AS reviewers,
    if(m.label IS NULL, NULL, h.state) AS together,
    CASE WHEN m.label IS NOT NULL THEN 'mine'
        WHEN h.reviewers >= $needed AND $queue <> 'decide' THEN 'full' ELSE 'open' END AS state
FROM drawn d
    LEFT JOIN (FROM labels WHERE reviewer = $reviewer) m USING (iteration, trajectory_id)
    LEFT JOIN human_labels h USING (iteration, trajectory_id)
ORDER BY place

-- name: decisions
-- Of each evaluated iteration. `reviews` has a rule's decision too, and those that a later one replaced.
WITH said AS (
    SELECT iteration, list({'reviewer': reviewer, 'decision': decision, 'comment': comment, 'at': "at"} ORDER BY "at") AS said
    FROM reviews WHERE kind = 'promotion' AND stage = 'promote' GROUP BY ALL)
SELECT iteration, promoted, coalesce(reason, '') AS reason, model, coalesce(said, []) AS said
FROM (SELECT DISTINCT iteration FROM metrics WHERE stage = 'evaluate')
    LEFT JOIN promotions USING (iteration) LEFT JOIN said USING (iteration)
ORDER BY iteration DESC

-- name: family
-- A trajectory's relatives: those that began within another one of them, whichever iteration they are of. From any one
-- the first is found by its parents, and then all that begin within that.
WITH RECURSIVE up AS (
    SELECT $id::VARCHAR AS trajectory_id, 0 AS depth
    UNION ALL SELECT parent_id, depth + 1 FROM up JOIN explorer.listed USING (trajectory_id)
    WHERE parent_id IS NOT NULL AND depth < 50),
down AS (
    SELECT arg_max(trajectory_id, depth) AS trajectory_id, 0 AS depth FROM up
    UNION ALL SELECT l.trajectory_id, depth + 1 FROM down JOIN explorer.listed l ON l.parent_id = down.trajectory_id
    WHERE depth < 50)
SELECT trajectory_id, any_value(parent_id) AS parent_id, any_value(start_step) AS start_step, max(depth) AS depth,
    any_value(iteration) AS iteration, any_value(stage) AS stage, any_value(source) AS source,
    any_value(author) AS author, any_value(steps) AS steps, any_value(status) AS status,
    any_value(success) AS success, any_value(destination) AS destination, any_value(reward) AS reward
FROM down LEFT JOIN explorer.listed USING (trajectory_id)
GROUP BY trajectory_id ORDER BY depth, start_step, trajectory_id LIMIT 200

-- name: tasks_with_runs
SELECT task_id, min(instruction) AS instruction, any_value(domain) AS domain, any_value(world) AS world,
    any_value(template) AS template, any_value(level) AS level, count(*) AS runs, count(success) AS judged,
    count(*) FILTER (WHERE success) AS solved, list(DISTINCT iteration ORDER BY iteration) AS iterations,
    count(parent_id) FILTER (WHERE start_step IS NOT NULL) AS branches
FROM explorer.listed
WHERE $search = '' OR contains(lower(instruction), lower($search)) OR task_id = $search
GROUP BY task_id
ORDER BY (solved > 0 AND solved < judged) DESC, runs DESC, max(iteration) DESC, task_id LIMIT $limit OFFSET $offset

-- name: runs_of_task
-- Each trajectory once, with the screen after its last step.
SELECT l.trajectory_id, l.iteration, l.stage, l.source, l.author, l.sample, l.policy_version, l.status, l.steps,
    l.success, l.score, l.destination, l.reward, l.parent_id, l.start_step, l.instruction, l.error, l.annotator,
    t.final_image_sha256 AS image_sha256, md5(nullif(t.final_state, 'null')) AS final_state
FROM explorer.listed l JOIN trajectories t USING (iteration, stage, trajectory_id)
WHERE l.task_id = $task QUALIFY l.iteration = max(l.iteration) OVER (PARTITION BY l.trajectory_id)
ORDER BY l.iteration DESC, l.source = 'counterfactual', l.stage, l.sample NULLS LAST, l.trajectory_id

-- name: steps_of_runs
-- As the macro `steps_of`, of several trajectories: the rows are found by their ids alone, the rest is read where they lie.
SELECT trajectory_id, step, author, thought, action_type, action, parse_error, x, y, x2, y2, reward, weight_version,
    image_sha256, md5(observation) AS "text", nullif(url, '') AS url, list_sum(logprobs) AS logprob
FROM steps_in_files SEMI JOIN (
    SELECT filename, file_row_number FROM steps_in_files
    WHERE trajectory_id IN (SELECT unnest($names)) AND iteration IN (SELECT unnest($iterations))
) USING (filename, file_row_number)
ORDER BY trajectory_id, step

-- name: models_of_weights
SELECT digest, min(model) AS model FROM (
    SELECT child AS digest, parent AS model FROM lineage WHERE relation = 'weights of'
    UNION ALL SELECT digest, model FROM promotions)
WHERE digest IN (SELECT unnest($digests)) GROUP BY digest

-- What maintenance asks the catalogue: `iteration_diff.py` ($a and $b: iterations), `route_review.py`, `reroute.py` and
-- `quarantine.py` ($iteration: whose routes). Names in {} are filled in, since they stand for columns and tables.

-- name: table_rows
SELECT {place} AS place, '{table}' AS "table", stage, count(*) FILTER (WHERE iteration = $a) AS before,
    count(*) FILTER (WHERE iteration = $b) AS after
FROM {table} WHERE iteration IN ($a, $b) GROUP BY stage

-- name: routed_kinds
SELECT '{name}' AS name, {column} AS value, count(*) FILTER (WHERE iteration = $a) AS before,
    count(*) FILTER (WHERE iteration = $b) AS after
FROM trajectories t JOIN routes r USING (trajectory_id, iteration) WHERE iteration IN ($a, $b) GROUP BY value

-- name: routed_numbers
-- By iteration: how many have one, the mean, and the quantiles 0, 0.1, 0.5, 0.9, 1.
SELECT '{name}' AS name, iteration, count({column}) AS n, avg({column}) AS mean,
    quantile_disc({column}, [0, 0.1, 0.5, 0.9, 1]) AS quantiles
FROM trajectories t JOIN routes r USING (trajectory_id, iteration) WHERE iteration IN ($a, $b) GROUP BY iteration

-- name: metrics
-- The last point of each; of those that both have, with the difference.
WITH last AS (
    SELECT iteration, stage, domain, name, arg_max(value, step) AS value FROM metrics
    WHERE iteration IN ($a, $b) GROUP BY ALL)
SELECT stage, name, domain, x.value AS before, y.value AS after, y.value - x.value AS difference
FROM (FROM last WHERE iteration = $a) x FULL JOIN (FROM last WHERE iteration = $b) y USING (stage, name, domain)
ORDER BY ALL

-- name: templates
-- Training templates and levels that both played, of which one solved some and the other none.
WITH played AS (
    SELECT iteration, world, template, level, count(*) AS n, count(*) FILTER (WHERE success) AS solved
    FROM (
        SELECT r.iteration, t.world, t.level, t.task_id, r.success
        FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
        WHERE r.iteration IN ($a, $b) AND t.stage = 'rollout' AND t.source IS DISTINCT FROM 'correction' AND r.success IS NOT NULL)
    JOIN (
        SELECT task_id, any_value(template) AS template FROM tasks WHERE iteration IN ($a, $b) GROUP BY ALL)
        USING (task_id)
    GROUP BY ALL)
SELECT world, template, level, x.solved / x.n AS before, y.solved / y.n AS after
FROM (FROM played WHERE iteration = $a) x JOIN (FROM played WHERE iteration = $b) y USING (world, template, level)
WHERE (x.solved = 0) <> (y.solved = 0) ORDER BY ALL

-- name: review_candidates
-- The model's own trajectories, without broken ones. In the order of md5, since DuckDB's own hash may change with its
-- version.
CREATE OR REPLACE TEMP TABLE candidates AS
WITH judged AS (
    SELECT trajectory_id, count(DISTINCT success) > 1 OR bool_or(success IS NULL AND abstained IS NOT true) OR bool_or(
        score < 1 AND abs(score - threshold) <= $near) AS doubtful,
        bool_or(scorer = 'person' AND success IS NULL) AS waits
    FROM scores WHERE iteration = $iteration AND stage = 'score' GROUP BY ALL)
SELECT t.trajectory_id, t.domain, t.world, t.instruction, r.destination, r.reason, r.score, r.success,
    j.doubtful OR r.success IS NULL AS doubtful, j.waits AND r.success IS NULL AS waits, md5($seed || t.trajectory_id) AS key
FROM routes r JOIN trajectories t USING (iteration, trajectory_id) JOIN judged j USING (trajectory_id)
WHERE r.iteration = $iteration AND t.stage = 'rollout' AND t.source IS DISTINCT FROM 'correction'
    AND NOT regexp_matches(r.reason, '^(contract: |status )')

-- name: review_in_turns
-- Round robin: one of each domain and store, then the next of each.
SELECT * EXCLUDE (key, doubtful, waits, turn) FROM (
    SELECT *, row_number() OVER (PARTITION BY domain, destination ORDER BY key) AS turn FROM candidates WHERE {which})
ORDER BY turn, key LIMIT $size

-- name: waiting_for_person
-- Those whose verdict a person is to give, and the newest label of each, in whatever queue it was given.
SELECT t.trajectory_id, t.domain, r.destination, r.score, r.success, label, reviewer, comment, "at"
FROM routes r JOIN trajectories t USING (iteration, trajectory_id)
    JOIN (FROM scores WHERE stage = 'score' AND scorer = 'person' AND success IS NULL) s USING (iteration, trajectory_id)
    LEFT JOIN (
        FROM label_history QUALIFY row_number() OVER (
            PARTITION BY iteration, trajectory_id ORDER BY "at" DESC, line DESC) = 1) USING (iteration, trajectory_id)
WHERE r.iteration = $iteration AND r.success IS NULL ORDER BY trajectory_id

-- name: scorer_verdicts
SELECT trajectory_id, scorer, score, threshold, success, detail FROM scores
WHERE iteration = $iteration AND stage = 'score' AND list_contains($which, trajectory_id)
ORDER BY trajectory_id, scorer

-- name: newest_labels
SELECT trajectory_id, label, reviewer, comment, "at" FROM label_history
WHERE iteration = $iteration AND queue = $queue
QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY "at" DESC, line DESC) = 1

-- name: scorer_versions
SELECT domain, split_part(scorer, ':', 1) AS scorer, version,
    bool_or(score IS NULL AND abstained IS NOT true) AS failed
FROM scores JOIN trajectories USING (trajectory_id, iteration)
WHERE iteration = $iteration AND scores.stage = 'score' AND scorer <> '' GROUP BY ALL

-- name: judgements
-- Of `scores_before`, by the decision's threshold, else each task's own, else the one that held.
CREATE TEMP TABLE judgements AS
SELECT * EXCLUDE (asked, held) REPLACE (held AS threshold,
    CASE WHEN score BETWEEN 0 AND 1 THEN score >= held END AS success) FROM (
    SELECT s.*, asked,
        CASE WHEN coalesce(scorer, '') = '' THEN threshold ELSE coalesce($threshold, asked, threshold) END AS held
    FROM scores_before s
        LEFT JOIN (SELECT trajectory_id, any_value(task_id) AS task_id FROM incoming GROUP BY ALL) USING (trajectory_id)
        LEFT JOIN (
            SELECT task_id, any_value(threshold) AS asked FROM tasks WHERE iteration = $iteration GROUP BY ALL)
            USING (task_id))

-- name: changed_judgements
-- Those that came or went count too.
SELECT count(*) FROM judgements j FULL JOIN scores_before b
    ON j.trajectory_id = b.trajectory_id AND (j.scorer, j.version) IS NOT DISTINCT FROM (b.scorer, b.version)
WHERE j.trajectory_id IS NULL OR b.trajectory_id IS NULL
    OR (j.score, j.threshold, j.success) IS DISTINCT FROM (b.score, b.threshold, b.success)

-- name: scorer_counts
WITH stored AS (
    SELECT DISTINCT trajectory_id, split_part(scorer, ':', 1) AS name, version FROM scores_stored
    WHERE score IS NOT NULL OR abstained
)
SELECT split_part(scorer, ':', 1) AS scorer, j.version, count(score) AS scored,
    count(*) FILTER (WHERE score IS NULL AND abstained) AS abstained,
    count(*) FILTER (WHERE score IS NULL AND abstained IS NOT true) AS failed,
    min(detail) FILTER (WHERE score IS NULL AND abstained IS NOT true) AS reason, count(stored.name) AS known
FROM judgements j LEFT JOIN stored ON stored.trajectory_id = j.trajectory_id AND stored.name = split_part(scorer, ':', 1)
    AND stored.version IS NOT DISTINCT FROM j.version
WHERE scorer <> '' GROUP BY ALL ORDER BY ALL

-- name: scores_of_all_versions
-- The verdicts that count now, and those of other versions and scorers that counted before.
SELECT {columns} FROM (
    SELECT * REPLACE (true AS current) FROM judgements
    UNION ALL BY NAME SELECT * REPLACE (false AS current) FROM scores_stored s WHERE scorer <> '' AND NOT EXISTS (
        FROM judgements j WHERE j.trajectory_id = s.trajectory_id AND j.version IS NOT DISTINCT FROM s.version
            AND split_part(j.scorer, ':', 1) = split_part(s.scorer, ':', 1)))
ORDER BY trajectory_id, scorer, version

-- name: changed_verdicts
-- Those that came or went count too.
SELECT count(*) FROM judgements j FULL JOIN scores_before b
    ON j.trajectory_id = b.trajectory_id AND j.scorer IS NOT DISTINCT FROM b.scorer
WHERE j.score IS DISTINCT FROM b.score OR j.success IS DISTINCT FROM b.success

-- name: broken
-- What the contracts say: of trajectories and steps as it was found, of scores anew.
CREATE TEMP TABLE broken AS SELECT trajectory_id, min_by(reason, place) AS reason FROM (
    SELECT trajectory_id, substr(reason, len('contract: ') + 1) AS reason, 0 AS place FROM quarantine
    WHERE iteration = $iteration AND stage = 'route' AND source_table = 'trajectories'
        AND starts_with(reason, 'contract: ')
        AND NOT list_contains($anew, split_part(substr(reason, len('contract: ') + 1), ':', 1))
    UNION ALL SELECT trajectory_id, reason, 1 FROM ({broken_scores}))
GROUP BY ALL

-- name: orphans
CREATE TEMP TABLE orphans AS SELECT source_table, trajectory_id, reason, detail FROM quarantine
WHERE iteration = $iteration AND stage = 'route' AND source_table <> 'trajectories'

-- name: moved_routes
SELECT i.domain, b.destination AS "from", d.destination AS "to", count(*) AS trajectories,
    (list({'trajectory_id': trajectory_id, 'reason': b.reason, 'then': d.reason} ORDER BY trajectory_id))[:3]
        AS examples
FROM routes_before b JOIN decided d USING (trajectory_id)
    JOIN (SELECT trajectory_id, any_value(domain) AS domain FROM incoming GROUP BY ALL) i USING (trajectory_id)
WHERE b.destination <> d.destination GROUP BY ALL ORDER BY trajectories DESC, 1, 2, 3

-- name: changed_routes
SELECT count(*) FROM (
    SELECT trajectory_id, destination, reason, score, success, decided_by, decided_version FROM decided EXCEPT
    SELECT trajectory_id, destination, reason, score, success, decided_by, decided_version FROM routes_before)

-- name: changed_v
SELECT domain, count(*) FILTER (WHERE before = 0 AND after = 1) AS to_1,
    count(*) FILTER (WHERE before = 1 AND after = 0) AS to_0,
    count(*) FILTER (WHERE before IS NULL AND after = 1) AS none_to_1,
    count(*) FILTER (WHERE before IS NULL AND after = 0) AS none_to_0,
    count(*) FILTER (WHERE before IS NOT NULL AND after IS NULL) AS to_none, count(*) FILTER (WHERE moved) AS moved,
    count(*) FILTER (WHERE before IS DISTINCT FROM after AND held) AS held
FROM (
    SELECT any_value(i.domain) AS domain, any_value(b.success)::INT AS before, any_value(d.success)::INT AS after,
        any_value(b.destination <> d.destination) AS moved, any_value(starts_with(d.reason, 'contract: ')) AS held
    FROM routes_before b JOIN decided d USING (trajectory_id) JOIN incoming i USING (trajectory_id)
    GROUP BY trajectory_id)
WHERE moved OR before IS DISTINCT FROM after GROUP BY domain ORDER BY domain

-- name: rollout_verdicts
-- By task.
SELECT i.domain, count(*) FILTER (WHERE d.success), count(*) FROM decided d
JOIN (SELECT trajectory_id, domain, task_id FROM incoming WHERE stage = 'rollout' AND source IS DISTINCT FROM 'correction') i USING (trajectory_id)
WHERE d.success IS NOT NULL AND task_id IN (
    SELECT task_id FROM tasks WHERE iteration = $iteration AND stage = 'synthesize' AND split = 'train')
GROUP BY i.domain, task_id

-- name: quarantine_reasons
SELECT iteration, source_table AS "table", split_part(reason, ' (', 1) AS reason, count(*) AS rows,
    min(trajectory_id) AS first
FROM quarantine WHERE $iteration IS NULL OR iteration = $iteration
GROUP BY ALL ORDER BY iteration, rows DESC, reason

-- name: quarantine_why
CREATE TEMP TABLE why AS SELECT trajectory_id, any_value(reason) AS reason, any_value(detail) AS detail
FROM quarantine WHERE iteration = $iteration AND source_table = 'trajectories' GROUP BY ALL

-- name: repaired_routes
SELECT destination || ': ' || split_part(reason, ' (', 1) AS how, count(*)
FROM decided SEMI JOIN own USING (trajectory_id) GROUP BY ALL ORDER BY 2 DESC, 1

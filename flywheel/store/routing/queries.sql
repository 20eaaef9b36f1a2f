-- SQL of `contracts.py` and `training_stores.py`. In braces: what they fill in.

-- name: walked
-- Steps as they lie in the files, each beside the one before it: where a trajectory's lie together and each follows the
-- one before it, they are in order. The others are sorted before they are checked.
CREATE TEMP TABLE walked AS
SELECT trajectory_id, count(*) AS rows, count(*) FILTER (begins) > 1 OR coalesce(bool_or({fault}), false) AS doubted
FROM (SELECT * EXCLUDE (before_step, before_start), trajectory_id IS DISTINCT FROM before AS begins,
        CASE WHEN trajectory_id = before THEN before_step END AS previous_step,
        CASE WHEN trajectory_id = before THEN before_start END AS previous_start
    FROM (SELECT trajectory_id, step, started_at, ended_at, lag(trajectory_id) OVER () AS before,
            lag(step) OVER () AS before_step, lag(started_at) OVER () AS before_start
        FROM steps WHERE {new}))
GROUP BY trajectory_id

-- name: judged
CREATE TEMP TABLE judged AS
WITH whole AS (SELECT DISTINCT i.sha256 FROM images i WHERE {new} AND sha256(i.bytes) = i.sha256),
offences AS (SELECT trajectory_id, {first_steps} FROM (
    SELECT trajectory_id, step, {step}
    FROM (SELECT s.*, whole.sha256 IS NOT NULL AS there FROM (FROM steps WHERE {new}) s
        LEFT JOIN whole ON whole.sha256 = s.image_sha256)
    WHERE {step_fault}) GROUP BY trajectory_id
), disorder AS (SELECT trajectory_id, {first_order} FROM (
    SELECT trajectory_id, step, {order} FROM (
        SELECT trajectory_id, step, started_at, ended_at, lag(step) OVER own AS previous_step,
            lag(started_at) OVER own AS previous_start
        FROM (FROM steps WHERE {new}) SEMI JOIN (FROM walked WHERE doubted) USING (trajectory_id)
        WINDOW own AS (PARTITION BY trajectory_id ORDER BY step))) GROUP BY trajectory_id
), known AS (SELECT task_id, bool_or(split = 'eval') AS held_out FROM tasks GROUP BY task_id),
earlier AS (
    SELECT trajectory_id, max(iteration) AS before FROM trajectories WHERE iteration < {iteration} GROUP BY ALL),
own AS (FROM trajectories WHERE {new}),
several AS (SELECT trajectory_id, count(*) AS same FROM own GROUP BY trajectory_id HAVING count(*) > 1)
SELECT t.trajectory_id, t.task_id, t.status, t.source, t.author, t.domain, t.steps, t.reward, t.started_at, t.ended_at,
    coalesce(several.same, 1) AS same, earlier.before, known.held_out, walked.rows,
    disorder.* EXCLUDE (trajectory_id), offences.* EXCLUDE (trajectory_id){held}
FROM own t LEFT JOIN walked USING (trajectory_id) LEFT JOIN disorder USING (trajectory_id)
    LEFT JOIN offences USING (trajectory_id) LEFT JOIN several USING (trajectory_id) LEFT JOIN known USING (task_id)
    LEFT JOIN earlier USING (trajectory_id)

-- name: tables
-- Of the scores one of its own: of a Parquet file DuckDB believes the least and the greatest value, which leave out NaN.
CREATE TEMP TABLE judgements AS FROM scores WHERE {scored};
CREATE TEMP TABLE faults (place INTEGER, trajectory_id VARCHAR, promise VARCHAR, detail VARCHAR);
CREATE TEMP TABLE orphans (source_table VARCHAR, trajectory_id VARCHAR, reason VARCHAR, detail VARCHAR, n BIGINT)

-- name: broken
CREATE TEMP TABLE broken AS SELECT trajectory_id,
    arg_min(promise || CASE WHEN detail <> '' THEN ' (' || detail || ')' ELSE '' END, place) AS reason
FROM faults GROUP BY trajectory_id

-- name: broken_scores
SELECT trajectory_id,
    '{name}: {promise}' || CASE WHEN {detail} <> '' THEN ' (' || {detail} || ')' ELSE '' END AS reason
FROM judgements WHERE {fault}

-- name: insert_orphans
INSERT INTO orphans SELECT ?, trajectory_id, ?, format('{{}} rows', count(*)), count(*) FROM {table}
ANTI JOIN judged USING (trajectory_id) WHERE {where} GROUP BY trajectory_id

-- name: count_orphans
SELECT (SELECT count(*) FROM {table} WHERE {where}),
    (SELECT coalesce(sum(n), 0)::BIGINT FROM orphans WHERE source_table = '{table}')

-- name: count_broken
SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM judged SEMI JOIN broken USING (trajectory_id))

-- name: commonest_fault
SELECT any_value(reason), count(*) AS n FROM broken SEMI JOIN judged USING (trajectory_id)
GROUP BY split_part(reason, ' (', 1) ORDER BY n DESC LIMIT 1

-- name: judged_by_people
UPDATE judgements SET score = p.solved::DOUBLE, success = p.solved, detail = 'as ' || p.reviewer || ' says'
FROM people p WHERE judgements.trajectory_id = p.trajectory_id AND scorer = 'person'

-- name: decided
-- A row of `decided` for each trajectory. Rows are numbered instead of aggregated: DuckDB keeps an aggregate's texts in
-- memory, one a trajectory. Of several scorers the least satisfied decides: V = 0 before none before V = 1 before one
-- that abstains, then the lowest score. `unjudged`: why there is no V; what differs from trajectory to trajectory in brackets.
CREATE OR REPLACE TEMP TABLE decided AS
WITH verdicts AS (
    SELECT trajectory_id, said FROM (
        SELECT trajectory_id, {
            'score': score, 'success': success, 'scorer': coalesce(scorer, ''), 'detail': coalesce(detail, ''),
            'version': version,
            'place': CASE WHEN abstained THEN 3 WHEN success THEN 2 WHEN success IS NULL THEN 1 ELSE 0 END,
            'held': CASE WHEN success IS NULL THEN 0 ELSE score END
        } AS said
        FROM (SELECT * EXCLUDE (success), CASE WHEN score BETWEEN 0 AND 1 THEN score >= threshold END AS success
            FROM judgements))
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY said.place, said.held, said.scorer, said.detail) = 1
), known AS (
    SELECT t.*, b.reason AS broken, p.solved, p.reviewer, s.said.success AS success,
        CASE WHEN success IS NOT NULL THEN s.said.score END AS score,
        nullif(s.said.scorer, '') AS decided_by, s.said.version AS decided_version,
        CASE WHEN s.said IS NULL THEN 'no score' WHEN s.said.detail = '' THEN 'score is not a number'
            ELSE 'no score' || CASE WHEN s.said.scorer <> '' THEN ' by ' || s.said.scorer ELSE '' END
                || ' (' || s.said.detail || ')' END AS unjudged
    FROM (SELECT trajectory_id, status, source, error FROM incoming
            QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY status, source, error) = 1) t
        LEFT JOIN verdicts s USING (trajectory_id) LEFT JOIN broken b USING (trajectory_id)
        LEFT JOIN people p USING (trajectory_id)
)
SELECT trajectory_id, decision.destination, decision.reason, score, success, decided_by, decided_version FROM (
    SELECT trajectory_id, score, success, decided_by, decided_version, CASE
        WHEN broken IS NOT NULL THEN {'destination': 'quarantine', 'reason': 'contract: ' || broken}
        WHEN status IS NULL OR status NOT IN ('completed', 'truncated') THEN {'destination': 'quarantine',
            'reason': 'status ' || coalesce(status, 'none') || CASE WHEN error <> '' THEN ': ' || error ELSE '' END}
        WHEN source IN ('recording', 'import') THEN {'destination': 'ct', 'reason':
            CASE source WHEN 'import' THEN 'imported demonstration' ELSE 'human demonstration' END
            || ': continual training'}
        WHEN source = 'augmentation' THEN
            {'destination': 'ct', 'reason': 'reworded demonstration: continual training'}
        WHEN source = 'correction' AND success THEN
            {'destination': 'ct', 'reason': 'verified correction: continual training'}
        WHEN source = 'correction' AND NOT success THEN {'destination': 'quarantine',
            'reason': format('correction that does not solve its task: score {:.2f}', score)}
        WHEN solved THEN {'destination': 'sft', 'reason': 'solved, as a person says (' || reviewer || ')'}
        WHEN NOT solved THEN {'destination': 'ct', 'reason': 'not solved, as a person says (' || reviewer || ')'}
        WHEN success IS NULL THEN {'destination': 'quarantine', 'reason': unjudged}
        WHEN score >= $low AND score < $high THEN {'destination': 'quarantine',
            'reason': format('doubted: score {:.2f} is in [$low, $high)', score)}
        WHEN success THEN {'destination': 'sft', 'reason': format('verified: score {:.2f}', score)}
        WHEN NOT $verified_only THEN
            {'destination': 'sft', 'reason': format('not verified, and not asked to be: score {:.2f}', score)}
        ELSE {'destination': 'ct', 'reason': format('not verified: score {:.2f}', score)}
    END AS decision FROM known)

-- name: quarantined
SELECT i.*, d.reason FROM incoming i JOIN decided d USING (trajectory_id)
WHERE destination = 'quarantine' ORDER BY trajectory_id

-- name: routes
SELECT * FROM decided ORDER BY trajectory_id

-- name: store
-- A recording and its rewordings together weigh as much as one.
WITH reworded AS (
    SELECT parent_id, 1 + count(*) AS versions FROM incoming JOIN decided USING (trajectory_id)
    WHERE source = 'augmentation' AND destination = '{store}' GROUP BY parent_id)
SELECT trajectory_id, task_id, domain, source, d.score, steps, policy_version,
    coalesce(weight, 1.0) / coalesce(versions, 1) AS weight
FROM (SELECT *, if(source = 'augmentation', parent_id, trajectory_id) AS first FROM incoming) i
    JOIN decided d USING (trajectory_id) LEFT JOIN weights USING (trajectory_id)
    LEFT JOIN reworded ON reworded.parent_id = i.first
WHERE destination = '{store}' ORDER BY trajectory_id

-- name: count_routed
SELECT destination, domain, count(*) FROM incoming JOIN decided USING (trajectory_id) GROUP BY ALL ORDER BY ALL

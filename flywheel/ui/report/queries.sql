-- What the report asks the catalogue (`figures.py`). $since: iterations after that one.

-- name: worlds
-- The newest iteration's rollouts by world.
SELECT domain, world, sum(tasks)::BIGINT AS tasks, max(samples) AS samples,
    sum(pass_1 * tasks) / sum(tasks) AS pass_1, sum(pass_k * tasks) / sum(tasks) AS pass_k,
    sum(mixed)::BIGINT AS mixed, sum(invalid_steps) / nullif(sum(steps), 0) AS invalid_step_fraction,
    sum(invalid_episode_fraction * tasks * samples) / sum(tasks * samples) AS invalid_episode_fraction
FROM template_success
WHERE iteration = (SELECT max(iteration) FROM template_success WHERE iteration > $since)
GROUP BY domain, world ORDER BY domain, world

-- name: rises
-- P(V = 1) beside the iteration before, on the templates and levels that both played.
FROM p_v1_rise WHERE domain = 'all' AND iteration > $since ORDER BY iteration

-- name: headroom
-- What sampling reaches beyond one sample, by domain.
FROM headroom WHERE world IS NULL AND iteration > $since ORDER BY iteration, domain

-- name: headroom_templates
-- The same of the newest iteration by template and level, the most headroom first.
FROM headroom WHERE world IS NOT NULL AND iteration = (SELECT max(iteration) FROM headroom WHERE iteration > $since)
ORDER BY headroom DESC, live_groups DESC, world, template, level

-- name: by_stage
-- Held-out success after each stage (where `evaluation.stages` is set).
FROM held_out_success_by_stage WHERE domain = 'all' AND iteration > $since ORDER BY iteration

-- name: looked_at
-- What people said of routes beside what scorers said, where somebody was asked.
SELECT * FROM (
    SELECT iteration, count(*) AS asked, count(label) AS labelled, count(*) FILTER (WHERE moved) AS moved,
        any_value(end_reason) AS end_reason
    FROM route_reviews WHERE iteration > $since GROUP BY ALL)
LEFT JOIN (FROM verifier_vs_humans WHERE domain = 'all' AND sampling = 'any') USING (iteration)
ORDER BY iteration

-- name: quarantine
-- The most frequent reasons for setting aside.
SELECT regexp_replace(reason, ' \(.*\)$', '') AS why, count(*) AS rows,
    list_sort(list(DISTINCT iteration)) AS iterations,
    max(trajectory_id) AS example, max_by(reason, trajectory_id) AS detail
FROM quarantine WHERE iteration > $since GROUP BY why ORDER BY rows DESC, why LIMIT 12

-- name: losses
FROM learning_curves
WHERE iteration > $since AND value IS NOT NULL AND name = 'loss' AND stage IN ('ct', 'sft')

-- name: alignment
SELECT iteration, count(DISTINCT trajectory_id) AS recordings, count(*) AS utterances,
    string_agg(DISTINCT recognizer, ', ') AS recognizer, string_agg(DISTINCT refined_by, ', ') AS refined_by,
    avg(alignment_score) AS score, count(*) FILTER (low_confidence) AS doubtful,
    count(step) / count(*) AS aligned
FROM utterances WHERE iteration > $since GROUP BY iteration ORDER BY iteration

-- name: utterance
-- One utterance as an example: a corrected one of the newest iteration, where there is one.
SELECT h.*, t.instruction
FROM utterances h JOIN steps s ON s.trajectory_id = h.trajectory_id AND s.step = h.step
    JOIN trajectories t ON t.trajectory_id = h.trajectory_id
WHERE h.iteration > $since AND s.iteration > $since AND t.iteration > $since
    AND h.asr_text <> '' AND h.text <> '' AND NOT coalesce(h.low_confidence, false)
ORDER BY h.iteration DESC, (h.asr_text <> h.text) DESC, h.alignment_score DESC, h.trajectory_id LIMIT 1

-- name: links
SELECT DISTINCT child, parent FROM lineage WHERE relation = $relation AND iteration > $since ORDER BY parent

-- name: trained
SELECT checkpoint, count(*) AS n FROM trained_on WHERE checkpoint IN (SELECT unnest($shown)) GROUP BY ALL

-- name: replays
-- Trajectories of one kind, those of about four steps first.
SELECT trajectory_id FROM (
    SELECT t.*, r.destination FROM trajectories t LEFT JOIN routes r USING (trajectory_id, iteration)
    WHERE t.iteration > $since)
WHERE {condition} AND steps > 0
ORDER BY iteration DESC, abs(steps - 4), coalesce(reward, 0) DESC, trajectory_id LIMIT 6

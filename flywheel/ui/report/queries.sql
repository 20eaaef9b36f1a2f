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

-- name: group_variance
-- The curves of the variance within RL's groups; and who gave the scores.
SELECT m.*, s.scorers FROM (
    SELECT iteration, stage, domain, list(step ORDER BY step) AS steps, list(value ORDER BY step) AS curve
    FROM metrics WHERE name = 'group_variance' AND stage LIKE 'rl-%' AND value IS NOT NULL AND iteration > $since GROUP BY ALL) m
LEFT JOIN (
    SELECT iteration, stage, list_sort(list(DISTINCT scorer)) AS scorers
    FROM scores WHERE stage LIKE 'rl-%' AND scorer IS NOT NULL AND iteration > $since GROUP BY ALL) s USING (iteration, stage)
ORDER BY iteration, stage

-- name: reward_audit
-- Where the audit proved that RL's reward pays what failed: since which step, the shares early and late, the worst world.
WITH audits AS (
    SELECT iteration, stage, domain, name, step, value FROM metrics
    WHERE name IN ('audit_evidence', 'audit_false_pay', 'audit_gap') AND stage LIKE 'rl-%' AND value IS NOT NULL
        AND iteration > $since),
alarms AS (
    SELECT iteration, stage, domain, min(step) AS first FROM audits
    WHERE name = 'audit_evidence' AND value >= $alarm GROUP BY ALL),
thirds AS (
    SELECT iteration, stage, domain, min(step) + (max(step) - min(step)) // 3 AS early, max(step) - (max(step) - min(step)) // 3 AS late
    FROM audits WHERE name = 'audit_evidence' GROUP BY ALL)
SELECT a.iteration, a.stage, a.first,
    avg(m.value) FILTER (m.domain = a.domain AND m.name = 'audit_false_pay' AND m.step <= t.early) AS paid_early,
    avg(m.value) FILTER (m.domain = a.domain AND m.name = 'audit_false_pay' AND m.step >= t.late) AS paid_late,
    avg(m.value) FILTER (m.domain = a.domain AND m.name = 'audit_gap' AND m.step >= t.late) AS gap_late,
    (SELECT max_by(w.domain, w.value) FROM (
        SELECT domain, avg(value) AS value FROM audits
        WHERE name = 'audit_false_pay' AND contains(domain, '/') AND iteration = a.iteration AND stage = a.stage
        GROUP BY domain) w) AS worst,
    s.scorers
FROM alarms a JOIN thirds t USING (iteration, stage, domain) JOIN audits m USING (iteration, stage)
LEFT JOIN (
    SELECT iteration, stage, list_sort(list(DISTINCT split_part(scorer, '@', 1))) AS scorers
    FROM scores WHERE stage LIKE 'rl-%' AND scorer IS NOT NULL AND iteration > $since GROUP BY ALL) s USING (iteration, stage)
GROUP BY ALL ORDER BY a.iteration, a.stage

-- name: drawn_for
-- Why the training tasks were drawn, and how the newest model did on them.
SELECT t.iteration, t.drawn_for, count(DISTINCT t.task_id) AS tasks, sum(s.verified)::BIGINT AS verified,
    sum(s.samples)::BIGINT AS samples, sum(s.verified) / sum(s.samples) AS p_v1
FROM tasks t LEFT JOIN task_success s ON s.task_id = t.task_id AND s.iteration = t.iteration
WHERE t.stage = 'synthesize' AND t.split = 'train' AND t.drawn_for IS NOT NULL AND t.iteration > $since
GROUP BY t.iteration, t.drawn_for
QUALIFY count(*) OVER (PARTITION BY t.iteration) > 1 OR t.drawn_for <> 'even'
ORDER BY t.iteration, t.drawn_for

-- name: people_work
-- What people's time brought, by kind of work and skill. Success is a mean over templates and levels.
SELECT work, skill, sum(minutes) AS minutes, sum(trajectories)::BIGINT AS trajectories, sum(to_ct)::BIGINT AS to_ct,
    sum(to_sft)::BIGINT AS to_sft, sum(steps)::BIGINT AS steps, sum(corrections)::BIGINT AS corrections,
    sum(preference_pairs)::BIGINT AS preference_pairs, sum(like_templates)::BIGINT AS like_templates,
    sum(success_before * like_templates) / sum(like_templates) AS success_before,
    sum(success_after * like_templates) / sum(like_templates) AS success_after
FROM people_minutes WHERE coalesce(iteration, $since + 1) > $since GROUP BY work, skill ORDER BY work, skill

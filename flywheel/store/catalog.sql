-- Views and macros for analysts, over the tables of flywheel/schema.py (each has `iteration` and `stage` besides its
-- columns) and `promotions`, one row an iteration (from iterations/NNN/promotion.json).

-- Wilson's 95% interval of k successes in n cases: the same as flywheel.intervals.wilson.
CREATE MACRO wilson_low(k, n) AS CASE WHEN n > 0 THEN greatest(0, (k / n + 3.841458820694124 / (2 * n)
    - 1.959963984540054 * sqrt(k / n * (1 - k / n) / n + 3.841458820694124 / (4 * n * n)))
    / (1 + 3.841458820694124 / n)) END;
CREATE MACRO wilson_high(k, n) AS CASE WHEN n > 0 THEN least(1, (k / n + 3.841458820694124 / (2 * n)
    + 1.959963984540054 * sqrt(k / n * (1 - k / n) / n + 3.841458820694124 / (4 * n * n)))
    / (1 + 3.841458820694124 / n)) END;

-- One trajectory's steps in order, each with the bytes of its screen: `FROM replay('t0123')`.
CREATE MACRO replay(id) AS TABLE
    SELECT s.*, i.width, i.height, i.format, i.bytes AS screen
    FROM steps s LEFT JOIN (SELECT DISTINCT ON (sha256) * FROM images) i ON i.sha256 = s.image_sha256
    WHERE s.trajectory_id = id ORDER BY s.step;

-- P(V = 1) of the newest model's rollouts, by iteration and domain ('all' for all of them).
CREATE VIEW p_v1 AS
    SELECT r.iteration, coalesce(t.domain, 'all') AS domain, count(*) FILTER (WHERE r.v) AS verified, count(*) AS scored,
        verified / scored AS p, wilson_low(verified, scored) AS low, wilson_high(verified, scored) AS high
    FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
    WHERE t.stage = 'rollout' AND r.v IS NOT NULL
    GROUP BY GROUPING SETS ((r.iteration), (r.iteration, t.domain)) ORDER BY r.iteration, domain;

-- The newest model's rollouts by template and level. pass_1: P(V = 1) of one sample; pass_k: share of the tasks that any
-- of their `samples` solved; mixed: tasks of which some did. broken: steps whose text held no action, no_action their
-- share; lost: the share of episodes with one.
CREATE VIEW templates AS
    WITH played AS (
        SELECT r.iteration, t.domain, t.world, k.template, t.level, t.task_id, r.v, s.steps, s.broken
        FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
            JOIN (SELECT task_id, any_value(template) AS template FROM tasks GROUP BY ALL) k USING (task_id)
            LEFT JOIN (SELECT trajectory_id, count(*) AS steps, count(parse_error) AS broken FROM steps GROUP BY ALL) s
                USING (trajectory_id)
        WHERE t.stage = 'rollout' AND r.v IS NOT NULL
    ), by_task AS (
        SELECT iteration, domain, world, template, level, task_id, count(*) AS samples, avg(v::INT) AS share,
            bool_or(v) AS solved, coalesce(sum(steps), 0) AS steps, coalesce(sum(broken), 0) AS broken,
            count(*) FILTER (WHERE broken > 0) AS lost
        FROM played GROUP BY ALL
    )
    SELECT iteration, domain, world, template, level, count(*) AS tasks, max(samples) AS samples, avg(share) AS pass_1,
        avg(solved::INT) AS pass_k, count(*) FILTER (WHERE share > 0 AND share < 1) AS mixed,
        sum(steps) AS steps, sum(broken) AS broken, broken / nullif(steps, 0) AS no_action, sum(lost) / sum(samples) AS lost
    FROM by_task GROUP BY ALL ORDER BY iteration, domain, world, template, level;

-- P(V = 1) of an iteration and of the one before it on like tasks: those templates and levels that both played, each with
-- the same weight. low, high: 95% of the mean difference, from its spread over templates and levels.
CREATE VIEW p_v1_rise AS
    SELECT b.iteration, coalesce(b.domain, 'all') AS domain, count(*) AS slots, avg(a.pass_1) AS before,
        avg(b.pass_1) AS after, avg(b.pass_1 - a.pass_1) AS rise,
        rise - 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS low,
        rise + 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS high
    FROM templates a JOIN templates b
        ON b.iteration = a.iteration + 1 AND (a.world, a.template, a.level) = (b.world, b.template, b.level)
    GROUP BY GROUPING SETS ((b.iteration), (b.iteration, b.domain)) ORDER BY b.iteration, domain;

-- Held-out success of the predecessor and of the merged model, by iteration and domain.
CREATE VIEW success AS
    SELECT iteration, domain,
        max(value) FILTER (WHERE name = 'success_before') AS before,
        max(low) FILTER (WHERE name = 'success_before') AS before_low,
        max(high) FILTER (WHERE name = 'success_before') AS before_high,
        max(value) FILTER (WHERE name = 'success_after') AS after,
        max(low) FILTER (WHERE name = 'success_after') AS after_low,
        max(high) FILTER (WHERE name = 'success_after') AS after_high,
        max(n) FILTER (WHERE name = 'success_after') AS n
    FROM metrics WHERE stage = 'evaluate' AND name IN ('success_before', 'success_after')
    GROUP BY iteration, domain ORDER BY iteration, domain;

-- The same stage by stage, where evaluation.stages is set: which one gains, and which one loses. rl: the specialists, each
-- in its domain.
CREATE VIEW success_by_stage AS
    SELECT iteration, domain,
        max(value) FILTER (WHERE name = 'success_before') AS before,
        max(value) FILTER (WHERE name = 'success_ct') AS ct,
        max(value) FILTER (WHERE name = 'success_sft') AS sft,
        max(value) FILTER (WHERE name = 'success_rl') AS rl,
        max(value) FILTER (WHERE name = 'success_after') AS merged,
        max(n) FILTER (WHERE name = 'success_after') AS n
    FROM metrics WHERE stage = 'evaluate' GROUP BY iteration, domain HAVING ct IS NOT NULL ORDER BY iteration, domain;

-- From tasks to stores: one row a step of the way.
CREATE VIEW funnel AS
    SELECT iteration, position, name, count(id) AS rows FROM (
        SELECT iteration, 1 AS position, 'tasks' AS name, task_id AS id FROM tasks
            WHERE stage = 'synthesize' AND split = 'train'
        UNION ALL SELECT iteration, 2, 'rollouts', trajectory_id FROM trajectories WHERE stage = 'rollout'
        UNION ALL SELECT iteration, 3, 'recordings', trajectory_id FROM trajectories WHERE stage = 'ingest'
        UNION ALL SELECT iteration, 4, 'scored', trajectory_id FROM (SELECT DISTINCT iteration, trajectory_id FROM scores
            WHERE stage = 'score')
        UNION ALL SELECT iteration, 5, 'verified', trajectory_id FROM routes WHERE v
        UNION ALL SELECT iteration, 6, 'sft', trajectory_id FROM sft
        UNION ALL SELECT iteration, 7, 'ct', trajectory_id FROM ct
        UNION ALL SELECT iteration, 8, 'quarantine', trajectory_id FROM quarantine
            WHERE coalesce(of_table, 'trajectories') = 'trajectories'
        UNION ALL SELECT iteration, 9, 'rl_tasks', task_id FROM curriculum
        UNION ALL SELECT iteration, 10, 'rl_sampled_less', task_id FROM curriculum WHERE reason <> ''
        UNION ALL SELECT iteration, 11, 'rl_episodes', trajectory_id FROM trajectories WHERE stage LIKE 'rl-%'
    ) GROUP BY ALL ORDER BY iteration, position;

-- Tasks that RL samples less than others, with the reason: what always or never succeeds teaches nothing.
CREATE VIEW sampled_less AS
    SELECT c.iteration, c.stage, c.task_id, c.world, c.template, c.level, t.instruction, c.groups,
        c.successes / nullif(c.episodes, 0) AS success, c.relative, c.reason
    FROM curriculum c LEFT JOIN (SELECT task_id, any_value(instruction) AS instruction FROM tasks GROUP BY ALL) t
        USING (task_id)
    WHERE c.reason <> '' ORDER BY c.iteration, c.stage, c.reason, c.relative, c.task_id;

-- Minutes of each stage.
CREATE VIEW stage_minutes AS
    SELECT iteration, stage, sum(value) / 60 AS minutes FROM metrics WHERE name = 'seconds'
    GROUP BY iteration, stage ORDER BY iteration, minutes DESC;

-- Figures that run along a curve: losses, rewards, entropies.
CREATE VIEW learning_curves AS
    SELECT iteration, stage, domain, name, step, value, low, high, n FROM metrics
    WHERE (iteration, stage, domain, name) IN
        (SELECT (iteration, stage, domain, name) FROM metrics GROUP BY ALL HAVING count(*) > 1)
    ORDER BY iteration, stage, domain, name, step;

-- One row an iteration: what came in, where it went, what it brought. `success`: held-out success by domain, such as
-- `success['games']`. `conserved`: every trajectory that came in lies in exactly one store.
CREATE VIEW iterations AS
    WITH counts AS (
        SELECT iteration,
            coalesce(sum(rows) FILTER (WHERE name = 'tasks'), 0)::BIGINT AS tasks,
            coalesce(sum(rows) FILTER (WHERE name = 'rollouts'), 0)::BIGINT AS trajectories,
            coalesce(sum(rows) FILTER (WHERE name = 'recordings'), 0)::BIGINT AS recordings,
            coalesce(sum(rows) FILTER (WHERE name = 'sft'), 0)::BIGINT AS to_sft,
            coalesce(sum(rows) FILTER (WHERE name = 'ct'), 0)::BIGINT AS to_ct,
            coalesce(sum(rows) FILTER (WHERE name = 'quarantine'), 0)::BIGINT AS to_quarantine
        FROM funnel GROUP BY iteration
    ), held_out AS (
        SELECT iteration, map_from_entries(list((domain, before) ORDER BY domain)) AS success_before,
            map_from_entries(list((domain, after) ORDER BY domain)) AS success
        FROM success WHERE domain <> 'all' GROUP BY iteration
    ), spent AS (SELECT iteration, sum(minutes) AS minutes FROM stage_minutes GROUP BY iteration)
    SELECT c.iteration, c.tasks, c.trajectories, c.recordings, p.p AS p_v1, p.low AS p_v1_low, p.high AS p_v1_high,
        c.to_sft, c.to_ct, c.to_quarantine,
        c.trajectories + c.recordings = c.to_sft + c.to_ct + c.to_quarantine AS conserved,
        h.success_before, h.success,
        m.promoted, m.model, s.minutes
    FROM counts c LEFT JOIN p_v1 p ON p.iteration = c.iteration AND p.domain = 'all'
        LEFT JOIN held_out h ON h.iteration = c.iteration
        LEFT JOIN promotions m ON m.iteration = c.iteration
        LEFT JOIN spent s ON s.iteration = c.iteration
    ORDER BY c.iteration;

-- Which checkpoints trained on which trajectory. Where a trainer named its trajectories they stand; else every
-- trajectory of the stores that it drew from.
CREATE VIEW trained_on AS
    SELECT DISTINCT child AS checkpoint, parent AS trajectory_id FROM lineage WHERE relation = 'trained on'
    UNION
    SELECT d.child, h.parent FROM lineage d JOIN lineage h ON h.child = d.parent AND h.relation = 'holds'
    WHERE d.relation = 'drew from' AND d.child NOT IN (SELECT child FROM lineage WHERE relation = 'trained on');

-- From any trajectory to its run, model, task, score, store and the checkpoints that trained on it.
CREATE VIEW trajectory_lineage AS
    WITH weights AS (
        SELECT child AS digest, min(parent) AS checkpoint FROM (
            SELECT child, parent FROM lineage WHERE relation = 'weights of'
            UNION ALL SELECT digest, model FROM promotions)
        GROUP BY child
    ), trained AS (SELECT trajectory_id, list(checkpoint ORDER BY checkpoint) AS trained FROM trained_on GROUP BY ALL),
    graded AS (
        SELECT iteration, trajectory_id, string_agg(scorer, ', ' ORDER BY scorer) AS scorer FROM scores GROUP BY ALL)
    SELECT t.iteration, t.stage, t.trajectory_id, t.source, t.status, t.steps, t.reward, t.run_id, u.name AS run, t.policy_version,
        w.checkpoint AS model, t.task_id, t.domain, t.world, t.instruction, k.split, g.scorer, r.score, r.v,
        r.destination, r.reason, coalesce(c.trained, []) AS trained_checkpoints
    FROM trajectories t
        LEFT JOIN (SELECT run_id, any_value(name) AS name FROM runs GROUP BY ALL) u USING (run_id)
        LEFT JOIN weights w ON w.digest = t.policy_version
        LEFT JOIN (SELECT task_id, any_value(split) AS split FROM tasks GROUP BY ALL) k ON k.task_id = t.task_id
        LEFT JOIN graded g ON g.trajectory_id = t.trajectory_id AND g.iteration = t.iteration
        LEFT JOIN routes r ON r.trajectory_id = t.trajectory_id AND r.iteration = t.iteration
        LEFT JOIN trained c ON c.trajectory_id = t.trajectory_id;

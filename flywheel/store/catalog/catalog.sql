-- Views and macros for analysts, over the tables of flywheel/store/schema.py (each has `iteration` and `stage` besides its
-- columns) and `promotions`, one row an iteration (from iterations/NNN/promotion.json). Here: iterations. What their
-- comments say stands in docs/sql.md too, which is made of them.

CREATE MACRO wilson_low(k, n) AS CASE WHEN n > 0 THEN greatest(0, (k / n + 3.841458820694124 / (2 * n)
    - 1.959963984540054 * sqrt(k / n * (1 - k / n) / n + 3.841458820694124 / (4 * n * n)))
    / (1 + 3.841458820694124 / n)) END;
CREATE MACRO wilson_high(k, n) AS CASE WHEN n > 0 THEN least(1, (k / n + 3.841458820694124 / (2 * n)
    + 1.959963984540054 * sqrt(k / n * (1 - k / n) / n + 3.841458820694124 / (4 * n * n)))
    / (1 + 3.841458820694124 / n)) END;
COMMENT ON MACRO wilson_low IS 'Lower end of Wilson''s 95% interval of k successes in n cases';
COMMENT ON MACRO wilson_high IS 'Upper end of Wilson''s 95% interval of k successes in n cases';

CREATE VIEW p_v1 AS
    SELECT r.iteration, coalesce(t.domain, 'all') AS domain, count(*) FILTER (WHERE r.success) AS verified, count(*) AS scored,
        verified / scored AS p, wilson_low(verified, scored) AS low, wilson_high(verified, scored) AS high
    FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
    WHERE t.stage = 'rollout' AND t.source IS DISTINCT FROM 'correction' AND r.success IS NOT NULL
    GROUP BY GROUPING SETS ((r.iteration), (r.iteration, t.domain)) ORDER BY r.iteration, domain;
COMMENT ON VIEW p_v1 IS 'P(V = 1) of the newest model''s rollouts, by iteration and domain';
COMMENT ON COLUMN p_v1.domain IS '`all` for all of them';
COMMENT ON COLUMN p_v1.p IS 'verified / scored; `low`, `high`: its 95% interval';

CREATE VIEW held_out_success AS
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
COMMENT ON VIEW held_out_success IS 'Held-out success, by iteration and domain';
COMMENT ON COLUMN held_out_success.before IS 'of the predecessor, with its 95% interval';
COMMENT ON COLUMN held_out_success.after IS 'of the merged model, with its 95% interval';
COMMENT ON COLUMN held_out_success.n IS 'episodes of the merged model';

CREATE VIEW held_out_success_by_stage AS
    SELECT iteration, domain,
        max(value) FILTER (WHERE name = 'success_before') AS before,
        max(value) FILTER (WHERE name = 'success_ct') AS ct,
        max(value) FILTER (WHERE name = 'success_sft') AS sft,
        max(value) FILTER (WHERE name = 'success_rl') AS rl,
        max(value) FILTER (WHERE name = 'success_after') AS merged,
        max(n) FILTER (WHERE name = 'success_after') AS n
    FROM metrics WHERE stage = 'evaluate' GROUP BY iteration, domain HAVING ct IS NOT NULL ORDER BY iteration, domain;
COMMENT ON VIEW held_out_success_by_stage IS
    'Held-out success after each stage, where `evaluation.stages` is set: which one gains, and which one loses';
COMMENT ON COLUMN held_out_success_by_stage.rl IS 'of the specialists, each in its domain';

CREATE VIEW funnel AS
    SELECT iteration, position, name, count(id) AS rows FROM (
        SELECT iteration, 1 AS position, 'tasks' AS name, task_id AS id FROM tasks
            WHERE stage = 'synthesize' AND split = 'train'
        UNION ALL SELECT iteration, 2, 'rollouts', trajectory_id FROM trajectories
            WHERE stage = 'rollout' AND source IS DISTINCT FROM 'correction'
        UNION ALL SELECT iteration, 3, 'corrections', trajectory_id FROM trajectories WHERE source = 'correction'
        UNION ALL SELECT iteration, 4, 'recordings', trajectory_id FROM trajectories
            WHERE stage = 'ingest' AND coalesce(source, '') NOT IN ('augmentation', 'annotation')
        UNION ALL SELECT iteration, 5, 'annotations', trajectory_id FROM trajectories WHERE source = 'annotation'
        UNION ALL SELECT iteration, 6, 'augmentations', trajectory_id FROM trajectories WHERE source = 'augmentation'
        UNION ALL SELECT iteration, 7, 'scored', trajectory_id FROM (SELECT DISTINCT iteration, trajectory_id FROM scores
            WHERE stage = 'score')
        UNION ALL SELECT iteration, 8, 'verified', trajectory_id FROM routes WHERE success
        UNION ALL SELECT iteration, 9, 'sft', trajectory_id FROM sft
        UNION ALL SELECT iteration, 10, 'ct', trajectory_id FROM ct
        UNION ALL SELECT iteration, 11, 'quarantine', trajectory_id FROM quarantine
            WHERE source_table = 'trajectories'
        UNION ALL SELECT iteration, 12, 'rl_tasks', task_id FROM curriculum
        UNION ALL SELECT iteration, 13, 'rl_sampled_less', task_id FROM curriculum WHERE reason <> ''
        UNION ALL SELECT iteration, 14, 'rl_episodes', trajectory_id FROM trajectories WHERE stage LIKE 'rl-%'
    ) GROUP BY ALL ORDER BY iteration, position;
COMMENT ON VIEW funnel IS 'From tasks to stores, and to RL: one row a step of the way';
COMMENT ON COLUMN funnel.position IS 'of the step on the way, from 1';
COMMENT ON COLUMN funnel.name IS 'tasks, rollouts, corrections, recordings (imports among them), annotations, augmentations (recordings in other words), scored, verified, sft, ct, quarantine, rl_...';

CREATE VIEW stage_minutes AS
    SELECT iteration, stage, sum(value) / 60 AS minutes FROM metrics WHERE name = 'seconds'
    GROUP BY iteration, stage ORDER BY iteration, minutes DESC;
COMMENT ON VIEW stage_minutes IS 'How long each stage took, the longest first';

CREATE VIEW learning_curves AS
    SELECT iteration, stage, domain, name, step, value, low, high, n FROM metrics
    WHERE (iteration, stage, domain, name) IN
        (SELECT (iteration, stage, domain, name) FROM metrics GROUP BY ALL HAVING count(*) > 1)
    ORDER BY iteration, stage, domain, name, step;
COMMENT ON VIEW learning_curves IS 'Figures that run along a curve of two points or more: losses, rewards, entropies';
COMMENT ON COLUMN learning_curves.step IS 'of the optimiser or of PPO';
COMMENT ON COLUMN learning_curves.n IS 'cases that the value rests on; `low`, `high`: its 95% interval';

CREATE VIEW iterations AS
    WITH counts AS (
        SELECT iteration,
            coalesce(sum(rows) FILTER (WHERE name = 'tasks'), 0)::BIGINT AS tasks,
            coalesce(sum(rows) FILTER (WHERE name = 'rollouts'), 0)::BIGINT AS trajectories,
            coalesce(sum(rows) FILTER (WHERE name = 'recordings'), 0)::BIGINT AS recordings,
            coalesce(sum(rows) FILTER (WHERE name = 'annotations'), 0)::BIGINT AS annotations,
            coalesce(sum(rows) FILTER (WHERE name = 'augmentations'), 0)::BIGINT AS augmentations,
            coalesce(sum(rows) FILTER (WHERE name = 'corrections'), 0)::BIGINT AS corrections,
            coalesce(sum(rows) FILTER (WHERE name = 'sft'), 0)::BIGINT AS to_sft,
            coalesce(sum(rows) FILTER (WHERE name = 'ct'), 0)::BIGINT AS to_ct,
            coalesce(sum(rows) FILTER (WHERE name = 'quarantine'), 0)::BIGINT AS to_quarantine
        FROM funnel GROUP BY iteration
    ), held_out AS (
        SELECT iteration, map_from_entries(list((domain, before) ORDER BY domain)) AS held_out_success_before,
            map_from_entries(list((domain, after) ORDER BY domain)) AS held_out_success
        FROM held_out_success WHERE domain <> 'all' GROUP BY iteration
    ), spent AS (SELECT iteration, sum(minutes) AS minutes FROM stage_minutes GROUP BY iteration)
    SELECT c.iteration, c.tasks, c.trajectories, c.recordings, c.annotations, c.augmentations, c.corrections, p.p AS p_v1, p.low AS p_v1_low, p.high AS p_v1_high,
        c.to_sft, c.to_ct, c.to_quarantine,
        c.trajectories + c.recordings + c.annotations + c.augmentations + c.corrections
            = c.to_sft + c.to_ct + c.to_quarantine AS conserved,
        h.held_out_success_before, h.held_out_success,
        m.promoted, m.model, s.minutes
    FROM counts c LEFT JOIN p_v1 p ON p.iteration = c.iteration AND p.domain = 'all'
        LEFT JOIN held_out h ON h.iteration = c.iteration
        LEFT JOIN promotions m ON m.iteration = c.iteration
        LEFT JOIN spent s ON s.iteration = c.iteration
    ORDER BY c.iteration;
COMMENT ON VIEW iterations IS 'One row an iteration: what came in, where it went, what it brought';
COMMENT ON COLUMN iterations.recordings IS 'what people recorded, and imports';
COMMENT ON COLUMN iterations.annotations IS 'sessions on the model''s own rollouts (`flywheel annotate`)';
COMMENT ON COLUMN iterations.augmentations IS 'recordings in other words; no demonstrations of their own';
COMMENT ON COLUMN iterations.corrections IS 'failed rollouts that a solver went on with';
COMMENT ON COLUMN iterations.p_v1 IS 'P(V = 1) of the rollouts, with its 95% interval';
COMMENT ON COLUMN iterations.conserved IS 'every trajectory that came in lies in exactly one store';
COMMENT ON COLUMN iterations.held_out_success_before IS 'held-out success of the predecessor, by domain';
COMMENT ON COLUMN iterations.held_out_success IS 'of the merged model, by domain, such as `held_out_success[''games'']`';
COMMENT ON COLUMN iterations.model IS 'the newest after this iteration';

-- The frozen parameters are YAML of blocks, each of a name and a value a line; what stands deeper belongs to the value.
CREATE VIEW parameters AS
    WITH lines AS (
        SELECT iteration, unnest(string_split(content, chr(10))) AS line,
            generate_subscripts(string_split(content, chr(10)), 1) AS place FROM parameter_files
    ), named AS (
        SELECT iteration, place, line,
            last_value(nullif(regexp_extract(line, '^(\w+):', 1), '') IGNORE NULLS) OVER so_far AS block,
            last_value(CASE WHEN regexp_full_match(line, '\w+:.*') THEN '' ELSE nullif(regexp_extract(line, '^  (\w+):', 1), '') END
                IGNORE NULLS) OVER so_far AS own
        FROM lines WHERE line <> '' AND line[1] NOT IN ('#', '.')
        WINDOW so_far AS (PARTITION BY iteration ORDER BY place)
    )
    SELECT iteration, concat_ws('.', block, nullif(own, '')) AS name,
        trim(string_agg(regexp_replace(line, '^(  )?\w+: ?|^    ', ''), chr(10) ORDER BY place), chr(10)) AS value
    FROM named GROUP BY iteration, block, own HAVING own <> '' OR value <> '' ORDER BY iteration, min(place);
COMMENT ON VIEW parameters IS 'The parameters of each iteration, as it was begun: `FROM parameters WHERE name = ''rl.steps''`';
COMMENT ON COLUMN parameters.name IS 'block.name, as in params.yaml';
COMMENT ON COLUMN parameters.value IS 'YAML, as text';
COMMENT ON VIEW parameter_files IS 'The files `iterations/NNN/params.yaml` as they are, of which the view `parameters` is made';

-- Views and macros for analysts: tasks, and how often they are solved.

CREATE VIEW task_success AS
    SELECT r.iteration, t.domain, t.world, k.template, t.level, t.task_id, count(*) AS samples,
        count(*) FILTER (WHERE r.success) AS verified, verified / samples AS success_rate
    FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
        JOIN (SELECT task_id, any_value(template) AS template FROM tasks GROUP BY ALL) k USING (task_id)
    WHERE t.stage = 'rollout' AND t.source IS DISTINCT FROM 'correction' AND r.success IS NOT NULL GROUP BY ALL ORDER BY ALL;
COMMENT ON VIEW task_success IS 'The newest model''s rollouts by task';
COMMENT ON COLUMN task_success.samples IS 'rollouts of the task that were scored';
COMMENT ON COLUMN task_success.success_rate IS 'verified / samples';

CREATE MACRO pass_at_k(n, c, k) AS CASE WHEN n < k THEN NULL WHEN n - c < k THEN 1.0
    ELSE 1 - list_product(list_transform(range(k::BIGINT), lambda i: (n - c - i) / (n - i))) END;
COMMENT ON MACRO pass_at_k IS
    'Chance that one of k samples of a task is verified, unbiased, from c verified of n (Chen et al. 2021, equation 1)';

CREATE MACRO pass_at(k) AS TABLE
    SELECT iteration, coalesce(domain, 'all') AS domain, count(*) AS tasks, avg(pass_at_k(samples, verified, k)) AS pass
    FROM task_success WHERE samples >= k
    GROUP BY GROUPING SETS ((iteration), (iteration, domain)) ORDER BY iteration, domain;
COMMENT ON MACRO TABLE pass_at IS
    'pass@k of the newest model''s rollouts, by iteration and domain (`all`: of all): `FROM pass_at(4)`. Tasks of fewer than k samples are left out';

CREATE MACRO pass_at_by_world(k) AS TABLE
    SELECT iteration, domain, world, count(*) AS tasks, avg(pass_at_k(samples, verified, k)) AS pass
    FROM task_success WHERE samples >= k GROUP BY ALL ORDER BY iteration, domain, world;
COMMENT ON MACRO TABLE pass_at_by_world IS
    'As pass_at, by game, site or page: `FROM pass_at_by_world(4)`';

CREATE MACRO live_group(n, c, g) AS pass_at_k(n, c, g) + pass_at_k(n, n - c, g) - 1;
COMMENT ON MACRO live_group IS
    'Chance that of g samples of a task some are verified and some are not, unbiased, from c verified of n: 1 - C(c, g) / C(n, g) - C(n - c, g) / C(n, g)';

-- Of one sample neither can be told. flywheel/evaluation/headroom.py computes the same for the metrics of `score`.
CREATE VIEW headroom AS
    WITH by_task AS (
        SELECT t.*, least(8, samples) AS k, pass_at_k(samples, verified, k) AS pass_k,
            least(greatest(coalesce(try_cast(p.value AS BIGINT), 8), 2), samples) AS g, live_group(samples, verified, g) AS live
        FROM task_success t LEFT JOIN parameters p ON p.iteration = t.iteration AND p.name = 'rl.group_size'
        WHERE samples > 1
    )
    SELECT iteration, coalesce(domain, 'all') AS domain, world, template, level, count(*) AS tasks, max(samples) AS samples,
        avg(success_rate) AS pass_at_1, max(k) AS k, avg(pass_k) AS pass_at_k,
        avg(pass_k - success_rate) AS headroom,
        wilson_low(sum(pass_k - success_rate), count(*)) AS headroom_low,
        wilson_high(sum(pass_k - success_rate), count(*)) AS headroom_high,
        max(g) AS group_size, avg(live) AS live_groups,
        wilson_low(sum(live), count(*)) AS live_groups_low, wilson_high(sum(live), count(*)) AS live_groups_high
    FROM by_task GROUP BY GROUPING SETS ((iteration), (iteration, domain), (iteration, domain, world, template, level))
    ORDER BY iteration, domain, world NULLS FIRST, template, level;
COMMENT ON VIEW headroom IS
    'What sampling reaches beyond one sample, of the newest model''s rollouts: all that rejection sampling and RL move. By iteration and domain (`WHERE world IS NULL`), and by template and level';
COMMENT ON COLUMN headroom.world IS 'null in the rows of whole domains, as are template and level';
COMMENT ON COLUMN headroom.tasks IS 'those with two or more scored samples';
COMMENT ON COLUMN headroom.samples IS 'of a task, at most';
COMMENT ON COLUMN headroom.pass_at_1 IS 'P(V = 1) of one sample, mean over tasks';
COMMENT ON COLUMN headroom.k IS '8, or the samples where they are fewer; a task with fewer than others counts with its own';
COMMENT ON COLUMN headroom.pass_at_k IS 'chance that one of k samples is verified, mean over tasks';
COMMENT ON COLUMN headroom.headroom IS 'pass_at_k - pass_at_1';
COMMENT ON COLUMN headroom.headroom_low IS 'lower end of its 95% interval, Wilson''s, each task one case';
COMMENT ON COLUMN headroom.headroom_high IS 'upper end of it';
COMMENT ON COLUMN headroom.group_size IS
    'rl.group_size of the iteration (8 where it is not known), at least 2, or the samples where they are fewer, as with k';
COMMENT ON COLUMN headroom.live_groups IS 'chance that a group of that many episodes holds success and failure, mean over tasks';
COMMENT ON COLUMN headroom.live_groups_low IS 'lower end of its 95% interval, as that of headroom';
COMMENT ON COLUMN headroom.live_groups_high IS 'upper end of it';

CREATE VIEW template_success AS
    WITH played AS (
        SELECT r.iteration, t.domain, t.world, k.template, t.level, t.task_id, r.success, s.steps, s.invalid_steps
        FROM routes r JOIN trajectories t USING (trajectory_id, iteration)
            JOIN (SELECT task_id, any_value(template) AS template FROM tasks GROUP BY ALL) k USING (task_id)
            LEFT JOIN (SELECT trajectory_id, count(*) AS steps, count(parse_error) AS invalid_steps FROM steps GROUP BY ALL) s
                USING (trajectory_id)
        WHERE t.stage = 'rollout' AND t.source IS DISTINCT FROM 'correction' AND r.success IS NOT NULL
    ), by_task AS (
        SELECT iteration, domain, world, template, level, task_id, count(*) AS samples, avg(success::INT) AS share,
            bool_or(success) AS solved, coalesce(sum(steps), 0) AS steps, coalesce(sum(invalid_steps), 0) AS invalid_steps,
            count(*) FILTER (WHERE invalid_steps > 0) AS invalid_episodes
        FROM played GROUP BY ALL
    )
    SELECT iteration, domain, world, template, level, count(*) AS tasks, max(samples) AS samples, avg(share) AS pass_1,
        wilson_low(sum(share), count(*)) AS low, wilson_high(sum(share), count(*)) AS high, avg(solved::INT) AS pass_k, count(*) FILTER (WHERE share > 0 AND share < 1) AS mixed,
        sum(steps) AS steps, sum(invalid_steps) AS invalid_steps,
        sum(invalid_steps) / nullif(sum(steps), 0) AS invalid_step_fraction, -- bare names are columns, and GROUP BY ALL has them
        sum(invalid_episodes) / sum(samples) AS invalid_episode_fraction
    FROM by_task GROUP BY ALL ORDER BY iteration, domain, world, template, level;
COMMENT ON VIEW template_success IS 'The newest model''s rollouts by template and level';
COMMENT ON COLUMN template_success.samples IS 'of a task, at most';
COMMENT ON COLUMN template_success.pass_1 IS 'P(V = 1) of one sample';
COMMENT ON COLUMN template_success.low IS 'lower end of the 95% interval of pass_1, Wilson''s, each task one case: its samples are alike';
COMMENT ON COLUMN template_success.high IS 'upper end of it';
COMMENT ON COLUMN template_success.pass_k IS 'share of the tasks that any of their samples solved';
COMMENT ON COLUMN template_success.mixed IS 'tasks of which some samples did';
COMMENT ON COLUMN template_success.invalid_steps IS 'steps whose text held no action; `invalid_step_fraction`: their share';
COMMENT ON COLUMN template_success.invalid_episode_fraction IS 'share of the episodes with such a step';

CREATE VIEW p_v1_rise AS
    SELECT b.iteration, coalesce(b.domain, 'all') AS domain, count(*) AS slots, avg(a.pass_1) AS before,
        avg(b.pass_1) AS after, avg(b.pass_1 - a.pass_1) AS rise,
        rise - 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS low,
        rise + 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS high
    FROM template_success a JOIN template_success b
        ON b.iteration = a.iteration + 1 AND (a.world, a.template, a.level) = (b.world, b.template, b.level)
    GROUP BY GROUPING SETS ((b.iteration), (b.iteration, b.domain)) ORDER BY b.iteration, domain;
COMMENT ON VIEW p_v1_rise IS
    'P(V = 1) of an iteration beside the one before it, on like tasks: the templates and levels that both played, each with the same weight';
COMMENT ON COLUMN p_v1_rise.slots IS 'templates and levels that both played';
COMMENT ON COLUMN p_v1_rise.rise IS 'mean difference; `low`, `high`: its 95% interval, from its spread over the slots';

CREATE MACRO matched_templates(first, last) AS TABLE
    SELECT b.domain, b.world, b.template, b.level, a.tasks AS tasks_before, b.tasks AS tasks_after, a.pass_1 AS before,
        b.pass_1 AS after, b.pass_1 - a.pass_1 AS rise,
        rise - sqrt((b.pass_1 - b.low) ** 2 + (a.high - a.pass_1) ** 2) AS low,
        rise + sqrt((b.high - b.pass_1) ** 2 + (a.pass_1 - a.low) ** 2) AS high
    FROM template_success a JOIN template_success b ON (a.world, a.template, a.level) = (b.world, b.template, b.level)
    WHERE a.iteration = first AND b.iteration = last ORDER BY rise, b.world, b.template, b.level;
COMMENT ON MACRO TABLE matched_templates IS
    'P(V = 1) of any two iterations by template and level, those that both played, the worst first: `FROM matched_templates(1, 5)`. `low`, `high`: the 95% interval of the rise (Newcombe 1998, method 10), each task one case';

CREATE VIEW downsampled_tasks AS
    SELECT c.iteration, c.stage, c.task_id, c.world, c.template, c.level, t.instruction, c.groups,
        c.successes / nullif(c.episodes, 0) AS success_rate, c.relative_prob, c.reason
    FROM curriculum c LEFT JOIN (SELECT task_id, any_value(instruction) AS instruction FROM tasks GROUP BY ALL) t
        USING (task_id)
    WHERE c.reason <> '' ORDER BY c.iteration, c.stage, c.reason, c.relative_prob, c.task_id;
COMMENT ON VIEW downsampled_tasks IS
    'Tasks that RL draws less often than others: what always or never succeeds teaches nothing';
COMMENT ON COLUMN downsampled_tasks.success_rate IS 'share of its episodes, newer ones count more';
COMMENT ON COLUMN downsampled_tasks.relative_prob IS 'share of the draws, relative to an even one';

CREATE VIEW verifier_strength AS
    SELECT iteration, source, domain, world, count(*) AS tasks, count(verifier_kill_rate) AS attacked,
        avg(verifier_kill_rate) AS kill_rate, min(verifier_kill_rate) AS weakest
    FROM (SELECT DISTINCT iteration, source, domain, world, task_id, verifier_kill_rate FROM tasks)
    GROUP BY iteration, source, domain, world ORDER BY iteration, source, domain, world;
COMMENT ON VIEW verifier_strength IS
    'How many mutated end states the verifiers of the tasks refuse, by what made the tasks, domain and world';
COMMENT ON COLUMN verifier_strength.attacked IS 'tasks whose verifier was attacked as it is now (`flywheel tasks attack`)';
COMMENT ON COLUMN verifier_strength.source IS 'what made the tasks, as in tasks';
COMMENT ON COLUMN verifier_strength.kill_rate IS 'mean of their verifier_kill_rate';
COMMENT ON COLUMN verifier_strength.weakest IS 'the least of them';

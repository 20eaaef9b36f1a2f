-- Views and macros for analysts: trajectories, how they were judged, where they came from and went.
-- A macro of one trajectory finds its iteration first: then only that iteration's files are opened.

-- Of each row group that it comes by DuckDB makes ready all columns that are asked for, also where the group cannot hold
-- the trajectory. So its rows are found by their ids alone, and the rest is read where they lie.
CREATE MACRO steps_of(id) AS TABLE
    SELECT * EXCLUDE (filename, file_row_number) FROM steps_in_files
        SEMI JOIN (
            SELECT filename, file_row_number FROM steps_in_files WHERE trajectory_id = id
                AND iteration IN (SELECT iteration FROM trajectories WHERE trajectory_id = id)
        ) USING (filename, file_row_number)
    WHERE trajectory_id = id ORDER BY step;
COMMENT ON MACRO TABLE steps_of IS 'One trajectory''s steps in order: `FROM steps_of(''t0123'')`';

-- One list of names is one row, whatever DuckDB expects of `steps`: so it is joined from that side, and of `images` only
-- row groups that can hold one of the names are read.
CREATE MACRO replay(id) AS TABLE
    WITH s AS MATERIALIZED (FROM steps_of(id)),
        names AS MATERIALIZED (
            SELECT unnest(list(DISTINCT {'iteration': iteration, 'sha256': image_sha256}), recursive := true) FROM s),
        screens AS MATERIALIZED (
            SELECT DISTINCT ON (iteration, sha256) i.* FROM images i JOIN names USING (iteration, sha256))
    SELECT s.*, i.width, i.height, i.format, i.bytes AS screen
    FROM s LEFT JOIN screens i ON (i.iteration, i.sha256) = (s.iteration, s.image_sha256) ORDER BY s.step;
COMMENT ON MACRO TABLE replay IS
    'One trajectory''s steps in order, each with its screen as an encoded image: `FROM replay(''t0123'')`';

CREATE VIEW disagreements AS
    SELECT iteration, trajectory_id, t.domain, t.world, map_from_entries(list((scorer, success) ORDER BY scorer)) AS success,
        map_from_entries(list((scorer, score) ORDER BY scorer)) AS score, max(score) - min(score) AS spread
    FROM scores s JOIN trajectories t USING (iteration, trajectory_id)
    WHERE s.success IS NOT NULL GROUP BY ALL HAVING count(DISTINCT s.success) > 1 ORDER BY iteration, spread DESC, trajectory_id;
COMMENT ON VIEW disagreements IS 'Trajectories that scorers do not judge alike';
COMMENT ON COLUMN disagreements.success IS 'verdict by scorer';
COMMENT ON COLUMN disagreements.score IS 'score by scorer';

CREATE VIEW scorer_agreement AS
    SELECT a.iteration, a.scorer AS scorer_a, a.version AS version_a, b.scorer AS scorer_b, b.version AS version_b,
        count(*) AS judged, avg((a.success = b.success)::INT) AS agreement,
        count(*) FILTER (WHERE a.success AND NOT b.success) AS only_a, count(*) FILTER (WHERE b.success AND NOT a.success) AS only_b,
        avg(a.success::INT) * avg(b.success::INT) + (1 - avg(a.success::INT)) * (1 - avg(b.success::INT)) AS chance_agreement,
        (agreement - chance_agreement) / nullif(1 - chance_agreement, 0) AS kappa
    FROM scores a JOIN scores b
        ON (a.iteration, a.trajectory_id) = (b.iteration, b.trajectory_id) AND a.scorer < b.scorer
    WHERE a.success IS NOT NULL AND b.success IS NOT NULL GROUP BY ALL ORDER BY ALL;
COMMENT ON VIEW scorer_agreement IS 'How far two scorers judge the same trajectories alike';
COMMENT ON COLUMN scorer_agreement.version_a IS 'of `scorer_a`; one that scored part of an iteration again with another has a row of each';
COMMENT ON COLUMN scorer_agreement.version_b IS 'of `scorer_b`';
COMMENT ON COLUMN scorer_agreement.agreement IS 'share of the trajectories with the same verdict';
COMMENT ON COLUMN scorer_agreement.only_a IS 'verified by `scorer_a`, not by `scorer_b`';
COMMENT ON COLUMN scorer_agreement.kappa IS 'Cohen''s: 1 is full agreement, 0 what chance alone would give';
COMMENT ON COLUMN scorer_agreement.chance_agreement IS 'share that would agree by chance';

CREATE VIEW preference_pairs AS
    WITH refused AS (
        SELECT iteration, trajectory_id, step, candidate, action, raw_text, token_ids, logprobs, weight_version
        FROM candidates WHERE decision <> 'accepted'
        UNION ALL SELECT c.iteration, c.trajectory_id, s.step, NULL, s.action, s.raw_text, s.token_ids, s.logprobs,
            s.weight_version
        FROM trajectories c JOIN steps s
            ON (s.iteration, s.trajectory_id, s.step) = (c.iteration, c.parent_id, c.start_step)
        WHERE c.source = 'correction')
    SELECT r.iteration, r.trajectory_id, r.step, r.candidate, t.task_id, t.domain, k.author AS chosen_by,
        k.thought AS chosen_thought, k.action AS chosen_action, k.raw_text AS chosen_raw_text,
        r.raw_text AS rejected_raw_text, r.token_ids AS rejected_token_ids, r.logprobs AS rejected_logprobs,
        r.weight_version
    FROM refused r JOIN steps k USING (iteration, trajectory_id, step) JOIN trajectories t USING (iteration, trajectory_id)
    WHERE k.parse_error IS NULL AND k.misclick IS NOT true AND r.action IS DISTINCT FROM k.action
    ORDER BY r.iteration, r.trajectory_id, r.step, r.candidate;
COMMENT ON VIEW preference_pairs IS
    'What a preference loss learns from: a step that was kept beside one that the model proposed or took on the same screen and that was not. Of annotated sessions the candidates that were rejected or undone, of solvers'' corrections the mistake that they begin at';
COMMENT ON COLUMN preference_pairs.trajectory_id IS 'that holds the step that was kept';
COMMENT ON COLUMN preference_pairs.candidate IS 'the rejected one''s number; null for a correction';
COMMENT ON COLUMN preference_pairs.chosen_by IS 'whose step it is: model (a candidate that was accepted), human (who overrode the model) or solver';
COMMENT ON COLUMN preference_pairs.chosen_thought IS 'of the step that was kept';
COMMENT ON COLUMN preference_pairs.chosen_action IS 'of the step that was kept';
COMMENT ON COLUMN preference_pairs.chosen_raw_text IS 'of the step that was kept';
COMMENT ON COLUMN preference_pairs.rejected_raw_text IS 'as the model wrote it';
COMMENT ON COLUMN preference_pairs.rejected_token_ids IS 'as sampled';
COMMENT ON COLUMN preference_pairs.rejected_logprobs IS 'of each token as sampled, at temperature 1, in nats';
COMMENT ON COLUMN preference_pairs.weight_version IS 'digest of the weights that sampled the rejected one';

CREATE VIEW trained_on AS
    SELECT child AS checkpoint, parent AS trajectory_id, sum(times)::BIGINT AS times FROM lineage
    WHERE relation = 'trained on' GROUP BY ALL
    UNION ALL SELECT DISTINCT d.child, h.parent, NULL FROM lineage d JOIN lineage h ON h.child = d.parent AND h.relation = 'holds'
        ANTI JOIN (FROM lineage WHERE relation = 'trained on') n ON n.child = d.child
    WHERE d.relation = 'drew from';
COMMENT ON VIEW trained_on IS
    'Which checkpoint trained on which trajectory: those that its trainer named, else all of the stores that it drew from';
COMMENT ON COLUMN trained_on.times IS 'samples that it took of it, each step as often as it was drawn; null where the trainer named none';

CREATE VIEW trajectory_lineage AS
    WITH weights AS (
        SELECT child AS digest, min(parent) AS checkpoint FROM (
            SELECT child, parent FROM lineage WHERE relation = 'weights of'
            UNION ALL SELECT digest, model FROM promotions)
        GROUP BY child
    ), trained AS (SELECT trajectory_id, list(checkpoint ORDER BY checkpoint) AS trained FROM trained_on GROUP BY ALL),
    graded AS (
        SELECT iteration, trajectory_id, string_agg(scorer, ', ' ORDER BY scorer) AS scorer FROM scores GROUP BY ALL)
    SELECT t.iteration, t.stage, t.trajectory_id, t.source, t.status, t.steps, t.reward, t.run_id,
        (SELECT any_value(name) FROM runs u WHERE u.run_id = t.run_id) AS run, t.policy_version,
        w.checkpoint AS model, t.task_id, t.domain, t.world, t.instruction,
        (SELECT any_value(split) FROM tasks k WHERE k.task_id = t.task_id) AS split, g.scorer, r.score, r.success,
        r.destination, r.reason, coalesce(c.trained, []) AS trained_checkpoints
    FROM trajectories t
        LEFT JOIN weights w ON w.digest = t.policy_version
        LEFT JOIN graded g ON g.trajectory_id = t.trajectory_id AND g.iteration = t.iteration
        LEFT JOIN routes r ON r.trajectory_id = t.trajectory_id AND r.iteration = t.iteration
        LEFT JOIN trained c ON c.trajectory_id = t.trajectory_id;
COMMENT ON VIEW trajectory_lineage IS
    'Where each trajectory came from and went: run, model, task, score, store, the checkpoints trained on it';
COMMENT ON COLUMN trajectory_lineage.model IS 'checkpoint whose weights acted';
COMMENT ON COLUMN trajectory_lineage.scorer IS 'all that judged it';
COMMENT ON COLUMN trajectory_lineage.destination IS 'sft, ct, quarantine; null for an episode that is not routed';
COMMENT ON COLUMN trajectory_lineage.trained_checkpoints IS 'all that trained on it, an empty list for none';

CREATE MACRO lineage_of(id) AS TABLE
    FROM trajectory_lineage WHERE trajectory_id = id
        AND iteration IN (SELECT iteration FROM trajectories WHERE trajectory_id = id);
COMMENT ON MACRO TABLE lineage_of IS
    'A row of `trajectory_lineage`, much sooner: `FROM lineage_of(''t0123'')`';

CREATE MACRO training_of(model) AS TABLE
    SELECT t.iteration, t.trajectory_id, t.source, t.domain, t.world, t.task_id, t.policy_version, r.destination,
        r.score, r.success, o.times
    FROM trained_on o JOIN trajectories t USING (trajectory_id)
        LEFT JOIN routes r ON r.trajectory_id = t.trajectory_id AND r.iteration = t.iteration
    WHERE o.checkpoint = model ORDER BY t.iteration, t.trajectory_id;
COMMENT ON MACRO TABLE training_of IS
    'What a checkpoint trained on, one row a trajectory: `FROM training_of(''models/iteration=001/sft'')`';

CREATE MACRO model_lineage(model) AS TABLE
    WITH RECURSIVE began AS (
        SELECT model AS checkpoint, 0 AS depth
        UNION SELECT l.parent, depth + 1 FROM began JOIN lineage l ON l.child = checkpoint AND l.relation = 'began from'
        WHERE depth < 1000
    ), ancestors AS (SELECT checkpoint, min(depth) AS depth FROM began GROUP BY ALL)
    SELECT depth, checkpoint, relation, CASE WHEN relation <> 'trained on' THEN parent END AS parent, parent_kind,
        count(*) AS n, sum(times)::BIGINT AS times
    FROM ancestors JOIN (SELECT DISTINCT child, relation, parent, parent_kind, times FROM lineage) ON child = checkpoint
    GROUP BY ALL ORDER BY depth, checkpoint, relation, parent;
COMMENT ON MACRO TABLE model_lineage IS
    'What a checkpoint came from, back to the first: which it began from or merges, drew from and was trained on (`n` trajectories, `times` samples): `FROM model_lineage(''models/iteration=002/merged'')`';

CREATE VIEW trajectory_outcomes AS
    WITH judged AS (
        SELECT iteration, trajectory_id, min_by({'score': score, 'success': success, 'scorer': scorer},
            (CASE WHEN abstained THEN 4 WHEN success THEN 2 + score WHEN success IS NULL THEN 1.5 ELSE score END, scorer)) AS said
        FROM scores GROUP BY ALL)
    SELECT t.iteration, t.stage, t.trajectory_id, t.domain, t.world, k.template, t.level, t.task_id, t.instruction,
        k.split, t.source, t.author, t.sample, t.status, t.steps, t.reward, coalesce(r.success, j.said.success) AS success,
        coalesce(r.score, j.said.score) AS score, j.said.scorer AS scorer, r.destination, r.reason, t.error,
        t.policy_version, t.started_at, t.ended_at, epoch(t.ended_at - t.started_at) AS seconds, t.run_id, t.origin,
        t.licence, t.annotator, t.skill, t.parent_id, t.start_step
    FROM trajectories t
        LEFT JOIN (SELECT task_id, any_value(template) AS template, any_value(split) AS split FROM tasks GROUP BY ALL) k
            USING (task_id)
        LEFT JOIN routes r ON (r.iteration, r.trajectory_id) = (t.iteration, t.trajectory_id)
        LEFT JOIN judged j ON (j.iteration, j.trajectory_id) = (t.iteration, t.trajectory_id);
COMMENT ON VIEW trajectory_outcomes IS
    'Each trajectory with its task, what was decided of it and where it went; those of evaluations and of RL too';
COMMENT ON COLUMN trajectory_outcomes.success IS 'as it was routed; where it was not, as its scores say';
COMMENT ON COLUMN trajectory_outcomes.scorer IS 'the one that decided: all must be satisfied, the least satisfied speaks';
COMMENT ON COLUMN trajectory_outcomes.destination IS 'sft, ct, quarantine; null for an episode that is not routed';

-- Who is compared played the held-out tasks in its own iteration, or as the predecessor in a later one; fresh tasks,
-- which it played there too, are of the stage `evaluate`.
CREATE MACRO held_out_between(first, last) AS TABLE
    WITH compared AS (
        SELECT 'before' AS side, digest, model FROM promotions WHERE iteration = first
        UNION SELECT 'after', child, parent FROM lineage
            WHERE iteration = last AND stage = 'merge' AND relation = 'weights of'
    ), played AS (
        SELECT side, model, o.iteration, task_id, any_value(domain) AS domain, any_value(world) AS world,
            min(instruction) AS instruction, avg(success::INT) > 0.5 AS solved, min(trajectory_id) AS trajectory_id
        FROM trajectory_outcomes o JOIN compared ON digest = o.policy_version
            SEMI JOIN (FROM tasks WHERE stage = 'synthesize' AND split = 'eval') USING (iteration, task_id)
        WHERE o.stage = 'evaluate' AND success IS NOT NULL AND o.iteration <= greatest(first, last)
        GROUP BY side, model, o.iteration, task_id QUALIFY o.iteration = max(o.iteration) OVER (PARTITION BY side))
    SELECT task_id, b.domain, b.world, b.instruction, a.solved AS before, b.solved AS after,
        a.trajectory_id AS trajectory_before, b.trajectory_id AS trajectory_after, a.model AS model_before,
        b.model AS model_after, (SELECT promoted FROM promotions WHERE iteration = last) AS promoted
    FROM (FROM played WHERE side = 'before') a JOIN (FROM played WHERE side = 'after') b USING (task_id)
    ORDER BY after = before, after, world, task_id;
COMMENT ON MACRO TABLE held_out_between IS
    'Held-out tasks that the newest model after one iteration and the merged model of another both played, those lost and gained first; `promoted`: whether the merged model was, which is compared also where it was refused: `FROM held_out_between(1, 2)`. Solved: more than half of its episodes';

CREATE VIEW episode_ends AS
    WITH acted AS (
        SELECT iteration, stage, trajectory_id, arg_max(coalesce(action_type, ''), step) AS last_action,
            count(*) FILTER (WHERE action IS NULL) / count(*) AS invalid, max(times) / count(*) AS repeated
        FROM (SELECT *, count(action) OVER (PARTITION BY iteration, stage, trajectory_id, action) AS times FROM steps)
        GROUP BY ALL)
    SELECT iteration, stage, trajectory_id, CASE
        WHEN status = 'crashed' THEN 'the environment crashed'
        WHEN status = 'invalid' THEN 'invalid'
        WHEN last_action = 'finished' THEN 'says it is finished'
        WHEN last_action = 'call_user' THEN 'asks the user'
        WHEN status = 'completed' THEN 'the environment ended it'
        WHEN invalid > 0.5 THEN 'limit: most texts held no action'
        WHEN repeated > 0.5 THEN 'limit: one action, over and over'
        ELSE 'limit' END AS ending
    FROM trajectories LEFT JOIN acted USING (iteration, stage, trajectory_id);
COMMENT ON VIEW episode_ends IS
    'How each episode ended: `SELECT ending, count(*) FROM episode_ends NATURAL JOIN trajectory_outcomes WHERE NOT success GROUP BY ALL`';
COMMENT ON COLUMN episode_ends.ending IS 'in words; one action over and over: more than half of its steps are the same';

CREATE MACRO lost_between(first, last) AS TABLE
    SELECT ending, count(*) AS tasks, list(DISTINCT world ORDER BY world) AS worlds, min(trajectory_after) AS example
    FROM held_out_between(first, last) JOIN (SELECT DISTINCT trajectory_id, ending FROM episode_ends) ON trajectory_id = trajectory_after
    WHERE before AND NOT after GROUP BY ending ORDER BY tasks DESC, ending;
COMMENT ON MACRO TABLE lost_between IS
    'How the merged model''s episodes end on held-out tasks that it lost, those of `held_out_between`: `FROM lost_between(1, 2)`; `example`: a trajectory_id';

-- What people's time brings, by kind of work. It builds on `template_success` and `preference_pairs`.

COMMENT ON VIEW recording_verdicts IS
    'What reviewers say of recordings, and of trajectories that somebody asked for, as it stands in `reviews/recordings/<reviewer>.jsonl`: two each, blind, and a third where they disagree';
COMMENT ON COLUMN recording_verdicts.subject IS 'name of the recording''s folder, or a trajectory_id';
COMMENT ON COLUMN recording_verdicts.iteration IS 'of the trajectory; 0 for a recording, which was reviewed before one took it in';
COMMENT ON COLUMN recording_verdicts.sha256 IS 'of the recording''s files as they were looked at; of others it says nothing';
COMMENT ON COLUMN recording_verdicts.correct IS 'each step is right for the task; null in all three: the reviewer only asked for a review';
COMMENT ON COLUMN recording_verdicts.complete IS 'it begins at the beginning, and ends with the task done';
COMMENT ON COLUMN recording_verdicts.safe IS 'nothing private or dangerous is in it';
COMMENT ON COLUMN recording_verdicts.line IS 'of the file, from 1';

CREATE VIEW recording_replays AS
    SELECT iteration, subject AS trajectory_id, decision AS verdict,
        try_cast(regexp_extract(comment, 'step (\d+)', 1) AS INTEGER) AS step, comment AS detail
    FROM reviews WHERE kind = 'replay' ORDER BY iteration, trajectory_id;
COMMENT ON VIEW recording_replays IS 'What came of playing recordings again in the sandbox (`curation.replay`)';
COMMENT ON COLUMN recording_replays.verdict IS 'same: each screen and the end, byte for byte; differs; not replayable, which says nothing of the recording';
COMMENT ON COLUMN recording_replays.step IS 'the first that differs; null for none';
COMMENT ON COLUMN recording_replays.detail IS 'why, in words';

CREATE VIEW people_minutes AS
    WITH made AS (
        SELECT t.iteration, t.source AS work, t.skill, t.annotator, t.world, k.template, t.level,
            epoch(t.ended_at - t.started_at) / 60 AS minutes, s.store, n.steps, n.by_people, p.pairs
        FROM trajectories t
            LEFT JOIN (SELECT task_id, any_value(template) AS template FROM tasks GROUP BY ALL) k USING (task_id)
            LEFT JOIN (SELECT iteration, trajectory_id, 'sft' AS store FROM sft UNION ALL SELECT iteration, trajectory_id, 'ct' FROM ct) s
                USING (iteration, trajectory_id)
            LEFT JOIN (SELECT iteration, trajectory_id, count(*) AS steps, count(*) FILTER (author = 'human') AS by_people FROM steps GROUP BY ALL) n
                USING (iteration, trajectory_id)
            LEFT JOIN (SELECT iteration, trajectory_id, count(*) AS pairs FROM preference_pairs GROUP BY ALL) p
                USING (iteration, trajectory_id)
        WHERE t.source IN ('recording', 'annotation')),
    liked AS (
        SELECT m.iteration, m.work, m.skill, count(*) AS like_templates, avg(a.pass_1) AS success_before, avg(b.pass_1) AS success_after
        FROM (SELECT DISTINCT iteration, work, skill, world, template, level FROM made) m
            JOIN template_success a ON (a.iteration, a.world, a.template, a.level) = (m.iteration, m.world, m.template, m.level)
            JOIN template_success b ON (b.iteration, b.world, b.template, b.level) = (m.iteration + 1, m.world, m.template, m.level)
        GROUP BY ALL),
    said AS (
        SELECT 'labelling' AS work, iteration, trajectory_id AS subject, reviewer, "at", line FROM label_history
        UNION ALL SELECT 'reviewing', nullif(iteration, 0), subject, reviewer, "at", line FROM recording_verdicts
            WHERE correct IS NOT NULL),
    timed AS (
        SELECT *, epoch("at" - lag("at") OVER (PARTITION BY work, reviewer ORDER BY "at", line)) / 60 AS minutes FROM said),
    works AS (
        SELECT iteration, work, skill, count(DISTINCT annotator) AS people, coalesce(sum(minutes), 0) AS minutes,
            count(*) AS trajectories, count(*) FILTER (store = 'sft') AS to_sft, count(*) FILTER (store = 'ct') AS to_ct,
            coalesce(sum(steps) FILTER (store IS NOT NULL), 0)::BIGINT AS steps,
            coalesce(sum(by_people) FILTER (store IS NOT NULL AND work = 'annotation'), 0)::BIGINT AS corrections,
            coalesce(sum(pairs) FILTER (store IS NOT NULL), 0)::BIGINT AS preference_pairs
        FROM made GROUP BY ALL
        UNION ALL SELECT iteration, work, NULL, count(DISTINCT reviewer), coalesce(sum(minutes) FILTER (minutes <= 10), 0),
            count(DISTINCT subject), NULL, NULL, NULL, NULL, NULL
        FROM timed GROUP BY ALL)
    SELECT w.*, l.like_templates, l.success_before, l.success_after
    FROM works w LEFT JOIN liked l
        ON (l.iteration, l.work) = (w.iteration, w.work) AND l.skill IS NOT DISTINCT FROM w.skill
    ORDER BY w.iteration NULLS FIRST, w.work, w.skill;
COMMENT ON VIEW people_minutes IS
    'What people''s time brings, by kind of work and skill. Rewordings of recordings are not among it. That success rose after some work does not show that it rose by it';
COMMENT ON COLUMN people_minutes.iteration IS 'that took it in; null for reviews of recordings, which come before';
COMMENT ON COLUMN people_minutes.work IS 'recording, annotation, labelling, reviewing';
COMMENT ON COLUMN people_minutes.skill IS 'of who recorded: expert or novice; null where it is not told';
COMMENT ON COLUMN people_minutes.people IS 'different ones';
COMMENT ON COLUMN people_minutes.minutes IS 'of what was taken in, from beginning to end. Of labels and reviews the times between two by the same person, those over ten minutes left out: the first of a sitting counts nothing';
COMMENT ON COLUMN people_minutes.trajectories IS 'that were made, labelled or reviewed';
COMMENT ON COLUMN people_minutes.to_sft IS 'of them, in the SFT store';
COMMENT ON COLUMN people_minutes.to_ct IS 'of them, in the CT store';
COMMENT ON COLUMN people_minutes.steps IS 'of those in a store';
COMMENT ON COLUMN people_minutes.corrections IS 'steps that a person did in place of the model, in annotated sessions in a store';
COMMENT ON COLUMN people_minutes.preference_pairs IS 'of those in a store';
COMMENT ON COLUMN people_minutes.like_templates IS 'templates and levels of its tasks that the model played in this iteration and in the next';
COMMENT ON COLUMN people_minutes.success_before IS 'P(V = 1) of the model on them before it was trained on this work';
COMMENT ON COLUMN people_minutes.success_after IS 'P(V = 1) on them in the next iteration, of the model that was the newest by then';

-- What `flywheel model eval` found, from iterations/NNN/checkup.json.

COMMENT ON VIEW checkup_files IS 'The text of each iteration''s checkup.json, of which the view `checkups` is made';

CREATE VIEW checkups AS
    SELECT iteration, (content ->> 'at')::TIMESTAMPTZ AS at, content ->> 'model' AS model,
        content ->> 'digest' AS digest, row ->> 'task_id' AS task_id, row ->> 'domain' AS domain,
        row ->> 'world' AS world, row ->> 'template' AS template, (row ->> 'level')::INTEGER AS level,
        (row ->> 'held_out')::BOOLEAN AS held_out, (row ->> 'sample')::INTEGER AS sample, row ->> 'status' AS status,
        (row ->> 'score')::DOUBLE AS score, (row ->> 'v')::BOOLEAN AS v
    FROM (SELECT iteration, content, unnest((content -> 'rows')::JSON[]) AS row FROM checkup_files)
    ORDER BY iteration, task_id, sample;
COMMENT ON VIEW checkups IS 'What newest models did on fresh tasks between iterations (`flywheel model eval`): one row an episode';
COMMENT ON COLUMN checkups.iteration IS 'that made the model; 0: the first checkpoint';
COMMENT ON COLUMN checkups.held_out IS 'of a template that training never draws';
COMMENT ON COLUMN checkups.v IS 'whether it was solved';

-- What `flywheel model eval` found, from iterations/NNN/checkup.json.

COMMENT ON VIEW fresh_evaluation_files IS 'The text of each iteration''s checkup.json, of which the view `fresh_evaluations` is made';

CREATE VIEW fresh_evaluations AS
    SELECT iteration, (content ->> 'at')::TIMESTAMPTZ AS at, content ->> 'model' AS model,
        content ->> 'digest' AS digest, row ->> 'task_id' AS task_id, row ->> 'domain' AS domain,
        row ->> 'world' AS world, row ->> 'template' AS template, (row ->> 'level')::INTEGER AS level,
        (row ->> 'held_out')::BOOLEAN AS held_out, (row ->> 'sample')::INTEGER AS sample, row ->> 'status' AS status,
        (row ->> 'score')::DOUBLE AS score, (row ->> 'success')::BOOLEAN AS success
    FROM (SELECT iteration, content, unnest((content -> 'rows')::JSON[]) AS row FROM fresh_evaluation_files)
    ORDER BY iteration, task_id, sample;
COMMENT ON VIEW fresh_evaluations IS 'What newest models did on fresh tasks between iterations (`flywheel model eval`): one row an episode';
COMMENT ON COLUMN fresh_evaluations.iteration IS 'that made the model; 0: the first checkpoint';
COMMENT ON COLUMN fresh_evaluations.held_out IS 'of a template that training never draws';
COMMENT ON COLUMN fresh_evaluations.success IS 'whether it was solved';

-- All labels (`labels.py`), read when it runs. In braces: what that fills in. What is damaged is told whichever columns
-- are asked for, so it stands in the condition.
SELECT said.iteration, said.trajectory_id, said.label, said.comment, said.reviewer, said.queue,
    try_cast(said."at" AS TIMESTAMPTZ) AS at, file, line
FROM (
    SELECT file, line, try(from_json(text, '{kinds}')) AS said FROM (
        SELECT '{folder}/' || parse_filename(filename) AS file, unnest(string_split(content, chr(10))) AS text,
            generate_subscripts(string_split(content, chr(10)), 1) AS line
        FROM read_text('{pattern}'))
    WHERE trim(text) <> '')
WHERE CASE WHEN said.iteration IS NOT NULL AND said.trajectory_id IS NOT NULL AND said.label IS NOT NULL
        AND said.reviewer IS NOT NULL AND try_cast(said."at" AS TIMESTAMPTZ) IS NOT NULL
    THEN true ELSE {damaged} END

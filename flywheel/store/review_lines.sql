-- Lines of reviewers' files (`labels.py`), read when it runs. In braces: what that fills in. What is damaged is told
-- whichever columns are asked for and whatever they are filtered by, so it stands in the line and in the condition.
SELECT {columns}, try_cast(said."at" AS TIMESTAMPTZ) AS at, file, line
FROM (
    SELECT file, line, CASE WHEN {needed} AND try_cast(parsed."at" AS TIMESTAMPTZ) IS NOT NULL
        THEN parsed ELSE {damaged} END AS said
    FROM (
        SELECT file, line, try(from_json(text, '{kinds}')) AS parsed FROM (
            SELECT '{folder}/' || parse_filename(filename) AS file, unnest(string_split(content, chr(10))) AS text,
                generate_subscripts(string_split(content, chr(10)), 1) AS line
            FROM read_text('{pattern}'))
        WHERE trim(text) <> ''))
WHERE said IS NOT NULL

-- SQL of `episode_similarity.py` and `near_duplicates.py`. In braces: what they fill in.

-- name: step_macros
-- `place`: of {bits} bits, all ones where there is none; NaN is the greatest. `told`: the text that is hashed; nothing is
-- told of verbs that point but points, and digits of an action with a point are its coordinates. `hash_told`: most steps
-- point at one place: of them only the verb is hashed, once a query.
CREATE OR REPLACE TEMP MACRO place(v) AS coalesce(greatest(0, least(floor(v * {nowhere}), {nowhere} - 1)), {nowhere})::UBIGINT;
CREATE OR REPLACE TEMP MACRO told(action_type, action, x, x2, y2) AS concat_ws(' ', action_type, CASE
    WHEN action_type IN ('click', 'left_double', 'left_triple', 'right_single', 'hover', 'drag', 'long_press') THEN ''
    WHEN action IS NULL THEN 'no action'
    WHEN x IS NOT NULL THEN lower(translate(action, '0123456789.', ''))
    ELSE trim(regexp_replace(lower(action), '(\s|\\n)+', ' ', 'g')) END,
    round(x2 * 16), round(y2 * 16));
CREATE OR REPLACE TEMP MACRO hash_told(action_type, action, x, x2, y2) AS CASE
    WHEN x2 IS NOT NULL OR y2 IS NOT NULL THEN md5_number_lower(told(action_type, action, x, x2, y2))
    WHEN action_type = 'click' THEN md5_number_lower('click ')
    WHEN action_type = 'left_double' THEN md5_number_lower('left_double ')
    WHEN action_type = 'right_single' THEN md5_number_lower('right_single ')
    WHEN action_type = 'hover' THEN md5_number_lower('hover ')
    WHEN action_type = 'drag' THEN md5_number_lower('drag ')
    WHEN action_type = 'long_press' THEN md5_number_lower('long_press ')
    ELSE md5_number_lower(told(action_type, action, x, x2, y2)) END

-- name: step_codes
-- Sorted, though they lie so in their files: what DuckDB streams by several threads comes in no certain order.
SELECT trajectory_id, (hash_told(action_type, action, x, x2, y2) >> {verb_bit} << {verb_bit})
    | (CASE WHEN action_type IN ('wait', 'hover', 'scroll') THEN 1 ELSE 0 END::UBIGINT << {idle_bit})
    | (place(x) << {bits}) | place(y) AS code
FROM ({steps}) ORDER BY trajectory_id, step

-- name: tables
-- Rows that are equal but for their names are one row, with its first two names: a row's twin is the first that is not
-- itself. Of equally near ones an earlier iteration's comes first, then the first by id.
CREATE OR REPLACE TABLE dedup_ones (number BIGINT, key UBIGINT, told UBIGINT, content VARCHAR, count BIGINT,
    new BOOLEAN, first VARCHAR, second VARCHAR, step_codes UBIGINT[], first_image_sha256 VARCHAR,
    last_image_sha256 VARCHAR);
CREATE OR REPLACE TABLE dedup_members (number BIGINT, trajectory_id VARCHAR);
CREATE OR REPLACE TABLE dedup_near (number BIGINT, other BIGINT, similarity DOUBLE, renamed BOOLEAN);

-- name: by_content
SELECT trajectory_id, content, store, hash(store, arguments) AS told, step_codes, first_image_sha256,
    last_image_sha256, new FROM ({episodes})
ORDER BY content, store, told, new, trajectory_id

-- name: by_key
SELECT number, key, told, content, step_codes, first_image_sha256, last_image_sha256 FROM dedup_ones
WHERE key IN (SELECT key FROM dedup_ones GROUP BY key HAVING min(content) <> max(content))
ORDER BY key, content, number

-- name: near_duplicates
CREATE OR REPLACE TABLE near_duplicates AS
WITH around AS (
    SELECT near.number, sum(other.count) AS others,
        arg_min({{'duplicate_of': first, 'similarity': similarity, 'renamed': renamed}}, (-similarity, new, first))
            AS best
    FROM dedup_near near JOIN dedup_ones other ON other.number = near.other GROUP BY near.number)
SELECT trajectory_id,
    CASE WHEN count = 1 THEN best.duplicate_of WHEN trajectory_id = first THEN second ELSE first END AS duplicate_of,
    CASE WHEN count = 1 THEN best.similarity ELSE 1.0 END AS similarity,
    CASE WHEN count = 1 AND best.renamed
        THEN '{other_task}' ELSE '{same_task}' END AS reason,
    1.0 / (count + coalesce(others, 0)) AS weight
FROM dedup_members JOIN dedup_ones USING (number) LEFT JOIN around USING (number)
WHERE count > 1 OR others > 0

-- name: insert_near_evaluation
INSERT INTO broken SELECT DISTINCT trajectory_id,
    'near_evaluation: no task held out for evaluation, and none near one, is trained on (' || near || ')'
FROM judged JOIN contents USING (task_id) ANTI JOIN broken USING (trajectory_id) WHERE near IS NOT NULL

-- name: unsigned
CREATE OR REPLACE TABLE unsigned AS SELECT trajectory_id, task_id, instruction, destination AS store
    FROM incoming JOIN decided USING (trajectory_id) WHERE destination <> 'quarantine' AND author = 'model';
CREATE OR REPLACE TABLE words (instruction VARCHAR, arguments VARCHAR);
CREATE OR REPLACE TABLE coded (trajectory_id VARCHAR, step_codes UBIGINT[])

-- name: signatures
-- One after the other: each holds less than all at once.
CREATE OR REPLACE TABLE ends AS WITH own AS (SELECT trajectory_id, step, image_sha256 {wanted}),
places AS (SELECT trajectory_id, min(step) AS first, max(step) AS last FROM own GROUP BY trajectory_id)
SELECT trajectory_id, a.image_sha256 AS first_image_sha256, b.image_sha256 AS last_image_sha256 FROM places
    JOIN own a USING (trajectory_id) JOIN own b USING (trajectory_id) WHERE a.step = first AND b.step = last;
CREATE OR REPLACE TABLE told AS
    SELECT trajectory_id, content, arguments, store, first_image_sha256, last_image_sha256
    FROM unsigned JOIN words ON words.instruction IS NOT DISTINCT FROM unsigned.instruction
        JOIN (SELECT task_id, any_value(content) AS content FROM contents GROUP BY ALL) USING (task_id)
        JOIN ends USING (trajectory_id);
DROP TABLE ends;
CREATE OR REPLACE TABLE signed AS
    SELECT trajectory_id, content, arguments, store, step_codes, first_image_sha256, last_image_sha256
    FROM told JOIN coded USING (trajectory_id);
DROP TABLE told

-- name: stores_now
CREATE OR REPLACE TABLE stores_now AS
SELECT trajectory_id, destination AS store, true AS new FROM decided WHERE destination <> 'quarantine'
UNION ALL SELECT trajectory_id, 'sft', false FROM sft WHERE {earlier}
UNION ALL SELECT trajectory_id, 'ct', false FROM ct WHERE {earlier}

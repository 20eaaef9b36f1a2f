-- Columns of every table but `trajectories` and `steps`, whose columns are the fields of the records in `schema.py`. What
-- they mean says `catalog/table_comments.sql`. Columns that `NOT_NULL` of `schema.py` names, such as `domain`, are never
-- null, all others may be.

CREATE TABLE tasks (
    task_id VARCHAR, domain VARCHAR, world VARCHAR, template VARCHAR, level INTEGER, seed BIGINT, instruction VARCHAR,
    params VARCHAR, max_steps INTEGER, split VARCHAR, verifier VARCHAR, threshold DOUBLE, checksum VARCHAR,
    environment VARCHAR, drawn_for VARCHAR, source VARCHAR, verifier_kill_rate DOUBLE
);

CREATE TABLE utterances (
    trajectory_id VARCHAR, utterance INTEGER, start_s DOUBLE, end_s DOUBLE, asr_text VARCHAR, text VARCHAR,
    words STRUCT(word VARCHAR, start_s DOUBLE, end_s DOUBLE, confidence FLOAT)[], step INTEGER, alignment_score DOUBLE,
    recognizer VARCHAR, refined_by VARCHAR, confidence DOUBLE, low_confidence BOOLEAN
);

CREATE TABLE events (
    trajectory_id VARCHAR, event INTEGER, time_s DOUBLE, kind VARCHAR, x DOUBLE, y DOUBLE, key VARCHAR, text VARCHAR,
    step INTEGER
);

CREATE TABLE scores (
    trajectory_id VARCHAR, scorer VARCHAR, score DOUBLE, threshold DOUBLE, success BOOLEAN, detail VARCHAR,
    version VARCHAR, abstained BOOLEAN, current BOOLEAN
);

CREATE TABLE routes (
    trajectory_id VARCHAR, destination VARCHAR, reason VARCHAR, score DOUBLE, success BOOLEAN, decided_by VARCHAR,
    decided_version VARCHAR
);

CREATE TABLE reviews (
    subject VARCHAR, kind VARCHAR, reviewer VARCHAR, decision VARCHAR, comment VARCHAR, at TIMESTAMP WITH TIME ZONE
);

CREATE TABLE images (
    sha256 VARCHAR, width INTEGER, height INTEGER, format VARCHAR, bytes BLOB
);

CREATE TABLE lineage (
    child VARCHAR, child_kind VARCHAR, parent VARCHAR, parent_kind VARCHAR, relation VARCHAR, times BIGINT
);

CREATE TABLE runs (
    run_id VARCHAR, parent_id VARCHAR, kind VARCHAR, name VARCHAR, state VARCHAR, attempts INTEGER,
    started_at TIMESTAMP WITH TIME ZONE, ended_at TIMESTAMP WITH TIME ZONE, seconds DOUBLE, parameters VARCHAR,
    message VARCHAR
);

CREATE TABLE metrics (
    domain VARCHAR, name VARCHAR, step INTEGER, value DOUBLE, low DOUBLE, high DOUBLE, n BIGINT
);

CREATE TABLE curriculum (
    task_id VARCHAR, domain VARCHAR, world VARCHAR, template VARCHAR, level INTEGER, groups INTEGER, successes DOUBLE,
    episodes DOUBLE, sampling_prob DOUBLE, relative_prob DOUBLE, reason VARCHAR
);

CREATE TABLE sft (
    trajectory_id VARCHAR, task_id VARCHAR, domain VARCHAR, source VARCHAR, score DOUBLE, steps INTEGER,
    policy_version VARCHAR, weight DOUBLE
);

CREATE TABLE ct (
    trajectory_id VARCHAR, task_id VARCHAR, domain VARCHAR, source VARCHAR, score DOUBLE, steps INTEGER,
    policy_version VARCHAR, weight DOUBLE
);

CREATE TABLE duplicates (
    trajectory_id VARCHAR, duplicate_of VARCHAR, similarity DOUBLE, reason VARCHAR, weight DOUBLE
);

CREATE TABLE trajectory_hashes (
    trajectory_id VARCHAR, content VARCHAR, arguments VARCHAR, store VARCHAR, step_codes UBIGINT[],
    first_image_sha256 VARCHAR, last_image_sha256 VARCHAR
);

CREATE TABLE screen_hashes (
    sha256 VARCHAR, dhash UBIGINT
);

CREATE TABLE quarantine (
    trajectory_id VARCHAR, reason VARCHAR, detail VARCHAR, record VARCHAR, source_table VARCHAR
);

CREATE TABLE grounding_examples (
    sample_id VARCHAR, kind VARCHAR, image_sha256 VARCHAR, instruction VARCHAR, response VARCHAR
);

CREATE TABLE candidates (
    trajectory_id VARCHAR, step INTEGER, candidate INTEGER, thought VARCHAR, action_type VARCHAR, action VARCHAR,
    raw_text VARCHAR, token_ids INTEGER[], logprobs FLOAT[], prompt_tokens INTEGER, weight_version VARCHAR,
    votes INTEGER, samples INTEGER, decision VARCHAR, annotator VARCHAR, decided_at TIMESTAMP WITH TIME ZONE
);

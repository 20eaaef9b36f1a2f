-- Columns of every table but `trajectories` and `steps`, whose columns are the fields of the records in `schema.py`: one
-- row an episode, and one a step of it.

-- What was asked. `params` is the template's JSON; `checksum` names the world's sources. `environment`: the kind that
-- it is played in.
CREATE TABLE tasks (
    task_id VARCHAR, domain VARCHAR, world VARCHAR, template VARCHAR, level INTEGER, seed BIGINT, instruction VARCHAR,
    params VARCHAR, max_steps INTEGER, split VARCHAR, verifier VARCHAR, threshold DOUBLE, checksum VARCHAR,
    environment VARCHAR
);

-- One row an utterance of a think-aloud recording. Times are on the screen's clock, in seconds from its start.
-- `confidence`: the recognizer's, 0 to 1, the mean over the words. `low_confidence`: it is below the least that is
-- trusted, so the step has no thought from this utterance.
CREATE TABLE utterances (
    trajectory_id VARCHAR, utterance INTEGER, start_s DOUBLE, end_s DOUBLE, asr_text VARCHAR, text VARCHAR,
    words STRUCT(word VARCHAR, start_s DOUBLE, end_s DOUBLE, confidence FLOAT)[], step INTEGER, alignment_score DOUBLE,
    recognizer VARCHAR, refined_by VARCHAR, confidence DOUBLE, low_confidence BOOLEAN
);

-- One row a captured input event of a recording.
CREATE TABLE events (
    trajectory_id VARCHAR, event INTEGER, time_s DOUBLE, kind VARCHAR, x DOUBLE, y DOUBLE, key VARCHAR, text VARCHAR,
    step INTEGER
);

-- One row a trajectory and scorer (`envs.verdict`). `score`: null where the scorer gave none; `detail` says why.
-- `version`: of the scorer.
CREATE TABLE scores (
    trajectory_id VARCHAR, scorer VARCHAR, score DOUBLE, threshold DOUBLE, success BOOLEAN, detail VARCHAR,
    version VARCHAR
);

CREATE TABLE routes (
    trajectory_id VARCHAR, destination VARCHAR, reason VARCHAR, score DOUBLE, success BOOLEAN
);

CREATE TABLE reviews (
    subject VARCHAR, kind VARCHAR, reviewer VARCHAR, decision VARCHAR, comment VARCHAR, at TIMESTAMP WITH TIME ZONE
);

-- Screens, once each. `bytes` is the encoded file.
CREATE TABLE images (
    sha256 VARCHAR, width INTEGER, height INTEGER, format VARCHAR, bytes BLOB
);

-- parent -> child, by name: trajectory, checkpoint, task, run, dataset. `times`, of `trained on`: how many samples of
-- the trajectory the training took, each of its steps as often as it was drawn; null where that was not counted yet.
CREATE TABLE lineage (
    child VARCHAR, child_kind VARCHAR, parent VARCHAR, parent_kind VARCHAR, relation VARCHAR, times BIGINT
);

-- Flow and task runs, exported from Prefect at the end of each iteration (its server forgets). `stage` is the one that
-- wrote the rows, as in every table: which one a run belongs to says the view `run_history`. `message`: of its last
-- state, for a run that failed the reason.
CREATE TABLE runs (
    run_id VARCHAR, parent_id VARCHAR, kind VARCHAR, name VARCHAR, state VARCHAR, attempts INTEGER,
    started_at TIMESTAMP WITH TIME ZONE, ended_at TIMESTAMP WITH TIME ZONE, seconds DOUBLE, parameters VARCHAR,
    message VARCHAR
);

-- A measured figure. `step` counts along a curve (0 for a single figure); `low`, `high`: its 95% interval, `n`: how
-- many cases it rests on; null where they have no meaning.
CREATE TABLE metrics (
    domain VARCHAR, name VARCHAR, step INTEGER, value DOUBLE, low DOUBLE, high DOUBLE, n BIGINT
);

-- What RL's curriculum knew of each task at the end. `successes` of `episodes`: newer ones count more. `sampling_prob`:
-- share of the draws, `relative_prob`: relative to an even share; `reason`: why that is less than 1 (empty where it is
-- not).
CREATE TABLE curriculum (
    task_id VARCHAR, domain VARCHAR, world VARCHAR, template VARCHAR, level INTEGER, groups INTEGER, successes DOUBLE,
    episodes DOUBLE, sampling_prob DOUBLE, relative_prob DOUBLE, reason VARCHAR
);

-- Training stores, one row a trajectory; the samples are built from its steps. `weight`: of each of them in the mix,
-- less than 1 where the trajectory has near-duplicates.
CREATE TABLE sft (
    trajectory_id VARCHAR, task_id VARCHAR, domain VARCHAR, source VARCHAR, score DOUBLE, steps INTEGER,
    policy_version VARCHAR, weight DOUBLE
);

CREATE TABLE ct (
    trajectory_id VARCHAR, task_id VARCHAR, domain VARCHAR, source VARCHAR, score DOUBLE, steps INTEGER,
    policy_version VARCHAR, weight DOUBLE
);

-- Near-duplicates among what joined a store (`store/dedup/near_duplicates.py`): the nearest one, the share of steps
-- that agree with it, why it counts as near, and what the trajectory weighs in training, beside 1.
CREATE TABLE duplicates (
    trajectory_id VARCHAR, duplicate_of VARCHAR, similarity DOUBLE, reason VARCHAR, weight DOUBLE
);

-- What later iterations compare theirs with: the steps as numbers (`store/dedup/episode_similarity.py`), what was
-- asked, and the sha256 of the first and the last screen; difference hashes of screens that were looked at. `store`:
-- the store that the trajectory joined when its steps became numbers; which one it is in since, the stores say.
CREATE TABLE trajectory_hashes (
    trajectory_id VARCHAR, content VARCHAR, arguments VARCHAR, store VARCHAR, step_codes UBIGINT[],
    first_image_sha256 VARCHAR, last_image_sha256 VARCHAR
);

CREATE TABLE screen_hashes (
    sha256 VARCHAR, dhash UBIGINT
);

-- What is set aside, with the reason. `source_table`: that of the row; `record`: a trajectory's whole row as JSON, to
-- be mended and routed again.
CREATE TABLE quarantine (
    trajectory_id VARCHAR, reason VARCHAR, detail VARCHAR, record VARCHAR, source_table VARCHAR
);

-- General data for the CT and SFT mixes: a screen, a question, the answer text.
CREATE TABLE grounding_examples (
    sample_id VARCHAR, kind VARCHAR, image_sha256 VARCHAR, instruction VARCHAR, response VARCHAR
);

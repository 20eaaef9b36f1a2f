-- What the base tables and their columns mean. Each table has besides: `iteration`, whose folder it lies in, and
-- `stage`, the one that wrote the rows.

COMMENT ON VIEW tasks IS 'What was asked: the tasks of an iteration, and those of recordings. Stages: synthesize, ingest, evaluate (fresh tasks of the gate), rl (with rl.fresh_tasks)';
COMMENT ON COLUMN tasks.domain IS 'games, sites, control, ...: a name of synthesis.domains';
COMMENT ON COLUMN tasks.world IS 'where it is played: a game, a site, a page, a machine';
COMMENT ON COLUMN tasks.template IS 'of which it was drawn';
COMMENT ON COLUMN tasks.level IS 'difficulty, 1 is the easiest';
COMMENT ON COLUMN tasks.seed IS 'of the environment';
COMMENT ON COLUMN tasks.instruction IS 'as the policy reads it';
COMMENT ON COLUMN tasks.params IS 'JSON of the template''s parameters, which the verifier reads';
COMMENT ON COLUMN tasks.max_steps IS 'after so many steps an episode is truncated';
COMMENT ON COLUMN tasks.split IS 'train, or eval: held out, never trained on';
COMMENT ON COLUMN tasks.verifier IS 'that decides whether it is solved';
COMMENT ON COLUMN tasks.threshold IS 'score from which it counts as solved';
COMMENT ON COLUMN tasks.checksum IS 'of the world''s sources when it was drawn';
COMMENT ON COLUMN tasks.environment IS 'kind of environment that it is played in';
COMMENT ON COLUMN tasks.drawn_for IS
    'why an iteration''s training task was drawn: weak, forgotten, mixed (synthesis.refresh), or even; null for others';
COMMENT ON COLUMN tasks.source IS 'what made it: templates, page, questions, exploration or rules';
COMMENT ON COLUMN tasks.verifier_kill_rate IS 'share of mutated end states that its verifier refused (`flywheel tasks attack`); null where it was not attacked as it is now, or its known solution failed';

COMMENT ON VIEW trajectories IS 'Episodes, one row each: recordings, imports, rollouts, RL''s and the evaluation''s. `stage` tells them apart: source is rollout for the last three';
COMMENT ON COLUMN trajectories.source IS 'rollout, recording, augmentation (a recording in other words), annotation (of live rollouts), import (another data set''s), correction (a solver goes on before a mistake of the model) or counterfactual (`flywheel model counterfactual`; its stage too, never routed, trained on or counted)';
COMMENT ON COLUMN trajectories.author IS 'model, human or solver';
COMMENT ON COLUMN trajectories.sample IS 'its number among the episodes of its task and weights';
COMMENT ON COLUMN trajectories.policy_version IS 'digest of the weights that began it; null for a person''s';
COMMENT ON COLUMN trajectories.status IS 'completed (the task ended), truncated (a limit was met), crashed, invalid';
COMMENT ON COLUMN trajectories.error IS 'why it is crashed or invalid';
COMMENT ON COLUMN trajectories.steps IS 'how many there are';
COMMENT ON COLUMN trajectories.reward IS 'sum over the steps; null where the environment tells none';
COMMENT ON COLUMN trajectories.final_state IS 'JSON, which the verifier reads; null where the environment crashed';
COMMENT ON COLUMN trajectories.run_id IS 'Prefect''s flow run that made it';
COMMENT ON COLUMN trajectories.origin IS 'of an imported one: data set and id there, with a colon between';
COMMENT ON COLUMN trajectories.licence IS 'of an imported one: what its data set may be used for, as an SPDX id or as its publisher calls it';
COMMENT ON COLUMN trajectories.annotator IS 'who recorded it';
COMMENT ON COLUMN trajectories.skill IS 'of who recorded it: expert or novice';
COMMENT ON COLUMN trajectories.parent_id IS 'trajectory whose state its start was restored from: of RL within a success (rl.restored_start_fraction), of a correction before a mistake of a failure; or the recording that it says in other words; null for the task''s beginning, and where a solver played up to the start';
COMMENT ON COLUMN trajectories.final_image_sha256 IS 'of the screen after the last action (images), on which none was chosen; null where it is not known, as of a recording, and where there was none to see';
COMMENT ON COLUMN trajectories.start_step IS 'number of its first own step where its start was restored: those before are repeated, and nothing learns from them; null for the task''s beginning. Only the latter count as the task''s success';

COMMENT ON VIEW steps IS 'Steps of episodes: what was seen (by its hash), thought, done, and what followed';
COMMENT ON COLUMN steps.step IS 'number within the trajectory, from 0';
COMMENT ON COLUMN steps.author IS 'model, human or solver';
COMMENT ON COLUMN steps.thought IS 'what was thought before the action; null where nothing is known';
COMMENT ON COLUMN steps.action_type IS 'the action''s name in the grammar; null where the text held no action';
COMMENT ON COLUMN steps.action IS 'serialised in the policy''s grammar';
COMMENT ON COLUMN steps.raw_text IS 'as the model wrote it';
COMMENT ON COLUMN steps.parse_error IS 'why the text held no action; null where it did';
COMMENT ON COLUMN steps.x IS 'of the action''s point, as a fraction of the screen''s width';
COMMENT ON COLUMN steps.y IS 'of the action''s point, as a fraction of the screen''s height';
COMMENT ON COLUMN steps.x2 IS 'where a drag ends, as x';
COMMENT ON COLUMN steps.y2 IS 'where a drag ends, as y';
COMMENT ON COLUMN steps.prompt_tokens IS 'tokens that the policy read';
COMMENT ON COLUMN steps.token_ids IS 'as sampled, the end token included where it was; null for a person''s';
COMMENT ON COLUMN steps.logprobs IS 'of each token as sampled, at temperature 1, in nats';
COMMENT ON COLUMN steps.weight_version IS 'digest of the weights that sampled it';
COMMENT ON COLUMN steps.image_sha256 IS 'of the screen that the action was chosen on (images); null where there was none to see';
COMMENT ON COLUMN steps.tool_result IS 'what a function returned, or what the environment remarked';
COMMENT ON COLUMN steps.terminated IS 'the task ended with it';
COMMENT ON COLUMN steps.truncated IS 'a limit was met with it';
COMMENT ON COLUMN steps.memory IS 'JSON of the digest of older steps that was shown: steps, text, by';
COMMENT ON COLUMN steps.observation IS 'what was there to read where it was chosen; null where the screen was all';
COMMENT ON COLUMN steps.misclick IS 'a person''s click on nothing: later prompts show it, imitation leaves it out';
COMMENT ON COLUMN steps.state_score IS 'of the state that it was chosen on, 0 to 1; null where it is not known';

COMMENT ON VIEW steps_in_files IS 'As steps, with the file and the row in it: for programs that read screens or tokens from the files themselves';
COMMENT ON COLUMN steps_in_files.filename IS 'Parquet file that holds the row';
COMMENT ON COLUMN steps_in_files.file_row_number IS 'row in that file, from 0';

COMMENT ON VIEW utterances IS 'What was said in think-aloud recordings, one row an utterance. Times are in seconds on the screen''s clock';
COMMENT ON COLUMN utterances.utterance IS 'number within the trajectory, from 0';
COMMENT ON COLUMN utterances.asr_text IS 'as it was recognised';
COMMENT ON COLUMN utterances.text IS 'the thought that it became, refined';
COMMENT ON COLUMN utterances.words IS 'recognised words with their times and confidence';
COMMENT ON COLUMN utterances.step IS 'that it was aligned with; null for none';
COMMENT ON COLUMN utterances.alignment_score IS 'probability of that step, 0 to 1';
COMMENT ON COLUMN utterances.refined_by IS 'rules, or the language model that did';
COMMENT ON COLUMN utterances.confidence IS 'the recogniser''s, 0 to 1, the mean over the words';
COMMENT ON COLUMN utterances.low_confidence IS 'it is below the least that is trusted, so the step has no thought from it';

COMMENT ON VIEW events IS 'Captured input events of recordings, before they become steps';
COMMENT ON COLUMN events.event IS 'number within the trajectory, from 0';
COMMENT ON COLUMN events.time_s IS 'seconds on the screen''s clock';
COMMENT ON COLUMN events.x IS 'as a fraction of the screen''s width';
COMMENT ON COLUMN events.y IS 'as a fraction of the screen''s height';
COMMENT ON COLUMN events.step IS 'that it became a part of; null for none';

COMMENT ON VIEW scores IS 'What each scorer says of each trajectory, by its version that counts';
COMMENT ON COLUMN scores.score IS '0 to 1; null where the scorer gave none, detail says why';
COMMENT ON COLUMN scores.success IS 'the scorer''s verdict: V = 1; null where it gave none';
COMMENT ON COLUMN scores.current IS 'whether this version counts: here all do';

COMMENT ON VIEW score_history IS 'What each version of each scorer said of each trajectory; those that count are `scores`';
COMMENT ON COLUMN score_history.success IS 'the scorer''s verdict: V = 1; null where it gave none';
COMMENT ON COLUMN score_history.current IS 'whether this version counts';

COMMENT ON VIEW routes IS 'Where each trajectory went, as it was decided last';
COMMENT ON COLUMN routes.destination IS 'sft, ct or quarantine';
COMMENT ON COLUMN routes.reason IS 'the rule that decided';
COMMENT ON COLUMN routes.score IS 'of the scorer that decided';
COMMENT ON COLUMN routes.success IS 'V as it was routed; null where nobody could tell';
COMMENT ON COLUMN routes.decided_by IS 'the scorer whose verdict is V; null where none judged it';
COMMENT ON COLUMN routes.decided_version IS 'of that scorer';

COMMENT ON COLUMN reviews.decision IS 'promote or keep; of a trajectory the label, such as solved';

COMMENT ON VIEW images IS 'Screens, each once a partition';
COMMENT ON COLUMN images.bytes IS 'of the encoded file';

COMMENT ON VIEW lineage IS 'What came from what, by name: a trajectory (trajectory_id), task, run (Prefect''s id), import, weights (digest), checkpoint (folder; `@12`: after RL''s step 12), dataset (`sft@001`; `sft@001.1`: decided again) or decision';
COMMENT ON COLUMN lineage.child_kind IS 'trajectory, checkpoint, weights, dataset';
COMMENT ON COLUMN lineage.relation IS 'of the child to the parent. Trajectory: attempts (task), acted by (weights), produced in (run), imported from, augmented from (trajectory: the recording that it says in other words), mended by (decision), restored from (trajectory: RL began it there), counterfactual of (trajectory: within which it began, with one thing changed). Dataset: holds (trajectory), decided again from. Weights: weights of (checkpoint). Checkpoint: began from (checkpoint), drew from (dataset), trained on (trajectory), produced in';
COMMENT ON COLUMN lineage.times IS 'of trained on: samples that training took of the trajectory, each step as often as it was drawn; null where that was not counted';

COMMENT ON VIEW runs IS 'Flow and task runs of Prefect, exported at the end of an iteration. Which stage a run belongs to says the view run_history';
COMMENT ON COLUMN runs.parent_id IS 'run_id of the run that began it';
COMMENT ON COLUMN runs.kind IS 'flow or task';
COMMENT ON COLUMN runs.state IS 'Prefect''s last one: Completed, Failed, Crashed, Cancelled, ...';
COMMENT ON COLUMN runs.attempts IS 'how often it was tried';
COMMENT ON COLUMN runs.parameters IS 'JSON';
COMMENT ON COLUMN runs.message IS 'of its last state: for a run that failed, the reason';

COMMENT ON VIEW metrics IS 'Measured figures; docs/metrics.md says what each name means';
COMMENT ON COLUMN metrics.domain IS 'a domain, domain/world, or all';
COMMENT ON COLUMN metrics.step IS 'along a curve; 0 for a single figure';
COMMENT ON COLUMN metrics.value IS 'null where it is not finite';
COMMENT ON COLUMN metrics.low IS 'lower end of the 95% interval; null where it has none';
COMMENT ON COLUMN metrics.high IS 'upper end of the 95% interval';
COMMENT ON COLUMN metrics.n IS 'cases that it rests on';

COMMENT ON VIEW curriculum IS 'What RL''s curriculum knew of each task at the end';
COMMENT ON COLUMN curriculum.groups IS 'groups of episodes that were played';
COMMENT ON COLUMN curriculum.successes IS 'of its episodes, newer ones count more';
COMMENT ON COLUMN curriculum.episodes IS 'newer ones count more';
COMMENT ON COLUMN curriculum.sampling_prob IS 'share of the draws';
COMMENT ON COLUMN curriculum.relative_prob IS 'share of the draws, relative to an even one';
COMMENT ON COLUMN curriculum.reason IS 'why relative_prob is less than 1; empty where it is not';

COMMENT ON VIEW sft IS 'What joined the SFT store: one row a trajectory, whose steps become samples';
COMMENT ON COLUMN sft.weight IS 'of each of its samples in the mix: less than 1 where it has near-duplicates';
COMMENT ON VIEW ct IS 'What joined the CT store: one row a trajectory, whose steps become samples';
COMMENT ON COLUMN ct.weight IS 'of each of its samples in the mix: less than 1 where it has near-duplicates';

COMMENT ON VIEW duplicates IS 'Near-duplicates among what joined a store';
COMMENT ON COLUMN duplicates.duplicate_of IS 'the nearest trajectory';
COMMENT ON COLUMN duplicates.similarity IS 'share of steps that agree with it';
COMMENT ON COLUMN duplicates.reason IS 'why it counts as near';
COMMENT ON COLUMN duplicates.weight IS 'of the trajectory in training, beside 1';

COMMENT ON VIEW trajectory_hashes IS 'What later iterations compare their trajectories with';
COMMENT ON COLUMN trajectory_hashes.content IS 'hash of what was asked: world, template, level and parameters';
COMMENT ON COLUMN trajectory_hashes.arguments IS 'numbers and quoted texts of the instruction, sorted: a paraphrase keeps them';
COMMENT ON COLUMN trajectory_hashes.store IS 'that it joined then; which one it is in since, the stores say';
COMMENT ON COLUMN trajectory_hashes.step_codes IS 'its steps as numbers';
COMMENT ON VIEW screen_hashes IS 'Difference hashes of screens that were compared';
COMMENT ON COLUMN screen_hashes.dhash IS '64 bits; near screens differ in few';

COMMENT ON VIEW quarantine IS 'Rows that are set aside, each with the reason; `flywheel data quarantine` shows and mends them';
COMMENT ON COLUMN quarantine.reason IS 'the contract that it breaks, and what was promised';
COMMENT ON COLUMN quarantine.detail IS 'what was found there';
COMMENT ON COLUMN quarantine.record IS 'JSON of the trajectory''s whole row';
COMMENT ON COLUMN quarantine.source_table IS 'whose row it is';

COMMENT ON VIEW grounding_examples IS 'General data for the CT and SFT mixes: a screen, a question, the answer';
COMMENT ON COLUMN grounding_examples.kind IS 'of question; "page: WORLD" where the screen is a page of that world';
COMMENT ON COLUMN grounding_examples.image_sha256 IS 'of the screen (images)';
COMMENT ON COLUMN grounding_examples.response IS 'the answer that is taught';

COMMENT ON VIEW candidates IS 'What the newest model proposed for a step of a session that a person annotated, and what the person made of it';
COMMENT ON COLUMN candidates.step IS 'that it was proposed for; what was done there in the end is that step of `steps`';
COMMENT ON COLUMN candidates.candidate IS 'number among the proposals for that step, from 0; those after an undo go on counting';
COMMENT ON COLUMN candidates.votes IS 'how many of the `samples` answers that it was drawn among have the same effect; 1 of 1 where the model played alone';
COMMENT ON COLUMN candidates.samples IS 'answers that the model was asked for when it proposed this';
COMMENT ON COLUMN candidates.decision IS 'accepted, rejected, or undone: accepted, carried out and taken back';
COMMENT ON COLUMN candidates.annotator IS 'who decided';
COMMENT ON COLUMN candidates.decided_at IS 'when, in UTC';

COMMENT ON VIEW label_history IS 'Every label that a person gave, also those replaced since; `reviews` and `labels` are made of it';

COMMENT ON VIEW promotions IS 'Which model was the newest after each iteration, and why; iteration 0 is the first checkpoint';
COMMENT ON COLUMN promotions.promoted IS 'whether it is the iteration''s own; null for the first checkpoint';
COMMENT ON COLUMN promotions.reason IS 'the rule''s, or the reviewer''s, in words';

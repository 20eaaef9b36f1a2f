-- Views for reviewers: what people say of single trajectories, how far they agree, and how far scorers agree with them.

COMMENT ON VIEW reviews IS
    'What people and rules decided of recordings and promotions (a promotion''s `reviewer` is then `rule <its name>`), and what people say of single trajectories';
COMMENT ON COLUMN reviews.subject IS 'a trajectory, or the model to be promoted';
COMMENT ON COLUMN reviews.kind IS 'curation of a recording, promotion, or trajectory: a label, as in `label_history`';

COMMENT ON VIEW label_history IS
    'Every label that a person gave a trajectory, as it stands in `reviews/<reviewer>.jsonl`, earlier ones too';
COMMENT ON COLUMN label_history.label IS 'solved, not solved or cannot tell';
COMMENT ON COLUMN label_history.queue IS 'how the trajectory was drawn; `decide`: two others disagreed';
COMMENT ON COLUMN label_history.line IS 'of the file, from 1';

CREATE VIEW labels AS
    SELECT * EXCLUDE (file, line) FROM label_history
    QUALIFY row_number() OVER (PARTITION BY reviewer, trajectory_id ORDER BY "at" DESC, line DESC) = 1
    ORDER BY iteration, trajectory_id, "at", reviewer;
COMMENT ON VIEW labels IS 'What people say of single trajectories: the newest label of each reviewer, which is the one that counts';
COMMENT ON COLUMN labels.label IS 'solved, not solved or cannot tell';
COMMENT ON COLUMN labels.queue IS 'how the trajectory was drawn; `decide`: two others disagreed';

CREATE VIEW human_labels AS
    WITH votes AS (SELECT iteration, trajectory_id, label, count(*) AS n FROM labels GROUP BY ALL),
    tally AS (
        SELECT iteration, trajectory_id, sum(n)::BIGINT AS reviewers, max_by(label, n) AS first, max(n) AS most
        FROM votes GROUP BY ALL),
    drawn AS (
        SELECT iteration, trajectory_id, arg_max(label, "at") FILTER (WHERE queue = 'decide') AS third,
            arg_min(queue, "at") FILTER (WHERE queue <> 'decide') AS queue
        FROM labels GROUP BY ALL)
    SELECT iteration, trajectory_id, reviewers, queue, CASE WHEN reviewers = 1 THEN 'one reviewer'
            WHEN most = reviewers THEN 'agreed' WHEN 2 * most > reviewers OR third IS NOT NULL THEN 'decided'
            ELSE 'to decide' END AS state,
        CASE WHEN state IN ('agreed', 'decided') THEN if(2 * most > reviewers, first, third) END AS label
    FROM tally JOIN drawn USING (iteration, trajectory_id) ORDER BY iteration, trajectory_id;
COMMENT ON VIEW human_labels IS
    'What people say of a trajectory together: what most of two or more say; where none has most, what the third says who was asked to decide';
COMMENT ON COLUMN human_labels.reviewers IS 'who gave a label';
COMMENT ON COLUMN human_labels.queue IS 'how it was drawn first';
COMMENT ON COLUMN human_labels.state IS 'one reviewer; agreed; decided; to decide, by one more';
COMMENT ON COLUMN human_labels.label IS 'null until it is agreed or decided';

CREATE VIEW reviewer_agreement AS
    WITH blind AS (
        SELECT l.reviewer, l.iteration, l.trajectory_id, l.label, t.domain
        FROM label_history l LEFT JOIN trajectories t USING (iteration, trajectory_id)
        QUALIFY row_number() OVER (PARTITION BY l.reviewer, l.trajectory_id ORDER BY l."at", l.line) = 1
            AND l.queue <> 'decide'),
    pairs AS (
        SELECT a.reviewer AS reviewer_a, b.reviewer AS reviewer_b, unnest(['all', a.domain]) AS domain, a.label AS of_one,
            b.label AS of_other
        FROM blind a JOIN blind b
            ON (a.iteration, a.trajectory_id) = (b.iteration, b.trajectory_id) AND a.reviewer < b.reviewer),
    shares AS (
        SELECT reviewer_a, reviewer_b, domain, count(*) AS n, count(*) FILTER (WHERE of_one = of_other) AS alike,
            (count(*) FILTER (WHERE of_one = 'solved') * count(*) FILTER (WHERE of_other = 'solved')
                + count(*) FILTER (WHERE of_one = 'not solved') * count(*) FILTER (WHERE of_other = 'not solved')
                + count(*) FILTER (WHERE of_one = 'cannot tell') * count(*) FILTER (WHERE of_other = 'cannot tell'))
                / (count(*) * count(*)) AS chance_agreement
        FROM pairs WHERE domain IS NOT NULL GROUP BY ALL)
    SELECT reviewer_a, reviewer_b, domain, n, alike / n AS agreement, wilson_low(alike, n) AS low, wilson_high(alike, n) AS high,
        chance_agreement, if(chance_agreement < 1, (agreement - chance_agreement) / (1 - chance_agreement), NULL) AS kappa
    FROM shares ORDER BY reviewer_a, reviewer_b, domain = 'all' DESC, domain;
COMMENT ON VIEW reviewer_agreement IS
    'How far two reviewers say the same of the same trajectories, by their first labels, which they gave before they could see the other''s. Labels of who was asked to decide are left out: those trajectories were chosen for being disputed';
COMMENT ON COLUMN reviewer_agreement.domain IS '`all` for all of them';
COMMENT ON COLUMN reviewer_agreement.n IS 'trajectories that both labelled';
COMMENT ON COLUMN reviewer_agreement.agreement IS 'share with the same label; `low`, `high`: its 95% interval';
COMMENT ON COLUMN reviewer_agreement.chance_agreement IS 'share that would agree by chance';
COMMENT ON COLUMN reviewer_agreement.kappa IS
    'Cohen''s, of three labels: 1 is full agreement, 0 what chance alone would give; null where both always said one and the same';

CREATE VIEW scorers_vs_humans AS
    WITH settled AS (
        SELECT h.iteration, h.trajectory_id, h.label = 'solved' AS truly, h.queue, t.domain
        FROM human_labels h JOIN trajectories t USING (iteration, trajectory_id)
        WHERE h.label IN ('solved', 'not solved')),
    said AS (
        SELECT iteration, trajectory_id, scorer, version, success FROM scores WHERE scorer <> 'person'
        UNION ALL SELECT iteration, trajectory_id, 'all together', NULL, success FROM routes
            WHERE decided_by IS DISTINCT FROM 'person'),
    judged AS (
        SELECT scorer, version, domain, unnest(if(queue = 'random', ['any', 'random'], ['any'])) AS sampling, success, truly
        FROM said JOIN settled USING (iteration, trajectory_id) WHERE success IS NOT NULL),
    counts AS (
        SELECT scorer, version, coalesce(domain, 'all') AS domain, sampling, count(*) AS n,
            count(*) FILTER (WHERE success AND truly) AS true_positives, count(*) FILTER (WHERE success) AS verified,
            count(*) FILTER (WHERE truly) AS solved
        FROM judged GROUP BY GROUPING SETS ((scorer, version, sampling), (scorer, version, sampling, domain)))
    SELECT scorer, version, domain, sampling, n, verified, solved, true_positives, true_positives / nullif(verified, 0) AS precision,
        wilson_low(true_positives, verified) AS precision_low, wilson_high(true_positives, verified) AS precision_high,
        true_positives / nullif(solved, 0) AS recall, wilson_low(true_positives, solved) AS recall_low, wilson_high(true_positives, solved) AS recall_high
    FROM counts ORDER BY sampling DESC, scorer, version, domain = 'all' DESC, domain;
COMMENT ON VIEW scorers_vs_humans IS
    'How far scorers say V = 1 where people say solved. It rests on trajectories on which two or more people agree, or that were decided; those of which they cannot tell are left out';
COMMENT ON COLUMN scorers_vs_humans.scorer IS '`all together`: the verdict that trajectories are routed by, but for those that a person gave';
COMMENT ON COLUMN scorers_vs_humans.version IS 'of the scorer, whose versions are not mixed; null for all together';
COMMENT ON COLUMN scorers_vs_humans.domain IS '`all` for all of them';
COMMENT ON COLUMN scorers_vs_humans.sampling IS
    'random: those that were drawn at random alone, which stand for all but recordings that the verdict confirms; any: all, where those that scorers dispute, or of rare stores, weigh more';
COMMENT ON COLUMN scorers_vs_humans.n IS 'trajectories that it judged, and people too';
COMMENT ON COLUMN scorers_vs_humans.verified IS 'of them, with V = 1';
COMMENT ON COLUMN scorers_vs_humans.solved IS 'of them, as people say';
COMMENT ON COLUMN scorers_vs_humans.true_positives IS 'both';
COMMENT ON COLUMN scorers_vs_humans.precision IS 'true_positives / verified, with its 95% interval';
COMMENT ON COLUMN scorers_vs_humans.recall IS 'true_positives / solved, with its 95% interval';

CREATE VIEW scorer_accuracy AS
    WITH verified AS (
        SELECT iteration, trajectory_id, max_by(success, (current IS NOT false, version)) AS truly FROM score_history
        WHERE split_part(scorer, ':', 1) = 'verifier' AND success IS NOT NULL GROUP BY ALL),
    settled AS (
        SELECT iteration, trajectory_id, label = 'solved' AS truly FROM human_labels WHERE label IN ('solved', 'not solved')),
    items AS (
        SELECT v.*, 'verifier' AS truth, s.truly IS NOT NULL AS shared
        FROM verified v LEFT JOIN settled s USING (iteration, trajectory_id)
        UNION ALL SELECT s.*, 'people', v.truly IS NOT NULL
        FROM settled s LEFT JOIN verified v USING (iteration, trajectory_id)),
    judged AS (
        SELECT split_part(scorer, ':', 1) AS scorer, version, t.domain, truth,
            unnest(if(shared, ['all', 'both'], ['all'])) AS items, success, truly,
            success IS NULL AND abstained IS true AS abstained
        FROM score_history JOIN items USING (iteration, trajectory_id) JOIN trajectories t USING (iteration, trajectory_id)
        WHERE split_part(scorer, ':', 1) NOT IN ('', 'person', truth)),
    counts AS (
        SELECT scorer, version, coalesce(domain, 'all') AS domain, truth, items, count(success) AS n,
            count(*) FILTER (WHERE success AND truly) AS true_positives, count(*) FILTER (WHERE success AND NOT truly) AS false_positives,
            count(*) FILTER (WHERE NOT success AND truly) AS false_negatives,
            count(*) FILTER (WHERE NOT success AND NOT truly) AS true_negatives, count(*) FILTER (WHERE abstained) AS abstained,
            count(*) - n - count(*) FILTER (WHERE abstained) AS failed
        FROM judged GROUP BY GROUPING SETS ((scorer, version, truth, items), (scorer, version, truth, items, domain)))
    SELECT *, abstained / (n + abstained + failed) AS abstention_rate,
        true_positives / nullif(true_positives + false_positives, 0) AS precision,
        wilson_low(true_positives, true_positives + false_positives) AS precision_low,
        wilson_high(true_positives, true_positives + false_positives) AS precision_high,
        true_negatives / nullif(true_negatives + false_negatives, 0) AS negative_predictive_value,
        wilson_low(true_negatives, true_negatives + false_negatives) AS negative_predictive_value_low,
        wilson_high(true_negatives, true_negatives + false_negatives) AS negative_predictive_value_high,
        (true_positives + true_negatives) / nullif(n, 0) AS agreement, wilson_low(true_positives + true_negatives, n) AS agreement_low,
        wilson_high(true_positives + true_negatives, n) AS agreement_high,
        ((true_positives + false_positives) * (true_positives + false_negatives)
            + (true_negatives + false_negatives) * (true_negatives + false_positives)) / nullif(n * n, 0) AS chance_agreement,
        if(chance_agreement < 1, (agreement - chance_agreement) / (1 - chance_agreement), NULL) AS kappa
    FROM counts ORDER BY scorer, version, truth, items, domain = 'all' DESC, domain;
COMMENT ON VIEW scorer_accuracy IS
    'How far each version of each scorer says what the verifier says, and what people say. Agreement with the verifier is agreement of two machines: only with people as truth does it say how far a scorer is right';
COMMENT ON COLUMN scorer_accuracy.version IS 'of the scorer, whose versions are not mixed; earlier ones are of `score_history`';
COMMENT ON COLUMN scorer_accuracy.domain IS '`all` for all of them';
COMMENT ON COLUMN scorer_accuracy.truth IS 'verifier, or people: two or more who agree, or one who decided between them';
COMMENT ON COLUMN scorer_accuracy.items IS 'all: of that truth; both: those on which verifier and people have spoken, for figures on the same items';
COMMENT ON COLUMN scorer_accuracy.n IS 'trajectories that it gave a verdict on';
COMMENT ON COLUMN scorer_accuracy.true_positives IS 'V = 1 by it, and by the truth';
COMMENT ON COLUMN scorer_accuracy.false_positives IS 'V = 1 by it, 0 by the truth';
COMMENT ON COLUMN scorer_accuracy.false_negatives IS 'V = 0 by it, 1 by the truth';
COMMENT ON COLUMN scorer_accuracy.true_negatives IS 'V = 0 by it, and by the truth';
COMMENT ON COLUMN scorer_accuracy.abstained IS 'further trajectories on which it gave none by design';
COMMENT ON COLUMN scorer_accuracy.failed IS 'further trajectories on which it failed';
COMMENT ON COLUMN scorer_accuracy.abstention_rate IS 'abstained / (n + abstained + failed)';
COMMENT ON COLUMN scorer_accuracy.precision IS 'of V = 1 by it, the share that is true, with its 95% interval';
COMMENT ON COLUMN scorer_accuracy.negative_predictive_value IS 'of V = 0 by it, the share that is true, with its 95% interval';
COMMENT ON COLUMN scorer_accuracy.agreement IS 'share with the truth''s verdict, with its 95% interval';
COMMENT ON COLUMN scorer_accuracy.chance_agreement IS 'share that would agree by chance';
COMMENT ON COLUMN scorer_accuracy.kappa IS 'Cohen''s: 1 is full agreement, 0 what chance alone would give; null where both always say one and the same';

COMMENT ON VIEW decision_files IS 'The text of each iteration''s decisions.json, of which the view `route_reviews` is made';

CREATE VIEW route_reviews AS
    SELECT iteration, row ->> 'trajectory_id' AS trajectory_id, row ->> 'domain' AS domain, row ->> 'drawn' AS sampling,
        row ->> 'destination' AS destination, (row ->> 'score')::DOUBLE AS score, (row ->> 'success')::BOOLEAN AS success,
        row ->> 'label' AS label, row ->> 'reviewer' AS reviewer, row ->> 'comment' AS comment,
        (row ->> 'at')::TIMESTAMPTZ AS at,
        coalesce(CASE label WHEN 'solved' THEN destination <> 'sft' WHEN 'not solved' THEN destination <> 'ct' END, false)
            AS moved, end_reason
    FROM (
        SELECT iteration, unnest((decision -> 'looked' -> 'asked')::JSON[]) AS row, decision -> 'looked' ->> 'ended' AS end_reason
        FROM (SELECT iteration, unnest((content -> 'decisions')::JSON[]) AS decision FROM decision_files))
    ORDER BY iteration, trajectory_id;
COMMENT ON VIEW route_reviews IS
    'The sample of each iteration that people were asked to look at before it trained (`routing.review`), and what was said';
COMMENT ON COLUMN route_reviews.sampling IS 'even: over domains and stores; doubtful: of those that scorers dispute or find hard';
COMMENT ON COLUMN route_reviews.destination IS 'where it had gone by the scorers';
COMMENT ON COLUMN route_reviews.success IS 'what scorers say';
COMMENT ON COLUMN route_reviews.label IS 'solved, not solved or cannot tell; null where nobody looked';
COMMENT ON COLUMN route_reviews.moved IS 'whether it went to another store by it';
COMMENT ON COLUMN route_reviews.end_reason IS 'why the look ended';

CREATE VIEW verifier_vs_humans AS
    WITH looked AS (
        SELECT iteration, domain, unnest(['any', sampling]) AS sampling, success, label = 'solved' AS solved
        FROM route_reviews WHERE label IN ('solved', 'not solved') AND success IS NOT NULL),
    counts AS (
        SELECT iteration, coalesce(domain, 'all') AS domain, sampling, count(*) AS n, count(*) FILTER (WHERE success AND solved) AS true_positives,
            count(*) FILTER (WHERE success AND NOT solved) AS false_positives, count(*) FILTER (WHERE NOT success AND solved) AS false_negatives,
            count(*) FILTER (WHERE NOT success AND NOT solved) AS true_negatives
        FROM looked GROUP BY GROUPING SETS (
            (sampling), (sampling, domain), (iteration, sampling), (iteration, sampling, domain)))
    SELECT *, (true_positives + true_negatives) / n AS agreement, wilson_low(true_positives + true_negatives, n) AS agreement_low,
        wilson_high(true_positives + true_negatives, n) AS agreement_high, true_positives / nullif(true_positives + false_positives, 0) AS precision,
        wilson_low(true_positives, true_positives + false_positives) AS precision_low,
        wilson_high(true_positives, true_positives + false_positives) AS precision_high,
        true_negatives / nullif(true_negatives + false_negatives, 0) AS negative_predictive_value,
        wilson_low(true_negatives, true_negatives + false_negatives) AS negative_predictive_value_low,
        wilson_high(true_negatives, true_negatives + false_negatives) AS negative_predictive_value_high
    FROM counts ORDER BY iteration NULLS FIRST, sampling, domain = 'all' DESC, domain;
COMMENT ON VIEW verifier_vs_humans IS
    'How often people and the verdict that routes are of one mind, of what people looked at before training';
COMMENT ON COLUMN verifier_vs_humans.iteration IS 'null: all of them';
COMMENT ON COLUMN verifier_vs_humans.domain IS '`all` for all of them';
COMMENT ON COLUMN verifier_vs_humans.sampling IS
    'even: those drawn evenly over domains and stores alone, so that of a domain `precision` and `negative_predictive_value` stand for all its trajectories; doubtful; any: both';
COMMENT ON COLUMN verifier_vs_humans.n IS 'trajectories with V and a label that is solved or not solved';
COMMENT ON COLUMN verifier_vs_humans.true_positives IS 'V = 1, and solved';
COMMENT ON COLUMN verifier_vs_humans.false_positives IS 'V = 1, and not solved as people say';
COMMENT ON COLUMN verifier_vs_humans.false_negatives IS 'V = 0, and solved as people say';
COMMENT ON COLUMN verifier_vs_humans.true_negatives IS 'V = 0, and not solved';
COMMENT ON COLUMN verifier_vs_humans.agreement IS 'share of one mind, with its 95% interval';
COMMENT ON COLUMN verifier_vs_humans.precision IS 'of V = 1, the share that people call solved, with its 95% interval';
COMMENT ON COLUMN verifier_vs_humans.negative_predictive_value IS 'of V = 0, the share that people call not solved, with its 95% interval';

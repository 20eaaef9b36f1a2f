-- Views for reviewers: what people say of single trajectories, how far they agree, and how far scorers agree with them.

COMMENT ON VIEW reviews IS
    'What people and rules decided of recordings and promotions, and what people say of single trajectories';
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
        SELECT a.reviewer AS one, b.reviewer AS other, unnest(['all', a.domain]) AS domain, a.label AS of_one,
            b.label AS of_other
        FROM blind a JOIN blind b
            ON (a.iteration, a.trajectory_id) = (b.iteration, b.trajectory_id) AND a.reviewer < b.reviewer),
    shares AS (
        SELECT one, other, domain, count(*) AS n, count(*) FILTER (WHERE of_one = of_other) AS alike,
            (count(*) FILTER (WHERE of_one = 'solved') * count(*) FILTER (WHERE of_other = 'solved')
                + count(*) FILTER (WHERE of_one = 'not solved') * count(*) FILTER (WHERE of_other = 'not solved')
                + count(*) FILTER (WHERE of_one = 'cannot tell') * count(*) FILTER (WHERE of_other = 'cannot tell'))
                / (count(*) * count(*)) AS chance
        FROM pairs WHERE domain IS NOT NULL GROUP BY ALL)
    SELECT one, other, domain, n, alike / n AS agree, wilson_low(alike, n) AS low, wilson_high(alike, n) AS high,
        chance, if(chance < 1, (agree - chance) / (1 - chance), NULL) AS kappa
    FROM shares ORDER BY one, other, domain = 'all' DESC, domain;
COMMENT ON VIEW reviewer_agreement IS
    'How far two reviewers say the same of the same trajectories, by their first labels, which they gave before they could see the other''s. Labels of who was asked to decide are left out: those trajectories were chosen for being disputed';
COMMENT ON COLUMN reviewer_agreement.domain IS '`all` for all of them';
COMMENT ON COLUMN reviewer_agreement.n IS 'trajectories that both labelled';
COMMENT ON COLUMN reviewer_agreement.agree IS 'share with the same label; `low`, `high`: its 95% interval';
COMMENT ON COLUMN reviewer_agreement.chance IS 'share that would agree by chance';
COMMENT ON COLUMN reviewer_agreement.kappa IS
    'Cohen''s, of three labels: 1 is full agreement, 0 what chance alone would give; null where both always said one and the same';

CREATE VIEW scorers_beside_people AS
    WITH settled AS (
        SELECT h.iteration, h.trajectory_id, h.label = 'solved' AS truly, h.queue, t.domain
        FROM human_labels h JOIN trajectories t USING (iteration, trajectory_id)
        WHERE h.label IN ('solved', 'not solved')),
    said AS (
        SELECT iteration, trajectory_id, scorer, v FROM scores
        UNION ALL SELECT iteration, trajectory_id, 'all together', v FROM routes),
    judged AS (
        SELECT scorer, domain, unnest(if(queue = 'random', ['any', 'random'], ['any'])) AS drawn, v, truly
        FROM said JOIN settled USING (iteration, trajectory_id) WHERE v IS NOT NULL),
    counts AS (
        SELECT scorer, coalesce(domain, 'all') AS domain, drawn, count(*) AS n,
            count(*) FILTER (WHERE v AND truly) AS hits, count(*) FILTER (WHERE v) AS verified,
            count(*) FILTER (WHERE truly) AS solved
        FROM judged GROUP BY GROUPING SETS ((scorer, drawn), (scorer, drawn, domain)))
    SELECT scorer, domain, drawn, n, verified, solved, hits, hits / nullif(verified, 0) AS precision,
        wilson_low(hits, verified) AS precision_low, wilson_high(hits, verified) AS precision_high,
        hits / nullif(solved, 0) AS recall, wilson_low(hits, solved) AS recall_low, wilson_high(hits, solved) AS recall_high
    FROM counts ORDER BY drawn DESC, scorer, domain = 'all' DESC, domain;
COMMENT ON VIEW scorers_beside_people IS
    'How far scorers say V = 1 where people say solved. It rests on trajectories on which two or more people agree, or that were decided; those of which they cannot tell are left out';
COMMENT ON COLUMN scorers_beside_people.scorer IS '`all together`: the verdict that trajectories are routed by';
COMMENT ON COLUMN scorers_beside_people.domain IS '`all` for all of them';
COMMENT ON COLUMN scorers_beside_people.drawn IS
    'random: those that were drawn at random alone, which stand for all trajectories; any: all, where those that scorers dispute, or of rare stores, weigh more';
COMMENT ON COLUMN scorers_beside_people.n IS 'trajectories that it judged, and people too';
COMMENT ON COLUMN scorers_beside_people.verified IS 'of them, with V = 1';
COMMENT ON COLUMN scorers_beside_people.solved IS 'of them, as people say';
COMMENT ON COLUMN scorers_beside_people.hits IS 'both';
COMMENT ON COLUMN scorers_beside_people.precision IS 'hits / verified, with its 95% interval';
COMMENT ON COLUMN scorers_beside_people.recall IS 'hits / solved, with its 95% interval';

COMMENT ON VIEW decision_files IS 'The text of each iteration''s decisions.json, of which the view `route_reviews` is made';

CREATE VIEW route_reviews AS
    SELECT iteration, row ->> 'trajectory_id' AS trajectory_id, row ->> 'domain' AS domain, row ->> 'drawn' AS drawn,
        row ->> 'destination' AS destination, (row ->> 'score')::DOUBLE AS score, (row ->> 'v')::BOOLEAN AS v,
        row ->> 'label' AS label, row ->> 'reviewer' AS reviewer, row ->> 'comment' AS comment,
        (row ->> 'at')::TIMESTAMPTZ AS at,
        coalesce(CASE label WHEN 'solved' THEN destination <> 'sft' WHEN 'not solved' THEN destination <> 'ct' END, false)
            AS moved, ended
    FROM (
        SELECT iteration, unnest((decision -> 'looked' -> 'asked')::JSON[]) AS row, decision -> 'looked' ->> 'ended' AS ended
        FROM (SELECT iteration, unnest((content -> 'decisions')::JSON[]) AS decision FROM decision_files))
    ORDER BY iteration, trajectory_id;
COMMENT ON VIEW route_reviews IS
    'The sample of each iteration that people were asked to look at before it trained (`routing.review`), and what was said';
COMMENT ON COLUMN route_reviews.drawn IS 'even: over domains and stores; doubtful: of those that scorers dispute or find hard';
COMMENT ON COLUMN route_reviews.destination IS 'where it had gone by the scorers';
COMMENT ON COLUMN route_reviews.v IS 'what scorers say';
COMMENT ON COLUMN route_reviews.label IS 'solved, not solved or cannot tell; null where nobody looked';
COMMENT ON COLUMN route_reviews.moved IS 'whether it went to another store by it';
COMMENT ON COLUMN route_reviews.ended IS 'why the look ended';

CREATE VIEW verifier_beside_people AS
    WITH looked AS (
        SELECT iteration, domain, unnest(['any', drawn]) AS drawn, v, label = 'solved' AS solved
        FROM route_reviews WHERE label IN ('solved', 'not solved') AND v IS NOT NULL),
    counts AS (
        SELECT iteration, coalesce(domain, 'all') AS domain, drawn, count(*) AS n, count(*) FILTER (WHERE v AND solved) AS both_solved,
            count(*) FILTER (WHERE v AND NOT solved) AS verifier_alone, count(*) FILTER (WHERE NOT v AND solved) AS people_alone,
            count(*) FILTER (WHERE NOT v AND NOT solved) AS both_not
        FROM looked GROUP BY GROUPING SETS (
            (drawn), (drawn, domain), (iteration, drawn), (iteration, drawn, domain)))
    SELECT *, (both_solved + both_not) / n AS agree, wilson_low(both_solved + both_not, n) AS agree_low,
        wilson_high(both_solved + both_not, n) AS agree_high, both_solved / nullif(both_solved + verifier_alone, 0) AS verified_right,
        wilson_low(both_solved, both_solved + verifier_alone) AS verified_right_low,
        wilson_high(both_solved, both_solved + verifier_alone) AS verified_right_high,
        both_not / nullif(both_not + people_alone, 0) AS refused_right,
        wilson_low(both_not, both_not + people_alone) AS refused_right_low,
        wilson_high(both_not, both_not + people_alone) AS refused_right_high
    FROM counts ORDER BY iteration NULLS FIRST, drawn, domain = 'all' DESC, domain;
COMMENT ON VIEW verifier_beside_people IS
    'How often people and the verdict that routes are of one mind, of what people looked at before training';
COMMENT ON COLUMN verifier_beside_people.iteration IS 'null: all of them';
COMMENT ON COLUMN verifier_beside_people.domain IS '`all` for all of them';
COMMENT ON COLUMN verifier_beside_people.drawn IS
    'even: those drawn evenly over domains and stores alone, so that of a domain `verified_right` and `refused_right` stand for all its trajectories; doubtful; any: both';
COMMENT ON COLUMN verifier_beside_people.n IS 'trajectories with V and a label that is solved or not solved';
COMMENT ON COLUMN verifier_beside_people.both_solved IS 'V = 1, and solved';
COMMENT ON COLUMN verifier_beside_people.verifier_alone IS 'V = 1, and not solved as people say';
COMMENT ON COLUMN verifier_beside_people.people_alone IS 'V = 0, and solved as people say';
COMMENT ON COLUMN verifier_beside_people.both_not IS 'V = 0, and not solved';
COMMENT ON COLUMN verifier_beside_people.agree IS 'share of one mind, with its 95% interval';
COMMENT ON COLUMN verifier_beside_people.verified_right IS 'of V = 1, the share that people call solved, with its 95% interval';
COMMENT ON COLUMN verifier_beside_people.refused_right IS 'of V = 0, the share that people call not solved, with its 95% interval';

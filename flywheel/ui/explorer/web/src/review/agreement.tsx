// How far reviewers agree with one another, and scorers with them.
import { useState } from "preact/hooks";
import { type Row, useAnswer, useStanding } from "../api";
import { count, Empty, Failure, Loading, share } from "../parts";

export function Agreement() {
  const { data, error } = useAnswer("/api/review/agreement", useStanding());
  const [sampling, setSampling] = useState("any");
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the agreement" />;
  if (!data.states.length && !data.recordings.length) return <Empty>Nobody has labelled anything yet. Two reviewers who label the same samples are compared here, and scorers with them.</Empty>;
  const scorers = data.scorers.filter((row: Row) => row.sampling === sampling);
  return (
    <>
      {data.states.length > 0 && (
        <div class="about">
          <Counts title="Reviewers" rows={data.reviewers} name="reviewer" of="trajectories labelled" />
          <Counts title="Trajectories" rows={data.states} name="state" of="in this state" />
        </div>
      )}
      <section class="part">
        <h2>Between reviewers</h2>
        <p class="soft">First labels of two who did not see one another’s. Kappa is 1 where they always agree, 0 where chance alone would give as much.</p>
        {data.pairs.length ? (
          <Table
            name="Agreement of reviewers"
            heads={["Reviewers", "Domain", "Both labelled", "Alike", "95% interval", "Cohen’s kappa"]}
            rows={data.pairs.map((row: Row) => [`${row.reviewer_a}, ${row.reviewer_b}`, row.domain, count(row.n), share(row.agreement), range(row.low, row.high), row.kappa == null ? "–" : row.kappa.toFixed(2)])}
          />
        ) : (
          <Empty>No two reviewers have labelled the same trajectory yet.</Empty>
        )}
        <Ask sql="FROM reviewer_agreement" />
      </section>
      <section class="part">
        <h2>Between reviewers of recordings</h2>
        <p class="soft">
          The two who answered without seeing one another’s answers. Krippendorff’s alpha and Gwet’s AC1 are 1 where they always agree, 0 where chance alone would give as much; where nearly all answers are the same, alpha is low however much they agree.
        </p>
        {data.recordings.length ? (
          <Table
            name="Agreement on recordings"
            heads={["Question", "Compared", "Alike", "Alpha", "95% interval", "AC1", "95% interval"]}
            rows={data.recordings.map((row: Row) => [row.question, count(row.n), share(row.alike), figure(row.alpha), between(row.alpha_low, row.alpha_high), figure(row.ac1), between(row.ac1_low, row.ac1_high)])}
          />
        ) : (
          <Empty>No two reviewers have looked at the same recording yet.</Empty>
        )}
        <Ask sql="FROM recording_verdicts" />
      </section>
      <section class="part">
        <h2>Scorers beside people</h2>
        <p class="soft">Precision: of what a scorer verified, the share that people call solved. Recall: of what people call solved, the share that it verified. On trajectories that people agree on, or that were decided.</p>
        <div class="choices">
          <label>
            Samples{" "}
            <select value={sampling} onChange={(event) => setSampling(event.currentTarget.value)}>
              <option value="any">of all queues</option>
              <option value="random">drawn at random alone</option>
            </select>
          </label>
          <span class="soft small">{sampling === "any" ? "Disputed ones and rare stores weigh more than in life." : "These stand for all trajectories."}</span>
        </div>
        {scorers.length ? (
          <Table
            name="Scorers beside people"
            heads={["Scorer", "Domain", "n", "Precision", "95% interval", "Recall", "95% interval"]}
            rows={scorers.map((row: Row) => [
              row.scorer,
              row.domain,
              count(row.n),
              of(row.precision, row.true_positives, row.verified),
              range(row.precision_low, row.precision_high),
              of(row.recall, row.true_positives, row.solved),
              range(row.recall_low, row.recall_high),
            ])}
          />
        ) : (
          <Empty>Nothing yet: two reviewers have to agree on a trajectory, or a third to decide it.</Empty>
        )}
        <Ask sql="FROM scorers_vs_humans" />
      </section>
    </>
  );
}

const of = (value: number | null, hits: number, all: number) => (value == null ? "–" : `${share(value)} (${hits} of ${all})`);
const range = (low: number | null, high: number | null) => (low == null ? "–" : `${share(low)} to ${share(high)}`);

const figure = (value: number | null) => (value == null ? "–" : value.toFixed(2));
const between = (low: number | null, high: number | null) => (low == null ? "–" : `${figure(low)} to ${figure(high)}`);

function Ask({ sql }: { sql: string }) {
  return (
    <p class="small">
      <a href={`/sql?sql=${encodeURIComponent(sql)}`}>In SQL: {sql}</a>
    </p>
  );
}

function Counts({ title, rows, name, of }: { title: string; rows: Row[]; name: string; of: string }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      <dl class="facts">
        {rows.map((row) => (
          <>
            <dt>{row[name]}</dt>
            <dd>
              {count(row.n)} <span class="soft">{of}</span>
            </dd>
          </>
        ))}
      </dl>
    </section>
  );
}

export function Table({ name, heads, rows }: { name: string; heads: string[]; rows: (string | preact.JSX.Element)[][] }) {
  return (
    <div class="card wide figures" tabIndex={0} role="region" aria-label={name}>
      <table>
        <thead>
          <tr>
            {heads.map((head, n) => (
              <th scope="col" class={n < 2 ? "left" : ""}>
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>
              {row.map((cell, n) => (n === 0 ? <th scope="row">{cell}</th> : <td class={n < 2 ? "left" : ""}>{cell}</td>))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

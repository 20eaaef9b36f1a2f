// The decision about each iteration's model, and of one of them what it rests on, in the order in which it should be
// read: where it waits for a person it is made here, where it is carried out it is reversed.
import { useState } from "preact/hooks";
import { useAddress, withValues } from "../address";
import { type Answer, post, type Row, useAnswer } from "../api";
import { Empty, Failure, label, Loading, several, short, when } from "../parts";
import { Table } from "./agreement";

interface PromotionsProps {
  waiting: Answer<Row[]>;
  reviewer: string;
  // Changes when a decision was made, here or elsewhere.
  standing: string;
  onDecided: () => void;
}

export function Promotions({ waiting, reviewer, standing, onDecided }: PromotionsProps) {
  const url = useAddress();
  const made = useAnswer<Row[]>("/api/decisions", standing);
  const error = waiting.error ?? made.error;
  if (error) return <Failure error={error} />;
  if (!waiting.data || !made.data) return <Loading what="the decisions" />;
  const all = waiting.data.map((row) => row.iteration as number);
  const asked = Number(url.searchParams.get("iteration") ?? all[0] ?? made.data[0]?.iteration ?? 0);
  if (!asked) return <Empty>No iteration is evaluated yet, so nothing is decided. <code>flywheel run</code> makes one.</Empty>;
  return (
    <>
      <All rows={made.data} waiting={all} asked={asked} />
      {all.length === 0 && (
        <p class="soft small">
          No promotion waits. Where <code>promotion.rule</code> is <code>review</code>, a run waits here for a person after its evaluation.
        </p>
      )}
      <Case iteration={asked} reviewer={reviewer} made={made.data.find((row) => row.iteration === asked)} onDecided={onDecided} key={asked} />
    </>
  );
}

// A row an iteration: who decided what, why, and what it replaced.
function All({ rows, waiting, asked }: { rows: Row[]; waiting: number[]; asked: number }) {
  const url = useAddress();
  return (
    <div class="card wide all" tabIndex={0} role="region" aria-label="Decisions">
      <table>
        <thead>
          <tr>
            <th scope="col">Iteration</th>
            <th scope="col" class="left">Its model</th>
            <th scope="col" class="left">By</th>
            <th scope="col" class="left">When</th>
            <th scope="col" class="left">Why</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const last = row.said.at(-1);
            return (
              <tr>
                <th scope="row">
                  <a href={withValues(url, { iteration: String(row.iteration) })} aria-current={row.iteration === asked ? "true" : undefined}>
                    {label(row.iteration)}
                  </a>
                </th>
                <td class="left">{row.promoted == null ? <span class="soft">{waiting.includes(row.iteration) ? "waits for a reviewer" : "not decided yet"}</span> : row.promoted ? "promoted" : "kept back"}</td>
                <td class="left">{last?.reviewer ?? "–"}</td>
                <td class="left">{when(last?.at ?? null)}</td>
                <td class="left told">
                  {row.reason || "–"}
                  {row.said.slice(0, -1).map((one: Row) => (
                    <span class="small soft between">
                      Before: {one.reviewer}, {one.decision}, {when(one.at)}
                      {one.comment ? `: ${one.comment}` : ""}
                    </span>
                  ))}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

interface CaseProps {
  iteration: number;
  reviewer: string;
  made?: Row;
  onDecided: () => void;
}

function Case({ iteration, reviewer, made, onDecided }: CaseProps) {
  const [decided, again] = useState(0);
  const { data, error } = useAnswer(`/api/promotions/${iteration}`, decided);
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="what the decision rests on" />;
  const others = data.figures.filter((row: Row) => !DECIDING.test(row.name));
  const lost = data.flips.filter((one: Row) => !one.gained);
  const gained = data.flips.filter((one: Row) => one.gained);
  return (
    <>
      <h2 class="asked">{data.open ? `Promote the merged model of iteration ${label(iteration)}?` : `The merged model of iteration ${label(iteration)}${made?.promoted == null ? "" : made.promoted ? " was promoted" : " was kept back"}`}</h2>
      {data.open && data.decisions.length > 0 && <Decided decisions={data.decisions} running={data.running} />}
      <section class="part">
        <h2>What the test of fresh tasks says</h2>
        {data.reasons.map((reason: string) => (
          <p class="notice">{reason[0].toUpperCase() + reason.slice(1)}.</p>
        ))}
        {data.reasons.length === 0 && <p class="soft">Nothing: its weights are those of the model that it would replace.</p>}
      </section>
      <section class="part">
        <h2>Success of the old model and the new one</h2>
        <Differences figures={data.figures} />
      </section>
      <section class="part">
        <h2>Tasks lost and gained</h2>
        <div class="two">
          <Flips title="Lost" rows={lost} />
          <Flips title="Gained" rows={gained} />
        </div>
      </section>
      <details class="part">
        <summary>All other figures of the evaluation</summary>
        <Figures name="Other figures" rows={others} />
      </details>
      {data.open || (made && made.promoted != null && !made.obstacle) ? (
        <Decide iteration={iteration} reviewer={reviewer} replaces={data.decisions.length > 0} promoted={data.open ? undefined : made!.promoted} onDecided={() => (again(decided + 1), onDecided())} />
      ) : (
        <p class="notice">{made?.promoted == null ? "The rule decides it when the run goes on." : `This decision cannot be overridden now: ${made.obstacle}.`}</p>
      )}
    </>
  );
}

const DECIDING = /^(gate_difference|gate_difference_best|success_(difference|before|after))$/;
const decimals = (value: number | null | undefined) => (value == null ? "–" : value.toFixed(2).replace("-", "−"));
const signed = (value: number) => (value > 0 ? "+" : "") + decimals(value);

// A row for fresh tasks, which the gate has played to decide, and one for the held-out tasks of each domain.
function Differences({ figures }: { figures: Row[] }) {
  const of = (name: string, domain: string) => figures.find((row) => row.name === name && row.domain === domain);
  const row = (tasks: string, difference: Row, domain?: string) => [
    tasks,
    <Difference row={difference} />,
    decimals(domain && of("success_before", domain)?.value),
    decimals(domain && of("success_after", domain)?.value),
    short(difference.n),
  ];
  const named = (name: string) => figures.filter((one) => one.name === name);
  return (
    <Table
      name="Differences"
      heads={["Tasks", "Difference", "Old", "New", "n"]}
      rows={[
        ...named("gate_difference").map((one) => row("fresh", one)),
        ...named("gate_difference_best").map((one) => row("fresh, against the best so far", one)),
        ...named("success_difference").map((one) => row(one.domain === "all" ? "held-out" : one.domain, one, one.domain)),
      ]}
    />
  );
}

function Difference({ row }: { row: Row }) {
  if (row.value == null) return <>–</>;
  const sure = row.low == null ? "" : row.low > 0 ? "good" : row.high < 0 ? "bad" : "";
  return (
    <>
      <strong class={sure}>{signed(row.value)}</strong>
      {row.low != null && <span class="soft small between">{signed(row.low)} to {signed(row.high)}</span>}
    </>
  );
}

function Figures({ name, rows }: { name: string; rows: Row[] }) {
  return (
    <Table
      name={name}
      heads={["Figure", "Domain", "Value", "95% interval", "n"]}
      rows={rows.map((row) => [row.name.replaceAll("_", " "), row.domain, decimals(row.value), row.low == null ? "–" : `${decimals(row.low)} to ${decimals(row.high)}`, short(row.n)])}
    />
  );
}

function Flips({ title, rows }: { title: string; rows: Row[] }) {
  const to = (id: string) => `/trajectories/${encodeURIComponent(id)}`;
  return (
    <div class="card tasks">
      <h3>
        {title}: {several(rows.length, "task")}
      </h3>
      {rows.length > 0 && (
        <ul class="others">
          {rows.map((one) => (
            <li>
              <a href={`/compare?a=${encodeURIComponent(one.trajectory_before)}&b=${encodeURIComponent(one.trajectory_id)}`}>{one.instruction}</a>
              <span class="soft small between">
                {one.domain} / {one.world} · <a href={to(one.trajectory_before)}>as the old one played</a> (<code>{one.before}</code>) · <a href={to(one.trajectory_id)}>as the new one played</a>
              </span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function Decided({ decisions, running }: { decisions: Row[]; running: boolean }) {
  const last = decisions.at(-1)!;
  return (
    <div class="notice" role="status">
      <strong>
        {last.reviewer} said: {last.promote ? "promote" : "keep the old model"}
      </strong>{" "}
      ({when(last.at)} UTC{last.comment ? `, “${last.comment}”` : ""}). {running ? "The run that waits goes on with it in a moment." : <><code>flywheel run</code> goes on with it.</>} Until then another decision replaces it.
      {decisions.slice(0, -1).map((one) => (
        <span class="small soft between">
          Before: {one.reviewer}, {one.promote ? "promote" : "keep"}, {when(one.at)}
          {one.comment ? `, “${one.comment}”` : ""}
        </span>
      ))}
    </div>
  );
}

interface DecideProps {
  iteration: number;
  reviewer: string;
  replaces: boolean;
  // What was decided and carried out, which is then reversed; undefined: nothing yet.
  promoted?: boolean;
  onDecided: () => void;
}

function Decide({ iteration, reviewer, replaces, promoted, onDecided }: DecideProps) {
  const override = promoted !== undefined;
  const [busy, work] = useState(false);
  const [comment, setComment] = useState("");
  const [chosen, choose] = useState<boolean>();
  const [error, fail] = useState("");
  const send = async () => {
    work(true);
    try {
      await post(`/api/promotions/${iteration}`, { promote: chosen, reviewer, comment, override });
      choose(undefined);
      fail("");
      setComment("");
      onDecided();
      scrollTo(0, 0); // where it says what was decided
    } catch (error) {
      fail((error as Error).message);
    }
    work(false);
  };
  const words = (promote: boolean) => (override ? `Override: ${promote ? "promote it after all" : "go back to the old model"}` : promote ? "Promote the new model" : "Keep the old model");
  return (
    <section class="card verdict" aria-label="Your decision">
      <label class="comment">
        <span>Why</span>
        <textarea rows={2} maxLength={2000} value={comment} placeholder={override ? "The reason of the override: it is kept with the decision" : "Kept with the decision"} onInput={(event) => setComment(event.currentTarget.value)} />
      </label>
      {chosen === undefined ? (
        <div class="says">
          {[true, false].filter((one) => one !== promoted).map((one) => (
            <button type="button" disabled={override && !comment.trim()} onClick={() => choose(one)}>
              {words(one)} …
            </button>
          ))}
          {override && <span class="small soft">It takes a reason, and holds for the iteration that begins next.</span>}
        </div>
      ) : (
        <div class="says" role="group" aria-label="Are you sure?">
          <strong>
            {words(chosen)}, as {reviewer}
            {replaces ? ", in place of what was decided before" : ""}?
          </strong>
          <button type="button" class="main" disabled={busy} onClick={send} ref={(button) => void (busy || button?.focus())}>
            {busy ? "It is carried out …" : "Yes, decide"}
          </button>
          <button type="button" onClick={() => choose(undefined)}>
            No
          </button>
        </div>
      )}
      {error && <Failure error={error} />}
    </section>
  );
}

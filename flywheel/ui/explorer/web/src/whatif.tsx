// What would have come of a step with one thing changed: begun here where the server may run things, else the command.
import { useEffect, useState } from "preact/hooks";
import { post, type Row, useAnswer } from "./api";
import { Failure, short } from "./parts";

const KINDS: Record<string, string> = {
  action: "Do this in its place, as the model writes it",
  thought: "Begin the step with this thought",
  instruction: "Go on with another instruction",
  temperature: "Sample at another temperature",
  model: "Let another checkpoint go on",
};
const POLL_MS = 1000;
const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
const signed = (value: number) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

export function WhatIf({ run, n, step, task, others }: { run: Row; n: number; step: Row; task: string; others: string[] }) {
  const [kind, setKind] = useState("action");
  const [value, setValue] = useState("");
  const [runs, setRuns] = useState(8);
  const [again, ask] = useState(0);
  const [error, fail] = useState("");
  const { data, error: lost } = useAnswer(`/api/counterfactuals?task=${encodeURIComponent(task)}`, again);
  const busy = Boolean(data?.running);
  // Once an answer has come, and not before: a slow server is not asked again meanwhile.
  useEffect(() => {
    if (!busy) return;
    const timer = setTimeout(() => ask((n) => n + 1), POLL_MS);
    return () => clearTimeout(timer);
  }, [data]);
  const begin = (event: Event) => {
    event.preventDefault();
    fail("");
    post("/api/counterfactuals", { trajectory_id: run.trajectory_id, step: step.step, kind, value, runs }).then(
      () => ask((n) => n + 1),
      (error) => fail(error.message),
    );
  };
  const own = data?.results.filter((one: Row) => one.trajectory_id === run.trajectory_id && one.step === step.step) ?? [];
  const proposals: string[] = kind === "action" ? others : kind === "model" ? (data?.models ?? []) : [];
  const command = `flywheel model counterfactual ${run.trajectory_id} --step ${step.step} --${kind} ${quoted(value || "…")} --runs ${runs}`;
  return (
    <details class="card whatif">
      <summary>What if? Change one thing here, and run again</summary>
      <form onSubmit={begin}>
        <label>
          Change{" "}
          <select value={kind} onChange={(event) => (setKind(event.currentTarget.value), setValue(""))}>
            {Object.keys(KINDS).map((name) => (
              <option value={name}>{name}</option>
            ))}
          </select>
        </label>
        <input aria-label={KINDS[kind]} placeholder={KINDS[kind]} required maxLength={4000} list="whatif-values" value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        <datalist id="whatif-values">
          {proposals.map((one) => (
            <option value={one} />
          ))}
        </datalist>
        <label>
          runs <input type="number" min={1} max={64} value={runs} onInput={(event) => setRuns(Number(event.currentTarget.value))} />
        </label>
        <button class="main" disabled={!data?.allowed || busy}>
          Run {runs || 0} with and {runs || 0} without
        </button>
      </form>
      {(error || lost) && <Failure error={error || lost!} />}
      {data?.error && !busy && <Failure error={data.error} />}
      {busy && (
        <p role="status">
          <progress max={data.running.total} value={data.running.done} aria-label="Runs that are over" /> {data.running.done} of {data.running.total} runs are over: step {data.running.step} of <code>{data.running.trajectory_id}</code>, another {data.running.change.kind}
        </p>
      )}
      {data && !data.allowed && (
        <>
          <p class="soft small">
            This server may not run anything: <code>flywheel ui --allow-runs</code> may. Or type:
          </p>
          <pre tabIndex={0}>{command}</pre>
        </>
      )}
      <ul class="others" aria-label="What came of it">
        {own.map((one: Row) => (
          <li>
            {one.change.kind} <code>{one.change.value}</code>: V = 1 in {one.with.solved} of {one.with.judged}, without it in {one.without.solved} of {one.without.judged}
            {one.difference.pairs > 0 && (
              <span class="soft small">
                {" "}
                ({signed(one.difference.value)} [{signed(one.difference.low)}, {signed(one.difference.high)}], {one.difference.pairs} pairs of the same seed)
              </span>
            )}
            {one.with.crashed + one.without.crashed > 0 && <span class="soft small"> {short(one.with.crashed + one.without.crashed)} crashed, not counted</span>}{" "}
            <a class="small" href={`/tasks/${encodeURIComponent(task)}?source=counterfactual`}>
              the runs
            </a>
          </li>
        ))}
      </ul>
      <p class="soft small">Runs of this kind, of run {n + 1} or another, are stored, but never trained on or counted.</p>
    </details>
  );
}

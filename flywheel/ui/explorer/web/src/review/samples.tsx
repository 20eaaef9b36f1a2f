// The queue of samples, and the one that is labelled.
import { useEffect, useRef, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { post, type Row, useAnswer, useStanding } from "../api";
import { count, Empty, Failure, label, Loading, several, useNarrow } from "../parts";
import { Item } from "./item";

const QUEUES: [string, string, string][] = [
  ["random", "At random", "Every trajectory that was routed has the same chance: what you find stands for all of them."],
  ["route", "Evenly by store", "As many of SFT, CT and quarantine, without telling which is which."],
  ["routing", "Before training", "What a run asks for before it trains: a label here moves the trajectory to the store it belongs in."],
  ["disagreement", "Scorers disagree", "Some scorers say V = 1, others V = 0."],
  ["speech", "Hardly understood", "Recordings, those first whose speech the recognizer was least sure of."],
  ["decide", "To decide", "Two reviewers disagree: you are the third."],
];

export function Samples({ reviewer }: { reviewer: string }) {
  const url = useAddress();
  const standing = useStanding();
  const [said, say] = useState(0);
  const choices = useAnswer("/api/review/choices", standing);
  const asked = (name: string, otherwise: string) => url.searchParams.get(name) ?? otherwise;
  const queue = asked("queue", "random");
  const iteration = asked("iteration", String(choices.data?.iterations[0] ?? "all"));
  const query = new URLSearchParams({ reviewer, queue, seed: asked("seed", "1"), size: asked("size", "50") });
  if (iteration !== "all") query.set("iteration", iteration);
  for (const name of ["domain", "whose"]) if (url.searchParams.get(name)) query.set(name, url.searchParams.get(name)!);
  const { data, error } = useAnswer(choices.data ? `/api/review/queue?${query}` : null, `${standing} ${said}`);
  if (choices.error) return <Failure error={choices.error} />;
  if (!choices.data) return <Loading what="the queue" />;
  if (!choices.data.iterations.length) {
    return (
      <Empty>
        Nothing has been routed yet, so there is nothing to review. <code>flywheel run</code> routes what it made; it appears here by itself.
      </Empty>
    );
  }
  const rows: Row[] = data?.rows ?? [];
  const at = rows.findIndex((row) => row.trajectory_id === url.searchParams.get("item"));
  const open = rows.filter((row) => row.state === "open");
  const id = url.searchParams.get("item") ?? (open[0] ?? rows[0])?.trajectory_id;
  const show = (name: string | null, replace = false) => go(withValues(new URL(location.href), { item: name, step: null }), replace);
  const next = () => {
    const after = [...rows.slice(at + 1), ...rows.slice(0, at + 1)].find((row) => row.state === "open" && row.trajectory_id !== id);
    if (after) show(after.trajectory_id);
    return !!after;
  };
  return (
    <div class="review">
      <Queue choices={choices.data} drawn={data} rows={rows} queue={queue} iteration={iteration} id={id} show={show} reviewer={reviewer} onShared={() => say(said + 1)} />
      <div>
        {error && <Failure error={error} />}
        {!error && !data && <Loading what="the samples" />}
        {data && !rows.length && !id && <Nothing queue={queue} whose={url.searchParams.get("whose") ?? ""} />}
        {id && <Item id={id} reviewer={reviewer} queue={queue} choices={choices.data} next={next} onSaid={(moved) => (moved || show(id, true), say(said + 1))} key={id} />}
      </div>
    </div>
  );
}

function Nothing({ queue, whose }: { queue: string; whose: string }) {
  if (whose === "mine") return <Empty>Nothing here is yours to label: take some, or let others give you theirs.</Empty>;
  if (whose) return <Empty>Nothing here is {whose === "nobody" ? "nobody’s" : `${whose}’s`} to label.</Empty>;
  if (queue === "decide") return <Empty>Nothing to decide: where two reviewers have labelled the same trajectory, they agree, or a third has decided.</Empty>;
  if (queue === "disagreement") return <Empty>No two scorers disagree here. Where a domain has one scorer alone, none can (<code>routing.scorers</code>).</Empty>;
  if (queue === "routing") return <Empty>No iteration asks for labels before it trains. <code>routing.review</code> makes the next one ask.</Empty>;
  if (queue === "speech") return <Empty>No recording with speech here.</Empty>;
  return <Empty>Nothing is like that: choose another iteration or domain.</Empty>;
}

interface QueueProps {
  choices: Row;
  drawn?: Row;
  rows: Row[];
  queue: string;
  iteration: string;
  id?: string;
  show: (id: string) => void;
  reviewer: string;
  onShared: () => void;
}

function Queue(props: QueueProps) {
  const narrow = useNarrow(860);
  const { rows, queue, iteration } = props;
  const parts = (
    <>
      <Drawing {...props} />
      {rows.length > 0 && <Rows {...props} />}
    </>
  );
  // Beside the sample where there is room; else it would stand before each sample, so it is opened when it is wanted.
  return (
    <section class="card queue" aria-label="Queue">
      {narrow ? (
        <details>
          <summary>
            {QUEUES.find(([name]) => name === queue)?.[1]}, {iteration === "all" ? "all iterations" : `iteration ${label(+iteration)}`}:{" "}
            {rows.filter((row) => row.state === "open").length} open
          </summary>
          {parts}
        </details>
      ) : (
        parts
      )}
    </section>
  );
}

// Which samples are drawn, and how.
function Drawing(props: QueueProps) {
  const { choices, drawn, queue, iteration } = props;
  const candidates = drawn?.candidates;
  const url = useAddress();
  const whose = url.searchParams.get("whose") ?? "";
  const choose = (values: Record<string, string | null>) => go(withValues(url, { ...values, item: null, step: null }));
  const number = (name: string, text: string, otherwise: string, most: number) => (
    <label>
      {text}{" "}
      <input type="number" min={name === "seed" ? 0 : 1} max={most} value={url.searchParams.get(name) ?? otherwise} onChange={(event) => choose({ [name]: event.currentTarget.value })} />
    </label>
  );
  return (
    <>
      <label>
        Queue
        <select value={queue} onChange={(event) => choose({ queue: event.currentTarget.value })}>
          {QUEUES.map(([name, title]) => (
            <option value={name}>
              {title}
              {candidates ? ` (${count(candidates[name])})` : ""}
            </option>
          ))}
        </select>
      </label>
      <p class="soft small">{QUEUES.find(([name]) => name === queue)?.[2]}</p>
      <div class="pair">
        <label>
          Iteration
          <select value={iteration} onChange={(event) => choose({ iteration: event.currentTarget.value })}>
            {choices.iterations.map((k: number) => (
              <option value={k}>{label(k)}</option>
            ))}
            <option value="all">all</option>
          </select>
        </label>
        <label>
          Domain
          <select value={url.searchParams.get("domain") ?? ""} onChange={(event) => choose({ domain: event.currentTarget.value })}>
            <option value="">all</option>
            {choices.domains.map((name: string) => (
              <option value={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      <label>
        Whose
        <select value={whose} onChange={(event) => choose({ whose: event.currentTarget.value })}>
          <option value="">everybody’s</option>
          <option value="mine">mine ({count(drawn?.owners.find((one: Row) => one.owner === drawn.me)?.n ?? 0)})</option>
          <option value="nobody">nobody’s</option>
          {(drawn?.owners ?? []).filter((one: Row) => one.owner !== drawn!.me).map((one: Row) => (
            <option value={one.owner}>
              {one.owner} ({count(one.n)})
            </option>
          ))}
          {whose && !["mine", "nobody"].includes(whose) && !drawn?.owners.some((one: Row) => one.owner === whose) && <option value={whose}>{whose} (0)</option>}
        </select>
      </label>
      <Share {...props} />
      <details>
        <summary>How it is drawn</summary>
        <div class="pair">
          {number("size", "How many", "50", 500)}
          {number("seed", "Seed", "1", 1e9)}
        </div>
        <p class="soft small">The same seed, size and filters are the same trajectories for every reviewer: send the link. Two label each, blind; a third decides where they disagree.</p>
      </details>
    </>
  );
}

// Gives the next samples of nobody to a person, who alone labels them until that is done.
function Share({ rows, reviewer, onShared }: QueueProps) {
  const [state, set] = useState<{ error?: string; told?: string }>({});
  const free = rows.filter((row) => !row.owner && row.state === "open");
  const give = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const owner = String(form.get("owner")).trim() || reviewer;
    const some = free.slice(0, Number(form.get("n"))).map((row) => row.trajectory_id);
    try {
      await post("/api/review/owners", { trajectory_ids: some, owner, reviewer });
      set({ told: `${several(some.length, "sample")}: ${owner}` });
      onShared();
    } catch (error) {
      set({ error: (error as Error).message });
    }
  };
  return (
    <details>
      <summary>Share them out</summary>
      <form onSubmit={give}>
        <div class="pair">
          <label>
            How many <input type="number" name="n" min={1} max={Math.max(free.length, 1)} defaultValue={String(Math.min(10, Math.max(free.length, 1)))} required />
          </label>
          <label>
            To <input name="owner" placeholder={reviewer} maxLength={60} autoCapitalize="none" />
          </label>
        </div>
        <button disabled={!free.length}>Give the next of nobody</button>
      </form>
      <p class="soft small" role="status">
        {state.told ?? `${several(free.length, "sample")} here ${free.length === 1 ? "is" : "are"} nobody’s. Whoever has one is the only one to label it, until that is done or it is released.`}
      </p>
      {state.error && <Failure error={state.error} />}
    </details>
  );
}

// How far the reviewer has come, and the samples.
function Rows({ rows, id, show }: QueueProps) {
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    const current = list.current?.querySelector<HTMLElement>("[aria-current]");
    if (current) list.current!.scrollTop = current.offsetTop - list.current!.clientHeight / 2;
  }, [id, rows.length]);
  const mine = rows.filter((row) => row.state === "mine");
  const open = rows.filter((row) => row.state === "open");
  const disputed = mine.filter((row) => row.together === "to decide").length;
  const theirs = rows.filter((row) => row.state === "theirs").length;
  const both = mine.length + open.length;
  return (
    <>
      <progress value={mine.length} max={both} aria-label={`${mine.length} of ${both} labelled by you`} />
      <p class="small" role="status">
        <strong>{mine.length}</strong> labelled by you, {open.length} open
        {theirs > 0 && `, ${theirs} of others`}
        {rows.length > both + theirs && `, ${rows.length - both - theirs} labelled by two others`}
        {disputed > 0 && `; ${disputed} disputed`}
      </p>
      <ol class="film" ref={list} aria-label={several(rows.length, "sample")}>
        {rows.map((row) => (
          <li>
            <button type="button" aria-current={row.trajectory_id === id ? "true" : undefined} onClick={() => show(row.trajectory_id)} class={row.state}>
              <span class="number">{row.place}</span>
              <span class="clamped">{row.instruction}</span>
              <span class="small soft">
                {row.domain} · {standingOf(row)}
              </span>
            </button>
          </li>
        ))}
      </ol>
    </>
  );
}

function standingOf(row: Row): string {
  if (row.state === "mine") return `you: ${row.label}${row.together === "one reviewer" ? "" : `, ${row.together}`}`;
  if (row.state === "theirs") return `for ${row.owner}`;
  if (row.owner) return "yours";
  if (row.state === "full") return "labelled by two";
  return row.reviewers ? "one label so far" : "no label yet";
}

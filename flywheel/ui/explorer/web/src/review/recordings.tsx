// Recordings before an iteration takes them in: two reviewers answer the same questions, blind, a third decides.
import { useLayoutEffect, useState } from "preact/hooks";
import { go, useAddress, withValues } from "../address";
import { post, type Row, useAnswer } from "../api";
import { Player } from "../pages/replay";
import { Empty, Failure, Loading, several, useNarrow } from "../parts";

export function Recordings({ reviewer }: { reviewer: string }) {
  const url = useAddress();
  const [said, say] = useState(0);
  const narrow = useNarrow(860);
  const { data, error } = useAnswer(`/api/review/recordings?reviewer=${encodeURIComponent(reviewer)}`, said);
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the recordings" />;
  const rows: Row[] = data.rows;
  if (!rows.length) {
    return (
      <Empty>
        No recording waits: all that lie here were taken in. New ones appear once they are whole; <code>flywheel review recordings TRAJECTORY --ask</code> puts a trajectory here.
      </Empty>
    );
  }
  const open = rows.filter((row) => row.open);
  const name = url.searchParams.get("item") ?? (open[0] ?? rows[0]).name;
  const show = (item: string, replace = false) => go(withValues(new URL(location.href), { item, step: null }), replace);
  const next = () => {
    const at = rows.findIndex((row) => row.name === name);
    const after = [...rows.slice(at + 1), ...rows.slice(0, at + 1)].find((row) => row.open && row.name !== name);
    if (after) show(after.name);
    return !!after;
  };
  const standing = (
    <>
      <strong>{open.length}</strong> open for you;{" "}
      {Object.entries(data.states)
        .map(([state, n]) => `${n} ${state}`)
        .join(", ")}
    </>
  );
  const list = (
    <>
      <p class="soft small">
        {data.needed ? `An iteration takes in what ${data.needed === 1 ? "one reviewer accepts" : "two accept, or a third"} (curation.reviewers).` : "An iteration takes them in without: curation.reviewers is 0."}
      </p>
      <ol class="film" aria-label={several(rows.length, "recording")}>
        {rows.map((row, n) => (
          <li>
            <button type="button" aria-current={row.name === name ? "true" : undefined} onClick={() => show(row.name)} class={row.open ? "open" : "full"}>
              <span class="number">{n + 1}</span>
              <span class="clamped">{row.instruction || row.name}</span>
              <span class="small soft">
                {row.iteration ? "a trajectory · " : ""}
                {row.state}, {several(row.reviews, "review")}
              </span>
            </button>
          </li>
        ))}
      </ol>
    </>
  );
  return (
    <div class="review">
      <section class="card queue" aria-label="Recordings">
        {narrow ? (
          <details>
            <summary>{standing}</summary>
            {list}
          </details>
        ) : (
          <>
            <p class="small" role="status">
              {standing}
            </p>
            {list}
          </>
        )}
      </section>
      <div>
        <Recording name={name} reviewer={reviewer} questions={data.questions} comment={data.comment} next={next} onSaid={() => (show(name, true), say(said + 1))} key={name} />
      </div>
    </div>
  );
}

interface Props {
  name: string;
  reviewer: string;
  questions: Record<string, string>;
  comment: number;
  next: () => boolean;
  onSaid: () => void;
}

function Recording({ name, reviewer, questions, comment: most, next, onSaid }: Props) {
  const [looked, look] = useState(0);
  const [answers, answer] = useState<Record<string, boolean>>({});
  const [comment, setComment] = useState("");
  const [state, set] = useState<{ error?: string; told?: string; busy?: boolean }>({});
  const { data, error } = useAnswer(`/api/review/recordings/${encodeURIComponent(name)}?reviewer=${encodeURIComponent(reviewer)}`, looked);
  const names = Object.keys(questions);
  const whole = names.every((question) => question in answers);
  const keep = async () => {
    if (!whole || state.busy || data?.obstacle) return;
    set({ busy: true });
    try {
      const kept = await post("/api/review/recordings", { name, answers, comment, reviewer, sha256: data.sha256 });
      set({ told: `Kept; it is ${(await kept.json()).state}.` });
    } catch (fault) {
      set({ error: (fault as Error).message });
    }
    look(looked + 1);
    onSaid();
  };
  const goOn = () => next() || set({ told: "No other recording is open for you." });
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      const on = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || on.closest("input:not([type=range]), textarea, select")) return;
      const question = names[Number(event.key) - 1];
      const act = question ? () => answer({ ...answers, [question]: !(answers[question] ?? false) }) : ({ a: () => answer(Object.fromEntries(names.map((one) => [one, true]))), k: keep, n: goOn } as Record<string, () => unknown>)[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the recording" />;
  return (
    <article aria-label="Recording">
      <h2 class="asked">{data.instruction || name}</h2>
      <p class="soft">
        {name} · {several(data.steps.length, "step")}
      </p>
      <section class="card verdict" aria-label="Your answers">
        {data.obstacle ? (
          <p class="told">{data.obstacle}.</p>
        ) : (
          <>
            {names.map((question, n) => (
              <div class="says" role="group" aria-label={questions[question]}>
                <span>
                  <kbd>{n + 1}</kbd> {questions[question]}
                </span>
                <span class="push" />
                {[true, false].map((yes) => (
                  <button type="button" class={answers[question] === yes ? "main" : ""} aria-pressed={answers[question] === yes} onClick={() => answer({ ...answers, [question]: yes })}>
                    {yes ? "Yes" : "No"}
                  </button>
                ))}
              </div>
            ))}
            <label class="comment">
              <span>Comment</span>
              <textarea rows={1} maxLength={most} value={comment} placeholder="Kept with the answers" onInput={(event) => setComment(event.currentTarget.value)} />
            </label>
          </>
        )}
        <div class="says">
          {!data.obstacle && (
            <>
              <button type="button" aria-keyshortcuts="a" onClick={() => answer(Object.fromEntries(names.map((one) => [one, true])))}>
                <kbd>A</kbd> Yes to all
              </button>
              <button type="button" class={whole ? "main" : ""} aria-keyshortcuts="k" disabled={!whole || state.busy} onClick={keep}>
                <kbd>K</kbd> Keep the answers
              </button>
            </>
          )}
          <button type="button" aria-keyshortcuts="n" onClick={goOn}>
            <kbd>N</kbd> Next
          </button>
        </div>
        <p class="small soft told" role="status">
          {state.told ?? (data.obstacle ? "" : "They are given once, and cannot be changed.")}
        </p>
        {state.error && <Failure error={state.error} />}
      </section>
      {data.said.length > 0 && (
        <div class="notice">
          <strong>It is {data.state}.</strong>{" "}
          {data.said.map((one: Row) => (
            <span>
              {one.reviewer}: {names.filter((question) => !one[question]).map((question) => `not ${question}`).join(", ") || "yes to all"}
              {one.comment ? ` (“${one.comment}”)` : ""}.{" "}
            </span>
          ))}
        </div>
      )}
      {data.sound && <audio controls preload="none" src={`/sound/recordings/${encodeURIComponent(name)}`} aria-label="What was said" />}
      {data.steps.length ? <Player steps={data.steps} iteration={data.screens} /> : <Empty>It has no steps.</Empty>}
    </article>
  );
}

// Where people say what they see: labels of single trajectories, recordings before they are taken in, how far they agree,
// promotions that wait.
import { useState } from "preact/hooks";
import { useAddress, withValues } from "../address";
import { type Row, useAnswer, useStanding } from "../api";
import { CopyLink } from "../parts";
import { Agreement } from "../review/agreement";
import { Name, useName } from "../review/name";
import { Promotions } from "../review/promotions";
import { Recordings } from "../review/recordings";
import { Samples } from "../review/samples";

export function Review() {
  const url = useAddress();
  const standing = useStanding();
  const [name, setName] = useName();
  const [decided, decide] = useState(0);
  const waiting = useAnswer<Row[]>("/api/promotions", `${standing} ${decided}`);
  const show = url.searchParams.get("show") ?? "samples";
  const parts = [
    ["samples", "Samples"],
    ["recordings", "Recordings"],
    ["agreement", "Agreement"],
    ["promotions", "Decisions"],
  ];
  const waits = waiting.data?.length;
  return (
    <>
      <div class="head">
        <h1>Review</h1>
        <nav class="either" aria-label="Parts of the review">
          {parts.map(([part, title]) => (
            <a href={withValues(new URL("/review", location.origin), { show: part })} aria-current={part === show ? "true" : undefined}>
              {title}{" "}
              {part === "promotions" && waits ? (
                <span class="waits">
                  {waits}
                  <span class="heard"> waiting</span>
                </span>
              ) : null}
            </a>
          ))}
        </nav>
        <span class="push" />
        {name && <Name name={name} setName={setName} />}
        <CopyLink />
      </div>
      {show === "agreement" ? (
        <Agreement />
      ) : !name ? (
        <Name name={name} setName={setName} />
      ) : show === "promotions" ? (
        <Promotions waiting={waiting} reviewer={name} standing={`${standing} ${decided}`} onDecided={() => decide(decided + 1)} />
      ) : show === "recordings" ? (
        <Recordings reviewer={name} key={name} />
      ) : (
        <Samples reviewer={name} key={name} />
      )}
    </>
  );
}

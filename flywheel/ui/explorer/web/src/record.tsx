// Where else an iteration is recorded: Prefect's runs, the Data Docs, git and DVC. Each is a link where it is served.
import type { ComponentChildren } from "preact";
import { type Row, useAnswer } from "./api";
import { label } from "./parts";

const { prefect, docs } = document.body.dataset;

export function Run({ id, children }: { id: string; children: ComponentChildren }) {
  if (!prefect) return <>{children}</>;
  return (
    <a href={`${prefect}/runs/flow-run/${encodeURIComponent(id)}`} target="_blank" rel="noopener">
      {children}
    </a>
  );
}

export function DataDocs() {
  if (!docs) return null;
  return (
    <a href={docs} target="_blank" rel="noopener">
      Data docs
    </a>
  );
}

export const useRevisions = () => useAnswer<Row[]>("/api/revisions").data ?? [];

export function Revision({ iteration, of }: { iteration: number; of: Row[] }) {
  const found = of.find((row) => row.tag === `iteration-${label(iteration)}`);
  if (!found) return <span class="soft">–</span>;
  return <code title={`commit ${found.commit}: git checkout ${found.tag} && dvc checkout`}>{found.tag}</code>;
}

// The editor of queries: CodeMirror, which knows the tables, views and columns there are.
import { autocompletion, closeBrackets, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { sql, SQLDialect } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";
import type { Row } from "./api";

const DuckDB = SQLDialect.define({
  keywords:
    "select from where group by order having limit offset union all intersect except with recursive as on using join inner left right full outer cross semi anti asof lateral distinct case when then else end and or not in is null like ilike between exists filter over partition rows range exclude replace describe show tables summarize values qualify window asc desc nulls first last cast try_cast pivot unpivot sample interval",
  types: "integer bigint double varchar boolean timestamp date time blob hugeint decimal",
  doubleDollarQuotedStrings: true,
});
const look = EditorView.theme({
  "&": { backgroundColor: "var(--card)", color: "var(--ink)", fontSize: "13.5px", minHeight: "120px", maxHeight: "40vh" },
  ".cm-scroller": { fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", overflow: "auto" },
  ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--soft)", borderRight: "1px solid var(--rule)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--track)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--rule)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", fontStyle: "normal", opacity: ".8" },
});
const highlight = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--bad)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--good)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
]);

interface Props {
  // What it holds at first, and each time that this is another object: what is typed is the editor's own.
  text: { is: string };
  names?: Row[];
  onChange: (text: string) => void;
  onRun: () => void;
}

export function Editor({ text, names, onChange, onRun }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const language = useRef(new Compartment());
  const calls = useRef({ onChange, onRun });
  calls.current = { onChange, onRun };
  useEffect(() => {
    view.current = new EditorView({
      parent: place.current!,
      state: EditorState.create({
        doc: text.is,
        extensions: [
          EditorView.cspNonce.of(document.body.dataset.nonce ?? ""),
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (calls.current.onRun(), true) }])),
          lineNumbers(),
          history(),
          drawSelection(),
          bracketMatching(),
          closeBrackets(),
          autocompletion(),
          keymap.of([...completionKeymap, ...historyKeymap, ...defaultKeymap]),
          language.current.of(sql({ dialect: DuckDB })),
          look,
          syntaxHighlighting(highlight),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": "SQL", spellcheck: "false" }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) calls.current.onChange(update.state.doc.toString());
          }),
        ],
      }),
    });
    return () => view.current?.destroy();
  }, []);
  useEffect(() => {
    const schema: Record<string, { label: string; type: string; detail: string; info?: string }[]> = {};
    for (const { table, name, type, meaning } of names ?? []) {
      (schema[table] ??= []).push({ label: name, type: "property", detail: type, info: meaning || undefined });
    }
    view.current?.dispatch({ effects: language.current.reconfigure(sql({ dialect: DuckDB, schema, upperCaseKeywords: false })) });
  }, [names]);
  useEffect(() => {
    const now = view.current;
    if (now && now.state.doc.toString() !== text.is) {
      now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: text.is } });
    }
  }, [text]);
  return <div class="editor" ref={place} />;
}

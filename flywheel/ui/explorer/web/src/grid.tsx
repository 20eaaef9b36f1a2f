// The grid, as all pages use it: rows that come from the server as they are scrolled to, or rows that are all here.
import {
  CellApiModule,
  CellStyleModule,
  ClientSideRowModelModule,
  type ColDef,
  ColumnApiModule,
  ColumnAutoSizeModule,
  createGrid,
  EventApiModule,
  type GridApi,
  type GridOptions,
  type IDatasource,
  InfiniteRowModelModule,
  ModuleRegistry,
  RowApiModule,
  ScrollApiModule,
  themeQuartz,
} from "ag-grid-community";
import { useEffect, useRef } from "preact/hooks";
import type { Row } from "./api";

ModuleRegistry.registerModules([
  CellApiModule,
  CellStyleModule,
  ClientSideRowModelModule,
  ColumnApiModule,
  ColumnAutoSizeModule,
  EventApiModule,
  InfiniteRowModelModule,
  RowApiModule,
  ScrollApiModule,
]);

const theme = themeQuartz.withParams({
  backgroundColor: "var(--card)",
  foregroundColor: "var(--ink)",
  headerTextColor: "var(--soft)",
  headerBackgroundColor: "var(--card)",
  borderColor: "var(--rule)",
  accentColor: "var(--accent)",
  rowHoverColor: "var(--track)",
  oddRowBackgroundColor: "var(--card)",
  wrapperBorderRadius: "10px",
  fontFamily: "inherit",
  fontSize: "14px",
  headerFontSize: "12.5px",
  spacing: "6px",
});

interface Props {
  name: string;
  columns: ColDef<Row>[];
  rowHeight: number;
  rows?: Row[];
  source?: IDatasource;
  // Shown again when this changes, where the reader is.
  again?: unknown;
  sort?: string;
  onSort?: (sort: string) => void;
  onOpen?: (row: Row) => void;
  header?: boolean;
}

export function Grid({ name, columns, rowHeight, rows, source, again, sort = "", onSort, onOpen, header = true }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const grid = useRef<GridApi<Row>>(undefined);
  const calls = useRef({ onSort, onOpen });
  calls.current = { onSort, onOpen };

  useEffect(() => {
    const options: GridOptions<Row> = {
      theme,
      styleNonce: document.body.dataset.nonce,
      columnDefs: sorted(columns, sort),
      rowHeight,
      headerHeight: header ? undefined : 0,
      defaultColDef: { sortable: !!onSort || !source, resizable: true, suppressMovable: true, sortingOrder: ["asc", "desc", null] },
      ensureDomOrder: true,
      enableCellTextSelection: true,
      suppressMultiSort: false,
      rowModelType: source ? "infinite" : "clientSide",
      ...(source ? { datasource: source, cacheBlockSize: 100, maxBlocksInCache: 30 } : { rowData: rows }),
      onSortChanged: ({ api }) => calls.current.onSort?.(order(api)),
      onCellKeyDown: ({ event, data }) => {
        if ((event as KeyboardEvent).key === "Enter" && data) calls.current.onOpen?.(data);
      },
    };
    grid.current = createGrid<Row>(place.current!, options);
    place.current!.querySelector("[role=grid],[role=treegrid]")?.setAttribute("aria-label", name);
    return () => grid.current?.destroy();
  }, [columns, header, source === undefined]);

  useEffect(() => {
    if (source && grid.current?.getGridOption("datasource") !== source) grid.current?.setGridOption("datasource", source);
  }, [source]);
  useEffect(() => {
    if (rows && grid.current?.getGridOption("rowData") !== rows) grid.current?.setGridOption("rowData", rows);
  }, [rows]);
  useEffect(() => {
    if (source && again) grid.current?.refreshInfiniteCache();
  }, [again]);
  useEffect(() => {
    if (grid.current && onSort && order(grid.current) !== sort) {
      grid.current.applyColumnState({ state: sorted(columns, sort).map(state), defaultState: { sort: null } });
    }
  }, [sort]);

  return <div class="grid" ref={place} />;
}

function order(api: GridApi<Row>): string {
  return api
    .getColumnState()
    .filter((column) => column.sort)
    .sort((a, b) => (a.sortIndex ?? 0) - (b.sortIndex ?? 0))
    .map((column) => (column.sort === "desc" ? "-" : "") + column.colId)
    .join(",");
}

function sorted(columns: ColDef<Row>[], sort: string): ColDef<Row>[] {
  const terms = sort.split(",").filter(Boolean);
  return columns.map((column) => {
    const at = terms.findIndex((term) => term.replace(/^-/, "") === column.field);
    return at < 0 ? column : { ...column, sort: terms[at].startsWith("-") ? "desc" : "asc", sortIndex: at };
  });
}

const state = ({ field, sort, sortIndex }: ColDef<Row>) => ({ colId: field!, sort: sort as "asc" | "desc" | null, sortIndex });

// A cell of elements; texts in them are texts.
export function element(tag: string, attributes: Record<string, string> = {}, ...children: (Node | string)[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Charts, as all pages use them: drawn by ECharts in the reader's colours, each with its figures as a table.
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { AriaComponent, GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import { type EChartsCoreOption, type EChartsType, init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";
import { useEffect, useRef } from "preact/hooks";
import type { Row } from "./api";
import { short, useDark } from "./parts";

use([AriaComponent, BarChart, CanvasRenderer, CustomChart, GridComponent, LegendComponent, LineChart, ScatterChart, TooltipComponent]);

export interface Colours {
  ink: string;
  soft: string;
  rule: string;
  card: string;
  // Of a domain, a store or `all`, as in the report.
  of: (name: string) => string;
}

const ORDER = ["one", "two", "six", "four", "three", "five", "seven", "domain-0", "domain-1", "domain-2", "domain-3", "other"];
export const colour = (colours: Colours, n: number) => colours.of(ORDER[n % ORDER.length]);

function colours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const own = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const probe = document.createElement("i");
  document.body.append(probe);
  const of = (name: string) => {
    probe.className = `tone-${name}`;
    return getComputedStyle(probe).getPropertyValue("--tone").trim() || own("accent");
  };
  const known = new Map([...ORDER, "all", "sft", "ct", "quarantine", "games", "sites", "control"].map((name) => [name, of(name)]));
  probe.remove();
  // Domains of any other name go by order of their letters, so that each keeps its colour.
  const spare = (name: string) => known.get(`domain-${[...name].reduce((sum, sign) => sum + sign.charCodeAt(0), 0) % 4}`)!;
  return { ink: own("ink"), soft: own("soft"), rule: own("rule"), card: own("card"), of: (name) => known.get(name) ?? spare(name) };
}

interface Props {
  title: string;
  note?: string;
  height?: number;
  option: (colours: Colours) => EChartsCoreOption;
  // The figures, for whoever does not see the picture.
  columns: string[];
  rows: Row[];
}

export function Chart({ title, note, height = 240, option, columns, rows }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const dark = useDark();
  useEffect(() => {
    const found = colours();
    const chart: EChartsType = init(place.current!, undefined, { renderer: "canvas" });
    chart.setOption({ ...common(found), ...option(found) });
    place.current!.setAttribute("aria-label", title);
    const watch = new ResizeObserver(() => chart.resize());
    watch.observe(place.current!);
    return () => {
      watch.disconnect();
      chart.dispose();
    };
  }, [option, dark, title]);
  return (
    <figure class="card chart">
      <figcaption>
        <h2>{title}</h2>
        {note && <p class="soft small">{note}</p>}
      </figcaption>
      <div ref={place} role="img" aria-label={title} style={{ height: `${height}px` }} />
      <details>
        <summary class="small">The figures</summary>
        <Figures columns={columns} rows={rows} name={title} />
      </details>
    </figure>
  );
}

export function Figures({ columns, rows, name }: { columns: string[]; rows: Row[]; name: string }) {
  return (
    <div class="wide" tabIndex={0} role="region" aria-label={`Figures: ${name}`}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th scope="col">{column.replaceAll("_", " ")}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, 500).map((row) => (
            <tr>
              {columns.map((column) => (
                <td>{short(row[column])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > 500 && <p class="soft small">The first 500 of {rows.length}.</p>}
    </div>
  );
}

function common(colours: Colours): EChartsCoreOption {
  return {
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colours.soft },
    grid: { left: 8, right: 14, top: 34, bottom: 4, containLabel: true },
    // Drawn on the canvas: markup with styles of its own is what the page's policy refuses.
    tooltip: { trigger: "axis", renderMode: "richText", confine: true, backgroundColor: colours.card, borderColor: colours.rule, textStyle: { color: colours.ink, fontSize: 12.5 } },
    // On one line, however narrow the page: what has no room there is a page of the legend further.
    legend: {
      ...{ type: "scroll", top: 0, left: 0, right: 0, icon: "roundRect", itemWidth: 12, itemHeight: 8, textStyle: { color: colours.soft, fontSize: 12 } },
      ...{ pageIconColor: colours.ink, pageIconInactiveColor: colours.rule, pageIconSize: 11, pageTextStyle: { color: colours.soft } },
    },
    aria: { enabled: false },
  };
}

export function axis(colours: Colours, more: object = {}): object {
  return {
    axisLine: { lineStyle: { color: colours.rule } },
    axisTick: { show: false },
    axisLabel: { color: colours.soft, fontSize: 11.5, hideOverlap: true },
    splitLine: { lineStyle: { color: colours.rule } },
    nameTextStyle: { color: colours.soft, fontSize: 11.5 },
    ...more,
  };
}

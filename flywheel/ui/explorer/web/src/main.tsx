import { Component, type ComponentChildren, type FunctionComponent, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { followLinks, useAddress } from "./address";
import { Failure, Loading } from "./parts";
import { Replay } from "./pages/replay";

// The pages in the navigation. Each is loaded when it is opened.
const PAGES: { path: string; title: string; page: FunctionComponent }[] = [
  { path: "/iterations", title: "Iterations", page: later(async () => (await import("./pages/iterations")).Iterations, "the iterations") },
  { path: "/trajectories", title: "Trajectories", page: later(async () => (await import("./pages/trajectories")).Trajectories, "the list") },
  { path: "/tasks", title: "Tasks", page: later(async () => (await import("./pages/tasks")).Tasks, "the tasks") },
  { path: "/compare", title: "Compare", page: later(async () => (await import("./pages/compare")).Compare, "the comparison") },
  { path: "/review", title: "Review", page: later(async () => (await import("./pages/review")).Review, "the review") },
  { path: "/sql", title: "SQL", page: later(async () => (await import("./pages/sql")).Sql, "the editor") },
];

// A page that fails says so, and leaves the others alone.
class Caught extends Component<{ children: ComponentChildren }, { error?: string }> {
  componentDidCatch(error: Error) {
    this.setState({ error: error.message });
  }
  render() {
    return this.state.error ? <Failure error={this.state.error} /> : this.props.children;
  }
}

function later(load: () => Promise<FunctionComponent>, what: string): FunctionComponent {
  return function Later() {
    const [found, set] = useState<{ Page?: FunctionComponent; error?: string }>({});
    useEffect(() => void load().then((Page) => set({ Page }), (error) => set({ error: error.message })), []);
    if (found.error) return <Failure error={found.error} />;
    return found.Page ? <found.Page /> : <Loading what={what} />;
  };
}

function App() {
  const url = useAddress();
  const one = /^\/trajectories\/([^/]+)$/.exec(url.pathname);
  const here = PAGES.find(({ path }) => url.pathname === path || url.pathname.startsWith(`${path}/`));
  const title = here?.title ?? "Nothing";
  const page = one ? <Replay id={decodeURIComponent(one[1])} key={one[1]} /> : here ? <here.page /> : <Lost />;
  useEffect(() => {
    if (!one) document.title = `${title} · ${document.body.dataset.workspace}`;
  }, [url.pathname]);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <header class="top">
        <a class="name" href="/iterations">
          <img src="/static/wheel.svg" alt="" width="22" height="22" /> flywheel <span>{document.body.dataset.workspace}</span>
        </a>
        <nav aria-label="Pages">
          {PAGES.map(({ path, title }) => (
            <a href={path} aria-current={here?.path === path ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" tabIndex={-1} key={one ? "one" : here?.path}>
        <Caught>{page}</Caught>
      </main>
    </>
  );
}

function Lost() {
  return <Failure error="There is no such page. The address may be of another version." />;
}

followLinks();
const place = document.getElementById("app")!;
place.replaceChildren();
render(<App />, place);

// Services that run in a session's machine, opened by their ports.
const PARTS = `
<form><label>Port <input name="port" inputmode="numeric" size="6" pattern="[0-9]+" required></label>
  <button>Open the service</button></form>
<p>The agent, or you in the shell, may have started it. It opens as a page of its own, which is kept apart from this one.
  Where its links begin with <code>/</code>, start it below this address, and open it with the second button:</p>
<pre tabindex="0" aria-label="Address"></pre>
<button class="whole">Open it below this address</button>
<p>Jupyter, for one, where it is installed:</p>
<pre tabindex="0" aria-label="Command for Jupyter"></pre>`;

export function services(place, session) {
  const box = document.createElement("div");
  box.innerHTML = PARTS;
  const [address, jupyter] = box.querySelectorAll("pre");
  const form = box.querySelector("form");
  const port = form.querySelector("input");
  const go = (base) => {
    if (form.reportValidity()) window.open(`${base}${Number(port.value)}/`, "_blank", "noopener,noreferrer");
  };
  const show = () => {
    const whole = `${session.whole}${/^[0-9]+$/.test(port.value) ? Number(port.value) : "PORT"}/`;
    address.textContent = whole;
    jupyter.textContent =
      `jupyter lab --no-browser --port=${Number(port.value) || "PORT"} --ServerApp.base_url=${whole} ` +
      "--IdentityProvider.token='' --ServerApp.disable_check_xsrf=True";
  };
  port.addEventListener("input", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(session.services);
  });
  box.querySelector(".whole").addEventListener("click", () => go(session.whole));
  show();
  place.replaceChildren(box);
  return { close() {} };
}

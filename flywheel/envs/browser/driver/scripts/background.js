// Put a picture below all that a cover page shows; source: its address.
(source) => {
  const screen = document.getElementById("flywheel-screen") ?? document.body.appendChild(new Image());
  screen.id = "flywheel-screen";
  screen.style.cssText = "position:fixed;inset:0;width:100vw;height:100vh;z-index:-1;pointer-events:none";
  screen.src = source;
  return screen.decode();
}

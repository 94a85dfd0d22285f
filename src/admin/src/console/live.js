// Requests the page again every 2 s while it is visible, and replaces its content.
"use strict";
const INTERVAL_MS = 2000;
async function refresh() {
  if (document.visibilityState === "visible" && !document.querySelector("main :focus")) {
    try {
      const response = await fetch(location.href, { cache: "no-store" });
      if (!response.ok) throw new Error(`the server responded with ${response.status}`);
      const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
      if (next) document.querySelector("main").replaceChildren(...next.childNodes);
    } catch (error) {
      let note = document.getElementById("stale");
      if (!note) {
        note = Object.assign(document.createElement("p"), { id: "stale", className: "bad" });
        note.setAttribute("role", "status");
        document.querySelector("main").prepend(note);
      }
      note.textContent = `These numbers are not current: ${error.message}`;
    }
  }
  setTimeout(refresh, INTERVAL_MS);
}
setTimeout(refresh, INTERVAL_MS);

// Pages are whole without this. It follows a run's events, and sends a form when a choice changes.
"use strict";

const main = document.getElementById("main");
const AT_LEAST_MS = 1000; // between two looks at a run

function follow(address, kinds) {
  const source = new EventSource(address);
  let timer = null;
  let last = 0;

  async function refresh() {
    timer = null;
    last = Date.now();
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.status === 401) location.reload();
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const now = fresh.getElementById(part.id);
      if (now) part.replaceWith(document.adoptNode(now));
    }
    if (!fresh.getElementById("main").dataset.follow) source.close();
  }

  function told() {
    if (timer === null) {
      timer = setTimeout(() => refresh().catch(() => {}), Math.max(150, last + AT_LEAST_MS - Date.now()));
    }
  }
  for (const kind of kinds) source.addEventListener(kind, told);
}

if (main.dataset.follow) follow(main.dataset.follow, main.dataset.events.split(" "));

for (const choice of document.querySelectorAll("[data-submits]")) {
  choice.addEventListener("change", () => {
    choice.form.requestSubmit(document.getElementById(choice.dataset.submits));
  });
}
